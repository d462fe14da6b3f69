"""iris_bench with real ranks: every sub-command measures something, and wrong use is told. No figure is judged."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest

from tests.python import junit
from tests.python.irisd import Irisd

IRIS_BENCH = "tests/bench/iris_bench"
IRIS_RUN = "client/ctl/iris-run"
PATIENCE_SECONDS = 240

# So little that a run is about whether it works.
SMALL = ("--bytes", "64KiB", "--grid", "2", "--grids", "1,2", "--block", "64", "--samples", "2", "--rounds", "20",
         "--heaps", "2MiB", "--grow-bytes", "2MiB")
TRANSFERS = ["load", "store", "get", "put", "copy get", "copy put"]


def run(*command, environment=None):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                          timeout=PATIENCE_SECONDS, env=environment)


class IrisBench(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.daemon = Irisd(devices=4)

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="iris-bench-", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.folder)

    def ranks(self, n_ranks, *arguments):
        return run(IRIS_RUN, "-n", str(n_ranks), "--no-prefix", "--", IRIS_BENCH, *arguments,
                   environment=self.daemon.environment())

    def tables(self, result):
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def assert_positive(self, table, *columns):
        self.assertTrue(table["rows"], table["title"])
        for row in table["rows"]:
            for column in columns:
                self.assertGreater(row[column], 0, f"{column} of {row} in {table['title']}")

    def test_all_with_processes(self):
        svg = os.path.join(self.folder, "plot.svg")
        out = self.tables(self.ranks(3, "all", "--json", "--svg", svg, *SMALL))
        self.assertEqual((out["benchmark"], out["backend"], out["ranks"]), ("iris_bench", "emu", 3))
        self.assertRegex(out["date"], r"^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC$")
        self.assertIn("device", out)
        tables = out["tables"]
        self.assertEqual([row["transfer"] for row in tables["bandwidth"]["rows"]], TRANSFERS)
        self.assert_positive(tables["bandwidth"], "worst GB/s", "median GB/s", "best GB/s", "of copy engine, worst")
        for rank, row in enumerate(tables["bandwidth_put"]["rows"]):
            self.assertEqual([row[f"->{peer}"] is None for peer in range(3)], [peer == rank for peer in range(3)])
        self.assertEqual([row["transfer"] for row in tables["sweep"]["rows"]],
                         ["put", "put", "copy put", "get", "get", "copy get"])
        self.assert_positive(tables["sweep"], "4 KiB", "16 KiB", "64 KiB")
        self.assertEqual([row["addresses"] for row in tables["atomics"]["rows"]], [1, 32, 4096] * 3)
        self.assert_positive(tables["atomics"], "p50", "min", "max")
        self.assertEqual([row["ranks"] for row in tables["pingpong"]["rows"]], ["0-1", "0-2"])
        self.assert_positive(tables["pingpong"], "flag p50", "put_signal 8 B", "put_signal 64 KiB")
        self.assertEqual(len(tables["barrier"]["rows"]), 6)
        self.assert_positive(tables["barrier"], "p50")
        self.assert_positive(tables["create"], "total p50", "join", "map")
        self.assertEqual(tables["create"]["rows"][0]["heap"], "2 MiB")
        self.assert_positive(tables["allocate"], "p50")
        self.assert_positive(tables["grow"], "p50")
        with open(svg, encoding="utf-8") as file:
            self.assertEqual(file.read().count("<polyline"), 6)

    def test_all_with_threads(self):
        result = run(IRIS_BENCH, "all", "--in-process", "2", *SMALL)
        self.assertEqual(result.returncode, 0, result.stderr)
        for name in ("bandwidth", "bandwidth_copy_put", "sweep", "atomics", "pingpong", "barrier"):
            self.assertIn(f"\n== {name}: ", result.stdout)
        self.assertIn("ranks are: threads", result.stdout)
        self.assertNotIn("== create", result.stdout)

    def test_one_rank(self):
        out = self.tables(self.ranks(1, "bandwidth", "pingpong", "barrier", "--json", "--chunk", "1KiB", *SMALL))
        self.assertEqual(out["tables"]["bandwidth"]["rows"][0]["worst pair"], "0->0")
        self.assertEqual(out["tables"]["pingpong"]["rows"], [])

    def test_the_budget_cuts_and_says_so(self):
        result = self.ranks(2, "bandwidth", "barrier", "--budget", "0.000001", *SMALL)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.count("left out: the time was over"), 2)

    def test_output_goes_to_a_file(self):
        path = os.path.join(self.folder, "out.json")
        result = self.ranks(2, "pingpong", "--pairs", "1-0", "--json", "--output", path, *SMALL)
        self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr)
        with open(path, encoding="utf-8") as file:
            self.assertEqual(json.load(file)["tables"]["pingpong"]["rows"][0]["ranks"], "1-0")

    def test_wrong_use(self):
        for arguments, text in (
                ((), "subcommand is required"),
                (("bandwidth", "--bytes", "many"), '"many" is no size such as 64KiB'),
                (("create", "--heaps", "0"), '"0" is no size such as 1GiB'),
                (("bandwith",), "subcommand is required"),
        ):
            result = run(IRIS_BENCH, *arguments)
            self.assertNotEqual(result.returncode, 0, arguments)
            self.assertIn(text, result.stdout + result.stderr)
        result = self.ranks(2, "pingpong", "--pairs", "0-2", *SMALL)
        self.assertEqual(result.returncode, 1)
        self.assertIn("pair 0-2: two different ranks from 0 to 1 are needed", result.stderr)
        result = run(IRIS_BENCH, "create", "--in-process", "2", *SMALL)
        self.assertEqual(result.returncode, 1)
        self.assertIn("create measures irisd: run it under iris-run", result.stderr)


if __name__ == "__main__":
    junit.main()
