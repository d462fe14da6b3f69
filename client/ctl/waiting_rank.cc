// A rank for tests of iris-ctl waits: makes the call that its first argument names (allocate,
// barrier, all_reduce) over and over. The rank that its second argument names makes no more than
// the first ones until the file exists that the third one names; then all make some more and end.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "iris/ccl.h"
#include "iris/context.h"
#include "iris/stream.h"

namespace {

constexpr uint64_t kCount = 1 << 18;  // 1 MiB of floats
constexpr int kCallsBefore = 3;
constexpr int kCallsAfter = 3;

iris::Status Call(const std::string& what, iris::Context& context,
                  iris::ccl::Communicator& communicator, iris::Stream& stream, float* data) {
  if (what == "barrier") return context.Barrier();
  if (what == "allocate") return context.Allocate({.bytes = 4096}).status();
  IRIS_RETURN_IF_ERROR(
      communicator.AllReduce(data, data, kCount, iris::ccl::ReduceOp::kSum, stream));
  return communicator.Synchronize(stream);
}

iris::Status Run(const std::string& what, uint32_t late_rank, const char* file) {
  IRIS_ASSIGN_OR_RETURN(iris::Context context,
                        iris::Context::Create({.timeout = std::chrono::seconds(60)}));
  IRIS_ASSIGN_OR_RETURN(iris::ccl::Communicator communicator,
                        iris::ccl::Communicator::Create(context));
  IRIS_ASSIGN_OR_RETURN(iris::Stream stream, iris::Stream::Create(context));
  IRIS_ASSIGN_OR_RETURN(const auto data, context.Allocate<float>(kCount, "data"));
  for (int i = 0; i < kCallsBefore; ++i) {
    IRIS_RETURN_IF_ERROR(Call(what, context, communicator, stream, data.get()));
  }
  std::printf("ready\n");
  std::fflush(stdout);
  while (context.rank() == late_rank && access(file, F_OK) != 0) usleep(1000);
  for (int i = 0; i < kCallsAfter; ++i) {
    IRIS_RETURN_IF_ERROR(Call(what, context, communicator, stream, data.get()));
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const iris::Status status = Run(argv[1], static_cast<uint32_t>(std::atoi(argv[2])), argv[3]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
