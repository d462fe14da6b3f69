"""Each example as a user runs it: with iris-run on a real irisd, on one rank, two and four; and without irisd."""

import contextlib
import io
import json
import os
import re
import subprocess
import tempfile
import time
import unittest
import unittest.mock

from examples import run_all
from tests.python import irisd
from tests.python import junit
from tests.python import patience

IRIS_RUN = "client/ctl/iris-run"
IRIS_CTL = "client/ctl/iris-ctl"
PATIENCE_SECONDS = 240

# The examples that take m, n and k, with the arguments before.
PRODUCTS = [["08_gemm_all_scatter"], ["09a_gemm_all_reduce_atomics"], ["09b_gemm_all_reduce_locks"],
            ["11a_overlap_streams", "bulk"], ["11a_overlap_streams", "streams"],
            ["11b_overlap_blocks"], ["11c_overlap_warps"],
            ["12_all_gather_gemm", "pull"], ["12_all_gather_gemm", "push"]]


def run_example(name, n_ranks, *arguments, environment, job=None):
    return subprocess.run(
        [IRIS_RUN, "-n", str(n_ranks), *(["--job", job] if job else []), "--", f"examples/{name}", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_SECONDS, check=False,
        env=environment)


class Examples(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.daemon = irisd.Irisd(memory="1GiB")
        cls.addClassCleanup(cls.daemon.stop)

    def ctl(self, *arguments):
        result = subprocess.run([IRIS_CTL, *arguments, "--format", "json"], stdout=subprocess.PIPE, text=True,
                                timeout=60, check=True, env=self.daemon.environment())
        return json.loads(result.stdout)

    def check(self, name, n_ranks, *arguments):
        result = run_example(name, n_ranks, *arguments, environment=self.daemon.environment())
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(result.stderr, "")
        end = time.monotonic() + 60
        while self.ctl("sessions"):
            self.assertLess(time.monotonic(), end, "sessions stay")
        self.assertEqual(self.ctl("jobs"), [])
        self.assertEqual(self.ctl("status")["heap_bytes"], 0)
        return result.stdout

    def run_all(self, *arguments):
        """What run_all.py gives and prints, as it is called by users."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out), unittest.mock.patch.dict(os.environ, self.daemon.environment()):
            code = run_all.main(["--programs", "examples", "--iris-run", IRIS_RUN, *arguments])
        return code, out.getvalue()

    def test_all_in_one_table(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "table.json")
            code, out = self.run_all("--ranks", "4", "--json", path)
            self.assertEqual(code, 0, out)
            with open(path, encoding="utf-8") as file:
                rows = json.load(file)
        self.assertEqual({row["example"] for row in rows}, set(run_all.examples_in("examples")))
        self.assertEqual({(row["result"], row["backend"]) for row in rows}, {("ok", "emu")})
        self.assertEqual({row["ranks"] for row in rows}, {4})
        self.assertIn(f"{len(rows)} of {len(rows)} runs were right", out)

    def test_products_on_one_rank_and_of_odd_shapes(self):
        code, out = self.run_all("--ranks", "1", "--only", "06,07,08,09,11,12")
        self.assertEqual(code, 0, out)
        # No dimension is a multiple of a tile or of 16 bytes.
        for name, *words in PRODUCTS:
            self.assertIn("result ok", self.check(name, 3, *words, "39", "51", "45"))

    def test_shapes_that_cannot_be_dealt_out_are_refused(self):
        for name, *words in PRODUCTS:
            result = run_example(name, 2, *words, "9", "9", "9", environment=self.daemon.environment())
            self.assertEqual(result.returncode, 1)
            self.assertIn("a multiple of the number of ranks, 2", result.stderr)

    def test_words_that_cannot_be_are_refused_with_the_usage(self):
        for name, *words in PRODUCTS:
            for sizes in (["0"], ["-5", "96", "64"], ["1.5"], ["96", "96", "99999999999999"], ["96", "96", "64", "7"]):
                with self.subTest(name=name, sizes=sizes):
                    self.wrong_usage(name, *words, *sizes)
        for name, *words in (("06_bandwidth_matrix", "load", "0"), ("06_bandwidth_matrix", "load", "1x"),
                             ("06_bandwidth_matrix",), ("07_atomic_matrix", "sub"), ("07_atomic_matrix", "add", "2"),
                             ("11a_overlap_streams", "96", "96", "64"), ("12_all_gather_gemm",),
                             ("17_moe_layer", "--tokens", "5"), ("18_gpt_step", "--layers", "3")):
            with self.subTest(name=name, words=words):
                self.wrong_usage(name, *words)

    def wrong_usage(self, name, *words):
        result = run_example(name, 1, *words, environment=self.daemon.environment())
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn(f"error: usage: {name} ", result.stderr)

    def test_help_ends_with_0_and_needs_no_irisd(self):
        for name in run_all.examples_in("examples"):
            if int(name[:2]) < 6:
                continue  # no words, and no help
            with self.subTest(name):
                result = subprocess.run([f"examples/{name}", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, timeout=60, check=False,
                                        env={**os.environ, "IRIS_RUNTIME_DIR": "/tmp/no-irisd"})
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                self.assertRegex(result.stdout, f"[uU]sage: {name} ")

    def test_flags_that_cannot_be_end_with_1(self):
        for name, *flags in (("10_digits_training", "--epochs", "0"), ("14_jacobi", "--rows", "-1"),
                             ("15_flash_decode", "--nonsense"), ("16_ring_attention", "--tokens", "x")):
            with self.subTest(name):
                result = run_example(name, 1, *flags, environment=self.daemon.environment())
                self.assertEqual(result.returncode, 1)
                self.assertIn(flags[0], result.stderr)

    def test_ranks_that_an_example_cannot_do_are_refused(self):
        result = run_example("18_gpt_step", 3, environment=self.daemon.environment())
        self.assertEqual(result.returncode, 1)
        self.assertIn("the 8 heads are dealt out evenly: to 1, 2, 4 or 8 ranks, and not to 3", result.stderr)

    def test_01_hello_heap(self):
        for n_ranks in (1, 2, 4):
            out = self.check("01_hello_heap", n_ranks)
            self.assertEqual(len(set(re.findall(r"offset (0x[0-9a-f]+)", out))), 1, out)
            for rank in range(n_ranks):
                self.assertIn(f"rank {rank} says {1000 * rank}, {1000 * rank + 1}", out)

    def test_02_put_get(self):
        for n_ranks in (1, 2, 4):
            out = self.check("02_put_get", n_ranks)
            for rank in range(n_ranks):
                self.assertIn(f"rank {rank} has 1048576 floats of rank {(rank - 1) % n_ranks},", out)

    def test_03_atomics(self):
        for n_ranks in (1, 2, 4):
            self.assertIn(f"{2048 * n_ranks} tickets, each drawn once", self.check("03_atomics", n_ranks))

    def test_04_message_passing(self):
        for n_ranks in (1, 2, 4):
            self.assertEqual(self.check("04_message_passing", n_ranks).count("sent 200 messages"), n_ranks)

    def test_05_all_reduce(self):
        for n_ranks in (1, 2, 4):
            self.assertEqual(self.check("05_all_reduce", n_ranks).count("right on every element"), 2)

    def test_18_gpt_step(self):
        for n_ranks in (2, 4):
            out = self.check("18_gpt_step", n_ranks)
            self.assertEqual(len(re.findall(rf"rank \d of {n_ranks}: 2400 logits up to .* of one rank's", out)),
                             n_ranks, out)

    def figure(self, name, n_ranks, *arguments):
        """The value of the example's last line, which has a fixed form."""
        out = self.check(name, n_ranks, *arguments)
        last = re.fullmatch(r"\[0\] result ok figure (\d+\.\d) us", out.splitlines()[-1])
        self.assertTrue(last, out)
        self.assertGreater(float(last.group(1)), 0)
        return out

    def refusal(self, name, n_ranks, *arguments):
        """What it says of sizes that it cannot do: in its last line, and as an error."""
        result = run_example(name, n_ranks, *arguments, environment=self.daemon.environment())
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        said = re.search(r"\[\d\] result failed (.*)\n", result.stdout).group(1)
        self.assertIn(f"error: {said}\n", result.stderr)
        return said

    def test_14_jacobi(self):
        for n_ranks, rows, columns in ((1, 5, 70), (2, 4, 3), (4, 21, 100)):
            out = self.figure("14_jacobi", n_ranks, "--rows", str(rows), "--columns", str(columns), "--steps", "9")
            self.assertIn(f"9 steps on {rows} x {columns} points: the same bits on {n_ranks} ranks and on one", out)
        self.assertIn("2 rows for each of the 4 ranks", self.refusal("14_jacobi", 4, "--rows", "7"))

    def test_15_flash_decode(self):
        for n_ranks, more in ((1, ()), (2, ("--dtype", "f16", "--dim", "64")), (4, ("--kv-heads", "2")),
                              (3, ("--tokens", "2")), (4, ("--splits", "5", "--tokens", "333"))):
            out = self.figure("15_flash_decode", n_ranks, "--heads", "4", "--rounds", "3",
                              *(() if "--tokens" in more else ("--tokens", "200")), *more)
            self.assertIn(f"on {n_ranks} ranks", out)
        self.assertIn("--kv-heads must divide --heads", self.refusal("15_flash_decode", 2, "--kv-heads", "3"))

    def test_16_ring_attention(self):
        for n_ranks, tokens, more in ((1, 50, ()), (2, 160, ()), (3, 210, ("--causal",)), (4, 4, ())):
            self.figure("16_ring_attention", n_ranks, "--heads", "2", "--tokens", str(tokens), "--rounds", "1",
                        "--check", "500", *more)
        self.assertIn("must be a multiple of the 4 ranks", self.refusal("16_ring_attention", 4, "--tokens", "30"))

    def test_10_digits_training(self):
        out = self.check("10_digits_training", 4, "--epochs", "12", "--rate", "0.03")
        self.assertGreaterEqual(float(re.search(r"test accuracy ([\d.]+)", out).group(1)), 0.94)
        self.assertIn("weights identical on 4 ranks", out)
        losses = [float(loss) for loss in re.findall(r"epoch +\d+ +loss +([\d.]+)", out)]
        self.assertEqual(len(losses), 12)
        self.assertLess(losses[-1], losses[0] / 4)

    def test_10_digits_training_gives_the_same_on_every_run(self):
        one, two = (self.check("10_digits_training", 2, "--epochs", "2") for _ in range(2))
        self.assertEqual(one, two)

    def test_10_digits_training_names_a_data_set_that_is_missing(self):
        result = run_example("10_digits_training", 2, "--data", "/nowhere.csv", environment=self.daemon.environment())
        self.assertEqual(result.returncode, 1)
        self.assertIn("/nowhere.csv", result.stderr)

    def test_10_digits_training_is_visible_while_it_runs(self):
        process = subprocess.Popen(
            [IRIS_RUN, "-n", "2", "--job", "seen", "--", "examples/10_digits_training", "--epochs", "100000"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.daemon.environment())
        try:
            while "epoch   1" not in patience.line(process):
                self.assertIsNone(process.poll())
            self.assertEqual([(j["job"], j["state"]) for j in self.ctl("jobs")], [("seen", "ready")])
            self.assertEqual([h["rank"] for h in self.ctl("heaps", "--job", "seen")], [0, 1])
            names = {a["name"]: a for a in self.ctl("allocations", "--job", "seen")}
            self.assertEqual(names["weights"]["shape"], [4810])
            self.assertIn("gradients", names)
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE_SECONDS)
        end = time.monotonic() + 60
        while self.ctl("jobs"):
            self.assertLess(time.monotonic(), end, "the job stays")

    def test_a_killed_rank_ends_the_example_with_its_name(self):
        process = subprocess.Popen(
            [IRIS_RUN, "-n", "4", "--job", "killed", "--", "examples/10_digits_training", "--epochs", "100000"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.daemon.environment())
        try:
            while "epoch   1" not in patience.line(process):
                self.assertIsNone(process.poll())
            pids = {r["rank"]: r["pid"] for r in self.ctl("jobs")[0]["ranks"]}
            os.kill(pids[2], 9)
            _, err = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
        self.assertEqual(process.returncode, 137)
        self.assertIn(f"rank 2 of 4 (pid {pids[2]}) was ended by SIGKILL", err)

    def test_17_moe_layer(self):
        for n_ranks in (1, 2, 4):
            out = self.check("17_moe_layer", n_ranks)
            for rank in range(n_ranks):
                self.assertIn(f"rank {rank}: {20 + 3 * rank} tokens are right", out)
            rows = sum(int(count) for count in re.findall(r"expert \d+ got (\d+) rows", out))
            self.assertEqual(rows, 2 * sum(20 + 3 * rank for rank in range(n_ranks)))


class Table(unittest.TestCase):
    """What run_all.py makes of what an example prints."""

    def judged(self, code, out, err=""):
        run = run_all.Run("08_product", ["8"], 2)
        run.judge(code, out, err)
        return run

    def test_a_figure(self):
        run = self.judged(0, "[0] some words\n[0] result ok figure 12.5 us\n")
        self.assertEqual((run.ok, run.figure, run.unit), (True, 12.5, "us"))
        self.assertTrue(self.judged(0, "result ok\n").ok)

    def test_what_is_not_right(self):
        for code, out, err, what in (
                (1, "", "[1] error: a wrong element\n", "failed: exit code 1: [1] error: a wrong element"),
                (1, "[0] result ok figure 1 us\n", "", "failed: exit code 1: [0] result ok figure 1 us"),
                (124, "", "", "failed: no end after the time"),
                (0, "[0] all right\n", "", 'failed: it has printed no line that begins with "result"'),
                (0, "[0] result ok\n[1] result ok\n", "", 'failed: 2 lines that begin with "result"'),
                (0, "[0] result failed it is wrong\n", "", "failed: exit code 0: [0] result failed it is wrong")):
            with self.subTest(what):
                run = self.judged(code, out, err)
                self.assertEqual((run.ok, run.result), (False, what))

    def test_a_table_with_peers(self):
        right, wrong = self.judged(0, "result ok figure 12.5 us\n"), self.judged(1, "", "error: x: y\n")
        peers = {"08_product 8": {"2": {"figure": 10, "unit": "us", "name": "other"}}}
        self.assertEqual(run_all.table([right, wrong], "emu", peers), [
            "| example      | backend | ranks | result | figure  | peer          |",
            "|--------------|---------|-------|--------|---------|---------------|",
            "| 08_product 8 | emu     | 2     | ok     | 12.5 us | 10 us (other) |",
            "| 08_product 8 | emu     | 2     | failed | -       | 10 us (other) |",
            "08_product 8 on 2: failed: exit code 1: error: x: y", "    error: x: y"])

    def test_wrong_arguments_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            peers = os.path.join(folder, "peers.json")
            for text, what in (("[]", "it is not an object"), ('{"a": 1}', "a: not an object"), ("{", "Expecting"),
                               ('{"a": {"x": {}}}', "a: x: not a number of ranks"),
                               ('{"a": {"2": {"figure": true}}}', "a: 2: figure, unit and name")):
                with open(peers, "w", encoding="ascii") as file:
                    file.write(text)
                self.refused(what, "--peers", peers)
        self.refused("--ranks takes numbers", "--ranks", "2,0")
        self.refused("/nowhere is no folder", "--programs", "/nowhere")
        self.refused("/nowhere is no program", "--iris-run", "/nowhere")

    def refused(self, what, *arguments):
        err = io.StringIO()
        with contextlib.redirect_stderr(err), self.assertRaises(SystemExit) as end:
            run_all.main(["--programs", "examples", "--iris-run", IRIS_RUN, *arguments])
        self.assertEqual(end.exception.code, 2)
        self.assertIn(what, err.getvalue())


class WithoutIrisd(unittest.TestCase):

    def test_says_which_socket_and_how_to_start_irisd(self):
        result = run_example("05_all_reduce", 4, environment={**os.environ, "IRIS_RUNTIME_DIR": "/tmp/no-irisd"})
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"\[\d\] error: .*/tmp/no-irisd/session\.sock")
        self.assertIn("irisd --runtime-dir /tmp/no-irisd", result.stderr)
        self.assertEqual(result.stdout, "")


if __name__ == "__main__":
    junit.main()
