"""The package for Python out of the unpacked bundle, on 1, 2 and 4 ranks of a real irisd with emulated devices.

What the ranks do is in ranks.py: a function for each case. The programs of README.md and docs/ are run, too. Ranks that
use torch or Triton are forks of a process that has imported them (prepared.py).
"""

import glob
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from tests.bundle import bundle_case
from tests.bundle.python import prepared
from tests.docs import snippets
from tests.python import junit

RANKS = os.path.abspath("tests/bundle/python/ranks.py")
FOREIGN = os.path.abspath("tests/bundle/python/foreign_ranks.py")
HOST = os.path.abspath("tests/bundle/python/reference_host_ranks.py")
COLLECTIVES = os.path.abspath("tests/bundle/python/reference_collectives_ranks.py")
TRITON = os.path.abspath("tests/bundle/python/triton_ranks.py")
TILES = os.path.abspath("tests/bundle/python/reference_tiles_ranks.py")
PROGRAMS = os.path.abspath("tests/bundle/python/reference_programs_ranks.py")
PLATFORM = os.path.abspath("tests/bundle/python/reference_platform_ranks.py")
FETCHED = "/usr/local/lib/iris/triton"  # as triton_ranks.py has it
HAS_NUMPY = importlib.util.find_spec("numpy") is not None
HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_TRITON = importlib.util.find_spec("triton") is not None or os.path.isfile(f"{FETCHED}/triton.txt")
NO_TRITON = (f"triton is neither installed nor in {FETCHED}: deploy/setup.sh fetches it there, where pip can reach "
             "the Python Package Index")
TORCH = "torch" if HAS_TORCH else ""


def knows(host):
    try:
        return bool(socket.getaddrinfo(host, None))
    except OSError:
        return False


# What a process imports before it forks ranks.
PREPARED = {"torch": ("numpy", "torch", "torch.distributed"),
            "triton": (*(("torch",) if HAS_TORCH else ()), "triton", "triton.language", "triton.runtime.interpreter")}
PREPARED_OF = {FOREIGN: "torch", HOST: "torch", COLLECTIVES: "torch", TRITON: "triton", TILES: "triton",
               PROGRAMS: "triton", PLATFORM: "triton"}
PATIENCE_SECONDS = 240


@unittest.skipUnless(HAS_NUMPY, "numpy is not installed")
class Ranks(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="iris-python-", dir="/tmp")
        cls.case = bundle_case.BundleCase
        cls.case.setUpClass()
        cls.bundle = cls.case.second
        cls.prepared = {}
        cls.runtime_dir = os.path.join(cls.folder, "run")
        os.mkdir(cls.runtime_dir)
        with open(os.path.join(cls.folder, "log"), "wb") as log:
            cls.daemon = subprocess.Popen(
                [f"{cls.bundle}/bin/irisd", "--runtime-dir", cls.runtime_dir, "--backend", "emu", "--emu-devices", "4",
                 "--emu-memory", "1GiB", "--no-self-check"], stdout=log, stderr=log,
                env=bundle_case.clean_environment())
        end = time.monotonic() + PATIENCE_SECONDS
        while not os.path.exists(os.path.join(cls.runtime_dir, "session.sock")):
            assert cls.daemon.poll() is None and time.monotonic() < end, "irisd does not start"
            time.sleep(0.01)

    @classmethod
    def tearDownClass(cls):
        for each in cls.prepared.values():
            each.close()
        cls.daemon.terminate()
        assert cls.daemon.wait(PATIENCE_SECONDS) == 0, "irisd ended with an error"
        cls.case.tearDownClass()
        shutil.rmtree(cls.folder)

    def environment(self, **more):
        return bundle_case.clean_environment(
            IRIS_RUNTIME_DIR=self.runtime_dir, PYTHONPATH=f"{self.bundle}/lib/python", PYTHONDONTWRITEBYTECODE="1",
            OMP_NUM_THREADS="1", **more)

    def python(self, name):
        """The command that runs a program, in a process that has imported these packages if they are named."""
        if not name:
            return (sys.executable,)
        if name not in self.prepared:
            environment = self.environment()
            if name == "triton":
                environment.update(TRITON_INTERPRET="1", PYTHONPATH=f"{environment['PYTHONPATH']}:{FETCHED}")
            self.prepared[name] = prepared.Prepared(f"{self.folder}/{name}.sock", PREPARED[name], environment)
        return self.prepared[name].command

    def ranks(self, n, *command, code=0, cwd=None, imported="", **variables):
        """What the ranks print; they end with this code."""
        python = self.python(imported or PREPARED_OF.get(command[0]))
        result = subprocess.run([f"{self.bundle}/bin/iris-run", "-n", str(n), "--", *python, *command],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                                timeout=PATIENCE_SECONDS, env=self.environment(**variables), cwd=cwd)
        self.assertEqual(result.returncode, code, f"{command} on {n} ranks\n{result.stdout}")
        return result.stdout

    def on(self, case, *counts, program=RANKS, **settings):
        for n in counts:
            with self.subTest(ranks=n):
                self.ranks(n, program, case, **settings)

    def test_world(self):
        self.on("world", 1, 2, 4)

    def test_a_device_barrier_needs_few_words(self):
        self.on("a_device_barrier_needs_few_words", 1, 2, 4)

    def test_calls_that_wait_for_each_other(self):
        self.on("calls_that_wait_for_each_other", 2, 3)

    def test_collectives(self):
        self.on("collectives", 1, 2, 4, imported=TORCH)

    def test_products_that_communicate(self):
        self.on("matmuls", 1, 2, 3)

    def test_a_mixture_of_experts(self):
        self.on("experts", 1, 3)

    def test_arrays_that_are_not_what_they_look_like(self):
        self.on("wrong_arrays", 1, 2, imported=TORCH)

    def test_norms_of_sums(self):
        self.on("norms", 1, 3)

    def test_tensors(self):
        self.on("tensors", 1, 2, 4, imported=TORCH)

    def test_memory(self):
        self.on("memory", 1, 2, 4)

    def test_arrays_of_the_ranks_own_become_symmetric(self):
        self.on("as_symmetric", 1, 3)

    def test_the_functions_of_torchs_allocator(self):
        self.on("torch_allocator", 1, 2, imported=TORCH)

    def test_what_a_call_cannot_use(self):
        self.on("misuse", 1, 2)

    def test_two_contexts(self):
        self.on("two_contexts", 1)

    def test_factories(self):
        self.on("factories", 1, 2, imported=TORCH)

    def test_bad_input(self):
        self.on("bad_input", 1, 2, 4, imported=TORCH)

    def test_tensors_are_dropped_in_other_orders_on_each_rank(self):
        self.on("garbage", 1, 2, ROUNDS="2500")
        self.on("garbage", 4, ROUNDS="10000")

    def test_tensors_are_dropped_in_every_order_against_every_order(self):
        self.on("orders_of_garbage", 1, 2, 4)

    def test_teams_agree_each_by_themselves(self):
        self.on("teams_garbage", 1, 2, 4)

    def test_tracing(self):
        self.on("tracing", 1, 2, FOLDER=self.folder, IRIS_TRACE_EVENTS="1000")
        self.on("no_tracing", 2, FOLDER=self.folder)

    def test_symmetric_memory(self):
        self.on("symm_mem", 1, 2, 4, imported=TORCH)

    @unittest.skipUnless(HAS_TORCH, "torch is not installed")
    def test_host_api_of_the_reference(self):
        for n in (1, 2, 4):
            said = self.ranks(n, FOREIGN, "reference", IRIS_LOG_LEVEL="info")
            self.assertIn(f"[iris] [{n - 1}/{n}] shown\n", said)
            self.assertIn(f"[iris] [{n - 1}/{n}] of {n - 1}\n", said)
            self.assertNotIn("hidden", said)
        self.on("devices", 1, 2, program=FOREIGN)
        self.on("places", 1, program=FOREIGN)

    @unittest.skipUnless(HAS_TORCH, "torch is not installed")
    def test_the_reference_s_factories_and_heap(self):
        for n in (1, 2, 4):
            self.ranks(n, HOST)

    @unittest.skipUnless(HAS_TORCH, "torch is not installed")
    def test_groups_of_torch(self):
        self.on("torch_groups", 2, imported=TORCH, MEETING=os.path.join(self.folder, "meeting"))

    @unittest.skipUnless(HAS_TORCH, "torch is not installed")
    def test_collectives_of_the_reference(self):
        for case in ("ccl", "fused", "groups"):
            self.on(case, 2, 4, program=COLLECTIVES, MEETING=os.path.join(self.folder, "groups"))

    @unittest.skipUnless(HAS_TORCH, "torch is not installed")
    def test_training_with_parameters_in_the_heap(self):
        self.on("training", 1, 2, 4, imported=TORCH)

    @unittest.skipUnless(HAS_TRITON, NO_TRITON)
    def test_kernels_of_triton_interpreted(self):
        self.on("all_cases", 1, 2, program=TRITON)

    @unittest.skipUnless(HAS_TRITON, NO_TRITON)
    def test_the_tiles_of_the_reference_interpreted(self):
        self.on("all_cases", 1, 2, 4, program=TILES)

    @unittest.skipUnless(HAS_TRITON, NO_TRITON)
    @unittest.skipUnless(HAS_TORCH, "torch is not installed")
    def test_programs_of_the_reference_interpreted(self):
        self.on("all_cases", 2, 4, program=PROGRAMS)

    @unittest.skipUnless(HAS_TRITON, NO_TRITON)
    @unittest.skipUnless(HAS_TORCH, "torch is not installed")
    def test_examples_with_kernels_of_triton_interpreted(self):
        for example, said in (("message_passing", "put_signal: 32768 bytes in "), ("get_put", "each rank and the next"),
                              ("load_store_bandwidth", "store of 128 KiB, every value right"),
                              ("atomics", "torch.int64, 4 programs: add sub or and max xor min cas xchg end at"),
                              ("all_reduce", "result ok figure"), ("flash_decode", "result ok figure"),
                              ("ring_attention", "result ok figure")):
            with self.subTest(example):
                path = f"{self.bundle}/share/iris/examples/python/{example}.py"
                self.assertIn(said, self.ranks(2, TRITON, path))

    @unittest.skipUnless(HAS_TRITON, NO_TRITON)
    @unittest.skipUnless(HAS_TORCH, "torch is not installed")
    def test_tracing_and_helpers_of_the_reference(self):
        for n in (2, 4):
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                self.on("all_cases", n, program=PLATFORM, FOLDER=folder)
        self.on("simulation", 2, program=PLATFORM, FOLDER=self.folder, IRIS_SIMULATION="1",
                IRIS_HEAP_BASES_PREFIX="here")

    @unittest.skipUnless(HAS_TRITON, NO_TRITON)
    @unittest.skipUnless(HAS_TORCH, "torch is not installed")
    @unittest.skipUnless(knows("localhost"), "torch starts ranks by the name localhost, which is not known here")
    def test_benchmarks_of_the_reference_start_their_ranks(self):
        subprocess.run([sys.executable, PLATFORM, "benchmarks"], check=True, timeout=PATIENCE_SECONDS,
                       env=self.environment(FOLDER=self.folder))

    def programs_of_the_pages(self, wanted, *runner, **settings):
        """Runs what needs the wanted package on two ranks. They print the same where the program says so."""
        n_run = 0
        for page in ["README.md", *sorted(glob.glob("docs/**/*.md", recursive=True))]:
            with open(page, encoding="utf-8") as file:
                programs = snippets.programs(file.read(), page)
            for line, source, fragment in programs:
                needs = [package for package in ("triton", "torch") if f"import {package}" in source]
                if fragment or (needs[0] if needs else None) != wanted:
                    continue
                n_run += 1
                with self.subTest(f"{page}:{line}"), tempfile.TemporaryDirectory(dir=self.folder) as folder:
                    path = os.path.join(folder, "program.py")
                    with open(path, "w", encoding="utf-8") as file:
                        file.write(source)
                    said = self.ranks(2, *runner, path, cwd=folder, IRIS_HEAP_BYTES="256M", **settings)
                    if "# the same on all ranks" in source:
                        self.assertEqual(len({text.split("] ", 1)[1] for text in said.splitlines()}), 1, said)
        self.assertGreater(n_run, 1)

    def test_programs_of_the_pages(self):
        self.programs_of_the_pages(None)

    @unittest.skipUnless(HAS_TORCH, "torch is not installed")
    def test_programs_of_the_pages_with_torch(self):
        self.programs_of_the_pages("torch", imported=TORCH)

    @unittest.skipUnless(HAS_TORCH, "torch is not installed")
    @unittest.skipUnless(HAS_TRITON, NO_TRITON)
    def test_programs_of_the_pages_with_kernels_of_triton(self):
        self.programs_of_the_pages("triton", TRITON)

    def test_examples_without_kernels(self):
        path = f"{self.bundle}/share/iris/examples/python/moe_layer.py"
        for n in (1, 4):
            self.assertIn("result ok figure", self.ranks(n, path))

    def test_functions_for_kernels_say_what_they_need(self):
        program = ("import sys\nsys.modules['triton'] = None\nimport iris\n"
                   "assert not hasattr(iris, 'load') and not hasattr(iris, 'x') and hasattr(iris, 'Context')\n"
                   "try:\n    iris.load\nexcept AttributeError as error:\n    print(error)")
        said = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True,
                              timeout=60, env=self.environment()).stdout
        self.assertRegex(said, r"^iris\.load is for kernels of Triton.*: install the package triton\n$")

    def test_a_rank_that_dies_is_named(self):
        for n in (2, 4):
            said = self.ranks(n, RANKS, "a_rank_ends")
            self.assertEqual(said.count("told: host barrier"), n - 1, said)

    def test_a_context_that_nobody_closes_is_left(self):
        for n in (1, 2, 4):
            said = self.ranks(n, RANKS, "left_at_the_end")
            self.assertNotIn("died", said)
            self.assertNotIn("hung up", said)

    def test_nothing_is_left_in_irisd(self):
        self.ranks(2, RANKS, "world")
        jobs = subprocess.run([f"{self.bundle}/bin/iris-ctl", "jobs", "--format", "json"], stdout=subprocess.PIPE,
                              text=True, check=True, env=self.environment(), timeout=60).stdout
        self.assertNotIn('"run-', jobs)

    def test_iris_run_as_a_module(self):
        program = os.path.join(self.folder, "program.py")
        with open(program, "w", encoding="utf-8") as file:
            file.write("import iris, sys\nwith iris.Context(1 << 24) as c:\n"
                       "    print(c.rank, c.n_ranks, sys.argv[1:], c.all_reduce(c.ones(2)).tolist())\n"
                       "    c.barrier()\n")
        for command in ([program, "-n", "x"], ["--no-prefix", "--", sys.executable, program, "-n", "x"],
                        ["--", program, "-n", "x"]):
            result = subprocess.run([sys.executable, "-m", "iris.run", "-n", "2", *command], stdout=subprocess.PIPE,
                                    stderr=subprocess.STDOUT, text=True, check=False, timeout=PATIENCE_SECONDS,
                                    env=self.environment())
            self.assertEqual(result.returncode, 0, result.stdout)
            for rank in (0, 1):
                self.assertIn(f"{rank} 2 ['-n', 'x'] [2.0, 2.0]", result.stdout)
        result = subprocess.run([sys.executable, "-m", "iris.run", "--help"], stdout=subprocess.PIPE, text=True,
                                check=False, timeout=60, env=self.environment())
        self.assertIn("Usage: iris-run", result.stdout)

    def test_no_irisd_is_said_with_the_library_s_text(self):
        command = [sys.executable, "-c", "import iris\ntry:\n    iris.Context(connect_timeout=0.1)\n"
                                         "except iris.UnavailableError as e:\n    print(int(e.code), e)"]
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60,
                              env=dict(self.environment(), IRIS_RUNTIME_DIR="/nowhere")).stdout
        self.assertIn("14 ", said)
        self.assertIn("/nowhere/session.sock", said)


if __name__ == "__main__":
    junit.main()
