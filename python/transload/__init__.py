"""Transload: training with optimizer state in host memory and on NVMe, within budgets.

`transload.AdamW` is the optimizer for PyTorch; only it needs PyTorch. `python -m transload` is the command line.
"""
from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING, Any

from transload.sizes import parse_size

if TYPE_CHECKING:
    from transload.adamw import AdamW

__all__ = ["AdamW", "parse_size", "__version__"]

__version__ = importlib.metadata.version("transload")


def __getattr__(name: str) -> Any:
    if name == "AdamW":
        from transload.adamw import AdamW

        return AdamW
    raise AttributeError(f"module 'transload' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
