"""What stands between backward and step: scalers, clipping, edits of gradients, compiled models, checkpointing."""
import shutil

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import transload
from support import (HYPER, assert_close_to_torch, assert_same, copies, give_gradients, parameters, report, same_bits,
                     train)


def network(dtype=torch.float32):
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4)).to(dtype)


def batches(n, dtype=torch.float32):
    generator = torch.Generator().manual_seed(6)
    return [(torch.randn(16, 8, generator=generator).to(dtype), torch.randn(16, 4, generator=generator).to(dtype))
            for _ in range(n)]


def beside_torch(loop, tolerance_steps=10, lr=HYPER["lr"]):
    """Runs loop(model, optimizer) with both; compares losses and weights."""
    results = []
    for cls in (transload.AdamW, torch.optim.AdamW):
        model = network()
        start = copies(model.parameters())
        losses = loop(model, cls(model.parameters(), **{**HYPER, "lr": lr}))
        assert not torch.equal(start[0], next(model.parameters())), "nothing was trained"
        results.append((losses, list(model.parameters())))
    (our_losses, mine), (their_losses, others) = results
    assert our_losses == pytest.approx(their_losses, rel=1e-5)
    for p, q in zip(mine, others):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


def simple(model, opt, between=lambda params: None, count=10):
    losses = []
    for x, y in batches(count):
        loss = (model(x) - y).square().mean()
        opt.zero_grad()
        loss.backward()
        between(list(model.parameters()))
        opt.step()
        losses.append(loss.item())
    return losses


def test_plain_loop():
    beside_torch(simple)


def test_clip_grad_norm_binds():
    def clip(params):
        assert nn.utils.clip_grad_norm_(params, 0.01) > 0.01

    beside_torch(lambda model, opt: simple(model, opt, clip))


def test_clipping_that_changes_each_step_shows():
    """AdamW forgives a constant factor: clipping only some steps does not look like clipping none."""
    def clip(params):
        clip.calls = getattr(clip, "calls", 0) + 1
        if clip.calls % 3 == 0:
            nn.utils.clip_grad_norm_(params, 1e-4)

    results = []
    for between in (clip, lambda params: None):
        model = network()
        simple(model, transload.AdamW(model.parameters(), **HYPER), between)
        results.append(model[0].weight.detach())
    assert (results[0] - results[1]).abs().max() > 1e-4
    clip.calls = 0
    beside_torch(lambda model, opt: (setattr(clip, "calls", 0), simple(model, opt, clip))[1])


def test_clip_grad_value():
    beside_torch(lambda model, opt: simple(model, opt, lambda params: nn.utils.clip_grad_value_(params, 1e-3)))


def test_gradients_edited_in_place_and_replaced():
    def edit(params):
        params[0].grad.data.mul_(-1)
        params[1].grad.numpy()[:] = 0.5
        params[2].grad = params[2].grad.abs()

    beside_torch(lambda model, opt: simple(model, opt, edit))


def test_gradients_with_other_strides():
    results = []
    for cls in (transload.AdamW, torch.optim.AdamW):
        params = parameters((6, 10))
        opt = cls(params, **HYPER)
        for step in range(4):
            give_gradients(params, step)
            params[0].grad = params[0].grad.t().contiguous().t()
            assert params[0].grad.stride() != params[0].stride()
            opt.step()
        results.append(params)
    assert_close_to_torch(*results, steps=4)


def test_an_expanded_gradient():
    """sum().backward() gives a gradient of stride zero."""
    results = []
    for cls in (transload.AdamW, torch.optim.AdamW):
        params = parameters((6, 10))
        opt = cls(params, **HYPER)
        for _ in range(3):
            params[0].grad = torch.tensor(0.25).expand(6, 10)
            opt.step()
        results.append(params)
    assert_close_to_torch(*results, steps=3)


def test_gradients_are_not_written():
    params = parameters((500,), (7, 3), dtype=torch.bfloat16)
    opt = transload.AdamW(params, **HYPER)
    give_gradients(params, 0)
    before = [p.grad.clone() for p in params]
    opt.step()
    assert all(torch.equal(p.grad, g) for p, g in zip(params, before))


def test_accumulation():
    def loop(model, opt):
        losses = []
        for index, (x, y) in enumerate(batches(9)):
            loss = (model(x) - y).square().mean() / 3
            loss.backward()
            losses.append(loss.item())
            if index % 3 == 2:
                opt.step()
                opt.zero_grad()
        return losses

    beside_torch(loop)


@pytest.mark.parametrize("overflow", [False, True])
def test_grad_scaler(overflow):
    """On the CPU; a step whose gradients overflow changes nothing and halves the scale."""
    def loop(model, opt):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 10, growth_interval=4)
        losses, scales = [], []
        for index, (x, y) in enumerate(batches(10)):
            opt.zero_grad()
            loss = (model(x) - y).square().mean()
            scaler.scale(loss).backward()
            if overflow and index in (2, 5):
                next(model.parameters()).grad[0, 0] = float("inf")
                before = copies(model.parameters())
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(opt)
            if overflow and index in (2, 5):
                assert_same(model.parameters(), before)
            scaler.update()
            losses.append(loss.item())
            scales.append(scaler.get_scale())
        assert len(set(scales)) > 1
        steps = 8 if overflow else 10
        assert int(opt.state[next(model.parameters())]["step"]) == steps
        return losses + scales

    beside_torch(loop)


def test_grad_scaler_without_unscale():
    """scaler.step alone must unscale: an optimizer that claims to do it itself and does not would show here."""
    def loop(model, opt):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 6, growth_interval=2)
        losses = []
        for x, y in batches(8):
            opt.zero_grad()
            loss = (model(x) - y).square().mean()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            losses.append(loss.item())
        return losses

    beside_torch(loop)


def test_activation_checkpointing():
    def loop(model, opt):
        losses = []
        for x, y in batches(6):
            opt.zero_grad()
            hidden = checkpoint(lambda x: model[1](model[0](x)), x, use_reentrant=False)
            loss = (model[2](hidden) - y).square().mean()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        return losses

    beside_torch(loop)


def test_compiled_model():
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler for torch.compile")

    def loop(model, opt):
        torch._dynamo.reset()
        return simple(torch.compile(model), opt, count=6)

    beside_torch(loop)


def test_autocast():
    def loop(model, opt):
        losses = []
        for x, y in batches(6):
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = (model(x).float() - y).square().mean()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        return losses

    beside_torch(loop)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nonfinite_gradients_propagate_as_in_torch(bad):
    results = []
    for cls in (transload.AdamW, torch.optim.AdamW):
        params = parameters((3000,))
        opt = train(cls(params, **HYPER), params, 2)
        give_gradients(params, 2)
        params[0].grad[[5, 2000]] = bad
        opt.step()
        train(opt, params, 1, first=3)
        results.append(params[0].detach())
    assert torch.equal(results[0].isnan(), results[1].isnan()) and results[1].isnan().sum() == 2
    finite = ~results[1].isnan()
    assert_close_to_torch([results[0][finite]], [results[1][finite]], steps=4)


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_nonfinite_gradients_can_skip_the_step(bad, dtype):
    params, control = parameters((3000,), (40,), dtype=dtype), parameters((3000,), (40,), dtype=dtype)
    opt, untouched = transload.AdamW(params, **HYPER, nonfinite="skip"), transload.AdamW(control, **HYPER)
    train(opt, params, 2)
    train(untouched, control, 2)
    assert opt.skipped == 0
    give_gradients(params, 2)
    params[1].grad[-1] = bad
    opt.step()
    assert opt.skipped == 1
    assert_same(params, control)
    assert [int(opt.state[p]["step"]) for p in params] == [2, 2]
    train(opt, params, 2, first=3)
    train(untouched, control, 2, first=3)
    assert_same(params, control)
    assert opt.skipped == 1


def test_step_returns_with_everything_written():
    """On NVMe too: what is read right after the step is what stays."""
    from support import small_budget
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        params = parameters((400_000,))
        opt = transload.AdamW(params, **HYPER, nvme=folder, host_memory=small_budget(params, folder))
        for step in range(3):
            give_gradients(params, step)
            opt.step()
            now = params[0].detach().clone()
            torch.zeros(1_000_000).sum()
            assert torch.equal(now, params[0])
        assert report(opt, "nvme_read") > 0


def test_gradients_that_are_not_what_their_memory_holds():
    """Lazy minus signs, and zeros that are nowhere."""
    params, plain = parameters((100,), (1,), (50,)), parameters((100,), (1,), (50,))
    for p in plain:
        p.grad = torch.full_like(p, -2.0)
    plain[2].grad.zero_()
    params[0].grad = torch._neg_view(torch.full((100,), 2.0))
    params[1].grad = torch.tensor([0 + 2j]).conj().imag
    params[2].grad = torch._efficientzerotensor(50)
    transload.AdamW(params, **HYPER).step()
    transload.AdamW(plain, **HYPER).step()
    assert_same(params, plain)


@pytest.mark.parametrize("what", ["gradient", "parameter"])
def test_memory_that_was_freed_is_refused_by_name(what):
    params = parameters((30,), (40,))
    opt = train(transload.AdamW(params, **HYPER), params, 1)
    give_gradients(params, 1)
    kept = params[0].detach().clone()
    (params[1].grad if what == "gradient" else params[1].data).untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match=r"group 0 parameter 1 .* no memory"):
        opt.step()
    assert same_bits(params[0], kept)


def test_text_is_no_rate():
    params = parameters((30,))
    opt = transload.AdamW(params, **HYPER)
    opt.param_groups[0]["lr"] = "0.1"
    give_gradients(params, 0)
    with pytest.raises(TypeError, match="lr"):
        opt.step()
