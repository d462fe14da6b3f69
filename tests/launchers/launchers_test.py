"""Ranks that others' launchers start find each other, and ranks of other nodes are told, by the real launchers that
Debian has. What a launcher's variables mean is tested beside client/base/launcher.h; here is whether it sets them."""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import unittest

from tests.launchers import slurm
from tests.python import irisd
from tests.python import junit

HELLO = os.path.abspath("examples/01_hello_heap")
PATIENCE_SECONDS = 120
# What ranks of two nodes are told that have come to one irisd; which, depends on who came first.
OTHER_NODES = "it says other nodes than rank|the first rank of its node would be"

# What comes before the program, for n ranks.
OPENMPI = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"]
MPICH = ["mpiexec.hydra"]
SRUN = ["srun", "--nodes=1", "--overcommit"]
# Debian's torch 1.13 misreads the defaults of --redirects and --tee under Python 3.11: here they are for a rank that
# there is not.
TORCHRUN = ["/usr/bin/torchrun", "--no_python", "--redirects=9:3", "--tee=9:3", "--master_addr=127.0.0.1",
            "--monitor_interval=0.1"]


def torchrun(n_ranks, *options):
    (port,) = slurm.free_ports(1)
    return [*TORCHRUN, f"--nproc_per_node={n_ranks}", f"--master_port={port}", *options]


class Launchers(unittest.TestCase):

    def start(self, command, environment):
        if not shutil.which(command[0]):
            self.fail(f"{command[0]} is missing; deploy/setup.sh installs it")
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                text=True, env=environment)

    def end(self, launcher):
        """What it and its ranks wrote."""
        try:
            return launcher.communicate(timeout=PATIENCE_SECONDS)[0]
        finally:
            launcher.kill()
            launcher.wait()

    def check(self, *launchers, job, environment=None, same_name=False):
        """Three ranks meet in a job whose name matches, by each launcher, also behind a shell as in a batch script.
        `same_name`: the launcher's next job has the same."""
        with irisd.Irisd(memory="4GiB") as daemon:
            for launcher in launchers:
                for command in ([HELLO], ["sh", "-c", f"'{HELLO}'; exit $?"]):
                    started = self.start([*launcher, *command], daemon.environment(**(environment or {})))
                    out = self.end(started)
                    self.assertEqual(started.returncode, 0, out)
                    for rank in range(3):
                        self.assertIn(f"I am rank {rank} of 3", out)
            jobs = set(re.findall(r"job=(\S+)", daemon.log()))
            self.assertEqual(len(jobs), 1 if same_name else 2 * len(launchers), jobs)
            for each in jobs:
                self.assertRegex(each, rf"^({job})$")

    def check_other_nodes(self, *launchers, error, environment=None):
        """The launchers, at once, start ranks as on two nodes, whose irisd is one, and each of them is told."""
        with irisd.Irisd() as daemon:
            started = [self.start([*launcher, HELLO], daemon.environment(**(environment or {})))
                       for launcher in launchers]
            with contextlib.ExitStack() as stack:
                for each in started:
                    stack.callback(each.wait)
                    stack.callback(each.kill)
                for each in started:
                    out = self.end(each)
                    self.assertNotEqual(each.returncode, 0, out)
                    self.assertRegex(out, error)
                    self.assertNotIn("I am rank", out)

    def start_slurm(self):
        if slurm.missing():
            self.fail(f"{slurm.missing()} are missing; deploy/setup.sh installs them")
        return slurm.Slurm()

    def test_mpich(self):
        self.check([*MPICH, "-n", "3"], job=r"mpich-\d+")

    def test_mpich_on_two_nodes(self):
        # Its launcher by fork starts all nodes' ranks here.
        self.check_other_nodes([*MPICH, "-launcher", "fork", "-hosts", "a,b", "-ppn", "2", "-n", "4"],
                               error=f"IRIS_RENDEZVOUS|{OTHER_NODES}")

    def test_openmpi(self):
        self.check([*OPENMPI, "-n", "3"], job=r"openmpi-\d+")

    def test_openmpi_on_two_nodes(self):
        with tempfile.TemporaryDirectory() as folder:
            agent = os.path.join(folder, "agent")  # in place of ssh, which would need a server
            with open(agent, "w", encoding="utf-8") as file:  # its arguments: the node, and what to run there
                # Daemons of two nodes on one machine would make the same folders in /tmp.
                file.write(f"#!/bin/sh\nexport TMPDIR={folder}/$1\nmkdir -p $TMPDIR\nshift\nexec sh -c \"$*\"\n")
            os.chmod(agent, 0o755)
            self.check_other_nodes(
                [*OPENMPI, "--mca", "plm_rsh_agent", agent, "--host", "a:2,b:2", "-n", "4"],
                error=OTHER_NODES)  # they have met by PMIx

    def test_torchrun(self):
        self.check(torchrun(3), job=r"torchrun-127\.0\.0\.1:\d+", same_name=True)

    def test_torchrun_with_a_name(self):
        self.check(torchrun(3, "--rdzv_id=mine"), job="torchrun-mine", same_name=True)

    def test_torchrun_on_two_nodes(self):
        node = torchrun(2, "--nnodes=2")
        self.check_other_nodes([*node, "--node_rank=0"], [*node, "--node_rank=1"],
                               error=f"IRIS_JOB_SECRET|{OTHER_NODES}")

    def test_srun(self):
        with self.start_slurm() as cluster:
            # Also with a library of MPI's, whose variables look like MPICH's.
            self.check([*SRUN, "-n", "3"], [*SRUN, "--mpi=pmi2", "-n", "3"], job=r"slurm-\d+\.\d+",
                       environment=cluster.environment)
            self.check_other_nodes(["srun", "--nodes=2", "--overcommit", "-n", "4"],
                                   error=f"IRIS_JOB_SECRET|{OTHER_NODES}",
                                   environment=cluster.environment)

    def test_srun_with_pmix(self):
        with self.start_slurm() as cluster:
            self.check([*SRUN, "--mpi=pmix", "-n", "3"], job=r"pmix-slurm\.pmix\.\d+\.\d+",
                       environment=cluster.environment)

    def test_two_programs_without_a_launcher_do_not_meet(self):
        with irisd.Irisd(memory="4GiB") as daemon:
            both = [self.start([HELLO], daemon.environment()) for _ in range(2)]
            for program in both:
                out = self.end(program)
                self.assertEqual(program.returncode, 0, out)
                self.assertIn("I am rank 0 of 1", out)

    def test_ranks_of_other_nodes_need_a_rendezvous(self):
        with irisd.Irisd() as daemon:
            program = self.start([HELLO], daemon.environment(RANK="0", WORLD_SIZE="4", LOCAL_RANK="0",
                                                             LOCAL_WORLD_SIZE="2"))
            out = self.end(program)
            self.assertNotEqual(program.returncode, 0)
            self.assertIn("IRIS_RENDEZVOUS", out)

    def test_a_pmix_server_that_is_not_there_is_told_with_what_to_set(self):
        with irisd.Irisd() as daemon:
            program = self.start([HELLO], daemon.environment(
                OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="4", OMPI_COMM_WORLD_LOCAL_RANK="0",
                OMPI_COMM_WORLD_LOCAL_SIZE="2", PMIX_NAMESPACE="1", PMIX_RANK="0"))
            out = self.end(program)
            self.assertNotEqual(program.returncode, 0)
            self.assertRegex(out, r"set IRIS_RENDEZVOUS to .* the ranks could not meet by the launcher's PMIx server: ")


if __name__ == "__main__":
    junit.main()
