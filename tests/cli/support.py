"""What the end-to-end tests share: running transload, tiny models, texts, safetensors written by hand."""
import json
import os
import pathlib
import re
import struct
import subprocess
import tempfile
import unittest

TRANSLOAD = os.environ["TRANSLOAD"]
FAULTY = os.environ["FAULTY_TRANSLOAD"]


def run(*arguments, program=(TRANSLOAD,), timeout=300):
    return subprocess.run([*program, *map(str, arguments)], capture_output=True, text=True, timeout=timeout)


def faulty(kind, nth, what, *arguments):
    return run(*arguments, program=(FAULTY, kind, str(nth), what))


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "max_position_embeddings": 128, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
STATE_BYTES = 12 * 110_000  # about: parameters of CONFIG, 12 bytes each


def write_model(folder, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return folder


def write_safetensors(path, tensors, header=None, length=None):
    """tensors: {name: (dtype, shape, bytes)}; header and length replace the true ones."""
    data, described = b"", {}
    for name, (dtype, shape, content) in tensors.items():
        described[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(described if header is None else header(described)).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


def snapshot(folder):
    """Every file below a folder with its content."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(pathlib.Path(folder).rglob("*")) if p.is_file()}


class Case(unittest.TestCase):
    """Each test has a folder with a tiny model and a text of 20 kB."""

    def setUp(self):
        self._temporary = tempfile.TemporaryDirectory(prefix="transload-test-")
        self.folder = pathlib.Path(self._temporary.name)
        self.model = write_model(self.folder / "model")
        self.text = self.folder / "text.txt"
        self.text.write_text("".join(f"line {i}: the quick brown fox jumps over dog {i * i % 97}\n" for i in range(400)))
        self.run_folder = self.folder / "run"

    def tearDown(self):
        self._temporary.cleanup()

    def flags(self, **changes):
        """Flags of a short run; a value of None leaves a flag out, True makes it a switch."""
        settings = {"model": self.model, "data": self.text, "run": self.run_folder, "steps": 4, "batch-size": 2,
                    "sequence-length": 32, "host-memory": "64MiB", "chunk-size": "64KiB",
                    **{k.replace("_", "-"): v for k, v in changes.items()}}
        words = []
        for name, value in settings.items():
            if value is not None:
                words += ["--" + name] if value is True else ["--" + name, value]
        return words

    def train(self, **changes):
        done = run("train", *self.flags(**changes))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done

    def resume(self, *flags):
        return run("train", "--run", self.run_folder, "--resume", *flags)

    def summary(self, folder=None):
        return json.loads(((folder or self.run_folder) / "summary.json").read_text())

    def fingerprint(self, folder=None):
        done = run("verify", folder or self.run_folder, "--fingerprint")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return re.search(r"fingerprint ([0-9a-f]{32})", done.stdout)[1]

    def assert_refused(self, done, *texts, code=2):
        """Exit code, and a message on stderr that holds every text; never a crash."""
        self.assertEqual(done.returncode, code, f"stdout: {done.stdout}\nstderr: {done.stderr}")
        for text in texts:
            self.assertIn(str(text), done.stderr)
        self.assertTrue(done.stderr.startswith("transload: "), done.stderr)
