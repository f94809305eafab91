"""Training end to end: what is printed and written, interrupts, kills, resuming, verify, export, probe."""
import json
import os
import pty
import re
import signal
import subprocess
import unittest

from support import STATE_BYTES, TRANSLOAD, Case, faulty, run, snapshot


class Runs(Case):
    def test_start_progress_end(self):
        done = self.train(steps=6, host_memory="2MiB", commit_every="3")
        for text in ("parameters", "weight", "moment2", "host", "nvme_read", "step 1/6", "step 6/6", "loss", "norm",
                     "tokens/s", "resident", "committed", "Peak resident memory", "without a pause", "600 TB"):
            self.assertIn(text, done.stdout)
        self.assertNotIn("\033", done.stdout)
        summary = self.summary()
        for key in ("losses", "grad_norms", "step_s_median", "lower_bound_s", "fraction_of_limit"):
            self.assertIn(key, summary)
        self.assertEqual(len(summary["losses"]), 6)

    def test_it_learns(self):
        self.train(steps=60, learning_rate="3e-3")
        losses = self.summary()["losses"]
        self.assertLess(losses[-1], losses[0] - 1)

    def test_progress_line_on_a_terminal(self):
        master, slave = pty.openpty()
        process = subprocess.Popen([TRANSLOAD, "train", *map(str, self.flags())], stdout=slave)
        os.close(slave)
        shown = b""
        try:
            while data := os.read(master, 4096):
                shown += data
        except OSError:  # the other end is closed
            pass
        self.assertEqual(process.wait(60), 0)
        os.close(master)
        self.assertIn(b"\r\033[Kstep 4/4", shown)

    def test_placement_changes_no_bit(self):
        self.train(run=self.folder / "large")
        want = self.fingerprint(self.folder / "large")
        for name, changes in {"tiny": {"host_memory": "1MiB"}, "lru": {"host_memory": "1MiB", "policy": "lru"},
                              "threads": {"io": "threads", "threads": "1"}, "chunks": {"chunk_size": "256KiB"},
                              "device": {"device": "emulated", "device_memory": "1MiB", "host_memory": "2MiB"},
                              "recompute": {"recompute": "none"}}.items():
            with self.subTest(name=name):
                self.train(run=self.folder / name, **changes)
                self.assertEqual(self.fingerprint(self.folder / name), want)
        self.assertGreater(self.summary(self.folder / "tiny")["links"]["nvme_read"]["bytes"], STATE_BYTES)

    def test_config_file_gives_the_same_run(self):
        self.train()
        done = run("train", "--config", self.run_folder / "config.toml", "--run", self.folder / "again")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.fingerprint(), self.fingerprint(self.folder / "again"))

    def test_validation(self):
        done = self.train(validation=self.text, evaluate_every="2")
        self.assertIn("step 4: validation loss", done.stdout)
        self.assertEqual([e["step"] for e in self.summary()["evaluations"]], [2, 4])

    def test_without_a_store(self):
        done = self.train(nvme_capacity="0")
        self.assertIn("cannot be resumed", done.stdout)
        self.assertFalse((self.run_folder / "store").exists())

    def test_exports_of_the_run_itself(self):
        self.train(export_every="2")
        names = sorted(p.name for p in self.run_folder.glob("export*"))
        self.assertEqual(len(names), 2)
        self.assertTrue((self.run_folder / names[0] / "model.safetensors").exists())

    def test_exports_that_a_kill_cut_off_are_removed(self):
        self.train(steps=2)
        torn = self.run_folder / "export-000001.tmp"
        torn.mkdir()
        (torn / "config.json").write_text("{")
        self.assertEqual(self.resume("--steps", "3").returncode, 0)
        self.assertFalse(torn.exists())

    def test_resuming_says_where_it_goes_on(self):
        self.run_folder = self.folder / "it's a run"
        begun = self.train(steps=2)
        self.assertIn("Weights begin at random", begun.stdout)
        self.assert_refused(run("train", "--run", self.run_folder, "--steps", "3"), "say --resume")
        done = self.resume("--steps", "3")
        self.assertIn(f"Goes on from step 2 of {self.run_folder}", done.stdout)
        self.assertNotIn("begin at random", done.stdout)

    def test_numbers_that_toml_lacks_are_resumed(self):
        self.train(steps=2, seed=2**64 - 1, export_every=2**64 - 1)
        done = self.resume("--steps", "3")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_name_with_a_control_character_is_resumed(self):
        self.run_folder = self.folder / "run\x7f\t\x01"
        self.train(steps=2)
        done = self.resume("--steps", "3")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_another_drive(self):
        drive = self.folder / "drive"
        drive.mkdir()
        self.train(nvme=drive)
        self.assertEqual(len(list(drive.iterdir())), 1)
        self.fingerprint()
        self.assertEqual(self.resume("--steps", "6").returncode, 0)


class Interrupts(Case):
    def begin(self, **changes):
        self.process = subprocess.Popen([TRANSLOAD, "train", *map(str, self.flags(steps=1000000, **changes))],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            if line.startswith("step "):
                return

    def end(self):
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err

    def steps_seen(self):
        return self.summary()["steps_seen"]

    def test_once_commits_and_says_how_to_go_on(self):
        for how in (signal.SIGINT, signal.SIGTERM):
            self.run_folder = self.folder / how.name
            self.begin()
            self.process.send_signal(how)
            code, out, err = self.end()
            self.assertEqual(code, 130, out + err)
            self.assertIn("Interrupt again", err)
            self.assertIn(f"transload train --run {self.run_folder} --resume", out)
            steps = self.steps_seen()
            done = self.resume("--steps", steps + 2)
            self.assertEqual(done.returncode, 0, done.stderr)
            whole = self.folder / f"{how.name}-whole"
            self.train(run=whole, steps=steps + 2)
            self.assertEqual(self.fingerprint(), self.fingerprint(whole))

    def test_twice_leaves_at_once(self):
        # A step long enough that it cannot end between the two signals.
        self.text.write_text(self.text.read_text() * 20)
        self.begin(batch_size=64, accumulate=16, sequence_length=128, commit_every="1000000", host_memory="1GiB")
        self.process.send_signal(signal.SIGINT)
        self.assertIn("Interrupt again", self.process.stderr.readline() + self.process.stderr.readline())
        self.process.send_signal(signal.SIGINT)
        code, _, err = self.end()
        self.assertEqual(code, 130)
        self.assertIn("left at once", err)
        self.assertFalse((self.run_folder / "summary.json").exists())
        self.assertEqual(run("verify", self.run_folder).returncode, 0)

    def test_killed_and_resumed(self):
        whole = self.folder / "whole"
        flags = {"steps": 5, "commit_every": "1", "host_memory": "1MiB"}
        self.train(run=whole, **flags)
        for nth in (1, 5, 20, 60, 150, 300):
            with self.subTest(nth=nth):
                self.run_folder = self.folder / f"killed-{nth}"
                died = faulty("any", nth, "kill", "train", *self.flags(**flags))
                self.assertIn(died.returncode, (-signal.SIGKILL, 0))
                begun = run("verify", self.run_folder).returncode == 0
                done = self.resume() if begun else run("train", *self.flags(**flags))
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(self.fingerprint(), self.fingerprint(whole))


class OtherCommands(Case):
    def test_plan_takes_and_writes_nothing(self):
        done = run("plan", *self.flags(model="llama-1b", host_memory="1536MiB", chunk_size=None, batch_size=4,
                                       sequence_length=64))
        self.assertEqual(done.returncode, 0, done.stderr)
        for text in ("weight", "residue", "moment1", "on NVMe", "planned", "least", "host", "Store:", "binds"):
            self.assertIn(text, done.stdout)
        self.assertFalse(self.run_folder.exists())

    def test_plan_needs_no_run(self):
        done = run("plan", *self.flags(run=None))
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_plan_of_three_tiers(self):
        done = run("plan", *self.flags(device="emulated", device_memory="1MiB", host_memory="2MiB"))
        self.assertEqual(done.returncode, 0, done.stderr)
        for text in ("on device", "host_to_device", "device_to_host"):
            self.assertIn(text, done.stdout)

    def test_export_and_train_on(self):
        self.train(dtype="fp32")
        out = self.folder / "out"
        self.assertEqual(run("export", self.run_folder, "--to", out, "--optimizer").returncode, 0)
        self.assertTrue((out / "optimizer.safetensors").exists())
        self.assertEqual(json.loads((out / "config.json").read_text())["model_type"], "llama")
        self.train(model=out, run=self.folder / "next", dtype="fp32", steps=1)
        self.assertLess(self.summary(self.folder / "next")["losses"][0], self.summary()["losses"][0])

    def test_verify_changes_nothing(self):
        self.train()
        before = snapshot(self.run_folder)
        self.assertRegex(self.fingerprint(), "^[0-9a-f]{32}$")
        self.assertEqual(snapshot(self.run_folder), before)

    def test_probe(self):
        done = run("probe", "--nvme", self.folder, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        facts = json.loads(done.stdout)
        self.assertGreaterEqual(facts["processor"]["cores"], 1)
        self.assertGreater(facts["memory"]["total_bytes"], 0)
        self.assertGreaterEqual(len(facts["numa"]["nodes"]), 1)
        folder = facts["nvme"][0]
        self.assertTrue(folder["file_system"])
        if not folder["not_measured"]:
            self.assertGreater(folder["read_bytes_per_s"], 0)
            self.assertGreater(folder["duplex_bytes_per_s"], 0)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["model", "text.txt"])
        text = run("probe", "--nvme", self.folder).stdout
        self.assertTrue(re.search(r"read .* GB/s|not measured", text), text)
        lines = [line for line in text.splitlines() if line.startswith("GPU")]
        if facts["gpus"]:
            self.assertEqual(len(lines), len(facts["gpus"]))
            self.assertTrue(all(g["error"] or g["both_bytes_per_s"] > 0 for g in facts["gpus"]), facts["gpus"])
        else:
            self.assertTrue(facts["no_gpu_reason"])
            self.assertEqual(lines, ["GPU          none: " + facts["no_gpu_reason"]])

    def test_probe_of_a_missing_folder(self):
        done = run("probe", "--nvme", self.folder / "none")
        self.assertEqual(done.returncode, 1)
        self.assertIn("does not exist", done.stdout)


if __name__ == "__main__":
    unittest.main()
