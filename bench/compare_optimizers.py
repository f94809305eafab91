"""One optimizer step beside PyTorch's and DeepSpeed's on the same machine, in interleaved rounds.

    bench/compare_optimizers.py [--parameters 200e6] [--rounds 15] [--nvme DIR] [--host-memory 256MiB]

fp32   torch.optim.AdamW foreach and fused, transload.AdamW
bf16   the same work: bf16 weights and gradients, fp32 master and moments. torch's fused AdamW on a master kept by hand,
       DeepSpeedCPUAdam the same way where it is installed, transload.AdamW in memory, and with its state on NVMe.
       Beside them torch's fused AdamW on bf16 alone: less work, moments and weights in bf16 and no master.
NVMe   is compared with a bare loop of direct I/O that moves the bytes which the step moved, reads and writes at once.

A round steps each once, in an order that turns; what counts is the median over the rounds of the ratios within a round.
Above 300e6 parameters: ours and fused alone. PyTorch comes into the user's cache at the first call (5 GB).
Prints bytes a parameter in memory beside each. Exits 1 where a goal is missed: bf16 1.3 times the best of those that do
the same work, fp32 0.95 of fused, NVMe 0.90 of the bare loop."""
import argparse
import concurrent.futures
import ctypes
import gc
import mmap
import os
import statistics
import sys
import tempfile
import time

import python_package

TENSOR = 1 << 24  # elements: a large layer
HYPER = dict(lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
REQUEST, IN_FLIGHT = 2 << 20, 8


def tensors(total, dtype, scale):
    import torch
    sizes = [TENSOR] * (total // TENSOR) + ([total % TENSOR] if total % TENSOR else [])
    return [torch.empty(n, dtype=dtype).uniform_(-scale, scale) for n in sizes]


def weights(total, dtype):
    import torch
    return [torch.nn.Parameter(t) for t in tensors(total, dtype, 1.0)]


class Torch:
    """torch.optim.AdamW on the parameters as they are."""

    def __init__(self, name, total, gradients, **how):
        import torch
        self.name = name
        self.params = weights(total, gradients[0].dtype)
        for p, g in zip(self.params, gradients):
            p.grad = g
        self.opt = torch.optim.AdamW(self.params, **HYPER, **how)

    def step(self):
        self.opt.step()

    def memory(self):
        state = sum(v.nbytes for s in self.opt.state.values() for k, v in s.items() if k != "step")
        return state + sum(p.nbytes + p.grad.nbytes for p in self.params)


class ByHand:
    """bf16 parameters; an fp32 master with fp32 gradients beside each, converted before the step and after it."""

    def __init__(self, name, total, gradients, make):
        import torch
        self.name, self.gradients = name, gradients
        self.params = weights(total, gradients[0].dtype)
        self.masters = [torch.nn.Parameter(p.detach().float()) for p in self.params]
        for master in self.masters:
            master.grad = torch.zeros_like(master)
        self.opt = make(self.masters)

    def step(self):
        import torch
        with torch.no_grad():
            torch._foreach_copy_([m.grad for m in self.masters], self.gradients)
            self.opt.step()
            torch._foreach_copy_([p.data for p in self.params], [m.data for m in self.masters])

    def memory(self):
        state = sum(v.nbytes for s in self.opt.state.values() for v in s.values()
                    if hasattr(v, "nbytes") and v.numel() > 1)
        return state + sum(m.nbytes + m.grad.nbytes + p.nbytes + g.nbytes
                           for m, p, g in zip(self.masters, self.params, self.gradients))


class Ours:
    def __init__(self, name, total, gradients, **where):
        import transload
        self.name = name
        self.params = weights(total, gradients[0].dtype)
        for p, g in zip(self.params, gradients):
            p.grad = g
        self.opt = transload.AdamW(self.params, **HYPER, **where)
        self.moved = (0, 0)

    def step(self):
        before = self.opt.report()
        self.opt.step()
        after = self.opt.report()
        self.moved = tuple(after[k] - before[k] for k in ("nvme_read", "nvme_written"))

    def memory(self):
        facts = self.opt.report()
        return facts["host_peak"] + facts["table_bytes"] + sum(p.nbytes + p.grad.nbytes for p in self.params)


class BareLoop:
    """As little as a program can do to move bytes: direct I/O, 2 MiB at a time, 8 in flight a direction, huge pages."""

    name = "bare loop"

    def __init__(self, folder, total):
        self.total = -(-total // REQUEST) * REQUEST
        self.path = os.path.join(folder, "bare")
        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_DIRECT", 0), 0o600)
        os.unlink(self.path)
        self.pages = mmap.mmap(-1, (2 * IN_FLIGHT + 1) * REQUEST)
        self.pages.madvise(mmap.MADV_HUGEPAGE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.pages))
        first = -address % REQUEST
        view = memoryview(self.pages)
        self.buffers = [view[first + i * REQUEST:first + (i + 1) * REQUEST] for i in range(2 * IN_FLIGHT)]
        for buffer in self.buffers:
            buffer[:] = os.urandom(REQUEST)
        self.pool = concurrent.futures.ThreadPoolExecutor(2 * IN_FLIGHT)
        self.amount = (self.total, self.total)
        for _ in range(2):  # written through, so that the file system has its blocks
            self.run(0, self.total, 0)
            self.run(0, self.total, self.total)

    def run(self, read, written, offset=None):
        at = self.total if offset is None else offset

        def work(lane, begin, end, call):
            for position in range(begin + lane % IN_FLIGHT * REQUEST, end, IN_FLIGHT * REQUEST):
                if call(self.file, [self.buffers[lane]], position) != REQUEST:
                    raise OSError("a short transfer in the bare loop")

        lanes = [self.pool.submit(work, i, 0, read, os.preadv) for i in range(IN_FLIGHT)]
        lanes += [self.pool.submit(work, IN_FLIGHT + i, at, at + written, os.pwritev) for i in range(IN_FLIGHT)]
        for lane in lanes:
            lane.result()

    def step(self):
        self.run(*self.amount)


def deepspeed(masters):
    os.environ.setdefault("DS_SKIP_CUDA_CHECK", "1")
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    return DeepSpeedCPUAdam(masters, adamw_mode=True, **HYPER)


def seconds(runner):
    begin = time.perf_counter()
    runner.step()
    return time.perf_counter() - begin


def interleaved(runners, rounds, after=lambda: None):
    """{name: seconds of each round}; who goes first turns."""
    for _ in range(2):
        for runner in runners:
            runner.step()
        after()
    times = {runner.name: [] for runner in runners}
    for i in range(rounds):
        turn = i % len(runners)
        for runner in runners[turn:] + runners[:turn]:
            times[runner.name].append(seconds(runner))
        after()
    return times


def ratio(times, ours, theirs):
    """How many times as fast as `theirs`, by the median of the rounds; and the rounds' range."""
    ratios = [b / a for a, b in zip(times[ours], times[theirs])]
    return statistics.median(ratios), min(ratios), max(ratios)


def table(title, runners, times, total, reference):
    print(f"\n{title}")
    for runner in runners:
        t = times[runner.name]
        held = f"{runner.memory() / total:6.1f}" if hasattr(runner, "memory") else "     -"
        print(f"  {runner.name:34} {total / statistics.median(t) / 1e6:8.0f} Mparam/s  {held} bytes a parameter  "
              f"{ratio(times, runner.name, reference)[0]:5.2f} of {reference}", flush=True)


def goal(text, found, wanted):
    middle, low, high = found
    met = middle >= wanted
    print(f"  {'reaches' if met else 'MISSES'} the goal: {text}: {middle:.3f}, wanted {wanted:.2f} "
          f"(rounds {low:.3f} to {high:.3f})", flush=True)
    return met


def fp32(arguments, total, everyone):
    import torch
    gradients = tensors(total, torch.float32, 1e-2)
    runners = [Torch("torch fused fp32", total, gradients, fused=True), Ours("transload fp32", total, gradients)]
    if everyone:
        runners.insert(0, Torch("torch foreach fp32", total, gradients, foreach=True))
    times = interleaved(runners, arguments.rounds)
    table("fp32 weights, gradients and moments", runners, times, total, "torch fused fp32")
    return goal("fp32 beside fused", ratio(times, "transload fp32", "torch fused fp32"), 0.95)


def peers_in_bf16(total, gradients):
    import torch
    peers = [ByHand("torch fused, master by hand", total, gradients,
                    lambda masters: torch.optim.AdamW(masters, **HYPER, fused=True))]
    try:
        peers.append(ByHand("DeepSpeedCPUAdam, master by hand", total, gradients, deepspeed))
    except Exception as error:  # not installed, or its extension does not build here
        print(f"DeepSpeedCPUAdam is not compared: {type(error).__name__}: {str(error).splitlines()[0][:120]}")
    return peers


def bf16(arguments, total, everyone):
    import torch
    gradients = tensors(total, torch.bfloat16, 1e-2)
    fused = Torch("torch fused bf16, no master", total, gradients, fused=True)
    same_work = peers_in_bf16(total, gradients) if everyone else []
    ours = Ours("transload bf16", total, gradients)
    runners = [fused, *same_work, ours]
    times = interleaved(runners, arguments.rounds)
    reference = same_work[0].name if same_work else fused.name
    table("bf16 weights and gradients; fp32 master and moments where not said otherwise", runners, times, total, reference)
    if not same_work:
        return True
    best = min(same_work, key=lambda r: statistics.median(times[r.name]))
    return goal(f"bf16 beside {best.name}", ratio(times, ours.name, best.name), 1.3)


def on_nvme(arguments, total):
    import torch
    with tempfile.TemporaryDirectory(prefix="transload-bench-", dir=arguments.nvme) as folder:
        gradients = tensors(total, torch.bfloat16, 1e-2)
        ours = Ours("transload bf16, state on NVMe", total, gradients, nvme=folder, host_memory=arguments.host_memory)
        ours.step()
        bare = BareLoop(folder, 10 * total)

        def same_bytes():
            bare.amount = tuple(-(-min(m, bare.total) // REQUEST) * REQUEST for m in ours.moved)

        times = interleaved([ours, bare], arguments.rounds, same_bytes)
        facts = ours.opt.report()
        print(f"\nbf16, state on NVMe, {arguments.host_memory} of host memory for {facts['state_bytes'] / 2**20:.0f} MiB of "
              f"state; {facts['io_path']} I/O, {'direct' if facts['direct'] else 'buffered'}; a step reads "
              f"{ours.moved[0] / total:.1f} and writes {ours.moved[1] / total:.1f} bytes a parameter")
        if ours.moved[0] < 5 * total:
            print("  The state was mostly in memory: this is no measurement of the disk.")
            return False
        table("beside the limit", [ours, bare], times, total, bare.name)
        rate = sum(bare.amount) / statistics.median(times[bare.name])
        print(f"  the bare loop moves {rate / 1e9:.2f} GB/s, reads and writes in sum")
        return goal("on NVMe beside the bare loop", ratio(times, ours.name, bare.name), 0.90)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=200e6)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--nvme", default=None, help="folder on the disk to measure (default: the system's temporary one)")
    parser.add_argument("--host-memory", default="256MiB", help="budget of the run on NVMe")
    parser.add_argument("--only", choices=["fp32", "bf16", "nvme"])
    arguments = parser.parse_args()
    python_package.enter()

    import torch
    torch.set_num_threads(arguments.threads)
    total = int(arguments.parameters)
    everyone = total <= 300e6
    print(f"{total / 1e6:.0f} M parameters, {arguments.rounds} rounds, {arguments.threads} threads, "
          f"torch {torch.__version__}", flush=True)
    parts = {"fp32": lambda: fp32(arguments, total, everyone), "bf16": lambda: bf16(arguments, total, everyone),
             "nvme": lambda: on_nvme(arguments, total)}
    met = True
    for name, part in parts.items():
        if arguments.only in (None, name):
            met &= part()
            gc.collect()
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
