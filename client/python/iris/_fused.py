"""`ctx.ops`, and `iris.ops` for what iris.iris() returns: GEMMs with communication, with the arguments, layouts and
errors of the reference.

With W ranks, all in row-major order:

    matmul_all_reduce      C (M, N) = the sum over the ranks of A (M, K) @ B (K, N)
    matmul_reduce_scatter  the same, but a rank gets its tiles of C, and zeros elsewhere
    all_gather_matmul      C (M, N) = the ranks' A (M, K / W) beside each other @ B (K, N) + bias
    matmul_all_gather      C (W * M, N) = the ranks' A (M, K) @ B (K, N) + bias, one below the other

`bias` has an element for each row of A. 16-bit floats whose rows are contiguous go to Iris's own operations where these
have the same result; otherwise a GEMM of torch is followed by the collective. Calls return as those of ctx.ccl do.
"""

from __future__ import annotations

import ctypes
import dataclasses
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

from iris import _capi, _foreign
from iris._ccl import VARIANT_TWO_SHOT, VARIANTS, check, parts_of, tiles_in
from iris.errors import InvalidArgumentError, UnimplementedError

if TYPE_CHECKING:
    from iris.reference import Iris

_KEPT_PLANS_MAX = 256


@dataclasses.dataclass
class FusedConfig:
    """Parameters of these operations. The blocks of M and N decide which tiles matmul_reduce_scatter gives to a rank,
    and a matrix has at least one block. The other ones are checked and have no effect."""

    block_size_m: int = 256
    block_size_n: int = 64
    block_size_k: int = 64
    group_size_m: int = 1
    num_sms: Optional[int] = None
    num_xcds: int = 1
    chunk_size: int = 1
    cache_modifier_a: str = ".ca"
    cache_modifier_b: str = ".ca"
    allow_tf32: bool = True
    all_reduce_variant: str = VARIANT_TWO_SHOT
    all_reduce_num_rings: int = 1

    def validate(self, world_size: Optional[int] = None) -> None:
        """Raises InvalidArgumentError if a value is wrong, by itself or for this number of ranks."""
        for name in ("block_size_m", "block_size_n", "block_size_k", "group_size_m", "num_sms", "num_xcds",
                     "chunk_size", "all_reduce_num_rings"):
            value = getattr(self, name)
            check(value is None or value > 0, "FusedConfig: {} must be positive, and is {}", name, value)
        check(self.all_reduce_variant in VARIANTS, "FusedConfig: all_reduce_variant must be one of {}, and is {!r}",
              VARIANTS, self.all_reduce_variant)
        check(self.all_reduce_variant != "ring" or not world_size or self.block_size_n % world_size == 0,
              "FusedConfig: block_size_n is {}, and the variant ring needs a multiple of the {} ranks",
              self.block_size_n, world_size)


@dataclasses.dataclass
class FusedWorkspace:
    """The operation and the shapes that it was prepared for. `locks` has a word for each tile, by which calls with
    smaller blocks are found."""

    operation: str = ""
    shape: Tuple[int, ...] = ()
    dtype: Any = None
    world_size: int = 1
    variant: str = ""
    aux_buffer: Any = None
    locks: Any = None
    prepared: bool = False

    def matches(self, operation: str, shape: Tuple[int, ...], dtype: Any, world_size: int, variant: str = "") -> bool:
        """Returns True if it is prepared for such a call."""
        return self.prepared and (operation, shape, dtype, world_size, variant) == (
            self.operation, self.shape, self.dtype, self.world_size, self.variant)

    def reset(self) -> None:
        """Makes the next call prepare it again."""
        self.prepared = False

    def clear(self) -> None:
        """Drops the buffers."""
        self.aux_buffer = self.locks = None
        self.prepared = False


_DEFAULT = FusedConfig()


def _require(holds: Any, text: str, *values: Any) -> None:
    """Raises AssertionError, as the reference does, unless `holds` is true."""
    if not holds:
        raise AssertionError(text.format(*values))


def _at_least_a_block(name: str, sizes: Tuple[Tuple[str, int], ...], config: Any) -> None:
    for what, size in sizes:
        block = getattr(config, f"block_size_{what[0].lower()}")
        _require(size >= block, "{}: {} is {}, and a block has {}: give a config with smaller blocks", name, what, size,
                 block)


def _inner(name: str, a: Any, b: Any) -> Tuple[int, int, int]:
    """Returns (M, N, K) of a product. Raises InvalidArgumentError if there is none."""
    check(a.ndim == b.ndim == 2, "{}: A has the shape {} and B {}: matrices of two dimensions are wanted", name,
          tuple(a.shape), tuple(b.shape))
    check(a.shape[1] == b.shape[0], "{}: A has {} columns and B {} rows: they must be as many", name, a.shape[1],
          b.shape[0])
    return a.shape[0], b.shape[1], a.shape[1]


def _prepare(shmem: "Iris", name: str, a: Any, b: Any, config: Any, found: Any, variant: str,
             locked: bool) -> FusedWorkspace:
    """Fills in a workspace, or a new one."""
    config.validate(shmem.num_ranks)
    found = FusedWorkspace() if found is None else found
    found.operation, found.dtype, found.world_size, found.variant = name, a.dtype, shmem.num_ranks, variant
    found.shape = (a.shape[0], b.shape[1], a.shape[1])
    if not locked:
        found.locks = None
    else:
        tiles = tiles_in(found.shape, config)
        if found.locks is None or found.locks.numel() != tiles:
            found.locks = _foreign.zero_words(shmem.context, tiles)
    found.prepared = True
    return found


def _check_locks(name: str, found: FusedWorkspace, tiles: int) -> None:
    have = tiles if found.locks is None else found.locks.numel()
    check(have >= tiles, "{}: the workspace's array of locks is too small: it has {}, and these blocks make {} tiles: "
          "prepare it with the smallest blocks", name, have, tiles)


def _layout(matrix: Any) -> Tuple[Any, ...]:
    return matrix.data_ptr(), matrix.shape, matrix.stride(), matrix.dtype


def _own(shmem: "Iris", name: str, output: Any, a: Any, b: Any) -> bool:
    """Runs the operation of iris.ops of this name, over all ranks. Returns False if it does not take the matrices. What
    is found out about matrices at these addresses is kept for the next call."""
    from iris import ops
    plans, context = shmem.ops.plans, shmem.context
    key = name, _layout(output), _layout(a), _layout(b)
    plan = plans.get(key)
    if plan is None or plan and plan[0].closed:
        if len(plans) >= _KEPT_PLANS_MAX:
            plans.clear()
        try:
            # Products of float32 are not among its own.
            made = a.element_size() == 2 and context.is_symmetric(output) and ops._Call(
                shmem, None, name, output, a, b, None, None, "auto")
        except InvalidArgumentError:
            made = False
        plan = plans[key] = made and (made.shared(), made.call)
    if not plan:
        return False
    context._run(plan[0], _capi.library().iris_matmul_launch, (output, a, b), (ctypes.byref(plan[1]),), result=output)
    return True


def matmul_all_reduce_preamble(shmem: "Iris", C: Any, A: Any, B: Any, config: Any = None,
                               workspace: Any = None) -> FusedWorkspace:
    """Returns a workspace for such calls: `workspace`, if one is given. The output stays as it is."""
    config = config or _DEFAULT
    _inner("matmul_all_reduce", A, B)
    return _prepare(shmem, "matmul_all_reduce", A, B, config, workspace, config.all_reduce_variant,
                    config.all_reduce_variant in ("spinlock", "one_shot", VARIANT_TWO_SHOT))


def matmul_all_reduce(shmem: "Iris", C: Any, A: Any, B: Any, async_op: bool = False, config: Any = None,
                      workspace: Any = None) -> FusedWorkspace:
    """C = the sum over the ranks of A @ B. Returns the workspace."""
    name, config = "matmul_all_reduce", config or _DEFAULT
    shape = rows, columns, k = _inner(name, A, B)
    check(C.shape == (rows, columns), "{}: the output has the shape {}, and the product ({}, {})", name, tuple(C.shape),
          rows, columns)
    check(A.dtype == B.dtype == C.dtype, "{}: A, B and the output have elements of {}, {} and {}: they must be the "
          "same", name, A.dtype, B.dtype, C.dtype)
    _at_least_a_block(name, (("M", rows), ("K", k), ("N", columns)), config)
    if workspace is None:
        config.validate(shmem.num_ranks)
        workspace = FusedWorkspace(name, shape, A.dtype, shmem.num_ranks, config.all_reduce_variant)
    elif not workspace.matches(name, shape, A.dtype, shmem.num_ranks, config.all_reduce_variant):
        workspace = matmul_all_reduce_preamble(shmem, C, A, B, config, workspace)
    _check_locks(name, workspace, tiles_in((rows, columns), config))
    if not _own(shmem, name, C, A, B):
        _foreign.product_into(C, A, B)
        shmem.ccl.all_reduce(C, C, async_op=True)
    workspace.prepared = False
    if not async_op:
        shmem.groups.world.finish()
    return workspace


def matmul_reduce_scatter_preamble(shmem: "Iris", C: Any, A: Any, B: Any, config: Any = None,
                                   workspace: Any = None) -> FusedWorkspace:
    """Returns a workspace for such calls: `workspace`, if one is given. The output stays as it is."""
    name, config = "matmul_reduce_scatter", config or _DEFAULT
    rows, columns, _ = _inner(name, A, B)
    if workspace is not None:
        _check_locks(name, workspace, tiles_in((rows, columns), config))
    return _prepare(shmem, name, A, B, config, workspace, VARIANT_TWO_SHOT, True)


def matmul_reduce_scatter(shmem: "Iris", C: Any, A: Any, B: Any, async_op: bool = False, config: Any = None,
                          workspace: Any = None) -> FusedWorkspace:
    """C = the sum over the ranks of A @ B in this rank's tiles, and 0 elsewhere. Tiles are counted row by row; each
    rank has as many, one after another, and the last one also what remains. Returns the workspace."""
    name, config, world = "matmul_reduce_scatter", config or _DEFAULT, shmem.groups.world
    rows, columns, _ = _inner(name, A, B)
    check(C.shape == (rows, columns), "{}: the output has the shape {}, and the product ({}, {}), of which a rank gets "
          "its tiles", name, tuple(C.shape), rows, columns)
    workspace = matmul_reduce_scatter_preamble(shmem, C, A, B, config, workspace)
    members, me = shmem.num_ranks, shmem.cur_rank
    tiles = tiles_in((rows, columns), config)
    each = tiles // members
    parts = parts_of(rows, columns, config.block_size_m, config.block_size_n, 1,
                     range(me * each, tiles if me == members - 1 else (me + 1) * each))
    _foreign.zero(C)
    # With as many whole rows on each rank, the tiles are what Iris's own operation gives.
    share = rows // members
    if not (share * members == rows and each * members == tiles and len(parts) == 1 and
            parts[0][:4] == (me * share, share, 0, columns) and
            _own(shmem, name, C[me * share:(me + 1) * share], A, B)):
        products = shmem.ops.scratch(rows, columns, C.dtype)
        _foreign.product_into(products, A, B)
        world.device_barrier()
        shmem.ccl.sum_at(world, C, products, parts, name)
        if async_op:
            world.device_barrier()  # before the next call writes the products
    if not async_op:
        world.finish()
    return workspace


def _gathered(name: str, shmem: "Iris", a: Any, b: Any) -> Tuple[int, int, int]:
    (rows, local), (k, columns), members = a.shape, b.shape, shmem.num_ranks
    _require(k == local * members, "{}: B has {} rows, and A of the {} ranks together {} columns: they must be as many",
             name, k, members, local * members)
    return rows, columns, k


def all_gather_matmul_preamble(shmem: "Iris", A_sharded: Any, B: Any, config: Any = None) -> FusedWorkspace:
    """Returns a workspace for such calls."""
    shape = _gathered("all_gather_matmul", shmem, A_sharded, B)
    return FusedWorkspace("all_gather_matmul", shape, A_sharded.dtype, shmem.num_ranks, prepared=True)


def _all_gather_matmul(name: str, shmem: "Iris", output: Any, a: Any, b: Any, bias: Any, async_op: bool,
                       gathered: Any) -> None:
    rows, columns, k = _gathered(name, shmem, a, b)
    _require(tuple(output.shape) == (rows, columns), "{}: the output has the shape {}, and the product ({}, {})", name,
             tuple(output.shape), rows, columns)
    _require(bias is None or bias.shape[0] == rows, "{}: the bias has the shape {}, and A {} rows", name,
             bias is not None and tuple(bias.shape), rows)
    whole = a.new_empty((rows, k)) if gathered is None else gathered
    local = a.shape[1]
    for rank, theirs in enumerate(shmem.groups.world.each(a, name)):
        _foreign.copy_into(whole[:, rank * local:(rank + 1) * local], theirs)
    _foreign.product_into(output, whole, b, bias)
    if not async_op:
        shmem.groups.world.finish()


def all_gather_matmul(shmem: "Iris", output_tensor: Any, A_sharded: Any, B: Any, bias: Any = None,
                      async_op: bool = False, config: Any = None, workspace: Any = None) -> FusedWorkspace:
    """output = the ranks' A_sharded, beside each other, @ B + bias. Returns the workspace."""
    _all_gather_matmul("all_gather_matmul", shmem, output_tensor, A_sharded, B, bias, async_op, None)
    return workspace or all_gather_matmul_preamble(shmem, A_sharded, B)


def _flags(name: str, a: Any, k: int, config: Any, k_per_flag: Optional[int]) -> int:
    """Returns the number of flags of the reference's fetching programs. Raises AssertionError if the blocks do not
    divide the matrices, as there. Nothing uses the flags."""
    if config is None:
        return 0
    each = 8 if k_per_flag is None else k_per_flag
    for what, size, block in (("K of a rank", a.shape[1], config.block_size_k), ("M", a.shape[0], config.block_size_m),
                              ("the number of blocks of K", k // config.block_size_k, each)):
        _require(size % block == 0, "{}: {} is {}, which is no multiple of {}", name, what, size, block)
    return a.shape[0] // config.block_size_m * (k // config.block_size_k // each)


def all_gather_matmul_hbm_buffer_preamble(ctx: "Iris", A_sharded: Any, B: Any, config: Any = None,
                                          k_per_flag: Optional[int] = None,
                                          staged_a_layout: str = "k_contiguous") -> FusedWorkspace:
    """Returns a workspace for such calls, with the buffer for the whole A: with contiguous rows, or with
    "m_contiguous" contiguous columns."""
    name = "all_gather_matmul_hbm_buffer"
    shape = rows, _, k = _gathered(name, ctx, A_sharded, B)
    flags = _flags(name, A_sharded, k, config, k_per_flag)
    by_columns = staged_a_layout == "m_contiguous"
    whole = A_sharded.new_empty((k, rows) if by_columns else (rows, k))
    return FusedWorkspace(name, shape, A_sharded.dtype, ctx.num_ranks, f"hbm_buffer_{staged_a_layout}",
                          whole.t() if by_columns else whole, _foreign.zero_words(ctx.context, flags), True)


def all_gather_matmul_hbm_buffer(
        ctx: "Iris", output_tensor: Any, A_sharded: Any, B: Any, bias: Any = None, async_op: bool = False,
        config: Any = None, workspace: Any = None, num_fetch_sms: Optional[int] = None,
        k_per_flag: Optional[int] = None, fetch_block_m: Optional[int] = None, fetch_block_k: Optional[int] = None,
        staged_a_layout: str = "k_contiguous", num_warps: Optional[int] = 8, num_stages: Optional[int] = 2,
        num_fetch_stages: Optional[int] = None, first_stage_fetch_sms: Optional[int] = None,
        trace: bool = False) -> FusedWorkspace:
    """Works as all_gather_matmul, with the whole A in the workspace's buffer. The numbers for the fetching programs and
    the kernel have no effect. Returns the workspace."""
    name = "all_gather_matmul_hbm_buffer"
    if trace:
        raise UnimplementedError(f"{name}: trace=True is for the reference's fetching programs, which this GEMM does "
                                 "not have: use iris.trace(), or a profiler")
    _flags(name, A_sharded, B.shape[0], config, k_per_flag)
    workspace = workspace or all_gather_matmul_hbm_buffer_preamble(ctx, A_sharded, B, config, k_per_flag,
                                                                   staged_a_layout)
    _all_gather_matmul(name, ctx, output_tensor, A_sharded, B, bias, async_op, workspace.aux_buffer)
    return workspace


def matmul_all_gather_preamble(shmem: "Iris", A: Any, B: Any, config: Any = None) -> FusedWorkspace:
    """Returns a workspace for such calls."""
    (rows, k), (inner, columns) = A.shape, B.shape
    _require(k == inner, "matmul_all_gather: A has {} columns and B {} rows: they must be as many", k, inner)
    return FusedWorkspace("matmul_all_gather", (rows * shmem.num_ranks, columns, k), A.dtype, shmem.num_ranks,
                          prepared=True)


def matmul_all_gather(shmem: "Iris", output_tensor: Any, A: Any, B: Any, bias: Any = None, async_op: bool = False,
                      config: Any = None, workspace: Any = None) -> FusedWorkspace:
    """output = the ranks' A @ B + bias, one below the other. Returns the workspace."""
    name, members, rows, world = "matmul_all_gather", shmem.num_ranks, A.shape[0], shmem.groups.world
    workspace = workspace or matmul_all_gather_preamble(shmem, A, B)
    k, columns = B.shape
    _require(A.shape[1] == k, "{}: A has {} columns and B {} rows: they must be as many", name, A.shape[1], k)
    _require(tuple(output_tensor.shape) == (members * rows, columns), "{}: the output has the shape {}, and the "
             "products ({}, {})", name, tuple(output_tensor.shape), members * rows, columns)
    _require(bias is None or bias.shape[0] == rows, "{}: the bias has the shape {}, and A {} rows", name,
             bias is not None and tuple(bias.shape), rows)
    _at_least_a_block(name, (("M of a rank", rows), ("K", k), ("N", columns)), config or _DEFAULT)
    if bias is not None or not _own(shmem, name, output_tensor, A, B):
        mine = output_tensor[shmem.cur_rank * rows:(shmem.cur_rank + 1) * rows]
        _foreign.product_into(mine, A, B, bias)
        if world.mapped:
            for rank in world.ranks:
                if rank != shmem.cur_rank:
                    _foreign.copy_into(shmem.groups.at(mine, rank, name), mine)
        else:
            for rank, theirs in enumerate(world.each(mine, name)):
                _foreign.copy_into(output_tensor[rank * rows:(rank + 1) * rows], theirs)
    if not async_op:
        world.finish()
    return workspace


class OpsNamespace:
    """The class of `ctx.ops`: the operations without their first argument."""

    def __init__(self, shmem: "Iris") -> None:
        self._shmem = shmem
        self.plans: Dict[Any, Any] = {}
        self._scratch: Any = None

    def scratch(self, rows: int, columns: int, dtype: Any) -> Any:
        """Returns a matrix in the heap for products, whose values the next call may overwrite. Collective."""
        count, kept = rows * columns, self._scratch
        if kept is None or kept.dtype != dtype or kept.numel() < count:
            self._scratch = kept = self._shmem.context.allocate((count,), dtype).torch()
        return kept[:count].view(rows, columns)

    def matmul_all_reduce(self, output_tensor: Any, A: Any, B: Any, bias: Any = None, async_op: bool = False,
                          config: Any = None, workspace: Any = None) -> FusedWorkspace:
        """See iris.ops.matmul_all_reduce of the reference. The bias must be None."""
        _no_bias("matmul_all_reduce", bias)
        return matmul_all_reduce(self._shmem, output_tensor, A, B, async_op, config, workspace)

    def all_gather_matmul(self, output_tensor: Any, A_sharded: Any, B: Any, bias: Any = None, async_op: bool = False,
                          config: Any = None, workspace: Any = None) -> FusedWorkspace:
        """output = the ranks' A_sharded, beside each other, @ B + bias."""
        return all_gather_matmul(self._shmem, output_tensor, A_sharded, B, bias, async_op, config, workspace)

    def matmul_all_gather(self, output_tensor: Any, A: Any, B: Any, bias: Any = None, async_op: bool = False,
                          config: Any = None, workspace: Any = None) -> FusedWorkspace:
        """output = the ranks' A @ B + bias, one below the other."""
        return matmul_all_gather(self._shmem, output_tensor, A, B, bias, async_op, config, workspace)

    def matmul_reduce_scatter(self, output_tensor: Any, A: Any, B: Any, bias: Any = None, async_op: bool = False,
                              config: Any = None, workspace: Any = None) -> FusedWorkspace:
        """output = the sum over the ranks of A @ B in this rank's tiles. The bias must be None."""
        _no_bias("matmul_reduce_scatter", bias)
        return matmul_reduce_scatter(self._shmem, output_tensor, A, B, async_op, config, workspace)


def _no_bias(name: str, bias: Any) -> None:
    if bias is not None:
        raise UnimplementedError(f"{name}: the reference takes a bias here and does not add it: leave it out, and add "
                                 "it to the output")
