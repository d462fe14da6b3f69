"""A machine in small: irisd as root with the rights of its unit, honest users whose jobs run, users who attack it, and
what all that costs.

Programs are copied to where every user can read them; each user is a number without a name. Use House as a context."""

import contextlib
import ctypes
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
import warnings

from tests.hostile import doors
from tests.hostile import unit
from tests.python import irisd

BYSTANDER = "tests/hostile/bystander"
# Programs of irisd: each lies beside irisd where it is installed.
WORKERS = ("server/irisd-worker",)
WORKER_NAME = "irisd-worker"

LONG = os.environ.get("IRIS_HOSTILE", "short") == "long"

# Cases that run at the same time have users of their own: the kernel, too, counts by user.
PART = int(os.environ.get("IRIS_TEST_PART", "0/1").split("/")[0])
FIRST_UID = 61000 + 100 * PART
WORKING_UID = FIRST_UID + 10  # the honest users: of the jobs that work, and of those that join and leave
JOINING_UID = FIRST_UID + 11
ATTACKER_UIDS = (FIRST_UID + 1, FIRST_UID + 2)
HONEST_LINE = re.compile(r'job="?(job|join)-')  # of the log: the names that bystanders give their jobs
IRISD_UID = FIRST_UID + 30  # of an irisd that is not root

IDLE_SECONDS = 3.0 if LONG else 0.4
RETURN_SECONDS = 30
RETURN_RATIO = 1.1
COUNTED_BYTES = 128 << 10
RETURN_BYTES = 1 << 20  # what code that ran for the first time may take, and the events that irisd keeps
SAMPLE_SECONDS = 0.05
FUSE_BYTES = 1 << 30  # an attack that has come so far has won: it is ended, before the machine suffers
FD_LIMIT = 4096
EMU_DEVICES = 4
NO_PRIVILEGE = "irisd runs as root and its users as others: start this test as root"


def mib(size_bytes):
    return f"{size_bytes / (1 << 20):.1f} MiB"


def make_folder():
    """A new folder that every user may enter; short, for the paths of sockets in it."""
    folder = tempfile.mkdtemp(prefix="iris-hostile-", dir="/tmp")
    os.chmod(folder, 0o755)
    return folder


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


CLONE_NEWUSER, CLONE_NEWPID = 0x10000000, 0x20000000
PR_SET_PDEATHSIG = 1
CAPABILITY_VERSION_3 = 0x20080522
_LIBC = ctypes.CDLL(None, use_errno=True)


def _must(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def become(uid, fd_limit=FD_LIMIT):
    """This process goes on as that user, in no group but its own, and without capabilities."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limit = fd_limit if hard == resource.RLIM_INFINITY else min(fd_limit, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    _must(_LIBC.capset(struct.pack("<II", CAPABILITY_VERSION_3, 0), bytes(24)))


class User:
    """Whom a process of this test, which is root's, can become: here a user of the machine."""

    def __init__(self, uid):
        self.uid = uid

    def become(self):
        become(self.uid)


class SubUser(User):
    """Number `uid` (from 1 on) in a user namespace that `owner` makes, with sub-uids, as newuidmap maps them."""

    SUB_UIDS, N_SUB_UIDS = 500_000 + 100_000 * PART, 65_536

    def __init__(self, owner, uid):
        super().__init__(uid)
        self.owner = owner

    def possible(self):
        """Whether users may make user namespaces here; in a chroot the kernel never allows it."""
        tries = os.fork()
        if tries == 0:
            with contextlib.suppress(OSError, RuntimeError):
                self.become()
                os._exit(0)
            os._exit(1)
        return os.waitpid(tries, 0)[1] == 0

    def become(self):
        pid = os.getpid()
        made, make = os.pipe()
        mapper = os.fork()
        if mapper == 0:
            code = 1
            try:
                os.close(make)
                if os.read(made, 1):
                    for name in ("uid_map", "gid_map"):
                        with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as file:
                            file.write(f"0 {self.owner} 1\n1 {self.SUB_UIDS} {self.N_SUB_UIDS}\n")
                    code = 0
            finally:
                os._exit(code)
        os.close(made)
        become(self.owner)
        _must(_LIBC.unshare(CLONE_NEWUSER))
        os.write(make, b"1")
        os.close(make)
        if os.waitpid(mapper, 0)[1] != 0:
            raise RuntimeError("no sub-uids could be mapped")
        become(self.uid)


class Container:
    """A PID namespace that root makes, until close(). Its processes see the files that others see."""

    def __init__(self):
        ready, mine = os.pipe()
        self._keeper = os.fork()
        if self._keeper == 0:
            try:
                _must(_LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
                _must(_LIBC.unshare(CLONE_NEWPID))
                if os.fork() == 0:  # the namespace ends with this one
                    _must(_LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
                    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
                    os.write(mine, b"1")
                    while True:
                        signal.pause()
                os.wait()
            finally:
                os._exit(1)
        os.close(mine)
        with os.fdopen(ready, "rb") as file:
            started = file.read(1)
        self._namespace = None
        if not started:
            self.close()
            raise unittest.SkipTest("root may make no PID namespaces here, so that there are no containers")
        self._namespace = os.open(f"/proc/{self._keeper}/ns/pid_for_children", os.O_RDONLY | os.O_CLOEXEC)

    def enter(self):
        """The calling process goes on as a process of the container; who started it sees one that waits for it."""
        _must(_LIBC.setns(self._namespace, CLONE_NEWPID))
        inside = os.fork()
        if inside == 0:
            _must(_LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
            return
        os.closerange(3, 1 << 16)
        signal.signal(signal.SIGTERM, lambda *_: os.kill(inside, signal.SIGTERM))
        os._exit(os.waitstatus_to_exitcode(os.waitpid(inside, 0)[1]) & 0xFF)

    def number(self):
        """As irisd names it: the inode number of its PID namespace."""
        return os.fstat(self._namespace).st_ino

    def close(self):
        if self._namespace is not None:
            os.close(self._namespace)
            self._namespace = None
        os.kill(self._keeper, signal.SIGKILL)
        os.waitpid(self._keeper, 0)


class InContainer(User):
    """That user, which may be 0, in a container."""

    def __init__(self, container, uid):
        super().__init__(uid)
        self.container = container

    def become(self):
        self.container.enter()
        become(self.uid)


def _children_of(parent):
    """[(pid, name)] of living children."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                text = file.read()
        except OSError:
            continue
        name, rest = text[text.index("(") + 1:text.rindex(")")], text[text.rindex(")") + 2:].split()
        if int(rest[1]) == parent and rest[0] not in "ZX":
            found.append((int(entry), name))
    return found


def _rss_bytes(pid):
    """Resident memory; 0 of a process that is gone."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            return int(re.search(r"(?m)^Rss: +(\d+) kB", file.read()).group(1)) << 10
    except (OSError, AttributeError):
        return 0


def _user(who):
    """The User that is meant: a number is a user of the machine."""
    return User(who) if isinstance(who, int) else who


class Attacker:
    """A process of `who` (a User, or a uid) that attacks; what the attack returns is `seen` once it has ended."""

    def __init__(self, attack, who, runtime_dir, end):
        self.name = attack.__name__
        self.seen = None
        self._end = end
        self._answer = tempfile.TemporaryFile()  # not a pipe, which holds 64 KiB
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            warnings.simplefilter("ignore")  # of sockets that are left open, which is the point of some attacks
            try:
                _user(who).become()
                os.write(self._answer.fileno(), json.dumps(attack(runtime_dir, end)).encode())
                code = 0
            except BaseException:  # the parent reads why
                os.write(self._answer.fileno(), json.dumps({"error": traceback.format_exc()}).encode())
            os._exit(code)

    def over(self):
        """True once the process has ended. One that goes on for too long is killed."""
        if self._pid is None:
            return True
        if time.monotonic() > self._end + 2:
            self.kill()
        if os.waitpid(self._pid, os.WNOHANG)[0] == 0:
            return False
        with self._answer:
            self._answer.seek(0)
            text = self._answer.read()
        self.seen = json.loads(text) if text else {"killed": "it did not end by itself"}
        self._pid = None
        return True

    def pids(self):
        """Its processes: children first, since the kernel may not let it end before them."""
        return [] if self._pid is None else [pid for pid, _ in _children_of(self._pid)] + [self._pid]

    def signal(self, number):
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self):
        if self._pid is not None:
            os.kill(self._pid, signal.SIGSTOP)  # or it might report that a child of its own was killed
        self.signal(signal.SIGKILL)


class Bystander:
    """A process of an honest user: a User, or a uid."""

    def __init__(self, house, who, *arguments, **environment):
        self._path = os.path.join(house.logs, f"{len(os.listdir(house.logs))}-{arguments[0]}")
        with open(self._path, "wb") as log:
            self.process = subprocess.Popen(
                [house.program("bystander"), *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd="/",
                env={"PATH": "/usr/bin:/bin", "IRIS_RUNTIME_DIR": house.runtime_dir, **environment},
                preexec_fn=_user(who).become)
        house.stack.callback(self._end)

    def output(self):
        with open(self._path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def wait_ready(self):
        end = time.monotonic() + irisd.PATIENCE_SECONDS
        while "ready\n" not in self.output():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"bystander is not ready: {self.output()}")
            time.sleep(0.01)

    def ask_to_stop(self):
        if self.process.poll() is None:
            self.process.terminate()

    def wait(self):
        """The exit code; None if it does not end."""
        try:
            return self.process.wait(irisd.PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            return None

    def _end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Joins:
    """Joins of two ranks that a bystander has measured until now; `seconds` each, in order."""

    def __init__(self, bystander):
        text = bystander.output()
        self.seconds = [int(us) / 1e6 for us in re.findall(r"(?m)^join_us=(\d+)$", text)]
        self.failures = re.findall(r"(?m)^failed: .*$", text)
        self.p99 = percentile(self.seconds, 0.99)


class Daemon:
    """An irisd whose sockets every user can reach; `owner`: the user that `preexec`, which runs in the child, makes of
    it; `unread_log`: its log is a pipe that is full, and that nobody reads."""

    def __init__(self, program, *flags, owner=0, preexec=None, unread_log=False, emu_memory="1GiB"):
        self.folder = make_folder()
        os.chown(self.folder, owner, owner)
        self.runtime_dir = os.path.join(self.folder, "run")
        self._log_path = os.path.join(self.folder, "log")
        self._command = [program, "--runtime-dir", self.runtime_dir, "--backend", "emu", "--emu-devices",
                         str(EMU_DEVICES), "--emu-memory", emu_memory, "--no-self-check", "--socket-mode", "0666",
                         *flags]
        self._preexec = preexec
        self._unread = None
        if unread_log:
            os.mkfifo(self._log_path)
            self._unread = os.open(self._log_path, os.O_RDWR | os.O_NONBLOCK)
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(self._unread, b"x" * 4096)
        self.start()
        end = time.monotonic() + irisd.PATIENCE_SECONDS
        while not all(os.path.exists(os.path.join(self.runtime_dir, name)) for name in ("irisd.sock", "session.sock")):
            if self.process.poll() is not None or time.monotonic() > end:
                log = self.log()
                self.stop()
                raise RuntimeError(f"irisd does not start:\n{log}")
            time.sleep(0.01)

    def start(self):
        """Also again, once the process has ended. Does not wait."""
        with open(self._log_path, "ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                            preexec_fn=self._preexec)

    def log(self):
        """Empty, where nobody reads it."""
        if self._unread is not None:
            return ""
        with open(self._log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(irisd.PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self._unread is not None:
            os.close(self._unread)
            self._unread = None
        shutil.rmtree(self.folder, ignore_errors=True)


class House:
    """irisd with `flags`, as user `uid`, and `jobs` jobs of `owner` (a User, or a uid), of two ranks that work,
    `by_grpc` of them without the client library; `daemon`: more for Daemon."""

    def __init__(self, *flags, uid=0, jobs=2, by_grpc=1, fd_limit=None, owner=WORKING_UID, **daemon):
        self.stack = contextlib.ExitStack()
        self._owner, self._daemon = owner, daemon
        self._flags, self._uid, self._n_jobs, self._fd_limit = flags, uid, jobs, fd_limit
        self._by_grpc = by_grpc
        self.sockets = 0  # gRPC sockets that the jobs got in place of lost ones, once they have ended
        self.daemon, self.workers = None, []

    def __enter__(self):
        with self.stack:
            self._bin = self._copy_programs()
            self.logs = os.path.join(os.path.dirname(self._bin), "logs")
            os.mkdir(self.logs)
            self.start_irisd()
            self.runtime_dir = self.daemon.runtime_dir
            self._ranks = [Bystander(self, self._owner, "grpc" if job < self._by_grpc else "work",
                                     IRIS_JOB=f"job-{job}", IRIS_RANK=str(rank), IRIS_N_RANKS="2",
                                     IRIS_LOCAL_RANK=str(rank))
                           for job in range(self._n_jobs) for rank in range(2)]
            for rank in self._ranks:
                rank.wait_ready()
            self.stack = self.stack.pop_all()
        return self

    def __exit__(self, *unused):
        self.stack.close()

    def job_pids(self):
        """The processes of the jobs that work."""
        return [rank.process.pid for rank in self._ranks]

    def program(self, name):
        return os.path.join(self._bin, name)

    def sanitized(self):
        """True if irisd was built with a sanitizer, which keeps memory that was freed."""
        with open(self.program("irisd"), "rb") as file:
            return b"__asan_init" in file.read()

    def _copy_programs(self):
        # The runfiles may lie below a folder that is its owner's alone.
        folder = make_folder()
        self.stack.callback(shutil.rmtree, folder, ignore_errors=True)
        place = os.path.join(folder, "bin")
        os.mkdir(place)
        for path in (irisd.IRISD, BYSTANDER, *WORKERS):
            if os.path.exists(path):
                shutil.copy(path, place)
                os.chmod(os.path.join(place, os.path.basename(path)), 0o755)
        os.chmod(place, 0o755)
        return place

    def start_irisd(self):
        restrict = unit.restriction()

        def as_user():
            become(self._uid, self._fd_limit or FD_LIMIT)

        def as_root():
            if self._fd_limit:
                resource.setrlimit(resource.RLIMIT_NOFILE, (self._fd_limit, self._fd_limit))
            restrict()

        self.daemon = Daemon(self.program("irisd"), *self._flags, owner=self._uid,
                             preexec=as_user if self._uid else as_root, **self._daemon)
        self.stack.callback(self.daemon.stop)

    def log_bytes(self):
        """Of irisd's log, without what the honest users' jobs have left there."""
        return sum(len(line) for line in self.daemon.log().splitlines(True) if not HONEST_LINE.search(line))

    def worker_pids(self):
        return [pid for pid, name in _children_of(self.daemon.process.pid) if name == WORKER_NAME]

    def memory(self):
        """(bytes of the core, bytes of all workers)."""
        return (_rss_bytes(self.daemon.process.pid), sum(_rss_bytes(pid) for pid in self.worker_pids()))

    def counted_bytes(self):
        """Bytes that the core has on its heap, by its own count."""
        with doors.connect(os.path.join(self.runtime_dir, "irisd.sock")) as sock:
            code, text, reply = doors.Channel(sock).call(doors.ADMIN + "ListTenants", doors.field(1, 1))
        if code:
            raise doors.Refused(f"ListTenants: {code} {text}")
        return doors.fields(reply)[5]

    def start_joins(self):
        """A user that joins and leaves, until stop_joins()."""
        bystander = Bystander(self, JOINING_UID, "join")
        bystander.wait_ready()
        return bystander

    def stop_joins(self, bystander):
        """What it has seen."""
        bystander.ask_to_stop()
        code = bystander.wait()
        joins = Joins(bystander)
        if code != 0:
            joins.failures.append(f"the joining process ended with {code}: {bystander.output()[-1000:]}")
        return joins

    def idle_joins(self):
        """Joins that nobody disturbs."""
        bystander = self.start_joins()
        time.sleep(IDLE_SECONDS)
        return self.stop_joins(bystander)

    def hoard(self, uid, allocations):
        """A job of that user with so many allocations."""
        bystander = Bystander(self, uid, "hoard", "--allocations", str(allocations))
        bystander.wait_ready()

    def attack(self, seconds, *attacks):
        """Attacks at the same time, (function, who) each; ends when all have ended. Peak memory, as memory() gives it,
        and whether they came so far that they were ended."""
        end = time.monotonic() + seconds
        attackers = [Attacker(attack, uid, self.runtime_dir, end) for attack, uid in attacks]
        core = workers = 0
        blown = False
        while not all([attacker.over() for attacker in attackers]):
            now = self.memory()
            core, workers = max(core, now[0]), max(workers, now[1])
            if not blown and sum(now) > FUSE_BYTES:
                blown = True
                for attacker in attackers:
                    attacker.kill()
            time.sleep(SAMPLE_SECONDS)
        seen = {}
        for attacker in attackers:
            same = sum(name.split(" ")[0] == attacker.name for name in seen)
            seen[f"{attacker.name} {same + 1}" if same else attacker.name] = attacker.seen
        return seen, (core, workers), blown

    def wait_for_memory(self, before, counted):
        """Waits until the core counts at most COUNTED_BYTES more than `counted`, and until the core has at most
        RETURN_RATIO times what it had before, or RETURN_BYTES more, and so have all workers together; at most
        RETURN_SECONDS. Returns (memory, bytes that the core counts, seconds it took, whether it came down)."""
        start = time.monotonic()
        while True:
            now, took = self.memory(), time.monotonic() - start
            if self.daemon.process.poll() is not None:
                return now, 0, took, False
            down = all(a <= max(b * RETURN_RATIO, b + RETURN_BYTES) for a, b in zip(now, before))
            counts = self.counted_bytes()
            down = down and counts <= counted + COUNTED_BYTES
            if down or took > RETURN_SECONDS:
                return now, counts, took, down
            time.sleep(0.1)

    def end_jobs(self):
        """Ends the jobs that work. (what was wrong with them, the slowest call: its name and seconds, rounds)."""
        wrong = [f"rank {i} had ended: {rank.output()}" for i, rank in enumerate(self._ranks)
                 if rank.process.poll() is not None]
        for rank in self._ranks:
            rank.ask_to_stop()
        slowest, rounds = ("none", 0.0), 0
        for i, rank in enumerate(self._ranks):
            code, text = rank.wait(), rank.output()
            if code != 0 or not re.search(r"(?m)^done ", text):
                wrong.append(f"rank {i} ended with {code}: {text}")
            if re.search(r"\b(died|dead|hung up)\b", text):
                wrong.append(f"rank {i} was told of a death: {text}")
            for call, us in re.findall(r"(\w+)_us=(\d+)", text):
                slowest = max(slowest, (call, int(us) / 1e6), key=lambda pair: pair[1])
            rounds += sum(int(n) for n in re.findall(r"rounds=(\d+)", text))
            self.sockets += sum(int(n) for n in re.findall(r"sockets=(\d+)", text))
        return wrong, slowest, rounds
