// 02: put and get. Blocks of threads copy ranges into the next rank's heap, and out of the previous
// rank's.
//
//   iris-run -n 4 -- bazel-bin/examples/02_put_get
//
//   rank r - 1              rank r                   rank r + 1
//
//    mine  ===== Put =====>  inbox                                 kernels of rank r - 1 push,
//    mine  ===== Get =====>  fetched                               kernels of rank r pull
//                            mine  ===== Put =====>  inbox
//                            mine  ===== Get =====>  fetched       each of 8 blocks a slice of it
//
// What to see: all threads of a block make one call (Block{}) and share its work. Nothing is
// ordered by Put and Get: the end of the kernel and a barrier do that.
#include <cstdio>
#include <vector>

#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/stream.h"

constexpr uint64_t kFloats = 1 << 20;
constexpr iris::LaunchConfig kLaunch = {.grid = 8, .block = 128};

// This block's share of n elements.
IRIS_DEVICE inline iris::Share MySlice(uint64_t n) {
  return iris::ShareOf(n, iris::backend::GridSize(), iris::backend::BlockIndex());
}

IRIS_KERNEL void PutToNext(iris::DeviceContext ctx, float* inbox, const float* mine, uint64_t n) {
  const uint32_t next = (ctx.rank + 1) % ctx.n_ranks;
  const iris::Share slice = MySlice(n);
  iris::Put(ctx, next, inbox + slice.begin, mine + slice.begin, slice.count, iris::Block{});
}

// The source must be in the heap, the destination may be anywhere.
IRIS_KERNEL void GetFromPrevious(iris::DeviceContext ctx, float* fetched, const float* mine,
                                 uint64_t n) {
  const uint32_t previous = (ctx.rank + ctx.n_ranks - 1) % ctx.n_ranks;
  const iris::Share slice = MySlice(n);
  iris::Get(ctx, previous, fetched + slice.begin, mine + slice.begin, slice.count, iris::Block{});
}

float Value(uint32_t rank, uint64_t i) {
  return static_cast<float>(rank) + static_cast<float>(i) / kFloats;
}

iris::Status Run() {
  IRIS_ASSIGN_OR_RETURN(iris::Context context, iris::Context::Create({.heap_bytes = 32 << 20}));
  const iris::DeviceContext& ctx = context.device_context();
  const uint32_t previous = (ctx.rank + ctx.n_ranks - 1) % ctx.n_ranks;

  constexpr uint64_t kBytes = kFloats * sizeof(float);
  IRIS_ASSIGN_OR_RETURN(const auto mine, context.Allocate<float>(kFloats, "mine"));
  IRIS_ASSIGN_OR_RETURN(const auto inbox, context.Allocate<float>(kFloats, "inbox"));
  IRIS_ASSIGN_OR_RETURN(const auto fetched, iris::DeviceArray<float>::Create(context, kFloats));

  IRIS_ASSIGN_OR_RETURN(iris::Stream stream, iris::Stream::Create(context));
  std::vector<float> values(kFloats);
  for (uint64_t i = 0; i < kFloats; ++i) values[i] = Value(ctx.rank, i);
  IRIS_RETURN_IF_ERROR(stream.Copy(mine, values.data(), kBytes));
  IRIS_RETURN_IF_ERROR(stream.Synchronize());
  IRIS_RETURN_IF_ERROR(context.Barrier());  // every source is filled

  IRIS_RETURN_IF_ERROR(iris::Launch(kLaunch, stream, PutToNext, ctx, inbox, mine, kFloats));
  IRIS_RETURN_IF_ERROR(iris::Launch(kLaunch, stream, GetFromPrevious, ctx, fetched, mine, kFloats));
  IRIS_RETURN_IF_ERROR(stream.Synchronize());
  IRIS_RETURN_IF_ERROR(context.Barrier());  // every inbox is filled

  // The same values came twice: pushed by the previous rank, and pulled from it.
  for (const float* source : {inbox.get(), fetched.get()}) {
    IRIS_ASSIGN_OR_RETURN(values, stream.Read(source, kFloats));
    for (uint64_t i = 0; i < kFloats; ++i) {
      if (values[i] != Value(previous, i)) return {iris::StatusCode::kInternal, "a wrong value"};
    }
  }
  std::printf("rank %u has %llu floats of rank %u, put by it and got from it\n", ctx.rank,
              static_cast<unsigned long long>(kFloats), previous);

  IRIS_RETURN_IF_ERROR(context.Barrier());
  if (ctx.rank == 0) std::printf("result ok\n");
  IRIS_RETURN_IF_ERROR(context.Free(inbox));
  return context.Free(mine);
}

int main() {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const iris::Status status = Run();
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
