#!/usr/bin/env python3
"""Atomics of Triton on other ranks' memory: each operation ends at the exact value, and how fast adding is.

    python3 -m iris.run -n 4 atomics.py
"""

import argparse
import sys

import torch
import triton
import triton.language as tl

import iris


@triton.jit
def all_operations(words, heap_bases, rank, n_ranks, times, bit):
    # All programs of all ranks, on each rank's words.
    for peer in range(n_ranks):
        for i in range(times):
            iris.atomic_add(words, 2, rank, peer, heap_bases)
            iris.atomic_sub(words + 1, 1, rank, peer, heap_bases)
            iris.atomic_xor(words + 5, 1, rank, peer, heap_bases)
            # A loop of compare-and-swap that adds 1.
            seen = iris.atomic_add(words + 7, 0, rank, peer, heap_bases)
            there = iris.atomic_cas(words + 7, seen, seen + 1, rank, peer, heap_bases)
            while there != seen:
                seen = there
                there = iris.atomic_cas(words + 7, seen, seen + 1, rank, peer, heap_bases)
        iris.atomic_or(words + 2, bit, rank, peer, heap_bases)
        iris.atomic_and(words + 3, -1 - bit, rank, peer, heap_bases)
        iris.atomic_max(words + 4, 1000 * rank + times, rank, peer, heap_bases)
        iris.atomic_min(words + 6, -1000 * rank - times, rank, peer, heap_bases)
        iris.atomic_xchg(words + 8, 77, rank, peer, heap_bases)


@triton.jit
def add_kernel(words, heap_bases, rank, peer, size: tl.constexpr):
    at = tl.program_id(0) * size + tl.arange(0, size)
    iris.atomic_add(words + at, 1, rank, peer, heap_bases, sem="relaxed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, help="that each program adds")
    options = parser.parse_args()

    ctx = iris.iris(1 << 28)
    rank, n = ctx.get_rank(), ctx.get_num_ranks()
    on_gpu = ctx.get_device().type != "cpu"
    programs, times = (64, options.times or 20) if on_gpu else (2, options.times or 3)
    bases = ctx.get_heap_bases()
    names = ("add", "sub", "or", "and", "max", "xor", "min", "cas", "xchg")
    for dtype in (torch.int32, torch.int64):
        words = ctx.zeros(16, dtype=dtype)
        words[3] = -1
        ctx.barrier()
        all_operations[(programs,)](words, bases, rank, n, times, 1 << rank)
        ctx.barrier()
        every = n * programs
        wanted = (2 * times * every, -times * every, 2**n - 1, -(2**n), 1000 * (n - 1) + times, times * every % 2,
                  -1000 * (n - 1) - times, times * every, 77)
        for name, got, want in zip(names, words.tolist(), wanted):
            if got != want:
                sys.exit(f"rank {rank}: atomic_{name} of {dtype} ended at {got}, and not at {want}")
        ctx.barrier()
        if rank == 0:
            print(f"atomics of {dtype}, {every} programs: {' '.join(names)} end at the exact values", flush=True)

    size, blocks = 1024, 1024 if on_gpu else 2
    counters = ctx.zeros(size * blocks, dtype=torch.int32)
    calls = 0
    rates = []
    ctx.barrier()
    for peer in range(n):
        def once():
            nonlocal calls
            if rank == 0:
                add_kernel[(blocks,)](counters, bases, rank, peer, size)
            calls += 1

        calls = 0
        counters.zero_()
        ctx.barrier()
        milliseconds = ctx.do_bench(once, n_warmup=2, n_repeat=10 if on_gpu else 1, return_mode="median")
        ctx.barrier()
        if not bool((counters == (calls if rank == peer else 0)).all()):
            sys.exit(f"rank {rank}: not every counter is {calls if rank == peer else 0}")
        rates.append(f"{size * blocks / milliseconds / 1e6:.2f}")
        ctx.barrier()
    if rank == 0:
        print(f"relaxed adds to {size * blocks} counters of rank 0 to {n - 1} by rank 0: {', '.join(rates)} "
              "billions a second", flush=True)
    ctx.barrier()


if __name__ == "__main__":
    main()
