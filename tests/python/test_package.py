"""The package itself: imports without PyTorch, types, commands."""
import importlib.metadata
import importlib.resources
import inspect
import subprocess
import sys

import transload
from support import run_python

NO_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, NoTorch())
"""


def test_importing_needs_no_torch():
    done = run_python(NO_TORCH + "import transload\nassert 'torch' not in sys.modules\nprint(transload.__version__)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == transload.__version__


def test_importing_does_not_import_torch():
    done = run_python("import sys, transload\nprint('torch' in sys.modules)")
    assert done.stdout.strip() == "False", done.stdout + done.stderr


def test_only_the_optimizer_needs_torch_and_says_so():
    done = run_python(NO_TORCH + """
import transload
try:
    transload.AdamW
except ImportError as error:
    print("refused:", error)
""")
    assert done.stdout.startswith("refused:") and "torch" in done.stdout.lower(), done.stdout + done.stderr


def test_it_is_typed():
    assert (importlib.resources.files("transload") / "py.typed").is_file()
    signature = inspect.signature(transload.AdamW.__init__)
    untyped = [n for n, p in signature.parameters.items() if n != "self" and p.annotation is inspect.Parameter.empty]
    assert not untyped


def test_signature_begins_like_that_of_torch():
    import torch

    ours, theirs = (list(inspect.signature(c.__init__).parameters) for c in (transload.AdamW, torch.optim.AdamW))
    assert ours[:7] == theirs[:7]
    assert set(theirs) <= set(ours)


def test_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "transload", "plan", "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--host-memory" in done.stdout


def test_command_passes_its_exit_status_on():
    done = subprocess.run([sys.executable, "-m", "transload", "no-such-thing"], capture_output=True, text=True)
    assert done.returncode > 0 and "Traceback" not in done.stderr and done.stderr, done.stdout + done.stderr


def test_command_is_installed():
    command, = importlib.metadata.entry_points(group="console_scripts", name="transload")
    assert command.dist.version == transload.__version__
    assert callable(command.load())
