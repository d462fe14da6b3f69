"""The functions for kernels of Triton, compiled for two vendors' GPUs without one, and read: how wide accesses are,
which cache modifiers they have, and the memory order and scope of atomics.

deploy/setup.sh fetches Triton (deploy/triton.txt). Its compiler needs no GPU; the target is given.
"""

import importlib.util
import os
import re
import sys
import tempfile
import unittest

from tests.python import junit

FETCHED = "/usr/local/lib/iris/triton"
_cache = tempfile.TemporaryDirectory(prefix="iris-triton-")
os.environ["TRITON_CACHE_DIR"] = _cache.name
os.environ.pop("TRITON_INTERPRET", None)
sys.path[1:1] = ["client/python"]
if os.path.isfile(f"{FETCHED}/triton.txt"):  # it comes last: then all is there
    sys.path.append(FETCHED)

try:
    import triton
except ImportError as error:
    if error.name != "triton":
        raise
    triton = None

PTX, AMD, OLDER_AMD = "sm_90", "gfx942", "gfx90a"

if triton is not None:
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon._runtime import GluonASTSource

    import iris
    from iris import DeviceContext, TraceEvent
    from iris._gluon import IrisDeviceCtx, chiplet_transform_chunked_gluon
    from iris._instruments import group_barrier
    from iris.mem.utils import get_cu_id, get_se_id, get_xcc_id, read_realtime, wait_cnt

    TARGETS = {PTX: GPUTarget("cuda", 90, 32), AMD: GPUTarget("hip", "gfx942", 64)}
    TARGETS[OLDER_AMD] = GPUTarget("hip", OLDER_AMD, 64)

    @triton.jit
    def load_kernel(p, q, bases, n, cur, peer, size: tl.constexpr, modifier: tl.constexpr):
        at = tl.program_id(0) * size + tl.arange(0, size)
        tl.store(q + at, iris.load(p + at, cur, peer, bases, mask=at < n, cache_modifier=modifier), mask=at < n)

    @triton.jit
    def volatile_kernel(p, q, bases, n, cur, peer, size: tl.constexpr, modifier: tl.constexpr):
        at = tl.program_id(0) * size + tl.arange(0, size)
        tl.store(q + at, iris.load(p + at, cur, peer, bases, cache_modifier=modifier, volatile=True))

    @triton.jit
    def spinning_kernel(p, q, bases, n, cur, peer):
        while iris.load(p, cur, peer, bases, volatile=True) != 7:
            pass
        tl.store(q, 1)

    @triton.jit
    def block_kernel(p, q, bases, n, cur, peer, size: tl.constexpr, hint: tl.constexpr):
        source = q + tl.arange(0, 8)[:, None] * size + tl.arange(0, size)[None, :]
        target = p + n * tl.arange(0, 8)[:, None] + tl.arange(0, size)[None, :]
        if hint == "each":
            iris.put(source, target, cur, peer, bases, hint=(1, 16))
        else:
            iris.put(source, target, cur, peer, bases, hint=hint)

    @triton.jit
    def store_kernel(p, q, bases, n, cur, peer, size: tl.constexpr, modifier: tl.constexpr):
        at = tl.program_id(0) * size + tl.arange(0, size)
        iris.store(q + at, tl.load(p + at, mask=at < n), cur, peer, bases, mask=at < n, cache_modifier=modifier)

    @triton.jit
    def get_kernel(p, q, bases, n, cur, peer, size: tl.constexpr, modifier: tl.constexpr):
        at = tl.program_id(0) * size + tl.arange(0, size)
        iris.get(p + at, q + at, cur, peer, bases, mask=at < n)

    @triton.jit
    def put_kernel(p, q, bases, n, cur, peer, size: tl.constexpr, modifier: tl.constexpr):
        at = tl.program_id(0) * size + tl.arange(0, size)
        iris.put(p + at, q + at, cur, peer, bases, mask=at < n)

    @triton.jit
    def copy_kernel(p, q, bases, n, cur, peer, size: tl.constexpr, modifier: tl.constexpr):
        at = tl.program_id(0) * size + tl.arange(0, size)
        iris.copy(p + at, q + at, peer, 1 - peer, cur, bases, mask=at < n)

    @triton.jit
    def hinted_kernel(p, q, bases, n, cur, peer, size: tl.constexpr, hint: tl.constexpr):
        # The stride n says nothing of the pointers' alignment: the hint does.
        at = n * tl.program_id(0) + tl.arange(0, size)
        iris.put(q + tl.arange(0, size), p + at, cur, peer, bases, hint=hint)

    @triton.jit
    def context_kernel(p, q, bases, n, cur: tl.constexpr, peer, size: tl.constexpr):
        ctx = DeviceContext.initialize(bases, cur, 8)
        at = tl.program_id(0) * size + tl.arange(0, size)
        mask = at < n
        x = ctx.load(p + at, peer, mask=mask)
        ctx.store(q + at, x, peer, mask=mask)
        ctx.get(p + at, q + at, peer, mask=mask)
        ctx.put(p + at, q + at, peer, mask=mask)
        ctx.copy(p + at, q + at, peer, cur, mask=mask)
        word = tl.cast(bases, tl.pointer_type(tl.int64)) + size
        ctx.atomic_add(word, 1, peer)
        ctx.atomic_sub(word, 1, peer)
        ctx.atomic_cas(word, 1, 2, peer)
        ctx.atomic_xchg(word, 1, peer)
        ctx.atomic_xor(word, 1, peer)
        ctx.atomic_and(word, 1, peer)
        ctx.atomic_or(word, 1, peer)
        ctx.atomic_min(word, 1, peer)
        ctx.atomic_max(word, 1, peer)
        ctx.signal(word, 1, peer, "add")
        ctx.put_signal(p + at, q + at, word, 1, peer, mask=mask)

    @gluon.jit
    def gluon_kernel(p, q, bases, n, cur, peer, warp: gl.constexpr):
        ctx = IrisDeviceCtx.initialize(bases)
        layout: gl.constexpr = gl.BlockedLayout([8], [warp], [4], [0])
        pid = chiplet_transform_chunked_gluon(gl.program_id(0), 8, 1024, 4)
        at = pid * 32 * warp + gl.arange(0, 32 * warp, layout=layout)
        mask = at < n
        ctx.store(q + at, ctx.load(p + at, peer, mask=mask), peer, mask=mask)
        ctx.get(p + at, q + at, peer, mask=mask)
        ctx.put(p + at, q + at, peer, mask=mask)
        ctx.copy(p + at, q + at, peer, ctx.cur_rank, mask=mask)
        word = bases.to(gl.pointer_type(gl.int64)) + n
        ctx.atomic_add(word, 1, peer, sem="release", scope="gpu")
        ctx.atomic_sub(word, 1, peer)
        ctx.atomic_cas(word, 1, 2, peer)
        ctx.atomic_xchg(word, 1, peer)
        ctx.atomic_xor(word, 1, peer)
        ctx.atomic_and(word, 1, peer)
        ctx.atomic_or(word, 1, peer)
        ctx.atomic_min(word, 1, peer)
        ctx.atomic_max(word, 1, peer)
        ctx.put_signal(p + at, q + at, word, ctx.num_ranks, peer, mask=mask)
        iris.wait_until(word, 1)

    @triton.jit
    def tile_kernel(p, q, bases, n, cur: tl.constexpr, peer, what: tl.constexpr, size: tl.constexpr,
                    constant: tl.constexpr):
        ctx = DeviceContext.initialize(bases, cur, 2)
        if constant:
            source, target = iris.make_tensor_view(p, size, size, size, 1), iris.TensorView(q, size, size, size, 1)
        else:
            source, target = iris.make_tensor_view(p, n, n, n, 1), iris.TensorView(q, n, n, n, 1)
        locks = tl.cast(bases, tl.pointer_type(tl.int32)) + 2 * size
        view = iris.TileView(tl.program_id(0), tl.program_id(1), 32, 64)
        zeros = tl.zeros((32, 64), p.dtype.element_ty)
        tile = iris.Tile(tl.program_id(0), tl.program_id(1), 32, 64, zeros)
        if what == "all_gather":
            ctx.all_gather(tile, target, dim=0)
        elif what == "gather":
            places, mask = target.tile_ptr(view)
            tl.store(places, ctx.gather(view, source, peer), mask=mask)
        elif what == "all_to_all":
            ctx.all_to_all(view, source, target, size // 2)
        elif what == "publish":
            iris.x.publish(tile, source, locks, ctx)
        elif what == "reduce_scatter":
            ctx.reduce_scatter(tile, source, target, locks)
        elif what == "one_shot":
            ctx.all_reduce_one_shot(tile, source, target, locks)
        elif what == "two_shot":
            ctx.all_reduce_two_shot(tile, source, target, locks)
        elif what == "ring":
            ctx.all_reduce_ring(view, source, target)
        elif what == "spinlock":
            ctx.all_reduce_spinlock(tile, target, locks)
        else:
            ctx.all_reduce_atomic(tile, target)

    @triton.jit
    def traced_kernel(p, q, bases, n, cur: tl.constexpr, peer, on: tl.constexpr, size: tl.constexpr):
        ctx = DeviceContext.initialize(bases, cur, 8, tracing=on)
        at = tl.arange(0, size)
        handle = ctx.tracing.record_event_start(event_id=TraceEvent().put, target_rank=peer, address=p + at,
                                                pid_m=tl.program_id(0), pid_n=0, mask=at < n)
        ctx.put(p + at, q + at, peer, mask=at < n)
        ctx.tracing.record_event_end(handle)

    @triton.jit
    def looking_kernel(p, q, bases, n, cur, peer):
        tl.store(p, read_realtime())
        tl.store(p + 1, get_cu_id())
        tl.store(p + 2, get_xcc_id())
        tl.store(p + 3, get_se_id())
        wait_cnt()
        tl.atomic_min(p + 4, read_realtime())

    @triton.jit
    def barrier_kernel(p, q, bases, n, cur, peer):
        group_barrier(p, bases, cur, n, 0, 1)

    @triton.jit
    def atomic_kernel(p, q, bases, n, cur, peer, op: tl.constexpr, sem: tl.constexpr, scope: tl.constexpr):
        if op == "add":
            old = iris.atomic_add(p, 3, cur, peer, bases, sem=sem, scope=scope)
        elif op == "sub":
            old = iris.atomic_sub(p, 3, cur, peer, bases, sem=sem, scope=scope)
        elif op == "cas":
            old = iris.atomic_cas(p, 3, 4, cur, peer, bases, sem=sem, scope=scope)
        elif op == "xchg":
            old = iris.atomic_xchg(p, 3, cur, peer, bases, sem=sem, scope=scope)
        elif op == "xor":
            old = iris.atomic_xor(p, 3, cur, peer, bases, sem=sem, scope=scope)
        elif op == "and":
            old = iris.atomic_and(p, 3, cur, peer, bases, sem=sem, scope=scope)
        elif op == "or":
            old = iris.atomic_or(p, 3, cur, peer, bases, sem=sem, scope=scope)
        elif op == "min":
            old = iris.atomic_min(p, 3, cur, peer, bases, sem=sem, scope=scope)
        else:
            old = iris.atomic_max(p, 3, cur, peer, bases, sem=sem, scope=scope)
        tl.store(q, old)

    @triton.jit
    def message_kernel(p, q, bases, n, cur, peer, size: tl.constexpr):
        at = tl.arange(0, size)
        if iris.wait_until(p, 5):
            x = tl.load(q + at)
            iris.store(q + size + at, x, cur, peer, bases)
            iris.signal(p, 7, cur, peer, bases)


    @triton.jit
    def quiet_kernel(p, q, bases, n, cur, peer, size: tl.constexpr):
        at = tl.arange(0, size)
        iris.put(p + at, q + at, cur, peer, bases, None, copy_engine_ctx=bases, use_copy_engine=True,
                 contiguous_copy=True)
        iris.atomic_add(q + size, 1, cur, peer, bases, sem="relaxed", copy_engine_ctx=bases, use_copy_engine=True)
        iris.quiet(bases, peer)


class Driver:
    """What Triton asks for the target while it compiles."""

    target = None

    def get_current_target(self):
        return self.target


def assembly(target, kernel, element="fp16", **constants):
    """(the accesses to memory, barriers and branches that Triton makes of a kernel, one a line; all of it)."""
    signature = {"p": "*" + element, "q": "*" + element, "bases": "*u64", "n": "i32", "cur": "i32", "peer": "i32"}
    signature.update(dict.fromkeys(constants, "constexpr"))
    aligned = {(at,): [["tt.divisibility", 16]] for at in ((0, 1, 2) if "hint" in constants else (0, 1, 2, 3))}
    Driver.target = TARGETS[target]
    triton.runtime.driver.set_active(Driver())
    source = GluonASTSource if kernel.is_gluon() else ASTSource
    made = triton.compile(source(kernel, signature=signature, constexprs=constants, attrs=aligned),
                          target=TARGETS[target])
    text = made.asm["ptx" if target == PTX else "amdgcn"]
    lines = re.findall(r"^\s*(?:@!?%p\d+ )?((?:ld|st|atom|red|bar|fence|membar|bra)\b.*|"
                       r"(?:global|flat|buffer|ds)_\w+.*|s_barrier|s_waitcnt .*vmcnt.*|s_cbranch.*)", text, re.M)
    return [line.strip() for line in lines if "ld.param" not in line and "shared" not in line
            and not line.startswith("ds_")], text


@unittest.skipIf(triton is None, f"triton is neither installed nor in {FETCHED}: deploy/setup.sh fetches it there, "
                 "where pip can reach the Python Package Index")
class Assembly(unittest.TestCase):

    def found(self, pattern, lines):
        return sum(re.search(pattern, line) is not None for line in lines)

    def check(self, target, kernel, patterns, element="fp16", **constants):
        """Each pattern is in the lines as often as the number says."""
        lines, _ = assembly(target, kernel, element, **constants)
        for pattern, count in patterns.items():
            self.assertEqual(self.found(pattern, lines), count,
                             f"{kernel.__name__} {element} {constants} on {target}: {pattern}\n" + "\n".join(lines))

    def test_blocks_are_accessed_128_bits_at_a_time(self):
        # 2 accesses of 16 bytes by each of 128 threads, or 1 by each of 256.
        for element, bits in (("fp16", 16), ("bf16", 16), ("fp32", 32), ("i8", 8), ("i64", 64)):
            size = 4096 * 8 // bits
            for kernel in (load_kernel, store_kernel, get_kernel, put_kernel, copy_kernel):
                if element not in ("fp16", "fp32") and kernel is not put_kernel:
                    continue
                with self.subTest(kernel=kernel.__name__, element=element):
                    self.check(PTX, kernel, {r"^ld\.global\.v[24]\.b(32|64) ": 2, r"^st\.global\.v[24]\.b(32|64) ": 2,
                                             r"^(ld|st)\.global\.b(8|16|32) ": 0}, element, size=size, modifier=None)
                    self.check(AMD, kernel, {r"^global_load_dwordx4 ": 1, r"^global_store_dwordx4 ": 1,
                                             r"^flat_": 0, r"^global_\w+_(u?byte|u?short|dword) ": 0},
                               element, size=size, modifier=None)

    def test_hints_widen_what_triton_cannot_see(self):
        for hint, wide in ((None, 0), (16, 2)):
            with self.subTest(hint=hint):
                self.check(PTX, hinted_kernel, {r"^st\.global\.v4\.b32 ": wide}, size=2048, hint=hint)
                self.check(AMD, hinted_kernel, {r"^global_store_dwordx4 ": wide // 2}, size=2048, hint=hint)
        for hint, wide in ((None, 0), (16, 2), ("each", 2)):  # of rows: for the last dimension, and for each
            with self.subTest(rows=hint):
                self.check(PTX, block_kernel, {r"^st\.global\.v4\.b32 ": wide}, size=256, hint=hint)

    def test_cache_modifiers(self):
        for modifier, ptx, isa in ((".ca", r"^ld\.global\.ca\.v4", r"^global_load_dwordx4 .*off$"),
                                   (".cg", r"^ld\.global\.cg\.v4", r"^global_load_dwordx4 .*off nt$"),
                                   (".cv", r"^ld\.volatile\.global\.v4", r"^global_load_dwordx4 .*off sc0 sc1$")):
            with self.subTest(load=modifier):
                self.check(PTX, load_kernel, {ptx: 2}, size=2048, modifier=modifier)
                self.check(AMD, load_kernel, {isa: 1}, size=2048, modifier=modifier)
        for modifier, ptx, isa in ((".wb", r"^st\.global\.wb\.v4", r"^global_store_dwordx4 .*off$"),
                                   (".cg", r"^st\.global\.cg\.v4", r"^global_store_dwordx4 .*off$"),
                                   (".cs", r"^st\.global\.cs\.v4", r"^global_store_dwordx4 .*off nt$"),
                                   (".wt", r"^st\.global\.wt\.v4", r"^global_store_dwordx4 .*off sc0 sc1$")):
            with self.subTest(store=modifier):
                self.check(PTX, store_kernel, {ptx: 2}, size=2048, modifier=modifier)
                self.check(AMD, store_kernel, {isa: 1}, size=2048, modifier=modifier)
        for modifier in (None, ".ca", ".cg", ".cv"):
            with self.subTest(volatile=modifier):
                self.check(PTX, volatile_kernel, {r"^ld\.volatile\.global\.v4": 2}, size=2048, modifier=modifier)
                self.check(AMD, volatile_kernel, {r"^global_load_dwordx4 .*off sc0 sc1$": 1}, size=2048,
                           modifier=modifier)
        # A loop reads again each time.
        self.assertRegex(assembly(PTX, spinning_kernel, "i32")[1], r"(?s)(\$L__BB\d+_\d+):.*ld\.volatile.*bra +\t?\1;")
        self.assertRegex(assembly(AMD, spinning_kernel, "i32")[1],
                         r"(?s)(\.LBB\d+_\d+):.*global_load_dword .* sc0 sc1.*s_cbranch_vccnz \1")

    def test_orders_and_scopes_of_atomics(self):
        for sem in (None, "relaxed", "acquire", "release", "acq_rel"):
            for scope in (None, "cta", "gpu", "sys"):
                if sem is None and scope not in (None, "gpu"):
                    continue
                with self.subTest(sem=sem, scope=scope):
                    order, where = sem or "acq_rel", scope or "sys"
                    self.check(PTX, atomic_kernel, {rf"^atom\.global\.{where}\.{order}\.add\.u32 ": 1,
                                                    r"^(atom|red|membar|fence)": 1}, "i32", op="add", sem=sem,
                               scope=scope)
                    releases = order in ("release", "acq_rel")
                    acquires = order in ("acquire", "acq_rel")
                    system = where == "sys"
                    # sc0: the old value comes back. sc1: at the level of the system.
                    self.check(AMD, atomic_kernel, {
                        r"^global_atomic_add v.* sc0" + (" sc1$" if system else "$"): 1,
                        r"^buffer_wbl2 sc0 sc1$": int(releases and system),
                        r"^buffer_inv sc0 sc1$": int(acquires and system),
                        r"^buffer_inv sc1$": int(acquires and where == "gpu")}, "i32", op="add", sem=sem, scope=scope)

    def test_every_atomic(self):
        # Where the GPU has no atomic that reaches memory of others, Triton makes a loop of compare-and-swap.
        rows = (("sub", "i32", r"add\.u32", "add"), ("xchg", "i32", r"exch\.b32", "swap"),
                ("xor", "i32", r"xor\.b32", "cmpswap"), ("and", "i32", r"and\.b32", "cmpswap"),
                ("or", "i32", r"or\.b32", "cmpswap"), ("min", "i32", r"min\.s32", "cmpswap"),
                ("max", "i32", r"max\.s32", "cmpswap"), ("max", "u32", r"max\.u32", "cmpswap"),
                ("add", "u64", r"add\.u64", "add_x2"), ("add", "fp32", r"add\.f32", "cmpswap"))
        for op, element, ptx, isa in rows:
            with self.subTest(op=op, element=element):
                self.check(PTX, atomic_kernel, {rf"^atom\.global\.sys\.acq_rel\.{ptx} ": 1}, element, op=op,
                           sem=None, scope=None)
                self.check(AMD, atomic_kernel, {
                    rf"^global_atomic_{isa} v.* sc0 sc1$": 1, r"^buffer_wbl2 sc0 sc1$": 1, r"^buffer_inv sc0 sc1$": 1,
                    r"^s_cbranch_execnz ": int(isa == "cmpswap")}, element, op=op, sem=None, scope=None)
        for element, ptx, isa in (("i32", r"b32", "cmpswap"), ("u64", r"b64", "cmpswap_x2")):
            with self.subTest(op="cas", element=element):
                self.check(PTX, atomic_kernel, {rf"^atom\.global\.acq_rel\.sys\.cas\.{ptx} ": 1}, element,
                           op="cas", sem=None, scope=None)
                # Triton 3.6 compares and swaps at the level of one GPU, whatever the scope is; 3.9 does not.
                self.check(AMD, atomic_kernel, {rf"^global_atomic_{isa} v.* sc0( sc1)?$": 1}, element, op="cas",
                           sem=None, scope=None)

    def test_a_message(self):
        """Who waits acquires in a loop and then loads; who signals has all threads' stores done before a release."""
        lines, _ = assembly(PTX, message_kernel, "i64", size=512)
        order = "\n".join(lines)
        self.assertRegex(order, r"(?s)^ld\.global\.sys\.acquire\.b64 .*bra.*ld\.global\.sys\.acquire\.b64 .*bra"
                         r".*bar\.sync.*ld\.global\.v.*\nst\.global\.v[^\n]*\n(st[^\n]*\n)*bar\.sync.*"
                         r"\natom\.global\.sys\.release\.exch\.b64 ")
        lines, text = assembly(AMD, message_kernel, "i64", size=512)
        order = "\n".join(lines)
        # A program of 4 waves: each waits for its stores and writes them back before the barrier.
        self.assertRegex(order, r"(?s)global_store_dwordx4 [^\n]*\ns_waitcnt vmcnt\(0\)\nbuffer_wbl2 sc0 sc1\n"
                         r"s_waitcnt vmcnt\(0\)\ns_barrier\n.*buffer_wbl2 sc0 sc1\n(s_waitcnt[^\n]*\n)?"
                         r"global_atomic_swap_x2 .* sc1$")
        # The loop is still a loop: its block looks at the word, acquires, and is come back to.
        looks = re.findall(r"global_(?:load_dwordx2|atomic_add_x2) [^\n]* sc0 sc1\n\ts_waitcnt vmcnt\(0\)\n"
                           r"\tbuffer_inv sc0 sc1\n", text)
        self.assertEqual(len(looks), 2, text)
        self.assertIn("in Loop: Header", text)

    def test_what_comes_after_stores_of_the_copy_engine(self):
        lines, _ = assembly(PTX, quiet_kernel, "i32", size=2048)
        fence = r"fence\.acq_rel\.sys;\nbar\.sync"
        self.assertRegex("\n".join(lines), r"(?s)st\.global\.v4[^\n]*\n" + fence
                         + r".*atom\.global\.sys\.relaxed\.add.*\n" + fence)
        lines, _ = assembly(AMD, quiet_kernel, "i32", size=2048)
        fence = r"s_waitcnt vmcnt\(0\)\nbuffer_wbl2 sc0 sc1\ns_waitcnt vmcnt\(0\)\ns_barrier"
        self.assertRegex("\n".join(lines), rf"(?s)global_store_dwordx4 [^\n]*\n{fence}.*global_atomic_add .*\n{fence}")

    def test_methods_of_the_context(self):
        wanted = {"add": 3, "cas": 1, "exch": 2, "xor": 1, "and": 1, "or": 1, "min": 1, "max": 1}
        patterns = {rf"^atom\.global\.[\w.]*\.{op}\.": count for op, count in wanted.items()}
        self.check(PTX, context_kernel, {**patterns, r"^(ld|st)\.global\.v4\.b32 ": 20}, size=2048, cur=3)
        lines, _ = assembly(AMD, context_kernel, size=2048, cur=3)
        self.assertEqual(self.found(r"^global_store_dwordx4", lines), 5, lines)
        self.assertEqual(self.found(r"^global_atomic_", lines), sum(wanted.values()), lines)

    def test_kernels_of_gluon(self):
        for target in TARGETS:
            self.check(target, gluon_kernel, {r"^(ld\.global\.v4|global_load_dwordx4)": 5,
                                              r"^(st\.global\.v4|global_store_dwordx4)": 5,
                                              r"^(atom\.global|global_atomic)\S* ": 10,
                                              r"^atom\.global\.gpu\.release\.add": int(target == PTX),
                                              r"^atom\.global\.sys\.acq_rel\.(min|max)": 2 * (target == PTX)},
                       warp=TARGETS[target].warp_size)
    def test_events(self):
        # Without tracing, the kernel is as one that records nothing. With it: an event is a record of 64 bytes in 13
        # stores, of which the end comes after the transfer.
        for on in (False, True):
            with self.subTest(on=on):
                lines, text = assembly(PTX, traced_kernel, "fp32", cur=3, on=on, size=1024)
                self.assertEqual(text.count("%globaltimer"), 2 * on)
                self.assertEqual(text.count("%smid"), on)
                self.assertEqual(self.found(r"^atom\.global\.gpu\.relaxed\.add\.u64", lines), on, lines)
                self.assertEqual(self.found(r"^st\.global\.b(32|64) ", lines), 14 * on, lines)
                self.assertEqual(self.found(r"^st\.global\.v4\.b32 ", lines), 2, lines)
                lines, text = assembly(AMD, traced_kernel, "fp32", cur=3, on=on, size=1024)
                # The compiler may copy them into both sides of a branch.
                self.assertEqual("s_memrealtime s[" in text, on)
                self.assertEqual("hwreg(HW_REG_XCC_ID, 0, 16)" in text, on)
                self.assertEqual(self.found(r"^global_atomic_add_x2 ", lines), on, lines)
        order = "\n".join(assembly(PTX, traced_kernel, "fp32", cur=3, on=True, size=1024)[0])
        self.assertRegex(order, r"(?s)atom\.global.*st\.global\.b64.*st\.global\.v4\.b32.*st\.global\.b64")

    def test_instructions_of_the_instruments(self):
        _, text = assembly(PTX, looking_kernel, "i64")
        self.assertRegex(text, r"(?s)%globaltimer;.*%smid;.*fence\.acq_rel\.sys;.*%globaltimer;")
        _, text = assembly(AMD, looking_kernel, "i64")
        self.assertRegex(text, r"(?s)s_memrealtime s\[\d+:\d+\]\s+s_waitcnt lgkmcnt\(0\).*hwreg\(HW_REG_HW_ID, 8, 4\).*"
                         r"hwreg\(HW_REG_XCC_ID, 0, 16\).*hwreg\(HW_REG_HW_ID, 13, 3\).*s_waitcnt vmcnt\(0\).*"
                         r"s_memrealtime")

    def test_a_barrier_of_a_group_releases_and_acquires(self):
        self.check(PTX, barrier_kernel, {r"^atom\.global\.sys\.release\.add\.u32": 1,
                                         r"^ld\.global\.sys\.acquire\.b32": 2}, "i32")
        lines, _ = assembly(AMD, barrier_kernel, "i32")
        self.assertEqual(self.found(r"^buffer_wbl2 sc0 sc1$", lines), 1, lines)

    def test_tiles_are_moved_128_bits_at_a_time(self):
        # A tile of 32 x 64 numbers of 4 bytes is 4 accesses by each of 128 threads, or 2 by each of 256; of 2 bytes,
        # half as many. There are two ranks. What it reads:
        rows = {"all_gather": (0, 8), "gather": (4, 4), "all_to_all": (4, 4), "publish": (0, 4),
                "reduce_scatter": (4, 4), "one_shot": (4, 4), "two_shot": (4, 8), "ring": (8, 4)}
        for what, (loads, stores) in rows.items():
            for element, constant in (("fp32", True), ("fp32", False), ("fp16", False)):
                with self.subTest(what, element=element, constant=constant):
                    times = 1 if element == "fp32" else 2
                    given = {"cur": 1, "what": what, "size": 256, "constant": constant}
                    self.check(PTX, tile_kernel, {r"^ld\.global\.v4\.b32 ": loads // times,
                                                  r"^st\.global\.v4\.b32 ": stores // times,
                                                  r"^(ld|st)\.global\.b(8|16|32) ": 0}, element, **given)
                    for target in (AMD, OLDER_AMD):
                        self.check(target, tile_kernel, {
                            r"^global_store_dwordx4 ": stores // times // 2,
                            r"^global_(store_(dword|short)|load_ushort) ": 0}, element, **given)
        self.check(PTX, tile_kernel, {r"^atom\.global\.sys\.relaxed\.add\.v4\.f32 ": 8}, "fp32", cur=1, what="atomic",
                   size=256, constant=True)

    def test_a_tile_is_read_after_its_word_and_given_back_after_the_stores(self):
        for what, order in (
                ("one_shot", r"(?s)^ld\.global\.b64.*ld\.global\.sys\.acquire\.b32 .*bra.*bar\.sync.*ld\.global\.v4"),
                ("spinlock", r"(?s)atom\.global\.sys\.acquire\.exch\.b32 .*bra.*bar\.sync.*ld\.global\.v4.*"
                             r"st\.global\.v4[^\n]*\nbar\.sync.*\natom\.global\.sys\.release\.exch\.b32 ")):
            lines, _ = assembly(PTX, tile_kernel, "fp32", cur=1, what=what, size=256, constant=True)
            self.assertRegex("\n".join(lines), order)
        for target, acquire, fence in ((AMD, "buffer_inv sc0 sc1", "buffer_wbl2 sc0 sc1"),
                                       (OLDER_AMD, "buffer_invl2\nbuffer_wbinvl1_vol", "buffer_wbl2")):
            lines, _ = assembly(target, tile_kernel, "fp32", cur=1, what="spinlock", size=256, constant=True)
            self.assertRegex("\n".join(lines), rf"(?s)global_atomic_swap .*{acquire}.*s_barrier.*global_load_dwordx4.*"
                             rf"global_store_dwordx4 [^\n]*\n(s_waitcnt[^\n]*\n)*{fence}\ns_waitcnt vmcnt\(0\)\n"
                             r"s_barrier\n.*global_atomic_swap ")

    @unittest.skipIf(importlib.util.find_spec("torch") is None, "torch, which the examples import, is not installed")
    def test_kernels_of_the_examples(self):
        numbers = {"heap_bases": "*u64", "words": "*i64", "flags": "*i64", "word": "*i64", "rank": "i32", "peer": "i32",
                   "turn": "i32", "value": "i32", "count": "i32", "first": "i32", "rounds": "i32", "n_ranks": "i32",
                   "times": "i32", "bit": "i32"}
        for names, kind in (("q k v present ring", "*fp16"), ("parts scores output o m x tiles", "*fp32"),
                            ("ready begun came", "*i64"), ("scale", "fp32"),
                            ("own splits n_parts n_tiles step puts heads tokens senders owner", "i32")):
            numbers.update((name, kind) for name in names.split())
        constants = {"size": 2048, "blocks": 8, "begins": True, "buffer_size": 4096, "block_size": 1024, "dim": 128,
                     "rows": 64, "keys": 32, "causal": True, "fresh": False, "final": True}
        wide = {"send_by_flags": 4, "send_by_put_signal": 4, "receive": 4, "load_kernel": None, "store_kernel": None,
                "get_kernel": 4, "put_kernel": 4}  # stores of 128 bits by 128 threads
        seen = 0
        for example in ("all_reduce", "atomics", "flash_decode", "get_put", "load_store_bandwidth", "message_passing",
                        "readme", "ring_attention"):
            found = importlib.util.spec_from_file_location(example, f"examples/python/{example}.py")
            module = importlib.util.module_from_spec(found)
            found.loader.exec_module(module)
            for name, kernel in vars(module).items():
                if not isinstance(kernel, triton.runtime.jit.JITFunction):
                    continue
                chosen = {key: value for key, value in constants.items() if key in kernel.arg_names}
                signature = {key: "constexpr" if key in chosen else numbers.get(key, "*i32")
                             for key in kernel.arg_names if key != "heap_bases_ptr"}
                if example == "readme":
                    signature.update(buffer="*fp32", heap_bases_ptr="*u64")
                aligned = {(at,): [["tt.divisibility", 16]] for at, key in enumerate(kernel.arg_names)
                           if signature[key].startswith("*") or key == "count"}
                for target, spec in ((PTX, TARGETS[PTX]), (AMD, TARGETS[AMD])):
                    with self.subTest(example=example, kernel=name, target=target):
                        Driver.target = spec
                        triton.runtime.driver.set_active(Driver())
                        made = triton.compile(ASTSource(kernel, signature=signature, constexprs=chosen, attrs=aligned),
                                              target=spec)
                        seen += 1
                        if target == PTX and wide.get(name):
                            self.assertEqual(made.asm["ptx"].count("st.global.v4.b32"), wide[name], made.asm["ptx"])
        self.assertEqual(seen, 2 * 18)


if __name__ == "__main__":
    junit.main()
