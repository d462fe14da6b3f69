"""Collectives of one tile, called from kernels of Triton: `iris.x`.

A kernel iterates over the tiles of a matrix, and calls these functions for each tile. The functions and the classes
Tile and TensorView have the names of the reference. All ranks call the same function for the same tile, with matrices
of the symmetric heap.

    view = iris.x.TensorView(source, M, N, N, 1)
    tile = iris.x.Tile(tl.program_id(0), tl.program_id(1), 64, 64)
    iris.x.all_gather(tile, view, iris.x.TensorView(target, n * M, N, N, 1), 0, ctx)

Sizes, strides and blocks are tl.constexpr; blocks are powers of 2, and a tile may exceed the matrix. Other ranks' data
must be ready: after a barrier, or, in functions with `locks`, once the other rank's word of this tile is 1 or more; the
functions wait for it. Locks stay set: zero them between two barriers before the next use. Sums of 16-bit floats are in
float32, in the order of the ranks, so that all ranks that sum get the same bits.
"""

import triton
import triton.language as tl

from iris._triton import _aggregate_or_class, _constructor, atomic_add, load, signal, translate, wait_until


@_aggregate_or_class
class Tile:
    """A tile: its place (pid_m, pid_n), counted in tiles, its size, and its values if a function takes them."""

    pid_m: tl.tensor
    pid_n: tl.tensor
    block_m: tl.constexpr
    block_n: tl.constexpr
    data: tl.tensor

    @_constructor
    def __init__(self, pid_m, pid_n, block_m, block_n, data=None):
        self.pid_m = pid_m
        self.pid_n = pid_n
        self.block_m = tl.constexpr(block_m)
        self.block_n = tl.constexpr(block_n)
        self.data = pid_m if data is None else data


@_aggregate_or_class
class TensorView:
    """A matrix of M rows and N columns. Strides are elements."""

    ptr: tl.tensor
    M: tl.constexpr
    N: tl.constexpr
    stride_m: tl.constexpr
    stride_n: tl.constexpr

    @_constructor
    def __init__(self, ptr, M, N, stride_m, stride_n):
        self.ptr = ptr
        self.M = tl.constexpr(M)
        self.N = tl.constexpr(N)
        self.stride_m = tl.constexpr(stride_m)
        self.stride_n = tl.constexpr(stride_n)


@triton.jit
def tile_ptr(view, tile, offset_m=0, offset_n=0):
    """Returns the pointers of a tile's elements, and a mask of those inside the matrix. Offsets: rows and columns."""
    rows = tile.pid_m * tile.block_m + tl.arange(0, tile.block_m) + offset_m
    columns = tile.pid_n * tile.block_n + tl.arange(0, tile.block_n) + offset_n
    mask = (rows[:, None] < view.M) & (columns[None, :] < view.N)
    places = rows[:, None].to(tl.int64) * view.stride_m + columns[None, :] * view.stride_n
    return view.ptr + places, mask


@triton.jit
def tile_id(view, tile):
    """Returns the tile's number, row by row, which is the index of its word in `locks`."""
    return tile.pid_m * tl.cdiv(view.N, tile.block_n) + tile.pid_n


@triton.jit
def publish(tile, view, locks, ctx):
    """Stores the tile's values into this rank's own matrix, and sets the tile's lock to 1: other ranks may read it."""
    places, mask = tile_ptr(view, tile)
    tl.store(places, tile.data, mask=mask)
    signal(locks + tile_id(view, tile), 1, ctx.rank, ctx.rank, ctx.heap_bases)


@triton.jit
def all_gather(tile, src_view, dst_view, dim: tl.constexpr, ctx):
    """Copies the tile of every rank's src_view into this rank's dst_view: that of rank r is placed r * M rows (dim 0)
    or r * N columns (dim 1) further on, where src_view is M x N."""
    source, mask = tile_ptr(src_view, tile)
    for r in range(ctx.world_size):
        if dim == 0:
            target, inside = tile_ptr(dst_view, tile, r * src_view.M, 0)
        else:
            target, inside = tile_ptr(dst_view, tile, 0, r * src_view.N)
        tl.store(target, load(source, ctx.rank, r, ctx.heap_bases, mask=mask), mask=mask & inside)


@triton.jit
def all_to_all(tile, src_view, dst_view, N_per_rank: tl.constexpr, ctx):
    """Fills a tile of dst_view, whose columns from r * N_per_rank on are the columns from rank() * N_per_rank on of
    rank r's src_view. Both have N_per_rank columns for each rank."""
    target, inside = tile_ptr(dst_view, tile)
    columns = tile.pid_n * tile.block_n + tl.arange(0, tile.block_n)
    first = tile.pid_n * tile.block_n // N_per_rank
    last = tl.minimum((tile.pid_n * tile.block_n + tile.block_n - 1) // N_per_rank, ctx.world_size - 1)
    for r in range(first, last + 1):
        source, mask = tile_ptr(src_view, tile, 0, (ctx.rank - r) * N_per_rank)
        mine = inside & mask & ((columns >= r * N_per_rank) & (columns < (r + 1) * N_per_rank))[None, :]
        tl.store(target, load(source, ctx.rank, r, ctx.heap_bases, mask=mine), mask=mine)


@triton.jit
def _summed(tile, src_view, locks, ctx):
    """Returns the sum of the ranks' tiles, and true if all of them arrived."""
    source, mask = tile_ptr(src_view, tile)
    narrow: tl.constexpr = src_view.ptr.dtype.element_ty.primitive_bitwidth == 16
    kind: tl.constexpr = tl.float32 if narrow else src_view.ptr.dtype.element_ty
    total = tl.zeros((tile.block_m, tile.block_n), kind)
    missing = 0
    for r in range(ctx.world_size):
        lock = translate(locks + tile_id(src_view, tile), ctx.rank, r, ctx.heap_bases)
        if wait_until(lock, 1) == 0:
            missing += 1
        total += load(source, ctx.rank, r, ctx.heap_bases, mask=mask, other=0).to(kind)
    return total, missing == 0


@triton.jit
def all_reduce_one_shot(tile, src_view, dst_view, locks, ctx):
    """Stores the sum of all ranks' tiles of src_view in this rank's dst_view, which is another matrix. Waits for each
    rank's lock of the tile, which publish() sets. Returns false if one was not set in time."""
    total, came = _summed(tile, src_view, locks, ctx)
    target, mask = tile_ptr(dst_view, tile)
    tl.store(target, total.to(dst_view.ptr.dtype.element_ty), mask=mask)
    return came


@triton.jit
def reduce_scatter(tile, src_view, dst_view, locks, ctx):
    """Works as all_reduce_one_shot, but only one rank sums each tile: ranks have equal parts of the tiles, the first on
    rank 0, and the last rank has the remainder, too. Other ranks do nothing, and return true."""
    tiles: tl.constexpr = (-(-dst_view.M // tile.block_m)) * (-(-dst_view.N // tile.block_n))
    part: tl.constexpr = tiles // ctx.world_size
    number = tile_id(dst_view, tile)
    came = number >= 0
    if number >= ctx.rank * part:
        if (number < (ctx.rank + 1) * part) | (ctx.rank == ctx.world_size - 1):
            came = all_reduce_one_shot(tile, src_view, dst_view, locks, ctx)
    return came


@triton.jit
def all_reduce_atomic(tile, dst_view, ctx):
    """Adds the tile's values to every rank's dst_view. The sum is complete after all ranks have called this and passed
    a barrier; its last bits depend on the order of the ranks' additions."""
    target, mask = tile_ptr(dst_view, tile)
    for r in range(ctx.world_size):
        atomic_add(target, tile.data, ctx.rank, r, ctx.heap_bases, mask=mask, sem="relaxed")


all_reduce = all_reduce_atomic
