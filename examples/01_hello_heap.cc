// 01: the symmetric heap. Every rank allocates the same thing at the same offset, and a kernel
// reads its neighbour's copy.
//
//   iris-run -n 4 -- bazel-bin/examples/01_hello_heap
//
//            heap of rank 0       heap of rank 1        heap of rank 2
//   Say      words: 0, 1, ..      words: 1000, ..       words: 2000, ..      at one offset in all
//                                    |                     |
//   Barrier  - - - - - - - - - - - - | - - - - - - - - - - | - - - - - -     all have spoken
//                                    |                     |
//   Listen   heard  <---- Load ------+  heard  <-- Load ---+  heard  <-- Load from the next rank
//
// What to see: `words` has another address in each heap, but one offset. Load(ctx, peer, p) takes a
// pointer into this rank's heap and reads the same place in the peer's: arithmetic and a load, no
// call into a library.
#include <unistd.h>

#include <cinttypes>
#include <cstdio>

#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/stream.h"

constexpr uint32_t kWords = 8;

// Each thread writes one word into this rank's heap.
IRIS_KERNEL void Say(iris::DeviceContext ctx, uint32_t* words) {
  const uint32_t i = iris::backend::ThreadIndex();
  words[i] = 1000 * ctx.rank + i;
}

// Each thread reads one word from the heap of the next rank.
IRIS_KERNEL void Listen(iris::DeviceContext ctx, const uint32_t* words, uint32_t* heard) {
  const uint32_t i = iris::backend::ThreadIndex();
  const uint32_t next = (ctx.rank + 1) % ctx.n_ranks;
  heard[i] = iris::Load(ctx, next, &words[i]);
}

iris::Status Run() {
  // Joins the job that the environment names (iris-run sets it) and maps the heaps of all ranks.
  IRIS_ASSIGN_OR_RETURN(iris::Context context, iris::Context::Create({.heap_bytes = 16 << 20}));
  const iris::DeviceContext& ctx = context.device_context();
  const uint32_t next = (ctx.rank + 1) % ctx.n_ranks;

  // Collective: every rank asks for the same, and gets the same offset. iris-ctl allocations shows
  // it by its name.
  IRIS_ASSIGN_OR_RETURN(const auto words, context.Allocate<uint32_t>(kWords, "words"));
  std::printf("I am rank %u of %u, pid %d: offset 0x%" PRIx64 ", mine at %p, rank %u's at %p\n",
              ctx.rank, ctx.n_ranks, getpid(), words.offset_bytes, words.address, next,
              static_cast<void*>(context.Translate(next, words.get())));

  IRIS_ASSIGN_OR_RETURN(iris::Stream stream, iris::Stream::Create(context));
  IRIS_RETURN_IF_ERROR(iris::Launch({.grid = 1, .block = kWords}, stream, Say, ctx, words));
  IRIS_RETURN_IF_ERROR(stream.Synchronize());

  // All have spoken, before anybody listens. Goes through shared memory: irisd is not asked.
  IRIS_RETURN_IF_ERROR(context.Barrier());

  IRIS_ASSIGN_OR_RETURN(const auto heard, iris::HostArray<uint32_t>::Create(context, kWords));
  IRIS_RETURN_IF_ERROR(
      iris::Launch({.grid = 1, .block = kWords}, stream, Listen, ctx, words, heard));
  IRIS_RETURN_IF_ERROR(stream.Synchronize());
  for (uint32_t i = 0; i < kWords; ++i) {
    if (heard[i] != 1000 * next + i) return {iris::StatusCode::kInternal, "a wrong word"};
  }
  std::printf("rank %u says %u, %u, %u, ...\n", next, heard[0], heard[1], heard[2]);

  // Nobody leaves while another still listens.
  IRIS_RETURN_IF_ERROR(context.Barrier());
  if (ctx.rank == 0) std::printf("result ok\n");
  return context.Free(words);
}

int main() {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const iris::Status status = Run();
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;  // iris-run then ends the other ranks
}
