"""transload plan under a launcher: rank 0 plans one rank of several, and its answers are those of the run."""
import json
import unittest

from plan_test import USES, Planned
from ranks import launch


class RankPlans(Planned):
    def output(self, *more, ranks=2, code=0, **changes):
        status, out = launch(ranks, "plan", *self.flags(**changes), *more)
        self.assertEqual(status, code, out)
        return out

    def plan_rank(self, *more, ranks=2, **changes):
        return json.loads(self.output("--json", *more, ranks=ranks, **changes))

    def run_ranks(self, ranks=2, **changes):
        """The summaries by rank."""
        status, out = launch(ranks, "train", *self.flags(**changes))
        self.assertEqual(status, 0, out)
        folder = changes.get("run", self.run_folder)
        return [json.loads((folder / name).read_text())
                for name in ("summary.json", *(f"summary-r{rank}.json" for rank in range(1, ranks)))]


class AgainstRuns(RankPlans):
    def check_peak(self, planned, summaries):
        most = max(s["tiers"]["host"]["peak"] for s in summaries)
        self.assertGreaterEqual(planned["peak"], most)
        self.assertLessEqual(planned["peak"], 1.02 * most)

    def test_with_room_for_everything(self):
        planned = self.plan_rank()
        host = planned["tiers"]["host"]
        summaries = self.run_ranks()
        seen = self.peaks()["host"]
        for use in set(USES) - {"local", "padding"}:  # these two depend on how soon sums end
            with self.subTest(use=use):
                self.assertEqual(host["bytes"][use], seen[use])
        for use in ("local", "padding"):
            self.assertGreaterEqual(host["bytes"][use], seen[use])
        self.assertGreater(host["bytes"]["gathered"], 0)
        self.check_peak(host, summaries)
        for summary in summaries:
            self.assertEqual(host["budget"], summary["tiers"]["host"]["budget"])
            self.assertEqual(host["taken"], summary["tiers"]["host"]["taken"])
        self.assertEqual(host["budget"] + host["buffers"], 64 << 20)

    def test_with_a_small_budget(self):
        changes = {"host_memory": "3MiB", "steps": 24, "chunk_size": "16KiB"}
        planned = self.plan_rank(**changes)
        summaries = self.run_ranks(**changes)
        self.check_peak(planned["tiers"]["host"], summaries)
        for summary in summaries:
            self.assertEqual(planned["tiers"]["host"]["least"], summary["tiers"]["host"]["least"])
            for link, facts in summary["links"].items():
                self.assertEqual(planned["links"][link]["planned_step_bytes"], facts["planned_step_bytes"])
                self.assertEqual(planned["links"][link]["least_bytes"], facts["least_bytes"])
        self.assertGreater(planned["links"]["nvme_write"]["planned_step_bytes"], 0)

    def test_what_fits_is_what_plan_accepts_and_one_more_is_refused(self):
        changes = {"host_memory": "3MiB"}
        fits = self.plan_rank(**changes)["capacity"]["batch"]
        self.output(**changes, batch_size=fits)
        refused = self.output(**changes, batch_size=fits + 1, code=2)
        self.assertIn("needs at least", refused)
        self.assertIn("The ranks' buffers", refused)

    def test_what_ranks_exchange(self):
        planned = self.plan_rank()
        bytes_ = planned["tiers"]["host"]["bytes"]
        of = planned["rank_of"]
        self.assertEqual((of["rank"], of["count"], of["here"], of["transport"]), (0, 2, 2, "shared memory"))
        self.assertEqual(of["gathered_bytes"], 2 * bytes_["weight"])  # with room for all: once a step
        self.assertEqual(of["scattered_bytes"], 2 * bytes_["gradient"])
        small = self.plan_rank(host_memory="2768KiB")["rank_of"]
        self.assertGreater(small["gathered_bytes"], of["gathered_bytes"])
        self.assertEqual(small["scattered_bytes"], of["scattered_bytes"])


class Output(RankPlans):
    def test_rank_0_alone_prints(self):
        out = self.output(ranks=3)
        for text in ("parameters,", "Rank 0 of 3:", "3 ranks by shared memory", "ranks' buffers", "in all", "what if"):
            self.assertEqual(out.count(text), 1, out)
        self.assertFalse(self.run_folder.exists())

    def test_ranks_on_one_drive_wear_it_together(self):
        changes = {"host_memory": "3MiB", "chunk_size": "16KiB", "commit_every": "1h"}
        planned = self.plan_rank(**changes)
        written = planned["links"]["nvme_write"]["planned_step_bytes"]
        self.assertGreater(written, 0)
        self.assertEqual(planned["drive_life"]["step_bytes"], 2 * written)
        self.assertIn("by the 2 ranks that share the drive", self.output(**changes))

    def test_one_rank_is_as_without_a_launcher(self):
        self.assertEqual(self.plan_rank(ranks=1), self.plan())

    def test_the_global_batch_is_divided(self):
        planned = self.plan_rank(global_batch_size=5)
        self.assertEqual(planned["tokens_per_step"], 2 * 2 * 32)  # two micro-batches of two samples

    def test_a_box_is_not_of_ranks(self):
        out = self.output("--box", self.box, host_memory=None, code=2)
        self.assertIn("--box contradicts a launcher", out)


class Probe(RankPlans):
    def test_measures_the_ranks_and_keeps_it_apart(self):
        self.assertIsNone(self.plan_rank()["time"])
        probed = self.plan_rank("--probe")
        time = probed["time"]
        self.assertGreater(time["gather_s"], 0)
        self.assertGreater(time["scatter_s"], 0)
        self.assertAlmostEqual(time["collectives_s"], time["gather_s"] + time["scatter_s"], delta=1e-9)
        rates, of = probed["rates"], probed["rank_of"]
        self.assertAlmostEqual(time["gather_s"] * rates["gather"], of["gathered_bytes"], delta=1)
        self.assertAlmostEqual(time["scatter_s"] * rates["scatter"], of["scattered_bytes"], delta=1)
        self.assertAlmostEqual(time["update_s"] * rates["updates"], probed["trainable"] / 2, delta=1)  # of its shard
        computed = time["forward_s"] + time["backward_s"] + time["update_s"]
        self.assertGreaterEqual(time["step_s"], 0.999 * (computed + time["collectives_s"]))
        self.assertEqual(self.plan_rank()["time"], time)
        self.assertIn("collectives: ", self.output())
        self.assertIsNone(self.plan()["time"])
        self.assertIsNone(self.plan_rank(ranks=3)["time"])
        with open(self._cache.name + "/transload/probe.json") as file:
            keys = list(json.load(file)["collectives"])
        self.assertEqual(len(keys), 1)
        self.assertIn("2 ranks, 2 here, by shared memory, chunks of 65536 bytes", keys[0])


if __name__ == "__main__":
    unittest.main()
