"""DeviceContext: the calling rank in a kernel of Triton, with the functions of _triton.py and x.py as its methods."""

import triton
import triton.language as tl

from iris import x
from iris._instruments import DeviceTracing, device_tracing
from iris._triton import (_aggregate_or_class, _constructor, _value, atomic_add, atomic_and, atomic_cas, atomic_max,
                          atomic_min, atomic_or, atomic_sub, atomic_xchg, atomic_xor, copy, get, load, put, put_signal,
                          signal, store, translate)


@_aggregate_or_class
class DeviceContext:
    """A rank in a kernel. Its methods are the functions of the package, without the calling rank and heap_bases among
    their arguments, and those of iris.x, without ctx.

        @triton.jit
        def kernel(context_tensor, buffer, rank: tl.constexpr, world_size: tl.constexpr):
            ctx = DeviceContext.initialize(context_tensor, rank, world_size)
            x = ctx.load(buffer + tl.arange(0, 64), 1)

    context_tensor is what the host's get_device_context() returns. A kernel takes DeviceContext from the package:
    `from iris import DeviceContext`.
    """

    rank: tl.constexpr
    world_size: tl.constexpr
    heap_bases: tl.tensor
    tracing: DeviceTracing

    @_constructor
    def __init__(self, rank, world_size, heap_bases, tracing):
        self.rank = _value(rank)
        self.world_size = _value(world_size)
        self.heap_bases = heap_bases
        self.tracing = tracing

    @staticmethod
    @triton.jit
    def initialize(context_tensor, rank: tl.constexpr, world_size: tl.constexpr, tracing: tl.constexpr = False):
        """Returns the context of the calling rank `rank` of `world_size` ranks. With tracing=True, its attribute
        `tracing` records events if the host has called tracing.enable()."""
        return DeviceContext(rank, world_size, context_tensor + 2,
                             device_tracing(context_tensor + (2 + world_size), rank, tracing))

    @triton.jit
    def translate(self, pointer, to_rank, hint: tl.constexpr = None):
        """See iris.translate."""
        return translate(pointer, self.rank, to_rank, self.heap_bases, hint)

    @triton.jit
    def load(self, pointer, from_rank, mask=None, other=None, cache_modifier=None, volatile=False,
             hint: tl.constexpr = None):
        """See iris.load."""
        return load(pointer, self.rank, from_rank, self.heap_bases, mask, other, cache_modifier, volatile, hint)

    @triton.jit
    def store(self, pointer, value, to_rank, mask=None, cache_modifier=None, hint: tl.constexpr = None):
        """See iris.store."""
        store(pointer, value, self.rank, to_rank, self.heap_bases, mask, hint, cache_modifier)

    @triton.jit
    def get(self, from_ptr, to_ptr, from_rank, mask=None, other=None, load_cache_modifier=None,
            store_cache_modifier=None, hint: tl.constexpr = None):
        """Copies from from_ptr in from_rank's heap to to_ptr, this rank's memory."""
        get(from_ptr, to_ptr, self.rank, from_rank, self.heap_bases, mask, other, load_cache_modifier,
            store_cache_modifier, hint)

    @triton.jit
    def put(self, from_ptr, to_ptr, to_rank, mask=None, other=None, load_cache_modifier=None,
            store_cache_modifier=None, hint: tl.constexpr = None):
        """Copies from from_ptr, this rank's memory, to to_ptr in to_rank's heap."""
        put(from_ptr, to_ptr, self.rank, to_rank, self.heap_bases, mask, other, load_cache_modifier,
            store_cache_modifier, hint)

    @triton.jit
    def copy(self, src_ptr, dst_ptr, from_rank, to_rank, mask=None, other=None, load_cache_modifier=None,
             store_cache_modifier=None, hint: tl.constexpr = None):
        """See iris.copy."""
        copy(src_ptr, dst_ptr, from_rank, to_rank, self.rank, self.heap_bases, mask, other, load_cache_modifier,
             store_cache_modifier, hint)

    @triton.jit
    def atomic_add(self, pointer, val, to_rank, mask=None, sem: tl.constexpr = None, scope: tl.constexpr = None,
                   hint: tl.constexpr = None):
        """See iris.atomic_add."""
        return atomic_add(pointer, val, self.rank, to_rank, self.heap_bases, mask, sem, scope, hint)

    @triton.jit
    def atomic_sub(self, pointer, val, to_rank, mask=None, sem: tl.constexpr = None, scope: tl.constexpr = None,
                   hint: tl.constexpr = None):
        """See iris.atomic_sub."""
        return atomic_sub(pointer, val, self.rank, to_rank, self.heap_bases, mask, sem, scope, hint)

    @triton.jit
    def atomic_cas(self, pointer, cmp, val, to_rank, sem: tl.constexpr = None, scope: tl.constexpr = None,
                   hint: tl.constexpr = None):
        """See iris.atomic_cas."""
        return atomic_cas(pointer, cmp, val, self.rank, to_rank, self.heap_bases, sem, scope, hint)

    @triton.jit
    def atomic_xchg(self, pointer, val, to_rank, mask=None, sem: tl.constexpr = None, scope: tl.constexpr = None,
                    hint: tl.constexpr = None):
        """See iris.atomic_xchg."""
        return atomic_xchg(pointer, val, self.rank, to_rank, self.heap_bases, mask, sem, scope, hint)

    @triton.jit
    def atomic_xor(self, pointer, val, to_rank, mask=None, sem: tl.constexpr = None, scope: tl.constexpr = None,
                   hint: tl.constexpr = None):
        """See iris.atomic_xor."""
        return atomic_xor(pointer, val, self.rank, to_rank, self.heap_bases, mask, sem, scope, hint)

    @triton.jit
    def atomic_and(self, pointer, val, to_rank, mask=None, sem: tl.constexpr = None, scope: tl.constexpr = None,
                   hint: tl.constexpr = None):
        """See iris.atomic_and."""
        return atomic_and(pointer, val, self.rank, to_rank, self.heap_bases, mask, sem, scope, hint)

    @triton.jit
    def atomic_or(self, pointer, val, to_rank, mask=None, sem: tl.constexpr = None, scope: tl.constexpr = None,
                  hint: tl.constexpr = None):
        """See iris.atomic_or."""
        return atomic_or(pointer, val, self.rank, to_rank, self.heap_bases, mask, sem, scope, hint)

    @triton.jit
    def atomic_min(self, pointer, val, to_rank, mask=None, sem: tl.constexpr = None, scope: tl.constexpr = None,
                   hint: tl.constexpr = None):
        """See iris.atomic_min."""
        return atomic_min(pointer, val, self.rank, to_rank, self.heap_bases, mask, sem, scope, hint)

    @triton.jit
    def atomic_max(self, pointer, val, to_rank, mask=None, sem: tl.constexpr = None, scope: tl.constexpr = None,
                   hint: tl.constexpr = None):
        """See iris.atomic_max."""
        return atomic_max(pointer, val, self.rank, to_rank, self.heap_bases, mask, sem, scope, hint)

    @triton.jit
    def signal(self, pointer, value, to_rank, op: tl.constexpr = None):
        """See iris.signal."""
        signal(pointer, value, self.rank, to_rank, self.heap_bases, op)

    @triton.jit
    def put_signal(self, from_ptr, to_ptr, signal_ptr, value, to_rank, mask=None, op: tl.constexpr = None,
                   load_cache_modifier=None, store_cache_modifier=None, hint: tl.constexpr = None):
        """See iris.put_signal."""
        put_signal(from_ptr, to_ptr, signal_ptr, value, self.rank, to_rank, self.heap_bases, mask, op,
                   load_cache_modifier, store_cache_modifier, hint)

    @triton.jit
    def all_reduce_atomic(self, tile, dst_view):
        """See iris.x.all_reduce_atomic."""
        x.all_reduce_atomic(tile, dst_view, self)

    @triton.jit
    def all_reduce_spinlock(self, tile, dst_view, locks):
        """See iris.x.all_reduce_spinlock."""
        return x.all_reduce_spinlock(tile, dst_view, locks, self)

    @triton.jit
    def all_reduce_one_shot(self, tile, src_view, dst_view, locks):
        """See iris.x.all_reduce_one_shot."""
        return x.all_reduce_one_shot(tile, src_view, dst_view, locks, self)

    @triton.jit
    def all_reduce_ring(self, tile, src_view, dst_view):
        """See iris.x.all_reduce_ring."""
        x.all_reduce_ring(tile, src_view, dst_view, self)

    @triton.jit
    def all_reduce_two_shot(self, tile, src_view, dst_view, locks):
        """See iris.x.all_reduce_two_shot."""
        return x.all_reduce_two_shot(tile, src_view, dst_view, locks, self)

    @triton.jit
    def all_gather(self, tile, dst_view, dim: tl.constexpr):
        """See iris.x.all_gather."""
        x.all_gather(tile, dst_view, dim, self)

    @triton.jit
    def gather(self, tile, src_view, source_rank, hint: tl.constexpr = None):
        """See iris.x.gather."""
        return x.gather(tile, src_view, source_rank, self, hint)

    @triton.jit
    def all_to_all(self, tile, src_view, dst_view, N_per_rank: tl.constexpr):
        """See iris.x.all_to_all."""
        x.all_to_all(tile, src_view, dst_view, N_per_rank, self)

    @triton.jit
    def reduce_scatter(self, tile, src_view, dst_view, locks):
        """See iris.x.reduce_scatter."""
        return x.reduce_scatter(tile, src_view, dst_view, locks, self)
