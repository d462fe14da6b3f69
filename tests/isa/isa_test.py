"""Reads what the device API becomes on gfx90a, gfx942 and sm_90, and asserts what the memory model needs of it.

probe.cc is compiled to assembly, for the device only. This needs clang 19, but no device and no vendor's toolkit. The
newer clang that compiles the bundle's kernels for AMD's GPUs is asked the same, for gfx950, too, where it is installed.
Each rule is a function from an assembly to what is wrong with it; each is also shown to find the mistake that it is
for, planted into the assembly.
Where a toolkit of NVIDIA's is installed, its assembler also checks the PTX and counts spills.
"""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

from tests.isa import isa
from tests.python import junit

MODEL_PAGE = "docs/memory_model.md"
SCOPES = isa.SCOPES


# How assembly is read.


def first(lines, pattern, start=0):
    """Index of the first line from `start` on that matches, or -1."""
    return next((i for i in range(start, len(lines)) if re.match(pattern, lines[i])), -1)


def in_order(assembly, kernel, *patterns):
    """What is missing of a series of instructions that must follow each other, other lines between them or not."""
    lines = assembly.kernels[kernel]
    at = -1
    for pattern in patterns:
        at = first(lines, pattern, at + 1)
        if at < 0:
            return [f"{assembly.target} {kernel}: no {pattern!r} where it must be"]
    return []


def never(assembly, kernel, pattern):
    found = [line for line in assembly.kernels[kernel] if re.match(pattern, line)]
    return [f"{assembly.target} {kernel}: {line!r}" for line in found]


def exactly(assembly, kernel, count, pattern):
    found = [line for line in assembly.kernels[kernel] if re.match(pattern, line)]
    return [] if len(found) == count else [f"{assembly.target} {kernel}: {len(found)} of {pattern!r}, expected {count}"]


# AMD: caches and counters.

WAIT = r"s_waitcnt (?:.*\b)?vmcnt\(0\)"
CACHE_CONTROL = r"buffer_(?:wb|inv)"
# By scope: the write-back of a release, the invalidations of an acquire, the modifiers of loads and stores.
AMD = {
    "gfx90a": {
        "release": {"Block": (), "Device": (), "System": (r"buffer_wbl2$",)},
        "acquire": {"Block": (), "Device": (r"buffer_wbinvl1_vol$",),
                    "System": (r"buffer_invl2$", r"buffer_wbinvl1_vol$")},
        "load": {"Block": "", "Device": " glc", "System": " glc"},
        "store": {"Block": "", "Device": "", "System": ""},
        "stream": "glc slc",
    },
    "gfx942": {
        "release": {"Block": (), "Device": (r"buffer_wbl2 sc1$",), "System": (r"buffer_wbl2 sc0 sc1$",)},
        "acquire": {"Block": (), "Device": (r"buffer_inv sc1$",), "System": (r"buffer_inv sc0 sc1$",)},
        "load": {"Block": " sc0", "Device": " sc1", "System": " sc0 sc1"},
        "store": {"Block": " sc0", "Device": " sc1", "System": " sc0 sc1"},
        "stream": "nt",
    },
}
AMD["gfx950"] = AMD["gfx942"]


def amd_release_writes_back_and_waits(a):
    """Data, write-back as far as the scope asks, a wait behind both, then the word that publishes; and nothing more."""
    found = []
    for scope in SCOPES:
        back = AMD[a.target]["release"][scope]
        for kernel in (f"StoreRelease{scope}", f"FenceRelease{scope}"):
            found += in_order(a, kernel, r"global_store_dword ", *back, WAIT, r"global_store_dword ")
            found += exactly(a, kernel, len(back), CACHE_CONTROL)
        for order in ("Release", "AcqRel"):
            found += in_order(a, f"Add{order}{scope}", *back, WAIT, r"global_atomic_add ")
            found += in_order(a, f"Cas{order}{scope}", *back, WAIT, r"global_atomic_cmpswap_x2 ")
        for order in ("AcqRel", "SeqCst"):
            found += in_order(a, f"Fence{order}{scope}", r"global_store_dword ", *back, WAIT,
                              *AMD[a.target]["acquire"][scope], r"global_store_dword ")
    return found


def amd_release_of_other_waves_data(a):
    """The wait behind the write-back stays where the wave has nothing of its own in flight: compilers drop theirs."""
    back = AMD[a.target]["release"]["System"]
    return (in_order(a, "ReleaseAlone", *back, WAIT, r"global_store_dword ") +
            in_order(a, "PutSignalBlock", WAIT, r"s_barrier", *back, WAIT, r"global_store_dwordx2 ") +
            in_order(a, "BarrierWorld", WAIT, r"s_barrier", *back, WAIT, r"global_store_dword ") +
            in_order(a, "SyncOfBlock", r"ds_write_b32", WAIT, r"s_barrier", r"ds_read_b32"))


def amd_write_backs_are_waited_for(a):
    """In every kernel: between a write-back and the next store or atomic there is a wait."""
    found = []
    for kernel, lines in a.kernels.items():
        for i, line in enumerate(lines):
            if not line.startswith("buffer_wbl2"):
                continue
            after = first(lines, r"(?:global|flat|buffer)_(?:store|atomic)", i)
            if not any(re.match(WAIT, between) for between in lines[i:after]):
                found.append(f"{a.target} {kernel}: no wait behind {line!r}")
    return found


def amd_acquire_invalidates(a):
    """The access, a wait for its value, the invalidations as far as the scope asks; and nothing more."""
    found = []
    for scope in SCOPES:
        invalidate = AMD[a.target]["acquire"][scope]
        wait = (WAIT,) if invalidate else ()
        found += in_order(a, f"LoadAcquire{scope}", r"global_load_dword ", *wait, *invalidate, r"global_store_dword ")
        found += exactly(a, f"LoadAcquire{scope}", len(invalidate), CACHE_CONTROL)
        found += in_order(a, f"FenceAcquire{scope}", r"global_store_dword ", *wait, *invalidate, r"global_store_dword ")
        for order in ("Acquire", "AcqRel"):
            for kernel in (f"Add{order}{scope}", f"Cas{order}{scope}"):
                found += in_order(a, kernel, r"global_atomic_(?:add|cmpswap)", *wait, *invalidate,
                                  r"global_store_dword")
        back = AMD[a.target]["release"][scope]
        for kernel in (f"AddAcqRel{scope}", f"CasAcqRel{scope}"):
            found += exactly(a, kernel, len(back) + len(invalidate), CACHE_CONTROL)
    return found


def amd_relaxed_controls_no_cache(a):
    found = []
    for scope in SCOPES:
        for operation in ("Load", "Store", "Add", "Cas"):
            found += never(a, f"{operation}Relaxed{scope}", CACHE_CONTROL)
        if any(re.match(WAIT, line) for line in a.kernels[f"StoreRelaxed{scope}"]):
            found.append(f"{a.target} StoreRelaxed{scope}: waits")
    return found


def amd_scopes_are_in_the_access(a):
    found = []
    for scope in SCOPES:
        for order in ("Relaxed", "Acquire"):
            found += exactly(a, f"Load{order}{scope}", 1,
                             r"global_load_dword [^;]*\]" + AMD[a.target]["load"][scope] + "$")
        for order in ("Relaxed", "Release"):
            lines = [line for line in a.kernels[f"Store{order}{scope}"] if line.startswith("global_store")]
            if not lines[-1].endswith("]" + AMD[a.target]["store"][scope]):
                found.append(f"{a.target} Store{order}{scope}: {lines[-1]!r}")
    return found


def amd_atomics_are_what_links_carry(a):
    """Add, subtract, exchange and compare-exchange of integers; all others as loops. At the memory, not in a cache."""
    found = []
    single = {"Add": "add", "Sub": "add", "Exchange": "swap"}
    for kernel in sorted(a.kernels):
        match = re.fullmatch(r"(Add|Sub|Exchange|And|Or|Xor|Min|Max)(I32|U32|I64|U64|F32|F64|F16|Bf16|U8|U16)", kernel)
        if not match:
            continue
        operation, name = match.groups()
        wide = "_x2" if name.endswith("64") else ""
        integer = name in ("I32", "U32", "I64", "U64") or (operation == "Exchange" and name in ("F32", "F64"))
        wanted = single[operation] + wide if integer and operation in single else "cmpswap" + wide
        found += exactly(a, kernel, 1, rf"global_atomic_{wanted} ")
        found += exactly(a, kernel, 1, r"(?:global|flat|buffer)_atomic_")
        if a.target != "gfx90a":
            found += exactly(a, kernel, 1, r"global_atomic_.* sc1$")
    return found


def amd_sixteen_bytes(a):
    hint = AMD[a.target]["stream"]
    return (exactly(a, "Copy16Default", 1, r"global_load_dwordx4 .*\]$") +
            exactly(a, "Copy16Default", 1, r"global_store_dwordx4 .*\]$") +
            exactly(a, "Copy16Streaming", 1, rf"global_load_dwordx4 .*\] {hint}$") +
            exactly(a, "Copy16Streaming", 1, rf"global_store_dwordx4 .*\] {hint}$") +
            exactly(a, "Copy16Volatile", 2, r"global_load_dwordx2 .*" + AMD[a.target]["load"]["System"] + "$") +
            exactly(a, "Copy16Volatile", 2, r"global_store_dwordx2 .*" + AMD[a.target]["store"]["System"] + "$"))


def amd_streams_words(a):
    """kStreaming is in the one load and the one store of a word of any size."""
    found = []
    for bits, kind in ((8, "byte"), (16, "short"), (32, "dword"), (64, "dwordx2")):
        found += exactly(a, f"StreamU{bits}", 1, rf"global_load_u?{kind} .*(?:glc slc|nt)$")
        found += exactly(a, f"StreamU{bits}", 1, rf"global_store_{kind} .*(?:glc slc|nt)$")
    return found


# TraceArea::until_ns, which a call of a block reads once: no poll, and nothing has to be behind it.
TRACE_WORD = r" offset:(?:16|24) "


def amd_waits_poll(a):
    """Each poll acquires at system scope; between polls the wave sleeps; the clock bounds it."""
    found = []
    invalidate = AMD[a.target]["acquire"]["System"]
    poll = r"global_load_dwordx2 .*" + AMD[a.target]["load"]["System"] + "$"
    for kernel in ("WaitThread", "WaitBlock"):
        lines = a.kernels[kernel]
        polls = [i for i, line in enumerate(lines) if re.match(poll, line) and not re.search(TRACE_WORD, line)]
        if len(polls) < 2:
            found.append(f"{a.target} {kernel}: {len(polls)} polls")
        for i in polls:
            after = lines[i + 1:i + 2 + len(invalidate)]
            if not re.match(WAIT, after[0]) or any(not re.match(p, line) for p, line in zip(invalidate, after[1:])):
                found.append(f"{a.target} {kernel}: a poll that does not acquire: {lines[i]!r}")
        found += in_order(a, kernel, r"s_memrealtime", r"s_sleep", r"s_memrealtime")
    found += exactly(a, "WaitBlock", 2, r"s_barrier")  # behind the poll, and behind the reads of its answer
    return found


def amd_shuffles_and_ballots(a):
    return (exactly(a, "Shuffle16", 4, r"ds_bpermute_b32 ") + exactly(a, "Shuffle2", 1, r"ds_bpermute_b32 ") +
            in_order(a, "BallotBits", r"v_cmp_ne_u32.* s\[\d+:\d+\]|v_cmp_ne_u32.*vcc", r"global_store_dwordx2 ") +
            exactly(a, "TrapAlways", 1, r"s_trap 2") + exactly(a, "Clock", 1, r"s_memrealtime"))


def amd_put_loads_before_it_stores(a):
    return loads_before_stores(a, "PutBlock", r"(?:global|flat)_load_dwordx4 ", r"(?:global|flat)_store_dwordx4 ")


def amd_streaming_get_keeps_its_hint(a):
    hint = AMD[a.target]["stream"]
    return loads_before_stores(a, "GetBlockStreaming", rf"(?:global|flat)_load_dwordx4 .* {hint}$",
                               rf"(?:global|flat)_store_dwordx4 .* {hint}$")


def calls_nothing(a):
    """All of the API is inline. Only a trap, which says why, and requests to other nodes may call."""
    found = []
    for kernel, lines in a.kernels.items():
        found += never(a, kernel, r"s_swappc|s_setpc")
        for callee in re.findall(r"\bcall(?:\.uni)?\s+(?:\([^)]*\)\s*,\s*)?(%?\w+)", " ".join(lines)):
            if not re.fullmatch(r"vprintf|__assertfail|_ZN4iris7backend4Trap\w+|"
                                r"_ZN4iris4impl(8CallPort|9QuietPort|9MeetNodes)E\w+", callee):
                found.append(f"{a.target} {kernel}: calls {callee}")
    return found


def spills_nothing(a):
    """Nothing goes to memory. The masks of a tile's elements may go to lanes of vector registers, which is none."""
    return [f"{a.target} {name}: {what}" for name, what in a.spills()
            if not ("Tile" in name and what.startswith("sgpr_"))]


def loads_before_stores(a, kernel, load, store):
    """The loop of a range copy: all loads of a turn, then its stores."""
    for block in a.blocks(kernel):
        loads = [i for i, line in enumerate(block) if re.match(load, line)]
        stores = [i for i, line in enumerate(block) if re.match(store, line)]
        if len(loads) >= 4 and len(stores) == len(loads) and max(loads) < min(stores):
            return []
    return [f"{a.target} {kernel}: no loop with four or more 16-byte loads before as many stores"]


# PTX.

PTX_SCOPE = {"Block": "cta", "Device": "gpu", "System": "sys"}
PTX_ORDER = {"Relaxed": "relaxed", "Acquire": "acquire", "Release": "release", "AcqRel": "acq_rel"}


def ptx_scopes_and_orders_survive(a):
    """One instruction for each operation, with its order and scope; no fence beside it, and none weaker or stronger."""
    found = []
    for scope, s in PTX_SCOPE.items():
        for order, o in PTX_ORDER.items():
            wanted = [(f"Add{order}{scope}", rf"atom\.{o}\.{s}\.(?:global\.)?add\.u32"),
                      (f"Cas{order}{scope}", rf"atom\.{o}\.{s}\.(?:global\.)?cas\.b64")]
            if order in ("Relaxed", "Acquire"):
                wanted.append((f"Load{order}{scope}", rf"ld\.{o}\.{s}\.(?:global\.)?u32"))
            if order in ("Relaxed", "Release"):
                wanted.append((f"Store{order}{scope}", rf"st\.{o}\.{s}\.(?:global\.)?u32"))
            for kernel, pattern in wanted:
                found += exactly(a, kernel, 1, pattern + r"\b")
                found += never(a, kernel, r"fence|membar")
        for order in ("Acquire", "Release", "AcqRel"):
            found += exactly(a, f"Fence{order}{scope}", 1, rf"fence\.acq_rel\.{s};")
        found += exactly(a, f"FenceSeqCst{scope}", 1, rf"fence\.sc\.{s};")
    return found


def ptx_atomics_are_instructions(a):
    """One instruction for each integer operation, and float addition; loops over compare-exchange for the rest."""
    found = []
    names = {"I32": "s32", "U32": "u32", "I64": "s64", "U64": "u64", "F32": "f32", "F64": "f64"}
    for kernel in sorted(a.kernels):
        match = re.fullmatch(r"(Add|Sub|Exchange|And|Or|Xor|Min|Max)(I32|U32|I64|U64|F32|F64|F16|Bf16|U8|U16)", kernel)
        if not match:
            continue
        operation, name = match.groups()
        bits = "64" if name.endswith("64") else "32"
        if operation in ("Min", "Max") and name in ("I32", "U32", "I64", "U64"):
            wanted = f"{operation.lower()}.{names[name]}"
        elif operation == "Add" and name in ("F32", "F64"):
            wanted = f"add.{names[name]}"
        elif operation in ("Add", "Sub") and name in names:
            wanted = f"add.u{bits}"
        elif operation in ("And", "Or", "Xor"):
            wanted = f"{operation.lower()}.b{bits}"
        elif operation == "Exchange" and name in names:
            wanted = f"exch.b{bits}"
        else:
            wanted = f"cas.b{bits}"
        found += exactly(a, kernel, 1, rf"atom\.relaxed\.sys\.(?:global\.)?{re.escape(wanted)}\b")
        found += exactly(a, kernel, 1, r"(?:atom|red)\b")
    return found


def ptx_sixteen_bytes(a):
    two = r"v2\.[ub]64|v4\.[ub]32"
    found = []
    for hint in ("Default", "Streaming", "Volatile"):
        found += exactly(a, f"Copy16{hint}", 1, rf"ld\.(?!param)[\w.:]*(?:{two})\b")
        found += exactly(a, f"Copy16{hint}", 1, rf"st\.[\w.]*(?:{two})\b")
        found += exactly(a, f"Copy16{hint}", 1, r"ld\.(?!param)")
        found += exactly(a, f"Copy16{hint}", 1, r"st\.")
    found += exactly(a, "Copy16Volatile", 1, r"ld\.(?:volatile|relaxed\.sys)\.")
    found += exactly(a, "Copy16Volatile", 1, r"st\.(?:volatile|relaxed\.sys)\.")
    return found


def ptx_streams_words(a):
    """kStreaming is in the one load and the one store of a word of any size."""
    found = []
    for bits in (8, 16, 32, 64):
        found += exactly(a, f"StreamU{bits}", 1, rf"ld\.(?:global\.)?cs\.[ub]{bits}\b")
        found += exactly(a, f"StreamU{bits}", 1, rf"st\.(?:global\.)?cs\.[ub]{bits}\b")
    return found


def ptx_reads_no_stale_data(a):
    """Nothing that a peer may have written is read through the non-coherent path."""
    return [c for kernel in a.kernels for c in never(a, kernel, r"ld\.global\.nc|ldu\b|ld\.[\w.]*\bnc\b")]


def ptx_put_loads_before_it_stores(a):
    two = r"[\w.:]*(?:v2\.[ub]64|v4\.[ub]32)\b"
    return loads_before_stores(a, "PutBlock", rf"ld\.{two}", rf"st\.{two}")


def ptx_streaming_get_keeps_its_hint(a):
    two = r"[\w.:]*(?:v2\.[ub]64|v4\.[ub]32)\b"
    return loads_before_stores(a, "GetBlockStreaming", rf"ld\.[\w.]*(?:L1::no_allocate|cs|lu)\.{two}",
                               rf"st\.[\w.]*(?:cs|wt)\.{two}")


def ptx_blocks_publish(a):
    return (in_order(a, "PutSignalBlock", r"bar(?:rier)?\.", r"st\.release\.sys\.(?:global\.)?u64") +
            in_order(a, "PutSignalWarp", r"bar\.warp\.sync", r"(?:atom|red)\.release\.sys\.(?:global\.)?add\.u64") +
            in_order(a, "BarrierWorld", r"bar(?:rier)?\.", r"st\.release\.sys\.(?:global\.)?u32",
                     r"ld\.acquire\.sys\.(?:global\.)?u32", r"bar(?:rier)?\.") +
            in_order(a, "SyncOfBlock", r"st\.shared", r"bar(?:rier)?\.", r"ld\.shared") +
            in_order(a, "SyncOfWarp", r"st\.shared", r"bar\.warp\.sync", r"ld\.shared"))


# TraceHead, which a call of a block reads once, all 16 bytes of it: no poll, which reads a word of 8.
PTX_TRACE_HEAD = r"ld\.(?:relaxed\.sys|volatile)\.(?:global\.)?v2\.[ub]64 "


def ptx_bulk_copies_are_published(a):
    """The writers' fence between the proxies and a sync, the copy, a wait until it is written, then a release."""
    copy = (r"cp\.async\.bulk\.global\.shared::cta\.bulk_group", r"cp\.async\.bulk\.commit_group")
    signal = r"(?:atom|red|st)\.release\.sys\.(?:global\.)?(?:add\.)?u64"
    return (in_order(a, "TileBulk", r"st\.shared", r"fence\.proxy\.async\.shared::cta", r"bar(?:rier)?\.", *copy,
                     r"cp\.async\.bulk\.wait_group 0", r"bar(?:rier)?\.", signal) +
            in_order(a, "TileBulkQueue", r"cp\.async\.bulk\.wait_group 1", signal) +
            in_order(a, "TileBulkQueue", r"cp\.async\.bulk\.wait_group 0", signal) +
            in_order(a, "TileBulkQueue", copy[0]) +
            in_order(a, "TileBulkQueue", copy[1], r"cp\.async\.bulk\.wait_group\.read 0"))


def ptx_bulk_loads_see_what_was_told(a):
    """An acquire, the fence between the proxies, the load, and a look at its gate before shared memory is read."""
    return in_order(a, "BulkPull", r"mbarrier\.init", r"fence\.mbarrier_init", r"ld\.acquire\.sys",
                    r"fence\.proxy\.async;", r"mbarrier\.arrive\.expect_tx",
                    r"cp\.async\.bulk\.shared::cluster\.global\.mbarrier::complete_tx::bytes", r"bar(?:rier)?\.",
                    r"mbarrier\.test_wait\.parity", r"ld\.shared")


def ptx_blocks_of_kernels(a):
    """Both halves of a barrier, with loads between them; the ring's words in the block; a post's last word."""
    return (in_order(a, "ArriveAndWait", r"bar(?:rier)?\.", r"st\.release\.sys\.(?:global\.)?u32",
                     r"ld\.acquire\.sys\.(?:global\.)?u32", r"bar(?:rier)?\.") +
            in_order(a, "RingOfWarps", r"bar(?:rier)?\.", r"ld\.acquire\.cta\.u32", r"bar\.warp\.sync",
                     r"(?:atom|red)\.release\.cta\.add\.u32") +
            never(a, "RingOfWarps", r"(?:atom|red|st)\.release\.(?:gpu|sys)") +
            in_order(a, "PostACopy", r"ld\.acquire\.sys\.u64", r"atom\.relaxed\.gpu\.cas\.b64",
                     r"st\.relaxed\.sys\.u64", r"st\.release\.sys\.u64"))


def ptx_waits_poll(a):
    """Each poll acquires at system scope."""
    found = []
    for kernel in ("WaitThread", "WaitBlock"):
        loads = [line for line in a.kernels[kernel] if re.match(r"ld\.(?!param|shared)[\w.]*64\b", line)]
        heads = [line for line in loads if re.match(PTX_TRACE_HEAD, line)]
        if len(heads) != (1 if kernel == "WaitBlock" else 0):
            found.append(f"{a.target} {kernel}: reads the head of the trace {len(heads)} times")
        polls = [line for line in loads if line not in heads]
        if len(polls) < 2:
            found.append(f"{a.target} {kernel}: {len(polls)} polls")
        found += [f"{a.target} {kernel}: a poll that does not acquire: {p!r}" for p in polls
                  if not re.match(r"ld\.acquire\.sys\.(?:global\.)?u64 ", p)]
    found += exactly(a, "WaitBlock", 2, r"bar(?:rier)?\.")  # behind the poll, and behind the reads of its answer
    return found


def ptx_shuffles_and_ballots(a):
    return (exactly(a, "Shuffle16", 4, r"shfl\.sync") + exactly(a, "Shuffle2", 1, r"shfl\.sync") +
            exactly(a, "BallotBits", 1, r".*vote\.sync\.ballot\.b32"))


# The table, and the planted mistakes.

# rule: (kernel, what is found in its lines, what stands there instead), ...: planted alone, each must be found.
AMD_RULES = {
    amd_release_writes_back_and_waits: (
        ("StoreReleaseSystem", r"^buffer_wbl2.*", ""),
        ("StoreReleaseSystem", WAIT, ""),
        ("StoreReleaseDevice", WAIT, ""),
        ("StoreReleaseBlock", WAIT, ""),
        ("StoreReleaseBlock", WAIT, "buffer_wbl2"),
        ("AddReleaseSystem", r"^buffer_wbl2.*", ""),
        ("CasAcqRelSystem", r"^buffer_wbl2.*", ""), ("FenceReleaseSystem", r"^buffer_wbl2.*", ""),
        ("FenceAcqRelSystem", r"^buffer_inv.*", ""), ("FenceSeqCstSystem", WAIT, ""),
    ),
    amd_release_of_other_waves_data: (
        ("ReleaseAlone", WAIT, ""), ("PutSignalBlock", r"^s_barrier", ""), ("PutSignalBlock", r"^buffer_wbl2.*", ""),
        ("BarrierWorld", WAIT, ""), ("SyncOfBlock", WAIT, ""),
    ),
    amd_write_backs_are_waited_for: (("BarrierWorld", WAIT, ""), ("ReleaseAlone", WAIT, "")),
    amd_acquire_invalidates: (
        ("LoadAcquireSystem", r"^buffer_inv.*", ""), ("LoadAcquireDevice", r"^buffer_\w*inv.*", ""),
        ("LoadAcquireBlock", r"^s_waitcnt vmcnt\(0\)", "buffer_inv sc0 sc1"),
        ("AddAcquireSystem", r"^buffer_inv.*", ""),
        ("CasAcqRelDevice", r"^buffer_\w*inv.*", ""), ("FenceAcquireSystem", r"^buffer_inv.*", ""),
        ("AddAcqRelSystem", r"^s_endpgm", "buffer_wbl2"),
    ),
    amd_relaxed_controls_no_cache: (
        ("LoadRelaxedSystem", r"^s_waitcnt vmcnt\(0\)", "buffer_invl2"),
        ("StoreRelaxedSystem", r"^s_waitcnt lgkmcnt\(0\)", "s_waitcnt vmcnt(0)"),
        ("AddRelaxedDevice", r"^s_endpgm", "buffer_wbl2 sc1"),
    ),
    amd_scopes_are_in_the_access: (
        ("LoadRelaxedSystem", r"(?<=\]) (?:glc|sc0 sc1)$", ""), ("LoadAcquireDevice", r"(?<=\]) (?:glc|sc1)$", ""),
        ("StoreReleaseSystem", r"(global_store_dword [^\]]*\])(?: sc0 sc1)?$", r"\1 sc0"),
    ),
    amd_atomics_are_what_links_carry: (
        ("AddU64", r"global_atomic_add_x2", "global_atomic_add"),
        ("OrU32", r"global_atomic_cmpswap", "global_atomic_or"),
        ("AddF32", r"global_atomic_cmpswap", "global_atomic_add_f32"),
        ("MaxI64", r"global_atomic_cmpswap_x2", "flat_atomic_smax_x2"),
    ),
    amd_sixteen_bytes: (
        ("Copy16Default", r"global_load_dwordx4", "global_load_dwordx2"),
        ("Copy16Default", r"(global_store.*\])$", r"\1 nt"),
        ("Copy16Streaming", r"(global_load.*\]).*$", r"\1"),
        ("Copy16Volatile", r"(global_load.*\]).* (?:glc|sc1)$", r"\1"),
    ),
    amd_streams_words: (("StreamU8", r"(global_load.*\]).*$", r"\1"), ("StreamU64", r"(global_store.*\]).*$", r"\1")),
    amd_waits_poll: (
        ("WaitThread", r"^buffer_inv.*", ""),
        ("WaitThread", r"^s_sleep.*", ""),
        ("WaitBlock", r"^s_memrealtime.*", ""),
        ("WaitBlock", r"^buffer_inv.*", ""), ("WaitBlock", r"^s_barrier", ""),
    ),
    amd_shuffles_and_ballots: (
        ("Shuffle16", r"^ds_bpermute_b32", "ds_swizzle_b32"),
        ("TrapAlways", r"^s_trap 2", "s_endpgm"),
    ),
    amd_put_loads_before_it_stores: (("PutBlock", r"_load_dwordx4", "_load_dwordx2"),),
    amd_streaming_get_keeps_its_hint: (("GetBlockStreaming", r" (?:glc slc|slc|nt)$", ""),),
    calls_nothing: (("WaitThread", r"^s_endpgm", "s_swappc_b64 s[30:31], s[4:5]"),),
    spills_nothing: ((isa.METADATA, r"private_segment_fixed_size: 0", "private_segment_fixed_size: 16"),
                     (isa.METADATA, r"vgpr_spill_count: +0", "vgpr_spill_count: 2")),
}
PTX_RULES = {
    ptx_scopes_and_orders_survive: (
        ("LoadAcquireSystem", r"\.sys", ".gpu"),
        ("StoreReleaseSystem", r"\.release", ".relaxed"),
        ("AddAcqRelDevice", r"acq_rel", "acquire"),
        ("FenceSeqCstSystem", r"fence\.sc", "fence.acq_rel"), ("LoadRelaxedBlock", r"^ret;", "fence.sc.sys;"),
    ),
    ptx_atomics_are_instructions: (
        ("AddF64", r"add\.f64", "cas.b64"),
        ("MinI32", r"min\.s32", "min.u32"),
        ("AddU64", r"\.sys", ".gpu"),
    ),
    ptx_sixteen_bytes: (
        ("Copy16Default", r"^ld\.(?!param).*v\d\.\w+", "ld.u64"),
        ("Copy16Volatile", r"(ld|st)\.(volatile|relaxed\.sys)", r"\1"),
        ("Copy16Streaming", r"^st\..*v\d\.\w+", "st.u64"),
    ),
    ptx_streams_words: (("StreamU16", r"^ld\.cs", "ld"), ("StreamU64", r"^st\.cs", "st")),
    ptx_reads_no_stale_data: (("GetBlockStreaming", r"^ld\.(?!param)\S+", "ld.global.nc.v2.u64"),),
    ptx_put_loads_before_it_stores: (("PutBlock", r"^ld\.(.*)v2\.", r"ld.\1"),),
    ptx_streaming_get_keeps_its_hint: (("GetBlockStreaming", r"L1::no_allocate\.|\bcs\.", ""),),
    ptx_blocks_publish: (
        ("PutSignalBlock", r"^bar\.sync.*", ""),
        ("PutSignalBlock", r"^st\.release", "st.relaxed"),
        ("BarrierWorld", r"\.acquire", ".relaxed"),
        ("SyncOfWarp", r"^bar\.warp\.sync.*", ""),
    ),
    ptx_bulk_copies_are_published: (
        ("TileBulk", r"^fence\.proxy.*", ""),
        ("TileBulk", r"^cp\.async\.bulk\.wait_group.*", ""),
        ("TileBulk", r"\.release\.", ".relaxed."),
        ("TileBulk", r"^cp\.async\.bulk\.commit_group.*", ""),
        ("TileBulkQueue", r"wait_group 1", "wait_group 2"),
        ("TileBulkQueue", r"wait_group\.read", "wait_group_read"),
    ),
    ptx_bulk_loads_see_what_was_told: (
        ("BulkPull", r"^fence\.proxy.*", ""),
        ("BulkPull", r"^mbarrier\.test_wait.*", ""),
        ("BulkPull", r"\.acquire", ".relaxed"),
    ),
    ptx_blocks_of_kernels: (
        ("ArriveAndWait", r"st\.release", "st.relaxed"),
        ("RingOfWarps", r"ld\.acquire", "ld.relaxed"),
        ("RingOfWarps", r"\.release\.cta", ".release.sys"),
        ("PostACopy", r"st\.release", "st.relaxed"),
    ),
    ptx_waits_poll: (
        ("WaitThread", r"ld\.acquire", "ld.relaxed"), ("WaitBlock", r"^bar.*", ""),
        ("WaitBlock", r"^ld\.acquire\.sys\.u64", "ld.relaxed.sys.u64", True),
        ("WaitBlock", r"^ld\.acquire\.sys\.u64", "ld.global.u64", True),
        ("WaitThread", r"^ld\.acquire\.sys\.u64", "ld.relaxed.sys.v2.u64", True),
    ),
    ptx_shuffles_and_ballots: (("Shuffle16", r"shfl\.sync", "shfl"), ("BallotBits", r"vote\.sync", "vote")),
    calls_nothing: (("WaitThread", r"^ret;", "call.uni f;"),),
    spills_nothing: (("WaitThread", r"^ret;", "st.local.u32 [%rd1], %r1;"),),
}


@unittest.skipUnless(os.path.exists(isa.PROBE), "not run from the repository root")
class Probe(unittest.TestCase):
    maxDiff = None
    assemblies = {}

    @classmethod
    def assembly(cls, target):
        if target not in cls.assemblies:
            cls.assemblies[target] = isa.Assembly(target, isa.compile_text(target))
        return cls.assemblies[target]

    def test_the_page_has_the_table(self):
        """docs/memory_model.md says what the compiler makes."""
        with open(MODEL_PAGE, encoding="utf-8") as file:
            page = file.read().split("\n")
        wanted = isa.table({target: self.assembly(target) for target in isa.TARGETS})
        start = page.index(wanted[0]) if wanted[0] in page else len(page)
        self.assertEqual(wanted, page[start:start + len(wanted)],
                         "docs/memory_model.md is old: PYTHONPATH=. python3 tests/isa/isa.py prints the table")

    def test_ptxas_takes_the_ptx_and_spills_nothing(self):
        ptxas = shutil.which("ptxas") or shutil.which("ptxas", path="/usr/local/cuda/bin")
        if ptxas is None:
            self.skipTest("no ptxas on this machine")
        with tempfile.TemporaryDirectory(prefix="iris-isa-", dir="/tmp") as folder:
            path = os.path.join(folder, "probe.ptx")
            with open(path, "w", encoding="utf-8") as file:
                file.write(self.assembly("sm_90").text)
            done = subprocess.run([ptxas, "-v", "-arch=sm_90", path, "-o", os.path.join(folder, "probe.cubin")],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        spills = re.findall(r"(\d+) bytes spill", done.stdout)
        self.assertTrue(spills, done.stdout)
        self.assertEqual({"0"}, set(spills), done.stdout)


@unittest.skipUnless(isa.has_bundle_compiler(), "no compiler of the bundle's HIP part here: deploy/setup.sh --hip")
class BundleProbe(unittest.TestCase):
    """The same by the compiler of the bundle's kernels, which is newer and knows one kind of GPU more."""
    assemblies = {}

    @classmethod
    def assembly(cls, target):
        if target not in cls.assemblies:
            cls.assemblies[target] = isa.Assembly(target, isa.compile_text(target, for_bundle=True))
        return cls.assemblies[target]


class Collectives(unittest.TestCase):
    """The kernels of device/iris/collective, for one device and one type: the largest that use the API. A test each."""
    # With the kernels that move 16 bytes at a time. Packets on these devices are of 8 bytes.
    SOURCES = {"direct": ("ReduceDirect", "BroadcastSlices"), "packets": (), "two_packets": ()}

    # In place of the header that gives kernels to every type: they would take the compiler a quarter of an hour.
    ONE_TYPE = """#pragma once
#include <type_traits>
#include "iris/backend/numeric.h"
namespace iris::ccl::impl {
template <typename T>
inline constexpr bool kHasKernels = std::is_same_v<T, Bfloat16>;
}
"""

    def check(self, name, wide):
        with tempfile.TemporaryDirectory(prefix="iris-isa-", dir="/tmp") as folder:
            header = os.path.join(folder, "device/iris/collective/impl/kernel_types.h")
            os.makedirs(os.path.dirname(header))
            with open(header, "w", encoding="utf-8") as file:
                file.write(self.ONE_TYPE)
            text = isa.compile_text("gfx942", f"device/iris/collective/variants/{name}.cc", ["-iquote", folder])
        a = isa.Assembly("gfx942", text)
        # Those for any operation and number of members choose at run time what the others know.
        hot = [(kernel, what) for kernel, what in a.spills() if "AnyOp" not in kernel and not what.startswith("sgpr_")]
        self.assertEqual([], hot)
        self.assertEqual([], amd_write_backs_are_waited_for(a))
        self.assertEqual([], [c for kernel in a.kernels for c in never(a, kernel, r"s_swappc|s_setpc")])
        for part in wide:
            lines = [line for kernel, lines in a.kernels.items() if part in kernel for line in lines]
            self.assertGreaterEqual(first(lines, r"(?:global|flat)_load_dwordx4"), 0, part)


class Rounds(unittest.TestCase):
    """How the rounds of collectives announce. The stream's barrier releases, so that it publishes stores of earlier
    kernels to other members; a round that only says that this member is there is relaxed, on sm_90."""
    SOURCE = "tests/isa/round_probe.cc"
    SYSTEM_STORE = r"st\.(?:relaxed\.|release\.)?sys\.(?:global\.)?u64 "

    @staticmethod
    def released(a, kernel):
        """What is wrong with how the words of the only round of `kernel` are stored, where they must be released."""
        if a.is_amd:
            back = AMD[a.target]["release"]["System"]
            return in_order(a, kernel, r"s_barrier", *back, WAIT, r"global_store_dwordx2 ")
        return (in_order(a, kernel, r"bar(?:rier)?\.", r"st\.release\.sys\.(?:global\.)?u64 ",
                         r"ld\.acquire\.sys\.(?:global\.)?u64 ", r"bar(?:rier)?\.") +
                exactly(a, kernel, 1, Rounds.SYSTEM_STORE))

    def test_barrier(self):
        for target in ("sm_90", "gfx942"):
            a = isa.Assembly(target, isa.compile_text(target, self.SOURCE))
            kernel = next(name for name in a.kernels if "BarrierKernel" in name)
            self.assertEqual([], self.released(a, kernel))
            if a.is_amd:
                self.assertTrue(self.released(a.edited(kernel, r"^buffer_wbl2.*", ""), kernel))
                continue
            self.assertTrue(self.released(a, "RelaxedRound"))
            self.assertEqual([], exactly(a, "RelaxedRound", 1, r"st\.relaxed\.sys\.(?:global\.)?u64 "))
            self.assertTrue(self.released(a.edited(kernel, r"^st\.release", "st.relaxed"), kernel))


class DeviceAtomics(unittest.TestCase):
    """The kernel of atomics of other nodes: they release for the system, and the host sees their results."""

    def test_kernel(self):
        for target in ("gfx90a", "gfx942"):
            with self.subTest(target):
                a = isa.Assembly(target, isa.compile_text(target, "device/iris/port/device_atomics.cc"))
                kernel = next(name for name in a.kernels if "DoAll" in name)
                self.assertEqual([], amd_write_backs_are_waited_for(a))
                self.assertEqual([], never(a, kernel, r"s_swappc|s_setpc"))
                back = AMD[target]["release"]["System"]
                last_store = r"global_store_dwordx2 "
                add = r"global_atomic_add_x2 "
                for then in (add, last_store):
                    self.assertEqual([], in_order(a, kernel, *back, WAIT, then), then)
                relaxed = a.edited(kernel, r"^buffer_wbl2.*", "")
                self.assertTrue(in_order(relaxed, kernel, *back, WAIT, add))


def _collective(name, wide):

    def test(self):
        self.check(name, wide)

    test.__doc__ = f"{name}: hot kernels keep their data in registers, and write-backs are waited for"
    return test


for _name, _wide in Collectives.SOURCES.items():
    setattr(Collectives, f"test_{_name}", _collective(_name, _wide))


def _rule(target, rule):

    def test(self):
        self.assertEqual([], rule(self.assembly(target)))

    test.__doc__ = f"{target}: {rule.__name__}"
    return test


def _planted(target, rule, kernel, pattern, replacement, only_first=False):

    def test(self):
        edited = self.assembly(target).edited(kernel, pattern, replacement, only_first)
        self.assertTrue(rule(edited), f"{rule.__name__} does not see {pattern!r} -> {replacement!r} in {kernel}")

    return test


for _target in isa.TARGETS:
    for _function, _plants in (AMD_RULES if _target.startswith("gfx") else PTX_RULES).items():
        setattr(Probe, f"test_{_target}_{_function.__name__}", _rule(_target, _function))
        for _number, _plant in enumerate(_plants):
            setattr(Probe, f"test_planted_{_target}_{_function.__name__}_{_number}",
                    _planted(_target, _function, *_plant))

for _target in isa.BUNDLE_TARGETS:
    for _function, _plants in AMD_RULES.items():
        setattr(BundleProbe, f"test_{_target}_{_function.__name__}", _rule(_target, _function))
        for _number, _plant in enumerate(_plants):
            setattr(BundleProbe, f"test_planted_{_target}_{_function.__name__}_{_number}",
                    _planted(_target, _function, *_plant))

if __name__ == "__main__":
    junit.main()
