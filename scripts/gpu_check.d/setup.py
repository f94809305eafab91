"""What this machine has, and where a run of gpu_check puts things."""
import dataclasses
import os
import pathlib
import shutil
import subprocess

GIB = 2**30


@dataclasses.dataclass
class Setup:
    root: pathlib.Path
    out: pathlib.Path
    build: pathlib.Path
    stand_in: bool
    architecture: str | None
    steps: int | None

    def program(self, name):
        """A program of the build; over the stand-in each has a twin of another name."""
        real = {"transload": "transload", "tests": "tests/test_cuda_device", "kernels": "bench/bench_cuda_kernels",
                "links": "bench/bench_cuda_links", "products": "bench/bench_cuda_products"}
        twins = {"transload": "tests/gpu_check/transload_stand_in", "tests": "tests/test_kernels_cuda",
                 "kernels": "tests/gpu_check/bench_cuda_kernels_stand_in",
                 "links": "tests/gpu_check/bench_cuda_links_stand_in",
                 "products": "tests/gpu_check/bench_cuda_products_stand_in"}
        return self.build / (twins if self.stand_in else real)[name]


def driver_architecture():
    """("90", None), or (None, why there is none)."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None, "nvidia-smi is not found"
    try:
        asked = subprocess.run([tool, "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True,
                               text=True, timeout=30)
    except subprocess.TimeoutExpired:
        return None, "nvidia-smi does not answer"
    lines = asked.stdout.split() if asked.returncode == 0 else []
    if lines and lines[0].replace(".", "").isdigit():
        return lines[0].replace(".", ""), None
    words = " ".join((asked.stdout + asked.stderr).split())
    return None, f"nvidia-smi says: {words[:200] or 'nothing'}"


def cuda_tool(name):
    """The path of one of the toolkit's programs, or None."""
    homes = [os.environ.get(key) for key in ("CUDA_HOME", "CUDA_PATH")] + ["/usr/local/cuda"]
    return shutil.which(name) or next(
        (path for home in homes if home and (path := shutil.which(name, path=f"{home}/bin"))), None)


def available_memory():
    """Bytes that may still be taken: the system's, or what the container's limit leaves."""
    rows = dict(line.split(":") for line in pathlib.Path("/proc/meminfo").read_text().splitlines())
    left = int(rows["MemAvailable"].split()[0]) * 1024
    group = pathlib.Path("/sys/fs/cgroup")
    try:
        most = (group / "memory.max").read_text().strip()
        if most != "max":
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            taken = int((group / "memory.current").read_text()) - int(stat["inactive_file"])
            left = min(left, int(most) - taken)
    except (OSError, KeyError, ValueError):
        pass
    return left


def free_disk(folder):
    return shutil.disk_usage(folder).free
