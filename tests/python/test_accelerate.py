"""Accelerate: prepare() takes an optimizer over before and after its parameters are what they will be."""
import pytest
import torch

import transload
from support import assert_same, assert_streamed, steps_of
from trainers import BUDGET, DECAY, LR, TOLERANCE, Tokens, relative, tiny_llama

accelerate = pytest.importorskip("accelerate")
CLIP = 0.3


@pytest.fixture(autouse=True)
def fresh_accelerate():
    yield
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()


def loader():
    return torch.utils.data.DataLoader(Tokens(96), batch_size=4)


def prepared(order, cls, options, **keywords):
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3, **keywords)
    model = tiny_llama()
    options = {"lr": LR, "weight_decay": DECAY, **options}
    if order == "after construction":
        opt = cls(model.parameters(), **options)
        model, opt, data = accelerator.prepare(model, opt, loader())
    elif order == "before construction":
        model, data = accelerator.prepare(model, loader())
        opt = accelerator.prepare(cls(model.parameters(), **options))
    else:  # parameters replaced in the groups, as FSDP and XLA have it done
        opt = cls(model.parameters(), **options)
        swap = {p: torch.nn.Parameter(p.detach().clone()) for p in model.parameters()}
        for module in model.modules():
            for name, p in list(module._parameters.items()):
                if p is not None:
                    module._parameters[name] = swap[p]
        opt = accelerator.prepare(opt)
        opt._switch_parameters(swap)
        model, data = accelerator.prepare(model, loader())
    return accelerator, model, opt, data


def run(accelerator, model, opt, data, first=0, last=24):
    losses, norms = [], []
    for index, batch in enumerate(data):
        if not first <= index < last:
            continue
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norms.append(float(accelerator.clip_grad_norm_(model.parameters(), CLIP)))
            opt.step()
            opt.zero_grad()
        losses.append(loss.item())
    return losses, norms


@pytest.mark.parametrize("order", ["after construction", "before construction", "parameters switched"])
def test_losses_are_those_of_torch(nvme, order):
    results = []
    for cls, options in ((transload.AdamW, {"nvme": str(nvme), "host_memory": BUDGET}), (torch.optim.AdamW, {})):
        accelerator, model, opt, data = prepared(order, cls, options)
        results.append(run(accelerator, model, opt, data))
        if cls is transload.AdamW:
            assert_streamed(opt.optimizer)
            assert int(opt.state[next(iter(opt.state))]["step"]) == 8
        accelerate.state.GradientState._reset_state()
    (losses, norms), (their_losses, their_norms) = results
    assert min(their_norms) > CLIP and len(norms) == 8, "clipping does not bind"
    assert relative(losses, their_losses) < TOLERANCE
    assert their_losses[-1] < their_losses[0] - 0.3


def test_save_and_resume(tmp_path, nvme):
    options = {"nvme": str(nvme), "host_memory": BUDGET}
    whole = prepared("after construction", transload.AdamW, options)
    want = run(*whole)[0]
    first = prepared("after construction", transload.AdamW, options)
    run(*first, last=12)
    first[0].save_state(str(tmp_path / "state"))
    accelerate.state.GradientState._reset_state()
    second = prepared("after construction", transload.AdamW, options)
    second[0].load_state(str(tmp_path / "state"))
    assert run(*second, first=12)[0] == want[12:]
    assert_streamed(second[2].optimizer)
    assert_same(second[1].parameters(), whole[1].parameters())


def test_prepared_again_after_steps(nvme):
    """prepare() reads the state, moves it and loads it: state larger than the budget must come through."""
    options = {"nvme": str(nvme), "host_memory": BUDGET}
    accelerator, model, opt, data = prepared("after construction", transload.AdamW, options)
    want = run(accelerator, model, opt, data)[0]
    accelerate.state.GradientState._reset_state()
    accelerator, model, opt, data = prepared("after construction", transload.AdamW, options)
    first = run(accelerator, model, opt, data, last=12)[0]
    again = accelerate.optimizer.AcceleratedOptimizer(opt.optimizer)
    rest = run(accelerator, model, again, data, first=12)[0]
    assert first + rest == want


def test_scaler_skips_a_step_that_overflows(nvme):
    """An fp16 scaler within Accelerate's wrapper, which patches step()."""
    params = [torch.nn.Parameter(torch.ones(300_000))]
    accelerator = accelerate.Accelerator(cpu=True)
    opt = transload.AdamW(params, lr=LR, nvme=str(nvme), host_memory=BUDGET)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    wrapped = accelerate.optimizer.AcceleratedOptimizer(opt, scaler=scaler)
    for bad in (False, True, False):
        before = params[0].detach().clone()
        scaler.scale(params[0].square().mean()).backward()
        if bad:
            params[0].grad[7] = float("inf")
        wrapped.step()
        assert wrapped.step_was_skipped == bad
        assert torch.equal(before, params[0]) == bad
        wrapped.zero_grad()
    assert steps_of(opt) == [2]
    del accelerator
