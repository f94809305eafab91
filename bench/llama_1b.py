"""llama-1b under 1536 MiB of host memory, everything else on NVMe: three steps of 4 x 512 tokens.

    bench/llama_1b.py [--folder DIR]    (about 40 GB of disk)

Prints the peak resident size as the kernel counts it; exits 1 at 1.7 GiB or more."""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from compare_torch import ROOT, TRANSLOAD, synthetic

LIMIT = 1.7 * 2**30


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=None, help="where the run's folder goes (default: the system's)")
    parser.add_argument("--host-memory", default="1536MiB")
    arguments = parser.parse_args()
    subprocess.run([ROOT / "scripts" / "build", ROOT / "build" / "release", "transload"], check=True)
    folder = pathlib.Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        data = folder / "tokens.bin"
        data.write_bytes(synthetic(200_000))
        process = subprocess.Popen([TRANSLOAD, "train", "--model", "llama-1b", "--data", data, "--run", folder / "run",
                        "--batch-size", "4", "--sequence-length", "512", "--steps", "3", "--commit-every", "1000",
                        "--host-memory", arguments.host_memory])
        _, status, usage = os.wait4(process.pid, 0)
        if status != 0:
            sys.exit(f"transload ended with status {status}")
        peak = usage.ru_maxrss * 1024
        summary = json.loads((folder / "run" / "summary.json").read_text())
    finally:
        shutil.rmtree(folder)
    print(f"llama-1b with --host-memory {arguments.host_memory}: peak resident {peak / 2**30:.2f} GiB (goal: under 1.7), "
          f"{summary['step_s_median']:.1f} s a step, {summary['binds']} binds, "
          f"{summary['fraction_of_limit']:.2f} of the limit, losses {summary['losses']}")
    sys.exit(1 if peak >= LIMIT else 0)


if __name__ == "__main__":
    main()
