"""Team: an ordered set of ranks, which allocate and make collectives together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Tuple

from iris import _capi
from iris.errors import FailedPreconditionError

if TYPE_CHECKING:
    from iris.context import Context


class Team:
    """Some of the job's ranks, in an order of their own. Made by Context.team(), Context.split() and Team.split(),
    which are collective; Context.world is all of them.

    A team that Python drops lasts until the context ends, because ending a team is collective. destroy() ends it.
    """

    def __init__(self, context: "Context", handle: Optional[int]) -> None:
        self.context = context
        self._handle = handle
        self.destroyed = False
        info = _capi.out(_capi.iris_team_info, _capi.library().iris_team_get_info, context.handle, handle)
        self.id: int = info.id
        self.index: int = info.index
        """The place of this rank; -1: it is no member."""
        self.ranks: Tuple[int, ...] = tuple(info.ranks[i] for i in range(info.n_ranks))
        """World ranks, in the team's order."""

    @property
    def handle(self) -> Optional[int]:
        """The handle for the C API; None is the world. Raises FailedPreconditionError if team or context have ended."""
        self.context.check()
        if self.destroyed:
            raise FailedPreconditionError(f"the team of the ranks {list(self.ranks)} was used after destroy(): make "
                                          "another one")
        return self._handle

    @property
    def n_ranks(self) -> int:
        """The number of members."""
        return len(self.ranks)

    @property
    def is_member(self) -> bool:
        """True if this rank belongs to it."""
        return self.index >= 0

    def split(self, color: int, key: int = 0) -> "Team":
        """Collective over the team: see Context.split."""
        return self.context.split(color, key, team=self)

    def barrier(self, timeout: Optional[float] = None) -> None:
        """Collective over the team: see Context.barrier."""
        self.context.barrier(self, timeout=timeout)

    def destroy(self) -> None:
        """Frees the team's communicator and the tensors that all members dropped, and ends the team. Collective over
        the team. Raises FailedPreconditionError for the world."""
        context = self.context
        handle = self.handle
        if handle is None:
            raise FailedPreconditionError("the world is a team that lasts as long as its context: close that")
        if self.is_member:
            context.collect(self)
            context.release_communicator(self)
        _capi.library().iris_team_destroy(context.handle, handle)
        context.heap.forget_team(self)
        self.destroyed = True

    def __len__(self) -> int:
        return len(self.ranks)

    def __repr__(self) -> str:
        return f"iris.Team(ranks={list(self.ranks)}, index={self.index})"

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Team) and other.context is self.context and other.id == self.id

    def __hash__(self) -> int:
        return hash((id(self.context), self.id))
