"""Whoever kills the processes that speak gRPC costs a slow call: no job is told anything, and no byte is wrong."""

import os
import signal
import time
import unittest

from tests.hostile import house
from tests.python import irisd
from tests.python import junit

KILLS = 100 if house.LONG else 10
JOBS = 8
PAUSE_SECONDS = 0.25  # in which jobs come to work again
CALL_SECONDS_MAX = 5.0


@unittest.skipUnless(os.geteuid() == 0, house.NO_PRIVILEGE)
class WorkerKill(unittest.TestCase):

    def test_the_client_library_needs_no_worker(self):
        with house.House(jobs=1, by_grpc=0) as place:
            self.assertEqual(place.worker_pids(), [])
            wrong, _, _ = place.end_jobs()
            self.assertEqual(wrong, [])

    def test_jobs_notice_a_slow_call_at_most(self):
        with house.House(jobs=JOBS, by_grpc=JOBS // 2) as place:
            if not place.worker_pids():
                self.skipTest(f"irisd has no child named {house.WORKER_NAME}")
            joining = place.start_joins()
            killed = 0
            for _ in range(KILLS):
                end = time.monotonic() + irisd.PATIENCE_SECONDS
                while not place.worker_pids() and time.monotonic() < end:
                    time.sleep(0.005)
                pids = place.worker_pids()
                self.assertTrue(pids, f"no worker was started again: {place.daemon.log()[-2000:]}")
                for pid in pids:
                    try:
                        os.kill(pid, signal.SIGKILL)
                        killed += 1
                    except ProcessLookupError:
                        pass
                time.sleep(PAUSE_SECONDS)
            self.assertIsNone(place.daemon.process.poll(), place.daemon.log()[-2000:])
            joins = place.stop_joins(joining)
            wrong, slowest, rounds = place.end_jobs()
            print(f"\n  {killed} workers killed in {KILLS} rounds; jobs: {rounds} rounds, slowest {slowest[0]} "
                  f"{slowest[1] * 1e3:.1f} ms; {len(joins.seconds)} joins, slowest "
                  f"{max(joins.seconds, default=0) * 1e3:.1f} ms, {len(joins.failures)} failed", flush=True)
            wrong += joins.failures
            if place.sockets < KILLS:
                wrong.append(f"the jobs lost {place.sockets} gRPC sockets: who was killed?")
            if slowest[1] > CALL_SECONDS_MAX:
                wrong.append(f"a job waited {slowest[1]:.1f} s in {slowest[0]}")
            self.assertEqual(wrong, [], "\n".join(wrong))


if __name__ == "__main__":
    junit.main()
