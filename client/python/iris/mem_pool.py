"""A model's own tensors in the heap:

    pool = iris.mem_pool(context)
    with pool:
        model = Model().to(context.device)

What torch allocates on the rank's GPU inside the `with`, on this thread, is of this rank's heap: memory that the rank
has alone, at offsets of its own. So context.is_symmetric() is true of it, and collectives use it where it lies,
without a copy through their workspace. For put, get and signals, which need one offset on all ranks, allocate with the
factories of the context, or copy tensors to one with context.as_symmetric(copy=True).

Gradients are made by a thread of torch's own, which the `with` does not reach. Those that are there already are added
to where they lie: make them inside the `with` (`p.grad = torch.zeros_like(p)`), and keep them with
`zero_grad(set_to_none=False)`.

Not collective. Needs a GPU and torch 2.5 or newer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Optional

from iris import _capi, _foreign
from iris.context import current_context
from iris.errors import FailedPreconditionError

if TYPE_CHECKING:
    from iris.context import Context


class MemPool:
    """What mem_pool() gives. Keep it as long as its tensors: with it goes what keeps their memory mapped, also after
    the context's close(). One thread uses it at a time, and not inside itself: torch refuses that."""

    def __init__(self, context: "Context") -> None:
        context.check()
        library = _capi.library()
        self.context = context
        """Whose heap it takes memory from."""
        self.pool, self._allocator = _foreign.heap_pool(context, library._name, "iris_torch_malloc", "iris_torch_free")
        self._native = context.native()
        self._entered: List[Any] = []
        library.iris_torch_use(context.handle, context.device_index)

    def __enter__(self) -> "MemPool":
        self.context.check()
        _capi.library().iris_torch_use(self.context.handle, self.context.device_index)
        entered = _foreign.use_heap_pool(self.context, self.pool)
        entered.__enter__()
        self._entered.append(entered)
        return self

    def __exit__(self, *what: Any) -> None:
        self._entered.pop().__exit__(*what)


def mem_pool(context: "Optional[Context]" = None) -> MemPool:
    """A pool of torch's whose memory is of the context's heap; of the one made last without an argument. Not
    collective. FailedPreconditionError: no context, emulated devices, or a torch that has no pools."""
    context = context or current_context()
    if context is None:
        raise FailedPreconditionError("mem_pool(): there is no context: make one first")
    return MemPool(context)
