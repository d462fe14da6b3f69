// 10: data-parallel training. All ranks learn to read digits, each from its share of every batch;
// their gradients are summed over the symmetric heap.
//
//   iris-run -n 4 -- bazel-bin/examples/10_digits_training --epochs 120
//
//   a batch   on rank 0:  its share --> Forward --> Gradient --+               +--> Update
//                                                              |-- AllReduce --|
//             on rank 1:  its share --> Forward --> Gradient --+    the sum    +--> Update
//
// What to see: a step is three kernels and a collective in place, on one stream, and no wait on the
// host: that waits once for all steps of an epoch. The model (perceptron.h) is whole on every rank.
// The sum has the same bits on all ranks, so the models stay the same, bit by bit: the end of the
// program checks that by reading the next rank's weights through the heap. In a trace (IRIS_TRACE)
// the kernels are "user 1", "user 2" and "user 3".
#include <algorithm>
#include <cstdio>
#include <vector>

#include "examples/digits_data.h"
#include "examples/perceptron.h"
#include "iris/ccl.h"
#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/stream.h"

using example::kGradients, example::kParameters, example::kPerParameter;
using iris::DeviceArray;

// Counts the weights that differ from the next rank's in any bit: if there are none all around the
// ring, all ranks have the same.
IRIS_KERNEL void CompareWithNext(iris::DeviceContext ctx, const uint32_t* weight_bits,
                                 int32_t* differing) {
  const uint64_t p = iris::backend::ThreadOfGrid();
  const uint32_t next = (ctx.rank + 1) % ctx.n_ranks;
  // An atomic, unlike a load, also reaches a rank on another node.
  if (p >= kParameters || iris::AtomicLoad(ctx, next, &weight_bits[p]) == weight_bits[p]) return;
  iris::AtomicAdd(ctx, ctx.rank, differing, 1);
}

iris::Status Run(const example::TrainingOptions& options) {
  IRIS_ASSIGN_OR_RETURN(example::Digits digits, example::LoadDigits(options.data));
  const uint32_t n_train = example::Split(&digits), n_test = digits.size() - n_train;
  IRIS_ASSIGN_OR_RETURN(iris::Context context, iris::Context::Create({.heap_bytes = 64 << 20}));
  const iris::DeviceContext& ctx = context.device_context();
  const uint32_t rank = ctx.rank, n_ranks = ctx.n_ranks;
  IRIS_ASSIGN_OR_RETURN(auto communicator,
                        iris::ccl::Communicator::Create(context, {.name = "collectives"}));
  IRIS_ASSIGN_OR_RETURN(iris::Stream stream, iris::Stream::Create(context));

  // The model and its gradients are symmetric; iris-ctl allocations shows them.
  IRIS_ASSIGN_OR_RETURN(const auto weights, context.Allocate<float>(kParameters, "weights"));
  IRIS_ASSIGN_OR_RETURN(const auto gradients, context.Allocate<float>(kGradients, "gradients"));
  IRIS_ASSIGN_OR_RETURN(const auto differing, context.Allocate<int32_t>(1, "differing"));
  float *const w = weights.get(), *const g = gradients.get();

  // All other memory is the rank's own. The order of the digits: first those to learn from.
  const uint32_t share = std::max<uint32_t>(options.batch / n_ranks, 1), batch = share * n_ranks;
  const iris::Share test = iris::ShareOf(n_test, n_ranks, rank);
  const auto first_test = static_cast<uint32_t>(test.begin);
  const auto own_test = static_cast<uint32_t>(test.count);
  const uint32_t steps = n_train / batch;
  std::vector<uint32_t> shuffled(digits.size());
  for (uint32_t i = 0; i < digits.size(); ++i) shuffled[i] = i;
  const std::vector<float> zeros(kParameters);
  IRIS_ASSIGN_OR_RETURN(const auto pixels,
                        DeviceArray<float>::Create(context, digits.pixels, stream));
  IRIS_ASSIGN_OR_RETURN(const auto labels,
                        DeviceArray<uint32_t>::Create(context, digits.labels, stream));
  IRIS_ASSIGN_OR_RETURN(const auto order, DeviceArray<uint32_t>::Create(context, shuffled, stream));
  IRIS_ASSIGN_OR_RETURN(const auto velocity, DeviceArray<float>::Create(context, zeros, stream));
  IRIS_ASSIGN_OR_RETURN(const auto activations, DeviceArray<example::Activations>::Create(
                                                    context, std::max(share, own_test)));
  IRIS_ASSIGN_OR_RETURN(const auto sums, iris::HostArray<float>::Create(context, 2));
  const example::DeviceDigits device_digits = {pixels, labels};

  // Into g on all ranks: the gradient of so many digits of each, of this rank from `first` on.
  const auto sum_gradients = [&](uint32_t first, uint32_t n) -> iris::Status {
    const uint32_t* const mine = order + first;
    if (n > 0) {
      IRIS_RETURN_IF_ERROR(iris::Launch({.grid = n, .block = example::kHidden}, stream,
                                        example::Forward, ctx, w, device_digits, mine,
                                        activations));
    }
    IRIS_RETURN_IF_ERROR(iris::Launch(kPerParameter, stream, example::Gradient, ctx, device_digits,
                                      mine, activations, n, g));
    return communicator.AllReduce(g, g, kGradients, iris::ccl::ReduceOp::kSum, stream);
  };

  // Rank 0 draws the weights, all others get them.
  const std::vector<float> initial = example::InitialWeights();
  if (rank == 0) IRIS_RETURN_IF_ERROR(stream.Copy(w, initial.data(), weights.bytes));
  IRIS_RETURN_IF_ERROR(communicator.Broadcast(w, w, kParameters, /*root=*/0, stream));

  if (rank == 0) example::PrintTask(n_ranks, n_train, n_test, kParameters, batch);
  double first_loss = 0;
  for (uint32_t epoch = 1; epoch <= options.epochs; ++epoch) {
    shuffled = example::Shuffled(n_train, epoch);
    IRIS_RETURN_IF_ERROR(stream.Copy(order, shuffled.data(), n_train * sizeof(uint32_t)));
    sums[0] = sums[1] = 0;
    for (uint32_t step = 0; step < steps; ++step) {
      IRIS_RETURN_IF_ERROR(sum_gradients((step * n_ranks + rank) * share, share));
      IRIS_RETURN_IF_ERROR(iris::Launch(kPerParameter, stream, example::Update, ctx, w, velocity, g,
                                        options.rate / static_cast<float>(batch), options.momentum,
                                        sums));
    }
    IRIS_RETURN_IF_ERROR(communicator.Synchronize(stream));  // names a rank that did not come
    const double seen = static_cast<double>(steps) * batch, loss = sums[0] / seen;
    if (epoch == 1) first_loss = loss;
    if (rank == 0) example::PrintEpoch(options, epoch, loss, sums[1] / seen, first_loss);
  }

  // The test: every rank takes its share of the digits that nobody has learned from.
  IRIS_RETURN_IF_ERROR(sum_gradients(n_train + first_test, own_test));
  IRIS_RETURN_IF_ERROR(communicator.Synchronize(stream));
  IRIS_ASSIGN_OR_RETURN(const float correct, stream.Read(g + example::kCorrect));

  // Nobody trains any more: the weights stand still while all compare them.
  IRIS_RETURN_IF_ERROR(context.Barrier());
  IRIS_RETURN_IF_ERROR(
      iris::Launch(kPerParameter, stream, CompareWithNext, ctx, weights.As<uint32_t>(), differing));
  IRIS_RETURN_IF_ERROR(communicator.AllReduce(differing.get(), differing.get(), 1,
                                              iris::ccl::ReduceOp::kSum, stream));
  IRIS_RETURN_IF_ERROR(communicator.Synchronize(stream));
  IRIS_ASSIGN_OR_RETURN(const int32_t n_differing, stream.Read(differing.get()));
  if (rank == 0) {
    std::vector<float> trained(kParameters);
    IRIS_RETURN_IF_ERROR(stream.Copy(trained.data(), w, weights.bytes));
    IRIS_RETURN_IF_ERROR(stream.Synchronize());
    example::PrintTest(correct, n_test, n_differing, n_ranks, trained);
  }
  if (n_differing != 0) return {iris::StatusCode::kInternal, "weights differ between ranks"};
  if (correct / n_test < 0.94 && options.epochs >= 10) {  // so few only try it out
    return {iris::StatusCode::kInternal, "test accuracy below 0.94"};
  }
  IRIS_RETURN_IF_ERROR(context.Barrier());
  if (rank == 0) std::printf("result ok figure %.4f of_test_digits\n", correct / n_test);
  return iris::OkStatus();
}

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const iris::Status status = Run(example::ParseTraining(argc, argv));
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
