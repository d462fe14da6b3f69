"""The ranks of python_test.py for `ctx.ccl`, `ctx.ops` and process groups of torch, with the meaning that they have in
the reference's documentation: `reference_collectives_ranks.py CASE` runs the function of that name on each rank.
"""

import os
import sys
import time

import torch

import iris
from iris import _ccl, _fused, ops
from iris._ccl import Config, ReduceOp
from ranks import HEAP, raises

WRONG = iris.InvalidArgumentError
CASES = {}
TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.float64, torch.int8)


def case(function):
    CASES[function.__name__] = function
    return function


def numbers(rows, columns, rank, dtype=torch.float32):
    """A matrix whose elements differ by place and rank, and whose sums over four ranks are exact in every type."""
    places = torch.arange(rows * columns).reshape(rows, columns)
    return ((places * 7 + rank * 5) % 23).to(dtype)


def filled(ctx, matrix):
    """A matrix in the heap with these values."""
    found = ctx.empty(tuple(matrix.shape), dtype=matrix.dtype)
    found.copy_(matrix)
    return found


def same(got, wanted):
    assert got.dtype == wanted.dtype and torch.equal(got.cpu(), wanted.cpu()), (got, wanted)


def total(ranks, rows, columns, dtype):
    return sum(numbers(rows, columns, rank, torch.float64) for rank in ranks).to(dtype)


def by_columns(matrix):
    """The same matrix with contiguous columns."""
    return matrix.t().contiguous().t()


def collectives_of(ctx, ranks, group=None):
    """Every collective of a group, against what each element must be."""
    me, n = ctx.get_rank(), len(ranks)
    index = ranks.index(me)
    for dtype in TYPES:
        for rows, columns in ((5, 12), (64, 40)):
            x = filled(ctx, numbers(rows, columns, me, dtype))
            y = ctx.empty((rows, columns), dtype=dtype)
            wide = ctx.zeros((n * rows + 3, columns), dtype=dtype)
            ctx.barrier(group=group)
            found = ctx.ccl.all_reduce(y, x, group=group)
            same(y, total(ranks, rows, columns, dtype))
            same(x, numbers(rows, columns, me, dtype))
            assert found.shape == (rows, columns) and found.dtype == dtype and not found.prepared
            ctx.ccl.all_gather(wide[:n * rows], x, group=group)
            for place, rank in enumerate(ranks):
                same(wide[place * rows:(place + 1) * rows], numbers(rows, columns, rank, dtype))
            assert not wide[n * rows:].any()
            ctx.ccl.all_reduce(x, x, group=group)  # in place
            same(x, total(ranks, rows, columns, dtype))
    rows, each = 6, 5
    x = filled(ctx, numbers(rows, each * n, me))
    y = ctx.empty((rows, each * n))
    ctx.barrier(group=group)
    ctx.ccl.all_to_all(y, x, group=group, async_op=True)
    ctx.barrier(group=group)
    for place, rank in enumerate(ranks):
        same(y[:, place * each:(place + 1) * each],
             numbers(rows, each * n, rank)[:, index * each:(index + 1) * each])
    # Matrices of other strides: parts of larger ones, and with contiguous columns.
    large = ctx.zeros((rows + 2, 2 * each * n + 3))
    flat = ctx.zeros((each * n, rows))
    large[1:1 + rows, 1:1 + each * n] = x
    ctx.barrier(group=group)
    ctx.ccl.all_to_all(flat.t(), large[1:1 + rows, 1:1 + each * n], group=group)
    same(flat.t(), y)
    ctx.ccl.all_reduce(flat.t(), large[1:1 + rows, 1:1 + each * n], group=group)
    same(flat.t(), total(ranks, rows, each * n, torch.float32))
    ctx.ccl.all_reduce(flat.t(), flat.t(), group=group)
    same(flat.t(), n * total(ranks, rows, each * n, torch.float32))
    several = ctx.zeros((n * rows, each * n + 1))
    ctx.barrier(group=group)
    ctx.ccl.all_gather(several[:, :each * n], x, group=group)
    for place, rank in enumerate(ranks):
        same(several[place * rows:(place + 1) * rows, :each * n], numbers(rows, each * n, rank))
    assert not several[:, each * n].any()
    # Sums of 16-bit floats are rounded once.
    for dtype, large in ((torch.float16, 2048.0), (torch.bfloat16, 256.0)):
        pair = ctx.zeros((4, 3), dtype=dtype).t()
        pair += large if index == 0 else 1
        ctx.barrier(group=group)
        ctx.ccl.all_reduce(pair, pair, group=group)
        assert (pair == torch.tensor(large + n - 1).to(dtype)).all(), pair
    tiles_of(ctx, ranks, group)
    ctx.barrier(group=group)


def owner(row, column, rows, columns, config, n):
    """The place of the rank to which the reference gives an element: tiles are numbered in groups of swizzle_size rows
    of tiles, in each by columns; places take them in turn, or the first ones the first, rounded up."""
    down, across = -(-rows // config.block_size_m), -(-columns // config.block_size_n)
    i, j = row // config.block_size_m, column // config.block_size_n
    first = i // config.swizzle_size * config.swizzle_size
    number = first * across + j * min(config.swizzle_size, down - first) + i - first
    return number // -(-down * across // n) if config.all_reduce_distribution else number % n


def tiles_of(ctx, ranks, group=None):
    """reduce_scatter: a rank has its own tiles, and nothing else changes."""
    me, n = ctx.get_rank(), len(ranks)
    index = ranks.index(me)
    for rows, columns, block_m, block_n, swizzle, dtype in (
            (32, 48, 8, 16, 4, torch.float32), (37, 50, 8, 16, 3, torch.float16), (40, 33, 4, 8, 1, torch.int32),
            (9, 100, 4, 8, 2, torch.bfloat16), (5, 7, 16, 16, 4, torch.float64), (64, 8, 2, 8, 4, torch.float32)):
        x = filled(ctx, numbers(rows, columns, me, dtype))
        ctx.barrier(group=group)
        for distribution in (0, 1):
            config = Config(block_size_m=block_m, block_size_n=block_n, swizzle_size=swizzle,
                            all_reduce_distribution=distribution)
            y = ctx.full((rows, columns), 77, dtype=dtype)
            ctx.ccl.reduce_scatter(y, x, group=group, config=config)
            mine = torch.tensor([[owner(i, j, rows, columns, config, n) == index for j in range(columns)]
                                 for i in range(rows)])
            same(y, torch.where(mine, total(ranks, rows, columns, dtype), torch.full((), 77, dtype=dtype)))
    place = ctx.groups.of(group)
    for config in (Config(), Config(all_reduce_distribution=0)):
        parts = [part for member in range(n) for part in _ccl.parts_of(
            8192, 8192, 32, 64, 4, range(member, 256 * 128, n) if not config.all_reduce_distribution else
            range(member * (-(-256 * 128 // n)), min((member + 1) * (-(-256 * 128 // n)), 256 * 128)))]
        assert sum(part.height * part.width * part.n_times for part in parts) == 8192**2 and len(parts) < 1200
    assert place.ranks == tuple(ranks)


@case
def ccl():
    """The world's collectives, and the errors of ccl."""
    with iris.iris(HEAP) as ctx:
        me, n = ctx.get_rank(), ctx.get_num_ranks()
        collectives_of(ctx, list(range(n)))
        x, y = filled(ctx, numbers(64, 64, me)), ctx.zeros((64, 64))
        ctx.barrier()
        workspace = None
        for variant in ("atomic", "ring", "two_shot", "one_shot", "spinlock"):
            config = Config(all_reduce_variant=variant)
            workspace = ctx.ccl.all_reduce_preamble(y, x, config=config, workspace=workspace)
            assert workspace.prepared and workspace.variant == variant
            y.zero_()
            assert ctx.ccl.all_reduce(y, x, ReduceOp.SUM, None, False, config, workspace) is workspace
            same(y, total(range(n), 64, 64, torch.float32))
            assert not workspace.prepared
        assert ctx.ccl.all_gather(ctx.zeros((64 * n, 64)), x, config=Config(all_gather_variant="partitioned")) is None
        same(y, total(range(n), 64, 64, torch.float32))
        # The functions with the context as an argument.
        y.zero_()
        ctx.barrier()
        _ccl.all_reduce(y, x, ctx, workspace=_ccl.all_reduce_preamble(y, x, ctx))
        same(y, total(range(n), 64, 64, torch.float32))
        ctx.barrier()
        _ccl.all_to_all(y, x, ctx)
        assert y[0, 0] == numbers(64, 64, 0)[0, 64 // n * me]
        assert _ccl.extract_group_info(None, ctx) == (me, me, n, 0, 1)
        # What a call must not do.
        for op in (ReduceOp.PRODUCT, ReduceOp.MAX, ReduceOp.BXOR, "min"):
            raises(WRONG, lambda: ctx.ccl.all_reduce(y, x, op), "all_reduce" if op != ReduceOp.BXOR else "BXOR")
            raises(WRONG, lambda: ctx.ccl.reduce_scatter(y, x, op))
        gluon = Config(use_gluon=True)
        raises(WRONG, lambda: ctx.ccl.all_reduce(y, x, config=gluon), "use_gluon")
        raises(WRONG, lambda: ctx.ccl.reduce_scatter(y, x, config=gluon), "use_gluon")
        raises(WRONG, lambda: ctx.ccl.all_gather(y[:3], x), "(3, 64)", str((64 * n, 64)))
        raises(WRONG, lambda: ctx.ccl.reduce_scatter(y[:, :9], x), "(64, 9)")
        raises(WRONG, lambda: ctx.ccl.all_to_all(y[:, :-1], x), "(64, 63)")
        raises(WRONG, lambda: ctx.ccl.all_to_all(x[0], y[0]), "two dimensions")
        if n > 1:
            raises(WRONG, lambda: ctx.ccl.all_to_all(y[:, :2 * n + 1], x[:, :2 * n + 1]), "multiple")
            raises(WRONG, lambda: ctx.ccl.all_to_all(y.cpu().clone(), x), "symmetric heap")
            raises(WRONG, lambda: ctx.ccl.all_gather(
                ctx.zeros((64 * n, 64)), x, config=Config(all_gather_variant="partitioned", comm_sms=2 * n + 1)),
                "partitioned")
            raises(WRONG, lambda: ctx.ccl.all_reduce(
                y, x, config=Config(all_reduce_variant="ring", block_size_n=1)), "ring")
        raises(WRONG, lambda: ctx.ccl.all_to_all(x, x), "is the input")
        # A workspace that was prepared for larger blocks.
        for variant in ("spinlock", "ring"):
            prepared = ctx.ccl.all_reduce_preamble(y, x, Config(all_reduce_variant=variant, block_size_m=64))
            raises(WRONG, lambda: ctx.ccl.all_reduce(
                y, x, config=Config(all_reduce_variant=variant, block_size_m=16), workspace=prepared), "too small")
        for name, values in (
                ("block_size_m", (0, -1)), ("block_size_n", (0,)), ("swizzle_size", (0,)), ("comm_sms", (0,)),
                ("num_xcds", (0,)), ("all_gather_variant", ("ring",)), ("all_reduce_variant", ("two", "Ring")),
                ("all_reduce_distribution", (2,)), ("all_reduce_num_rings", (0,)),
                ("all_reduce_ring_slice_n", (0, 48, 128)), ("reduce_scatter_variant", ("ring",)),
                ("threads_per_warp", (16,)), ("num_warps", (0,))):
            for value in values:
                assert isinstance(raises(ValueError, lambda: Config(**{name: value}), name), str)
        assert Config(block_size_n=24 * 2, all_reduce_ring_slice_n=16).all_reduce_ring_slice_n == 16
        config = Config()
        assert (config.block_size_m, config.block_size_n, config.swizzle_size, config.comm_sms) == (32, 64, 4, 64)
        assert config.chunk_size == min(16, 64 // config.num_xcds) and config.all_reduce_ring_slice_n == 64
        ctx.barrier()


def product(ctx, dtype, m, n, k):
    """Each rank's own A and B, as every rank knows them."""
    world = ctx.get_num_ranks()
    generator = torch.Generator().manual_seed(m * n + k)
    return [tuple(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in ((m, k), (k, n)))
            for _ in range(world)]


def near(got, wanted, dtype, scale):
    """Within a few last places of the type, of the largest value."""
    limit = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype] * scale
    error = (got.double().cpu() - wanted).abs().max().item()
    assert got.dtype == dtype and error <= limit, (error, limit)


@case
def fused():
    """ctx.ops and iris.ops with what iris.iris() returned, against products in float64."""
    with iris.iris(HEAP) as ctx:
        me, world = ctx.get_rank(), ctx.get_num_ranks()
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for m, n, k, columns_first in ((64, 48, 32, False), (72, 40, 24, False), (32, 64, 16, True)):
                config = _fused.FusedConfig(block_size_m=16, block_size_n=16, block_size_k=8)
                both = product(ctx, dtype, m, n, k)
                sums = [a.double() @ b.double() for a, b in both]
                scale = float(k)**0.5 * 4
                a, b = (filled(ctx, each) for each in both[me])
                if columns_first:
                    b = filled(ctx, both[me][1].t()).t()
                c = ctx.full((m, n), 3, dtype=dtype)
                ctx.barrier()
                for variant in ("two_shot", "atomic", "one_shot", "spinlock", "ring"):
                    config.all_reduce_variant = variant
                    found = ctx.ops.matmul_all_reduce(c, a, b, config=config)
                    near(c, sum(sums), dtype, scale * world)
                    assert found.operation == "matmul_all_reduce" and found.shape == (m, n, k)
                    assert ops.matmul_all_reduce(ctx, c.zero_(), a, b, False, config, found) is found
                    near(c, sum(sums), dtype, scale * world)
                # A rank's tiles row by row, as many for each, the rest for the last; all others are zero.
                for block_m, block_n in ((16, 16), (m // world if m % world == 0 else 8, n), (24, 32)):
                    config = _fused.FusedConfig(block_size_m=block_m, block_size_n=block_n, block_size_k=8)
                    across = -(-n // block_n)
                    each = -(-m // block_m) * across // world
                    tile = torch.tensor([[i // block_m * across + j // block_n for j in range(n)] for i in range(m)])
                    mine = (tile >= me * each) & ((tile < (me + 1) * each) | (me == world - 1))
                    c.fill_(3)
                    ctx.ops.matmul_reduce_scatter(c, a, b, config=config)
                    near(c, torch.where(mine, sum(sums), torch.zeros((), dtype=torch.float64)), dtype, scale * world)
                # The products of the next call do not overwrite those that a late rank reads.
                other, sum_at = torch.zeros_like(c), ctx.ccl.sum_at
                ctx.ccl.sum_at = lambda *given: (time.sleep(0.02 * (me == 0)), sum_at(*given))
                ops.matmul_reduce_scatter(ctx, c, a, b, config=config, async_op=True)
                ops.matmul_reduce_scatter(ctx, other, a + a, b, config=config, async_op=True)
                del ctx.ccl.sum_at
                ctx.barrier()
                for found, factor in ((c, 1), (other, 2)):
                    near(found, torch.where(mine, factor * sum(sums), torch.zeros((), dtype=torch.float64)), dtype,
                         2 * scale * world)
                # The ranks' rows one below the other.
                rows, bias = ctx.zeros((world * m, n), dtype=dtype), filled(ctx, both[me][0][:, 0])
                config = _fused.FusedConfig(block_size_m=16, block_size_n=16, block_size_k=8)
                ctx.barrier()
                ctx.ops.matmul_all_gather(rows, a, b, config=config)
                near(rows, torch.cat(sums), dtype, scale)
                ctx.barrier()  # because others write the rows
                ctx.ops.matmul_all_gather(rows, a, b, bias, config=config)
                near(rows, torch.cat([s + x[:, :1].double() for s, (x, _) in zip(sums, both)]), dtype, scale)
                # The ranks' columns of A beside each other.
                whole = torch.cat([x for x, _ in both], 1)
                tall = filled(ctx, torch.cat([y for _, y in both], 0))
                ctx.barrier()
                ctx.ops.all_gather_matmul(c, a, tall, config=config)
                near(c, whole.double() @ tall.double().cpu(), dtype, scale * world)
                ctx.ops.all_gather_matmul(c, a, tall, bias)
                near(c, whole.double() @ tall.double().cpu() + bias.double().cpu()[:, None], dtype, scale * world)
                for layout in ("k_contiguous", "m_contiguous"):
                    found = _fused.all_gather_matmul_hbm_buffer_preamble(ctx, a, tall, staged_a_layout=layout)
                    assert found.aux_buffer.shape == (m, k * world) and found.aux_buffer.stride()[layout[0] == "k"] == 1
                    _fused.all_gather_matmul_hbm_buffer(ctx, c.zero_(), a, tall, workspace=found)
                    near(c, whole.double() @ tall.double().cpu(), dtype, scale * world)
                ctx.barrier()
        refused(ctx, a, b, c)
        # With a Context, the operations are Iris's own.
        a, b, c = (ctx.ones((2, 4), dtype=torch.float16), ctx.ones((4, 2), dtype=torch.float16),
                   ctx.zeros((2, 2), dtype=torch.float16))
        ctx.barrier()
        assert ops.matmul_all_reduce(ctx.context, c, a, b, torch.ones(2).half().to(c.device)) is c
        ctx.barrier()
        assert c.float().tolist() == [[4 * world + 1] * 2] * 2
        ctx.barrier()


def refused(ctx, a, b, c):
    """The errors of ctx.ops, before anything starts."""
    m, k = a.shape
    world, call = ctx.get_num_ranks(), ctx.ops.matmul_all_reduce
    small = _fused.FusedConfig(block_size_m=8, block_size_n=8, block_size_k=8)
    raises(WRONG, lambda: call(c, a[0], b, config=small), "two dimensions")
    raises(WRONG, lambda: call(c, a[:, 1:], b, config=small), str(k - 1))
    raises(WRONG, lambda: call(c[1:], a, b, config=small), str(m - 1))
    raises(WRONG, lambda: call(c, a.float(), b, config=small), "float32")
    raises(AssertionError, lambda: call(c, a, b), "256")
    raises(AssertionError, lambda: call(c, a, b, config=_fused.FusedConfig(8, 8, 512)), "512")
    raises(iris.UnimplementedError, lambda: call(c, a, b, c[0], config=small), "bias")
    raises(iris.UnimplementedError, lambda: ctx.ops.matmul_reduce_scatter(c, a, b, c[0], config=small), "bias")
    raises(WRONG, lambda: ctx.ops.matmul_reduce_scatter(c[1:], a, b, config=small), str(m - 1))
    raises(AssertionError, lambda: ctx.ops.all_gather_matmul(c, a, b[1:]), str(k * world))
    raises(AssertionError, lambda: ctx.ops.matmul_all_gather(c[1:], a, b, config=small), str(m - 1))
    raises(AssertionError, lambda: ctx.ops.matmul_all_gather(ctx.zeros((world * m, c.shape[1])), a, b), "256")
    raises(AssertionError, lambda: _fused.all_gather_matmul_hbm_buffer_preamble(
        ctx, a, torch.cat([b] * world), _fused.FusedConfig(block_size_m=m + 1, block_size_k=8)), str(m + 1))
    raises(iris.UnimplementedError, lambda: _fused.all_gather_matmul_hbm_buffer(
        ctx, c, a, torch.cat([b] * world), trace=True), "trace")
    # Workspaces that were prepared for larger blocks.
    large = _fused.FusedConfig(block_size_m=m, block_size_n=8, block_size_k=8)
    prepared = ops.matmul_all_reduce_preamble(ctx, c, a, b, large)
    assert prepared.matches("matmul_all_reduce", (m, b.shape[1], k), a.dtype, world, "two_shot")
    raises(WRONG, lambda: call(c, a, b, config=small, workspace=prepared), "too small")
    prepared = ops.matmul_reduce_scatter_preamble(ctx, c, a, b, large)
    raises(WRONG, lambda: ctx.ops.matmul_reduce_scatter(c, a, b, config=small, workspace=prepared), "too small")
    prepared.clear()
    assert not prepared.prepared and prepared.locks is None
    for name, value in (("block_size_m", 0), ("block_size_n", -1), ("block_size_k", 0), ("group_size_m", 0),
                        ("num_sms", 0), ("num_xcds", 0), ("chunk_size", 0), ("all_reduce_variant", "two"),
                        ("all_reduce_num_rings", 0)):
        raises(ValueError, lambda: _fused.FusedConfig(**{name: value}).validate(), name)
    raises(ValueError, lambda: _fused.FusedConfig(block_size_n=7, all_reduce_variant="ring").validate(2), "ring")


@case
def groups():
    """Process groups of torch, which only their members use, and of which no team is made."""
    import torch.distributed as dist
    rank, n = int(os.environ.pop("IRIS_RANK")), int(os.environ.pop("IRIS_N_RANKS"))
    for name in ("IRIS_LOCAL_RANK", "IRIS_JOB"):
        os.environ.pop(name)
    dist.init_process_group("gloo", rank=rank, world_size=n, init_method=f"file://{os.environ['MEETING']}-{n}")
    ctx = iris.iris(2 * HEAP)
    evens, odds = range(0, n, 2), range(1, n, 2)
    for parts in ((evens, odds), (range(n // 2), range(n // 2, n)), (range(n),)):
        made = [dist.new_group(list(ranks)) for ranks in parts]
        ranks, group = next((list(ranks), group) for ranks, group in zip(parts, made) if rank in ranks)
        collectives_of(ctx, ranks, group)
        assert _ccl.extract_group_info(group, ctx) == (
            ranks.index(rank), rank, len(ranks), ranks[0], ranks[1] - ranks[0] if len(ranks) > 1 else 1)
    # Groups that only some ranks use, while the others do nothing. Their barriers, on the host and on a stream, come
    # after what a late member did before.
    words, x = ctx.zeros(n, dtype=torch.int64), ctx.ones((4, 4))
    ctx.barrier()
    for ranks in (list(range(n - 1)), [0, n - 1], [n - 1]):
        group = dist.new_group(ranks)
        if rank not in ranks:
            raises(TypeError, lambda: ctx.barrier(group=group), "group")  # torch's mark for those outside
            continue
        for turn in range(1, 7):
            if turn % len(ranks) == ranks.index(rank):
                time.sleep(0.02)
            for each in ranks:
                ctx.groups.at(words, each, "words")[rank] += 1
            (ctx.barrier if turn % 2 else ctx.device_barrier)(group=group)
            assert all(words[each] >= turn for each in ranks), (turn, words)
        y = x.new_empty(4, 4)
        ctx.ccl.all_reduce(y, x, group=group)
        same(y, x * len(ranks))
        # All members have the times of the slowest one.
        times = ctx.do_bench(lambda: time.sleep(0.01 * ranks.index(rank)), n_warmup=0, n_repeat=2, return_mode="all",
                             group=group)
        assert len(times) == 2 and min(times) >= 10 * (len(ranks) - 1), times
        x.fill_(int(times[0] * 1000))
        ctx.barrier(group=group)
        ctx.ccl.all_reduce(y, x, group=group)
        same(y, x * len(ranks))
        x.fill_(1)
        ctx.barrier(group=group)
    ctx.barrier()
    raises(TypeError, lambda: ctx.ccl.all_reduce(x, x, group="world"), "group")
    # With a team, Iris's own collectives are used, and those of `context` take it.
    group = dist.new_group(list(evens))
    team = ctx.use_group(group if rank in evens else evens)
    x = ctx.full((4,), float(rank))
    ctx.barrier()
    if rank in evens:
        assert ctx.groups.of(group).team is team
        ctx.ccl.all_reduce(x, x, group=group)
        assert x.tolist() == [float(sum(evens))] * 4
        collectives = ctx.context.all_gather_object(rank, team=team)
        assert collectives == list(evens)
    else:
        raises(iris.FailedPreconditionError, lambda: ctx.barrier(group=team), "no member")
    ctx.barrier()
    ctx.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    CASES[sys.argv[1]]()
