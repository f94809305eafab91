"""The same recorded gradients fed to both over 50 steps, weights of ordinary size, beside a float64 reference."""
import pytest
import torch

import transload
from support import (HYPER, Float64AdamW, assert_close_to_torch, assert_same, assert_streamed, bf16_step, chunk_option,
                     copies, gradient, on_nvme, parameters, train)

STEPS = 50
SHAPES = [(300, 700), (70_001,), (64, 128, 3), (1,), (1023,), (1024,), (1025,)]
SCALES = [1.0, 0.05, 20.0]


def weights(dtype=torch.float32):
    return [p for i, scale in enumerate(SCALES) for p in parameters(*SHAPES, dtype=dtype, scale=scale, seed=i)]


def gradient_scale(step):
    return 10.0 ** (-(step % 5))  # sizes differ from step to step, as they do


def run(opt, params):
    for step in range(STEPS):
        train(opt, params, 1, first=step, scale=gradient_scale(step))


def recorded(params):
    for step in range(STEPS):
        yield [gradient(p, step, i, gradient_scale(step)) for i, p in enumerate(params)]


def distances(params, reference):
    """Largest and mean distance, in units of the element's own size."""
    apart = torch.cat([((p.detach().double() - w).abs() / w.abs().clamp(min=HYPER["lr"] * STEPS)).flatten()
                       for p, w in zip(params, reference.weights)])
    return apart.max().item(), apart.mean().item()


@pytest.fixture(scope="module")
def fp32():
    """Reference, torch's default and fused, and ours, after the same 50 steps."""
    torch.set_num_threads(2)
    reference = Float64AdamW(weights(), **HYPER)
    for gradients in recorded(weights()):
        reference.step(gradients)
    found = {"reference": reference}
    for name, make in {"ours": lambda p: transload.AdamW(p, **HYPER),
                       "default": lambda p: torch.optim.AdamW(p, **HYPER),
                       "foreach": lambda p: torch.optim.AdamW(p, **HYPER, foreach=True),
                       "fused": lambda p: torch.optim.AdamW(p, **HYPER, fused=True)}.items():
        params = weights()
        run(make(params), params)
        found[name] = params
    return found


@pytest.mark.parametrize("peer", ["default", "foreach", "fused"])
def test_distance_from_float64_is_that_of_torch(fp32, peer):
    our_max, our_mean = distances(fp32["ours"], fp32["reference"])
    their_max, their_mean = distances(fp32[peer], fp32["reference"])
    print(f"max {our_max:.3g} (torch {their_max:.3g}), mean {our_mean:.3g} (torch {their_mean:.3g})")
    assert 0 < their_mean < 1e-5, "the reference is not a reference"
    assert our_max <= 1.05 * their_max and our_mean <= 1.05 * their_mean


@pytest.mark.parametrize("peer", ["default", "foreach", "fused"])
def test_each_element_is_close_to_torch(fp32, peer):
    assert_close_to_torch(fp32["ours"], fp32[peer])


def test_something_happened(fp32):
    for p, start in zip(fp32["ours"], weights()):
        assert (p - start).abs().max() > 1e-3


@pytest.fixture(scope="module")
def bits_of():
    """What one dtype's parameters are after 8 steps with everything in memory and one thread."""
    cache = {}

    def get(dtype, moments="fp32"):
        if (dtype, moments) not in cache:
            params = small(dtype)
            torch.set_num_threads(1)
            cache[dtype, moments] = train(transload.AdamW(params, **HYPER, moments=moments), params, 8), params
        return cache[dtype, moments]

    return get


def small(dtype):
    return parameters((150_000,), (300, 321), (7,), (5000,), (1024,), dtype=dtype)


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def check(found, params, opt):
    want_opt, want = found
    assert_same(params, want)
    for p, q in zip(params, want):
        assert set(opt.state[p]) == set(want_opt.state[q])
        assert_same([v for k, v in sorted(opt.state[p].items()) if k != "step"],
                    [v for k, v in sorted(want_opt.state[q].items()) if k != "step"])
    del opt


@pytest.mark.parametrize("moments", ["fp32", "bf16"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [2, 4])
def test_threads_change_no_bit(bits_of, dtype, moments, threads):
    found = bits_of(DTYPES[dtype], moments)
    torch.set_num_threads(threads)
    params = small(DTYPES[dtype])
    check(found, params, train(transload.AdamW(params, **HYPER, moments=moments), params, 8))


@pytest.mark.parametrize("moments", ["fp32", "bf16"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunk", [1024, 16 * 1024, 1 << 20])
def test_chunk_size_changes_no_bit(bits_of, dtype, moments, chunk):
    found = bits_of(DTYPES[dtype], moments)
    params = small(DTYPES[dtype])
    check(found, params, train(transload.AdamW(params, **HYPER, moments=moments, **chunk_option(chunk)), params, 8))


@pytest.mark.parametrize("moments", ["fp32", "bf16"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("budget", ["least", "half"])
def test_budget_changes_no_bit(bits_of, dtype, moments, budget, nvme):
    """Weights after the steps; the state through the file, since it is larger than the budget."""
    want_opt, want = bits_of(DTYPES[dtype], moments)
    params = small(DTYPES[dtype])
    half = {"least": None, "half": sum(p.numel() for p in params) * 4}[budget]
    opt = train(on_nvme(params, nvme, half, moments=moments), params, 8)
    if budget == "least":
        assert_streamed(opt)
    assert_same(params, want)
    opt.save(nvme / "ours")
    want_opt.save(nvme / "want")
    assert (nvme / "ours").read_bytes() == (nvme / "want").read_bytes()


def test_bf16_master_is_within_the_bound_of_fp32_and_the_weight_within_a_step():
    start = weights(torch.bfloat16)
    reference = Float64AdamW(start, **HYPER)
    for gradients in recorded(start):
        reference.step(gradients)
    explicit = [torch.nn.Parameter(p.detach().float()) for p in start]
    theirs = torch.optim.AdamW(explicit, **HYPER)
    for gradients in recorded(start):
        for p, g in zip(explicit, gradients):
            p.grad = g.float()
        theirs.step()
    mine = copies(start)
    opt = transload.AdamW(mine, **HYPER)
    run(opt, mine)
    masters = [opt.state[p]["master"] for p in mine]
    assert all(m.dtype == torch.float32 for m in masters)
    ours, torchs = distances(masters, reference), distances(explicit, reference)
    assert ours[0] <= 1.05 * torchs[0] and ours[1] <= 1.05 * torchs[1], (ours, torchs)
    assert_close_to_torch(masters, explicit)
    for p, master, w in zip(mine, masters, reference.weights):
        assert ((p.double() - master.double()).abs() <= bf16_step(master) / 2).all(), "the weight is not its master"
        drift = 4e-6 * w.abs().clamp(min=HYPER["lr"] * STEPS)  # near zero a bf16 step is smaller than fp32 may drift
        assert ((p.double() - w).abs() <= bf16_step(w) + drift).all()


def test_fp16_master_is_within_the_bound_of_fp32():
    start = parameters((60_000,), (1025,), dtype=torch.float16)
    reference = Float64AdamW(start, **HYPER)
    for gradients in recorded(start):
        reference.step(gradients)
    explicit = [torch.nn.Parameter(p.detach().float()) for p in start]
    theirs = torch.optim.AdamW(explicit, **HYPER)
    for gradients in recorded(start):
        for p, g in zip(explicit, gradients):
            p.grad = g.float()
        theirs.step()
    mine = copies(start)
    opt = transload.AdamW(mine, **HYPER)
    run(opt, mine)
    masters = [opt.state[p]["master"] for p in mine]
    ours, torchs = distances(masters, reference), distances(explicit, reference)
    assert ours[0] <= 1.05 * torchs[0] and ours[1] <= 1.05 * torchs[1], (ours, torchs)
    assert_close_to_torch(masters, explicit)
    assert_same(mine, [m.half() for m in masters])


def test_low_precision_moves_where_it_would_stand_still():
    """A rate so small that one step is far less than half a bf16 step: 200 of them must show."""
    p = torch.nn.Parameter(torch.ones(2000, dtype=torch.bfloat16))
    opt = transload.AdamW([p], lr=1e-4, weight_decay=0.0)
    for _ in range(200):
        p.grad = torch.ones_like(p)
        opt.step()
    torch.testing.assert_close(opt.state[p]["master"], torch.full((2000,), 0.98), rtol=1e-4, atol=0)
    assert (p.float() - 0.98).abs().max() <= 2.0 ** -8


def test_bf16_moments_do_not_stand_still():
    """Rounded to nearest, v would stop at 0.25, where an increment is less than half a step."""
    p = torch.nn.Parameter(torch.ones(8192))
    opt = transload.AdamW([p], lr=1e-4, betas=(0.9, 0.999), moments="bf16")
    for _ in range(600):
        p.grad = torch.ones_like(p)
        opt.step()
    v = opt.state[p]["exp_avg_sq"].float()
    assert abs(v.mean().item() / (1 - 0.999 ** 600) - 1) < 0.01
    assert v.unique().numel() > 1, "rounded the same way everywhere: not stochastic"
    assert abs(opt.state[p]["exp_avg"].float().mean().item() - 1) < 0.01


def test_bf16_moments_depend_on_the_seed_and_on_the_tensor():
    def once(seed):
        params = [torch.nn.Parameter(torch.ones(4096)) for _ in range(2)]
        opt = transload.AdamW(params, **HYPER, moments="bf16", seed=seed)
        for step in range(3):
            for p in params:
                p.grad = gradient(params[0], step)
            opt.step()
        return [opt.state[p]["exp_avg_sq"].clone() for p in params]

    first, again, other = once(1), once(1), once(2)
    assert_same(first, again)
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], first[1])


def test_bf16_moments_stay_close_to_fp32():
    start = parameters((100_000,))
    mine, others = copies(start), copies(start)
    train(transload.AdamW(mine, **HYPER, moments="bf16"), mine, STEPS)
    train(torch.optim.AdamW(others, **HYPER), others, STEPS)
    moved = (others[0] - start[0]).abs().mean()
    assert (mine[0] - others[0]).abs().mean() < 0.02 * moved


def test_end_to_end_losses_agree():
    losses = []
    for cls in (transload.AdamW, torch.optim.AdamW):
        torch.manual_seed(4)
        model = torch.nn.Sequential(torch.nn.Embedding(64, 48), torch.nn.Linear(48, 96), torch.nn.GELU(),
                                    torch.nn.Linear(96, 64))
        opt = cls(model.parameters(), lr=3e-3, weight_decay=0.1)
        mine = []
        for _ in range(100):
            ids = torch.randint(0, 64, (256,))
            loss = torch.nn.functional.cross_entropy(model(ids), (ids * 7 + 3) % 64)
            opt.zero_grad()
            loss.backward()
            opt.step()
            mine.append(loss.item())
        losses.append(mine)
    assert losses[0] == pytest.approx(losses[1], rel=2e-4)
    assert losses[0][-1] < 0.1 * losses[0][0]
