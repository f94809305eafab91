"""Two ranks on two hosts: network namespaces of this machine joined by a cable (veth) that is cut once, each with a
/dev/shm of its own, so that they meet and exchange over TCP. Needs root and iproute2; skipped otherwise."""
import json
import os
import shutil
import subprocess
import time
import unittest

from ranks import committed, launch
from support import TRANSLOAD, Case

ADDRESSES = ("10.213.17.1", "10.213.17.2")


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True)


class Hosts(Case):
    def setUp(self):
        super().setUp()
        if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "mount"))):
            self.skipTest("two hosts need root, ip (iproute2), unshare and mount")
        self.names = [f"transload-{os.getpid()}-{i}" for i in range(2)]
        self.cables = [f"tl{os.getpid() % 10 ** 7}-{i}" for i in range(2)]
        self.addCleanup(lambda: [ip("netns", "delete", name) for name in self.names])
        made = [ip("netns", "add", name) for name in self.names]
        made.append(ip("link", "add", self.cables[0], "netns", self.names[0], "type", "veth",
                       "peer", "name", self.cables[1], "netns", self.names[1]))
        for name, cable, address in zip(self.names, self.cables, ADDRESSES):
            made += [ip("-n", name, "address", "add", address + "/24", "dev", cable),
                     ip("-n", name, "link", "set", "lo", "up"), ip("-n", name, "link", "set", cable, "up")]
        refused = [done.stderr.strip() for done in made if done.returncode != 0]
        if refused:
            self.skipTest(f"no network namespaces here: {refused[0]}")

    def start(self, rank, *flags):
        """A rank on its host: a network and a /dev/shm of its own, a host name too."""
        variables = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": 29517}
        own = f"mount -t tmpfs none /dev/shm && hostname host{rank} && exec \"$@\""
        host = ["ip", "netns", "exec", self.names[rank], "unshare", "--mount", "--uts", "sh", "-c", own, "sh"]
        return subprocess.Popen([*host, TRANSLOAD, "train", *map(str, flags)], text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT,
                                env={**os.environ, **{name: str(value) for name, value in variables.items()}})

    def ends(self, ranks, within):
        ends = [(rank.communicate(timeout=within)[0], rank.returncode) for rank in ranks]
        if any("this build has no Gloo" in out for out, _ in ends):
            self.skipTest("this build has no Gloo")
        return ends

    def train_on_hosts(self, *flags):
        for out, status in self.ends([self.start(rank, *flags) for rank in range(2)], 120):
            self.assertEqual(status, 0, out)
            yield out

    def test_the_cable_is_cut_once(self):
        ranks = [self.start(rank, *self.flags(steps=1_000_000, commit_every=3, timeout="3s")) for rank in range(2)]
        end = time.monotonic() + 60
        while not committed(self.run_folder) and time.monotonic() < end and all(r.poll() is None for r in ranks):
            time.sleep(0.02)
        time.sleep(1)
        ip("-n", self.names[0], "link", "set", self.cables[0], "down")
        cut = time.monotonic()
        ends = self.ends(ranks, 30)
        took = time.monotonic() - cut
        for rank, (out, status) in enumerate(ends):
            self.assertEqual(status, 1, out)
            self.assertRegex(out, rf"rank {rank}: Rank {1 - rank} is lost: ")
            self.assertIn("The stores are as last committed", out)
        self.assertLess(took, 10)  # the timeout of 3 s, the wait of 1 s for a verdict, what a busy machine adds
        self.assertIn("2 ranks by TCP", ends[0][0])
        self.fingerprint()

        ip("-n", self.names[0], "link", "set", self.cables[0], "up")
        steps = json.loads((self.run_folder / "group.json").read_text())["step"] + 2
        for _ in self.train_on_hosts("--run", self.run_folder, "--resume", "--steps", steps):
            pass
        for _ in self.train_on_hosts(*self.flags(run=self.folder / "whole", steps=steps)):
            pass
        self.assertEqual(self.fingerprint(), self.fingerprint(self.folder / "whole"))

    def test_tcp_and_shared_memory_have_the_same_bits(self):
        first, second = self.train_on_hosts(*self.flags())
        self.assertIn("2 ranks by TCP", first)
        self.assertIn("step 4/4", first)
        self.assertEqual(second, "")
        status, out = launch(2, "train", *self.flags(run=self.folder / "one"))
        self.assertEqual(status, 0, out)
        self.assertIn("2 ranks by shared memory", out)
        self.assertEqual(self.fingerprint(), self.fingerprint(self.folder / "one"))


if __name__ == "__main__":
    unittest.main()
