"""The planes of a parameter's state as PyTorch names them, streamed between tensors and the core in bounded pieces."""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch

from transload import _core

if TYPE_CHECKING:
    from transload.offload import Entry

PLANES = {"exp_avg": 0, "exp_avg_sq": 1, "master": 2}
"""The core's numbers for them."""

PIECE = 2 << 20
"""Elements that are in flight at a time: 8 MiB of fp32; a multiple of the 1024 that the core asks for."""


def pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The elements in logical order as flat fp32 tensors on the CPU, PIECE at a time.

    fp32 on the CPU is not copied. A tensor that is not contiguous is copied whole.
    """
    flat = tensor.detach().contiguous().view(-1)
    for first in range(0, flat.numel(), PIECE):
        yield flat[first : first + PIECE].to(device="cpu", dtype=torch.float32)


def zeros(elements: int) -> Iterator[torch.Tensor]:
    """As many zeros, in pieces that share memory."""
    piece = torch.zeros(min(elements, PIECE))
    for first in range(0, elements, PIECE):
        yield piece[: min(PIECE, elements - first)]


def read_all(core: _core.Core, entry: Entry, plane: int, weight: torch.Tensor | None, address: int) -> None:
    """A whole plane, fp32, to an address; `weight`: the parameter's host_copy, for the master."""
    elements = entry.shape.numel()
    if elements > 0:
        core.read(entry.tensor, plane, 0, elements, weight.data_ptr() if weight is not None else 0, address)


def read_pieces(
    core: _core.Core, entry: Entry, plane: int, weight: torch.Tensor | None, buffers: Iterator[bytearray]
) -> Iterator[memoryview]:
    """A whole plane, fp32, each piece in the next of the buffers, which hold PIECE elements."""
    elements = entry.shape.numel()
    for first in range(0, elements, PIECE):
        count = min(PIECE, elements - first)
        buffer = next(buffers)
        address = torch.frombuffer(buffer, dtype=torch.float32).data_ptr()
        core.read(entry.tensor, plane, first, count, weight.data_ptr() if weight is not None else 0, address)
        yield memoryview(buffer)[: 4 * count]


def write_all(
    core: _core.Core, entry: Entry, plane: int, values: Iterable[torch.Tensor], weight: torch.Tensor | None
) -> None:
    """A whole plane from fp32 pieces of PIECE elements in order; `weight`: a host_copy, gets the rounded master."""
    first = 0
    for piece in values:
        address = weight.data_ptr() if weight is not None else 0
        core.write(entry.tensor, plane, first, piece.numel(), piece.data_ptr(), address)
        first += piece.numel()
