"""What one step hands to the core: rows of addresses, and the parameters that need a temporary or a second turn."""
from __future__ import annotations

import dataclasses
from itertools import chain
from typing import Any

import torch

from transload import _core
from transload.groups import check_group, values_of
from transload.offload import Entry
from transload.parameters import ELEMENT_TYPES, PLACES, check_place, place_of, shape_text

_TEMPORARIES = 64 << 20
"""Bytes of temporaries at a time; a single parameter may take more."""

Values = tuple[float, float, float, float, float]


@dataclasses.dataclass(slots=True)
class Part:
    """One parameter that is not stepped in place, or is stepped again."""

    parameter: torch.Tensor
    gradient: torch.Tensor
    entry: Entry
    values: Values

    @property
    def bytes(self) -> int:
        return self.parameter.nbytes + self.gradient.nbytes


@dataclasses.dataclass(slots=True)
class Gathered:
    """Everything that has a gradient: most of it in one call, the parts after it."""

    rows: list[Any] = dataclasses.field(default_factory=list)
    parameters: list[torch.Tensor] = dataclasses.field(default_factory=list)
    gradients: list[torch.Tensor] = dataclasses.field(default_factory=list)
    """Held while the core reads them, whatever becomes of .grad."""
    entries: list[Entry] = dataclasses.field(default_factory=list)
    parts: list[Part] = dataclasses.field(default_factory=list)


def gather(groups: list[dict[str, Any]], flat_entries: list[Entry | None]) -> Gathered | None:
    """Reads groups, gradients and addresses; nothing has changed when it raises.

    `flat_entries`: those of the flattened groups. None where the layout does not cover a parameter with a gradient.
    """
    all_of = Gathered()
    places = iter(flat_entries)
    seen: set[int] = set()
    addresses: set[int] = {0}
    for group in groups:
        check_group(group)
        values = values_of(group)
        tensors: list[int] = []
        weights: list[int] = []
        gradients: list[int] = []
        kinds: list[int] = []
        for parameter, entry in zip(group["params"], places):
            gradient = parameter.grad
            if gradient is None:
                continue
            if entry is None or parameter.dtype is not entry.dtype or place_of(parameter) != entry.place:
                return None
            kind = ELEMENT_TYPES.get(gradient.dtype)
            if kind is None or not _fits(parameter, gradient, entry):
                _refuse(parameter, gradient, entry)
            tensor, weight, address = entry.tensor, parameter.data_ptr(), gradient.data_ptr()
            if (
                tensor in seen
                or weight in addresses  # another parameter over the same memory, or nothing there
                or address == 0
                or not (parameter.is_contiguous() and gradient.is_contiguous())
                or gradient.is_neg()
            ):
                check_memory(parameter, gradient, entry)
                all_of.parts.append(Part(parameter, gradient, entry, values))
                continue
            seen.add(tensor)
            addresses.add(weight)
            tensors.append(tensor)
            weights.append(weight)
            gradients.append(address)
            kinds.append(kind)  # type: ignore[arg-type]
            all_of.parameters.append(parameter)
            all_of.gradients.append(gradient)
            all_of.entries.append(entry)
        if tensors:
            all_of.rows.append((*values, tensors, weights, gradients, kinds))
    return all_of


def _fits(parameter: torch.Tensor, gradient: torch.Tensor, entry: Entry) -> bool:
    return (
        parameter.device.type in PLACES
        and gradient.device == parameter.device
        and gradient.layout is torch.strided
        and parameter.shape == entry.shape
        and gradient.shape == entry.shape
    )


def check_memory(parameter: torch.Tensor, gradient: torch.Tensor, entry: Entry) -> None:
    """RuntimeError by name where there is nothing to read (a storage that was freed), and
    where its temporary could not be written back.
    """
    for tensor, what in ((parameter, entry.name), (gradient, f"The gradient of {entry.name}")):
        if tensor.numel() > 0 and tensor.data_ptr() == 0 and not tensor._is_zerotensor():
            raise RuntimeError(f"{what} has no memory: its storage was freed.")
    if any(stride == 0 and size > 1 for stride, size in zip(parameter.stride(), parameter.shape)):
        raise RuntimeError(f"{entry.name} is expanded: more than one of its elements share memory.")
    if parameter.is_inference() and not torch.is_inference_mode_enabled():
        raise RuntimeError(f"{entry.name} is an inference tensor that is not contiguous: step it in inference mode.")


def _refuse(parameter: torch.Tensor, gradient: torch.Tensor, entry: Entry) -> None:
    check_place(parameter, entry.name)
    if gradient.layout is not torch.strided:
        raise RuntimeError(
            f"transload.AdamW does not support sparse gradients: {entry.name} has one ({gradient.layout})."
        )
    if parameter.shape != entry.shape:
        raise ValueError(
            f"{entry.name} had shape {shape_text(entry.shape)} and has {shape_text(parameter.shape)} now: its state "
            "does not fit. Give the optimizer a new group for it."
        )
    if gradient.shape != entry.shape:
        raise RuntimeError(
            f"The gradient of {entry.name} has shape {shape_text(gradient.shape)}, not {shape_text(entry.shape)}."
        )
    if gradient.device != parameter.device:
        raise NotImplementedError(
            f"The gradient of {entry.name} is on {gradient.device}, the parameter on {parameter.device}."
        )
    raise TypeError(f"The gradient of {entry.name} is {gradient.dtype}, not float32, bfloat16 or float16.")


def all_finite(core: _core.Core, gathered: Gathered, threads: int) -> bool:
    """True where no gradient has a NaN or an infinity."""
    others = [part.gradient for part in gathered.parts]
    if all(gradient.is_cpu for gradient in gathered.gradients):
        return core.gradients_finite(gathered.rows, threads) and _finite(others)
    return _finite(gathered.gradients + others)


def _finite(gradients: list[torch.Tensor]) -> bool:
    """Asked where they are; each device is waited for once."""
    answers: dict[torch.device, torch.Tensor] = {}
    for gradient in gradients:
        finite = torch.isfinite(gradient).all()
        known = answers.get(gradient.device)
        answers[gradient.device] = finite if known is None else known & finite
    return all(bool(answer) for answer in answers.values())


def address_of(stream: torch.cuda.Stream | None) -> int:
    """As the core takes it; None: no tensor is on a device."""
    return stream.cuda_stream if stream is not None else 0


def keep_for(stream: torch.cuda.Stream | None, gathered: Gathered) -> None:
    """Tells PyTorch's allocator what `stream` still uses: weights on their way, gradients that kernels will read. Their
    memory is not given to others before the stream has got there, whoever lets go of them, and nobody waits.
    """
    if stream is None:
        return
    for tensor in chain(gathered.parameters, gathered.gradients):
        if tensor.is_cuda:
            tensor.record_stream(stream)


def step_parts(
    core: _core.Core, parts: list[Part], threads: int, stream: torch.cuda.Stream | None, updated: list[Entry]
) -> None:
    """Steps the parts through contiguous temporaries, a bounded number of bytes at a time, in order.

    Appends to `updated` what has new weights.
    """
    batch: list[Part] = []
    for part in parts:
        size = sum(p.bytes for p in batch) + part.bytes
        if batch and (size > _TEMPORARIES or any(_same_memory(p, part) for p in batch)):
            _step_batch(core, batch, threads, stream, updated)
            batch = []
        batch.append(part)
    if batch:
        _step_batch(core, batch, threads, stream, updated)


def _plain(gradient: torch.Tensor) -> torch.Tensor:
    """Its elements in memory as they count: no lazy minus, no zeros that are nowhere."""
    return gradient.clone() if gradient._is_zerotensor() else gradient.resolve_neg().contiguous()


def _same_memory(a: Part, b: Part) -> bool:
    return a.entry is b.entry or a.parameter.data_ptr() == b.parameter.data_ptr()


def _step_batch(
    core: _core.Core, batch: list[Part], threads: int, stream: torch.cuda.Stream | None, updated: list[Entry]
) -> None:
    weights = [part.parameter.detach().contiguous() for part in batch]
    gradients = [_plain(part.gradient) for part in batch]
    rows: list[_core.Row] = []
    for part, weight, gradient in zip(batch, weights, gradients):
        place = [part.entry.tensor], [weight.data_ptr()], [gradient.data_ptr()], [ELEMENT_TYPES[gradient.dtype]]
        rows.append((*part.values, *place))
    core.step(rows, threads, address_of(stream))
    for part, weight in zip(batch, weights):
        if weight.data_ptr() != part.parameter.data_ptr():
            part.parameter.copy_(weight)
    updated += [part.entry for part in batch]
