"""Every scheduler of torch.optim.lr_scheduler, iteration by iteration beside torch's AdamW."""
import inspect
import warnings

import pytest
import torch
from torch.optim import lr_scheduler

import transload
from support import HYPER, assert_close_to_torch, give_gradients, parameters

STEPS = 12


def nested(opt):
    return [lr_scheduler.ConstantLR(opt, factor=0.5, total_iters=3), lr_scheduler.ExponentialLR(opt, gamma=0.8)]


MAKE = {
    "LambdaLR": lambda opt: lr_scheduler.LambdaLR(opt, lambda i: 0.9 ** i),
    "MultiplicativeLR": lambda opt: lr_scheduler.MultiplicativeLR(opt, lambda i: 0.9),
    "StepLR": lambda opt: lr_scheduler.StepLR(opt, 3, gamma=0.5),
    "MultiStepLR": lambda opt: lr_scheduler.MultiStepLR(opt, [2, 5, 6], gamma=0.5),
    "ConstantLR": lambda opt: lr_scheduler.ConstantLR(opt, factor=0.25, total_iters=4),
    "LinearLR": lambda opt: lr_scheduler.LinearLR(opt, start_factor=0.1, total_iters=6),
    "ExponentialLR": lambda opt: lr_scheduler.ExponentialLR(opt, gamma=0.8),
    "SequentialLR": lambda opt: lr_scheduler.SequentialLR(opt, nested(opt), milestones=[4]),
    "ChainedScheduler": lambda opt: lr_scheduler.ChainedScheduler(nested(opt)),
    "CosineAnnealingLR": lambda opt: lr_scheduler.CosineAnnealingLR(opt, T_max=8, eta_min=1e-5),
    "CosineAnnealingWarmRestarts": lambda opt: lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=3, T_mult=2),
    "PolynomialLR": lambda opt: lr_scheduler.PolynomialLR(opt, total_iters=10, power=2.0),
    "ReduceLROnPlateau": lambda opt: lr_scheduler.ReduceLROnPlateau(opt, patience=1, factor=0.3),
    # These two write the betas as well.
    "CyclicLR": lambda opt: lr_scheduler.CyclicLR(opt, 1e-4, 1e-2, step_size_up=3, cycle_momentum=True),
    "OneCycleLR": lambda opt: lr_scheduler.OneCycleLR(opt, max_lr=1e-2, total_steps=STEPS + 1),
}


def every_scheduler():
    names = [n for n, c in vars(lr_scheduler).items() if inspect.isclass(c) and issubclass(c, lr_scheduler.LRScheduler)]
    names += ["ReduceLROnPlateau"]
    return sorted(set(names) - {"LRScheduler", "_LRScheduler"})


def test_none_is_left_out():
    assert set(every_scheduler()) - {"SWALR"} <= set(MAKE)


def run(cls, name):
    params = parameters((60,), (5, 7))
    opt = cls([{"params": params[:1]}, {"params": params[1:], "lr": 3e-3}], **HYPER)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("ignore", FutureWarning)
        scheduler = MAKE[name](opt)
        rates, weights = [], []
        for step in range(STEPS):
            give_gradients(params, step)
            opt.step()
            scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
            rates.append([(g["lr"], g["betas"]) for g in opt.param_groups])
            weights.append([p.detach().clone() for p in params])
    return rates, weights


@pytest.mark.parametrize("name", every_scheduler())
def test_by_iteration(name):
    if name not in MAKE:
        pytest.fail(f"{name} is a scheduler of this torch that the test does not know")
    our_rates, ours = run(transload.AdamW, name)
    their_rates, theirs = run(torch.optim.AdamW, name)
    assert our_rates == their_rates
    assert len({str(r) for r in their_rates}) > 1, "the schedule is constant: nothing is shown"
    for step, (mine, others) in enumerate(zip(ours, theirs)):
        assert_close_to_torch(mine, others, lr=1e-2, steps=step + 1)


def test_stochastic_weight_averaging():
    from torch.optim.swa_utils import SWALR
    results = []
    for cls in (transload.AdamW, torch.optim.AdamW):
        params = parameters((60,))
        opt = cls(params, **HYPER)
        scheduler = SWALR(opt, swa_lr=5e-2, anneal_epochs=4)
        for step in range(8):
            give_gradients(params, step)
            opt.step()
            scheduler.step()
        results.append(params)
        assert opt.param_groups[0]["lr"] == 5e-2
    assert_close_to_torch(*results, lr=5e-2, steps=8)


def test_a_scheduler_with_a_tensor_rate_writes_it_in_place():
    results = []
    for cls in (transload.AdamW, torch.optim.AdamW):
        params = parameters((60,))
        opt = cls(params, **{**HYPER, "lr": torch.tensor(1e-2)})
        scheduler = lr_scheduler.ExponentialLR(opt, gamma=0.5)
        for step in range(6):
            give_gradients(params, step)
            opt.step()
            scheduler.step()
        results.append(params)
    assert_close_to_torch(*results, lr=1e-2, steps=6)


def test_resuming_a_schedule_with_the_optimizer(tmp_path):
    """The order of the scheduler's own documentation: scheduler made, both loaded, and on it goes."""
    def make(params):
        opt = transload.AdamW(params, **HYPER)
        return opt, lr_scheduler.OneCycleLR(opt, max_lr=1e-2, total_steps=13)

    def steps(params, opt, scheduler, first, last):
        for step in range(first, last):
            give_gradients(params, step)
            opt.step()
            scheduler.step()

    whole = parameters((60,))
    opt, scheduler = make(whole)
    steps(whole, opt, scheduler, 0, 12)

    half = parameters((60,))
    opt, scheduler = make(half)
    steps(half, opt, scheduler, 0, 6)
    torch.save({"opt": opt.state_dict(), "scheduler": scheduler.state_dict()}, tmp_path / "both.pt")
    saved = torch.load(tmp_path / "both.pt", weights_only=True)
    opt, scheduler = make(half)
    opt.load_state_dict(saved["opt"])
    scheduler.load_state_dict(saved["scheduler"])
    steps(half, opt, scheduler, 6, 12)
    assert torch.equal(half[0], whole[0])
