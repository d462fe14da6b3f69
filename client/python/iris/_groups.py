"""The ranks that a call with `group=` means, and other ranks' memory as tensors of torch.

A process group of torch is known to its members alone, and a team of Iris is made by all ranks. So a group without a
team has only torch's barriers, on the host, between which the facade's collectives read and write the members' memory
where it lies.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from iris import _foreign
from iris.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from iris.team import Team

if TYPE_CHECKING:
    from iris.context import Context


class Group:
    """Ranks of the job, in their order. `team` is None if all ranks have not made one: then `native` is torch's."""

    def __init__(self, groups: "Groups", ranks: Tuple[int, ...], team: Optional[Team], native: Any) -> None:
        self.ranks = ranks
        self.team = team
        self.native = native
        self._groups = groups

    @property
    def index(self) -> int:
        """The place of this rank."""
        return self.ranks.index(self._groups.context.rank)

    @functools.cached_property
    def mapped(self) -> bool:
        """True if the heaps of all ranks are mapped here."""
        return all(map(self._groups.context.reaches, self.ranks))

    def each(self, tensor: Any, what: str) -> List[Any]:
        """Returns torch's tensor of the same place in the heap of each rank, for reading; see Groups.at. If ranks are
        on several nodes, all ranks call it together, and get copies of each rank's tensor."""
        if self.mapped or self.team is None:
            return [self._groups.at(tensor, rank, what) for rank in self.ranks]
        copies = tensor.new_empty((len(self.ranks), *tensor.shape))
        self._groups.context.all_gather(tensor.detach().contiguous(), copies, team=self.team)
        return list(copies)

    def barrier(self, stream: Any = None) -> None:
        """Waits for the stream, or for all streams that the context knows, then for all ranks of the group."""
        context = self._groups.context
        if self.team is not None:
            context.barrier(self.team, stream=stream)
            return
        if stream is None:
            context.quiesce()
        else:
            context.stream_for(stream)[0].synchronize()
        _foreign.group_barrier(self.native)

    def device_barrier(self, stream: Any = None) -> None:
        """Puts a barrier of the group's ranks on a stream. Without a team, it is barrier() of this stream."""
        context = self._groups.context
        if self.team is not None:
            context.device_barrier(self.team, stream=stream)
        else:
            self.barrier(context.stream_for(stream)[0])

    def finish(self) -> None:
        """Ends a call that returns once all ranks of the group are done. Does nothing while work is recorded, because
        that cannot be waited for. Raises the failure of a collective, which names the missing ranks."""
        context = self._groups.context
        if context.capturing or _foreign.is_capturing(context):
            return
        self.barrier()
        communicator = None if self.team is None else context._communicators.get(self.team.id)
        if communicator is not None:
            communicator.check()


class Groups:
    """The groups of a context."""

    def __init__(self, context: "Context") -> None:
        self.context = context
        everybody = tuple(range(context.n_ranks))
        self.world = Group(self, everybody, context.world, None)
        self._known: Dict[Tuple[int, ...], Group] = {everybody: self.world}
        self._heaps: Dict[Any, Any] = {}

    def of(self, group: Any) -> Group:
        """Returns the group that an argument means: None is the world, else it is a team, or a process group of torch.
        Raises RuntimeError if this rank is no member, and TypeError if the argument is no group."""
        self.context.check()
        if group is None:
            return self.world
        native = None if isinstance(group, Team) else group
        ranks = group.ranks if native is None else _foreign.ranks_of_group(native)
        if self.context.rank not in ranks:
            raise FailedPreconditionError(f"rank {self.context.rank} is no member of the group of the ranks "
                                          f"{list(ranks)}: only members call")
        found = self._known.get(ranks)
        if found is None:
            found = self._known[ranks] = Group(self, ranks, group if native is None else None, native)
        # Of two groups with the same ranks, the older one may have ended.
        elif native is None:
            found.team = group
        else:
            found.native = native
            if found.team is not None and found.team.destroyed:
                found.team = None
        return found

    def use(self, group: Any) -> Team:
        """Makes the team of a group, which may be a list of ranks. Collective over all ranks."""
        ranks = tuple(map(int, group)) if isinstance(group, (list, tuple, range)) else (
            group.ranks if isinstance(group, Team) else _foreign.ranks_of_group(group))
        found = self._known.setdefault(ranks, Group(self, ranks, None, None))
        if found.team is None:
            found.team = self.context.team(ranks)
        return found.team

    def at(self, tensor: Any, rank: int, what: str) -> Any:
        """Returns torch's tensor of the same place in another rank's heap. Raises InvalidArgumentError, which begins
        with `what`, if the tensor is outside the heap, and UnimplementedError if the rank is on another node.

        The result keeps no memory: it is for use in the call that has the tensor as its argument."""
        context = self.context
        if rank == context.rank:
            return tensor
        key = rank, tensor.dtype
        heap = self._heaps.get(key)
        if heap is None:
            if not context.reaches(rank):
                raise UnimplementedError(f"{what}: rank {rank} is on another node, whose memory is not mapped here")
            heap = self._heaps[key] = _foreign.heap_view(context, rank, tensor.dtype)
        offset = tensor.data_ptr() - context.base - context.rank * context.stride_bytes
        if not 0 <= offset < context.stride_bytes:
            raise InvalidArgumentError(f"{what}: a tensor of shape {tuple(tensor.shape)} is not in the symmetric heap, "
                                       "in which other ranks reach it: allocate it with the factories of iris.iris()")
        return heap.as_strided(tensor.shape, tensor.stride(), offset // tensor.element_size())


def extract_group_info(group: Any, rank: int, num_ranks: int) -> Tuple[int, int, int, int, int]:
    """Returns (place in the group, rank, size of the group, its first rank, distance of its ranks) of a process group
    of torch, or of all ranks if it is None. Raises RuntimeError if the rank is no member, and NotImplementedError if
    the distances of the ranks differ."""
    if group is None:
        return rank, rank, num_ranks, 0, 1
    ranks = group.ranks if isinstance(group, Team) else _foreign.ranks_of_group(group)
    if rank not in ranks:
        raise FailedPreconditionError(f"rank {rank} is no member of the group of the ranks {list(ranks)}")
    steps = {second - first for first, second in zip(ranks, ranks[1:])}
    if len(steps) > 1:
        raise UnimplementedError(f"the ranks {list(ranks)} of the group are not equally far apart, and the result "
                                 "describes only such groups")
    return ranks.index(rank), rank, len(ranks), ranks[0], steps.pop() if steps else 1
