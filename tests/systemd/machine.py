"""A systemd as PID 1 of namespaces of its own, which manages irisd by the unit in deploy/, and nothing else.

It has its own processes, mounts, cgroups, network and /run; of the machine's files it sees all and can change none, but
for those in /run and /tmp, which are its own. Programs that ranks run lie in /run/programs, too. Use Machine as a
context."""

import contextlib
import datetime
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time

UNIT = "deploy/irisd.service"
SYSTEMD = "/lib/systemd/systemd"
PROGRAMS = ("systemctl", "unshare", "nsenter", "setpriv", "mount", "umount")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
PATIENCE_SECONDS = 60

# What the unit needs to be started in a namespace: systemd restarts nothing without these targets.
TARGETS = ("sysinit", "basic", "shutdown", "multi-user")
SETTINGS = """backend = "emu"
self_check = "off"
[emu]
devices = 4
memory = "1GiB"
"""
DROP_IN = """[Service]
ExecStart=
ExecStart=/run/programs/irisd --runtime-dir /run/iris --config /run/irisd.toml
StandardOutput=append:/run/irisd.log
StandardError=append:/run/irisd.log
"""

# First with the mounts alone in a namespace: its process goes into a new cgroup, which is the root of systemd's.
OUTER = r"""
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir "$1/cgroup"
mount -t cgroup2 cgroup2 "$1/cgroup"
group=$1/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)/$2
mkdir "$group"
(
  echo "$BASHPID" >"$group/cgroup.procs"
  exec setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child --cgroup --ipc --net --uts \
    bash -c "$3" init "$4"
) || true
for try in $(seq 100); do
  find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
  [ -d "$group" ] || exit 0
  sleep 0.1
done
"""

INNER = r"""
set -eu
mount -t proc proc /proc
echo 512 >/proc/sys/net/unix/max_dgram_qlen  # as systemd has it everywhere but in a container
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
umount -R /sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount --bind "$1" /dev/console
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=1777 tmpfs /var/tmp
mount -o remount,bind,ro /
mkdir /run/units /run/programs /run/none
echo ready
read -r _  # the programs and units are there
exec env -i PATH="$PATH" container=iris-test SYSTEMD_UNIT_PATH=/run/units SYSTEMD_GENERATOR_PATH=/run/none \
  SYSTEMD_ENVIRONMENT_GENERATOR_PATH=/run/none "$0" \
  --system --unit=basic.target --log-target=console --log-level=info --log-color=no --show-status=no
""".replace('"$0"', SYSTEMD)


def missing():
    """Why there can be no Machine here; empty: there can."""
    if os.geteuid() != 0:
        return "systemd runs as root: start this test as root"
    for program in PROGRAMS:
        if not shutil.which(program, path=PATH):
            return f"this machine has no {program}"
    if not os.access(SYSTEMD, os.X_OK):
        return f"this machine has no {SYSTEMD}"
    tried = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--cgroup", "--ipc", "--net", "--uts", "sh", "-c",
         "mount -t proc proc /proc && mount -t tmpfs tmpfs /run && mount -t cgroup2 cgroup2 /run && "
         "mkdir /run/iris-try-$1 && rmdir /run/iris-try-$1", "sh", str(os.getpid())],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_SECONDS, check=False)
    if tried.returncode != 0:
        return f"this machine lets root make no namespaces with cgroups of their own: {tried.stdout.strip()}"
    return ""


def wait_until(done, what, seconds=PATIENCE_SECONDS, every=0.005):
    """Returns what `done` says, once it is true."""
    end = time.monotonic() + seconds
    while not (result := done()):
        if time.monotonic() > end:
            raise TimeoutError(f"after {seconds} s: {what}")
        time.sleep(every)
    return result


class Machine:
    """`programs`: files, as paths by their name in /run/programs."""

    def __init__(self, programs):
        self.folder = tempfile.mkdtemp(prefix="iris-systemd-", dir="/tmp")
        self.pid = 0
        self.console = b""
        self._terminal, terminal = os.openpty()
        threading.Thread(target=self._read_console, daemon=True).start()
        self._outer = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "bash", "-c", OUTER, "machine", self.folder,
             f"iris-systemd-{os.getpid()}", INNER, os.ttyname(terminal)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=terminal, env={"PATH": PATH, "LC_ALL": "C.UTF-8"})
        self._terminal_end = terminal
        try:
            if self._outer.stdout.readline() != b"ready\n":
                raise RuntimeError("the namespaces cannot be made")
            self.pid = self._child(self._child(self._outer.pid))  # unshare stands between
            for name, path in programs.items():
                self.install(name, path)
            for target in TARGETS:
                self.write(f"/run/units/{target}.target", "[Unit]\n")
            with open(UNIT, encoding="utf-8") as file:
                self.write("/run/units/irisd.service", file.read())
            self.write("/run/units/irisd.service.d/test.conf", DROP_IN)
            self.write("/run/irisd.toml", SETTINGS)
            self._outer.stdin.write(b"go\n")
            self._outer.stdin.flush()
            wait_until(self._runs, "systemd does not start")
        except BaseException:
            said = self.log()
            self.stop()
            print(said, flush=True)
            raise

    def _read_console(self):
        try:
            while data := os.read(self._terminal, 4096):
                self.console += data
        except OSError:
            pass

    @staticmethod
    def _child(pid):
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return int(file.read().split()[0])

    def _runs(self):
        if self._outer.poll() is not None:
            raise RuntimeError("systemd has ended")
        return os.path.exists(self.path("/run/systemd/private")) and self.systemctl(
            "is-system-running", check=False).strip() == "running"

    def path(self, inside):
        """The path by which this process reaches a file of the machine."""
        return f"/proc/{self.pid}/root{inside}"

    def write(self, inside, text):
        os.makedirs(os.path.dirname(self.path(inside)), exist_ok=True)
        with open(self.path(inside), "w", encoding="utf-8") as file:
            file.write(text)

    def install(self, name, source):
        """As a package manager does: the file that runs stays as it is, until nobody has it."""
        place = self.path(f"/run/programs/{name}")
        shutil.copy(os.path.realpath(source), place + ".new")
        os.chmod(place + ".new", 0o755)
        os.rename(place + ".new", place)

    def command(self, *words):
        """`words` as a process of the machine, and of none of its units."""
        return ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--ipc", "--net", *words]

    def systemctl(self, *words, check=True):
        done = subprocess.run(self.command("systemctl", "--no-pager", *words), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=2 * PATIENCE_SECONDS,
                              env={"PATH": PATH, "LC_ALL": "C.UTF-8"}, check=False)
        if check and done.returncode != 0:
            raise RuntimeError(f"systemctl {' '.join(words)}: {done.stdout}")
        return done.stdout

    def show(self, *names):
        """Properties of the unit, by their names."""
        text = self.systemctl("show", "irisd", "--property=" + ",".join(names))
        return dict(line.split("=", 1) for line in text.splitlines())

    def processes(self, name):
        """[pid] of the unit's processes of this name, in this process's namespace."""
        found = []
        with contextlib.suppress(OSError):
            with open(self.path("/sys/fs/cgroup/system.slice/irisd.service/cgroup.procs"), encoding="ascii") as file:
                pids = file.read().split()
            for pid in pids:
                with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", "rb") as file:
                    if file.read().strip() == name.encode():
                        found.append(int(pid))
        return found

    def irisd(self):
        """The pid of the unit's main process, in this process's namespace; 0: there is none."""
        try:
            with open(self.path("/sys/fs/cgroup/system.slice/irisd.service/cgroup.procs"), encoding="ascii") as file:
                pids = file.read().split()
            for pid in pids:
                with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                    # Parentheses: not executed yet. Workers of a dead irisd are children of systemd, too.
                    name, parent = re.match(r"\d+ \((.*)\) \w (\d+) ", file.read()).groups()
                if int(parent) == self.pid and name in ("irisd", "(irisd)"):
                    return int(pid)
        except OSError:
            pass  # it ends just now
        return 0

    def started_anew(self, before):
        """The pid of an irisd that is not `before`."""
        return wait_until(lambda: (pid := self.irisd()) != before and pid, "irisd does not come back")

    def served(self):
        """When each irisd began to serve, and its version; it says so just after systemd knows."""
        return [(datetime.datetime.fromisoformat(when.replace("Z", "+00:00")).timestamp(), version) for when, version in
                re.findall(r'(?m)^time=(\S+) level=info msg="irisd serves" version=(\S+) ', self.irisd_log())]

    def seconds_until_served(self, *times):
        """For each time, how many seconds later irisd served again: sorted."""
        margin = 0.001  # of what the log says
        served = wait_until(lambda: (so_far := self.served())[-1][0] >= times[-1] - margin and so_far,
                            "irisd does not serve")
        return sorted(min(when for when, _ in served if when >= time_ - margin) - time_ for time_ in times)

    def memory_of_init(self):
        """The memfds that systemd keeps."""
        folder = f"/proc/{self.pid}/fd"
        links = []
        for name in os.listdir(folder):
            try:
                links.append(os.readlink(os.path.join(folder, name)))
            except OSError:
                continue  # closed meanwhile
        return [link for link in links if link.startswith("/memfd:")]

    def irisd_log(self):
        try:
            with open(self.path("/run/irisd.log"), encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    def log(self):
        return (f"systemd:\n{self.console.decode(errors='replace').replace(chr(13), '')[-6000:]}\n"
                f"irisd:\n{self.irisd_log()[-8000:]}")

    def stop(self):
        if self.pid:
            try:
                os.kill(self.pid, 9)  # and with it all of the namespace
            except ProcessLookupError:
                pass
        self._outer.stdin.close()
        try:
            self._outer.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._outer.kill()
            self._outer.wait()
        self._outer.stdout.close()
        os.close(self._terminal_end)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, error, *unused):
        if error is not None:
            print(self.log(), flush=True)
        self.stop()
