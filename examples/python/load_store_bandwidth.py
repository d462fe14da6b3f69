#!/usr/bin/env python3
"""How fast a kernel of Triton loads from and stores into each rank's memory: a table of sources and destinations.

    python3 -m iris.run -n 4 load_store_bandwidth.py

One pair at a time. Each value that is loaded or stored is checked.
"""

import argparse
import sys
from typing import List

import torch
import triton
import triton.language as tl

import iris


@triton.jit
def load_kernel(source, sums, heap_bases, rank, peer, size: tl.constexpr, blocks: tl.constexpr):
    # Each program loads several blocks, and stores one: their sum.
    first = tl.program_id(0).to(tl.int64) * size * blocks
    at = tl.arange(0, size)
    total = tl.zeros((size,), tl.int32)
    for i in range(blocks):
        total += iris.load(source + first + i * size + at, rank, peer, heap_bases)
    tl.store(sums + tl.program_id(0) * size + at, total)


@triton.jit
def store_kernel(target, value, heap_bases, rank, peer, size: tl.constexpr, blocks: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * size * blocks
    at = tl.arange(0, size)
    values = tl.full((size,), 0, tl.int32) + value
    for i in range(blocks):
        iris.store(target + first + i * size + at, values, rank, peer, heap_bases)


def table(title, rows):
    print(f"{title}, GB/s\n  rank " + "".join(f"{peer:>9}" for peer in range(len(rows))))
    for rank, row in enumerate(rows):
        print(f"  {rank:>4} " + "".join(f"{value:>9.1f}" for value in row), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, help="of memory that is loaded or stored")
    options = parser.parse_args()

    ctx = iris.iris((options.mib or 256) * 3 << 20)
    rank, n = ctx.get_rank(), ctx.get_num_ranks()
    on_gpu = ctx.get_device().type != "cpu"
    size, blocks = 2048, 8
    count = (options.mib << 18) if options.mib else (1 << 26 if on_gpu else 1 << 15)
    programs = count // (size * blocks)
    count = programs * size * blocks
    bases = ctx.get_heap_bases()
    memory = ctx.zeros(count, dtype=torch.int32)
    sums = ctx.zeros(programs * size, dtype=torch.int32)
    repeats = dict(n_warmup=2, n_repeat=10) if on_gpu else dict(n_warmup=0, n_repeat=1)

    def pair(source, function):
        milliseconds = ctx.do_bench(function if rank == source else lambda: None, return_mode="median", **repeats)
        return count * 4 / milliseconds / 1e6

    loads: List[List[float]] = []
    stores: List[List[float]] = []
    for source in range(n):
        loads.append([])
        stores.append([])
        for peer in range(n):
            memory.fill_(rank + 1)
            sums.zero_()
            ctx.barrier()
            loads[-1].append(pair(source, lambda: load_kernel[(programs,)](memory, sums, bases, rank, peer, size,
                                                                           blocks)))
            if rank == source and not bool((sums == blocks * (peer + 1)).all()):
                sys.exit(f"rank {rank}: what was loaded from rank {peer} is wrong")
            stores[-1].append(pair(source, lambda: store_kernel[(programs,)](memory, 100 + source, bases, rank, peer,
                                                                             size, blocks)))
            ctx.barrier()
            wanted = 100 + source if rank == peer else rank + 1
            if not bool((memory == wanted).all()):
                sys.exit(f"rank {rank}: what rank {source} has stored into rank {peer} is wrong")
            ctx.barrier()
    if rank == 0:
        table(f"load of {count * 4 >> 10} KiB, every value right: from rank", loads)
        table(f"store of {count * 4 >> 10} KiB, every value right: into rank", stores)
    ctx.barrier()


if __name__ == "__main__":
    main()
