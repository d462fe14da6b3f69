"""IrisDeviceCtx: the calling rank in a kernel of Gluon, the language of Triton in which a program chooses layouts.

    @gluon.jit
    def kernel(IrisDeviceCtx: gl.constexpr, context_tensor, buffer, layout: gl.constexpr):
        ctx = IrisDeviceCtx.initialize(context_tensor)
        x = ctx.load(buffer + gl.arange(0, 64, layout=layout), 1)

Gluon compiles functions of Triton that its kernels call, so the methods are those of DeviceContext.
"""

import triton
import triton.language as tl

from iris import x
from iris._device_context import DeviceContext
from iris._instruments import DeviceTracing, device_tracing
from iris._triton import _aggregate_or_class, _constructor


@_aggregate_or_class
class IrisDeviceCtx:
    """A rank in a kernel, as in the reference: cur_rank of num_ranks, and heap_bases. See DeviceContext."""

    cur_rank: tl.tensor
    num_ranks: tl.tensor
    heap_bases: tl.tensor
    rank: tl.tensor
    tracing: DeviceTracing

    @_constructor
    def __init__(self, cur_rank, num_ranks, heap_bases, tracing):
        self.cur_rank, self.rank = cur_rank, cur_rank
        self.num_ranks = num_ranks
        self.heap_bases = heap_bases
        self.tracing = tracing

    @staticmethod
    @triton.jit
    def initialize(context_tensor, tracing: tl.constexpr = False):
        """Returns the context of the calling rank. context_tensor is what the host's get_device_context() returns."""
        rank, n_ranks = tl.load(context_tensor), tl.load(context_tensor + 1)
        return IrisDeviceCtx(rank, n_ranks, context_tensor + 2,
                             device_tracing(context_tensor + 2 + n_ranks, rank, tracing))

    translate, load, store = DeviceContext.translate, DeviceContext.load, DeviceContext.store
    get, put, copy = DeviceContext.get, DeviceContext.put, DeviceContext.copy
    atomic_add, atomic_sub, atomic_cas = DeviceContext.atomic_add, DeviceContext.atomic_sub, DeviceContext.atomic_cas
    atomic_xchg, atomic_xor, atomic_and = DeviceContext.atomic_xchg, DeviceContext.atomic_xor, DeviceContext.atomic_and
    atomic_or, atomic_min, atomic_max = DeviceContext.atomic_or, DeviceContext.atomic_min, DeviceContext.atomic_max
    signal, put_signal = DeviceContext.signal, DeviceContext.put_signal


@triton.jit
def chiplet_transform_chunked_gluon(pid, num_xcds: tl.constexpr, num_workgroups: tl.constexpr,
                                    chunk_size: tl.constexpr):
    """See iris.x.chiplet_transform_chunked, whose arguments are in another order."""
    return x.chiplet_transform_chunked(pid, num_workgroups, num_xcds, chunk_size)
