"""state_dict and load_state_dict, to and from torch's; opt.save and opt.load; files that are damaged or lie."""
import copy
import io
import json
import struct

import pytest
import torch

import transload
from support import (HYPER, assert_close_to_torch, assert_same, assert_streamed, copies, give_gradients, on_nvme,
                     parameters, small_budget, train)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = ((150_000,), (200, 301), (5,), (0,), ())


@pytest.fixture
def place(nvme):
    """Makes an optimizer in memory or on NVMe."""
    def make(params, where, **options):
        if where == "memory":
            return transload.AdamW(params, **{**HYPER, **options})
        return on_nvme(params, nvme, **options)

    return make


def roundtrip(state_dict):
    buffer = io.BytesIO()
    torch.save(state_dict, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def digest(opt):
    """All of the state, values copied."""
    return {k: {n: v.clone() if torch.is_tensor(v) else v for n, v in entry.items()}
            for k, entry in opt.state_dict()["state"].items()}


def assert_same_state(a, b):
    assert a.keys() == b.keys()
    for key in a:
        assert a[key].keys() == b[key].keys()
        for name in a[key]:
            if name == "step":
                assert int(a[key][name]) == int(b[key][name])
            else:
                assert_same([a[key][name]], [b[key][name]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where", ["memory", "nvme"])
@pytest.mark.parametrize("into", ["fresh", "stepped"])
def test_torch_save_and_load(place, dtype, where, into):
    """Saved after 3 steps, loaded, 3 more: the same bits as 6 in one go."""
    whole = parameters(*SHAPES, dtype=dtype)
    train(transload.AdamW(whole, **HYPER), whole, 6)
    params = parameters(*SHAPES, dtype=dtype)
    opt = train(place(params, where), params, 3)
    if where == "nvme":
        assert_streamed(opt)
    saved, weights = roundtrip(opt.state_dict()), [p.detach().clone() for p in params]
    resumed = copies(params)
    fresh = place(resumed, where)
    if into == "stepped":
        train(fresh, resumed, 4, first=50)
        with torch.no_grad():
            for p, w in zip(resumed, weights):
                p.copy_(w)
    fresh.load_state_dict(saved)
    train(fresh, resumed, 3, first=3)
    assert_same(resumed, whole)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where", ["memory", "nvme"])
@pytest.mark.parametrize("into", ["fresh", "stepped"])
def test_own_save_and_load(place, tmp_path, dtype, where, into):
    whole = parameters(*SHAPES, dtype=dtype)
    train(transload.AdamW(whole, **HYPER), whole, 6)
    params = parameters(*SHAPES, dtype=dtype)
    train(place(params, where), params, 3).save(tmp_path / "state.safetensors")
    resumed = copies(params)
    fresh = place(resumed, where)
    if into == "stepped":
        train(fresh, resumed, 4, first=50)
        with torch.no_grad():
            for p, q in zip(resumed, params):
                p.copy_(q)
    fresh.load(str(tmp_path / "state.safetensors"))
    train(fresh, resumed, 3, first=3)
    assert_same(resumed, whole)


@pytest.mark.parametrize("moments", ["fp32", "bf16"])
def test_moments_in_bf16_go_on_too(place, tmp_path, moments):
    whole = parameters(*SHAPES)
    train(transload.AdamW(whole, **HYPER, moments=moments), whole, 6)
    params = parameters(*SHAPES)
    opt = train(transload.AdamW(params, **HYPER, moments=moments), params, 3)
    opt.save(tmp_path / "state")
    for load in (lambda o: o.load(tmp_path / "state"), lambda o: o.load_state_dict(roundtrip(opt.state_dict()))):
        resumed = copies(params)
        fresh = transload.AdamW(resumed, **HYPER, moments=moments)
        load(fresh)
        train(fresh, resumed, 3, first=3)
        assert_same(resumed, whole)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bytes_wherever_the_state_lies(place, tmp_path, dtype):
    files = {}
    for where in ("memory", "nvme"):
        params = parameters(*SHAPES, dtype=dtype)
        opt = train(place(params, where), params, 3)
        opt.save(tmp_path / "own")
        buffer = io.BytesIO()
        torch.save(opt.state_dict(), buffer)
        files[where] = (tmp_path / "own").read_bytes(), buffer.getvalue()
    assert files["memory"][0] == files["nvme"][0]
    assert files["memory"][1] == files["nvme"][1]


def test_the_file_is_safetensors_with_true_values(tmp_path):
    from safetensors import safe_open
    params = parameters((3000,), (20, 10), dtype=torch.bfloat16)
    opt = train(transload.AdamW(params, **HYPER), params, 3)
    opt.save(tmp_path / "state.safetensors")
    with safe_open(tmp_path / "state.safetensors", "pt") as file:
        found = [file.get_tensor(k) for k in file.keys()]
    for p in params:
        for key in ("exp_avg", "exp_avg_sq", "master"):
            value = opt.state[p][key]
            assert any(f.shape == value.shape and torch.equal(f.float(), value) for f in found), key


def test_plain_tensors_in_a_state_dict():
    params = parameters((3000,), dtype=torch.bfloat16)
    opt = train(transload.AdamW(params, **HYPER), params, 2)
    saved = opt.state_dict()
    assert set(saved) == {"state", "param_groups"} and list(saved["state"]) == [0]
    for key in ("exp_avg", "exp_avg_sq", "master"):
        assert type(saved["state"][0][key]) is torch.Tensor and saved["state"][0][key].dtype == torch.float32
    assert saved["param_groups"][0]["params"] == [0]


def test_a_state_dict_is_a_snapshot():
    """Later steps do not change it; edits of it do not change the optimizer."""
    params = parameters((3000,))
    opt = train(transload.AdamW(params, **HYPER), params, 2)
    saved = opt.state_dict()
    kept = copy.deepcopy(saved)
    train(opt, params, 2, first=2)
    assert torch.equal(saved["state"][0]["exp_avg"], kept["state"][0]["exp_avg"])
    now = opt.state[params[0]]["exp_avg"].clone()
    opt.state_dict()["state"][0]["exp_avg"].zero_()
    assert torch.equal(opt.state[params[0]]["exp_avg"], now)


def test_a_state_dict_outlives_its_optimizer(nvme):
    params = parameters((400_000,))
    opt = train(on_nvme(params, nvme), params, 2)
    want = digest(opt)
    saved = opt.state_dict()
    del opt
    assert_same_state(saved["state"], want)


@pytest.mark.parametrize("where", ["memory", "nvme"])
@pytest.mark.parametrize("fused", [False, True])
def test_from_torch(place, where, fused):
    others = parameters(*SHAPES)
    theirs = train(torch.optim.AdamW(others, **HYPER, fused=fused), others, 3)
    mine = copies(others)
    ours = place(mine, where, lr=9.0)
    ours.load_state_dict(roundtrip(theirs.state_dict()))
    assert ours.param_groups[0]["lr"] == HYPER["lr"]
    train(ours, mine, 3, first=3)
    train(theirs, others, 3, first=3)
    assert_close_to_torch(mine, others, steps=6)


@pytest.mark.parametrize("where", ["memory", "nvme"])
def test_to_torch(place, where):
    mine = parameters(*SHAPES)
    ours = train(place(mine, where), mine, 3)
    others = copies(mine)
    theirs = torch.optim.AdamW(others, lr=9.0)
    theirs.load_state_dict(roundtrip(ours.state_dict()))
    train(ours, mine, 3, first=3)
    train(theirs, others, 3, first=3)
    assert_close_to_torch(mine, others, steps=6)


def test_from_torch_in_bf16_starts_from_the_parameter():
    """torch keeps no master: moments are widened, the weight is what it is."""
    others = parameters((3000,), dtype=torch.bfloat16)
    theirs = train(torch.optim.AdamW(others, **HYPER), others, 3)
    mine = copies(others)
    ours = transload.AdamW(mine, **HYPER)
    ours.load_state_dict(theirs.state_dict())
    assert torch.equal(ours.state[mine[0]]["master"], mine[0].detach().float())
    assert torch.equal(ours.state[mine[0]]["exp_avg"], theirs.state[others[0]]["exp_avg"].float())
    assert int(ours.state[mine[0]]["step"]) == 3
    train(ours, mine, 1, first=3)


def test_to_torch_in_bf16_works():
    mine = parameters((3000,), dtype=torch.bfloat16)
    ours = train(transload.AdamW(mine, **HYPER), mine, 3)
    theirs = torch.optim.AdamW(copies(mine), **HYPER)
    theirs.load_state_dict(ours.state_dict())
    train(theirs, theirs.param_groups[0]["params"], 2, first=3)


def test_loading_keeps_fp32_under_bf16_parameters():
    mine = parameters((3000,), dtype=torch.bfloat16)
    ours = train(transload.AdamW(mine, **HYPER), mine, 3)
    fresh = transload.AdamW(copies(mine), **HYPER)
    fresh.load_state_dict(roundtrip(ours.state_dict()))
    want = digest(ours)
    assert (want[0]["exp_avg"].bfloat16().float() != want[0]["exp_avg"]).any()
    assert_same_state(digest(fresh), want)


def test_loading_before_the_first_step_of_replaced_parameters():
    mine = parameters((3000,))
    ours = train(transload.AdamW(mine, **HYPER), mine, 3)
    old = parameters((3000,), seed=9)
    fresh = transload.AdamW(old, **HYPER)
    new = copies(mine)
    fresh.param_groups[0]["params"] = new
    fresh.load_state_dict(roundtrip(ours.state_dict()))
    train(ours, mine, 2, first=3)
    train(fresh, new, 2, first=3)
    assert_same(new, mine)


def test_parameters_without_state_stay_without():
    """A parameter that never had a gradient is fresh after the load, though it was stepped before."""
    mine = parameters((30,), (40,))
    ours = transload.AdamW(mine, **HYPER)
    give_gradients(mine[:1], 0)
    ours.step()
    saved = roundtrip(ours.state_dict())
    assert list(saved["state"]) == [0]
    other = parameters((30,), (40,))
    stepped = train(transload.AdamW(other, **HYPER), other, 3)
    stepped.load_state_dict(saved)
    assert other[1] not in stepped.state or not stepped.state[other[1]]
    train(stepped, other, 1)
    assert [int(stepped.state[p]["step"]) for p in other] == [2, 1]


def break_dict(saved, how):
    state, groups = saved["state"], saved["param_groups"]
    if how == "moment missing":
        del state[1]["exp_avg_sq"]
    elif how == "step missing":
        del state[1]["step"]
    elif how == "another shape":
        state[1]["exp_avg"] = torch.zeros(3)
    elif how == "another shape of as many elements":
        state[1]["exp_avg"] = state[1]["exp_avg"].reshape(-1)
    elif how == "no numbers":
        state[1]["exp_avg"] = "text"
    elif how == "negative step":
        state[1]["step"] = torch.tensor(-3.0)
    elif how == "another number of parameters":
        groups[0]["params"] = groups[0]["params"][:-1]
    elif how == "another number of groups":
        groups.append({**groups[0], "params": []})
    elif how == "master of another shape":
        state[1]["master"] = torch.zeros(3)
    return saved


@pytest.mark.parametrize("where", ["memory", "nvme"])
@pytest.mark.parametrize("how", ["moment missing", "step missing", "another shape", "another shape of as many elements",
                                 "no numbers", "negative step", "another number of parameters",
                                 "another number of groups", "master of another shape"])
def test_a_state_dict_that_does_not_fit_changes_nothing(place, how, where):
    mine, control = (parameters((150_000,), (20, 30), (90_000,), dtype=torch.bfloat16) for _ in range(2))
    opt, untouched = place(mine, where), transload.AdamW(control, **HYPER)
    train(opt, mine, 2)
    train(untouched, control, 2)
    other = parameters((150_000,), (20, 30), (90_000,), dtype=torch.bfloat16, seed=8)
    saved = break_dict(roundtrip(train(transload.AdamW(other, **HYPER), other, 3).state_dict()), how)
    with pytest.raises((ValueError, KeyError, TypeError, RuntimeError)):
        opt.load_state_dict(saved)
    train(opt, mine, 2, first=2)
    train(untouched, control, 2, first=2)
    assert_same(mine, control)


def relabel(path, change):
    """Rewrites the header of a safetensors file."""
    content = path.read_bytes()
    length, = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + length])
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length:])


def tensors_of(header):
    return sorted(k for k in header if k != "__metadata__")


def damage(path, how):
    content = path.read_bytes()
    if how == "empty":
        path.write_bytes(b"")
    elif how == "cut in the header":
        path.write_bytes(content[:30])
    elif how == "cut in the middle":
        path.write_bytes(content[:len(content) // 2])
    elif how == "cut by a byte":
        path.write_bytes(content[:-1])
    elif how == "a byte too many":
        path.write_bytes(content + b"x")
    elif how == "length of the header":
        path.write_bytes(struct.pack("<Q", 1 << 60) + content[8:])
    elif how == "no JSON":
        path.write_bytes(content[:8] + b"#" + content[9:])
    elif how == "a tensor missing":
        relabel(path, lambda h: h.pop(tensors_of(h)[0]))
    elif how == "shape":
        relabel(path, lambda h: h[tensors_of(h)[0]].update(shape=[3]))
    elif how == "type":
        relabel(path, lambda h: h[tensors_of(h)[0]].update(dtype="I64"))
    elif how == "offsets":
        relabel(path, lambda h: h[tensors_of(h)[0]].update(data_offsets=[0, 1 << 50]))
    elif how == "offsets backwards":
        relabel(path, lambda h: h[tensors_of(h)[0]].update(data_offsets=[8, 4]))
    elif how == "another file altogether":
        from safetensors.torch import save_file
        save_file({"x": torch.zeros(3)}, path)
    elif how in ("a bit in the middle", "the last bit"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2 if how == "a bit in the middle" else -1] ^= 1
        path.write_bytes(data)
    elif how == "no such file":
        path.unlink()


@pytest.mark.parametrize("how", ["empty", "cut in the header", "cut in the middle", "cut by a byte", "a byte too many",
                                 "length of the header", "no JSON", "a tensor missing", "shape", "type", "offsets",
                                 "offsets backwards", "a bit in the middle", "the last bit",
                                 "another file altogether", "no such file"])
@pytest.mark.parametrize("where", ["memory", "nvme"])
def test_a_damaged_file_is_refused_and_changes_nothing(place, tmp_path, how, where):
    mine, control = (parameters((150_000,), (20, 30), (90_000,), dtype=torch.bfloat16) for _ in range(2))
    opt, untouched = place(mine, where), transload.AdamW(control, **HYPER)
    train(opt, mine, 2)
    train(untouched, control, 2)
    other = parameters((150_000,), (20, 30), (90_000,), dtype=torch.bfloat16, seed=8)
    path = tmp_path / "state"
    train(transload.AdamW(other, **HYPER), other, 3).save(path)
    damage(path, how)
    with pytest.raises((ValueError, OSError, KeyError, RuntimeError)) as refused:
        opt.load(path)
    assert str(path) in str(refused.value)
    train(opt, mine, 2, first=2)
    train(untouched, control, 2, first=2)
    assert_same(mine, control)


def moved(header, old, new):
    for key in tensors_of(header):
        if key.startswith(f"{old}."):
            header[key.replace(f"{old}.", f"{new}.", 1)] = header.pop(key)


LIES = {
    "negative extents": lambda h: h["0.exp_avg"].update(shape=[-20, -30]),
    "one extent below zero": lambda h: h["0.exp_avg"].update(shape=[-1, -600]),
    "extents beyond 64 bits": lambda h: h["0.exp_avg"].update(shape=[1 << 70]),
    "product beyond 64 bits": lambda h: h["0.exp_avg"].update(shape=[1 << 32, 1 << 32]),
    "no offsets": lambda h: h["0.exp_avg"].update(data_offsets=[]),
    "three offsets": lambda h: h["0.exp_avg"].update(data_offsets=[0, 1, 2]),
    "offset below zero": lambda h: h["0.exp_avg"].update(data_offsets=[-2400, 0]),
    "two tensors over the same bytes": lambda h: h["0.exp_avg"].update(data_offsets=h["0.exp_avg_sq"]["data_offsets"]),
    "a row that is a list": lambda h: h.update({"0.exp_avg": [1]}),
    "another name": lambda h: h.update({"0.other": h.pop("0.exp_avg")}),
    "a position that is not there": lambda h: moved(h, 0, 7),
    "a position below zero": lambda h: moved(h, 0, -1),
    "a position as only int() reads it": lambda h: moved(h, 0, " 0_0"),
    "bytes of nobody": lambda h: moved_away(h),
    "params that are a number": lambda h: h["__metadata__"].update(groups='[{"params": 5}]'),
    "params that are lists": lambda h: h["__metadata__"].update(groups='[{"params": [[0], 1]}]'),
    "params that are words": lambda h: h["__metadata__"].update(groups='[{"params": ["a", "b"]}]'),
    "groups that are none": lambda h: h["__metadata__"].update(groups="5"),
    "own entries of a stranger": lambda h: h["__metadata__"].update(own='[{"position": 9}]'),
}


def moved_away(header):
    for key in ("0.step", "0.exp_avg", "0.exp_avg_sq"):
        header.pop(key)


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_refused_and_changes_nothing(tmp_path, lie):
    mine, control, other = (parameters((20, 30), (40,), seed=seed) for seed in (3, 3, 8))
    opt, untouched = transload.AdamW(mine, **HYPER), transload.AdamW(control, **HYPER)
    train(opt, mine, 2)
    train(untouched, control, 2)
    train(transload.AdamW(other, **HYPER), other, 3).save(tmp_path / "state")
    relabel(tmp_path / "state", LIES[lie])
    with pytest.raises((ValueError, OSError), match="state"):
        opt.load(tmp_path / "state")
    train(opt, mine, 2, first=2)
    train(untouched, control, 2, first=2)
    assert_same(mine, control)


def test_a_header_that_nests_without_end_is_refused(tmp_path):
    text = b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    (tmp_path / "state").write_bytes(struct.pack("<Q", len(text)) + text)
    with pytest.raises(ValueError, match="no safetensors"):
        transload.AdamW(parameters((5,)), **HYPER).load(tmp_path / "state")


def test_a_state_dict_taken_in_inference_mode_is_made_of_ordinary_tensors():
    """As a checkpoint at the end of a validation."""
    params = parameters((30,))
    opt = train(transload.AdamW(params, **HYPER), params, 1)
    with torch.inference_mode():
        saved, shown = opt.state_dict(), opt.state[params[0]]
    shown["exp_avg"].mul_(0.5)
    saved["state"][0]["exp_avg"].mul_(0.5)
    theirs = torch.optim.AdamW(copies(params), **HYPER)
    theirs.load_state_dict(saved)
    train(theirs, theirs.param_groups[0]["params"], 1)


def test_of_another_model_is_refused(tmp_path):
    other = parameters((30,), (40,))
    train(transload.AdamW(other, **HYPER), other, 2).save(tmp_path / "state")
    for shapes in (((30,),), ((40,), (30,)), ((30,), (40,), (5,))):
        params = parameters(*shapes)
        with pytest.raises((ValueError, RuntimeError)):
            transload.AdamW(params, **HYPER).load(tmp_path / "state")


def test_a_failed_save_leaves_the_old_file_whole(tmp_path):
    params = parameters((30_000,))
    opt = train(transload.AdamW(params, **HYPER), params, 2)
    opt.save(tmp_path / "state")
    before = (tmp_path / "state").read_bytes()
    with pytest.raises(OSError):
        opt.save(tmp_path / "no folder" / "state")
    from support import run_python
    done = run_python("""
        import resource, signal, sys
        import torch, transload
        from support import HYPER, parameters, train
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        params = parameters((30_000,))
        opt = train(transload.AdamW(params, **HYPER), params, 3)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        try:
            opt.save(sys.argv[1])
        except OSError as error:
            print("refused", error.errno)
    """, tmp_path / "state")
    assert done.stdout.startswith("refused"), done.stdout + done.stderr
    assert (tmp_path / "state").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["state"], "remains of the failed save"


def test_saving_before_the_first_step_and_loading_it(tmp_path):
    params = parameters((30,))
    opt = transload.AdamW(params, **HYPER)
    assert opt.state_dict()["state"] == {}
    opt.save(tmp_path / "state")
    fresh = parameters((30,))
    loaded = transload.AdamW(fresh, **HYPER)
    loaded.load(tmp_path / "state")
    train(loaded, fresh, 2)
    train(opt, params, 2)
    assert_same(fresh, params)


def test_groups_travel_with_the_file(tmp_path):
    params = parameters((30,))
    opt = train(transload.AdamW(params, **HYPER), params, 1)
    opt.param_groups[0].update(lr=0.125, betas=(0.5, 0.75))
    opt.save(tmp_path / "state")
    fresh = transload.AdamW(parameters((30,)), **HYPER)
    fresh.load(tmp_path / "state")
    assert fresh.param_groups[0]["lr"] == 0.125 and tuple(fresh.param_groups[0]["betas"]) == (0.5, 0.75)


def test_a_tensor_as_rate_travels(tmp_path):
    params = parameters((30,))
    opt = train(transload.AdamW(params, lr=torch.tensor(0.125)), params, 1)
    opt.save(tmp_path / "state")
    fresh = transload.AdamW(parameters((30,)))
    fresh.load(tmp_path / "state")
    assert float(fresh.param_groups[0]["lr"]) == 0.125


@pytest.mark.parametrize("memory", ["mapped", "read"])
def test_a_checkpoint_mapped_from_its_file(tmp_path, nvme, memory):
    params = parameters((400_000,), dtype=torch.bfloat16)
    opt = train(on_nvme(params, nvme), params, 2)
    torch.save(opt.state_dict(), tmp_path / "state.pt")
    saved = torch.load(tmp_path / "state.pt", mmap=memory == "mapped", weights_only=True)
    resumed = copies(params)
    fresh = on_nvme(resumed, nvme)
    fresh.load_state_dict(saved)
    del saved
    train(fresh, resumed, 2, first=2)
    train(opt, params, 2, first=2)
    assert_same(resumed, params)


def test_a_budget_between_save_and_load_may_change(tmp_path, nvme):
    params = parameters((400_000,))
    train(transload.AdamW(params, **HYPER), params, 3).save(tmp_path / "state")
    whole, resumed = copies(params), copies(params)
    a = transload.AdamW(whole, **HYPER)
    b = transload.AdamW(resumed, **HYPER, nvme=str(nvme), host_memory=small_budget(params, nvme))
    for opt, p in ((a, whole), (b, resumed)):
        opt.load(tmp_path / "state")
        train(opt, p, 2, first=3)
    assert_same(whole, resumed)
