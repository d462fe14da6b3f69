// A job outside this repository: each rank says hello to the next one, from a kernel.
#include <cstdio>

#include "client/iris/context.h"
#include "device/iris/iris.h"

IRIS_KERNEL void Greet(iris::DeviceContext ctx, uint32_t* word) {
  iris::Store(ctx, (ctx.rank + 1) % ctx.n_ranks, word, 100 + ctx.rank);
}

int main() {
  auto context = iris::Context::Create({.heap_bytes = 16 << 20});
  if (!context.ok()) return std::puts(context.status().ToString().c_str()), 1;
  auto word = (*context)->Allocate({.bytes = sizeof(uint32_t), .name = "word"});
  iris::backend::Stream stream;
  if (!word.ok() || !iris::backend::Stream::Create(&stream).ok()) return 1;
  if (!iris::backend::Launch({.grid = 1, .block = 1}, stream, Greet, (*context)->device_context(),
                             word->As<uint32_t>())
           .ok()) {
    return 1;
  }
  uint32_t got = 0;
  if (!stream.Synchronize().ok() || !(*context)->Barrier().ok() ||
      !iris::backend::CopyAsync(&got, word->address, sizeof(got), stream).ok() ||
      !stream.Synchronize().ok()) {
    return 1;
  }
  std::printf("rank %u got %u\n", (*context)->rank(), got);
  return (*context)->Barrier().ok() ? 0 : 1;
}
