"""Breaks the device protocols in six ways and shows that ThreadSanitizer sees each, and nothing in the protocols as
they are.

protocols.cc runs the real headers of device/iris with ranks as threads. It is compiled here, by clang with
-fsanitize=thread, once for each mistake of device/iris/impl/mutation.h (IRIS_MUTATE), whatever compiler Bazel uses.

By hand, from the repository root: PYTHONPATH=. python3 tests/mutation/mutation_test.py
"""

import concurrent.futures
import os
import re
import shutil
import subprocess
import tempfile
import unittest

from tests.python import junit

# Runs of each scenario. Without a mistake none may report; with one, each scenario has to report in one of them.
RUNS_UNMUTATED = 5
RUNS_MUTATED = 3
RUN_SECONDS_MAX = 100

BLOCK = ("barrier", "put_signal_block", "all_reduce")
LINES = ("lines", "two_lines")
PUSH = ("push", "push_scatter")
ALL = BLOCK + ("put_signal_warp",) + LINES + PUSH

RUNTIME = ("emu/block", "emu/diagnosis", "emu/fiber", "emu/scheduler")
HOST = ("emu/graph", "emu/memory", "host", "host_functions")
LIBRARIES = [
    "-l:libboost_context.a", "-labsl_symbolize", "-labsl_synchronization", "-labsl_time", "-labsl_base", "-lpthread"
]


def find_clang():
    for version in ("-19", "-18", "-17", "-16", "-15", "-14", ""):
        path = shutil.which("clang++" + version)
        if path:
            return path
    raise RuntimeError("no clang++: install clang-19 (deploy/setup.sh does)")


class MutationTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.clang = find_clang()
        cls.folder = tempfile.mkdtemp(prefix="iris-mutation-", dir="/tmp")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        # The runtime of the emulator is not instrumented, see device/iris/backend/emu/BUILD.bazel.
        runtime = ["-fno-sanitize=thread", "-ftls-model=initial-exec"]
        jobs = [(f"device/iris/backend/{name}.cc", cls.object(name), runtime) for name in RUNTIME]
        jobs += [(f"device/iris/backend/{name}.cc", cls.object(name), []) for name in HOST]
        jobs += [("tests/mutation/protocols.cc", f"protocols{n}.o", [f"-DIRIS_MUTATE={n}"]) for n in range(7)]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for result in [pool.submit(cls.compile, *job) for job in jobs]:
                result.result()

    @staticmethod
    def object(name):
        return name.replace("/", "_") + ".o"

    @classmethod
    def compile(cls, source, out, options):
        cls.call([
            cls.clang, "-std=c++20", "-O1", "-g1", "-fsanitize=thread", "-DIRIS_TSAN=1", "-DIRIS_BACKEND_EMU=1",
            "-Wall", "-Werror", "-I.", "-Iclient", "-Idevice", *options, "-c", source, "-o",
            os.path.join(cls.folder, out)
        ])

    @classmethod
    def link(cls, number):
        program = os.path.join(cls.folder, f"protocols{number}")
        objects = [os.path.join(cls.folder, cls.object(name)) for name in (f"protocols{number}", *HOST, *RUNTIME)]
        cls.call([cls.clang, "-fsanitize=thread", *objects, *LIBRARIES, "-o", program])
        return program

    @staticmethod
    def call(command):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stdout}")

    @staticmethod
    def execute(program, scenario, symbolize):
        """Returns exit code, kinds of the reports, and output."""
        options = f"exitcode=66:halt_on_error=0:atexit_sleep_ms=0:symbolize={symbolize}"
        environment = dict(os.environ, TSAN_OPTIONS=options)
        done = subprocess.run([program, scenario], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=RUN_SECONDS_MAX, env=environment, check=False)
        return done.returncode, re.findall(r"WARNING: ThreadSanitizer: (.*?) \(pid", done.stdout), done.stdout

    def expect_caught(self, number, what, scenarios):
        program = self.link(number)
        for scenario in scenarios:
            runs = 0
            caught = False
            while not caught and runs < RUNS_MUTATED:
                runs += 1
                caught = "data race" in self.execute(program, scenario, 0)[1]
            print(f"\nmutation {number}, {what}: {scenario}: caught is {caught} after {runs} runs", flush=True)
            self.assertTrue(caught, f"{what} goes unnoticed in {scenario}")

    def test_0_unmutated_protocols_have_no_report_and_right_answers(self):
        program = self.link(0)
        for scenario in ALL + ("packets",):
            for _ in range(RUNS_UNMUTATED):
                code, kinds, output = self.execute(program, scenario, 1)
                self.assertEqual((code, kinds), (0, []), f"{scenario}:\n{output}")
            print(f"\nno mutation: {scenario}: no report in {RUNS_UNMUTATED} runs", flush=True)

    def test_1_release_made_relaxed_is_caught(self):
        self.expect_caught(1, "release made relaxed", ALL)

    def test_2_acquire_made_relaxed_is_caught(self):
        self.expect_caught(2, "acquire made relaxed", ALL)

    def test_3_block_sync_missing_before_publish_is_caught(self):
        self.expect_caught(3, "no block sync before publish", BLOCK + PUSH)

    def test_4_block_sync_missing_after_consume_is_caught(self):
        self.expect_caught(4, "no block sync after consume", BLOCK)

    def test_5_block_sync_missing_inside_a_block_is_caught(self):
        self.expect_caught(5, "no block sync inside a block", ("put_signal_block",))

    def test_6_warp_sync_missing_is_caught(self):
        self.expect_caught(6, "no warp sync", ("put_signal_warp",) + LINES)


if __name__ == "__main__":
    junit.main()
