"""A model's own tensors in the heap:

    pool = iris.mem_pool(context)
    with pool:
        model = Model().to(context.device)

Inside the `with`, on this thread, torch allocates on the rank's GPU from this rank's heap, at offsets of the rank's
own. context.is_symmetric() is true of this memory, and collectives use it in place. docs/python.md says what that means
for gradients and for put, get and signals. Not collective. Needs a GPU and torch 2.5 or newer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Optional

from iris import _capi, _foreign
from iris.context import latest_context

if TYPE_CHECKING:
    from iris.context import Context


class MemPool:
    """The result of mem_pool(). Keep it as long as its tensors: it keeps their memory mapped, also after the context's
    close(). One thread uses it at a time, and not inside itself."""

    def __init__(self, context: "Context") -> None:
        context.check()
        library = _capi.library()
        self.context = context
        """The context whose heap it uses."""
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
    """A pool of torch's in the heap of the context; in that of the one made last without an argument. Not collective.
    FailedPreconditionError: no context, emulated devices, or a torch that has no pools."""
    return MemPool(latest_context(context, "mem_pool()"))
