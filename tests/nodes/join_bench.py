"""Measures how long a job of many nodes takes to form: one node is real, with its irisd, port process and ranks; the
others are one process that says what theirs would (join_nodes.cc).

    bazel run --config=plain //tests/nodes:join_bench -- [--nodes N] [--ranks N] [--runs N]
"""

import argparse
import json
import os
import statistics
import subprocess
import time

from tests.nodes import cluster


def ctl(node, what):
    return json.loads(cluster.run("env", f"IRIS_RUNTIME_DIR={node.irisd.runtime_dir}", *node.within,
                                  os.path.abspath("client/ctl/iris-ctl"), what, "--format", "json"))


def one(node, options, run):
    # The port of the job before may still listen.
    job, rendezvous = f"job{run}", f"{node.address}:{4711 + run}"
    environment = node.irisd.environment(
        IRIS_JOB=job, IRIS_N_RANKS=str(options.nodes * options.ranks), IRIS_N_LOCAL=str(options.ranks),
        IRIS_RENDEZVOUS=rendezvous, IRIS_JOB_SECRET=cluster.SECRET)
    ranks = [subprocess.Popen([*node.within, os.path.abspath("tests/nodes/node_rank"), "wait"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              env={**environment, "IRIS_RANK": str(rank), "IRIS_LOCAL_RANK": str(rank)})
             for rank in range(options.ranks)]
    try:
        # All local ranks have their memory, and their port listens.
        for _ in range(600):
            heaps, parts = ([each for each in ctl(node, what) if each["job"] == job] for what in ("heaps", "nodes"))
            if len(heaps) == options.ranks and parts[0]["address"]:
                break
            time.sleep(0.1)
        others = subprocess.run(
            [*node.within, os.path.abspath("tests/nodes/join_nodes"), rendezvous, job, str(options.nodes),
             str(options.ranks), str(heaps[0]["heap_bytes"]), str(heaps[0]["max_heap_bytes"])],
            env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
        if others.returncode != 0:
            raise SystemExit(f"{others.stderr}\n{node.irisd.log()[-2000:]}")
        return [float(word) for word in others.stdout.split()]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    with cluster.Cluster(1) as nodes:
        figures = [one(nodes.nodes[0], options, run) for run in range(options.runs)]
    print(f"{options.nodes} nodes of {options.ranks} ranks, medians of {options.runs} runs, s")
    for name, values in zip(("connected", "has its layout", "has begun", "connections tried again"), zip(*figures)):
        print(f"{name:>24} {statistics.median(values):8.3f}   {min(values):.3f} to {max(values):.3f}")


if __name__ == "__main__":
    main()
