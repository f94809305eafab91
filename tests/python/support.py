"""What the tests share: tiny models, recorded gradients, a float64 reference, masters kept by hand, budgets."""
import math
import os
import signal
import subprocess
import sys
import textwrap

import torch

import transload

KIB, MIB = 1 << 10, 1 << 20
BYTES_OF_STATE = {torch.float32: 8, torch.bfloat16: 10, torch.float16: 12}
HYPER = dict(lr=1e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)


def parameters(*shapes, dtype=torch.float32, scale=1.0, seed=3):
    """Leaf tensors of ordinary size; the same for the same arguments."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter((torch.randn(shape, generator=generator) * scale).to(dtype)) for shape in shapes]


def copies(params):
    """Independent parameters with the same content and strides."""
    return [torch.nn.Parameter(p.detach().clone(memory_format=torch.preserve_format), requires_grad=p.requires_grad)
            for p in params]


def gradient(p, step, index=0, scale=1.0):
    """What p gets at a step: a function of both alone."""
    generator = torch.Generator().manual_seed(1000 * step + index)
    return (torch.randn(p.shape, generator=generator) * scale).to(p.dtype)


def give_gradients(params, step, scale=1.0):
    for index, p in enumerate(params):
        p.grad = gradient(p, step, index, scale)


def train(opt, params, steps, first=0, scale=1.0):
    """Steps on recorded gradients, numbered from `first`."""
    for step in range(first, first + steps):
        give_gradients(params, step, scale)
        opt.step()
    return opt


def same_bits(a, b):
    """Equal bit for bit, NaNs and signs of zeros included."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


def bits(t):
    t = t.detach().contiguous()
    return t.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()])


def assert_same(params, others):
    for index, (p, q) in enumerate(zip(params, others, strict=True)):
        assert same_bits(p, q), f"tensor {index} differs by up to {(p.float() - q.float()).abs().max()}"


def assert_close_to_torch(params, others, lr=HYPER["lr"], steps=50):
    """The stated tolerance: 4e-6 of the weight, or of how far it can have gone."""
    for index, (p, q) in enumerate(zip(params, others, strict=True)):
        p, q = p.detach().double(), q.detach().double()
        bound = 4e-6 * q.abs().clamp(min=lr * steps)
        worst = ((p - q).abs() / bound).max().item() if p.numel() else 0.0
        assert worst <= 1, f"tensor {index}: {worst:.2f} of the tolerance"


class Float64AdamW:
    """AdamW as its formula stands, in double."""

    def __init__(self, params, lr, betas, eps, weight_decay):
        self.weights = [p.detach().double().clone() for p in params]
        self.m = [torch.zeros_like(w) for w in self.weights]
        self.v = [torch.zeros_like(w) for w in self.weights]
        self.lr, self.betas, self.eps, self.weight_decay, self.steps = lr, betas, eps, weight_decay, 0

    def step(self, gradients):
        self.steps += 1
        beta1, beta2 = self.betas
        for w, m, v, g in zip(self.weights, self.m, self.v, gradients):
            g = g.double()
            w.mul_(1 - self.lr * self.weight_decay)
            m.mul_(beta1).add_(g, alpha=1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            root = (v / (1 - beta2 ** self.steps)).sqrt_().add_(self.eps)
            w.addcdiv_(m, root, value=-self.lr / (1 - beta1 ** self.steps))


class ExplicitMaster:
    """torch's AdamW on fp32 masters that the test keeps by hand, for parameters of fewer bits."""

    def __init__(self, params, **hyper):
        self.params = params
        self.masters = [torch.nn.Parameter(p.detach().float().clone()) for p in params]
        self.optimizer = torch.optim.AdamW(self.masters, **{**HYPER, **hyper})

    def step(self, step):
        for index, (p, master) in enumerate(zip(self.params, self.masters)):
            master.grad = gradient(p, step, index).float()
        self.optimizer.step()

    def restart(self, index, where=slice(None)):
        """The master is what the parameter holds now."""
        with torch.no_grad():
            self.masters[index].view(-1)[where] = self.params[index].detach().reshape(-1)[where].float()


def state_bytes(params):
    return sum(p.numel() * BYTES_OF_STATE[p.dtype] for p in params)


def chunk_option(elements):
    """Chunks of so many elements; the option counts the bytes of an fp32 plane."""
    return {"chunk_size": 4 * elements}


def small_budget(params, folder, **options):
    """The smallest power of two bytes that these parameters can be stepped with; less than their state."""
    budget = 16 * KIB
    while True:
        try:
            probe = copies(params)
            opt = transload.AdamW(probe, host_memory=budget, nvme=str(folder), **options)
            for p in probe:
                p.grad = torch.zeros_like(p)
            opt.step()
            return budget
        except (MemoryError, ValueError):
            budget *= 2
            assert budget < state_bytes(params), "not even half of the state is enough as a budget"


def on_nvme(params, folder, budget=None, **options):
    """An optimizer whose state does not fit into its budget."""
    params = list(params)
    tensors = [p for p in params if isinstance(p, torch.Tensor)]
    budget = budget or small_budget(tensors, folder)
    assert budget < state_bytes(tensors), "the state fits into the budget: the test would show nothing"
    return transload.AdamW(params, host_memory=budget, nvme=str(folder), **{**HYPER, **options})


def steps_of(opt):
    """Steps of each parameter that has state, without holding any of it."""
    return [int(entry["step"]) for _, entry in sorted(opt.state_dict()["state"].items())]


def report(opt, key):
    facts = opt.report()
    return facts[key] if isinstance(facts, dict) else getattr(facts, key)


def assert_streamed(opt):
    """State larger than the budget, and bytes that went to NVMe and came back."""
    assert report(opt, "state_bytes") > report(opt, "host_budget") > 0
    assert report(opt, "nvme_written") > 0 and report(opt, "nvme_read") > 0
    assert report(opt, "host_peak") <= report(opt, "host_budget")


def subfolders(folder):
    return sorted(os.listdir(folder))


def run_python(code, *arguments, timeout=120, **keywords):
    """A fresh interpreter with this folder on its path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])}
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], capture_output=True,
                          text=True, timeout=timeout, env=environment, **keywords)


def start_python(code, *arguments):
    """With the signals of a terminal's program, also where the tests run in a shell's background, which ignores some."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])}
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))


def bf16_step(x):
    """Distance of neighbouring bf16 numbers at |x|."""
    return torch.pow(2.0, torch.floor(torch.log2(x.abs().clamp(min=2.0 ** -126).double())) - 7)


def almost(a, b, relative):
    return math.isclose(a, b, rel_tol=relative)
