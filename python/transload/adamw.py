"""transload.AdamW: torch.optim.AdamW whose state lies in a budget of host memory and on NVMe."""
from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from copy import deepcopy
from itertools import chain
from typing import Any, NoReturn

import torch
from torch.optim import Optimizer

from transload import _core, checkpoint
from transload import groups as grouping
from transload.offload import Entry, OffloadedState, Options
from transload.parameters import flatten, names_of
from transload.sizes import parse_size
from transload.snapshot import snapshot
from transload.state import StateMap
from transload.steps import Gathered, address_of, all_finite, gather, keep_for, step_parts
from transload.values import check_complete

_MOMENTS = {"fp32": 0, "bf16": 1}
_NAMED = 50
"""Parameters that an error names before it only counts."""


class AdamW(Optimizer):
    """AdamW whose state lies in host memory within a budget, and on NVMe; parameters on the CPU or on one CUDA device.

    The arguments up to `fused` are those of torch.optim.AdamW; foreach and fused have no effect, amsgrad, maximize,
    capturable and differentiable are refused. Then:

    host_memory  budget for state and staging, as "8GiB", "8GB" or bytes; None: what all state needs
    nvme         an existing folder for scratch files; None: everything in host memory
    device_memory  memory of the parameters' CUDA device for state that is updated there; None: none
    moments      "fp32", or "bf16" with stochastic rounding
    nonfinite    "propagate" as torch does, or "skip": a step with a NaN or an infinity in any gradient changes nothing
                 and counts in `skipped`
    chunk_size   bytes of a chunk's fp32 plane, a multiple of 4096; None: chosen from the budget
    seed         of stochastic rounding
    record       file of the run record; None: none

    The budget is taken, and a too small one refused (MemoryError), at the first step or load. Errors: those of
    torch.optim.AdamW; OSError for the disk; RuntimeError once a step has failed in the middle, until a load.
    """

    def __init__(
        self,
        params: Any,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float | torch.Tensor, float | torch.Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        host_memory: int | str | None = None,
        nvme: str | os.PathLike[str] | None = None,
        device_memory: int | str | None = None,
        moments: str = "fp32",
        nonfinite: str = "propagate",
        chunk_size: int | str | None = None,
        seed: int = 0,
        record: str | os.PathLike[str] | None = None,
    ) -> None:
        model = torch.optim.AdamW(
            [torch.zeros(())], lr, betas, eps, weight_decay, amsgrad, maximize=maximize, foreach=foreach,
            capturable=capturable, differentiable=differentiable, fused=fused,
        )  # fmt: skip
        if nonfinite not in ("propagate", "skip"):
            raise ValueError(f'nonfinite is "propagate" or "skip", not {nonfinite!r}.')
        self.skipped = 0
        self._skips = nonfinite == "skip"
        self._offload = OffloadedState(_options(host_memory, nvme, device_memory, moments, chunk_size, seed, record))
        self._map = StateMap(self._offload)
        super().__init__(params, model.defaults)
        weakref.finalize(self, OffloadedState.finish, self._offload)

    # As torch.optim.Optimizer has it.

    @property
    def state(self) -> StateMap:
        return self._map

    @state.setter
    def state(self, values: Mapping[Any, Any]) -> None:
        if values is not self._map:
            self._map.replace(values)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if isinstance(param_group, dict):
            grouping.check_group({**self.defaults, **param_group})
        super().add_param_group(param_group)

    @torch._disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of every parameter that has a gradient; returns the closure's loss.

        When it returns, parameters and state are written; on a CUDA device, for whatever the current stream does next.
        RuntimeError names what was updated where it failed midway.
        """
        self._offload.check_usable()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._settle()
        gathered = self._gather()
        if gathered.rows or gathered.parts:
            self._step(gathered)
        return loss

    @torch._disable_dynamo
    def state_dict(self) -> dict[str, Any]:
        """As torch.optim.Optimizer.state_dict; the tensors lie over a private mapping of a scratch file."""
        for pre_hook in self._optimizer_state_dict_pre_hooks.values():
            pre_hook(self)
        self._settle(keep=True)
        packed, ids = grouping.pack(self.param_groups)
        live = [p for p in ids if p in self._offload.entries and self._offload.entries[p].live]
        shown = zip(live, snapshot(self._offload, live))
        state: dict[Any, Any] = {ids[p]: {**values, **self._map.own(p)} for p, values in shown}
        state |= {key: v for key, v in self._map.others.items() if not isinstance(key, torch.Tensor)}
        result: dict[str, Any] = {"state": state, "param_groups": packed}
        for post_hook in self._optimizer_state_dict_post_hooks.values():
            changed = post_hook(self, result)
            if changed is not None:
                result = changed
        return result

    @torch._disable_dynamo
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over a state of this class or of torch.optim.AdamW. ValueError before anything has changed.

        Values keep their precision; parameters that are missing in it are as never stepped. A bf16 or fp16 parameter
        without "master" starts from the parameter itself.
        """
        state_dict = state_dict.copy()
        for pre_hook in self._optimizer_load_state_dict_pre_hooks.values():
            changed = pre_hook(self, state_dict)
            if changed is not None:
                state_dict = changed
        self._replace(state_dict["state"], deepcopy(state_dict["param_groups"]))
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "transload.AdamW cannot be pickled or copied: its state lies in the budget of this process. Make another "
            "optimizer and give it the state_dict(), or opt.save and opt.load."
        )

    # Beyond torch.

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes state and groups as one safetensors file, streamed; the name appears when it is whole and durable."""
        self._settle(keep=True)
        checkpoint.save(path, self._offload, self.param_groups, self._map.own)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Takes over what `save` wrote. OSError (cut short) or ValueError before anything has changed."""
        loaded = checkpoint.load(path)
        try:
            self._replace(loaded["state"], loaded["param_groups"])
        except ValueError as error:
            raise ValueError(f"{path} does not fit. {error}") from error

    def report(self) -> dict[str, Any]:
        """Bytes by tier, budget, peak, bytes moved, seconds waited; and the steps skipped."""
        return {**self._offload.report(), "held_bytes": self._map.held_bytes, "skipped": self.skipped}

    # How.

    def _settle(self, keep: bool = False) -> None:
        """The core knows what the user wrote into opt.state; unless `keep`, nothing is held any more."""
        offload, state = self._offload, self._map
        offload.check_usable()
        state.write_back()
        assigned = [key for key in state.assigned if key not in offload.entries]
        flat = flatten(self.param_groups)
        if assigned or (offload.built and not offload.follows(flat)):
            offload.cover(self.param_groups, assigned)
            state.write_back()
        if not keep:
            state.release()

    def _gather(self) -> Gathered:
        offload = self._offload
        gathered = gather(self.param_groups, offload.flat_entries) if offload.built else None
        if gathered is None:
            offload.cover(self.param_groups)
            gathered = gather(self.param_groups, offload.flat_entries)
        assert gathered is not None
        return gathered

    def _step(self, gathered: Gathered) -> None:
        core, threads, stream = self._offload.core, torch.get_num_threads(), self._offload.stream()
        if self._skips and not all_finite(core, gathered, threads):
            self.skipped += 1
            return
        updated: list[Entry] = []
        calls = core.report()["steps"]
        try:
            if gathered.rows:
                core.step(gathered.rows, threads, address_of(stream))
                keep_for(stream, gathered)
                updated += gathered.entries
            step_parts(core, gathered.parts, threads, stream, updated)
        except BaseException as error:
            self._step_ended(error, core.report()["steps"] - calls, gathered, updated)
            raise
        self._stepped(gathered)

    def _stepped(self, gathered: Gathered) -> None:
        for entry in gathered.entries:
            entry.live = True
        for part in gathered.parts:
            part.entry.live = True
        torch.autograd.graph.increment_version(gathered.parameters)

    def _step_ended(self, error: BaseException, calls: int, gathered: Gathered, updated: list[Entry]) -> None:
        """After an error, or an interrupt, with `calls` whole calls of the core: nothing, everything, or the middle."""
        if calls == 0 and not isinstance(error, _core.StepFailed):
            return
        if calls > 0 and not gathered.parts:
            self._stepped(gathered)
            return
        if gathered.rows and calls > 0 and not updated:
            updated += gathered.entries
        self._step_failed(error, updated)

    def _step_failed(self, error: BaseException, updated: list[Entry]) -> None:
        """The core's message names what it updated in this call; earlier calls of the step are added."""
        names = [entry.name for entry in updated]
        before = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
        text = (str(error) or type(error).__name__) + (f" Updated before that: {before}." if names else "")
        self._offload.fail(f"Steps are refused until a load, since one failed in the middle. {text}")
        if isinstance(error, Exception):
            raise RuntimeError(text) from error

    def _replace(self, state: dict[Any, Any], saved: list[dict[str, Any]]) -> None:
        """What a load does, after its hooks: checks everything, then changes everything."""
        groups, offload = self.param_groups, self._offload
        offload.check_process()
        grouping.check_sizes(groups, saved)
        replaced = grouping.merged(groups, saved, self.defaults)
        for group in replaced:
            grouping.check_group(group)
        flat = flatten(groups)
        ids = dict(zip(chain.from_iterable(group["params"] for group in saved), zip(flat, names_of(groups))))
        given = {ids[key]: values for key, values in state.items() if key in ids and values}
        for (parameter, name), values in given.items():
            check_complete(values, parameter, name)
        others = {key: values for key, values in state.items() if key not in ids}
        self._put_all({parameter: values for (parameter, _), values in given.items()})
        for (parameter, _), values in given.items():
            self._map.put_own(parameter, values)
        self._map.update(others)
        self.param_groups = replaced

    def _put_all(self, given: dict[torch.Tensor, dict[str, Any]]) -> None:
        offload = self._offload
        if not given and not offload.built:
            self._map.forget()
            return
        offload.start_over(self.param_groups, given)
        self._map.forget()


def _options(
    host_memory: Any, nvme: Any, device_memory: Any, moments: str, chunk_size: Any, seed: int, record: Any
) -> Options:
    if moments not in _MOMENTS:
        raise ValueError(f'moments is "fp32" or "bf16", not {moments!r}.')
    folder = os.fspath(nvme) if nvme is not None else ""
    if folder and not os.path.isdir(folder):
        kind = NotADirectoryError if os.path.exists(folder) else FileNotFoundError
        raise kind(f"nvme={folder!r} is not an existing folder.")
    chunk = parse_size(chunk_size, "chunk_size") if chunk_size is not None else 0
    if chunk % 4096:
        raise ValueError(f"chunk_size is a multiple of 4096 bytes, not {chunk}.")
    return Options(
        host_memory=parse_size(host_memory, "host_memory") if host_memory is not None else None,
        nvme=folder,
        chunk_elements=chunk // 4,
        moments=_MOMENTS[moments],
        seed=seed,
        record=os.fspath(record) if record is not None else "",
        device_memory=parse_size(device_memory, "device_memory") if device_memory is not None else 0,
    )
