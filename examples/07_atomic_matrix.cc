// 07: how many atomic operations a second one rank makes on the words of another.
//
//   iris-run -n 4 -- bazel-bin/examples/07_atomic_matrix add|exchange
//
//   kernel on rank r, 16 Ki threads:     heap of rank p, 4 Ki words:
//
//     add        + 1, + 1, + 1 ...  -->  [ 12 | 12 | 12 | ... ]   they add up to the number of adds
//     exchange   token  --------------> [ token ]
//                       <- the one before                       each token is in one place at last
//
// What to see: an atomic on a peer's word is one call, whose answer is the old value. Nobody uses
// the answer of an add, so that it need not come back. The rows are the ranks whose kernels run,
// the columns are those whose words they change; the figure is the least between two ranks.
#include <algorithm>
#include <cstdio>
#include <string>

#include "examples/flags.h"
#include "iris/bench.h"
#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/stream.h"

using iris::Order;
using iris::Scope;
using iris::backend::ThreadOfGrid;

constexpr uint32_t kWords = 4096;
constexpr iris::LaunchConfig kLaunch = {.grid = 64, .block = 256};
constexpr uint32_t kThreads = kLaunch.grid * kLaunch.block;
constexpr uint32_t kEach = 16;    // operations of a thread
constexpr uint32_t kRepeats = 4;  // after one that is not measured

IRIS_KERNEL void Add(iris::DeviceContext ctx, uint32_t peer, uint64_t* words, uint64_t*) {
  for (uint32_t i = 0; i < kEach; ++i) {
    uint64_t* const word = &words[(ThreadOfGrid() + i * 97) % kWords];
    iris::AtomicAdd<Scope::kSystem, Order::kRelaxed>(ctx, peer, word, 1);
  }
}

// A thread's tokens are numbers of its own. `taken`: the sum of what came back.
IRIS_KERNEL void Exchange(iris::DeviceContext ctx, uint32_t peer, uint64_t* words,
                          uint64_t* taken) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < kEach; ++i) {
    uint64_t* const word = &words[(ThreadOfGrid() + i * 97) % kWords];
    sum += iris::AtomicExchange<Scope::kSystem, Order::kRelaxed>(ctx, peer, word,
                                                                 ThreadOfGrid() * kEach + i + 1);
  }
  iris::AtomicAdd<Scope::kSystem, Order::kRelaxed>(ctx, ctx.rank, taken, sum);
}

// What is in the words of this rank, all together. Sets them to zero.
iris::StatusOr<uint64_t> TakeSum(iris::Stream& stream, uint64_t* words, uint64_t n) {
  IRIS_ASSIGN_OR_RETURN(const auto values, stream.Read(words, n));
  IRIS_RETURN_IF_ERROR(stream.Fill(words, 0, n * sizeof(uint64_t)));
  IRIS_RETURN_IF_ERROR(stream.Synchronize());
  uint64_t sum = 0;
  for (const uint64_t value : values) sum += value;
  return sum;
}

iris::Status Run(bool exchange) {
  IRIS_ASSIGN_OR_RETURN(iris::Context context, iris::Context::Create({.heap_bytes = 16 << 20}));
  const iris::DeviceContext& ctx = context.device_context();
  IRIS_ASSIGN_OR_RETURN(iris::Stream stream, iris::Stream::Create(context));
  IRIS_ASSIGN_OR_RETURN(const auto words, context.Allocate<uint64_t>(kWords, "words"));
  IRIS_ASSIGN_OR_RETURN(const auto taken, context.Allocate<uint64_t>(1, "taken"));
  // What the words get in all, and so what must be in them or have been taken out at last.
  constexpr uint64_t kOperations = uint64_t{kThreads} * kEach;
  const uint64_t given =
      (1 + kRepeats) * (exchange ? kOperations * (kOperations + 1) / 2 : kOperations);

  if (ctx.rank == 0) std::printf("10^6 operations a second, [rank, heap]\n");
  double least = 1e18;
  for (uint32_t r = 0; r < ctx.n_ranks; ++r) {
    for (uint32_t p = 0; p < ctx.n_ranks; ++p) {
      const auto change = [&]() -> iris::Status {  // the others only wait for rank r
        if (ctx.rank != r) return iris::OkStatus();
        return iris::Launch(kLaunch, stream, exchange ? Exchange : Add, ctx, p, words, taken);
      };
      IRIS_ASSIGN_OR_RETURN(const auto time, iris::DoBench(context, stream, change,
                                                           {.n_warmup = 1, .n_repeat = kRepeats}));
      uint64_t left = 0, out = 0;
      if (ctx.rank == p) {
        IRIS_ASSIGN_OR_RETURN(left, TakeSum(stream, words.get(), kWords));
      }
      if (ctx.rank == r) {
        IRIS_ASSIGN_OR_RETURN(out, TakeSum(stream, taken.get(), 1));
      }
      IRIS_ASSIGN_OR_RETURN(left, context.BroadcastValue(left, p));
      IRIS_ASSIGN_OR_RETURN(out, context.BroadcastValue(out, r));
      if (left + out != given) {
        return {iris::StatusCode::kInternal,
                "rank " + std::to_string(r) + " gave the words of " + std::to_string(p) + " " +
                    std::to_string(given) + " in all, but there are " + std::to_string(left + out)};
      }
      const double rate = static_cast<double>(kOperations) / time.count();
      if (r != p || ctx.n_ranks == 1) least = std::min(least, rate);
      if (ctx.rank == 0) std::printf("%10.2f%s", rate, p + 1 == ctx.n_ranks ? "\n" : "");
    }
  }
  if (ctx.rank == 0) std::printf("result ok figure %.2f Mop/s\n", least);
  return iris::OkStatus();
}

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::string operation = argc > 1 ? argv[1] : "";
  example::Usage(argc, argv, operation != "add" && operation != "exchange", 1, "add|exchange");
  const iris::Status status = Run(operation == "exchange");
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
