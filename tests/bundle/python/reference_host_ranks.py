"""The ranks of python_test.py that use the host side of iris.iris(): factories, the heap, broadcast, as_symmetric.

`reference_host_ranks.py CASE` runs one case, and without a case all of them.
"""

import inspect
import io
import logging
import os
import sys
import time

import numpy as np
import torch

import iris
from iris import _foreign, _ref_heap, _ref_tensors, tensor
from ranks import HEAP, raises, shareable


def write(address, count, value):
    """Sets float32 numbers at an address, which may be a peer's, and waits."""
    where = _foreign.tensor_from_ptr(address, 4 * count, device=None)
    assert where.fill_(value).tolist() == [value] * count


def a_factory_returns_when_all_copies_have_their_values(ctx):
    """A peer that writes at once must not be overwritten: the last rank fills its copy late."""
    context, last = ctx.context, ctx.num_ranks - 1

    def late(function):

        def slow(*arguments, **options):
            if ctx.cur_rank == last:
                time.sleep(0.05)
            return function(*arguments, **options)

        return slow

    fill, stream = tensor.Tensor._fill, _foreign.own_torch_stream
    tensor.Tensor._fill, _foreign.own_torch_stream = late(fill), late(stream)
    try:
        for make in (lambda: context.zeros(4), lambda: context.ones(4), lambda: context.arange(4.0),
                     lambda: context.rand(4), lambda: context.full((4,), 2.0),
                     lambda: context.as_symmetric(torch.ones(4, device=ctx.device), copy=True),
                     lambda: ctx.zeros(4), lambda: ctx.ones(4), lambda: ctx.randn(4), lambda: ctx.linspace(0, 1, 4),
                     lambda: ctx.zeros_like(torch.ones(4, device=ctx.device)),
                     lambda: ctx.as_symmetric(torch.ones(4, device=ctx.device))):
            keep = context.ones(1000)
            keep.free()  # so that the next one is not fresh
            made = make()
            at = made.data_ptr() - int(ctx.heap_bases[ctx.cur_rank]) + int(ctx.heap_bases[last])
            if ctx.cur_rank == 0:
                write(at, 4, 7.0)
            ctx.barrier()
            assert ctx.cur_rank != last or made.tolist() == [7.0] * 4, made.tolist()
            ctx.barrier()
    finally:
        tensor.Tensor._fill, _foreign.own_torch_stream = fill, stream


def fresh_memory_is_not_filled(ctx):
    context = ctx.context
    first = context.full((100,), 3.0)
    first.free()
    again = context.zeros(100)
    assert again.offset_bytes == first._storage.allocation.offset_bytes and not again._storage.fresh
    assert again.tolist() == [0.0] * 100
    before, new = context.empty(1 << 20), context.empty(1 << 20)  # the first may contain memory that others had
    assert new._storage.fresh and new.offset_bytes > before.offset_bytes and not new.to_host().any()
    assert np.signbit(context.full((2,), -0.0).to_host()).all()


def shapes_types_and_values(ctx):
    """They are torch's."""
    kinds = {"device": ctx.device}
    for size in ((2, 3, 4), ((2, 3, 4),), ([2, 3, 4],), (((2, 3, 4),),), (0, 3), ((),)):
        for name in ("zeros", "ones", "empty", "rand", "randn"):
            made = getattr(ctx, name)(*size)
            shape = (0, 3) if 0 in size else () if size == ((),) else (2, 3, 4)
            assert made.shape == shape and made.dtype == torch.float32 and ctx.is_symmetric(made), (name, size)
    assert not ctx.zeros(5).any() and ctx.ones(5).all()
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.bool, torch.complex64,
                  torch.complex128):
        made = ctx.full((3,), 1, dtype=dtype)
        assert made.dtype == dtype and made.tolist() == [1] * 3 and ctx.is_symmetric(made)
        assert made.data_ptr() % 1024 == 0
    assert ctx.full((2,), True).dtype == ctx.full(2, 5).dtype == torch.int64
    assert ctx.full((2,), 1.5).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    assert ctx.zeros(1).dtype == ctx.linspace(0, 1, 3).dtype == ctx.arange(0, 1, 0.5).dtype == torch.float64
    assert ctx.uniform(2).dtype == torch.float32
    torch.set_default_dtype(torch.float32)
    for arguments in ((5,), (2, 9), (2, 9, 3), (0.0, 1.0, 0.25), (5, 0, -1)):
        assert torch.equal(ctx.arange(*arguments), torch.arange(*arguments, **kinds))
    assert torch.equal(ctx.linspace(0, 10, 5), torch.linspace(0, 10, 5, **kinds))
    for steps in (5, (5,), [5], ((5,),)):
        assert ctx.linspace(torch.tensor(0.0, **kinds), torch.tensor(1.0), steps).tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert ctx.linspace(0, 1, (2, 3)).shape == (6,)
    line = ctx.linspace(0, 1 + 1j, 5)
    assert line.dtype == torch.complex64 and line.tolist() == [0, 0.25 + 0.25j, 0.5 + 0.5j, 0.75 + 0.75j, 1 + 1j]
    assert ctx.linspace(torch.tensor(1j), 0, 3, None, torch.complex128).tolist() == [1j, 0.5j, 0]
    # Random numbers are torch's, and each rank has its own.
    torch.manual_seed(5 + ctx.cur_rank)
    got = [ctx.rand(4), ctx.randn(4), ctx.randint(9, (4,)), ctx.randint(-3, 3, (2, 2)), ctx.uniform((4,), 2.0, 3.0)]
    torch.manual_seed(5 + ctx.cur_rank)
    wanted = [torch.rand(4, **kinds), torch.randn(4, **kinds), torch.randint(9, (4,), **kinds),
              torch.randint(-3, 3, (2, 2), **kinds), torch.empty(4, **kinds).uniform_(2.0, 3.0)]
    assert all(map(torch.equal, got, wanted)), (got, wanted)
    one, other = (torch.Generator(device=ctx.device).manual_seed(3) for _ in range(2))
    assert torch.equal(ctx.rand(4, generator=one), torch.rand(4, generator=other, **kinds))
    assert ctx.rand(3, pin_memory=True).shape == ctx.empty(3, pin_memory=True).shape == (3,)
    assert ctx.rand(3, dtype=torch.complex64, requires_grad=True).requires_grad


def formats(ctx):
    """channels_last stays, other strides do not."""
    wide = torch.ones(2, 3, 4, 5, device=ctx.device).to(memory_format=torch.channels_last)
    for made in (ctx.zeros_like(wide), ctx.empty(2, 3, 4, 5, memory_format=torch.channels_last),
                 ctx.zeros_like(wide.contiguous(), memory_format=torch.channels_last)):
        assert made.is_contiguous(memory_format=torch.channels_last) and not made.is_contiguous()
        assert made.stride() == wide.stride() and ctx.is_symmetric(made)
    assert not ctx.zeros_like(wide).any()
    deep = ctx.empty(2, 3, 4, 5, 6, memory_format=torch.channels_last_3d)
    assert deep.is_contiguous(memory_format=torch.channels_last_3d)
    for made in (ctx.zeros_like(wide, memory_format=torch.contiguous_format), ctx.zeros_like(wide[0, 0].t()),
                 ctx.empty(2, 3, memory_format=torch.channels_last)):
        assert made.is_contiguous()
    like = ctx.zeros_like(wide, dtype=torch.int32)
    assert like.dtype == torch.int32 and ctx.zeros_like(wide, requires_grad=True).requires_grad


def what_factories_refuse(ctx):
    """The types of errors are the reference's."""
    for wrong in (lambda: ctx.zeros(2, device="xpu"), lambda: ctx.arange(3, device="xpu"),
                  lambda: ctx.zeros(3, out=ctx.heap.allocate(4, torch.float32)),
                  lambda: ctx.ones(3, out=ctx.heap.allocate(3, torch.int32)),
                  lambda: ctx.rand(3, out=torch.zeros(3, device=ctx.device)),
                  lambda: ctx.empty(3, out=torch.zeros(3, device=ctx.device)),
                  lambda: ctx.randint(5, 5, (2,)), lambda: ctx.full((2,), 1j),
                  lambda: ctx.ones(2, dtype=torch.int32, requires_grad=True)):
        raises(RuntimeError, wrong)
    for wrong in (lambda: ctx.zeros(2, layout=torch.sparse_coo), lambda: ctx.randint(5),
                  lambda: ctx.randint(1, 2, 3, 4), lambda: ctx.arange(0, 5, 0), lambda: ctx.arange(5, 0),
                  lambda: ctx.arange(0, 5, -1), lambda: ctx.arange(3, 3), lambda: ctx.heap.allocate(-1, torch.float32)):
        raises(ValueError, wrong)
    raises(MemoryError, lambda: ctx.empty(1 << 40))
    raises(TypeError, lambda: ctx.randint(low=0, high=5, size=(2,)))


def out(ctx):
    """`out` is filled, and is not collective."""
    memory = ctx.heap.allocate(6, torch.float32)
    if ctx.cur_rank == 0:
        for make, wanted in ((lambda: ctx.ones((2, 3), out=memory), [[1.0] * 3] * 2),
                             (lambda: ctx.zeros(6, out=memory), [0.0] * 6),
                             (lambda: ctx.full((6,), 3, dtype=torch.float32, out=memory), [3.0] * 6),
                             (lambda: ctx.linspace(0, 5, 6, memory), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])):
            made = make()
            assert made.data_ptr() == memory.data_ptr() and made.tolist() == wanted
        assert ctx.arange(6, dtype=torch.float32, out=memory) is memory and memory.tolist() == [0, 1, 2, 3, 4, 5]
        for name in ("rand", "randn", "empty"):
            assert getattr(ctx, name)(3, 2, out=memory).shape == (3, 2)
        assert ctx.randint(1, 2, (6,), dtype=torch.float32, out=memory).tolist() == [1.0] * 6
    ctx.barrier()


def the_heap(ctx):
    heap, rank = ctx.heap, ctx.cur_rank
    assert (heap.cur_rank, heap.num_ranks, heap.heap_size) == (rank, ctx.num_ranks, HEAP)
    assert heap.get_device() == ctx.get_device() == torch.device(ctx.device)
    made = heap.allocate(100, torch.float16, 4096)
    assert made.shape == (100,) and made.data_ptr() % 4096 == 0
    outside = torch.zeros(100, device=ctx.device)
    for question in (heap.is_symmetric, heap.on_symmetric_heap, heap.allocator.owns_tensor, ctx.is_symmetric):
        assert question(made) and question(made[50:]) and question(made[::2]) and not question(outside)
        assert question(heap.allocate(0, torch.int64)) and question(ctx.zeros(4, 0))
        assert question(ctx.zeros(3, dtype=torch.complex64)) and question(ctx.zeros(2, 3).t())
    base = heap.allocator.get_base_address()
    assert base == int(heap.get_heap_bases()[rank]) <= made.data_ptr() < base + heap.allocator.aligned_heap_size
    assert heap.refresh_peer_access() is None and heap.close_fd_conns() is None and heap.fd_conns is None
    assert heap.allocator.get_minimum_allocation_size() == 0 and heap.allocator.allocate(3, torch.int8).shape == (3,)
    assert heap.get_heap_bases() is ctx.get_heap_bases() is ctx.heap_bases
    assert str(ctx.heap_bases.dtype) in ("torch.uint64", "torch.int64")
    words = ctx.get_device_context()
    assert words.dtype == torch.int64 and words.tolist()[:2 + ctx.num_ranks] == [rank, ctx.num_ranks,
                                                                                *map(int, ctx.heap_bases.tolist())]
    raises(NotImplementedError, heap.allocator.get_shareable_handle, "get_heap_bases")
    raises(NotImplementedError, lambda: _ref_heap.TorchAllocator(1 << 20, 0, 0, 1), "iris.iris()")
    raises(ValueError, lambda: iris.iris(HEAP, "other"), "vmem")
    # The functions of a heap.
    made = _ref_tensors.zeros(heap, ctx.get_device(), ((2, 3),))
    assert made.shape == (2, 3) and heap.is_symmetric(made)
    assert _ref_tensors.parse_size(((2, 3),)) == ((2, 3), 6) and _ref_tensors.parse_size(()) == ((), 1)
    assert _ref_tensors.allocate(heap, 3, torch.float32).shape == (3,)


def broadcasts(ctx):
    last = ctx.num_ranks - 1

    def of_last(value, **where):
        return ctx.broadcast(value if ctx.cur_rank == last else None, **(where or {"src": last}))

    for value in (42, 2.5, True, "text", None, {"a": [1]}, ["a", 1], ("x",), 1j, b"bytes"):
        got = of_last(value)
        assert got == value and type(got) is type(value), (got, value)
    for value in (torch.arange(6).reshape(2, 3), np.arange(6).reshape(2, 3), [[0, 1, 2], [3, 4, 5]],
                  ctx.arange(6).view(2, 3)):
        got = of_last(value)
        assert isinstance(got, np.ndarray) and got.dtype == np.int64 and got.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert of_last(torch.ones(2, dtype=torch.float16), source_rank=last).dtype == np.float16
    assert of_last(torch.ones(2, dtype=torch.bfloat16)).tolist() == [1, 1]
    assert ctx.broadcast(ctx.cur_rank) == 0 and ctx.broadcast(torch.ones(2, 2, requires_grad=True)).shape == (2, 2)


def symmetric_copies(ctx):
    """As the reference's allocator "torch" does it."""
    own = torch.arange(6, device=ctx.device).reshape(2, 3) + ctx.cur_rank
    made = ctx.as_symmetric(own)
    assert ctx.is_symmetric(made) and not ctx.is_symmetric(own) and torch.equal(made, own)
    made.fill_(0)
    assert own.any()
    again = ctx.as_symmetric(made)
    assert again.data_ptr() != made.data_ptr()
    assert ctx.as_symmetric(torch.full((2,), 1j, device=ctx.device)).tolist() == [1j, 1j]
    assert ctx.as_symmetric(torch.tensor(5.0, device=ctx.device)).shape == ()
    for wrong in (own.t(), own[:, :2], 5):
        raises(RuntimeError, lambda given=wrong: ctx.as_symmetric(given))


def shared_memory(given):
    """As the reference's allocator "vmem" does it. Memory that cannot be shared moves into the heap."""
    ctx = iris.iris(HEAP, "vmem", job=f"{given.context.job}-vmem")
    rank, n = ctx.cur_rank, ctx.num_ranks
    assert isinstance(ctx.heap.allocator, _ref_heap.VMemAllocator)
    own = torch.full((100,), float(rank), device=ctx.device)
    old = own.view(10, 10)
    made = ctx.as_symmetric(own)
    assert ctx.is_symmetric(made) and not ctx.is_symmetric(own) and made.tolist() == [rank] * 100
    ctx.barrier()
    there = made.data_ptr() + int(ctx.heap_bases[(rank + 1) % n]) - int(ctx.heap_bases[rank])
    write(there, 100, 50.0 + rank)
    ctx.barrier()
    assert own.tolist() == made.tolist() == [50.0 + (rank - 1) % n] * 100
    own.fill_(9.0)
    assert made.tolist() == [9.0] * 100 and own.shape == (100,)
    assert ctx.get_device().type != "cpu" or old.tolist() == [[rank] * 10] * 10  # a view of the memory that it had
    weight = torch.nn.Parameter(torch.ones(3, device=ctx.device))
    shared = ctx.as_symmetric(weight)
    weight.sum().backward()
    with torch.no_grad():
        weight -= weight.grad
    assert shared.tolist() == [0.0] * 3 and weight.is_leaf and weight.requires_grad
    whole = ctx.as_symmetric(torch.full((2, 2), 1j, device=ctx.device))
    assert whole.dtype == torch.complex64 and whole.shape == (2, 2) and ctx.is_symmetric(whole)
    if ctx.get_device().type == "cpu":  # memory that can be shared stays where it is
        own_memory, array = shareable()
        lent = torch.from_numpy(array)
        at = lent.data_ptr()
        theirs = ctx.as_symmetric(lent)
        assert ctx.is_symmetric(theirs) and not ctx.is_symmetric(lent) and lent.data_ptr() == at
        theirs.fill_(3.0)
        assert lent.shape == theirs.shape and lent.eq(3.0).all()
        os.close(own_memory)
    assert ctx.heap.allocator.import_external_tensor(torch.ones(2, device=ctx.device)).tolist() == [1, 1]
    ctx.barrier()
    ctx.heap.allocator.close()
    assert own.tolist() == [9.0] * 100  # it stays
    raises(iris.FailedPreconditionError, ctx.barrier)


def log_lines(ctx):
    where = io.StringIO()
    handler = logging.StreamHandler(where)
    handler.setFormatter(iris.logging.IrisFormatter())
    iris.logger.addHandler(handler)
    level = iris.logger.level
    iris.set_logger_level(iris.INFO)
    ctx.debug("not shown")
    ctx.info("a line")
    iris.logger.info("of nobody")
    iris.logger.removeHandler(handler)
    iris.set_logger_level(level)
    assert where.getvalue() == f"[Iris] [{ctx.cur_rank}/{ctx.num_ranks}] a line\n[Iris] of nobody\n", where.getvalue()


def signatures(ctx):
    """The arguments by position are the reference's, and so are the names of the others."""
    common = "out dtype layout device requires_grad"
    for name, wanted in {"zeros": f"*size {common}", "ones": f"*size {common}", "full": f"size fill_value {common}",
                         "empty": f"*size {common} pin_memory memory_format",
                         "zeros_like": "input dtype layout device requires_grad memory_format",
                         "arange": f"start end step {common}", "linspace": f"start end steps {common}",
                         "rand": f"*size generator {common} pin_memory",
                         "randn": f"*size generator {common} pin_memory",
                         "uniform": "size low high dtype", "randint": f"*args generator {common}"}.items():
        parameters = inspect.signature(getattr(ctx, name)).parameters.values()
        assert wanted.split() == ["*" * (p.kind is p.VAR_POSITIONAL) + p.name for p in parameters], name
        assert any(p.kind is p.KEYWORD_ONLY for p in parameters) == (name not in ("linspace", "uniform")), name


CASES = (a_factory_returns_when_all_copies_have_their_values, fresh_memory_is_not_filled, shapes_types_and_values,
         formats, what_factories_refuse, out, the_heap, broadcasts, symmetric_copies, shared_memory, log_lines,
         signatures)

if __name__ == "__main__":
    context = iris.iris(HEAP)
    for case in CASES:
        if len(sys.argv) == 1 or case.__name__ in sys.argv[1:]:
            case(context)
            context.barrier()
    context.close()
