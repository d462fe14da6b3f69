#!/usr/bin/env python3
"""iris.x.all_reduce_one_shot beside the same sum by Iris's C++ tiles: the ranks' parts are in the heaps and their words
are set, and one rank at a time adds them, so that ranks that share a GPU do not take turns. Prints the microseconds and
GB/s of both, for matrices of which some fit in the caches. `source` prints the C++ kernel, which a compiler of the
machine makes a library of, with a bundle's headers:

    python3 tests/bench/tile_sum.py source >tile_sum.cu
    $COMPILER -O3 -std=c++17 -shared ... -I BUNDLE/include -o tile_sum.so tile_sum.cu
    iris-run -n 2 -- python3 tests/bench/tile_sum.py ./tile_sum.so
"""

import ctypes
import statistics
import sys

SOURCE = r"""
#include "iris/device.h"

using namespace iris;

constexpr uint32_t kTile = 64, kThreads = 256;

// Each thread has 4 rows of a 64 x 64 tile, 16 apart, and 4 columns of them.
IRIS_KERNEL void OneShot(HeapBases heaps, uint32_t n, const float* parts, float* sums, const int32_t* locks,
                         uint64_t size) {
  const uint64_t across = size / kTile, number = backend::BlockIndex();
  if (backend::ThreadIndex() == 0) {
    for (uint32_t r = 0; r < n; ++r) {
      const int32_t* word = Translate(heaps, r, locks + number);
      for (uint32_t polls = 0; !Test(word, Compare::kEq, 1) && polls < (1u << 26); ++polls) {
      }
    }
  }
  backend::BlockSync();
  const uint64_t row = number / across * kTile + backend::ThreadIndex() / 16;
  const uint64_t column = number % across * kTile + backend::ThreadIndex() % 16 * 4;
  const Tile tile = {4, 4, 16 * size, 1};
  const uint64_t at = row * size + column;
  float total[4][4] = {}, part[4][4];
  for (uint32_t r = 0; r < n; ++r) {
    LoadTile(heaps, r, parts + at, tile, part);
    for (uint32_t i = 0; i < 4; ++i) {
      for (uint32_t j = 0; j < 4; ++j) total[i][j] += part[i][j];
    }
  }
  StoreTile(heaps, heaps.rank, sums + at, tile, total);
}

extern "C" void StartOneShot(const uint64_t* bases, uint32_t rank, uint32_t n, const float* parts, float* sums,
                             const int32_t* locks, uint64_t size) {
  OneShot<<<static_cast<uint32_t>(size / kTile * (size / kTile)), kThreads>>>(HeapBases{bases, rank}, n, parts, sums,
                                                                             locks, size);
}
"""

if sys.argv[1:] == ["source"]:
    print(SOURCE, end="")
    sys.exit()

import torch
import triton
import triton.language as tl

import iris

BLOCK = 64


@triton.jit
def one_shot(context, parts, sums, locks, size, rank: tl.constexpr, n: tl.constexpr, block: tl.constexpr):
    ctx = iris.DeviceContext.initialize(context, rank, n)
    across = size // block
    tile = iris.Tile(tl.program_id(0) // across, tl.program_id(0) % across, block, block)
    ctx.all_reduce_one_shot(tile, iris.make_tensor_view(parts, size, size, size, 1),
                            iris.make_tensor_view(sums, size, size, size, 1), locks)


def main():
    library = ctypes.CDLL(sys.argv[1])
    address, number = ctypes.c_void_p, ctypes.c_uint32
    library.StartOneShot.argtypes = [address, number, number, address, address, address, ctypes.c_uint64]
    with iris.iris(1 << 30) as ctx:
        n, rank = ctx.get_num_ranks(), ctx.get_rank()
        filler = torch.ones(8192, 8192, dtype=torch.bfloat16, device=ctx.get_device())
        for size in (512, 1024, 2048, 4096, 8192):
            tiles = (size // BLOCK)**2
            parts, sums = ctx.full((size, size), rank + 1.0), ctx.zeros(size, size)
            locks = ctx.full((tiles,), 1, dtype=torch.int32)
            given = [tensor.data_ptr() for tensor in (ctx.get_heap_bases(), parts, sums, locks)]
            given[1:1] = rank, n
            mine = ctx.get_device_context(), parts, sums, locks
            ways = {"Triton": lambda: one_shot[(tiles,)](*mine, size, rank, n, BLOCK),
                    "C++": lambda: library.StartOneShot(*given, size)}
            ctx.barrier()
            for turn in range(n):
                if turn == rank:
                    took = {}
                    for name, run in ways.items():
                        sums.zero_()
                        run()
                        torch.accelerator.synchronize()
                        assert sums.min() == sums.max() == n * (n + 1) / 2, name
                        took[name] = min(statistics.median(times_of(run, filler)) for _ in range(3))
                    bytes_moved = size * size * 4 * (n + 1)
                    print(f"rank {rank}, {size} x {size}: " + ", ".join(
                        f"{name} {us:.1f} us {bytes_moved / us / 1e3:.0f} GB/s" for name, us in took.items())
                        + f", Triton's share {took['C++'] / took['Triton']:.2f}", flush=True)
                ctx.barrier()
            del parts, sums, locks, mine, ways


def times_of(run, filler, calls=20, repeats=15):
    """Microseconds of a call, of each of several rounds, without the host's time: a product keeps the GPU busy while
    the calls are queued."""
    times = []
    for _ in range(repeats):
        begin, end = torch.Event(enable_timing=True), torch.Event(enable_timing=True)
        filler @ filler
        begin.record()
        for _ in range(calls):
            run()
        end.record()
        torch.accelerator.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / calls)
    return times


main()
