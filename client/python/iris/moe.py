"""MoE dispatch and combine: `iris.moe`.

    exchange = iris.moe.Exchange(context, n_experts=64, top_k=8, hidden=7168, max_tokens=4096)   # collective, once
    got = exchange.dispatch(x, ids, weights)          # x[tokens, hidden], ids[tokens, top_k], weights[tokens, top_k]
    ...                                               # y = the local experts, on got.rows
    exchange.combine(y, out)                          # out[tokens, hidden] = sum of weight * y

The first (n_experts mod members) members of a team have one expert more than the others. `dispatch` sends each token's
row to the members whose experts it chose: `rows` has a row for each (token, expert), ordered by expert, by member and
by token. `offsets[e]` is the first row of local expert e, and `counts[e]` its number of rows. `combine` sums in float32
and in a fixed order. docs/moe.md has the details.

x, y and out are contiguous tensors of Iris, torch and cupy, or arrays of numpy if devices are emulated. Members may
have different numbers of tokens. Both calls allocate nothing, may be captured, and return as collectives do (see
iris.collectives). A token that chooses no valid expert raises OutOfRangeError on all ranks.
"""

from __future__ import annotations

import ctypes
import operator
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Tuple

from iris import _capi, _foreign
from iris.dtypes import DType
from iris.errors import FailedPreconditionError, InvalidArgumentError
from iris.ops import context_of

if TYPE_CHECKING:
    from iris.team import Team
    from iris.tensor import Tensor

SCALE_COLUMNS = 128  # columns that share a scale in rows of float8_e4m3fn


class Received(NamedTuple):
    """The result of a dispatch: tensors of the exchange, which the next dispatch overwrites."""

    rows: Any
    """[max_rows, hidden]; rows of no expert are not written."""
    counts: Any
    """[local_experts], int32: rows of each expert."""
    offsets: Any
    """[local_experts + 1], int32: the first row of each."""
    dropped: Any
    """[local_experts], int32: rows beyond the capacity."""
    scales: Any
    """[max_rows, scales of a row], float32; None where rows are not of float8_e4m3fn."""


def _whole(what: str, value: Any) -> int:
    try:
        number = operator.index(value)  # numpy's integers, too
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 32:
        raise InvalidArgumentError(f"moe: {what}={value!r}: an integer from 0 to 2^32 - 1 is wanted")
    return number


class Exchange:
    """A config, its workspace and the buffers for received rows. Creation and release are collective over the team.

    `capacity` is the limit of the rows of each expert; later rows are dropped; 0: no limit. `dtype` is the type of x.
    `row_dtype` is the type of the rows that are sent: None, that of x; or "float8_e4m3fn", into which dispatch converts
    them, with a float32 scale for each 128 columns. `partial_dtype` is the type of the members' sums that are sent
    back: None, that of x, and bfloat16 for float8_e4m3fn."""

    def __init__(self, shmem: Any, n_experts: int, top_k: int, hidden: int, max_tokens: int, *, capacity: int = 0,
                 dtype: Any = "bfloat16", row_dtype: Any = None, partial_dtype: Any = None,
                 team: Optional["Team"] = None, name: Optional[str] = None) -> None:
        context = context_of(shmem)
        self.context = context
        self.team = context.team_of(team)
        self.dtype = DType.of(dtype)
        self.row_dtype = self.dtype if row_dtype is None else DType.of(row_dtype)
        partials = DType.NONE if partial_dtype is None else DType.of(partial_dtype)
        self.n_experts, self.top_k = _whole("n_experts", n_experts), _whole("top_k", top_k)
        self.hidden, self.max_tokens = _whole("hidden", hidden), _whole("max_tokens", max_tokens)
        self.capacity = _whole("capacity", capacity)
        self._config = _capi.iris_moe_config(
            n_experts=self.n_experts, top_k=self.top_k, hidden=self.hidden, max_tokens=self.max_tokens,
            capacity=self.capacity, in_dtype=self.dtype, row_dtype=self.row_dtype, partial_dtype=partials)
        own = self._sizes(self.team.index)
        self.first_expert: int = own.first_expert
        self.local_experts: int = own.local_experts
        self.max_rows: int = own.max_rows
        self._communicator = context.prepare(self.team)
        _capi.library().iris_moe_prepare(self._communicator.handle)
        # All members allocate the size of the first member, which has the most experts.
        most = self._sizes(0)
        make: Any = context.empty
        self._workspace: "Tensor" = make(most.workspace_bytes, dtype="uint8", name=name, team=self.team)
        # Memory of another exchange must not look like a dispatch of this one.
        self._workspace[:256].zero_()
        self._kept = [self._workspace, make(max(most.max_rows, 1), hidden, dtype=self.row_dtype, team=self.team),
                      make(3 * most.local_experts + 1, dtype="int32", team=self.team)]
        scales = None
        if own.scale_columns:
            self._kept.append(make(max(most.max_rows, 1), own.scale_columns, dtype="float32", team=self.team))
            scales = self._kept[-1][:self.max_rows]
        n, numbers = self.local_experts, self._kept[2]
        self.received = Received(self._kept[1][:self.max_rows], numbers[:n], numbers[2 * n:3 * n + 1],
                                 numbers[n:2 * n], scales)

    def _sizes(self, member: int) -> Any:
        return _capi.out(_capi.iris_moe_sizes, _capi.library().iris_moe_get_sizes, self.context.handle,
                         self.team.n_ranks, member, ctypes.byref(self._config))

    def _check(self, name: str) -> None:
        if not self._kept:
            raise FailedPreconditionError(f"{name}: the exchange was released: make another one")

    def _buffer(self, what: Any, role: str, shape: Tuple[Optional[int], ...], dtypes: Tuple[DType, ...],
                written: bool = False) -> "_foreign.Buffer":
        """Returns the memory of an argument of this shape, in which None stands for the number of tokens."""
        _foreign.check_no_gradient(what, role)
        buffer = _foreign.buffer_of(self.context, what, role, written)
        if len(buffer.shape) != 2 or any(wanted not in (None, got) for got, wanted in zip(buffer.shape, shape)):
            text = ", ".join("tokens" if extent is None else str(extent) for extent in shape)
            raise InvalidArgumentError(f"{role} has the shape {buffer.shape}, and ({text}) is wanted")
        if buffer.dtype not in dtypes:
            names = " or ".join(dtype.long_name for dtype in dtypes)
            raise InvalidArgumentError(f"{role} has elements of {buffer.dtype.long_name}, and {names} is wanted")
        return buffer

    def dispatch(self, x: Any, ids: Any, weights: Any = None, *, x_scales: Any = None, stream: Any = None,
                 async_op: bool = False) -> Any:
        """Sends the rows of x to the experts that `ids` (int32 or int64; -1: none) names. Returns the rows that this
        member received, or with async_op a Work. `weights` (float32) are 1 by default. An x of float8_e4m3fn needs
        `x_scales` (float32)."""
        self._check("dispatch")
        context = self.context
        rows = self._buffer(x, "dispatch: x", (None, self.hidden), (self.dtype,))
        tokens = rows.shape[0]
        if tokens > self.max_tokens:
            raise InvalidArgumentError(f"dispatch: x has {tokens} tokens, and the exchange was made for "
                                       f"{self.max_tokens}")
        chosen = self._buffer(ids, "dispatch: ids", (tokens, self.top_k), (DType.I32, DType.I64))
        call = _capi.iris_moe_dispatch_call(
            workspace=self._workspace.data_ptr(), tokens=tokens, id_dtype=chosen.dtype, x=rows.address,
            ids=chosen.address, rows=self.received.rows.data_ptr(), counts=self.received.counts.data_ptr(),
            offsets=self.received.offsets.data_ptr(), dropped=self.received.dropped.data_ptr())
        keep = [x, ids]
        for name, given, columns in (("weights", weights, self.top_k),
                                     ("x_scales", x_scales, -(-self.hidden // SCALE_COLUMNS))):
            if given is not None:
                buffer = self._buffer(given, f"dispatch: {name}", (tokens, columns), (DType.F32,))
                setattr(call, name, buffer.address)
                keep.append(given)
        if self.received.scales is not None:
            call.scales = self.received.scales.data_ptr()
        return context._run(self._communicator, _capi.library().iris_moe_dispatch, keep,
                            (ctypes.byref(self._config), ctypes.byref(call)), result=self.received, stream=stream,
                            async_op=async_op)

    def combine(self, y: Any, out: Any, *, stream: Any = None, async_op: bool = False) -> Any:
        """out[t] = the sum over the choices of token t of weight * y[the row of this choice]. y[max_rows, hidden] has
        the results of the experts for `rows`; y and out are float32, float16 or bfloat16. Returns out."""
        self._check("combine")
        floats = (DType.F32, DType.F16, DType.BF16)
        made = self._buffer(y, "combine: y", (self.max_rows, self.hidden), floats)
        target = self._buffer(out, "combine: out", (None, self.hidden), floats, True)
        call = _capi.iris_moe_combine_call(
            workspace=self._workspace.data_ptr(), tokens=target.shape[0], y_dtype=made.dtype,
            out_dtype=target.dtype, y=made.address, out=target.address)
        return self.context._run(self._communicator, _capi.library().iris_moe_combine, (y, out),
                                 (ctypes.byref(self._config), ctypes.byref(call)), stream=stream, async_op=async_op)

    def release(self) -> None:
        """Frees the memory. Collective over the team. Synchronize the streams first."""
        self._check("release")
        while self._kept:
            self._kept.pop(0).free()
