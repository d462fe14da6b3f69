// A rank that waits, for iris-gpu-check and the tests of iris-ctl: writes values into an allocation
// named "shown" (its rank times 1000 and the value's number, in f32), then makes the call that its
// first argument names (allocate, barrier, all_reduce) over and over. The rank that its second
// argument names makes no more than the first ones until the file exists that the third one names;
// then all make some more, look at their values and end. It has no kernels, so the same binary runs
// on every backend.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "iris/ccl.h"
#include "iris/context.h"
#include "iris/stream.h"

namespace {

constexpr uint64_t kCount = 1 << 18;  // 1 MiB of floats
constexpr uint64_t kShown = 1000;
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

float ShownValue(const iris::Context& context, uint64_t i) {
  return static_cast<float>(context.rank() * kShown + i);
}

iris::Status Show(const iris::Context& context, iris::Stream& stream, float* shown) {
  std::vector<float> values(kShown);
  for (uint64_t i = 0; i < kShown; ++i) values[i] = ShownValue(context, i);
  IRIS_RETURN_IF_ERROR(stream.Copy(shown, values.data(), kShown * sizeof(float)));
  return stream.Synchronize();
}

iris::Status CheckShown(const iris::Context& context, iris::Stream& stream, const float* shown) {
  std::vector<float> values(kShown);
  IRIS_RETURN_IF_ERROR(stream.Copy(values.data(), shown, kShown * sizeof(float)));
  IRIS_RETURN_IF_ERROR(stream.Synchronize());
  for (uint64_t i = 0; i < kShown; ++i) {
    if (values[i] == ShownValue(context, i)) continue;
    return iris::Status(iris::StatusCode::kDataLoss,
                        "value " + std::to_string(i) + " of \"shown\" is not what was written");
  }
  return {};
}

iris::Status Run(const std::string& what, uint32_t late_rank, const char* file) {
  IRIS_ASSIGN_OR_RETURN(iris::Context context,
                        iris::Context::Create({.timeout = std::chrono::seconds(60)}));
  IRIS_ASSIGN_OR_RETURN(iris::ccl::Communicator communicator,
                        iris::ccl::Communicator::Create(context));
  IRIS_ASSIGN_OR_RETURN(iris::Stream stream, iris::Stream::Create(context));
  IRIS_ASSIGN_OR_RETURN(const auto data, context.Allocate<float>(kCount, "data"));
  IRIS_ASSIGN_OR_RETURN(const auto shown, context.Allocate<float>(kShown, "shown"));
  IRIS_RETURN_IF_ERROR(Show(context, stream, shown.get()));
  for (int i = 0; i < kCallsBefore; ++i) {
    IRIS_RETURN_IF_ERROR(Call(what, context, communicator, stream, data.get()));
  }
  std::printf("rank %u ready, pid %d\n", context.rank(), static_cast<int>(getpid()));
  std::fflush(stdout);
  while (context.rank() == late_rank && access(file, F_OK) != 0) usleep(1000);
  for (int i = 0; i < kCallsAfter; ++i) {
    IRIS_RETURN_IF_ERROR(Call(what, context, communicator, stream, data.get()));
  }
  return CheckShown(context, stream, shown.get());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const iris::Status status = Run(argv[1], static_cast<uint32_t>(std::atoi(argv[2])), argv[3]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
