"""Jobs that span nodes: real irisds, port processes and ranks in network namespaces of this machine."""

import os
import re
import signal
import subprocess
import time
import unittest

from tests.nodes import cluster
from tests.python import junit

RANK = os.path.abspath("tests/nodes/node_rank")
DIGITS = os.path.abspath("examples/10_digits_training")
MESSAGES = os.path.abspath("examples/04_message_passing")
SILENCE = ["--network-silence", "1s"]
PATIENCE = 15  # a machine may be busy; the times are printed


class Nodes(unittest.TestCase):

    def setUp(self):
        if why := cluster.missing():
            self.skipTest(why)

    def check_ends(self, processes, text, seconds=cluster.PATIENCE_SECONDS):
        for rank, (code, out) in enumerate(cluster.finish(processes, seconds)):
            self.assertEqual(code, 0, f"rank {rank}: {out}")
            self.assertIn(text, out)

    def waiting(self, nodes, **more):
        """Ranks that are ready, and wait for each other."""
        processes = nodes.start(RANK, "wait", **more)
        for process in processes:
            self.assertEqual(process.stdout.readline(), "ready\n")
        time.sleep(0.1)
        return processes

    def check_told(self, processes, since, expected, within):
        """Each process says why its barrier failed. Returns after how many seconds the last one did."""
        latest = 0
        for rank, (code, out) in enumerate(cluster.finish(processes)):
            self.assertEqual(code, 0, f"rank {rank}: {out}")
            told = re.search(r"told at ([\d.]+): (.*)", out)
            self.assertTrue(told, out)
            self.assertRegex(told[2], expected)
            latest = max(latest, float(told[1]) - since)
        print(f"{self.id()}: told after {latest:.3f} s")
        self.assertLess(latest, within)

    def test_transfers(self):
        with cluster.Cluster(2) as nodes:
            self.check_ends(nodes.start(RANK, "transfers"), "transfers ok")
            # The next job finds nothing in its way.
            self.check_ends(nodes.start(RANK, "transfers", job="again"), "transfers ok")
            for node in nodes.nodes:
                self.assertNotIn("level=error", node.irisd.log())

    def test_three_nodes(self):
        with cluster.Cluster(3) as nodes:
            self.check_ends(nodes.start(RANK, "transfers", n_local=1), "transfers ok")

    def test_kernels_pass_messages(self):
        with cluster.Cluster(2) as nodes:
            self.check_ends(nodes.start(MESSAGES), "all right")

    def test_training_ends_with_the_same_weights(self):
        with cluster.Cluster(2) as nodes:
            ends = cluster.finish(nodes.start(DIGITS, "--epochs", "4"))
            for code, out in ends:
                self.assertEqual(code, 0, out)
            self.assertIn("result ok", ends[0][1])

    def test_a_killed_rank_is_told_to_all(self):
        with cluster.Cluster(2) as nodes:
            processes = self.waiting(nodes)
            killed = processes.pop(3)
            since = time.monotonic()
            killed.kill()
            self.check_told(processes, since, rf"rank 3 \((pid {killed.pid}|on another node)\)", within=PATIENCE)

    def test_a_killed_irisd_is_told_to_all(self):
        with cluster.Cluster(2) as nodes:
            processes = self.waiting(nodes)
            since = time.monotonic()
            nodes.nodes[1].irisd.process.kill()
            self.check_told(processes[:2], since, "is lost|was lost|died, hung up or was lost", within=PATIENCE)

    def test_a_killed_port_is_told_to_all(self):
        with cluster.Cluster(2) as nodes:
            processes = self.waiting(nodes)
            (port,) = cluster.ports_of(nodes.nodes[0])
            since = time.monotonic()
            os.kill(port, signal.SIGKILL)
            self.check_told(processes, since, "port process|lost", within=PATIENCE)

    def test_a_node_that_is_cut_off(self):
        with cluster.Cluster(2, flags=SILENCE) as nodes:
            processes = self.waiting(nodes)
            since = time.monotonic()
            nodes.nodes[1].cut()
            self.check_told(processes, since, "lost", within=PATIENCE)

    def test_different_secrets(self):
        with cluster.Cluster(2) as nodes:
            processes = [nodes.start_rank(rank, RANK, "wait", n_local=1, job="mixed",
                                          IRIS_JOB_SECRET=f"the secret of node {rank}") for rank in range(2)]
            ((code, out),) = cluster.finish(processes[1:])
            self.assertEqual(code, 1)
            self.assertIn("the two nodes have different secrets", out)

    def test_a_rendezvous_is_needed(self):
        with cluster.Cluster(2) as nodes:
            for code, out in cluster.finish(nodes.start(RANK, "wait", IRIS_RENDEZVOUS="")):
                self.assertEqual(code, 1)
                self.assertIn("IRIS_RENDEZVOUS", out)

    def launch(self, nodes, command, where=0, **environment):
        return subprocess.Popen([*nodes.nodes[where].within, *command], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env={**os.environ, "IRIS_JOB_SECRET": cluster.SECRET, **environment})

    def check_launched(self, launched, n_ranks):
        for code, out in cluster.finish(launched):
            self.assertEqual(code, 0, out)
            self.assertEqual(out.count("transfers ok"), n_ranks, out)

    def test_mpich(self):
        with cluster.Cluster(2) as nodes:
            hosts = ",".join(node.address for node in nodes.nodes)
            self.check_launched([self.launch(
                nodes, ["mpiexec.hydra", "-launcher", "ssh", "-launcher-exec", nodes.agent(), "-hosts", hosts,
                        "-ppn", "2", "-n", "4", *nodes.on_node(RANK, "transfers")],
                IRIS_RENDEZVOUS=f"{nodes.nodes[0].address}:4711")], 4)

    def test_openmpi(self):
        with cluster.Cluster(2) as nodes:
            hosts = ",".join(f"{node.address}:2" for node in nodes.nodes)
            rendezvous = f"{nodes.nodes[0].address}:4711"
            self.check_launched([self.launch(
                nodes, ["mpirun.openmpi", "--allow-run-as-root", "--mca", "plm_rsh_agent", nodes.agent(),
                        "--mca", "oob_tcp_if_include", "eth0", "--mca", "btl", "self", "--host", hosts, "-n", "4",
                        "-x", "IRIS_JOB_SECRET", "-x", "IRIS_RENDEZVOUS", *nodes.on_node(RANK, "transfers")],
                IRIS_RENDEZVOUS=rendezvous)], 4)

    def test_torchrun(self):
        with cluster.Cluster(2) as nodes:
            command = ["/usr/bin/torchrun", "--no_python", "--redirects=9:3", "--tee=9:3", "--nnodes=2",
                       "--nproc_per_node=2", f"--master_addr={nodes.nodes[0].address}", "--master_port=4710"]
            self.check_launched([self.launch(
                nodes, [*command, f"--node_rank={node.index}", *nodes.on_node(RANK, "transfers")], where=node.index)
                for node in nodes.nodes], 2)


if __name__ == "__main__":
    junit.main()
