"""Forward and backward, and whole steps, beside PyTorch on the same machine, in interleaved rounds.

    bench/compare_torch.py passes [--models gpt2-124m,llama-350m] [--dtypes bf16,fp32] [--rounds 3] [--steps 4]
    bench/compare_torch.py step   [--rounds 3] [--steps 4]

--steps: steps of a run, the first of which is not counted (PyTorch's bf16 takes minutes a step on a processor without
bf16 products: --steps 2 --rounds 1).

passes: tokens/s of forward + backward, everything in memory, 4 x 256 tokens, no recomputation.
step:   a whole step of llama-350m in bf16 with an fp32 master, 4 x 256 tokens: ours with --host-memory 640MiB and the
        rest on NVMe, PyTorch with everything in memory (bf16 model, fp32 master and fused AdamW on it, kept by hand).

PyTorch and transformers come by pip into an environment of the user's cache (about 5 GB), made at the first call.
Prints medians of per-round ratios; exits 1 where a goal is missed (passes: 0.8 of PyTorch's tokens/s; step: 1.25 times
its time)."""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "transload"
TRANSLOAD = ROOT / "build" / "release" / "transload"
BATCH, LENGTH = 4, 256


def torch_python():
    python = CACHE / "venv" / "bin" / "python"
    if not python.exists():
        print("Installing PyTorch and transformers into", CACHE / "venv", flush=True)
        subprocess.run([sys.executable, "-m", "venv", CACHE / "venv"], check=True)
        subprocess.run([CACHE / "venv" / "bin" / "pip", "install", "-q", "torch", "transformers"], check=True)
    return python


def run_torch(model, dtype, what, steps):
    out = subprocess.run([torch_python(), __file__, "--child", model, dtype, what, str(steps)], check=True,
                         capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


def run_ours(model, dtype, memory, recompute, steps, folder):
    run = pathlib.Path(folder) / "run"
    shutil.rmtree(run, ignore_errors=True)
    data = pathlib.Path(folder) / "tokens.bin"
    if not data.exists():
        data.write_bytes(synthetic(200_000))
    command = [TRANSLOAD, "train", "--model", model, "--data", data, "--run", run, "--batch-size", str(BATCH),
               "--sequence-length", str(LENGTH), "--steps", str(steps), "--dtype", dtype, "--recompute", recompute]
    command += ["--host-memory", memory, "--commit-every", "1000"] if memory else ["--nvme-capacity", "0"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    summary = json.loads((run / "summary.json").read_text())
    shutil.rmtree(run, ignore_errors=True)
    return summary


def synthetic(tokens):
    import array
    import random
    random.seed(1)
    return array.array("H", (random.randrange(30000) for _ in range(tokens))).tobytes()


def passes(arguments):
    missed = False
    for model in arguments.models.split(","):
        for dtype in arguments.dtypes.split(","):
            ratios, ours, theirs = [], [], []
            with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
                for _ in range(arguments.rounds):
                    peer = run_torch(model, dtype, "passes", arguments.steps)["seconds"]
                    summary = run_ours(model, dtype, None, "none", arguments.steps + 1, folder)
                    mine = summary["compute_s"]["forward"] + summary["compute_s"]["backward"]
                    ours.append(BATCH * LENGTH / mine)
                    theirs.append(BATCH * LENGTH / peer)
                    ratios.append(peer / mine)
            ratio = statistics.median(ratios)
            missed |= ratio < 0.8
            print(f"{model} {dtype}: ours {statistics.median(ours):.0f} tokens/s, PyTorch {statistics.median(theirs):.0f}"
                  f" tokens/s, ratio {ratio:.2f} (goal 0.80; rounds {', '.join(f'{r:.2f}' for r in ratios)})", flush=True)
    return missed


def step(arguments):
    ratios = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for _ in range(arguments.rounds):
            peer = run_torch("llama-350m", "bf16", "step", arguments.steps)
            mine = run_ours("llama-350m", "bf16", "640MiB", "layer", arguments.steps + 2, folder)
            ratios.append(mine["step_s_median"] / peer["seconds"])
            print(f"ours {mine['step_s_median']:.2f} s, peak resident {mine['peak_resident_bytes'] / 2**20:.0f} MiB; "
                  f"PyTorch {peer['seconds']:.2f} s, {peer['peak_resident_bytes'] / 2**20:.0f} MiB; "
                  f"ratio {ratios[-1]:.2f}", flush=True)
    ratio = statistics.median(ratios)
    print(f"llama-350m, one step of {BATCH} x {LENGTH} tokens: {ratio:.2f} times PyTorch's time (goal 1.25)")
    return ratio > 1.25


# ---- in the environment with PyTorch ----

def torch_model(name, dtype):
    import torch
    import transformers
    torch.manual_seed(1)
    if name.startswith("gpt2"):
        config = transformers.GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    else:
        config = transformers.LlamaConfig(vocab_size=32000, hidden_size=1024, num_hidden_layers=24,
                                          num_attention_heads=16, num_key_value_heads=16, intermediate_size=2736,
                                          max_position_embeddings=2048, tie_word_embeddings=False)
    model = transformers.AutoModelForCausalLM.from_config(config)
    return model.to(torch.bfloat16 if dtype == "bf16" else torch.float32)


def child(name, dtype, what, steps):
    import resource
    import time

    import torch
    torch.set_num_threads(os.cpu_count())
    model = torch_model(name, dtype)
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=3e-4, fused=True) if what == "step" else None
    ids = torch.randint(0, 30000, (BATCH, LENGTH + 1))
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        logits = model(ids[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        if optimizer:
            for master, p in zip(masters, model.parameters()):
                master.grad = p.grad.float()
            torch.nn.utils.clip_grad_norm_(masters, 1.0)
            optimizer.step()
            with torch.no_grad():
                for master, p in zip(masters, model.parameters()):
                    p.copy_(master)
        for p in model.parameters():
            p.grad = None
        times.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": statistics.median(times[1:]), "peak_resident_bytes": peak}))


def main():
    if len(sys.argv) > 1 and sys.argv[1] == "--child":
        child(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["passes", "step"])
    parser.add_argument("--models", default="gpt2-124m,llama-350m")
    parser.add_argument("--dtypes", default="bf16,fp32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--folder", default=None, help="where the runs' folders go (default: the system's)")
    arguments = parser.parse_args()
    subprocess.run([ROOT / "scripts" / "build", ROOT / "build" / "release", "transload"], check=True, capture_output=True)
    sys.exit(1 if (passes if arguments.what == "passes" else step)(arguments) else 0)


if __name__ == "__main__":
    main()
