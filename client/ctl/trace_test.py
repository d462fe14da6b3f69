"""iris-ctl trace and IRIS_TRACE with real ranks: what is in the files, and that nothing stays switched on."""

import json
import os
import re
import signal
import subprocess
import time
import unittest

from tests.python import irisd
from tests.python import junit
from tests.python import patience
from tests.python import trace_schema

IRIS_CTL = "client/ctl/iris-ctl"
IRIS_RUN = "client/ctl/iris-run"
TRACE_RANK = "client/ctl/trace_rank"
TRAINING = "examples/10_digits_training"
PATIENCE_SECONDS = 120
RANKS = 4
MESSAGES = 250  # of each rank, so 1,000 in all


class Trace(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.daemon = irisd.Irisd(devices=RANKS, memory="512MiB")
        cls.addClassCleanup(cls.daemon.stop)

    def path(self, name):
        return os.path.join(self.daemon.folder, f"{self.id().rsplit('.', 1)[-1]}.{name}")

    @staticmethod
    def end(process):
        process.terminate()
        process.communicate(timeout=PATIENCE_SECONDS)

    def ctl(self, *arguments):
        return subprocess.run([IRIS_CTL, "--runtime-dir", self.daemon.runtime_dir, *arguments],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_SECONDS,
                              check=False)

    def begin_trace(self, job, *arguments):
        """iris-ctl trace, once the traces are on."""
        tracer = subprocess.Popen([IRIS_CTL, "--runtime-dir", self.daemon.runtime_dir, "trace", job, *arguments],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.end, tracer)
        line = tracer.stderr.readline()
        self.assertIn(f"tracing {RANKS} ranks", line)
        return tracer

    def start(self, messages, **environment):
        """Ranks that are ready. Returns the job, the ranks, and the two files that they wait for."""
        job = self.id().rsplit(".", 1)[-1]
        gates = [self.path("begin"), self.path("end")]
        ranks = subprocess.Popen([IRIS_RUN, "-n", str(RANKS), "--keep-going", "--job", job, "--", TRACE_RANK, *gates,
                                  str(messages)],
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                 env=self.daemon.environment(**environment))
        self.addCleanup(self.end, ranks)
        self.await_all(ranks, "ready")
        return job, ranks, gates

    def await_all(self, ranks, word):
        text = ""
        while text.count(word) < RANKS:
            text += patience.line(ranks)

    def finish(self, ranks, gates):
        for gate in gates:
            with open(gate, "w", encoding="utf-8"):
                pass
        text, _ = ranks.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(ranks.returncode, 0, text)

    def test_every_message_is_sent_before_it_is_received(self):
        job, ranks, gates = self.start(MESSAGES, IRIS_TRACE_EVENTS="4096")
        path = self.path("json")
        tracer = self.begin_trace(job, "--seconds", "600", "-o", path)
        with open(gates[0], "w", encoding="utf-8"):
            pass
        self.await_all(ranks, "done")
        tracer.send_signal(signal.SIGINT)
        text, errors = tracer.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(tracer.returncode, 0, errors)
        self.assertRegex(text, r"events of 4 ranks and \d+ of irisd, 0 dropped, on one clock within 0\.000 us\n$")
        self.finish(ranks, gates)

        trace, boxes = trace_schema.check_file(path)
        self.assertEqual([rank["rank"] for rank in trace["otherData"]["ranks"]], list(range(RANKS)))
        self.assertEqual([rank["dropped"] for rank in trace["otherData"]["ranks"]], [0] * RANKS)
        sent, received = {}, {}
        for box in boxes:
            rank, arguments = box["pid"], box["args"]
            if box["name"] == "put_signal":
                self.assertEqual((arguments["peer"], arguments["bytes"]), ((rank + 1) % RANKS, 256))
                sent[arguments["peer"], arguments["value"]] = box
            elif box["name"] == "wait":
                received[rank, arguments["value"]] = box
        every = {(rank, i) for rank in range(RANKS) for i in range(1, MESSAGES + 1)}
        self.assertEqual((set(sent), set(received)), (every, every))
        late = [message for message in every if sent[message]["start_ns"] > received[message]["end_ns"]]
        self.assertEqual(late, [])
        # Collectives, with their rounds, the program's own spans, and the host's calls.
        reduced = [box for box in boxes if box["name"] == "all_reduce"]
        self.assertEqual({box["pid"] for box in reduced}, set(range(RANKS)))
        self.assertEqual({box["args"]["number"] for box in reduced}, {0, 1, 2})
        self.assertEqual({(box["args"]["bytes"], box["args"]["dtype"]) for box in reduced}, {(32768, "f32")})
        names = [box["name"] for box in boxes]
        self.assertEqual((names.count("first round"), names.count("last round")), (len(reduced), len(reduced)))
        self.assertEqual(names.count(f"user {MESSAGES}"), RANKS)
        self.assertEqual(names.count("launch all_reduce"), 3 * RANKS)
        self.assertGreaterEqual(names.count("synchronize"), 3 * RANKS)
        # An operation is begun by no block before the first host has put it on a stream.
        launched = min(box["start_ns"] for box in boxes if box["name"] == "launch all_reduce")
        self.assertLessEqual(launched, min(box["start_ns"] for box in reduced))

    def test_what_does_not_fit_is_dropped_and_counted(self):
        job, ranks, gates = self.start(MESSAGES, IRIS_TRACE_EVENTS="100")
        path = self.path("json")
        tracer = self.begin_trace(job, "--seconds", "600", "-o", path)
        with open(gates[0], "w", encoding="utf-8"):
            pass
        self.await_all(ranks, "done")
        tracer.send_signal(signal.SIGTERM)
        text, errors = tracer.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(tracer.returncode, 0, errors)
        self.assertIn("larger IRIS_TRACE_EVENTS", text)
        trace, _ = trace_schema.check_file(path)
        for rank in trace["otherData"]["ranks"]:
            self.assertEqual((rank["events"], rank["capacity"]), (100, 100))
            self.assertGreaterEqual(rank["dropped"], 2 * MESSAGES - 100)
        self.finish(ranks, gates)

    def test_what_a_dead_rank_has_told_is_still_there(self):
        job, ranks, gates = self.start(10, IRIS_TRACE_EVENTS="1000")
        tracer = self.begin_trace(job, "--seconds", "600", "-o", self.path("json"))
        with open(gates[0], "w", encoding="utf-8"):
            pass
        self.await_all(ranks, "done")
        tracer.send_signal(signal.SIGINT)
        tracer.communicate(timeout=PATIENCE_SECONDS)
        listed = json.loads(self.ctl("jobs", "--job", job, "--format", "json").stdout)
        os.kill({each["rank"]: each["pid"] for each in listed[0]["ranks"]}[3], signal.SIGKILL)
        end = time.monotonic() + PATIENCE_SECONDS
        while "rank_dead" not in self.ctl("events", "--job", job).stdout:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)
        again = self.ctl("trace", job, "--seconds", "0", "--rank", "3", "-o", self.path("again"))
        self.assertEqual(again.returncode, 0, again.stderr)
        before = [box["name"] for box in trace_schema.check_file(self.path("json"))[1] if box["pid"] == 3]
        trace, boxes = trace_schema.check_file(self.path("again"))
        self.assertEqual(sorted(box["name"] for box in boxes), sorted(before))
        self.assertEqual(before.count("put_signal"), 10)
        # irisd's events are on the same clock: the rank died after all its events.
        died = [event for event in trace["traceEvents"] if event["name"] == "rank_dead"]
        self.assertEqual([event["args"]["rank"] for event in died], [3])
        error_ns = 1000 * trace["otherData"]["irisd_error_us"]
        self.assertLessEqual(max(box["end_ns"] for box in boxes), 1000 * died[0]["ts"] + error_ns)

    def test_a_tracer_that_is_killed_leaves_nothing_on(self):
        job, ranks, gates = self.start(10, IRIS_TRACE_EVENTS="1000")
        tracer = self.begin_trace(job, "--seconds", "600", "-o", self.path("killed"))
        refused = self.ctl("trace", job, "--seconds", "0.1", "-o", self.path("json"))
        self.assertEqual(refused.returncode, 1)
        self.assertRegex(refused.stderr, r"switch on the trace of rank 0: a trace of rank 0 is on already, for another "
                                         r"\d+ ms: wait for it, or for who takes it")
        tracer.send_signal(signal.SIGINT)
        tracer.communicate(timeout=PATIENCE_SECONDS)
        tracer = self.begin_trace(job, "--seconds", "0.5", "-o", self.path("killed"))
        tracer.kill()
        tracer.wait()
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            again = self.ctl("trace", job, "--seconds", "0.01", "--rank", "2", "-o", self.path("json"))
            if again.returncode == 0:
                break
            self.assertIn("is on already", again.stderr)
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        trace, boxes = trace_schema.check_file(self.path("json"))
        self.assertEqual(([rank["rank"] for rank in trace["otherData"]["ranks"]], boxes), ([2], []))
        self.finish(ranks, gates)

    def test_jobs_without_a_trace_and_jobs_that_are_not_there(self):
        job, ranks, gates = self.start(1)
        without = self.ctl("trace", job)
        self.assertEqual(without.returncode, 1)
        self.assertIn("Start its ranks with IRIS_TRACE_EVENTS=16384", without.stderr)
        self.assertEqual(self.ctl("trace", "nobody").returncode, 4)
        self.finish(ranks, gates)

    def test_the_rank_writes_its_own_trace(self):
        self.trace_training(self.path("json"))
        # Where it is to be can have the rank's number anywhere.
        numbered = self.path("%r.json")
        self.train(numbered)
        for rank in range(RANKS):
            trace, _ = trace_schema.check_file(numbered.replace("%r", str(rank)))
            self.assertEqual(trace["otherData"]["ranks"][0]["rank"], rank)

    def train(self, path):
        subprocess.run([IRIS_RUN, "-n", str(RANKS), "--job", "training", "--", TRAINING, "--epochs", "1"], check=True,
                       stdout=subprocess.DEVNULL, timeout=PATIENCE_SECONDS,
                       env=self.daemon.environment(IRIS_TRACE=path))

    def trace_training(self, path):
        """The files of the ranks of a training."""
        job = "training"
        self.train(path)
        files = [re.sub(r"\.json$", f".rank{rank}.json", path) for rank in range(RANKS)]
        for rank in range(RANKS):
            trace, boxes = trace_schema.check_file(files[rank])
            told = trace["otherData"]
            self.assertEqual((told["job"], told["ranks"][0]["rank"]), (job, rank))
            self.assertEqual(told["ranks"][0]["clock_error_us"], 0)
            reduced = [box for box in boxes if box["name"] == "all_reduce"]
            launched = [box for box in boxes if box["name"] == "launch all_reduce"]
            self.assertGreater(len(reduced), 0)
            self.assertLessEqual(len({box["args"]["number"] for box in reduced}), len(launched))
        return files

    def test_a_training_step_of_all_ranks_on_one_clock(self):
        files = self.trace_training(self.path("step.json"))
        merged = self.path("merged.json")
        said = self.ctl("trace", "--merge", *files, "-o", merged)
        self.assertEqual((said.returncode, said.stdout), (0, f"{merged}: 4 traces on one clock\n"), said.stderr)
        trace, boxes = trace_schema.check_file(merged)
        self.assertEqual([rank["rank"] for rank in trace["otherData"]["ranks"]], list(range(RANKS)))
        # A block of an all_reduce ends nowhere before the block of its number has begun everywhere.
        times = {}
        for box in boxes:
            if box["name"] == "all_reduce":
                times.setdefault((box["args"]["number"], box["args"]["block"]), {})[box["pid"]] = box
        whole = [by_rank.values() for by_rank in times.values() if len(by_rank) == RANKS]
        self.assertGreater(len(whole), 10)
        apart = [same for same in whole
                 if max(box["start_ns"] for box in same) > min(box["end_ns"] for box in same)]
        self.assertEqual(apart, [])
        # A step: the kernels of it, which mark themselves, follow each other on each rank, and the sum lies between.
        for rank in range(RANKS):
            forward, gradient, update = (
                sorted((box["start_ns"], box["end_ns"]) for box in boxes
                       if box["pid"] == rank and box["name"] == f"user {tag}" and box["cat"] == "user")
                for tag in (1, 2, 3))
            summed = sorted((box["start_ns"], box["end_ns"]) for box in boxes
                            if box["pid"] == rank and box["name"] == "all_reduce" and box["args"]["number"] == 1)
            self.assertGreater(min(len(forward), len(gradient), len(update), len(summed)), 0)
            first_gradient = min(start for start, _ in gradient)
            self.assertLessEqual(min(end for _, end in forward), first_gradient)
            self.assertLessEqual(first_gradient, summed[0][0])
            self.assertLessEqual(max(end for _, end in summed), min(start for start, _ in update))

    def test_what_cannot_be_merged_is_named(self):
        files = self.trace_training(self.path("step.json"))
        out = self.path("merged.json")
        for arguments, says in (([files[0], files[0]], f"{files[0]}: rank 0 is in {files[0]}, too"),
                                ([files[0], TRAINING], f"{TRAINING}: this is no JSON"),
                                ([files[0], "/nowhere.json"], "/nowhere.json: No such file")):
            said = self.ctl("trace", "--merge", *arguments, "-o", out)
            self.assertEqual(said.returncode, 2, said.stderr)
            self.assertIn(says, said.stderr)
        self.assertFalse(os.path.exists(out))
        said = self.ctl("trace", "--merge", *files, "-o", "/nowhere/merged.json")
        self.assertEqual(said.returncode, 2, said.stderr)
        self.assertIn("/nowhere/merged.json: No such file", said.stderr)
        for arguments, says in ((["trace"], "JOB"), (["trace", "job", "--merge", files[0]], "excludes")):
            said = self.ctl(*arguments)
            self.assertEqual(said.returncode, 2, said.stderr)
            self.assertIn(says, said.stderr)


if __name__ == "__main__":
    junit.main()
