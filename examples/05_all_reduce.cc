// 05: a collective. The sum over all ranks, in place, on a stream, checked element by element.
//
//   iris-run -n 4 -- bazel-bin/examples/05_all_reduce
//
// What to see: a Communicator borrows the context and takes a workspace from the heap. Launching an
// operation does not wait: the kernels of all ranks meet inside the heaps. All ranks get the same
// bits.
#include <cstdio>
#include <vector>

#include "client/iris/collectives.h"
#include "client/iris/context.h"
#include "device/iris/iris.h"
#include "examples/example.h"

using example::Expect;
using example::Ok;

constexpr uint64_t kSmall = 1000;     // goes in one shot
constexpr uint64_t kLarge = 1000003;  // in two; any count will do

float Value(uint32_t rank, uint64_t i) { return static_cast<float>((rank + 1) * (i % 1000)); }

void SumOverRanks(iris::Context& context, iris::ccl::Communicator& communicator,
                  iris::backend::Stream& stream, uint64_t count) {
  const iris::Allocation x = Ok(context.Allocate(
      {.bytes = count * sizeof(float), .name = "x", .dtype = "f32", .shape = {count}}));
  std::vector<float> values(count);
  for (uint64_t i = 0; i < count; ++i) values[i] = Value(context.rank(), i);
  Ok(iris::backend::CopyAsync(x.address, values.data(), count * sizeof(float), stream));

  Ok(communicator.AllReduce(x.address, x.address, count, iris::ccl::DataType::kF32,
                            iris::ccl::ReduceOp::kSum, stream));

  Ok(iris::backend::CopyAsync(values.data(), x.address, count * sizeof(float), stream));
  Ok(communicator.Synchronize(stream));  // a rank that did not come is named here
  const uint32_t n_ranks = context.n_ranks();
  const float factor = static_cast<float>(n_ranks * (n_ranks + 1) / 2);  // 1 + 2 + ... + n_ranks
  for (uint64_t i = 0; i < count; ++i) {
    Expect(values[i] == factor * static_cast<float>(i % 1000), "element of the sum");
  }
  if (context.rank() == 0) {
    std::printf("sum of %llu floats over %u ranks: right on every element\n",
                static_cast<unsigned long long>(count), n_ranks);
  }
  Ok(context.Barrier());
  Ok(context.Free(x));
}

int main() {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const auto context = Ok(iris::Context::Create({.heap_bytes = 64 << 20}));
  iris::backend::Stream stream;
  Ok(iris::backend::Stream::Create(&stream));
  const auto communicator = Ok(iris::ccl::Communicator::Create(*context, context->world()));
  SumOverRanks(*context, *communicator, stream, kSmall);
  SumOverRanks(*context, *communicator, stream, kLarge);
  Ok(communicator->Destroy());
}
