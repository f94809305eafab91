"""own_trainer learns, and its losses are the same bits with a tiny budget, and resumed, as with everything in memory."""
import re
import subprocess
import sys
import tempfile

PROGRAM = sys.argv[1]


def train(folder, memory, *steps):
    done = subprocess.run([PROGRAM, folder, str(memory), *map(str, steps)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    print(f"{memory} bytes {steps}: {done.stderr.strip()}")
    return done.stdout, int(float(re.search(r"NVMe ([\d.]+) MiB read", done.stderr)[1]))


with tempfile.TemporaryDirectory() as folder:
    large, read_large = train(folder + "/large", 64 << 20)
    tiny, read_tiny = train(folder + "/tiny", 832 << 10)
    first, _ = train(folder + "/resumed", 1 << 20, 60)
    rest, _ = train(folder + "/resumed", 2 << 20)
    losses = [float(x) for x in re.findall(r"loss ([\d.]+)", large)]
    print(large, end="")
    assert losses[-1] < losses[0] / 4, losses
    assert tiny == large, f"a tiny budget changed the losses:\n{tiny}"
    assert first + rest == large, f"resuming changed the losses:\n{first}{rest}"
    assert read_large == 0 and read_tiny > 100, (read_large, read_tiny)
    refused = subprocess.run([PROGRAM, folder + "/refused", "100000"], capture_output=True, text=True)
    assert refused.returncode == 1 and "needs at least" in refused.stderr, refused
print("same bits")
