"""Two ranks of one machine against one rank with two threads: the same global batch, interleaved rounds, medians.

    bench/ranks_bench.py [--rounds 3] [--cases computation,nvme] [--limit 1.15]
    bench/ranks_bench.py --memory 1,2,4      memory of a rank by the number of ranks, nothing timed

llama-60m in bf16. `computation`: 4 samples of 256 tokens, everything in memory, no store. `nvme`: 4 samples of 16
tokens and host budgets (in sum the same) that the state does not fit in. Prints the ratio of step times, how much of the time
in collectives (waiting for the others included) passed while the rank also computed or updated, and memory. Exits 1
where two ranks take more than the limit."""
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
    """Summaries and records, by rank."""
    run = folder / name
    flags = {"model": "llama-60m", "data": folder / "text", "bytes": None, "run": run, "steps": steps, "batch-size": 2,
             "global-batch-size": 4, "threads": max(1, 2 // ranks), **case}
    words = [str(w) for key, value in flags.items() for w in (["--" + key] if value is None else ["--" + key, value])]
    launcher = [TRANSLOAD, "launch", "-n", str(ranks), "--"] if ranks > 1 else [TRANSLOAD]
    done = subprocess.run([*launcher, "train", *words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    endings = [""] + [f"-r{r}" for r in range(1, ranks)]
    summaries = [json.loads((run / f"summary{e}.json").read_text()) for e in endings]
    records = [[json.loads(line) for line in (run / f"record{e}.jsonl").read_text().splitlines()] for e in endings]
    subprocess.run(["rm", "-rf", run], check=True)
    return summaries, records


def union(spans):
    """Of intervals, in order and apart from each other."""
    out = []
    for begin, end in sorted(spans):
        if out and begin <= out[-1][1]:
            out[-1][1] = max(out[-1][1], end)
        else:
            out.append([begin, end])
    return out


def hidden(record):
    """Time in collectives in the planned steps that have events: beside computation or updates, and in all."""
    planned = {e["step"] for e in record if e["event"] == "step" and e["planned"]}
    together, total = 0, 0
    for step in planned:
        spans = [e for e in record if e["event"] == "span" and e["step"] == step]
        of = lambda *lanes: union((e["begin_ns"], e["end_ns"]) for e in spans if e["lane"] in lanes)  # noqa: E731
        work = of("compute", "host")
        for begin, end in of("comm"):
            total += end - begin
            together += sum(max(0, min(end, e) - max(begin, b)) for b, e in work)
    return together, total


def compare(folder, name, rounds):
    """The ratio of step times of two ranks to one, of a case."""
    case, ratios, beside, total = CASES[name], [], 0, 0
    of = lambda ranks: {**case, "host-memory": f"{case['host-memory'][ranks - 1]}MiB"}  # noqa: E731
    for round_ in range(rounds):
        one, _ = train(folder, "one", of(1), 1)
        two, records = train(folder, "two", of(2), 2)
        ratios.append(two[0]["step_s_median"] / one[0]["step_s_median"])
        for record in records:
            together, all_of_it = hidden(record)
            beside, total = beside + together, total + all_of_it
        print(f"{name} round {round_ + 1}: one rank {one[0]['step_s_median']:.3f} s, two ranks "
              f"{two[0]['step_s_median']:.3f} s, ratio {ratios[-1]:.3f}", flush=True)
    ratio = statistics.median(ratios)
    print(f"{name}: two ranks take {ratio:.2f} of one rank's time; {100 * beside / max(1, total):.0f} % of the time in "
          f"collectives passed beside computation or updates; host memory in use at most {mib(one)} MiB, and {mib(two)} "
          f"MiB a rank", flush=True)
    return ratio


def mib(summaries, *path):
    values = [s["tiers"]["host"]["peak"] if not path else s[path[0]] for s in summaries]
    return ", ".join(format(value / 2**20, ".0f") for value in values)


def memory(folder, ranks):
    case = {"sequence-length": 16, "host-memory": "2GiB", "nvme-capacity": 0, "batch-size": 1}
    summaries, records = train(folder, "memory", case, ranks, steps=2)
    states = [max(sum(e.get(use, 0) for use in ("weight", "residue", "moment1", "moment2")) for e in record
                  if e["event"] == "memory" and e["tier"] == "host") for record in records]
    print(f"{ranks} rank{'s' if ranks > 1 else ''}: states {', '.join(format(s / 2**20, '.0f') for s in states)} MiB a "
          f"rank, host memory in use at most {mib(summaries)} MiB, resident at most "
          f"{mib(summaries, 'peak_resident_bytes')} MiB", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", default="computation,nvme")
    parser.add_argument("--limit", type=float, default=1.15)
    parser.add_argument("--memory", metavar="RANKS")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as name:
        folder = pathlib.Path(name)
        (folder / "text").write_text((ROOT / "docs" / "design.md").read_text() * 4)
        if arguments.memory:
            for ranks in arguments.memory.split(","):
                memory(folder, int(ranks))
            return 0
        ratios = [compare(folder, case, arguments.rounds) for case in arguments.cases.split(",")]
    return 1 if max(ratios) > arguments.limit else 0


if __name__ == "__main__":
    sys.exit(main())
