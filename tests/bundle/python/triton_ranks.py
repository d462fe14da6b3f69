"""The ranks of python_test.py that run kernels of Triton in its interpreter: `triton_ranks.py all_cases`, and an
example of the bundle, `triton_ranks.py PATH`.

The interpreter runs a kernel's program by program on the host, on the addresses that it is given. Those of an emulated
device are the host's, so that the kernels reach the real heaps of the other ranks.
"""

import os
import runpy
import sys
import types

os.environ["TRITON_INTERPRET"] = "1"
sys.path.append("/usr/local/lib/iris/triton")

import numpy as np
import triton
import triton.language as tl

import iris
from iris import DeviceContext
from ranks import HEAP, raises

BLOCK = 64
DTYPES = ("float16", "float32", "float64", "int8", "int32", "int64", "uint64")


class Pointer:
    """An argument of a kernel: a tensor's address, as the interpreter asks for it. `keep` keeps the memory."""

    def __init__(self, address, dtype, keep):
        self.address, self.dtype, self.keep = address, dtype, keep

    def data_ptr(self):
        return self.address

    # The interpreter makes the host's copy of a tensor: of memory of the host it is the same one.
    def untyped_storage(self):
        return self

    def cpu(self):
        return self

    def copy_(self, other):
        assert other is self

    def new_empty(self, *unused, **also):
        new = types.SimpleNamespace()
        new.set_ = lambda *arguments: new.__dict__.update(
            data_ptr=self.data_ptr, dtype=self.dtype, untyped_storage=lambda: self)
        return new

    def storage_offset(self):
        return 0

    size = stride = storage_offset


def argument(tensor, at=0):
    """A tensor of the heap for a kernel, from an element on."""
    return Pointer(tensor.data_ptr() + at * tensor.dtype.itemsize, tensor.dtype.long_name, tensor)


def words(array):
    return Pointer(array.ctypes.data, str(array.dtype), array)


@triton.jit
def move(p, q, bases, n, cur, peer, how: tl.constexpr, size: tl.constexpr):
    at = tl.program_id(0) * size + tl.arange(0, size)
    mask = at < n
    if how == "load":
        tl.store(q + at, iris.load(p + at, cur, peer, bases, mask=mask, other=0), mask=mask)
    elif how == "store":
        iris.store(q + at, tl.load(p + at, mask=mask), cur, peer, bases, mask=mask, hint=16, cache_modifier=".cs")
    elif how == "get":
        iris.get(p + at, q + at, cur, peer, bases, mask=mask, load_cache_modifier=".cg")
    elif how == "put":
        iris.put(p + at, q + at, cur, peer, bases, mask=mask)
    else:
        iris.copy(p + at, q + at, peer, cur, cur, bases, mask=mask)


@triton.jit
def move_by_context(p, q, context, n, cur: tl.constexpr, n_ranks: tl.constexpr, peer, how: tl.constexpr,
                    size: tl.constexpr):
    ctx = DeviceContext.initialize(context, cur, n_ranks)
    at = tl.program_id(0) * size + tl.arange(0, size)
    mask = at < n
    if how == "load":
        tl.store(q + at, ctx.load(p + at, peer, mask=mask, other=0), mask=mask)
    elif how == "store":
        ctx.store(q + at, tl.load(p + at, mask=mask), peer, mask=mask)
    elif how == "get":
        ctx.get(p + at, q + at, peer, mask=mask)
    elif how == "put":
        ctx.put(p + at, q + at, peer, mask=mask)
    else:
        ctx.copy(p + at, q + at, peer, cur, mask=mask)


@triton.jit
def readme(buffer, buffer_size: tl.constexpr, block_size: tl.constexpr, heap_bases):
    at = tl.program_id(0) * block_size + tl.arange(0, block_size)
    iris.store(buffer + at, 1, 0, 1, heap_bases, mask=at < buffer_size)


@triton.jit
def change(p, old, bases, value, cur, peer, op: tl.constexpr, size: tl.constexpr):
    at = tl.arange(0, size)
    mask = at < size - 1
    if op == "add":
        tl.store(old + at, iris.atomic_add(p + at, value, cur, peer, bases, mask=mask), mask=mask)
    elif op == "sub":
        tl.store(old + at, iris.atomic_sub(p + at, value, cur, peer, bases, mask=mask), mask=mask)
    elif op == "xchg":
        tl.store(old + at, iris.atomic_xchg(p + at, value, cur, peer, bases, mask=mask), mask=mask)
    elif op == "xor":
        tl.store(old + at, iris.atomic_xor(p + at, value, cur, peer, bases, mask=mask), mask=mask)
    elif op == "and":
        tl.store(old + at, iris.atomic_and(p + at, value, cur, peer, bases, mask=mask), mask=mask)
    elif op == "or":
        tl.store(old + at, iris.atomic_or(p + at, value, cur, peer, bases, mask=mask), mask=mask)
    elif op == "min":
        tl.store(old + at, iris.atomic_min(p + at, value, cur, peer, bases, mask=mask), mask=mask)
    elif op == "max":
        tl.store(old + at, iris.atomic_max(p + at, value, cur, peer, bases, mask=mask), mask=mask)


@triton.jit
def swap(p, old, bases, cmp, value, cur, peer):
    tl.store(old, iris.atomic_cas(p, cmp, value, cur, peer, bases))


@triton.jit
def count(p, bases, cur, peer, times):
    for _ in range(times):
        iris.atomic_add(p, 1, cur, peer, bases, sem="relaxed")


@triton.jit
def send(p, q, word, value, bases, cur, peer, size: tl.constexpr):
    at = tl.arange(0, size)
    iris.put_signal(p + at, q + at, word, value, cur, peer, bases, op="set")
    iris.signal(word + 1, 1, cur, peer, bases, op="add")


@triton.jit
def receive(word, value, came, compare: tl.constexpr, max_polls):
    tl.store(came, iris.wait_until(word, value, compare, max_polls).to(tl.int32))


def moving(c):
    """Everything is moved, with a masked tail, and what lies behind it stays."""
    n, r = c.n_ranks, c.rank
    peer = (r + 1) % n
    bases = np.array(c.heap_bases, np.uint64)
    context = np.array((r, n) + c.heap_bases, np.uint64)
    size = 3 * BLOCK - 5
    for dtype in DTYPES:
        theirs = c.empty(size + 5, dtype=dtype)
        for how in ("load", "store", "get", "put", "copy"):
            for by_context in (False, True):
                mine = c.full((size + 5,), 0, dtype=dtype)
                theirs.copy_((np.arange(size + 5) % 50 + r).astype(dtype))
                c.barrier()
                grid = (triton.cdiv(size, BLOCK),)
                if by_context:
                    move_by_context[grid](argument(theirs), argument(mine), words(context), size, r, n, peer, how,
                                          BLOCK)
                else:
                    move[grid](argument(theirs), argument(mine), words(bases), size, r, peer, how, BLOCK)
                c.barrier()
                # What was pushed came from the rank before this one, what was pulled from the next.
                source = (r - 1) % n if how in ("store", "put") else peer
                wanted = np.arange(size + 5) % 50 + source
                wanted[size:] = 0
                np.testing.assert_array_equal(mine.to_host(), wanted.astype(dtype), f"{dtype} {how} {by_context}")
                c.barrier()


def atomics(c):
    """Each operation, its old value, and counts that all ranks make at once."""
    n, r = c.n_ranks, c.rank
    peer = (r + 1) % n
    bases = np.array(c.heap_bases, np.uint64)
    size = 8
    results = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "xchg": lambda a, b: b, "xor": lambda a, b: a ^ b,
               "and": lambda a, b: a & b, "or": lambda a, b: a | b, "min": min, "max": max}
    for dtype in ("int32", "int64", "uint64"):
        for op, result in results.items():
            words_of_mine = c.empty(size, dtype=dtype).copy_(np.arange(size).astype(dtype) + 10 * r)
            old = c.zeros(size, dtype=dtype)
            c.barrier()
            change[(1,)](argument(words_of_mine), argument(old), words(bases), 6, r, peer, op, size)
            c.barrier()
            assert old.tolist() == [i + 10 * peer for i in range(size - 1)] + [0], (dtype, op, old.tolist())
            wanted = [result(i + 10 * r, 6) for i in range(size - 1)] + [size - 1 + 10 * r]
            assert words_of_mine.tolist() == [w % 2**64 if dtype == "uint64" else w for w in wanted], (
                dtype, op, words_of_mine.tolist())
            c.barrier()
        word, old = c.zeros(1, dtype=dtype), c.zeros(1, dtype=dtype)
        c.barrier()
        for cmp, value, wanted in ((0, 5, 0), (0, 7, 5), (5, 9, 5)):
            swap[(1,)](argument(word), argument(old), words(bases), cmp, value, r, peer)
            assert old.tolist() == [wanted], (cmp, old.tolist())
        c.barrier()
        assert word.tolist() == [9]
    total = c.zeros(1, dtype="int32")
    c.barrier()
    count[(2,)](argument(total), words(bases), r, 0, 50)
    c.barrier()
    assert total.at(0).tolist() == [100 * n]
    c.barrier()


def messages(c):
    """Put with signal around the ring, and waits that end without one."""
    n, r = c.n_ranks, c.rank
    peer = (r + 1) % n
    bases = np.array(c.heap_bases, np.uint64)
    data, inbox = c.zeros(BLOCK), c.zeros(BLOCK)
    word = c.zeros(2, dtype="uint64")
    came = np.zeros(1, np.int32)
    c.barrier()
    for turn in range(1, 6):
        data.copy_(np.arange(BLOCK) + 100.0 * turn + r)
        send[(1,)](argument(data), argument(inbox), argument(word), turn, words(bases), r, peer, BLOCK)
        receive[(1,)](argument(word), turn, words(came), "ge", 10_000_000)
        assert came[0] == 1 and inbox.tolist() == [i + 100 * turn + (r - 1) % n for i in range(BLOCK)]
        receive[(1,)](argument(word, 1), turn, words(came), "eq", 10_000_000)
        assert came[0] == 1 and word.tolist() == [turn, turn]
        c.barrier()
    for compare, value, wanted in (("eq", 5, 1), ("eq", 4, 0), ("ne", 4, 1), ("ne", 5, 0), ("gt", 4, 1), ("gt", 5, 0),
                                   ("ge", 5, 1), ("ge", 6, 0), ("lt", 6, 1), ("lt", 5, 0), ("le", 5, 1), ("le", 4, 0)):
        receive[(1,)](argument(word), value, words(came), compare, 3)
        assert came[0] == wanted, (compare, value)
    c.barrier()


def example(c):
    """The kernel of the reference's first example."""
    buffer = c.zeros(4096)
    bases = np.array(c.heap_bases, np.uint64)
    c.barrier()
    if c.rank == 0:
        readme[lambda meta: (triton.cdiv(4096, meta["block_size"]),)](argument(buffer), 4096, 1024, words(bases))
    c.barrier()
    assert buffer.to_host().sum() == (4096 if c.rank == 1 else 0)
    c.barrier()


def benchmark(c):
    """do_bench: what it calls, how often, and what it gives back."""
    calls = []
    x = c.ones(1000)
    times = c.do_bench(lambda: c.all_reduce(x), n_warmup=1, n_repeat=4, preamble_fn=lambda: calls.append("before"),
                       return_mode="all")
    assert len(times) == 4 and min(times) > 0 and len(calls) == 6
    assert c.all_gather_object(times) == [times] * c.n_ranks
    low, middle, high = c.do_bench(lambda: c.all_reduce(x), n_warmup=0, n_repeat=3, quantiles=(0, 0.5, 1))
    assert 0 < low <= middle <= high
    assert c.do_bench(lambda: None, n_warmup=0, n_repeat=2, quantiles=[0.5], flushed_bytes=0) >= 0
    mine = iris.do_bench(lambda: None, n_warmup=0, n_repeat=2, flushed_bytes=0)
    assert isinstance(mine, float) and mine >= 0
    for wrong in (dict(return_mode="most"), dict(n_repeat=0), dict(quantiles=[2])):
        raises(iris.InvalidArgumentError, lambda: iris.do_bench(lambda: None, n_warmup=0, flushed_bytes=0, **wrong))
    c.barrier()


def all_cases():
    raises(iris.FailedPreconditionError, lambda: iris.do_bench(lambda: None), "context")
    with iris.Context(HEAP) as c:
        moving(c)
        atomics(c)
        messages(c)
        if c.n_ranks > 1:
            example(c)
        benchmark(c)


def example_of_the_bundle(path):
    import torch
    if not hasattr(torch.Tensor, "untyped_storage"):  # of torch 1, which the interpreter does not know any more
        torch.Tensor.untyped_storage = torch.Tensor.storage
    sys.argv = [path]
    runpy.run_path(path, run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1] == "all_cases":
        all_cases()
    else:
        example_of_the_bundle(sys.argv[1])
