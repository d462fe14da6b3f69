#!/usr/bin/env python3
"""How fast kernels of Triton get and put, by size, from rank 0 to each other rank and between all neighbours at once.

    python3 -m iris.run -n 4 get_put.py

Every number is checked. `iris_bench bandwidth` measures the same of kernels in C++.
"""

import argparse
import sys

import torch
import triton
import triton.language as tl

import iris


@triton.jit
def get_kernel(theirs, mine, count, heap_bases, rank, peer, size: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    iris.get(theirs + at, mine + at, rank, peer, heap_bases, mask=at < count)


@triton.jit
def put_kernel(mine, theirs, count, heap_bases, rank, peer, size: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    iris.put(mine + at, theirs + at, rank, peer, heap_bases, mask=at < count)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, help="the largest size")
    parser.add_argument("--block", type=int, default=4096, help="numbers of 4 bytes that a program moves")
    parser.add_argument("--warps", type=int, default=8, help="of a program")
    options = parser.parse_args()

    ctx = iris.iris((options.mib or 256) * 3 << 20)
    rank, n = ctx.get_rank(), ctx.get_num_ranks()
    on_gpu = ctx.get_device().type != "cpu"
    largest = (options.mib << 20) if options.mib else (1 << 28 if on_gpu else 1 << 17)
    smallest = min(1 << 20, largest)
    bases = ctx.get_heap_bases()
    source = ctx.zeros(largest // 4, dtype=torch.int32)
    target = ctx.zeros(largest // 4, dtype=torch.int32)
    numbers = torch.arange(largest // 4, dtype=torch.int32, device=source.device)
    source.copy_(numbers * 3 + rank)
    repeats = dict(n_warmup=3, n_repeat=20) if on_gpu else dict(n_warmup=0, n_repeat=1)

    def measure(kernel, nbytes, busy, peer):
        """GB/s; `busy` says whether this rank calls, and with which peer."""
        count = nbytes // 4
        grid = (triton.cdiv(count, options.block),)
        target.zero_()
        ctx.barrier()

        def once():
            if busy:
                kernel[grid](source, target, count, bases, rank, peer, options.block, num_warps=options.warps)

        milliseconds = ctx.do_bench(once, return_mode="median", **repeats)
        ctx.barrier()
        return nbytes / milliseconds / 1e6

    def check(what, sender, nbytes):
        count = nbytes // 4
        wanted = torch.zeros_like(target) if sender is None else numbers * 3 + sender
        if sender is not None:
            wanted[count:] = 0
        if not torch.equal(target, wanted):
            sys.exit(f"rank {rank}: {what} of {nbytes} bytes: wrong numbers")
        ctx.barrier()

    sizes = []
    nbytes = smallest
    while nbytes <= largest:
        sizes.append(nbytes)
        nbytes *= 16
    if sizes[-1] != largest:
        sizes.append(largest)
    lines = []
    for nbytes in sizes:
        for peer in range(1, n) if nbytes == largest else range(min(1, n - 1), min(2, n)):
            got = measure(get_kernel, nbytes, rank == 0, peer)
            check("get", peer if rank == 0 else None, nbytes)
            put = measure(put_kernel, nbytes, rank == 0, peer)
            check("put", 0 if rank == peer else None, nbytes)
            lines.append(f"{nbytes:>10} bytes, rank 0 and rank {peer}: get {got:7.1f} GB/s, put {put:7.1f} GB/s")
    got = measure(get_kernel, largest, True, (rank + 1) % n)
    check("get", (rank + 1) % n, largest)
    put = measure(put_kernel, largest, True, (rank + 1) % n)
    check("put", (rank - 1) % n, largest)
    lines.append(f"{largest:>10} bytes, each rank and the next: get {got:7.1f} GB/s, put {put:7.1f} GB/s")
    if rank == 0:
        print("\n".join(["get and put by Triton, every number right"] + lines), flush=True)
    ctx.barrier()


if __name__ == "__main__":
    main()
