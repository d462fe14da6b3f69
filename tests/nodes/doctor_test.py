"""iris-ctl doctor --node, between network namespaces of this machine that have real irisds."""

import json
import os
import socket
import subprocess
import time
import unittest

from tests.nodes import cluster
from tests.nodes import wire
from tests.python import junit

IRIS_CTL = os.path.abspath("client/ctl/iris-ctl")
LIMIT_SECONDS = 120


class Doctor(unittest.TestCase):

    def setUp(self):
        if why := cluster.missing():
            self.skipTest(why)

    def doctor(self, nodes, *options, other=None, rsh=None, **environment):
        """The findings of iris-ctl doctor --node by name, after a look at its exit code."""
        for node in nodes.nodes:
            folder = f"{node.irisd.folder}/xdg"
            if not os.path.exists(folder):
                os.mkdir(folder)
                os.symlink(node.irisd.runtime_dir, f"{folder}/iris")
        node = nodes.nodes[0]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("IRIS_")}
        begun = time.monotonic()
        result = subprocess.run(
            [*node.within, IRIS_CTL, "doctor", "--node", other or nodes.nodes[1].address, "--rsh", rsh or nodes.agent(),
             "--format", "json", *options],
            env={**clean, "XDG_RUNTIME_DIR": f"{node.irisd.folder}/xdg", **environment}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
        print(f"{self.id()}: after {time.monotonic() - begun:.1f} s\n{result.stdout}{result.stderr}")
        findings = json.loads(result.stdout)
        for each in findings:
            self.assertEqual(each["remedy"] == "", each["verdict"] == "ok", each)
        self.assertEqual(result.returncode, int(any(each["verdict"] == "fail" for each in findings)))
        self.assertEqual(result.stderr, "")
        self.assertEqual(cluster.running(os.path.realpath(IRIS_CTL), "--doctor-rank"), [])
        return {each["check"]: each for each in findings}

    def check_failed(self, findings, check, detail, remedy):
        self.assertIn(check, findings)
        self.assertEqual(findings[check]["verdict"], "fail")
        self.assertRegex(findings[check]["detail"], detail)
        self.assertRegex(findings[check]["remedy"], remedy)

    def test_measures_what_a_job_of_two_nodes_gets(self):
        clocks = (0, -5000) if time.monotonic() > 5100 else (0, 5000)
        with cluster.Cluster(2, clocks=clocks) as nodes:
            found = self.doctor(nodes)
            self.assertEqual([(each["check"], each["verdict"]) for each in found.values()],
                             [(check, "ok") for check in ("versions", "devices", "path MTU", "round trip", "put",
                                                          "fetch-add", "puts of 1 MiB", "connection", "clocks")])
            self.assertRegex(found["connection"]["detail"], r"^tcp/eth0 by UCX 1\..*; here 10\.213\.0\.1:\d+, tcp on "
                             r"eth0; there 10\.213\.0\.2:\d+, tcp on eth0$")
            self.assertEqual({found["path MTU"][name] for name in ("here_bytes", "there_bytes", "passes_to_bytes",
                                                                   "passes_from_bytes")}, {1500})
            for check in ("round trip", "put", "fetch-add"):
                self.assertGreater(found[check]["median_us"], 1)
                self.assertGreaterEqual(found[check]["p99_us"], found[check]["median_us"])
            for way in ("to", "from"):
                self.assertGreater(found["puts of 1 MiB"][f"{way}_bytes_per_second"], 1e6)
            # Both nodes have the time of day of this machine.
            clock = found["clocks"]
            self.assertLess(abs(clock["wall_ahead_us"]), clock["error_us"] + 1000)
            self.assertLess(abs(clock["monotonic_ahead_us"] - 1e6 * (clocks[1] - clocks[0])), clock["error_us"])
            # The other node's irisd.
            nodes.nodes[1].irisd.process.kill()
            nodes.nodes[1].irisd.process.wait()
            self.check_failed(self.doctor(nodes), f"irisd on {nodes.nodes[1].address}", "irisd", "start irisd")

    def test_names_what_is_wrong_between_nodes(self):
        with cluster.Cluster(2) as nodes:
            second = nodes.nodes[1]
            start = f"start on {second.address}"
            self.check_failed(self.doctor(nodes, other="10.213.0.99"), "start on 10.213.0.99",
                              "10.213.0.99: no node 10.213.0.99; cannot start rank 0 .*exited with code 1",
                              "10.213.0.99 true' work without a password")
            self.check_failed(self.doctor(nodes, rsh="/nobody/ssh"), start, "cannot execute /nobody/ssh",
                              "same version")
            self.check_failed(self.doctor(nodes, rsh="/bin/echo"), start, "echo exited with code 0", "true' work")
            self.check_failed(self.doctor(nodes, "--rendezvous", "10.213.0.77:4711"), f"job on {second.address}",
                              r"10\.213\.0\.77:4711 \(no interface", "address of the other node")
            self.check_failed(self.doctor(nodes, IRIS_JOB_SECRET="short"), "job", "IRIS_JOB_SECRET",
                              "secret")

    def test_names_ports_that_a_firewall_closes(self):
        def closes(first, last):
            """Drops what goes by TCP to these ports of the other node."""
            nodes.wire.drops = lambda to, frame: (
                to == 1 and frame[12:14] == b"\x08\x00" and frame[23] == socket.IPPROTO_TCP
                and first <= int.from_bytes(frame[36:38], "big") <= last)
        with cluster.Cluster(2, wire=wire.Wire(), flags=["--network-silence", "1s", "--join-timeout", "5s",
                                                         "--join-timeout-max", "5s"]) as nodes:
            there = nodes.nodes[1].address
            closes(20000, 29999)
            self.check_failed(self.doctor(nodes), "job", rf"no connection to the node of rank 0 at {there}:2\d+ within",
                              "firewall")
            open_port = ("--rendezvous", f"{there}:4711")
            self.assertEqual(self.doctor(nodes, *open_port)["put"]["verdict"], "ok")
            closes(30000, 65535)
            self.check_failed(self.doctor(nodes, *open_port), "exchange of facts",
                              "could not be sent|connection failed", "network.ports of both nodes")

    def test_finds_a_path_that_loses_large_packets(self):
        with cluster.Cluster(2, wire=wire.Wire()) as nodes:
            for hole, way in ((1, "to the other"), (0, "to this")):
                nodes.wire.drops = lambda to, frame, hole=hole: to == hole and len(frame) > 1400 + 14  # of Ethernet
                found = self.doctor(nodes)
                self.check_failed(found, "path MTU", rf"packets of 1500 bytes are lost on the way {way} node, "
                                  r".*those of (139\d|1400) pass", r"mtu (139\d|1400)\)")
                self.assertNotIn("put", found)


if __name__ == "__main__":
    junit.main()
