"""transload plan: its answers against real runs, box files, the table of ranks, the search."""
import json
import os
import re
import tempfile
import unittest

from support import Case, run

USES = ("weight", "residue", "moment1", "moment2", "gradient", "partial", "kept", "gathered", "local",
        "workspace", "padding")

BOX = """name = "test box"
source = "assumed"
[device]
memory = "4MiB"
compute = "1TFLOP/s"
to = "1GB/s"
from = "1GB/s"
[host]
memory = "64MiB"
bandwidth = "20GB/s"
[nvme]
capacity = "1GB"
read = "2GB/s"
write = "1GB/s"
endurance = "600GB"
[network]
bandwidth = "1GB/s"
latency = "5us"
"""


class Planned(Case):
    def setUp(self):
        super().setUp()
        self._cache = tempfile.TemporaryDirectory(prefix="transload-cache-")
        self._cache_before = os.environ.get("XDG_CACHE_HOME")
        os.environ["XDG_CACHE_HOME"] = self._cache.name
        self.box = self.folder / "box.toml"
        self.box.write_text(BOX)

    def tearDown(self):
        if self._cache_before is None:
            del os.environ["XDG_CACHE_HOME"]
        else:
            os.environ["XDG_CACHE_HOME"] = self._cache_before
        self._cache.cleanup()
        super().tearDown()

    def plan(self, *more, **changes):
        done = run("plan", *self.flags(**changes), "--json", *more)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return json.loads(done.stdout)

    def box_plan(self, *more, **changes):
        return self.plan("--box", self.box, *more, host_memory=None, **changes)

    def peaks(self):
        """The most of each use and in all that the run's record has of a steady step, by tier."""
        most = {}
        for line in (self.run_folder / "record.jsonl").read_text().splitlines():
            event = json.loads(line)
            if event["event"] != "memory" or event["step"] < 2:
                continue
            tier = most.setdefault(event["tier"], {})
            for key in (*USES, "used"):
                tier[key] = max(tier.get(key, 0), event.get(key, 0))
        return most


class AgainstRuns(Planned):
    def test_with_room_for_everything_each_use_is_exact(self):
        planned = self.plan()["tiers"]["host"]
        self.train()
        seen = self.peaks()["host"]
        for use in USES:
            with self.subTest(use=use):
                self.assertEqual(planned["bytes"][use], seen[use])
        self.assertEqual(planned["peak"], self.summary()["tiers"]["host"]["peak"])

    def test_peak_in_use_is_never_below_and_at_most_two_percent_above(self):
        # Of a device that blocks move through only that it is never below: how far the engine fetches ahead is not known.
        for name, changes in {"small": {"host_memory": "1MiB"}, "middle": {"host_memory": "1536KiB"},
                              "device": {"host_memory": "2MiB", "device": "emulated", "device_memory": "1MiB"}}.items():
            with self.subTest(name=name):
                planned = self.plan(**changes)["tiers"]
                self.train(steps=8, run=self.folder / name, **changes)
                for tier, facts in self.summary(self.folder / name)["tiers"].items():
                    self.assertGreaterEqual(planned[tier]["peak"], facts["peak"])
                    if tier == "host":
                        self.assertLessEqual(planned[tier]["peak"], 1.02 * facts["peak"])

    def test_bytes_on_links_and_least_budgets_are_the_runs(self):
        planned = self.plan(host_memory="1MiB")
        self.train(host_memory="1MiB")
        summary = self.summary()
        for link, facts in summary["links"].items():
            self.assertEqual(planned["links"][link]["planned_step_bytes"], facts["planned_step_bytes"])
            self.assertEqual(planned["links"][link]["least_bytes"], facts["least_bytes"])
        self.assertEqual(planned["tiers"]["host"]["least"], summary["tiers"]["host"]["least"])
        self.assertGreater(planned["links"]["nvme_write"]["planned_step_bytes"], 0)

    def test_what_fits_is_what_plan_accepts_and_one_more_is_refused(self):
        changes = {"host_memory": "1MiB"}
        fits = self.plan(**changes)["capacity"]
        for flag, key in (("batch_size", "batch"), ("sequence_length", "length")):
            with self.subTest(flag=flag):
                self.assertEqual(run("plan", *self.flags(**changes, **{flag: fits[key]})).returncode, 0)
                if key == "length" and fits[key] == 128:  # the model has no more positions
                    continue
                done = run("plan", *self.flags(**changes, **{flag: fits[key] + 1}))
                self.assert_refused(done, "needs at least")

    def test_a_deeper_model_needs_room_on_the_drive(self):
        planned = self.plan(host_memory="1MiB")
        store, layers = planned["store"]["bytes"], planned["capacity"]["layers"]
        tight = self.plan(host_memory="1MiB", nvme_capacity=4 * store)["capacity"]
        self.assertLess(tight["layers"], layers)
        self.assertGreater(tight["parameters"], 3 * planned["parameters"])
        self.assertLessEqual(tight["parameters"], 4 * planned["parameters"])

    def test_probe_measures_keeps_and_writes_nothing_else(self):
        self.assertEqual(self.plan()["time"], None)
        before = sorted(p.name for p in self.folder.iterdir())
        probed = self.plan("--probe")
        again = self.plan()
        self.assertGreater(probed["time"]["step_s"], 0)
        self.assertEqual(again["time"], probed["time"])
        self.assertIn("probed at", again["rates"]["source"])
        self.assertEqual(before, sorted(p.name for p in self.folder.iterdir()))
        self.assertEqual([p.name for p in os.scandir(self._cache.name + "/transload")], ["probe.json"])

    def test_a_cache_that_cannot_be_written_is_said(self):
        blocked = self.folder / "blocked"
        blocked.write_text("")
        os.environ["XDG_CACHE_HOME"] = str(blocked)
        done = run("plan", *self.flags(), "--probe")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("A step takes", done.stdout)
        self.assertIn("will be measured anew", done.stderr)

    def test_a_damaged_cache_is_as_none(self):
        os.makedirs(self._cache.name + "/transload")
        for text in ("", "{", "[1]", '{"compute": 3}', '{"folders": {"/": 7}}'):
            with open(self._cache.name + "/transload/probe.json", "w") as file:
                file.write(text)
            self.assertEqual(self.plan()["time"], None)


class Boxes(Planned):
    def test_budgets_and_rates_come_from_the_box(self):
        planned = self.box_plan()
        self.assertEqual(planned["tiers"]["device"]["budget"], 4 << 20)
        self.assertEqual(planned["tiers"]["host"]["budget"], 64 << 20)
        self.assertEqual(planned["rates"]["nvme_write"], 1e9)
        self.assertEqual(planned["rates"]["source"], "test box: assumed")
        self.assertGreater(planned["time"]["step_s"], 0)
        self.assertGreaterEqual(planned["time"]["step_s"], 0.999 * planned["time"]["lower_bound_s"])
        self.assertEqual(self.box_plan(device_memory="2MiB")["tiers"]["device"]["budget"], 2 << 20)

    def test_drive_life(self):
        done = run("plan", *self.flags(host_memory="1MiB", device_memory="640KiB"), "--json", "--box", self.box)
        planned = json.loads(done.stdout)
        written = planned["links"]["nvme_write"]["planned_step_bytes"]
        self.assertGreater(written, 0)
        life = planned["drive_life"]
        self.assertAlmostEqual(life["steps"] * written, 600e9, delta=1)
        self.assertAlmostEqual(life["weeks"] * 7 * 86400, life["steps"] * planned["time"]["step_s"], delta=1e-6 * life["steps"])

    def test_drive_life_counts_commits_by_steps(self):
        flags = {"device_memory": "640KiB"}
        alone = self.plan("--box", self.box, host_memory="1MiB", commit_every="1h", **flags)
        planned = self.plan("--box", self.box, host_memory="1MiB", commit_every=3, **flags)
        link = planned["links"]["nvme_write"]
        self.assertFalse(alone["drive_life"]["commits"])
        self.assertEqual(alone["drive_life"]["step_bytes"], link["planned_step_bytes"])
        self.assertTrue(planned["drive_life"]["commits"])
        # Of three steps from one commit to the next, two are no steady ones.
        third = (link["commit_bytes"] + link["first_step_bytes"] + link["second_step_bytes"] +
                 link["planned_step_bytes"]) / 3
        self.assertAlmostEqual(planned["drive_life"]["step_bytes"], third, delta=1)
        self.assertAlmostEqual(planned["drive_life"]["steps"] * third, 600e9, delta=1e6)

    def test_a_peak_is_said_to_be_a_best_case(self):
        self.assertIn("best case", " ".join(self.box_plan()["notes"]))
        self.box.write_text(BOX.replace('compute = "1TFLOP/s"', 'compute = "1TFLOP/s"\nreached = 0.5'))
        self.assertNotIn("best case", " ".join(self.box_plan()["notes"]))

    def test_contradictions_are_refused_by_line(self):
        for old, new, line, text in (
                ('to = "1GB/s"', 'to = "-1GB/s"', 6, "device.to"),
                ('to = "1GB/s"', 'to = "1Gbit/s"', 6, "device.to"),
                ('compute = "1TFLOP/s"', 'compute = "1TB/s"', 5, "device.compute"),
                ('compute = "1TFLOP/s"', 'compute = "-1TFLOP/s"', 5, "device.compute"),
                ('capacity = "1GB"', 'capacity = "0"', 12, "nvme.capacity"),
                ('read = "2GB/s"', 'raed = "2GB/s"', 13, "Did you mean nvme.read"),
                ('read = "2GB/s"', 'read = "2GB/s"\nduplex = "9GB/s"', 14, "duplex"),
                ('latency = "5us"', 'latency = "5"', 18, "latency"),
                ('source = "assumed"', 'source = 3', 2, "source must be a text"),
                ('read = "2GB/s"', 'read = "9999999999GB/s"', 13, "at most"),
                ('memory = "64MiB"', 'memory = "64Mib"', 9, "host.memory"),
                ('memory = "64MiB"', 'memory = [1]', 9, "host.memory"),
                ('read = "2GB/s"\n', '', 12, "nvme.read"),
                ('memory = "4MiB"', 'memory = "4MiB', 4, "")):
            with self.subTest(new=new):
                self.box.write_text(BOX.replace(old, new))
                done = run("plan", *self.flags(host_memory=None), "--box", self.box)
                self.assert_refused(done, f"line {line}:", text)

    def test_what_is_missing_is_said(self):
        self.box.write_text(BOX.replace('source = "assumed"', ""))
        self.assert_refused(run("plan", *self.flags(), "--box", self.box), "source is missing")
        self.assert_refused(run("plan", *self.flags(), "--box", self.folder), "is a folder")
        self.box.write_text(BOX)
        self.assert_refused(run("plan", *self.flags(), "--box", self.box, "--probe"), "--probe contradicts --box")

    def test_shipped_boxes_are_read(self):
        root = os.path.join(os.path.dirname(__file__), "..", "..", "examples", "boxes")
        names = sorted(name for name in os.listdir(root) if name.endswith(".toml"))
        self.assertGreaterEqual(len(names), 3)
        for name in names:
            done = run("plan", *self.flags(host_memory=None), "--box", os.path.join(root, name))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("A step takes", done.stdout)


class Ranks(Planned):
    def test_one_rank_is_the_box_alone(self):
        row = self.box_plan("--ranks", "1..4096")["ranks"][0]
        without = BOX.split("[network]")[0]
        self.box.write_text(without)
        alone = self.box_plan("--ranks", "1")["ranks"]
        self.assertEqual([row], alone)
        self.assertEqual(row["pass_s"], 0)

    def test_rows_and_plot(self):
        page = self.folder / "ranks.html"
        rows = self.box_plan("--ranks", "1..4096", "--html", page)["ranks"]
        self.assertEqual([r["ranks"] for r in rows], [2 ** i for i in range(13)])
        for a, b in zip(rows, rows[1:]):
            self.assertLess(b["state_bytes"], a["state_bytes"])
            self.assertGreater(b["pass_s"], a["pass_s"])
        text = page.read_text()
        self.assertEqual(text.count("<circle"), 13)
        self.assertIsNone(re.search(r"(src|href)=", text))  # nothing is fetched

    def test_a_page_that_cannot_be_written_is_said(self):
        done = run("plan", *self.flags(host_memory=None), "--box", self.box, "--ranks", "1..2", "--html", self.folder)
        self.assertEqual(done.returncode, 1)
        self.assertIn("another file with --html", done.stderr)

    def test_wrong_words_are_refused(self):
        for words, text in ((("--ranks", "4..2"), "below the first"), (("--ranks", "0"), "--ranks"),
                            (("--ranks", "x"), "--ranks"), (("--html", "a.html"), "--html needs --ranks"),
                            (("--ranks", "2"), "needs rates"), (("--search",), "needs rates")):
            with self.subTest(words=words):
                self.assert_refused(run("plan", *self.flags(), *words), text)


class Search(Planned):
    def test_the_best_of_the_grid_by_single_plans(self):
        changes = {"device_memory": "1MiB", "batch_size": 2}
        found = self.box_plan("--search", **changes)["search"]
        fitting = [c for c in found if c["fits"]]
        self.assertGreater(len(fitting), 4)
        best = 0
        for candidate in found:
            done = run("plan", *self.flags(host_memory=None, device_memory="1MiB", batch_size=candidate["batch"],
                                           chunk_size=candidate["chunk_size"], recompute=candidate["recompute"]),
                       "--box", self.box, "--json")
            self.assertEqual(done.returncode == 0, candidate["fits"], done.stderr)
            if done.returncode == 0:
                best = max(best, json.loads(done.stdout)["time"]["tokens_per_s"])
        self.assertEqual(found[0]["tokens_per_s"], best)

    def test_the_best_split_of_one_memory(self):
        # The device's link is slow: of the splits that are tried the one with most of the memory there is the fastest.
        flags = {"device": "emulated", "device_memory": "640KiB", "host_memory": "2432KiB", "link_rate": "20MB/s"}
        found = self.plan("--probe", "--search", **flags)["search"]
        self.assertEqual({c["device_memory"] + c["host_memory"] for c in found}, {3 << 20})
        self.assertEqual({c["device_memory"] >> 10 for c in found}, {640, 384, 768, 1536, 2304})
        self.assertEqual(found[0]["device_memory"], 2304 << 10)
        others = [c["tokens_per_s"] for c in found if c["device_memory"] != 2304 << 10]
        self.assertLess(max(others), found[0]["tokens_per_s"])
        # What was probed holds for this micro-batch and recomputation: the best and the runner-up of these, alone.
        for c in [c for c in found if c["batch"] == 2 and c["recompute"] == "layer"][:2]:
            alone = self.plan(**{**flags, "device_memory": c["device_memory"], "host_memory": c["host_memory"],
                                 "chunk_size": c["chunk_size"]})
            self.assertEqual(alone["time"]["tokens_per_s"], c["tokens_per_s"])

    def test_a_box_keeps_the_limit_of_each_tier(self):
        found = self.box_plan("--search", device_memory="1MiB")
        self.assertEqual({(c["device_memory"], c["host_memory"]) for c in found["search"]}, {(1 << 20, 64 << 20)})

    def test_a_global_batch_is_kept(self):
        found = self.box_plan("--search", global_batch_size=4)["search"]
        self.assertEqual({c["batch"] for c in found}, {1, 2, 4})
        for c in found:
            self.assertEqual(c["batch"] * c["accumulate"], 4)

    def test_the_host_memory_that_suffices_keeps_the_rate_and_less_does_not(self):
        changes = {"device_memory": "1MiB", "host_memory": "4MiB", "batch_size": 2}
        found = self.plan("--box", self.box, "--search", **changes)
        best, least = found["search"][0], found["search_least_host_memory"]
        self.assertLess(least, 4 << 20)
        self.assertGreater(least, 4 << 20 >> 4)  # there is less to be tried
        flags = {"device_memory": "1MiB", "batch_size": best["batch"], "chunk_size": best["chunk_size"],
                 "recompute": best["recompute"]}
        enough = self.plan("--box", self.box, host_memory=least, **flags)["time"]["tokens_per_s"]
        self.assertGreaterEqual(enough, 0.99 * best["tokens_per_s"])
        done = run("plan", *self.flags(host_memory=least - (4 << 20 >> 4), **flags), "--box", self.box, "--json")
        if done.returncode == 0:
            self.assertLess(json.loads(done.stdout)["time"]["tokens_per_s"], 0.99 * best["tokens_per_s"])
        else:
            self.assert_refused(done, "needs at least")

    def test_why_the_next_lost_is_said(self):
        done = run("plan", *self.flags(host_memory=None), "--box", self.box, "--search")
        self.assertIn("Search: --chunk-size", done.stdout, done.stderr)
        self.assertRegex(done.stdout, r"Next: .*(held back by|as fast)")


if __name__ == "__main__":
    unittest.main()
