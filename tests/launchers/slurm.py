"""A Slurm of two nodes, both of them this machine, for as long as a test needs it: its own ports, files and processes,
without the machine's Slurm, munge, systemd or cgroups. Jobs run as the user that starts it. Its nodes can be network
namespaces."""

import getpass
import glob
import os
import shutil
import socket
import subprocess
import tempfile
import time

PROGRAMS = ("slurmctld", "slurmd", "srun", "sinfo")
NODES = (("near", "127.0.0.1", ()), ("far", "127.0.0.1", ()))  # name, address, command that executes there
PATIENCE_SECONDS = 60
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

CONFIGURATION = """ClusterName=iris
SlurmctldHost={host}({address})
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
TmpFS={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SchedulerType=sched/builtin
SelectType=select/linear
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
"""


def free_ports(n):
    """Ports that nobody had a moment ago."""
    sockets = [socket.socket() for _ in range(n)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def missing():
    """The programs that this machine lacks."""
    return [program for program in PROGRAMS if not shutil.which(program, path=PATH)]


class Slurm:
    """Use as a context, or call stop(). `environment` is what srun needs, on the first node."""

    def __init__(self, nodes=NODES):
        self.nodes = nodes
        self.folder = tempfile.mkdtemp(prefix="iris-slurm-", dir="/tmp")
        self.processes = []
        host = socket.gethostname().partition(".")[0]
        port, *node_ports = free_ports(1 + len(nodes))
        for name in ("state", *(node[0] for node in nodes)):
            os.mkdir(os.path.join(self.folder, name))
        path = os.path.join(self.folder, "slurm.conf")
        with open(path, "w", encoding="utf-8") as file:
            file.write(CONFIGURATION.format(host=host, address=nodes[0][1], port=port, user=getpass.getuser(),
                                            folder=self.folder))
            for (node, address, _), node_port in zip(nodes, node_ports):
                file.write(f"NodeName={node} NodeHostname={host} NodeAddr={address} Port={node_port} CPUs=8\n")
            file.write(f"PartitionName=all Nodes={','.join(node[0] for node in nodes)} Default=YES State=UP "
                       "OverSubscribe=FORCE\n")
        self.environment = {"SLURM_CONF": path}
        try:
            self._start(nodes[0][2], "slurmctld", "-D", "-f", path)
            for node, _, within in nodes:
                self._start(within, "slurmd", "-D", "-N", node, "-f", path)
            self._wait_for_nodes()
        except BaseException:
            self.stop()
            raise

    def _start(self, within, program, *arguments):
        log_path = os.path.join(self.folder, f"{len(self.processes)}-{program}.log")
        with open(log_path, "wb") as log:
            self.processes.append(subprocess.Popen(
                [*within, shutil.which(program, path=PATH), *arguments], stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, env={"PATH": PATH, "LC_ALL": "C.UTF-8"}))

    def _wait_for_nodes(self):
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            states = subprocess.run([*self.nodes[0][2], "sinfo", "--noheader", "--format=%T"], stdout=subprocess.PIPE,
                                    stderr=subprocess.DEVNULL, text=True, check=False, timeout=PATIENCE_SECONDS,
                                    env={"PATH": PATH, **self.environment}).stdout.split()
            if states == ["idle"]:  # one line for nodes of one state
                return
            if any(process.poll() is not None for process in self.processes) or time.monotonic() > end:
                raise RuntimeError(f"Slurm does not start (its nodes are {states or 'unknown'}):\n{self.log()}")
            time.sleep(0.1)

    def log(self):
        text = []
        for name in sorted(os.listdir(self.folder)):
            if name.endswith(".log"):
                with open(os.path.join(self.folder, name), encoding="utf-8", errors="replace") as file:
                    text.append(f"{name}:\n{file.read()[-4000:]}")
        return "\n".join(text)

    def _steps(self):
        """The sockets of processes that look after a step's ranks. They end by themselves, if slurmctld hears of it."""
        return [path for node, *_ in self.nodes
                for path in glob.glob(os.path.join(self.folder, node, f"{node}_*.*"))]

    def stop(self):
        end = time.monotonic() + PATIENCE_SECONDS
        while self._steps() and time.monotonic() < end:
            time.sleep(0.05)
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.stop()
