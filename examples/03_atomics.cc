// 03: atomics. All threads of all ranks draw tickets from one counter in rank 0's heap.
//
//   iris-run -n 4 -- bazel-bin/examples/03_atomics
//
// What to see: AtomicAdd gives back the old value, so no ticket is drawn twice, whoever asks. Scope
// and order are template arguments: counting publishes nothing, so it may be relaxed.
#include <cstdio>
#include <vector>

#include "client/iris/context.h"
#include "device/iris/iris.h"
#include "examples/example.h"

using example::Expect;
using example::Ok;
using iris::Order;
using iris::Scope;

constexpr uint32_t kOwner = 0;  // in whose heap the counter is
constexpr iris::LaunchConfig kLaunch = {.grid = 4, .block = 64};
constexpr uint32_t kDraws = 8;  // of each thread

struct Counters {
  uint64_t next;     // the next ticket
  uint32_t highest;  // the highest rank that drew one
};

IRIS_KERNEL void Draw(iris::DeviceContext ctx, Counters* counters, uint32_t* drawn_by) {
  for (uint32_t i = 0; i < kDraws; ++i) {
    const uint64_t ticket =
        iris::AtomicAdd<Scope::kSystem, Order::kRelaxed>(ctx, kOwner, &counters->next, 1);
    // The ticket is this thread's alone: nobody else writes to its place, so a plain store will do.
    iris::Store(ctx, kOwner, &drawn_by[ticket], ctx.rank + 1);
  }
  iris::AtomicMax<Scope::kSystem, Order::kRelaxed>(ctx, kOwner, &counters->highest, ctx.rank);
}

int main() {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const auto context = Ok(iris::Context::Create({.heap_bytes = 16 << 20}));
  constexpr uint32_t kDrawsOfARank = kLaunch.grid * kLaunch.block * kDraws;
  const uint32_t n_tickets = context->n_ranks() * kDrawsOfARank;

  const iris::Allocation counters =
      Ok(context->Allocate({.bytes = sizeof(Counters), .name = "counters"}));
  const iris::Allocation drawn_by = Ok(context->Allocate({.bytes = n_tickets * sizeof(uint32_t),
                                                          .name = "drawn_by",
                                                          .dtype = "u32",
                                                          .shape = {n_tickets}}));
  // A fresh heap is zero.

  iris::backend::Stream stream;
  Ok(iris::backend::Stream::Create(&stream));
  Ok(iris::backend::Launch(kLaunch, stream, Draw, context->device_context(),
                           counters.As<Counters>(), drawn_by.As<uint32_t>()));
  Ok(stream.Synchronize());
  Ok(context->Barrier());  // all have drawn

  if (context->rank() == kOwner) {
    Counters result;
    std::vector<uint32_t> drawer(n_tickets);
    Ok(iris::backend::CopyAsync(&result, counters.address, sizeof(result), stream));
    Ok(iris::backend::CopyAsync(drawer.data(), drawn_by.address, n_tickets * sizeof(uint32_t),
                                stream));
    Ok(stream.Synchronize());
    Expect(result.next == n_tickets, "number of tickets");
    Expect(result.highest == context->n_ranks() - 1, "highest rank");
    std::vector<uint32_t> drawn(context->n_ranks(), 0);
    for (const uint32_t rank_plus_1 : drawer) {
      Expect(rank_plus_1 >= 1 && rank_plus_1 <= context->n_ranks(), "a ticket that nobody drew");
      ++drawn[rank_plus_1 - 1];
    }
    for (const uint32_t n : drawn) Expect(n == kDrawsOfARank, "tickets of a rank");
    std::printf("%u tickets, each drawn once; %u by each of %u ranks\n", n_tickets, kDrawsOfARank,
                context->n_ranks());
  }
  Ok(context->Barrier());
  Ok(context->Free(drawn_by));
  Ok(context->Free(counters));
}
