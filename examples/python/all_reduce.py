#!/usr/bin/env python3
"""An all-reduce whose input is still being made: a producer and a consumer, two kernels on two streams.

    python3 -m iris.run -n 4 all_reduce.py

      rank 0                                       rank 1
      produce: tile 0, 1, 2, ...                   produce: tile 0, 1, 2, ...
         |  a flag for each tile, to all ranks        |
         v                                            v
      consume: waits for the flags of a tile, loads it from all ranks, adds in the order of the ranks

A kernel that waits must not be launched before the kernel that it waits for has been loaded: on a GPU the first launch
of a kernel waits until no other one runs. So each rank launches the producer first. The consumers' stream has the
higher priority: they begin while tiles are still being made. `turn` is not specialized: for the values 1 and 16 Triton
would compile, and load, kernels of their own.

In one shot: each rank reads all tiles of all others. The sums have the same bits on every rank; they are compared with
sums in double. Tiles have two slots that are used in turn: who has consumed turn t + 1 knows that all have produced it,
and so that all have consumed turn t. The last line is `result ok figure VALUE us`.
"""

import argparse
import contextlib
import sys

import torch
import triton
import triton.language as tl

import iris


@triton.jit(do_not_specialize=["turn"])
def produce(x, tiles, flags, turn, heap_bases, rank, n_ranks, size: tl.constexpr):
    tile = tl.program_id(0)
    at = tile * size + tl.arange(0, size)
    value = tl.load(x + at)
    tl.store(tiles + at, value / (1 + tl.exp(-value)))  # what a layer computes
    for i in range(n_ranks):  # not all to one rank at the same time
        peer = (rank + i) % n_ranks
        iris.signal(flags + rank * tl.num_programs(0) + tile, turn, rank, peer, heap_bases)


@triton.jit(do_not_specialize=["turn"])
def consume(tiles, flags, output, missing, turn, n_tiles, heap_bases, rank, n_ranks, size: tl.constexpr):
    # Few programs, which do not take the room that the producer's need.
    for tile in range(tl.program_id(0), n_tiles, tl.num_programs(0)):
        at = tile * size + tl.arange(0, size)
        total = tl.zeros((size,), tl.float32)
        for peer in range(n_ranks):
            if iris.wait_until(flags + peer * n_tiles + tile, turn):
                # Not from a cache that may have what an earlier turn left here.
                total += iris.load(tiles + at, rank, peer, heap_bases, cache_modifier=".cg")
            else:
                tl.atomic_add(missing, 1)
        tl.store(output + at, total)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiles", type=int, help="of 2048 floats")
    parser.add_argument("--consumers", type=int, default=16, help="programs that add")
    options = parser.parse_args()
    size = 2048
    ctx = iris.iris(1 << 28)
    rank, n = ctx.get_rank(), ctx.get_num_ranks()
    on_gpu = ctx.get_device().type != "cpu"
    n_tiles = options.tiles or (4096 if on_gpu else 3)
    consumers = max(1, min(options.consumers, n_tiles))
    if n_tiles < 1 or n_tiles * size * 8 > 1 << 27:
        sys.exit(f"--tiles {n_tiles}: 1 to {(1 << 27) // 8 // size} fit into the heap")

    tiles = ctx.zeros(2, n_tiles * size, dtype=torch.float32)
    flags = ctx.zeros(n * n_tiles, dtype=torch.int64)
    output = ctx.zeros(n_tiles * size, dtype=torch.float32)
    missing = ctx.zeros(1, dtype=torch.int32)
    inputs = [torch.randn(n_tiles * size, generator=torch.Generator().manual_seed(r)) for r in range(n)]
    x = inputs[rank].to(output.device)
    bases = ctx.get_heap_bases()
    device = getattr(torch, ctx.get_device().type) if on_gpu else None  # the part of torch for this kind
    side = device.Stream(priority=-1) if on_gpu else None
    turn = 0
    ctx.barrier()

    def once():
        nonlocal turn
        turn += 1
        slot = tiles[turn % 2]
        if side is not None:
            side.wait_stream(device.current_stream())
        produce[(n_tiles,)](x, slot, flags, turn, bases, rank, n, size)
        with device.stream(side) if side is not None else contextlib.nullcontext():
            consume[(consumers,)](slot, flags, output, missing, turn, n_tiles, bases, rank, n, size)
        if side is not None:
            device.current_stream().wait_stream(side)

    milliseconds = ctx.do_bench(once, n_warmup=2 if on_gpu else 0, n_repeat=20 if on_gpu else 2, return_mode="median")
    wanted = sum(each.double() / (1 + torch.exp(-each.double())) for each in inputs)
    error = (output.cpu().double() - wanted).abs().max().item()
    if missing.item() or not error < 1e-5 * n:
        print(f"result failed rank {rank}: {missing.item()} tiles did not come, the largest error is {error}")
        sys.exit(1)
    ctx.barrier()
    if rank == 0:
        print(f"{n_tiles} tiles of {size} floats from {n} ranks, largest error {error:.1e}")
        print(f"result ok figure {milliseconds * 1e3:.1f} us", flush=True)
    ctx.barrier()


if __name__ == "__main__":
    main()
