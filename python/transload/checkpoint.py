"""opt.save and opt.load: the state as one safetensors file, streamed.

Keys are "{position}.step" (I64) and "{position}.exp_avg", ".exp_avg_sq", ".master" (F32, the parameter's shape); the
position is that in the flattened groups. The groups lie in the metadata as JSON, and a checksum of the whole file: xxh3 of
the xxh3s of the header (the checksum's own digits as zeros) and of each 8 MiB of what follows.
"""
from __future__ import annotations

import json
import math
import mmap
import os
import pathlib
import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from transload import _core
from transload import groups as grouping
from transload.planes import PLANES
from transload.snapshot import tensor_at, write_planes

if TYPE_CHECKING:
    from transload.offload import OffloadedState

_FORMAT = "transload.AdamW 1"
_PIECE = 8 << 20
_NO_CHECKSUM = b"0" * 32
_TYPES = {"I64": (torch.int64, 8), "F32": (torch.float32, 4)}


def save(
    path: str | os.PathLike[str],
    state: OffloadedState,
    groups: list[dict[str, Any]],
    own: Callable[[torch.Tensor], dict[str, Any]],
) -> None:
    """Writes the file beside itself, makes it durable, then gives it its name. OSError where the disk fails.

    `own`: what others put beside a parameter's moments; TypeError where JSON cannot say it.
    """
    packed, ids = grouping.pack(groups)
    positions = _positions(state, ids)
    header = json.dumps(_header(state, packed, positions, own)).encode()
    header += b" " * (-len(header) % 8)
    target = pathlib.Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.write(b"".join(struct.pack("<q", state.step_count(p)) for p in positions))
            write_planes(state, list(positions), file)
        with open(temporary, "r+b") as file:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapping:
                checksum = _checksum(header, mapping, 8 + len(header))
            file.seek(8 + header.index(_NO_CHECKSUM))
            file.write(checksum)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(temporary):
            error.filename = str(target)
        raise
    _sync_folder(target.parent)


def _positions(state: OffloadedState, ids: dict[torch.Tensor, int]) -> dict[torch.Tensor, int]:
    """The parameters that have state, by position."""
    return {p: i for p, i in ids.items() if p in state.entries and state.entries[p].live}


def _header(
    state: OffloadedState,
    packed: list[dict[str, Any]],
    positions: dict[torch.Tensor, int],
    own: Callable[[torch.Tensor], dict[str, Any]],
) -> dict[str, Any]:
    others = [{"position": i, **own(p)} for p, i in positions.items() if own(p)]
    metadata = {"format": _FORMAT, "checksum": _NO_CHECKSUM.decode(), "groups": grouping.to_json(packed), "own": grouping.to_json(others)}
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0

    def add(key: str, kind: str, shape: list[int], size: int) -> None:
        nonlocal end
        header[key] = {"dtype": kind, "shape": shape, "data_offsets": [end, end + size]}
        end += size

    for position in positions.values():
        add(f"{position}.step", "I64", [], 8)
    for parameter, position in positions.items():
        shape = state.entries[parameter].shape
        for name in state.plane_names(parameter):
            add(f"{position}.{name}", "F32", list(shape), 4 * shape.numel())
    return header


def _checksum(header: bytes, mapping: mmap.mmap, base: int) -> bytes:
    """32 hexadecimal digits of a file whose content after `base` bytes is the mapping's."""
    digests = [_digest(bytearray(header), 0, len(header))]
    digests += [_digest(mapping, at, min(_PIECE, len(mapping) - at)) for at in range(base, len(mapping), _PIECE)]
    together = bytearray(b"".join(digests))
    return _digest(together, 0, len(together)).hex().encode()


def _digest(buffer: bytearray | mmap.mmap, offset: int, size: int) -> bytes:
    if size == 0:
        return b""
    return _core.digest(torch.frombuffer(buffer, dtype=torch.uint8, count=size, offset=offset).data_ptr(), size)


def _sync_folder(folder: pathlib.Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The file as a state_dict whose tensors are its mapped bytes.

    OSError where it cannot be read or is cut short, ValueError where it is not a file of opt.save.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        header, base = _read_header(file, size, path)
        mapping = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    mapping.madvise(mmap.MADV_SEQUENTIAL)
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict) or metadata.get("format") != _FORMAT:
        raise ValueError(f"{path} was not written by opt.save of transload.AdamW.")
    try:
        groups = grouping.from_json(metadata["groups"])
        known = grouping.check_ids(groups)
        rows = [(_place(key, known), *_row(row)) for key, row in header.items()]
        end = max((end for *_, end in rows), default=0)
        if base + end != size:
            raise OSError(f"{path} has {size} bytes, its header tells of {base + end}: it was cut short or changed.")
        _check_gapless((first, end) for *_, first, end in rows)
        state: dict[int, dict[str, torch.Tensor]] = {}
        for (position, name), dtype, shape, first, _ in rows:
            state.setdefault(position, {})[name] = tensor_at(mapping, base + first, shape, dtype)
        for others in grouping.from_json(metadata["own"]):
            state[others.pop("position")].update(others)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged: its header makes no sense ({error}).") from error
    written = str(metadata.get("checksum", "")).encode()
    raw = mapping[8:base].replace(written, _NO_CHECKSUM, 1) if len(written) == len(_NO_CHECKSUM) else b""
    if _checksum(raw, mapping, base) != written:
        raise OSError(f"{path} is damaged: its content is not what its checksum says. Load another copy.")
    return {"state": state, "param_groups": groups}


def _read_header(file: Any, size: int, path: Any) -> tuple[dict[str, Any], int]:
    start = file.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
    if 8 + length > size:
        raise OSError(f"{path} has {size} bytes, less than its header: it was cut short, or is no safetensors file.")
    try:
        header = json.loads(file.read(length))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no safetensors file ({error}).") from error
    if not isinstance(header, dict):
        raise ValueError(f"{path} is no safetensors file.")
    return header, 8 + length


def _place(key: str, known: set[int]) -> tuple[int, str]:
    position, name = key.split(".")
    if not position.isdecimal() or int(position) not in known or (name != "step" and name not in PLANES):
        raise ValueError(f"{key} belongs to no parameter of the groups")
    return int(position), name


def _row(row: dict[str, Any]) -> tuple[torch.dtype, torch.Size, int, int]:
    """Type, shape and the bytes [first, end) after the header."""
    dtype, bytes_each = _TYPES[row["dtype"]]
    shape = torch.Size(row["shape"])
    first, end = row["data_offsets"]
    if any(extent < 0 for extent in shape) or first < 0 or end - first != bytes_each * math.prod(shape):
        raise ValueError(f"offsets {first} to {end} do not fit shape {list(shape)}")
    return dtype, shape, first, end


def _check_gapless(ranges: Iterable[tuple[int, int]]) -> None:
    """As safetensors has it: every byte belongs to one tensor."""
    at = 0
    for first, end in sorted(ranges):
        if first != at:
            raise ValueError(f"a tensor begins at {first}, where the one before it ends at {at}")
        at = end
