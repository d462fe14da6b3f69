// A rank for the test of iris-ctl trace: says "ready" and waits until the file exists that its
// first argument names; then each rank sends its neighbour so many messages as its third argument
// says and receives as many, by kernels, and makes an all-reduce with host barriers around. It says
// "done" and stays until the file exists that its second argument names.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "iris/ccl.h"
#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/stream.h"

namespace {

constexpr uint64_t kMessageBytes = 256;
constexpr uint64_t kReduced = 8192;

// Message i of each rank goes to the next one, with i as its signal.
IRIS_KERNEL void Messages(iris::DeviceContext ctx, uint8_t* in, const uint8_t* out,
                          uint64_t* signal, uint64_t n, uint32_t* failed) {
  const iris::TraceSpan span(ctx, n, iris::Block{});
  const uint32_t next = (ctx.rank + 1) % ctx.n_ranks;
  for (uint64_t i = 1; i <= n; ++i) {
    iris::PutSignal(ctx, next, in, out, kMessageBytes, {signal, i}, iris::Block{});
    const iris::WaitResult result =
        iris::WaitUntil(ctx, signal, iris::Compare::kGe, i, iris::Block{});
    if (result != iris::WaitResult::kOk) {
      if (iris::backend::ThreadIndex() == 0) *failed = 1;
      return;
    }
  }
}

void Await(const char* file) {
  while (access(file, F_OK) != 0) usleep(1000);
}

void Say(const iris::Context& context, const char* what) {
  std::printf("rank %u %s\n", context.rank(), what);
  std::fflush(stdout);
}

iris::Status Run(const char* begin, const char* end, uint64_t n_messages) {
  IRIS_ASSIGN_OR_RETURN(iris::Context context, iris::Context::Create({.heap_bytes = 32 << 20}));
  IRIS_ASSIGN_OR_RETURN(iris::ccl::Communicator communicator,
                        iris::ccl::Communicator::Create(context));
  IRIS_ASSIGN_OR_RETURN(iris::Stream stream, iris::Stream::Create(context));
  IRIS_ASSIGN_OR_RETURN(const auto in, context.Allocate<uint8_t>(kMessageBytes, "in"));
  IRIS_ASSIGN_OR_RETURN(const auto out, context.Allocate<uint8_t>(kMessageBytes, "out"));
  IRIS_ASSIGN_OR_RETURN(const auto signal, context.Allocate<uint64_t>(1, "signal"));
  IRIS_ASSIGN_OR_RETURN(const auto data, context.Allocate<float>(kReduced, "data"));
  IRIS_ASSIGN_OR_RETURN(const auto failed, iris::HostArray<uint32_t>::Create(context, 1));
  failed[0] = 0;
  IRIS_RETURN_IF_ERROR(context.Barrier());
  Say(context, "ready");
  Await(begin);
  IRIS_RETURN_IF_ERROR(context.Barrier());
  IRIS_RETURN_IF_ERROR(iris::Launch({1, 32}, stream, Messages, context.device_context(), in.get(),
                                    out.get(), signal.get(), n_messages, failed.get()));
  IRIS_RETURN_IF_ERROR(stream.Synchronize());
  if (failed[0] != 0) return iris::Status(iris::StatusCode::kAborted, "a message did not come");
  for (int i = 0; i < 3; ++i) {
    IRIS_RETURN_IF_ERROR(communicator.AllReduce(data.get(), data.get(), kReduced,
                                                iris::ccl::ReduceOp::kSum, stream));
    IRIS_RETURN_IF_ERROR(communicator.Synchronize(stream));
  }
  IRIS_RETURN_IF_ERROR(context.Barrier());
  Say(context, "done");
  Await(end);
  return context.Barrier();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const iris::Status status = Run(argv[1], argv[2], std::strtoull(argv[3], nullptr, 10));
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
