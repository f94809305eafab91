"""What `transload plan` says before a run against what the run does: bytes on links, memory in use, time of a step.

    bench/planner_check.py [--seed N] [--settings REGEX] [--markdown docs/planner.md] [--rounds 6]

Fourteen settings, seven of them drawn by the seed (default: the clock's). For each: `plan --probe` measures this machine
and writes its prediction to a file; the run follows; then the machine is probed once more. Where the second probe would
have predicted a step that differs by more than 3 % the machine changed meanwhile, and the round is repeated, at most
--rounds times; a setting that never had a quiet round says so. Nothing of a run goes into a prediction.

Held against the run:
  bytes   of each link, over whole cycles from commit to commit (the first is left out): within 1 %
  peak    in use of each tier: never below, at most 2 % above
  time    of a steady step, medians: within 5 % where emulated links bind, 10 % elsewhere
Exits 1 where one of these is missed in a quiet round."""
import argparse
import hashlib
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TRANSLOAD = os.environ.get("TRANSLOAD", str(ROOT / "build" / "release" / "transload"))
LINKS = ("nvme_read", "nvme_write", "host_to_device", "device_to_host")
CYCLE, CYCLES = 20, 3  # steps from commit to commit
PROBES_DIFFER, BYTES, PEAK = 0.03, 0.01, 0.02
WIDTHS = {"narrow": (256, 768, 4), "middle": (384, 1152, 6), "wide": (512, 1536, 8)}  # hidden, intermediate, heads


def model_config(family, width, layers, vocabulary):
    hidden, intermediate, heads = WIDTHS[width]
    if family == "gpt2":
        return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": hidden, "n_layer": layers,
                "n_head": heads, "n_positions": 512, "vocab_size": vocabulary, "tie_word_embeddings": True}
    return {"model_type": family, "architectures": [{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[family]],
            "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": heads // 2, "vocab_size": vocabulary,
            "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True}


def setting(family="llama", width="narrow", layers=8, vocabulary=512, batch=2, length=128, accumulate=1, host=1.0,
            device=None, link=None, ranks=1, recompute="layer"):
    """`host`, `device`: parts of the way from the least budget (0) to what holds everything (1)."""
    return dict(family=family, width=width, layers=layers, vocabulary=vocabulary, batch=batch, length=length,
                accumulate=accumulate, host=host, device=device, link=link, ranks=ranks, recompute=recompute)


FIXED = {
    "all-in-memory": setting(batch=4, length=256),
    "nvme-some": setting(width="middle", host=0.5, batch=2, length=256),
    "nvme-binds": setting(width="wide", host=0.15, batch=1, length=64),
    "gpt2-accumulated": setting(family="gpt2", accumulate=3, host=0.6),
    "link-binds": setting(device=0.2, link=0.08e9, batch=1, length=64),
    "link-free": setting(device=0.5, link=4e9, batch=4, length=256),
    "two-ranks": setting(ranks=2, batch=4, length=256),
}


def drawn(seed, count):
    """Settings that nobody chose."""
    r = random.Random(seed)
    out = {}
    for i in range(count):
        emulated = r.random() < 0.5
        out[f"drawn-{i + 1}"] = setting(
            family=r.choice(["llama", "gpt2", "qwen2"]), width=r.choice(list(WIDTHS)), layers=r.randint(4, 12),
            vocabulary=r.choice([512, 2048]), batch=r.randint(1, 4), length=r.choice([64, 128, 256]),
            accumulate=r.choice([1, 1, 2]), host=r.choice([0.1, 0.3, 0.6, 1.0]),
            device=r.choice([0.2, 0.5, 1.0]) if emulated else None,
            link=r.choice([0.1e9, 0.5e9, 4e9]) if emulated else None,
            ranks=1 if emulated else r.choice([1, 1, 2]), recompute=r.choice(["layer", "none"]))
    return out


class Checked:
    """One setting on this machine, in a folder of its own."""

    def __init__(self, name, facts, folder):
        self.name, self.facts, self.folder = name, facts, folder
        folder.mkdir(parents=True)
        config = model_config(*(facts[k] for k in ("family", "width", "layers", "vocabulary")))
        (folder / "config.json").write_text(json.dumps(config))
        r = random.Random(1)
        ids = [r.randrange(facts["vocabulary"]) for _ in range(100_000)]
        (folder / "data.bin").write_bytes(b"".join(i.to_bytes(2, "little") for i in ids))
        self.flags = {"model": folder, "data": folder / "data.bin", "run": folder / "run", "batch-size": facts["batch"],
                      "sequence-length": facts["length"], "accumulate": facts["accumulate"],
                      "recompute": facts["recompute"], "steps": CYCLE * CYCLES, "commit-every": CYCLE,
                      "chunk-size": "512KiB", "host-memory": "4GiB"}
        if facts["ranks"] > 1:
            self.flags["threads"] = max(1, (os.cpu_count() or 2) // facts["ranks"])
        if facts["device"] is not None:
            self.flags |= {"device": "emulated", "device-memory": "4GiB", "link-rate": f"{facts['link']:.0f}B/s"}
        self.set_budgets()

    def set_budgets(self):
        roomy, budgets = self.plan()["tiers"], {}
        everything = max(facts["peak"] for facts in roomy.values())  # the device holds it where there is one
        for tier, facts in roomy.items():
            least, whole = facts["least"], max(everything, facts["least"])
            budgets[f"{tier}-memory"] = f"{int(least + self.facts[tier] * (1.02 * whole - least)) // 1024 + 1}KiB"
        self.flags |= budgets

    def call(self, command, *more):
        words = [str(w) for key, value in self.flags.items() for w in ("--" + key, value)]
        launcher = ["launch", "-n", str(self.facts["ranks"]), "--"] if self.facts["ranks"] > 1 else []
        done = subprocess.run([TRANSLOAD, *launcher, command, *words, *more], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{self.name}: {command} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def plan(self, *more):
        return json.loads(self.call("plan", "--json", *more))

    def run(self):
        self.call("train")
        record = [json.loads(line) for line in (self.flags["run"] / "record.jsonl").read_text().splitlines()]
        summary = json.loads((self.flags["run"] / "summary.json").read_text())
        subprocess.run(["rm", "-rf", self.flags["run"]], check=True)
        return summary, record

    def round(self):
        prediction = self.plan("--probe")
        file = self.folder / "prediction.json"
        file.write_text(json.dumps(prediction, indent=1))
        written, digest = time.time(), hashlib.sha256(file.read_bytes()).hexdigest()
        summary, record = self.run()
        after = self.plan("--probe")["time"]["step_s"]
        assert hashlib.sha256(file.read_bytes()).hexdigest() == digest and written < time.time()
        before = prediction["time"]["step_s"]
        return {"prediction": prediction, "digest": digest[:12], "probes_differ": abs(after - before) / before,
                "summary": summary, "record": record}


def steady_seconds(record):
    """Of steps whose step before was planned too: not the two after a commit."""
    steps = [e for e in record if e["event"] == "step"]
    return [now["wall_ns"] * 1e-9 for last, now in zip(steps, steps[1:]) if last["planned"] and now["planned"]]


def commits_of(record, link):
    """Bytes that each commit moved, but for the first one: it follows the way into the steady state."""
    return [e["link_bytes"][link] for e in record if e["event"] == "commit"][1:]


def cycle_bytes(record, link):
    """A step, over the cycles but the first: steps' bytes, and what commits moved."""
    late = sum(e["links"][link]["bytes"] for e in record if e["event"] == "step" and e["step"] > CYCLE)
    return (late + sum(commits_of(record, link))) / (CYCLE * (CYCLES - 1))


def verdicts(found):
    """What was said, what came, and how far apart they are."""
    prediction, summary, record = found["prediction"], found["summary"], found["record"]
    seconds = statistics.median(steady_seconds(record))
    time_limit = 0.05 if prediction["time"]["binds"] in ("host_to_device", "device_to_host") else 0.10
    out = {"time": (prediction["time"]["step_s"], seconds, prediction["time"]["step_s"] / seconds - 1, time_limit)}
    for link in LINKS:
        said = prediction["links"][link]["step_bytes_with_commits"]
        came = cycle_bytes(record, link)
        if said or came:
            out[link] = (said, came, said / came - 1 if came else float("inf"), BYTES)
    for tier, facts in prediction["tiers"].items():
        came = summary["tiers"][tier]["peak"]
        out["peak " + tier] = (facts["peak"], came, facts["peak"] / came - 1, PEAK)
    return out


def causes(found, link):
    """Said and came, MB: a steady step, the two steps after a commit, what commits write."""
    steps = [e for e in found["record"] if e["event"] == "step"]
    pairs = list(zip(steps, steps[1:]))
    kinds = {"planned_step_bytes": [n for l, n in pairs if l["planned"] and n["planned"]],
             "first_step_bytes": [n for _, n in pairs if not n["planned"]],
             "second_step_bytes": [n for l, n in pairs if not l["planned"] and n["step"] > CYCLE]}
    said = found["prediction"]["links"][link]
    text = [f"{name[:-6].replace('_', ' ')} {said[name] / 1e6:.2f} / "
            f"{statistics.mean(e['links'][link]['bytes'] for e in of) / 1e6:.2f}" for name, of in kinds.items() if of]
    text.append(f"commit {said['commit_bytes'] / 1e6:.2f} / {statistics.mean(commits_of(found['record'], link)) / 1e6:.2f}")
    return ", ".join(text)


def held(key, off, limit):
    return 0 <= off <= limit if key.startswith("peak") else abs(off) <= limit


def describe(facts):
    text = f"{facts['family']} {WIDTHS[facts['width']][0]}x{facts['layers']}, {facts['batch']}x{facts['length']} tokens"
    text += f" x{facts['accumulate']}" if facts["accumulate"] > 1 else ""
    text += ", nothing recomputed" if facts["recompute"] == "none" else ""
    text += f", host {facts['host']:.0%}"
    text += f", device {facts['device']:.0%} at {facts['link'] / 1e9:g} GB/s" if facts["device"] is not None else ""
    return text + (f", {facts['ranks']} ranks" if facts["ranks"] > 1 else "")


def check(name, facts, folder, rounds):
    checked = Checked(name, facts, folder / name)
    best = None
    for number in range(1, rounds + 1):
        found = checked.round()
        if best is None or found["probes_differ"] < best["probes_differ"]:
            best = {**found, "rounds": number}
        if best["probes_differ"] <= PROBES_DIFFER:
            break
    best["verdicts"] = verdicts(best)
    best["quiet"] = best["probes_differ"] <= PROBES_DIFFER
    return best


def row(name, facts, best):
    cells = []
    for key in ("time", *LINKS, "peak device", "peak host"):
        if key not in best["verdicts"]:
            cells.append("")
            continue
        said, came, off, limit = best["verdicts"][key]
        mark = "" if held(key, off, limit) else " **missed**"
        figure = f"{said * 1e3:.0f} / {came * 1e3:.0f} ms" if key == "time" else f"{said / 1e6:.1f} / {came / 1e6:.1f}"
        cells.append(f"{figure} ({off:+.1%}){mark}")
    quiet = f"{best['probes_differ']:.1%}" + ("" if best["quiet"] else " (never quiet)")
    return f"| {name}: {describe(facts)} | {best['prediction']['time']['binds']} | {quiet} | " + " | ".join(cells) + " |"


def table_of(seed, rows, missed):
    head = ["| setting | binds | probes differ | step, said / came | NVMe in, MB a step | NVMe out | to device | from "
            "device | peak device, MB | peak host |", "|" + "---|" * 10]
    text = "\n".join([f"Seed {seed}.", "", *head, *rows])
    return text + ("\n\nMissed (MB, said / came):\n\n" + "\n".join(f"- {m}" for m in missed) if missed else "")


def put_into(page, table):
    begin, end = "<!-- planner_check begins -->", "<!-- planner_check ends -->"
    before, _, rest = page.read_text().partition(begin)
    page.write_text(f"{before}{begin}\n{table}\n{end}{rest.partition(end)[2]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--settings", default=".", help="regular expression over their names")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--markdown", type=pathlib.Path, help="the table goes between the marks of this file")
    parser.add_argument("--keep", type=pathlib.Path, help="folder for predictions and results")
    arguments = parser.parse_args()
    every = FIXED | drawn(arguments.seed, len(FIXED))
    chosen = {name: facts for name, facts in every.items() if re.search(arguments.settings, name)}
    rows, missed = [], []
    with tempfile.TemporaryDirectory(prefix="planner-check-") as temporary:
        folder = arguments.keep or pathlib.Path(temporary)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        started = time.time()
        for i, (name, facts) in enumerate(chosen.items()):
            best = check(name, facts, folder, arguments.rounds)
            rows.append(row(name, facts, best))
            left = (time.time() - started) / (i + 1) * (len(chosen) - i - 1)
            print(f"{rows[-1]}\n  {best['rounds']} rounds, prediction {best['digest']}; about {left / 60:.0f} min left",
                  file=sys.stderr, flush=True)
            missed += [f"{name}: {key}" + (f" ({causes(best, key)})" if key in LINKS else "")
                       for key, (_, _, off, limit) in best["verdicts"].items()
                       if not held(key, off, limit) and (best["quiet"] or key != "time")]
            if arguments.markdown:
                put_into(arguments.markdown, table_of(arguments.seed, rows, missed))
    print(table_of(arguments.seed, rows, []))
    print("\n".join(["missed:", *missed]) if missed else "missed: nothing")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
