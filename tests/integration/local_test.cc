// What a rank allocates alone and others open by name, between real processes on a real irisd:
// kernels that put into it, names, time, deaths, and what iris-ctl is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstring>
#include <iostream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/stream.h"
#include "tests/integration/job_fixture.h"
#include "tests/integration/rank_processes.h"
#include "tests/integration/require.h"

namespace iris {
namespace {

using namespace std::chrono_literals;
using iris::testing::RankProcesses;
using iris::testing::Require;
using iris::testing::StatusOf;
using iris::testing::Text;
using ::testing::AllOf;
using ::testing::HasSubstr;

ContextOptions Small() {
  ContextOptions options;
  options.heap_bytes = 8 << 20;
  options.timeout = 20s;
  return options;
}

// Where `to` has what lies at `mine` in this rank's heap.
template <typename T>
T* InHeapOf(const Context& context, uint32_t to, T* mine) {
  const StatusOr<Context::Location> place = context.Locate(mine);
  if (!place.ok()) return nullptr;
  return reinterpret_cast<T*>(static_cast<char*>(context.heap_bases()[to]) + place->offset_bytes);
}

// Waits for a line from the test.
void AwaitLine() {
  std::string line;
  std::getline(std::cin, line);
}

constexpr uint64_t kBytes = 100'000;

// One thread puts a message into what it was given of another rank, and announces it.
IRIS_KERNEL void Send(DeviceContext ctx, uint32_t peer, uint8_t* inbox, const uint8_t* message,
                      uint64_t n, uint64_t* signal, uint64_t value) {
  Put(ctx, peer, inbox, message, n);
  SignalSet(ctx, peer, signal, value);
}

// Waits for the message, and looks at all of it.
IRIS_KERNEL void Receive(DeviceContext ctx, const uint8_t* inbox, uint64_t n,
                         const uint64_t* signal, uint64_t value, uint8_t wanted, uint64_t* wrong) {
  *wrong = WaitUntil(ctx, signal, Compare::kGe, value) == WaitResult::kOk ? 0 : n + 1;
  for (uint64_t i = 0; i < n; ++i) *wrong += inbox[i] != wanted;
}

// Each rank has an inbox of a size of its own, and sends to the next one.
int Inboxes(const std::vector<std::string>&) {
  Context c = Require(Context::Create(Small()));
  const uint32_t n = c.n_ranks(), me = c.rank(), next = (me + 1) % n, before = (me + n - 1) % n;
  const uint64_t bytes = kBytes * (me + 1), next_bytes = kBytes * (next + 1);
  auto inbox = Require(c.AllocateLocal<uint8_t>(bytes, "inbox"));
  auto arrived = Require(c.AllocateLocal<uint64_t>(1, "arrived"));
  auto theirs = Require(c.Open<uint8_t>(next, "inbox"));
  REQUIRE(theirs.size == next_bytes && theirs.rank == next);
  auto announce = Require(c.Open<uint64_t>(next, "arrived"));
  // Both addresses of it mean the same byte.
  REQUIRE(InHeapOf(c, next, theirs.symmetric()) == theirs.get());
  auto location = Require(c.Locate(theirs.get()));
  REQUIRE(location.rank == next && location.offset_bytes == theirs.offset_bytes);

  auto stream = Require(Stream::Create(c)), waiter = Require(Stream::Create(c));
  auto message = Require(DeviceArray<uint8_t>::Create(c, next_bytes));
  auto wrong = Require(HostArray<uint64_t>::Create(c));
  for (uint64_t round = 1; round <= 3; ++round) {
    REQUIRE_OK(stream.Fill(message.get(), static_cast<uint8_t>(16 * round + me), next_bytes));
    REQUIRE_OK(Launch({1, 1}, stream, Send, c.device_context(), next, theirs.symmetric(),
                      message.get(), next_bytes, announce.symmetric(), round));
    REQUIRE_OK(Launch({1, 1}, waiter, Receive, c.device_context(), inbox.get(), bytes,
                      arrived.get(), round, static_cast<uint8_t>(16 * round + before),
                      wrong.get()));
    REQUIRE_OK(waiter.Synchronize());
    REQUIRE_OK(stream.Synchronize());
    REQUIRE(*wrong == 0);
    REQUIRE_OK(c.Barrier());
  }
  // Loads and stores of the host.
  theirs.get()[0] = static_cast<uint8_t>(200 + me);
  REQUIRE_OK(c.Barrier());
  REQUIRE(inbox.get()[0] == 200 + before);
  REQUIRE_OK(c.Barrier());
  // Symmetric memory is where it would have been for everybody.
  auto shared = Require(c.Allocate<uint32_t>(4, "shared"));
  *InHeapOf(c, next, shared.get()) = me;
  REQUIRE_OK(c.Barrier());
  REQUIRE(*shared.get() == before);

  // What is freed stays for who has it open.
  REQUIRE_OK(c.Free(inbox));
  auto other = Require(c.AllocateLocal<uint8_t>(bytes, "inbox"));
  REQUIRE(other.get() != inbox.get());
  std::memset(other.get(), 7, bytes);
  REQUIRE_OK(c.Barrier());
  std::memset(theirs.get(), 9, theirs.bytes);
  REQUIRE_OK(c.Barrier());
  for (uint64_t i = 0; i < bytes; ++i) REQUIRE(other.get()[i] == 7);
  // What has a name is cleared before others see it; what is published later is as it was written.
  auto dirty = Require(c.AllocateLocal<uint8_t>(5000));
  std::memset(dirty.get(), 1, 5000);
  REQUIRE_OK(c.Free(dirty));
  auto clean = Require(c.AllocateLocal<uint8_t>(5000, "clean"));
  for (int i = 0; i < 5000; ++i) REQUIRE(clean.get()[i] == 0);
  auto written = Require(c.AllocateLocal<uint32_t>(1));
  *written.get() = 70 + me;
  REQUIRE_OK(c.Publish(written, "written"));
  auto read = Require(c.Open<uint32_t>(next, "written"));
  REQUIRE(*read.get() == 70 + next);
  REQUIRE_OK(c.Close(theirs));
  REQUIRE_FAILS(c.Close(theirs), StatusCode::kInvalidArgument, "has not opened it");
  REQUIRE_OK(c.Barrier());
  Require(c.AllocateLocal<uint8_t>(bytes));
  REQUIRE_OK(c.Barrier());
  return 0;
}

int Mistakes(const std::vector<std::string>&) {
  Context c = Require(Context::Create(Small()));
  REQUIRE(c.n_ranks() == 2);
  auto shared = Require(c.Allocate<float>(4, "shared"));
  const uint32_t me = c.rank(), peer = 1 - me;
  if (me == 0) {
    auto x = Require(c.AllocateLocal<float>(4, "x"));
    REQUIRE_FAILS(c.AllocateLocal<float>(4, "x"), StatusCode::kAlreadyExists,
                  "allocate 16 bytes \"x\" in its own heap", "is live");
    REQUIRE_FAILS(c.AllocateLocal<float>(4, "shared"), StatusCode::kAlreadyExists, "'shared'");
    REQUIRE_FAILS(c.AllocateLocal<float>(4, std::string(200, 'x')), StatusCode::kInvalidArgument,
                  "128");
    REQUIRE_FAILS(c.AllocateLocal<float>(4, "\xff"), StatusCode::kInvalidArgument, "not UTF-8");
    REQUIRE_FAILS(c.AllocateLocal<float>(1ull << 40, "huge"), StatusCode::kResourceExhausted,
                  "rank 0 alone", "the heap cannot grow");
    REQUIRE_FAILS(c.AllocateLocal<float>(~uint64_t{0}), StatusCode::kInvalidArgument, "no size");
    REQUIRE_FAILS(c.Publish(x, "y"), StatusCode::kFailedPrecondition, "publish the allocation",
                  "is published already, as 'x'");
    REQUIRE_FAILS(c.Publish(shared, "y"), StatusCode::kInvalidArgument, "allocated nothing at");
    // Its own range is not closed, and another's not freed.
    Opened mine;
    mine.offset_bytes = x.offset_bytes;
    REQUIRE_FAILS(c.Close(mine), StatusCode::kInvalidArgument, "has not opened it");
  }
  REQUIRE_OK(c.Barrier());
  if (me == 1) {
    REQUIRE_FAILS(c.Open<int32_t>(0, "x"), StatusCode::kInvalidArgument, "it is of f32",
                  "opened as i32");
    auto x = Require(c.Open(0, "x"));
    REQUIRE(x.dtype == DType::kF32);
    Allocation theirs;
    theirs.offset_bytes = shared.offset_bytes;
    theirs.team_id = 0xFFFF0001u;
    REQUIRE_FAILS(c.Free(theirs), StatusCode::kInvalidArgument, "was allocated by team 0");
    theirs.team_id = 0xFFFF0000u;
    REQUIRE_FAILS(c.Free(theirs), StatusCode::kFailedPrecondition, "does not exist");
  }
  REQUIRE_FAILS(c.Open(7, "x"), StatusCode::kInvalidArgument, "there is no rank 7 in a job of 2");
  REQUIRE_FAILS(c.Open(me, "x"), StatusCode::kInvalidArgument, "use the address");
  REQUIRE_FAILS(c.Open(peer, ""), StatusCode::kInvalidArgument, "the name");
  REQUIRE_FAILS(c.Open(peer, "shared"), StatusCode::kInvalidArgument, "by team 0 together");
  REQUIRE_FAILS(c.Open(peer, "x", -1ns), StatusCode::kInvalidArgument, "negative");
  const auto start = std::chrono::steady_clock::now();
  REQUIRE_FAILS(c.Open(peer, "never", 100ms), StatusCode::kDeadlineExceeded, "open \"never\"",
                "time is up after ", absl::StrCat("rank ", peer, " (pid "),
                "allocated nothing of this name");
  REQUIRE(std::chrono::steady_clock::now() - start >= 100ms);
  REQUIRE_OK(c.Barrier());
  // Who waits is not told of what others do, only of what it waits for.
  if (me == 0) {
    Require(c.Open<uint64_t>(1, "late", 10s));
  } else {
    std::this_thread::sleep_for(100ms);
    Require(c.AllocateLocal<uint64_t>(1, "late"));
  }
  REQUIRE_OK(c.Barrier());
  return 0;
}

// Rank 0 has something that rank 1 uses, until the test has it killed. Rank 1 then also waits for
// what will never come.
int OwnerDies(const std::vector<std::string>&) {
  Context c = Require(Context::Create(Small()));
  if (c.rank() == 0) {
    Require(c.AllocateLocal<uint64_t>(1000, "x"));
    std::cout << "ready" << std::endl;
    AwaitLine();
    return 0;
  }
  auto x = Require(c.Open<uint64_t>(0, "x"));
  x.get()[999] = 5;
  std::cout << "ready" << std::endl;
  const auto never = c.Open(0, "never", 15s);
  std::cout << "open " << Text(StatusOf(never)) << std::endl;
  // The memory stays as long as this rank has it mapped.
  x.get()[0] = 6;
  REQUIRE(x.get()[0] == 6 && x.get()[999] == 5);
  std::cout << "close " << Text(c.Close(x)) << std::endl;
  std::cout << "allocate " << Text(StatusOf(c.AllocateLocal<uint64_t>(1))) << std::endl;
  return 0;
}

// Rank 0 has something that rank 1 uses, and leaves.
int OwnerLeaves(const std::vector<std::string>&) {
  Context c = Require(Context::Create(Small()));
  if (c.rank() == 0) {
    auto x = Require(c.AllocateLocal<uint64_t>(1000, "x"));
    x.get()[1] = 8;
    std::cout << "ready" << std::endl;
    AwaitLine();
    REQUIRE_OK(c.Leave());
    std::cout << "left" << std::endl;
    AwaitLine();
    return 0;
  }
  std::cout << "ready" << std::endl;
  AwaitLine();
  auto x = Require(c.Open<uint64_t>(0, "x"));
  REQUIRE(x.get()[1] == 8);
  REQUIRE_FAILS(c.Open(0, "y"), StatusCode::kAborted, "has left the job", "'y'");
  Require(c.AllocateLocal<uint64_t>(1, "mine"));
  REQUIRE_OK(c.Close(x));
  return 0;
}

// Rank 1 has more than fits, so that every heap grows, while rank 0 is in no call.
int Growth(const std::vector<std::string>&) {
  Context c = Require(Context::Create(Small()));
  constexpr uint64_t kBig = 12 << 20;
  if (c.rank() == 1) {
    auto big = Require(c.AllocateLocal<uint8_t>(kBig, "big"));
    big.get()[kBig - 1] = 3;
    Require(c.AllocateLocal<uint8_t>(1, "ready"));
  } else {
    std::this_thread::sleep_for(200ms);
    REQUIRE_OK(c.Open(1, "ready"));
    auto big = Require(c.Open<uint8_t>(1, "big"));
    REQUIRE(big.size == kBig && big.get()[kBig - 1] == 3);
  }
  REQUIRE_OK(c.Barrier());
  return 0;
}

// A kernel that writes beside what it has opened.
IRIS_KERNEL void WriteTo(DeviceContext ctx, uint32_t peer, uint64_t* word, uint64_t value) {
  SignalSet(ctx, peer, word, value);
}

int CheckedAccess(const std::vector<std::string>&) {
  Context c = Require(Context::Create(Small()));
  auto words = Require(c.AllocateLocal<uint64_t>(8, "words"));
  const uint32_t peer = 1 - c.rank();
  auto theirs = Require(c.Open<uint64_t>(peer, "words"));
  auto stream = Require(Stream::Create(c));
  REQUIRE_OK(
      Launch({1, 1}, stream, WriteTo, c.device_context(), peer, theirs.symmetric(), uint64_t{1}));
  REQUIRE_OK(stream.Synchronize());
  REQUIRE_OK(c.Barrier());
  REQUIRE(words.get()[0] == 1);
  std::cout << "beside" << std::endl;
  // Nothing of this rank is there.
  REQUIRE_OK(Launch({1, 1}, stream, WriteTo, c.device_context(), c.rank(), theirs.symmetric(),
                    uint64_t{1}));
  (void)stream.Synchronize();
  return 0;
}

class LocalTest : public iris::testing::JobTest {
 protected:
  v1::ListAllocationsReply Allocations() {
    grpc::ClientContext context;
    v1::ListAllocationsReply reply;
    const grpc::Status status = daemon_->admin().ListAllocations(&context, {}, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }
};

TEST_F(LocalTest, KernelsPutIntoWhatWasOpened) {
  Run("inboxes", 3);
  Run("inboxes", 2);
}

TEST_F(LocalTest, MistakesSayWhoAndWhat) { Run("mistakes", 2); }

TEST_F(LocalTest, AllHeapsGrowForIt) { Run("growth", 2); }

TEST_F(LocalTest, AnOwnerThatDiesIsNamed) {
  RankProcesses ranks("owner_dies", 2, Ranks());
  ranks.WaitLine(0, "ready");
  ranks.WaitLine(1, "ready");
  const v1::ListAllocationsReply listed = Allocations();
  bool found = false;
  for (const v1::Allocation& each : listed.allocations()) {
    if (each.name() != "x") continue;
    found = true;
    EXPECT_TRUE(each.has_owner());
    EXPECT_EQ(each.owner(), 0u);
    EXPECT_EQ(each.n_open(), 1u);
    EXPECT_FALSE(each.freed());
    EXPECT_EQ(each.bytes(), 8000u);
    EXPECT_EQ(each.tensor().dtype(), "u64");
  }
  EXPECT_TRUE(found);
  const std::string who = absl::StrCat("rank 0 (pid ", ranks.pid(0), ")");
  ranks.Signal(0, SIGKILL);
  for (const char* what : {"open ", "close ", "allocate "}) {
    EXPECT_THAT(ranks.WaitLine(1, what), AllOf(HasSubstr("ABORTED"), HasSubstr(who)));
  }
  EXPECT_EQ(ranks.Wait(1), 0) << ranks.Output(1);
}

TEST_F(LocalTest, WhatAnOwnerLeavesBehindStays) {
  RankProcesses ranks("owner_leaves", 2, Ranks());
  ranks.WaitLine(0, "ready");
  ranks.WaitLine(1, "ready");
  ranks.Tell(0, "leave");
  ranks.WaitLine(0, "left");
  ranks.Tell(1, "open");
  EXPECT_EQ(ranks.Wait(1), 0) << ranks.Output(1);
  ranks.Tell(0, "end");
  EXPECT_EQ(ranks.Wait(0), 0) << ranks.Output(0);
}

TEST_F(LocalTest, AnAccessBesideItIsFoundOut) {
  RankProcesses::Options options = Ranks();
  options.environment["IRIS_CHECK_ACCESS"] = "1";
  RankProcesses ranks("checked_access", 2, options);
  for (const int rank : {0, 1}) {
    ranks.WaitLine(rank, "beside");
    EXPECT_NE(ranks.Wait(rank), 0) << ranks.Output(rank);
    EXPECT_THAT(ranks.Output(rank), HasSubstr("WriteTo"));
  }
}

}  // namespace
}  // namespace iris

int main(int argc, char** argv) {
  return iris::testing::TestMain(argc, argv,
                                 {{"inboxes", iris::Inboxes},
                                  {"mistakes", iris::Mistakes},
                                  {"owner_dies", iris::OwnerDies},
                                  {"owner_leaves", iris::OwnerLeaves},
                                  {"growth", iris::Growth},
                                  {"checked_access", iris::CheckedAccess}});
}
