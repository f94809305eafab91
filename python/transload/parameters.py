"""What can be stepped, what it is called in messages, and where its bytes are."""
from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from transload import _core

ELEMENT_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""The core's numbers for the types of weights and gradients."""


PLACES = ("cpu", "cuda")
"""Types of devices whose tensors can be stepped."""


def place_of(tensor: torch.Tensor) -> int:
    """The core's number for where a tensor of these devices is: -1 for the CPU, else the CUDA device."""
    return -1 if tensor.is_cpu else tensor.get_device()


def host_copy(parameter: torch.Tensor) -> torch.Tensor:
    """Its elements in order in memory of the host; not copied where they lie there so."""
    return parameter.detach().contiguous().cpu()


def flatten(groups: list[dict[str, Any]]) -> list[torch.Tensor]:
    """All parameters of the groups, in order."""
    return [p for group in groups for p in group["params"]]


def names_of(groups: list[dict[str, Any]]) -> list[str]:
    """A name for each parameter of flatten(groups): the one that torch carries, else group, position and shape."""
    names = []
    for g, group in enumerate(groups):
        given = group.get("param_names")
        for i, p in enumerate(group["params"]):
            if given is not None and i < len(given):
                names.append(str(given[i]))
            else:
                names.append(f"group {g} parameter {i} (shape {shape_text(p.shape)})")
    return names


def shape_text(shape: torch.Size) -> str:
    return "×".join(map(str, shape)) if shape else "()"


def check_place(parameter: torch.Tensor, name: str) -> None:
    """The one place that decides whether a parameter can be stepped where it is.

    NotImplementedError for devices other than the CPU and CUDA's, for those where they cannot be used, and for tensors
    that stand for others (DTensor, quantized wrappers); TypeError for element types other than fp32, bf16 and fp16.
    """
    device = parameter.device.type
    if device == "meta":
        raise NotImplementedError(f"{name} is on the meta device: materialise it before the first step or load.")
    if device not in PLACES:
        raise NotImplementedError(f"{name} is on {parameter.device}: transload.AdamW steps parameters on CPU and CUDA.")
    if device == "cuda" and (reason := _core.cuda_unavailable()):
        raise NotImplementedError(f"{name} is on {parameter.device}, where it cannot be stepped: {reason}.")
    if parameter.dtype not in ELEMENT_TYPES:
        raise TypeError(f"{name} is {parameter.dtype}: transload.AdamW steps float32, bfloat16 and float16.")
    if parameter.layout != torch.strided or is_traceable_wrapper_subclass(parameter):
        raise NotImplementedError(f"{name} is a {torch.typename(parameter)} ({parameter.layout}): only plain tensors.")
