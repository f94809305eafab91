"""Parameters on a GPU: the CPU's bits, order with the current stream, gradients that go at once, state in and out.

Without a GPU the tests that need one are skipped with the reason; what is refused then, and how, is tested everywhere.
"""
import gc
import types

import pytest
import torch
from support import HYPER, assert_same, copies, give_gradients, parameters, small_budget, train

import transload
from transload import _core, steps
from transload.offload import Entry
from transload.parameters import check_place, place_of

UNAVAILABLE = _core.cuda_unavailable() or ("" if torch.cuda.is_available() else "PyTorch finds no GPU")
needs_gpu = pytest.mark.skipif(bool(UNAVAILABLE), reason=f"needs a GPU: {UNAVAILABLE}")

SHAPES = [(257, 33), (1,), (4096,), (1025,), (0,), (3, 5, 7)]
TYPES = (torch.float32, torch.bfloat16, torch.float16)


def model(dtypes=TYPES):
    return [p for dtype in dtypes for p in parameters(*SHAPES, dtype=dtype)]


def on_gpu(params):
    return [torch.nn.Parameter(p.detach().cuda()) for p in params]


def give_gpu_gradients(params, on_cpu, step):
    """The same gradients on both; the GPU's are still being made when they are handed over."""
    give_gradients(on_cpu, step)
    for p, q in zip(params, on_cpu):
        p.grad = q.grad.cuda(non_blocking=True) + 0


def both_train(opt, params, twin, on_cpu, count, first=0):
    for step in range(first, first + count):
        give_gpu_gradients(params, on_cpu, step)
        opt.step()
        for p in params:
            p.grad = None  # its memory is somebody else's now
        torch.full((300_000,), float("nan"), device="cuda")
        twin.step()


# Everywhere.


@pytest.mark.skipif(not _core.cuda_unavailable(), reason="CUDA can be used here")
def test_cuda_parameters_are_refused_in_one_line_where_cuda_cannot_be_used():
    parameter = types.SimpleNamespace(device=torch.device("cuda", 0), dtype=torch.float32, layout=torch.strided)
    with pytest.raises(NotImplementedError, match="^w is on cuda:0, where it cannot be stepped: ") as refused:
        check_place(parameter, "w")
    assert _core.cuda_unavailable() in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(ValueError, match="CUDA device 0"):
        _core.Core([("w", 10, 0, 0, 0)])


def test_two_cuda_devices_in_one_optimizer_are_refused_by_name():
    with pytest.raises(ValueError, match="a is on CUDA device 0 and b on 1"):
        _core.Core([("a", 10, 0, 0, 0), ("b", 10, 0, 1, 1)])


def test_device_memory_means_nothing_to_parameters_on_the_cpu():
    params = parameters((100,))
    opt = train(transload.AdamW(params, device_memory="1MiB", **HYPER), params, 2)
    assert opt.report()["device_state_bytes"] == 0
    with pytest.raises(ValueError, match="device_memory"):
        transload.AdamW(params, device_memory="some")


class FakeTensor:
    """What gather() asks of a tensor on a GPU."""

    def __init__(self, address, device="cuda:0", grad=None):
        self.device, self.grad, self.address = torch.device(device), grad, address
        self.is_cpu = self.device.type == "cpu"
        self.is_cuda = not self.is_cpu
        self.dtype, self.layout, self.shape = torch.bfloat16, torch.strided, torch.Size((10,))
        self.recorded = []

    data_ptr = lambda self: self.address  # noqa: E731
    get_device = lambda self: -1 if self.is_cpu else self.device.index  # noqa: E731
    is_contiguous = lambda self: True  # noqa: E731
    is_neg = lambda self: False  # noqa: E731
    record_stream = lambda self, stream: self.recorded.append(stream)  # noqa: E731


def gathered_of(parameter, place):
    group = dict(params=[parameter], lr=1e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=0)
    return steps.gather([group], [Entry(0, 0, "w", parameter.shape, parameter.dtype, place)])


def test_a_gradient_on_a_gpu_is_held_while_the_core_reads_it_and_then_left_to_the_allocator():
    gradient = FakeTensor(4096)
    parameter = FakeTensor(8192, grad=gradient)
    gathered = gathered_of(parameter, place=0)
    parameter.grad = None
    assert gathered.rows[0][5:] == ([0], [8192], [4096], [1])
    assert gathered.gradients == [gradient]
    stream = types.SimpleNamespace(cuda_stream=77)
    assert steps.address_of(stream) == 77 and steps.address_of(None) == 0
    steps.keep_for(stream, gathered)
    assert gradient.recorded == [stream] and parameter.recorded == [stream]


def test_a_parameter_that_moved_needs_another_layout():
    parameter = FakeTensor(8192, device="cuda:1", grad=FakeTensor(4096, device="cuda:1"))
    assert place_of(parameter) == 1
    assert gathered_of(parameter, place=1) is not None
    assert gathered_of(parameter, place=0) is None
    assert gathered_of(parameter, place=-1) is None


def test_a_gradient_elsewhere_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(_core, "cuda_unavailable", lambda: "")  # else the parameter itself is refused first
    parameter = FakeTensor(8192, grad=FakeTensor(4096, device="cuda:1"))
    with pytest.raises(NotImplementedError, match="The gradient of w is on cuda:1, the parameter on cuda:0"):
        gathered_of(parameter, place=0)


# On a GPU.


@needs_gpu
@pytest.mark.parametrize("where", ["host", "nvme", "device in part", "device"])
def test_the_bits_are_the_cpus_wherever_state_lies(where, nvme):
    on_cpu = model()
    params = on_gpu(on_cpu)
    options = {
        "host": {},
        "nvme": dict(nvme=nvme, host_memory=small_budget(model(), nvme, chunk_size=4096) * 2, chunk_size=4096),
        "device in part": dict(device_memory="80KiB", chunk_size=4096),
        "device": dict(device_memory="1GiB"),
    }[where]
    opt, twin = transload.AdamW(params, **HYPER, **options), transload.AdamW(on_cpu, **HYPER)
    both_train(opt, params, twin, on_cpu, 6)
    assert_same([p.detach().cpu() for p in params], on_cpu)
    report = opt.report()
    assert (report["device_state_bytes"] > 0) == where.startswith("device")
    assert report["device_read"] >= 2 * report["device_written"]
    assert report["staging_reason"] == ""


@needs_gpu
def test_the_current_stream_may_be_any():
    on_cpu = model()
    params = on_gpu(on_cpu)
    opt, twin = transload.AdamW(params, device_memory="80KiB", **HYPER), transload.AdamW(on_cpu, **HYPER)
    streams = [torch.cuda.Stream() for _ in range(2)]
    for step in range(6):
        stream = streams[step % 2]
        stream.wait_stream(streams[1 - step % 2])
        with torch.cuda.stream(stream):
            give_gpu_gradients(params, on_cpu, step)
            opt.step()
        twin.step()
    torch.cuda.synchronize()
    assert_same([p.detach().cpu() for p in params], on_cpu)


@needs_gpu
def test_device_memory_is_the_allocators_and_comes_back():
    gc.collect()
    before = torch.cuda.memory_allocated()
    params = on_gpu(model())
    held = torch.cuda.memory_allocated()
    opt = transload.AdamW(params, device_memory="64KiB", chunk_size=4096, **HYPER)
    for p in params:
        p.grad = torch.zeros_like(p)
    gradients = torch.cuda.memory_allocated()
    opt.step()
    assert 0 < torch.cuda.memory_allocated() - gradients <= 64 << 10
    assert gradients > held
    del opt, params, p
    gc.collect()
    assert torch.cuda.memory_allocated() == before


@needs_gpu
@pytest.mark.parametrize("device_memory", [None, "80KiB", "1GiB"])
def test_state_goes_out_and_in(device_memory, tmp_path):
    on_cpu = model()
    params = on_gpu(on_cpu)
    opt = transload.AdamW(params, device_memory=device_memory, chunk_size=4096, **HYPER)
    twin = transload.AdamW(on_cpu, **HYPER)
    both_train(opt, params, twin, on_cpu, 3)
    for p, q in zip(params, on_cpu):
        for key, value in twin.state[q].items():
            assert torch.equal(opt.state[p][key], value), key
    opt.save(tmp_path / "state")
    for source in (lambda o: o.load_state_dict(opt.state_dict()), lambda o: o.load(tmp_path / "state")):
        others, others_on_cpu = copies(params), copies(on_cpu)
        second = transload.AdamW(others, device_memory=device_memory, chunk_size=4096, **HYPER)
        second_twin = transload.AdamW(others_on_cpu, **HYPER)
        source(second)
        second_twin.load_state_dict(twin.state_dict())
        both_train(second, others, second_twin, others_on_cpu, 2, first=3)
        assert_same([p.detach().cpu() for p in others], others_on_cpu)


@needs_gpu
def test_a_model_that_moves_to_the_gpu_keeps_its_state():
    on_cpu = model()
    params = copies(on_cpu)
    opt, twin = train(transload.AdamW(params, **HYPER), params, 2), train(transload.AdamW(on_cpu, **HYPER), on_cpu, 2)
    for p in params:
        p.grad = None
        p.data = p.data.cuda()
    both_train(opt, params, twin, on_cpu, 2, first=2)
    assert_same([p.detach().cpu() for p in params], on_cpu)


@needs_gpu
def test_steps_with_numbers_that_are_not_finite_are_skipped():
    params = on_gpu(model())
    opt = transload.AdamW(params, nonfinite="skip", **HYPER)
    before = [p.detach().clone() for p in params]
    for p in params:
        p.grad = torch.zeros_like(p)
    params[0].grad[0, 0] = float("inf")
    opt.step()
    assert opt.skipped == 1
    assert_same(params, before)


@needs_gpu
def test_a_parameter_that_is_not_contiguous_is_stepped():
    on_cpu = [torch.nn.Parameter(torch.randn(64, 48).t())]
    params = [torch.nn.Parameter(on_cpu[0].detach().cuda())]
    opt, twin = transload.AdamW(params, **HYPER), transload.AdamW(on_cpu, **HYPER)
    both_train(opt, params, twin, on_cpu, 3)
    assert_same([p.detach().cpu() for p in params], on_cpu)


@needs_gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_are_refused():
    params = [torch.nn.Parameter(torch.zeros(8, device=f"cuda:{i}")) for i in range(2)]
    opt = transload.AdamW(params)
    for p in params:
        p.grad = torch.zeros_like(p)
    with pytest.raises(ValueError, match="one device"):
        opt.step()
