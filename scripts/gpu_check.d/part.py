"""One part of gpu_check: its time, its folder, its log, the commands that it runs, and what it found.

Whatever ends a part, none of its processes is left behind: each command is a session of its own, killed with the part.
"""
import contextlib
import os
import pathlib
import shlex
import signal
import subprocess
import time

GRACE_S = 20
"""Of a part's time, kept for a command that ends by itself when it is interrupted, and says then what it has."""


class Skipped(Exception):
    """What the part is about is not on this machine; no failure."""


class Refused(Exception):
    """The machine lacks memory or disk for the part."""


class Failed(Exception):
    """A command failed, or what it said is wrong."""


class OutOfTime(Exception):
    pass


def kill_session(leader):
    """Kills all processes of a session; groups are not enough, since ninja makes one for each compiler."""
    while members := list(session_members(leader)):
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def session_members(leader):
    """Those that still run."""
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _parent, _group, session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state not in "ZX":
                yield int(stat.parent.name)


class Part:
    """`found` fills while the part runs, so that a part which is cut has what it found until then."""

    def __init__(self, name, setup, limit_s, work):
        self.name, self.setup, self.limit_s, self.work = name, setup, limit_s, pathlib.Path(work)
        self.started = time.monotonic()
        self.found, self.highlights = {}, []
        self.log_path = setup.out / f"{name}.log"
        self.log_path.write_text("")

    def seconds(self):
        return time.monotonic() - self.started

    def say(self, text):
        """A figure for the line that tells how the part ended."""
        self.highlights.append(text)

    def run(self, *argv, interrupt=False, env=None):
        """Runs a command to its end. `interrupt`: at the limit it is interrupted first, and has time to end."""
        self._run([str(word) for word in argv], interrupt, env, None)

    def output(self, *argv):
        """What a command prints."""
        to = self.work / "output"
        with to.open("w") as file:
            self._run([str(word) for word in argv], False, None, file)
        return to.read_text()

    def _run(self, argv, interrupt, env, stdout):
        with self.log_path.open("a") as log:
            log.write(f"+ {shlex.join(argv)}\n")
            log.flush()
            if not pathlib.Path(argv[0]).exists():
                raise Failed(f"{argv[0]} is not there: the part build makes it")
            child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=stdout or log, stderr=log,
                                     env=env, start_new_session=True)
            try:
                self._wait(child, interrupt)
            finally:
                kill_session(child.pid)
                child.wait()
        if child.returncode != 0:
            raise Failed(f"{pathlib.Path(argv[0]).name} ended with status {child.returncode}: {self._last_line()}")

    def _wait(self, child, interrupt):
        grace = min(GRACE_S, self.limit_s / 4) if interrupt else 0
        try:
            child.wait(max(self.limit_s - grace - self.seconds(), 0.1))
        except subprocess.TimeoutExpired:
            if interrupt:
                child.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(grace)
            name = pathlib.Path(child.args[0]).name
            raise OutOfTime(f"{name} did not end within the part's {self.limit_s:.0f} s") from None

    def _last_line(self):
        lines = [line for line in self.log_path.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""
