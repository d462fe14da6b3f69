"""iris_bench with real ranks: every sub-command measures something, and wrong use is told. No figure is judged."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest

from tests.python import junit
from tests.python.irisd import Irisd

IRIS_BENCH = "client/bench/iris_bench"
IRIS_RUN = "client/ctl/iris-run"
PATIENCE_SECONDS = 240

# So little that a run is about whether it works.
SMALL = ("--bytes", "64KiB", "--grid", "2", "--grids", "1,2", "--block", "64", "--samples", "2", "--rounds", "20",
         "--norm-pairs", "3", "--hidden", "512", "--heaps", "2MiB", "--grow-bytes", "2MiB")
FEW = ("--samples", "2")
TRANSFERS = ["load", "store", "get", "put", "copy get", "copy put"]


def run(*command, environment=None):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                          timeout=PATIENCE_SECONDS, env=environment)


class IrisBench(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.daemon = Irisd(devices=4)
        cls.addClassCleanup(cls.daemon.stop)

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

    def test_moe_beside_a_peer(self):
        figures = ('{"lib": "a", "op": "moe_dispatch", "n": 2, "shape": [16, 256, 8], "us": 1e9}',
                   '{"lib": "b", "op": "moe_dispatch", "n": 2, "shape": [16, 256, 8], "us": 2e9}',
                   '{"lib": "a", "op": "moe_combine", "n": 2, "shape": [17, 256, 8], "us": 1e9}')
        peers = os.path.join(self.folder, "peers")
        with open(peers, "w", encoding="utf-8") as file:
            file.write("\n".join(figures))
        result = self.ranks(2, *SMALL, "moe", "--moe-peers-command", f"test {{ranks}} = 2 && cat {peers}", "--json")
        rows = self.tables(result)["tables"]["moe"]["rows"]
        self.assertEqual([row["best peer"] for row in rows], [1e9, None, None] * 2)
        for row in rows:
            if row["best peer"] is None:
                self.assertIsNone(row["peer / p50"])
            else:
                self.assertAlmostEqual(row["peer / p50"], 1e9 / row["p50"])
        result = self.ranks(2, *SMALL, "moe", "--moe-peers-command", "exit 3")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("the peers' command failed with exit code 3: exit 3", result.stderr)

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
        self.assertEqual(tables["fill"]["rows"][0]["what"], "fill of bytes")
        self.assertEqual({row["what"] for row in tables["fill"]["rows"][1:]},
                         {"zeros", "ones", "arange", "linspace", "rand", "uniform", "randn", "randint"})
        self.assert_positive(tables["fill"], "p50", "of fill %")
        self.assertEqual([(row["what"], row["rows as"]) for row in tables["moe"]["rows"]],
                         [(what, dtype) for dtype in ("bf16", "f8e4m3")
                          for what in ("dispatch", "combine", "dispatch + combine")])
        self.assert_positive(tables["moe"], "p50", "min", "max")
        self.assertEqual([(row["batch"], row["way"]) for row in tables["norm"]["rows"]],
                         [(batch, way) for batch in (1, 16)
                          for way in ("all_reduce, norm", "fused", "fused packets", "fused lines", "fused two_lines",
                                      "fused two_shot", "fused sharded")])
        self.assert_positive(tables["norm"], "p50", "pair/this")
        with open(svg, encoding="utf-8") as file:
            self.assertEqual(file.read().count("<polyline"), 6)

    def test_all_with_threads(self):
        result = run(IRIS_BENCH, "all", "--in-process", "2", *SMALL)
        self.assertEqual(result.returncode, 0, result.stderr)
        for name in ("bandwidth", "bandwidth_copy_put", "sweep", "atomics", "pingpong", "barrier"):
            self.assertIn(f"\n== {name}: ", result.stdout)
        self.assertIn("ranks are: threads", result.stdout)
        self.assertNotIn("== create", result.stdout)

    def test_defaults_are_small_on_emulated_devices(self):
        result = self.ranks(2, "bandwidth", "pingpong", "barrier")
        self.assertEqual(result.returncode, 0, result.stderr)
        for text in ("4 MiB a transfer, 2 blocks x 64 threads", "samples of 20 rounds", "\n== barrier: ",
                     "\ndriver: emulated devices, which irisd owns\n"):
            self.assertRegex(result.stdout, text.replace("2 blocks", r"\d+ blocks"))

    def test_prints_what_is_measured_before_it_fails(self):
        result = self.ranks(2, "bandwidth", "pingpong", "--pairs", "0-2", *SMALL)
        self.assertEqual(result.returncode, 1)
        self.assertIn("\n== bandwidth: ", result.stdout)

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

    def test_collectives(self):
        out = self.tables(run(IRIS_BENCH, "collectives", "--rank-counts", "2,3", "--ops", "all_reduce,barrier",
                              "--sizes", "1KiB,4KiB", "--variants", "packets,two_shot", "--blocks", "1,2",
                              "--json", *FEW))
        rows = out["tables"]["collectives"]["rows"]
        # A barrier has one size and no variants.
        self.assertEqual([(row["operation"], row["ranks"], row["bytes"], row["variant"]) for row in rows[::2]],
                         [row for ranks in (2, 3) for row in (("all_reduce", ranks, 1024, "packets"),
                                                              ("all_reduce", ranks, 1024, "two_shot"),
                                                              ("all_reduce", ranks, 4096, "packets"),
                                                              ("all_reduce", ranks, 4096, "two_shot"),
                                                              ("barrier", ranks, None, None))])
        self.assertEqual([row["blocks"] for row in rows[:8]], [1, 2] * 4)
        self.assert_positive(out["tables"]["collectives"], "us")

    def test_matmul(self):
        path = os.path.join(self.folder, "products.json")
        line = r'{"lib": "%s", "op": "%s", "shape": [%s], "n": {ranks}, "us": %s}\n'
        peers = (f"printf 'begins\n{line}{line}{line}' slow matmul_all_reduce '32, 48, 64' 1e9"
                 " quick matmul_all_reduce '32, 48, 64' 1e-3 slow matmul_all_gather '32, 48, 64' 1e9")
        options = ("matmul", "--rank-counts", "2", "--ops", "matmul_all_reduce,matmul_all_gather",
                   "--shapes", "32x48x64", "--variants", "auto,pair", "--peers-command", peers, "--json",
                   "--output", path, *FEW)
        result = run(IRIS_BENCH, *options)
        self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr)
        with open(path, encoding="utf-8") as file:
            table = json.load(file)["tables"]["matmul"]
        columns = ("operation", "m", "n", "k", "wanted", "variant", "best peer")
        self.assertEqual([tuple(row[column] for column in columns) for row in table["rows"]],
                         [("matmul_all_reduce", 32, 48, 64, "auto", "fused", "quick"),
                          ("matmul_all_reduce", 32, 48, 64, "pair", "pair", "quick"),
                          ("matmul_all_gather", 32, 48, 64, "auto", "fused", "slow"),
                          ("matmul_all_gather", 32, 48, 64, "pair", "pair", "slow")])
        self.assert_positive(table, "us", "graph us", "GEMM us", "graph GEMM us", "ratio", "graph ratio",
                             "communication us", "TFLOP/s", "peer ratio")
        self.assertTrue(all(0 <= row["hidden"] <= 1 for row in table["rows"]))
        self.assertIn("Peer ratio of auto below 1.0: 1 of 2 rows: matmul_all_reduce on 2, 32x48x64", table["notes"][0])
        result = run(IRIS_BENCH, *options, "--fail-behind")
        self.assertEqual(result.returncode, 1)
        self.assertIn("1 row is slower than the best peer: matmul_all_reduce on 2, 32x48x64 (0.", result.stderr)
        out = self.tables(run(IRIS_BENCH, "matmul", "--share", "--cold", "--no-early", "--rank-counts", "2", "--ops",
                              "all_gather_matmul", "--shapes", "32x48x64", "--variants", "pair", "--json", *FEW))
        self.assert_positive(out["tables"]["matmul"], "graph us", "ratio")
        self.assertIn("Each call has another B than the one before it.", out["tables"]["matmul"]["notes"])
        for wrong, text in ((("--shapes", "1x2"), "is no shape such as 8192x4096x14336"),
                            (("--shapes", "1x64x64"), "each dimension is from the number of ranks"),
                            (("--ops", "all_reduce"), "\"all_reduce\" is none of matmul_all_reduce"),
                            (("--variants", "fast"), "\"fast\" is none of auto, fused, pair, persistent"),
                            (("--peers", self.folder), f"cannot read: {self.folder}: ")):
            with self.subTest(wrong):
                result = run(IRIS_BENCH, "matmul", "--rank-counts", "2", *wrong, *FEW)
                self.assertEqual(result.returncode, 1)
                self.assertIn(text, result.stderr)

    def test_compare_with_a_command(self):
        svg = os.path.join(self.folder, "plot.svg")
        line = r'{"lib": "%s", "op": "%s", "bytes": %s, "n": {ranks}, "us": %s}\n'
        peers = (f"printf 'begins\n{line}{line}{line}' slow all_reduce 1024 1e9 quick all_reduce 1024 1e-3"
                 " slow all_gather 4096 1e9; echo of the peers >&2")
        result = run(IRIS_BENCH, "compare", "--rank-counts", "3,2", "--ops", "all_reduce,all_gather,barrier", "--sizes",
                     "1KiB,4KiB", "--peers-command", peers, "--json", "--svg", svg, *FEW)
        out = self.tables(result)
        self.assertEqual(result.stderr, "of the peers\n" * 2)
        self.assertEqual(out["rank counts"], [2, 3])
        table = out["tables"]["compare"]
        self.assertEqual([(row["operation"], row["ranks"], row["bytes"], row["slow"], row["quick"], row["best peer"])
                          for row in table["rows"]],
                         [row for ranks in (2, 3) for row in (("all_reduce", ranks, 1024, 1e9, 1e-3, "quick"),
                                                              ("all_reduce", ranks, 4096, None, None, None),
                                                              ("all_gather", ranks, 1024, None, None, None),
                                                              ("all_gather", ranks, 4096, 1e9, None, "slow"),
                                                              ("barrier", ranks, None, None, None, None))])
        self.assert_positive(table, "Iris us")
        for row in table["rows"]:
            if row["best peer"] is not None:
                self.assertAlmostEqual(row["ratio"] * row["Iris us"] / row[row["best peer"]], 1)
        self.assertRegex(table["notes"][0], r"^Ratio below 1\.0: 2 of 4 rows: "
                                            r"all_reduce on 2, 1 KiB \(0\.000, quick\); "
                                            r"all_reduce on 3, 1 KiB \(0\.000, quick\)\.$")
        self.assertIn("Config::symmetric = true", table["notes"][1])
        with open(svg, encoding="utf-8") as file:
            # Each operation has ours with 2 and with 3 ranks, and the peer's.
            self.assertEqual(file.read().count("<polyline"), 8)

    def test_compare_with_a_file_or_without_peers(self):
        path = os.path.join(self.folder, "peers")
        with open(path, "w", encoding="utf-8") as file:
            file.write('no figure\n{"lib": "other", "variant": "tree", "op": "barrier", "n": 2, "us": 1e9}\n'
                       '{"lib": "other", "op": "barrier", "n": 64, "us": 1e9}\n')
        arguments = ("compare", "--rank-counts", "2", "--ops", "barrier", *FEW)
        result = run(IRIS_BENCH, *arguments, "--peers", path)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"\nbarrier +2 +- .* 1000000000\.00  other tree  ")
        self.assertIn("\n1 figures of peers are of operations, ranks or bytes", result.stdout)
        result = run(IRIS_BENCH, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"\nbarrier +2 ")
        self.assertIn("No peers: --peers FILE or --peers-command", result.stdout)

    def test_compare_follows_rules_of_tune(self):
        path = os.path.join(self.folder, "rules")
        result = run(IRIS_BENCH, "tune", "--rank-counts", "2", "--ops", "all_reduce", "--sizes", "1KiB,64KiB",
                     "--variants", "two_shot", "--blocks", "1,3", "--threads", "32", "--output", path, *FEW)
        self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        self.assertRegex(text, r"^# iris_bench\n# date: 20\d\d-")
        self.assertIn("\n# rank counts: [2]\n", text)
        self.assertRegex(text, r"\nall_reduce +any +any +two_shot +\d+ +\d+ +\d+\n$")
        # One of its own, which the built-in table would not make.
        with open(path, "a", encoding="utf-8") as file:
            file.write("all_gather any any direct 3 32\n")
        out = self.tables(run(IRIS_BENCH, "compare", "--rank-counts", "2", "--ops", "all_reduce,all_gather", "--sizes",
                              "1KiB", "--rules", path, "--json", *FEW))
        self.assertEqual([row["variant"] for row in out["tables"]["compare"]["rows"]], ["two_shot", "direct"])
        self.assertEqual(out["tables"]["compare"]["rows"][1]["blocks"], 3)

    def test_tune_writes_lines_of_products(self):
        path = os.path.join(self.folder, "rules")
        result = run(IRIS_BENCH, "tune", "--rank-counts", "2", "--ops",
                     "matmul_all_reduce,all_gather,all_gather_matmul", "--shapes", "16x32x48", "--sizes", "1KiB",
                     "--variants", "direct,pair", "--blocks", "1", "--threads", "32", "--output", path, *FEW)
        self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        self.assertRegex(
            text, r"\nall_gather +any +any +direct .*\n# operation  members  m .*\n"
            r"matmul_all_reduce +2 +16 +32 +any +pair\nall_gather_matmul +2 +16 +any +48 +pair\n$")
        out = self.tables(run(IRIS_BENCH, "compare", "--rank-counts", "2", "--ops", "all_gather", "--sizes", "1KiB",
                              "--rules", path, "--json", *FEW))
        self.assertEqual(out["tables"]["compare"]["rows"][0]["variant"], "direct")
        # The table only has GEMMs: collectives keep their own.
        with open(path, "w", encoding="utf-8") as file:
            file.write("matmul_all_reduce any any any any fused\n")
        self.tables(run(IRIS_BENCH, "compare", "--rank-counts", "2", "--ops", "all_gather", "--sizes", "1KiB",
                        "--rules", path, "--json", *FEW))

    def test_wrong_use_of_what_goes_alone(self):
        rules = os.path.join(self.folder, "rules")
        with open(rules, "w", encoding="utf-8") as file:
            file.write("# one\nall_reduce 2 any fast 1 1\n")
        empty = os.path.join(self.folder, "empty")
        with open(empty, "w", encoding="utf-8"):
            pass
        products = os.path.join(self.folder, "products")
        with open(products, "w", encoding="utf-8") as file:
            file.write("# one\n\nmatmul_all_reduce 2 8 8 8 pair\n")
        some = ("compare", "--rank-counts", "2", "--ops", "barrier", *FEW)
        for arguments, text in (
                (("compare", "barrier"), "compare goes alone: start iris_bench once more for barrier\n"),
                (("tune", "compare"), "tune goes alone: start iris_bench once more for compare"),
                (("compare", "--in-process", "2"), "--in-process is not for compare, which takes --rank-counts"),
                (("compare", "--rank-counts", "65"), "--rank-counts"),
                (("compare", "--ops", "all_reduces"), '--ops: "all_reduces" is none of all_reduce, all_gather'),
                (("tune", "--ops", "barrier"), '--ops: "barrier" is none of all_reduce'),
                (("collectives", "--variants", "fast"), '--variants: "fast" is none of'),
                (("tune", "--variants", "auto"), "auto is what the table is for"),
                (("tune", "--json"), "leave out --json"),
                (("compare", "--sizes", "1"), '"1" is no size such as 64KiB'),
                ((*some, "--rules", rules), f"{rules}: line 2 of the rules: no such variant"),
                ((*some, "--rules", products),
                 f"{products}: line 3 of the rules: members of matmul_all_reduce may differ"),
                (("tune", "--shapes", "8x8x8"), "tune --shapes is for GEMMs: name some with --ops"),
                (("tune", "--ops", "matmul_all_reduce", "--shapes", "8x8"), "is no shape such as"),
                (("tune", "--ops", "matmul_all_reduce", "--variants", "direct"), "has no variant of GEMMs"),
                (("tune", "--rank-counts", "2", "--ops", "matmul_all_reduce", "--shapes", "8x8x8", "--variants",
                  "persistent", *FEW), "has none of these GEMMs on this machine"),
                ((*some, "--rules", empty), f"{empty}: there is no rule"),
                ((*some, "--rules", rules + "x"), f"cannot read: {rules}x: "),
                ((*some, "--peers", empty), f"no line of {empty} is a peer's figure such as {{"),
                ((*some, "--peers-command", "echo {ranks}; exit 7"),
                 "the peers' command failed with exit code 7: echo 2; exit 7"),
                ((*some, "--peers-command", "echo {ranks}"), "the peers' command printed no figure such as {"),
                ((*some, "--peers-command", "sleep 300", "--peers-timeout", "1"), "did not end within 1s"),
        ):
            result = run(IRIS_BENCH, *arguments)
            self.assertNotEqual(result.returncode, 0, arguments)
            self.assertIn(text, result.stdout + result.stderr, arguments)
        result = self.ranks(2, *some)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("compare makes its ranks itself, as threads: start it once, not as 2 processes by iris-run",
                      result.stderr)
        # One rank of a launcher is no job.
        self.assertEqual(self.ranks(1, *some).returncode, 0)

    def test_wrong_use(self):
        for arguments, text in (
                ((), "subcommand is required"),
                (("bandwidth", "--bytes", "many"), '"many" is no size such as 64KiB'),
                (("create", "--heaps", "0"), '"0" is no size such as 1GiB'),
                (("bandwith",), "unknown command or option 'bandwith'; see iris_bench --help"),
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
