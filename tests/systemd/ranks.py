"""Ranks that use irisd without a pause, whatever is done to it."""

import contextlib
import subprocess
import threading
import unittest

from tests.systemd import machine

# irisd's log has these where a job or a session has noticed something.
TOLD = ("rank_hung_up", "rank_dead", "rank_resumed", "job_broken", "job_failed", "join_failed", "memory_lost",
        "session ended")


class Ranks:
    """The ranks of a job, which run a scenario of tests/integration/restart_test: `command` starts it, with this
    environment."""

    def __init__(self, command, environment, scenario, n_ranks, job):
        self.processes = []
        self.output = [""] * n_ranks
        self._readers = []
        for rank in range(n_ranks):
            process = subprocess.Popen(
                [*command, "--scenario", scenario], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True,
                env={**environment, "IRIS_JOB": job, "IRIS_RANK": str(rank), "IRIS_N_RANKS": str(n_ranks)})
            self.processes.append(process)
            self._readers.append(threading.Thread(target=self._read, args=(rank, process), daemon=True))
            self._readers[-1].start()

    def _read(self, rank, process):
        for line in process.stdout:
            self.output[rank] += line

    def wait_ready(self):
        def ready():
            if any(process.poll() is not None for process in self.processes):
                raise RuntimeError(f"a rank ended: {self.output}")
            return all("ready\n" in text for text in self.output)

        machine.wait_until(ready, "the ranks do not join")

    def tell_to_stop(self):
        for process in self.processes:
            try:
                process.stdin.write("stop\n")
                process.stdin.flush()
            except BrokenPipeError:
                pass  # it has ended, and its exit code is seen

    def wait(self):
        """Their exit codes."""
        codes = [process.wait(machine.PATIENCE_SECONDS) for process in self.processes]
        self._close()
        return codes

    def end(self):
        for process in self.processes:
            process.kill()  # nsenter, and so the rank
        self.wait()

    def _close(self):
        for process, reader in zip(self.processes, self._readers):
            reader.join(machine.PATIENCE_SECONDS)
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.stdout.close()


class TestCase(unittest.TestCase):

    def expect_right(self, *jobs):
        for ranks in jobs:
            ranks.tell_to_stop()
        for ranks in jobs:
            codes = ranks.wait()
            self.assertEqual(codes, [0] * len(codes), "\n".join(ranks.output))
            print(f"  {ranks.output[0].splitlines()[-1]}", flush=True)
