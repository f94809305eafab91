"""Anonymous memory of a bf16 model of a billion parameters under transload.AdamW, through everything a trainer does.

    bench/billion_memory.py [--parameters 1e9] [--host-memory 512MiB] [--nvme DIR] [--steps 3]

A thread samples RssAnon of /proc/self/status every 10 ms. What is shown is its growth over the model, its gradients and
what PyTorch imports when any optimizer is made:
construction, steps, torch.save(opt.state_dict()), torch.load(mmap=True) with load_state_dict, opt.save, opt.load, and a
step after each load. Exits 1 where the growth is above the budget and 100 MiB, or where what was loaded does not go on
as what was saved. Needs 4 bytes a parameter of memory and about 32 on the disk."""
import argparse
import os
import pathlib
import sys
import tempfile
import threading
import time

import python_package

MIB = 1 << 20
LAYER = 1 << 24


def anonymous():
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("This kernel does not show RssAnon.")


class Sampler(threading.Thread):
    """The largest RssAnon since the last call of take()."""

    def __init__(self):
        super().__init__(daemon=True)
        self.peak = 0

    def run(self):
        while True:
            self.peak = max(self.peak, anonymous())
            time.sleep(0.01)

    def take(self):
        peak, self.peak = max(self.peak, anonymous()), 0
        return peak


def model(total):
    """Weights and gradients; both are there before anything is measured."""
    import torch
    sizes = [LAYER] * (total // LAYER) + ([total % LAYER] if total % LAYER else [])
    params = [torch.nn.Parameter(torch.empty(n, dtype=torch.bfloat16).uniform_(-1, 1)) for n in sizes]
    for p in params:
        p.grad = torch.empty_like(p).uniform_(-1e-2, 1e-2)
    return params


def checksum(params):
    """64 bits of the weights, a piece at a time so that it takes no memory."""
    import torch
    total = 0
    for p in params:
        for piece in p.detach().view(torch.int16).split(1 << 20):
            total = (total * 1_000_003 + int(piece.sum(dtype=torch.int64))) % (1 << 63)
    return total


class Stages:
    def __init__(self, limit):
        self.sampler, self.limit, self.met = Sampler(), limit, True
        self.base = anonymous()
        self.sampler.start()

    def __call__(self, name, work):
        self.sampler.take()
        begin = time.perf_counter()
        result = work()
        took, grown = time.perf_counter() - begin, self.sampler.take() - self.base
        self.met &= grown <= self.limit
        print(f"{name:44} {grown / MIB:8.0f} MiB  {took:7.1f} s{'' if grown <= self.limit else '  ABOVE'}", flush=True)
        return result


def run(arguments, folder):
    import torch

    import transload
    total = int(arguments.parameters)
    before = anonymous()
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    imports = anonymous() - before
    params = model(total)
    budget = transload.parse_size(arguments.host_memory, "host_memory")
    stage = Stages(budget + 100 * MIB)
    print(f"{total / 1e6:.0f} M parameters in bf16, model and gradients {stage.base / MIB:.0f} MiB of anonymous memory; "
          f"growth allowed {stage.limit / MIB:.0f} MiB. What PyTorch imports for any optimizer was there before "
          f"({imports / MIB:.0f} MiB).\n")
    nvme = os.path.join(folder, "nvme")
    os.mkdir(nvme)
    options = dict(lr=1e-3, weight_decay=0.1, host_memory=budget, nvme=nvme)
    pickled, own = os.path.join(folder, "state.pt"), os.path.join(folder, "state.safetensors")

    opt = stage("construction", lambda: transload.AdamW(params, **options))
    stage("first step", opt.step)
    for i in range(2, arguments.steps + 1):
        stage(f"step {i}", opt.step)
    facts = opt.report()
    if not (facts["state_bytes"] > budget and facts["nvme_read"] > 0):
        print("The state fits into the budget: nothing is shown. Give more --parameters.")
        stage.met = False
    saved_weights = os.path.join(folder, "weights")
    with open(saved_weights, "wb") as file:
        for p in params:
            p.detach().view(torch.int16).numpy().tofile(file)
    stage("torch.save(opt.state_dict())", lambda: torch.save(opt.state_dict(), pickled))
    stage("opt.save", lambda: opt.save(own))
    stage("a step after saving", opt.step)
    want = checksum(params)

    def back():
        with open(saved_weights, "rb") as file:
            for p in params:
                file.readinto(memoryview(p.detach().view(torch.int16).numpy()).cast("B"))

    def load_pickled():
        opt.load_state_dict(torch.load(pickled, mmap=True, weights_only=True))

    for name, load in (("torch.load(mmap=True), load_state_dict", load_pickled), ("opt.load", lambda: opt.load(own))):
        back()
        stage(name, load)
        stage("a step after it", opt.step)
        if checksum(params) != want:
            print(f"After {name} the step is another one.")
            stage.met = False

    def anew():
        nonlocal opt
        del opt
        opt = transload.AdamW(params, **options)
        opt.load(own)
        opt.step()

    back()
    stage("a new optimizer, opt.load, a step", anew)
    if checksum(params) != want:
        print("After opt.load into a new optimizer the step is another one.")
        stage.met = False
    facts = opt.report()
    print(f"\nstate {facts['state_bytes'] / MIB:.0f} MiB, budget {facts['host_budget'] / MIB:.0f}, its peak "
          f"{facts['host_peak'] / MIB:.0f}, tables beside it {facts['table_bytes'] / MIB:.1f}")
    return stage.met


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=1e9)
    parser.add_argument("--host-memory", default="512MiB")
    parser.add_argument("--nvme", default=None, help="folder on the disk to use (default: the system's temporary one)")
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    python_package.enter()
    with tempfile.TemporaryDirectory(prefix="transload-bench-", dir=arguments.nvme) as folder:
        met = run(arguments, folder)
    print("within the limit" if met else "NOT within the limit")
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
