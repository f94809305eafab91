"""Two ranks of one machine against one rank with two threads: the same global batch, interleaved rounds, medians.

    bench/ranks_bench.py [--rounds 3] [--cases computation,nvme] [--limit 1.15]

llama-60m in bf16. `computation`: 4 samples of 256 tokens, everything in memory, no store. `nvme`: 4 samples of 16 tokens
and host budgets (in sum the same) that the state does not fit in. Prints the ratio of step times, resident memory of
each rank, and what the ranks' shards are of one rank's. Exits 1 where two ranks take more than the limit."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("TRANSLOAD", str(ROOT / "build" / "release" / "transload"))
TRANSLOAD = os.environ["TRANSLOAD"]
CASES = {"computation": {"sequence-length": 256, "host-memory": (2048, 1024), "nvme-capacity": 0, "recompute": "none"},
         "nvme": {"sequence-length": 16, "host-memory": (160, 80), "recompute": "layer"}}


def train(folder, name, case, ranks, steps=8):
    run = folder / name
    flags = {"model": "llama-60m", "data": folder / "text", "bytes": None, "run": run, "steps": steps, "batch-size": 2,
             "global-batch-size": 4, "threads": 2 // ranks, **case}
    flags["host-memory"] = f"{case['host-memory'][ranks - 1]}MiB"
    words = [str(w) for key, value in flags.items() for w in (["--" + key] if value is None else ["--" + key, value])]
    launcher = [TRANSLOAD, "launch", "-n", str(ranks), "--"] if ranks > 1 else [TRANSLOAD]
    done = subprocess.run([*launcher, "train", *words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    names = ["summary.json"] + [f"summary-r{r}.json" for r in range(1, ranks)]
    summaries = [json.loads((run / n).read_text()) for n in names]
    subprocess.run(["rm", "-rf", run], check=True)
    return summaries


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", default="computation,nvme")
    parser.add_argument("--limit", type=float, default=1.15)
    arguments = parser.parse_args()
    missed = False
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as name:
        folder = pathlib.Path(name)
        (folder / "text").write_text((ROOT / "docs" / "design.md").read_text() * 4)
        for case in arguments.cases.split(","):
            ratios, rows = [], []
            for round_ in range(arguments.rounds):
                one = train(folder, "one", CASES[case], 1)
                two = train(folder, "two", CASES[case], 2)
                ratios.append(two[0]["step_s_median"] / one[0]["step_s_median"])
                rows.append((one[0]["step_s_median"], two[0]["step_s_median"]))
                print(f"{case} round {round_ + 1}: one rank {rows[-1][0]:.3f} s, two ranks {rows[-1][1]:.3f} s, "
                      f"ratio {ratios[-1]:.3f}", flush=True)
            ratio = statistics.median(ratios)
            print(f"{case}: two ranks take {ratio:.2f} of one rank's time; host memory in use at most "
                  f"{one[0]['tiers']['host']['peak'] / 2**20:.0f} MiB, and "
                  f"{', '.join(format(s['tiers']['host']['peak'] / 2**20, '.0f') for s in two)} MiB a rank")
            missed = missed or ratio > arguments.limit
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
