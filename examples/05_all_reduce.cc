// 05: a collective. The sum over all ranks, in place, on a stream, checked element by element.
//
//   iris-run -n 4 -- bazel-bin/examples/05_all_reduce
//
//   rank 0   x: 0, 1, 2, ..  --+               +-->  x: 0, 6, 12, ..
//   rank 1   x: 0, 2, 4, ..  --|-- AllReduce --|-->  x: 0, 6, 12, ..
//   rank 2   x: 0, 3, 6, ..  --+    the sum    +-->  x: 0, 6, 12, ..    the same bits on all ranks
//
// What to see: a Communicator takes a workspace from the heap. The program has no kernels of its
// own, so it runs on whatever irisd has. Launching an operation does not wait: the kernels of all
// ranks meet inside the heaps. All ranks get the same bits.
#include <cstdio>
#include <vector>

#include "iris/ccl.h"
#include "iris/context.h"
#include "iris/stream.h"

constexpr uint64_t kSmall = 1000;     // goes in one shot
constexpr uint64_t kLarge = 1000003;  // in two; any count will do

float Value(uint32_t rank, uint64_t i) { return static_cast<float>((rank + 1) * (i % 1000)); }

iris::Status SumOverRanks(iris::Context& context, iris::ccl::Communicator& communicator,
                          iris::Stream& stream, uint64_t count) {
  IRIS_ASSIGN_OR_RETURN(const auto x, context.Allocate<float>(count, "x"));
  std::vector<float> values(count);
  for (uint64_t i = 0; i < count; ++i) values[i] = Value(context.rank(), i);
  IRIS_RETURN_IF_ERROR(stream.Copy(x, values.data(), x.bytes));

  IRIS_RETURN_IF_ERROR(
      communicator.AllReduce(x.get(), x.get(), count, iris::ccl::ReduceOp::kSum, stream));

  IRIS_RETURN_IF_ERROR(stream.Copy(values.data(), x, x.bytes));
  IRIS_RETURN_IF_ERROR(communicator.Synchronize(stream));  // a rank that did not come is named here
  const uint32_t n_ranks = context.n_ranks();
  const float factor = static_cast<float>(n_ranks * (n_ranks + 1) / 2);  // 1 + 2 + ... + n_ranks
  for (uint64_t i = 0; i < count; ++i) {
    if (values[i] != factor * static_cast<float>(i % 1000)) {
      return {iris::StatusCode::kInternal, "a wrong element of the sum"};
    }
  }
  if (context.rank() == 0) {
    std::printf("sum of %llu floats over %u ranks: right on every element\n",
                static_cast<unsigned long long>(count), n_ranks);
  }
  IRIS_RETURN_IF_ERROR(context.Barrier());
  return context.Free(x);
}

iris::Status Run() {
  IRIS_ASSIGN_OR_RETURN(iris::Context context, iris::Context::Create({.heap_bytes = 64 << 20}));
  IRIS_ASSIGN_OR_RETURN(iris::Stream stream, iris::Stream::Create(context));
  IRIS_ASSIGN_OR_RETURN(auto communicator, iris::ccl::Communicator::Create(context));
  IRIS_RETURN_IF_ERROR(SumOverRanks(context, communicator, stream, kSmall));
  IRIS_RETURN_IF_ERROR(SumOverRanks(context, communicator, stream, kLarge));
  if (context.rank() == 0) std::printf("result ok\n");
  return communicator.Destroy();
}

int main() {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const iris::Status status = Run();
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
