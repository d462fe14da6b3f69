"""GEMMs with communication: `iris.ops`, with the names and the order of arguments of the reference system.

    workspace = iris.ops.matmul_all_reduce_preamble(context, C, A, B)     # collective, once
    iris.ops.matmul_all_reduce(context, C, A, B, bias, workspace=workspace)

With W members. The shares of a dimension are even; the first (dimension mod W) members have one more:

    matmul_all_reduce      C[m, n] = sum over the members of A[m, k] @ B[k, n] + bias, on all; k may differ
    matmul_reduce_scatter  the same; each member gets its share of the rows: C[share of m, n]
    all_gather_matmul      C[m, n] = A @ B + bias, where A is the members' A[share of m, k] one after another
    matmul_all_gather      C[m, n]: each member computes its rows, from A[share of m, k], and all get all rows
    matmul_all_scatter     C[m, n]: each member computes its columns, from B[k, share of n], and all get all columns

A and B have elements of float16 or bfloat16, C of these or float32; sums are made in float32. Rows are contiguous; B
may be a transposed view, as `weight.t()` is. C of matmul_all_reduce, matmul_all_gather and matmul_all_scatter lies in
the symmetric heap. `bias` has an element for each column that this member computes. `activation` is None, "relu",
"gelu" (tanh) or "silu".

`shmem` is a Context. With the result of iris.iris() a call has the arguments and the meaning of the reference: see
iris._fused. A call without a workspace makes one for the team if it needs a
larger one, which is collective; with a prepared one it allocates nothing and may be captured. Calls return as
collectives do (see iris.collectives). docs/ops.md has the details.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

from iris import _capi, _foreign
from iris.collectives import Communicator
from iris.dtypes import DType
from iris.errors import FailedPreconditionError, InvalidArgumentError

if TYPE_CHECKING:
    from iris.context import Context
    from iris.team import Team

ACTIVATIONS: Dict[Optional[str], int] = {None: 0, "none": 0, "relu": 1, "gelu": 2, "silu": 3}
VARIANTS: Dict[str, int] = {"auto": 0, "fused": 1, "pair": 2, "persistent": 3, "copy_engine": 4}
_NUMBERS = {"matmul_all_reduce": 12, "matmul_reduce_scatter": 13, "all_gather_matmul": 14, "matmul_all_gather": 15,
            "matmul_all_scatter": 16}


def share_of(dimension: int, members: int, member: int) -> Tuple[int, int]:
    """Returns the begin and the length of a member's share."""
    each, longer = divmod(dimension, members)
    return member * each + min(member, longer), each + (member < longer)


class Workspace(Communicator):
    """Memory of a team for these operations. Creation and release are collective over the team."""

    def __init__(self, team: "Team", matmul_bytes: int, **options: Any) -> None:
        self.rules: Optional[str] = options.get("rules")
        self.matmul_bytes = matmul_bytes
        super().__init__(team, matmul_bytes=matmul_bytes, **options)


def context_of(shmem: Any) -> "Context":
    """Returns the context that an operation's first argument means. Raises InvalidArgumentError if it means none."""
    context = getattr(shmem, "context", shmem)
    if not hasattr(context, "team_of"):
        raise InvalidArgumentError(f"{type(shmem).__name__} is no context: give an iris.Context, or what iris.iris() "
                                   "returned")
    return context


def variant_of(name: str, variant: Any, variants: Dict[str, int]) -> int:
    """Returns the number of a variant that is given by name or number. Raises InvalidArgumentError if there is none."""
    number = variants.get(variant) if isinstance(variant, str) else variant if isinstance(variant, int) else None
    if number is None or number not in variants.values():
        raise InvalidArgumentError(f"{name}: variant={variant!r} is none of {', '.join(variants)}")
    return number


class _Call:
    """A call. Its constructor checks the shapes of the tensors."""

    def __init__(self, shmem: Any, given_team: Optional["Team"], name: str, output: Any, a: Any, b: Any, bias: Any,
                 activation: Any, variant: Any) -> None:
        self.name = name
        self.context = context = context_of(shmem)
        self.team = team = context.team_of(given_team)
        matrix_of = _foreign.matrix_of
        d = matrix_of(context, output, f"{name}: the output", written=True)
        first = matrix_of(context, a, f"{name}: A")
        second = matrix_of(context, b, f"{name}: B", may_be_transposed=True)
        if activation not in ACTIVATIONS:
            raise InvalidArgumentError(f"{name}: activation={activation!r} is none of None, 'relu', 'gelu' and 'silu'")
        number = variant_of(name, variant, VARIANTS)
        if first.dtype is not second.dtype:
            raise InvalidArgumentError(f"{name}: A has elements of {first.dtype.long_name} and B of "
                                       f"{second.dtype.long_name}: they must be the same")
        if first.shape[1] != second.shape[0]:
            raise InvalidArgumentError(f"{name}: A has {first.shape[1]} columns and B {second.shape[0]} rows: they "
                                       "must be as many")
        members, index = team.n_ranks, team.index
        k, columns = second.shape
        m, n = first.shape[0], columns
        shares = []
        if name in ("all_gather_matmul", "matmul_all_gather"):
            m = d.shape[0]
            shares = [("A", "rows", first.shape[0], m)]
        elif name == "matmul_all_scatter":
            n = d.shape[1]
            shares = [("B", "columns", columns, n)]
        for which, what, got, whole in shares:
            wanted = share_of(whole, members, index)[1]
            if got != wanted:
                raise InvalidArgumentError(f"{name}: {which} has {got} {what}; the output has {whole}, of which the "
                                           f"share of member {index} of {members} is {wanted}")
        rows = share_of(m, members, index)[1] if name == "matmul_reduce_scatter" else m
        if d.shape != (rows, n):
            raise InvalidArgumentError(f"{name}: the output has the shape {d.shape}, and ({rows}, {n}) is what A of "
                                       f"{first.shape} and B of {second.shape} give member {index} of {members}")
        self.call = _capi.iris_matmul(
            operation=_NUMBERS[name], variant=number, m=m, n=n, k=k, in_dtype=first.dtype, out_dtype=d.dtype,
            bias_dtype=DType.NONE, transposed_b=second.transposed, activation=ACTIVATIONS[activation],
            a=first.address, lda=first.ld, b=second.address, ldb=second.ld, d=d.address, ldd=d.ld)
        self.keep: Tuple[Any, ...] = (output, a, b)
        if bias is not None:
            _foreign.check_no_gradient(bias, f"{name}: the bias")
            row = _foreign.buffer_of(context, bias, f"{name}: the bias")
            if row.count != columns:
                raise InvalidArgumentError(f"{name}: the bias has {row.count} elements, and this member makes "
                                           f"{columns} columns")
            self.call.bias, self.call.bias_dtype = row.address, row.dtype
            self.keep += (bias,)

    def workspace_bytes(self, rules: Optional[str] = None) -> int:
        """Returns the size of the workspace, in bytes, that the call needs."""
        options = None if rules is None else ctypes.byref(_capi.iris_comm_options(rules=_capi.text(rules)))
        return _capi.out(ctypes.c_uint64, _capi.library().iris_matmul_bytes, self.context.handle, self.team.n_ranks,
                         options, ctypes.byref(self.call)).value

    def given(self, workspace: Any) -> Workspace:
        """Checks and returns a workspace of the caller."""
        if not isinstance(workspace, Workspace):
            raise InvalidArgumentError(f"{self.name}: {type(workspace).__name__} is no workspace: use what a function "
                                       "..._preamble returned")
        if workspace.team != self.team:
            raise InvalidArgumentError(f"{self.name}: the workspace is of the team of the ranks "
                                       f"{list(workspace.team.ranks)}, and the call of {list(self.team.ranks)}: use "
                                       "one that was made for this team")
        return workspace

    def shared(self) -> Workspace:
        """Returns the workspace that calls without one share. Replaces it if it is too small."""
        context, team, needed = self.context, self.team, self.workspace_bytes()
        kept = context.matmul_workspaces.get(team.id)
        if kept is not None and not kept.closed and kept.matmul_bytes >= needed:
            return kept
        if context.capturing:
            raise FailedPreconditionError(f"{self.name}: it needs a workspace, which cannot be made while a graph is "
                                          f"captured: call {self.name}_preamble() before, and give what it returns")
        if kept is not None and not kept.closed:
            context.quiet()
            kept.release()
        made = context.matmul_workspaces[team.id] = Workspace(team, needed)
        return made


def plan(shmem: Any, name: str, output: Any, a: Any, b: Any, bias: Any = None, *, workspace: Workspace,
         activation: Any = None, variant: Any = "auto") -> Dict[str, Any]:
    """Returns the plan of a call: its variant, multiplier, blocks, threads, the tile, bytes of workspace. With "auto",
    the call may use another variant if matrices are not aligned to 16 bytes, or if the distance of their rows is not a
    multiple of 8 elements."""
    if name not in _NUMBERS:
        raise InvalidArgumentError(f"{name!r} is none of {', '.join(_NUMBERS)}")
    call = _Call(shmem, workspace.team, name, output, a, b, bias, activation, variant)
    told = _capi.out(_capi.iris_matmul_plan, _capi.library().iris_matmul_choose, workspace.handle,
                     ctypes.byref(call.call))
    return {"variant": next(text for text, number in VARIANTS.items() if number == told.variant),
            "multiplier": told.multiplier.decode(), "blocks": told.blocks, "threads": told.threads,
            "tile": (told.tile_rows, told.tile_columns), "matmul_bytes": told.matmul_bytes}


def _by_first(own: Any) -> Any:
    """Returns a function that calls the reference's of this name, if there is one, for the result of iris.iris()."""

    @functools.wraps(own)
    def call(shmem: Any, *arguments: Any, **options: Any) -> Any:
        function = own
        if hasattr(shmem, "ccl"):
            function = getattr(importlib.import_module("iris._fused"), own.__name__, own)
        return function(shmem, *arguments, **options)

    return call


def _operation(name: str, doc: str) -> Any:

    def run(shmem: Any, output_tensor: Any, A: Any, B: Any, bias: Any = None, async_op: bool = False,
            config: Any = None, workspace: Optional[Workspace] = None, *, activation: Any = None,
            variant: Any = "auto", team: Optional["Team"] = None, stream: Any = None) -> Any:
        team = workspace.team if team is None and isinstance(workspace, Workspace) else team
        call = _Call(shmem, team, name, output_tensor, A, B, bias, activation, variant)
        found = call.shared() if workspace is None else call.given(workspace)
        return call.context._run(found, _capi.library().iris_matmul_launch, call.keep, (ctypes.byref(call.call),),
                            result=output_tensor, stream=stream, async_op=async_op)

    run.__name__ = name
    run.__doc__ = f"{doc} Returns the output. `config` is accepted, because the reference has it, and ignored."
    return _by_first(run)


matmul_all_reduce = _operation("matmul_all_reduce", "C = sum over the members of A @ B, + bias.")
matmul_reduce_scatter = _operation("matmul_reduce_scatter", "As matmul_all_reduce, but each member gets its rows of C.")
matmul_all_gather = _operation("matmul_all_gather", "C = A @ B + bias: each member computes rows; all get all.")
matmul_all_scatter = _operation("matmul_all_scatter", "C = A @ B + bias: each member computes columns; all get all.")
_all_gather_matmul = _operation("all_gather_matmul", "")


@_by_first
def all_gather_matmul(shmem: Any, output_tensor: Any, A_sharded: Any, B: Any, *arguments: Any, **options: Any) -> Any:
    """C = A @ B + bias, where the rows of A are the members' shares. See matmul_all_reduce."""
    return _all_gather_matmul(shmem, output_tensor, A_sharded, B, *arguments, **options)


def _preamble(name: str) -> Any:

    def prepare(shmem: Any, output_tensor: Any, A: Any, B: Any, bias: Any = None, config: Any = None,
                workspace: Optional[Workspace] = None, *, activation: Any = None, variant: Any = "auto",
                team: Optional["Team"] = None, rules: Optional[str] = None) -> Workspace:
        call = _Call(shmem, team, name, output_tensor, A, B, bias, activation, variant)
        found = None if workspace is None else call.given(workspace)
        if found is not None and rules is None:
            rules = found.rules
        needed = call.workspace_bytes(rules)
        if found is not None and not found.closed and found.rules == rules and found.matmul_bytes >= needed:
            return found
        return Workspace(call.team, needed, rules=rules)

    prepare.__name__ = f"{name}_preamble"
    prepare.__doc__ = f"""Collective over the team. Returns a workspace for {name} of these tensors: `workspace` if
    it is large enough and has the same rules, otherwise a new one. `rules` is the text of a table that
    `iris_bench tune` wrote, with lines of products. Without it, the rules of `workspace` apply, if one is given."""
    return _by_first(prepare)


matmul_all_reduce_preamble = _preamble("matmul_all_reduce")
matmul_reduce_scatter_preamble = _preamble("matmul_reduce_scatter")
all_gather_matmul_preamble = _preamble("all_gather_matmul")
matmul_all_gather_preamble = _preamble("matmul_all_gather")
matmul_all_scatter_preamble = _preamble("matmul_all_scatter")
