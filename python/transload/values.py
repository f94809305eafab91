"""Checks of a parameter's state as a user or a file gives it."""
from __future__ import annotations

from typing import Any

import torch

from transload.parameters import shape_text
from transload.planes import PLANES

LIMIT = 2**53
"""Above every count of steps."""


def step_of(value: Any, name: str) -> int:
    """A count of steps from a number or a tensor of one element. ValueError by name for anything else."""
    if isinstance(value, torch.Tensor) and value.numel() == 1 and value.device.type != "meta":
        value = value.item()
    if isinstance(value, (int, float)) and 0 <= value < LIMIT and value == int(value):
        return int(value)
    raise ValueError(f'The state of {name} has a "step" that is not a whole number from 0: {value!r}.')


def check_values(values: Any, parameter: torch.Tensor, name: str) -> None:
    """ValueError by name unless "step" and planes are as AdamW's. Other keys are their owner's business."""
    if not isinstance(values, dict):
        raise ValueError(f"The state of {name} is a {type(values).__name__}, not a dict.")
    if "step" in values:
        step_of(values["step"], name)
    for key in PLANES:
        if key in values:
            check_plane(values[key], key, parameter, name)


def check_complete(values: Any, parameter: torch.Tensor, name: str) -> None:
    """check_values, and nothing is missing but a master. ValueError by name."""
    check_values(values, parameter, name)
    for key in ("step", "exp_avg", "exp_avg_sq"):
        if key not in values:
            raise ValueError(f'The state of {name} has no "{key}".')


def check_plane(value: Any, key: str, parameter: torch.Tensor, name: str) -> None:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.layout != torch.strided:
        raise ValueError(f'"{key}" in the state of {name} is not a plain floating-point tensor.')
    if value.device.type == "meta":
        raise ValueError(f'"{key}" in the state of {name} is on the meta device: it has no values.')
    if value.shape != parameter.shape:
        raise ValueError(
            f'"{key}" in the state of {name} has shape {shape_text(value.shape)}; '
            f"the parameter has {shape_text(parameter.shape)}."
        )
