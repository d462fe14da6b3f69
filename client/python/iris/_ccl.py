"""`ctx.ccl` and `iris.ccl`: collectives on matrices, with the arguments, layouts and errors of the reference.

Calls put their work on torch's current stream on a GPU; on emulated devices they wait for it. Then, unless async_op is
true, they wait until all ranks of the group are done, as the reference's do, which wait for all ranks of the job. Work
that a graph records is not waited for.

Sums and gathers of contiguous tensors are those of Context. Others, and those of a process group of which use_group()
has made no team, read or write the ranks' matrices where they lie in the heap, by operations of torch. As in the
reference, what such a call reads must be written, and what it writes must be free, on all its ranks when it begins:
after a barrier.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import TYPE_CHECKING, Any, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from iris import _foreign, _platform
from iris._groups import Group, extract_group_info as _group_info
from iris.collectives import OPERATORS, operator_like
from iris.errors import InvalidArgumentError, UnimplementedError
from iris.tensor import Tensor

if TYPE_CHECKING:
    from iris.reference import Iris

VARIANT_ATOMIC, VARIANT_RING, VARIANT_TWO_SHOT, VARIANT_ONE_SHOT, VARIANT_SPINLOCK = VARIANTS = (
    "atomic", "ring", "two_shot", "one_shot", "spinlock")
_WORDS = {VARIANT_SPINLOCK: "locks", VARIANT_RING: "flags"}


class ReduceOp(enum.IntEnum):
    """The operators of torch.distributed. Only sums are supported here, as in the reference."""

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
    BAND = 4
    BOR = 5
    BXOR = 6


def check(holds: Any, text: str, *values: Any) -> None:
    """Raises InvalidArgumentError with the text, in which {} stands for a value, unless `holds` is true."""
    if not holds:
        raise InvalidArgumentError(text.format(*values))


@dataclasses.dataclass
class Config:
    """Parameters of collectives. The blocks, `swizzle_size` and `all_reduce_distribution` (0: in turn, 1: in blocks)
    decide which tiles reduce_scatter gives to a rank. The other ones are checked and have no effect: Iris chooses the
    variant, the number of blocks and their sizes by itself. Raises InvalidArgumentError for a wrong value."""

    block_size_m: int = 32
    block_size_n: int = 64
    swizzle_size: int = 4
    comm_sms: int = 64
    num_xcds: Optional[int] = None
    chunk_size: Optional[int] = None
    use_gluon: bool = False
    all_gather_variant: str = "persistent"
    all_reduce_variant: str = VARIANT_TWO_SHOT
    all_reduce_distribution: int = 1
    all_reduce_num_rings: int = 1
    all_reduce_ring_slice_n: Optional[int] = None
    reduce_scatter_variant: str = VARIANT_TWO_SHOT
    num_stages: int = 1
    num_warps: int = 4
    threads_per_warp: int = 64
    waves_per_eu: int = 0

    def __post_init__(self) -> None:
        if self.num_xcds is None:
            self.num_xcds = _platform.get_num_xcc()
        if self.all_reduce_ring_slice_n is None:
            self.all_reduce_ring_slice_n = self.block_size_n
        for name in ("block_size_m", "block_size_n", "swizzle_size", "comm_sms", "num_xcds", "all_reduce_num_rings",
                     "all_reduce_ring_slice_n", "num_warps"):
            value = getattr(self, name)
            check(value > 0, "Config: {} must be positive, and is {}", name, value)
        for name, allowed in (("all_gather_variant", ("persistent", "partitioned")),
                              ("all_reduce_variant", VARIANTS), ("all_reduce_distribution", (0, 1)),
                              ("reduce_scatter_variant", (VARIANT_TWO_SHOT,)), ("threads_per_warp", (32, 64))):
            value = getattr(self, name)
            check(value in allowed, "Config: {} must be one of {}, and is {!r}", name, allowed, value)
        width = self.all_reduce_ring_slice_n
        check(self.block_size_n % width == 0, "Config: all_reduce_ring_slice_n must divide block_size_n, and {} is no "
              "multiple of {}", self.block_size_n, width)
        check(width & (width - 1) == 0, "Config: all_reduce_ring_slice_n must be a power of two, and is {}", width)
        if self.chunk_size is None:
            self.chunk_size = min(self.swizzle_size**2, self.comm_sms // self.num_xcds)


@dataclasses.dataclass
class AllReduceWorkspace:
    """The parameters with which all_reduce_preamble() was called. `locks` and `flags` have a word for each tile, as the
    reference's, by which calls with smaller blocks are found; nothing uses their values."""

    variant: str = ""
    shape: Tuple[int, ...] = ()
    dtype: Any = None
    ring_buffer: Any = None
    flags: Any = None
    locks: Any = None
    num_rings: int = 1
    flags_per_tile: int = 0
    prepared: bool = False


_default_config = functools.lru_cache(maxsize=None)(Config)


def tiles_in(shape: Sequence[int], config: Any) -> int:
    """Returns the number of blocks of a config in a matrix."""
    rows, columns = (*shape, 1)[:2]
    return -(-rows // config.block_size_m) * -(-columns // config.block_size_n)


class Part(NamedTuple):
    """A rectangle of a matrix, or n_times of them in the same rows, `step` columns apart."""

    row: int
    height: int
    column: int
    width: int
    step: int
    n_times: int

    def of(self, matrix: Any) -> Any:
        """Returns the part of a matrix, as a view."""
        rows = matrix[self.row:self.row + self.height, self.column:]
        if self.n_times == 1:
            return rows[:, :self.width]
        return rows.unfold(1, self.width, self.step)[:, :self.n_times]


@functools.lru_cache(maxsize=64)
def parts_of(rows: int, columns: int, block_m: int, block_n: int, group_m: int, mine: range) -> Tuple[Part, ...]:
    """Returns the parts of a matrix that the tiles with the numbers `mine` make. Tiles are counted in groups of group_m
    rows of tiles, column by column in each."""
    return tuple(_parts(rows, columns, block_m, block_n, group_m, mine))


def _parts(rows: int, columns: int, block_m: int, block_n: int, group_m: int, mine: range) -> Iterator[Part]:
    down, across = -(-rows // block_m), -(-columns // block_n)
    runs: List[Tuple[int, int, range]] = []  # (first, end) of rows of tiles with the same tiles in each, and the tiles
    for row in range(down):
        first_row = row - row % group_m
        height = min(group_m, down - first_row)
        zero = first_row * across + row % group_m  # the number of the first tile of this row
        # Tiles of one row are `height` numbers apart, so that mine are every nth from one of the first n on.
        start = max(0, -(-(mine.start - zero) // height))
        found = [column for column in range(start, min(start + mine.step, across)) if zero + column * height in mine]
        if not found:
            continue
        step = found[1] - found[0] if len(found) > 1 else mine.step
        end = min(across, -(-(mine.stop - zero) // height))
        these = range(found[0], max(end, found[0] + 1), step)
        begin = runs.pop()[0] if runs and runs[-1][1:] == (row, these) else row
        runs.append((begin, row + 1, these))
    for begin, end, these in runs:
        top = begin * block_m
        height = min(end * block_m, rows) - top
        if these.step == 1 or len(these) == 1:
            left = these[0] * block_n
            yield Part(top, height, left, min((these[-1] + 1) * block_n, columns) - left, 0, 1)
            continue
        whole = len(these) - ((these[-1] + 1) * block_n > columns)
        yield Part(top, height, these[0] * block_n, block_n, these.step * block_n, whole)
        if whole < len(these):
            yield Part(top, height, these[-1] * block_n, columns - these[-1] * block_n, 0, 1)


def _torch(tensor: Any) -> Any:
    return tensor.torch() if isinstance(tensor, Tensor) else tensor


def _matrix(tensor: Any, what: str) -> Any:
    tensor = _torch(tensor)
    check(tensor.ndim == 2, "{} has the shape {}: a matrix of two dimensions is wanted", what, tuple(tensor.shape))
    return tensor


def _same_shape(what: str, output: Any, source: Any) -> None:
    check(output.shape == source.shape, "{}: the input has the shape {} and the output {}: they must be the same", what,
          tuple(source.shape), tuple(output.shape))


def _sums_only(what: str, op: Any, config: Optional[Config]) -> None:
    if op is not None and op != ReduceOp.SUM and operator_like(op) != OPERATORS["sum"]:
        raise InvalidArgumentError(f"{what}: only ReduceOp.SUM is supported, and not {op!r}; Context.{what} has more")
    if config is not None:
        check(not config.use_gluon, "{} has no kernels of Gluon: leave use_gluon out of the config", what)


class Ccl:
    """The class of `ctx.ccl`."""

    def __init__(self, owner: "Iris") -> None:
        self._context = owner.context
        self._groups = owner.groups

    def _call(self, what: str, place: Group, *tensors: Any) -> bool:
        """Runs a collective of Context if it can: if the group has a team, the tensors are contiguous, and sums know
        their type."""
        if place.team is None or not all(tensor.is_contiguous() for tensor in tensors):
            return False
        try:
            getattr(self._context, what)(*tensors, team=place.team)
        except UnimplementedError:
            return False
        return True

    def sum_at(self, place: Group, output: Any, source: Any, parts: Tuple[Part, ...], what: str) -> None:
        """Sums parts of the ranks' matrices, in the order of the ranks, into the output."""
        theirs = place.each(source, what)
        for part in parts:
            _foreign.copy_into(part.of(output), _foreign.sum_of([part.of(matrix) for matrix in theirs]))

    def all_reduce_preamble(self, output_tensor: Any, input_tensor: Any, config: Any = None,
                            workspace: Any = None) -> AllReduceWorkspace:
        """Returns a workspace for calls with these shapes and this config: `workspace`, if one is given. The output
        stays as it is."""
        config = config or _default_config()
        found = AllReduceWorkspace() if workspace is None else workspace
        found.variant, found.shape = config.all_reduce_variant.lower(), tuple(input_tensor.shape[:2])
        found.dtype, found.num_rings = input_tensor.dtype, config.all_reduce_num_rings
        check(found.variant in VARIANTS, "all_reduce: the variant {!r} is none of {}", found.variant, VARIANTS)
        word = _WORDS.get(found.variant)
        if word is not None:
            tiles, kept = tiles_in(found.shape, config), getattr(found, word)
            if kept is None or kept.numel() != tiles:
                setattr(found, word, _foreign.zero_words(self._context, tiles))
            found.flags_per_tile = int(word == "flags")
        found.prepared = True
        return found

    def _prepared(self, output: Any, source: Any, place: Group, config: Any, found: Any) -> AllReduceWorkspace:
        variant = config.all_reduce_variant.lower()
        if variant == VARIANT_RING:
            members = len(place.ranks)
            check(config.block_size_n % members == 0, "all_reduce: block_size_n is {}, and the variant ring needs a "
                  "multiple of the {} ranks", config.block_size_n, members)
            config.all_reduce_ring_slice_n = config.block_size_n // members
        if (found is None or not found.prepared or found.variant != variant
                or found.shape != tuple(source.shape[:2]) or found.dtype != source.dtype
                or variant == VARIANT_RING and found.num_rings != config.all_reduce_num_rings
                or variant in _WORDS and getattr(found, _WORDS[variant]) is None):
            found = self.all_reduce_preamble(output, source, config, found)
        word = _WORDS.get(variant)
        if word is not None:
            have, tiles = getattr(found, word).numel(), tiles_in(found.shape, config)
            check(have >= tiles, "all_reduce: the workspace's array of {} is too small: it has {}, and these blocks "
                  "make {} tiles: prepare it with the smallest blocks", word, have, tiles)
        return found

    def all_reduce(self, output_tensor: Any, input_tensor: Any, op: Any = None, group: Any = None,
                   async_op: bool = False, config: Any = None, workspace: Any = None) -> AllReduceWorkspace:
        """output = the sum of the ranks' inputs, with the same bits on all of them; 16-bit floats are summed in
        float32. The output may be the input. Returns the workspace."""
        _sums_only("all_reduce", op, config)
        place = self._groups.of(group)
        found = self._prepared(output_tensor, input_tensor, place, config or _default_config(), workspace)
        if not self._call("all_reduce", place, input_tensor, output_tensor):
            output, source = _torch(output_tensor), _torch(input_tensor)
            _same_shape("all_reduce", output, source)
            place.barrier()  # as the reference's, in a call with a workspace that is not prepared
            total = _foreign.sum_of(place.each(source, "all_reduce"))
            if output.data_ptr() == source.data_ptr():
                place.barrier()  # all have read the inputs
            _foreign.copy_into(output, total)
        found.prepared = False
        if not async_op:
            place.finish()
        return found

    def all_gather(self, output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False,
                   config: Any = None) -> None:
        """output (ranks * M, N) = the inputs (M, N) of the ranks, one below the other."""
        place = self._groups.of(group)
        members = len(place.ranks)
        rows = input_tensor.shape[0]
        wanted = (members * rows, *input_tensor.shape[1:])
        check(tuple(output_tensor.shape) == wanted, "all_gather: the output has the shape {}, and {} inputs of {} need "
              "{}", tuple(output_tensor.shape), members, tuple(input_tensor.shape), wanted)
        if config is not None and config.all_gather_variant == "partitioned":
            check(not config.use_gluon, "all_gather: kernels of Gluon have no variant 'partitioned'")
            check(config.comm_sms % members == 0, "all_gather: comm_sms is {}, and the variant 'partitioned' needs a "
                  "multiple of the {} ranks", config.comm_sms, members)
        if not self._call("all_gather", place, input_tensor, output_tensor):
            output, begin = _torch(output_tensor), place.index * rows
            for rank in place.ranks:
                _foreign.copy_into(self._groups.at(output, rank, "all_gather")[begin:begin + rows],
                                   _torch(input_tensor))
        if not async_op:
            place.finish()

    def all_to_all(self, output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False,
                   config: Any = None) -> None:
        """Both are (M, N * ranks). The columns from p * N on are for the rank at the place p of the group, and those of
        the output come from it."""
        place = self._groups.of(group)
        output = _matrix(output_tensor, "all_to_all: the output")
        source = _matrix(input_tensor, "all_to_all: the input")
        members, me = len(place.ranks), place.index
        columns = source.shape[1] // members
        _same_shape("all_to_all", output, source)
        check(columns * members == source.shape[1], "all_to_all: {} columns are no multiple of the {} ranks",
              source.shape[1], members)
        check(output.data_ptr() != source.data_ptr(), "all_to_all: the output is the input: give another matrix")
        for to in (*range(me, members), *range(me)):
            theirs = self._groups.at(output, place.ranks[to], "all_to_all")
            _foreign.copy_into(theirs[:, me * columns:(me + 1) * columns], source[:, to * columns:(to + 1) * columns])
        if not async_op:
            place.finish()

    def reduce_scatter(self, output_tensor: Any, input_tensor: Any, op: Any = None, group: Any = None,
                       async_op: bool = False, config: Any = None) -> None:
        """Both are (M, N). The output gets the sum of the ranks' inputs in this rank's tiles, and keeps the others. See
        Config for the tiles."""
        _sums_only("reduce_scatter", op, config)
        config = config or _default_config()
        check(config.reduce_scatter_variant == VARIANT_TWO_SHOT, "reduce_scatter: the variant must be {!r}, and is "
              "{!r}", VARIANT_TWO_SHOT, config.reduce_scatter_variant)
        place = self._groups.of(group)
        output = _matrix(output_tensor, "reduce_scatter: the output")
        source = _matrix(input_tensor, "reduce_scatter: the input")
        _same_shape("reduce_scatter", output, source)
        tiles, members, me = tiles_in(source.shape, config), len(place.ranks), place.index
        each = -(-tiles // members)
        mine = (range(me * each, min((me + 1) * each, tiles)) if config.all_reduce_distribution else
                range(me, tiles, members))
        self.sum_at(place, output, source, parts_of(*source.shape, config.block_size_m, config.block_size_n,
                                                    config.swizzle_size, mine), "reduce_scatter")
        if not async_op:
            place.finish()


def extract_group_info(group: Any, ctx: Any) -> Tuple[int, int, int, int, int]:
    """Returns (place in the group, rank, size of the group, its first rank, distance of its ranks) of a process group
    of torch, or of all ranks if it is None."""
    return _group_info(group, ctx.get_rank(), ctx.get_num_ranks())


def all_reduce_preamble(output_tensor: Any, input_tensor: Any, ctx: Any, config: Any = None,
                        workspace: Any = None) -> AllReduceWorkspace:
    """See Ccl.all_reduce_preamble."""
    return ctx.ccl.all_reduce_preamble(output_tensor, input_tensor, config, workspace)


def all_reduce(output_tensor: Any, input_tensor: Any, ctx: Any, op: Any = None, group: Any = None,
               async_op: bool = False, config: Any = None, workspace: Any = None) -> AllReduceWorkspace:
    """See Ccl.all_reduce."""
    return ctx.ccl.all_reduce(output_tensor, input_tensor, op, group, async_op, config, workspace)


def all_gather(output_tensor: Any, input_tensor: Any, ctx: Any, group: Any = None, async_op: bool = False,
               config: Any = None) -> None:
    """See Ccl.all_gather."""
    ctx.ccl.all_gather(output_tensor, input_tensor, group, async_op, config)


def all_to_all(output_tensor: Any, input_tensor: Any, ctx: Any, group: Any = None, async_op: bool = False,
               config: Any = None) -> None:
    """See Ccl.all_to_all."""
    ctx.ccl.all_to_all(output_tensor, input_tensor, group, async_op, config)


def reduce_scatter(output_tensor: Any, input_tensor: Any, ctx: Any, op: Any = None, group: Any = None,
                   async_op: bool = False, config: Any = None) -> None:
    """See Ccl.reduce_scatter."""
    ctx.ccl.reduce_scatter(output_tensor, input_tensor, op, group, async_op, config)
