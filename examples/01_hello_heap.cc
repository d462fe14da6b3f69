// 01: the symmetric heap. Every rank allocates the same thing at the same offset, and a kernel
// reads its neighbour's copy.
//
//   iris-run -n 4 -- bazel-bin/examples/01_hello_heap
//
// What to see: `words` has another address in each heap, but one offset. Load(ctx, peer, p) takes a
// pointer into the own heap and reads the same place in the peer's: arithmetic and a load, no call
// into a library.
#include <unistd.h>

#include <cinttypes>
#include <cstdio>

#include "client/iris/context.h"
#include "device/iris/iris.h"
#include "examples/example.h"

using example::Expect;
using example::Ok;

constexpr uint32_t kWords = 8;

// Each thread writes one word into the own heap.
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

int main() {
  setvbuf(stdout, nullptr, _IOLBF, 0);

  // Joins the job that the environment names (iris-run sets it) and maps the heaps of all ranks.
  const auto context = Ok(iris::Context::Create({.heap_bytes = 16 << 20}));
  const uint32_t next = (context->rank() + 1) % context->n_ranks();

  // Collective: every rank asks for the same, and gets the same offset. iris-ctl allocations shows
  // it by its name.
  const iris::Allocation allocation = Ok(context->Allocate(
      {.bytes = kWords * sizeof(uint32_t), .name = "words", .dtype = "u32", .shape = {kWords}}));
  uint32_t* words = allocation.As<uint32_t>();
  std::printf("I am rank %u of %u, pid %d: offset 0x%" PRIx64 ", mine at %p, rank %u's at %p\n",
              context->rank(), context->n_ranks(), getpid(), allocation.offset_bytes,
              static_cast<void*>(words), next, static_cast<void*>(context->Translate(words, next)));

  iris::backend::Stream stream;
  Ok(iris::backend::Stream::Create(&stream));
  Ok(iris::backend::Launch({.grid = 1, .block = kWords}, stream, Say, context->device_context(),
                           words));
  Ok(stream.Synchronize());

  // All have spoken, before anybody listens. Goes through shared memory: irisd is not asked.
  Ok(context->Barrier());

  const auto heard = example::Array<uint32_t>::OnHost(kWords);
  Ok(iris::backend::Launch({.grid = 1, .block = kWords}, stream, Listen, context->device_context(),
                           words, heard.get()));
  Ok(stream.Synchronize());

  for (uint32_t i = 0; i < kWords; ++i)
    Expect(heard[i] == 1000 * next + i, "a word of the next rank");
  std::printf("rank %u says %u, %u, %u, ...\n", next, heard[0], heard[1], heard[2]);

  // Nobody leaves while another still listens.
  Ok(context->Barrier());
  Ok(context->Free(allocation));
}
