"""Parameter groups: whatever their values are at the moment of step counts, whoever wrote them."""
import pytest
import torch

import transload
from support import (HYPER, assert_close_to_torch, chunk_option, copies, give_gradients, parameters, train)


def both(groups):
    """Ours and torch's with the same groups, given as lists of (shapes, options)."""
    made = []
    for cls in (transload.AdamW, torch.optim.AdamW):
        params = [parameters(*shapes, seed=i) for i, (shapes, _) in enumerate(groups)]
        opt = cls([{"params": p, **options} for p, (_, options) in zip(params, groups)], **HYPER)
        made.append((opt, [q for p in params for q in p]))
    return made


def test_groups_do_not_merge():
    """Small neighbours share a chunk, and still each has its group's values."""
    groups = [([(3,), (5, 5)], {"lr": 1e-2}), ([(7,)], {"weight_decay": 0.0, "lr": 1e-1}),
              ([(4,)], {"betas": (0.5, 0.6)}), ([(9,)], {"eps": 1e-2}), ([(2, 2)], {"lr": 0.0})]
    (ours, mine), (theirs, others) = both(groups)
    start = copies(mine)
    train(ours, mine, 10)
    train(theirs, others, 10)
    assert_close_to_torch(mine, others, lr=1e-1, steps=10)
    assert torch.equal(mine[-1], start[-1]) and not torch.equal(mine[0], start[0])


def test_values_between_steps():
    (ours, mine), (theirs, others) = both([([(40,)], {}), ([(50,)], {})])
    for opt, params in ((ours, mine), (theirs, others)):
        train(opt, params, 2)
        opt.param_groups[0].update(lr=5e-2, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.5)
        train(opt, params, 2, first=2)
        opt.param_groups[1]["lr"] *= 7
        train(opt, params, 2, first=4)
    assert_close_to_torch(mine, others, lr=5e-2, steps=6)


@pytest.mark.parametrize("make", [lambda x: torch.tensor(x), lambda x: torch.tensor([x]),
                                  lambda x: torch.tensor(x, dtype=torch.float64)], ids=["0-d", "one", "double"])
def test_lr_is_a_tensor_and_may_change_in_place(make):
    results = []
    for cls in (transload.AdamW, torch.optim.AdamW):
        params = parameters((100,))
        lr = make(1e-2)
        opt = cls(params, **{**HYPER, "lr": lr})
        train(opt, params, 2)
        lr.mul_(0.25)
        opt.param_groups[0]["lr"].add_(0)
        train(opt, params, 2, first=2)
        results.append(params)
    assert_close_to_torch(*results, lr=1e-2, steps=4)


def test_betas_are_tensors():
    results = []
    for cls in (transload.AdamW, torch.optim.AdamW):
        params = parameters((100,))
        betas = (torch.tensor(0.7, dtype=torch.float64), torch.tensor(0.8, dtype=torch.float64))
        results.append(params)
        train(cls(params, lr=1e-2, betas=betas), params, 4)
    assert_close_to_torch(*results, lr=1e-2, steps=4)


@pytest.mark.parametrize("steps_before", [0, 3])
def test_add_param_group(steps_before):
    (ours, mine), (theirs, others) = both([([(30,)], {})])
    for opt, params in ((ours, mine), (theirs, others)):
        train(opt, params, steps_before)
        added = parameters((20,), (6, 6), seed=9)
        opt.add_param_group({"params": added, "lr": 3e-2})
        params += added
        train(opt, params, 3, first=steps_before)
        assert [int(opt.state[p]["step"]) for p in params] == [3 + steps_before, 3, 3]
    assert_close_to_torch(mine, others, lr=3e-2, steps=6)


def test_an_added_group_on_nvme_keeps_the_others_state(nvme):
    from support import on_nvme
    mine = parameters((300_000,))
    others = copies(mine)
    ours, theirs = on_nvme(mine, nvme), torch.optim.AdamW(others, **HYPER)
    for opt, params in ((ours, mine), (theirs, others)):
        train(opt, params, 2)
        added = parameters((2000,), seed=9)
        opt.add_param_group({"params": added})
        params += added
        train(opt, params, 2, first=2)
    assert_close_to_torch(mine, others, steps=4)


def test_groups_given_by_a_loaded_dict_count():
    """load_state_dict replaces the groups; what it brought is used, and writing into the new dicts works."""
    (ours, mine), (theirs, others) = both([([(40,)], {})])
    for opt, params in ((ours, mine), (theirs, others)):
        train(opt, params, 2)
        saved = opt.state_dict()
        saved = {"state": saved["state"], "param_groups": [{**saved["param_groups"][0], "lr": 7e-2}]}
        opt.load_state_dict(saved)
        train(opt, params, 1, first=2)
        opt.param_groups[0]["lr"] = 1e-3
        train(opt, params, 1, first=3)
    assert_close_to_torch(mine, others, lr=7e-2, steps=4)


def test_groups_replaced_by_a_trainer():
    (ours, mine), (theirs, others) = both([([(40,)], {})])
    for opt, params in ((ours, mine), (theirs, others)):
        train(opt, params, 1)
        opt.param_groups[:] = [{**g, "lr": 0.02} for g in opt.param_groups]
        train(opt, params, 1, first=1)
        opt.param_groups = [{**g, "lr": 0.03} for g in opt.param_groups]
        train(opt, params, 1, first=2)
    assert_close_to_torch(mine, others, lr=0.03, steps=3)


def test_group_values_are_checked_at_the_step_too():
    """Written after construction; torch would take a negative rate, so it is done or refused, never ignored."""
    params = parameters((40,))
    opt = train(transload.AdamW(params, **HYPER), params, 1)
    for key, value in {"amsgrad": True, "maximize": True}.items():
        before = copies(params)
        old, opt.param_groups[0][key] = opt.param_groups[0][key], value
        give_gradients(params, 1)
        try:
            opt.step()
        except (ValueError, NotImplementedError, RuntimeError) as error:
            assert key in str(error)
            assert torch.equal(params[0], before[0])
        else:
            assert key == "maximize", "amsgrad was ignored"
            moved = (params[0] - before[0])[params[0].grad.abs() > 1]
            sign = params[0].grad.sign()[params[0].grad.abs() > 1]
            assert (moved * sign > 0).float().mean() > 0.9, "maximize was ignored"
        opt.param_groups[0][key] = old


def test_named_parameters():
    model = torch.nn.Linear(4, 3)
    opt = transload.AdamW(model.named_parameters(), **HYPER)
    assert opt.param_groups[0]["param_names"] == ["weight", "bias"]
    model(torch.ones(1, 4)).sum().backward()
    opt.step()
    assert opt.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]


def test_many_groups_over_small_chunks():
    results = []
    for cls, options in ((transload.AdamW, chunk_option(1024)), (torch.optim.AdamW, {})):
        params = parameters(*[(700 + i,) for i in range(12)])
        opt = cls([{"params": [p], "lr": 1e-3 * (i + 1)} for i, p in enumerate(params)], **HYPER, **options)
        train(opt, params, 3)
        results.append(params)
    assert_close_to_torch(*results, lr=1.2e-2, steps=3)


def test_twenty_thousand_small_tensors():
    """As many tensors as LoRA brings: a step costs no more than torch's `foreach`."""
    import statistics
    import time
    shapes = [(8, 16)] * 20_000
    mine = [torch.nn.Parameter(p) for p in torch.randn(len(shapes), 8, 16).unbind()]
    others = copies(mine)
    for params in (mine, others):
        for p in params:
            p.grad = torch.ones_like(p)
    ours, theirs = transload.AdamW(mine, **HYPER), torch.optim.AdamW(others, **HYPER, foreach=True)
    ratios = []
    for _ in range(6):
        seconds = []
        for opt in (ours, theirs):
            start = time.perf_counter()
            opt.step()
            seconds.append(time.perf_counter() - start)
        ratios.append(seconds[0] / seconds[1])
    assert_close_to_torch(mine[:50], others[:50], steps=6)
    assert statistics.median(ratios[1:]) <= 1.0, f"ours takes {statistics.median(ratios[1:]):.2f} times as long"
