"""The ranks of python_test.py for the reference's tracing and helpers: `reference_platform_ranks.py CASE`.

Kernels of Triton are interpreted, on emulated devices. With TRITON_INTERPRET=0 and GPUs they are compiled.
"""

import contextlib
import io
import json
import os
import socket
import sys
import time

os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("IRIS_HEAP_BYTES", "64M")
sys.path.append("/usr/local/lib/iris/triton")

import numpy as np
import torch
import triton
import triton.language as tl

import iris
import iris.bench as bench
import iris.symm_mem as symm_mem
from iris import DeviceContext, TraceEvent
from iris.host.distributed import fd_passing, helpers
from iris.host.platform import utils
from iris.mem.utils import get_cu_id, get_se_id, get_xcc_id, read_realtime, wait_cnt
from ranks import HEAP, raises

if not hasattr(torch.Tensor, "untyped_storage"):  # of torch 1, which the interpreter does not know any more
    torch.Tensor.untyped_storage = torch.Tensor.storage
FOLDER = os.environ.get("FOLDER", "/tmp")


@triton.jit
def traced_put(context_tensor, p, q, n, rank: tl.constexpr, n_ranks: tl.constexpr, tracing: tl.constexpr,
               size: tl.constexpr):
    ctx = DeviceContext.initialize(context_tensor, rank, n_ranks, tracing=tracing)
    at = tl.arange(0, size)
    to = (rank + 1) % n_ranks
    handle = ctx.tracing.record_event_start(event_id=TraceEvent().put, target_rank=to, address=p + at,
                                            pid_m=tl.program_id(0), pid_n=7, mask=at < n)
    ctx.put(p + at, q + at, to, mask=at < n)
    ctx.tracing.record_event_end(handle)
    ctx.tracing.record_event_start(TraceEvent().barrier, rank, p, 0, 0)  # a moment


@triton.jit
def look(words, rounds):
    first = read_realtime()
    tl.store(words + 1, first)
    tl.store(words + 2, get_cu_id())
    tl.store(words + 3, get_xcc_id())
    tl.store(words + 4, get_se_id())
    for at in range(rounds):
        tl.store(words, at)
        wait_cnt()
    tl.store(words + 5, read_realtime())


def tracing(ctx):
    """What kernels record comes into the files, as far as there is room."""
    r, n = ctx.get_rank(), ctx.get_num_ranks()
    p, q = ctx.ones(64), ctx.zeros(64)
    ctx.barrier()

    def run(on, programs=4):
        traced_put[(programs,)](ctx.get_device_context(), p, q, 60, r, n, on, 64)

    path = os.path.join(FOLDER, "events.json")
    run(True)  # without enable(), nothing is recorded, and nothing is written
    assert not ctx.tracing.enabled and ctx.tracing.export(path) == {} and ctx.tracing.reset() is None
    raises(ValueError, lambda: ctx.tracing.enable(0), "max_events=0")
    before = ctx.get_device_context()
    ctx.tracing.enable(max_events=100)
    after = ctx.get_device_context()
    assert ctx.tracing.enabled and ctx.tracing.max_events == 100 and len(after) == len(before)
    assert after.tolist()[:2 + n] == before.tolist()[:2 + n] == [r, n, *ctx.get_heap_bases().tolist()]
    run(False)
    assert ctx.tracing.trace_counter.item() == 0
    run(True)
    assert ctx.tracing.trace_counter.item() == 8
    ctx.barrier()
    own = ctx.tracing.export(path)
    with open(os.path.join(FOLDER, f"events_rank{r}.json"), encoding="utf-8") as file:
        assert json.load(file) == json.loads(json.dumps(own))
    metadata = own["metadata"]
    assert (metadata["num_events"], metadata["rank"], metadata["world_size"]) == (8, r, n), metadata
    assert metadata["process_name"] == os.path.basename(sys.argv[0]) and metadata["gpu_num_xcc"] >= 1
    *events, name = own["traceEvents"]
    assert name == {"name": "process_name", "ph": "M", "pid": r, "args": {"name": f"Rank {r}"}}
    puts = [event for event in events if event["name"] == "put"]
    assert sorted(event["args"]["program_id"] for event in puts) == [0, 1, 2, 3]
    for event in puts:
        given = event["args"]
        assert (event["ph"], event["cat"], event["pid"]) == ("X", "iris", r) and event["dur"] > 0, event
        assert (given["pid_m"], given["pid_n"], given["payload_size"]) == (given["program_id"], 7, 240), event
        assert (given["target_rank"], given["address"]) == ((r + 1) % n, hex(p.data_ptr())), event
        assert event["tid"] == f"XCC{given['xcc_id']}_CU{given['cu_id']}"
    moments = [event for event in events if event["name"] == "barrier"]
    assert len(moments) == 4 and all(event["ph"] == "i" and "dur" not in event for event in moments)
    assert all(event["args"]["payload_size"] == 0 for event in moments)
    assert sorted(event["args"]["op_index"] for event in events) == list(range(8))
    fields = ctx.tracing.trace_buffers
    assert sorted(fields["event_id"][:8].tolist()) == [3] * 4 + [3073] * 4 and fields["cur_rank"][0] == r
    # No room, and together.
    ctx.tracing.enable(max_events=3)
    run(True)
    assert ctx.tracing.trace_counter.item() == 8
    ctx.barrier()
    merged = ctx.tracing.export(path, merge=True)
    if r:
        assert merged == {}
    else:
        with open(path, encoding="utf-8") as file:
            assert json.load(file) == json.loads(json.dumps(merged))
        shown = [event for event in merged["traceEvents"] if event["ph"] != "M"]
        assert sorted(event["pid"] for event in shown) == sorted(list(range(n)) * 3)
        assert min(event["ts"] for event in shown) == 0 and merged["metadata"]["max_events"] == 3
    ctx.tracing.reset()
    assert len(ctx.tracing.export(path)["traceEvents"]) == 1
    ctx.barrier()
    assert q.sum().item() == 60


def clocks(ctx):
    """The clock in kernels has the rate that the host says."""
    words = ctx.zeros(6, dtype=torch.int64)
    begin = time.monotonic()
    look[(1,)](words, 50)
    ctx.barrier()
    seconds = time.monotonic() - begin
    _, first, cu, xcc, se, last = words.tolist()
    ticks_per_second = iris.hip.get_wall_clock_rate(ctx.get_device_id()) * 1000
    assert 0 < last - first <= seconds * ticks_per_second * 1.01, (first, last, seconds)
    assert 0 <= cu < 4096 and 0 <= xcc < iris.hip.get_num_xcc() and 0 <= se < 16
    assert TraceEvent().put == 3 and TraceEvent().reduce == 2049


def platform(ctx):
    """What is asked of the platform, and what irisd does itself."""
    hip = iris.hip
    raises(RuntimeError, lambda: hip.gpu_try(1), "error 1")
    assert hip.gpu_try(0) is None
    on_host = ctx.context.on_host
    device = hip.get_device_id()
    assert device == ctx.get_device_id() and 0 <= device < hip.count_devices() or on_host
    hip.set_device(device)
    assert hip.get_cu_count() == hip.get_cu_count(device) == ctx.get_cu_count() > 0
    assert hip.get_num_xcc() == hip.get_num_xcc(device) >= 1 and hip.get_wall_clock_rate(device) > 0
    assert len(hip.get_rocm_version()) == 2 and (hip.get_arch_string() == "emu") == on_host
    tensor = torch.ones(5000, device=ctx.device)
    for inside in (tensor, tensor[1000:], ctx.ones(3)):
        base, size = hip.get_address_range(inside.data_ptr())
        assert base <= inside.data_ptr() and inside.data_ptr() + inside.numel() * 4 <= base + size
    raises(ValueError, lambda: hip.get_address_range(0), "data_ptr()")
    raises(RuntimeError, lambda: hip.get_address_range(64), "0x40" if on_host else "error")
    for allocate in (hip.hip_malloc, hip.malloc_fine_grained):
        hip.hip_free(allocate(1 << 20))
    for refused in ("mem_create", "export_dmabuf_handle", "open_ipc_handle"):
        assert not hasattr(hip, refused)
    begin, end = utils.create_timing_event(), utils.create_timing_event()
    begin.record()
    cache = utils.get_empty_cache_for_benchmark()
    utils.clear_cache(cache)
    end.record()
    end.synchronize()
    assert begin.elapsed_time(end) > 0 and not cache.any()
    assert utils.do_bench(lambda: None, n_warmup=0, n_repeat=1) >= 0
    assert not utils.is_simulation_env() and utils.get_device_id_for_rank(77) == 77


def simulation():
    """IRIS_SIMULATION: ranks share devices, and the addresses of the heaps are written."""
    os.chdir(FOLDER)
    with iris.iris(HEAP) as ctx:
        with open(f"here_rank_{ctx.get_rank()}_heap_bases.json", encoding="ascii") as file:
            assert json.load(file) == {"rank": ctx.get_rank(), "num_ranks": ctx.get_num_ranks(),
                                       "heap_bases": [hex(base) for base in ctx.context.heap_bases]}
        assert iris.is_simulation_env() and 0 <= iris.get_device_id_for_rank(77) < iris.hip.count_devices()
        chosen = []
        real, count = torch.cuda.set_device.__closure__, torch.cuda.device_count
        cell = next(each for each in real if callable(each.cell_contents))
        kept, cell.cell_contents, torch.cuda.device_count = cell.cell_contents, chosen.append, lambda: 2
        for device in (1, 5, "other"):
            torch.cuda.set_device(device)
        cell.cell_contents, torch.cuda.device_count = kept, count
        assert chosen == [1, 1, "other"]


def distributed(ctx):
    """Values go over the ranks of a context."""
    values(ctx)
    flags = ctx.zeros(ctx.get_num_ranks(), dtype=torch.int32)
    for lap in range(1, 4):
        helpers.distributed_device_barrier(flags, None, ctx.get_rank(), ctx.get_num_ranks(), ctx.get_heap_bases())
        assert flags[ctx.get_rank()].item() == lap
    ctx.barrier()


def groups():
    """Values go over torch's default group."""
    for name in ("IRIS_RANK", "IRIS_N_RANKS", "IRIS_LOCAL_RANK", "IRIS_JOB"):
        os.environ[f"WAS_{name}"] = os.environ.pop(name, "")
    rank, n = int(os.environ["WAS_IRIS_RANK"]), int(os.environ["WAS_IRIS_N_RANKS"])
    raises(RuntimeError, helpers.distributed_barrier, "init_process_group")
    meeting = f"{FOLDER}/meeting-{os.environ['WAS_IRIS_JOB']}"
    torch.distributed.init_process_group("gloo", rank=rank, world_size=n, init_method=f"file://{meeting}")
    values(None)
    mine = [torch.distributed.new_group(list(range(first, n, 2))) for first in range(min(n, 2))][rank % 2]
    assert helpers.extract_group_info(None, rank, n) == (rank, rank, n, 0, 1)
    size = len(range(rank % 2, n, 2))
    assert helpers.extract_group_info(mine, rank, n) == (rank // 2, rank, size, rank % 2, 2 if size > 1 else 1)
    if n > 1:
        raises(RuntimeError, lambda: helpers.extract_group_info(mine, 1 - rank % 2, n), f"rank {1 - rank % 2}")
    if n > 3:
        odd = torch.distributed.new_group([0, 1, 3])
        if rank in (0, 1, 3):
            raises(NotImplementedError, lambda: helpers.extract_group_info(odd, rank, n), "[0, 1, 3]")
    helpers.distributed_barrier(mine)
    world = torch.distributed.group.WORLD
    buffer = symm_mem.empty(4)
    handle = symm_mem.rendezvous(buffer, getattr(world, "group_name", world))  # older releases have no names
    assert (handle.rank, handle.world_size) == (rank, n) and symm_mem.rendezvous(buffer, world) is handle
    handle.barrier()
    torch.distributed.destroy_process_group()


def values(ctx):
    _, rank, n = helpers.init_distributed()
    assert ctx is None or (rank, n) == (ctx.get_rank(), ctx.get_num_ranks())
    for kind in (np.uint64, np.int32, np.bool_):
        rows = helpers.distributed_allgather(np.array([rank, 1], kind))
        assert rows.dtype == kind and rows.tolist() == [[kind(each), 1] for each in range(n)]
    raises(AssertionError, lambda: helpers.distributed_allgather(np.ones((2, 2))), "2 dimensions")
    rows = helpers.distributed_allgather_multidim(torch.full((2, 3), float(rank)))
    assert rows.shape == (n, 6) and rows[:, 5].tolist() == list(range(n))
    last = n - 1
    for value in (5, 2.5, True, "text"):
        got = helpers.distributed_broadcast_scalar(value if rank == last else None, last)
        assert got == value and type(got) is type(value)
    assert helpers.distributed_broadcast_scalar(np.float32(rank), 0) == 0.0
    got = helpers.distributed_broadcast_tensor(torch.arange(6).reshape(2, 3) + rank, last)
    assert isinstance(got, np.ndarray) and got.tolist() == [[last, last + 1, last + 2], [last + 3, last + 4, last + 5]]
    if n == 1:
        raises(ValueError, lambda: helpers.distributed_broadcast_tensor(None), "rank 0")
    helpers.distributed_barrier()


def descriptors(ctx):
    """File descriptors from each rank to each other one."""
    r, n = ctx.get_rank(), ctx.get_num_ranks()
    sockets = fd_passing.setup_fd_infrastructure(r, n)
    if n == 1:
        assert sockets is None
        sockets = {}
    assert sorted(sockets) == [peer for peer in range(n) if peer != r]
    for peer, connection in sockets.items():
        with fd_passing.managed_fd(os.memfd_create(f"{r} to {peer}")) as mine:
            fd_passing.send_fd(connection, mine, b"abc")
    for peer, connection in sockets.items():
        theirs, payload = fd_passing.recv_fd(connection, 3)
        with fd_passing.managed_fd(theirs):
            assert payload == b"abc" and f"{peer} to {r}" in os.readlink(f"/proc/self/fd/{theirs}")
        raises(OSError, lambda: os.fstat(theirs), "Bad file descriptor")
    ctx.barrier()
    for connection in sockets.values():
        connection.close()
    ours, theirs = socket.socketpair()
    ours.sendall(b"x")
    raises(RuntimeError, lambda: fd_passing.recv_fd(theirs), "without a file descriptor")
    ours.sendall(b"12345")
    assert fd_passing.recv_exact(theirs, 5) == b"12345"
    ours.close()
    raises(ConnectionError, lambda: fd_passing.recv_exact(theirs, 1), "0 of 1 bytes")
    raises(ValueError, lambda: fd_passing.send_fd(theirs, -1), "-1")
    assert fd_passing.make_rank_sock_path("p", 3) != fd_passing.make_rank_sock_path("p", 4)


@bench.register
@bench.axis("num_ranks", [1, 2])
@bench.axis("n", bench.power_of_two(4, 5))
@bench.axis("dtype", [torch.float32, torch.float16])
def copies(state, ctx):
    assert ctx.get_num_ranks() == state["num_ranks"] and state.get("other", 3) == 3
    if state["n"] == 32 and state["dtype"] == torch.float16:
        state.skip("too wide")
    x, y = ctx.ones(state["n"], dtype=state["dtype"]), ctx.zeros(state["n"], dtype=state["dtype"])
    state.set_bytes(x.numel() * x.element_size())
    state.set_flops(10)
    state.add_counter("elements", state["n"])
    state.set_warmup(0)
    state.exec(lambda: y.copy_(x), preamble_fn=y.zero_)


def benchmarks():
    """Benchmarks start their ranks themselves: this case is not for iris-run."""
    assert bench.linear_range(1, 7, 3) == [1, 4, 7] and bench.power_of_two(2, 4) == [4, 8, 16]
    out = os.path.join(FOLDER, "results.json")
    options = ["--heap_size", str(HEAP), "--n_repeat=2", "--benchmark_format=json", f"--benchmark_out={out}"]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        bench.main([*options, "--axis_num_ranks=2", "--axis_n=pow2:4:5", "--skip_dtype=fp32"])
    with open(out, encoding="utf-8") as file:
        text = file.read()
    assert said.getvalue() == text
    first, second = json.loads(text)
    assert first["benchmark"] == "copies" and first["params"] == {"num_ranks": "2", "n": "16", "dtype": "float16"}
    assert len(first["all_times_ms"]) == 2 and first["bandwidth_gbps"] > 0 and first["world_size"] == 2
    assert first["counters"] == {"elements": 16}
    assert second["skipped"] is True and second["skip_reason"] == "too wide"
    with contextlib.redirect_stderr(io.StringIO()) as wrong, contextlib.suppress(SystemExit):
        bench.main(["--axis=3"])
    assert "--axis=3 is no option" in wrong.getvalue()
    raises(ValueError, lambda: bench.main(["--axis_dtype=fp7"]), "fp7")
    raises(SystemExit, lambda: bench.main(["--benchmark_filter=nothing"]), "no benchmark to measure")


def all_cases():
    raises(RuntimeError, helpers.init_distributed, "init_process_group")
    with iris.iris(HEAP) as ctx:
        for each in (tracing, clocks, platform, distributed, descriptors):
            each(ctx)
            ctx.barrier()
    groups()


if __name__ == "__main__":
    {"all_cases": all_cases, "simulation": simulation, "benchmarks": benchmarks}[sys.argv[1]]()
