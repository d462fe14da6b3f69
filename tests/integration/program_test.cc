// What programs with kernels of their own use on the host, between real processes on a real irisd:
// values that are read from the device, times over all ranks, and waits that failed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "iris/bench.h"
#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/stream.h"
#include "iris/wait_monitor.h"
#include "tests/integration/job_fixture.h"
#include "tests/integration/rank_processes.h"
#include "tests/integration/require.h"

namespace iris {
namespace {

using namespace std::chrono_literals;
using iris::testing::RankProcesses;
using iris::testing::Require;
using ::testing::AnyOf;
using ::testing::HasSubstr;

ContextOptions Small(std::chrono::nanoseconds timeout = 60s) {
  ContextOptions options;
  options.heap_bytes = 8 << 20;
  options.timeout = timeout;
  return options;
}

IRIS_KERNEL void Count(uint64_t* values, uint64_t n) {
  for (uint64_t i = backend::ThreadOfGrid(); i < n; i += backend::ThreadsOfGrid())
    values[i] = 3 * i;
}

// Values of the heap and of the device.
int ReadValues(const std::vector<std::string>&) {
  auto context = Require(Context::Create(Small()));
  auto stream = Require(Stream::Create(context));
  constexpr uint64_t kCount = 1000;
  auto symmetric = Require(context.Allocate<uint64_t>(kCount, "symmetric"));
  auto own = Require(DeviceArray<uint64_t>::Create(context, kCount));
  for (uint64_t* const values : {symmetric.get(), own.get()}) {
    // What is on the stream is waited for.
    REQUIRE_OK(Launch({3, 64}, stream, Count, values, kCount));
    const StatusOr<uint64_t> last = stream.Read(values + kCount - 1);
    REQUIRE_OK(last);
    REQUIRE(*last == 3 * (kCount - 1));
    const StatusOr<std::vector<uint64_t>> some = stream.Read(values + 10, kCount - 10);
    REQUIRE_OK(some);
    REQUIRE(some->size() == kCount - 10);
    for (uint64_t i = 0; i < some->size(); ++i) REQUIRE((*some)[i] == 3 * (i + 10));
    const StatusOr<std::vector<uint64_t>> none = stream.Read(values, 0);
    REQUIRE_OK(none);
    REQUIRE(none->empty());
  }
  Stream empty;
  REQUIRE_FAILS(empty.Read(own.get()), StatusCode::kInvalidArgument, "stream");
  // Nothing of it gets into a graph.
  REQUIRE_OK(stream.Fill(own.get(), 1, sizeof(uint64_t)));
  REQUIRE_OK(stream.BeginCapture());
  REQUIRE_FAILS(stream.Read(own.get()), StatusCode::kFailedPrecondition, "end the capture first");
  REQUIRE_FAILS(stream.Read(own.get(), 2), StatusCode::kFailedPrecondition,
                "end the capture first");
  auto graph = Require(stream.EndCapture());
  REQUIRE_OK(graph.Launch(stream));
  const StatusOr<uint64_t> filled = stream.Read(own.get());
  REQUIRE_OK(filled);
  REQUIRE(*filled == 0x0101010101010101);
  return 0;
}

IRIS_KERNEL void Spin(uint64_t ns) {
  const uint64_t begin = backend::ClockNanoseconds();
  while (backend::ClockNanoseconds() - begin < ns) backend::Pause();
}

IRIS_KERNEL void AddToNext(DeviceContext ctx, uint64_t* sum) {
  AtomicAdd(ctx, (ctx.rank + 1) % ctx.n_ranks, sum, 1);
}

int Bench(const std::vector<std::string>&) {
  auto context = Require(Context::Create(Small()));
  auto stream = Require(Stream::Create(context));
  const DeviceContext& ctx = context.device_context();
  // Rank 1 is the slowest.
  const uint64_t ns = ctx.rank == 1 ? 20'000'000 : 1'000'000;
  const auto spin = [&] { return Launch({1, 1}, stream, Spin, ns); };
  BenchOptions options;
  options.n_warmup = 1;
  options.n_repeat = 4;
  const StatusOr<Microseconds> time = DoBench(context, stream, spin, options);
  REQUIRE_OK(time);
  REQUIRE(time->count() >= 20'000 && time->count() < 5'000'000);
  const StatusOr<double> first = context.BroadcastValue(time->count(), 0);
  REQUIRE_OK(first);
  REQUIRE(*first == time->count());

  // A median, of all but the first run: one long run of three counts as little as the warm-up.
  uint32_t n = 0;
  options.n_repeat = 3;
  const auto some_are_long = [&] {
    const uint32_t run = n++;
    return Launch({1, 1}, stream, Spin, run == 0 || run == 2 ? 2'000'000'000 : 1'000'000);
  };
  const StatusOr<Microseconds> median = DoBench(context, stream, some_are_long, options);
  REQUIRE_OK(median);
  REQUIRE(n == 4);
  REQUIRE(median->count() >= 1'000 && median->count() < 500'000);

  // Each run finds what `before` has made, on all ranks, and the last run is complete on all.
  auto sum = Require(context.Allocate<uint64_t>(1, "sum"));
  uint32_t zeroed = 0, added = 0;
  options.n_repeat = 20;
  options.before = [&] {
    ++zeroed;
    return stream.Fill(sum.get(), 0, sizeof(uint64_t));
  };
  const auto add = [&] {
    ++added;
    return Launch({1, 1}, stream, AddToNext, ctx, sum.get());
  };
  REQUIRE_OK(DoBench(context, stream, add, options));
  REQUIRE(zeroed == 21 && added == 21);
  const StatusOr<uint64_t> left = stream.Read(sum.get());
  REQUIRE_OK(left);
  REQUIRE(*left == 1);

  // What goes wrong is handed on, and on all ranks alike here.
  const auto wrong = [] { return Status(StatusCode::kDataLoss, "a wrong sum"); };
  REQUIRE_FAILS(DoBench(context, stream, wrong), StatusCode::kDataLoss, "a wrong sum");
  options.before = wrong;
  REQUIRE_FAILS(DoBench(context, stream, add, options), StatusCode::kDataLoss, "a wrong sum");
  options.n_repeat = 0;
  REQUIRE_FAILS(DoBench(context, stream, add, options), StatusCode::kInvalidArgument, "n_repeat");
  return context.Barrier().ok() ? 0 : 1;
}

IRIS_KERNEL void AwaitNext(DeviceContext ctx, uint32_t from, const uint64_t* signal, uint64_t value,
                           WaitReport report) {
  (void)AwaitSignal(ctx, from, signal, value, report, Block{});
}

int WaitInTime(const std::vector<std::string>&) {
  auto context = Require(Context::Create(Small()));
  auto stream = Require(Stream::Create(context));
  auto monitor = Require(WaitMonitor::Create(context));
  auto signal = Require(context.Allocate<uint64_t>(1, "signal"));
  const DeviceContext& ctx = context.device_context();
  const uint32_t peer = 1 - ctx.rank;
  SignalOptions raise;
  raise.signal = signal.get();
  raise.value = 4;
  REQUIRE_OK(Stream::PrepareSignals(context));
  REQUIRE_OK(stream.Put(context, peer, signal.get(), nullptr, 0, raise));
  REQUIRE_OK(Launch({2, 40}, stream, AwaitNext, ctx, peer, signal.get(), 4, monitor));
  REQUIRE_OK(monitor.Synchronize(stream));
  REQUIRE_OK(monitor.Check());
  REQUIRE_OK(context.Barrier());
  // Empty ones, and one that was moved from.
  REQUIRE_FAILS(WaitMonitor().Check(), StatusCode::kFailedPrecondition,
                "this WaitMonitor is empty");
  WaitMonitor moved = std::move(monitor);
  REQUIRE_OK(moved.Check());
  return 0;
}

// Rank 0 waits for rank 1, which does nothing, and then for itself.
int WaitTooLong(const std::vector<std::string>&) {
  auto context = Require(Context::Create(Small(300ms)));
  auto stream = Require(Stream::Create(context));
  auto signal = Require(context.AllocateLocal<uint64_t>(1, "signal"));
  const DeviceContext& ctx = context.device_context();
  if (ctx.rank == 0) {
    auto monitor = Require(WaitMonitor::Create(context));
    REQUIRE_OK(stream.Fill(signal.get(), 0, sizeof(uint64_t)));
    REQUIRE_OK(Launch({1, 40}, stream, AwaitNext, ctx, 1, signal.get(), 7, monitor));
    const std::string pid = "rank 1 (pid " + std::to_string(context.peer_pid(1)) + ")";
    REQUIRE_FAILS(monitor.Synchronize(stream), StatusCode::kDeadlineExceeded,
                  "a kernel of rank 0 (block 0) waited for a signal of " + pid + " for 0.3 s",
                  "has to be 7 and was 0", "iris-ctl jobs", "ContextOptions::timeout");
    // It stays, and later waits end before their time.
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 20; ++i) {
      REQUIRE_OK(Launch({1, 40}, stream, AwaitNext, ctx, 1, signal.get(), 8 + i, monitor));
    }
    REQUIRE_FAILS(monitor.Synchronize(stream), StatusCode::kDeadlineExceeded, "has to be 7");
    REQUIRE(std::chrono::steady_clock::now() - begin < 20 * 300ms);
    // Another monitor begins anew.
    auto other = Require(WaitMonitor::Create(context));
    REQUIRE_OK(other.Check());
    REQUIRE_OK(Launch({1, 40}, stream, AwaitNext, ctx, 0, signal.get(), 1, other));
    REQUIRE_FAILS(other.Synchronize(stream), StatusCode::kDeadlineExceeded,
                  "waited for a signal of its own rank for 0.3 s", "PrepareKernel");
  }
  std::cout << "done" << std::endl;
  std::string line;
  std::getline(std::cin, line);
  return 0;
}

// Rank 1 dies while rank 0 waits for it.
int WaitForTheDead(const std::vector<std::string>&) {
  auto context = Require(Context::Create(Small()));
  auto stream = Require(Stream::Create(context));
  auto monitor = Require(WaitMonitor::Create(context));
  auto signal = Require(context.Allocate<uint64_t>(1, "signal"));
  if (context.rank() == 0) {
    REQUIRE_OK(
        Launch({1, 1}, stream, AwaitNext, context.device_context(), 1, signal.get(), 1, monitor));
  }
  std::cout << "ready" << std::endl;
  std::string line;
  if (context.rank() == 1) std::getline(std::cin, line);
  const Status status = monitor.Synchronize(stream);
  REQUIRE_FAILS(status, StatusCode::kAborted, "has to be 1 and was 0");
  std::cout << "error " << status.message() << std::endl;
  return 0;
}

using ProgramTest = iris::testing::JobTest;

TEST_F(ProgramTest, ReadsValues) { Run("read_values", 1); }
TEST_F(ProgramTest, MeasuresOverAllRanks) { Run("bench", 3); }
TEST_F(ProgramTest, AWaitThatEndsInTimeIsNoError) { Run("wait_in_time", 2); }

TEST_F(ProgramTest, AWaitThatIsTooLongNamesTheRank) {
  RankProcesses ranks("wait_too_long", 2, Ranks());
  ranks.WaitLine(0, "done");
  ranks.TellAll("end");
  ranks.ExpectAllSucceed();
}

TEST_F(ProgramTest, AWaitForADeadRankNamesIt) {
  RankProcesses ranks("wait_for_the_dead", 2, Ranks());
  ranks.WaitLine(0, "ready");
  ranks.WaitLine(1, "ready");
  ranks.Signal(1, SIGKILL);
  const std::string error = ranks.WaitLine(0, "error ");
  const std::string who = "rank 1 (pid " + std::to_string(ranks.pid(1)) + ")";
  EXPECT_THAT(error, HasSubstr("waited for a signal of " + who));
  // Who is killed hangs up first; that its process is gone is known a moment later.
  EXPECT_THAT(error, AnyOf(HasSubstr(who + " hung up"), HasSubstr(who + " died")));
  EXPECT_EQ(ranks.Wait(0), 0) << ranks.Output(0);
}

}  // namespace
}  // namespace iris

int main(int argc, char** argv) {
  return iris::testing::TestMain(argc, argv,
                                 {{"read_values", iris::ReadValues},
                                  {"bench", iris::Bench},
                                  {"wait_in_time", iris::WaitInTime},
                                  {"wait_too_long", iris::WaitTooLong},
                                  {"wait_for_the_dead", iris::WaitForTheDead}});
}
