"""Runs driver_smoke as users do: on emulated devices, and on a fake of each vendor's library."""

import subprocess
import unittest

from tests.python import junit

SMOKE = "device/driver/driver_smoke"
FAKE = "device/driver/testing/libfake_gpu.so"


def run(*flags):
    return subprocess.run([SMOKE, "--mib", "8", *flags], capture_output=True, text=True, timeout=240, check=False)


class DriverSmokeTest(unittest.TestCase):

    def expect_all_worked(self, done, n_ranks):
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("all worked", done.stdout)
        self.assertRegex(done.stdout, r"share of other memory: INVALID_ARGUMENT: .*or copy it into the heap")
        for rank in range(n_ranks):
            self.assertRegex(done.stdout, rf"rank {rank}: share of own memory .* ms, 2 pieces")
            self.assertRegex(done.stdout,
                             rf"rank {rank} round 1: base 0x[0-9a-f]+.* reserve .* import .* map .* access ")

    def test_emulated_devices(self):
        self.expect_all_worked(run("--backend", "emu", "--rounds", "2"), 4)

    def test_both_vendors(self):
        for backend in ("cuda", "hip"):
            with self.subTest(backend=backend):
                self.expect_all_worked(run("--backend", backend, "--library", FAKE, "--rounds", "2"), 2)

    def test_a_failure_is_told(self):
        done = run("--backend", "cuda", "--library", "/nowhere/libcuda.so.1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nowhere/libcuda.so.1", done.stdout)


if __name__ == "__main__":
    junit.main()
