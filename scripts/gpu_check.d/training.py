"""Training runs of the command line: made, cut where time ends, and read back."""
import array
import json
import random
import re
import shutil

from part import Failed

KEYS = ("parameters", "steps", "interrupted", "losses", "grad_norms", "step_s_median", "lower_bound_s", "plain_bound_s",
        "fraction_of_limit", "binds", "compute_s", "tokens_per_step", "tokens_per_s", "tiers", "peak_resident_bytes",
        "links", "nvme_bytes_written", "wait_s")
GOAL = 0.75
STEPS = 5


def tokens(part, vocabulary):
    """A file of random tokens: data of our own making, which nothing has to bring."""
    path = part.work / "tokens.bin"
    if not path.exists():
        random.seed(1)
        path.write_bytes(array.array("H", (random.randrange(vocabulary) for _ in range(200_000))).tobytes())
    return path


def model_folder(part, name, shape):
    """A model of our own shape; without weights it begins from the seed."""
    folder = part.work / name
    folder.mkdir()
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5, "hidden_act": "silu",
              "max_position_embeddings": 2048, "tie_word_embeddings": False, **shape}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def figures(folder):
    """What a run says of itself. Without a summary (it was killed): its steps so far."""
    record = folder / "record.jsonl"
    text = record.read_text() if record.exists() else ""
    lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    found = {"rates": lines[0].get("rates"), "gpu": lines[0].get("gpu")} if lines else {}
    summary = folder / "summary.json"
    if summary.exists():
        whole = json.loads(summary.read_text())
        return {**found, **{key: whole[key] for key in KEYS}, "goal": GOAL}
    return {**found, "steps_before_it_was_cut": [
        {key: line.get(key) for key in ("step", "loss", "wall_ns")} for line in lines[1:] if "wall_ns" in line]}


def train(part, name, model, *flags):
    """One run in the part's folder; its figures are found even where it was cut or failed."""
    folder = part.work / name
    try:
        part.run(part.setup.program("transload"), "train", "--model", model, "--run", folder, "--device", "cuda",
                 "--steps", part.setup.steps or STEPS, *flags, interrupt=True)
    finally:
        part.found[name] = figures(folder)
    found = part.found[name]
    part.say(f"{name} {found['step_s_median']:.3g} s a step, {found['fraction_of_limit']:.2f} of its bound "
             f"(goal {GOAL}), {found['binds']} binds")
    return found


def fingerprint(part, name):
    text = part.output(part.setup.program("transload"), "verify", part.work / name, "--fingerprint")
    found = re.search(r"^fingerprint ([0-9a-f]+)$", text, re.MULTILINE)
    if found is None:
        raise Failed(f"verify --fingerprint gave none for {name}")
    return found[1]


def compare_bits(part, model, flags, cap, store):
    """A run with all of the device's memory, and one with as much of it as cap(figures) says; the bits are compared.

    `store`: a folder for the state that both leave, one after the other, for the comparison."""
    prints = []
    for name in ("whole", "capped"):
        device = ["--device-memory", cap(part.found["whole"])] if name == "capped" else []
        held = store / f"{name}-store"
        held.mkdir()
        train(part, name, model, *flags, *device, "--nvme", held)
        prints.append(fingerprint(part, name))
        shutil.rmtree(held)
    whole, capped = part.found["whole"], part.found["capped"]
    part.found["fingerprints"] = prints
    part.found["same_bits"] = prints[0] == prints[1]
    part.found["same_losses_and_norms"] = all(whole[key] == capped[key] for key in ("losses", "grad_norms"))
    if not (part.found["same_bits"] and part.found["same_losses_and_norms"]):
        raise Failed("less device memory changed the bits")
    part.say("the same bits")
