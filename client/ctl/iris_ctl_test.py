"""iris-ctl against a real irisd and real ranks: tables and JSON are parsed, exit codes are checked."""

import concurrent.futures
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import time
import unittest

from tests.python import irisd
from tests.python import junit
from tests.python import patience

IRIS_CTL = "client/ctl/iris-ctl"
IRIS_RUN = "client/ctl/iris-run"
TEST_RANK = "client/ctl/test_rank"
PATIENCE_SECONDS = 60
JOB = "a job"  # with a blank


def ctl(daemon, *arguments):
    return subprocess.run([IRIS_CTL, "--runtime-dir", daemon.runtime_dir, *arguments], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=PATIENCE_SECONDS, check=False)


def rows(text):
    """Lines of a table as dictionaries; cells are two blanks apart or more."""
    lines = text.splitlines()
    names = re.split(r"  +", lines[0].strip())
    return [dict(zip(names, re.split(r"  +", line.strip()))) for line in lines[1:]]


class WithoutIrisd(unittest.TestCase):

    def run_ctl(self, *arguments, **env):
        return subprocess.run([IRIS_CTL, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=PATIENCE_SECONDS, check=False, env={**os.environ, **env})

    def test_names_the_socket_and_how_to_start_it(self):
        commands = (["status"], ["jobs"], ["events"], ["describe", "x"], ["peek", "x", "0", "0"])
        with concurrent.futures.ThreadPoolExecutor() as pool:  # each waits for an irisd
            results = list(pool.map(lambda command: self.run_ctl("--runtime-dir", "/tmp/nowhere", *command), commands))
        for command, result in zip(commands, results):
            self.assertEqual(result.returncode, 3, command)
            self.assertIn("/tmp/nowhere/irisd.sock", result.stderr)
            self.assertIn("irisd --runtime-dir /tmp/nowhere", result.stderr)
            self.assertEqual(result.stdout, "")

    def test_takes_the_directory_from_the_environment(self):
        self.assertIn("/tmp/elsewhere/irisd.sock", self.run_ctl("status", IRIS_RUNTIME_DIR="/tmp/elsewhere").stderr)

    def test_a_path_that_is_too_long_is_an_error(self):
        result = self.run_ctl("--runtime-dir", "/tmp/" + "x" * 120, "status")
        self.assertEqual(result.returncode, 3)
        self.assertIn("File name too long", result.stderr)

    def test_doctor_fails_and_says_what_to_do(self):
        result = self.run_ctl("--runtime-dir", "/tmp/nowhere", "doctor")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, r"(?m)^fail  irisd answers")
        self.assertIn("remedy: ", result.stdout)

    def test_wrong_usage_gives_2(self):
        for arguments in ([], ["nope"], ["status", "--format", "xml"], ["peek"], ["peek", "j", "0", "-1"],
                          ["peek", "j", "x", "0"], ["peek", "j", "0", "1", "--bytes", "1PB"], ["jobs", "--watch", "0"],
                          ["completion", "fish"], ["status", "--wrong"], ["describe"], ["jobs", "heaps"],
                          ["peek", "j", "0", "w", "--dtype", "string"], ["peek", "j", "0", "w", "--count", "-1"],
                          ["peek", "j", "0", "w", "--from", "x"], ["jobs", "--watch", "nan"]):
            result = self.run_ctl(*arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertNotEqual(result.stderr, "", arguments)

    def test_a_misspelt_command_or_option_gets_a_suggestion(self):
        for words, meant in ((["jbos"], "did you mean 'jobs'?"), (["alloc"], "did you mean 'allocations'?"),
                             (["--format", "json", "evnets"], "did you mean 'events'?"),
                             (["jobs", "--formt", "json"], "did you mean '--format'?"),
                             (["jobs", "--watch=1", "--jbo=x"], "did you mean '--job'?"),
                             (["peek", "--dtyp", "f32"], "did you mean '--dtype'?"),
                             (["--runtime-dri", "/x", "jobs"], "did you mean '--runtime-dir'?"),
                             (["heaps", "train"], "did you mean '--job train'?"),
                             (["peek", "j", "0", "w", "--dtype", "f33"], "did you mean 'f32'?")):
            result = self.run_ctl(*words)
            self.assertEqual((result.returncode, result.stdout), (2, ""), words)
            self.assertIn(meant, result.stderr)
        for words, said in ((["peek", "j", "b", "0"], "RANK: 'b' is no whole number from 0 on"),
                            (["peek", "j", "0", "w", "--count", "1.5"], "--count: '1.5' is no whole number from 0 on"),
                            (["trace", "j", "--rank", "-1"], "--rank: '-1' is no whole number from 0 on")):
            result = self.run_ctl(*words)
            self.assertEqual((result.returncode, result.stdout), (2, ""), words)
            self.assertIn(said, result.stderr)
        result = self.run_ctl("jobs\033[2J")
        self.assertIn("unknown command 'jobs\\x1b[2J'", result.stderr)
        result = self.run_ctl("restart")
        self.assertEqual(result.stderr, "iris-ctl: unknown command 'restart'. See iris-ctl --help\n")

    def test_an_option_before_a_command_that_has_none(self):
        for words in (["--watch", "doctor"], ["--watch", "1", "events"], ["--format", "json", "completion", "bash"]):
            result = self.run_ctl(*words)
            self.assertEqual((result.returncode, result.stdout), (2, ""), words)
            self.assertIn(f" has no {words[0]}; see iris-ctl ", result.stderr)

    def test_the_help_of_each_command_has_its_options_and_an_example(self):
        common = {"--help", "--runtime-dir", "--format"}
        commands = {"status": {"--watch"}, "devices": {"--watch"}, "jobs": {"--watch", "--job", "--names"},
                    "describe": {"--watch"}, "heaps": {"--watch", "--job"}, "allocations": {"--watch", "--job"},
                    "sessions": {"--watch"}, "tenants": {"--watch"}, "waits": {"--watch", "--job"},
                    "nodes": {"--watch", "--job"},
                    "events": {"--job", "--follow"}, "doctor": {"--node", "--rsh", "--rendezvous"},
                    "peek": {"--watch", "--dtype", "--count", "--bytes", "--from"},
                    "trace": {"--seconds", "--rank", "--merge"}, "completion": None}
        listed = self.run_ctl("--help").stdout.split("Subcommands:")[1].split("\n\n")[0]
        self.assertEqual(set(re.findall(r"(?m)^  ([a-z]+) ", listed)), set(commands))
        for command, own in commands.items():
            text = self.run_ctl(command, "--help").stdout
            expected = {"--help"} if own is None else own | common
            if command == "trace":  # it writes a file, and a line that says so
                expected.remove("--format")
            self.assertEqual(set(re.findall(r"(?m)^  (?:-h,)?(--[a-z-]+)", text)), expected, text)
            self.assertRegex(text, rf"\nExample:\n  iris-ctl {command}\b")
            self.assertEqual(text.count("Example"), 1)
            for line in text.splitlines():
                self.assertLessEqual(len(line), 90, line)

    def test_help_and_version(self):
        self.assertRegex(self.run_ctl("--version").stdout, r"^iris-ctl \d+\.\d+\.\d+\n$")
        text = self.run_ctl("--help").stdout
        for code in range(6):
            self.assertRegex(text, rf"(?m)^  {code}  \w")


class JustStarted(unittest.TestCase):
    """`irisd &`, then at once the next command."""

    def look(self, *command):
        """The command's result; None if irisd took longer than iris-ctl waits."""
        with tempfile.TemporaryDirectory(prefix="iris-py-", dir="/tmp") as folder:
            environment = {**os.environ, "IRIS_RUNTIME_DIR": os.path.join(folder, "run")}
            asked = subprocess.Popen([IRIS_CTL, *command], stdout=subprocess.PIPE, text=True, env=environment)
            begun = time.time()
            daemon = subprocess.Popen([irisd.IRISD, "--backend", "emu", "--emu-devices", "2", "--emu-memory", "64MiB"],
                                      stderr=subprocess.PIPE, env=environment)
            try:
                text = asked.communicate(timeout=PATIENCE_SECONDS)[0]
                socket = os.path.join(folder, "run/irisd.sock")
                if asked.returncode != 0 and not (os.path.exists(socket) and os.stat(socket).st_ctime < begun + 1.5):
                    return None
                return asked.returncode, text
            finally:
                daemon.terminate()
                daemon.communicate(timeout=PATIENCE_SECONDS)

    def test_doctor_and_status_wait_for_it(self):
        for command in (["doctor"], ["status"]):
            result = next(filter(None, (self.look(*command) for _ in range(10))))
            self.assertEqual(result[0], 0, result[1])


def once(pairs):
    keys = [key for key, _ in pairs]
    assert len(set(keys)) == len(keys), f"a key stands twice: {keys}"
    return dict(pairs)


class JsonLog(unittest.TestCase):

    def test_every_line_parses_and_has_each_key_once(self):
        with tempfile.TemporaryDirectory(prefix="iris-py-", dir="/tmp") as folder:
            settings = os.path.join(folder, "irisd.toml")

            def configure(text):
                with open(settings, "w", encoding="utf-8") as file:
                    file.write(text)

            configure('[log]\nlevel = "debug"\n')
            daemon = irisd.Irisd("--log-format", "json", "--config", settings, "--record",
                                 os.path.join(folder, "recording"), self_check=True)
            try:
                self.assertEqual(ctl(daemon, "doctor").returncode, 0)
                rank = subprocess.Popen([os.path.abspath(TEST_RANK), os.path.join(daemon.folder, "end")],
                                        stdout=subprocess.PIPE, text=True, env=daemon.environment())
                self.addCleanup(lambda: (rank.kill(), rank.communicate()))
                self.assertIn("ready", patience.line(rank))
                for text, said in (('socket_mode = "0600"\n[jobs]\nmax = 7\n', "the settings are reloaded"),
                                   ('max = "\\u00e9"\n', "because of a mistake")):
                    configure(text)
                    daemon.process.send_signal(signal.SIGHUP)
                    end = time.monotonic() + PATIENCE_SECONDS
                    while said not in daemon.log():
                        self.assertLess(time.monotonic(), end, daemon.log())
                        time.sleep(0.01)
                daemon.process.terminate()
                self.assertEqual(daemon.process.wait(PATIENCE_SECONDS), 0)
                lines = [json.loads(line, object_pairs_hook=once) for line in daemon.log().splitlines()]
            finally:
                daemon.stop()
        for line in lines:
            self.assertEqual(list(line)[:3], ["time", "level", "msg"], line)
        said = {line["msg"]: line for line in lines}
        self.assertRegex(said["self-check done"]["took"], r"^[\d.]+m?s$")
        for text in ("irisd serves", "event", "a changed setting keeps its value until irisd is restarted",
                     "irisd stops", "the recording ends"):
            self.assertIn(text, said)
        self.assertTrue(any(text.startswith("jobs live: ") for text in said))


class Idle(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.daemon = irisd.Irisd()
        cls.addClassCleanup(cls.daemon.stop)

    def test_lists_are_empty(self):
        for command in ("jobs", "heaps", "allocations", "sessions"):
            result = ctl(self.daemon, command)
            self.assertEqual((result.returncode, result.stdout), (0, f"no {command}\n"))
            self.assertEqual(json.loads(ctl(self.daemon, command, "--format", "json").stdout), [])

    def test_status(self):
        status = json.loads(ctl(self.daemon, "status", "--format", "json").stdout)
        self.assertEqual(status["pid"], self.daemon.process.pid)
        self.assertEqual(status["runtime_dir"], self.daemon.runtime_dir)
        self.assertEqual((status["n_devices"], status["n_jobs"], status["heap_bytes"]), (4, 0, 0))
        text = ctl(self.daemon, "status").stdout
        self.assertIn(f"pid {self.daemon.process.pid}", text)
        self.assertIn("emu: 4 devices of 256 MiB\n", text)

    def test_devices(self):
        devices = json.loads(ctl(self.daemon, "devices", "--format", "json").stdout)
        self.assertEqual([d["index"] for d in devices], [0, 1, 2, 3])
        self.assertEqual(len({d["uuid"] for d in devices}), 4)
        self.assertTrue(all(d["memory_bytes"] == 256 << 20 and d["used_bytes"] == 0 for d in devices))
        table = rows(ctl(self.daemon, "devices").stdout)
        self.assertEqual([row["MEMORY"] for row in table], ["256 MiB"] * 4)

    def test_a_job_that_is_not_there_gives_4(self):
        for command in (["jobs", "--job", "nope"], ["heaps", "--job", "nope"], ["allocations", "--job", "nope"],
                        ["peek", "nope", "0", "0"]):
            result = ctl(self.daemon, *command)
            self.assertEqual(result.returncode, 4, command)
            self.assertIn("nope", result.stderr)

    def test_doctor_finds_nothing_wrong(self):
        result = ctl(self.daemon, "doctor")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertRegex(result.stdout, r"(?m)^ok    job of two ranks")
        self.assertRegex(result.stdout, r"(?m)^ok    device pairs +16 of 16 proven, ")
        self.assertRegex(result.stdout, r"(?m)^  from 3( +[0-9.]+){4}$")
        findings = json.loads(ctl(self.daemon, "doctor", "--format", "json").stdout)
        self.assertGreaterEqual(len(findings), 13)
        pairs = next(f["pairs"] for f in findings if f["check"] == "device pairs")
        self.assertEqual([(p["from"], p["to"], p["ok"]) for p in pairs],
                         [(i, j, True) for i in range(4) for j in range(4)])
        self.assertNotIn("fail", [f["verdict"] for f in findings])
        self.assertEqual(json.loads(ctl(self.daemon, "status", "--format", "json").stdout)["heap_bytes"], 0)

    def test_watch_shows_again_and_again(self):
        process = subprocess.Popen([IRIS_CTL, "--runtime-dir", self.daemon.runtime_dir, "jobs", "--watch", "0.1"],
                                   stdout=subprocess.PIPE, text=True)
        try:
            for _ in range(3):
                while patience.line(process) != "no jobs\n":
                    self.assertIsNone(process.poll())
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(process.returncode, -signal.SIGINT)

    def test_watch_outlives_irisd(self):
        daemon = irisd.Irisd()
        process = subprocess.Popen([IRIS_CTL, "--runtime-dir", daemon.runtime_dir, "jobs", "--watch", "0.1"],
                                   stdout=subprocess.PIPE, text=True)
        try:
            while patience.line(process) != "no jobs\n":
                self.assertIsNone(process.poll())
            self.assertEqual(daemon.stop(), 0)
            while "cannot reach irisd" not in patience.line(process):
                self.assertIsNone(process.poll())
        finally:
            process.kill()
            process.communicate(timeout=PATIENCE_SECONDS)

    def test_a_reader_that_goes_ends_the_watch(self):
        process = subprocess.Popen([IRIS_CTL, "--runtime-dir", self.daemon.runtime_dir, "jobs", "--watch", "0.1"],
                                   stdout=subprocess.PIPE, text=True)
        patience.line(process)
        process.stdout.close()
        self.assertEqual(process.wait(PATIENCE_SECONDS), 1)


class WithAJob(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.daemon = irisd.Irisd()
        cls.addClassCleanup(cls.daemon.stop)
        cls.end_file = os.path.join(cls.daemon.folder, "end")
        cls.ranks = subprocess.Popen(
            [IRIS_RUN, "-n", "2", "--job", JOB, "--", os.path.abspath(TEST_RANK), cls.end_file],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=cls.daemon.environment())
        cls.addClassCleanup(cls.end)
        cls.offset = None
        lines = []
        while sum("ready" in line for line in lines) < 2:
            line = patience.line(cls.ranks)
            if not line:
                raise RuntimeError("the ranks have ended: " + "".join(lines))
            lines.append(line)
        cls.offset = int(re.search(r"offset=(\d+)", "".join(lines)).group(1))

    @classmethod
    def end(cls):
        """Lets the ranks leave, and sees that nothing stays."""
        with open(cls.end_file, "w", encoding="ascii"):
            pass
        out, _ = cls.ranks.communicate(timeout=PATIENCE_SECONDS)
        if cls.ranks.returncode != 0:
            raise AssertionError(out)
        end = time.monotonic() + PATIENCE_SECONDS
        while ctl(cls.daemon, "sessions").stdout != "no sessions\n":
            if time.monotonic() > end:
                raise AssertionError("sessions stay: " + ctl(cls.daemon, "sessions").stdout)
        for command in ("jobs", "heaps", "allocations"):
            if ctl(cls.daemon, command).stdout != f"no {command}\n":
                raise AssertionError(f"{command} stay")

    def json(self, *arguments):
        result = ctl(self.daemon, *arguments, "--format", "json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_jobs(self):
        jobs = self.json("jobs")
        self.assertEqual(len(jobs), 1)
        job = jobs[0]
        self.assertEqual((job["job"], job["state"], job["n_ranks"], job["heap_bytes"]),
                         (JOB, "ready", 2, 4 << 20))
        self.assertEqual(job["n_allocations"], len(self.json("allocations")))
        self.assertEqual([(r["rank"], r["state"]) for r in job["ranks"]], [(0, "ready"), (1, "ready")])
        row = rows(ctl(self.daemon, "jobs").stdout)[0]
        self.assertEqual((row["JOB"], row["STATE"], row["RANKS"], row["HEAP/RANK"]), (JOB, "ready", "2 ready", "4 MiB"))
        self.assertEqual(row["UID"], str(os.getuid()))

    def test_jobs_names_leave_out_what_needs_quotes(self):
        self.assertEqual(ctl(self.daemon, "jobs", "--names").stdout, "")

    def test_heaps(self):
        heaps = self.json("heaps", "--job", JOB)
        self.assertEqual([h["rank"] for h in heaps], [0, 1])
        self.assertEqual(len({h["pid"] for h in heaps}), 2)
        self.assertEqual(len({h["device_uuid"] for h in heaps}), 2)
        for heap in heaps:
            self.assertEqual((heap["heap_bytes"], heap["state"], heap["n_segments"]), (4 << 20, "ready", 1))
            self.assertGreaterEqual(heap["allocated_bytes"], 64 * 64 * 4)
        table = rows(ctl(self.daemon, "heaps").stdout)
        self.assertEqual([(row["RANK"], row["PID"], row["HEAP"]) for row in table],
                         [(str(h["rank"]), str(h["pid"]), "4 MiB") for h in heaps])

    def test_allocations(self):
        allocations = {a["name"]: a for a in self.json("allocations")}
        # irisd also shows its own areas.
        self.assertEqual({name for name in allocations if not name.startswith("iris.")}, {"weights", ""})
        weights = allocations["weights"]
        self.assertEqual((weights["offset_bytes"], weights["dtype"], weights["shape"], weights["team_id"]),
                         (self.offset, "f32", [64, 64], 0))
        table = rows(ctl(self.daemon, "allocations", "--job", JOB).stdout)
        row = next(row for row in table if row["NAME"] == "weights")
        self.assertEqual((row["OFFSET"], row["SIZE"], row["DTYPE"], row["SHAPE"]),
                         (hex(self.offset), "16 KiB", "f32", "64x64"))
        self.assertIn("-", [row["NAME"] for row in table])

    def test_sessions(self):
        sessions = self.json("sessions")
        self.assertEqual(sorted(s["rank"] for s in sessions), [0, 1])
        for session in sessions:
            self.assertEqual((session["job"], session["state"], session["uid"]), (JOB, "open", os.getuid()))
            self.assertIn("test_rank", session["command"])
            self.assertTrue(os.path.exists(f"/proc/{session['pid']}"))

    def test_tenants(self):
        (tenant,) = self.json("tenants")
        self.assertEqual((tenant["tenant"], tenant["sessions"], tenant["jobs"], tenant["heap_bytes"]),
                         (f"uid {os.getuid()}", 2, 1, 8 << 20))
        self.assertEqual(tenant["allocations"], len(self.json("allocations")))
        self.assertEqual(tenant["descriptors"], 2 + 3)  # a segment and a page of each rank, and the job's page
        self.assertGreater(tenant["core_bytes"], 1000)
        self.assertGreater(tenant["core_us"], 0)
        shown = ctl(self.daemon, "tenants").stdout
        self.assertIn("a tenant may have 1024 sessions, 16384 calls, 256 jobs; all together ", shown)
        self.assertRegex(shown, r"irisd's own memory: [0-9.]+ .iB of 1 GiB \(core.memory\)")

    def test_status_and_devices_count_the_memory(self):
        self.assertEqual(self.json("status")["heap_bytes"], 8 << 20)
        self.assertEqual(sum(d["used_bytes"] >= 4 << 20 for d in self.json("devices")), 2)

    def test_sessions_show_whole_command_lines(self):
        table = rows(ctl(self.daemon, "sessions").stdout)
        self.assertEqual([row["COMMAND"] for row in table], [f"{os.path.abspath(TEST_RANK)} {self.end_file}"] * 2)

    def test_heaps_show_whole_names_of_devices(self):
        table = rows(ctl(self.daemon, "heaps").stdout)
        self.assertEqual([row["DEVICE"] for row in table], [heap["device_uuid"] for heap in self.json("heaps")])

    def test_describe(self):
        result = ctl(self.daemon, "describe", JOB)
        self.assertEqual(result.returncode, 0, result.stderr)
        head, ranks, allocations, events = result.stdout.split("\n\n")
        fields = dict(re.split(r": +", line, maxsplit=1) for line in head.splitlines())
        self.assertEqual((fields["Name"], fields["State"], fields["Ranks"]), (JOB, "ready", "2: 2 ready"))
        self.assertRegex(fields["User"], rf"\(uid {os.getuid()}\)$")
        self.assertRegex(fields["Heap per rank"], r"^4 MiB, [\d.]+ KiB in \d+ allocations$")
        table = rows(ranks.split("\n", 1)[1])
        heaps = self.json("heaps")
        self.assertEqual([(r["RANK"], r["STATE"], r["PID"], r["DEVICE"], r["HEAP"]) for r in table],
                         [(str(h["rank"]), "ready", str(h["pid"]), h["device_uuid"], "4 MiB") for h in heaps])
        for row in table:
            self.assertIn("test_rank", row["COMMAND"])
        weights = next(r for r in rows(allocations.split("\n", 1)[1]) if r["NAME"] == "weights")
        self.assertEqual((weights["SIZE"], weights["DTYPE"], weights["SHAPE"]), ("16 KiB", "f32", "64x64"))
        kinds = [row["EVENT"] for row in rows(events.split("\n", 1)[1])]
        for kind in ("job_forming", "rank_joined", "job_ready", "allocated"):
            self.assertIn(kind, kinds)

    def test_describe_as_json(self):
        jobs = self.json("describe", JOB)
        self.assertEqual(len(jobs), 1)
        self.assertEqual([(r["rank"], r["heap_bytes"], r["state"]) for r in jobs[0]["ranks"]],
                         [(0, 4 << 20, "ready"), (1, 4 << 20, "ready")])
        self.assertEqual(jobs[0]["allocations"], self.json("allocations"))
        self.assertIn("job_ready", [event["kind"] for event in jobs[0]["events"]])

    def test_describe_again_and_again(self):
        process = subprocess.Popen([IRIS_CTL, "--runtime-dir", self.daemon.runtime_dir, "describe", JOB, "--watch",
                                    "0.1"], stdout=subprocess.PIPE, text=True)
        try:
            for _ in range(2):
                while not patience.line(process).startswith("Name: "):
                    self.assertIsNone(process.poll())
        finally:
            process.kill()
            process.communicate(timeout=PATIENCE_SECONDS)

    def test_a_misspelt_job_gets_a_suggestion(self):
        for command in (["describe", "a jbo"], ["heaps", "--job", "a jbo"], ["peek", "a jbo", "0", "0"],
                        ["peek", "a jbo", "0", "weights"]):
            result = ctl(self.daemon, *command)
            self.assertEqual((result.returncode, result.stdout), (4, ""), command)
            self.assertIn(f"; did you mean '{JOB}'?", result.stderr)
        result = ctl(self.daemon, "describe", "nothing like it")
        self.assertEqual(result.returncode, 4)
        self.assertIn("; iris-ctl jobs lists those that you may see", result.stderr)

    def test_events(self):
        result = ctl(self.daemon, "events", "--format", "json")
        self.assertEqual(result.returncode, 0, result.stderr)
        events = [json.loads(line) for line in result.stdout.splitlines()]
        kinds = [e["kind"] for e in events if e["job"] == JOB]
        for kind in ("job_forming", "rank_joined", "job_ready", "allocated"):
            self.assertIn(kind, kinds)
        self.assertEqual([e["sequence"] for e in events], sorted(e["sequence"] for e in events))
        self.assertIn("job_ready", ctl(self.daemon, "events", "--job", JOB).stdout)
        self.assertEqual(ctl(self.daemon, "events", "--job", "another").stdout, "")

    def test_events_follow_sees_a_new_job(self):
        process = subprocess.Popen(
            [IRIS_CTL, "--runtime-dir", self.daemon.runtime_dir, "events", "--follow", "--format", "json"],
            stdout=subprocess.PIPE, text=True)
        try:
            self.assertNotEqual(patience.line(process), "")  # the past
            self.assertEqual(ctl(self.daemon, "doctor").returncode, 0)
            while True:
                event = json.loads(patience.line(process))
                if event["kind"] == "job_ready" and event["job"].startswith("doctor-"):
                    break
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=PATIENCE_SECONDS)

    def test_peek_shows_what_each_rank_wrote(self):
        for rank in (0, 1):
            result = ctl(self.daemon, "peek", JOB, str(rank), hex(self.offset), "--bytes", "32")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("|Hello from rank |", result.stdout)
            self.assertIn(f"|{rank}!..............|", result.stdout)
            dump = self.json("peek", JOB, str(rank), str(self.offset), "--bytes", "18")
            self.assertEqual(bytes.fromhex(dump["data_hex"]), f"Hello from rank {rank}!".encode())

    def test_peek_of_more_than_one_message(self):
        dump = self.json("peek", JOB, "0", "0", "--bytes", "1MiB")
        self.assertEqual(dump["bytes"], 1 << 20)
        data = bytes.fromhex(dump["data_hex"])
        self.assertEqual(data[self.offset:self.offset + 5], b"Hello")

    def test_peek_by_name(self):
        dump = self.json("peek", JOB, "1", "weights", "--dtype", "hex", "--bytes", "18")
        self.assertEqual((dump["name"], dump["offset_bytes"]), ("weights", self.offset))
        self.assertEqual(bytes.fromhex(dump["data_hex"]), b"Hello from rank 1!")
        letters = self.json("peek", JOB, "0", "weights", "--dtype", "u8", "--count", "4", "--from", "6")
        self.assertEqual(letters["values"], list(b"from"))
        self.assertEqual(letters["offset_bytes"], self.offset + 6)
        # The allocation's own type: the first bytes are letters, the last are 0.
        own = self.json("peek", JOB, "0", "weights")
        self.assertEqual((own["dtype"], len(own["values"])), ("f32", 64))
        self.assertEqual(struct.pack("<f", own["values"][0]), b"Hell")
        self.assertEqual(own["values"][16:], [0.0] * 48)
        text = ctl(self.daemon, "peek", JOB, "0", "weights", "--from", "4090").stdout
        self.assertEqual(text, f"weights of rank 0: f32 64x64, 16 KiB; f32 4090 to 4095, at offset "
                         f"{hex(self.offset + 4 * 4090)}\n4090  0 0 0 0 0 0\n")

    def test_peek_by_a_name_that_is_not_there(self):
        result = ctl(self.daemon, "peek", JOB, "0", "wieghts")
        self.assertEqual((result.returncode, result.stdout), (4, ""))
        self.assertIn("no allocation named 'wieghts'; did you mean 'weights'?", result.stderr)
        result = ctl(self.daemon, "peek", JOB, "0", "bias")
        self.assertEqual(result.returncode, 4)
        self.assertIn("'weights'", result.stderr)
        result = ctl(self.daemon, "peek", JOB, "9", "weights")
        self.assertEqual(result.returncode, 4)
        self.assertIn("no rank 9", result.stderr)
        result = ctl(self.daemon, "peek", JOB, "0", "weights", "--count", "4097")
        self.assertEqual(result.returncode, 1)
        self.assertIn("go beyond allocation 'weights' of 4096 elements", result.stderr)

    def test_peek_of_what_is_not_there(self):
        result = ctl(self.daemon, "peek", JOB, "7", "0")
        self.assertEqual(result.returncode, 4, result.stderr)
        result = ctl(self.daemon, "peek", JOB, "0", "1TiB")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertNotEqual(result.stderr, "")


class ATerminal(unittest.TestCase):
    """What is cut where a terminal is narrow, and what is not."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = irisd.Irisd()
        cls.addClassCleanup(cls.daemon.stop)
        cls.end_file = os.path.join(cls.daemon.folder, "x" * 200)
        cls.rank = subprocess.Popen([TEST_RANK, cls.end_file], stdout=subprocess.PIPE, text=True,
                                    env=cls.daemon.environment(IRIS_JOB="train", IRIS_RANK="0", IRIS_N_RANKS="1"))
        cls.addClassCleanup(lambda: (cls.rank.kill(), cls.rank.communicate()))
        if not patience.line(cls.rank).startswith("ready"):
            raise RuntimeError("the rank has ended")

    def on_a_terminal(self, columns, *arguments):
        """What a command writes to a terminal of so many columns."""
        ours, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        result = subprocess.run([IRIS_CTL, "--runtime-dir", self.daemon.runtime_dir, *arguments], stdout=its,
                                timeout=PATIENCE_SECONDS, check=False)
        self.assertEqual(result.returncode, 0)
        os.close(its)
        text = b""
        try:
            while chunk := os.read(ours, 65536):
                text += chunk
        except OSError:  # nobody holds the other end any more
            pass
        os.close(ours)
        return text.decode().replace("\r\n", "\n")

    def test_commands_are_cut_to_what_fits(self):
        for command in (["sessions"], ["describe", "train"]):
            narrow = self.on_a_terminal(200, *command)
            cut = [line for line in narrow.splitlines() if line.endswith("xx..")]
            self.assertEqual([len(line) for line in cut], [200], narrow)
            wide = self.on_a_terminal(1000, *command)
            self.assertIn(self.end_file, wide)
            self.assertNotIn("..\n", wide)

    def test_nothing_else_is_cut(self):
        uuid = json.loads(ctl(self.daemon, "heaps", "--format", "json").stdout)[0]["device_uuid"]
        self.assertIn(uuid, self.on_a_terminal(20, "heaps"))
        self.assertIn(self.end_file, self.on_a_terminal(20, "sessions", "--format", "json"))
        self.assertIn(self.end_file, ctl(self.daemon, "sessions").stdout)


class ARankDies(unittest.TestCase):

    def test_the_survivor_reports_before_iris_run_ends_it(self):
        with irisd.Irisd() as daemon:
            end_file = os.path.join(daemon.folder, "end")
            process = subprocess.Popen(
                [IRIS_RUN, "-n", "2", "--grace", "60", "--", os.path.abspath(TEST_RANK), end_file],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=daemon.environment())
            for _ in range(2):
                self.assertIn("ready", patience.line(process))
            sessions = json.loads(ctl(daemon, "sessions", "--format", "json").stdout)
            pid = next(s["pid"] for s in sessions if s["rank"] == 1)
            os.kill(pid, signal.SIGKILL)
            # The survivor does not end before iris-run has seen the other's end.
            err = ""
            while "was ended by SIGKILL" not in err:
                err += patience.line(process, stream=process.stderr)
            with open(end_file, "w", encoding="ascii"):
                pass
            process.wait(timeout=PATIENCE_SECONDS)
            err += process.stderr.read()
            process.stdout.close()
            process.stderr.close()
        self.assertEqual(process.returncode, 128 + signal.SIGKILL, err)
        self.assertIn(f"rank 1 of 2 (pid {pid}) was ended by SIGKILL (Killed), perhaps by the kernel's "
                      "out-of-memory killer (see dmesg); ending the other 1 in 1m\n", err)
        self.assertRegex(err, r"(?m)^\[0\] .*rank 1\b")
        self.assertNotIn("not ended", err)


class LongListing(unittest.TestCase):
    """More allocations than a page has."""

    MORE = 2500

    @classmethod
    def setUpClass(cls):
        cls.daemon = irisd.Irisd()
        cls.addClassCleanup(cls.daemon.stop)
        cls.end_file = os.path.join(cls.daemon.folder, "end")
        cls.rank = subprocess.Popen([TEST_RANK, cls.end_file, str(cls.MORE)], stdout=subprocess.PIPE, text=True,
                                    env=cls.daemon.environment(IRIS_JOB=JOB, IRIS_RANK="0", IRIS_N_RANKS="1"))
        cls.addClassCleanup(lambda: (cls.rank.kill(), cls.rank.communicate()))
        if not patience.line(cls.rank).startswith("ready"):
            raise RuntimeError("the rank has ended")

    def names(self, allocations):
        return {a for a in allocations if a.startswith("more")}

    def test_json_is_one_document_with_each_of_them_once(self):
        result = ctl(self.daemon, "allocations", "--format", "json")
        self.assertEqual(result.returncode, 0, result.stderr)
        names = [a["name"] for a in json.loads(result.stdout)]
        self.assertEqual(len(self.names(names)), self.MORE)
        self.assertEqual(sum(name.startswith("more") for name in names), self.MORE)

    def test_the_table_has_one_line_of_headings(self):
        result = ctl(self.daemon, "allocations", "--job", JOB)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        self.assertEqual(sum(line.startswith("JOB ") for line in lines), 1)
        self.assertEqual(len(self.names(row["NAME"] for row in rows(result.stdout))), self.MORE)

    def test_a_reader_that_goes_ends_it(self):
        process = subprocess.Popen([IRIS_CTL, "--runtime-dir", self.daemon.runtime_dir, "allocations"],
                                   stdout=subprocess.PIPE, text=True)
        patience.line(process)
        process.stdout.close()
        self.assertEqual(process.wait(PATIENCE_SECONDS), 1)


@unittest.skipUnless(os.getuid() == 0, "needs root, to become another user")
class AnotherUser(unittest.TestCase):
    """Who may connect, and what a user sees of another one's jobs."""

    NOBODY = 65534

    def setUp(self):
        # Programs and sockets have to be in a folder that user `nobody` can reach.
        self.folder = tempfile.mkdtemp(prefix="iris-py-", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.folder)
        os.chmod(self.folder, 0o755)
        for program in (IRIS_CTL, TEST_RANK):
            shutil.copy(os.path.realpath(program), self.folder)

    def start(self, *flags):
        daemon = irisd.Irisd(*flags)
        self.addCleanup(daemon.stop)
        os.chmod(daemon.folder, 0o755)
        return daemon

    def start_rank(self, daemon, end, **user):
        environment = daemon.environment(IRIS_JOB="same", IRIS_RANK="0", IRIS_N_RANKS="1", IRIS_LOCAL_RANK="0")
        rank = subprocess.Popen([os.path.join(self.folder, "test_rank"), end], stdout=subprocess.PIPE, text=True,
                                env=environment, cwd="/", **user)
        self.addCleanup(lambda: (rank.kill(), rank.communicate()))
        self.assertRegex(patience.line(rank), "^ready")
        return rank

    def ctl_as(self, user, daemon, *arguments):
        return subprocess.run([os.path.join(self.folder, "iris-ctl"), "--runtime-dir", daemon.runtime_dir, *arguments],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_SECONDS,
                              check=False, cwd="/", user=user, group=user, extra_groups=[])

    def test_the_sockets_mode_keeps_others_out(self):
        daemon = self.start()
        result = self.ctl_as(self.NOBODY, daemon, "jobs")
        self.assertEqual(result.returncode, 5, result.stderr)
        self.assertIn("Permission denied: ", result.stderr)
        self.assertIn("irisd.sock (mode 06", result.stderr)
        self.assertIn("owner root", result.stderr)
        self.assertIn("socket_group", result.stderr)
        self.assertNotIn("Start it", result.stderr)
        doctor = self.ctl_as(self.NOBODY, daemon, "doctor")
        self.assertEqual(doctor.returncode, 1)
        for check in ("socket session.sock", "socket irisd.sock", "irisd answers"):
            self.assertRegex(doctor.stdout, rf"(?m)^fail  {check} +permission denied: .*\.sock \(mode 06.., owner root")
        self.assertNotIn("start irisd", doctor.stdout)
        self.assertEqual(self.ctl_as(0, daemon, "jobs").returncode, 0)

    def test_the_directorys_mode_keeps_others_out(self):
        daemon = self.start()
        os.chmod(daemon.runtime_dir, 0o700)
        result = self.ctl_as(self.NOBODY, daemon, "jobs")
        self.assertEqual(result.returncode, 5, result.stderr)
        self.assertIn(f"{daemon.runtime_dir} (mode 0700, owner root", result.stderr)
        doctor = self.ctl_as(self.NOBODY, daemon, "doctor").stdout
        self.assertRegex(doctor, rf"(?m)^fail  runtime directory +permission denied: {daemon.runtime_dir} \(mode 0700")
        self.assertRegex(doctor, r"(?m)^fail  irisd answers +permission denied: ")

    def test_sees_nothing_of_anothers_job_and_all_of_its_own(self):
        daemon = self.start("--socket-mode", "0666")
        end = os.path.join(self.folder, "end")
        self.start_rank(daemon, end)
        for command in ("jobs", "heaps", "allocations", "sessions"):
            self.assertEqual(self.ctl_as(self.NOBODY, daemon, command).stdout, f"no {command}\n")
        self.assertEqual(self.ctl_as(self.NOBODY, daemon, "events").stdout, "")
        for command in (["peek", "same", "0", "0"], ["jobs", "--job", "same"]):
            result = self.ctl_as(self.NOBODY, daemon, *command)
            self.assertEqual((result.returncode, result.stdout), (4, ""), result.stderr)
        # Another user's job of the same name is another job.
        self.start_rank(daemon, end, user=self.NOBODY, group=self.NOBODY, extra_groups=[])
        own = json.loads(self.ctl_as(self.NOBODY, daemon, "jobs", "--format", "json").stdout)
        self.assertEqual([(job["job"], job["uid"]) for job in own], [("same", self.NOBODY)])
        self.assertEqual(self.ctl_as(self.NOBODY, daemon, "peek", "same", "0", "0").returncode, 0)
        everybody = json.loads(ctl(daemon, "jobs", "--format", "json").stdout)
        self.assertEqual(sorted(job["uid"] for job in everybody), [0, self.NOBODY])
        # With two jobs of that name, root must say whose it wants.
        self.assertEqual(ctl(daemon, "peek", "same", "0", "0").returncode, 1)


if __name__ == "__main__":
    junit.main()
