"""opt.state: plain tensors with true values, edits that count, and what happens when they do not fit."""
import gc

import pytest
import torch

import transload
from support import (HYPER, ExplicitMaster, assert_close_to_torch, assert_same, assert_streamed, copies, on_nvme,
                     parameters, report, steps_of, train)

SHAPES = ((3000,), (40, 30))


def both(where, nvme):
    mine = parameters(*SHAPES)
    others = copies(mine)
    if where == "memory":
        return mine, transload.AdamW(mine, **HYPER), others, torch.optim.AdamW(others, **HYPER)
    big = parameters(*[(50_000,)] * 6)
    mine, others = mine + big, others + copies(big)
    # Room for what is looked at of one or two of them, not of all.
    return mine, on_nvme(mine, nvme, 1 << 20), others, torch.optim.AdamW(others, **HYPER)


@pytest.fixture(params=["memory", "nvme"])
def pair(request, nvme):
    return both(request.param, nvme)


def test_values_are_those_of_torch(pair):
    mine, ours, others, theirs = pair
    train(ours, mine, 5)
    train(theirs, others, 5)
    for p, q in list(zip(mine, others))[:3]:
        shown, want = ours.state[p], theirs.state[q]
        assert shown["step"] == want["step"] == 5
        for key in ("exp_avg", "exp_avg_sq"):
            assert type(shown[key]) is torch.Tensor and shown[key].shape == p.shape
            assert shown[key].dtype == torch.float32 and shown[key].device == p.device
            torch.testing.assert_close(shown[key], want[key], rtol=1e-5, atol=1e-9)


def test_a_view_is_fresh_after_the_next_step(pair):
    mine, ours, _, _ = pair
    train(ours, mine, 1)
    before = ours.state[mine[0]]["exp_avg"].clone()
    assert torch.equal(ours.state[mine[0]]["exp_avg"], before)
    train(ours, mine, 1, first=1)
    assert not torch.equal(ours.state[mine[0]]["exp_avg"], before)


def test_looking_changes_nothing(pair):
    mine, ours, others, _ = pair
    watched = transload.AdamW(others, **HYPER)
    for step in range(3):
        train(ours, mine, 1, first=step)
        train(watched, others, 1, first=step)
        for p in others[:3]:
            for value in watched.state[p].values():
                str(value)
    assert_same(mine, others)


def zero(state, p):
    state[p]["exp_avg"].zero_()


def slices(state, p):
    state[p]["exp_avg_sq"].view(-1)[5:100] = 0.5


def one_element(state, p):
    state[p]["exp_avg"].view(-1)[-1] = 9.0


def through_data(state, p):
    state[p]["exp_avg"].data.mul_(3)


def through_numpy(state, p):
    state[p]["exp_avg"].numpy()[...] = 0.125


def through_a_kept_view(state, p):
    row = state[p]["exp_avg"].view(-1)[10:20]
    state[p]["exp_avg_sq"].add_(1)
    row.fill_(2)


def data_replaced(state, p):
    state[p]["exp_avg"].data = torch.full_like(p, 0.25)


def assigned(state, p):
    state[p]["exp_avg"] = torch.full_like(p, 0.75)


def entry_assigned(state, p):
    entry = state[p]
    state[p] = {"step": entry["step"], "exp_avg": entry["exp_avg"] * 2, "exp_avg_sq": entry["exp_avg_sq"] + 1}


def step_assigned(state, p):
    state[p]["step"] = torch.tensor(1.0)


def step_in_place(state, p):
    state[p]["step"] += 10


def updated(state, p):
    state[p].update(exp_avg=torch.zeros_like(p), exp_avg_sq=torch.ones_like(p))


def deleted(state, p):
    del state[p]


def popped(state, p):
    assert state.pop(p)["exp_avg"].shape == p.shape


def cleared(state, p):
    state.clear()


def emptied(state, p):
    state[p] = {}


EDITS = [zero, slices, one_element, through_data, through_numpy, through_a_kept_view, data_replaced, assigned,
         entry_assigned, step_assigned, step_in_place, updated, deleted, popped, cleared, emptied]


@pytest.mark.parametrize("edit", EDITS, ids=[e.__name__ for e in EDITS])
def test_an_edit_counts_as_in_torch(edit, pair):
    mine, ours, others, theirs = pair
    for params, opt in ((mine, ours), (others, theirs)):
        train(opt, params, 3)
        edit(opt.state, params[0])
        train(opt, params, 1, first=3)
    assert_close_to_torch(mine, others, steps=4)
    assert steps_of(ours) == steps_of(theirs)
    for params, opt in ((mine, ours), (others, theirs)):
        train(opt, params, 2, first=4)
    assert_close_to_torch(mine, others, steps=6)


def test_the_edits_above_show():
    """Each edit of torch's own state moves its weights by more than the tolerance."""
    for edit in EDITS:
        plain, edited = parameters(*SHAPES), parameters(*SHAPES)
        for params in (plain, edited):
            opt = train(torch.optim.AdamW(params, **HYPER), params, 3)
            if params is edited:
                edit(opt.state, params[0])
            train(opt, params, 1, first=3)
        with pytest.raises(AssertionError):
            assert_close_to_torch(plain, edited, steps=4)


def test_an_edit_is_seen_before_the_step(pair):
    mine, ours, _, _ = pair
    train(ours, mine, 2)
    ours.state[mine[0]]["exp_avg"].fill_(0.5)
    assert (ours.state[mine[0]]["exp_avg"] == 0.5).all()
    assert (ours.state_dict()["state"][0]["exp_avg"] == 0.5).all()
    mine[0].grad = None
    ours.step()
    assert (ours.state[mine[0]]["exp_avg"] == 0.5).all(), "a step of the others lost the edit"


def test_the_whole_state_replaced():
    import collections
    mine, others = parameters(*SHAPES), parameters(*SHAPES)
    for cls, params in ((transload.AdamW, mine), (torch.optim.AdamW, others)):
        opt = train(cls(params, **HYPER), params, 3)
        opt.state = collections.defaultdict(dict)
        train(opt, params, 2, first=3)
    assert_close_to_torch(mine, others, steps=5)


def test_an_entry_of_another_shape_is_refused():
    params = parameters(*SHAPES)
    opt = train(transload.AdamW(params, **HYPER), params, 2)
    before = copies(params)
    with pytest.raises((ValueError, RuntimeError)):
        opt.state[params[0]]["exp_avg"] = torch.zeros(7)
        train(opt, params, 1, first=2)
    assert_same(params, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_master_can_be_edited(dtype):
    """Its rounding is what the parameter becomes; the next step starts from it."""
    params = parameters((3000,), (50,), dtype=dtype)
    explicit = ExplicitMaster(params)
    opt = transload.AdamW(params, **HYPER)
    for step in range(3):
        explicit.step(step)
        train(opt, params, 1, first=step)
    with torch.no_grad():
        opt.state[params[0]]["master"].add_(0.001)
        explicit.masters[0].add_(0.001)
    for step in (3, 4):
        explicit.step(step)
        train(opt, params, 1, first=step)
    assert_close_to_torch([opt.state[p]["master"] for p in params], explicit.masters, steps=5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_clearing_the_state_starts_from_the_parameter(dtype):
    params = parameters((3000,), dtype=dtype)
    opt = train(transload.AdamW(params, **HYPER), params, 3)
    opt.state.clear()
    explicit = ExplicitMaster(params)
    explicit.step(3)
    train(opt, params, 1, first=3)
    assert_close_to_torch([opt.state[params[0]]["master"]], explicit.masters, steps=4)
    assert int(opt.state[params[0]]["step"]) == 1


def test_more_than_the_budget_is_a_memory_error_that_names_save(nvme):
    params = parameters(*[(100_000,)] * 8)
    opt = train(on_nvme(params, nvme), params, 2)
    assert_streamed(opt)
    before = copies(params)
    held = []
    with pytest.raises(MemoryError, match=r"opt\.save"):
        for p in params:
            held.append((opt.state[p]["exp_avg"], opt.state[p]["exp_avg_sq"]))
    assert report(opt, "host_peak") <= report(opt, "host_budget")
    assert_same(params, before)
    held.clear()
    control = parameters(*[(100_000,)] * 8)
    train(transload.AdamW(control, **HYPER), control, 4)
    train(opt, params, 2, first=2)
    assert_same(params, control)


def test_one_after_the_other_fits(nvme):
    """What is let go of is room again: at once, or at the next step at the latest."""
    params = parameters(*[(20_000,)] * 30)
    opt = train(on_nvme(params, nvme, 2 << 20), params, 2)
    assert_streamed(opt)
    for step in range(2, 6):
        p = params[step * 5]
        assert opt.state[p]["exp_avg"].abs().max() > 0
        train(opt, params, 1, first=step)
    assert report(opt, "host_peak") <= report(opt, "host_budget")


def test_values_are_held_until_the_next_step_and_charged(nvme):
    params = parameters(*[(20_000,)] * 30)
    opt = train(on_nvme(params, nvme, 2 << 20), params, 2)
    shown = opt.state[params[0]]["exp_avg"]
    kept = shown.clone()
    gc.collect()
    assert torch.equal(shown, kept)
    assert opt.state[params[0]]["exp_avg"].data_ptr() == shown.data_ptr()


def lightning_moves(opt, device=torch.device("cpu")):
    """As Lightning's _optimizer_to_device does after a checkpoint is restored and at teardown."""
    from collections.abc import MutableMapping
    for p, v in opt.state.items():
        if not isinstance(v, MutableMapping):
            opt.state[p] = {k: x.to(device) for k, x in v.items()}
            continue
        for key, value in v.items():
            if key != "step":
                v[key] = value.to(device) if isinstance(value, torch.Tensor) else value


def older_lightning_moves(opt, device=torch.device("cpu")):
    for p, v in opt.state.items():
        opt.state[p] = {k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in v.items()}


def accelerate_moves(opt, device=torch.device("cpu")):
    """As AcceleratedOptimizer does when it takes an optimizer over."""
    def moved(value):
        if isinstance(value, (list, tuple)):
            return type(value)(moved(v) for v in value)
        if isinstance(value, dict):
            return type(value)({k: moved(v) for k, v in value.items()})
        return value.to(device) if isinstance(value, torch.Tensor) else value

    opt.load_state_dict(moved(opt.state_dict()))


@pytest.mark.parametrize("move", [lightning_moves, older_lightning_moves, accelerate_moves], ids=lambda f: f.__name__)
@pytest.mark.parametrize("steps_before", [0, 2])
def test_moving_the_state_of_a_large_optimizer(move, steps_before, nvme):
    """State that does not fit into the budget does not have to; what is moved nowhere stays where it is."""
    params = parameters(*[(50_000,)] * 12)
    control = copies(params)
    opt = train(on_nvme(params, nvme), params, steps_before)
    move(opt)
    train(opt, params, 2, first=steps_before)
    assert_streamed(opt)
    train(transload.AdamW(control, **HYPER), control, steps_before + 2)
    assert_same(params, control)
    assert steps_of(opt) == [steps_before + 2] * 12


def test_trainers_ask_for_length_and_membership(pair):
    mine, ours, _, _ = pair
    assert len(ours.state) == 0 and not ours.state
    train(ours, mine, 1)
    assert len(ours.state) == len(mine) and list(ours.state) == mine and all(p in ours.state for p in mine)
    assert list(ours.state.keys()) == mine
    assert ours.state.get("nothing") is None
    other, = parameters((4,))
    assert other not in ours.state


def test_own_entries_are_kept_as_torch_keeps_them():
    """Some trainers put values of their own beside the moments."""
    for cls in (transload.AdamW, torch.optim.AdamW):
        params = parameters((40,))
        opt = train(cls(params, **HYPER), params, 1)
        opt.state[params[0]]["own"] = 7
        train(opt, params, 1)
        assert opt.state[params[0]]["own"] == 7
        assert opt.state_dict()["state"][0]["own"] == 7
