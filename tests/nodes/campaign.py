"""Kills what jobs of several nodes consist of, again and again, on a network with delay and loss. Each time all ranks
that live have to be told in time and end, and the next job has to find nothing in its way. A job whose irisds alone are
killed has to notice nothing.

    bazel run --config=plain //tests/nodes:campaign -- [--nodes 8] [--kills 500] [--delay-ms 2] [--loss 0.01] [--seed 1]
"""

import argparse
import collections
import os
import random
import re
import signal
import statistics
import sys
import time

from tests.nodes import cluster
from tests.nodes import wire as wires
from tests.python import patience

RANK = os.path.abspath("tests/nodes/node_rank")
SILENCE_SECONDS = 3
# A busy machine is slow, and lost frames are sent again after 0.2 s and more.
WITHIN_SECONDS = 15
KINDS = ("rank", "port", "irisd", "node", "cut", "stop", "nothing")


class Campaign:

    def __init__(self, nodes, seed):
        self.nodes = nodes
        self.random = random.Random(seed)
        self.told = collections.defaultdict(list)  # seconds, by kind
        self.jobs = 0
        self.restarts = 0

    def strike(self, kind, processes, victim):
        """Does it to the node or the rank `victim`. Returns the ranks that cannot be told, and what mends the node."""
        node = self.nodes.nodes[victim]
        if kind == "rank":
            processes[victim].kill()
            return [victim], lambda: None
        if kind == "port":
            port = cluster.port_of(node)
            os.kill(port, signal.SIGKILL)
        elif kind == "node":
            irisd = node.irisd_pid()
            node.irisd.process.kill()
            os.kill(irisd, signal.SIGKILL)

            def mend():
                node.irisd.stop()
                node.start()

            return [], mend
        elif kind == "cut":
            node.cut()
            return [], lambda: node.cut(off=False)
        elif kind == "stop":
            port = cluster.port_of(node)
            os.kill(port, signal.SIGSTOP)
        return [], lambda: None

    def restart(self, processes):
        """Kills irisds while the ranks run; their supervisors start others."""
        for process in processes:
            assert patience.line(process) == "ready\n", "a rank is not ready"
        while all(process.poll() is None for process in processes):
            for node in self.random.sample(self.nodes.nodes, self.random.choice((1, 1, len(self.nodes.nodes)))):
                os.kill(node.irisd_pid(), signal.SIGKILL)
                self.restarts += 1
            time.sleep(self.random.uniform(0, 0.5))

    def round(self, kind):
        self.jobs += 1
        victim = self.random.randrange(len(self.nodes.nodes))
        name = f"round {self.jobs}, {kind} of node {victim}"
        what = {"nothing": ["transfers", "20000"], "irisd": ["operate", "2"]}.get(kind, ["wait"])
        processes = self.nodes.start(RANK, *what, n_local=1, job=f"job-{self.jobs}")
        if kind == "irisd":
            self.restart(processes)
        if kind in ("nothing", "irisd"):
            for code, out in cluster.finish(processes, 120):
                assert code == 0, f"{name}: {out}"
            return
        for rank, process in enumerate(processes):
            said = patience.line(process)
            assert said == "ready\n", f"{name}: rank {rank} said {said!r}"
        time.sleep(self.random.uniform(0, 0.2))
        since = time.monotonic()
        gone, mend = self.strike(kind, processes, victim)
        ends = cluster.finish([process for rank, process in enumerate(processes) if rank not in gone],
                              WITHIN_SECONDS + 10)
        mend()
        latest = 0
        for code, out in ends:
            told = re.search(r"told at ([\d.]+): (.*)", out)
            assert code == 0 and told, f"{name}: exit code {code}, {out!r}"
            latest = max(latest, float(told[1]) - since)
        assert latest < WITHIN_SECONDS, f"{name}: told after {latest:.2f} s"
        self.told[kind].append(latest)

    def run(self, kills):
        for i in range(kills):
            kind = KINDS[i % len(KINDS)]
            try:
                self.round(kind)
            except BaseException:
                for node in self.nodes.nodes:
                    print(f"irisd of node {node.index}:\n{node.irisd.log()[-3000:]}", file=sys.stderr)
                raise
        for kind, times in self.told.items():
            print(f"{kind:8} {len(times):4} times, told after {statistics.median(times):.3f} s (median), "
                  f"{max(times):.3f} s at most")
        print(f"irisds were killed {self.restarts} times under jobs that did not notice")


def run(n_nodes, kills, delay=0.0, loss=0.0, seed=1):
    """Raises AssertionError, with the round, if one goes wrong."""
    wire = wires.Wire(delay, loss, seed)
    flags = ["--supervise", "--network-silence", f"{SILENCE_SECONDS}s"]
    with cluster.Cluster(n_nodes, flags=flags, wire=wire) as nodes:
        Campaign(nodes, seed).run(kills)
        print(f"{n_nodes} nodes, {delay * 1000:g} ms of delay, {wire.lost} frames lost, seed {seed}: all told")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--delay-ms", type=float, default=2)
    parser.add_argument("--loss", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if why := cluster.missing():
        sys.exit(f"campaign: {why}")
    run(given.nodes, given.kills, given.delay_ms / 1000, given.loss, given.seed)


if __name__ == "__main__":
    main()
