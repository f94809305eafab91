"""The state as plain tensors over a scratch file, so that showing all of it takes no anonymous memory.

The file has no name from its first moment; its mapping is private: writing to a tensor changes neither the file nor
the optimizer. The room on the disk is given back with the last tensor.
"""
from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import cycle
from typing import TYPE_CHECKING, Any, BinaryIO

import torch

from transload.parameters import host_copy
from transload.planes import PIECE, PLANES, read_pieces

if TYPE_CHECKING:
    from transload.offload import OffloadedState


def write_planes(state: OffloadedState, parameters: list[torch.Tensor], file: BinaryIO) -> None:
    """The planes of the parameters, one after the other, as fp32. OSError where the disk is full or fails.

    While one piece is written the next one is read.
    """
    with ThreadPoolExecutor(1) as writer:
        written: Future[int] | None = None
        for piece in _all_pieces(state, parameters):
            if written is not None:
                written.result()
            written = writer.submit(file.write, piece)
        if written is not None:
            written.result()


def _all_pieces(state: OffloadedState, parameters: list[torch.Tensor]) -> Iterator[memoryview]:
    """In two buffers by turns: a piece is good until the next but one is asked for."""
    buffers = cycle((bytearray(4 * PIECE), bytearray(4 * PIECE)))
    for parameter in parameters:
        entry = state.entries[parameter]
        for name in state.plane_names(parameter):
            weight = host_copy(parameter) if name == "master" else None
            yield from read_pieces(state.core, entry, PLANES[name], weight, buffers)


@torch.inference_mode(False)
def snapshot(state: OffloadedState, parameters: list[torch.Tensor]) -> list[dict[str, Any]]:
    """For each parameter "step" and its planes, as tensors with the values of now.

    The file lies in the optimizer's folder on NVMe, or in the system's folder for temporary files.
    """
    with tempfile.TemporaryFile(dir=state.options.nvme or None) as file:
        write_planes(state, parameters, file)
        file.flush()
        size = file.tell()
        mapping = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) if size > 0 else None
    planes = _tensors(state, parameters, mapping)
    return [{"step": torch.tensor(float(state.step_count(p))), **values} for p, values in zip(parameters, planes)]


def _tensors(
    state: OffloadedState, parameters: list[torch.Tensor], mapping: mmap.mmap | None
) -> Iterator[dict[str, torch.Tensor]]:
    offset = 0
    for parameter in parameters:
        shape = state.entries[parameter].shape
        values = {}
        for name in state.plane_names(parameter):
            values[name] = tensor_at(mapping, offset, shape)
            offset += 4 * shape.numel()
        yield values


def tensor_at(
    mapping: mmap.mmap | None, offset: int, shape: torch.Size, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """A tensor at `offset` bytes of a mapping, without a copy, with a storage of its own."""
    if shape.numel() == 0:
        return torch.empty(shape, dtype=dtype)
    assert mapping is not None
    return torch.frombuffer(mapping, dtype=dtype, count=shape.numel(), offset=offset).view(shape)
