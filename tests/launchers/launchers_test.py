"""Ranks that others' launchers start find each other, by the real launchers that Debian has. What a launcher's
variables mean is tested beside client/base/launcher.h; here is whether it sets them."""

import os
import re
import shutil
import subprocess
import unittest

from tests.python import irisd
from tests.python import junit

HELLO = os.path.abspath("examples/01_hello_heap")
PATIENCE_SECONDS = 120

# What comes before the program, for n ranks.
LAUNCHERS = {
    "mpich": ["mpiexec.hydra", "-n"],
    "openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n"],
}


class Launchers(unittest.TestCase):

    def launch(self, launcher, n_ranks, *command, environment):
        return subprocess.run([*LAUNCHERS[launcher], str(n_ranks), *command], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=PATIENCE_SECONDS, check=False,
                              env=environment)

    def check(self, launcher):
        if not shutil.which(LAUNCHERS[launcher][0]):
            self.fail(f"{LAUNCHERS[launcher][0]} is missing; deploy/setup.sh installs it")
        with irisd.Irisd(memory="4GiB") as daemon:
            environment = {**os.environ, **daemon.environment()}
            if self.launch(launcher, 1, "true", environment=environment).returncode != 0:
                self.skipTest(f"{launcher} cannot start anything on this machine")
            # Also behind a shell, as in a batch script.
            for command in ([HELLO], ["sh", "-c", f"'{HELLO}'; exit $?"]):
                result = self.launch(launcher, 3, *command, environment=environment)
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
                for rank in range(3):
                    self.assertIn(f"I am rank {rank} of 3", result.stdout)
            with open(daemon.log_path, encoding="utf-8") as file:
                jobs = set(re.findall(r"job=(\S+)", file.read()))
            self.assertEqual(len(jobs), 2, jobs)
            self.assertTrue(all(job.startswith(launcher + "-") for job in jobs), jobs)

    def test_mpich(self):
        self.check("mpich")

    def test_openmpi(self):
        self.check("openmpi")

    def test_two_programs_without_a_launcher_do_not_meet(self):
        with irisd.Irisd(memory="4GiB") as daemon:
            environment = {**os.environ, **daemon.environment()}
            both = [subprocess.Popen([HELLO], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                     env=environment) for _ in range(2)]
            for program in both:
                out, _ = program.communicate(timeout=PATIENCE_SECONDS)
                self.assertEqual(program.returncode, 0, out)
                self.assertIn("I am rank 0 of 1", out)

    def test_ranks_of_other_nodes_are_named(self):
        with irisd.Irisd() as daemon:
            environment = {**os.environ, **daemon.environment(), "RANK": "0", "WORLD_SIZE": "4",
                           "LOCAL_WORLD_SIZE": "2"}
            result = subprocess.run([HELLO], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                    timeout=PATIENCE_SECONDS, check=False, env=environment)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn("torchrun has started 4 ranks, and 2 of them here (LOCAL_WORLD_SIZE)", result.stderr)


if __name__ == "__main__":
    junit.main()
