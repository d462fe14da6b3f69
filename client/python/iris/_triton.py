"""Functions for kernels of Triton: load, store, copy, get, put, atomics and signals.

They are attributes of the package (`iris.load`), imported with Triton by the first use of one. Their names and the
order of their arguments are those of the reference system. In all of them:

- Pointers, or blocks of pointers, are to the heap of the calling rank, as a tensor's argument to a kernel is. The
  function finds the same place in the other rank's heap. `heap_bases` is the result of the host's get_heap_bases().
- The device checks nothing: a pointer outside the heap, or an invalid rank, is undefined behaviour.
- Elements whose `mask` is false are neither read nor written; a load gives `other` for them.
- `hint` is an integer N for each dimension, or one for the last: N elements are contiguous, and the first lies on a
  multiple of N bytes. It helps only if Triton cannot see this in the caller's pointers, since the translation keeps
  Triton's knowledge of them: blocks that are wide accesses locally are wide accesses remotely.
- Cache modifiers are Triton's: ".ca", ".cg", ".cv" for loads, ".wb", ".cg", ".cs", ".wt" for stores; None is the
  default of the GPU. Triton ignores those that it does not know for a GPU. ".cv" and volatile both read memory anew
  past the caches; volatile wins over other modifiers. To wait for a value, use wait_until().
- `copy_engine_ctx` and the arguments after it are those of the reference's later releases. They choose nothing: the
  program's own stores copy. Atomics with use_copy_engine=True come after the program's earlier stores, as they would in
  the engine's queue, and quiet() is a fence.
- Atomics return the values before. `sem` is "relaxed", "acquire", "release" or "acq_rel" (the default), `scope` is
  "cta", "gpu" or "sys" (the default, because other GPUs take part; the reference's is "gpu").
"""

import triton
import triton.language as tl
from triton.language import core as _core

from iris import _foreign

try:
    from triton.language import target_info as _target_info
except ImportError:  # before 3.5
    _target_info = None

# The distance of two heaps is a multiple of 2 ** _ALIGNED_BITS elements of any type.
_ALIGNED_BITS = tl.constexpr(10)
DEFAULT_POLLS = tl.constexpr(1 << 24)  # of wait_until: some seconds on today's GPUs

_aggregate = getattr(_core, "_aggregate", None)
_constexpr_function = getattr(triton, "constexpr_function", getattr(_core, "constexpr_function", None))
if _aggregate is None or _constexpr_function is None:
    raise ImportError(f"Triton {triton.__version__} is too old: 3.4 is the oldest that will do")


@_constexpr_function
def _store_fence():
    """Returns assembly that waits until other GPUs can see this thread's stores, or "" if the release after a barrier
    does so."""
    if _target_info is None or not _COMPILED:
        return ""
    return _foreign.store_fence(_target_info.current_target())


@_constexpr_function
def _system_fence():
    return ("", "") if _target_info is None or not _COMPILED else _foreign.system_fence(_target_info.current_target())


@_constexpr_function
def _system(scope):
    return "sys" if scope is None else scope


@_constexpr_function
def _anew():
    """Returns the cache modifier of a load that reads memory anew."""
    return None if _target_info is None or not _COMPILED else _foreign.volatile_modifier(_target_info.current_target())


@_constexpr_function
def _is_number(hint):
    return isinstance(hint, int)


@triton.jit
def _read(pointer, mask, other, cache_modifier, volatile):
    if volatile or cache_modifier == ".cv":
        value = tl.load(pointer, mask=mask, other=other, cache_modifier=_anew(), volatile=True)
    else:
        value = tl.load(pointer, mask=mask, other=other, cache_modifier=cache_modifier)
    return value


@triton.jit
def translate(pointer, from_rank, to_rank, heap_bases, hint: tl.constexpr = None):
    """Moves a pointer from from_rank's heap to the same place in to_rank's, by two loads of 8 bytes from heap_bases."""
    distance = (tl.load(heap_bases + to_rank) - tl.load(heap_bases + from_rank)).to(tl.int64)
    # The distance is in elements, so that Triton keeps its knowledge of the block's contiguity and alignment. It is
    # exact, because it is a multiple of the heaps' stride, which is a multiple of 2 MiB.
    bits: tl.constexpr = pointer.dtype.element_ty.primitive_bitwidth
    if bits == 16:
        distance = distance >> 1
    elif bits == 32:
        distance = distance >> 2
    elif bits == 64:
        distance = distance >> 3
    # The shifts lose no bit. They show Triton of which power of two the distance is a multiple.
    there = pointer + ((distance >> _ALIGNED_BITS) << _ALIGNED_BITS)
    if hint is not None:
        if _is_number(hint) and len(pointer.shape) == 2:
            there = tl.max_contiguous(tl.multiple_of(there, (1, hint)), (1, hint))
        else:
            there = tl.max_contiguous(tl.multiple_of(there, hint), hint)
    return there


@triton.jit
def load(pointer, to_rank, from_rank, heap_bases, mask=None, other=None, cache_modifier=None, volatile=False,
         hint: tl.constexpr = None):
    """Reads from_rank's heap. to_rank is the calling rank."""
    return _read(translate(pointer, to_rank, from_rank, heap_bases, hint), mask, other, cache_modifier, volatile)


@triton.jit
def store(pointer, value, from_rank, to_rank, heap_bases, mask=None, hint: tl.constexpr = None, cache_modifier=None):
    """Writes into to_rank's heap. from_rank is the calling rank."""
    tl.store(translate(pointer, from_rank, to_rank, heap_bases, hint), value, mask=mask, cache_modifier=cache_modifier)


@triton.jit
def copy(src_ptr, dst_ptr, from_rank, to_rank, cur_rank, heap_bases, mask=None, other=None, load_cache_modifier=None,
         store_cache_modifier=None, hint: tl.constexpr = None):
    """Copies from from_rank's heap into to_rank's. Both pointers are to the heap of the calling rank cur_rank, which,
    unlike in the reference, may be a third rank."""
    data = load(src_ptr, cur_rank, from_rank, heap_bases, mask, other, load_cache_modifier, False, hint)
    store(dst_ptr, data, cur_rank, to_rank, heap_bases, mask, hint, store_cache_modifier)


@triton.jit
def get(from_ptr, to_ptr, from_rank, to_rank, heap_bases, mask=None, other=None, load_cache_modifier=None,
        store_cache_modifier=None, hint: tl.constexpr = None):
    """Copies from from_ptr in to_rank's heap to to_ptr, memory of the calling rank, which is from_rank:
    `get(theirs, mine, cur_rank, peer, heap_bases)`, as programs of the reference call it. The reference's documentation
    names the two ranks the other way round; that order reads outside the heaps, in the reference and here."""
    data = load(from_ptr, from_rank, to_rank, heap_bases, mask, other, load_cache_modifier, False, hint)
    tl.store(to_ptr, data, mask=mask, cache_modifier=store_cache_modifier)


@triton.jit
def put(from_ptr, to_ptr, from_rank, to_rank, heap_bases, mask=None, other=None, load_cache_modifier=None,
        store_cache_modifier=None, hint: tl.constexpr = None, copy_engine_ctx=None, from_row_stride=0, to_row_stride=0,
        use_copy_engine=False, contiguous_copy=False, from_base_ptr=None, to_base_ptr=None):
    """Copies from from_ptr, memory of the calling rank from_rank, to to_ptr in to_rank's heap."""
    data = _read(from_ptr, mask, other, load_cache_modifier, False)
    store(to_ptr, data, from_rank, to_rank, heap_bases, mask, hint, store_cache_modifier)


@triton.jit
def quiet(copy_engine_ctx, to_rank):
    """Returns when other ranks see the stores that this program has made."""
    fence: tl.constexpr = _system_fence()
    if fence[0] != "":
        tl.inline_asm_elementwise(fence[0], fence[1], [0], dtype=tl.int32, is_pure=False, pack=1)
    tl.debug_barrier()


@triton.jit
def atomic_add(pointer, val, from_rank, to_rank, heap_bases, mask=None, sem: tl.constexpr = None,
               scope: tl.constexpr = None, hint: tl.constexpr = None, copy_engine_ctx=None,
               use_copy_engine: tl.constexpr = False):
    """Adds val to elements in to_rank's heap."""
    if use_copy_engine:
        quiet(copy_engine_ctx, to_rank)
    return tl.atomic_add(translate(pointer, from_rank, to_rank, heap_bases, hint), val, mask, sem, _system(scope))


@triton.jit
def atomic_sub(pointer, val, from_rank, to_rank, heap_bases, mask=None, sem: tl.constexpr = None,
               scope: tl.constexpr = None, hint: tl.constexpr = None):
    """Subtracts val from elements in to_rank's heap."""
    return atomic_add(pointer, -val, from_rank, to_rank, heap_bases, mask, sem, scope, hint)


@triton.jit
def atomic_cas(pointer, cmp, val, from_rank, to_rank, heap_bases, sem: tl.constexpr = None,
               scope: tl.constexpr = None, hint: tl.constexpr = None, copy_engine_ctx=None,
               use_copy_engine: tl.constexpr = False):
    """Writes val to the elements in to_rank's heap that are equal to cmp. Like Triton's, it takes no mask."""
    if use_copy_engine:
        quiet(copy_engine_ctx, to_rank)
    there = translate(pointer, from_rank, to_rank, heap_bases, hint)
    kind: tl.constexpr = pointer.dtype.element_ty
    return tl.atomic_cas(there, tl.cast(cmp, kind), tl.cast(val, kind), sem, _system(scope))


@triton.jit
def atomic_xchg(pointer, val, from_rank, to_rank, heap_bases, mask=None, sem: tl.constexpr = None,
                scope: tl.constexpr = None, hint: tl.constexpr = None):
    """Replaces elements in to_rank's heap by val."""
    return tl.atomic_xchg(translate(pointer, from_rank, to_rank, heap_bases, hint), val, mask, sem, _system(scope))


@triton.jit
def atomic_xor(pointer, val, from_rank, to_rank, heap_bases, mask=None, sem: tl.constexpr = None,
               scope: tl.constexpr = None, hint: tl.constexpr = None):
    """Combines elements in to_rank's heap with val by a bitwise exclusive or."""
    return tl.atomic_xor(translate(pointer, from_rank, to_rank, heap_bases, hint), val, mask, sem, _system(scope))


@triton.jit
def atomic_and(pointer, val, from_rank, to_rank, heap_bases, mask=None, sem: tl.constexpr = None,
               scope: tl.constexpr = None, hint: tl.constexpr = None):
    """Combines elements in to_rank's heap with val by a bitwise and."""
    return tl.atomic_and(translate(pointer, from_rank, to_rank, heap_bases, hint), val, mask, sem, _system(scope))


@triton.jit
def atomic_or(pointer, val, from_rank, to_rank, heap_bases, mask=None, sem: tl.constexpr = None,
              scope: tl.constexpr = None, hint: tl.constexpr = None):
    """Combines elements in to_rank's heap with val by a bitwise or."""
    return tl.atomic_or(translate(pointer, from_rank, to_rank, heap_bases, hint), val, mask, sem, _system(scope))


@triton.jit
def atomic_min(pointer, val, from_rank, to_rank, heap_bases, mask=None, sem: tl.constexpr = None,
               scope: tl.constexpr = None, hint: tl.constexpr = None):
    """Replaces elements in to_rank's heap by the smaller one of the element and val."""
    return tl.atomic_min(translate(pointer, from_rank, to_rank, heap_bases, hint), val, mask, sem, _system(scope))


@triton.jit
def atomic_max(pointer, val, from_rank, to_rank, heap_bases, mask=None, sem: tl.constexpr = None,
               scope: tl.constexpr = None, hint: tl.constexpr = None):
    """Replaces elements in to_rank's heap by the larger one of the element and val."""
    return tl.atomic_max(translate(pointer, from_rank, to_rank, heap_bases, hint), val, mask, sem, _system(scope))


# Signals are words of 32 or 64 bits in the heap. One rank waits for a word, and another rank writes it.


@triton.jit
def signal(pointer, value, from_rank, to_rank, heap_bases, op: tl.constexpr = None):
    """Sets the word at `pointer`, one pointer, in to_rank's heap to value (op="set", the default), or adds to it
    (op="add"). A rank that sees the change with wait_until() sees all earlier stores of this program of the grid."""
    tl.static_assert(op is None or op == "set" or op == "add", "op is set or add")
    fence: tl.constexpr = _store_fence()
    if fence != "":
        tl.inline_asm_elementwise(fence, "=v,v,~{memory}", [0], dtype=tl.int32, is_pure=False, pack=1)
    tl.debug_barrier()  # so that stores of the program's other threads come before, too
    if op == "add":
        atomic_add(pointer, value, from_rank, to_rank, heap_bases, sem="release", scope="sys")
    else:
        atomic_xchg(pointer, value, from_rank, to_rank, heap_bases, sem="release", scope="sys")


@triton.jit
def put_signal(from_ptr, to_ptr, signal_ptr, value, from_rank, to_rank, heap_bases, mask=None,
               op: tl.constexpr = None, load_cache_modifier=None, store_cache_modifier=None,
               hint: tl.constexpr = None):
    """Calls put(), then signal(): the word at signal_ptr changes when the block has arrived."""
    put(from_ptr, to_ptr, from_rank, to_rank, heap_bases, mask, None, load_cache_modifier, store_cache_modifier, hint)
    signal(signal_ptr, value, from_rank, to_rank, heap_bases, op)


@triton.jit
def _holds(seen, value, compare: tl.constexpr):
    tl.static_assert(compare == "ge" or compare == "eq" or compare == "ne" or compare == "gt" or compare == "le"
                     or compare == "lt", "compare is one of eq, ne, gt, ge, lt, le")
    if compare == "eq":
        result = seen == value
    elif compare == "ne":
        result = seen != value
    elif compare == "gt":
        result = seen > value
    elif compare == "ge":
        result = seen >= value
    elif compare == "lt":
        result = seen < value
    else:
        result = seen <= value
    return result


@triton.jit
def wait_until(pointer, value, compare: tl.constexpr = None, max_polls=DEFAULT_POLLS):
    """Waits until the word at `pointer`, one pointer to this rank's own heap, is eq, ne, gt, ge (the default), lt or le
    `value`. Returns false after max_polls reads, so that the kernel ends even if a rank died. After true, all later
    loads of this program see the stores that the word's writer released."""
    how: tl.constexpr = "ge" if compare is None else compare
    # Compilers for some GPUs remove a loop of volatile loads. An atomic that adds 0 becomes an acquiring load if the
    # GPU has one, and gives all threads the same answer.
    polls = 0
    seen = tl.atomic_add(pointer, 0, sem="acquire", scope="sys")
    while (polls < max_polls) & (_holds(seen, value, how) == 0):
        seen = tl.atomic_add(pointer, 0, sem="acquire", scope="sys")
        polls += 1
    tl.debug_barrier()
    return _holds(seen, value, how)


_COMPILED = isinstance(translate, triton.runtime.jit.JITFunction)  # and not interpreted
VALUE = (tl.tensor, tl.constexpr)  # the type of an aggregate's field that may be a constant


def _constructor(function):
    """Marks an aggregate's __init__: Triton 3.6 requires the mark, older versions do not accept it."""
    release = tuple(int(number) for number in triton.__version__.split(".")[:2])
    return triton.constexpr_function(function) if release >= (3, 6) and _COMPILED else function


def _value(x):
    """Returns what an aggregate's field of type VALUE holds: x, as a constant if it is one."""
    return x if not _COMPILED or isinstance(x, VALUE) else tl.constexpr(x)


_value.__triton_builtin__ = True  # so that Triton lets aggregates depend on it


def _aggregate_or_class(cls):
    """Makes an aggregate, or in Triton's interpreter, which knows none, an ordinary class with the same methods."""
    if _COMPILED:
        return _aggregate(cls)
    for name, member in list(vars(cls).items()):
        function = getattr(getattr(member, "__func__", member), "fn", None)
        if function is not None:
            setattr(cls, name, staticmethod(function) if isinstance(member, staticmethod) else function)
    return cls
