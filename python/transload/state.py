"""opt.state: the state of each parameter as plain tensors, read from the core when somebody asks.

What was read is held, and charged to the budget, until the next step. Then, and before anything else that needs the
core to be right, it is compared (by hash) with what was read, and what the user changed is written back.
"""
from __future__ import annotations

import mmap
import sys
from collections import defaultdict
from collections.abc import ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from typing import Any

import torch

from transload import _core
from transload.offload import OffloadedState
from transload.planes import PLANES, pieces, zeros
from transload.snapshot import snapshot
from transload.values import check_values, step_of

_MAPPED = 64 << 10
"""Bytes from which a tensor gets pages of its own, which go back to the system at once."""


class Held:
    """One parameter's dict, as the user sees it, and what is known of what it was when it was read."""

    __slots__ = ("view", "buffers", "digests", "absent")

    def __init__(self, view: dict[str, Any], absent: bool = False) -> None:
        self.view = view
        self.absent = absent
        """There was no state to show: an empty dict, as a defaultdict gives it."""
        self.buffers: dict[str, bytearray | mmap.mmap] = {}
        self.digests: dict[str, bytes] = {}

    @property
    def bytes(self) -> int:
        return sum(map(len, self.buffers.values()))


class StateMap(MutableMapping, defaultdict):
    """A defaultdict(dict) of parameters, as torch.optim has it. Values are read when asked for, not before.

    Keys that are not parameters in the layout are kept as they are. Not for use from several threads.
    """

    def __init__(self, state: OffloadedState) -> None:
        defaultdict.__init__(self, dict)
        self._state = state
        self._held: dict[Any, Held] = {}
        self._spilled: dict[Any, dict[str, Any]] = {}
        self._own: dict[Any, dict[str, Any]] = {}
        state.adopted = self._rename

    def _rename(self, old: torch.Tensor, new: torch.Tensor) -> None:
        for known in (self._held, self._spilled, self._own):
            if old in known:
                known[new] = known.pop(old)  # type: ignore[attr-defined]

    # The mapping.

    def __getitem__(self, key: Any) -> dict[str, Any]:
        return self._show(key, spill=False)

    def items(self) -> _Items:  # type: ignore[override]
        """Pairs, one after the other: what does not fit into the budget is shown over a scratch file."""
        return _Items(self)

    def values(self) -> _Values:  # type: ignore[override]
        """As items()."""
        return _Values(self)

    def __setitem__(self, key: Any, values: Any) -> None:
        if isinstance(key, torch.Tensor) and not isinstance(values, dict):
            raise TypeError(f"The state of a parameter is a dict, not a {type(values).__name__}.")
        held = self._held.get(key)
        if held is None:
            self._held[key] = Held(values)
        else:
            held.view = values

    def __delitem__(self, key: Any) -> None:
        if key not in self:
            raise KeyError(key)
        for known in (self._held, self._spilled, self._own):
            known.pop(key, None)
        if self._live(key):
            self._state.reset(key)

    def __contains__(self, key: object) -> bool:
        return key in self._held or self._live(key)

    def __iter__(self) -> Iterator[Any]:
        keys = [p for p, entry in self._state.entries.items() if entry.live]
        shown = set(keys)
        return iter(keys + [key for key in self._held if key not in shown])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key] if key in self else default

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: Any, *default: Any) -> Any:
        if key not in self and default:
            return default[0]
        value = self[key] if key in self else None
        del self[key]
        return value

    def clear(self) -> None:
        for key in list(self):
            del self[key]

    def replace(self, values: Mapping[Any, Any]) -> None:
        """What `optimizer.state = values` means."""
        given = dict(values.items())
        for key in [key for key in self if key not in given]:
            del self[key]
        self.update(given)

    def copy(self) -> dict[Any, Any]:
        return dict(self.items())

    __copy__ = copy

    def __reduce__(self) -> tuple[Any, ...]:
        return defaultdict, (dict, self.copy())

    def __repr__(self) -> str:
        return f"<transload.AdamW state of {len(self)} parameters, read when asked for>"

    # What the optimizer does with it.

    @property
    def assigned(self) -> list[torch.Tensor]:
        """Parameters to which the user gave state that the core does not have yet."""
        return [key for key, held in self._held.items() if isinstance(key, torch.Tensor) and held.view]

    @property
    def others(self) -> dict[Any, Any]:
        """Entries under keys that are no parameters of the layout."""
        return {key: held.view for key, held in self._held.items() if key not in self._state.entries and held.view}

    @property
    def held_bytes(self) -> int:
        """Memory of the tensors that were read here."""
        return sum(held.bytes for held in self._held.values())

    def write_back(self) -> None:
        """Brings the core up to what the user sees. ValueError by name where that is no state of AdamW."""
        for key, held in self._held.items():
            if key in self._state.entries:
                self._write_back(key, held)

    def release(self) -> None:
        """Forgets what is held; what was not written back stays where the layout does not know the parameter."""
        if not self._held:
            return
        for key, held in self._held.items():
            if key in self._state.entries:
                self._own[key] = _own_of(held.view)
        self._held = {k: held for k, held in self._held.items() if k not in self._state.entries and held.view}
        self._spilled = {}
        if self._state.built:
            self._state.core.reserve(0)

    def forget(self) -> None:
        """Forgets everything without writing back: the state was replaced."""
        self._held, self._spilled, self._own = {}, {}, {}
        if self._state.built:
            self._state.core.reserve(0)

    def own(self, parameter: torch.Tensor) -> dict[str, Any]:
        """What others put beside the moments of a parameter."""
        held = self._held.get(parameter)
        return _own_of(held.view) if held is not None else self._own.get(parameter, {})

    def put_own(self, parameter: torch.Tensor, values: dict[str, Any]) -> None:
        """Takes over what of the values is not AdamW's."""
        self._own[parameter] = _own_of(values)

    # Reading.

    def _live(self, key: Any) -> bool:
        entry = self._state.entries.get(key) if isinstance(key, torch.Tensor) else None
        return entry is not None and entry.live

    def _show(self, key: Any, spill: bool) -> dict[str, Any]:
        held = self._held.get(key)
        if held is None:
            held = self._held_for(key, spill) if self._live(key) else Held({}, absent=True)
            held.view.update(self._own.get(key, {}))
            self._held[key] = held
        return held.view

    def _held_for(self, parameter: torch.Tensor, spill: bool) -> Held:
        if parameter not in self._spilled:
            try:
                return self._read(parameter)
            except MemoryError:
                if not spill:
                    raise
            self._spill()
        held = Held(dict(self._spilled[parameter]))
        held.digests = {name: _core.digest(v.data_ptr(), v.nbytes) for name, v in held.view.items() if name in PLANES}
        return held

    def _spill(self) -> None:
        """Everything that is not held, over one scratch file until the next step."""
        rest = [p for p, entry in self._state.entries.items() if entry.live and p not in self._held]
        self._spilled = dict(zip(rest, snapshot(self._state, rest)))

    @torch.inference_mode(False)
    def _read(self, parameter: torch.Tensor) -> Held:
        state = self._state
        shape = state.entries[parameter].shape
        names = state.plane_names(parameter)
        step = state.step_count(parameter)
        self._charge(4 * shape.numel() * len(names), parameter)
        held = Held({"step": torch.tensor(float(step), dtype=torch.float32)})
        for name in names:
            buffer = _buffer(4 * shape.numel())
            tensor = _tensor_over(buffer, shape)
            state.read(parameter, name, tensor.data_ptr())
            held.view[name] = tensor
            held.buffers[name] = buffer
            held.digests[name] = _digest(tensor)
        return held

    def _charge(self, more: int, parameter: torch.Tensor) -> None:
        """Takes room for what is held and `more` bytes from the budget. MemoryError naming opt.save."""
        reserve = self._state.core.reserve
        if reserve(self.held_bytes + more):
            return
        for key in list(self._held):
            self._let_go(key)
        if reserve(self.held_bytes + more):
            return
        name = self._state.entries[parameter].name
        budget, spare = self._state.core.report()["host_budget"], self._state.core.reservable()
        raise MemoryError(
            f"opt.state of {name} takes {more} bytes beside {self.held_bytes} that are held until the next step; the "
            f"budget of {budget} can spare {spare}. opt.save(path) and opt.state_dict() show all state without holding "
            "it."
        )

    def _let_go(self, key: Any) -> None:
        """Writes back and forgets what is held of a parameter, where nobody but this map has hold of it."""
        held = self._held[key]
        if key not in self._state.entries or key in self._spilled or _in_use(held):
            return
        self._write_back(key, held)
        self._own[key] = _own_of(held.view)
        if not _drop_tensors(held, self._state.entries[key].shape):
            del self._held[key]

    # Writing back.

    def _write_back(self, parameter: torch.Tensor, held: Held) -> None:
        state = self._state
        entry = state.entries[parameter]
        view = held.view
        if not view:
            if entry.live and not held.absent:
                state.reset(parameter)
            held.digests.clear()
            return
        check_values(view, parameter, entry.name)
        for name in state.plane_names(parameter):
            self._write_plane(parameter, name, held)
        step = step_of(view.get("step", 0), entry.name)
        if step != state.step_count(parameter) or not entry.live:
            state.set_step_count(parameter, step)

    def _write_plane(self, parameter: torch.Tensor, name: str, held: Held) -> None:
        value = held.view.get(name)
        if value is None:
            self._write_missing(parameter, name)
            held.digests.pop(name, None)
            return
        digest = _digest(value)
        if digest is None or digest != held.digests.get(name):
            self._state.write(parameter, name, pieces(value), sets_weight=True)
        if digest is not None:
            held.digests[name] = digest

    def _write_missing(self, parameter: torch.Tensor, name: str) -> None:
        """As never stepped: zero moments; a master that starts from the parameter."""
        values: Iterable[torch.Tensor]
        values = pieces(parameter) if name == "master" else zeros(parameter.numel())
        self._state.write(parameter, name, values, sets_weight=False)


class _Items(ItemsView):
    def __iter__(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        for key in self._mapping:
            yield key, self._mapping._show(key, spill=True)


class _Values(ValuesView):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        for key in self._mapping:
            yield self._mapping._show(key, spill=True)


def _own_of(view: Any) -> dict[str, Any]:
    return {key: value for key, value in view.items() if key != "step" and key not in PLANES}


def _buffer(size: int) -> bytearray | mmap.mmap:
    return mmap.mmap(-1, size) if size >= _MAPPED else bytearray(size)


def _tensor_over(buffer: bytearray | mmap.mmap, shape: torch.Size) -> torch.Tensor:
    if shape.numel() == 0:
        return torch.empty(shape)
    return torch.frombuffer(buffer, dtype=torch.float32).view(shape)


def _digest(tensor: torch.Tensor) -> bytes | None:
    """Of the content; None for what is not contiguous fp32 on the CPU."""
    if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or not tensor.is_contiguous():
        return None
    return _core.digest(tensor.data_ptr(), 4 * tensor.numel())


def _in_use(held: Held) -> bool:
    """True where the user has hold of the dict or of a tensor in it."""
    if sys.getrefcount(held.view) > 2:
        return True
    # The dict, the loop's variable and the argument.
    return any(sys.getrefcount(value) > 3 for value in held.view.values())


def _drop_tensors(held: Held, shape: torch.Size) -> bool:
    """Drops the tensors over our buffers; puts them back and returns True where slices of them are in use."""
    dropped = [n for n, b in held.buffers.items() if _is_over(held.view.get(n), b, shape)]
    for name in dropped:
        del held.view[name]
    # The dict, the loop's variable and the argument; a tensor, also a slice of ours, would be another.
    used = any(sys.getrefcount(buffer) > 3 for buffer in held.buffers.values())
    if used:
        for name in dropped:
            held.view[name] = _tensor_over(held.buffers[name], shape)
    return used


def _is_over(value: Any, buffer: bytearray | mmap.mmap, shape: torch.Size) -> bool:
    return isinstance(value, torch.Tensor) and value.data_ptr() == _tensor_over(buffer, shape).data_ptr()
