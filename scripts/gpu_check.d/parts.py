"""The parts of gpu_check, in the order of their worth. Each is given a Part, and fills part.found as it goes."""
import contextlib
import dataclasses
import json
import pathlib
import shutil
import tempfile
from collections.abc import Callable

import optimizer
import sizes
import training
from part import Failed, Part, Skipped
from setup import GIB, available_memory, cuda_tool, free_disk

ADAMW_GOAL = 0.90


def size_of(part, what):
    return (sizes.STAND_IN if part.setup.stand_in else sizes.GPU)[what]


def build(part):
    setup = part.setup
    if setup.stand_in:
        targets = ["transload_stand_in", "test_kernels_cuda", *(f"bench_cuda_{name}_stand_in" for name in
                                                               ("kernels", "links", "products"))]
        options = ["-DTRANSLOAD_CUDA=OFF", "-DTRANSLOAD_BENCH=OFF"]
    else:
        targets = ["transload", "test_cuda_device", "bench_cuda_kernels", "bench_cuda_links", "bench_cuda_products"]
        options = [f"-DCMAKE_CUDA_ARCHITECTURES={setup.architecture}-real"]
    part.run(setup.root / "scripts" / "build", setup.build, *targets, "--", "-DTRANSLOAD_ONEDNN=OFF",
             "-DTRANSLOAD_HWLOC=OFF", "-DTRANSLOAD_MPI=OFF", "-DTRANSLOAD_GLOO=OFF", *options)
    part.found.update(architecture=setup.architecture, targets=targets)


def probe(part):
    part.found.update(json.loads(part.output(part.setup.program("transload"), "probe", "--json")))


def tests(part):
    flags = size_of(part, "tests")
    text = part.output(part.setup.program("tests"), *flags)
    last = text.strip().splitlines()[-1]
    part.found["text"] = last
    # Without a device they would pass by being skipped.
    if "skipped:" in text or "All tests passed" not in last:
        raise Failed(last)
    part.say(last)


def bench(part, program):
    """Runs one of the benchmarks that write JSON, and finds what it wrote."""
    to = part.work / f"{program}.json"
    part.run(part.setup.program(program), "--json", to, *size_of(part, program))
    part.found.update(json.loads(to.read_text()))


def bandwidth(part):
    bench(part, "links")
    part.say("to the device {host_to_device:.4g} B/s, to the host {device_to_host:.4g}, both {both_at_once:.4g}".format(
        **part.found))


def kernels(part):
    bench(part, "kernels")
    fraction = next(k["fraction_of_copy"] for k in part.found["kernels"] if k["name"] == "adamw")
    part.found["adamw"] = {"fraction_of_device_bandwidth": fraction, "goal": ADAMW_GOAL,
                           "reached": fraction >= ADAMW_GOAL}
    part.say(f"AdamW reaches {fraction:.3f} of a copy's bandwidth (goal {ADAMW_GOAL:.2f})")


def products(part):
    bench(part, "products")
    for dtype in ("bf16", "fp32"):
        rows = [row for row in part.found["products"] if row["dtype"] == dtype]
        rate = max(row["flop_per_s"] for row in rows)
        peak = part.found["peak_flop_per_s"][dtype]
        of = "the peak is unknown" if peak == "unknown" else f"{rate / peak:.2f} of the computed peak"
        part.say(f"{dtype} up to {rate / 1e12:.3g} TFLOP/s ({of})")


def model_of(part, name):
    """(model, flags) of a part's run, data included."""
    size = size_of(part, name)
    model = size["model"]
    vocabulary = 32000
    if isinstance(model, dict):
        vocabulary = model["vocab_size"]
        model = training.model_folder(part, f"gpu-check-{name}", model)
    return model, [*size["flags"], "--data", training.tokens(part, vocabulary)]


def near_least(whole):
    """A quarter of the way from the least that a step needs to all that the run took."""
    device = whole["tiers"]["device"]
    return device["least"] + (device["taken"] - device["least"]) // 4


def quarter_of_state(whole):
    """Of weights, residues and both moments, 12 bytes a parameter; never less than a step needs."""
    return max(whole["parameters"] * 12 // 4, near_least(whole))


def train(part):
    model, flags = model_of(part, "train")
    training.compare_bits(part, model, flags, near_least, part.work)


@contextlib.contextmanager
def quick_folder(part, needed):
    """Memory where the system lends it as files: what is compared in it is not the disk's. Else the part's folder."""
    shared = pathlib.Path("/dev/shm")
    if shared.is_dir() and free_disk(shared) > needed and available_memory() > 2 * needed + 8 * GIB:
        with tempfile.TemporaryDirectory(prefix="gpu_check-", dir=shared) as folder:
            yield pathlib.Path(folder)
    else:
        yield part.work


def llama_1b(part):
    model, flags = model_of(part, "llama_1b")
    with quick_folder(part, 17 * GIB) as store:
        part.found["store_in_memory"] = store != part.work
        training.compare_bits(part, model, flags, quarter_of_state, store)


def llama_7b(part):
    model, flags = model_of(part, "llama_7b")
    training.train(part, "run", model, *flags, "--nvme-capacity", 0)


def nvme_2b(part):
    model, flags = model_of(part, "nvme_2b")
    training.train(part, "run", model, *flags, "--durability", "none")


def sanitizer(part):
    tool = cuda_tool("compute-sanitizer")
    if part.setup.stand_in:
        raise Skipped("the stand-in has no compute-sanitizer")
    if tool is None:
        raise Skipped("compute-sanitizer is not installed")
    for check in ("memcheck", "racecheck"):
        part.run(tool, "--tool", check, "--error-exitcode", 9, part.setup.program("tests"),
                 "sums of squares*,AdamW*,column sums*,widening*")
        part.found[check] = "clean"
    part.say("memcheck and racecheck are clean")


@dataclasses.dataclass
class Kind:
    run: Callable[[Part], None]
    limit_s: int
    memory_gib: int = 0
    disk_gib: int = 0


PARTS = {
    "build": Kind(build, 110),
    "probe": Kind(probe, 5),
    "tests": Kind(tests, 30),
    "bandwidth": Kind(bandwidth, 10),
    "kernels": Kind(kernels, 10),
    "products": Kind(products, 15),
    "train": Kind(train, 25, 8, 3),
    "llama_1b": Kind(llama_1b, 60, 24, 17),
    "llama_7b": Kind(llama_7b, 90, 96),
    "nvme_2b": Kind(nvme_2b, 60, 12, 28),
    "optimizer": Kind(optimizer.run, 50, 14),
    "sanitizer": Kind(sanitizer, 10),
}
"""475 seconds in all, on 16 cores and a GPU of a data centre."""
