"""Kills of ranks: each of three is killed (SIGKILL) at random instants; the others must end in time, every store must be
whole, and the run that goes on must end with the bits of one that was never disturbed.

    bench/kill_ranks.py [--kills 200] [--seed 1]"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("TRANSLOAD", str(ROOT / "build" / "release" / "transload"))
os.environ.setdefault("FAULTY_TRANSLOAD", "")
sys.path.insert(0, str(ROOT / "tests" / "cli"))
from ranks import kill_and_resume, launch, words  # noqa: E402
from support import TRANSLOAD  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        flags = {"model": ROOT / "tests/reference/llama", "data": ROOT / "tests/reference/llama/tokens.bin",
                 "batch_size": 1, "sequence_length": 32, "global_batch_size": 3, "chunk_size": "16KiB", "seed": 3,
                 "host_memory": "8MiB", "commit_every": 2, "threads": 1}
        fingerprints, slowest, amid, done, begun = set(), 0.0, 0, 0, time.monotonic()
        part = 0
        while done < arguments.kills:
            kills = min(10, arguments.kills - done)
            run = pathlib.Path(folder) / f"run-{part}"
            took, during = kill_and_resume({**flags, "run": run, "steps": 4000}, 3, kills, arguments.seed + part,
                                           longest=4.0, say=lambda line: print(line, flush=True))
            fingerprints.add(fingerprint(run))
            slowest, amid, done, part = max(slowest, took), amid + during, done + kills, part + 1
        whole = pathlib.Path(folder) / "whole"
        status, out = launch(3, "train", *words(**{**flags, "run": whole, "steps": 4000}), within=900)
        assert status == 0, out
        same = fingerprints == {fingerprint(whole)}
        print(f"{done} kills in {time.monotonic() - begun:.0f} s, {amid} of them amid steps; the others ended within "
              f"{slowest:.2f} s; {'the same bits' if same else 'OTHER BITS'} as undisturbed")
        return 0 if same else 1


def fingerprint(run):
    return subprocess.run([TRANSLOAD, "verify", run, "--fingerprint"], check=True, capture_output=True,
                          text=True).stdout.split()[-1]


if __name__ == "__main__":
    sys.exit(main())
