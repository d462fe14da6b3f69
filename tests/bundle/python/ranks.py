"""The ranks of python_test.py: `ranks.py CASE` runs the function of that name on each rank of a job.

Ends with 0 if all that it asserts holds.
"""

import ctypes
import fcntl
import gc
import importlib
import importlib.util
import itertools
import json
import mmap
import os
import random
import sys
import threading
import time
import warnings
import weakref

import numpy as np

import iris
from iris import DType


class Torch:
    """Stands for torch until a case uses it: to load it takes longer than most cases, on each rank."""

    def __getattr__(self, name):
        global torch
        torch = importlib.import_module("torch")
        return getattr(torch, name)


torch = Torch() if importlib.util.find_spec("torch") else None
CASES = {}
HEAP = 64 << 20


def case(function):
    CASES[function.__name__] = function
    return function


def raises(kind, call, *texts):
    """The call raises exactly this kind of error, with all the texts in it."""
    try:
        result = call()
    except kind as error:
        missing = [text for text in texts if text not in str(error)]
        assert not missing, f"{missing} is not in {error}"
        assert len(str(error)) > 20, error
        return str(error)
    raise AssertionError(f"no {kind.__name__}, but {result!r}")


def shareable():
    """A memfd that can be registered, and an array in it."""
    memory = os.memfd_create("lent", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, 2 << 20)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    mapping = mmap.mmap(memory, 2 << 20)
    return memory, np.frombuffer(mapping, np.float32, 3000, 64).reshape(100, 30)


def check(got, wanted):
    np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))


@case
def world():
    """What a rank knows, teams, and what ranks do together on the host."""
    with iris.Context(HEAP) as c:
        n = int(os.environ["IRIS_N_RANKS"])
        assert (c.rank, c.n_ranks, c.backend, c.device) == (int(os.environ["IRIS_RANK"]), n, "emu", "cpu")
        assert c.job == os.environ["IRIS_JOB"] and c.heap_bytes >= HEAP and len(c.heap_bases) == n
        assert c.peer_pid(c.rank) == os.getpid() and c.timings()["join"] > 0
        c.health()
        assert iris.current_context() is c and c.world.ranks == tuple(range(n))
        assert c.locate(c.heap_bases[n - 1] + 5) == (n - 1, 5)
        value = {"text": "é", "array": np.arange(400_000)} if c.rank == n - 1 else None
        value = c.broadcast_object(value, n - 1)  # more than one broadcast has room for
        assert value["text"] == "é" and value["array"][-1] == 399_999
        assert c.all_gather_object((c.rank, "x")) == [(rank, "x") for rank in range(n)]
        assert c.broadcast_bytes(b"" if c.rank else b"\0abc", 0) == b"\0abc"
        raises(iris.InvalidArgumentError, lambda: c.broadcast_bytes(b"x" * ((1 << 20) + 1), 0))
        team = c.split(c.rank % 2, -c.rank)
        members = tuple(rank for rank in reversed(range(n)) if rank % 2 == c.rank % 2)
        assert team.ranks == members and team.index == members.index(c.rank) and team.n_ranks == len(members)
        team.barrier(timeout=30)
        x = c.full((3,), c.rank, dtype="i64", team=team)
        c.all_reduce(x, team=team)
        assert x.tolist() == [sum(members)] * 3
        if len(members) < n:
            raises(iris.InvalidArgumentError, lambda: x.at((c.rank + 1) % n), "no copy", "allocated by the ranks")
        assert c.all_gather_object(c.rank, team=team) == list(members)
        raises(iris.FailedPreconditionError, team.destroy, "live allocations")
        del x
        team.destroy()
        raises(iris.FailedPreconditionError, team.barrier, "after destroy")
        raises(iris.FailedPreconditionError, c.world.destroy, "world")
        alone = c.team([0])
        assert alone.is_member == (c.rank == 0)
        if c.rank:
            raises(iris.InvalidArgumentError, lambda: c.zeros(3, team=alone), "no member")
        else:
            assert c.zeros(3, team=alone).tolist() == [0, 0, 0]
        c.barrier()
    raises(iris.FailedPreconditionError, c.barrier, "closed")
    assert iris.current_context() is None
    c.close()


@case
def calls_that_wait_for_each_other():
    """Ranks that make their calls in another order hear of it at once; so do all ranks, if one is refused."""
    with iris.Context(HEAP, timeout=600) as c:
        raises(iris.InvalidArgumentError, c.barrier if c.rank == 0 else lambda: c.zeros(4),
               "it cannot end, because ranks wait for each other: rank 0 (pid", "is in host barrier #", "rank 1 (pid")
    raises(iris.InvalidArgumentError,
           lambda: iris.Context(1 << 60 if os.environ["IRIS_RANK"] == "1" else HEAP, job="refused", join_timeout=600),
           *([] if os.environ["IRIS_RANK"] == "1" else ["rank 1 (pid", "was refused, and no rank joins without it"]))


@case
def collectives():
    """All of them, on tensors of Iris, arrays of numpy and tensors of torch, in the heap and outside."""
    with iris.Context(HEAP) as c:
        n, r = c.n_ranks, c.rank
        count = 1001
        rows = np.arange(n)[:, None] * 1000.0 + np.arange(n * count)[None, :]  # row m is what member m gives
        makers = [lambda a: c.empty(a.shape, dtype=a.dtype).copy_(a), np.array]
        if torch is not None:
            makers.append(torch.from_numpy)
        raises(iris.FailedPreconditionError, lambda: c.send(c.zeros(1), 0), "prepare()")
        c.prepare()
        raises(iris.InvalidArgumentError, lambda: c.prepare(check_calls=1), "already")
        for make in makers:
            for dtype in ("float32", "float64", "int32", "int64"):
                mine = make(rows[r].astype(dtype))
                small = make(rows[r, :count].astype(dtype))
                out = make(np.zeros(count, dtype))
                wide = make(np.zeros(n * count, dtype))
                check(c.all_reduce(mine, wide), rows.sum(0))
                check(c.all_reduce(mine, wide, "max", async_op=True).wait(), rows.max(0))
                assert c.reduce_scatter(mine, out) is out
                check(out, rows.sum(0)[r * count:(r + 1) * count])
                check(c.all_gather(small, wide), rows[:, :count].reshape(-1))
                check(c.all_to_all(mine, wide), rows[:, r * count:(r + 1) * count].reshape(-1))
                root = n - 1
                c.reduce(mine, wide, root, "min")
                if r == root:
                    check(wide, rows.min(0))
                c.gather(small, wide if r == root else None, root)
                if r == root:
                    check(wide, rows[:, :count].reshape(-1))
                c.scatter(mine if r == root else None, out, root)
                check(out, rows[root, r * count:(r + 1) * count])
                check(c.broadcast(small, root), rows[root, :count])
                c.send_recv(mine, (r + 1) % n, wide, (r - 1) % n)
                check(wide, rows[(r - 1) % n])
                c.all_to_all_v(mine, [r + 1] * n, wide, range(1, n + 1))
                check(wide[:n * (n + 1) // 2],
                      np.concatenate([rows[m, r * (m + 1):(r + 1) * (m + 1)] for m in range(n)]))
        x = c.full((8,), float(r))
        if n > 1 and r < 2:
            c.send(x, 1) if r == 0 else c.recv(x, 0)
            check(x, [0.0] * 8)
        x.fill_(r)
        y = c.empty(n, 8)
        with c.group():
            for peer in range(n):
                c.recv(y[peer], peer)
                c.send(x, (r + peer) % n)
        check(y, np.repeat(np.arange(n), 8).reshape(n, 8))
        # On a stream of the caller's, and recorded.
        stream = c.stream()
        x.fill_(1)
        work = c.all_reduce(x, stream=stream, async_op=True)
        check(work.wait(), [n] * 8)
        assert work.is_completed() and stream.idle()
        with stream.capture() as graph:
            c.all_reduce(x, stream=stream)
        check(x, [n] * 8)
        for _ in range(3):
            graph.launch()
        stream.synchronize()
        check(x, [n**4] * 8)
        graph.close()
        raises(iris.FailedPreconditionError, graph.launch, "nothing was recorded")
        c.device_barrier()
        # What is wrong is told before anything starts.
        f, i = c.zeros(4), c.zeros(4, dtype="i32")
        wrong = iris.InvalidArgumentError
        raises(wrong, lambda: c.all_reduce(f, i), "float32", "int32")
        raises(wrong, lambda: c.all_reduce(f, c.zeros(5)), "5 elements")
        raises(wrong, lambda: c.all_reduce(f, op="xor"), "sum, prod, min, max, avg")
        raises(wrong, lambda: c.all_reduce(c.zeros(4, 4)[:, :2]), "contiguous")
        raises(wrong, lambda: c.all_reduce(np.zeros((4, 4), ">f4")), ">f4")
        raises(wrong, lambda: c.all_reduce([1.0]), "list")
        raises(wrong, lambda: c.all_gather(f, f) if n > 1 else c.all_gather(f, i), "all_gather")
        raises(wrong, lambda: c.all_reduce(f, stream="s"), "no stream")
        raises(iris.OutOfRangeError, lambda: c.broadcast(f, n), "none of the team")
        flags = c.zeros(4, dtype="bool")
        raises(iris.UnimplementedError, lambda: c.all_reduce(flags), "reductions know the types")  # the library's text
        check(f, [0] * 4)
        c.release_communicator()
        check(c.all_reduce(c.ones(3)), [n] * 3)
        c.barrier()


@case
def a_device_barrier_needs_few_words():
    with iris.Context(HEAP, max_heap_bytes=HEAP) as c:
        # There is no room for a communicator's workspace.
        rest = c.empty(c.heap_bytes - (256 << 10), dtype="uint8")
        raises(iris.ResourceExhaustedError, lambda: c.all_reduce(c.empty(1)))
        word = c.zeros(1, dtype="uint64")
        c.barrier()
        stream = c.stream()
        for turn in range(20):
            if c.rank == turn % c.n_ranks:
                time.sleep(0.002)
                for rank in range(c.n_ranks):
                    c.signal(word, turn + 1, rank)
            c.device_barrier(stream=stream)
            c.synchronize(stream)
            assert word[0].item() in (turn + 1, turn + 2)  # the next rank may have begun its turn
        with stream.capture() as graph:
            c.device_barrier(stream=stream)
        for _ in range(3):
            graph.launch()
        c.synchronize(stream)
        graph.close()
        rest.free()
        check(c.all_reduce(c.ones(4)), [c.n_ranks] * 4)
        c.device_barrier()
        c.release_communicator()
        c.device_barrier()


@case
def tensors():
    """Views, values, DLPack and numpy without a copy, peers' copies, and use after the end."""
    c = iris.Context(HEAP)
    n, r = c.n_ranks, c.rank
    x = c.arange(24, name="x").reshape(2, 3, 4)
    reference = np.arange(24).reshape(2, 3, 4)
    assert x.name == "x" and x.shape == (2, 3, 4) and x.strides == (12, 4, 1) and x.nbytes == 192 and len(x) == 2
    for index in ((0,), (1, 2), (slice(None), 1), (Ellipsis, 3), (slice(1, 2), Ellipsis, slice(1, 4, 2)), (-1, -1, -1),
                  (slice(3, 9),), (slice(None), slice(0, 3, 2))):
        check(x[index], reference[index])
        assert x[index].shape == reference[index].shape
    check([row.tolist() for row in x], reference)
    check(x.reshape(-1, 6), reference.reshape(-1, 6))
    assert x.view(24)[5].item() == 5 and x.reshape(4, 6).offset_bytes == x.offset_bytes
    raises(iris.InvalidArgumentError, lambda: x.reshape(5, 5), "24 elements")
    raises(iris.InvalidArgumentError, lambda: x[:, 1].reshape(-1), "not contiguous")
    raises(iris.OutOfRangeError, lambda: x[2], "outside")
    raises(iris.OutOfRangeError, lambda: x[0, 0, 0, 0], "dimensions")
    raises(iris.InvalidArgumentError, lambda: x.item(), "one element")
    raises(iris.InvalidArgumentError, lambda: x.copy_(np.zeros(5)), "do not fill")
    x[0].copy_(np.full(4, 7))
    check(x[0], np.full((3, 4), 7))
    x[0, 1] = 5
    x[0, 2] = [1, 2, 3, 4]
    check(x[0], [[7] * 4, [5] * 4, [1, 2, 3, 4]])
    x.copy_(reference)
    # Every type, there and back.
    for dtype in list(DType)[1:]:
        t = c.full((2, 2), 1, dtype=dtype)
        assert t.tolist() == [[1, 1], [1, 1]] and t.dtype is dtype and t.element_size() == dtype.itemsize
        if dtype.numpy_name:
            check(np.from_dlpack(t) if dtype is not DType.BOOL else t.numpy(), np.ones((2, 2), dtype.numpy_name))
            t.numpy()[0, 0] = 0
            assert t[0, 0].item() == 0
    wide = c.empty(3).copy_(c.full((3,), 1.5, dtype="bf16"))
    assert wide.tolist() == [1.5] * 3 and c.empty(3, dtype="i64").copy_(wide).tolist() == [1] * 3
    b = c.empty(3, dtype="bf16").copy_([1.5, -2.0, 3.14159])
    assert b.tolist()[:2] == [1.5, -2.0] and abs(b.tolist()[2] - 3.14159) < 0.01 and b.numpy().dtype == np.uint16
    # Peers' copies, by address.
    mine = c.full((1000,), r)
    c.barrier()
    for peer in range(n):
        check(mine.at(peer), np.full(1000, peer))
        assert mine.at(peer).rank == peer and c.locate(mine.at(peer).data_ptr())[0] == peer
    raises(iris.OutOfRangeError, lambda: mine.at(n), "ranks 0 to")
    c.barrier()
    mine.at((r + 1) % n)[:10].copy_(np.full(10, 100 + r))
    c.barrier()
    check(mine[:11], [100 + (r - 1) % n] * 10 + [r])
    # Arrays of others keep the memory, and share it.
    array = x.numpy()
    assert array.base is not None and array.ctypes.data == x.data_ptr()
    array[0, 0, 0] = 99
    assert x[0, 0, 0].item() == 99
    taken = np.from_dlpack(x[1])
    assert taken.ctypes.data == x[1].data_ptr() and taken.shape == (3, 4)
    assert x.__dlpack_device__() == (1, 0)
    raises(BufferError, lambda: x.__dlpack__(copy=True), "a copy is not offered")
    from iris import _foreign
    before = len(_foreign._capsules_in_use)
    for _ in range(100):
        x.__dlpack__()  # nobody takes it
    assert len(_foreign._capsules_in_use) == before, "capsules that nobody took are not given back"
    if torch is not None:
        t = torch.from_dlpack(x)
        assert t.data_ptr() == x.data_ptr() and t.dtype == torch.int64 and tuple(t.shape) == (2, 3, 4)
        t[1, 2, 3] = -5
        assert x[1, 2, 3].item() == -5
        assert torch.from_dlpack(x[:, 1]).stride() == (12, 1)
        for dtype in (DType.BF16, DType.BOOL, DType.F16, DType.U8):
            view = c.ones(3, dtype=dtype).torch()
            assert view.dtype == dtype.torch and view.tolist() == [1, 1, 1], view
        assert c.zeros(0, 3).torch().shape == (0, 3) and c.zeros(()).torch().shape == ()
        raises(iris.InvalidArgumentError, lambda: DType.F8E4M3.torch, "has no type")
        back = c.empty_like(t)
        back.copy_(t)
        check(back, t)
        # Any type of torch's into any other, and one row into all.
        half = c.empty(2, 3, dtype="bf16").copy_(torch.tensor([[1.5], [2.5]], requires_grad=True))
        assert half.tolist() == [[1.5] * 3, [2.5] * 3]
        assert c.empty(3, dtype="i32").copy_(torch.tensor([1, 2, 3], dtype=torch.bfloat16)).tolist() == [1, 2, 3]
        raises(iris.InvalidArgumentError, lambda: half.copy_(torch.zeros(2)), "do not fill")
        raises(iris.InvalidArgumentError, lambda: half.copy_(torch.zeros(1, 2, 3)), "do not fill")
    # A fork has no heap.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        try:
            raises(iris.FailedPreconditionError, x.numpy, "forked child", "spawn")
            raises(iris.FailedPreconditionError, x.data_ptr, "forked child", "spawn")
            raises(iris.FailedPreconditionError, c.barrier, "forked child")
            raises(iris.FailedPreconditionError, lambda: c.zeros(3), "forked child")
            del array, taken
            gc.collect()
            os._exit(0)
        except BaseException as error:  # an assertion, which the parent has to hear of
            print("in the child:", repr(error), flush=True)
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    # After free, and after the end.
    y = c.ones(10, name="y")
    part = y[:5]
    c.barrier()
    y.free()
    for use in (y.numpy, part.data_ptr, y.free, lambda: c.all_reduce(part), lambda: y.at(0), lambda: y[0],
                lambda: part.fill_(0), lambda: y.__dlpack__()):
        raises(iris.FailedPreconditionError, use, "after it was freed")
    assert y.freed and "freed" in repr(y)
    y = c.ones(10, name="y")  # the name is free again
    other_context_tensor = y
    c.barrier()
    c.close()
    for use in (x.numpy, mine.free, lambda: x.at(0), lambda: x.__dlpack__(), x.data_ptr, x.tolist,
                lambda: other_context_tensor.fill_(1)):
        raises(iris.FailedPreconditionError, use, "after its context was closed")
    for use in (lambda: c.zeros(1), c.collect, c.stream, c.health, lambda: c.heap_bytes, c.split.__get__(c)):
        raises((iris.FailedPreconditionError, TypeError), use)
    # The memory is still there for who holds an array.
    assert array[0, 0, 0] == 99 and taken[2, 3] == -5 if torch is not None else True
    array[:] = 3
    assert taken[0, 0] == 3


@case
def two_contexts():
    """Two at once, of one rank each: what belongs to one is refused by the other."""
    with iris.Context(HEAP, job=f"a{os.getpid()}", rank=0, n_ranks=1) as a, \
            iris.Context(HEAP, job=f"b{os.getpid()}", rank=0, n_ranks=1) as b:
        x, y = a.ones(4), b.ones(4)
        for use in (lambda: a.all_reduce(y), lambda: a.all_reduce(x, stream=b.stream()), lambda: a.put(x, y, 0),
                    lambda: a.zeros(4, out=y), lambda: a.barrier(b.world)):
            raises(iris.InvalidArgumentError, use, "context")
        assert iris.current_context() is b


@case
def memory():
    """Put, get, signals, and what a rank allocates alone."""
    with iris.Context(HEAP) as c:
        n, r = c.n_ranks, c.rank
        right, left = (r + 1) % n, (r - 1) % n
        inbox, words = c.zeros(256), c.zeros(4, dtype="u64")
        c.barrier()
        c.put(inbox, np.full(256, r, np.float32), right, signal=(words, 1))
        assert c.wait_signal(words, 1) == 1
        check(inbox, np.full(256, left))
        c.signal(words[1:], 5, right, "add")
        c.signal(words[1:], 5, right, "add")
        assert c.wait_signal(words[1:], 10, "eq") == 10
        c.barrier()
        got = np.empty(256, np.float32)
        c.get(got, inbox, right)
        check(got, np.full(256, r))
        stream = c.stream()
        c.prepare_signals()
        c.get(got[:10], inbox[:10], left, stream=stream, signal=(words[2:], 3))
        stream.synchronize()
        assert c.wait_signal(words[2:], 3) == 3
        event = stream.record()
        c.own_stream.wait(event)
        later = stream.record()
        stream.synchronize()
        assert event.elapsed(later) >= 0
        wrong = iris.InvalidArgumentError
        # Tiles: views whose rows are contiguous. What lies between the rows stays.
        matrix, other = c.zeros(6, 10), c.full((8, 12), float(r))
        c.barrier()
        c.put(matrix[1:5, 2:7], other[2:6, 3:8], right)
        c.barrier()
        wanted = np.zeros((6, 10), np.float32)
        wanted[1:5, 2:7] = left
        check(matrix, wanted)
        c.barrier()  # all have looked before more comes
        c.put(matrix[::2, :4], np.full((3, 4), 50.0 + r, np.float32), right)
        c.barrier()
        wanted[::2, :4] = 50.0 + left
        check(matrix, wanted)
        c.get(other[:4, :6], matrix[2:, 4:], right)
        c.barrier()
        wanted_there = np.zeros((6, 10), np.float32)
        wanted_there[1:5, 2:7] = r
        wanted_there[::2, :4] = 50.0 + r
        wanted = np.full((8, 12), float(r), np.float32)
        wanted[:4, :6] = wanted_there[2:, 4:]
        check(other, wanted)
        cube = c.zeros(4, 3, 5)
        c.put(cube[:, :, 1:3], other.reshape(4, 3, 8)[:, :, 2:4], r)
        check(cube[:, :, 1:3], wanted.reshape(4, 3, 8)[:, :, 2:4])
        assert float(cube[:, :, 3:].numpy().sum()) == 0
        raises(wrong, lambda: c.put(matrix[:, 0], matrix[1], r), "not alike")
        raises(wrong, lambda: c.put(cube[::2, ::2, 1:3], cube[1:3, 0:2, 1:3], r), "not made of rows")
        c.barrier()
        raises(wrong, lambda: c.put(np.zeros(256, np.float32), inbox, 0), "not in this rank's heap")
        raises(wrong, lambda: c.put(inbox, np.zeros(255, np.float32), 0), "not alike")
        raises(wrong, lambda: c.put(inbox, np.zeros(256, np.int32), 0), "not alike")
        raises(iris.OutOfRangeError, lambda: c.put(inbox, got, n), f"rank {n}")
        raises(wrong, lambda: c.put(inbox, got, 0, signal=(inbox, 1)), "uint64")
        raises(wrong, lambda: c.put(inbox, got, 0, signal=(words, 1, "xor")), "'set' or 'add'")
        raises(wrong, lambda: c.put(inbox, got, 0, signal=words), "(word, value)")
        raises(wrong, lambda: c.put(inbox, inbox, r), "overlap")
        raises(wrong, lambda: c.wait_signal(words, 1, "like"), "eq, ne")
        start = time.monotonic()
        raises(iris.DeadlineExceededError, lambda: c.wait_signal(words[3:], 1, timeout=0.2), "holds 0", f"rank {r}")
        assert time.monotonic() - start < 5
        check(inbox, np.full(256, left))
        # Alone.
        own = c.allocate_local((r + 10,), "i32", name="own")
        check(own, np.zeros(r + 10))
        own.fill_(r)
        late = c.allocate_local((5,), "f64")
        late.fill_(r + 0.5)
        c.publish(late, "late")
        raises(iris.FailedPreconditionError, lambda: c.publish(late, "again"))
        raises(iris.AlreadyExistsError, lambda: c.allocate_local((1,), name="own"))
        raises(wrong, lambda: c.publish(inbox, "inbox"), "allocate_local")
        raises(wrong, lambda: c.register(np.zeros(10), name="private"), "copy it into the heap")
        memory, lent = shareable()
        mine = c.register(lent, name="mine")
        assert mine.shape == lent.shape and mine.data_ptr() == lent.ctypes.data
        mine.fill_(r)
        assert lent[1, 2] == r
        if n == 1:
            raises(wrong, lambda: c.open(r, "late"), "what it allocated itself")
            return
        theirs = c.open(right, "late", timeout=30)
        assert theirs.dtype is DType.F64 and theirs.shape == (5,) and theirs.rank == right
        check(theirs, np.full(5, right + 0.5))
        big = c.open(right, "own", timeout=30)
        assert big.shape == (right + 10,)
        raises(wrong, lambda: big.at(r), f"rank {right} alone")
        c.barrier()
        c.put(theirs, np.full(5, 100.0 + r), right)
        c.barrier()
        check(late, np.full(5, 100.0 + left))
        raises(iris.DeadlineExceededError, lambda: c.open(right, "nothing", timeout=0.2), "nothing")
        raises(iris.OutOfRangeError, lambda: c.open(n, "x"), f"rank {n}")
        lent_to_us = c.open(right, "mine", timeout=30)
        assert lent_to_us.shape == (lent.size,) and lent_to_us.dtype is DType.F32
        check(lent_to_us[5:7], np.full(2, right))
        c.barrier()
        c.put(lent_to_us, np.full(lent.size, 7.0 + r, dtype=np.float32), right)
        c.barrier()
        check(lent, np.full(lent.shape, 7.0 + left))
        lent_to_us.free()
        c.barrier()
        mine.free()
        os.close(memory)
        del own, late  # dropped while others have it open
        gc.collect()
        c.zeros(1)
        check(theirs, np.full(5, 100.0 + r))
        theirs.free()
        raises(iris.FailedPreconditionError, theirs.numpy, "freed")
        c.grow(1 << 20)
        assert c.heap_bytes >= HEAP + (1 << 20)
        c.barrier()


@case
def as_symmetric():
    """Arrays of the ranks' own become symmetric where they lie."""
    with iris.Context(HEAP) as c:
        n, r, right, left = c.n_ranks, c.rank, (c.rank + 1) % c.n_ranks, (c.rank - 1) % c.n_ranks
        wrong = iris.InvalidArgumentError
        memory, own = shareable()
        own[...] = r
        x = c.as_symmetric(own, name="x")
        assert x.shape == own.shape and x.dtype is DType.F32 and x.data_ptr() != own.ctypes.data
        assert c.is_symmetric(x) and c.is_symmetric(x[3:]) and not c.is_symmetric(own)
        assert x.offset_bytes >= c.heap_bytes and c.as_symmetric(x) is x
        assert set(c.all_gather_object(x.offset_bytes)) == {x.offset_bytes}
        check(x, np.full(own.shape, r))
        check(x.at(right), np.full(own.shape, right))
        c.barrier()
        c.put(x[7:9], np.full((2, 30), 100.0 + r, np.float32), right)
        c.barrier()
        check(own[6:10, 0], [r, 100 + left, 100 + left, r])
        c.barrier()
        own[...] = r
        c.barrier()
        c.all_reduce(x)
        check(own, np.full(own.shape, n * (n - 1) / 2))
        c.barrier()
        # Nothing is half registered, whoever is wrong.
        second, other = shareable()
        plain = np.zeros(other.shape, np.float32)
        last = r == n - 1
        told = raises(wrong, lambda: c.as_symmetric(plain if last else other), "copy=True")
        assert f"rank {n - 1} (pid" in told and "copy it into the heap" in told, told
        told = raises(wrong, lambda: c.as_symmetric(other[:, :1] if last else other), "contiguous")
        assert f"rank {n - 1}" in told, told
        raises(wrong, lambda: c.as_symmetric(object() if last else other), f"rank {n - 1}: the argument is object")
        if n > 1:
            raises(wrong, lambda: c.as_symmetric(x if last else other), "in its heap already")
            raises(wrong, lambda: c.as_symmetric(other[1:] if last else other), "the ranks differ")
        raises(iris.AlreadyExistsError, lambda: c.as_symmetric(other, name="x"), "'x' is live")
        if n > 1:
            raises(wrong, lambda: c.as_symmetric(plain, copy=last), "copy=True, and others do not")
            # In the heap, but each rank's is elsewhere.
            apart = [c.allocate_local((r + 1) * 4096), c.allocate_local((64,), DType.F32)]
            raises(wrong, lambda: c.as_symmetric(apart[1]), "which each has alone")
            assert c.as_symmetric(apart[1], copy=True).offset_bytes != apart[1].offset_bytes
            del apart
        copy = c.as_symmetric(plain if last else other, copy=True)
        check(copy, np.zeros(other.shape))
        assert copy.offset_bytes < c.heap_bytes and c.is_symmetric(copy)
        # Dropped here and there, it is given back together, and its array was kept until then.
        offset, kept = x.offset_bytes, weakref.ref(own)
        del x, own, told
        gc.collect()
        assert kept() is not None
        c.collect()
        assert kept() is None
        y = c.as_symmetric(other, name="x")
        assert y.offset_bytes == offset
        y.free()
        raises(iris.FailedPreconditionError, lambda: c.put(y, y, 0), "freed")
        c.barrier()
        os.close(memory)
        os.close(second)


@case
def torch_allocator():
    """The functions that torch's allocator is made of, as torch calls them."""
    library = iris._capi.library()
    error = lambda: library.iris_error_message().decode()
    assert not library.iris_torch_malloc(100, 0, None) and "iris_torch_use first" in error()
    with iris.Context(HEAP) as c:
        library.iris_torch_use(c.handle, 0)
        blocks = [library.iris_torch_malloc(1000 * i + 1, 0, None) for i in range(20)]
        assert len(set(blocks)) == 20 and all(c.locate(block)[0] == c.rank for block in blocks)
        ctypes.memset(blocks[3], 7, 3001)
        assert not library.iris_torch_malloc(1, 1, None) and "device 1" in error()
        assert not library.iris_torch_malloc(-1, 0, None) and "-1 bytes" in error()
        assert not library.iris_torch_malloc(2**62, 0, None) and "cannot grow" in error()
        # Collectives take it as memory of the heap: the variant takes nothing else.
        values = np.ctypeslib.as_array(ctypes.cast(blocks[19], ctypes.POINTER(ctypes.c_float)), (4000,))
        values[:] = c.rank
        assert c.is_symmetric(values)
        c.all_reduce(values)
        check(values, np.full(4000, c.n_ranks * (c.n_ranks - 1) / 2))

        def work():
            for _ in range(30):
                library.iris_torch_free(library.iris_torch_malloc(5000, 0, None), 5000, 0, None)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        library.iris_torch_free(None, 0, 0, None)
        for block in blocks[10:]:
            library.iris_torch_free(block, 1, 0, None)
        library.iris_torch_free(blocks[10], 1, 0, None)
        assert "has not given this memory" in error()
        # Memory goes back once the stream that used it is idle.
        stream = iris.Stream(c)
        big = library.iris_torch_malloc(8 << 20, 0, stream.native)
        for _ in range(20):
            library.iris_fill_async(big, 1, 8 << 20, stream.handle)
        library.iris_torch_free(big, 8 << 20, 0, stream.native)
        assert stream.idle()
        raises(iris.FailedPreconditionError, lambda: iris.mem_pool(c), "is for GPUs")
        c.barrier()
    # torch gives back late.
    for block in blocks[:10]:
        library.iris_torch_free(block, 1, 0, None)
    assert not library.iris_torch_malloc(1, 0, None) and "context handle" in error()
    # Where a later context has its heap at the same place, a late free may be for the memory of either.
    # Each has a name of its own: a rank may still have the job before it.
    with iris.Context(HEAP, job=f"{c.job}-first") as first:
        library.iris_torch_use(first.handle, 0)
        old = library.iris_torch_malloc(4096, 0, None)
        first.barrier()
    with iris.Context(HEAP, job=f"{c.job}-second") as second:
        library.iris_torch_use(second.handle, 0)
        new = library.iris_torch_malloc(4096, 0, None)
        library.iris_torch_free(old, 4096, 0, None)
        assert library.iris_torch_malloc(4096, 0, None) != new
        if old == new:
            library.iris_torch_free(new, 4096, 0, None)
            library.iris_torch_free(new, 4096, 0, None)
            assert "has not given this memory" in error()
        second.barrier()
    raises(iris.InvalidArgumentError, lambda: library.iris_torch_use(12345, 0), "context handle")
    library.iris_torch_use(None, 0)
    raises(iris.FailedPreconditionError, lambda: iris.mem_pool(c), "closed")


@case
def misuse():
    """What a call cannot use, it refuses before anything starts: every call with every kind of it."""
    with iris.Context(HEAP) as c, iris.Context(HEAP, job=f"{c.job}-{c.rank}", rank=0, n_ranks=1) as other:
        n, r = c.n_ranks, c.rank
        one, all_ = c.zeros(4), c.zeros(4 * n)
        word = c.zeros(1, dtype="u64")
        counts = [4] * n
        calls = {
            "all_reduce in": lambda x: c.all_reduce(x, one), "all_reduce out": lambda x: c.all_reduce(one, x),
            "reduce in": lambda x: c.reduce(x, one), "reduce out": lambda x: c.reduce(one, x),
            "reduce_scatter in": lambda x: c.reduce_scatter(x, one),
            "reduce_scatter out": lambda x: c.reduce_scatter(all_, x),
            "all_gather in": lambda x: c.all_gather(x, all_), "all_gather out": lambda x: c.all_gather(one, x),
            "gather in": lambda x: c.gather(x, all_), "scatter out": lambda x: c.scatter(all_, x),
            "all_to_all in": lambda x: c.all_to_all(x, all_), "all_to_all out": lambda x: c.all_to_all(all_, x),
            "all_to_all_v in": lambda x: c.all_to_all_v(x, counts, all_, counts),
            "all_to_all_v out": lambda x: c.all_to_all_v(all_, counts, x, counts),
            "broadcast": c.broadcast, "send": lambda x: c.send(x, r), "recv": lambda x: c.recv(x, r),
            "send_recv in": lambda x: c.send_recv(x, r, one, r), "send_recv out": lambda x: c.send_recv(one, r, x, r),
            "put to": lambda x: c.put(x, one, r), "put from": lambda x: c.put(one, x, r),
            "get to": lambda x: c.get(x, one, r), "get from": lambda x: c.get(one, x, r),
            "signal": lambda x: c.signal(x, 1, r), "wait_signal": lambda x: c.wait_signal(x, 1, timeout=0.1),
            "is_symmetric": c.is_symmetric, "as_symmetric": c.as_symmetric, "register": c.register,
            "copy_": lambda x: c.zeros(4).copy_(x),
        }
        freed, strided, theirs, freed_word = c.zeros(4), c.zeros(8)[::2], other.zeros(4), c.zeros(1, dtype="u64")
        freed.free()
        freed_word.free()
        wrong, gone = iris.InvalidArgumentError, iris.FailedPreconditionError
        takes = {"strided": ("copy_", "put to", "put from", "get to", "get from"), "theirs": ("copy_",)}
        for kind, value, error, text in (
                ("freed", freed, gone, "after it was freed"), ("strided", strided, wrong, "contiguous"),
                ("theirs", theirs, wrong, "context"), ("text", "x", wrong, ""),
                ("None", None, wrong, "")):
            for name, call in calls.items():
                if name in takes.get(kind, ()) or (kind == "None" and name.endswith(" out")):
                    continue
                of_word = name in ("signal", "wait_signal")
                given = freed_word if of_word and kind == "freed" else value
                expected = (wrong, "the word of a signal") if of_word and kind != "freed" else (error, text)
                try:
                    raises(expected[0], lambda: call(given), expected[1])  # pylint: disable=cell-var-from-loop
                except BaseException as failure:
                    raise AssertionError(f"{name} with {kind}: {failure!r}") from failure
        ints, few = c.zeros(4, dtype="i32"), c.zeros(3)
        table = [
            (lambda: c.all_reduce(one, ints), wrong, "int32"), (lambda: c.all_gather(one, c.zeros(4 * n, dtype="i32")),
                                                                wrong, "int32"),
            (lambda: c.all_reduce(one, few), wrong, "elements"), (lambda: c.all_gather(few, all_), wrong, "elements"),
            (lambda: c.reduce_scatter(all_, few), wrong, "elements"), (lambda: c.scatter(all_, few), wrong, "elements"),
            (lambda: c.gather(few, all_), wrong, "elements"), (lambda: c.all_reduce(one, op="median"), wrong, "median"),
            (lambda: c.all_to_all(few, few), wrong if 3 % n else None, "dealt"),
            (lambda: c.all_to_all_v(one, [5] * n, all_, counts), wrong, "counts"),
            (lambda: c.broadcast(one, n), iris.OutOfRangeError, f"rank {n}"),
            (lambda: c.reduce(one, one, -1), iris.OutOfRangeError, "rank -1"),
            (lambda: c.put(one, few, r), wrong, ""), (lambda: c.put(one, ints, r), wrong, ""),
            (lambda: c.put(one, one, n), iris.OutOfRangeError, ""),
            (lambda: c.get(one, one, -1), iris.OutOfRangeError, ""),
            (lambda: c.put(np.zeros(4, np.float32), one, r), wrong, ""),
            (lambda: c.signal(word, 1, n), iris.OutOfRangeError, ""), (lambda: c.signal(one, 1, r), wrong, "uint64"),
            (lambda: c.all_reduce(one, team=other.world), wrong, "no team of this context"),
            (lambda: c.all_reduce(one, stream=other.stream()), wrong, "another context"),
            (lambda: c.all_reduce(one, stream="x"), wrong, "no stream"),
            (lambda: c.all_reduce(one, variant="fast"), wrong, "variant='fast'"),
            (lambda: one.at(n), iris.OutOfRangeError, ""), (lambda: one.copy_(few), wrong, "(3,)"),
            (lambda: all_[0:4].reshape(3), wrong, ""), (lambda: one.view_dtype("f64"), wrong, "bytes"),
            (lambda: (c.zeros(2) if n else one).item(), wrong, "one element"),
        ]
        for index, (call, error, text) in enumerate(table):
            if error is None:
                continue
            try:
                raises(error, call, text)
            except BaseException as failure:
                raise AssertionError(f"line {index} of the table: {failure!r}") from failure
        # Nothing of it has started, and nobody waits.
        check(one, np.zeros(4))
        check(c.all_reduce(c.ones(3)), [n] * 3)
        c.barrier()


@case
def garbage():
    """Tensors are dropped in other orders on each rank, on other threads and by the cycle collector: nothing hangs,
    nothing that a rank still has is given back, and nothing is left."""
    rounds = int(os.environ.get("ROUNDS", "10000"))
    with iris.Context(HEAP) as c:
        same = random.Random(7)  # the same on all ranks
        mine = random.Random(c.rank)
        base = c.heap.live()
        held = []
        stop = threading.Event()
        bag = []

        def drop_elsewhere():
            while not stop.is_set():
                while bag:
                    bag.pop()
                time.sleep(0.001)

        thread = threading.Thread(target=drop_elsewhere)
        thread.start()
        most = 0
        for number in range(rounds):
            t = c.allocate((same.randrange(1, 40_000),), "u8")
            t.numpy()[::997] = number % 251
            kind = mine.randrange(4)
            if kind == 0:
                bag.append(t)
            elif kind == 1:
                circle = [t]
                circle.append(circle)
                held.append((number, circle))
            else:
                held.append((number, [t]))
            del t
            while len(held) > 12:
                position, kept = held.pop(mine.randrange(len(held)))
                assert (kept[0].numpy()[::997] == position % 251).all(), "a tensor that is held was given back"
                del kept
            if number % 500 == 0 and mine.random() < 0.5:
                gc.collect()
            most = max(most, c.heap.live())
        stop.set()
        thread.join()
        held.clear()
        bag.clear()
        circle = None
        gc.collect()
        c.barrier()
        c.collect()
        assert c.heap.live() == base, f"{c.heap.live() - base} tensors are left"
        assert most < rounds / 4 or rounds < 2000, most
        # All of the heap is there again.
        whole = c.allocate((HEAP - (4 << 20),), "u8")
        whole.free()
        # No room, until what was dropped is given back: every rank is told the same, and all of them do it.
        half = c.allocate((HEAP // 2 + (1 << 20),), "u8")
        c.barrier()
        del half
        gc.collect()
        limit = 4 * HEAP
        blocks = [c.allocate((HEAP // 2 + (1 << 20),), "u8") for _ in range(limit // (HEAP // 2 + (1 << 20)))]
        raises(iris.ResourceExhaustedError, lambda: c.allocate((HEAP,), "u8"), "no room")
        if c.rank == 0:
            blocks.pop()  # the others have it still
        if c.n_ranks > 1:
            raises(iris.ResourceExhaustedError, lambda: c.allocate((HEAP // 2 + (1 << 20),), "u8"), "no room")
        if c.rank:
            blocks.pop()
        again = c.allocate((HEAP // 2 + (1 << 20),), "u8")
        # A name is free again, too.
        del blocks, again
        named = c.zeros(4, name="again")
        del named
        named = c.zeros(4, name="again")
        # The memory of an array that somebody holds stays, though its tensor is gone.
        array = c.full((1000,), 5.0).numpy()
        c.collect()
        others = [c.full((1000,), 6.0) for _ in range(100)]
        assert (array == 5).all()
        del others, array
        # What one rank drops, and the others keep.
        t = c.ones(10)
        keep = t if c.rank == 0 else None
        del t
        gc.collect()
        c.collect()
        live = c.heap.live()
        del keep
        gc.collect()
        # One is left for "named", and one was of rank 0's.
        assert c.collect() == 1 and c.heap.live() == live - 1
        del named
        assert c.collect() == 1
        c.barrier()


@case
def orders_of_garbage():
    """Three tensors at a time are dropped in every order, each rank's against every order of each other rank: 15,552
    drops by four ranks. Where they agree after each, it is on what all of them have dropped, and no more."""
    with iris.Context(HEAP) as c:
        orders = list(itertools.permutations(range(3)))
        for number, of_ranks in enumerate(itertools.product(orders, repeat=c.n_ranks)):
            agree = number % 3 == 0
            if agree:
                c.collect()
            given_back = 0
            tensors = [c.allocate((1000 + k,), "u8") for k in range(3)]
            for k in range(3):
                tensors[k].numpy()[::97] = (number + k) % 251
            for step, dropped in enumerate(of_ranks[c.rank]):
                tensors[dropped] = None
                if agree:
                    by_all = set.intersection(*(set(order[:step + 1]) for order in of_ranks))
                    freed = c.collect()
                    assert freed == len(by_all) - given_back, f"{of_ranks}, step {step}: {freed} were given back"
                    given_back = len(by_all)
                for k in range(3):
                    if tensors[k] is not None:
                        assert (tensors[k].numpy()[::97] == (number + k) % 251).all(), f"{of_ranks}: {k} was given back"
            if agree:
                assert c.heap.live() == 0, of_ranks
        c.barrier()
        c.collect()
        assert c.heap.live() == 0
        # All of the heap is there again.
        c.allocate((HEAP - (4 << 20),), "u8").free()
        c.barrier()


@case
def teams_garbage():
    """Teams agree each by themselves, while others do something else."""
    with iris.Context(HEAP) as c:
        team = c.split(c.rank % 2)
        for number in range(500 if c.rank % 2 else 900):
            x = c.ones(1000, team=team)
            if number % 3:
                c.all_reduce(x, team=team)
        del x
        gc.collect()
        c.collect(team)
        assert c.heap.live() == 0
        c.barrier()


def same_as_torch(c, name, *arguments, **options):
    """The factory gives what torch's gives: shape, type and values, to the last bit or nearly."""
    exact = options.pop("exact", True)
    dtype = options.get("dtype")
    wanted = getattr(torch, name)(*arguments, **{**options, **({"dtype": getattr(torch, dtype)} if dtype else {})})
    got = getattr(c, name)(*arguments, **options)
    what = f"{name}{arguments} {options}"
    assert got.shape == tuple(wanted.shape) and got.strides == tuple(wanted.stride()) or 0 in got.shape, what
    assert got.dtype.torch == wanted.dtype, f"{what}: {got.dtype.long_name}, and torch has {wanted.dtype}"
    values, reference = np.array(got.tolist(), np.float64), np.array(wanted.tolist(), np.float64)
    if exact:
        np.testing.assert_array_equal(values, reference, what)
    else:
        np.testing.assert_allclose(values, reference, rtol=1e-2 if dtype in ("float16", "bfloat16") else 1e-6,
                                   atol=1e-6, err_msg=what)


@case
def factories():
    """Table-driven against torch; numpy's for what its types hold; and what is random, by its documented bits."""
    with iris.Context(HEAP) as c:
        if torch is not None:
            types = (None, "float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8")
            for shape in ((), (0,), (1,), (7,), (2, 3), (2, 0, 3), (1, 1, 1, 5), (3, 4, 5)):
                for dtype in types + ("bool",):
                    for name in ("zeros", "ones"):
                        same_as_torch(c, name, shape, dtype=dtype) if dtype else same_as_torch(c, name, shape)
                    if dtype:
                        same_as_torch(c, "full", shape, 3, dtype=dtype)
                for value in (5, 2.5, True, float("inf")):
                    same_as_torch(c, "full", shape, value)
            same_as_torch(c, "zeros", 2, 3)
            same_as_torch(c, "ones", [4, 1])
            for arguments in ((5,), (2, 9), (0, 10, 3), (1, 10, 3), (10, 0, -3), (0, 1, 0.1), (5, 5), (0.5, 3), (3.0,),
                              (-7, 8, 5), (0, -1, -0.25), (2**40, 2**40 + 3), (1.0, 2.0, 0.3)):
                for dtype in types:
                    big = max(abs(a) for a in arguments) > 1000
                    floats = any(isinstance(a, float) for a in arguments)
                    if dtype is None:
                        same_as_torch(c, "arange", *arguments)
                    elif not (big and dtype != "int64") and not (dtype == "uint8" and min(arguments) < 0) and not (
                            floats and "int" in dtype) and not (dtype == "uint8" and arguments[0] > arguments[-1]):
                        same_as_torch(c, "arange", *arguments, dtype=dtype, exact="float" not in dtype)
            for arguments in ((0, 1, 5), (0, 1, 1), (3, 3, 4), (-2, 7, 10), (5, -5, 11), (0.1, 0.9, 101), (1, 2, 0),
                              (0, 100, 7)):
                for dtype in (None, "float32", "float64", "float16", "bfloat16", "int32", "int64", "int8"):
                    floats = any(isinstance(a, float) for a in arguments[:2])
                    if dtype and "int" in dtype and floats:
                        continue
                    same_as_torch(c, "linspace", *arguments, **({"dtype": dtype} if dtype else {}),
                                  exact=bool(dtype) and "int" in dtype)
            like = torch.zeros(2, 3, dtype=torch.int16)
            for name in ("zeros_like", "ones_like"):
                same_as_torch(c, name, like)
                same_as_torch(c, name, like, dtype="float64")
            assert c.empty_like(like).dtype is DType.I16 and c.full_like(like, 7).tolist() == [[7] * 3] * 2
        # The ends of numpy's types, in unsigned ones that torch lacks.
        for dtype in ("uint16", "uint32", "uint64", "int64"):
            info = np.iinfo(dtype)
            check(c.arange(info.max - 3, info.max, dtype=dtype).numpy(), np.arange(info.max - 3, info.max, dtype=dtype)
                  if dtype != "uint64" else np.array([info.max - 3, info.max - 2, info.max - 1], dtype))
            assert c.full((2,), info.max, dtype=dtype).tolist() == [info.max] * 2
        assert c.linspace(0, 1, 11, dtype="f64")[10].item() == 1.0
        # More than a piece of the filling.
        many = c.arange(700_001)
        check(many.numpy(), np.arange(700_001))
        # Into a tensor that is there: not collective.
        out = c.empty(2, 3)
        if c.rank == 0:
            assert c.ones(6, out=out).shape == (6,)
            check(out, np.ones((2, 3)))
            c.rand(2, 3, out=out.numpy())
            assert len(set(out.reshape(6).tolist())) == 6
        c.barrier()
        random_numbers(c)


def fills():
    """Kinds of values, their types and numbers: what the device makes is what numpy does."""
    floats = (DType.F32, DType.F64, DType.F16, DType.BF16)
    for dtype in DType:
        if dtype is DType.NONE:
            continue
        yield "value", dtype, {"start": 2.7, "whole_start": 1}
        yield "randint", dtype, {"whole_start": 0, "whole_end": 1 if dtype is DType.BOOL else 100, "seed": 7, "call": 3}
        if dtype is not DType.BOOL:
            yield "arange", dtype, {"start": -3.3, "step": 0.1, "whole_start": 1, "whole_step": 3}
            yield "linspace", dtype, {"start": 3.0, "end": 96.0}
        if dtype in floats:
            for kind in ("rand", "randn"):
                yield kind, dtype, {"seed": 2**63 + 12345, "call": 2**40}
            yield "uniform", dtype, {"start": -1.5, "end": 2.25, "seed": 9}
            yield "uniform", dtype, {"start": 100.0, "end": 100.3, "seed": 9}


def random_numbers(c):
    """The bits that fill_reference.py documents, distributions, and types."""
    c.manual_seed(42)
    x = c.rand(8)
    from fill_reference import Draw, reference
    words = Draw(42, 0).words(8)
    check(x, (words >> np.uint64(8)).astype(np.float64) * 2.0**-24)
    check(c.rand(3, dtype="f64"), (Draw(42, 1).longs(3) >> np.uint64(11)).astype(np.float64) * 2.0**-53)
    c.manual_seed(42)
    check(c.rand(2, 4).reshape(8), x)
    state = c.generator.get_state()
    first = c.randn(100).tolist()
    c.generator.set_state(state)
    assert c.randn(100).tolist() == first
    assert c.all_gather_object(first) == [first] * c.n_ranks, "equal seeds give equal numbers on all ranks"
    own = iris.Generator(1000 + c.rank)
    told = c.all_gather_object(c.rand(4, generator=own).tolist())
    assert len({tuple(values) for values in told}) == c.n_ranks
    for kind, dtype, numbers in fills():
        for first, count in ((0, 37), (3, 1000), (4, 64), (2**33 + 1, 19)):
            if kind == "linspace":
                numbers = dict(numbers, steps=first + count)
            whole = kind == "arange" and not dtype.is_floating_point
            if whole and 3 * (first + count) > np.iinfo(dtype.numpy_name).max:
                continue
            wanted = reference(kind, dtype, first, count, **numbers)
            for t in (c.empty(count + 5, dtype=dtype)[3:count + 3], c.empty(count, 2, dtype=dtype)[:, 1]):
                t._fill(kind, first=first, **numbers)
                check(t.to_host(), wanted)
    for dtype in ("f32", "f64", "f16", "bf16"):
        u = np.array(c.rand(200_000, dtype=dtype).tolist(), np.float64)
        assert 0 <= u.min() and u.max() < 1 and abs(u.mean() - 0.5) < 0.01 and abs(u.var() - 1 / 12) < 0.01, dtype
        u = np.array(c.uniform((200_000,), -3, 5, dtype=dtype).tolist(), np.float64)
        assert -3 <= u.min() and u.max() < 5 and abs(u.mean() - 1) < 0.05, dtype
        v = np.array(c.randn(200_000, dtype=dtype).tolist(), np.float64)
        assert abs(v.mean()) < 0.02 and abs(v.std() - 1) < 0.02 and 4 < np.abs(v).max() < 8, dtype
        assert c.rand(0, dtype=dtype).tolist() == [] and c.rand((), dtype=dtype).shape == ()
    check(c.uniform((5,), 2.0, 2.0), [2.0] * 5)
    # Where most of the range rounds to its end, which is not in it.
    assert set(c.uniform((1000,), 100, 101, dtype="bf16").tolist()) == {100.0, 100.5}
    counts = np.bincount(c.randint(10, (100_000,)).numpy())
    assert len(counts) == 10 and counts.min() > 9_000
    for dtype, low, high in (("u8", 0, 256), ("i8", -128, 128), ("i64", -2**63, 2**63), ("u64", 0, 2**64),
                             ("f32", -4, 4), ("bool", 0, 2), ("i32", 5, 6)):
        values = np.array(c.randint(low, high, (5_000,), dtype=dtype).tolist(), object)
        assert low <= values.min() and values.max() < high and (high - low < 2 or len(set(values)) > 1), dtype
    if torch is not None:
        generator = torch.Generator().manual_seed(9)
        a = c.rand(5, generator=generator).tolist()
        b = c.rand(5, generator=generator).tolist()
        assert a != b and c.rand(5, generator=torch.Generator().manual_seed(9)).tolist() == a



def boxes_of(path):
    """Of a trace: the boxes of each rank by name, and what else the file says."""
    with open(path, encoding="ascii") as file:
        trace = json.load(file)
    found = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            found.setdefault((event["pid"], event["name"]), []).append(event)
    return found, trace["otherData"]


@case
def tracing():
    """Traces that the program starts and writes itself, its own spans in them, and one file of all ranks."""
    folder = os.environ["FOLDER"]
    with iris.trace.span("nowhere"):  # without a context nothing is told
        pass
    raises(iris.FailedPreconditionError, iris.trace.start, "no context")
    with iris.Context(HEAP) as c:
        n, me = c.n_ranks, c.rank
        raises(iris.FailedPreconditionError, lambda: iris.trace.save(f"{folder}/none.json"), "has not started it")
        raises(iris.FailedPreconditionError, iris.trace.stop, "has not started it")
        with iris.trace.span("too early"):
            path = os.path.join(folder, f"{n}.%r.json")
        with iris.trace(path):
            raises(iris.FailedPreconditionError, iris.trace.start, "on already", "iris_trace_stop")
            with iris.trace.span("outer é"):
                with iris.trace.span("inner"):
                    c.all_reduce(c.ones(1000))
                    c.barrier()
        with iris.trace.span("too late"):
            pass
        found, told = boxes_of(path.replace("%r", str(me)))
        assert told["job"] == c.job and [rank["rank"] for rank in told["ranks"]] == [me]
        (outer,), (inner,) = found[me, "outer é"], found[me, "inner"]
        assert outer["cat"] == inner["cat"] == "user" and outer["tid"] == inner["tid"]
        assert outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
        launch = found[me, "launch all_reduce"][0]
        assert inner["ts"] <= launch["ts"] <= inner["ts"] + inner["dur"]
        assert n == 1 or found[me, "all_reduce"]
        assert not [name for _, name in found if name.startswith("too")]
        # What goes wrong inside comes out, and the file is written all the same.
        try:
            with iris.trace(os.path.join(folder, f"failed.{n}.%r.json")):
                with iris.trace.span("failed"):
                    raise KeyError("mine")
        except KeyError:
            pass
        assert (me, "failed") in boxes_of(f"{folder}/failed.{n}.{me}.json")[0]
        # A limit, and a file of what is on: it is written again at the end.
        iris.trace.start(seconds=100)
        with iris.trace.span("first"):
            pass
        iris.trace.save(f"{folder}/on.{n}.{me}.json")
        assert (me, "first") in boxes_of(f"{folder}/on.{n}.{me}.json")[0]
        iris.trace.stop()
        raises(iris.FailedPreconditionError, iris.trace.stop, "has not started it")
        iris.trace.start(seconds=0.001)
        time.sleep(0.01)
        with iris.trace.span("behind the end"):
            pass
        iris.trace.start()  # the other one has ended by itself
        iris.trace.stop()
        iris.trace.save(f"{folder}/end.{n}.{me}.json")
        assert not boxes_of(f"{folder}/end.{n}.{me}.json")[0].get((me, "behind the end"))
        for name in ("", "x" * 257):
            raises(iris.InvalidArgumentError, lambda name=name: iris.trace.span(name), "1 to 256")
        raises(iris.InvalidArgumentError, lambda: iris.trace.start(seconds=-1), "not positive")
        raises(iris.NotFoundError, lambda: iris.trace.save(f"{folder}/none/x.json"), "none/x.json")
        c.barrier()
        files = [path.replace("%r", str(rank)) for rank in range(n)]
        if me == 0:
            iris.trace.merge(files, f"{folder}/{n}.json")
            merged, told = boxes_of(f"{folder}/{n}.json")
            assert [rank["rank"] for rank in told["ranks"]] == list(range(n))
            inside = [merged[rank, "inner"][0] for rank in range(n)]
            # Nobody leaves a barrier before all have come to it.
            assert max(box["ts"] for box in inside) <= min(box["ts"] + box["dur"] for box in inside)
            raises(iris.InvalidArgumentError, lambda: iris.trace.merge(files[:1] * 2, f"{folder}/x"), "rank 0 is in")
            raises(iris.InvalidArgumentError, lambda: iris.trace.merge([], f"{folder}/x"), "1 to 4096 files")
            raises(iris.NotFoundError, lambda: iris.trace.merge([f"{folder}/nothing"], f"{folder}/x"), "nothing")
            raises(iris.InvalidArgumentError, lambda: iris.trace.merge([sys.argv[0]], f"{folder}/x"), "no JSON")
        c.barrier()


@case
def no_tracing():
    """A heap that has no room for a trace."""
    with iris.Context(HEAP) as c:
        raises(iris.FailedPreconditionError, iris.trace.start, "no room for a trace", "IRIS_TRACE_EVENTS=16384")
        with iris.trace.span("nothing"):
            pass
        c.barrier()


@case
def symm_mem():
    """The shape of torch's symmetric memory."""
    import iris.symm_mem as symmetric
    c = iris.Context(HEAP)
    n, r = c.n_ranks, c.rank
    dtype = torch.float32 if torch is not None else "float32"
    for _ in range(r):
        symmetric.empty(100)  # other ranks allocate other things before: nothing is collective here
    t = symmetric.empty(4, 250, dtype=dtype)
    t[...] = r
    h = symmetric.rendezvous(t, None)
    assert (h.rank, h.world_size, h.buffer_size, h.signal_pad_size) == (r, n, 4000, 2048)
    assert symmetric.rendezvous(t) is h and symmetric.is_symm_mem_tensor(t)
    assert not symmetric.is_symm_mem_tensor(c.zeros(2))
    h.barrier()
    for peer in range(n):
        buffer = h.get_buffer(peer, (1000,), dtype)
        check(buffer, np.full(1000, peer))
        assert buffer.data_ptr() == h.buffer_ptrs[peer]
        assert h.get_signal_pad(peer).shape == (512,) and not np.asarray(h.get_signal_pad(peer)).any()
        assert h.signal_pad_ptrs[peer] == h.get_signal_pad(peer).data_ptr()
    h.barrier()
    # A ring, a hundred times round, with data behind each signal.
    right, left = (r + 1) % n, (r - 1) % n
    theirs = h.get_buffer(right, (10,), dtype, 90)
    mine = h.get_buffer(r, (10,), dtype, 90)
    for lap in range(100):
        theirs[...] = lap * n + r
        h.put_signal(right)
        h.wait_signal(left, timeout_ms=30_000)
        check(mine, np.full(10, lap * n + left))
        h.put_signal(left, channel=1)  # taken
        h.wait_signal(right, channel=1)
    raises(iris.DeadlineExceededError, lambda: h.wait_signal(left, channel=2, timeout_ms=100), "signal word")
    h.put_signal(right, channel=3)
    raises(iris.DeadlineExceededError, lambda: h.put_signal(right, channel=3, timeout_ms=100),
           f"rank {right} has not taken the signal before on channel 3")
    h.barrier()
    h.wait_signal(left, channel=3)
    h.put_signal(right, channel=3)  # now it is taken, or will be
    h.wait_signal(left, channel=3)
    raises(iris.InvalidArgumentError, lambda: h.get_buffer(0, (1001,), dtype), "4004 bytes")
    raises(iris.InvalidArgumentError, lambda: h.get_buffer(0, (10,), dtype, 995), "from byte 3980")
    raises(iris.OutOfRangeError, lambda: h.get_buffer(n, (1,), dtype), "no place")
    raises(iris.OutOfRangeError, lambda: h.put_signal(0, channel=16), "channel 16")
    # Other tensors than those of empty().
    for own in (c.full((6,), r, dtype="float32"), c.full((6,), r, dtype="float32")[2:5], *(
            [c.full((6,), r, dtype="float32").torch()] if torch is not None else [])):
        k = symmetric.rendezvous(own)
        assert k is not h and symmetric.rendezvous(own) is k
        k.get_buffer(right, (1,), dtype)[...] = 10 + r
        k.put_signal(right)
        k.wait_signal(left, timeout_ms=30_000)
        check(own, np.array([10 + left] + [r] * (len(own) - 1)))
        assert not np.asarray(k.get_signal_pad(right)).any() and k.get_signal_pad(right).shape == (512,)
        h.barrier()
    private = np.zeros(3, "float32")
    raises(iris.InvalidArgumentError, lambda: symmetric.rendezvous(private), "private memory", "symm_mem.empty()")
    if n > 1:
        raises(iris.InvalidArgumentError, lambda: symmetric.rendezvous(private if r else symmetric.empty(3)),
               "same kind on all ranks")
    nothing = symmetric.empty(0, dtype=dtype)
    e = symmetric.rendezvous(nothing)
    assert e.buffer_size == 0 and e.get_buffer(right, (0,), dtype).shape == (0,)
    e.get_signal_pad(right)[...] = 5 + r
    e.put_signal(right)
    e.wait_signal(left)
    check(e.get_signal_pad(r), np.full(512, 5 + left))
    # In a team, with buffers that are not of one size.
    team = c.split(0 if r < max(n // 2, 1) else 1, -r)
    u = symmetric.empty(16, dtype=dtype)
    g = symmetric.rendezvous(u, team)
    assert g.world_size == team.n_ranks and g.rank == team.index
    g.barrier()
    if n > 1:
        odd = symmetric.empty(5 + r, dtype=dtype)
        raises(iris.InvalidArgumentError, lambda: symmetric.rendezvous(odd), "they must be the same")
    # Dropped in any order.
    if r % 2:
        del t, h, theirs, mine, buffer, k, e, nothing, own
    gc.collect()
    c.barrier()
    del u, g
    c.barrier()
    c.collect()
    c.close()


@case
def torch_groups():
    """Rank and size from torch.distributed, as the reference's programs have them, and its groups."""
    import torch.distributed as dist
    rank, n = int(os.environ.pop("IRIS_RANK")), int(os.environ.pop("IRIS_N_RANKS"))
    for name in ("IRIS_LOCAL_RANK", "IRIS_JOB"):
        os.environ.pop(name)
    dist.init_process_group("gloo", rank=rank, world_size=n, init_method=f"file://{os.environ['MEETING']}")
    ctx = iris.iris(HEAP)
    assert (ctx.get_rank(), ctx.get_num_ranks()) == (rank, n) and ctx.context.job.startswith("torch-")
    group = dist.new_group([0])
    if rank == 0:
        ctx.barrier(group=group)
        assert ctx.do_bench(lambda: None, n_warmup=0, n_repeat=1, group=group) >= 0
    assert ctx.use_group(group if rank == 0 else [0]).ranks == (0,)
    if rank == 0:
        ctx.barrier(group=group)
    everybody = dist.new_group(list(range(n)))
    x = ctx.ones(4)
    ctx.ccl.all_reduce(x, x, group=everybody)
    assert x.tolist() == [n] * 4
    raises(TypeError, lambda: ctx.barrier(group="world"), "group")
    ctx.barrier()
    ctx.close()
    dist.destroy_process_group()


@case
def training():
    """Data-parallel training of a small model whose parameters lie in the heap: the same weights on all ranks."""
    import csv
    with open("examples/data/digits.csv", encoding="utf-8") as file:
        rows = [[float(cell) for cell in row] for row in csv.reader(file) if row and row[0][:1].isdigit()]
    data = torch.tensor(rows)
    images, labels = data[:, :-1] / 16.0, data[:, -1].long()
    with iris.Context(HEAP) as c:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
        for parameter in model.parameters():
            parameter.data = c.empty_like(parameter).copy_(parameter.detach()).torch()
        images, labels = images[c.rank::c.n_ranks], labels[c.rank::c.n_ranks]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
        for step in range(60):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            for parameter in model.parameters():
                c.all_reduce(parameter.grad, op="avg")
            optimizer.step()
        right = (model(images).argmax(1) == labels).float().mean()
        assert right > 0.9, right
        weights = [p.detach().numpy().tobytes() for p in model.parameters()]
        assert all(theirs == weights for theirs in c.all_gather_object(weights))
        assert all(c.is_symmetric(p.detach()) for p in model.parameters())
        del model, optimizer, parameter
        c.barrier()


@case
def bad_input():
    """Each mistake is an exception before anything starts, and the context goes on."""
    with iris.Context(HEAP) as c:
        wrong = iris.InvalidArgumentError
        for call, texts in (
                (lambda: c.zeros(-1), ("(-1,)", "negative")),
                (lambda: c.zeros(3, -2), ("(3, -2)",)),
                (lambda: c.zeros(2**62, 4), ("overflows",)),
                (lambda: c.zeros(2**62, 0, 4), ("overflows",)),
                (lambda: c.full((2**40, 2**40), 1), ("overflows",)),
                (lambda: c.empty(3, dtype="float33"), ("float33", "bfloat16")),
                (lambda: c.empty(3, dtype=np.complex64), ("complex64",)),
                (lambda: c.empty(3, dtype=np.dtype(">f4")), ("f4",)),
                (lambda: c.empty(3, dtype=DType.NONE), ("NONE",)),
                (lambda: c.full(3, 300, dtype="u8"), ("300", "uint8", "0 to 255")),
                (lambda: c.full(3, -1, dtype="u64"), ("uint64",)),
                (lambda: c.arange(3, 0), ("leads away",)),
                (lambda: c.arange(0, 3, 0), ("step must not be 0",)),
                (lambda: c.arange(300, dtype="i8"), ("int8", "-128 to 127")),
                (lambda: c.arange(0.0, float("inf")), ("finite",)),
                (lambda: c.arange(2, dtype="bool"), ("bool",)),
                (lambda: c.linspace(0, 1, -1), ("negative",)),
                (lambda: c.linspace(0, 1000, 3, dtype="i8"), ("int8",)),
                (lambda: c.rand(3, dtype="i32"), ("randint",)),
                (lambda: c.randn(3, dtype="f8e4m3"), ("float8_e4m3fn",)),
                (lambda: c.randint(5, 5, (3,)), ("below 5",)),
                (lambda: c.randint(0, 300, (3,), dtype="u8"), ("uint8",)),
                (lambda: c.uniform((3,), 2.0, 1.0), ("no range",)),
                (lambda: c.zeros(3, device="meta"), ("device=meta",)),
                (lambda: c.zeros(3, out=np.zeros(3, np.float32)), ("not in the symmetric heap",)),
                (lambda: c.zeros(3, out=c.zeros(4)), ("(4,)", "(3,)")),
                (lambda: c.zeros(3, out=c.zeros(3, dtype="i32")), ("int32", "float32")),
                (lambda: c.allocate((3,), alignment_bytes=3), ("power of two",)),
                (lambda: c.allocate((3,), name="a\0b"), ("zero byte",)),
                (lambda: c.allocate((3,), name="x" * 1000), ()),
                (lambda: c.grow(-1), ("-1",)),
                (lambda: c.barrier(timeout=-1), ("not positive",)),
                (lambda: c.zeros(3).view_dtype("i16"), ("bytes",)),
                (lambda: iris.Generator(2**64), ("64 bits",)),
                (lambda: iris.Context(0), ("heap_bytes",)),
                (lambda: iris.Context(HEAP, rank=-2), ("rank",)),
                (lambda: c.locate(5), ()),
        ):
            raises(wrong, call, *texts)
        for call in (lambda: c.zeros(1.5), lambda: c.zeros("3"), lambda: c.zeros((2, "a")), lambda: c.zeros(None),
                     lambda: c.arange("3"), lambda: c.randint(3), lambda: c.randint(1.5, (3,)),
                     lambda: c.rand(3, generator=5), lambda: c.zeros_like(3), lambda: c.allocate((3,), name=5)):
            raises(TypeError, call)
        raises(iris.OutOfRangeError, lambda: c.team([0, 99]), "99")
        raises(iris.ResourceExhaustedError, lambda: c.zeros(1 << 40), "no room")
        if torch is not None:
            raises(iris.InvalidArgumentError, lambda: c.all_reduce(torch.zeros(4, 4).t()), "contiguous()")
            raises(iris.InvalidArgumentError, lambda: c.all_reduce(torch.zeros(4, dtype=torch.complex64)), "complex64")
            raises(iris.InvalidArgumentError, lambda: c.all_reduce(torch.zeros(4, device="meta")), "meta")
        if c.n_ranks > 1:
            # The ranks ask for different things: all of them are told, and by whom.
            raises(iris.InvalidArgumentError, lambda: c.zeros(3 + c.rank % 2))
        check(c.all_reduce(c.ones(3)), [c.n_ranks] * 3)
        c.barrier()


@case
def a_rank_ends():
    """The last rank dies: the others are told which, and with the library's own text."""
    c = iris.Context(HEAP, timeout=30)
    c.barrier()
    if c.rank == c.n_ranks - 1:
        os._exit(0)
    text = raises(iris.AbortedError, lambda: c.barrier(timeout=30), f"rank {c.n_ranks - 1}")
    raises(iris.AbortedError, c.health, f"rank {c.n_ranks - 1}")
    raises(iris.AbortedError, lambda: c.zeros(3))
    print("told:", text)
    c.close()


@case
def left_at_the_end():
    """A context that nobody closes is left when the interpreter ends: the peers hear that, and of no death."""
    c = iris.Context(HEAP)
    x = c.ones(3)
    c.barrier()
    if c.rank == c.n_ranks - 1:
        sys.modules["iris"].kept_for_ever = (c, x, x.numpy())
        return
    end = time.monotonic() + 30
    try:
        while time.monotonic() < end:
            c.health()
            time.sleep(0.01)
        raise AssertionError("nobody has said that the last rank has left")
    except iris.AbortedError as error:
        assert "left" in str(error) and f"rank {c.n_ranks - 1}" in str(error), error


def main():
    CASES[sys.argv[1]]()


@case
def matmuls():
    """iris.ops: every operation against numpy, what it refuses, workspaces, and calls that differ."""
    with iris.Context(HEAP) as context:
        n, me = context.n_ranks, context.rank
        m, columns, k = 37, 29, 24
        random_of = np.random.default_rng

        def small(seed, *shape):
            return random_of(seed).integers(-3, 4, shape).astype(np.float16)

        def part(array, axis, member=me):
            begin, count = iris.ops.share_of(array.shape[axis], n, member)
            return np.ascontiguousarray(array.take(range(begin, begin + count), axis))

        bias = small(7, columns)
        parts = [(small(10 + r, m, k), small(40 + r, k, columns)) for r in range(n)]
        total = sum(a.astype(np.float32) @ b.astype(np.float32) for a, b in parts)
        one = parts[0][0].astype(np.float32) @ parts[0][1].astype(np.float32)
        a, b = parts[me]
        whole_a, whole_b = parts[0]
        own_rows = part(total, 0).shape[0]
        for variant in ("auto", "fused", "pair"):
            c = context.zeros(m, columns)
            d = np.zeros((own_rows, columns), np.float32)  # the shares differ, and it need not be in the heap
            context.barrier()
            assert iris.ops.matmul_all_reduce(context, c, a, b, bias, variant=variant) is c
            check(c.numpy(), total + bias)
            context.barrier()
            iris.ops.matmul_reduce_scatter(context, d, a, np.ascontiguousarray(b.T).T, variant=variant,
                                           activation="relu")
            check(d, np.maximum(part(total, 0), 0))
            iris.ops.all_gather_matmul(context, c, part(whole_a, 0), whole_b, variant=variant)
            check(c.numpy(), one)
            context.barrier()
            iris.ops.matmul_all_gather(context, c, part(whole_a, 0), whole_b, bias, variant=variant)
            check(c.numpy(), one + bias)
            context.barrier()
            work = iris.ops.matmul_all_scatter(context, c, whole_a, part(whole_b, 1), part(bias, 0), True,
                                               variant=variant)
            assert work.wait() is c
            check(c.numpy(), one + bias)
            context.barrier()
        c = context.zeros(m, columns, dtype="bfloat16")
        workspace = iris.ops.matmul_all_reduce_preamble(context, c, a, b)
        assert iris.ops.matmul_all_reduce_preamble(context, c, a, b, workspace=workspace) is workspace
        plan = iris.ops.plan(context, "matmul_all_reduce", c, a, b, workspace=workspace)
        assert plan["variant"] in ("fused", "pair") and plan["blocks"] > 0, plan
        iris.ops.matmul_all_reduce(context, c, a, b, workspace=workspace)
        context.barrier()
        # A table of rules chooses the variant.
        prepare = iris.ops.matmul_all_reduce_preamble
        for variant in ("fused", "pair"):
            table = f"# measured\nmatmul_all_reduce any any any any {variant}\n"
            ruled = prepare(context, c, a, b, workspace=workspace, rules=table)
            assert ruled is not workspace and prepare(context, c, a, b, workspace=ruled) is ruled
            plan = iris.ops.plan(context, "matmul_all_reduce", c, a, b, workspace=ruled)
            assert plan["variant"] == variant, plan
            ruled.release()
        raises(iris.InvalidArgumentError, lambda: prepare(context, c, a, b, rules="\nmatmul_all_reduce any fast"),
               "line 2 of the rules", "six")
        call = iris.ops.matmul_all_reduce
        error = iris.InvalidArgumentError
        raises(error, lambda: call(context, c, a, b[1:], workspace=workspace), "24 columns", "23 rows")
        raises(error, lambda: call(context, c, a, b.astype(np.float32), workspace=workspace), "float16", "float32")
        raises(error, lambda: call(context, c, a[1:], b, workspace=workspace), "(36, 29)")
        raises(error, lambda: call(context, c, a[:, ::2], b[::2], workspace=workspace), "contiguous")
        raises(error, lambda: call(context, c, a, b, bias[1:], workspace=workspace), "28 elements")
        raises(error, lambda: call(context, c, a, b, workspace=context), "workspace")
        raises(error, lambda: call(context, c, a, b, workspace=workspace, activation="tanh"), "tanh")
        raises(error, lambda: call(context, c, a, b, workspace=workspace, variant="best"), "best")
        raises(error, lambda: call(context, c, a.ravel(), b, workspace=workspace), "two dimensions")
        raises(error, lambda: call(None, c, a, b), "context")
        if n > 1:
            outside = np.zeros((m, columns), np.float32)
            raises(error, lambda: call(context, outside, a, b, workspace=workspace), "symmetric heap")
            alone = context.world.split(me)
            raises(error, lambda: call(context, c, a, b, workspace=workspace, team=alone), "workspace is of the team")
        workspace.release()


@case
def experts():
    """iris.moe: dispatch and combine against numpy, what it refuses, and a choice that is none."""
    with iris.Context(HEAP) as context:
        n, me = context.n_ranks, context.rank
        n_experts, top_k, hidden, most = 2 * n + 1, 3, 40, 7

        def given(rank):
            random = np.random.default_rng(50 + rank)
            tokens = most - rank
            ids = np.stack([random.permutation(n_experts)[:top_k] for _ in range(tokens)]).astype(np.int64)
            ids[0, 1] = -1
            weights = random.integers(0, 9, (tokens, top_k)).astype(np.float32) / 8
            return random.integers(-9, 10, (tokens, hidden)).astype(np.float32), ids, weights

        x, ids, weights = given(me)
        exchange = iris.moe.Exchange(context, n_experts, top_k, hidden, most, dtype="float32", name="moe")
        for _ in range(2):
            got = exchange.dispatch(x, ids, weights)
            y = np.zeros((exchange.max_rows, hidden), np.float32)
            row = 0
            for e in range(exchange.local_experts):
                expert = exchange.first_expert + e
                wanted = [part for rank in range(n) for part, chosen in zip(given(rank)[0], given(rank)[1])
                          if expert in chosen]
                assert got.offsets.numpy()[e] == row and got.counts.numpy()[e] == len(wanted)
                for part in wanted:
                    check(got.rows.numpy()[row], part)
                    y[row] = part * (expert + 1)
                    row += 1
            assert got.offsets.numpy()[-1] == row and not got.dropped.numpy().any()
            out = np.zeros_like(x)
            assert exchange.combine(y, out, async_op=True).wait() is out
            check(out, x * np.where(ids < 0, 0, (ids + 1) * weights).sum(1, keepdims=True).astype(np.float32))
        error = iris.InvalidArgumentError
        raises(error, lambda: exchange.dispatch(x[:, 1:].copy(), ids, weights), "shape", "wanted")
        raises(error, lambda: exchange.dispatch(x, ids[1:], weights), "ids", "shape")
        raises(error, lambda: exchange.dispatch(x, ids.astype(np.float32), weights), "int32 or int64")
        raises(error, lambda: exchange.dispatch(x.astype(np.float16), ids, weights), "float16", "float32")
        raises(error, lambda: exchange.combine(y[1:], out), "shape")
        raises(error, lambda: iris.moe.Exchange(context, n_experts, 0, hidden, most), "top_k")
        raises(error, lambda: iris.moe.Exchange(context, n_experts, -1, hidden, most), "top_k")
        raises(error, lambda: iris.moe.Exchange(None, n_experts, 1, hidden, most), "context")
        context.barrier()
        if me == n - 1:
            ids[2, 0] = n_experts
        raises(iris.OutOfRangeError, lambda: exchange.dispatch(x, ids, weights), f"token 2 of rank {n - 1}",
               "moe_dispatch #", f" of {n} ranks: ", f"expert {n_experts}")
        raises(iris.FailedPreconditionError, lambda: context.all_reduce(x),
               "failed: check() says which and why, reset() makes it usable again")
        context.barrier()
        context.prepare().reset()
        small = iris.moe.Exchange(context, n_experts, top_k, hidden, most, capacity=1, dtype="float32",
                                  row_dtype="float8_e4m3fn")
        got = small.dispatch(x, given(me)[1], weights)
        assert got.rows.shape == (small.local_experts, hidden) and got.scales.shape == (small.local_experts, 1)
        assert (got.counts.numpy() <= 1).all()
        small.release()
        raises(iris.FailedPreconditionError, lambda: small.dispatch(x, ids, weights), "released")
        exchange.release()


@case
def norms():
    """iris.norm: both operations against numpy, in place and not, with scales, in a graph, and what it refuses."""
    with iris.Context(HEAP) as context:
        n, me = context.n_ranks, context.rank
        rows, hidden = 5, 300
        random_of = np.random.default_rng
        parts = [random_of(r).standard_normal((rows, hidden)).astype(np.float32) for r in range(n)]
        residual = random_of(50).standard_normal((rows, hidden)).astype(np.float32)
        weight = random_of(51).standard_normal(hidden).astype(np.float32)
        sums = np.sum(parts, axis=0) + residual

        def normed(r, gain):
            return r / np.sqrt((r * r).mean(axis=1, keepdims=True) + 1e-6) * gain

        def close(got, wanted, bound=1e-4):
            assert np.abs(np.asarray(got, np.float64) - wanted).max() <= bound, np.abs(got - wanted).max()

        call = iris.norm.all_reduce_rms_norm
        for variant in ("auto", "packets") + (("lines", "two_lines", "two_shot") if n > 1 else ("alone",)):
            x = residual.copy()
            out = context.zeros(rows, hidden)
            context.barrier()
            assert call(context, parts[me].copy(), weight, residual=x, output=out, variant=variant) is out
            close(x, sums)
            close(out.numpy(), normed(sums, weight))
            y = parts[me].copy()
            assert call(context, y, variant=variant, weight_offset=0.0) is y
            close(y, normed(sums - residual, 1))
        begin, count = iris.ops.share_of(rows, n, me)
        own = np.ascontiguousarray(residual[begin:begin + count])
        after = np.zeros_like(own)
        out = np.zeros((rows, hidden), np.float32)
        iris.norm.reduce_scatter_rms_norm_all_gather(context, parts[me], weight, residual=own, residual_output=after,
                                                     output=out, weight_offset=1.0)
        close(out, normed(sums, weight + 1))
        close(after, sums[begin:begin + count])

        # Columns of something wider, of which the others stay as they are; and half as many bits.
        wide = np.zeros((rows, hidden + 20), np.float32)
        wide[:, 5:5 + hidden] = parts[me]
        call(context, wide[:, 5:5 + hidden], weight, residual=residual.copy())
        close(wide[:, 5:5 + hidden], normed(sums, weight))
        assert not wide[:, :5].any() and not wide[:, 5 + hidden:].any()
        half = np.zeros((rows, hidden), np.float16)
        assert call(context, parts[me], weight, output=half) is half
        close(half, normed(sums - residual, weight), 4e-3)

        # float8, with a scale of each row and of 128 columns; the scales alone are looked at here.
        narrow = context.zeros(rows, hidden, dtype="f8e4m3")
        wanted = np.abs(normed(sums - residual, weight))
        scales = np.zeros(rows, np.float32)
        call(context, parts[me], weight, output=narrow, scales=scales)
        close(scales * 448, wanted.max(axis=1), 1e-3)
        scales = np.zeros((rows, 3), np.float32)
        call(context, parts[me], weight, output=narrow, scales=scales)
        close(scales[:, 2] * 448, wanted[:, 256:].max(axis=1), 1e-3)
        call(context, parts[me], weight, output=narrow, scale=np.full(1, 0.01, np.float32))

        source, out = context.zeros(rows, hidden), context.zeros(rows, hidden)
        plan = iris.norm.plan(context, "all_reduce_rms_norm", source, weight, output=out)
        assert plan["variant"] in iris.norm.VARIANTS and plan["blocks"] >= plan["parts"] >= 1, plan
        assert call(context, source, weight, output=out, async_op=True).wait() is out
        context.barrier()

        error = iris.InvalidArgumentError
        raises(error, lambda: call(context, weight), "two dimensions")
        raises(error, lambda: call(context, np.zeros((hidden, rows), np.float32).T), "contiguous")
        raises(error, lambda: call(context, source, weight[1:]), "299 elements")
        raises(error, lambda: call(context, source, residual=residual[1:]), "residual", "(5, 300)")
        raises(error, lambda: call(context, source, residual_output=source), "needs a residual")
        raises(error, lambda: call(context, source, output=narrow), "scaling")
        raises(error, lambda: call(context, source, output=narrow, scales=weight), "(5, 3)")
        raises(error, lambda: call(context, source, output=narrow, scale=weight), "1 is wanted")
        raises(error, lambda: call(context, source, variant="best"), "best")
        raises(error, lambda: call(context, source, epsilon=-1.0), "epsilon")
        raises(error, lambda: call(None, source), "context")
        raises(error, lambda: iris.norm.plan(context, "softmax", source), "softmax")
        context.barrier()


@case
def wrong_arrays():
    """Arrays and tensors whose memory is not what it looks like, or must not be written: each is refused, by name, and
    nothing has started."""
    with iris.Context(HEAP) as c:
        error = iris.InvalidArgumentError
        rows, hidden = 4, 64
        norm, product = iris.norm.all_reduce_rms_norm, iris.ops.matmul_all_reduce
        exchange = iris.moe.Exchange(c, np.int64(4), np.int32(2), hidden, rows, dtype="float32")
        x, out = np.ones((rows, hidden), np.float32), np.zeros((rows, hidden), np.float32)
        weight = np.ones(hidden, np.float32)
        ids = np.tile(np.array([[0, 3]], np.int32), (rows, 1))
        y, shares = np.ones((exchange.max_rows, hidden), np.float32), np.ones((rows, 2), np.float32)
        heap = c.zeros(rows, hidden)

        # A field of a structured array: its elements are 6 bytes apart, and those between are somebody else's.
        def field(*shape):
            return np.ones(shape, dtype=[("value", np.float32), ("other", np.int16)])["value"]

        strides = "no multiples of the 4"
        raises(error, lambda: norm(c, field(rows, hidden), weight, output=out), "the input", strides)
        raises(error, lambda: norm(c, x, weight, output=field(rows, hidden)), "the output", strides)
        raises(error, lambda: norm(c, x, field(hidden), output=out), "the weight", strides)
        raises(error, lambda: c.all_reduce(field(hidden)), "all_reduce: the input", strides)
        raises(error, lambda: c.put(heap[0], field(hidden), 0), "this rank's side", strides)
        raises(error, lambda: exchange.dispatch(field(rows, hidden), ids), "dispatch: x", strides)
        raises(error, lambda: product(c, heap, field(rows, 8), np.ones((8, hidden), np.float32)), "A: its strides")
        raises(error, lambda: norm(c, x.astype(">f4"), weight, output=out), "the input: elements of the type >f4")

        # What must not be written: bytes that everybody may have, and pages that end the process.
        locked = np.frombuffer(bytes(rows * hidden * 4), np.float32).reshape(rows, hidden)
        readonly = "read-only"
        raises(error, lambda: norm(c, locked, weight), "the input", readonly)
        raises(error, lambda: norm(c, x, weight, output=locked), "the output", readonly)
        raises(error, lambda: norm(c, x, weight, output=out, residual=locked), "the residual", readonly)
        raises(error, lambda: c.all_reduce(locked), "all_reduce: the input", readonly)
        raises(error, lambda: c.all_gather(x[0], locked), "all_gather: the output", readonly)
        if c.n_ranks > 1:
            raises(error, lambda: c.broadcast(locked, root=1 if c.rank == 0 else 0), "broadcast", readonly)
        raises(error, lambda: c.get(locked, heap, 0), "this rank's side", readonly)
        raises(error, lambda: exchange.combine(y, locked), "combine: out", readonly)

        # Shapes and values that an exchange does not take.
        raises(error, lambda: exchange.dispatch(x[0], ids), "(64,)", "(tokens, 64) is wanted")
        raises(error, lambda: exchange.dispatch(x, ids, x_scales=shares[:, :1].copy()), "leave x_scales out")
        raises(error, lambda: exchange.dispatch(x, ids, shares.view(np.int32)), "dispatch: weights", "float32")
        raises(error, lambda: norm(c, x, weight, output=out, epsilon="small"), "epsilon='small'")
        raises(error, lambda: iris.moe.Exchange(c, 4, 2.0, hidden, rows), "top_k=2.0", "an integer")
        shifted = np.zeros(rows * hidden * 4 + 1, np.uint8)[1:].view(np.float32).reshape(rows, hidden)
        raises(error, lambda: exchange.dispatch(shifted, ids), "x is not aligned")
        raises(error, lambda: norm(c, x, weight, output=shifted), "out is not aligned")

        if torch:
            graded = torch.ones(rows, hidden, requires_grad=True)
            plain = torch.ones(rows, hidden)
            for call, name in ((lambda: norm(c, graded, output=out), "the input"),
                               (lambda: norm(c, plain, graded[0], output=out), "the weight"),
                               (lambda: norm(c, plain, output=graded), "the output"),
                               (lambda: product(c, heap, graded, plain.t()), "A"),
                               (lambda: exchange.dispatch(graded, ids), "dispatch: x"),
                               (lambda: exchange.combine(y, graded), "combine: out")):
                raises(error, call, f"{name} requires a gradient", "no_grad()", "detach()")
            if hasattr(torch, "_neg_view"):
                negative = torch._neg_view(plain)  # as x.conj().imag has it
                raises(error, lambda: norm(c, negative, output=out), "the input", "resolve_neg()")
                raises(error, lambda: exchange.dispatch(negative, ids), "dispatch: x", "resolve_neg()")
            raises(error, lambda: norm(c, plain.to_sparse(), output=out), "the input", "to_dense()")
            raises(error, lambda: exchange.dispatch(plain.to_sparse(), ids), "dispatch: x", "to_dense()")
            with torch.no_grad():
                norm(c, graded, output=out)
            check(out, norm(c, plain.numpy(), output=np.zeros_like(out)))

        # None of it has harmed anything.
        exchange.dispatch(x, ids, shares)
        exchange.combine(y, out)
        check(out, 2 * np.ones_like(x))
        c.barrier()


if __name__ == "__main__":
    main()
