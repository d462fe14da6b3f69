// Stream::Put and Get between real processes, on a real irisd: bytes, signals, and what
// a wrong call says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "iris/context.h"
#include "iris/copy_queue.h"
#include "iris/copy_ring.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/stream.h"
#include "tests/docs/device_pages.h"
#include "tests/integration/daemon_harness.h"
#include "tests/integration/rank_processes.h"
#include "tests/integration/require.h"

namespace iris {
namespace {

using iris::testing::Daemon;
using iris::testing::RankProcesses;
using iris::testing::Require;

// The call is refused as an invalid argument, and says so.
#define REQUIRE_REFUSED(expression, text) \
  REQUIRE_FAILS(expression, StatusCode::kInvalidArgument, text)

constexpr uint64_t kBytes = 1 << 20;

ContextOptions Small() {
  ContextOptions options;
  options.heap_bytes = 8 << 20;
  return options;
}

// What a signal announces is complete when a kernel that waits for it goes on.
IRIS_KERNEL void AwaitAndCount(DeviceContext ctx, const uint64_t* signal, uint64_t value,
                               const uint8_t* bytes, uint64_t n, uint8_t wanted, uint64_t* wrong) {
  if (WaitUntil(ctx, signal, Compare::kGe, value, Block{}) != WaitResult::kOk) {
    if (backend::ThreadIndex() == 0) *wrong = n + 1;
    return;
  }
  for (uint64_t i = backend::ThreadIndex(); i < n; i += backend::BlockSize()) {
    if (bytes[i] != wanted) {
      (void)backend::FetchOp<AtomicOp::kAdd, Scope::kDevice, Order::kRelaxed>(wrong, uint64_t{1});
    }
  }
}

int PutsAndGets(const std::vector<std::string>&) {
  auto context = Require(Context::Create(Small()));
  const uint32_t n = context.n_ranks(), me = context.rank();
  const uint32_t next = (me + 1) % n, previous = (me + n - 1) % n;
  auto inbox = Require(context.Allocate({.bytes = kBytes}));
  auto mine = Require(context.Allocate({.bytes = kBytes}));
  auto words = Require(context.Allocate({.bytes = 64}));
  uint64_t* const ready = words.As<uint64_t>();
  uint64_t* const taken = ready + 1;
  auto stream = Require(Stream::Create(context)), waiter = Require(Stream::Create(context));
  REQUIRE_OK(Stream::PrepareSignals(context));
  auto wrong = Require(HostArray<uint64_t>::Create(context));
  std::vector<uint8_t> seen(kBytes);
  uint64_t round = 0;
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{7}, uint64_t{4096}, kBytes}) {
    ++round;
    *wrong = 0;
    // A put from the heap, whose reader waits in a kernel.
    const uint8_t value = static_cast<uint8_t>(16 * round + me);
    REQUIRE_OK(stream.Fill(mine.address, value, kBytes));
    REQUIRE_OK(Launch({1, 64}, waiter, AwaitAndCount, context.device_context(), ready, round,
                      inbox.As<uint8_t>(), bytes, static_cast<uint8_t>(16 * round + previous),
                      wrong.get()));
    REQUIRE_OK(stream.Put(context, next, inbox.address, mine.address, bytes,
                          {.signal = ready, .value = round}));
    REQUIRE_OK(waiter.Synchronize());
    REQUIRE_OK(stream.Synchronize());
    REQUIRE(*wrong == 0);
    REQUIRE_OK(context.Barrier());  // the next rank has filled what is got from it

    // A get into host memory; its signal tells the owner.
    std::fill(seen.begin(), seen.end(), uint8_t{0});
    REQUIRE_OK(stream.Get(context, next, seen.data(), mine.address, bytes,
                          {.signal = taken, .value = 1, .op = SignalOp::kAdd}));
    REQUIRE_OK(stream.Synchronize());
    REQUIRE(seen[0] == 16 * round + next && seen[bytes - 1] == 16 * round + next);
    REQUIRE(bytes == kBytes || seen[bytes] == 0);
    REQUIRE_OK(context.Barrier());
    uint64_t n_taken = 0;
    REQUIRE_OK(stream.Copy(&n_taken, taken, sizeof(n_taken)));
    REQUIRE_OK(stream.Synchronize());
    REQUIRE(n_taken == round);
    REQUIRE_OK(context.Barrier());
  }

  // Nothing but a signal; and to this rank itself.
  REQUIRE_OK(stream.Put(context, me, inbox.address, nullptr, 0,
                        {.signal = ready, .value = 100, .op = SignalOp::kAdd}));
  uint64_t word = 0;
  REQUIRE_OK(stream.Copy(&word, ready, sizeof(word)));
  REQUIRE_OK(stream.Synchronize());
  REQUIRE(word == round + 100);
  REQUIRE_OK(stream.Put(context, me, inbox.address, mine.address, 100));
  REQUIRE_OK(stream.Synchronize());
  REQUIRE_OK(context.Barrier());

  // Recorded into a graph, both happen once a launch.
  REQUIRE_OK(stream.BeginCapture());
  REQUIRE_OK(stream.Put(context, next, inbox.address, mine.address, kBytes,
                        {.signal = taken, .value = 10, .op = SignalOp::kAdd}));
  auto graph = Require(stream.EndCapture());
  for (int i = 0; i < 3; ++i) REQUIRE_OK(graph.Launch(stream));
  REQUIRE_OK(stream.Synchronize());
  REQUIRE_OK(context.Barrier());
  REQUIRE_OK(stream.Copy(&word, taken, sizeof(word)));
  REQUIRE_OK(stream.Synchronize());
  REQUIRE(word == round + 30);
  REQUIRE_OK(context.Barrier());
  return 0;
}

// What a copy of rows must have made of `to`.
std::vector<uint8_t> WithRows(std::vector<uint8_t> to, uint64_t to_at,
                              const std::vector<uint8_t>& from, uint64_t from_at,
                              const CopiedRows& rows) {
  for (uint64_t row = 0; row < rows.rows; ++row) {
    for (uint64_t i = 0; i < rows.row_bytes; ++i) {
      to[to_at + row * rows.dst_pitch_bytes + i] = from[from_at + row * rows.src_pitch_bytes + i];
    }
  }
  return to;
}

// Tiles of matrices, with guards around and between the rows.
int PutsAndGetsTiles(const std::vector<std::string>&) {
  constexpr uint64_t kRoom = 2 << 20;
  auto context = Require(Context::Create(Small()));
  const uint32_t n = context.n_ranks(), me = context.rank();
  const uint32_t next = (me + 1) % n, previous = (me + n - 1) % n;
  auto inbox = Require(context.Allocate({.bytes = kRoom}));
  auto source = Require(context.Allocate({.bytes = kRoom}));
  auto words = Require(context.Allocate({.bytes = 64}));
  uint64_t* const arrived = words.As<uint64_t>();
  auto stream = Require(Stream::Create(context));
  const auto pattern = [](uint32_t rank) {
    std::vector<uint8_t> bytes(kRoom);
    for (uint64_t i = 0; i < kRoom; ++i) {
      bytes[i] = static_cast<uint8_t>((i * 131 + i / 251 + rank * 17) % 255);  // never 255
    }
    return bytes;
  };
  const std::vector<uint8_t> mine = pattern(me), of_previous = pattern(previous),
                             of_next = pattern(next), guards(kRoom, 255);
  REQUIRE_OK(stream.Copy(source.address, mine.data(), kRoom));
  REQUIRE_OK(stream.Synchronize());
  std::vector<uint8_t> seen(kRoom);
  uint64_t n_arrived = 0;
  for (const CopiedRows& rows : {
           CopiedRows{1, 100, 0, 0},
           CopiedRows{2, 1, 2, 1},
           CopiedRows{37, 129, 131, 640},
           CopiedRows{64, 512, 512, 512},
           CopiedRows{100, 16, 4096, 16},
           CopiedRows{3, 300'000, 300'001, 500'000},
           CopiedRows{0, 16, 16, 16},
           CopiedRows{5, 0, 0, 0},
       }) {
    for (const uint64_t at : {uint64_t{0}, uint64_t{48}, uint64_t{33}}) {
      uint8_t* const to = inbox.As<uint8_t>() + at;
      uint8_t* const from = source.As<uint8_t>() + 5;
      REQUIRE_OK(stream.Copy(inbox.address, guards.data(), kRoom));
      REQUIRE_OK(stream.Synchronize());
      REQUIRE_OK(context.Barrier());
      REQUIRE_OK(stream.Put(context, next, to, from, rows,
                            {.signal = arrived, .value = 1, .op = SignalOp::kAdd}));
      REQUIRE_OK(stream.Synchronize());
      REQUIRE_OK(context.Barrier());
      REQUIRE_OK(stream.Copy(seen.data(), inbox.address, kRoom));
      uint64_t word = 0;
      REQUIRE_OK(stream.Copy(&word, arrived, sizeof(word)));
      REQUIRE_OK(stream.Synchronize());
      REQUIRE(word == ++n_arrived);
      REQUIRE(seen == WithRows(guards, at, of_previous, 5, rows));
      // Back, the other way round.
      std::vector<uint8_t> got = guards;
      REQUIRE_OK(stream.Get(context, next, got.data() + at, from, rows));
      REQUIRE_OK(stream.Synchronize());
      REQUIRE(got == WithRows(guards, at, of_next, 5, rows));
      REQUIRE_OK(context.Barrier());
    }
  }

  // Recorded into a graph.
  const CopiedRows rows = {10, 40, 64, 50};
  REQUIRE_OK(stream.Copy(inbox.address, guards.data(), kRoom));
  REQUIRE_OK(stream.Synchronize());
  REQUIRE_OK(context.Barrier());
  REQUIRE_OK(stream.BeginCapture());
  REQUIRE_OK(stream.Put(context, next, inbox.address, source.address, rows));
  auto graph = Require(stream.EndCapture());
  REQUIRE_OK(graph.Launch(stream));
  REQUIRE_OK(stream.Synchronize());
  REQUIRE_OK(context.Barrier());
  REQUIRE_OK(stream.Copy(seen.data(), inbox.address, kRoom));
  REQUIRE_OK(stream.Synchronize());
  REQUIRE(seen == WithRows(guards, 0, of_previous, 0, rows));
  REQUIRE_OK(context.Barrier());

  // What is no tile.
  uint8_t* const p = inbox.As<uint8_t>();
  uint8_t* const q = source.As<uint8_t>();
  REQUIRE_REFUSED(stream.Put(context, next, p, q, CopiedRows{2, 16, 15, 16}),
                  "the destination's pitch of 15 bytes is less than a row, which has 16");
  REQUIRE_REFUSED(stream.Get(context, next, p, q, CopiedRows{2, 16, 16, 0}),
                  "the source's pitch of 0 bytes");
  REQUIRE_REFUSED(stream.Put(context, next, p, q, CopiedRows{3, 16, uint64_t{1} << 63, 16}),
                  "more than 64 bits count");
  REQUIRE_REFUSED(stream.Put(context, next, p, q, CopiedRows{~uint64_t{0}, 16, 16, 16}),
                  "more than 64 bits count");
  REQUIRE_REFUSED(stream.Put(context, next, p, q, CopiedRows{2, 16, 16 << 20, 16}),
                  "ends beyond the heap");
  REQUIRE_REFUSED(stream.Put(context, me, p, p + 32, CopiedRows{2, 16, 64, 64}), "overlap");
  REQUIRE_REFUSED(stream.Put(context, me, p, q, CopiedRows{2, 16, 64, 16},
                             {.signal = reinterpret_cast<uint64_t*>(p + 32)}),
                  "the signal lies in the range");
  REQUIRE_REFUSED(stream.Put(context, n, p, q, rows), absl::StrCat("there is no rank ", n));
  REQUIRE_OK(stream.Synchronize());
  REQUIRE_OK(context.Barrier());
  return 0;
}

int WrongCalls(const std::vector<std::string>&) {
  Context c = Require(Context::Create(Small()));
  auto x = Require(c.Allocate({.bytes = 4096, .name = "x"}));
  uint8_t* const p = x.As<uint8_t>();
  const uint32_t peer = 1 - c.rank();
  std::vector<uint8_t> local(8192);
  auto stream = Require(Stream::Create(c));

  REQUIRE_REFUSED(stream.Put(c, 2, p, local.data(), 64), "there is no rank 2 in a job of 2");
  REQUIRE_REFUSED(stream.Put(c, peer, local.data(), p, 64), "not in this rank's heap");
  REQUIRE_REFUSED(stream.Put(c, peer, c.Translate(peer, p), local.data(), 64),
                  absl::StrCat("in the heap of rank ", peer));
  REQUIRE_REFUSED(stream.Put(c, peer, p, local.data(), c.heap_bytes()), "ends beyond the heap");
  REQUIRE_REFUSED(stream.Put(c, peer, p, local.data(), ~uint64_t{0}), "ends beyond the heap");
  REQUIRE_REFUSED(stream.Put(c, peer, p, nullptr, 64), "the source is null");
  REQUIRE_REFUSED(stream.Put(c, peer, p, local.data(), 5000),
                  "the destination: x has 4 KiB, the call 4.88 KiB (5000 bytes)");
  REQUIRE_REFUSED(stream.Put(c, peer, p, p + 4000, 100),
                  "the source: x has 4 KiB, the call 100 from byte 4000 on");
  REQUIRE_REFUSED(stream.Get(c, peer, local.data(), p + 4090, 8),
                  "the source: x has 4 KiB, the call 8 from byte 4090 on");
  uint8_t* const end = p - x.offset_bytes + c.heap_bytes();
  REQUIRE_REFUSED(stream.Put(c, peer, p, end - 32, 64), "the source");
  REQUIRE_REFUSED(stream.Put(c, c.rank(), p, p + 32, 64), "overlap");
  REQUIRE_REFUSED(stream.Put(c, peer, p, c.Translate(peer, p), 64), "overlap");
  uint64_t* const word = x.As<uint64_t>() + 256;
  REQUIRE_REFUSED(
      stream.Put(c, peer, p, local.data(), 64, {.signal = reinterpret_cast<uint64_t*>(p + 1025)}),
      "not aligned to 8 bytes");
  REQUIRE_REFUSED(stream.Put(c, peer, p, local.data(), 4096, {.signal = word}),
                  "the signal lies in the range");
  REQUIRE_REFUSED(stream.Put(c, peer, p, local.data(), 64, {.signal = c.Translate(peer, word)}),
                  "the signal");
  uint64_t outside = 0;
  REQUIRE_REFUSED(stream.Put(c, peer, p, local.data(), 64, {.signal = &outside}), "the signal");

  REQUIRE_REFUSED(stream.Get(c, 7, local.data(), p, 64), "there is no rank 7");
  REQUIRE_REFUSED(stream.Get(c, peer, p, local.data(), 64), "not in this rank's heap");
  REQUIRE_REFUSED(stream.Get(c, peer, nullptr, p, 64), "the destination is null");
  REQUIRE_REFUSED(stream.Get(c, peer, end - 32, p, 64), "the destination");
  REQUIRE_REFUSED(stream.Get(c, c.rank(), p + 1, p, 64), "overlap");

  // None of them has put anything on the stream.
  REQUIRE_OK(stream.Synchronize());
  REQUIRE_OK(c.Barrier());
  REQUIRE_OK(stream.Copy(local.data(), p, 4096));
  REQUIRE_OK(stream.Synchronize());
  for (const uint8_t byte : local) REQUIRE(byte == 0);
  REQUIRE_OK(c.Barrier());

  REQUIRE_OK(c.Leave());
  REQUIRE(stream.Put(c, peer, p, local.data(), 64).code() == StatusCode::kFailedPrecondition);
  return 0;
}

// Posts `n` copies of `bytes` bytes each, in turn from the parts of a buffer that it fills again
// when they have left it.
IRIS_KERNEL void PostMany(DeviceContext ctx, DeviceCopyQueue queue, uint32_t n, uint64_t words,
                          uint32_t* parts, uint32_t n_parts, uint32_t* inbox, uint64_t* arrived,
                          uint32_t* result) {
  IRIS_SHARED(uint32_t[1], failed);
  if (backend::ThreadIndex() == 0) failed[0] = 0;
  uint64_t numbers[4] = {};
  for (uint32_t i = 0; i < n; ++i) {
    uint32_t* const part = parts + (backend::BlockIndex() * n_parts + i % n_parts) * words;
    if (backend::ThreadIndex() == 0 && i >= n_parts) {
      failed[0] |= static_cast<uint32_t>(AwaitCopy(ctx, queue, numbers[i % n_parts]));
    }
    backend::BlockSync();
    const uint32_t index = backend::BlockIndex() * n + i;
    for (uint64_t k = backend::ThreadIndex(); k < words; k += backend::BlockSize()) {
      part[k] = index * 1000 + static_cast<uint32_t>(k) + 7 * ctx.rank;
    }
    backend::BlockSync();
    if (backend::ThreadIndex() != 0) continue;
    failed[0] |= static_cast<uint32_t>(PostCopy(ctx, queue,
                                                {.to = (ctx.rank + 1) % ctx.n_ranks,
                                                 .dst = inbox + index * words,
                                                 .src = part,
                                                 .bytes = words * sizeof(uint32_t),
                                                 .signal = {arrived, 1, SignalOp::kAdd}},
                                                &numbers[i % n_parts]));
  }
  if (backend::ThreadIndex() == 0 && failed[0] != 0) *result = failed[0];
}

// Posts one copy, as it is given. *result is 1 + what came of the post, and of the wait.
IRIS_KERNEL void PostOne(DeviceContext ctx, DeviceCopyQueue queue, CopyRequest request,
                         uint64_t timeout_ns, uint32_t* result) {
  uint64_t number = 0;
  const WaitResult posted = PostCopy(ctx, queue, request, &number, timeout_ns);
  result[0] = 1 + static_cast<uint32_t>(posted);
  if (posted != WaitResult::kOk) return;
  result[1] = 1 + static_cast<uint32_t>(AwaitCopy(ctx, queue, number, Thread{}, timeout_ns));
}

// What a kernel leaves that dies in the middle of a post.
IRIS_KERNEL void DieInAPost(DeviceCopyQueue queue) {
  (void)backend::FetchOp<AtomicOp::kAdd, Scope::kDevice, Order::kRelaxed>(queue.posted,
                                                                          uint64_t{1});
}

int QueuedCopies(const std::vector<std::string>&) {
  auto context = Require(Context::Create(Small()));
  const uint32_t n = context.n_ranks(), me = context.rank(), previous = (me + n - 1) % n;
  auto inbox = Require(context.Allocate({.bytes = kBytes}));
  auto words = Require(context.Allocate({.bytes = 64}));
  uint64_t* const arrived = words.As<uint64_t>();
  auto stream = Require(Stream::Create(context));
  auto result = Require(HostArray<uint32_t>::Create(context, 2));
  auto parts = Require(DeviceArray<uint32_t>::Create(context, 1 << 16));
  std::vector<uint32_t> seen(kBytes / 4);
  uint64_t n_arrived = 0;

  // More copies than the ring has places, by one block and by several at once.
  for (const uint64_t capacity : {uint64_t{1}, uint64_t{4}, uint64_t{256}}) {
    auto queue = Require(CopyQueue::Create(context, {capacity, std::chrono::microseconds(20)}));
    constexpr uint32_t kBlocks = 3, kEach = 20, kParts = 3;
    constexpr uint64_t kWords = 500;
    REQUIRE_OK(Launch({kBlocks, 64}, stream, PostMany, context.device_context(), queue.device(),
                      kEach, kWords, parts.get(), kParts, inbox.As<uint32_t>(), arrived,
                      result.get()));
    REQUIRE_OK(stream.Synchronize());
    REQUIRE(*result.get() == 0);
    REQUIRE_OK(queue.Drain());
    REQUIRE(queue.completed() == kBlocks * kEach);
    REQUIRE_OK(queue.status());
    REQUIRE_OK(context.Barrier());
    REQUIRE_OK(stream.Copy(seen.data(), inbox.address, kBytes));
    uint64_t count = 0;
    REQUIRE_OK(stream.Copy(&count, arrived, sizeof(count)));
    REQUIRE_OK(stream.Synchronize());
    n_arrived += kBlocks * kEach;
    REQUIRE(count == n_arrived);
    for (uint64_t i = 0; i < kBlocks * kEach * kWords; ++i) {
      REQUIRE(seen[i] == i / kWords * 1000 + i % kWords + 7 * previous);
    }
    REQUIRE_OK(context.Barrier());
  }

  // What the page shows.
  {
    auto queue = Require(CopyQueue::Create(context));
    REQUIRE_OK(Launch({4, 64}, stream, docs::copy_queues::MakeParts, context.device_context(),
                      queue.device(), parts.get(), inbox.As<uint32_t>(), uint64_t{1000}, arrived,
                      result.get()));
    REQUIRE_OK(stream.Synchronize());
    REQUIRE(*result.get() == 0);
    REQUIRE_OK(context.Barrier());
    REQUIRE_OK(stream.Copy(seen.data(), inbox.address, kBytes));
    REQUIRE_OK(stream.Synchronize());
    for (uint32_t i = 0; i < 4000; ++i) REQUIRE(seen[i] == i + 1000000 * previous);
    REQUIRE_OK(context.Barrier());
  }

  // What Stream::Put refuses stops the queue, for kernels and for the host.
  {
    auto queue = Require(CopyQueue::Create(context, {2, std::chrono::microseconds(0)}));
    CopyRequest wrong;
    wrong.to = n;
    wrong.dst = inbox.address;
    wrong.src = parts.get();
    wrong.bytes = 64;
    const DeviceContext device = context.device_context();
    REQUIRE_OK(
        Launch({1, 1}, stream, PostOne, device, queue.device(), wrong, uint64_t{0}, result.get()));
    REQUIRE_OK(stream.Synchronize());
    REQUIRE(result[0] == 1 && result[1] == 1 + static_cast<uint32_t>(WaitResult::kAborted));
    REQUIRE_FAILS(queue.Drain(), StatusCode::kInvalidArgument, "copy #0 of a CopyQueue: ");
    REQUIRE_FAILS(queue.status(), StatusCode::kInvalidArgument,
                  absl::StrCat("there is no rank ", n));
    wrong.to = me;
    REQUIRE_OK(
        Launch({1, 1}, stream, PostOne, device, queue.device(), wrong, uint64_t{0}, result.get()));
    REQUIRE_OK(stream.Synchronize());
    REQUIRE(result[0] == 1 + static_cast<uint32_t>(WaitResult::kAborted));
  }

  // A kernel that died in the middle is named by its descriptor. Who posts then waits for a place,
  // and gives up without one.
  {
    auto queue = Require(CopyQueue::Create(context, {1}));
    REQUIRE_OK(queue.Drain());  // of nothing
    REQUIRE_OK(Launch({1, 1}, stream, DieInAPost, queue.device()));
    REQUIRE_OK(stream.Synchronize());
    REQUIRE_FAILS(queue.Drain(std::chrono::milliseconds(30)), StatusCode::kDeadlineExceeded,
                  "waits for copy #0 of 1, whose descriptor was begun and not finished");
    REQUIRE_OK(Launch({1, 1}, stream, PostOne, context.device_context(), queue.device(),
                      CopyRequest{.to = me, .dst = inbox.address, .src = parts.get(), .bytes = 64},
                      uint64_t{20'000'000}, result.get()));
    REQUIRE_OK(stream.Synchronize());
    REQUIRE(result[0] == 1 + static_cast<uint32_t>(WaitResult::kTimeout));
  }

  REQUIRE_FAILS(CopyQueue::Create(context, {3}).status(), StatusCode::kInvalidArgument,
                "a power of two from 1 to 65536, not 3");
  REQUIRE_FAILS(CopyQueue::Create(context, {1, std::chrono::microseconds(-1)}).status(),
                StatusCode::kInvalidArgument, "negative");
  REQUIRE_FAILS(CopyQueue().Drain(), StatusCode::kFailedPrecondition, "is empty");
  REQUIRE_OK(context.Barrier());
  return 0;
}

class RmaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = Daemon::Start();
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
  }
  void Run(const std::string& scenario, int n_ranks) {
    RankProcesses ranks(scenario, n_ranks, {.runtime_dir = daemon_->runtime_dir()});
    ranks.ExpectAllSucceed();
  }
  std::unique_ptr<Daemon> daemon_;
};

TEST_F(RmaTest, PutsAndGets) {
  Run("puts_and_gets", 3);
  Run("puts_and_gets", 1);
}

TEST_F(RmaTest, TilesByTheirRows) {
  Run("tiles", 1);
  Run("tiles", 3);
}

TEST_F(RmaTest, CopiesThatKernelsAskFor) {
  Run("queued_copies", 2);
  Run("queued_copies", 1);
}

TEST_F(RmaTest, WrongCallsAreRefused) { Run("wrong_calls", 2); }

}  // namespace
}  // namespace iris

int main(int argc, char** argv) {
  return iris::testing::TestMain(argc, argv,
                                 {{"puts_and_gets", iris::PutsAndGets},
                                  {"queued_copies", iris::QueuedCopies},
                                  {"tiles", iris::PutsAndGetsTiles},
                                  {"wrong_calls", iris::WrongCalls}});
}
