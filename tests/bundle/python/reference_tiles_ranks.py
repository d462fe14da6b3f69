"""The ranks of python_test.py that use the reference's tiles in kernels of Triton. Started as ranks.py is.

`reference_tiles_ranks.py all_cases` runs the kernels in Triton's interpreter, on emulated devices. With `gpus`, as
iris-gpu-check starts it, they are compiled, and a kernel of Gluon, too.
"""

import itertools
import os
import sys

ON_GPUS = sys.argv[1:] == ["gpus"]
if not ON_GPUS:
    os.environ["TRITON_INTERPRET"] = "1"
    sys.path.append("/usr/local/lib/iris/triton")

import numpy as np
import triton
import triton.language as tl

import iris
from iris import DeviceContext
from ranks import HEAP

ROWS, BLOCK_M, BLOCK_N = 20, 8, 16


def argument(tensor):
    """A tensor of the heap for a kernel."""
    if ON_GPUS:
        return tensor.torch()
    import triton_ranks
    return triton_ranks.argument(tensor)


def context_of(ctx):
    """The context tensor for a kernel."""
    if ON_GPUS:
        return ctx.get_device_context()
    import triton_ranks
    return triton_ranks.words(np.array((ctx.get_rank(), ctx.get_num_ranks()) + ctx.context.heap_bases, np.uint64))


@triton.jit
def every_sum(p, parts, sums, locks, came, context, M, N, stride_m, stride_n, rank: tl.constexpr, n: tl.constexpr,
              what: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr):
    """As programs of the reference do it: the values in registers go to `parts`, then the tile's word becomes 1."""
    ctx = DeviceContext.initialize(context, rank, n)
    given = iris.make_tensor_view(p, M, N, stride_m, stride_n)
    src_view = iris.make_tensor_view(parts, M, N, stride_m, stride_n)
    dst_view = iris.TensorView(sums, M, N, stride_m, stride_n)
    across = tl.cdiv(N, block_n)
    for number in range(tl.program_id(0), dst_view.number_of_tiles(block_m, block_n), tl.num_programs(0)):
        places, mask = given.tile_ptr(iris.TileView(number // across, number % across, block_m, block_n))
        tile = iris.Tile(number // across, number % across, block_m, block_n, tl.load(places, mask=mask, other=0))
        if what == "atomic":
            ctx.all_reduce_atomic(tile, dst_view)
        elif what == "spinlock":
            tl.store(came + number, ctx.all_reduce_spinlock(tile, dst_view, locks).to(tl.int32))
        elif what == "ring":
            ctx.all_reduce_ring(iris.TileView(number // across, number % across, block_m, block_n), given, dst_view)
        elif what == "functions":  # of a tile that has no values
            iris.x.publish(tile, src_view, locks, ctx)
            tile = iris.x.Tile(number // across, number % across, block_m, block_n)
            tl.store(came + number, iris.x.all_reduce_one_shot(tile, src_view, dst_view, locks, ctx).to(tl.int32))
        else:
            places, mask = src_view.tile_ptr(tile)
            tl.store(places, tile.data, mask=mask)
            tl.debug_barrier()
            tl.atomic_xchg(locks + number, 1, sem="release", scope="sys")
            if what == "one_shot":
                tl.store(came + number, ctx.all_reduce_one_shot(tile, src_view, dst_view, locks).to(tl.int32))
            elif what == "two_shot":
                tl.store(came + number, ctx.all_reduce_two_shot(tile, src_view, dst_view, locks).to(tl.int32))
            else:
                tl.store(came + number, ctx.reduce_scatter(tile, src_view, dst_view, locks).to(tl.int32))


@triton.jit
def every_sum_of_constants(p, parts, sums, locks, came, context, M: tl.constexpr, N: tl.constexpr,
                           stride_m: tl.constexpr, stride_n: tl.constexpr, rank: tl.constexpr, n: tl.constexpr,
                           what: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr):
    every_sum(p, parts, sums, locks, came, context, M, N, stride_m, stride_n, rank, n, what, block_m, block_n)


def sums(ctx):
    """Each way to add the ranks' tiles, of a matrix that is no multiple of them and whose rows lie apart."""
    c, n, r = ctx.context, ctx.get_num_ranks(), ctx.get_rank()
    columns, pitch = 40, 48
    tiles = (triton.cdiv(ROWS, BLOCK_M), triton.cdiv(columns, BLOCK_N))
    number = np.arange(tiles[0] * tiles[1]).reshape(tiles).repeat(BLOCK_M, 0).repeat(BLOCK_N, 1)[:ROWS, :columns]
    part = tiles[0] * tiles[1] // n
    mine = np.minimum(number // max(part, 1), n - 1) == r if part else np.full(number.shape, r == n - 1)
    p, parts = c.empty(ROWS, pitch, dtype="float16"), c.empty(ROWS, pitch, dtype="float16")
    results = {dtype: c.empty(ROWS, pitch, dtype=dtype) for dtype in ("float16", "float32")}
    locks, came = c.empty(tiles[0] * tiles[1], dtype="int32"), c.empty(tiles[0] * tiles[1], dtype="int32")
    for what, (dtype, kernel) in itertools.product(
            ("atomic", "spinlock", "ring", "one_shot", "two_shot", "reduce_scatter", "functions"),
            (("float16", every_sum), ("float32", every_sum_of_constants))):
        result = results[dtype]
        each = [np.random.default_rng(m).standard_normal((ROWS, pitch)).astype(np.float16) for m in range(n)]
        if what in ("atomic", "spinlock"):  # whose order is not known: sums that are exact
            each = [np.round(m * 8) for m in each]
        total = sum((m.astype(np.float32) for m in each[1:]), each[0].astype(np.float32)).astype(dtype)
        p.copy_(each[r])
        for tensor in (parts, result, locks, came):
            tensor.copy_(np.zeros(tensor.shape, tensor.dtype.long_name))
        ctx.barrier()
        kernel[(3,)](argument(p), argument(parts), argument(result), argument(locks), argument(came), context_of(ctx),
                     ROWS, columns, pitch, 1, r, n, what, BLOCK_M, BLOCK_N)
        ctx.barrier()
        wanted = np.zeros((ROWS, pitch), dtype)
        wanted[:, :columns] = total[:, :columns]
        if what == "reduce_scatter":
            wanted[:, :columns][~mine] = 0
        np.testing.assert_array_equal(result.to_host(), wanted, f"{what} {dtype} {kernel}")
        if what not in ("atomic", "ring"):
            assert came.tolist() == [1] * came.numel(), (what, came.tolist())
        if what == "spinlock":
            assert not any(locks.tolist()), locks.tolist()
        ctx.barrier()


@triton.jit
def every_move(p, q, context, M, N, to_M, to_N, share: tl.constexpr, source, rank: tl.constexpr, n: tl.constexpr,
               what: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr):
    ctx = DeviceContext.initialize(context, rank, n)
    src_view, dst_view = iris.make_tensor_view(p, M, N, N, 1), iris.make_tensor_view(q, to_M, to_N, to_N, 1)
    view = iris.TileView(tl.program_id(0), tl.program_id(1), block_m, block_n)
    places, mask = src_view.tile_ptr(view)
    tile = iris.Tile(tl.program_id(0), tl.program_id(1), block_m, block_n, tl.load(places, mask=mask, other=-1))
    if what == "rows":
        ctx.all_gather(tile, dst_view, dim=0)
    elif what == "columns":
        iris.x.all_gather(tile, dst_view, 1, ctx)
    elif what == "all_to_all":
        ctx.all_to_all(view, src_view, dst_view, share)
    else:
        target, inside = dst_view.tile_ptr(view)
        if what == "gather":
            tl.store(target, ctx.gather(view, src_view, source, hint=(1, 4)), mask=inside)
        else:
            tl.store(target, iris.x.gather(view, src_view, source, ctx, 4), mask=inside)


def moves(ctx):
    """The functions that move tiles, of a matrix that is no multiple of them: nothing beyond a part is written."""
    c, n, r = ctx.context, ctx.get_num_ranks(), ctx.get_rank()
    share = 12
    columns = share * n
    each = [(np.arange(ROWS * columns).reshape(ROWS, columns) % 97 + 100 * m).astype(np.float32) for m in range(n)]
    p = c.empty(ROWS, columns)
    p.copy_(each[r])
    tall = np.zeros((24, columns), np.float32)
    tall[:ROWS] = each[(r + 1) % n]
    cases = {"rows": np.concatenate(each, 0), "columns": np.concatenate(each, 1),
             "all_to_all": np.concatenate([m[:, r * share:(r + 1) * share] for m in each], 1),
             "gather": tall, "gather function": each[(r + 1) % n]}
    for what, wanted in cases.items():
        q = c.empty(*wanted.shape)
        q.copy_(np.full(wanted.shape, -5, np.float32))
        ctx.barrier()
        for turn in reversed(range(n)):  # a rank that wrote beyond its part would change the next rank's
            if turn == r:
                every_move[(triton.cdiv(ROWS, BLOCK_M), triton.cdiv(columns, BLOCK_N))](
                    argument(p), argument(q), context_of(ctx), ROWS, columns, *wanted.shape, share, (r + 1) % n, r, n,
                    what, BLOCK_M, BLOCK_N)
            ctx.barrier()
        np.testing.assert_array_equal(q.to_host(), wanted, what)
        ctx.barrier()


@triton.jit
def geometry_kernel(p, seen, offsets, order, M, N, stride_m, stride_n, block_m: tl.constexpr, block_n: tl.constexpr):
    view = iris.TileView(2, 1, block_m, block_n)
    matrix = iris.make_tensor_view(p, M, N, stride_m, stride_n)
    rm, rn, mask = view.layout(M, N)
    rows, columns = iris.Tile(2, 1, block_m, block_n, 0).indices()
    in_tile = tl.arange(0, block_m)[:, None] * block_n + tl.arange(0, block_n)[None, :]
    size: tl.constexpr = block_m * block_n
    tl.store(seen + in_tile, (rm[:, None] * 1000 + rn[None, :]) * 10 + mask.to(tl.int32))
    places, inside = iris.x.tile_ptr(p, M, N, stride_m, stride_n, 2, 1, block_m, block_n)
    tl.store(seen + size + in_tile, tl.load(places, mask=inside, other=-1))
    places, inside = matrix.tile_ptr_from_indices(rows - 1, columns + 2, block_m, block_n)
    tl.store(seen + 2 * size + in_tile, tl.load(places, mask=inside, other=-1))
    places, inside = matrix.offset_tile_ptr(view, offset_m=-1, offset_n=2, src_mask=mask)
    tl.store(seen + 3 * size + in_tile, tl.load(places, mask=inside, other=-1))
    places, inside = matrix.offset(1, 3).tile_ptr(iris.TileView(0, 0, block_m, block_n))
    tl.store(seen + 4 * size + in_tile, tl.load(places, mask=inside, other=-1))
    first, second = iris.x.compute_tile_offsets(rm, rn, stride_m, stride_n, 7, 5)
    tl.store(offsets + in_tile, first * 100000 + second)
    tl.store(offsets + size, matrix.number_of_tiles(block_m, block_n))
    for pid in range(23):
        tl.store(order + pid, iris.x.chiplet_transform_chunked(pid, 23, 3, 2))


def geometry(ctx):
    """Where a tile's elements are, by each of the ways to ask."""
    c = ctx.context
    columns, pitch, block = 30, 32, (BLOCK_M, BLOCK_N)
    values = np.arange(ROWS * pitch, dtype=np.int32).reshape(ROWS, pitch)
    p, seen = c.empty(ROWS, pitch, dtype="int32").copy_(values), c.zeros(5, *block, dtype="int32")
    offsets, order = c.zeros(BLOCK_M * BLOCK_N + 1, dtype="int64"), c.zeros(23, dtype="int32")
    geometry_kernel[(1,)](argument(p), argument(seen), argument(offsets), argument(order), ROWS, columns, pitch, 1,
                          *block)
    ctx.barrier()
    rows, across = 16 + np.arange(BLOCK_M)[:, None], 16 + np.arange(BLOCK_N)[None, :]
    padded = np.full((64, 64), -1)
    padded[:ROWS, :columns] = values[:, :columns]
    mask = (rows < ROWS) & (across < columns)
    wanted = [(rows * 1000 + across) * 10 + mask, padded[16:24, 16:32], padded[15:23, 18:34],
              np.where(mask, padded[15:23, 18:34], -1), values[1:1 + BLOCK_M, 3:3 + BLOCK_N]]
    np.testing.assert_array_equal(seen.to_host(), np.stack(wanted))
    assert offsets.tolist() == ((rows * pitch + across) * 100000 + rows * 7 + across * 5).ravel().tolist() + [6]
    # Programs 0, 3, 6, 9, ... run on the first of 3 chiplets, which has the chunks 0 1, 6 7 and 12 13.
    assert order.tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11, 12, 14, 16, 13, 15, 17, 18, 19, 20, 21, 22]
    ctx.barrier()


@triton.jit
def fresh_kernel(p, q, context, rank: tl.constexpr, n: tl.constexpr, size: tl.constexpr, modifier: tl.constexpr):
    ctx = DeviceContext.initialize(context, rank, n)
    at = tl.arange(0, size)
    wide = tl.reshape(at, (4, size // 4))
    mask = at < size - 3
    tl.store(q + at, ctx.load(p + at, (rank + 1) % n, mask, 7, modifier, True, 4))
    tl.store(q + size + wide, ctx.load(p + wide, (rank + 1) % n, cache_modifier=modifier, volatile=True, hint=(1, 4)))
    again = iris.load(p + wide, rank, (rank + 1) % n, ctx.heap_bases, None, None, modifier, True, 4)
    tl.store(q + 2 * size + wide, again)


def fresh_loads(ctx):
    """Volatile loads with each cache modifier, and hints for one dimension and for two."""
    c, n, r = ctx.context, ctx.get_num_ranks(), ctx.get_rank()
    size = 64
    p = c.empty(size, dtype="int32").copy_(np.arange(size, dtype=np.int32) + 100 * r)
    q = c.empty(3, size, dtype="int32")
    ctx.barrier()
    wanted = np.tile(np.arange(size) + 100 * ((r + 1) % n), (3, 1))
    wanted[0, -3:] = 7
    for modifier in (None, ".ca", ".cg", ".cv"):
        q.copy_(np.zeros((3, size), np.int32))
        fresh_kernel[(1,)](argument(p), argument(q), context_of(ctx), r, n, size, modifier)
        ctx.barrier()
        np.testing.assert_array_equal(q.to_host(), wanted, str(modifier))


def late(ctx):
    """A rank that does not come: the others' kernels end, say so, and store nothing."""
    c, n, r = ctx.context, ctx.get_num_ranks(), ctx.get_rank()
    if n == 1:
        return
    p, parts, result = c.full((8, 16), 1.0), c.zeros(8, 16), c.full((8, 16), 5.0)
    locks, came = c.zeros(1, dtype="int32"), c.full((1,), 9, dtype="int32")
    arguments = (argument(p), argument(parts), argument(result), argument(locks), argument(came), context_of(ctx),
                 8, 16, 16, 1, r, n)
    usual, iris.x.MAX_POLLS = iris.x.MAX_POLLS, 3
    ctx.barrier()
    for what in ("one_shot", "two_shot", "reduce_scatter"):
        if r == n - 1:
            continue
        every_sum[(1,)](*arguments, what, 8, 16)
        # The tile belongs to rank 0 in two_shot, and to the last one, which is not here, in reduce_scatter.
        waits = what == "one_shot" or what == "two_shot" and r == 0
        assert result.tolist() == [[5.0] * 16] * 8 and came.tolist() == [int(not waits)], (what, came.tolist())
    ctx.barrier()
    # A lock of the last rank that nobody gives back: its sum lacks the others' tiles, and theirs is complete.
    result.copy_(np.zeros((8, 16), np.float32))
    locks.copy_(np.full(1, int(r == n - 1), np.int32))
    ctx.barrier()
    iris.x.MAX_POLLS = 3000
    every_sum[(1,)](*arguments, "spinlock", 8, 16)
    ctx.barrier()
    assert came.tolist() == [0] and result.tolist() == [[0.0 if r == n - 1 else float(n)] * 16] * 8, result.tolist()
    iris.x.MAX_POLLS = usual
    ctx.barrier()


def kernels_of_gluon(ctx):
    """A kernel of Gluon, which knows the calling rank from the context tensor alone."""
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl

    from iris._gluon import IrisDeviceCtx

    @gluon.jit
    def to_the_next(IrisDeviceCtx: gl.constexpr, context, p, q, word, size: gl.constexpr, layout: gl.constexpr):
        ctx = IrisDeviceCtx.initialize(context)
        peer = (ctx.cur_rank + 1) % ctx.num_ranks
        at = gl.arange(0, size, layout=layout)
        ctx.put(p + at, q + at, peer)
        gl.store(q + size + at, ctx.load(p + at, peer))
        ctx.atomic_add(word, 3, peer)

    c, n, r = ctx.context, ctx.get_num_ranks(), ctx.get_rank()
    size, warp = 256, triton.runtime.driver.active.get_current_target().warp_size
    p, q, word = c.full((size,), r, dtype="int32"), c.zeros(2, size, dtype="int32"), c.zeros(1, dtype="int32")
    ctx.barrier()
    to_the_next[(1,)](IrisDeviceCtx, context_of(ctx), argument(p), argument(q), argument(word), size,
                      gl.BlockedLayout([1], [warp], [4], [0]))
    ctx.barrier()
    assert q.tolist() == [[(r - 1) % n] * size, [(r + 1) % n] * size] and word.tolist() == [3], q.tolist()


CASES = [sums, moves, geometry, fresh_loads]

if __name__ == "__main__":
    with iris.iris(HEAP) as joined:
        for case in [*CASES, kernels_of_gluon if ON_GPUS else late]:
            case(joined)
    print(f"{sys.argv[1]}: passed", flush=True)
