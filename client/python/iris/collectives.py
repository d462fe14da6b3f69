"""Collectives on tensors: the methods of Context for them, and Work.

All members of a team call the same collectives in the same order. Tensors are those of Iris, torch and cupy, and, if
devices are emulated, arrays of numpy; they are contiguous. Memory of the heap is used in place.

With a stream of the caller, or torch's current stream if torch uses the rank's GPU, a call returns once the work is on
that stream, as torch's own operations do. Otherwise the call uses a stream of the context and waits for the result,
unless async_op is true: then it returns a Work.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from iris import _capi, _foreign
from iris.errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError
from iris.stream import Stream, out_handle

if TYPE_CHECKING:
    from iris.team import Team

OPERATORS: Dict[str, int] = {"sum": 0, "prod": 1, "product": 1, "min": 2, "max": 3, "avg": 4, "mean": 4}


def operator_like(op: Any) -> int:
    """Returns the number of an operator that is not named as in OPERATORS, such as torch's ReduceOp."""
    name = str(getattr(op, "name", op)).rpartition(".")[2].lower()
    if name not in OPERATORS:
        raise InvalidArgumentError(f"{op!r} is no operator of reductions: one of sum, prod, min, max, avg")
    return OPERATORS[name]


class Work:
    """The result of an operation with async_op=True."""

    def __init__(self, communicator: "Communicator", stream: Stream, result: Any) -> None:
        self._communicator = communicator
        self._stream = stream
        self._result = result

    def wait(self) -> Any:
        """Waits until the operation is done, and returns its output. An error names the missing ranks."""
        self._communicator.synchronize(self._stream)
        return self._result

    def is_completed(self) -> bool:
        """Returns True if the stream has no work left, so that the operation is done."""
        return self._stream.idle()


class Communicator:
    """A team's workspace for collectives. Each team has one, which the first collective of all its members makes."""

    def __init__(self, team: "Team", **options: Any) -> None:
        self.team = team
        self.grouped: Optional[List[Any]] = None
        self.closed = False
        options.update((name, _capi.text(options.get(name))) for name in ("name", "rules"))
        self._handle = out_handle(_capi.library().iris_comm_create, team.context.handle, team.handle,
                                  ctypes.byref(_capi.iris_comm_options(**options)))

    @property
    def handle(self) -> int:
        """The handle for the C API."""
        self.team.context.check()
        if self.closed:
            raise FailedPreconditionError("the communicator was used after it was released: make another one with "
                                          "Context.prepare()")
        return self._handle

    def synchronize(self, stream: Stream) -> None:
        """Waits for the stream, then raises the first failure of an operation, which names the missing ranks."""
        try:
            _capi.library().iris_comm_synchronize(self.handle, stream.handle)
        finally:
            stream._pending.clear()

    def check(self) -> None:
        """Raises the first failure among the operations that the streams have run."""
        _capi.library().iris_comm_check(self.handle)

    def reset(self) -> None:
        """Makes the communicator usable after a failure. Collective over the team. Synchronize the streams first."""
        _capi.library().iris_comm_reset(self.handle)

    def release(self) -> None:
        """Frees the workspace. Collective over the team. Synchronize the streams first."""
        _capi.library().iris_comm_release(self.handle)
        self.closed = True


class Collectives:
    """The collectives of Context. `team` is the world if it is left out; ranks are world ranks. All methods but
    device_barrier and group take the options `stream` and `async_op`. Those without counts and pairs of ranks also take
    `variant`, the number of a variant, or 0 for an automatic choice."""

    # Attributes of Context.
    rank: int
    capturing: int
    own_stream: Stream
    team_of: Callable[[Optional["Team"]], "Team"]
    stream_for: Any
    _communicators: Dict[int, Communicator]
    _barriers: Dict[int, Communicator]  # of teams whose first operation was a device_barrier

    def prepare(self, team: Optional["Team"] = None, **options: Any) -> Communicator:
        """Makes the team's communicator now, with the options of iris_comm_options by name (`timeout_ns=...`,
        `check_calls=1`). Collective over the team. Without this call, the first collective makes a communicator; send
        and recv, which not all members call, need an existing one. Raises InvalidArgumentError if options are given
        and there is a communicator already."""
        team = self.team_of(team)
        communicator = self._communicators.get(team.id)
        if communicator is None:
            communicator = self._communicators[team.id] = Communicator(team, **options)
        elif options:
            raise InvalidArgumentError("this team has a communicator already: give its options to the first prepare()")
        return communicator

    def release_communicator(self, team: Optional["Team"] = None) -> None:
        """Frees the memory of the team's communicator, if it has one. Collective over the team."""
        for communicators in (self._communicators, self._barriers):
            communicator = communicators.pop(self.team_of(team).id, None)
            if communicator is not None:
                communicator.release()

    def _existing(self, team: Any, what: str) -> Communicator:
        communicator = self._communicators.get(self.team_of(team).id)
        if communicator is None:
            raise FailedPreconditionError(f"{what}: the team has no communicator yet, and making one is collective: "
                                          "let all members call context.prepare() first")
        return communicator

    def _pair(self, what: str, input: Any, output: Any) -> Tuple[Any, Any]:
        """Returns the memory of the input and of the output. Of gather and scatter only the root needs both; the other
        operations are in place without an output."""
        if input is None and what == "scatter":
            return None, _foreign.buffer_of(self, output, "scatter: the output", True)
        in_place = output is input or output is None and what != "gather"
        source = _foreign.buffer_of(self, input, what + ": the input", in_place)
        if in_place or output is None:
            return source, source if in_place else None
        target = _foreign.buffer_of(self, output, what + ": the output", True)
        if source.dtype is not target.dtype:
            raise InvalidArgumentError(f"{what}: the input has elements of {source.dtype.long_name} and the output of "
                                       f"{target.dtype.long_name}: they must be the same")
        return source, target

    def _root(self, team: Optional["Team"], root: int, what: str) -> int:
        ranks = self.team_of(team).ranks
        if root not in ranks:
            raise OutOfRangeError(f"{what}: rank {root} is none of the team, which has the ranks {list(ranks)}")
        return root

    def _collective(self, what: str, input: Any, output: Any, team: Optional["Team"], parts: str, op: Any, root: Any,
                    /, variant: int = 0, stream: Any = None, async_op: bool = False) -> Any:
        """Runs a collective. `parts` names the buffer that has a part for each member: "input", "output", "both" or "".
        The C function takes the operator and the root after the type; `...` means that it takes none."""
        rest: List[int] = []
        if op is not ...:
            number = OPERATORS.get(op) if isinstance(op, str) else None
            rest.append(operator_like(op) if number is None else number)
        team = self.team_of(team)
        if root is not ...:
            rest.append(self._root(team, root, what))
        source, target = self._pair(what, input, output)
        larger, smaller = (source, target) if parts == "input" else (target, source)
        members = 1 if not parts or parts == "both" else team.n_ranks
        count = smaller.count
        if larger is not None and larger.count != count * members:
            raise InvalidArgumentError(f"{what}: the {'input' if larger is source else 'output'} has {larger.count} "
                                       f"elements, and {members} members with {count} each need {count * members}")
        if parts == "both":
            count, left = divmod(count, team.n_ranks)
            if left:
                raise InvalidArgumentError(f"{what}: {smaller.count} elements cannot be dealt to {team.n_ranks} "
                                           "members evenly")
        if not isinstance(variant, int):
            raise InvalidArgumentError(f"variant={variant!r}: the number of a variant is wanted, or 0 for the one "
                                       "that fits")
        communicator = self._communicators.get(team.id) or self.prepare(team)
        arguments = source and source.address, target and target.address, count, smaller.dtype, *rest
        keep = source and source.keep, target and target.keep
        function = getattr(_capi.library(), "iris_" + what)
        return self._run(communicator, function, keep, arguments, None, stream, async_op, variant)

    def _run(self, communicator: Communicator, function: Any, keep: Sequence[Any], arguments: Sequence[Any],
             result: Any = None, stream: Any = None, async_op: bool = False, *variant: int) -> Any:
        """Puts an operation on its stream, which the C function takes after the arguments. `keep` has the objects that
        the operation needs, the output last. Returns the output, or `result`."""
        where, waits = self.stream_for(stream)
        handle = communicator.handle if communicator.closed else communicator._handle
        function(handle, *arguments, where._handle, *variant)
        if result is None:
            result = keep[-1]
        if waits and not async_op and communicator.grouped is None:
            communicator.synchronize(where)
            return result
        if waits or stream is not None or self.capturing:
            # Only torch's current stream orders the use of torch's memory by itself.
            where.keep(*keep)
        if communicator.grouped is not None:
            communicator.grouped.append(where)
            return result
        return Work(communicator, where, result) if async_op else result

    def all_reduce(self, input: Any, output: Any = None, op: Any = "sum", *, team: Optional["Team"] = None,
                   **how: Any) -> Any:
        """output[i] = op over the members of input[i]; in place without an output. Returns the output."""
        return self._collective("all_reduce", input, output, team, "", op, ..., **how)

    def reduce(self, input: Any, output: Any = None, root: int = 0, op: Any = "sum", *, team: Optional["Team"] = None,
               **how: Any) -> Any:
        """Works as all_reduce, with the result only at the root. The output of other ranks is not written."""
        return self._collective("reduce", input, output, team, "", op, root, **how)

    def reduce_scatter(self, input: Any, output: Any, op: Any = "sum", *, team: Optional["Team"] = None,
                       **how: Any) -> Any:
        """output[i] = op over the members of input[index * n + i], where the output has n elements and the input n for
        each member."""
        return self._collective("reduce_scatter", input, output, team, "input", op, ..., **how)

    def all_gather(self, input: Any, output: Any, *, team: Optional["Team"] = None, **how: Any) -> Any:
        """output[m * n + i] = input[i] of member m, where the input has n elements."""
        return self._collective("all_gather", input, output, team, "output", ..., ..., **how)

    def gather(self, input: Any, output: Any = None, root: int = 0, *, team: Optional["Team"] = None,
               **how: Any) -> Any:
        """Works as all_gather, with the result only at the root. Other ranks need no output."""
        if output is None and self.rank == root:
            raise InvalidArgumentError("gather: the root needs an output")
        return self._collective("gather", input, output, team, "output", ..., root, **how)

    def scatter(self, input: Any, output: Any, root: int = 0, *, team: Optional["Team"] = None, **how: Any) -> Any:
        """output[i] = input[index * n + i] of the root, where the output has n elements. Other ranks need no input."""
        if input is None and self.rank == root:
            raise InvalidArgumentError("scatter: the root needs an input")
        return self._collective("scatter", input, output, team, "input", ..., root, **how)

    def all_to_all(self, input: Any, output: Any, *, team: Optional["Team"] = None, **how: Any) -> Any:
        """output[m * n + i] = input[index * n + i] of member m. Not in place."""
        return self._collective("all_to_all", input, output, team, "both", ..., ..., **how)

    def all_to_all_v(self, input: Any, to_counts: Sequence[int], output: Any, from_counts: Sequence[int], *,
                     team: Optional["Team"] = None, **how: Any) -> Any:
        """Sends to_counts[m] elements of the input to member m, in the order of the members, and receives
        from_counts[m] elements from member m. Not in place."""
        team = self.team_of(team)
        source, target = self._pair("all_to_all_v", input, output)
        lists = []
        for counts, buffer, which in ((to_counts, source, "the input"), (from_counts, target, "the output")):
            counts = [int(count) for count in counts]
            if len(counts) != team.n_ranks or min(counts) < 0 or sum(counts) > buffer.count:
                raise InvalidArgumentError(f"all_to_all_v: {which} has {buffer.count} elements, and the counts are "
                                           f"{counts}: {team.n_ranks} numbers are wanted, one for each member, 0 or "
                                           "more and together at most as many as there are elements")
            offsets = [sum(counts[:i]) for i in range(len(counts))]
            array = ctypes.c_uint64 * len(counts)
            lists += [array(*counts), array(*offsets)]
        return self._run(self.prepare(team), _capi.library().iris_all_to_all_v, (source.keep, target.keep),
                         (source.address, *lists[:2], target.address, *lists[2:], team.n_ranks, source.dtype), **how)

    def broadcast(self, tensor: Any, root: int = 0, *, team: Optional["Team"] = None, **how: Any) -> Any:
        """Copies the values of the root's tensor to every member's. For values of Python see broadcast_object."""
        buffer = _foreign.buffer_of(self, tensor, "broadcast: the tensor", self.rank != root)
        return self._collective("broadcast", buffer, None, team, "", ..., root, **how)

    def _message(self, what: str, tensor: Any, rank: int, team: Any, how: Dict[str, Any]) -> Any:
        buffer = _foreign.buffer_of(self, tensor, what + ": the tensor", what == "recv")
        return self._run(self._existing(team, what), getattr(_capi.library(), "iris_" + what), (tensor,),
                         (buffer.address, buffer.count, buffer.dtype, self._root(team, rank, what)), **how)

    def send(self, tensor: Any, to: int, *, team: Optional["Team"] = None, **how: Any) -> Any:
        """Sends to one rank, which calls recv. Only these two ranks call."""
        return self._message("send", tensor, to, team, how)

    def recv(self, tensor: Any, source: int, *, team: Optional["Team"] = None, **how: Any) -> Any:
        """Receives from one rank, which calls send. Only these two ranks call."""
        return self._message("recv", tensor, source, team, how)

    def send_recv(self, input: Any, to: int, output: Any, source: int, *, team: Optional["Team"] = None,
                  **how: Any) -> Any:
        """Sends and receives at once, so that all members of a ring may call send_recv first."""
        sent, received = self._pair("send_recv", input, output)
        return self._run(self._existing(team, "send_recv"), _capi.library().iris_send_recv, (sent.keep, received.keep),
                         (sent.address, sent.count, self._root(team, to, "send_recv"), received.address,
                          received.count, self._root(team, source, "send_recv"), sent.dtype), **how)

    @contextmanager
    def group(self, team: Optional["Team"] = None) -> Iterator[None]:
        """Collects the send and recv calls of a `with context.group():`, all on one stream, and starts them at once at
        its end, so that their order among different ranks does not matter. Waits at the end as the calls would have."""
        communicator = self._existing(team, "group")
        _capi.library().iris_group_start(communicator.handle)
        communicator.grouped = []
        try:
            yield
        except BaseException:
            communicator.grouped = None
            try:
                _capi.library().iris_group_end(communicator.handle)
            except Exception:  # only the first error is reported
                pass
            raise
        streams, communicator.grouped = communicator.grouped, None
        _capi.library().iris_group_end(communicator.handle)
        for stream in {id(s): s for s in streams}.values():
            if stream is self.own_stream and not self.capturing:
                communicator.synchronize(stream)

    def device_barrier(self, team: Optional["Team"] = None, *, stream: Any = None) -> None:
        """Puts a barrier on a stream, which passes it once the streams of all members reach it. It may be captured,
        after a first call. A team without a communicator gets a few words of the heap for its barriers."""
        team = self.team_of(team)
        communicator = self._communicators.get(team.id) or self._barriers.get(team.id)
        if communicator is None:
            communicator = self._barriers[team.id] = Communicator(team, barriers_only=1)
        self._run(communicator, _capi.library().iris_comm_barrier, (None,), (), stream=stream)
