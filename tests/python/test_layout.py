"""The layout is built at the first step or load from the groups as they are then; what is replaced later."""
import pytest
import torch
from torch import nn

import transload
from support import (HYPER, assert_close_to_torch, assert_same, chunk_option, copies, give_gradients, parameters, report,
                     steps_of, train)


def beside_torch(make, steps=4, dtype=torch.float32):
    """The same parameters (make() twice) under both; compares weights and strides."""
    mine, others = make(), make()
    train(transload.AdamW(mine, **HYPER), mine, steps)
    train(torch.optim.AdamW(others, **HYPER), others, steps)
    assert_close_to_torch(mine, others, steps=steps)
    assert [p.stride() for p in mine] == [q.stride() for q in others]
    return mine


def test_accelerate_replaces_the_list_before_the_first_step():
    old, new = parameters((30,), (4, 5)), parameters((30,), (4, 5), seed=8)
    opt = transload.AdamW(old, **HYPER)
    swap = dict(zip(old, new))
    for group in opt.param_groups:
        group["params"] = [swap.get(p, p) for p in group["params"]]
    kept, others = copies(old), copies(new)
    train(opt, new, 3)
    train(torch.optim.AdamW(others, **HYPER), others, 3)
    assert_close_to_torch(new, others, steps=3)
    assert_same(old, kept)


def test_replaced_after_steps_is_adopted_by_position():
    """The moments of the old one go on under the new one."""
    old = parameters((3000,), (40,))
    opt = train(transload.AdamW(old, **HYPER), old, 3)
    control = copies(parameters((3000,), (40,)))
    theirs = train(torch.optim.AdamW(control, **HYPER), control, 3)
    new = copies(old)
    opt.param_groups[0]["params"] = new
    frozen = copies(old)
    train(opt, new, 3, first=3)
    train(theirs, control, 3, first=3)
    assert_close_to_torch(new, control, steps=6)
    assert_same(old, frozen)
    assert [int(opt.state[p]["step"]) for p in new] == [6, 6]


def test_another_shape_is_refused_by_name():
    old = parameters((30,), (4, 5))
    opt = train(transload.AdamW(list(zip(["first", "second"], old)), **HYPER), old, 2)
    new = parameters((4, 6))
    opt.param_groups[0]["params"] = [old[0], *new]
    give_gradients([old[0], *new], 2)
    before = copies([old[0], *new])
    with pytest.raises((ValueError, RuntimeError), match="second"):
        opt.step()
    assert_same([old[0], *new], before)
    opt.param_groups[0]["params"] = old
    train(opt, old, 1, first=2)
    assert int(opt.state[old[1]]["step"]) == 3


def test_data_of_another_shape_is_refused_by_name():
    params = parameters((30,), (4, 5))
    opt = train(transload.AdamW(list(zip(["first", "second"], params)), **HYPER), params, 1)
    params[1].data = torch.zeros(7)
    params[1].grad = torch.zeros(7)
    with pytest.raises((ValueError, RuntimeError), match="second"):
        opt.step()


def test_meta_parameters_materialised_after_construction():
    with torch.device("meta"):
        model = nn.Linear(20, 10)
    opt = transload.AdamW(model.parameters(), **HYPER)
    model.to_empty(device="cpu")
    swap = list(model.parameters())
    opt.param_groups[0]["params"] = swap
    values = parameters((10, 20), (10,))
    with torch.no_grad():
        for p, v in zip(swap, values):
            p.copy_(v)
    train(opt, swap, 3)
    train(torch.optim.AdamW(values, **HYPER), values, 3)
    assert_close_to_torch(swap, values, steps=3)


def test_frozen_costs_nothing_and_unfreezing_works():
    params = parameters((500_000,), (40,))
    params[0].requires_grad_(False)
    start = copies(params)
    opt = transload.AdamW(params, **HYPER)
    for step in range(3):
        give_gradients(params[1:], step)
        opt.step()
    assert report(opt, "state_bytes") < 500_000
    assert torch.equal(params[0], start[0]) and not torch.equal(params[1], start[1])
    assert params[0] not in opt.state or not opt.state[params[0]]
    params[0].requires_grad_(True)
    others = copies(params)
    theirs = torch.optim.AdamW(others, **HYPER)
    for step in range(3, 6):
        params[0].grad = others[0].grad = start[0].detach() * (step - 2)
        params[1].grad = None
        opt.step()
        theirs.step()
    assert_close_to_torch(params[:1], others[:1], steps=3)
    assert [int(opt.state[p]["step"]) for p in params] == [3, 3]


def test_freezing_after_steps_keeps_the_state():
    mine, others = parameters((30,), (40,)), parameters((30,), (40,))
    for cls, params in ((transload.AdamW, mine), (torch.optim.AdamW, others)):
        opt = train(cls(params, **HYPER), params, 2)
        params[0].grad = None
        params[0].requires_grad_(False)
        for step in (2, 3):
            give_gradients(params[1:], step)
            opt.step()
        params[0].requires_grad_(True)
        train(opt, params, 1, first=4)
        assert [int(opt.state[p]["step"]) for p in params] == [3, 5]
    assert_close_to_torch(mine, others, steps=5)


def test_steps_count_per_parameter():
    """Bias correction follows a parameter's own count."""
    mine, others = parameters((30,), (40,), (50,)), parameters((30,), (40,), (50,))
    for cls, params in ((transload.AdamW, mine), (torch.optim.AdamW, others)):
        opt = cls(params, **HYPER)
        for step in range(6):
            give_gradients(params, step)
            for index, p in enumerate(params):
                if step % (index + 1):
                    p.grad = None
            opt.step()
        assert [int(opt.state[p]["step"]) for p in params] == [6, 3, 2]
    assert_close_to_torch(mine, others, steps=6)


def test_a_step_without_gradients_changes_nothing():
    params = parameters((30,))
    before = copies(params)
    opt = transload.AdamW(params, **HYPER)
    opt.step()
    assert_same(params, before)
    assert not opt.state.get(params[0])
    train(opt, params, 1)
    moments = opt.state[params[0]]["exp_avg"].clone()
    after = copies(params)
    params[0].grad = None
    opt.step()
    assert_same(params, after)
    assert torch.equal(opt.state[params[0]]["exp_avg"], moments) and int(opt.state[params[0]]["step"]) == 1


def test_zero_size_and_zero_dimensional():
    beside_torch(lambda: parameters((0,), (), (5, 0, 3), (1,), (7,)))


@pytest.mark.parametrize("size", [1, 127, 128, 129, 1023, 1024, 1025, 4097])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sizes_around_the_units(size, dtype):
    mine = parameters((size,), (3,), (size,), dtype=dtype)
    others = [nn.Parameter(p.detach().float()) for p in mine]
    opt, theirs = transload.AdamW(mine, **HYPER), torch.optim.AdamW(others, **HYPER)
    for step in range(3):
        give_gradients(mine, step)
        for p, q in zip(mine, others):
            q.grad = p.grad.float()
        opt.step()
        theirs.step()
    assert_close_to_torch([opt.state[p].get("master", p) for p in mine], others, steps=3)


def channels_last():
    return [nn.Parameter(parameters((8, 4, 5, 6))[0].detach().to(memory_format=torch.channels_last)),
            nn.Parameter(parameters((4, 3, 2, 5, 6))[0].detach().to(memory_format=torch.channels_last_3d))]


def transposed():
    return [nn.Parameter(parameters((40, 30))[0].detach().t()),
            nn.Parameter(parameters((4, 30, 20))[0].detach().permute(2, 0, 1))]


@pytest.mark.parametrize("make", [channels_last, transposed], ids=lambda f: f.__name__)
def test_strides_are_kept(make):
    params = beside_torch(make)
    assert all(not p.is_contiguous() for p in params)


def test_a_part_of_a_larger_tensor():
    """Every second column is trained; what lies between is not touched."""
    def make():
        base = parameters((60, 40))[0].detach().clone()
        return base, nn.Parameter(base[:, ::2]), nn.Parameter(base[10:20, 1::2])

    results = []
    for cls in (transload.AdamW, torch.optim.AdamW):
        base, *params = make()
        start = base.clone()
        for p in params:
            assert p.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
        train(cls(params, **HYPER), params, 3)
        assert torch.equal(base[:10, 1::2], start[:10, 1::2]) and not torch.equal(base[:, ::2], start[:, ::2])
        results.append([base])
    assert_close_to_torch(*results, steps=3)


def test_strides_of_gradient_and_parameter_differ():
    mine, others = transposed(), transposed()
    ours, theirs = transload.AdamW(mine, **HYPER), torch.optim.AdamW(others, **HYPER)
    for step in range(3):
        for params in (mine, others):
            give_gradients(params, step)
            for p in params:
                p.grad = p.grad.contiguous()
        ours.step()
        theirs.step()
    assert_close_to_torch(mine, others, steps=3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_with_strides_keeps_its_master(dtype):
    start = parameters((60, 70), dtype=dtype)[0].detach()
    mine = nn.Parameter(start.t())
    master = nn.Parameter(start.t().float())
    opt, theirs = transload.AdamW([mine], **HYPER), torch.optim.AdamW([master], **HYPER)
    for step in range(5):
        give_gradients([mine], step)
        master.grad = mine.grad.float()
        opt.step()
        theirs.step()
    assert mine.stride() == start.t().stride()
    assert_close_to_torch([opt.state[mine]["master"]], [master], steps=5)


def test_memory_format_changed_between_steps():
    results = []
    for cls in (transload.AdamW, torch.optim.AdamW):
        model = nn.Conv2d(4, 8, 3)
        with torch.no_grad():
            for p, v in zip(model.parameters(), parameters((8, 4, 3, 3), (8,))):
                p.copy_(v)
        params = list(model.parameters())
        opt = train(cls(params, **HYPER), params, 2)
        model.to(memory_format=torch.channels_last)
        train(opt, params, 2, first=2)
        assert params[0].is_contiguous(memory_format=torch.channels_last)
        results.append(params)
    assert_close_to_torch(*results, steps=4)


def test_tied_weights_are_one_parameter():
    results = []
    for cls in (transload.AdamW, torch.optim.AdamW):
        torch.manual_seed(2)
        model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20, bias=False))
        model[1].weight = model[0].weight
        opt = cls(model.parameters(), **HYPER)
        for step in range(4):
            opt.zero_grad()
            model(torch.arange(20)).square().sum().backward()
            opt.step()
        assert model[1].weight is model[0].weight and len(opt.state) == 1
        results.append(list(model.parameters()))
    assert_close_to_torch(*results, steps=4)


def test_mixed_types_in_a_group():
    kinds = [torch.float32, torch.bfloat16, torch.float16, torch.float32, torch.bfloat16]
    mine = [p for i, dtype in enumerate(kinds) for p in parameters((1500 + i,), dtype=dtype, seed=i)]
    masters = [nn.Parameter(p.detach().float()) for p in mine]
    opt, theirs = transload.AdamW(mine, **HYPER), torch.optim.AdamW(masters, **HYPER)
    for step in range(5):
        give_gradients(mine, step)
        for p, q in zip(mine, masters):
            q.grad = p.grad.float()
        opt.step()
        theirs.step()
    assert [p.dtype for p in mine] == kinds
    assert_close_to_torch([opt.state[p].get("master", p) for p in mine], masters, steps=5)
    assert ["master" in opt.state[p] for p in mine] == [False, True, True, False, True]


def test_fp32_gradients_of_bf16_parameters():
    p, = parameters((3000,), dtype=torch.bfloat16)
    if not hasattr(p, "grad_dtype"):
        pytest.skip("this torch has no grad_dtype")
    p.grad_dtype = torch.float32
    master = nn.Parameter(p.detach().float())
    opt, theirs = transload.AdamW([p], **HYPER), torch.optim.AdamW([master], **HYPER)
    for step in range(4):
        p.grad = master.grad = torch.randn(3000, generator=torch.Generator().manual_seed(step))
        opt.step()
        theirs.step()
    assert_close_to_torch([opt.state[p]["master"]], [master], steps=4)


def test_identity_is_not_an_address():
    """The state follows the object, though its memory moves, and memory of a dead one brings no state."""
    mine, others = parameters((3000,)), parameters((3000,))
    for cls, params in ((transload.AdamW, mine), (torch.optim.AdamW, others)):
        opt = train(cls(params, **HYPER), params, 2)
        for step in range(2, 6):
            params[0].data = params[0].data.clone()
            train(opt, params, 1, first=step)
    assert_close_to_torch(mine, others, steps=6)


def test_two_optimizers_do_not_share():
    first, second = parameters((3000,)), parameters((3000,), seed=5)
    a, b = transload.AdamW(first, **HYPER), transload.AdamW(second, **HYPER)
    train(a, first, 3)
    train(b, second, 1)
    control = parameters((3000,), seed=5)
    train(torch.optim.AdamW(control, **HYPER), control, 1)
    assert_close_to_torch(second, control, steps=1)
    assert (int(a.state[first[0]]["step"]), int(b.state[second[0]]["step"])) == (3, 1)


def test_subclasses_of_tensor_are_done_or_refused():
    class Own(torch.Tensor):
        pass

    p = parameters((100,))[0].detach().as_subclass(Own).requires_grad_()
    q = parameters((100,))[0]
    opt, theirs = transload.AdamW([p], **HYPER), torch.optim.AdamW([q], **HYPER)
    for step in range(2):
        give_gradients([q], step)
        p.grad = q.grad.clone().as_subclass(Own)
        opt.step()
        theirs.step()
    assert_close_to_torch([p.as_subclass(torch.Tensor)], [q], steps=2)


def test_parameters_that_are_plain_tensors():
    x = torch.ones(10, requires_grad=True)
    opt = transload.AdamW([x], **HYPER)
    (x * x).sum().backward()
    opt.step()
    assert not torch.equal(x, torch.ones(10))


def test_leaving_the_groups_and_coming_back_keeps_the_state_as_torch():
    """Also where the layout changes in between."""
    mine, theirs = parameters((100,), (50,), (30,)), parameters((100,), (50,), (30,))
    opts = transload.AdamW(mine[:2], **HYPER), torch.optim.AdamW(theirs[:2], **HYPER)
    for opt, params in zip(opts, (mine, theirs)):
        train(opt, params[:2], 2)
        both = opt.param_groups[0]["params"]
        opt.param_groups[0]["params"] = both[:1]
        opt.add_param_group({"params": params[2:]})
        train(opt, params, 2, first=2)
        opt.param_groups[0]["params"] = both
        train(opt, params, 2, first=4)
        assert [int(opt.state[p]["step"]) for p in params] == [6, 4, 4]
    assert_close_to_torch(mine, theirs)


def test_what_is_shown_of_a_parameter_goes_on_with_the_one_that_takes_its_place():
    params = parameters((30,), (40,), dtype=torch.bfloat16)
    opt = train(transload.AdamW(params, **HYPER), params, 2)
    opt.state[params[1]]["exp_avg"].zero_()
    opt.state[params[1]]["own"] = 7
    new = copies(params)
    opt.param_groups[0]["params"] = new
    saved = opt.state_dict()["state"]
    assert sorted(saved) == [0, 1]
    assert saved[1]["own"] == 7 and not saved[1]["exp_avg"].any()
    assert set(opt.state) == set(new)


def test_a_load_that_fits_after_a_replacement_of_another_shape():
    params, new, source = parameters((30,)), parameters((50,)), parameters((50,))
    opt = train(transload.AdamW(params, **HYPER), params, 2)
    saved = train(transload.AdamW(source, **HYPER), source, 2).state_dict()
    opt.param_groups[0]["params"] = new
    opt.load_state_dict(saved)
    assert steps_of(opt) == [2]


@pytest.mark.parametrize("threads, chunk", [(1, 1 << 20), (3, 1 << 20), (3, 2048)])
def test_two_parameters_over_the_same_memory_are_stepped_one_after_the_other(threads, chunk):
    """As `a.data = b.data` ties weights; torch steps the memory twice."""
    torch.set_num_threads(threads)
    mine, theirs = (parameters((200_000,))[0].detach() for _ in range(2))
    tied = [torch.nn.Parameter(mine), torch.nn.Parameter(mine)]
    as_torch = [torch.nn.Parameter(theirs), torch.nn.Parameter(theirs)]
    train(transload.AdamW(tied, **HYPER, **chunk_option(chunk)), tied, 4)
    train(torch.optim.AdamW(as_torch, **HYPER, foreach=False), as_torch, 4)
    assert_close_to_torch(tied, as_torch)
