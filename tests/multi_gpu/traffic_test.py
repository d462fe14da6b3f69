"""Ranks under traffic on emulated devices: what survives the death of a rank, and that of irisd."""

import json
import os
import re
import signal
import subprocess
import tempfile
import time
import unittest

from tests.python import irisd
from tests.python import junit

TRAFFIC = "tests/multi_gpu/traffic"
IRIS_CTL = "client/ctl/iris-ctl"
PEER_DIED = 3
N_RANKS = 3
PATIENCE_SECONDS = 120


class Ranks:
    """N_RANKS processes of traffic, without a launcher: each ends as it ends."""

    def __init__(self, daemon, seconds, *options):
        self.folder = tempfile.TemporaryDirectory(prefix="iris-traffic-")
        self.processes = []
        for rank in range(N_RANKS):
            environment = daemon.environment(IRIS_JOB="traffic", IRIS_RANK=str(rank), IRIS_N_RANKS=str(N_RANKS),
                                             IRIS_LOCAL_RANK=str(rank))
            with open(self._path(rank), "wb") as log:
                command = [TRAFFIC, "--seconds", str(seconds), "--heap-mib", "32", *options]
                self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                                       env=environment))

    def _path(self, rank):
        return os.path.join(self.folder.name, str(rank))

    def output(self, rank):
        with open(self._path(rank), encoding="utf-8", errors="replace") as file:
            return file.read()

    def launches(self, rank):
        return self.output(rank).count(" launch ")

    def wait_for_launches(self, test, more):
        """Until every rank has finished so many more launches."""
        wanted = [self.launches(rank) + more for rank in range(N_RANKS)]
        end = time.monotonic() + PATIENCE_SECONDS
        while any(self.launches(rank) < wanted[rank] for rank in range(N_RANKS)):
            for rank, process in enumerate(self.processes):
                test.assertIsNone(process.poll(), self.output(rank))
            test.assertLess(time.monotonic(), end, "no traffic")
            time.sleep(0.02)

    def codes(self):
        return [process.wait(PATIENCE_SECONDS) for process in self.processes]

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.folder.cleanup()


class Traffic(unittest.TestCase):

    def setUp(self):
        self.daemon = irisd.Irisd(devices=N_RANKS)
        self.addCleanup(self.daemon.stop)

    def start(self, seconds, *options):
        ranks = Ranks(self.daemon, seconds, *options)
        self.addCleanup(ranks.close)
        ranks.wait_for_launches(self, 3)
        return ranks

    def heap_bytes(self):
        result = subprocess.run([IRIS_CTL, "status", "--format", "json"], stdout=subprocess.PIPE, text=True, timeout=60,
                                check=True, env=self.daemon.environment())
        return json.loads(result.stdout)["heap_bytes"]

    def test_ends_when_its_time_is_up(self):
        ranks = self.start(seconds=1)
        self.assertEqual(ranks.codes(), [0] * N_RANKS, ranks.output(0))
        for rank in range(N_RANKS):
            self.assertRegex(ranks.output(rank), rf"rank {rank} data intact: its own and that of {N_RANKS - 1} peers")
            self.assertRegex(ranks.output(rank), rf"rank {rank} done: \d+ rounds, 0 wrong words")

    def test_survivors_of_a_killed_rank_name_it_and_have_their_data(self):
        ranks = self.start(seconds=3600)
        self.assertGreater(self.heap_bytes(), 0)
        victim = ranks.processes[1]
        victim.kill()
        self.assertEqual(ranks.codes(), [PEER_DIED, -signal.SIGKILL, PEER_DIED], ranks.output(0) + ranks.output(2))
        for rank in (0, 2):
            self.assertRegex(ranks.output(rank), rf"rank {rank} stopped after \d+ rounds: .*rank 1.*{victim.pid}")
            self.assertIn(f"rank {rank} data intact", ranks.output(rank))
        end = time.monotonic() + PATIENCE_SECONDS
        while self.heap_bytes():
            self.assertLess(time.monotonic(), end, "the job's memory is not given back")
            time.sleep(0.02)

    def test_collectives_are_right_until_the_time_is_up(self):
        ranks = self.start(1, "--collectives")
        self.assertEqual(ranks.codes(), [0] * N_RANKS, "".join(ranks.output(rank) for rank in range(N_RANKS)))
        for rank in range(N_RANKS):
            self.assertRegex(ranks.output(rank), rf"rank {rank} done: \d+ rounds, 0 wrong words")

    def test_rank_killed_among_collectives_is_named(self):
        ranks = self.start(3600, "--collectives")
        victim = ranks.processes[2]
        victim.kill()
        self.assertEqual(ranks.codes(), [PEER_DIED, PEER_DIED, -signal.SIGKILL], ranks.output(0) + ranks.output(1))
        for rank in (0, 1):
            self.assertRegex(ranks.output(rank), rf"rank {rank} stopped after \d+ rounds: .*rank 2.*{victim.pid}")
            self.assertIn(f"rank {rank} data intact", ranks.output(rank))

    def test_rank_killed_among_products_is_named(self):
        ranks = self.start(3600, "--products")
        victim = ranks.processes[0]
        victim.kill()
        self.assertEqual(ranks.codes(), [-signal.SIGKILL, PEER_DIED, PEER_DIED], ranks.output(1) + ranks.output(2))
        for rank in (1, 2):
            self.assertRegex(ranks.output(rank), rf"rank {rank} stopped after \d+ rounds: .*rank 0.*{victim.pid}")
            self.assertIn(f"rank {rank} data intact", ranks.output(rank))

    def test_goes_on_without_irisd(self):
        ranks = self.start(seconds=6)
        self.daemon.process.send_signal(signal.SIGKILL)
        self.daemon.process.wait(PATIENCE_SECONDS)
        ranks.wait_for_launches(self, 2)
        self.assertEqual(ranks.codes(), [0] * N_RANKS, "".join(ranks.output(rank) for rank in range(N_RANKS)))
        for rank in range(N_RANKS):
            self.assertRegex(ranks.output(rank), rf"rank {rank} done: \d+ rounds, 0 wrong words")

    def test_explains_itself(self):
        result = subprocess.run([TRAFFIC, "--wrong"], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        self.assertEqual(result.returncode, 2)
        self.assertTrue(re.match("usage: traffic", result.stderr))


if __name__ == "__main__":
    junit.main()
