"""Kills of ranks: each of three is killed (SIGKILL) at random instants amid steps, in commits, at the start and while
the state is copied to new stores; the others must end in time, every store must be whole, and the run that goes on must
end with the bits of one that was never disturbed.

    bench/kill_ranks.py [--kills 200] [--seed 1]"""
import argparse
import collections
import os
import pathlib
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("TRANSLOAD", str(ROOT / "build" / "release" / "transload"))
os.environ.setdefault("FAULTY_TRANSLOAD", "")
sys.path.insert(0, str(ROOT / "tests" / "cli"))
from ranks import Kills, launch, verify, words  # noqa: E402

A_PART = 40  # kills of one run, before it is held against one that was never disturbed


def flags():
    model = ROOT / "tests/reference/llama"
    return {"model": model, "data": model / "tokens.bin", "batch_size": 1, "sequence_length": 32,
            "global_batch_size": 5, "seed": 3, "host_memory": "8MiB", "commit_every": 2, "threads": 1,
            "steps": 1_000_000}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    begun, slowest, kinds, same = time.monotonic(), 0.0, collections.Counter(), True
    with tempfile.TemporaryDirectory() as folder:
        for first in range(0, arguments.kills, A_PART):
            run = pathlib.Path(folder) / f"run-{first}"
            kills = Kills({**flags(), "run": run}, 3, arguments.seed + first, say=lambda line: print(line, flush=True))
            for number in range(first, min(first + A_PART, arguments.kills)):
                kills.kill(number)
            slowest, kinds = max(slowest, kills.slowest), kinds + kills.kinds
            steps, fingerprint = kills.end()
            whole = pathlib.Path(folder) / f"whole-{first}"
            status, out = launch(3, "train", *words(**{**flags(), "run": whole, "steps": steps, "chunk_size": "16KiB"}))
            assert status == 0, out
            same = same and verify(whole) == fingerprint
            print(f"{steps} steps; {'the same bits' if same else 'OTHER BITS'} as undisturbed", flush=True)
    done = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    print(f"{sum(kinds.values())} kills in {time.monotonic() - begun:.0f} s ({done}); once they had met, the others "
          f"ended within {slowest:.2f} s; {'the same bits' if same else 'OTHER BITS'} as undisturbed")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
