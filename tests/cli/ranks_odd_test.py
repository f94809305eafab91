"""Ranks that meet odd things: lists of stores that contradict the stores, budgets near the least."""
import json
import os
import re
import shutil
import signal
import time
import unittest

from ranks import Launched, launch
from support import Case, run


class OddRanks(Case):
    def train_ranks(self, ranks, **changes):
        return launch(ranks, "train", *self.flags(**changes))

    def group(self):
        return json.loads((self.run_folder / "group.json").read_text())

    def write_group(self, **changes):
        (self.run_folder / "group.json").write_text(json.dumps({**self.group(), **changes}))

    def assert_not_gone_on_with(self, ranks, *texts):
        """Neither resumed nor called whole: nothing is written, and the message says what is wrong."""
        before = (self.run_folder / "group.json").read_bytes()
        status, out = launch(ranks, "train", "--run", self.run_folder, "--resume", "--steps", 6)
        self.assertEqual(status, 1, out)
        verified = run("verify", self.run_folder)
        self.assertEqual(verified.returncode, 1, verified.stdout)
        for text in texts:
            self.assertIn(text, out)
            self.assertIn(text, verified.stdout + verified.stderr)
        self.assertEqual((self.run_folder / "group.json").read_bytes(), before)

    def test_stores_of_exchanged_ranks_are_refused(self):
        status, out = self.train_ranks(2)
        self.assertEqual(status, 0, out)
        self.write_group(stores=self.group()["stores"][::-1])
        self.assert_not_gone_on_with(2, "contradicts the store", "group.json")
        self.assert_not_gone_on_with(3, "contradicts the store", "group.json")

    def test_list_of_fewer_ranks_is_refused(self):
        status, out = self.train_ranks(3)
        self.assertEqual(status, 0, out)
        self.write_group(ranks=2, stores=self.group()["stores"][:2])
        self.assert_not_gone_on_with(2, "contradicts the store", "rank 0 of 3")
        self.assert_not_gone_on_with(3, "contradicts the store", "rank 0 of 3")

    def test_missing_store_of_rank_0_is_named(self):
        status, out = self.train_ranks(2)
        self.assertEqual(status, 0, out)
        shutil.rmtree(self.run_folder / "store-g0-r0")
        self.assert_not_gone_on_with(2, f"The store of rank 0 of 2, {self.group()['stores'][0]}", "store-g0-r1")

    def test_ranks_whose_tokens_lie_in_different_chunks(self):
        """Of the embedding: some ranks read only ASCII, others only what is beyond it."""
        self.text.write_text("".join("plain ascii words here, " * 3 + "привет мир ёжик " * 4 for _ in range(200)))
        prints = []
        for chunk in ("256KiB", "16KiB", "4KiB"):
            status, out = self.train_ranks(3, order="sequential", chunk_size=chunk, batch_size=1, sequence_length=16,
                                           timeout="20s")
            self.assertEqual(status, 0, out)
            prints.append(self.fingerprint())
            shutil.rmtree(self.run_folder)
        self.assertEqual(len(set(prints)), 1, prints)

    def test_advice_on_the_budget_counts_the_buffers(self):
        for device in ({}, {"device": "emulated", "device-memory": "4MiB"}):
            status, out = self.train_ranks(2, **device, **{"host-memory": "2304KiB"})
            self.assertEqual(status, 2, out)
            advice = int(re.search(r"--host-memory (\d+)KiB in all", out)[1])
            status, out = self.train_ranks(2, **device, **{"host-memory": f"{advice - 1}KiB"})
            self.assertEqual(status, 2, out)
            status, out = self.train_ranks(2, **device, **{"host-memory": f"{advice}KiB"})
            self.assertEqual(status, 0, out)
            shutil.rmtree(self.run_folder)

    def test_lost_rank_without_durability_promises_nothing(self):
        launched = Launched(2, "train", *self.flags(steps=1_000_000, durability="none", timeout="3s"))
        self.addCleanup(launched.process.kill)  # its ranks end with it
        pids = launched.pids()
        while not (self.run_folder / "group.json").exists():
            self.assertIsNone(launched.process.poll())
            time.sleep(0.02)
        os.kill(pids[1], signal.SIGKILL)
        status, out = launched.end(30)
        self.assertEqual(status, 1, out)
        self.assertIn("only after a clean end", out)
        self.assertNotIn("as last committed", out)

    def test_refused_start_leaves_no_note_in_a_run_that_lives(self):
        launched = Launched(2, "train", *self.flags(steps=1_000_000, timeout="20s"))
        self.addCleanup(launched.process.kill)  # its ranks end with it
        while not (self.run_folder / "group.json").exists():
            self.assertIsNone(launched.process.poll())
            time.sleep(0.02)
        status, out = self.train_ranks(2, timeout="20s")
        self.assertIn("is in use by process", out)
        self.assertEqual(status, 2, out)
        self.assertEqual(list(self.run_folder.glob("lost_rank*")), [])
        launched.process.send_signal(signal.SIGINT)
        self.assertEqual(launched.end(60)[0], 130)

    def test_timeout_beyond_the_clock_is_refused(self):
        self.assert_refused(run("train", *self.flags(timeout="1001h")), "--timeout must be at most 1000h")


if __name__ == "__main__":
    unittest.main()
