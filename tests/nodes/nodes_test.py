"""Jobs that span nodes: real irisds, port processes and ranks in network namespaces of this machine."""

import contextlib
import importlib.util
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from tests.launchers import slurm
from tests.nodes import campaign
from tests.nodes import cluster
from tests.python import irisd
from tests.python import junit
from tests.python import trace_schema

IRIS_CTL = os.path.abspath("client/ctl/iris-ctl")
IRIS_BENCH = os.path.abspath("client/bench/iris_bench")
RANK = os.path.abspath("tests/nodes/node_rank")
DIRECT = ["--network-direct", "on"]
TRACE_RANK = os.path.abspath("client/ctl/trace_rank")
DIGITS = os.path.abspath("examples/10_digits_training")
MESSAGES = os.path.abspath("examples/04_message_passing")
MOE = os.path.abspath("examples/17_moe_layer")
GPT = os.path.abspath("examples/18_gpt_step")
REGISTERED = os.path.abspath("tests/integration/register_test")
GEMMS, NORMS, EXPERTS = ([os.path.abspath(f"tests/integration/{name}_test"), "--scenario"]
                         for name in ("ops", "norm", "moe"))
SILENCE = ["--network-silence", "1s"]
FABRIC = ["--emu-fabric", "rack"]
SUPERVISED = ["--supervise"]
ETCD = ["--network-etcd", "10.213.0.1:2379"]
BY_ETCD = {"IRIS_RENDEZVOUS": ""}
CERTIFICATES = os.path.abspath("server/port/testing/certificates.sh")
# A tenth of it is left to a port process to start.
HURRY = ["--join-timeout-max", "10s", "--join-timeout", "10s"]
PATIENCE = 15  # a machine may be busy; the times are printed


class Nodes(unittest.TestCase):

    def setUp(self):
        if why := cluster.missing():
            self.skipTest(why)

    def check_ends(self, processes, text, seconds=cluster.PATIENCE_SECONDS):
        for rank, (code, out) in enumerate(cluster.finish(processes, seconds)):
            self.assertEqual(code, 0, f"rank {rank}: {out}")
            self.assertIn(text, out)

    def waiting(self, nodes, what="wait", **more):
        """Ranks that are ready, and wait for each other."""
        processes = nodes.start(RANK, what, **more)
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

    def test_registered_memory(self):
        with cluster.Cluster(2) as nodes:
            for scenario in ("buffers", "together"):
                for n_local in (1, 2):
                    self.check_ends(nodes.start(REGISTERED, "--scenario", scenario, n_local=n_local,
                                                job=f"{scenario}-{n_local}"), "")
            for node in nodes.nodes:
                self.assertNotIn("registered memory is not reached", node.irisd.log())

    def test_copies_on_streams(self):
        with cluster.Cluster(2) as nodes:
            self.check_ends(nodes.start(RANK, "streams"), "streams ok")

    def test_nodes_of_a_fabric_map_each_other(self):
        with cluster.Cluster(2, flags=FABRIC) as nodes:
            for what in ("transfers", "streams"):
                self.check_ends(nodes.start(RANK, what, job=what), f"{what} ok")
            processes = nodes.start(RANK, "fabric", "4")
            for process in processes:
                self.assertEqual(process.stdout.readline(), "fabric ok\n")
                self.assertEqual(process.stdout.readline(), "ready\n")
            for here, node in enumerate(nodes.nodes):
                told = self.ctl(node, "nodes", "--format", "json")
                self.assertEqual([(each["mapped"], each["fabric"]) for each in told],
                                 [(True, "emulated rack")] * 2)
                self.assertRegex(self.ctl(node, "nodes"), r"(?m) mapped: emulated rack *$")
                # irisd lists its own memory alone.
                self.assertEqual([each["rank"] for each in self.ctl(node, "heaps", "--format", "json")],
                                 [2 * here, 2 * here + 1])
            # A rank that is killed is told to all, and its memory stays until they have unmapped it.
            killed = processes.pop(3)
            since = time.monotonic()
            killed.kill()
            self.check_told(processes, since, rf"rank 3 \((pid {killed.pid}|on another node)\)", within=PATIENCE)
            for node in nodes.nodes:
                self.until(lambda node=node: self.ctl(node, "jobs", "--format", "json") == [])
                self.assertEqual({each["used_bytes"] for each in self.ctl(node, "devices", "--format", "json")}, {0})
                self.assertNotIn("level=error", node.irisd.log())

    def check_layers(self, nodes):
        for program in (MOE, GPT):
            ends = cluster.finish(nodes.start(program, job=os.path.basename(program)))
            for code, out in ends:
                self.assertEqual(code, 0, out)
            self.assertIn("result ok", ends[0][1])

    def test_operations_of_one_node_run_on_a_fabric(self):
        with cluster.Cluster(2, flags=FABRIC) as nodes:
            self.check_layers(nodes)

    def test_a_node_outside_the_fabric_is_reached_by_ports(self):
        with cluster.Cluster(3, flags=FABRIC) as nodes:
            nodes.nodes[2].irisd.stop()
            nodes.nodes[2].flags = [*FABRIC, "--network-fabric", "off"]
            nodes.nodes[2].start()
            processes = nodes.start(RANK, "fabric", "4")
            for process in processes:
                self.assertEqual(process.stdout.readline(), "fabric ok\n")
            told = self.ctl(nodes.nodes[0], "nodes", "--format", "json")
            self.assertEqual([each["mapped"] for each in told], [True, True, False])
            self.assertEqual(told[2]["fabric"], "network.fabric is off")

    def test_a_killed_irisd_of_a_fabric_is_told_to_all(self):
        with cluster.Cluster(2, flags=FABRIC) as nodes:
            processes = nodes.start(RANK, "fabric", "4")
            for process in processes:
                self.assertEqual(process.stdout.readline(), "fabric ok\n")
                self.assertEqual(process.stdout.readline(), "ready\n")
            since = time.monotonic()
            nodes.nodes[1].irisd.process.kill()
            self.check_told(processes[:2], since, "is lost|was lost|died, hung up or was lost", within=PATIENCE)

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

    def check_operations(self, program, what, told, killed=()):
        """The scenarios of a program. Rank 1 calls otherwise, of which `told` has the lines, for the ranks of its node
        and for the others."""
        with cluster.Cluster(2, flags=SILENCE) as nodes:
            self.check_ends(nodes.start(*program, "results"), "")
            for rank, (code, out) in enumerate(cluster.finish(nodes.start(*program, "differs"))):
                self.assertEqual(code, 0, out)
                for line in told[rank // 2]:
                    self.assertRegex(out, line)
            processes = nodes.start(*program, "killed", *killed)
            for process in processes:
                self.assertEqual(process.stdout.readline(), "ready\n")
            rank_3 = processes.pop(3)
            rank_3.kill()
            for code, out in cluster.finish(processes):
                self.assertEqual(code, 0, out)
                self.assertRegex(out, rf"error ABORTED: {what}.*rank 3 \((pid {rank_3.pid}|on another node)\)")

    ELSEWHERE = "the ranks on the node of rank [01] .* called differently"

    def test_gemms(self):
        error = "error INVALID_ARGUMENT: matmul_all_reduce #0 of 4 ranks on 2 nodes: "
        self.check_operations(GEMMS, "", (
            [error + r".*rank 1 called matmul_all_reduce\(m=36, .*rank 0 called matmul_all_reduce\(m=37, "],
            [error + self.ELSEWHERE]), killed=["1"])

    def test_norms(self):
        error = "error INVALID_ARGUMENT: all_reduce_rms_norm #0 of 4 ranks on 2 nodes: "
        self.check_operations(NORMS, "reduce_scatter_rms_norm_all_gather ", (
            [error + r".*rank 1 called all_reduce_rms_norm\(rows=6, .*rank 0 called all_reduce_rms_norm\(rows=7, "],
            [error + self.ELSEWHERE]), killed=["1"])

    def test_moe(self):
        of_all = [
            "range OUT_OF_RANGE: moe_dispatch #0 of 4 ranks on 2 nodes: token 2 of rank 1 chooses expert 99, ",
            "twice OUT_OF_RANGE: moe_dispatch #0 of 4 ranks on 2 nodes: token 2 of rank 1 chooses expert [0-9]+ twice",
            "alone FAILED_PRECONDITION: moe_combine #0 of 4 ranks on 2 nodes: the workspace of rank 0 holds no "]
        error = "operation INVALID_ARGUMENT: moe_[a-z]+ #0 of 4 ranks on 2 nodes: "
        self.check_operations(EXPERTS, "moe_", (
            [error + r".*rank 1 called moe_combine\(hidden=40, .*rank 0 called moe_dispatch\(hidden=40, ", *of_all],
            [error + self.ELSEWHERE, *of_all]))

    def test_layers_of_examples(self):
        with cluster.Cluster(2) as nodes:
            self.check_layers(nodes)

    def test_gemms_of_the_reference(self):
        if not os.path.exists("deploy/libiris.so.0") or importlib.util.find_spec("torch") is None:
            self.skipTest("this build has no libiris.so, or torch is not installed")
        with cluster.Cluster(2) as nodes, tempfile.TemporaryDirectory() as folder:
            for name in ("libiris", "libiris_emu"):
                os.symlink(os.path.abspath(f"deploy/{name}.so.0"), f"{folder}/{name}.so")
            self.check_ends(nodes.start(sys.executable, os.path.abspath("tests/nodes/gemm_ranks.py"),
                                        PYTHONPATH=os.path.abspath("client/python"), OMP_NUM_THREADS="1",
                                        IRIS_LIBRARY=f"{folder}/libiris.so"), "gemms ok")

    def test_nodes_copy_directly(self):
        """As RDMA does, which UCX emulates here."""
        with cluster.Cluster(2, flags=DIRECT) as nodes:
            self.check_ends(nodes.start(RANK, "transfers"), "transfers ok")
            self.check_ends(nodes.start(RANK, "streams"), "streams ok")
            self.check_ends(nodes.start(DIGITS, "--epochs", "2"), "")
            processes = self.waiting(nodes)
            self.until(lambda: "tcp/eth0, direct" in self.ctl(nodes.nodes[1], "nodes"))
            since = time.monotonic()
            processes.pop(3).kill()
            self.check_told(processes, since, "rank 3", within=PATIENCE)

    def test_one_node_copies_directly_and_the_other_does_not(self):
        with cluster.Cluster(2) as nodes:
            first = nodes.nodes[0]
            first.irisd.stop()
            first.flags = DIRECT
            first.start()
            self.check_ends(nodes.start(RANK, "transfers"), "transfers ok")

    def test_a_killed_rank_is_told_to_all(self):
        with cluster.Cluster(2) as nodes:
            processes = self.waiting(nodes)
            killed = processes.pop(3)
            since = time.monotonic()
            killed.kill()
            self.check_told(processes, since, rf"rank 3 \((pid {killed.pid}|on another node)\)", within=PATIENCE)

    def test_a_rank_that_leaves_is_told_to_all(self):
        with cluster.Cluster(2) as nodes:
            processes = self.waiting(nodes)
            leaves = processes.pop(3)
            since = time.monotonic()
            leaves.terminate()
            self.check_told(processes, since, r"rank 3 \((pid \d+|on another node)\) left the job", within=PATIENCE)
            self.assertEqual(cluster.finish([leaves])[0][0], 0)

    def test_copies_on_streams_end_with_the_job(self):
        with cluster.Cluster(2) as nodes:
            processes = self.waiting(nodes, "copy")
            killed = processes.pop(3)
            since = time.monotonic()
            killed.kill()
            self.check_told(processes, since, rf"put .*rank 3 \((pid {killed.pid}|on another node)\)", within=PATIENCE)

    def test_a_killed_irisd_is_told_to_all(self):
        with cluster.Cluster(2) as nodes:
            processes = self.waiting(nodes)
            since = time.monotonic()
            nodes.nodes[1].irisd.process.kill()
            self.check_told(processes[:2], since, "is lost|was lost|died, hung up or was lost", within=PATIENCE)

    def check_no_port_is_left(self, nodes):
        for node in nodes.nodes:
            self.until(lambda node=node: not cluster.ports_of(node))

    def test_jobs_outlive_their_irisds(self):
        with cluster.Cluster(2, flags=SUPERVISED) as nodes:
            processes = nodes.start(RANK, "operate", "12")
            for process in processes:
                self.assertEqual(process.stdout.readline(), "ready\n")
            ports = [cluster.ports_of(node) for node in nodes.nodes]
            self.assertEqual([len(each) for each in ports], [1, 1])
            shown = ("node", "n_ranks", "name", "state", "leads", "here", "address", "transport", "ucx_version", "run")

            def seen(node):
                told = self.ctl(node, "nodes", "--format", "json")
                return len(told) == 2 and all(each["transport"] for each in told) and \
                    [[each[name] for name in shown] for each in told]

            before = [self.until(lambda node=node: seen(node)) for node in nodes.nodes]
            # The follower's, the leader's, both at once; then both hand over in order.
            for struck in ((1,), (0,), (0, 1)) * 4:
                for index in struck:
                    os.kill(nodes.nodes[index].irisd_pid(), signal.SIGKILL)
                time.sleep(0.4)
            for node in nodes.nodes:
                node.irisd.process.send_signal(signal.SIGUSR1)
            for node, told in zip(nodes.nodes, before):
                self.until(lambda node=node: "hands over" in node.irisd.log())
                self.assertEqual(self.until(lambda node=node: seen(node)), told)
            # One that is away: data goes on, and operations wait.
            supervisor = nodes.nodes[1].irisd.process
            supervisor.send_signal(signal.SIGSTOP)
            os.kill(nodes.nodes[1].irisd_pid(), signal.SIGKILL)
            time.sleep(2)
            supervisor.send_signal(signal.SIGCONT)
            self.assertEqual([cluster.ports_of(node) for node in nodes.nodes], ports)
            self.check_ends(processes, "operate ok")
            self.check_no_port_is_left(nodes)
            for node in nodes.nodes:
                self.assertNotIn("level=error", node.irisd.log())

    def test_any_system_call_can_be_the_last_of_an_irisd(self):
        with cluster.LastCalls() as calls, \
                cluster.Cluster(2, flags=SUPERVISED, irisd_environment=calls.environment) as nodes:
            processes = nodes.start(RANK, "operate", "10")
            for process in processes:
                self.assertEqual(process.stdout.readline(), "ready\n")
            chosen = random.Random(1)
            while all(process.poll() is None for process in processes):
                calls.arm(chosen.randrange(1, 400), chosen.random() < 0.5)
                time.sleep(0.1)
            self.check_ends(processes, "operate ok")
            print(f"{self.id()}: {calls.killed()} irisds died at a call")
            self.assertGreater(calls.killed(), 10)

    def test_training_goes_on_while_irisds_are_killed(self):
        with cluster.Cluster(2, flags=SUPERVISED) as nodes:
            training = nodes.start(DIGITS, "--epochs", "12")
            first = training[0].stdout.readline()
            kills = 0
            while all(process.poll() is None for process in training):
                os.kill(nodes.nodes[kills % 2].irisd_pid(), signal.SIGKILL)
                kills += 1
                time.sleep(0.25)
            ends = cluster.finish(training)
            for code, out in ends:
                self.assertEqual(code, 0, first + out)
            self.assertIn("result ok", ends[0][1])
            print(f"{self.id()}: {kills} kills")
            self.assertGreater(kills, 2)

    def test_a_stop_of_a_supervised_irisd_is_told_to_all(self):
        with cluster.Cluster(2, flags=SUPERVISED) as nodes:
            processes = self.waiting(nodes)
            (port,) = cluster.ports_of(nodes.nodes[1])
            os.kill(nodes.nodes[1].irisd_pid(), signal.SIGKILL)  # the port is no child of the next one
            self.until(lambda: "has attached" in nodes.nodes[1].irisd.log())
            since = time.monotonic()
            nodes.nodes[1].irisd.process.terminate()
            self.check_told(processes[:2], since, "is lost|was lost|died, hung up or was lost", within=PATIENCE)
            nodes.nodes[1].irisd.process.wait(PATIENCE)
            self.assertFalse(os.path.exists(f"/proc/{port}"))

    def test_the_end_of_irisd_and_its_supervisor_is_told_to_all(self):
        with cluster.Cluster(2, flags=SUPERVISED) as nodes:
            processes = self.waiting(nodes)
            since = time.monotonic()
            irisd = nodes.nodes[1].irisd_pid()
            nodes.nodes[1].irisd.process.kill()
            os.kill(irisd, signal.SIGKILL)
            self.check_told(processes[:2], since, "is lost|was lost|died, hung up or was lost", within=PATIENCE)

    def test_a_killed_port_is_told_to_all(self):
        with cluster.Cluster(2) as nodes:
            processes = self.waiting(nodes)
            port = cluster.port_of(nodes.nodes[0])
            since = time.monotonic()
            os.kill(port, signal.SIGKILL)
            self.check_told(processes, since, "port process|lost", within=PATIENCE)

    def test_a_node_that_is_cut_off(self):
        with cluster.Cluster(2, flags=SILENCE) as nodes:
            processes = self.waiting(nodes)
            since = time.monotonic()
            nodes.nodes[1].cut()
            self.check_told(processes, since, "lost", within=PATIENCE)

    def test_a_node_that_is_back_before_the_silence_is_over(self):
        # TCP repeats what was lost after 0.2 s, 0.6 s, 1.4 s and so on until 25 s, and now and then loses a repetition
        # while the cable's other end is looked for again: 20 s were too short once in 50 times.
        with cluster.Cluster(2, flags=["--network-silence", "60s"]) as nodes:
            training = nodes.start(DIGITS, "--epochs", "3")
            # The second line says that data has gone both ways. UCX gives up a connection that begins meanwhile.
            first = training[0].stdout.readline() + training[0].stdout.readline()
            self.assertIn("epoch", first)
            nodes.nodes[1].cut()
            time.sleep(5)
            nodes.nodes[1].cut(False)
            ends = cluster.finish(training, seconds=3 * cluster.PATIENCE_SECONDS)  # small steps, on a busy machine
            for code, out in ends:
                self.assertEqual(code, 0, first + out)
            self.assertIn("result ok", ends[0][1])

    def ctl(self, node, *arguments):
        """What iris-ctl says on the node: JSON, or its text."""
        result = subprocess.run([IRIS_CTL, "--runtime-dir", node.irisd.runtime_dir, *arguments], text=True,
                                capture_output=True, timeout=cluster.PATIENCE_SECONDS, check=False)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return json.loads(result.stdout) if "json" in arguments else result.stdout

    def until(self, look):
        """What `look` returns, once that is true."""
        end = time.monotonic() + cluster.PATIENCE_SECONDS
        while not (seen := look()):
            self.assertLess(time.monotonic(), end, "it has not come")
            time.sleep(0.1)
        return seen

    def test_operators_see_the_nodes(self):
        host = socket.gethostname()
        name = rf"node {host} \(from rank 2\)"
        with cluster.Cluster(2, flags=SILENCE) as nodes:
            first, second = nodes.nodes
            processes = [nodes.start_rank(rank, RANK, "wait") for rank in range(3)]
            # While ranks join, the leader knows which are missing, and the other node knows its own.
            self.until(lambda: "(from rank 2)" in self.ctl(first, "events"))
            self.assertRegex(self.ctl(first, "waits"),
                             rf"join of 4 ranks  ranks 0,1 wait for rank 2 \(on {name}\), rank 3 ")
            waits = self.until(lambda: self.ctl(second, "waits", "--format", "json"))
            self.assertEqual([each["rank"] for each in waits[0]["missing"] if each["node"] is None], [3])
            self.assertNotIn("no process", self.ctl(first, "waits"))
            self.assertEqual([(each["node"], each["n_ranks"], each["state"]) for each in
                              self.ctl(first, "nodes", "job", "--format", "json")],
                             [(0, 2, "connected"), (2, 0, "connected")])
            processes.append(nodes.start_rank(3, RANK, "wait"))
            for process in processes:
                self.assertEqual(process.stdout.readline(), "ready\n")

            def seen(node, others):
                """What the node tells of both, once its port has reported the connection to the other."""
                told = self.ctl(node, "nodes", "--format", "json")
                other = told[others]
                return told if other["rtt_us"] is not None and other["transport"] and other["sent_bytes"] else None

            for here, node in enumerate(nodes.nodes):
                told = self.until(lambda: seen(node, 1 - here))
                for index, each in enumerate(told):
                    self.assertEqual((each["job"], each["node"], each["n_ranks"], each["name"], each["leads"],
                                      each["here"], each["state"]),
                                     ("job", 2 * index, 2, host, index == 0, index == here, "connected"))
                self.assertTrue(told[0]["address"].startswith(f"{first.address}:"), told[0])
                self.assertTrue(told[1]["address"].startswith(f"{second.address}:"), told[1])
                other = told[1 - here]
                self.assertEqual(other["transport"], "tcp/eth0")
                self.assertLess(other["heard_ms"], 1000 * PATIENCE)
                self.assertLess(other["rtt_us"], 1e6)
                self.assertRegex(told[here]["ucx_version"], r"^1\.")
                self.assertEqual(told[here]["refused_messages"], 0)
                self.assertRegex(self.ctl(node, "nodes"), rf"(?m)^job +{2 * here} +{host} +{2 * here}-{2 * here + 1} ")
                self.assertIn("4 ready (2 on other nodes)", self.ctl(node, "jobs"))
                ranks = self.ctl(node, "jobs", "--format", "json")[0]["ranks"]
                self.assertEqual([each["node"] for each in ranks],
                                 [None if rank // 2 == here else host for rank in range(4)])
                self.assertEqual({each["state"] for each in ranks}, {"ready"})
                self.assertRegex(self.ctl(node, "describe", "job"), rf"(?m)^ +{2 * (1 - here)}  ready on {host} ")

            # Ranks of a node are known there, and the node is known here.
            processes[3].send_signal(signal.SIGSTOP)
            there = self.until(lambda: [each for each in self.ctl(second, "waits", "--format", "json")
                                        if [rank["rank"] for rank in each["missing"]] == [3]])
            self.assertTrue(there[0]["missing"][0]["stopped"])
            line = self.until(lambda: re.search(r".*ranks 0,1 wait.*", self.ctl(first, "waits")))[0]
            self.assertRegex(line, rf"host barrier #\d+ of 4 ranks  ranks 0,1 wait for ranks 2,3 on {name} since ")

            # A port process that is stopped says nothing, and the other node says why it is lost. Ranks that are told
            # would end, and the job with them.
            for process in processes:
                process.send_signal(signal.SIGSTOP)
            (port,) = cluster.ports_of(second)
            os.kill(port, signal.SIGSTOP)
            try:
                lost = self.until(lambda: [each for each in self.ctl(first, "nodes", "--format", "json")
                                           if each["state"] == "lost"])
                self.assertEqual([each["node"] for each in lost], [2])
                self.assertRegex(lost[0]["reason"], "nothing was heard|connection")
                self.until(lambda: "says nothing" in self.ctl(second, "events"))
            finally:
                with contextlib.suppress(ProcessLookupError):  # its irisd has killed it
                    os.kill(port, signal.SIGCONT)
            for process in processes:
                process.send_signal(signal.SIGCONT)

    def test_kills_on_a_slow_network_that_loses_frames(self):
        campaign.run(n_nodes=3, kills=14, delay=0.002, loss=0.01)

    def test_synchronize_tells_of_copies_under_way(self):
        with cluster.Cluster(2, flags=SILENCE) as nodes:
            processes = self.waiting(nodes, "copy")
            since = time.monotonic()
            nodes.nodes[1].cut()
            self.check_told(processes, since, r"1 copy between nodes on streams failed; .* put to rank \d: .*lost",
                            within=PATIENCE)

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

    def test_nodes_meet_by_etcd(self):
        with cluster.Cluster(3, flags=ETCD) as nodes, cluster.Etcd(nodes.nodes[0]) as etcd:
            both = nodes.nodes.pop()  # a node that is not of the first jobs
            self.check_ends(nodes.start(RANK, "transfers", **BY_ETCD), "transfers ok")

            # It goes and comes, and the job, which is made to last so long, does not notice.
            training = nodes.start(DIGITS, "--epochs", "5", **BY_ETCD)
            first = training[0].stdout.readline()
            etcd.kill()
            time.sleep(0.1)
            training[0].send_signal(signal.SIGSTOP)
            etcd.start()
            training[0].send_signal(signal.SIGCONT)
            ends = cluster.finish(training)
            for code, out in ends:
                self.assertEqual(code, 0, first + out)
            self.assertIn("result ok", ends[0][1])
            self.assertNotIn("waits until this one's key", nodes.nodes[0].irisd.log())

            # The next job of that name starts, and another one is told of it.
            processes = self.waiting(nodes, **BY_ETCD)
            nodes.nodes.append(both)
            told = self.until(lambda: [node for node in self.ctl(nodes.nodes[1], "nodes", "--format", "json")
                                       if node["address"].startswith(f"{nodes.nodes[0].address}:")])
            second = nodes.start_rank(0, RANK, "wait", where=2, IRIS_N_RANKS="4", **BY_ETCD)
            ((code, out),) = cluster.finish([second])
            self.assertEqual(code, 1)
            self.assertIn(f"etcd's key /iris/jobs/{os.getuid()}/job says that another job of this name", out)
            self.assertIn(told[0]["address"], out)

            # A leader that is killed leaves its key behind, for some seconds.
            etcd.kill()
            nodes.nodes[0].irisd.process.kill()
            for process in processes[:2]:
                process.kill()
            cluster.finish(processes)
            etcd.start()
            nodes.nodes[0].irisd.stop()
            nodes.nodes[0].start()
            nodes.nodes.pop()
            self.check_ends(nodes.start(RANK, "transfers", **BY_ETCD), "transfers ok")
            nodes.nodes.append(both)

    def test_nodes_that_do_not_meet_by_etcd(self):
        with cluster.Cluster(2, flags=[*ETCD, *HURRY]) as nodes:
            for code, out in cluster.finish(nodes.start(RANK, "wait", n_local=1, **BY_ETCD)):
                self.assertEqual(code, 1)
                self.assertRegex(out, rf"etcd failed .*{nodes.nodes[0].address}:2379: .*Connection refused")
            with cluster.Etcd(nodes.nodes[0]):
                processes = [nodes.start_rank(rank, RANK, "wait", n_local=1, job="mixed", **{
                    **BY_ETCD, "IRIS_JOB_SECRET": f"the secret of node {rank}"}) for rank in range(2)]
                ((code, out),) = cluster.finish(processes[1:])
                self.assertEqual(code, 1)
                self.assertIn(f"etcd's key /iris/jobs/{os.getuid()}/mixed was not made with this job's secret", out)

    def test_nodes_meet_by_etcd_with_certificates(self):
        with tempfile.TemporaryDirectory(prefix="iris-tls-", dir="/tmp") as folder:
            subprocess.run([CERTIFICATES, folder, "IP:10.213.0.1"], check=True, capture_output=True)
            tls = [f"--network-etcd-{setting}={folder}/{name}" for setting, name in (
                ("ca", "ca.pem"), ("certificate", "client.pem"), ("key", "client.key"))]
            with cluster.Cluster(2, flags=[*ETCD, *tls]) as nodes, cluster.Etcd(nodes.nodes[0], folder):
                self.check_ends(nodes.start(RANK, "transfers", **BY_ETCD), "transfers ok")
                # The files are read for each job.
                os.chmod(f"{folder}/client.key", 0o640)
                for code, out in cluster.finish(nodes.start(RANK, "transfers", n_local=1, **BY_ETCD)):
                    self.assertEqual(code, 1)
                    self.assertIn(f"network.etcd_key {folder}/client.key must be a file of irisd's user", out)
                os.chmod(f"{folder}/client.key", 0o600)
                self.check_ends(nodes.start(RANK, "transfers", **BY_ETCD), "transfers ok")
            for flags, expected in ((tls[1:], "need each other, and network.etcd_ca"),
                                    ([f"--network-etcd-ca={folder}/client.key"], "client.key is not PEM: it has no")):
                ended = subprocess.run([irisd.IRISD, "--backend", "emu", "--runtime-dir", f"{folder}/run", *flags],
                                       capture_output=True, text=True, timeout=cluster.PATIENCE_SECONDS, check=False)
                self.assertIn(ended.returncode, (1, 2))
                self.assertIn(expected, ended.stderr)

    def test_etcd_that_wants_certificates_is_named(self):
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="iris-tls-", dir="/tmp"))
            subprocess.run([CERTIFICATES, folder, "IP:10.213.0.1"], check=True, capture_output=True)
            ca = f"--network-etcd-ca={folder}/ca.pem"
            waiting = []
            for flags, expected in (([], "it may want TLS: set network.etcd_ca"),
                                    ([ca], "another certificate of its clients: network.etcd_certificate"),
                                    ([f"--network-etcd-ca={folder}/other_ca.pem"], "of no authority in"),
                                    ([ca, f"--network-etcd-certificate={folder}/client.pem",
                                      f"--network-etcd-key={folder}/foreign.key"], "not that of the certificate")):
                nodes = stack.enter_context(cluster.Cluster(2, flags=[*ETCD, *flags, *HURRY]))
                stack.enter_context(cluster.Etcd(nodes.nodes[0], folder))
                waiting += [(process, expected) for process in nodes.start(RANK, "wait", n_local=1, **BY_ETCD)]
            for (code, out), (_, expected) in zip(cluster.finish([process for process, _ in waiting]), waiting):
                self.assertEqual(code, 1)
                self.assertIn(expected, out)

    def test_traces_of_nodes_become_one(self):
        clocks = (0, -5000) if time.monotonic() > 5100 else (0, 5000)
        with cluster.Cluster(2, clocks=clocks) as nodes:
            first = nodes.nodes[0]
            path = f"{first.irisd.folder}/trace"
            gates = [f"{path}.begin", f"{path}.end"]
            ranks = nodes.start(TRACE_RANK, *gates, "200", n_local=1, IRIS_TRACE_EVENTS="4096")
            self.assertEqual([rank.stdout.readline() for rank in ranks], ["rank 0 ready\n", "rank 1 ready\n"])
            for node, other in ((0, 1), (1, 0)):
                seen = self.until(lambda: [each for each in self.ctl(nodes.nodes[node], "nodes", "--format", "json")
                                           if each["node"] == other and each["clock_ahead_ns"] is not None])[0]
                self.assertLess(abs(seen["clock_ahead_ns"] * 1e-9 - (clocks[other] - clocks[node])),
                                seen["clock_error_ns"] * 1e-9)
                self.assertLess(seen["clock_error_ns"], 1e9)
                self.assertEqual(seen["name"], socket.gethostname())
            tracer = nodes.iris_run(*nodes.on_node(IRIS_CTL, "trace", "job", "--seconds", "600", "-o",
                                                   f"{path}.$IRIS_RANK.json"), n_local=1)
            self.assertEqual([tracer.stdout.readline().split("tracing")[1][:7] for _ in range(2)], [" 1 rank"] * 2)
            with open(gates[0], "w", encoding="utf-8"):
                pass
            self.assertEqual([rank.stdout.readline() for rank in ranks], ["rank 0 done\n", "rank 1 done\n"])
            tracer.send_signal(signal.SIGINT)
            ((_, out),) = cluster.finish([tracer])
            known = re.findall(r"] The clock of the node of rank 0 is known within [\d.]+ us", out)
            self.assertEqual(len(known), 2, out)
            with open(gates[1], "w", encoding="utf-8"):
                pass
            for code, text in cluster.finish(ranks):
                self.assertEqual(code, 0, text)
            merged = f"{path}.json"
            text = self.ctl(first, "trace", "--merge", f"{path}.0.json", f"{path}.1.json", "-o", merged)
            self.assertRegex(text, r"2 traces on one clock, that of the node of rank 0, within [\d.]+ us\n")
            trace, boxes = trace_schema.check_file(merged)
            error_ns = 1000 * max(node["clock_error_us"] for node in trace["otherData"]["nodes"])
            print(f"{self.id()}: the clocks are known within {error_ns / 1000:.1f} us")
            sent, received = {}, {}
            for box in boxes:
                if box["name"] == "put_signal":
                    sent[box["args"]["peer"], box["args"]["value"]] = box
                elif box["name"] == "wait":
                    received[box["pid"], box["args"]["value"]] = box
            every = {(rank, i) for rank in range(2) for i in range(1, 201)}
            self.assertEqual((set(sent), set(received)), (every, every))
            late_ns = [received[each]["end_ns"] - sent[each]["start_ns"] for each in every]
            print(f"{self.id()}: a put is seen after {min(late_ns) / 1000:.1f} to {max(late_ns) / 1000:.1f} us")
            self.assertGreaterEqual(min(late_ns), -error_ns)
            self.assertLess(max(late_ns), 60e9, "the clocks were not compared")
            # An irisd's events are its own.
            irisds = [event for event in trace["traceEvents"]
                      if event["name"] == "process_name" and event["pid"] >= 10**6]
            self.assertLessEqual({event["args"]["name"] for event in irisds}, {f"irisd of {socket.gethostname()}"})
            self.assertLessEqual({event["pid"] for event in irisds}, {10**6, 10**6 + 1})

    def check_launched(self, launched, n_ranks):
        for code, out in cluster.finish(launched):
            self.assertEqual(code, 0, out)
            self.assertEqual(out.count("transfers ok"), n_ranks, out)

    def test_iris_run(self):
        with cluster.Cluster(2) as nodes:
            ((code, out),) = cluster.finish([nodes.iris_run(*nodes.on_node(RANK, "transfers"))])
            self.assertEqual((code, sorted(out.splitlines())),
                             (0, [f"[{rank}] transfers ok" for rank in range(4)]))

    def test_iris_bench(self):
        with cluster.Cluster(2) as nodes:
            command = nodes.on_node(IRIS_BENCH, "all", "--bytes", "64KiB", "--samples", "1", "--rounds", "2", "--grid",
                                    "1", "--pairs", "0-1,0-2", "--json")
            ((code, out),) = cluster.finish([nodes.iris_run(*command, options=("--no-prefix",))])
            self.assertEqual(code, 0, out)
            tables = json.loads(out)["tables"]
            self.assertEqual([row["ranks"] for row in tables["pingpong"]["rows"]], ["0-1", "0-2"])
            for transfer, reaches in (("load", False), ("put", True), ("copy_get", True)):
                rates = tables[f"bandwidth_{transfer}"]["rows"][0]
                self.assertIsNotNone(rates["->1"], transfer)
                self.assertEqual(rates["->2"] is not None, reaches, transfer)
            self.assertTrue(tables["barrier"]["rows"] and tables["allocate"]["rows"])
            for name, why in (("create", "rendezvous"), ("grow", "rendezvous"), ("moe", "mapped"), ("norm", "mapped")):
                self.assertRegex(tables[name]["title"], f"^left out: it .* {why}")

    def bench(self, nodes, *arguments, n_local=(2, 2)):
        """Runs iris_bench as the job, with few samples; returns (code, what it wrote)."""
        hosts = ",".join(f"{node.address}:{n}" for node, n in zip(nodes.nodes, n_local))
        return cluster.finish([nodes.launch(
            [cluster.IRIS_RUN, "--hosts", hosts, "--rsh", nodes.agent(), "--no-prefix", "--",
             *nodes.on_node(IRIS_BENCH, *arguments, "--samples", "1")], IRIS_JOB_SECRET="")])[0]

    def test_a_job_tunes_itself_and_runs_by_its_rules(self):
        operations = ("--ops", "all_reduce,all_to_all")
        with cluster.Cluster(2) as nodes, tempfile.TemporaryDirectory() as folder:
            rules = os.path.join(folder, "rules")
            code, out = self.bench(nodes, "tune", *operations, "--sizes", "1KiB,64KiB,512KiB", "--output", rules)
            self.assertEqual((code, out), (0, ""))
            with open(rules, encoding="utf-8") as file:
                tuned = file.read()
            lines = [line.split() for line in tuned.splitlines() if not line.startswith("#")]
            self.assertEqual({tuple(line[:2]) for line in lines}, {("nodes", "2")}, tuned)
            # The defaults of others may be the best.
            self.assertEqual([line[2:4] for line in lines if line[3] not in ("piece_bytes", "blocks")],
                             [["all_reduce", "leaders_most_bytes"], ["all_to_all", "leaders_most_bytes"],
                              ["any", "leader_bytes"]], tuned)

            # Ranks whose rules differ run by those of the first one. The others would cut calls differently.
            for rank in range(4):
                with open(f"{rules}.{rank}", "w", encoding="utf-8") as file:
                    file.write("nodes any any piece_bytes 4KiB\n" if rank else tuned)
            code, out = self.bench(nodes, "collectives", *operations, "--sizes", "16KiB,1MiB", "--json", "--rules",
                                   f"{rules}.$IRIS_RANK")
            self.assertEqual(code, 0, out)
            rows = json.loads(out)["tables"]["collectives"]["rows"]
            print(f"{self.id()}: {[(row['operation'], row['bytes'], row['without/with']) for row in rows]}")
            self.assertEqual([(row["operation"], row["bytes"]) for row in rows],
                             [(operation, size) for operation in ("all_reduce", "all_to_all")
                              for size in (16 << 10, 1 << 20)])

            code, out = self.bench(nodes, "tune", "--blocks", "1")
            self.assertNotEqual(code, 0)
            self.assertIn("tune --blocks is for one node", out)
            code, out = self.bench(nodes, "tune", "--sizes", "1KiB", n_local=(2, 1))
            self.assertNotEqual(code, 0)
            self.assertIn("the nodes have different numbers of ranks", out)
            with open(f"{rules}.2", "w", encoding="utf-8") as file:
                file.write("nodes 2 any piece_bytes 1\n")
            code, out = self.bench(nodes, "collectives", "--rules", f"{rules}.2")
            self.assertNotEqual(code, 0)
            self.assertIn("line 1 of the rules: piece_bytes is \"1\": write a multiple of 256", out)

    def start_waiting(self, nodes):
        """iris-run, and the pids of its ranks, which are ready."""
        process = nodes.iris_run(*nodes.on_node(RANK, "wait"), options=("--kill-after", "1"))
        self.assertEqual(sorted(process.stdout.readline() for _ in range(4)),
                         [f"[{rank}] ready\n" for rank in range(4)])
        return process, sorted(cluster.running(RANK))

    def check_gone(self, pids, since):
        self.until(lambda: not set(pids) & set(cluster.running(RANK)))
        print(f"{self.id()}: no rank after {time.monotonic() - since:.3f} s")

    def test_an_interrupt_of_iris_run_ends_the_ranks_of_all_nodes(self):
        with cluster.Cluster(2) as nodes:
            process, pids = self.start_waiting(nodes)
            self.assertEqual(len(pids), 4)
            since = time.monotonic()
            process.send_signal(signal.SIGINT)
            ((code, out),) = cluster.finish([process])
            self.assertEqual(code, 130, out)
            self.check_gone(pids, since)
            # The next job of the same nodes finds nothing in its way.
            self.check_launched([nodes.iris_run(*nodes.on_node(RANK, "transfers"))], 4)

    def test_a_killed_iris_run_ends_the_ranks_of_all_nodes(self):
        with cluster.Cluster(2) as nodes:
            process, pids = self.start_waiting(nodes)
            since = time.monotonic()
            process.kill()
            process.wait()
            self.check_gone(pids, since)

    def test_a_killed_agent_of_iris_run_is_told(self):
        with cluster.Cluster(2) as nodes:
            process, pids = self.start_waiting(nodes)
            network = os.stat(f"/run/netns/{nodes.nodes[1].name}").st_ino
            (agent,) = [pid for pid in cluster.running(os.path.realpath(cluster.IRIS_RUN), "--agent")
                        if os.stat(f"/proc/{pid}/ns/net").st_ino == network and cluster.children_of(pid, "node_rank")]
            since = time.monotonic()
            os.kill(agent, signal.SIGKILL)
            ((code, out),) = cluster.finish([process])
            self.assertEqual(code, 125, out)
            self.assertIn(f"iris-run: lost ranks 2-3 on {nodes.nodes[1].address}: ", out)
            # The others have been told by their irisd, and have ended by themselves.
            self.assertEqual(len(re.findall(r"(?m)^\[[01]\] told at .*lost", out)), 2, out)
            self.assertNotIn("ended now", out)
            self.check_gone(pids, since)

    def test_iris_run_tells_of_a_node_that_is_not_there(self):
        with cluster.Cluster(1) as nodes:
            process = nodes.launch([cluster.IRIS_RUN, "--hosts", f"{nodes.nodes[0].address},10.213.0.99", "--rsh",
                                    nodes.agent(), "--", RANK, "transfers"])
            ((code, out),) = cluster.finish([process])
            self.assertEqual(code, 125, out)
            self.assertRegex(out, "iris-run: 10.213.0.99: no node 10.213.0.99\n"
                             "iris-run: cannot start rank 1 on 10.213.0.99: .* exited with code 1\n")

    def test_mpich(self):
        with cluster.Cluster(2) as nodes:
            self.check_launched([nodes.mpich(*nodes.on_node(RANK, "transfers"))], 4)

    def test_openmpi(self):
        with cluster.Cluster(2) as nodes:
            self.check_launched([nodes.openmpi(*nodes.on_node(RANK, "transfers"))], 4)

    def test_openmpi_with_nothing_set(self):
        with cluster.Cluster(2) as nodes:
            # Also with MPI, which uses the same PMIx server.
            for mpi in ("", "before", "after"):
                self.check_launched([nodes.openmpi(*nodes.on_node(RANK, "transfers"), bare=True, TEST_MPI=mpi)], 4)
            for node in nodes.nodes:
                self.assertEqual(len(set(re.findall(r"job=(openmpi-\d+)", node.irisd.log()))), 3)

    def test_settings_of_irisd_count_more_than_the_launchers_pmix(self):
        with contextlib.ExitStack() as stack:
            nodes = stack.enter_context(cluster.Cluster(2, flags=ETCD))
            stack.enter_context(cluster.Etcd(nodes.nodes[0]))
            for node in nodes.nodes:
                secret = stack.enter_context(tempfile.NamedTemporaryFile())
                secret.write(f"the secret of node {node.index}".encode())
                secret.flush()
                node.flags = [*ETCD, "--network-secret-file", secret.name]
                node.irisd.stop()
                node.start()
            ((code, out),) = cluster.finish([nodes.openmpi(*nodes.on_node(RANK, "transfers"), bare=True)])
            self.assertNotEqual(code, 0)
            self.assertRegex(out, r"etcd's key /iris/jobs/\S+ was not made with this job's secret")

    def check_placed_in_turns(self, process, n_told):
        since = time.monotonic()
        ((code, out),) = cluster.finish([process])
        print(f"{self.id()}: told after {time.monotonic() - since:.1f} s")
        self.assertNotEqual(code, 0)
        self.assertGreaterEqual(len(re.findall("error: .* --map-by slot.*--distribution=block", out)), n_told, out)
        self.assertLess(time.monotonic() - since, 3 * PATIENCE)  # joins wait a minute

    def test_ranks_of_a_node_that_do_not_follow_each_other(self):
        with cluster.Cluster(2) as nodes:
            # Open MPI ends all ranks when one has failed.
            self.check_placed_in_turns(nodes.openmpi(*nodes.on_node(RANK, "transfers"), in_turns=True), 1)
            self.check_placed_in_turns(nodes.mpich(*nodes.on_node(RANK, "transfers"), in_turns=True), 4)
            if slurm.missing():
                return
            with slurm.Slurm([(node.address, node.address, node.within) for node in nodes.nodes]) as manager:
                self.check_placed_in_turns(
                    nodes.launch(["srun", "--nodes=2", "--overcommit", "-n", "4", "--distribution=cyclic",
                                  *nodes.on_node(RANK, "transfers")], **manager.environment), 4)

    def test_srun(self):
        if slurm.missing():
            self.skipTest(f"{slurm.missing()} are missing; deploy/setup.sh installs them")
        with cluster.Cluster(2) as nodes, \
                slurm.Slurm([(node.address, node.address, node.within) for node in nodes.nodes]) as manager:
            # Ranks meet at the first node, by its name in Slurm and a port made of the job's number.
            self.check_launched([nodes.launch(["srun", "--nodes=2", "--overcommit", "-n", "4",
                                               *nodes.on_node(RANK, "transfers")], **manager.environment)], 4)
            for node in nodes.nodes:
                self.assertIn("job=slurm-1.0", node.irisd.log())
            # Its PMIx gives the ranks a secret.
            self.check_launched([nodes.launch(["srun", "--mpi=pmix", "--nodes=2", "--overcommit", "-n", "4",
                                               *nodes.on_node(RANK, "transfers")], IRIS_JOB_SECRET="",
                                              **manager.environment)], 4)

    def test_torchrun(self):
        with cluster.Cluster(2) as nodes:
            command = ["/usr/bin/torchrun", "--no_python", "--redirects=9:3", "--tee=9:3",
                       "--monitor_interval=0.1", "--nnodes=2", "--nproc_per_node=2",
                       f"--master_addr={nodes.nodes[0].address}", "--master_port=4710"]
            self.check_launched([nodes.launch(
                [*command, f"--node_rank={node.index}", *nodes.on_node(RANK, "transfers")], where=node.index)
                for node in nodes.nodes], 2)


if __name__ == "__main__":
    junit.main()
