"""Ranks of one run, started by transload launch; and what tests and bench/kill_ranks.py do to them."""
import collections
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import time

from support import TRANSLOAD


def words(**flags):
    out = []
    for name, value in flags.items():
        if value is not None:
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

    def runs(self):
        return self.process.poll() is None

    def wait_until(self, condition, within=30):
        """Whether the condition came true while the ranks ran."""
        end = time.monotonic() + within
        while time.monotonic() < end and self.runs():
            if condition():
                return True
            time.sleep(0.001)
        return False

    def end(self, within):
        """Exit status and output; where it takes longer the ranks are killed and the caller fails."""
        try:
            out, _ = self.process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            for pid in self.pids(1):
                os.kill(pid, signal.SIGKILL)
            self.process.kill()
            raise
        return self.process.returncode, out


def launch(ranks, *arguments, within=300):
    return Launched(ranks, *arguments).end(within)


def shared_memory_of(pid):
    """Names that a rank's segments have in /dev/shm, or had."""
    maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
    return {pathlib.Path("/dev/shm") / name for name in re.findall(r"/dev/shm/(transload\S+)", maps)}


def committed(run):
    """Whether there is a commit to go on from."""
    return (run / "group.json").exists() or (run / "store" / "manifest").exists()


def steps_committed(run):
    return json.loads((run / "group.json").read_text())["step"]


def verify(run):
    """The fingerprint; fails where a store is not whole."""
    done = subprocess.run([TRANSLOAD, "verify", run, "--fingerprint"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return re.search(r"fingerprint ([0-9a-f]{32})", done.stdout)[1]


def manifests_prepared(run):
    """Of commits that are being made, or that a kill cut off: file and time."""
    found = set()
    for path in run.glob("store*/manifest.new"):
        try:
            found.add((path, path.stat().st_mtime_ns))
        except FileNotFoundError:
            pass  # it has become the manifest
    return found


class Kills:
    """Ranks of one run that are killed (SIGKILL), one after the other, at an instant of one of these kinds:
       start    within the first half second, while the ranks meet, plan and open their stores
       steps    up to `longest` seconds after the first step
       commit   up to 30 ms after a commit was begun: a manifest of it is being written or is prepared
       reshard  up to 300 ms after new stores for another chunk size were begun
    After each: the others ended by themselves (within 2 s; where they had not met yet, within the timeout), what is
    committed is whole and nothing is left in shared memory (but by those that had not met, until the next start). end()
    goes on in peace; the run must then have the bits of one that was never disturbed."""

    KINDS = ("steps", "commit", "steps", "start", "steps", "reshard", "steps", "steps")  # as many, in this order
    CHUNKS = ("16KiB", "32KiB")
    TIMEOUT_S = 5

    def __init__(self, flags, ranks, seed, longest=1.0, say=lambda line: None):
        self.flags, self.ranks, self.longest, self.say = flags, ranks, longest, say
        self.run = pathlib.Path(flags["run"])
        self.dice = random.Random(seed)
        self.chunk = 0
        self.slowest = 0.0  # of those that had met
        self.kinds = collections.Counter()
        self.left = set()  # in shared memory, by ranks that had not met

    def _start(self, **changes):
        resume = {"resume": True} if committed(self.run) else {}
        ours = {"chunk_size": self.CHUNKS[self.chunk], "timeout": f"{self.TIMEOUT_S}s"}
        return Launched(self.ranks, "train", *words(**{**self.flags, **ours, **resume, **changes}))

    def _instant(self, kind):
        """The longest wait after what must have come before, and whether that has come, seen from before the start."""
        record = self.run / "record.jsonl"
        seen = record.stat().st_size if record.exists() else 0
        prepared = manifests_prepared(self.run)  # left by an earlier kill
        group = json.loads((self.run / "group.json").read_text())["group"] if committed(self.run) else -1
        return {"start": (0.5, lambda: True),
                "steps": (self.longest, lambda: record.exists() and '"event":"step"' in record.read_text()[seen:]),
                "commit": (0.03, lambda: manifests_prepared(self.run) - prepared),
                "reshard": (0.3, lambda: any(self.run.glob(f"store-g{group + 1}-r*")))}[kind]

    def kill(self, number):
        """One kill: of each rank and of each kind in turn."""
        kind, rank = self.KINDS[number % len(self.KINDS)], number % self.ranks
        if kind == "reshard" and committed(self.run):
            self.chunk = 1 - self.chunk
        longest, has_come = self._instant(kind)
        launched = self._start()
        pids = launched.pids()
        assert len(pids) == self.ranks, launched.end(10)
        assert launched.wait_until(has_come), f"{kind}: never: {launched.end(60)}"
        time.sleep(self.dice.uniform(0, longest))
        names = shared_memory_of(pids[rank])
        os.kill(pids[rank], signal.SIGKILL)
        killed_at = time.monotonic()
        status, out = launched.end(self.TIMEOUT_S + 20)
        took = time.monotonic() - killed_at
        assert status != 0 and f"rank {rank} was ended by signal {int(signal.SIGKILL)}" in out, out
        assert took < (self.TIMEOUT_S + 2 if kind == "start" else 2), f"{took:.1f} s until the others ended\n{out}"
        assert out.count("was ended by signal") == 1, out
        if kind != "start":
            assert names and not any(name.exists() for name in names), names
            assert not any(name.exists() for name in self.left), self.left  # by a start
            self.left.clear()
        self.left |= {name for name in names if name.exists()}
        if committed(self.run):
            verify(self.run)
        if kind != "start":
            self.slowest = max(self.slowest, took)
        self.kinds[kind] += 1
        self.say(f"kill {number}: rank {rank}, {kind}; the others ended after {took:.2f} s; "
                 f"{steps_committed(self.run) if committed(self.run) else 'no'} steps committed")

    def end(self, more=2):
        """Goes on for some steps; how many the run has then, and its fingerprint."""
        steps = steps_committed(self.run) + more
        status, out = self._start(steps=steps).end(120)
        assert status == 0, out
        assert not any(name.exists() for name in self.left), self.left
        assert len(list(self.run.glob("store*"))) == self.ranks, sorted(self.run.iterdir())
        return steps, verify(self.run)
