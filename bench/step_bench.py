"""A training step against its lower bound in three regimes: computation binds, NVMe binds, about equal.

    bench/step_bench.py [--model llama-60m] [--folder DIR] [--rounds 3]

llama-60m on 4 x 256 tokens in bf16; the regimes are host budgets. The limits are measured in the same rounds, between
the runs: oneDNN's best rate (bench_products), the in-place stream (bench_adamw), the store's disk (the run's own probe).
  computation  FLOPs of products (transformer.h, step_flops; the head's second sweep and recomputation are ours to
               answer for: a forward counts 2, a backward 4 a weight and token) / oneDNN's rate
               + 26 bytes a parameter of the update and the bytes of the small kernels / stream
  NVMe         least bytes / rate of each direction, and of both together / the duplex rate
  step         the larger: the plain maximum, which asks more than the bound with the verdict as a barrier
Prints a row a regime and where the rest of the step went; exits 1 where a step reaches less than 0.80 of its bound."""
import argparse
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

from compare_torch import ROOT, TRANSLOAD, synthetic

LAYERS, HIDDEN, INNER, VOCAB, BATCH, LENGTH = 8, 512, 1376, 32000, 4, 256
BENCH = ROOT / "build" / "release" / "bench"


def best_products():
    """oneDNN's best rate over llama's forms, FLOP/s."""
    out = subprocess.run([BENCH / "bench_products", "2", "1024", "3"], check=True, capture_output=True, text=True).stdout
    return max(float(rate) for rate in re.findall(r"limit\s+(\d+) \(", out)) * 1e9


def stream():
    """In-place stream of three arrays, B/s."""
    out = subprocess.run([BENCH / "bench_adamw", "50e6", "2", "3"], check=True, capture_output=True, text=True).stdout
    return max(float(rate) for rate in re.findall(r"stream[^\n]*?([\d.]+) GB/s", out)) * 1e9


def passes(rate, bytes_per_s):
    """Least seconds of forward and of backward."""
    tokens = BATCH * LENGTH
    weights = LAYERS * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER) + VOCAB * HIDDEN
    attention = LAYERS * 2 * 2 * HIDDEN * (LENGTH + 1) / 2
    # Values of two bytes that the small kernels read or write a token: norms, rotary, SwiGLU, residuals, rounding.
    small = LAYERS * (14 * HIDDEN + 3 * INNER) * 2
    forward = tokens * ((2 * weights + attention) / rate + small / bytes_per_s)
    return forward, tokens * ((4 * weights + 2.5 * attention) / rate + 2 * small / bytes_per_s)


def bound(summary, rate, bytes_per_s):
    forward, backward = passes(rate, bytes_per_s)
    update = 26 * summary["parameters"] / bytes_per_s
    links = summary["links"]
    read, write = links["nvme_read"]["least_bytes"], links["nvme_write"]["least_bytes"]
    nvme = max(read / links["nvme_read"]["measured_rate"], write / links["nvme_write"]["measured_rate"],
               (read + write) / summary["nvme_duplex_rate"])
    compute = forward + backward + update
    return max(compute, nvme), compute, nvme


def run(model, memory, folder):
    where = folder / "run"
    shutil.rmtree(where, ignore_errors=True)
    subprocess.run([TRANSLOAD, "train", "--model", model, "--data", folder / "tokens.bin", "--run", where, "--steps", "10",
                    "--batch-size", str(BATCH), "--sequence-length", str(LENGTH), "--commit-every", "1000",
                    "--host-memory", memory], check=True, capture_output=True)
    return json.loads((where / "summary.json").read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-60m")
    parser.add_argument("--folder", default=None, help="where the runs' folders go (default: the system's)")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    subprocess.run([ROOT / "scripts" / "build", ROOT / "build" / "release", "transload", "bench_products", "bench_adamw"],
                   check=True)
    folder = pathlib.Path(tempfile.mkdtemp(dir=arguments.folder))
    missed = False
    try:
        (folder / "tokens.bin").write_bytes(synthetic(200_000))
        for name, memory in (("computation", "2GiB"), ("about equal", "400MiB"), ("NVMe", "130MiB")):
            fractions = []
            for _ in range(arguments.rounds):
                rate, bytes_per_s = best_products(), stream()
                summary = run(arguments.model, memory, folder)
                least, compute, nvme = bound(summary, rate, bytes_per_s)
                fractions.append(least / summary["step_s_median"])
            fraction = statistics.median(fractions)
            missed |= fraction < 0.8
            parts = summary["compute_s"]
            print(f"{name:<12} {memory:>7}: step {summary['step_s_median']:.2f} s, bound {least:.2f} s (computation "
                  f"{compute:.2f}, NVMe {nvme:.2f}), fraction {fraction:.2f} (goal 0.80); of the step forward "
                  f"{parts['forward']:.2f}, backward {parts['backward']:.2f}, update {parts['update']:.2f}, waiting for "
                  f"room or content {summary['wait_s'] / summary['steps']:.2f}; products {rate / 1e9:.0f} GFLOP/s, "
                  f"stream {bytes_per_s / 1e9:.1f} GB/s", flush=True)
    finally:
        shutil.rmtree(folder)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
