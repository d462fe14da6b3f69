"""irisd under systemd, by the unit that is installed: no rank notices that irisd is killed, hangs, is restarted or is
upgraded; when it is stopped, every rank is told, and nothing is left of it."""

import os
import random
import signal
import subprocess
import time
import unittest

from tests.python import junit
from tests.systemd import machine
from tests.systemd import ranks

PROGRAMS = {
    "irisd": "server/irisd",
    "irisd-port": "server/irisd-port",
    "irisd-worker": "server/irisd-worker",
    "node_rank": "tests/nodes/node_rank",
    "ranks": "tests/integration/restart_test",
}
for library in ("libiris.so.0", "libiris_emu.so.0"):  # which ranks need if they are not linked with them statically
    if os.path.exists(f"deploy/{library}"):
        PROGRAMS[library] = f"deploy/{library}"
NODES = "deploy/irisd-nodes.conf"
UCX = "/usr/local/lib/iris/ucx"
VERSION, OTHER_VERSION = b"0.2.0", b"0.2.9"
KILLS = 20
RESTARTS = 3
OTHER_NODE = "/run/iris-other"
WATCHDOG = "/run/units/irisd.service.d/watchdog.conf"

MISSING = machine.missing()


@unittest.skipIf(MISSING, MISSING)
class Restart(ranks.TestCase):

    def ranks_of(self, place, scenario, n_ranks, job):
        environment = {"PATH": machine.PATH, "LD_LIBRARY_PATH": "/run/programs", "IRIS_RUNTIME_DIR": "/run/iris"}
        return ranks.Ranks(place.command("/run/programs/ranks"), environment, scenario, n_ranks, job)

    def test_no_rank_notices_kills_hangs_restarts_and_upgrades(self):
        with machine.Machine(PROGRAMS) as place:
            place.systemctl("start", "irisd")
            timing = random.Random(0)
            traffic = self.ranks_of(place, "traffic", 4, "traffic")
            comers = self.ranks_of(place, "come_and_go", 2, "comers")
            traffic.wait_ready()
            comers.wait_ready()

            # Killed, also before it serves again.
            killed, pid = [], 0
            for _ in range(KILLS):
                pid = place.started_anew(pid)
                time.sleep(timing.uniform(0, 0.2))
                killed.append(time.time())
                os.kill(pid, signal.SIGKILL)
            pid = place.started_anew(pid)
            after_kills = place.seconds_until_served(*killed)
            self.assertGreaterEqual(int(place.show("NRestarts")["NRestarts"]), KILLS)

            # Hung: systemd ends it.
            place.write(WATCHDOG, "[Service]\nWatchdogSec=2\n")
            place.systemctl("daemon-reload")
            place.systemctl("restart", "irisd")
            pid = place.started_anew(pid)
            hung = time.time()
            os.kill(pid, signal.SIGSTOP)
            pid = place.started_anew(pid)
            os.remove(place.path(WATCHDOG))
            place.systemctl("daemon-reload")
            after_hang = place.seconds_until_served(hung)[0]

            # Restarted, and systemd itself with it.
            restarted = []
            for i in range(RESTARTS):
                restarted.append(time.time())
                place.systemctl("restart", "irisd")
                if i == 0:
                    place.systemctl("daemon-reexec")
            after_restarts = place.seconds_until_served(*restarted)
            self.assertEqual(place.irisd_log().count("irisd hands over"), RESTARTS + 1)

            # Restarted with a mistake in its file: nothing is lost until it is mended.
            before = int(place.show("NRestarts")["NRestarts"])
            place.write("/run/irisd.toml", machine.SETTINGS + "mistake = 1\n")
            place.systemctl("restart", "irisd", check=False)
            machine.wait_until(lambda: int(place.show("NRestarts")["NRestarts"]) >= before + 10,
                               "irisd is not started again")
            place.write("/run/irisd.toml", machine.SETTINGS)
            machine.wait_until(lambda: place.show("ActiveState")["ActiveState"] == "active", "irisd does not serve")

            # Another version.
            with open(os.path.realpath(PROGRAMS["irisd"]), "rb") as file:
                program = file.read()
            other = os.path.join(place.folder, "irisd")
            with open(other, "wb") as file:
                file.write(program.replace(VERSION, OTHER_VERSION))
            place.install("irisd", other)
            upgraded = time.time()
            place.systemctl("restart", "irisd")
            after_upgrade = place.seconds_until_served(upgraded)[0]
            self.assertEqual(place.served()[-1][1], OTHER_VERSION.decode())

            # One more kill, of the new one.
            pid = place.started_anew(0)
            os.kill(pid, signal.SIGKILL)
            place.started_anew(pid)
            machine.wait_until(lambda: place.show("ActiveState")["ActiveState"] == "active", "irisd does not serve")
            time.sleep(0.3)  # of traffic
            print(f"\n  irisd serves again: {KILLS} kills, after {after_kills[KILLS // 2] * 1e3:.0f} ms (median), "
                  f"{after_kills[-1] * 1e3:.0f} ms at most; hung, after {after_hang:.1f} s with WatchdogSec=2; "
                  f"{RESTARTS} restarts, {after_restarts[-1] * 1e3:.0f} ms at most; upgraded, "
                  f"{after_upgrade * 1e3:.0f} ms; {place.show('NFileDescriptorStore')['NFileDescriptorStore']} "
                  "descriptors kept", flush=True)
            self.expect_right(traffic, comers)
            log = place.irisd_log()
            self.assertEqual([told for told in ranks.TOLD if told in log], [])

    def node_rank(self, place, rank, *command):
        """A rank of a job of two nodes with one each: the unit's irisd, and another one beside it."""
        environment = {"PATH": machine.PATH, "LD_LIBRARY_PATH": "/run/programs", "IRIS_JOB": "job",
                       "IRIS_RUNTIME_DIR": ("/run/iris", OTHER_NODE)[rank], "IRIS_RANK": str(rank),
                       "IRIS_N_RANKS": "2", "IRIS_LOCAL_RANK": "0", "IRIS_N_LOCAL": "1",
                       "IRIS_RENDEZVOUS": "127.0.0.1:4711", "IRIS_JOB_SECRET": "a secret of tests only"}
        process = subprocess.Popen(place.command("/run/programs/node_rank", *command), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def ranks_of_nodes(self, place, *command):
        processes = [self.node_rank(place, rank, *command) for rank in range(2)]
        for process in processes:
            self.assertEqual(process.stdout.readline(), "ready\n")
        return processes

    @unittest.skipUnless(os.path.exists(UCX), "UCX is missing; deploy/setup.sh unpacks it where pip reaches its index")
    def test_a_job_of_two_nodes_goes_on(self):
        with machine.Machine(PROGRAMS) as place:
            with open(NODES, encoding="utf-8") as file:
                place.write("/run/units/irisd.service.d/nodes.conf", file.read())
            subprocess.run(place.command("ip", "link", "set", "lo", "up"), check=True, env={"PATH": machine.PATH})
            place.systemctl("start", "irisd")
            with open(place.path("/run/other.log"), "wb") as log:
                other = subprocess.Popen(place.command("/run/programs/irisd", "--config", "/run/irisd.toml",
                                                       "--runtime-dir", OTHER_NODE),
                                         stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            self.addCleanup(other.wait)
            self.addCleanup(other.kill)
            machine.wait_until(lambda: os.path.exists(place.path(f"{OTHER_NODE}/irisd.sock")), "irisd does not serve")

            job = self.ranks_of_nodes(place, "operate", "8")
            (port,) = place.processes("irisd-port")
            for _ in range(3):
                pid = place.irisd()
                os.kill(pid, signal.SIGKILL)
                place.started_anew(pid)
                time.sleep(0.5)
                place.systemctl("restart", "irisd")
                time.sleep(0.5)
            self.assertEqual(place.processes("irisd-port"), [port])
            self.assertEqual(place.irisd_log().count("irisd has attached to a port"), 6)
            for process in job:
                out = process.communicate(timeout=machine.PATIENCE_SECONDS)[0]
                self.assertEqual((process.returncode, "operate ok" in out), (0, True), out)
            machine.wait_until(lambda: not place.processes("irisd-port"), "the port process stays")

            # A stop for good is told to the other node, and leaves nothing.
            job = self.ranks_of_nodes(place, "wait")
            place.systemctl("restart", "irisd")
            place.systemctl("stop", "irisd")
            out = job[1].communicate(timeout=machine.PATIENCE_SECONDS)[0]
            self.assertRegex(out, r"told at .*node")
            self.assertFalse(os.path.exists(place.path("/sys/fs/cgroup/system.slice/irisd.service/cgroup.procs")))

    def test_a_stop_ends_everything_and_tells_it(self):
        with machine.Machine(PROGRAMS) as place:
            place.systemctl("start", "irisd")
            traffic = self.ranks_of(place, "traffic", 4, "traffic")
            traffic.wait_ready()
            kept = place.show("NFileDescriptorStore")["NFileDescriptorStore"]
            self.assertGreater(int(kept), 4)
            self.assertTrue(place.memory_of_init())

            place.systemctl("stop", "irisd")
            state = place.show("ActiveState", "Result", "NFileDescriptorStore")
            self.assertEqual((state["ActiveState"], state["Result"], state["NFileDescriptorStore"]),
                             ("inactive", "success", "0"))
            self.assertEqual(place.memory_of_init(), [])
            self.assertFalse(os.path.exists(place.path("/run/iris")))
            machine.wait_until(lambda: all("irisd is stopping" in text for text in traffic.output),
                               f"the ranks are not told: {traffic.output}")
            print(f"\n  of {kept} descriptors none is kept; ranks are told: {traffic.output[0]}", flush=True)
            self.assertIn("jobs live", place.irisd_log())
            traffic.end()

            place.systemctl("start", "irisd")
            self.assertEqual(place.show("NFileDescriptorStore")["NFileDescriptorStore"], "2")
            self.assertNotIn("goes on where", place.irisd_log())
            again = self.ranks_of(place, "traffic", 4, "traffic")
            again.wait_ready()
            self.expect_right(again)


if __name__ == "__main__":
    junit.main()
