"""What the parameter groups say: values of AdamW at the moment of step, and what is refused."""
from __future__ import annotations

import json
from typing import Any

import torch

_REFUSED = ("amsgrad", "maximize", "capturable", "differentiable")


def check_group(group: dict[str, Any]) -> None:
    """ValueError where the group asks for something that is not done here."""
    for key in _REFUSED:
        if group.get(key):
            raise ValueError(f"{key}=True is not supported by transload.AdamW.")
    if not group.get("decoupled_weight_decay", True):
        raise ValueError("decoupled_weight_decay=False is Adam; transload.AdamW decays weights decoupled.")


def values_of(group: dict[str, Any]) -> tuple[float, float, float, float, float]:
    """lr, beta1, beta2, eps and weight decay; numbers or tensors of one element. ValueError for others."""
    beta1, beta2 = group["betas"]
    given = (("lr", group["lr"]), ("betas[0]", beta1), ("betas[1]", beta2))
    given += (("eps", group["eps"]), ("weight_decay", group["weight_decay"]))
    lr, beta1, beta2, eps, decay = (_number(value, name) for name, value in given)
    return lr, beta1, beta2, eps, decay


def _number(value: Any, name: str) -> float:
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise ValueError(f"Tensor {name} must be 1-element")
        value = value.item()
    if isinstance(value, str):
        raise TypeError(f"{name} is the text {value!r}, not a number.")
    return float(value)


def pack(groups: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[torch.Tensor, int]]:
    """The groups with parameters replaced by ids, and the ids, as a state_dict of torch.optim has them."""
    ids: dict[torch.Tensor, int] = {}
    result, first = [], 0
    for group in groups:
        parameters = group["params"]
        ids |= {p: i for i, p in enumerate(parameters, first) if p not in ids}
        rest = {key: value for key, value in group.items() if key != "params"}
        result.append({**rest, "params": [ids[p] for p in parameters]})
        first += len(parameters)
    return result, ids


def check_ids(groups: list[dict[str, Any]]) -> set[int]:
    """The ids in packed groups. ValueError where "params" is not a list of numbers from 0."""
    ids: set[int] = set()
    for group in groups:
        listed = group["params"]
        if not isinstance(listed, list) or not all(type(i) is int and i >= 0 for i in listed):
            raise ValueError(f'"params" of a group is {listed!r}, not a list of positions')
        ids |= set(listed)
    return ids


def check_sizes(groups: list[dict[str, Any]], saved: list[dict[str, Any]]) -> None:
    """torch.optim's ValueErrors where saved groups do not fit."""
    if len(groups) != len(saved):
        raise ValueError("loaded state dict has a different number of parameter groups")
    if any(len(g["params"]) != len(s.get("params", ())) for g, s in zip(groups, saved)):
        raise ValueError(
            "loaded state dict contains a parameter group that doesn't match the size of optimizer's group"
        )


def merged(
    groups: list[dict[str, Any]], saved: list[dict[str, Any]], defaults: dict[str, Any]
) -> list[dict[str, Any]]:
    """Saved groups over the parameters of the present ones, with every key of AdamW."""
    result = []
    for group, new in zip(groups, saved):
        new = {**new, "params": group["params"]}
        for key in (*defaults, "param_names"):
            if key in group:
                new.setdefault(key, group[key])
        if "decoupled_weight_decay" in defaults:
            new["decoupled_weight_decay"] = True
        result.append(new)
    return result


def to_json(groups: list[dict[str, Any]]) -> str:
    """Packed groups, or other dicts, as text. TypeError by key for what JSON cannot say and is no tensor."""
    return json.dumps([{key: _plain(value, key) for key, value in group.items()} for group in groups])


def from_json(text: str) -> list[dict[str, Any]]:
    """The opposite. ValueError where it is not that."""
    groups = json.loads(text)
    if not isinstance(groups, list) or not all(isinstance(g, dict) for g in groups):
        raise ValueError("no list of groups")
    return [{key: _restored(value) for key, value in group.items()} for group in groups]


def _plain(value: Any, key: str) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [_plain(item, key) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_plain(item, key) for item in value]}
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {"dict": {name: _plain(item, key) for name, item in value.items()}}
    if isinstance(value, torch.Tensor):
        return {"tensor": value.tolist(), "dtype": str(value.dtype).removeprefix("torch.")}
    raise TypeError(f'"{key}" is a {type(value).__name__}, which opt.save cannot write.')


def _restored(value: Any) -> Any:
    if isinstance(value, list):
        return [_restored(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(_restored(item) for item in value["tuple"])
    if "dict" in value:
        return {name: _restored(item) for name, item in value["dict"].items()}
    return torch.tensor(value["tensor"], dtype=getattr(torch, value["dtype"]))
