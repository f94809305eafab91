"""What the user writes into a parameter of few bits is where the next step starts, exactly, however it is written."""
import copy

import numpy
import pytest
import torch

import transload
from support import (HYPER, ExplicitMaster, assert_close_to_torch, assert_same, chunk_option, copies, gradient,
                     parameters, train)

SHAPES = ((5000,), (96, 40))
KINDS = [torch.bfloat16, torch.float16]


class Holder(torch.nn.Module):
    def __init__(self, params):
        super().__init__()
        self.params = torch.nn.ParameterList(params)


class Bench:
    """Ours, and masters kept by hand, on the same gradients."""

    def __init__(self, dtype, make=transload.AdamW, **options):
        self.dtype, self.steps = dtype, 0
        self.params = parameters(*SHAPES, dtype=dtype)
        self.model = Holder(self.params)
        self.explicit = ExplicitMaster(self.params)
        self.opt = make(self.params, **HYPER, **options)

    def step(self, n=1):
        for _ in range(n):
            self.explicit.params = self.params
            self.explicit.step(self.steps)
            train(self.opt, self.params, 1, first=self.steps)
            self.steps += 1

    def restart(self):
        self.explicit.params = self.params
        for index in range(len(self.params)):
            self.explicit.restart(index)

    def check(self):
        masters = [self.opt.state[p]["master"].clone() for p in self.params]
        assert_close_to_torch(masters, self.explicit.masters, steps=self.steps)
        for p, master in zip(self.params, masters):
            step = (master.abs() * (2 ** -7 if self.dtype == torch.bfloat16 else 2 ** -10)).clamp(min=1e-6)
            assert ((p.detach().float() - master).abs() <= step).all(), "the weight is not its master"


def residue_matters(bench):
    """The masters differ from the parameters by more than the tolerance: forgetting them, or keeping them, shows."""
    apart = [(m.detach() - p.detach().float()).abs().max() for m, p in zip(bench.explicit.masters, bench.params)]
    assert min(apart) > (1e-3 if bench.dtype == torch.bfloat16 else 1e-4)


def other_values(params, factor=0.7):
    """No element keeps its value: those of fp16 that did would keep their master too."""
    return [(p.detach().float() * factor).to(p.dtype) for p in params]


def model_load_state_dict(bench):
    bench.model.load_state_dict({f"params.{i}": v for i, v in enumerate(other_values(bench.params))})


def model_load_state_dict_assign(bench):
    """assign=True puts other Parameter objects into the model; the optimizer's stay what they were unless replaced."""
    bench.model.load_state_dict({f"params.{i}": v for i, v in enumerate(other_values(bench.params))}, assign=True)
    bench.params = list(bench.model.params)
    bench.opt.param_groups[0]["params"] = list(bench.params)


def copy_in_place(bench):
    with torch.no_grad():
        for p, v in zip(bench.params, other_values(bench.params)):
            p.copy_(v)


def data_mul(bench):
    for p in bench.params:
        p.data.mul_(0.5)


def data_replaced(bench):
    for p, v in zip(bench.params, other_values(bench.params)):
        p.data = v


def data_replaced_at_the_same_address(bench):
    for p, v in zip(bench.params, other_values(bench.params)):
        address = p.data_ptr()
        p.data = v.contiguous()
        q = torch.empty_like(v)
        q.copy_(v)
        p.data = q
        del address


def through_numpy(bench):
    for p, v in zip(bench.params, other_values(bench.params)):
        view = p.detach().view(torch.int16).numpy()
        view[...] = v.view(torch.int16).numpy()


def through_a_buffer(bench):
    """No version counter sees this one."""
    for p, v in zip(bench.params, other_values(bench.params)):
        whole = numpy.frombuffer((__import__("ctypes").c_char * (2 * p.numel())).from_address(p.data_ptr()), numpy.int16)
        whole[:] = v.view(torch.int16).numpy().ravel()


def initialised_again(bench):
    with torch.no_grad():
        for p in bench.params:
            torch.nn.init.normal_(p, std=0.02)


def ema_swapped_in(bench):
    for p, v in zip(bench.params, other_values(bench.params, 0.9)):
        p.data, v.data = v.data, p.data


EDITS = [model_load_state_dict, model_load_state_dict_assign, copy_in_place, data_mul, data_replaced,
         data_replaced_at_the_same_address, through_numpy, through_a_buffer, initialised_again, ema_swapped_in]


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("edit", EDITS, ids=[e.__name__ for e in EDITS])
def test_the_next_step_starts_from_what_was_written(edit, dtype):
    bench = Bench(dtype)
    bench.step(4)
    bench.check()
    residue_matters(bench)
    edit(bench)
    bench.restart()
    bench.step(1)
    bench.check()
    bench.step(3)
    bench.check()


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("edit", [copy_in_place, data_mul, through_a_buffer], ids=lambda e: e.__name__)
def test_the_master_shown_right_after_an_edit_is_what_was_written(edit, dtype):
    bench = Bench(dtype)
    bench.step(3)
    edit(bench)
    for p in bench.params:
        assert torch.equal(bench.opt.state[p]["master"], p.detach().float())


@pytest.mark.parametrize("dtype", KINDS)
def test_a_view_taken_before_an_edit_does_not_undo_it(dtype):
    bench = Bench(dtype)
    bench.step(3)
    held = [bench.opt.state[p]["master"] for p in bench.params]
    data_mul(bench)
    bench.restart()
    bench.step(1)
    del held
    bench.check()


@pytest.mark.parametrize("dtype", KINDS)
def test_ema_swapped_in_and_back_changes_nothing(dtype):
    """The content is what the last step left: the master goes on, though versions and addresses changed."""
    bench = Bench(dtype)
    bench.step(4)
    residue_matters(bench)
    averages = other_values(bench.params, 0.9)
    for _ in range(2):
        for p, v in zip(bench.params, averages):
            p.data, v.data = v.data, p.data
    bench.step(3)
    bench.check()


@pytest.mark.parametrize("dtype", KINDS)
def test_ema_copied_in_and_back_changes_nothing(dtype):
    bench = Bench(dtype)
    bench.step(4)
    kept = [p.detach().clone() for p in bench.params]
    copy_in_place(bench)
    with torch.no_grad():
        for p, v in zip(bench.params, kept):
            p.copy_(v)
    bench.step(3)
    bench.check()


@pytest.mark.parametrize("dtype", KINDS)
def test_moving_to_other_memory_changes_nothing(dtype):
    bench = Bench(dtype)
    control = Bench(dtype)
    for b in (bench, control):
        b.step(3)
    for p in bench.params:
        p.data = p.data.clone()
    for b in (bench, control):
        b.step(2)
    assert_same(bench.params, control.params)
    bench.check()


@pytest.mark.parametrize("dtype", KINDS)
def test_an_edit_of_one_run_leaves_the_other_runs_alone(dtype):
    """Element 1500 is in the run of elements 1024 to 2047; for fp16 it is the element itself."""
    bench = Bench(dtype)
    bench.step(4)
    residue_matters(bench)
    with torch.no_grad():
        bench.params[0][1500] += 0.5
    where = slice(1024, 2048) if dtype == torch.bfloat16 else slice(1500, 1501)
    bench.explicit.restart(0, where)
    bench.step(2)
    bench.check()


@pytest.mark.parametrize("edge", [0, 1023, 1024, 4095, 4096, 4999])
def test_the_edge_of_a_run(edge):
    bench = Bench(torch.bfloat16)
    bench.step(4)
    with torch.no_grad():
        bench.params[0][edge] = 3.0
    first = edge // 1024 * 1024
    bench.explicit.restart(0, slice(first, min(first + 1024, 5000)))
    bench.step(1)
    bench.check()


def test_edits_are_seen_on_nvme_and_over_any_chunk(nvme):
    from support import small_budget
    probe = parameters((400_000,), dtype=torch.bfloat16)
    budget = small_budget(probe, nvme)
    results = []
    for options in ({}, chunk_option(1024), dict(nvme=str(nvme), host_memory=budget)):
        p, = parameters((400_000,), dtype=torch.bfloat16)
        opt = train(transload.AdamW([p], **HYPER, **options), [p], 3)
        p.data[1000:300_000].mul_(0.5)
        train(opt, [p], 2, first=3)
        results.append(p)
    assert_same(results[:1], results[1:2])
    assert_same(results[:1], results[2:])
    unedited, = parameters((400_000,), dtype=torch.bfloat16)
    train(transload.AdamW([unedited], **HYPER), [unedited], 5)
    assert not torch.equal(unedited, results[0])


@pytest.mark.parametrize("order", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32),
                                   (torch.bfloat16, torch.float16), (torch.float16, torch.bfloat16)],
                         ids=lambda pair: "-".join(str(t).removeprefix("torch.") for t in pair))
def test_to_another_type_after_steps(order):
    """.to(dtype) puts other data under the same Parameter: moments go on, the weight is what the user has now."""
    model = torch.nn.Linear(60, 50)
    model.to(order[0])
    params = list(model.parameters())
    opt = transload.AdamW(params, **HYPER)
    explicit = ExplicitMaster(params)
    for step in range(3):
        explicit.step(step)
        train(opt, params, 1, first=step)
    model.to(order[1])
    assert all(a is b for a, b in zip(model.parameters(), params))
    for index in range(2):
        explicit.restart(index)
    for step in range(3, 6):
        explicit.step(step)
        train(opt, params, 1, first=step)
    assert all(p.dtype == order[1] for p in params)
    assert [int(opt.state[p]["step"]) for p in params] == [6, 6]
    shown = [opt.state[p].get("master", p.detach()) for p in params]
    assert_close_to_torch(shown, explicit.masters, steps=6)


def test_to_another_type_before_the_first_step():
    model = torch.nn.Linear(60, 50)
    opt = transload.AdamW(model.parameters(), **HYPER)
    model.to(torch.bfloat16)
    params = list(model.parameters())
    explicit = ExplicitMaster(params)
    for step in range(3):
        explicit.step(step)
        train(opt, params, 1, first=step)
    assert_close_to_torch([opt.state[p]["master"] for p in params], explicit.masters, steps=3)


def test_fp32_has_nothing_that_goes_stale():
    mine, others = parameters(*SHAPES), parameters(*SHAPES)
    ours, theirs = transload.AdamW(mine, **HYPER), torch.optim.AdamW(others, **HYPER)
    for params, opt in ((mine, ours), (others, theirs)):
        train(opt, params, 3)
        for p in params:
            p.data.mul_(0.5)
        train(opt, params, 2, first=3)
        params[0].data = torch.ones(5000)
        params[1].detach().numpy()[3] = 2.0
        train(opt, params, 2, first=5)
    assert_close_to_torch(mine, others, steps=7)
    assert "master" not in ours.state[mine[0]]


@pytest.mark.parametrize("dtype", KINDS)
def test_special_values_survive(dtype):
    """Zeros of both signs, infinities, NaN, the largest and the smallest: a step of rate zero changes none of them."""
    top = torch.finfo(dtype).max
    special = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), top, -top, torch.finfo(dtype).tiny,
                            torch.finfo(dtype).smallest_normal / 2, 1.0], dtype=dtype)
    p = torch.nn.Parameter(special.clone())
    opt = transload.AdamW([p], lr=0.0, weight_decay=0.0)
    for step in range(3):
        p.grad = gradient(p, step)
        opt.step()
    assert torch.equal(p.isnan(), special.isnan())
    finite = ~special.isnan()
    assert torch.equal(p.detach()[finite], special[finite])


def test_weights_are_held_once():
    """The state of bf16 is 10 bytes a parameter, of fp32 8, of fp16 12: no second copy of the weight."""
    from support import report
    for dtype, wanted in {torch.bfloat16: 10, torch.float32: 8, torch.float16: 12}.items():
        p, = parameters((1 << 20,), dtype=dtype)
        opt = train(transload.AdamW([p], **HYPER), [p], 1)
        assert wanted <= report(opt, "state_bytes") / p.numel() <= wanted * 1.02 + 0.1, dtype


def test_deepcopied_model_is_another_model():
    bench = Bench(torch.bfloat16)
    bench.step(2)
    twin = copy.deepcopy(bench.model)
    before = copies(twin.parameters())
    bench.step(2)
    assert_same(twin.parameters(), before)
    bench.check()
