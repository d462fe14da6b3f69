"""iris-ctl waits against real ranks of which one comes late or is stopped: it is named, whoever looks."""

import json
import os
import signal
import subprocess
import time
import unittest

from tests.python import irisd
from tests.python import junit
from tests.python import patience

IRIS_CTL = "client/ctl/iris-ctl"
IRIS_RUN = "client/ctl/iris-run"
WAITING_RANK = "client/ctl/waiting_rank"
PATIENCE_SECONDS = 60
RANKS = 4


def waiting(wait):
    return {each["rank"] for each in wait["waiting"]}


def missing(wait):
    return {each["rank"] for each in wait["missing"]}


class Waits(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.daemon = irisd.Irisd(devices=RANKS)
        cls.addClassCleanup(cls.daemon.stop)

    def ctl(self, *arguments):
        result = subprocess.run([IRIS_CTL, "--runtime-dir", self.daemon.runtime_dir, *arguments],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_SECONDS,
                                check=False)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout

    def waits(self, job):
        return json.loads(self.ctl("waits", job, "--format", "json"))

    def until(self, look, what):
        """What `look` gives, as soon as it is something."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            seen = look()
            if seen:
                return seen
            self.assertLess(time.monotonic(), end, what() if callable(what) else what)
            time.sleep(0.02)

    def start(self, call, late_rank):
        """Ranks that make the call; the late one stays before it. Returns job, their pids and the file it waits for."""
        job = f"{call}-{self.id().rsplit('.', 1)[-1]}"
        gate = os.path.join(self.daemon.folder, job + ".gate")
        ranks = subprocess.Popen([IRIS_RUN, "-n", str(RANKS), "--job", job, "--", WAITING_RANK, call, str(late_rank),
                                  gate], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                 env=self.daemon.environment(IRIS_HEAP_BYTES="64MiB"))
        self.addCleanup(self.end, ranks)
        text = ""
        while text.count("ready") < RANKS:
            text += patience.line(ranks)
        listed = json.loads(self.ctl("jobs", "--job", job, "--format", "json"))
        pids = {each["rank"]: each["pid"] for each in listed[0]["ranks"]}
        for pid in pids.values():
            self.addCleanup(self.carry_on, pid)
        return job, pids, gate, ranks

    @staticmethod
    def carry_on(pid):
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass

    @staticmethod
    def end(ranks):
        ranks.terminate()
        ranks.communicate(timeout=PATIENCE_SECONDS)

    def named(self, job, rank, stopped, ahead=False):
        """The wait for that rank alone in which all others are, as soon as it is told. Where some may be `ahead`, of
        whom all have come that they needed, they wait in the next call for those behind: a wait of its own."""

        def look():
            first, *later = self.waits(job) or [None]
            if first is None or [(each["rank"], each["stopped"]) for each in first["missing"]] != [(rank, stopped)]:
                return None
            held = waiting(first)
            for wait in later if ahead else []:
                # Nobody is waited for but those who are held up themselves, in the call before.
                if wait["number"] != first["number"] + 1 or waiting(wait) & held or not missing(wait) <= held | {rank}:
                    return None
                held = held | waiting(wait)
            return first if held == set(range(RANKS)) - {rank} else None

        return self.until(look, lambda: self.waits(job))

    def finish(self, gate, pids, stopped, ranks):
        """Everybody goes on, and nobody fails."""
        with open(gate, "w", encoding="utf-8"):
            pass
        os.kill(pids[stopped], signal.SIGCONT)
        text, _ = ranks.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(ranks.returncode, 0, text)

    def check(self, wait, kind, call):
        self.assertEqual(wait["kind"], kind)
        self.assertIn(call, wait["call"])
        self.assertEqual(wait["n_members"], RANKS)
        self.assertGreaterEqual(wait["waited_ms"], 0)

    def inside(self, call, kind, named):
        """A rank that is stopped inside the call while all wait for another one, which then comes."""
        job, pids, gate, ranks = self.start(call, late_rank=3)
        first = self.named(job, 3, False)
        self.check(first, kind, named)
        os.kill(pids[2], signal.SIGSTOP)
        with open(gate, "w", encoding="utf-8"):
            pass
        # The others pass the call that they are in and wait in the next one, or cannot pass it. Where only some of the
        # blocks of the stopped rank had been started, some of the others have all that they need, and some do not.
        wait = self.named(job, 2, True, ahead=True)
        self.check(wait, kind, named)
        self.assertIn(wait["number"], (first["number"], first["number"] + 1))
        self.assertEqual(wait["missing"][0]["pid"], pids[2])
        # Another rank may be the first in the list by now.
        line = self.ctl("waits", "--job", job).splitlines()[0]
        self.assertRegex(line, rf"^job {job}  {named} #{wait['number']} of 4 ranks.*  ranks? [013,]+ waits? for rank 2 "
                               rf"\(pid {pids[2]}, stopped.*\) since \d+\.\d s$")
        self.finish(gate, pids, 2, ranks)
        return wait, line

    def test_a_rank_stopped_inside_a_host_barrier(self):
        self.inside("barrier", "host_barrier", "host barrier")

    def test_a_rank_stopped_inside_an_all_reduce(self):
        wait, line = self.inside("all_reduce", "collective", "all_reduce")
        self.assertEqual((wait["bytes"], wait["dtype"], wait["device_unknown"]), (1 << 20, "f32", False))
        self.assertIn(" (1 MiB, f32) ", line)

    def test_a_rank_stopped_before_an_allocation(self):
        job, pids, gate, ranks = self.start("allocate", late_rank=2)
        os.kill(pids[2], signal.SIGSTOP)
        wait = self.named(job, 2, True)
        self.check(wait, "operation", "allocate")
        self.assertRegex(self.ctl("waits", job),
                         rf"(?m)^job {job}  allocate #{wait['number']} of 4 ranks \(.*\)  "
                         rf"ranks 0,1,3 wait for rank 2 \(pid {pids[2]}, stopped\) since \d+\.\d s$")
        self.finish(gate, pids, 2, ranks)

    def test_also_while_every_process_is_stopped(self):
        job, pids, gate, ranks = self.start("barrier", late_rank=1)
        self.named(job, 1, False)
        for pid in pids.values():
            os.kill(pid, signal.SIGSTOP)
        wait = self.named(job, 1, True)
        self.assertTrue(all(each["stopped"] for each in wait["waiting"]))
        for pid in pids.values():
            os.kill(pid, signal.SIGCONT)
        self.finish(gate, pids, 1, ranks)

    def test_a_rank_that_does_not_start(self):
        ranks = subprocess.Popen([WAITING_RANK, "barrier", "0", "/nowhere"], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL,
                                 env=self.daemon.environment(IRIS_JOB="alone", IRIS_RANK="1", IRIS_N_RANKS="2",
                                                             IRIS_LOCAL_RANK="1", IRIS_HEAP_BYTES="4MiB"))
        self.addCleanup(ranks.wait)
        self.addCleanup(ranks.kill)
        wait = self.until(lambda: [each for each in json.loads(self.ctl("waits", "--format", "json"))
                                   if each["job"] == "alone"], "no join waits")[0]
        self.assertEqual(wait["kind"], "join")
        self.assertEqual([each["rank"] for each in wait["waiting"]], [1])
        self.assertEqual([(each["rank"], each["pid"]) for each in wait["missing"]], [(0, 0)])
        self.assertRegex(self.ctl("waits", "alone"),
                         r"^job alone  join of 2 ranks  rank 1 waits for rank 0 \(no process\) since \d+\.\d s\n$")

    def test_nobody_waits(self):
        self.until(lambda: self.ctl("jobs") == "no jobs\n", "jobs stay")
        self.assertEqual(self.ctl("waits"), "nobody waits\n")
        self.assertEqual(json.loads(self.ctl("waits", "--format", "json")), [])
        result = subprocess.run([IRIS_CTL, "--runtime-dir", self.daemon.runtime_dir, "waits", "trian"],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(result.returncode, 4)
        self.assertIn('no job "trian"', result.stderr)


if __name__ == "__main__":
    junit.main()
