"""Ranks of one run, started by transload launch; and what tests and bench/kill_ranks.py do to them."""
import pathlib
import random
import signal
import subprocess
import time

from support import TRANSLOAD


def words(**flags):
    out = []
    for name, value in flags.items():
        out.append("--" + name.replace("_", "-"))
        if value is not True:
            out.append(str(value))
    return out


class Launched:
    """transload launch under way."""

    def __init__(self, ranks, *arguments):
        self.process = subprocess.Popen([TRANSLOAD, "launch", "-n", str(ranks), "--", *map(str, arguments)],
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.ranks = ranks

    def pids(self, within=10):
        """Of the ranks, by rank."""
        end = time.monotonic() + within
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        while time.monotonic() < end and self.process.poll() is None:
            found = [int(pid) for pid in children.read_text().split()]
            if len(found) == self.ranks:
                return sorted(found)
            time.sleep(0.01)
        return []

    def end(self, within):
        """Exit status and output; fails where it takes longer."""
        out, _ = self.process.communicate(timeout=within)
        return self.process.returncode, out


def launch(ranks, *arguments, within=300):
    return Launched(ranks, *arguments).end(within)


def kill_and_resume(flags, ranks, kills, seed, timeout=5, longest=6.0, say=lambda line: None):
    """Kills a random rank at a random instant, `kills` times, and goes on each time; then ends the run in peace.
    Returns the longest time that the others took to end, and how many kills came while steps were under way."""
    dice = random.Random(seed)
    slowest, amid = 0.0, 0
    run = pathlib.Path(flags["run"])
    for kill in range(kills):
        resume = {"resume": True} if (run / "config.toml").exists() and committed(run) else {}
        launched = Launched(ranks, "train", *words(**flags, **resume, timeout=f"{timeout}s"))
        pids = launched.pids()
        assert len(pids) == ranks, launched.end(10)
        time.sleep(dice.uniform(0, longest))
        rank = dice.randrange(ranks)
        killed = launched.process.poll() is None
        begun = time.monotonic()
        if killed:
            subprocess.run(["kill", "-9", str(pids[rank])], check=False)
        status, out = launched.end(timeout + 20)
        took = time.monotonic() - begun
        if status == 0:  # it had ended before
            say(f"kill {kill}: the run was through")
            break
        assert killed and f"rank {rank} was ended by signal {int(signal.SIGKILL)}" in out, out
        assert took < timeout + 10, f"{took:.1f} s until the others ended\n{out}"
        slowest = max(slowest, took)
        amid += "step " in out
        damaged = subprocess.run([TRANSLOAD, "verify", run], capture_output=True, text=True) if committed(run) else None
        assert damaged is None or damaged.returncode == 0, damaged.stdout + damaged.stderr
        say(f"kill {kill}: rank {rank}, the others ended after {took:.2f} s")
    resume = {"resume": True} if committed(run) else {}
    status, out = launch(ranks, "train", *words(**flags, **resume, timeout=f"{timeout}s"))
    assert status == 0, out
    return slowest, amid


def committed(run):
    """Whether there is a commit to go on from."""
    return (run / "group.json").exists() or (run / "store" / "manifest").exists()
