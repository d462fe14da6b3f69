// 03: atomics. All threads of all ranks draw tickets from one counter in rank 0's heap.
//
//   iris-run -n 4 -- bazel-bin/examples/03_atomics
//
//   each thread of each rank, 8 times               heap of rank 0
//
//     AtomicAdd 1  ------------------------------>  next      [ 5 ]
//     ticket = 4   <-- the value before
//     Put          ------------------------------>  drawn_by  [ 2 | 1 | 1 | 3 | me |   |  ..  ]
//     AtomicMax, once: its own rank  ------------>  highest   [ 3 ]
//
// What to see: AtomicAdd gives back the old value, so no ticket is drawn twice, whoever asks. Scope
// and order are template arguments: counting publishes nothing, so it may be relaxed.
#include <cstdio>
#include <vector>

#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/stream.h"

using iris::Order;
using iris::Scope;

constexpr uint32_t kOwner = 0;  // in whose heap the counter is
constexpr iris::LaunchConfig kLaunch = {.grid = 4, .block = 64};
constexpr uint32_t kDraws = 8;  // of each thread
constexpr uint32_t kDrawsOfARank = kLaunch.grid * kLaunch.block * kDraws;

struct Counters {
  uint64_t next;     // the next ticket
  uint32_t highest;  // the highest rank that drew one
};

IRIS_KERNEL void Draw(iris::DeviceContext ctx, Counters* counters, uint32_t* drawn_by) {
  for (uint32_t i = 0; i < kDraws; ++i) {
    const uint64_t ticket =
        iris::AtomicAdd<Scope::kSystem, Order::kRelaxed>(ctx, kOwner, &counters->next, 1);
    // The ticket is this thread's alone: nobody else writes to its place, so a plain put will do.
    const uint32_t me = ctx.rank + 1;
    iris::Put(ctx, kOwner, &drawn_by[ticket], &me, 1);
  }
  iris::AtomicMax<Scope::kSystem, Order::kRelaxed>(ctx, kOwner, &counters->highest, ctx.rank);
}

// What rank kOwner finds in its heap.
iris::Status Check(const Counters& counters, const std::vector<uint32_t>& drawn_by,
                   uint32_t n_ranks) {
  const auto wrong = [](const char* what) {
    return iris::Status(iris::StatusCode::kInternal, what);
  };
  if (counters.next != drawn_by.size()) return wrong("a wrong number of tickets");
  if (counters.highest != n_ranks - 1) return wrong("a wrong highest rank");
  std::vector<uint32_t> drawn(n_ranks, 0);
  for (const uint32_t rank_plus_1 : drawn_by) {
    if (rank_plus_1 < 1 || rank_plus_1 > n_ranks) return wrong("a ticket that nobody drew");
    ++drawn[rank_plus_1 - 1];
  }
  for (const uint32_t n : drawn) {
    if (n != kDrawsOfARank) return wrong("a rank drew a wrong number of tickets");
  }
  return iris::OkStatus();
}

iris::Status Run() {
  IRIS_ASSIGN_OR_RETURN(iris::Context context, iris::Context::Create({.heap_bytes = 16 << 20}));
  const iris::DeviceContext& ctx = context.device_context();
  const uint32_t n_tickets = ctx.n_ranks * kDrawsOfARank;
  // A fresh heap is zero.
  IRIS_ASSIGN_OR_RETURN(const auto counters, context.Allocate<Counters>(1, "counters"));
  IRIS_ASSIGN_OR_RETURN(const auto drawn_by, context.Allocate<uint32_t>(n_tickets, "drawn_by"));

  IRIS_ASSIGN_OR_RETURN(iris::Stream stream, iris::Stream::Create(context));
  IRIS_RETURN_IF_ERROR(iris::Launch(kLaunch, stream, Draw, ctx, counters, drawn_by));
  IRIS_RETURN_IF_ERROR(stream.Synchronize());
  IRIS_RETURN_IF_ERROR(context.Barrier());  // all have drawn

  if (ctx.rank == kOwner) {
    IRIS_ASSIGN_OR_RETURN(const Counters result, stream.Read(counters.get()));
    IRIS_ASSIGN_OR_RETURN(const auto drawers, stream.Read(drawn_by.get(), n_tickets));
    IRIS_RETURN_IF_ERROR(Check(result, drawers, ctx.n_ranks));
    std::printf("%u tickets, each drawn once; %u by each of %u ranks\n", n_tickets, kDrawsOfARank,
                ctx.n_ranks);
    std::printf("result ok\n");
  }
  IRIS_RETURN_IF_ERROR(context.Barrier());
  IRIS_RETURN_IF_ERROR(context.Free(drawn_by));
  return context.Free(counters);
}

int main() {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const iris::Status status = Run();
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
