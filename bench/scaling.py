"""Step times on 8 to 4096 ranks, COMPUTED from rates that were measured on this machine: what would bind where.

    bench/scaling.py [--parameters 6.7e9 --layers 32 --hidden 4096 --length 2048 --tokens 4096]
                     [--products FLOP/s] [--network B/s] [--latency S] [--read B/s] [--write B/s] [--memory B/s]

Nothing here was run on more than one machine: each line is the formula with N put in. Rates that are not given are
measured first: products by bench_products, the network by bench_comm (ranks of this machine through shared memory, so an
upper limit of what a network gives), the drive by transload probe, memory by bench_adamw's stream.

Of N ranks with E tokens each, P parameters, Q = 2 bytes an element, L layers, length l, hidden size H (the closed form
of fully sharded data parallel, arXiv 2504.03655, with full recomputation and the gradients' scatter counted):
  T_forward  = P (2 + l / (3 H)) E / products         T_backward = 3 T_forward
  T_pass     = P Q / network (N - 1) / N + L N latency
  T_read     = 10 P / N / read      T_write = 12 P / N / write      T_update = 26 P / N / memory
  step       = max(T_forward, T_pass, T_read, T_write, T_update) + max(T_backward, 2 T_pass)
The verdict lies between the two parts: no update is applied before it, so its traffic can hide behind forward alone."""
import argparse
import json
import pathlib
import re
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"


def output(*words):
    return subprocess.run([str(w) for w in words], check=True, capture_output=True, text=True).stdout


def measured_products():
    text = output(BUILD / "bench/bench_products", 2, 1024, 3, "bf16", "2048x2048x1")
    return min(float(rate) for rate in re.search(r"weighted: nt ([\d.]+) nn ([\d.]+) tn ([\d.]+)", text).groups()) * 1e9


def measured_network():
    text = output(BUILD / "bench/bench_comm")
    return min(float(rate) for rate in re.findall(r"shared memory\D*2 ranks.*?([\d.]+) GB/s", text)) * 1e9


def measured_drive():
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        drive = json.loads(output(BUILD / "transload", "probe", "--json", "--nvme", folder))["nvme"][0]
    return drive["read_bytes_per_s"], drive["write_bytes_per_s"]


def measured_memory():
    return max(float(r) for r in re.findall(r"stream[^\n]*?([\d.]+) GB/s", output(BUILD / "bench/bench_adamw", "50e6", 2,
                                                                                  3))) * 1e9


def times(n, a):
    forward = a.parameters * (2 + a.length / (3 * a.hidden)) * a.tokens / a.products
    a_pass = a.parameters * 2 / a.network * (n - 1) / n + a.layers * n * a.latency
    state = {"NVMe read": 10 * a.parameters / n / a.read, "NVMe write": 12 * a.parameters / n / a.write,
             "update": 26 * a.parameters / n / a.memory}
    first = {"computation": forward, "network": a_pass, **state}
    second = {"computation": 3 * forward, "network": 2 * a_pass}
    return first, second


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"parameters": 6.7e9, "layers": 32, "hidden": 4096, "length": 2048, "tokens": 4096,
                        "latency": 5e-6}.items():
        parser.add_argument(f"--{name}", type=float, default=value)
    for name in ("products", "network", "read", "write", "memory"):
        parser.add_argument(f"--{name}", type=float)
    a = parser.parse_args()
    if a.read is None or a.write is None:
        read, write = measured_drive()
        a.read, a.write = a.read or read, a.write or write
    a.products, a.network = a.products or measured_products(), a.network or measured_network()
    a.memory = a.memory or measured_memory()
    print(f"rates: products {a.products / 1e9:.0f} GFLOP/s, network {a.network / 1e9:.2f} GB/s, drive {a.read / 1e9:.2f} / "
          f"{a.write / 1e9:.2f} GB/s, memory {a.memory / 1e9:.1f} GB/s; {a.parameters:.3g} parameters, {a.tokens:.0f} "
          "tokens a rank; all figures below are computed")
    print(f"{'ranks':>6} {'forward':>10} {'binds':>12} {'backward':>10} {'binds':>12} {'step':>10} {'tokens/s':>12} "
          f"{'state a rank':>13}")
    for n in (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096):
        first, second = times(n, a)
        step = max(first.values()) + max(second.values())
        print(f"{n:>6} {max(first.values()):>8.2f} s {max(first, key=first.get):>12} {max(second.values()):>8.2f} s "
              f"{max(second, key=second.get):>12} {step:>8.2f} s {n * a.tokens / step:>12.0f} "
              f"{12 * a.parameters / n / 2**30:>9.2f} GiB")


if __name__ == "__main__":
    main()
