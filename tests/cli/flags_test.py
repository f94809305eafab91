"""Flags and TOML: names, values, contradictions. Nothing is trained and nothing may be created."""
import subprocess
import unittest

from support import TRANSLOAD, Case, run, write_model


class Flags(Case):
    def tearDown(self):
        self.assertFalse(self.run_folder.exists(), "a refused command left a run folder behind")
        super().tearDown()

    def refused(self, *texts, toml=None, command="train", **changes):
        words = self.flags(**changes)
        if toml is not None:
            path = self.folder / "run.toml"
            path.write_text(toml)
            words += ["--config", path]
        self.assert_refused(run(command, *words), *texts)

    def test_unknown_flags_name_the_nearest(self):
        for flag, meant in {"host-memroy": "host-memory", "stepps": "steps", "learningrate": "learning-rate",
                            "Steps": "steps", "resumee": "resume", "capacity": "nvme-capacity"}.items():
            done = run("train", *self.flags(), f"--{flag}", "3")
            self.assert_refused(done, f"--{flag} is not known", f"Did you mean --{meant}?")
        self.assert_refused(run("train", *self.flags(), "--zzzzzz=4"), "--zzzzzz is not known")
        self.assert_refused(run("probe", "--jsn"), "--jsn is not known", "Did you mean --json?")
        self.assert_refused(run("export", "x", "--too", "y"), "--too is not known", "Did you mean --to?")

    def test_commands(self):
        self.assert_refused(run("trian"), "'trian' is not known", "Did you mean train?")
        self.assert_refused(run(), "A command is missing")
        self.assert_refused(run("verify"), "The run folder is missing")
        self.assert_refused(run("verify", "a", "b"), "given twice")
        self.assert_refused(run("export", "a"), "--to is missing")
        self.assert_refused(run("train", *self.flags(), "word"), "'word' is one word too many")
        self.assert_refused(run("train", *self.flags(), "plan"), "'plan' is one word too many")
        early = run("--steps", "3", "train", *self.flags(steps=None))
        self.assert_refused(early, "'--steps' stands before the command")
        self.assert_refused(run("verify", ""), "The run folder is missing")
        self.assert_refused(run("export", "a", "--to", ""), "--to is missing")

    def test_version(self):
        self.assertRegex(run("--version").stdout, r"^transload \d+\.\d+\.\d+$")

    def test_help_has_examples(self):
        for command in ("train", "plan", "report", "probe", "verify", "export"):
            done = run(command, "--help")
            self.assertEqual(done.returncode, 0)
            self.assertIn("Example", done.stdout)
        self.assertIn("--host-memory", run("train", "--help").stdout)

    def test_unknown_keys_name_the_nearest(self):
        self.refused("host_memory", "line 2", "Did you mean host-memory?", toml="seed = 3\nhost_memory = '1GiB'\n")
        self.refused("stepz", "Did you mean steps?", toml="stepz = 1")
        self.refused("memory", toml="[memory]\nhost = 1")

    def test_bad_toml(self):
        self.refused("is not valid TOML", "line 2", toml="seed = 3\nsteps = = 4\n")
        self.refused("must be a text, a number", toml="seed = {a = 1}")
        self.assert_refused(run("train", "--config", self.folder / "none.toml"), "none.toml", "does not exist")
        self.assert_refused(run("train", "--config", self.folder), "is a folder")

    def test_sizes(self):
        for bad in ("1g", "-1", "x", "", "1 XB", "99999999999GiB", "1.2.3MiB", "nan"):
            self.refused("--host-memory", f'"{bad}"', host_memory=bad)
        self.refused("host-memory in", '"1g"', toml="host-memory = '1g'", host_memory=None)
        self.refused("--link-rate", device="emulated", link_rate="fast")

    def test_numbers(self):
        self.refused("--steps", "whole number", steps="ten")
        self.refused("--steps", "whole number", steps="-1")
        self.refused("--steps", "at least 1", steps="0")
        self.refused("--steps", "whole number", steps="3.5")
        self.refused("--steps", "whole number", steps="99999999999999999999999")
        self.refused("--batch-size", batch_size="0")
        self.refused("--learning-rate", '"fast"', learning_rate="fast")
        self.refused("--learning-rate", learning_rate="-1e-3")
        self.refused("--learning-rate", learning_rate="inf")
        self.refused("--learning-rate", learning_rate="nan")
        self.refused("--betas", "two numbers", betas="0.9")
        self.refused("--betas", "below 1", betas="0.9,1.0")
        self.refused("--epsilon", epsilon="0")

    def test_choices_and_times(self):
        self.refused("--dtype", "bf16, fp32", dtype="fp16")
        self.refused("--schedule", "Did you mean cosine?", schedule="cosin")
        self.refused("--device", "cpu, emulated, cuda", device="gpu")
        for bad in ("0", "-5", "5 minutes", "min", "1.5", "5d"):
            self.refused("--commit-every", "30s, 5min or 1h", commit_every=bad)

    def test_contradictions(self):
        self.refused("--device-memory contradicts --device cpu", device_memory="1GiB")
        self.refused("--link-rate contradicts --device cpu", link_rate="6GB/s")
        self.refused("--nvme contradicts --nvme-capacity 0", nvme=self.folder, nvme_capacity="0")
        self.refused("--commit-every contradicts --nvme-capacity 0", commit_every="5", nvme_capacity="0")
        self.refused("--resume contradicts --nvme-capacity 0", resume=True, nvme_capacity="0")
        self.refused("--commit-every contradicts --durability none", commit_every="5", durability="none")
        self.refused("--min-learning-rate contradicts --schedule constant", min_learning_rate="1e-5")
        self.refused("is above --learning-rate", schedule="cosine", min_learning_rate="1")
        self.refused("is above --steps", warmup_steps="9", steps="4")
        self.refused("--evaluate-every needs --validation", evaluate_every="2")
        self.refused("--bytes and a .bin file", bytes=True, data=self.folder / "x.bin")
        self.assert_refused(run("train", *self.flags(), "--steps", "5"), "--steps is given twice: 4 and 5")

    def test_what_config_toml_cannot_hold(self):
        self.refused("--commit-every", "a time", commit_every="1e308h")
        done = subprocess.run([TRANSLOAD, "plan", *map(str, self.flags(run=None)), b"--run", b"run\xff"],
                              capture_output=True)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(b"--run is not UTF-8", done.stderr)

    def test_names_that_are_too_long(self):
        name = "n" * 300
        for flag in ("run", "nvme", "model", "data"):
            done = run("train", *self.flags(**{flag: self.folder / name}))
            self.assert_refused(done, name, "File name too long", code=1)
        self.assert_refused(run("train", "--config", self.folder / name), name, "File name too long", code=1)
        self.assert_refused(run("verify", self.folder / name), name, "File name too long", code=1)

    def test_too_many_chunks(self):
        model = write_model(self.folder / "wide", intermediate_size=2**31 - 1)
        self.refused("--chunk-size 64.0 KiB", "25165826", "Give at least --chunk-size 8192KiB", model=model)
        model = write_model(self.folder / "huge", intermediate_size=2**31 - 1, hidden_size=2**22,
                            num_attention_heads=2**12)
        self.refused("16.00 TiB of weights", model=model)

    def test_missing(self):
        for name in ("model", "data", "run"):
            self.refused(f"--{name} is missing", **{name: None})

    def test_model_names(self):
        self.refused("llama-60", "llama-60m", model="llama-60")
        self.refused("no-such-folder", model=self.folder / "no-such-folder")

    def test_flags_win_over_the_file(self):
        path = self.folder / "run.toml"
        path.write_text("steps = 7\nhost-memory = '1g'\nbetas = [0.9, 0.95]\nfreeze = ['*norm*']\n")
        self.assert_refused(run("plan", *self.flags(host_memory=None), "--config", path), '"1g"')
        done = run("plan", *self.flags(), "--config", path)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
