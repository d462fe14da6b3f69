#!/usr/bin/env python3
"""Runs every example on this machine's devices, and prints one table: example, backend, ranks, result, figure, peer.

    examples/run_all.py --programs bazel-bin/examples --iris-run bazel-bin/client/ctl/iris-run --ranks 2,4

In the bundle it finds both by itself: share/iris/examples/run_all.py --backend emu. irisd must run. The exit code is 0
if every example was right. An example is right if it ends with 0 and its last line on rank 0 is "result ok", with a
figure if it has one: "result ok figure 12.5 us".

--peers names a JSON file with figures of other libraries for the same work on the same machine:
{"08_gemm_all_scatter 1024 4096 14336": {"2": {"figure": 620.5, "unit": "us", "name": "other"}}}: the example with its
arguments as the table names it, and the number of ranks.
"""

import argparse
import json
import os
import re
import subprocess
import sys

PROGRAM = re.compile(r"\d\d[a-z]?_[a-z0-9_]+")
RESULT = re.compile(r"(?:\[\d+\] )?result (ok|failed)(?: figure ([-+.\deE]+) (\S+))?(.*)")
SECONDS = 110  # for a run of an example
LINES = 15  # that are shown of what a failed one has printed

# Of each example what it is run with: on emulated devices, and on GPUs. One that is not here runs once, as it is.
EMU, GPU = 0, 1
SMALL = [["96", "96", "64"]]  # m, n, k of products
LARGE = [["1024", "4096", "14336"], ["8192", "4096", "14336"]]
MODES = ["load", "store", "all_load", "all_store"]
ARGUMENTS = {
    "06_bandwidth_matrix": ([[mode, "1"] for mode in MODES],
                            [[mode, size] for mode in MODES for size in ("1", "1024")]),
    "07_atomic_matrix": ([["add"], ["exchange"]], [["add"], ["exchange"]]),
    "08_gemm_all_scatter": (SMALL, LARGE),
    "09a_gemm_all_reduce_atomics": (SMALL, LARGE),
    "09b_gemm_all_reduce_locks": (SMALL, LARGE),
    "11a_overlap_streams": ([["bulk", *SMALL[0]], ["streams", *SMALL[0]]],
                            [[pattern, *shape] for shape in LARGE for pattern in ("bulk", "streams")]),
    "11b_overlap_blocks": (SMALL, LARGE),
    "11c_overlap_warps": (SMALL, LARGE),
    "12_all_gather_gemm": ([["pull", *SMALL[0]], ["push", *SMALL[0]]],
                           [[pattern, *shape] for shape in LARGE for pattern in ("pull", "push")]),
    "14_jacobi": ([["--rows", "64", "--columns", "100", "--steps", "5"]], [[]]),
    "15_flash_decode": ([["--heads", "4", "--tokens", "200", "--rounds", "2"]], [[]]),
    "16_ring_attention": ([["--heads", "2", "--tokens", "160", "--rounds", "1"]], [[], ["--causal"]]),
    "10_digits_training": ([["--epochs", "12", "--rate", "0.03"]], [["--epochs", "12", "--rate", "0.03"]]),
}
# Arguments that name files, which are not shown: by the folder of this script.
FILES = {"10_digits_training": ["--data", "data/digits.csv"]}


# The examples with one of the patterns of overlap each, and the shapes of the chart of docs/taxonomy.md.
PATTERNS = [("08_gemm_all_scatter", []), ("11a_overlap_streams", ["bulk"]), ("11a_overlap_streams", ["streams"]),
            ("11b_overlap_blocks", []), ("11c_overlap_warps", [])]
CHART = [[m, n, k] for n, k in (("4096", "14336"), ("4096", "4096"), ("8192", "1024"))
         for m in ("64", "256", "1024", "4096", "8192")]


def arguments_of(example, sizes):
    """What an example is run with, once for each."""
    if sizes == "chart":
        return [[*words, *shape] for name, words in PATTERNS if name == example for shape in CHART]
    return ARGUMENTS.get(example, ([[]], [[]]))[EMU if sizes == "small" else GPU]


class Run:
    """An example with its arguments on so many ranks, and what came of it."""

    def __init__(self, example, arguments, ranks):
        self.example, self.arguments, self.ranks = example, arguments, ranks
        self.ok, self.figure, self.unit, self.result = False, None, "", "not run"
        self.printed = []  # by one that failed

    def name(self):
        return " ".join([self.example, *self.arguments])

    def go(self, programs, iris_run, seconds, trace=None):
        """Runs it. What is wrong with it is in `result`."""
        files = [os.path.join(os.path.dirname(os.path.abspath(__file__)), word) if "/" in word else word
                 for word in FILES.get(self.example, [])]
        environment = dict(os.environ)
        if trace is not None:
            environment["IRIS_TRACE"] = os.path.join(trace, "%s.%%r.json" % self.name().replace(" ", "_"))
            environment.setdefault("IRIS_TRACE_EVENTS", "16380")
        command = [iris_run, "-n", str(self.ranks), "--timeout", str(seconds), "--",
                   os.path.join(programs, self.example), *self.arguments, *files]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                                  text=True, errors="replace", timeout=seconds + 30, check=False, env=environment)
        except subprocess.TimeoutExpired:
            self.result = f"failed: no end after {seconds} s"
            return
        except OSError as error:
            self.result = f"failed: {iris_run}: {error.strerror}"
            return
        self.judge(done.returncode, done.stdout, done.stderr)

    def judge(self, code, out, err):
        """Takes the result from what it has printed."""
        lines = [match for match in map(RESULT.fullmatch, out.splitlines()) if match]
        if code != 0 or (lines and lines[-1].group(1) == "failed"):
            said = [line for line in err.splitlines() if "error" in line] or err.splitlines() or out.splitlines()
            self.result = "failed: " + ("no end after the time" if code == 124 else f"exit code {code}") + (
                f": {said[0]}" if said else "")
        elif not lines:
            self.result = "failed: it has printed no line that begins with \"result\""
        elif len(lines) > 1:
            self.result = f"failed: {len(lines)} lines that begin with \"result\""
        else:
            self.ok, self.result = True, "ok"
            if lines[0].group(2):
                self.figure, self.unit = float(lines[0].group(2)), lines[0].group(3)
        if not self.ok:
            self.printed = (out.splitlines() + err.splitlines())[-LINES:]

    def peer(self, peers):
        """The figure of another library, as text."""
        found = peers.get(self.name(), {}).get(str(self.ranks))
        return "-" if found is None else f'{found["figure"]:g} {found["unit"]} ({found["name"]})'

    def data(self, backend):
        """For the JSON file."""
        return {"example": self.example, "arguments": self.arguments, "backend": backend, "ranks": self.ranks,
                "result": self.result, "figure": self.figure, "unit": self.unit}


def read_peers(path):
    """The file of --peers, checked. ValueError says what is wrong with it."""
    with open(path, encoding="utf-8") as file:
        peers = json.load(file)
    if not isinstance(peers, dict):
        raise ValueError("it is not an object")
    for example, by_ranks in peers.items():
        if not isinstance(by_ranks, dict):
            raise ValueError(f"{example}: not an object with a number of ranks as the key")
        for ranks, peer in by_ranks.items():
            if not ranks.isdigit() or not isinstance(peer, dict):
                raise ValueError(f"{example}: {ranks}: not a number of ranks and an object")
            if not isinstance(peer.get("figure"), (int, float)) or isinstance(peer["figure"], bool) or not all(
                    isinstance(peer.get(word), str) for word in ("unit", "name")):
                raise ValueError(f"{example}: {ranks}: figure, unit and name are wanted")
    return peers


def examples_in(programs):
    """The names of the programs in a folder, in the order of their numbers."""
    return sorted(name for name in os.listdir(programs)
                  if PROGRAM.fullmatch(name) and os.access(os.path.join(programs, name), os.X_OK)
                  and os.path.isfile(os.path.join(programs, name)))


def table(runs, backend, peers):
    """The lines of the table."""
    rows = [("example", "backend", "ranks", "result", "figure", "peer")]
    for run in runs:
        figure = "-" if run.figure is None else f"{run.figure:g} {run.unit}"
        rows.append((run.name(), backend, str(run.ranks), run.result, figure, run.peer(peers)))
    # A long error goes behind the table.
    shown = [row[:3] + (row[3].split(":")[0],) + row[4:] for row in rows]
    widths = [max(len(row[i]) for row in shown) for i in range(len(shown[0]))]
    lines = ["| " + " | ".join(word.ljust(width) for word, width in zip(row, widths)) + " |" for row in shown]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    for row, run in zip(rows[1:], runs):
        if not run.ok:
            lines += [f"{row[0]} on {row[2]}: {row[3]}"] + ["    " + line for line in run.printed]
    return lines


def parse(arguments):
    """The arguments, with the folders of a bundle where they were left out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2", help="numbers of ranks, such as 1,2,4 [2]")
    parser.add_argument("--backend", default="emu", metavar="NAME", help="that of irisd and the programs [emu]")
    parser.add_argument("--programs", metavar="DIR", help="where the examples are [that of the bundle]")
    parser.add_argument("--iris-run", metavar="PATH", help="[that of the bundle]")
    parser.add_argument("--only", default="", help="examples that begin with one of these, such as 06,11a")
    parser.add_argument("--skip", default="", help="examples that begin with one of these")
    parser.add_argument("--sizes", choices=("small", "large", "chart"),
                        help="chart: the patterns of overlap at many shapes [small on emu, large on others]")
    parser.add_argument("--timeout", type=int, default=SECONDS, metavar="SECONDS", help=f"of each run [{SECONDS}]")
    parser.add_argument("--peers", metavar="FILE", help="figures of other libraries, as JSON; see above")
    parser.add_argument("--json", metavar="FILE", help="write the table as JSON, too")
    parser.add_argument("--trace", metavar="DIR", help="each rank of each run writes its trace there")
    given = parser.parse_args(arguments)
    bundle = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
    given.programs = given.programs or os.path.join(bundle, "libexec", "iris", given.backend, "examples")
    given.iris_run = given.iris_run or os.path.join(bundle, "bin", "iris-run")
    if not os.path.isdir(given.programs):
        parser.error(f"{given.programs} is no folder: name the one with the examples by --programs")
    if not os.access(given.iris_run, os.X_OK):
        parser.error(f"{given.iris_run} is no program: name iris-run by --iris-run")
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", given.ranks):
        parser.error("--ranks takes numbers with commas between them, such as 1,2,4")
    try:
        given.peers = read_peers(given.peers) if given.peers else {}
    except (OSError, ValueError) as error:
        parser.error(f"--peers {given.peers}: {error}")
    return given


def main(arguments):
    given = parse(arguments)
    sizes = given.sizes or ("small" if given.backend == "emu" else "large")
    only, skip = (tuple(word for word in words.split(",") if word) for words in (given.only, given.skip))
    names = [name for name in examples_in(given.programs)
             if (not only or name.startswith(only)) and not name.startswith(skip)]
    runs = [Run(name, words, int(ranks)) for ranks in given.ranks.split(",") for name in names
            for words in arguments_of(name, sizes)]
    if not runs:
        sys.exit(f"run_all.py: {given.programs} has none of the examples that were asked for")
    for run in runs:
        run.go(given.programs, given.iris_run, given.timeout, given.trace)
    print("\n".join(table(runs, given.backend, given.peers)))
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump([run.data(given.backend) for run in runs], file, indent=1)
            file.write("\n")
    failed = sum(not run.ok for run in runs)
    print(f"{len(runs) - failed} of {len(runs)} runs were right")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
