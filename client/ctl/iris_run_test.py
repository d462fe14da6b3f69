"""iris-run with real processes: output, environment, signals, ends."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from tests.python import junit
from tests.python import patience

IRIS_RUN = "client/ctl/iris-run"
PATIENCE_SECONDS = 60


def run(*arguments, **kwargs):
    result = subprocess.run([IRIS_RUN, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            timeout=PATIENCE_SECONDS, check=False, **kwargs)
    # LeakSanitizer says this of a thread that ends at the same time.
    result.stderr = re.sub(r"(?m)^.*==\d+==Unable to get registers from thread \d+\.\n", "", result.stderr)
    return result


def alive(pid):
    """True if a process of that pid runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class IrisRun(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="iris-run-", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def wait_for(self, what, condition):
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            if condition():
                return
            time.sleep(0.01)
        self.fail(f"waited {PATIENCE_SECONDS} s for: {what}")

    def wait_for_files(self, *names):
        self.wait_for(f"files {names}", lambda: all(
            os.path.exists(self.path(n)) and os.path.getsize(self.path(n)) for n in names))

    def pids(self, *names):
        self.wait_for_files(*names)
        pids = []
        for name in names:
            with open(self.path(name), encoding="ascii") as file:
                pids += [int(word) for word in file.read().split()]
        return pids

    def start(self, *arguments):
        process = subprocess.Popen([IRIS_RUN, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    # Output and environment

    def test_prefixes_each_line_by_its_rank(self):
        result = run("-n", "3", "--", "sh", "-c", "echo one; echo two >&2")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(sorted(result.stdout.splitlines()), ["[0] one", "[1] one", "[2] one"])
        self.assertEqual(sorted(result.stderr.splitlines()), ["[0] two", "[1] two", "[2] two"])

    def test_ranks_are_aligned_from_ten_on(self):
        result = run("-n", "11", "--", "sh", "-c", "echo x")
        self.assertIn("[ 9] x\n", result.stdout)
        self.assertIn("[10] x\n", result.stdout)

    def test_a_line_is_never_mixed_with_another(self):
        script = "for i in 1 2 3 4 5 6 7 8 9; do printf 'aaaaaaaaaa'; printf 'bbbbbbbbbb'; printf 'cccccccccc\\n'; done"
        result = run("-n", "4", "--", "sh", "-c", script)
        lines = result.stdout.splitlines()
        self.assertEqual(len(lines), 36)
        for line in lines:
            self.assertRegex(line, r"^\[[0-3]\] a{10}b{10}c{10}$")

    def test_a_last_line_without_line_feed_is_shown(self):
        self.assertEqual(run("-n", "1", "--", "printf", "no end").stdout, "[0] no end\n")

    def test_much_output_arrives_whole(self):
        result = run("-n", "2", "--", "seq", "1", "30000")
        for rank in (0, 1):
            lines = [line[4:] for line in result.stdout.splitlines() if line.startswith(f"[{rank}] ")]
            self.assertEqual(lines, [str(i) for i in range(1, 30001)])

    def test_no_prefix_passes_bytes_through(self):
        self.assertEqual(run("-n", "1", "--no-prefix", "--", "printf", "raw").stdout, "raw")

    def test_no_colours_without_a_terminal(self):
        self.assertNotIn("\033", run("-n", "2", "--", "echo", "x").stdout)

    def test_each_rank_gets_its_environment(self):
        result = run("-n", "2", "--job", "train", "--runtime-dir", "/tmp/x", "--", "sh", "-c",
                     "echo $IRIS_RANK/$IRIS_N_RANKS local=$IRIS_LOCAL_RANK job=$IRIS_JOB dir=$IRIS_RUNTIME_DIR",
                     env={**os.environ, "IRIS_RANK": "77", "IRIS_JOB": "other"})
        self.assertEqual(sorted(result.stdout.splitlines()),
                         ["[0] 0/2 local=0 job=train dir=/tmp/x", "[1] 1/2 local=1 job=train dir=/tmp/x"])

    def test_env_gives_variables_to_every_rank(self):
        result = run("-n", "2", "--env", "A=1", "--env", "B=x=y z", "--env", "C=", "--env", "HOME=/x", "--", "sh", "-c",
                     "echo \"$A/$B/${C-unset}/$HOME/$KEPT\"", env={**os.environ, "A": "0", "KEPT": "kept"})
        self.assertEqual(sorted(result.stdout.splitlines()), ["[0] 1/x=y z///x/kept", "[1] 1/x=y z///x/kept"])

    def test_the_last_env_of_a_name_wins(self):
        self.assertEqual(run("-n", "1", "--env", "A=1", "--env", "A=2", "--", "sh", "-c", "echo $A").stdout, "[0] 2\n")

    def test_env_refuses_bad_names_and_what_is_iris_runs_own(self):
        for variable, why in (("=x", "is no name of a variable"), ("1A=x", "is no name of a variable"),
                              ("a b=x", "is no name of a variable"), ("A", "write --env A=VALUE"),
                              ("IRIS_RANK=3", "IRIS_RANK is set by iris-run itself; use -n"),
                              ("IRIS_JOB=x", "use --job"), ("IRIS_RUNTIME_DIR=/x", "use --runtime-dir")):
            result = run("-n", "1", "--env", variable, "--", "true")
            self.assertEqual(result.returncode, 2, variable)
            self.assertIn(why, result.stderr)

    def test_bind_deals_the_cores(self):
        show = ["--", sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"]
        allowed = sorted(os.sched_getaffinity(0))
        result = run("-n", "1", "--bind", "cores", *show)
        self.assertEqual(result.stdout, f"[0] {allowed}\n")
        result = run("-n", "2", *show)
        self.assertEqual(sorted(result.stdout.splitlines()), [f"[0] {allowed}", f"[1] {allowed}"])
        result = run("-n", "2", "--bind", "cores", "--verbose", *show)
        sets = [set(json.loads(line[4:])) for line in result.stdout.splitlines()]
        self.assertEqual(set.union(*sets), set(allowed))
        for rank in (0, 1):
            self.assertRegex(result.stderr, rf"iris-run: rank {rank} is bound to CPUs \d[\d,-]*\n")
        if "share" not in result.stderr:
            self.assertEqual(set.intersection(*sets), set())

    def test_bind_uses_only_what_iris_run_may_use(self):
        cpu = max(os.sched_getaffinity(0))
        result = run("-n", "2", "--bind", "cores", "--", sys.executable, "-c",
                     "import os; print(os.sched_getaffinity(0))", preexec_fn=lambda: os.sched_setaffinity(0, {cpu}))
        self.assertEqual(sorted(result.stdout.splitlines()), [f"[{rank}] {{{cpu}}}" for rank in (0, 1)])
        self.assertEqual(result.stderr, "iris-run: --bind cores: 2 ranks share 1 core\n")

    def test_np_as_mpirun_has_it(self):
        for words in (["-np", "2"], ["--np", "2"], ["--np=2"], ["-n2"], ["--ranks", "2"]):
            result = run(*words, "--", "echo", "x")
            self.assertEqual(sorted(result.stdout.splitlines()), ["[0] x", "[1] x"], words)
        # Words after the program belong to the program.
        self.assertEqual(run("-np", "1", "echo", "-np", "3").stdout, "[0] -np 3\n")

    def test_two_runs_have_different_jobs_and_ranks_of_one_the_same(self):
        names = []
        for _ in range(2):
            lines = run("-n", "2", "--", "sh", "-c", "echo $IRIS_JOB").stdout.splitlines()
            self.assertEqual(lines[0][4:], lines[1][4:])
            names.append(lines[0][4:])
        self.assertNotEqual(*names)

    def test_a_rank_has_no_input_and_its_own_process_group(self):
        result = run("-n", "1", "--", sys.executable, "-c",
                     "import os, sys; print(repr(sys.stdin.read()), os.getpgid(0) == os.getpid())")
        self.assertEqual(result.stdout, "[0] '' True\n")

    def test_the_program_gets_its_arguments_unread(self):
        result = run("-n", "1", "--", "printf", "%s,", "-n", "--job", "--", "a b")
        self.assertEqual(result.stdout, "[0] -n,--job,--,a b,\n")

    def test_the_separator_may_be_left_out(self):
        self.assertEqual(run("-n", "1", "echo", "-n", "x").stdout, "[0] x\n")

    def test_ranks_start_without_blocked_or_ignored_signals(self):
        result = run("-n", "1", "--", "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status")
        for line in result.stdout.splitlines():
            self.assertEqual(int(line.split()[-1], 16) & ((1 << 15) - 1), 0, line)

    # Ends

    def test_exit_code_is_that_of_the_rank_that_failed(self):
        result = run("-n", "4", "--grace", "0", "--", "sh", "-c", "[ $IRIS_RANK = 2 ] && exit 7; exec sleep 600")
        self.assertEqual(result.returncode, 7)
        self.assertRegex(result.stderr, r"iris-run: rank 2 of 4 \(pid \d+\) exited with code 7; ending the other 3\n")

    def test_a_signal_is_named_and_becomes_128_plus_its_number(self):
        result = run("-n", "2", "--grace", "0", "--", "sh", "-c", "[ $IRIS_RANK = 1 ] && kill -KILL $$; exec sleep 600")
        self.assertEqual(result.returncode, 137)
        self.assertRegex(result.stderr, r"rank 1 of 2 \(pid \d+\) was ended by SIGKILL \(Killed\), "
                         r"perhaps by the kernel's out-of-memory killer \(see dmesg\); ending the other 1\n")

    def test_only_the_first_failure_counts(self):
        result = run("-n", "3", "--grace", "0.1", "--", "sh", "-c",
                     "[ $IRIS_RANK = 0 ] && exit 3; trap 'exit 9' TERM; sleep 600 & wait")
        self.assertEqual(result.returncode, 3)
        self.assertEqual(result.stderr.count("iris-run: rank"), 1)

    def test_survivors_have_time_to_report(self):
        result = run("-n", "3", "--grace", "60", "--", "sh", "-c",
                     f"""[ $IRIS_RANK = 1 ] && {{
                           until [ -s {self.path('r0')} -a -s {self.path('r2')} ]; do sleep 0.01; done; exit 6
                         }}
                         trap 'echo ended' TERM
                         echo x > {self.path('r')}$IRIS_RANK; sleep 0.5; echo rank 1 is gone; exit 9""")
        self.assertEqual(result.returncode, 6)
        self.assertEqual(sorted(result.stdout.splitlines()), ["[0] rank 1 is gone", "[2] rank 1 is gone"])
        self.assertRegex(result.stderr, r"rank 1 of 3 \(pid \d+\) exited with code 6; ending the other 2 in 1m\n$")

    def test_who_does_not_end_in_the_grace_period_is_named_and_ended(self):
        result = run("-n", "3", "--grace", "300ms", "--", "sh", "-c", "[ $IRIS_RANK = 1 ] && exit 6; exec sleep 600")
        self.assertEqual(result.returncode, 6)
        self.assertIn("not ended 300ms after the failure, and ended now: ranks 0, 2\n", result.stderr)

    def test_keep_going_ends_nobody_and_names_each_that_failed(self):
        result = run("-n", "3", "--keep-going", "--", "sh", "-c",
                     f"""wait_for() {{ until [ -s $1 ]; do sleep 0.01; done; }}
                         [ $IRIS_RANK = 2 ] && {{ wait_for {self.path('g')}; sleep 1; echo done; exit 0; }}
                         [ $IRIS_RANK = 0 ] && {{ wait_for {self.path('f')}; echo x > {self.path('g')}; exit 8; }}
                         (sleep 0.3; echo x > {self.path('f')}) & exit 4""")
        self.assertEqual(result.returncode, 4)
        self.assertEqual(result.stdout, "[2] done\n")
        self.assertRegex(result.stderr, r"rank 1 of 3 \(pid \d+\) exited with code 4; 2 others go on\n"
                         r"iris-run: rank 0 of 3 \(pid \d+\) exited with code 8; 1 other goes on\n$")

    def test_of_failures_seen_together_a_signal_comes_first(self):
        # iris-run stands still until both have failed.
        process = self.start("-n", "2", "--", "sh", "-c", f"echo $$ > {self.path('p')}$IRIS_RANK; "
                             f"until [ -s {self.path('go')} ]; do sleep 0.01; done; "
                             "[ $IRIS_RANK = 1 ] && kill -SEGV $$; exit 5")
        pids = self.pids("p0", "p1")
        process.send_signal(signal.SIGSTOP)
        with open(self.path("go"), "w", encoding="ascii") as file:
            file.write("x")
        for pid in pids:
            self.wait_for(f"end of {pid}", lambda pid=pid: not alive(pid))
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(process.returncode, 128 + signal.SIGSEGV, err)
        self.assertIn("rank 1 of 2", err)
        self.assertIn("SIGSEGV", err)

    def test_a_rank_that_ignores_the_end_is_killed(self):
        result = run("-n", "2", "--grace", "0.1", "--kill-after", "0.2", "--", "sh", "-c",
                     f"""[ $IRIS_RANK = 1 ] && {{
                           trap '' TERM; echo $$ > {self.path('pid')}; while :; do sleep 1; done
                         }}
                         until [ -s {self.path('pid')} ]; do sleep 0.01; done; exit 5""")
        self.assertEqual(result.returncode, 5)
        self.assertFalse(alive(self.pids("pid")[0]))

    def test_grandchildren_go_too(self):
        result = run("-n", "2", "--grace", "0", "--", "sh", "-c",
                     f"sleep 600 & echo $! > {self.path('g')}$IRIS_RANK; [ $IRIS_RANK = 0 ] && exit 4; wait")
        self.assertEqual(result.returncode, 4)
        for pid in self.pids("g0"):
            self.assertFalse(alive(pid))

    def test_grandchildren_of_a_successful_run_go_too(self):
        result = run("-n", "1", "--", "sh", "-c", f"sleep 600 & echo $! > {self.path('g')}")
        self.assertEqual(result.returncode, 0)
        self.assertFalse(alive(self.pids("g")[0]))

    def test_what_left_its_process_group_goes_too(self):
        result = run("-n", "1", "--", "sh", "-c", f"setsid sh -c 'echo $$ > {self.path('g')}; exec sleep 600' & "
                     f"until [ -s {self.path('g')} ]; do sleep 0.01; done")
        self.assertEqual(result.returncode, 0)
        self.assertFalse(alive(self.pids("g")[0]))

    def test_nothing_outlives_a_killed_iris_run(self):
        process = self.start("-n", "2", "--", "sh", "-c",
                             f"sleep 600 & echo $$ $! > {self.path('t')}$IRIS_RANK; "
                             f"mv {self.path('t')}$IRIS_RANK {self.path('p')}$IRIS_RANK; wait")
        pids = self.pids("p0", "p1")
        self.assertEqual(len(pids), 4)
        process.kill()
        process.wait()
        for pid in pids:
            self.wait_for(f"end of {pid}", lambda pid=pid: not alive(pid))

    def test_timeout_ends_all_with_124(self):
        result = run("-n", "2", "--timeout", "0.3", "--", "sleep", "600")
        self.assertEqual(result.returncode, 124)
        self.assertIn("not done after 300ms", result.stderr)

    def test_a_closed_output_ends_the_run(self):
        process = self.start("-n", "1", "--", "yes")
        patience.line(process)
        process.stdout.close()
        self.assertEqual(process.wait(PATIENCE_SECONDS), 128 + signal.SIGPIPE)

    # Signals

    def check_forwarded(self, number, expected_code):
        process = self.start("-n", "2", "--", "sh", "-c",
                             f"""trap 'echo got; exit 0' {number.name[3:]}
                                 echo $$ > {self.path('p')}$IRIS_RANK; while :; do sleep 0.05; done""")
        self.wait_for_files("p0", "p1")
        process.send_signal(number)
        out, _ = process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(sorted(out.splitlines()), ["[0] got", "[1] got"])
        self.assertEqual(process.returncode, expected_code)

    def test_forwards_SIGINT(self):
        self.check_forwarded(signal.SIGINT, 0)

    def test_forwards_SIGTERM(self):
        self.check_forwarded(signal.SIGTERM, 0)

    def test_forwards_SIGHUP(self):
        self.check_forwarded(signal.SIGHUP, 0)

    def test_forwards_SIGQUIT(self):
        self.check_forwarded(signal.SIGQUIT, 0)

    def test_forwards_SIGUSR1(self):
        self.check_forwarded(signal.SIGUSR1, 0)

    def test_forwards_SIGUSR2(self):
        self.check_forwarded(signal.SIGUSR2, 0)

    def test_an_interrupt_that_ends_the_ranks_gives_130(self):
        process = self.start("-n", "2", "--", "sh", "-c", f"echo x > {self.path('p')}$IRIS_RANK; exec sleep 600")
        self.wait_for_files("p0", "p1")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(process.returncode, 130)
        self.assertIn("was ended by SIGINT (Interrupt)\n", err)

    def test_the_second_interrupt_kills(self):
        process = self.start("-n", "1", "--", "sh", "-c",
                             f"""trap 'echo x > {self.path('first')}' INT
                                 echo x > {self.path('p')}; while :; do sleep 0.05; done""")
        self.wait_for_files("p")
        process.send_signal(signal.SIGINT)
        self.wait_for_files("first")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(process.returncode, 137)
        self.assertNotIn("dmesg", err)

    # Several hosts

    def rsh(self, before=""):
        """A program in place of ssh, HOST COMMAND, whose command has its own session and environment. The host
        `nowhere` cannot be reached. Its agents look for no leaks: iris-run, whose descendants they are here, kills
        what is left when it ends, and a killed leak check complains."""
        path = self.path("rsh")
        with open(path, "w", encoding="ascii") as file:
            file.write(f"""#!/bin/sh
[ $# = 2 ] || exit 99
host=$1; shift
[ $host = nowhere ] && {{ echo "there is no $host" >&2; exit 255; }}
{before}
exec env -i PATH=/usr/bin:/bin ASAN_OPTIONS=detect_leaks=0 HOST=$host setsid --wait sh -c "$*"
""")
        os.chmod(path, 0o755)
        return path

    def hosts(self, *arguments, hosts="a:2,b:2", before=""):
        return ["--hosts", hosts, "--rsh", self.rsh(before), *arguments]

    def check_gone(self, *pids):
        for pid in pids:
            self.wait_for(f"end of {pid}", lambda pid=pid: not alive(pid))

    def parent(self, pid):
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return int(file.read().rsplit(")", 1)[1].split()[1])

    def agent(self, rank_pid):
        """The pid of the agent that started a rank."""
        agent = self.parent(rank_pid)
        with open(f"/proc/{agent}/cmdline", encoding="ascii") as file:
            self.assertTrue(file.read().endswith("\0--agent\0"))
        return agent

    def start_waiting(self, *options, before="", trap=""):
        """iris-run, and the pids of four ranks on two hosts with their children."""
        process = self.start(*self.hosts(*options, "--", "sh", "-c",
                                         f"{trap} sleep 600 & echo $$ $! > {self.path('t')}$IRIS_RANK; "
                                         f"mv {self.path('t')}$IRIS_RANK {self.path('p')}$IRIS_RANK; echo ready; "
                                         "wait; wait", before=before))
        # iris-run has then heard that all ranks have started. An agent that dies before could not start any.
        self.assertEqual(sorted(process.stdout.readline() for _ in range(4)),
                         [f"[{rank}] ready\n" for rank in range(4)])
        return process, self.pids("p0", "p1", "p2", "p3")

    def test_hosts_ranks_are_consecutive(self):
        result = run("-n", "4", *self.hosts("--job", "train", "--", "sh", "-c",
                     "echo $HOST $IRIS_RANK/$IRIS_N_RANKS $IRIS_LOCAL_RANK/$IRIS_N_LOCAL $IRIS_JOB $PWD",
                     hosts="a:2,b:1,c:8"))
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        here = os.getcwd()
        self.assertEqual(sorted(result.stdout.splitlines()), [
            f"[0] a 0/4 0/2 train {here}", f"[1] a 1/4 1/2 train {here}", f"[2] b 2/4 0/1 train {here}",
            f"[3] c 3/4 0/1 train {here}"])

    def test_hosts_of_a_file(self):
        with open(self.path("file"), "w", encoding="ascii") as file:
            file.write("# nodes\na slots=2\nb\n")
        result = run("--hostfile", self.path("file"), "--", "sh", "-c", "echo $HOST",
                     env={**os.environ, "IRIS_RUN_RSH": self.rsh()})
        self.assertEqual(sorted(result.stdout.splitlines()), ["[0] a", "[1] a", "[2] b"], result.stderr)

    def test_hosts_get_arguments_as_they_are(self):
        words = ["a b", "it's", '"$HOME" `id` \\ * ;&|', "two\nlines", "", "-n", "--", "\u00e4"]
        result = run(*self.hosts("--no-prefix", "--", "printf", "<%s>", *words, hosts="a:1,b:1"))
        self.assertEqual(result.stdout, 2 * "".join(f"<{word}>" for word in words), result.stderr)

    def test_hosts_get_the_variables_that_matter_and_a_secret(self):
        show = ["--", "sh", "-c", "echo $IRIS_X/$LD_LIBRARY_PATH/$PYTHONPATH/$A/$B/$C/$OTHER $IRIS_JOB_SECRET "
                "$IRIS_RENDEZVOUS"]
        environment = {**os.environ, "IRIS_X": "x", "LD_LIBRARY_PATH": "/l", "PYTHONPATH": "/p", "A": "a\nb",
                       "OTHER": "other", "IRIS_JOB_SECRET": "", "IRIS_RENDEZVOUS": ""}
        secrets = set()
        for _ in range(2):
            result = run(*self.hosts("-x", "A", "-x", "B=b b", "--env", "C=", *show, hosts="a:1,[fd00::1]:1"),
                         env=environment)
            lines = sorted(result.stdout.splitlines())
            self.assertEqual(lines[0][4:], lines[1][4:], result.stderr)
            match = re.fullmatch(r"\[0\] x//l//p/a b/b b// ([0-9a-f]{64}) a:2\d{4}", lines[0])
            self.assertIsNotNone(match, lines[0])
            secrets.add(match[1])
        self.assertEqual(len(secrets), 2)
        result = run(*self.hosts("--rendezvous", "[::1]:7", *show),
                     env={**environment, "IRIS_JOB_SECRET": "one that is given"})
        self.assertEqual(result.stdout.count("one that is given [::1]:7\n"), 4, result.stderr)

    def test_the_secret_is_in_no_command_line(self):
        process, pids = self.start_waiting()
        with open(f"/proc/{pids[0]}/environ", encoding="utf-8") as file:
            secret = re.search(r"IRIS_JOB_SECRET=([0-9a-f]{64})\0", file.read())[1]
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    self.assertNotIn(secret.encode(), file.read())
            except (FileNotFoundError, ProcessLookupError):
                pass
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_SECONDS)

    def test_hosts_output_is_whole_lines(self):
        result = run(*self.hosts("--", "sh", "-c", "seq 1 20000; seq 1 2000 >&2"))
        for text, n in ((result.stdout, 20000), (result.stderr, 2000)):
            for rank in range(4):
                lines = [line[4:] for line in text.splitlines() if line.startswith(f"[{rank}] ")]
                self.assertEqual(lines, [str(i) for i in range(1, n + 1)])

    def test_hosts_wait_with_their_output_for_a_slow_reader(self):
        process = self.start(*self.hosts("--", "seq", "1", "400000", hosts="a:1,b:1"))
        time.sleep(1)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual((process.returncode, err), (0, ""))
        for rank in (0, 1):
            self.assertEqual([line[4:] for line in out.splitlines() if line.startswith(f"[{rank}] ")],
                             [str(i) for i in range(1, 400001)])

    def test_what_a_login_shell_writes_is_told(self):
        result = run(*self.hosts("--", "echo", "x", hosts="a:1", before="echo Welcome; echo careful >&2"))
        self.assertEqual((result.returncode, result.stdout), (0, "[0] x\n"))
        self.assertEqual(sorted(result.stderr.splitlines()), ["iris-run: a: Welcome", "iris-run: a: careful"])

    def test_hosts_exit_code_is_that_of_the_rank_that_failed(self):
        result = run(*self.hosts("--grace", "0", "--", "sh", "-c", "[ $IRIS_RANK = 2 ] && exit 7; exec sleep 600"))
        self.assertEqual(result.returncode, 7)
        self.assertRegex(result.stderr, r"^iris-run: rank 2 of 4 \(pid \d+ on b\) exited with code 7; "
                         r"ending the other 3\n$")

    def test_hosts_survivors_are_named(self):
        result = run(*self.hosts("--grace", "200ms", "--kill-after", "300ms", "--", "sh", "-c",
                                 "trap '' TERM; [ $IRIS_RANK = 1 ] && kill -SEGV $$; while :; do sleep 0.05; done"))
        self.assertEqual(result.returncode, 128 + signal.SIGSEGV)
        self.assertIn("rank 1 of 4 (pid ", result.stderr)
        self.assertIn("not ended 200ms after the failure, and ended now: ranks 0, 2, 3\n", result.stderr)

    def test_hosts_that_are_bound_and_explained(self):
        result = run(*self.hosts("--job", "train", "--bind", "cores", "--verbose", "--rendezvous", "a:7", "--",
                                 sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))",
                                 hosts="a:1,b:1"))
        allowed = sorted(os.sched_getaffinity(0))
        self.assertEqual(sorted(result.stdout.splitlines()), [f"[0] {allowed}", f"[1] {allowed}"], result.stderr)
        self.assertIn("iris-run: rank 0 on a, rank 1 on b; they meet at a:7\n", result.stderr)
        for rank in (0, 1):
            self.assertRegex(result.stderr, rf"iris-run: rank {rank} is bound to CPUs \d[\d,-]*\n")

    def test_a_host_goes_on_when_another_has_ended(self):
        result = run(*self.hosts("--keep-going", "--", "sh", "-c", "[ $IRIS_RANK -lt 2 ] && exit $IRIS_RANK; "
                                 "sleep 0.5; echo late"))
        self.assertEqual(result.returncode, 1)
        self.assertEqual(sorted(result.stdout.splitlines()), ["[2] late", "[3] late"])
        self.assertRegex(result.stderr, r"rank 1 of 4 \(pid \d+ on a\) exited with code 1; \d others? go(es)? on\n$")

    def test_hosts_timeout(self):
        result = run(*self.hosts("--timeout", "0.5", "--", "sleep", "600"))
        self.assertEqual(result.returncode, 124)

    def test_hosts_get_signals(self):
        process, pids = self.start_waiting(trap="trap 'echo got; exit 0' USR1;")
        process.send_signal(signal.SIGUSR1)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(sorted(out.splitlines()), [f"[{rank}] got" for rank in range(4)])
        self.check_gone(*pids)

    def test_an_interrupt_ends_the_ranks_of_all_hosts(self):
        process, pids = self.start_waiting(trap="trap 'exit 9' INT;")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(process.returncode, 9, err)
        self.check_gone(*pids)

    def test_the_second_interrupt_kills_on_all_hosts(self):
        process, pids = self.start_waiting("--kill-after", "600", trap="trap '' INT TERM;")
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(process.returncode, 137)
        self.check_gone(*pids)

    def test_no_rank_outlives_a_killed_iris_run_by_more_than_the_time_to_end(self):
        process, pids = self.start_waiting("--kill-after", "1", trap="trap '' TERM;")
        self.assertEqual(len(pids), 8)
        agents = [self.agent(pids[0]), self.agent(pids[4])]
        since = time.monotonic()
        process.kill()
        process.wait()
        self.check_gone(*pids, *agents)
        print(f"ended after {time.monotonic() - since:.2f} s")

    def test_a_killed_agent_ends_the_job(self):
        process, pids = self.start_waiting("--grace", "200ms")
        os.kill(self.agent(pids[4]), signal.SIGKILL)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(process.returncode, 125, err)
        self.assertRegex(err, r"iris-run: lost ranks 2-3 on b: .*/rsh exited with code \d+"
                         r"; ending the other 2 in 200ms\n")
        self.check_gone(*pids)

    def test_a_killed_remote_shell_ends_the_job(self):
        process, pids = self.start_waiting("--grace", "200ms", "--kill-after", "200ms")
        os.kill(self.parent(self.agent(pids[0])), signal.SIGKILL)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(process.returncode, 125, err)
        self.assertRegex(err, r"lost ranks 0-1 on a: .*/rsh was ended by SIGKILL \(Killed\); ending the other 2")
        self.check_gone(*pids)

    def test_a_host_that_cannot_be_reached_ends_the_job_before_it_starts(self):
        result = run(*self.hosts("--", "sh", "-c", f"echo x > {self.path('ran')}", hosts="a:2,nowhere:2"))
        self.assertEqual(result.returncode, 125)
        self.assertRegex(result.stderr, r"^iris-run: nowhere: there is no nowhere\n"
                         r"iris-run: cannot start ranks 2-3 on nowhere: \S+/rsh exited with code 255\n$")
        self.assertFalse(os.path.exists(self.path("ran")))

    def test_a_host_that_does_not_answer(self):
        since = time.monotonic()
        result = run(*self.hosts("--connect-timeout", "500ms", "--", "true", hosts="a:1,b:1",
                                 before=f"[ $host = b ] && {{ echo $$ > {self.path('p')}; exec sleep 600; }}"))
        self.assertEqual(result.returncode, 125)
        self.assertEqual(result.stderr, "iris-run: cannot start rank 1 on b: no agent has answered in 500ms "
                         "(--connect-timeout)\n")
        self.assertLess(time.monotonic() - since, 20)
        self.check_gone(*self.pids("p"))

    def test_an_interrupt_while_a_host_does_not_answer(self):
        process = self.start(*self.hosts("--", "true", before=f"echo $$ > {self.path('p')}$host; exec sleep 600"))
        pids = self.pids("pa", "pb")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(process.returncode, 130)
        self.check_gone(*pids)

    def test_hosts_without_the_program_or_the_folder(self):
        result = run(*self.hosts("--", "/nowhere/program"))
        self.assertEqual(result.returncode, 127)
        self.assertIn("cannot execute /nowhere/program", result.stderr)
        self.assertRegex(result.stderr, "iris-run: cannot start ranks (0-1 on a|2-3 on b)\n")
        result = run(*self.hosts("--", "true", before="echo 'sh: not found' >&2; exit 127"))
        self.assertEqual(result.returncode, 125)
        self.assertIn("iris-run must be at the same path on all hosts", result.stderr)
        greeting = "echo; echo 'iris-run agent'; "
        result = run(*self.hosts("--", "true", before=greeting + "printf 'H\\005\\000\\000\\0000.1 7'; sleep 600"))
        self.assertEqual(result.returncode, 125)
        self.assertRegex(result.stderr, r"its iris-run is 0\.1, and this one \d")
        result = run(*self.hosts("--", "true", before=greeting + "printf 'XXXXXXXX'; sleep 600"))
        self.assertEqual(result.returncode, 125)
        self.assertRegex(result.stderr, "on [ab]: a message has 1482184792 bytes")
        result = run("--hosts", "a:1", "--rsh", "/nowhere/ssh -v", "--", "true")
        self.assertEqual(result.returncode, 127)
        self.assertIn("cannot execute /nowhere/ssh", result.stderr)

    def test_wrong_usage_of_hosts_gives_2(self):
        for arguments, why in (
                (["--hosts", "-oProxyCommand=x"], "--hosts: \"-oProxyCommand=x\": is no host"),
                (["--hosts", "a;b"], "is no host"), (["--hosts", "a:0"], "1 or more"),
                (["--hosts", "a:65"], "at most 64 ranks"), (["-n", "3", "--hosts", "a,b"], "room for 2 ranks"),
                (["--hostfile", "/nowhere"], "/nowhere"), (["--hostfile", "/dev/null"], "names no host"),
                (["--hosts", "a", "--hostfile", "/dev/null"], "excludes"),
                (["--hosts", "a", "--rsh", " "], "names no program"),
                (["--hosts", "a", "--rendezvous", "b"], "--rendezvous"),
                (["--hosts", "localhost,b"], "cannot find rank 0 at localhost"),
                (["--hosts", "a", "--connect-timeout", "0"], "more than 0"),
                (["--hosts", "a", "-x", "IRIS_NOT_SET"], "it is not set"),
                (["--hosts", "a", "-x", "IRIS_RANK"], "use -n"), (["--hosts", ""], "-n")):
            result = run(*arguments, "--", "true", env={**os.environ, "IRIS_RENDEZVOUS": ""})
            self.assertEqual(result.returncode, 2, (arguments, result.stderr))
            self.assertIn(why, result.stderr)

    # Usage

    def test_a_program_that_is_not_there_gives_127(self):
        result = run("-n", "2", "--", "/nowhere/program")
        self.assertEqual(result.returncode, 127)
        self.assertIn("cannot execute /nowhere/program", result.stderr)

    def test_a_file_that_is_no_program_gives_126(self):
        with open(self.path("text"), "w", encoding="ascii") as file:
            file.write("no program")
        result = run("-n", "2", "--", self.path("text"))
        self.assertEqual(result.returncode, 126)

    def test_wrong_usage_gives_2(self):
        for arguments in ([], ["-n", "2"], ["-n", "0", "--", "true"], ["-n", "65", "--", "true"],
                          ["-n", "x", "--", "true"], ["--", "true"], ["-n", "2", "--wrong", "--", "true"],
                          ["-n", "1", "--job", "x" * 129, "--", "true"],
                          ["-n", "1", "--timeout", "-3", "--", "true"], ["-n", "1", "--wrong", "true"],
                          ["-n", "1", "--timeout", "0", "--", "true"], ["-n", "1", "--grace", "soon", "--", "true"],
                          ["-n", "1", "--bind", "sockets", "--", "true"], ["-n"], ["-np", "0", "true"],
                          ["-n", "1", "--keep-going", "--grace", "1", "--", "true"]):
            result = run(*arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertNotEqual(result.stderr, "", arguments)

    def test_an_unknown_option_gets_a_suggestion(self):
        for option, meant in (("--graec", "--grace"), ("--keep", "--keep-going"), ("--no-prefx", "--no-prefix"),
                              ("--jobs=x", "--job")):
            result = run("-n", "1", option, "--", "true")
            self.assertEqual(result.returncode, 2)
            self.assertIn(f"did you mean '{meant}'?", result.stderr)

    def test_a_program_of_this_folder_is_written_with_its_folder(self):
        shutil.copy(shutil.which("true"), self.path("here"))
        result = subprocess.run([os.path.abspath(IRIS_RUN), "-n", "1", "here"], cwd=self.folder, stderr=subprocess.PIPE,
                                text=True, timeout=PATIENCE_SECONDS, check=False,
                                env={**os.environ, "PATH": "/usr/bin:/bin"})
        self.assertEqual(result.returncode, 127)
        self.assertIn("for the one in this folder, write ./here", result.stderr)

    def test_help_and_version(self):
        self.assertIn("Exit code", run("--help").stdout)
        self.assertEqual(run("--help").returncode, 0)
        self.assertTrue(re.match(r"iris-run \d+\.\d+\.\d+\n$", run("--version").stdout))


if __name__ == "__main__":
    junit.main()
