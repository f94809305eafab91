"""Many ranks end to end: how they are started and what is refused, what they print and write, what happens when one of
them dies, stops or cannot begin, and going on with another number of them."""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import time
import unittest

from ranks import Kills, Launched, committed, launch, skip, verify, words
from support import TRANSLOAD, Case, run, snapshot

LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID",
             "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE")


def environment(**variables):
    """Of a process that no launcher started, and these."""
    return {**{k: v for k, v in os.environ.items() if k not in LAUNCHERS}, **variables}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


class RankCase(Case):
    def launch(self, ranks, code=0, **changes):
        status, out = launch(ranks, "train", *self.flags(**changes))
        self.assertEqual(status, code, out)
        return out

    def resume(self, ranks, *flags, code=0):
        status, out = launch(ranks, "train", "--run", self.run_folder, "--resume", *flags)
        self.assertEqual(status, code, out)
        return out

    def by_hand(self, changes):
        """Ranks in torchrun's variables, one for each of `changes` of the flags; status, output and error of each."""
        port, size = free_port(), str(len(changes))
        started = [subprocess.Popen([TRANSLOAD, "train", *map(str, self.flags(**change))], text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                    env=environment(RANK=str(rank), WORLD_SIZE=size, MASTER_ADDR="localhost",
                                                    MASTER_PORT=port))
                   for rank, change in enumerate(changes)]
        return [(process, *process.communicate(timeout=60)) for process in started]

    def one_line(self, text):
        self.assertEqual(len(text.strip().splitlines()), 1, text)


class Starting(RankCase):
    def test_usage_of_launch(self):
        for arguments, text in ((["-n", 0, "--", "train"], "-n must be from 1 to 1024, not 0"),
                                (["-n", 1025, "--", "train"], "-n must be from 1 to 1024, not 1025"),
                                (["-n", "two", "--", "train"], "two"), (["--", "train"], "-n is required"),
                                (["-n", 2], "is missing: transload launch -n 4 -- train"),
                                (["-n", 2, "--"], "is missing"),
                                (["-n", 2, "train"], "'train' is one word too many"),
                                (["-n", 2, "--ranks", 2, "--", "train"], "--ranks is not known")):
            with self.subTest(arguments=arguments):
                done = run("launch", *arguments)
                self.assert_refused(done, text)
                self.one_line(done.stderr)

    def test_a_command_that_the_ranks_refuse(self):
        status, out = launch(2, "trian")
        self.assertEqual((status, out), (2, 2 * "transload: The command 'trian' is not known. Did you mean train?\n"))

    def test_output_is_of_rank_0_alone(self):
        out = self.launch(3)
        for text in ("parameters", "step 1/4", "step 4/4", "step 4: committed", "Peak resident memory",
                     "3 ranks by shared memory"):
            self.assertEqual(out.count(text), 1, out)
        names = {p.name for p in self.run_folder.iterdir()}
        self.assertLessEqual({"record.jsonl", "record-r1.jsonl", "record-r2.jsonl", "summary.json", "summary-r1.json",
                              "summary-r2.json", "group.json", "store-g0-r0", "store-g0-r1", "store-g0-r2"}, names)
        losses = {json.dumps(json.loads((self.run_folder / name).read_text())["losses"])
                  for name in ("summary.json", "summary-r1.json", "summary-r2.json")}
        self.assertEqual(len(losses), 1)

    def test_variables_by_hand(self):
        self.launch(2, run=self.folder / "launched")
        first, second = self.by_hand([{}, {}])
        self.assertEqual((first[0].returncode, second[0].returncode), (0, 0), first[2] + second[2])
        self.assertIn("step 4/4", first[1])
        self.assertEqual((first[2], second[1], second[2]), ("", "", ""))
        self.assertEqual(self.fingerprint(), self.fingerprint(self.folder / "launched"))

    def test_contradictions(self):
        two = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
        for variables, text in (({"RANK": "0"}, "RANK is set and WORLD_SIZE is not"),
                                ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set and RANK is not"),
                                ({**two, "RANK": "2"}, "RANK=2 is not below WORLD_SIZE=2"),
                                ({**two, "WORLD_SIZE": "two"}, "WORLD_SIZE=two is not a whole number"),
                                ({**two, "RANK": "-1"}, "RANK=-1 is not a whole number"),
                                ({**two, "MASTER_ADDR": ""}, "needs MASTER_ADDR and MASTER_PORT"),
                                ({**two, "MASTER_PORT": "70000"}, "MASTER_PORT=70000"),
                                ({**two, "LOCAL_WORLD_SIZE": "3"}, "LOCAL_WORLD_SIZE=3 is more than all 2 ranks"),
                                ({**two, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "1"}, "LOCAL_RANK=1 is not below 1"),
                                ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, "without SLURM_STEP_NODELIST")):
            with self.subTest(variables=variables):
                done = subprocess.run([TRANSLOAD, "train", *map(str, self.flags())], text=True, capture_output=True,
                                      env=environment(**variables), timeout=30)
                self.assert_refused(done, text)
                self.one_line(done.stderr)
        self.assertFalse(self.run_folder.exists())

    def mpirun(self, *arguments):
        if shutil.which("mpirun") is None:
            skip(self, "mpirun is missing (openmpi-bin)")
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        done = subprocess.run(["mpirun", "--oversubscribe", *root, *map(str, arguments)], text=True,
                              capture_output=True, env=environment(), timeout=120)
        if "this build has no MPI" in done.stderr:
            skip(self, "this build has no MPI")
        return done

    def test_mpirun(self):
        done = self.mpirun("-n", 2, TRANSLOAD, "train", *self.flags())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("step 4/4"), 1)
        self.launch(2, run=self.folder / "launched")
        self.assertEqual(self.fingerprint(), self.fingerprint(self.folder / "launched"))

    def test_mpirun_of_another_mpi(self):
        """Its ranks are each told that they are one of two, and MPI knows of one."""
        done = subprocess.run([TRANSLOAD, "train", *map(str, self.flags())], text=True, capture_output=True, timeout=60,
                              env=environment(PMI_RANK="0", PMI_SIZE="2"))
        if "this build has no MPI" in done.stderr:
            skip(self, "this build has no MPI")
        self.assert_refused(done, "rank 0 of 2", "MPI that it is 0 of 1", "Use the mpirun that belongs to it")
        self.assertFalse(self.run_folder.exists())


class Settings(RankCase):
    def test_a_global_batch_that_ranks_do_not_divide(self):
        """5 samples on 3 ranks: 2, 2 and 1 in micro-batches of 2. fp32: sums over ranks are taken in another order, and
        differences grow with the steps: 1e-5 of loss and norm within four."""
        self.train(run=self.folder / "one", global_batch_size=5, dtype="fp32", gradients="fp32")
        out = self.launch(3, global_batch_size=5, dtype="fp32", gradients="fp32")
        self.assertIn("step 4/4", out)
        one, three = self.summary(self.folder / "one"), self.summary()
        for want, got in zip(one["losses"] + one["grad_norms"], three["losses"] + three["grad_norms"], strict=True):
            self.assertTrue(abs(got - want) <= 1e-5 * want, (want, got))
        self.assertEqual((one["tokens_per_step"], three["tokens_per_step"]), (5 * 32, 5 * 32))
        out = self.launch(3, code=2, run=self.folder / "bad", global_batch_size=5, accumulate=2)
        self.assertIn("Leave --accumulate out", out)

    def test_fewer_samples_than_ranks(self):
        self.train(run=self.folder / "one", global_batch_size=2, dtype="fp32", gradients="fp32")
        self.launch(4, global_batch_size=2, batch_size=1, dtype="fp32", gradients="fp32")
        for want, got in zip(self.summary(self.folder / "one")["losses"], self.summary()["losses"], strict=True):
            self.assertTrue(abs(got - want) <= 1e-5 * want, (want, got))

    def test_budgets_are_a_ranks_and_count_together_on_the_node(self):
        """What a rank takes where nothing is said: a third of what the machine leaves free less the reserve."""
        out = self.launch(3, host_memory=None)
        sizes = re.search(r"Host memory: (.*), of (.*) that the .* free less a reserve of (.*), for 3 ranks", out)
        mine, free, reserve = (float(s.split()[0]) * {"GiB": 1024, "MiB": 1}[s.split()[1]] for s in sizes.groups())
        self.assertLess(abs(mine - (free - reserve) / 3), 0.01 * mine, sizes[0])
        out = self.launch(2, run=self.folder / "small", host_memory="1MiB", code=2)
        self.assertIn("buffers alone take", out)

    def test_a_tight_budget_of_each_rank_changes_no_bit(self):
        self.launch(2, run=self.folder / "large")
        self.launch(2, host_memory="4MiB")
        self.assertEqual(self.fingerprint(), self.fingerprint(self.folder / "large"))

    def test_evaluation(self):
        """All ranks count the same samples. fp32: 1e-5 of the loss, as above."""
        same = {"validation": self.text, "evaluate_every": 2, "global_batch_size": 6, "dtype": "fp32",
                "gradients": "fp32"}
        self.train(run=self.folder / "one", **same)
        out = self.launch(3, **same)
        self.assertEqual(len(re.findall(r"^step \d: validation loss", out, re.M)), 2, out)
        one, three = self.summary(self.folder / "one")["evaluations"], self.summary()["evaluations"]
        self.assertEqual([e["step"] for e in three], [2, 4])
        for want, got in zip(one, three, strict=True):
            self.assertTrue(abs(got["loss"] - want["loss"]) <= 1e-5 * want["loss"], (want, got))

    def test_stores_in_a_folder_of_nvme(self):
        drive = self.folder / "drive"
        drive.mkdir()
        self.launch(3, nvme=drive)
        self.assertEqual(len(list(drive.iterdir())), 3)
        self.assertTrue(all(p.is_symlink() for p in self.run_folder.glob("store*")))
        self.resume(1, "--steps", 6)
        self.assertEqual(len(list(drive.iterdir())), 1)
        self.assertEqual([p.name for p in self.run_folder.glob("store*")], ["store-g1-r0"])
        self.assertTrue((self.run_folder / "store-g1-r0").is_symlink())


class GoingOn(RankCase):
    def test_on_another_number_of_ranks(self):
        """8 steps on 3 ranks against 4 there and 4 on 1, 2 or 4. fp32: the order of sums over ranks is all that
        differs: 1e-5 of each loss and norm."""
        same = {"global_batch_size": 6, "dtype": "fp32", "gradients": "fp32"}
        whole = self.folder / "whole"
        self.launch(3, run=whole, steps=8, **same)
        want = self.summary(whole)
        self.launch(3, **same)
        self.assertEqual(self.summary()["losses"], want["losses"][:4])
        begun = self.folder / "begun"
        shutil.copytree(self.run_folder, begun)
        for ranks in (3, 1, 2, 4):
            with self.subTest(ranks=ranks):
                shutil.rmtree(self.run_folder)
                shutil.copytree(begun, self.run_folder)
                self.resume(ranks, "--steps", 8)
                got = self.summary()
                for key in ("losses", "grad_norms"):
                    for a, b in zip(got[key], want[key][4:], strict=True):
                        self.assertTrue(abs(a - b) <= (0 if ranks == 3 else 1e-5) * b, (key, a, b))
                self.assertEqual(len(list(self.run_folder.glob("store*"))), ranks)
                self.assertEqual(self.fingerprint() == self.fingerprint(whole), ranks == 3)

    def test_export_and_verify_are_those_of_one_rank(self):
        self.launch(3)
        exports = []
        for ranks in (3, 1, 2):
            if ranks != 3:
                self.assertIn("Copying the state", self.resume(ranks, "--chunk-size", "64KiB", "--steps", 4))
            to = self.folder / f"export-{ranks}"
            done = run("export", self.run_folder, "--to", to, "--master", "--optimizer")
            self.assertEqual(done.returncode, 0, done.stderr)
            exports.append((self.fingerprint(), snapshot(to)))
        self.assertEqual(exports[1:], exports[:1] * 2)

    def test_a_store_that_is_missing_is_named(self):
        self.launch(3)
        shutil.move(self.run_folder / "store-g0-r1", self.folder / "away")
        for ranks in (3, 1):
            out = self.resume(ranks, code=1)
            self.assertIn("The store of rank 1 of 3", out)
            self.assertIn("is missing", out)
        done = run("verify", self.run_folder)
        self.assertEqual(done.returncode, 1)
        self.assertIn("The store of rank 1 of 3", done.stdout)
        shutil.move(self.folder / "away", self.run_folder / "store-g0-r1")
        self.resume(3, "--steps", 5)

    def test_a_store_of_another_run_is_refused(self):
        self.launch(3, run=self.folder / "other")
        self.launch(3)
        shutil.rmtree(self.run_folder / "store-g0-r1")
        shutil.copytree(self.folder / "other" / "store-g0-r1", self.run_folder / "store-g0-r1")
        before = snapshot(self.run_folder / "store-g0-r1")
        out = self.resume(3, code=1)
        self.assertIn("The store of rank 1 of 3", out)
        self.assertIn("is missing", out)
        self.assertEqual(snapshot(self.run_folder / "store-g0-r1"), before)

    def test_a_store_at_an_older_commit_is_refused(self):
        self.launch(3)
        shutil.copytree(self.run_folder / "store-g0-r2", self.folder / "older")
        self.resume(3, "--steps", 6)
        shutil.rmtree(self.run_folder / "store-g0-r2")
        shutil.move(self.folder / "older", self.run_folder / "store-g0-r2")
        self.assertIn("does not have commit", self.resume(3, "--steps", 8, code=1))
        self.assertIn("does not have commit", self.resume(1, "--steps", 8, code=1))


class Losing(RankCase):
    """A rank that dies, stands still or cannot begin: the others end, in time and with a message."""

    LONG = {"steps": 1_000_000, "commit_every": 5, "batch_size": 1}

    def test_data_that_one_rank_does_not_find(self):
        begun = time.monotonic()
        ends = self.by_hand([{}, {"data": self.folder / "none.txt"}, {}])
        self.assertLess(time.monotonic() - begun, 20)
        self.assertTrue(all(process.returncode != 0 for process, _, _ in ends))
        self.assertIn("none.txt", ends[1][2])
        for _, _, error in (ends[0], ends[2]):
            self.assertIn("Rank 1 failed: ", error)
            self.assertIn("none.txt", error)

    def test_ranks_with_different_settings(self):
        other = self.folder / "other.txt"
        other.write_text(self.text.read_text()[::-1])
        for change, text in (({"seed": 2}, "Rank 0 has seed 1, and rank 1 has seed 2."),
                             ({"nvme_capacity": 0}, "rank 1 has nvme-capacity 0"), ({"steps": 5}, "rank 1 has steps 5"),
                             ({"freeze": "*norm*"}, 'Rank 0 has no freeze, and rank 1 has freeze ["*norm*"]'),
                             ({"data": other}, "Rank 0 has data of ")):
            with self.subTest(change=change):
                for process, _, error in self.by_hand([{}, change]):
                    self.assertEqual(process.returncode, 2, error)
                    self.assertIn(text, error)
                    self.one_line(error)
                self.assertFalse(committed(self.run_folder))
        own = self.by_hand([{}, {"host_memory": "32MiB", "threads": 1, "io": "threads", "timeout": "30s"}])
        self.assertEqual([process.returncode for process, _, _ in own], [0, 0], own)

    def test_a_rank_that_stands_still(self):
        launched = Launched(3, "train", *self.flags(**self.LONG, timeout="2s"))
        pids = launched.pids()
        self.assertTrue(launched.wait_until(lambda: committed(self.run_folder)))
        time.sleep(0.3)
        os.kill(pids[1], signal.SIGSTOP)
        begun = time.monotonic()
        self.assertTrue(launched.wait_until(lambda: not lives(pids[0]) and not lives(pids[2])))
        self.assertLess(time.monotonic() - begun, 6)  # the timeout, and what a busy machine adds
        status, out = launched.end(30)  # the launcher ends what stands still
        self.assertEqual(status, 1, out)
        self.assertRegex(out, r"Rank 1 is lost: no sign of life for [2-9]\.\d s")
        self.assertIn("The stores are as last committed", out)
        self.assertIn("rank 1 was ended by signal 9", out)
        self.assertIn("Rank 1 is lost", (self.run_folder / "lost_rank.txt").read_text())
        out = self.resume(3, "--steps", 1 + json.loads((self.run_folder / "group.json").read_text())["step"])
        self.assertIn("The last start of this run ended early: Rank 1 is lost", out)
        self.assertFalse((self.run_folder / "lost_rank.txt").exists())

    def test_an_interrupt_commits_once_and_the_run_goes_on(self):
        launched = Launched(3, "train", *self.flags(**{**self.LONG, "commit_every": 1_000_000}))
        self.assertTrue(launched.wait_until(lambda: committed(self.run_folder)))
        time.sleep(0.5)
        launched.process.send_signal(signal.SIGINT)
        status, out = launched.end(30)
        self.assertEqual(status, 130, out)
        self.assertEqual(out.count("finishing this step"), 1, out)
        self.assertEqual(len(re.findall(r"^step \d+: committed", out, re.M)), 1, out)
        steps = int(re.search(r"Interrupted after step (\d+)", out)[1])
        self.assertEqual(json.loads((self.run_folder / "group.json").read_text())["step"], steps)
        self.resume(3, "--steps", steps + 2)
        self.launch(3, run=self.folder / "whole", steps=steps + 2, batch_size=1)
        self.assertEqual(self.fingerprint(), self.fingerprint(self.folder / "whole"))

    def test_a_launcher_that_is_killed_leaves_nobody(self):
        launched = Launched(3, "train", *self.flags(**self.LONG))
        pids = launched.pids()
        self.assertTrue(launched.wait_until(lambda: committed(self.run_folder)))
        os.kill(launched.process.pid, signal.SIGKILL)
        launched.process.communicate(timeout=30)  # the ranks hold the other ends of its pipes
        end = time.monotonic() + 5  # they are on their way out
        while any(map(lives, pids)) and time.monotonic() < end:
            time.sleep(0.05)
        self.assertFalse([pid for pid in pids if lives(pid)])
        self.fingerprint()

    def test_killed_ranks(self):
        """As bench/kill_ranks.py, which does the same 200 times."""
        flags = {"model": self.model, "data": self.text, "run": self.run_folder, "steps": 1_000_000, "batch_size": 1,
                 "sequence_length": 32, "global_batch_size": 5, "host_memory": "8MiB", "commit_every": 2, "threads": 1}
        kills = Kills(flags, 3, seed=7)
        for number in range(20):
            kills.kill(number)
        steps, fingerprint = kills.end()
        self.assertGreater(steps, 2)
        whole = self.folder / "whole"
        status, out = launch(3, "train", *words(**{**flags, "run": whole, "steps": steps}))
        self.assertEqual(status, 0, out)
        self.assertEqual(verify(whole), fingerprint)


def lives(pid):
    """One that has ended and was not waited for does not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


if __name__ == "__main__":
    unittest.main()
