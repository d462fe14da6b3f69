// 04: message passing. Every rank sends a stream of messages to the next one, in kernels that never
// end in between.
//
//   iris-run -n 4 -- bazel-bin/examples/04_message_passing
//
//   rank r                                               rank r + 1
//
//   waits until credit >= 3: slot 1 was read
//   outbox: message 5  == PutSignal: words, ready = 5 ==>  inbox[slot 1]
//                                                          waits until ready >= 5, reads the words
//   credit = 5  <------------- SignalSet ----------------  message 7 may come
//
// What to see: PutSignal writes the message and then raises a signal; whoever has waited for the
// signal sees the message. The receiver hands the slot back with a signal of its own, so that
// nothing is overwritten before it was read. Signals count upward and are never reset.
#include <cstdio>

#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/stream.h"
#include "iris/wait_monitor.h"

using iris::Block;

constexpr uint32_t kRounds = 200;
constexpr uint32_t kSlots = 2;  // so many messages may be under way
constexpr uint32_t kWords = 256;

struct Mailbox {
  uint64_t ready;   // messages that have come; raised by the sender
  uint64_t credit;  // messages that the receiver has read; raised by the receiver
  uint32_t inbox[kSlots][kWords];
  uint32_t outbox[kWords];
};

IRIS_DEVICE inline uint32_t Word(uint32_t sender, uint32_t round, uint32_t i) {
  return (sender * kRounds + round) * kWords + i;
}

// One block. Rounds count from 1, as the signals do.
IRIS_KERNEL void PassMessages(iris::DeviceContext ctx, Mailbox* box, uint32_t* wrong_words,
                              iris::WaitReport report) {
  const uint32_t next = (ctx.rank + 1) % ctx.n_ranks;
  const uint32_t previous = (ctx.rank + ctx.n_ranks - 1) % ctx.n_ranks;
  const uint32_t thread = iris::backend::ThreadIndex();
  uint32_t wrong = 0;
  for (uint32_t round = 1; round <= kRounds; ++round) {
    const uint32_t slot = round % kSlots;

    // Send, once the receiver has read what was in the slot. Every wait is bounded, and tells the
    // host if a peer is gone.
    const uint64_t read_before = round > kSlots ? round - kSlots : 0;
    if (!iris::AwaitSignal(ctx, next, &box->credit, read_before, report, Block{})) return;
    for (uint32_t i = thread; i < kWords; i += iris::backend::BlockSize()) {
      box->outbox[i] = Word(ctx.rank, round, i);
    }
    iris::backend::BlockSync();
    iris::PutSignal(ctx, next, box->inbox[slot], box->outbox, kWords, {&box->ready, round},
                    Block{});  // the outbox may be filled again

    // Receive.
    if (!iris::AwaitSignal(ctx, previous, &box->ready, round, report, Block{})) return;
    for (uint32_t i = thread; i < kWords; i += iris::backend::BlockSize()) {
      if (box->inbox[slot][i] != Word(previous, round, i)) ++wrong;
    }
    iris::backend::BlockSync();  // all have read: the slot goes back
    if (thread == 0) iris::SignalSet(ctx, previous, &box->credit, round);
  }
  if (wrong > 0) {
    iris::backend::FetchOp<iris::AtomicOp::kAdd, iris::Scope::kSystem, iris::Order::kRelaxed>(
        wrong_words, wrong);
  }
}

iris::Status Run() {
  IRIS_ASSIGN_OR_RETURN(iris::Context context, iris::Context::Create({.heap_bytes = 16 << 20}));
  IRIS_ASSIGN_OR_RETURN(const auto box, context.Allocate<Mailbox>(1, "mailbox"));
  IRIS_ASSIGN_OR_RETURN(iris::Stream stream, iris::Stream::Create(context));
  IRIS_ASSIGN_OR_RETURN(const auto wrong_words, iris::HostArray<uint32_t>::Create(context));
  IRIS_ASSIGN_OR_RETURN(const auto monitor, iris::WaitMonitor::Create(context));
  IRIS_RETURN_IF_ERROR(iris::Launch({.grid = 1, .block = 64}, stream, PassMessages,
                                    context.device_context(), box, wrong_words, monitor));
  IRIS_RETURN_IF_ERROR(monitor.Synchronize(stream));  // names a rank that did not come
  if (*wrong_words != 0) return {iris::StatusCode::kInternal, "wrong words of a message"};
  std::printf("rank %u sent %u messages of %zu bytes and received as many, all right\n",
              context.rank(), kRounds, sizeof(Mailbox::outbox));
  IRIS_RETURN_IF_ERROR(context.Barrier());
  if (context.rank() == 0) std::printf("result ok\n");
  return context.Free(box);
}

int main() {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const iris::Status status = Run();
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
