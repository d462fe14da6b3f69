"""Benchmarks as functions that are called for each combination of parameters: the reference's package iris.bench.

    @bench.register
    @bench.axis("num_ranks", [2, 4])                       # starts as many processes; 8 without this axis
    @bench.axis("n", bench.power_of_two(10, 12))
    def all_reduce(state, ctx):
        x = ctx.ones(state["n"])
        state.set_bytes(4 * state["n"])
        state.exec(lambda: ctx.ccl.all_reduce(x, x))

    if __name__ == "__main__":
        bench.main()

main() prints a table, CSV or JSON: `--help` lists its options. `--axis_n=...` replaces an axis, `--skip_n=...` leaves
values out; values are `1024,2048`, `pow2:8:12`, `lin:64:256:64`, or names of types as `fp16`.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import itertools
import json
import os
import re
import statistics
import sys
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence

from iris import _foreign
from iris.errors import FailedPreconditionError

_RANKS = "num_ranks"
_RANKS_WITHOUT_AXIS = 8
_SECONDS_BETWEEN_LOOKS = 0.1  # at the ranks, whether they have ended: torch 1 has 30
_TYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "float16": "float16", "bfloat16": "bfloat16",
          "float32": "float32"}


@dataclass
class AxisDef:
    """A parameter and its values."""

    name: str
    values: List[Any]


@dataclass
class BenchmarkDef:
    """A registered function with its axes, the slowest first."""

    name: str
    fn: Callable[..., Any]
    axes: List[AxisDef]


@dataclass
class Result:
    """The times of one combination of parameters."""

    benchmark_name: str
    params: Dict[str, Any]
    gpu_time_ms: float
    all_times_ms: List[float]
    bandwidth_gbps: Optional[float] = None
    tflops: Optional[float] = None
    counters: Dict[str, float] = field(default_factory=dict)
    skipped: bool = False
    skip_reason: str = ""
    world_size: int = 1


class _Skip(Exception):
    """Ends a benchmark's function for a combination that it does not measure."""


class State:
    """The parameters of a call of a benchmark's function, which tells here what is to be measured."""

    def __init__(self, params: Dict[str, Any], n_warmup: int, n_repeat: int) -> None:
        self._params = params
        self._options: Dict[str, Any] = {"n_warmup": n_warmup, "n_repeat": n_repeat}
        self._bytes: Optional[int] = None
        self._flops: Optional[int] = None
        self._counters: Dict[str, float] = {}
        self._fn: Optional[Callable[[], Any]] = None

    def __getitem__(self, key: str) -> Any:
        return self._params[key]

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a parameter's value, or the default if there is none of this name."""
        return self._params.get(key, default)

    def set_bytes(self, n: int) -> None:
        """Sets how many bytes a call moves, for the bandwidth."""
        self._bytes = n

    def set_flops(self, n: int) -> None:
        """Sets how many operations a call does, for the TFLOPS."""
        self._flops = n

    def add_counter(self, name: str, value: float) -> None:
        """Adds a column to the results."""
        self._counters[name] = value

    def set_warmup(self, n: int) -> None:
        """Sets the number of calls that are not measured."""
        self._options["n_warmup"] = n

    def set_repeat(self, n: int) -> None:
        """Sets the number of calls that are measured."""
        self._options["n_repeat"] = n

    def exec(self, fn: Callable[[], Any], *, preamble_fn: Optional[Callable[[], Any]] = None) -> None:
        """Gives the function that is measured. It is called later, after preamble_fn each time."""
        self._fn = fn
        if preamble_fn is not None:
            self._options["preamble_fn"] = preamble_fn

    def skip(self, reason: str = "") -> None:
        """Ends the benchmark's function: this combination is not measured."""
        raise _Skip(reason)

    def measure(self, name: str, benchmark: Callable[..., Any], ctx: Any) -> Result:
        """Calls the benchmark's function and measures what it has given to exec(). Collective over the ranks."""
        from iris.bench import do_bench
        result = Result(name, self._params, 0.0, [], world_size=ctx.get_num_ranks())
        try:
            benchmark(self, ctx)
        except _Skip as skip:
            result.skipped, result.skip_reason = True, str(skip)
            return result
        if self._fn is None:
            raise RuntimeError(f"benchmark {name} with {self._params}: the function must call state.exec()")
        times = do_bench(self._fn, ctx.barrier, return_mode="all", context=ctx.context, **self._options)
        assert isinstance(times, list)
        mean = statistics.mean(times)
        result.all_times_ms, result.gpu_time_ms, result.counters = times, mean, dict(self._counters)
        if mean:
            result.bandwidth_gbps = None if self._bytes is None else self._bytes * 1e-6 / mean
            result.tflops = None if self._flops is None else self._flops * 1e-9 / mean
        return result


def power_of_two(start_exp: int, end_exp: int) -> List[int]:
    """Returns the powers of two with the exponents from start_exp to end_exp, the last included."""
    return [1 << exponent for exponent in range(start_exp, end_exp + 1)]


def linear_range(start: int, end: int, step: int) -> List[int]:
    """Returns the numbers from start to end, which is included, in steps."""
    return list(range(start, end + 1, step))


_registry: List[BenchmarkDef] = []


def axis(name: str, values: Sequence[Any]) -> Callable[[Any], Any]:
    """Gives the decorated benchmark a parameter. The outermost axis is the slowest. "num_ranks" is the number of
    ranks."""

    def decorate(fn: Any) -> Any:
        fn._bench_axes = [AxisDef(name, list(values)), *getattr(fn, "_bench_axes", ())]
        return fn

    return decorate


def register(fn: Any) -> Any:
    """Registers the decorated function fn(state, ctx) for main(). It is the outermost decorator."""
    _registry.append(BenchmarkDef(fn.__name__, fn, getattr(fn, "_bench_axes", [])))
    return fn


def _values(text: str, name: str) -> List[Any]:
    """Returns the values of an axis on the command line. Raises ValueError if they are none."""
    torch = _foreign.importable_torch()
    kind, _, rest = text.strip().partition(":")
    if kind in ("pow2", "lin"):
        numbers = [int(number) for number in rest.split(":")]
        if len(numbers) != (2 if kind == "pow2" else 3):
            raise ValueError(f"axis {name}: {text!r} is not pow2:FIRST:LAST or lin:FIRST:LAST:STEP")
        return power_of_two(*numbers) if kind == "pow2" else linear_range(*numbers)
    texts = [part.strip() for part in text.split(",")]
    if torch is not None and all(part.lower() in _TYPES for part in texts):
        return [getattr(torch, _TYPES[part.lower()]) for part in texts]
    if name == "dtype":
        raise ValueError(f"axis {name}: {text!r} has a type that is none of {', '.join(_TYPES)}")
    for convert in (int, float):
        try:
            return [convert(part) for part in texts]
        except ValueError:
            pass
    return texts


@dataclass
class _Plan:
    """The options of a run, as each rank gets them."""

    axes: Dict[str, List[Any]]
    skips: Dict[str, List[Any]]
    name: Optional[str]
    heap_size: int
    n_warmup: int
    n_repeat: int

    def chosen(self) -> List[BenchmarkDef]:
        """Returns the benchmarks whose names match."""
        return [each for each in _registry if not self.name or re.search(self.name, each.name)]

    def values(self, given: AxisDef) -> List[Any]:
        """Returns the values of an axis."""
        return [value for value in self.axes.get(given.name, given.values)
                if value not in self.skips.get(given.name, ())]

    def ranks(self, benchmark: BenchmarkDef) -> List[int]:
        """Returns the numbers of ranks on which a benchmark runs."""
        found = [given for given in benchmark.axes if given.name == _RANKS]
        return self.values(found[0] if found else AxisDef(_RANKS, [_RANKS_WITHOUT_AXIS]))

    def shows_ranks(self, benchmark: BenchmarkDef) -> bool:
        """Returns True if the number of ranks is one of the benchmark's parameters."""
        return _RANKS in self.axes or any(given.name == _RANKS for given in benchmark.axes)


def _rank(benchmarks: List[BenchmarkDef], plan: _Plan) -> List[Result]:
    """Measures on a rank, a process of its own. Returns the results on rank 0."""
    import torch
    from iris.reference import iris
    distributed, n_ranks = torch.distributed, int(os.environ["WORLD_SIZE"])
    distributed.init_process_group("gloo")
    ctx = iris(plan.heap_size)
    results = []
    for benchmark in benchmarks:
        if n_ranks not in plan.ranks(benchmark):
            continue
        axes = [given for given in benchmark.axes if given.name != _RANKS]
        for values in itertools.product(*map(plan.values, axes)):
            params = {_RANKS: n_ranks} if plan.shows_ranks(benchmark) else {}
            params.update(zip((given.name for given in axes), values))
            state = State(params, plan.n_warmup, plan.n_repeat)
            results.append(state.measure(benchmark.name, benchmark.fn, ctx))
    ctx.barrier()
    distributed.destroy_process_group()
    return [] if ctx.get_rank() else results


def _short(value: Any) -> str:
    return str(value).replace("torch.", "", 1)


def _row(result: Result) -> Dict[str, str]:
    row = {"benchmark": result.benchmark_name, "world_size": str(result.world_size)}
    row.update((name, _short(value)) for name, value in result.params.items())
    if not result.skipped:
        row["gpu_time_ms"] = f"{result.gpu_time_ms:.4f}"
        for name, value in (("bandwidth_gbps", result.bandwidth_gbps), ("tflops", result.tflops),
                            *result.counters.items()):
            if value is not None:
                row[name] = f"{value:.4f}"
    return {**row, "skipped": str(result.skipped), "skip_reason": result.skip_reason}


def _record(result: Result) -> Dict[str, Any]:
    given = dataclasses.asdict(result)
    given["params"] = {name: _short(value) for name, value in result.params.items()}
    return {"benchmark": given.pop("benchmark_name"), **{name: value for name, value in given.items()
                                                         if value or name in ("gpu_time_ms", "all_times_ms")}}


def _format(results: List[Result], how: str) -> str:
    if how == "json":
        return json.dumps([_record(result) for result in results], indent=2) + "\n"
    rows = [_row(result) for result in results]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    columns.sort(key=lambda name: name in ("skipped", "skip_reason"))  # these come last
    if how == "csv":
        out = io.StringIO()
        writer = csv.DictWriter(out, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
        return out.getvalue()
    widths = [max(len(text) for text in (name, *(row.get(name, "") for row in rows))) for name in columns]
    table = [columns, *([row.get(name, "") for name in columns] for row in rows)]
    return "".join("  ".join(map(str.rjust, line, widths)) + "\n" for line in table)


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measures all registered benchmarks and prints the results: for each number of ranks, torch starts as many
    processes, of which each makes an `iris.iris(heap_size)`. Ends the program if there is nothing to measure."""
    parser = argparse.ArgumentParser(description=main.__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--benchmark_filter", help="measure only benchmarks with a name that matches")
    parser.add_argument("--benchmark_format", choices=("console", "json", "csv"), default="console", help="the output")
    parser.add_argument("--benchmark_out", help="a file that gets the output, too")
    parser.add_argument("--heap_size", type=int, default=1 << 34, help="bytes of the symmetric heap")
    parser.add_argument("--use_gluon", action="store_true", help="without effect")
    parser.add_argument("--n_warmup", type=int, default=25, help="calls that are not measured")
    parser.add_argument("--n_repeat", type=int, default=100, help="calls that are measured")
    options, rest = parser.parse_known_args(argv)
    changes: Dict[str, Dict[str, List[Any]]] = {"axis": {}, "skip": {}}
    for text in rest:
        match = re.fullmatch(r"--(axis|skip)_(\w+)=(.+)", text)
        if match is None:
            parser.error(f"{text} is no option: see --help; an axis is changed by --axis_NAME=... or --skip_NAME=...")
        changes[match.group(1)][match.group(2)] = _values(match.group(3), match.group(2))
    plan = _Plan(changes["axis"], changes["skip"], options.benchmark_filter, options.heap_size, options.n_warmup,
                 options.n_repeat)
    counts = sorted({n_ranks for benchmark in plan.chosen() for n_ranks in plan.ranks(benchmark)})
    if not counts:
        sys.exit("there is no benchmark to measure: none is registered, or the options leave none")
    if _foreign.importable_torch() is None:
        raise FailedPreconditionError("torch, which starts the ranks, is not installed")
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    results: List[Result] = []
    for n_ranks in counts:
        launch = elastic_launch(LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=n_ranks, rdzv_backend="c10d",
                                             rdzv_endpoint="localhost:0", max_restarts=0,
                                             monitor_interval=_SECONDS_BETWEEN_LOOKS), _rank)
        results += launch(plan.chosen(), plan)[0]
    output = _format(results, options.benchmark_format)
    print(output, end="")
    if options.benchmark_out:
        with open(options.benchmark_out, "w", encoding="utf-8") as file:
            file.write(output)
