"""Wrong input: the same type of error as torch's AdamW for the same mistake; options not supported, by name."""
import warnings

import pytest
import torch

import transload
from support import HYPER, assert_close_to_torch, copies, parameters, train


def a_parameter():
    return parameters((4,))[0]


def non_leaf():
    return a_parameter() * 2


MISTAKES = {
    "a tensor, not a list": lambda cls: cls(a_parameter()),
    "nothing": lambda cls: cls([]),
    "None": lambda cls: cls(None),
    "not tensors": lambda cls: cls([1.0]),
    "not leaves": lambda cls: cls([non_leaf()]),
    "negative lr": lambda cls: cls([a_parameter()], lr=-1.0),
    "lr of two elements": lambda cls: cls([a_parameter()], lr=torch.ones(2)),
    "lr as text": lambda cls: cls([a_parameter()], lr="fast"),
    "negative eps": lambda cls: cls([a_parameter()], eps=-1.0),
    "beta1 of 1": lambda cls: cls([a_parameter()], betas=(1.0, 0.9)),
    "beta2 negative": lambda cls: cls([a_parameter()], betas=(0.9, -0.1)),
    "betas of one": lambda cls: cls([a_parameter()], betas=(0.9,)),
    "betas of two kinds": lambda cls: cls([a_parameter()], betas=(torch.tensor(0.9), 0.9)),
    "negative decay": lambda cls: cls([a_parameter()], weight_decay=-0.1),
    "lr not a number": lambda cls: cls([a_parameter()], lr=float("nan")),
    "unknown option": lambda cls: cls([a_parameter()], momentum=0.9),
    "fused and foreach": lambda cls: cls([a_parameter()], fused=True, foreach=True),
    "a group that is no dict": lambda cls: cls([a_parameter()]).add_param_group([a_parameter()]),
    "a set in a group": lambda cls: cls([a_parameter()]).add_param_group({"params": {a_parameter()}}),
    "a group without params": lambda cls: cls([a_parameter()]).add_param_group({"lr": 1.0}),
    "some names only": lambda cls: cls([("a", a_parameter()), a_parameter()]),
    "names in one group only": lambda cls: cls([("a", a_parameter())]).add_param_group({"params": [a_parameter()]}),
    "closure not callable": lambda cls: cls([a_parameter()]).step(3),
    "other number of groups": lambda cls: cls([a_parameter()]).load_state_dict({"state": {}, "param_groups": []}),
    "other number of parameters": lambda cls: cls([a_parameter()]).load_state_dict(
        cls([a_parameter(), a_parameter()]).state_dict()),
    "no groups in the dict": lambda cls: cls([a_parameter()]).load_state_dict({"state": {}}),
    "no dict": lambda cls: cls([a_parameter()]).load_state_dict(3),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_same_type_of_error(mistake):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Exception) as theirs:
            MISTAKES[mistake](torch.optim.AdamW)
        with pytest.raises(Exception) as ours:
            MISTAKES[mistake](transload.AdamW)
    assert isinstance(ours.value, theirs.type), f"{ours.value!r} where torch has {theirs.value!r}"


def test_same_parameter_in_two_groups():
    p = a_parameter()
    for cls in (torch.optim.AdamW, transload.AdamW):
        with pytest.raises(ValueError, match="more than one parameter group"):
            cls([{"params": [p]}, {"params": [p]}])


def test_listed_twice_warns_and_updates_as_torch():
    results = []
    for cls in (torch.optim.AdamW, transload.AdamW):
        p, q = parameters((50,), (30,))
        with pytest.warns(UserWarning, match="duplicate parameters"):
            opt = cls([p, q, p], **HYPER)
        train(opt, [p, q], 3)
        assert [int(opt.state[t]["step"]) for t in (p, q)] == [6, 3]
        results.append([p, q])
    assert_close_to_torch(*results, steps=6)


@pytest.mark.parametrize("option", ["amsgrad", "maximize", "capturable", "differentiable"])
def test_an_option_is_done_or_refused_by_name(option):
    p, = parameters((200,))
    q, = copies([p])
    try:
        ours = transload.AdamW([p], **{option: True})
    except (ValueError, NotImplementedError) as error:
        assert option in str(error)
        return
    theirs = torch.optim.AdamW([q], **{option: True})
    for step in range(5):
        train(ours, [p], 1, first=step, scale=5.0 - step)
        train(theirs, [q], 1, first=step, scale=5.0 - step)
    assert_close_to_torch([p], [q], steps=5)


@pytest.mark.parametrize("option", ["amsgrad", "maximize"])
def test_an_option_of_one_group_is_not_ignored(option):
    p, q = parameters((50,), (50,))
    try:
        opt = transload.AdamW([{"params": [p]}, {"params": [q], option: True}])
        train(opt, [p, q], 1)
    except (ValueError, NotImplementedError) as error:
        assert option in str(error)
        return
    others = copies(parameters((50,), (50,)))
    theirs = torch.optim.AdamW([{"params": [others[0]]}, {"params": [others[1]], option: True}])
    train(theirs, others, 1)
    assert_close_to_torch([p, q], others, steps=1)


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}, {"foreach": False}, {"fused": False}])
def test_how_torch_would_do_it_is_accepted(options):
    """foreach and fused say how, not what: trainers pass them."""
    p, = parameters((50,))
    opt = transload.AdamW([p], **HYPER, **options)
    q, = copies([p])
    train(opt, [p], 2)
    train(torch.optim.AdamW([q], **HYPER, **options), [q], 2)
    assert_close_to_torch([p], [q], steps=2)


@pytest.mark.parametrize("options, name", [
    ({"host_memory": "lots"}, "host_memory"), ({"host_memory": -1}, "host_memory"),
    ({"moments": "fp8"}, "moments"), ({"nonfinite": "ignore"}, "nonfinite"), ({"host_memory": 3.5}, "host_memory")])
def test_own_options_are_checked_by_name(options, name):
    with pytest.raises((ValueError, TypeError), match=name):
        transload.AdamW(parameters((4,)), **options)


def test_sizes_are_numbers_or_text():
    for budget in (1 << 30, "1GiB", "1073741824"):
        p, = parameters((50,))
        train(transload.AdamW([p], host_memory=budget), [p], 1)


def test_a_budget_too_small_is_refused_with_the_numbers(nvme):
    p, = parameters((100_000,))
    before = p.detach().clone()
    with pytest.raises(MemoryError) as refused:
        train(transload.AdamW([p], host_memory="4KiB", nvme=str(nvme)), [p], 1)
    assert "host_memory" in str(refused.value) and any(c.isdigit() for c in str(refused.value))
    assert torch.equal(p, before)


def test_a_budget_too_small_without_a_folder_names_the_folder():
    p, = parameters((1_000_000,))
    with pytest.raises(MemoryError, match="nvme"):
        train(transload.AdamW([p], host_memory="1MiB"), [p], 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.float8_e4m3fn])
def test_other_types_are_refused_by_name(dtype):
    p = torch.nn.Parameter(torch.zeros(8).to(dtype))
    with pytest.raises((TypeError, ValueError), match=str(dtype).removeprefix("torch.")):
        opt = transload.AdamW([p])
        p.grad = torch.zeros_like(p)
        opt.step()


def test_other_devices_are_refused_in_one_line():
    """No GPU is needed to see what would be said: the meta device is refused the same way at a step."""
    p = torch.nn.Parameter(torch.zeros(8, device="meta"))
    opt = transload.AdamW([p])
    p.grad = torch.zeros_like(p)
    with pytest.raises((ValueError, RuntimeError, NotImplementedError), match="meta") as refused:
        opt.step()
    assert "\n" not in str(refused.value)


def test_sparse_gradients_are_refused_by_name_at_the_step():
    embedding = torch.nn.Embedding(10, 4, sparse=True)
    before = embedding.weight.detach().clone()
    for cls in (torch.optim.AdamW, transload.AdamW):
        opt = cls(embedding.named_parameters())
        opt.zero_grad()
        embedding(torch.tensor([1, 2])).sum().backward()
        with pytest.raises(RuntimeError, match="sparse") as refused:
            opt.step()
    assert "weight" in str(refused.value)
    assert torch.equal(embedding.weight, before)


def test_an_expanded_parameter_is_refused_and_not_corrupted():
    p = torch.nn.Parameter(torch.ones(1, 4).expand(3, 4))
    p.grad = torch.ones(3, 4)
    for cls in (torch.optim.AdamW, transload.AdamW):
        with pytest.raises(RuntimeError):
            cls([p]).step()
    assert torch.equal(p.detach(), torch.ones(3, 4))
