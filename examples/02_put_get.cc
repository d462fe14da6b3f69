// 02: put and get. Blocks of threads copy ranges into the next rank's heap, and out of the previous
// rank's.
//
//   iris-run -n 4 -- bazel-bin/examples/02_put_get
//
// What to see: all threads of a block make one call (Block{}) and share its work. Put and Get order
// nothing: the end of the kernel and a barrier do.
#include <cstdio>
#include <vector>

#include "client/iris/context.h"
#include "device/iris/iris.h"
#include "examples/example.h"

using example::Expect;
using example::Ok;

constexpr uint64_t kFloats = 1 << 20;
constexpr iris::LaunchConfig kLaunch = {.grid = 8, .block = 128};

// This block's share of n elements.
struct Slice {
  uint64_t begin, count;
};
IRIS_DEVICE inline Slice MySlice(uint64_t n) {
  const uint64_t each = (n + iris::backend::GridSize() - 1) / iris::backend::GridSize();
  const uint64_t begin = iris::backend::BlockIndex() * each;
  return {begin, begin >= n ? 0 : (n - begin < each ? n - begin : each)};
}

IRIS_KERNEL void PutToNext(iris::DeviceContext ctx, float* inbox, const float* mine, uint64_t n) {
  const uint32_t next = (ctx.rank + 1) % ctx.n_ranks;
  const Slice slice = MySlice(n);
  iris::Put(ctx, next, inbox + slice.begin, mine + slice.begin, slice.count * sizeof(float),
            iris::Block{});
}

// The source must be in the heap, the destination may be anywhere.
IRIS_KERNEL void GetFromPrevious(iris::DeviceContext ctx, float* fetched, const float* mine,
                                 uint64_t n) {
  const uint32_t previous = (ctx.rank + ctx.n_ranks - 1) % ctx.n_ranks;
  const Slice slice = MySlice(n);
  iris::Get(ctx, previous, fetched + slice.begin, mine + slice.begin, slice.count * sizeof(float),
            iris::Block{});
}

float Value(uint32_t rank, uint64_t i) {
  return static_cast<float>(rank) + static_cast<float>(i) / kFloats;
}

int main() {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const auto context = Ok(iris::Context::Create({.heap_bytes = 32 << 20}));
  const uint32_t rank = context->rank(), n_ranks = context->n_ranks();
  const uint32_t previous = (rank + n_ranks - 1) % n_ranks;

  constexpr uint64_t kBytes = kFloats * sizeof(float);
  const iris::Allocation mine =
      Ok(context->Allocate({.bytes = kBytes, .name = "mine", .dtype = "f32", .shape = {kFloats}}));
  const iris::Allocation inbox =
      Ok(context->Allocate({.bytes = kBytes, .name = "inbox", .dtype = "f32", .shape = {kFloats}}));
  const auto fetched = example::Array<float>::OnDevice(kFloats);

  iris::backend::Stream stream;
  Ok(iris::backend::Stream::Create(&stream));
  std::vector<float> values(kFloats);
  for (uint64_t i = 0; i < kFloats; ++i) values[i] = Value(rank, i);
  Ok(iris::backend::CopyAsync(mine.address, values.data(), kBytes, stream));
  Ok(stream.Synchronize());
  Ok(context->Barrier());  // every source is filled

  Ok(iris::backend::Launch(kLaunch, stream, PutToNext, context->device_context(), inbox.As<float>(),
                           mine.As<float>(), kFloats));
  Ok(iris::backend::Launch(kLaunch, stream, GetFromPrevious, context->device_context(),
                           fetched.get(), mine.As<float>(), kFloats));
  Ok(stream.Synchronize());
  Ok(context->Barrier());  // every inbox is filled

  // The same values came twice: pushed by the previous rank, and pulled from it.
  for (const float* source : {inbox.As<float>(), fetched.get()}) {
    Ok(iris::backend::CopyAsync(values.data(), source, kBytes, stream));
    Ok(stream.Synchronize());
    for (uint64_t i = 0; i < kFloats; ++i)
      Expect(values[i] == Value(previous, i), "values of the previous rank");
  }
  std::printf("rank %u has %llu floats of rank %u, put by it and got from it\n", rank,
              static_cast<unsigned long long>(kFloats), previous);

  Ok(context->Free(inbox));
  Ok(context->Free(mine));
}
