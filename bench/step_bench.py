"""A training step against its lower bound in three regimes: computation binds, NVMe binds, about equal.

    bench/step_bench.py [--folder DIR] [--rounds 3] [--regimes computation,equal,nvme]

llama-60m in bf16, batches of 4; a regime is a length, a host budget and what is computed again (REGIMES). The limits are
measured in the same rounds, before and after each run: oneDNN's rate on the step's own shapes by form of product,
weighted by FLOPs (bench_products), the in-place stream (bench_adamw), the store's disk (the run's own probe).
  forward, backward  FLOPs of products, those that --recompute layer asks for too / oneDNN's rate, and the bytes of the
                     other kernels, each array once / stream: norms, rotary, SwiGLU, residuals, loss, rounding of
                     gradients and their norm, and the widening of operands where the processor has no bf16 product
  update             26 bytes a parameter / stream
  NVMe               least bytes / rate of each direction, and of both together / the duplex rate
  plain              max(forward + backward + update, NVMe)
  bound              with the verdict as a barrier: backward + max(forward + update, NVMe traffic of all states but what
                     memory can hold when that part begins or ends); at least the plain one
Prints a row a regime and where the rest of the step went; `alone` is the fraction where nothing computed again is
counted. Exits 1 where a step reaches less than 0.80 of its bound."""
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

LAYERS, HIDDEN, INNER, VOCAB, BATCH = 8, 512, 1376, 32000, 4
WEIGHTS = [(HIDDEN, HIDDEN, 4 * LAYERS), (INNER, HIDDEN, 2 * LAYERS), (HIDDEN, INNER, LAYERS), (VOCAB, HIDDEN, 1)]
DOWN = 2  # the layers' last product is not computed again, nor is the head's counted
BENCH = ROOT / "build" / "release" / "bench"
# Name: tokens of a sample, --host-memory, --recompute.
REGIMES = {"computation": (256, "2GiB", "none"), "equal": (80, "130MiB", "layer"), "nvme": (16, "130MiB", "layer")}


def products(tokens):
    """oneDNN's rate by form, FLOP/s, and whether operands are widened first."""
    shapes = [f"{rows}x{columns}x{count}" for rows, columns, count in WEIGHTS]
    out = subprocess.run([BENCH / "bench_products", "2", str(tokens), "3", "bf16", *shapes], check=True,
                         capture_output=True, text=True).stdout
    rates = re.search(r"weighted: nt ([\d.]+) nn ([\d.]+) tn ([\d.]+)", out).groups()
    return [float(r) * 1e9 for r in rates], "widened" in out


def stream():
    """In-place stream of three arrays, B/s."""
    out = subprocess.run([BENCH / "bench_adamw", "50e6", "2", "3"], check=True, capture_output=True, text=True).stdout
    return max(float(rate) for rate in re.findall(r"stream[^\n]*?([\d.]+) GB/s", out)) * 1e9


def least_passes(length, recompute, limits):
    """Least seconds of forward and backward."""
    (nt, nn, tn), widened, bytes_per_s = limits
    tokens = BATCH * length
    attention = tokens * LAYERS * 2 * 2 * HIDDEN * (length + 1) / 2
    weights = sum(rows * columns * count for rows, columns, count in WEIGHTS)
    again = sum(rows * columns * count for rows, columns, count in WEIGHTS[:DOWN]) if recompute else 0
    flops = 2 * tokens
    forward = (flops * weights + attention) / nt
    backward = flops * weights / nn + flops * weights / tn + 2.5 * attention / nn
    backward += (flops * again + attention) / nt if recompute else 0
    # Bytes. Of a token in a layer: two norms, rotary, SwiGLU, two residuals. Of a logit: read by loss and gradient,
    # its gradient written. Of a parameter: its gradient rounded, then read for the norm.
    small = tokens * LAYERS * (14 * HIDDEN + 3 * INNER) * 2
    wide = [tokens * columns + rows * columns for rows, columns, _ in WEIGHTS]
    wide_back = [2 * tokens * rows + tokens * columns + rows * columns for rows, columns, _ in WEIGHTS]
    counts = [count for _, _, count in WEIGHTS]

    def widening(elements, uses):
        return 6 * sum(e * n for e, n in zip(elements, uses)) if widened else 0
    forward += (small + tokens * VOCAB * 4 + widening(wide, counts)) / bytes_per_s
    backward += (2 * small + tokens * VOCAB * 6 + 8 * weights + widening(wide_back, counts)) / bytes_per_s
    backward += (small + widening(wide[:DOWN], counts[:DOWN])) / bytes_per_s if recompute else 0
    return forward, backward


def nvme_seconds(summary, read, write):
    links = summary["links"]
    return max(read / links["nvme_read"]["measured_rate"], write / links["nvme_write"]["measured_rate"],
               (read + write) / summary["nvme_duplex_rate"])


def bounds(summary, length, recompute, limits):
    """(bound, plain bound, forward, backward, update, NVMe), seconds."""
    forward, backward = least_passes(length, recompute, limits)
    update = 26 * summary["parameters"] / limits[2]
    nvme = nvme_seconds(summary, *(summary["links"][link]["least_bytes"] for link in ("nvme_read", "nvme_write")))
    plain = max(forward + backward + update, nvme)
    room = summary["tiers"]["host"]["budget"]
    # Weight, residue and moments are 12 bytes a parameter, the gradient is 2 more.
    states = nvme_seconds(summary, max(0, 14 * summary["parameters"] - room), max(0, 12 * summary["parameters"] - room))
    return max(plain, backward + max(forward + update, states)), plain, forward, backward, update, nvme


def run(length, memory, recompute, folder):
    where = folder / "run"
    shutil.rmtree(where, ignore_errors=True)
    subprocess.run([TRANSLOAD, "train", "--model", "llama-60m", "--data", folder / "tokens.bin", "--run", where, "--steps",
                    "8", "--batch-size", str(BATCH), "--sequence-length", str(length), "--commit-every", "1000",
                    "--host-memory", memory, "--recompute", recompute], check=True, capture_output=True)
    return json.loads((where / "summary.json").read_text())


def measure(name, rounds, folder):
    """Prints a regime's row, the medians of its rounds; returns its fraction."""
    length, memory, recompute = REGIMES[name]
    rows = []
    for _ in range(rounds):
        before = products(BATCH * length)
        bytes_per_s = stream()
        summary = run(length, memory, recompute, folder)
        after = products(BATCH * length)
        rates = [(a + b) / 2 for a, b in zip(before[0], after[0])]
        limits = rates, before[1], bytes_per_s
        bound, plain, forward, backward, update, nvme = bounds(summary, length, recompute == "layer", limits)
        alone = bounds(summary, length, False, limits)[0]
        step, parts = summary["step_s_median"], summary["compute_s"]
        busy = sum(parts.values())
        rows.append((bound / step, step, bound, plain, alone / step, forward + backward, nvme, *rates, bytes_per_s,
                     parts["forward"] + parts["backward"] - forward - backward, parts["update"] - update, step - busy))
    m = [statistics.median(column) for column in zip(*rows)]
    print(f"{name:<11} {BATCH} x {length}, {memory}, recompute {recompute}: step {m[1]:.3f} s, bound {m[2]:.3f} s, "
          f"fraction {m[0]:.2f} (goal 0.80; rounds {', '.join(f'{r[0]:.2f}' for r in rows)}; alone {m[4]:.2f}); plain "
          f"bound {m[3]:.3f} s: passes {m[5]:.3f}, NVMe {m[6]:.3f}\n{'':<11} limits: products nt {m[7] / 1e9:.0f}, nn "
          f"{m[8] / 1e9:.0f}, tn {m[9] / 1e9:.0f} GFLOP/s, stream {m[10] / 1e9:.1f} GB/s; beyond them: passes "
          f"{m[11]:.3f} s, update {m[12]:.3f} s; not in a kernel: {m[13]:.3f} s", flush=True)
    return m[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=None, help="where the runs' folders go (default: the system's)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--regimes", default=",".join(REGIMES))
    arguments = parser.parse_args()
    subprocess.run([ROOT / "scripts" / "build", ROOT / "build" / "release", "transload", "bench_products", "bench_adamw"],
                   check=True, capture_output=True)
    folder = pathlib.Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        (folder / "tokens.bin").write_bytes(synthetic(200_000))
        fractions = [measure(name, arguments.rounds, folder) for name in arguments.regimes.split(",")]
    finally:
        shutil.rmtree(folder)
    sys.exit(1 if min(fractions) < 0.8 else 0)


if __name__ == "__main__":
    main()
