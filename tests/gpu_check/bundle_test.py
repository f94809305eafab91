"""What scripts/test's stage gpu_check looks at after scripts/gpu_check --stand-in has run from an unpacked bundle:
bundle_test.py FOLDER (the unpacked one). Results, what the build has read, and how the script behaves where it cannot
go on."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

FOLDER = pathlib.Path(sys.argv.pop()).resolve()
SCRIPT = FOLDER / "scripts" / "gpu_check"
OUT, BUILD = FOLDER / "build" / "gpu_check", FOLDER / "build" / "gpu_stand_in"
PARTS = ("build", "probe", "tests", "bandwidth", "kernels", "products", "train", "llama_1b", "llama_7b", "nvme_2b",
         "optimizer", "sanitizer")
FIGURES = ("step_s_median", "lower_bound_s", "fraction_of_limit", "binds", "tiers", "links", "peak_resident_bytes",
           "goal")
# Of the compiler and the C library; whatever else is read must come from the bundle.
TOOLCHAIN = re.compile(r"(libc6-dev|linux-libc-dev|libstdc\+\+-\d+-dev|libgcc-\d+-dev)(:\w+)?$")


def result(name, out=OUT):
    return json.loads((out / f"{name}.json").read_text())


def left_behind(out):
    return [path.name for path in out.iterdir() if path.suffix not in (".json", ".log")]


def check(*flags, out, **how):
    return subprocess.run([SCRIPT, "--out", out, *flags], capture_output=True, text=True, timeout=120, **how)


class Results(unittest.TestCase):
    def test_every_part_is_done(self):
        for name in PARTS:
            with self.subTest(name):
                found = result(name)
                self.assertIn("stand-in", found["note"])
                self.assertTrue(found["ok"])
                if name == "sanitizer" or (name == "optimizer" and "PyTorch" in (found["reason"] or "")):
                    self.assertEqual(found["outcome"], "skipped")
                else:
                    self.assertEqual(found["outcome"], "done", found["reason"])
        self.assertEqual(left_behind(OUT), [])

    def test_runs_tell_their_figures(self):
        for name, runs in (("train", ("whole", "capped")), ("llama_1b", ("whole", "capped")), ("llama_7b", ("run",)),
                           ("nvme_2b", ("run",))):
            for run in runs:
                with self.subTest(name, run=run):
                    figures = result(name)["found"][run]
                    self.assertEqual([key for key in FIGURES if figures[key] is None], [])
                    self.assertGreater(figures["step_s_median"], 0)
                    self.assertGreater(figures["links"]["host_to_device"]["bytes"], 0)
        for name in ("train", "llama_1b"):
            found = result(name)["found"]
            self.assertIs(found["same_bits"], True)
            self.assertRegex(found["fingerprints"][0], "^[0-9a-f]{32}$")
            taken = [found[run]["tiers"]["device"]["taken"] for run in ("whole", "capped")]
            self.assertLess(taken[1], taken[0])
        self.assertEqual(result("llama_7b")["found"]["run"]["nvme_bytes_written"], 0)
        self.assertGreater(result("nvme_2b")["found"]["run"]["nvme_bytes_written"], 0)

    def test_benchmarks_tell_their_figures(self):
        self.assertGreater(result("kernels")["found"]["adamw"]["fraction_of_device_bandwidth"], 0)
        self.assertGreater(result("bandwidth")["found"]["both_at_once"], 0)
        products = result("products")["found"]
        self.assertEqual(products["peak_flop_per_s"], {"bf16": "unknown", "fp32": "unknown"})
        self.assertEqual({row["fraction_of_peak"] for row in products["products"]}, {None})


class Bundle(unittest.TestCase):
    def test_holds_neither_onednn_nor_mpi_nor_git(self):
        for path in (FOLDER / "deps").rglob("*"):
            self.assertIsNone(re.search(r"dnnl|openmpi|mpich", str(path.relative_to(FOLDER))), path)
        self.assertFalse((FOLDER / ".git").exists())

    def test_build_reads_nothing_else(self):
        lines = subprocess.run(["ninja", "-C", BUILD, "-t", "deps"], capture_output=True, text=True, check=True).stdout
        paths = {(BUILD / line[4:]).resolve() for line in lines.splitlines() if line.startswith("    ")}
        self.assertGreater(len(paths), 200)
        python = {"/".join(path.parts[:-1]) for path in paths if re.search(r"/include/python3", str(path))}
        outside = [path for path in paths if FOLDER not in path.parents and "/".join(path.parts[:-1]) not in python
                   and "gcc" not in path.parts]
        owners = subprocess.run(["dpkg", "-S", *outside], capture_output=True, text=True)
        self.assertEqual(owners.stderr, "")
        for line in owners.stdout.splitlines():
            self.assertRegex(line.split(": ")[0], TOOLCHAIN, line)

    def test_program_loads_the_bundles_libraries(self):
        libraries = FOLDER / "deps" / "usr" / "lib" / "x86_64-linux-gnu"
        text = subprocess.run(["ldd", BUILD / "tests" / "gpu_check" / "transload_stand_in"], capture_output=True,
                              text=True, check=True, env={**os.environ, "LD_LIBRARY_PATH": str(libraries)}).stdout
        for name in ("libtbb", "libxxhash"):
            self.assertRegex(text, rf"{name}\S* => {re.escape(str(libraries))}")


class Behaviour(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name) / "out"
        self.out.mkdir()

    def test_without_a_driver_it_says_so(self):
        tool = self.out / "nvidia-smi"
        tool.write_text("#!/bin/sh\necho No devices were found\nexit 6\n")
        tool.chmod(0o755)
        ended = check(out=self.out / "results", env={**os.environ, "PATH": f"{self.out}:{os.environ['PATH']}"})
        self.assertEqual((ended.returncode, ended.stdout), (2, ""))
        self.assertEqual(ended.stderr,
                         "gpu_check: there is no GPU that can be used: nvidia-smi says: No devices were found\n")

    def test_without_a_compiler_it_says_so(self):
        sys.path.insert(0, str(SCRIPT) + ".d")
        self.addCleanup(sys.path.pop, 0)
        import main
        setup = mock.Mock(stand_in=False, architecture=None)
        with mock.patch.object(main, "driver_architecture", lambda: ("90", None)):
            with mock.patch.object(main, "cuda_tool", lambda name: None):
                self.assertIn("nvcc is not found", main.lacking(setup, ["build", "probe"]))
                self.assertIsNone(main.lacking(setup, ["probe"]))
        self.assertEqual(setup.architecture, "90")

    def test_memory_that_is_not_there_is_refused(self):
        sys.path.insert(0, str(SCRIPT) + ".d")
        self.addCleanup(sys.path.pop, 0)
        import main
        with mock.patch.object(main, "available_memory", lambda: 95 * 2**30):
            with self.assertRaisesRegex(main.Refused, "needs 96 GiB of memory; 95.0 GiB are free"):
                main.check_needs(main.PARTS["llama_7b"], mock.Mock(stand_in=False, out=self.out))

    def test_limits_fit_into_eight_minutes(self):
        sys.path.insert(0, str(SCRIPT) + ".d")
        self.addCleanup(sys.path.pop, 0)
        import main
        self.assertEqual(tuple(main.PARTS), PARTS)
        self.assertLess(sum(kind.limit_s for kind in main.PARTS.values()), 480)

    def test_a_part_that_fails_does_not_stop_the_others(self):
        ended = check("--stand-in", "--only", "probe,kernels", "--build", self.out / "nothing", out=self.out)
        self.assertEqual(ended.returncode, 1)
        for name in ("probe", "kernels"):
            self.assertEqual(result(name, self.out)["outcome"], "failed")
        self.assertIn("probe (failed), kernels (failed)", ended.stderr)

    def test_a_time_that_is_over_is_said(self):
        ended = check("--stand-in", "--only", "probe,sanitizer", "--build", BUILD, "--minutes", "1e-9", out=self.out)
        self.assertEqual(ended.returncode, 1)
        self.assertEqual([result(name, self.out)["outcome"] for name in ("probe", "sanitizer")], ["out of time"] * 2)

    def test_a_part_that_is_cut_tells_what_it_had(self):
        ended = check("--stand-in", "--only", "llama_7b", "--build", BUILD, "--minutes", "1", "--steps",
                      "100000", out=self.out)
        self.assertEqual(ended.returncode, 1)
        found = result("llama_7b", self.out)
        self.assertEqual((found["outcome"], found["ok"]), ("out of time", False))
        run = found["found"]["run"]
        # On a busy machine a step may not end in the time that it has after the interrupt.
        self.assertTrue(run["interrupted"] and run["steps"] > 0 if "steps" in run else run["steps_before_it_was_cut"])
        self.assertEqual(left_behind(self.out), [])

    def test_an_interrupt_leaves_nothing(self):
        child = subprocess.Popen([SCRIPT, "--stand-in", "--only", "llama_7b", "--build", BUILD, "--out", self.out,
                                  "--steps", "100000"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(300):
            if list(self.out.glob("llama_7b-*/run/record.jsonl")):
                break
            time.sleep(0.05)
        self.assertEqual(len(left_behind(self.out)), 1)
        child.send_signal(signal.SIGINT)
        said = child.communicate(timeout=30)[1]
        self.assertEqual((child.returncode, said), (130, "gpu_check: interrupted\n"))
        self.assertEqual(left_behind(self.out), [])
        running = subprocess.run(["pgrep", "-f", str(self.out)], capture_output=True, text=True).stdout
        self.assertEqual(running, "")


if __name__ == "__main__":
    unittest.main()
