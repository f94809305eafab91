"""The state of all parameters, in the core: which parameter has which place there, and values in and out.

A parameter is known by its object, at first also by its position in the flattened groups, never by an address. The
layout is built at the first step or load, from the groups as they are then, and again when parameters come or change
their type; what they had is carried over through a scratch file.
"""
from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch

from transload import _core
from transload.parameters import ELEMENT_TYPES, PLACES, check_place, flatten, host_copy, names_of, place_of, shape_text
from transload.planes import PLANES, pieces, read_all, write_all
from transload.snapshot import snapshot


@dataclasses.dataclass(frozen=True)
class Options:
    """What the core is made with; sizes in bytes."""

    host_memory: int | None
    nvme: str
    chunk_elements: int
    moments: int
    seed: int
    record: str
    device_memory: int = 0


@dataclasses.dataclass(slots=True)
class Entry:
    """A parameter's place in the core."""

    tensor: int
    key: int
    name: str
    shape: torch.Size
    dtype: torch.dtype
    place: int
    """-1: the CPU; else the CUDA device."""
    live: bool = False
    """Stepped, loaded or assigned: has state to show."""


_LEFT = " (in no group, "
"""Between the name and the key of a parameter that has state and has left the groups."""


def _can_keep(parameter: torch.Tensor, entry: Entry) -> bool:
    """False where there is nothing left that the state could belong to: moved away, or of another shape."""
    return parameter.device.type in PLACES and parameter.dtype in ELEMENT_TYPES and parameter.shape == entry.shape


def _idle_memory(size: int, place: int) -> torch.Tensor:
    """Memory of a device on which nothing is under way: not what an earlier owner left in the caller's stream either."""
    memory = torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", place))
    torch.cuda.current_stream(place).synchronize()
    return memory


class OffloadedState:
    """Owner of the core. Every use checks the process and that no step failed in the middle."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.entries: dict[torch.Tensor, Entry] = {}
        self.flat: list[torch.Tensor] = []
        self.sizes: list[int] = []
        """Of the groups; a parameter takes another's place only where these stay."""
        self.flat_entries: list[Entry | None] = []
        self._core: _core.Core | None = None
        self._arena: torch.Tensor | None = None
        """State on the device, in memory of PyTorch's allocator; given back after the core has ended."""
        self._failure: str | None = None
        self._process = os.getpid()
        self._place = -1
        self.adopted: Callable[[torch.Tensor, torch.Tensor], None] = lambda old, new: None
        """Called when a parameter takes the place and the state of another."""

    # The core itself.

    @property
    def built(self) -> bool:
        return self._core is not None

    @property
    def core(self) -> _core.Core:
        """The core, built. RuntimeError after a failed step and in a child of fork()."""
        self.check_usable()
        assert self._core is not None
        return self._core

    def check_usable(self) -> None:
        self.check_process()
        if self._failure is not None:
            raise RuntimeError(self._failure)

    def check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                "This transload.AdamW was made in another process: its state cannot be used after fork(). "
                "Make the optimizer in the process that steps."
            )

    def fail(self, message: str) -> None:
        """From now on everything but a load is refused with this message."""
        self._failure = message

    def close(self) -> None:
        """Ends the core and removes its folder; silent, since an error may be on its way to the user."""
        core, self._core = self._core, None
        try:
            if core is not None:
                core.close()
        except Exception:  # noqa: BLE001
            pass
        self._arena = None

    def finish(self) -> None:
        """For good: other threads that still step at the interpreter's exit are refused."""
        self.fail("This transload.AdamW is gone: the interpreter exits.")
        self.close()

    def report(self) -> dict[str, Any]:
        self.check_process()
        return dict(self._core.report() if self._core is not None else _core.empty_report())

    # The layout.

    def follows(self, flat: list[torch.Tensor]) -> bool:
        """True where the groups hold the same parameters, in the same order, as when the layout was last made."""
        return len(flat) == len(self.flat) and all(map(lambda a, b: a is b, flat, self.flat))

    def cover(self, groups: list[dict[str, Any]], also: Iterable[torch.Tensor] = ()) -> None:
        """Makes the layout cover the parameters that want a gradient, have one, have state, or are in `also`.

        Replaced parameters are adopted by position. ValueError by name where the shape is another. As in torch, a
        parameter that is in no group any more keeps the state that it has.
        """
        flat = flatten(groups)
        names = names_of(groups)
        sizes = [len(group["params"]) for group in groups]
        if sizes == self.sizes and not self.follows(flat):
            self._adopt(flat, names)
        extra = set(also)
        wanted = [
            p in self.entries or p in extra or p.requires_grad or p.grad is not None for p in flat
        ]
        if self._core is None or not self._covered(flat, wanted):
            self._rebuild(flat, names, wanted)
        self.flat_entries = [self.entries.get(p) for p in flat]
        self.flat, self.sizes = flat, sizes

    def start_over(self, groups: list[dict[str, Any]], given: dict[torch.Tensor, dict[str, Any]]) -> None:
        """The layout for the groups and in it what is `given`, nothing else. Also after a failed step.

        Where it cannot be done everything is refused until a load that succeeds: part of the state is gone then.
        """
        flat = flatten(groups)
        for parameter, name in zip(flat, names_of(groups)):
            if parameter in given or parameter.requires_grad:
                check_place(parameter, name)
        failed, self._failure = self._failure, None
        try:
            if failed is not None:
                self.close()
            self._forget_all(set(flat))
            self.cover(groups, given)
            for parameter, values in given.items():
                self.put(parameter, values)
        except BaseException as error:
            self.fail(f"A load failed in the middle ({error}). Load again to go on.")
            raise

    def _forget_all(self, present: set[torch.Tensor]) -> None:
        """As never stepped; parameters that are not in the groups any more are not known any more."""
        for entry in self.entries.values():
            if entry.live and self._core is not None:
                self._core.reset(entry.tensor)
            entry.live = False
        self.entries = {p: entry for p, entry in self.entries.items() if p in present}

    def _adopt(self, flat: list[torch.Tensor], names: list[str]) -> None:
        moved = self._replacements(flat)
        for old, new, position in moved:
            entry = self.entries[old]
            if new.shape != entry.shape:
                raise ValueError(
                    f"{names[position]} took the place of a parameter of shape {shape_text(entry.shape)}, which has "
                    "state. Give the optimizer a new group for it, or load a state that fits."
                )
        for old, new, _ in moved:
            self.entries[new] = self.entries.pop(old)
            self.adopted(old, new)

    def _replacements(self, flat: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor, int]]:
        present = set(flat)
        return [
            (old, new, i)
            for i, (old, new) in enumerate(zip(self.flat, flat))
            if old is not new and old in self.entries and old not in present and new not in self.entries
        ]

    def _covered(self, flat: list[torch.Tensor], wanted: list[bool]) -> bool:
        for p, want in zip(flat, wanted):
            entry = self.entries.get(p)
            if want and (entry is None or entry.dtype != p.dtype or entry.place != place_of(p)):
                return False
        return True

    def _rebuild(self, flat: list[torch.Tensor], names: list[str], wanted: list[bool]) -> None:
        before = self.entries
        entries = self._entries_for(flat, names, wanted)
        kept = self._carry(before)
        self.close()
        try:
            self._core = self._make(entries)
            self.entries = entries
        except BaseException:
            self._core = self._make(before) if before else None
            raise
        finally:
            self._put_back(kept)

    def _put_back(self, kept: dict[torch.Tensor, dict[str, Any]]) -> None:
        try:
            for parameter, values in kept.items():
                if parameter in self.entries:
                    self.put(parameter, values)
        except BaseException as error:
            self.fail(f"The optimizer's state was lost while its layout changed ({error}). Load a state to go on.")
            raise

    def _entries_for(self, flat: list[torch.Tensor], names: list[str], wanted: list[bool]) -> dict[torch.Tensor, Entry]:
        entries: dict[torch.Tensor, Entry] = {}
        taken = {entry.key for entry in self.entries.values()}
        unused = max(taken, default=-1) + 1 + len(flat)
        times = Counter(names)
        for position, (p, want) in enumerate(zip(flat, wanted)):
            if not want or p in entries:
                continue
            check_place(p, names[position])
            known = self.entries.get(p)
            key = known.key if known is not None else position if position not in taken else unused + position
            name = names[position] if times[names[position]] == 1 else f"{names[position]} at {position}"
            entries[p] = Entry(len(entries), key, name, p.shape, p.dtype, place_of(p))
        for p, known in self.entries.items():
            if known.live and p not in entries and _can_keep(p, known):
                name = f"{known.name.split(_LEFT)[0]}{_LEFT}{known.key})"
                entries[p] = Entry(len(entries), known.key, name, p.shape, p.dtype, place_of(p))
        return entries

    def _carry(self, entries: dict[torch.Tensor, Entry]) -> dict[torch.Tensor, dict[str, Any]]:
        """What the parameters have, on a scratch file; without the master where the type changed."""
        if self._core is None:
            return {}
        live = [(p, entry) for p, entry in entries.items() if entry.live]
        return dict(zip((p for p, _ in live), snapshot(self, [p for p, _ in live]))) if live else {}

    def _make(self, entries: dict[torch.Tensor, Entry]) -> _core.Core:
        o = self.options
        rows = [(e.name, e.shape.numel(), ELEMENT_TYPES[e.dtype], e.key, e.place) for e in entries.values()]
        layout: dict[str, Any] = {
            "host_memory": o.host_memory or 0, "nvme": o.nvme, "chunk_elements": o.chunk_elements, "moments": o.moments
        }  # fmt: skip
        place = max((e.place for e in entries.values()), default=-1)
        size = _core.device_bytes(rows, device_memory=o.device_memory, **layout) if place >= 0 else 0
        arena = _idle_memory(size, place) if size > 0 else None
        core = _core.Core(
            rows, **layout, seed=o.seed, record=o.record,
            device_memory=size, device_arena=arena.data_ptr() if arena is not None else 0,
        )  # fmt: skip
        self._arena, self._place = arena, place
        return core

    def stream(self) -> torch.cuda.Stream | None:
        """The caller's stream on the device of the parameters; None where all are on the CPU."""
        return torch.cuda.current_stream(self._place) if self._place >= 0 else None

    # Values.

    def plane_names(self, parameter: torch.Tensor) -> list[str]:
        """Planes that the parameter has in the core and that can be read for it as it is now."""
        entry = self.entries[parameter]
        has_master = entry.dtype != torch.float32 and parameter.dtype == entry.dtype
        return [name for name in PLANES if name != "master" or has_master]

    def step_count(self, parameter: torch.Tensor) -> int:
        return self.core.step_count(self.entries[parameter].tensor)

    def set_step_count(self, parameter: torch.Tensor, steps: int) -> None:
        self.core.set_step_count(self.entries[parameter].tensor, steps)
        self.entries[parameter].live = True

    def reset(self, parameter: torch.Tensor) -> None:
        """As never stepped."""
        self.core.reset(self.entries[parameter].tensor)
        self.entries[parameter].live = False

    def put(self, parameter: torch.Tensor, values: dict[str, Any]) -> None:
        """Replaces a parameter's state by "step" and planes; planes that are missing are as never stepped.

        The parameter itself stays as it is; a "master" of an fp32 parameter is not needed.
        """
        self.reset(parameter)
        names = self.plane_names(parameter)
        for name in names:
            if name in values:
                self.write(parameter, name, pieces(values[name]), sets_weight=False)
        self.set_step_count(parameter, int(values["step"]))

    def read(self, parameter: torch.Tensor, name: str, address: int) -> None:
        """A whole plane as fp32, to an address."""
        entry = self.entries[parameter]
        weight = host_copy(parameter) if name == "master" else None
        read_all(self.core, entry, PLANES[name], weight, address)

    def write(self, parameter: torch.Tensor, name: str, values: Iterable[torch.Tensor], sets_weight: bool) -> None:
        """A whole plane from fp32 pieces in order; `sets_weight`: the parameter becomes the rounded master."""
        entry = self.entries[parameter]
        if not sets_weight:
            write_all(self.core, entry, PLANES[name], values, None)
            return
        weight = parameter.detach()
        plain = host_copy(parameter)
        write_all(self.core, entry, PLANES[name], values, plain)
        if plain.data_ptr() != weight.data_ptr():
            weight.copy_(plain)
        torch.autograd.graph.increment_version([parameter])
