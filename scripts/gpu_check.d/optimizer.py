"""The part with PyTorch: builds the package's module beside the program, and steps a model with it."""
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys

import sizes
from part import Skipped

GOAL = 0.75


def nanobind_cmake(root):
    """Where nanobind's CMake files are: the bundle's, else this Python's; None: nowhere."""
    bundled = root / "deps" / "python" / "nanobind" / "cmake"
    if bundled.is_dir():
        return bundled
    spec = importlib.util.find_spec("nanobind")
    return os.path.join(os.path.dirname(spec.origin), "cmake") if spec and spec.origin else None


def check_torch(stand_in):
    if importlib.util.find_spec("torch") is None:
        raise Skipped(f"PyTorch is not there for {sys.executable}")
    asked = subprocess.run([sys.executable, "-c", "import torch; print(torch.__version__, torch.cuda.is_available())"],
                           capture_output=True, text=True, timeout=30)
    words = asked.stdout.split()
    if asked.returncode != 0 or len(words) != 2:
        raise Skipped(f"PyTorch cannot be imported: {(asked.stderr.strip().splitlines() or ['nothing was said'])[-1]}")
    if not stand_in and words[1] != "True":
        raise Skipped(f"PyTorch {words[0]} has no GPU here")
    return words[0]


def build_package(part):
    """A folder that Python imports transload from."""
    setup = part.setup
    nanobind = nanobind_cmake(setup.root)
    if nanobind is None:
        raise Skipped("nanobind, which the package's module is built with, is not there")
    header = subprocess.run([sys.executable, "-c", "import sysconfig; print(sysconfig.get_paths()['include'])"],
                            capture_output=True, text=True, check=True).stdout.strip()
    if not os.path.exists(os.path.join(header, "Python.h")):
        raise Skipped(f"Python's own headers are not there: {header}/Python.h")
    part.run(setup.root / "scripts" / "build", setup.build, "_core", "--", "-DTRANSLOAD_PYTHON=ON",
             f"-Dnanobind_DIR={nanobind}", f"-DPython_EXECUTABLE={sys.executable}")
    package = part.work / "package"
    shutil.copytree(setup.root / "python" / "transload", package / "transload")
    for module in setup.build.glob("python/_core*.so"):
        shutil.copy(module, package / "transload")
    version = re.search(r"project\(transload VERSION ([0-9.]+)", (setup.root / "CMakeLists.txt").read_text())[1]
    facts = package / f"transload-{version}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: transload\nVersion: {version}\n")
    return package


def run(part):
    version = check_torch(part.setup.stand_in)
    package = build_package(part)
    part.found["torch"] = version
    to = part.work / "loop.json"
    flags = (sizes.STAND_IN if part.setup.stand_in else sizes.GPU)["optimizer"]
    program = part.setup.root / "scripts" / "gpu_check.d" / "optimizer_loop.py"
    try:
        part.run(sys.executable, program, "--json", to, *flags,
                 env={**os.environ, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"})
    finally:
        if to.exists():
            part.found.update(json.loads(to.read_text()))
    part.found["goal"] = GOAL
    for name, run in part.found["runs"].items():
        if run["refused"] is None:
            part.say("{}: {step_s:.3g} s a step, {fraction:.2f} of its bound (goal {}), {binds} binds".format(
                name.replace("_", " "), GOAL, **run))
        else:
            part.say(f"{name.replace('_', ' ')} is refused: {run['refused']}")
    if all(run["refused"] for run in part.found["runs"].values()):
        raise Skipped(f"transload.AdamW refuses this: {part.found['runs']['state_in_host_memory']['refused']}")
