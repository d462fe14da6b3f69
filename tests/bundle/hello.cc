// A job outside this repository: each rank says hello to the next one, from a kernel.
#include <cstdio>

#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"

IRIS_KERNEL void Greet(iris::DeviceContext ctx, uint32_t* word) {
  iris::Store(ctx, (ctx.rank + 1) % ctx.n_ranks, word, 100 + ctx.rank);
}

iris::Status Hello() {
  iris::ContextOptions options;
  options.heap_bytes = 16 << 20;
  IRIS_ASSIGN_OR_RETURN(iris::Context context, iris::Context::Create(options));
  IRIS_ASSIGN_OR_RETURN(const auto word, context.Allocate<uint32_t>(1, "word"));
  IRIS_ASSIGN_OR_RETURN(iris::Stream stream, iris::Stream::Create(context));
  IRIS_RETURN_IF_ERROR(iris::Launch({1, 1, 0}, stream, Greet, context.device_context(), word));
  IRIS_RETURN_IF_ERROR(stream.Synchronize());
  IRIS_RETURN_IF_ERROR(context.Barrier());
  uint32_t got = 0;
  IRIS_RETURN_IF_ERROR(stream.Copy(&got, word, sizeof(got)));
  IRIS_RETURN_IF_ERROR(stream.Synchronize());
  std::printf("rank %u got %u\n", context.rank(), got);
  return context.Barrier();
}

int main() {
  const iris::Status status = Hello();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
