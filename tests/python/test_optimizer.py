"""transload.AdamW is a torch.optim.Optimizer: what it shows, its hooks, closures, the profiler's name."""
import pytest
import torch

import transload
from support import HYPER, assert_close_to_torch, assert_same, copies, give_gradients, parameters, report, train


@pytest.fixture
def both():
    mine = parameters((8, 16), (16,))
    theirs = copies(mine)
    return mine, transload.AdamW(mine, **HYPER), theirs, torch.optim.AdamW(theirs, **HYPER)


def test_is_an_optimizer(both):
    _, ours, _, _ = both
    assert isinstance(ours, torch.optim.Optimizer)
    assert type(ours).__name__ == "AdamW"


def test_defaults_and_groups_have_every_key_and_value_of_torch(both):
    _, ours, _, theirs = both
    for key, value in theirs.defaults.items():
        assert ours.defaults[key] == value, key
    for key, value in theirs.param_groups[0].items():
        if key != "params":
            assert ours.param_groups[0][key] == value, key


def test_defaults_without_arguments_are_those_of_torch():
    p, = parameters((4,))
    ours, theirs = transload.AdamW([p]).defaults, torch.optim.AdamW([p]).defaults
    assert {k: ours[k] for k in theirs} == theirs


def test_repr_shows_the_groups(both):
    _, ours, _, theirs = both
    lines = repr(ours).splitlines()
    assert lines[0] == "AdamW (" and lines[-1] == ")"
    assert set(repr(theirs).splitlines()) <= set(lines)


def test_state_is_empty_before_the_first_step(both):
    mine, ours, _, theirs = both
    assert len(ours.state) == len(theirs.state) == 0
    assert mine[0] not in ours.state


def test_state_after_a_step_has_the_keys_of_torch(both):
    mine, ours, others, theirs = both
    train(ours, mine, 1)
    train(theirs, others, 1)
    assert set(ours.state) == set(mine)
    for p, q in zip(mine, others):
        assert set(ours.state[p]) == set(theirs.state[q])
        assert ours.state[p]["step"] == theirs.state[q]["step"] == 1


def test_step_hooks_run_in_order_and_can_be_removed(both):
    mine, ours, _, _ = both
    seen = []
    before = ours.register_step_pre_hook(lambda opt, args, kwargs: seen.append(("before", mine[0][0, 0].item())))
    ours.register_step_post_hook(lambda opt, args, kwargs: seen.append(("after", mine[0][0, 0].item())))
    train(ours, mine, 1)
    assert [name for name, _ in seen] == ["before", "after"]
    assert seen[0][1] != seen[1][1]
    before.remove()
    train(ours, mine, 1)
    assert [name for name, _ in seen] == ["before", "after", "after"]


def test_global_step_hooks_see_it(both):
    mine, ours, _, _ = both
    from torch.optim.optimizer import register_optimizer_step_post_hook
    seen = []
    handle = register_optimizer_step_post_hook(lambda opt, args, kwargs: seen.append(opt))
    try:
        train(ours, mine, 1)
    finally:
        handle.remove()
    assert seen == [ours]


def test_a_pre_hook_that_edits_gradients_counts(both):
    mine, ours, others, theirs = both
    for params, opt in ((mine, ours), (others, theirs)):
        opt.register_step_pre_hook(lambda opt, args, kwargs, params=params: [p.grad.mul_(-2) for p in params] and None)
        train(opt, params, 3)
    assert_close_to_torch(mine, others)


def test_state_dict_hooks(both):
    mine, ours, _, _ = both
    seen = []
    ours.register_state_dict_pre_hook(lambda opt: seen.append("pre"))
    ours.register_state_dict_post_hook(lambda opt, state: {**state, "extra": 7})
    train(ours, mine, 1)
    assert ours.state_dict()["extra"] == 7
    assert seen == ["pre"]


def test_load_state_dict_hooks(both):
    mine, ours, _, _ = both
    train(ours, mine, 2)
    saved = ours.state_dict()
    fresh = transload.AdamW(copies(mine), **HYPER)
    seen = []

    def other_rate(opt, state):
        state = {**state, "param_groups": [{**g, "lr": 0.5} for g in state["param_groups"]]}
        return state

    fresh.register_load_state_dict_pre_hook(other_rate)
    fresh.register_load_state_dict_post_hook(lambda opt: seen.append(opt.param_groups[0]["lr"]))
    fresh.load_state_dict(saved)
    assert seen == [0.5]


@pytest.mark.parametrize("to_none", [True, False])
def test_zero_grad(both, to_none):
    mine, ours, _, _ = both
    give_gradients(mine, 0)
    ours.zero_grad(set_to_none=to_none)
    for p in mine:
        assert p.grad is None if to_none else p.grad.count_nonzero() == 0


def test_gradients_of_zero_are_a_step_and_none_is_not(both):
    mine, ours, others, theirs = both
    for params, opt in ((mine, ours), (others, theirs)):
        train(opt, params, 1)
        params[0].grad = None
        params[1].grad.zero_()
        opt.step()
        assert [opt.state[p]["step"] for p in params] == [1, 2]
    assert_close_to_torch(mine, others)


def test_closure_is_called_once_with_gradients_enabled_and_its_loss_returned(both):
    mine, ours, others, theirs = both
    losses = []
    for params, opt in ((mine, ours), (others, theirs)):
        calls = []

        def closure(params=params, opt=opt, calls=calls):
            calls.append(torch.is_grad_enabled())
            opt.zero_grad()
            loss = sum((p * p).sum() for p in params)
            loss.backward()
            return loss

        with torch.no_grad():
            losses.append(opt.step(closure))
        assert calls == [True]
    assert torch.equal(*losses)
    assert_close_to_torch(mine, others)


def test_step_returns_none_without_a_closure(both):
    mine, ours, _, _ = both
    give_gradients(mine, 0)
    assert ours.step() is None


def test_an_error_in_a_closure_comes_through_and_changes_nothing(both):
    mine, ours, _, _ = both
    give_gradients(mine, 0)
    before = copies(mine)

    def closure():
        raise ZeroDivisionError("the closure's own")

    with pytest.raises(ZeroDivisionError, match="own"):
        ours.step(closure)
    assert_same(mine, before)
    train(ours, mine, 1)


def test_profiler_sees_the_step(both):
    mine, ours, _, _ = both
    give_gradients(mine, 0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        ours.step()
        ours.zero_grad()
    names = {event.name for event in profile.events()}
    assert {"Optimizer.step#AdamW.step", "Optimizer.zero_grad#AdamW.zero_grad"} <= names


def test_step_is_not_recorded_by_autograd(both):
    mine, ours, _, _ = both
    train(ours, mine, 1)
    assert all(p.is_leaf and p.requires_grad and p.grad_fn is None for p in mine)


def test_step_raises_the_version_so_that_a_stale_backward_is_noticed(both):
    mine, ours, _, _ = both
    loss = (mine[0] * mine[0]).sum()
    train(ours, mine, 1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_subclasses_work():
    class Own(transload.AdamW):
        def step(self, closure=None):
            self.counted = getattr(self, "counted", 0) + 1
            return super().step(closure)

    params = parameters((8,))
    before = copies(params)
    opt = train(Own(params, **HYPER), params, 2)
    assert opt.counted == 2 and not torch.equal(params[0], before[0])
    assert repr(opt).startswith("Own (")


def test_report_counts_steps(both):
    mine, ours, _, _ = both
    train(ours, mine, 3)
    assert report(ours, "steps") == 3
    assert report(ours, "state_bytes") >= 8 * sum(p.numel() for p in mine)
