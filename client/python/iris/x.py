"""Tiles of a matrix in kernels of Triton, and collectives of one tile: `iris.x`.

Names, arguments and meaning are those of the reference. A kernel iterates over the tiles of a matrix and calls these
functions, or the methods of the same names of DeviceContext (`ctx.all_gather(tile, view, 0)`), for each tile:

    tile = iris.Tile(pid_m, pid_n, 64, 64, values)
    iris.x.all_gather(tile, iris.make_tensor_view(target, n * M, N, N, 1), 0, ctx)

Sizes and strides may be tl.constexpr, which makes better code; blocks are, and are powers of 2. A tile may reach beyond
the matrix: what lies there is neither read nor written. All ranks call the same function for the same tile, with
matrices and locks at the same place of each heap.

`locks` has a word for each tile, row by row. In all_reduce_one_shot, all_reduce_two_shot and reduce_scatter a rank sets
its word of a tile to 1 when its tile of src_view is complete: publish() does both. The functions wait for the other
ranks' words, and use tile.data as this rank's part; of a tile without data they also wait for this rank's word, and
read its part from src_view, too. The words stay 1: zero them between two barriers before the next use. Without locks,
other ranks' data must be ready, for example after a barrier. Results in other ranks' memory are complete after a
barrier of all ranks.

Functions that wait return true, or false if a rank did not come within MAX_POLLS reads of its word, so that a kernel
ends even if a rank died. The result is then not stored. Sums of 16-bit floats are in float32, and in the order of the
ranks, so that all ranks that sum get the same bits; in all_reduce_atomic and all_reduce_spinlock the last bits depend
on the order in which the ranks come.
"""

import triton
import triton.language as tl

from iris._triton import (VALUE, _aggregate_or_class, _constexpr_function, _constructor, _value, atomic_add, load,
                          signal, store, translate, wait_until)

MAX_POLLS = tl.constexpr(1 << 26)  # some minutes on today's GPUs: ranks may have to compile before they come


@triton.jit
def compute_tile_indices(pid_m, pid_n, M, N, BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr):
    """Returns the numbers of a tile's rows and columns, and a mask of its elements inside an M x N matrix."""
    rows = pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
    columns = pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    return rows, columns, (rows[:, None] < M) & (columns[None, :] < N)


tile_layout = compute_tile_indices


@triton.jit
def compute_tile_offsets(rm, rn, stride_in_m, stride_in_n, stride_out_m, stride_out_n):
    """Returns the offsets, in elements, of rows rm and columns rn in two matrices with these strides."""
    rows, columns = rm[:, None].to(tl.int64), rn[None, :]
    return rows * stride_in_m + columns * stride_in_n, rows * stride_out_m + columns * stride_out_n


@triton.jit
def offset_ptr(ptr, stride_m, stride_n, offset_m, offset_n):
    """Returns the pointer to a row and column of the matrix at ptr."""
    return ptr + tl.cast(offset_m, tl.int64) * stride_m + tl.cast(offset_n, tl.int64) * stride_n


@triton.jit
def tile_ptr(ptr, M, N, stride_m, stride_n, pid_m, pid_n, BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr):
    """Returns the pointers of a tile's elements in the matrix at ptr, and a mask of those inside."""
    rows, columns, mask = compute_tile_indices(pid_m, pid_n, M, N, BLOCK_SIZE_M, BLOCK_SIZE_N)
    return offset_ptr(ptr, stride_m, stride_n, rows[:, None], columns[None, :]), mask


@triton.jit
def chiplet_transform_chunked(pid, num_workgroups: tl.constexpr, num_xcds: tl.constexpr, chunk_size: tl.constexpr):
    """Renumbers the programs of a grid whose programs the GPU gives to its num_xcds chiplets in turn: each chiplet gets
    chunks of chunk_size consecutive numbers. The rest of a grid that is no multiple of all chunks stays as it is."""
    turn = pid // num_xcds
    chunk = turn // chunk_size * num_xcds + pid % num_xcds
    whole: tl.constexpr = num_workgroups // (num_xcds * chunk_size) * (num_xcds * chunk_size)
    return tl.where(pid < whole, chunk * chunk_size + turn % chunk_size, pid)


@_aggregate_or_class
class TileView:
    """A tile: its place (pid_m, pid_n), counted in tiles, and its size."""

    pid_m: VALUE
    pid_n: VALUE
    block_m: tl.constexpr
    block_n: tl.constexpr

    @_constructor
    def __init__(self, pid_m, pid_n, block_m, block_n):
        self.pid_m, self.pid_n = _value(pid_m), _value(pid_n)
        self.block_m, self.block_n = _value(block_m), _value(block_n)

    @triton.jit
    def layout(self, M, N):
        """See tile_layout."""
        return compute_tile_indices(self.pid_m, self.pid_n, M, N, self.block_m, self.block_n)

    @triton.jit
    def indices(self):
        """Returns the numbers of the tile's rows and columns."""
        rows, columns, mask = compute_tile_indices(self.pid_m, self.pid_n, 0, 0, self.block_m, self.block_n)
        return rows, columns


@_aggregate_or_class
class Tile:
    """A TileView with the tile's values `data`, if it has any."""

    pid_m: VALUE
    pid_n: VALUE
    block_m: tl.constexpr
    block_n: tl.constexpr
    data: VALUE

    @_constructor
    def __init__(self, pid_m, pid_n, block_m, block_n, data=None):
        self.pid_m, self.pid_n = _value(pid_m), _value(pid_n)
        self.block_m, self.block_n = _value(block_m), _value(block_n)
        self.data = _value(data)

    layout, indices = TileView.layout, TileView.indices


@_aggregate_or_class
class TensorView:
    """A matrix of M rows and N columns at ptr. Strides are elements."""

    ptr: tl.tensor
    M: VALUE
    N: VALUE
    stride_m: VALUE
    stride_n: VALUE

    @_constructor
    def __init__(self, ptr, M, N, stride_m, stride_n):
        self.ptr = ptr
        self.M, self.N = _value(M), _value(N)
        self.stride_m, self.stride_n = _value(stride_m), _value(stride_n)

    @triton.jit
    def tile_ptr(self, tile):
        """Returns the pointers of the tile's elements, and a mask of those inside the matrix."""
        return tile_ptr(self.ptr, self.M, self.N, self.stride_m, self.stride_n, tile.pid_m, tile.pid_n, tile.block_m,
                        tile.block_n)

    @triton.jit
    def tile_ptr_from_indices(self, rm, rn, block_m: tl.constexpr, block_n: tl.constexpr):
        """As tile_ptr(), of the rows rm, block_m of them, and the columns rn, block_n of them."""
        return (offset_ptr(self.ptr, self.stride_m, self.stride_n, rm[:, None], rn[None, :]),
                (rm[:, None] < self.M) & (rn[None, :] < self.N))

    @triton.jit
    def offset_tile_ptr(self, tile, offset_m=0, offset_n=0, src_mask=None):
        """As tile_ptr(), of the tile moved by rows and columns. The mask is also src_mask's, if there is one."""
        rows, columns = tile.indices()
        places, mask = self.tile_ptr_from_indices(rows + offset_m, columns + offset_n, tile.block_m, tile.block_n)
        if src_mask is not None:
            mask = src_mask & mask
        return places, mask

    @triton.jit
    def offset(self, offset_m=0, offset_n=0):
        """Returns a view of the same sizes and strides that begins at another row and column."""
        return TensorView(offset_ptr(self.ptr, self.stride_m, self.stride_n, offset_m, offset_n), self.M, self.N,
                          self.stride_m, self.stride_n)

    @triton.jit
    def number_of_tiles(self, block_m, block_n):
        """Returns the number of tiles of this size that cover the matrix."""
        return tl.cdiv(self.M, block_m) * tl.cdiv(self.N, block_n)


@triton.jit
def make_tensor_view(ptr, M, N, stride_m, stride_n):
    """Returns TensorView(ptr, M, N, stride_m, stride_n)."""
    return TensorView(ptr, M, N, stride_m, stride_n)


@_aggregate_or_class
class AllReduceConfig:
    """An algorithm, 0 atomic, 1 ring, 2 one_shot, 3 two_shot or 4 spinlock, and its locks, for kernels that choose."""

    variant_code: tl.constexpr
    locks_ptr: VALUE

    @_constructor
    def __init__(self, variant_code, locks_ptr):
        self.variant_code, self.locks_ptr = _value(variant_code), _value(locks_ptr)


@_constexpr_function
def _sum_type(kind):
    return tl.float32 if kind.is_floating() and kind.primitive_bitwidth < 32 else kind


@triton.jit
def tile_id(view, tile):
    """Returns the tile's number, row by row, which is the index of its word in `locks`."""
    return tile.pid_m * tl.cdiv(view.N, tile.block_n) + tile.pid_n


@triton.jit
def publish(tile, view, locks, ctx):
    """Stores the tile's data in this rank's matrix, and sets the tile's lock to 1: other ranks may read it."""
    places, mask = view.tile_ptr(tile)
    tl.store(places, tile.data, mask=mask)
    signal(locks + tile_id(view, tile), 1, ctx.rank, ctx.rank, ctx.heap_bases)


@triton.jit
def gather(tile, src_view, source_rank, ctx, hint: tl.constexpr = None):
    """Returns the tile of source_rank's src_view; 0 outside the matrix."""
    places, mask = src_view.tile_ptr(tile)
    return load(places, ctx.rank, source_rank, ctx.heap_bases, mask=mask, other=0, hint=hint)


@triton.jit
def all_gather(tile, dst_view, dim: tl.constexpr, ctx):
    """Stores the tile's data in every rank's dst_view, whose rows (dim 0) or columns (dim 1) are the ranks' parts, as
    many from each rank. The tile's place counts inside this rank's part; what reaches beyond the part is left out."""
    rows, columns = tile.indices()
    if dim == 0:
        part = dst_view.M // ctx.world_size
        places, mask = dst_view.offset_tile_ptr(tile, ctx.rank * part, 0, rows[:, None] < part)
    else:
        part = dst_view.N // ctx.world_size
        places, mask = dst_view.offset_tile_ptr(tile, 0, ctx.rank * part, columns[None, :] < part)
    for r in range(ctx.world_size):
        store(places, tile.data, ctx.rank, r, ctx.heap_bases, mask=mask)


@triton.jit
def all_to_all(tile, src_view, dst_view, N_per_rank: tl.constexpr, ctx):
    """Fills a tile of dst_view, whose columns from r * N_per_rank on are the columns from rank * N_per_rank on of rank
    r's src_view. Both have N_per_rank columns for each rank."""
    target, inside = dst_view.tile_ptr(tile)
    rows, columns = tile.indices()
    first = tile.pid_n * tile.block_n // N_per_rank
    last = tl.minimum((tile.pid_n * tile.block_n + tile.block_n - 1) // N_per_rank, ctx.world_size - 1)
    for r in range(first, last + 1):
        source, mask = src_view.offset_tile_ptr(tile, 0, (ctx.rank - r) * N_per_rank, inside)
        mask = mask & ((columns >= r * N_per_rank) & (columns < (r + 1) * N_per_rank))[None, :]
        tl.store(target, load(source, ctx.rank, r, ctx.heap_bases, mask=mask), mask=mask)


@triton.jit
def all_reduce_atomic(tile, dst_view, ctx):
    """Adds the tile's data to every rank's dst_view. The sum is complete after all ranks have called this and passed a
    barrier."""
    places, mask = dst_view.tile_ptr(tile)
    for r in range(ctx.world_size):
        atomic_add(places, tile.data, ctx.rank, r, ctx.heap_bases, mask=mask, sem="relaxed")


all_reduce = all_reduce_atomic


@triton.jit
def all_reduce_spinlock(tile, dst_view, locks, ctx):
    """Works as all_reduce_atomic, with loads and stores between the taking and the giving back of the tile's lock on
    each rank, which is 0 when nobody holds it. Returns false if a lock could not be had; its rank lacks the data."""
    number = tile_id(dst_view, tile)
    places, mask = dst_view.tile_ptr(tile)
    kind: tl.constexpr = _sum_type(dst_view.ptr.dtype.element_ty)
    missing = 0
    for r in range(ctx.world_size):
        # Not atomic_cas, which Triton 3.6 makes atomic on one GPU only for some vendors.
        lock = translate(locks + number, ctx.rank, r, ctx.heap_bases)
        held = tl.atomic_xchg(lock, 1, sem="acquire", scope="sys")
        polls = 0
        while (held != 0) & (polls < MAX_POLLS):
            held = tl.atomic_xchg(lock, 1, sem="acquire", scope="sys")
            polls += 1
        tl.debug_barrier()  # so that the program's other threads load after the acquisition, too
        if held == 0:
            there = translate(places, ctx.rank, r, ctx.heap_bases)
            total = tl.load(there, mask=mask, other=0).to(kind) + tile.data.to(kind)
            tl.store(there, total.to(dst_view.ptr.dtype.element_ty), mask=mask)
            signal(locks + number, 0, ctx.rank, r, ctx.heap_bases)
        else:
            missing += 1
    return missing == 0


@triton.jit
def _sum(tile, data, src_view, locks, number, ctx):
    """Returns the sum of the ranks' tiles, and true if all of them came. Does not wait if locks is None. `data` is this
    rank's tile, or None if it is in src_view, too."""
    missing = 0
    if locks is not None:
        for r in range(ctx.world_size):
            if r != ctx.rank or data is None:
                lock = translate(locks + number, ctx.rank, r, ctx.heap_bases)
                missing += (wait_until(lock, 1, "eq", MAX_POLLS) == 0).to(tl.int32)
    places, mask = src_view.tile_ptr(tile)
    element: tl.constexpr = src_view.ptr.dtype.element_ty
    kind: tl.constexpr = _sum_type(element)
    total = tl.zeros((tile.block_m, tile.block_n), kind)
    # The loop is unrolled, so that loads from all ranks are under way at once.
    for r in tl.static_range(ctx.world_size):
        if r == ctx.rank and data is not None:
            total += data.to(element).to(kind)  # the bits that other ranks read
        else:
            total += load(places, ctx.rank, r, ctx.heap_bases, mask=mask, other=0).to(kind)
    return total, missing == 0


@triton.jit
def all_reduce_one_shot(tile, src_view, dst_view, locks, ctx):
    """Stores the sum of all ranks' tiles of src_view in this rank's dst_view, which is another matrix."""
    total, came = _sum(tile, tile.data, src_view, locks, tile_id(dst_view, tile), ctx)
    places, mask = dst_view.tile_ptr(tile)
    tl.store(places, total.to(dst_view.ptr.dtype.element_ty), mask=mask & came)
    return came


@triton.jit
def all_reduce_ring(tile, src_view, dst_view, ctx):
    """Works as all_reduce_one_shot, without locks: all ranks' src_view must be ready. Ranks read each other's parts and
    not, as in the reference, each other's results, which may not be there yet."""
    total, came = _sum(tile, None, src_view, None, 0, ctx)
    places, mask = dst_view.tile_ptr(tile)
    tl.store(places, total.to(dst_view.ptr.dtype.element_ty), mask=mask)


@triton.jit
def all_reduce_two_shot(tile, src_view, dst_view, locks, ctx):
    """Stores the sum of all ranks' tiles of src_view in every rank's dst_view. One rank sums each tile: tiles belong to
    the ranks in turn. Other ranks do nothing, and return true."""
    number = tile_id(dst_view, tile)
    came = number >= 0
    if number % ctx.world_size == ctx.rank:
        total, came = _sum(tile, tile.data, src_view, locks, number, ctx)
        places, mask = dst_view.tile_ptr(tile)
        total = total.to(dst_view.ptr.dtype.element_ty)
        for r in range(ctx.world_size):
            store(places, total, ctx.rank, r, ctx.heap_bases, mask=mask & came)
    return came


@triton.jit
def reduce_scatter(tile, src_view, dst_view, locks, ctx):
    """Works as all_reduce_one_shot, but only one rank sums each tile: ranks have equal parts of the tiles, the first on
    rank 0, and the last rank has the remainder, too. Other ranks do nothing, and return true."""
    part = dst_view.number_of_tiles(tile.block_m, tile.block_n) // ctx.world_size
    number = tile_id(dst_view, tile)
    came = number >= 0
    if number >= ctx.rank * part:
        if (number < (ctx.rank + 1) * part) | (ctx.rank == ctx.world_size - 1):
            came = all_reduce_one_shot(tile, src_view, dst_view, locks, ctx)
    return came
