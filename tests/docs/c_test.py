"""The program of docs/c.md, run as a user runs it."""

import os
import subprocess
import unittest

from tests.python import irisd
from tests.python import junit

PROGRAM = "tests/docs/c_page"


def run(n_ranks, environment):
    return subprocess.run(["client/ctl/iris-run", "-n", str(n_ranks), "--", PROGRAM], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=240, check=False, env=environment)


class Program(unittest.TestCase):

    def test_reads_its_neighbour_and_sums(self):
        daemon = irisd.Irisd()
        self.addCleanup(daemon.stop)
        for n_ranks in (1, 3):
            result = run(n_ranks, daemon.environment())
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            total = sum(1000 * rank + 5 for rank in range(n_ranks))
            for rank in range(n_ranks):
                after = (rank + 1) % n_ranks
                self.assertIn(f"rank {rank} read {1000 * after + 5} of rank {after}\n", result.stdout)
                self.assertIn(f"rank {rank} has the sum {total}\n", result.stdout)

    def test_says_how_to_start_irisd(self):
        result = run(1, {**os.environ, "IRIS_RUNTIME_DIR": "/tmp/no-irisd"})
        self.assertEqual(result.returncode, 1)
        self.assertIn("error: UNAVAILABLE: ", result.stderr)
        self.assertIn("irisd --runtime-dir /tmp/no-irisd", result.stderr)


if __name__ == "__main__":
    junit.main()
