// 10: data-parallel training. Four processes learn to read digits; their gradients are summed over
// the symmetric heap.
//
//   iris-run -n 4 -- bazel-bin/examples/10_digits_training --epochs 120
//
// Every rank has the whole model, a perceptron of 64 pixels, 64 hidden units and 10 classes, and
// its share of each batch. A step is three kernels and a collective, on one stream, with no wait on
// the host:
//
//   Forward     has a block for each digit and a thread for each hidden unit. It computes the
//               activations, and what they should have been.
//   Gradient    has a thread for each parameter. It sums over this rank's digits.
//   AllReduce   sums over the ranks, in place.
//   Update      has a thread for each parameter. It applies the momentum, and makes the step.
//
// The sum has the same bits on every rank, so the models stay the same, bit by bit: the end of the
// program checks that by reading the peers' weights through the heap.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "examples/digits_data.h"
#include "iris/ccl.h"
#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/stream.h"

using example::kClasses;
using example::kPixels;
using iris::DeviceArray;
using iris::HostArray;

namespace {

constexpr uint32_t kHidden = 64;

// What the kernels of a step are called in a trace, which IRIS_TRACE=file writes.
constexpr uint64_t kForward = 1, kGradient = 2, kUpdate = 3;

// The parameters as they lie in memory. The gradients lie the same way, followed by two sums over
// the digits.
constexpr uint32_t kW1 = 0;                         // [kPixels][kHidden]
constexpr uint32_t kB1 = kW1 + kPixels * kHidden;   // [kHidden]
constexpr uint32_t kW2 = kB1 + kHidden;             // [kHidden][kClasses]
constexpr uint32_t kB2 = kW2 + kHidden * kClasses;  // [kClasses]
constexpr uint32_t kParameters = kB2 + kClasses;
constexpr uint32_t kLoss = kParameters;
constexpr uint32_t kCorrect = kParameters + 1;
constexpr uint32_t kGradients = kParameters + 2;

// Of each digit of this rank's share, from Forward for Gradient.
struct Activations {
  float hidden[kHidden];
  float hidden_error[kHidden];
  float class_error[kClasses];
  float loss;
  float correct;  // 1 or 0
};

// A data set in device memory.
struct DeviceDigits {
  const float* pixels;
  const uint32_t* labels;
};

// Block b works on the digit order[b].
IRIS_KERNEL void Forward(iris::DeviceContext ctx, const float* w, DeviceDigits digits,
                         const uint32_t* order, Activations* activations) {
  IRIS_SHARED(float[kHidden], hidden);
  IRIS_SHARED(float[kClasses], score);
  const iris::TraceSpan span(ctx, kForward, iris::Block{});
  const uint32_t t = iris::backend::ThreadIndex();
  const uint32_t digit = order[iris::backend::BlockIndex()];
  const float* x = digits.pixels + digit * kPixels;
  const uint32_t label = digits.labels[digit];
  Activations& out = activations[iris::backend::BlockIndex()];

  float sum = w[kB1 + t];
  for (uint32_t i = 0; i < kPixels; ++i) sum += x[i] * w[kW1 + i * kHidden + t];
  hidden[t] = sum > 0 ? sum : 0;
  out.hidden[t] = hidden[t];
  iris::backend::BlockSync();

  if (t < kClasses) {
    float s = w[kB2 + t];
    for (uint32_t h = 0; h < kHidden; ++h) s += hidden[h] * w[kW2 + h * kClasses + t];
    score[t] = s;
  }
  iris::backend::BlockSync();

  if (t == 0) {  // softmax and cross entropy
    uint32_t best = 0;
    for (uint32_t c = 1; c < kClasses; ++c) {
      if (score[c] > score[best]) best = c;
    }
    const float highest = score[best];
    float total = 0;
    for (uint32_t c = 0; c < kClasses; ++c) total += expf(score[c] - highest);
    out.loss = logf(total) + highest - score[label];
    out.correct = best == label ? 1.0f : 0.0f;
    for (uint32_t c = 0; c < kClasses; ++c) {
      score[c] = expf(score[c] - highest) / total - (c == label ? 1.0f : 0.0f);
      out.class_error[c] = score[c];
    }
  }
  iris::backend::BlockSync();

  float error = 0;
  for (uint32_t c = 0; c < kClasses; ++c) error += score[c] * w[kW2 + t * kClasses + c];
  out.hidden_error[t] = hidden[t] > 0 ? error : 0;
}

// One element of the gradient: the product of what went in and what was wrong, summed over this
// rank's digits.
IRIS_DEVICE inline float GradientOf(uint32_t p, const float* x, const Activations& a) {
  if (p < kB1) return x[p / kHidden] * a.hidden_error[p % kHidden];
  if (p < kW2) return a.hidden_error[p - kB1];
  if (p < kB2) return a.hidden[(p - kW2) / kClasses] * a.class_error[(p - kW2) % kClasses];
  if (p < kLoss) return a.class_error[p - kB2];
  return p == kLoss ? a.loss : a.correct;
}

IRIS_KERNEL void Gradient(iris::DeviceContext ctx, DeviceDigits digits, const uint32_t* order,
                          const Activations* activations, uint32_t n_digits, float* gradients) {
  const iris::TraceSpan span(ctx, kGradient, iris::Block{});
  const uint32_t p =
      iris::backend::BlockIndex() * iris::backend::BlockSize() + iris::backend::ThreadIndex();
  if (p >= kGradients) return;
  float sum = 0;
  for (uint32_t i = 0; i < n_digits; ++i) {
    sum += GradientOf(p, digits.pixels + order[i] * kPixels, activations[i]);
  }
  gradients[p] = sum;
}

// `sums` gathers loss and correct answers of an epoch.
IRIS_KERNEL void Update(iris::DeviceContext ctx, float* w, float* velocity, const float* gradients,
                        float rate, float momentum, float* sums) {
  const iris::TraceSpan span(ctx, kUpdate, iris::Block{});
  const uint32_t p =
      iris::backend::BlockIndex() * iris::backend::BlockSize() + iris::backend::ThreadIndex();
  if (p < kParameters) {
    velocity[p] = momentum * velocity[p] - rate * gradients[p];
    w[p] += velocity[p];
  } else if (p < kGradients) {
    sums[p - kParameters] += gradients[p];
  }
}

// Counts the weights that differ from a peer's in any bit.
IRIS_KERNEL void CompareWithPeers(iris::DeviceContext ctx, const uint32_t* weight_bits,
                                  uint32_t* differing) {
  const uint32_t p =
      iris::backend::BlockIndex() * iris::backend::BlockSize() + iris::backend::ThreadIndex();
  if (p >= kParameters) return;
  uint32_t n = 0;
  for (uint32_t peer = 0; peer < ctx.n_ranks; ++peer) {
    if (iris::Load(ctx, peer, &weight_bits[p]) != weight_bits[p]) ++n;
  }
  // The answer is wanted on every rank.
  for (uint32_t peer = 0; n > 0 && peer < ctx.n_ranks; ++peer)
    iris::AtomicAdd(ctx, peer, differing, n);
}

constexpr uint32_t kThreads = 128;
constexpr iris::LaunchConfig kPerParameter = {.grid = (kGradients + kThreads - 1) / kThreads,
                                              .block = kThreads};

// Small random weights; the biases start at 0.
std::vector<float> InitialWeights() {
  std::vector<float> w(kParameters, 0.0f);
  const std::vector<uint32_t> random = example::Shuffled(kParameters, /*seed=*/42);
  for (uint32_t p = 0; p < kParameters; ++p) {
    if ((p >= kB1 && p < kW2) || p >= kB2) continue;
    w[p] = (static_cast<float>(random[p]) / kParameters - 0.5f) * 0.4f;
  }
  return w;
}

void PrintEpoch(uint32_t epoch, double loss, double accuracy, double first_loss) {
  constexpr int kWidth = 40;
  const int bars = static_cast<int>(std::lround(std::fmin(loss / first_loss, 1.0) * kWidth));
  std::printf("epoch %3u  loss %7.4f  train accuracy %.3f  %s\n", epoch, loss, accuracy,
              std::string(static_cast<size_t>(bars < 1 ? 1 : bars), '#').c_str());
}

struct Options {
  uint32_t epochs = 120;
  uint32_t batch = 32;
  float rate = 0.005f;
  float momentum = 0.9f;
  std::string data;  // empty: FindDigits says
};

iris::Status Run(const Options& options) {
  std::string data = options.data;
  if (data.empty()) {
    IRIS_ASSIGN_OR_RETURN(data, example::FindDigits());
  }
  IRIS_ASSIGN_OR_RETURN(const example::Digits all, example::ReadDigits(data));
  IRIS_ASSIGN_OR_RETURN(iris::Context context, iris::Context::Create({.heap_bytes = 64 << 20}));
  const iris::DeviceContext& ctx = context.device_context();
  const uint32_t rank = ctx.rank, n_ranks = ctx.n_ranks;
  const bool talks = rank == 0;
  IRIS_ASSIGN_OR_RETURN(auto communicator,
                        iris::ccl::Communicator::Create(context, {.name = "collectives"}));
  IRIS_ASSIGN_OR_RETURN(iris::Stream stream, iris::Stream::Create(context));

  // The model and its gradients are symmetric; iris-ctl allocations shows them.
  IRIS_ASSIGN_OR_RETURN(const auto weights, context.Allocate<float>(kParameters, "weights"));
  IRIS_ASSIGN_OR_RETURN(const auto gradients, context.Allocate<float>(kGradients, "gradients"));
  IRIS_ASSIGN_OR_RETURN(const auto differing, context.Allocate<uint32_t>(1, "differing"));
  float* w = weights.get();
  float* g = gradients.get();

  example::Digits train, test;
  example::Split(all, &train, &test);
  IRIS_ASSIGN_OR_RETURN(const auto train_pixels,
                        DeviceArray<float>::Create(context, train.pixels, stream));
  IRIS_ASSIGN_OR_RETURN(const auto train_labels,
                        DeviceArray<uint32_t>::Create(context, train.labels, stream));
  IRIS_ASSIGN_OR_RETURN(const auto test_pixels,
                        DeviceArray<float>::Create(context, test.pixels, stream));
  IRIS_ASSIGN_OR_RETURN(const auto test_labels,
                        DeviceArray<uint32_t>::Create(context, test.labels, stream));
  const DeviceDigits train_digits = {train_pixels, train_labels};
  const DeviceDigits test_digits = {test_pixels, test_labels};

  // Rank 0 draws the weights, all others get them.
  const std::vector<float> initial = InitialWeights();
  if (rank == 0) IRIS_RETURN_IF_ERROR(stream.Copy(w, initial.data(), weights.bytes));
  IRIS_RETURN_IF_ERROR(communicator.Broadcast(w, w, kParameters, /*root=*/0, stream));

  const uint32_t share = options.batch / n_ranks > 0 ? options.batch / n_ranks : 1;
  const uint32_t steps = train.size() / (share * n_ranks);
  const uint32_t test_share = (test.size() + n_ranks - 1) / n_ranks;
  IRIS_ASSIGN_OR_RETURN(
      const auto velocity,
      DeviceArray<float>::Create(context, std::vector<float>(kParameters, 0.0f), stream));
  IRIS_ASSIGN_OR_RETURN(const auto order,
                        DeviceArray<uint32_t>::Create(context, train.size() + test.size()));
  IRIS_ASSIGN_OR_RETURN(
      const auto activations,
      DeviceArray<Activations>::Create(context, share > test_share ? share : test_share));
  IRIS_ASSIGN_OR_RETURN(const auto sums, HostArray<float>::Create(context, 2));

  if (talks) {
    std::printf(
        "%u ranks, %u digits to learn from, %u to test with, %u parameters, %u digits a step\n",
        n_ranks, train.size(), test.size(), kParameters, share * n_ranks);
  }
  const uint32_t every = (options.epochs + 29) / 30;  // about 30 lines
  const float step_rate = options.rate / static_cast<float>(share * n_ranks);
  double first_loss = 0;
  for (uint32_t epoch = 1; epoch <= options.epochs; ++epoch) {
    const std::vector<uint32_t> shuffled = example::Shuffled(train.size(), epoch);
    IRIS_RETURN_IF_ERROR(stream.Copy(order, shuffled.data(), shuffled.size() * sizeof(uint32_t)));
    sums[0] = sums[1] = 0;
    for (uint32_t step = 0; step < steps; ++step) {
      const uint32_t* mine = order + (step * n_ranks + rank) * share;
      IRIS_RETURN_IF_ERROR(iris::Launch({.grid = share, .block = kHidden}, stream, Forward, ctx, w,
                                        train_digits, mine, activations));
      IRIS_RETURN_IF_ERROR(iris::Launch(kPerParameter, stream, Gradient, ctx, train_digits, mine,
                                        activations, share, g));
      IRIS_RETURN_IF_ERROR(
          communicator.AllReduce(g, g, kGradients, iris::ccl::ReduceOp::kSum, stream));
      IRIS_RETURN_IF_ERROR(iris::Launch(kPerParameter, stream, Update, ctx, w, velocity, g,
                                        step_rate, options.momentum, sums));
    }
    IRIS_RETURN_IF_ERROR(communicator.Synchronize(stream));  // names a rank that did not come
    const double seen = static_cast<double>(steps) * share * n_ranks;
    if (epoch == 1) first_loss = sums[0] / seen;
    if (talks && (epoch == 1 || epoch % every == 0)) {
      PrintEpoch(epoch, sums[0] / seen, sums[1] / seen, first_loss);
    }
  }

  // The test: every rank takes its share of the digits that nobody has learned from.
  std::vector<uint32_t> mine;
  for (uint32_t i = rank * test_share; i < test.size() && i < (rank + 1) * test_share; ++i)
    mine.push_back(i);
  const uint32_t n_mine = static_cast<uint32_t>(mine.size());
  if (n_mine > 0) {
    IRIS_RETURN_IF_ERROR(stream.Copy(order, mine.data(), n_mine * sizeof(uint32_t)));
    IRIS_RETURN_IF_ERROR(iris::Launch({.grid = n_mine, .block = kHidden}, stream, Forward, ctx, w,
                                      test_digits, order, activations));
  }
  IRIS_RETURN_IF_ERROR(iris::Launch(kPerParameter, stream, Gradient, ctx, test_digits, order,
                                    activations, n_mine, g));
  IRIS_RETURN_IF_ERROR(communicator.AllReduce(g, g, kGradients, iris::ccl::ReduceOp::kSum, stream));
  float correct = 0;
  IRIS_RETURN_IF_ERROR(stream.Copy(&correct, g + kCorrect, sizeof(correct)));
  IRIS_RETURN_IF_ERROR(communicator.Synchronize(stream));
  const double accuracy = correct / test.size();

  // Nobody trains any more: the weights stand still while all compare them.
  IRIS_RETURN_IF_ERROR(context.Barrier());
  IRIS_RETURN_IF_ERROR(iris::Launch(kPerParameter, stream, CompareWithPeers, ctx,
                                    weights.As<uint32_t>(), differing));
  IRIS_RETURN_IF_ERROR(stream.Synchronize());
  IRIS_RETURN_IF_ERROR(context.Barrier());
  uint32_t n_differing = 0;
  IRIS_RETURN_IF_ERROR(stream.Copy(&n_differing, differing, sizeof(n_differing)));
  IRIS_RETURN_IF_ERROR(stream.Synchronize());

  if (talks) {
    std::printf("test accuracy %.4f (%.0f of %u)\n", accuracy, correct, test.size());
    if (n_differing == 0) std::printf("weights identical on %u ranks\n", n_ranks);
  }
  if (n_differing != 0) return {iris::StatusCode::kInternal, "weights differ between ranks"};
  if (accuracy < 0.94 && options.epochs >= 10) {  // so few only try it out
    return {iris::StatusCode::kInternal, "test accuracy below 0.94"};
  }
  IRIS_RETURN_IF_ERROR(context.Barrier());
  if (talks) std::printf("result ok figure %.4f of_test_digits\n", accuracy);
  return iris::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Data-parallel training of a perceptron on handwritten digits.",
               "10_digits_training");
  Options options;
  app.add_option("--epochs", options.epochs, "How often to go through the training data [120]")
      ->check(CLI::Range(1, 100000));
  app.add_option("--batch", options.batch, "Digits in a batch, over all ranks [32]")
      ->check(CLI::Range(1, 1024));
  app.add_option("--rate", options.rate, "Learning rate [0.005]");
  app.add_option("--data", options.data, "The data set [the one that lies beside the program]");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 1;
  }
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const iris::Status status = Run(options);
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
