"""Bad input gets a clear error and loses nothing: budgets, folders, damaged stores, weights that lie, wrong data."""
import json
import os
import shutil
import signal
import struct
import shlex
import subprocess
import unittest

from support import CONFIG, TRANSLOAD, Case, faulty, run, snapshot, write_model, write_safetensors


class Budgets(Case):
    def test_host_budget_too_small(self):
        done = run("train", *self.flags(host_memory="100KiB"))
        self.assert_refused(done, "needs at least", "100.0 KiB", "would fit with --host-memory")
        self.assertFalse(self.run_folder.exists())

    def test_what_is_said_to_fit_fits(self):
        done = run("plan", *self.flags(host_memory="100KiB"))
        self.assert_refused(done, "--host-memory ")
        size = done.stderr.split("would fit with --host-memory ")[1].split(",")[0].split()[0].rstrip(".")
        self.train(host_memory=size)

    def test_a_byte_too_small(self):
        refused = run("plan", *self.flags(host_memory="100KiB"))
        need = 1024 * int(refused.stderr.split("would fit with --host-memory ")[1].split("KiB")[0])
        done = run("plan", *self.flags(host_memory=str(need - 1)))
        self.assert_refused(done, f"at least {need} bytes", f"gives {need - 1} bytes")

    def test_what_fits_stays_in_memory(self):
        done = run("plan", *self.flags())
        self.assertRegex(done.stdout, r"nvme_write +0 B")
        self.assertIn("Everything stays where it is computed", done.stdout)

    def test_estimates_are_words(self):
        done = run("plan", *self.flags(host_memory="1MiB"))
        self.assertRegex(done.stdout, r"It would last [0-9.]+ (million|billion) steps")
        self.assertNotRegex(done.stdout, r"[0-9]e[+-]")

    def test_device_budget_too_small(self):
        self.assert_refused(run("train", *self.flags(device="emulated", device_memory="10KiB")), "device", "10.0 KiB")

    def test_without_store_everything_must_fit(self):
        done = run("train", *self.flags(nvme_capacity="0", host_memory="1MiB"))
        self.assert_refused(done, "needs at least", "a store")


class Surroundings(Case):
    """Closed streams, readers that leave, limits of the process."""

    def shell(self, script):
        return subprocess.run(["bash", "-c", script.replace("TRANSLOAD", f"exec {shlex.quote(str(TRANSLOAD))}"), "bash",
                               *map(str, self.flags())], capture_output=True, text=True, timeout=300)

    def test_closed_streams_are_no_files_of_the_run(self):
        done = self.shell('TRANSLOAD train "$@" <&- >&- 2>&-')
        self.assertEqual(done.returncode, 0)
        self.assertRegex((self.run_folder / "lock").read_text(), r"\A[0-9]+\n\Z")
        self.fingerprint()

    def test_a_reader_that_leaves_ends_no_run(self):
        done = self.shell('(TRANSLOAD train "$@" --commit-every 1) | head -n 1 >/dev/null; exit ${PIPESTATUS[0]}')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.summary()["steps_seen"], 4)

    def test_lost_output_is_a_failure(self):
        self.train()
        done = subprocess.run(f"exec {shlex.quote(str(TRANSLOAD))} verify {self.run_folder} --fingerprint >/dev/full", shell=True,
                              capture_output=True, text=True)
        self.assert_refused(done, "standard output", "No space left", code=1)

    def test_a_limit_of_file_sizes(self):
        done = self.shell('ulimit -f 100; TRANSLOAD train "$@"')
        self.assert_refused(done, "slots-", "File too large", code=1)
        self.train()  # what was left is reclaimed

    def test_a_folder_that_is_gone(self):
        gone = self.folder / "gone"
        gone.mkdir()
        done = self.shell(f'cd {gone} && rmdir {gone} && TRANSLOAD plan "$@" --nvme-capacity 1GiB --run run'
                          .replace('"$@"', " ".join(map(str, self.flags(run=None)))))
        self.assert_refused(done, "No such file or directory", code=1)

    def test_hangup_commits(self):
        first = subprocess.Popen([TRANSLOAD, "train", *map(str, self.flags(steps=1000000))], stdout=subprocess.PIPE,
                                 text=True)
        for line in first.stdout:
            if line.startswith("step "):
                break
        for _ in range(2):
            first.send_signal(signal.SIGHUP)
        self.assertIn("To go on", first.stdout.read())
        self.assertEqual(first.wait(60), 130)
        first.stdout.close()
        self.fingerprint()


class Folders(Case):
    def test_missing(self):
        self.assert_refused(run("train", *self.flags(nvme=self.folder / "none")), "none", "does not exist")

    def test_a_file(self):
        self.assert_refused(run("train", *self.flags(nvme=self.text)), "text.txt", "is not a folder")
        self.assert_refused(run("train", *self.flags(run=self.text)), "text.txt", "is not a folder")
        self.assertEqual(self.text.read_text()[:6], "line 0")

    @unittest.skipIf(os.geteuid() == 0 and not shutil.which("setpriv"), "root writes everywhere and setpriv is missing")
    def test_read_only(self):
        locked = self.folder / "locked"
        locked.mkdir(mode=0o555)
        program = (TRANSLOAD,)
        if os.geteuid() == 0:  # as a user without root's rights
            os.chmod(self.folder, 0o755)
            program = ("setpriv", "--reuid=65534", "--clear-groups", TRANSLOAD)
        done = run("plan", *self.flags(nvme=locked, run=locked / "run"), program=program)
        self.assert_refused(done, "locked", "cannot be written")

    def test_too_small(self):
        self.assert_refused(run("train", *self.flags(nvme_capacity="1MiB")), "--nvme-capacity", "1.0 MiB")

    @unittest.skipUnless(os.path.isdir("/dev/shm"), "no tmpfs at /dev/shm")
    def test_tmpfs_is_memory(self):
        folder = subprocess.run(["mktemp", "-d", "-p", "/dev/shm"], capture_output=True, text=True).stdout.strip()
        try:
            done = run("plan", *self.flags(nvme=folder))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, "tmpfs.*memory")
        finally:
            shutil.rmtree(folder)

    def test_in_use(self):
        first = subprocess.Popen([TRANSLOAD, "train", *map(str, self.flags(steps=1000000))], stdout=subprocess.PIPE,
                                 text=True)
        try:
            for line in first.stdout:
                if line.startswith("step "):
                    break
            done = run("train", *self.flags(), "--resume")
            self.assert_refused(done, "in use", str(first.pid))
            self.assertIsNone(first.poll(), "the first run was disturbed")
        finally:
            first.terminate()
            first.stdout.read()
            self.assertEqual(first.wait(60), 130)
            first.stdout.close()

    def test_a_store_is_no_run_folder(self):
        self.train()
        before = snapshot(self.run_folder)
        self.assert_refused(run("train", *self.flags(run=self.run_folder / "store")), "is a store, not a run folder")
        self.assertEqual(snapshot(self.run_folder), before)

    def test_a_run_folder_that_was_moved(self):
        nvme = self.folder / "nvme"
        nvme.mkdir()
        self.train(run=self.folder / "whole", steps=6)
        self.train(nvme=nvme)
        self.run_folder = self.run_folder.rename(self.folder / "moved")
        self.assertEqual(self.resume("--steps", "5").returncode, 0)
        done = self.resume("--steps", "6", "--nvme", nvme)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.fingerprint(), self.fingerprint(self.folder / "whole"))

    def test_a_second_run_does_not_touch_the_first(self):
        self.train()
        before = snapshot(self.run_folder)
        self.assert_refused(run("train", *self.flags()), "holds a store already", "--resume")
        self.assertEqual(snapshot(self.run_folder), before)


class DisksThatFail(Case):
    """The last commit stays whole, and resuming goes on to the same bits as if nothing had happened."""

    def check(self, kind, nth, what, *texts):
        whole = self.folder / "whole"
        self.train(run=whole, steps=6, commit_every="2", host_memory="1MiB")
        done = faulty(kind, nth, what, "train", *self.flags(steps=6, commit_every="2", host_memory="1MiB"))
        self.assert_refused(done, *texts, code=1)
        self.assertEqual(run("verify", self.run_folder).returncode, 0)
        resumed = self.resume()
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        self.assertEqual(self.fingerprint(), self.fingerprint(whole))

    def calls_of_a_run(self, kind):
        """How many calls of this kind a whole run makes: found by a fault that never comes."""
        low, high = 1, 1 << 16
        while low < high:
            middle = (low + high) // 2
            shutil.rmtree(self.run_folder, ignore_errors=True)
            done = faulty(kind, middle, "EIO", "train", *self.flags(steps=6, commit_every="2", host_memory="1MiB"))
            low, high = (low, middle) if done.returncode == 0 else (middle + 1, high)
        shutil.rmtree(self.run_folder, ignore_errors=True)
        return low - 1

    def test_disk_full_in_the_middle(self):
        self.check("write", self.calls_of_a_run("write") * 8 // 10, "ENOSPC", "No space left")

    def test_sync_fails(self):
        self.check("sync", self.calls_of_a_run("sync") * 8 // 10, "EIO", "Input/output error")


class DamagedStores(Case):
    def setUp(self):
        super().setUp()
        self.train(commit_every="2")

    def test_every_file(self):
        store = self.run_folder / "store"
        files = [p for p in store.iterdir() if p.is_file() and p.stat().st_size > 0 and p.name != "lock"]
        self.assertGreater(len(files), 1)
        for path in files:
            content = path.read_bytes()
            for name, damaged in {"truncated": content[: len(content) // 2], "empty": b"",
                                  "flipped": bytes(b ^ 0x40 for b in content)}.items():
                with self.subTest(file=path.name, damage=name):
                    path.write_bytes(damaged)
                    done = run("verify", self.run_folder)
                    self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
                    self.assertIn(path.name, done.stdout + done.stderr)
                    refused = self.resume("--steps", "8")
                    self.assertEqual(refused.returncode, 1, refused.stdout + refused.stderr)
                    self.assertTrue(refused.stderr.startswith("transload: "), refused.stderr)
                    path.write_bytes(content)
        self.assertEqual(run("verify", self.run_folder).returncode, 0)

    def test_a_missing_manifest_or_file(self):
        for path in [p for p in (self.run_folder / "store").iterdir() if p.is_file() and p.name != "lock"]:
            with self.subTest(file=path.name):
                moved = path.rename(self.folder / "moved")
                self.assertNotEqual(run("verify", self.run_folder).returncode, 0)
                moved.rename(path)
        self.assertEqual(run("verify", self.run_folder).returncode, 0)

    def test_no_run(self):
        self.assert_refused(run("verify", self.folder / "none"), "none")
        self.assert_refused(run("export", self.folder / "none", "--to", self.folder / "out"), "none")
        self.assertFalse((self.folder / "out").exists())

    def test_export_into_a_full_folder(self):
        self.assert_refused(run("export", self.run_folder, "--to", self.model), "not empty")
        self.assertEqual([p.name for p in self.model.iterdir()], ["config.json"])


class Weights(Case):
    """model.safetensors that lie, and a config that contradicts them."""

    def setUp(self):
        super().setUp()
        self.train()
        self.exported = self.folder / "exported"
        self.assertEqual(run("export", self.run_folder, "--to", self.exported, "--master").returncode, 0)
        self.path = self.exported / "model.safetensors"
        self.whole = self.path.read_bytes()
        self.length = struct.unpack("<Q", self.whole[:8])[0]
        self.header = json.loads(self.whole[8 : 8 + self.length])
        self.data = self.whole[8 + self.length :]
        self.names = sorted(n for n in self.header if n != "__metadata__")

    def refused(self, *texts, code=(1, 2)):
        done = run("train", *self.flags(model=self.exported, run=self.folder / "other"))
        self.assertIn(done.returncode, code, done.stdout + done.stderr)
        for text in texts:
            self.assertIn(text, done.stderr)
        self.assertTrue(done.stderr.startswith("transload: "), done.stderr)
        self.assertFalse((self.folder / "other").exists(), "something was made before the input was looked at")

    def rewrite(self, header, data=None):
        text = json.dumps(header).encode()
        self.path.write_bytes(struct.pack("<Q", len(text)) + text + (self.data if data is None else data))

    def test_header_length(self):
        for length in (0, 7, 1 << 62, len(self.whole) * 2):
            self.path.write_bytes(struct.pack("<Q", length) + self.whole[8:])
            self.refused("model.safetensors")
        self.path.write_bytes(b"abc")
        self.refused("model.safetensors")
        self.path.write_bytes(struct.pack("<Q", 20) + b"{" * 20)
        self.refused("model.safetensors")

    def test_truncated(self):
        self.path.write_bytes(self.whole[:-100])
        self.refused("model.safetensors")

    def test_overlapping_ranges(self):
        header = json.loads(json.dumps(self.header))
        header[self.names[1]]["data_offsets"] = header[self.names[0]]["data_offsets"]
        self.rewrite(header)
        self.refused("model.safetensors")

    def test_a_range_that_is_not_its_shape(self):
        header = json.loads(json.dumps(self.header))
        header[self.names[0]]["data_offsets"][1] -= 4
        self.rewrite(header)
        self.refused(self.names[0])

    def test_wrong_dtype(self):
        header = json.loads(json.dumps(self.header))
        header[self.names[0]]["dtype"] = "I64"
        header[self.names[0]]["shape"] = [header[self.names[0]]["shape"][0], header[self.names[0]]["shape"][-1] // 2]
        self.rewrite(header)
        self.refused("model.safetensors")

    def test_missing_and_surplus_tensors(self):
        zeros = bytes(4)
        tensors = {n: (h["dtype"], h["shape"], self.data[slice(*h["data_offsets"])])
                   for n, h in self.header.items() if n != "__metadata__"}
        missing = dict(tensors)
        del missing[self.names[0]]
        write_safetensors(self.path, missing)
        self.refused(self.names[0], code=(2,))
        write_safetensors(self.path, {**tensors, "model.layers.9.extra": ("F32", [1], zeros)})
        self.refused("model.layers.9.extra", code=(2,))
        write_safetensors(self.path, tensors)
        done = run("train", *self.flags(model=self.exported, run=self.folder / "good"))
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_config_contradicts_the_weights(self):
        write_model(self.exported, intermediate_size=192)
        self.refused("mlp", code=(2,))
        write_model(self.exported, num_hidden_layers=3)
        self.refused("layers.2", code=(2,))

    def test_not_supported(self):
        for changes, text in [({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}, "mamba"),
                              ({"hidden_act": "relu6"}, "relu6"),
                              ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn")]:
            write_model(self.exported, **changes)
            self.refused(text, code=(2,))

    def test_broken_config(self):
        (self.exported / "config.json").write_text("{")
        self.refused("config.json", code=(2,))
        (self.exported / "config.json").write_text(json.dumps({k: v for k, v in CONFIG.items() if k != "hidden_size"}))
        self.refused("config.json", "hidden_size", code=(2,))


class Data(Case):
    def refused(self, *texts, **changes):
        self.assert_refused(run("train", *self.flags(**changes)), *texts)
        self.assertFalse(self.run_folder.exists())

    def test_missing_empty_short(self):
        self.refused("none.txt", data=self.folder / "none.txt")
        self.text.write_text("")
        self.refused("text.txt")
        self.text.write_text("short")
        self.refused("5 tokens", "needs 33")

    def test_odd_size(self):
        path = self.folder / "odd.bin"
        path.write_bytes(bytes(2001))
        self.refused("odd.bin", data=path)

    def test_ids_beyond_the_vocabulary(self):
        path = self.folder / "ids.bin"
        ids = [i % 256 for i in range(2000)]
        ids[77] = 300
        path.write_bytes(struct.pack(f"<{len(ids)}H", *ids))
        done = run("train", *self.flags(data=path, order="sequential", batch_size=8))
        self.assert_refused(done, "ids.bin", "300", "77")

    def test_text_for_a_word_piece_model(self):
        self.refused("--bytes", model=write_model(self.folder / "large", vocab_size=1000))


class Resuming(Case):
    def setUp(self):
        super().setUp()
        self.train()
        self.before = snapshot(self.run_folder)

    def refused(self, *texts, **changes):
        done = run("train", *self.flags(steps=8, **changes), "--resume")
        self.assert_refused(done, *texts)
        self.assertEqual(snapshot(self.run_folder), self.before)

    def test_another_model(self):
        self.refused("hidden_size", model=write_model(self.folder / "other", hidden_size=128))

    def test_another_text(self):
        other = self.folder / "other.txt"
        other.write_text(self.text.read_text() + "more")
        self.refused("other.txt", data=other)

    def test_another_chunk_size_is_said(self):
        done = self.resume("--steps", "6", "--chunk-size", "128KiB")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--chunk-size is 128.0 KiB from here on; it was 64.0 KiB", done.stdout)

    def test_another_learning_rate_is_said(self):
        done = self.resume("--steps", "6", "--learning-rate", "1e-4")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--learning-rate", done.stdout)
        self.assertIn("0.0001", done.stdout)

    def test_nothing_to_resume(self):
        done = run("train", *self.flags(run=self.folder / "fresh"), "--resume")
        self.assert_refused(done, "--resume", "fresh")


if __name__ == "__main__":
    unittest.main()
