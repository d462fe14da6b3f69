"""Nodes for tests: network namespaces on one bridge, each with an irisd of its own, on this machine."""

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import uuid

from tests.python import irisd

PATIENCE_SECONDS = 60
SECRET = "a secret of tests only"
UCX = "/usr/local/lib/iris/ucx"
IRIS_RUN = os.path.abspath("client/ctl/iris-run")


def missing():
    """Why there can be no nodes here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "nsenter", "etcd"):
        if not shutil.which(program):
            return f"{program} is missing; deploy/setup.sh installs it"
    if not os.path.exists(UCX):
        return "UCX is missing; deploy/setup.sh unpacks it where pip reaches its index"
    probe = f"iris-probe-{os.getpid()}"
    try:
        run("ip", "netns", "add", probe)
    except subprocess.CalledProcessError as error:
        return f"no network namespace can be made: {error.stderr}"
    try:
        run("ip", "-n", probe, "link")
    except subprocess.CalledProcessError as error:
        return f"no network namespace can be entered: {error.stderr}"
    finally:
        run("ip", "netns", "del", probe)
    return None


def run(*command):
    return subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout


class Node:
    """One node. `within` is a command that executes a program on it."""

    def __init__(self, cluster, index, flags, user, clock):
        self.index = index
        self.name = f"{cluster.name}-{index}"
        self.address = f"10.213.0.{index + 1}"
        self.link = f"{cluster.name}v{index}"
        self.wire = cluster.wire
        self.within = ["nsenter", f"--net=/run/netns/{self.name}"]
        if clock:
            self.within += ["unshare", "--time", "--monotonic", str(clock), "--boottime", str(clock)]
        run("ip", "netns", "add", self.name)
        cluster.stack.callback(run, "ip", "netns", "del", self.name)
        if self.wire is not None:
            self.wire.plug(self.name)
        else:
            run("ip", "link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.name)
            run("ip", "link", "set", self.link, "netns", cluster.switch)
            run("ip", "-n", cluster.switch, "link", "set", self.link, "master", "bridge", "up")
        for change in ("link set lo up", f"address add {self.address}/24 dev eth0", "link set eth0 up"):
            run("ip", "-n", self.name, *change.split())
        self.flags = flags
        self.user = user
        self.cluster = cluster
        self.start()

    def start(self):
        within = [*self.within, "env", *self.cluster.irisd_environment]
        self.irisd = irisd.Irisd(*self.flags, within=within, memory=self.cluster.memory, user=self.user)

    def irisd_pid(self):
        """Of the irisd itself, not of its supervisor."""
        if "--supervise" not in self.flags:
            return self.irisd.process.pid
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            for pid in children_of(self.irisd.process.pid, "irisd"):
                return pid
            time.sleep(0.01)
        raise AssertionError(f"no irisd on node {self.index}:\n{self.irisd.log()}")

    def cut(self, off=True):
        """Takes the node's cable out, or puts it back."""
        if self.wire is not None:
            self.wire.cut(self.index, off)
            return
        run("ip", "-n", self.cluster.switch, "link", "set", self.link, "down" if off else "up")


class Cluster:
    """Use as a context, which ends the wire, too (wire.py): without one, the network is the kernel's. `clocks`: the
    seconds by which the monotonic clock of each node is ahead of this machine's. `irisd_environment`: NAME=VALUE."""

    def __init__(self, n_nodes, flags=(), user=None, wire=None, memory="512MiB", clocks=None, irisd_environment=()):
        self.wire = wire
        self.irisd_environment = irisd_environment
        self.memory = memory
        self.stack = contextlib.ExitStack()
        self.name = f"i{uuid.uuid4().hex[:6]}"
        self.switch = f"{self.name}-switch"
        try:
            run("ip", "netns", "add", self.switch)
            self.stack.callback(run, "ip", "netns", "del", self.switch)
            run("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
            run("ip", "-n", self.switch, "link", "set", "bridge", "up")
            self.nodes = []
            if wire is not None:
                self.stack.enter_context(wire)
            for index in range(n_nodes):
                self.nodes.append(Node(self, index, flags, user, clocks[index] if clocks else 0))
                self.stack.callback(lambda node: node.irisd.stop(), self.nodes[-1])
            if wire is not None:
                wire.start()
        except BaseException:
            self.stack.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.stack.close()

    def agent(self):
        """A program in place of ssh: OPTIONS ADDRESS COMMAND..."""
        path = os.path.join(self.nodes[0].irisd.folder, "agent")
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\nhost=$1; shift\ncase $host in\n")
            for node in self.nodes:
                # Launchers' daemons of two nodes on one machine would make the same folders in /tmp.
                folder = node.irisd.folder
                file.write(f"{node.address}) export TMPDIR={folder} XDG_RUNTIME_DIR={folder}/xdg\n"
                           f" exec {' '.join(node.within)} sh -c \"$*\";;\n")
            file.write("esac\necho \"no node $host\" >&2\nexit 1\n")
        os.chmod(path, 0o755)
        return path

    def on_node(self, *command):
        """The command, with the runtime directory of the irisd of the node where it runs."""
        folder = self.nodes[0].irisd.folder
        for node in self.nodes:
            with open(f"{folder}/{os.stat(f'/run/netns/{node.name}').st_ino}", "w", encoding="utf-8") as file:
                file.write(node.irisd.runtime_dir)
        here = f"{folder}/$(readlink /proc/self/ns/net | tr -dc 0-9)"
        return ["sh", "-c", f"IRIS_RUNTIME_DIR=$(cat {here}) exec {' '.join(command)}"]

    def launch(self, command, where=0, **environment):
        """Starts a launcher on one node."""
        process = subprocess.Popen([*self.nodes[where].within, *command], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   env={**os.environ, "IRIS_JOB_SECRET": SECRET, **environment})
        self.stack.callback(end, process)
        return process

    def iris_run(self, *command, n_local=2, options=(), **environment):
        """Lets iris-run start the command as each rank, with a secret of its own; returns its process."""
        hosts = ",".join(f"{node.address}:{n_local}" for node in self.nodes)
        return self.launch([IRIS_RUN, "--hosts", hosts, "--rsh", self.agent(), *options, "--", *command],
                           **{"IRIS_JOB_SECRET": "", **environment})

    def mpich(self, *command, n_local=2, in_turns=False, **environment):
        """Lets MPICH start the command as each rank; returns its process. `in_turns`: each rank on another node than
        the one before."""
        return self.launch(["mpiexec.hydra", "-launcher", "ssh", "-launcher-exec", self.agent(), "-hosts",
                            ",".join(node.address for node in self.nodes), "-ppn", "1" if in_turns else str(n_local),
                            "-n", str(n_local * len(self.nodes)), *command],
                           IRIS_RENDEZVOUS=f"{self.nodes[0].address}:4711", **environment)

    def openmpi(self, *command, n_local=2, in_turns=False, bare=False, **environment):
        """As mpich, with Open MPI. `bare`: nothing says where the nodes meet, and there is no secret."""
        if not bare:
            environment = {"IRIS_JOB_SECRET": SECRET, **environment,
                           "IRIS_RENDEZVOUS": f"{self.nodes[0].address}:4711"}
        options = [word for name in environment for word in ("-x", name)]
        options += ["--map-by", "node"] if in_turns else []
        return self.launch(["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "plm_rsh_agent",
                            self.agent(), "--mca", "oob_tcp_if_include", "eth0", "--mca", "btl", "self,tcp", "--mca",
                            "btl_tcp_if_include", "eth0", "--host",
                            ",".join(f"{node.address}:{n_local}" for node in self.nodes), "-n",
                            str(n_local * len(self.nodes)), *options, *command],
                           **{"IRIS_JOB_SECRET": "", **environment})

    def start_rank(self, rank, *command, n_local=2, job="job", where=None, **more):
        """Starts the command as one rank of a job on all nodes; on node `where` if it is given."""
        node = self.nodes[rank // n_local if where is None else where]
        environment = {
            "IRIS_JOB": job, "IRIS_RANK": str(rank), "IRIS_N_RANKS": str(n_local * len(self.nodes)),
            "IRIS_LOCAL_RANK": str(rank % n_local), "IRIS_N_LOCAL": str(n_local),
            "IRIS_RENDEZVOUS": f"{self.nodes[0].address}:4711", "IRIS_JOB_SECRET": SECRET, **more}
        process = subprocess.Popen([*node.within, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, env=node.irisd.environment(**environment))
        self.stack.callback(end, process)
        return process

    def start(self, *command, n_local=2, **more):
        """Starts the command as each rank; returns the processes."""
        return [self.start_rank(rank, *command, n_local=n_local, **more) for rank in range(n_local * len(self.nodes))]


class LastCalls:
    """Has irisds kill themselves at a system call: tests/restart/kill_points.h has the layout of the file. Use as a
    context."""

    def __init__(self):
        self.file = tempfile.NamedTemporaryFile(prefix="iris-calls-")
        os.ftruncate(self.file.fileno(), 4096)
        self.environment = [f"LD_PRELOAD={os.path.abspath('tests/restart/libkill_points.so')}",
                            f"IRIS_TEST_KILL_POINTS={self.file.name}"]

    def arm(self, n, after):
        """The n-th call from now on of the irisds together is the last one of its irisd, carried out or not."""
        os.pwrite(self.file.fileno(), struct.pack("<q?", 0, after), 8)
        os.pwrite(self.file.fileno(), struct.pack("<q", n), 0)

    def killed(self):
        return struct.unpack("<I", os.pread(self.file.fileno(), 4, 20))[0]

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.file.close()


class Etcd:
    """Debian's etcd on a node, for irisd's flag --network-etcd ADDRESS:2379. Use as a context. `certificates`: the
    folder of certificates.sh, with which it speaks TLS, and wants certificates of its clients."""

    def __init__(self, node, certificates=None):
        self.node = node
        self.certificates = certificates
        self.folder = tempfile.mkdtemp(prefix="iris-etcd-", dir="/tmp")
        self.start()

    def start(self):
        url = f"{'https' if self.certificates else 'http'}://{self.node.address}:2379"
        tls = [f"--cert-file={self.certificates}/server.pem", f"--key-file={self.certificates}/server.key",
               f"--trusted-ca-file={self.certificates}/ca.pem", "--client-cert-auth"] if self.certificates else []
        log = os.path.join(self.folder, "log")
        with open(log, "wb") as file:
            self.process = subprocess.Popen(
                [*self.node.within, "etcd", "--data-dir", os.path.join(self.folder, "data"), "--advertise-client-urls",
                 url, "--listen-client-urls", url, "--listen-peer-urls", "http://127.0.0.1:2380", *tls],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            with open(log, encoding="utf-8", errors="replace") as file:
                said = file.read()
            if "ready to serve" in said or "serving insecure client requests" in said or \
                    "serving client requests" in said:
                return
            if self.process.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"etcd does not start:\n{said}")
            time.sleep(0.02)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def children_of(parent, name=None):
    """The pids of a process's children, of this name if one is given."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                of, _, rest = file.read().partition("(")[2].rpartition(")")
            if int(rest.split()[1]) == parent and name in (None, of):
                found.append(int(pid))
    return found


def running(program, *arguments):
    """The pids of processes whose command line begins so."""
    begin = "".join(f"{word}\0" for word in (program, *arguments))
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
                if file.read().startswith(begin):
                    found.append(int(pid))
    return found


def ports_of(node):
    """The pids of the node's port processes."""
    parents = {node.irisd_pid(), node.irisd.process.pid}  # the supervisor has those of an irisd before
    return [pid for parent in parents for pid in children_of(parent, "irisd-port")]


def port_of(node):
    """The pid of the node's one port process, once that of the job before has ended."""
    until = time.monotonic() + PATIENCE_SECONDS
    while len(ports := ports_of(node)) != 1:
        if time.monotonic() > until:
            raise AssertionError(f"node {node.index} has the port processes {ports}:\n{node.irisd.log()}")
        time.sleep(0.01)
    return ports[0]


def end(process):
    if process.poll() is None:
        process.kill()
    process.wait()
    process.stdout.close()


def finish(processes, seconds=PATIENCE_SECONDS):
    """Waits for the processes; returns (code, what it wrote) of each."""
    until = time.monotonic() + seconds
    ends = []
    for process in processes:
        try:
            out = process.communicate(timeout=max(0.1, until - time.monotonic()))[0]
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            out = process.communicate()[0] + "\n(killed: it did not end in time)"
        ends.append((process.returncode, out))
    return ends
