"""RMS norms of sums over the members of a team, in one operation with the sums: `iris.norm`.

    h = iris.norm.all_reduce_rms_norm(context, part, weight, residual=x)      # x += sum of part, h = its norm

Of W members, in float32 with one rounding to each result:

    r = sum over the members of input + residual
    output = r / sqrt(mean of the row's r * r + epsilon) * (weight + weight_offset)

`input` is a matrix [rows, hidden] of float32, float16 or bfloat16, whose rows may lie apart; the residual, which
becomes r, and the output have its type. The output of a float32 input may be float16 or bfloat16, and any output may be
float8 (DType.F8E4M3, DType.F8E5M2): then it is divided by `scale`, a float32 tensor of yours, or by `scales`, [rows] or
[rows, ceil(hidden / 128)], which are written: the largest magnitude of each row, or of 128 columns of it, divided by
the largest number of the type. In reduce_scatter_rms_norm_all_gather the residual has this member's share of the rows
only (`iris.ops.share_of`), and the output has all rows.

`shmem` is a Context, or the result of iris.iris(). Calls use the communicator of collectives (`Context.prepare`) and
return as collectives do (see iris.collectives). docs/norm.md has the details.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

from iris import _capi, _foreign
from iris.dtypes import DType
from iris.errors import InvalidArgumentError
from iris.ops import context_of, share_of, variant_of

if TYPE_CHECKING:
    from iris.context import Context
    from iris.team import Team

GROUP_COLUMNS = 128
VARIANTS: Dict[str, int] = {"auto": 0, "packets": 1, "lines": 2, "two_shot": 3, "alone": 4, "two_lines": 5,
                            "pair": 6}
_NUMBERS = {"all_reduce_rms_norm": 17, "reduce_scatter_rms_norm_all_gather": 18}
_NO_SCALING, _STATIC, _PER_ROW, _PER_GROUP = range(4)


class _Call:
    """A call. Its constructor checks the shapes of the tensors."""

    def __init__(self, shmem: Any, name: str, input: Any, weight: Any, given_team: Optional["Team"], *,
                 residual: Any = None, output: Any = None, residual_output: Any = None, scale: Any = None,
                 scales: Any = None, epsilon: float = 1e-6, weight_offset: float = 0.0, variant: Any = "auto") -> None:
        self.context = context = context_of(shmem)
        self.team = team = context.team_of(given_team)

        def buffer(what: Any, role: str, written: bool = False) -> "_foreign.Buffer":
            _foreign.check_no_gradient(what, f"{name}: {role}")
            return _foreign.buffer_of(context, what, f"{name}: {role}", written)

        def matrix(what: Any, role: str, written: bool) -> "_foreign.Matrix":
            return _foreign.matrix_of(context, what, f"{name}: {role}", written=written)

        for what, value in (("epsilon", epsilon), ("weight_offset", weight_offset)):
            if not hasattr(value, "__float__"):
                raise InvalidArgumentError(f"{name}: {what}={value!r}: a number is wanted")
        source = matrix(input, "the input", output is None or output is input)
        rows, hidden = source.shape
        if hidden == 0:
            raise InvalidArgumentError(f"{name}: the input has the shape {source.shape}: a row has to have columns")
        target = source if output is None or output is input else matrix(output, "the output", True)
        if target.shape != source.shape:
            raise InvalidArgumentError(f"{name}: the output has the shape {target.shape}, and the input "
                                       f"{source.shape}: they must be the same")
        number = variant_of(name, variant, VARIANTS)
        self.result = input if output is None else output
        self.call = _capi.iris_norm(operation=_NUMBERS[name], variant=number, rows=rows, hidden=hidden,
                                    in_dtype=source.dtype, out_dtype=target.dtype, weight_dtype=DType.NONE,
                                    epsilon=epsilon, weight_offset=weight_offset, out=target.address,
                                    in_stride=source.ld, out_stride=target.ld)
        setattr(self.call, "in", source.address)
        self.keep: Tuple[Any, ...] = (source.keep, target.keep)
        if weight is not None:
            row = buffer(weight, "the weight")
            if row.count != hidden:
                raise InvalidArgumentError(f"{name}: the weight has {row.count} elements, and rows have {hidden}")
            self.call.weight, self.call.weight_dtype = row.address, row.dtype
            self.keep += (row.keep,)
        if residual is None and residual_output is not None:
            raise InvalidArgumentError(f"{name}: residual_output needs a residual")
        if residual is not None:
            own = rows
            if name == "reduce_scatter_rms_norm_all_gather":
                own = share_of(rows, team.n_ranks, team.index)[1]
            before = matrix(residual, "the residual", residual_output is None)
            after = before if residual_output is None else matrix(residual_output, "residual_output", True)
            for what, each in (("the residual", before), ("residual_output", after)):
                if each.dtype is not source.dtype or each.shape != (own, hidden):
                    raise InvalidArgumentError(
                        f"{name}: {what} is of {each.dtype.long_name} and has the shape {each.shape}: wanted are "
                        f"{source.dtype.long_name} and {(own, hidden)}")
            self.call.has_residual = 1
            self.call.residual, self.call.residual_out = before.address, after.address
            self.call.residual_stride, self.call.residual_out_stride = before.ld, after.ld
            self.keep += (before.keep, after.keep)
        self._scale(name, buffer, scale, scales, rows, hidden)

    def _scale(self, name: str, buffer: Any, scale: Any, scales: Any, rows: int, hidden: int) -> None:
        if scale is not None and scales is not None:
            raise InvalidArgumentError(f"{name}: give either `scale`, which is used, or `scales`, which are written")
        given = scale if scale is not None else scales
        if given is None:
            return
        found = buffer(given, "the scale" if scale is not None else "scales", scales is not None)
        if found.dtype is not DType.F32:
            raise InvalidArgumentError(f"{name}: scales are of float32, not {found.dtype.long_name}")
        self.keep += (found.keep,)
        if scale is not None:
            if found.count != 1:
                raise InvalidArgumentError(f"{name}: `scale` has {found.count} elements: 1 is wanted")
            self.call.scaling, self.call.scale = _STATIC, found.address
            return
        groups = -(-hidden // GROUP_COLUMNS)
        if found.shape in ((rows,), (rows, 1)) and (len(found.shape) == 1 or groups != 1):
            self.call.scaling = _PER_ROW
        elif found.shape == (rows, groups):
            self.call.scaling = _PER_GROUP
        else:
            raise InvalidArgumentError(f"{name}: `scales` has the shape {found.shape}: ({rows},) for a scale of each "
                                       f"row, or ({rows}, {groups}) for one of {GROUP_COLUMNS} columns, is wanted")
        self.call.scales = found.address


def _norm(name: str, doc: str) -> Any:

    def run(shmem: Any, input: Any, weight: Any = None, *, team: Optional["Team"] = None, stream: Any = None,
            async_op: bool = False, **options: Any) -> Any:
        call = _Call(shmem, name, input, weight, team, **options)
        context = call.context
        return context._run(context.prepare(call.team), _capi.library().iris_norm_launch, call.keep,
                            (ctypes.byref(call.call),), result=call.result, stream=stream, async_op=async_op)

    run.__name__, run.__doc__ = name, doc
    return run


all_reduce_rms_norm = _norm("all_reduce_rms_norm", """The norm of the sum over the members of `input`, + residual.

    Options: residual, output, residual_output, scale, scales, epsilon=1e-6, weight_offset=0.0, variant="auto". In place
    without an output, as is the residual without a residual_output. Returns the output.""")
reduce_scatter_rms_norm_all_gather = _norm(
    "reduce_scatter_rms_norm_all_gather", "As all_reduce_rms_norm; the residual has this member's share of the rows.")


def plan(shmem: Any, name: str, input: Any, weight: Any = None, *, team: Optional["Team"] = None,
         **options: Any) -> Dict[str, Any]:
    """Returns the plan of a call: its variant, blocks, threads, and the number of blocks that share a row. Collective
    if the team has no communicator yet."""
    if name not in _NUMBERS:
        raise InvalidArgumentError(f"{name!r} is none of {', '.join(_NUMBERS)}")
    call = _Call(shmem, name, input, weight, team, **options)
    told = _capi.out(_capi.iris_norm_plan, _capi.library().iris_norm_choose, call.context.prepare(call.team).handle,
                     ctypes.byref(call.call))
    return {"variant": next(text for text, number in VARIANTS.items() if number == told.variant),
            "blocks": told.blocks, "threads": told.threads, "parts": told.parts}
