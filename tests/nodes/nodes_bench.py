"""Compares Iris between two nodes with MPI and gloo: on the same network, which is of namespaces, in the same run.

    bazel run --config=plain //tests/nodes:nodes_bench -- [--runs 7] [--n-local 2]

The peers are Debian's (libmpich-dev, libopenmpi-dev, libgloo-dev), compiled here from the same source: one that is
missing is left out. Each figure is the median of runs that alternate, and each run the median of its calls.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

from tests.nodes import cluster

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench_rank.cc")
RANK = os.path.abspath("tests/nodes/bench_rank")
# Without it, namespaces of one machine share memory.
UCX = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
ROWS = [("all_reduce", bytes_, calls) for bytes_, calls in
        ((8, 400), (1 << 10, 400), (1 << 16, 200), (1 << 20, 60), (1 << 24, 8))] + [
        ("barrier", 0, 400), ("put", 8, 1000), ("put", 1 << 20, 60), ("puts", 1 << 20, 60)]


class Iris:
    name = "iris"

    def __init__(self, nodes, folder, n_local):
        self.nodes, self.n_local, self.jobs = nodes, n_local, 0

    def start(self, *arguments):
        self.jobs += 1
        return self.nodes.start(RANK, *arguments, n_local=self.n_local, job=f"job-{self.jobs}")


class Gloo(Iris):
    name = "gloo"

    def __init__(self, nodes, folder, n_local):
        super().__init__(nodes, folder, n_local)
        self.folder, self.program = folder, compile_peer(folder, "gloo", "g++", "-lgloo", "-lpthread")

    def start(self, *arguments):
        store = tempfile.mkdtemp(dir=self.folder)
        return self.nodes.start(self.program, *arguments, n_local=self.n_local, GLOO_STORE=store)


class Mpich(Iris):
    name = "MPICH"

    def __init__(self, nodes, folder, n_local):
        super().__init__(nodes, folder, n_local)
        self.program = compile_peer(folder, "mpi", "mpicxx.mpich")

    def start(self, *arguments):
        return [self.nodes.mpich(self.program, *arguments, n_local=self.n_local, **UCX)]


class OpenMpi(Iris):
    name = "Open MPI"

    def __init__(self, nodes, folder, n_local):
        super().__init__(nodes, folder, n_local)
        self.program = compile_peer(folder, "mpi", "mpicxx.openmpi")

    def start(self, *arguments):
        return [self.nodes.openmpi(self.program, *arguments, n_local=self.n_local, OMPI_MCA_pml="ucx",
                                   OMPI_MCA_osc="ucx", OMPI_MCA_opal_common_ucx_tls="any",
                                   OMPI_MCA_opal_common_ucx_devices="any", **UCX)]


def compile_peer(folder, name, compiler, *options):
    program = os.path.join(folder, f"{compiler}-{name}")
    subprocess.run([compiler, "-std=c++17", "-O2", f"-DPEER_{name.upper()}", SOURCE, "-o", program, *options],
                   check=True, capture_output=True, text=True)
    return program


def measure(peer, arguments):
    """The time that rank 0 says, or None."""
    ends = cluster.finish(peer.start(*map(str, arguments)), 120)
    figures = [line for _, out in ends for line in out.splitlines() if line.startswith("us ")]
    if len(figures) == 1 and all(code == 0 for code, _ in ends):
        return float(figures[0].split()[1])
    if arguments[0] not in ("put", "puts") or peer.name != "gloo":  # which has no puts
        print(f"{peer.name} failed: {arguments}: {[(code, out[-300:]) for code, out in ends]}", file=sys.stderr)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--n-local", type=int, default=2)
    given = parser.parse_args()
    if why := cluster.missing():
        sys.exit(f"nodes_bench: {why}")
    folder = tempfile.mkdtemp(prefix="iris-bench-")
    try:
        with cluster.Cluster(2, memory="2GiB") as nodes:
            peers = []
            for kind in (Iris, Mpich, OpenMpi, Gloo):
                try:
                    peers.append(kind(nodes, folder, given.n_local))
                except FileNotFoundError as error:
                    print(f"without {kind.name}: {error}", file=sys.stderr)
                except subprocess.CalledProcessError as error:
                    print(f"without {kind.name}: {error.stderr}", file=sys.stderr)
            print(f"{2 * given.n_local} ranks on 2 nodes, {os.cpu_count()} CPUs, medians of {given.runs} runs, us "
                  "(times Iris's)")
            for operation, bytes_, calls in ROWS:
                times = {peer.name: [] for peer in peers}
                for _ in range(given.runs):
                    for peer in peers:
                        time = measure(peer, (operation, bytes_, calls)) if None not in times[peer.name] else None
                        times[peer.name].append(time)
                ours = statistics.median(times["iris"]) if None not in times["iris"] else float("nan")
                row = [f"{name} {statistics.median(of):.1f} ({statistics.median(of) / ours:.2f})"
                       for name, of in times.items() if None not in of]
                print(f"{operation} {bytes_ or '':<9}", "  ".join(row), flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
