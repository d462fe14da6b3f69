// Memory that a program has allocated itself, registered and used by peers as a source and as a
// target: between real processes on a real irisd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "device/driver/testing/own_memory.h"
#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/stream.h"
#include "tests/integration/job_fixture.h"
#include "tests/integration/rank_processes.h"
#include "tests/integration/registered_buffers.h"
#include "tests/integration/require.h"

namespace iris {
namespace {

using namespace std::chrono_literals;
using iris::driver::testing::OwnMemory;
using iris::testing::kPiece;
using iris::testing::Own;
using iris::testing::RankProcesses;
using iris::testing::Require;
using iris::testing::SmallHeap;
using iris::testing::StatusOf;
using iris::testing::Text;
using ::testing::HasSubstr;

void AwaitLine() {
  std::string line;
  std::getline(std::cin, line);
}

// Opened and closed again and again, at the same places.
int OpensAndCloses(const std::vector<std::string>&) {
  Context c = Require(Context::Create(SmallHeap()));
  const uint32_t peer = 1 - c.rank();
  for (int round = 0; round < 10; ++round) {
    const auto memory = Own(c, 1);
    REQUIRE(memory != nullptr);
    const std::string name = absl::StrCat("round ", round);
    auto mine = Require(c.Register(memory->at(0), kPiece));
    REQUIRE_OK(c.Publish(mine, name));
    auto one = Require(c.Open<uint8_t>(peer, name)), two = Require(c.Open<uint8_t>(peer, name));
    REQUIRE(one.get() == two.get());
    REQUIRE_OK(c.Close(one));
    one.get()[kPiece - 1] = static_cast<uint8_t>(round + 1);  // open still
    REQUIRE_OK(c.Close(two));
    REQUIRE_OK(c.Barrier());
    REQUIRE(memory->at(0)[kPiece - 1] == round + 1);
    REQUIRE_OK(c.Free(mine));
    REQUIRE_OK(c.Barrier());
  }
  return 0;
}

int Mistakes(const std::vector<std::string>&) {
  Context c = Require(Context::Create(SmallHeap()));
  std::vector<uint8_t> own(100);
  REQUIRE_FAILS(c.Register<uint8_t>(own.data(), 100, "own"), StatusCode::kInvalidArgument,
                "register 100 bytes at 0x", "\"own\"", "copy it into the heap");
  auto heap = Require(c.Allocate<uint8_t>(100));
  REQUIRE_FAILS(c.Register<uint8_t>(heap.get(), 100), StatusCode::kInvalidArgument,
                "in the heap already");
  REQUIRE_FAILS(c.Register<uint8_t>(nullptr, 100), StatusCode::kInvalidArgument, "no memory");
  const auto memory = Own(c, 1);
  REQUIRE(memory != nullptr);
  REQUIRE_FAILS(c.Register<uint8_t>(memory->at(0), 0), StatusCode::kInvalidArgument, "no memory");
  REQUIRE_FAILS(c.Register<uint8_t>(memory->at(0), 1, std::string(200, 'x')),
                StatusCode::kInvalidArgument, "128");
  REQUIRE_FAILS(c.Register<uint8_t>(memory->at(0), 1, "iris.x"), StatusCode::kInvalidArgument,
                "irisd's own");
  Require(c.Register<uint8_t>(memory->at(100), 10, "mine"));
  REQUIRE_FAILS(c.Register<uint8_t>(memory->at(100), 10, "mine"), StatusCode::kAlreadyExists,
                "'mine' is live");
  // The address space of the heap's growth is what there is: 160 MiB. The other rank has as much.
  REQUIRE_OK(c.Barrier());
  std::vector<std::unique_ptr<OwnMemory>> more;
  StatusCode code = StatusCode::kOk;
  for (int i = 0; i < 100 && code == StatusCode::kOk; ++i) {
    more.push_back(Own(c, 1));
    const auto one = c.Register<uint8_t>(more.back()->at(0), kPiece);
    code = one.status().code();
    if (!one.ok()) std::cout << Text(one.status()) << std::endl;
  }
  REQUIRE(code == StatusCode::kResourceExhausted);
  REQUIRE_OK(c.Barrier());
  return 0;
}

// Rank 0 has something that rank 1 writes into, until the test has it killed.
int OwnerDies(const std::vector<std::string>&) {
  Context c = Require(Context::Create(SmallHeap()));
  if (c.rank() == 0) {
    const auto memory = Own(c, 1);
    REQUIRE(memory != nullptr);
    REQUIRE_OK(c.Register<uint8_t>(memory->at(0), 4096, "x"));
    memory->at(0)[5] = 55;
    REQUIRE_OK(c.Barrier());
    std::cout << "ready" << std::endl;
    AwaitLine();
    return 0;
  }
  auto x = Require(c.Open<uint8_t>(0, "x"));
  REQUIRE_OK(c.Barrier());
  std::cout << "ready" << std::endl;
  AwaitLine();
  REQUIRE(x.get()[5] == 55);  // it stays as long as somebody has it mapped
  x.get()[6] = 1;
  std::cout << "close " << Text(c.Close(x)) << std::endl;
  return 0;
}

// Rank 1 is killed while the others wait for it, before or after all have registered.
int MemberDies(const std::vector<std::string>& arguments) {
  Context c = Require(Context::Create(SmallHeap()));
  const auto memory = Own(c, 1);
  REQUIRE(memory != nullptr);
  const bool before = arguments.at(0) == "before";
  StatusOr<Array<uint8_t>> x = Array<uint8_t>();
  if (!before) {
    x = c.RegisterSymmetric<uint8_t>(memory->at(0), 4096, "x");
    REQUIRE_OK(x);
    memory->at(0)[5] = 55;
    REQUIRE_OK(c.Barrier());
  }
  std::cout << "ready" << std::endl;
  if (c.rank() == 1) {
    AwaitLine();
    return 0;
  }
  if (before) {
    x = c.RegisterSymmetric<uint8_t>(memory->at(0), 4096, "x");
    std::cout << "register " << Text(x.status()) << std::endl;
    REQUIRE(x.status().code() == StatusCode::kAborted);
    return 0;
  }
  AwaitLine();
  // What is mapped stays, until it is given back or the job ends.
  REQUIRE(c.Translate(1, x->get())[5] == 55);
  const Status freed = c.Free(*x);
  REQUIRE(c.Translate(1, x->get())[5] == 55);
  std::cout << "free " << Text(freed) << std::endl;
  return 0;
}

// Every rank registers memory in as many pieces as the arguments say, and as often, at the same
// time as the others. Then it frees it, and does that again.
int ManyPieces(const std::vector<std::string>& arguments) {
  const uint32_t n_pieces = static_cast<uint32_t>(std::stoul(arguments.at(0)));
  ContextOptions options = SmallHeap();
  options.max_heap_bytes = 4ull << 30;  // above the heap all ranks' memory has its place
  Context c = Require(Context::Create(options));
  std::vector<std::unique_ptr<OwnMemory>> memory;
  for (int i = std::stoi(arguments.at(1)); i > 0; --i) {
    REQUIRE(memory.emplace_back(Own(c, n_pieces)) != nullptr);
  }
  REQUIRE_OK(c.Barrier());
  for (int round = 0; round < 4; ++round) {
    std::vector<Array<uint8_t>> registered;
    for (const auto& each : memory) {
      registered.push_back(Require(c.Register<uint8_t>(each->at(0), n_pieces * kPiece)));
    }
    for (const auto& each : registered) REQUIRE_OK(c.Free(each));
  }
  REQUIRE_OK(c.Barrier());
  return 0;
}

using RegisterTest = iris::testing::JobTest;

TEST_F(RegisterTest, PeersPutIntoItAndGetFromIt) {
  Run("buffers", 1);
  Run("buffers", 2);
  Run("buffers", 3);
}

TEST_F(RegisterTest, TogetherItIsAsWhatTheHeapHas) {
  Run("together", 2);
  Run("together", 3);
  // Nothing is left of it but what the jobs had, and they are over.
  grpc::ClientContext context;
  v1::ListAllocationsReply listed;
  ASSERT_TRUE(daemon_->admin().ListAllocations(&context, {}, &listed).ok());
  EXPECT_EQ(listed.allocations_size(), 0);
}

TEST_F(RegisterTest, WhoWaitsForADeadMemberIsToldSo) {
  for (const std::string step : {"before", "after"}) {
    RankProcesses::Options options = Ranks();
    options.job = step;
    options.args = {step};
    RankProcesses ranks("member_dies", 3, options);
    for (int rank = 0; rank < 3; ++rank) ranks.WaitLine(rank, "ready");
    const std::string who = absl::StrCat("rank 1 (pid ", ranks.pid(1), ")");
    ranks.Signal(1, SIGKILL);
    ranks.Wait(1);
    for (const int rank : {0, 2}) {
      if (step == "after") ranks.Tell(rank, "go on");
      EXPECT_THAT(ranks.WaitLine(rank, step == "after" ? "free " : "register "), HasSubstr(who));
      EXPECT_EQ(ranks.Wait(rank), 0) << ranks.Output(rank);
    }
  }
}

TEST_F(RegisterTest, IsMappedWhileItIsOpen) { Run("opens_and_closes", 2); }

// irisd closes what was registered as fast as it comes, or lets ranks wait: none loses its session.
TEST_F(RegisterTest, ManyPiecesAtOnceCostNobodyASession) {
  struct Case {
    uint64_t max_open_files;
    int n_ranks, n_pieces, times;
    std::vector<std::string> flags;
  };
  // The last one has a limit of less than one frame brings.
  for (const Case& each : {Case{1024, 1, 32, 2, {}}, Case{20'000, 8, 128, 1, {}},
                           Case{20'000, 8, 128, 1, {"--max-closing-per-tenant", "100"}}}) {
    auto daemon =
        iris::testing::Daemon::Start({.flags = each.flags, .max_open_files = each.max_open_files});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    RankProcesses::Options options = Ranks();
    options.args = {absl::StrCat(each.n_pieces), absl::StrCat(each.times)};
    RankProcesses ranks("many_pieces", each.n_ranks, options);
    ranks.ExpectAllSucceed();
    EXPECT_THAT(daemon_->Log(), ::testing::Not(HasSubstr("session ended")))
        << each.n_ranks << " ranks";
  }
}

TEST_F(RegisterTest, MistakesSayWhatAndTheRemedy) { Run("mistakes", 2); }

TEST_F(RegisterTest, StaysMappedWhenItsOwnerDies) {
  RankProcesses ranks("owner_dies", 2, Ranks());
  ranks.WaitLine(0, "ready");
  ranks.WaitLine(1, "ready");
  grpc::ClientContext context;
  v1::ListAllocationsReply listed;
  ASSERT_TRUE(daemon_->admin().ListAllocations(&context, {}, &listed).ok());
  bool found = false;
  for (const v1::Allocation& each : listed.allocations()) {
    if (each.name() != "x") continue;
    found = true;
    EXPECT_TRUE(each.registered());
    EXPECT_EQ(each.owner(), 0u);
    EXPECT_EQ(each.n_open(), 1u);
    // Others read it from outside.
    grpc::ClientContext peek_context;
    v1::PeekRequest request;
    request.set_job(each.job());
    request.set_rank(0);
    request.set_offset_bytes(each.offset_bytes() + 5);
    request.set_bytes(1);
    v1::PeekReply peeked;
    const grpc::Status status = daemon_->admin().Peek(&peek_context, request, &peeked);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(peeked.data(), std::string(1, '\x37'));
  }
  EXPECT_TRUE(found);
  const std::string who = absl::StrCat("rank 0 (pid ", ranks.pid(0), ")");
  ranks.Signal(0, SIGKILL);
  ranks.Wait(0);
  ranks.Tell(1, "go on");
  EXPECT_THAT(ranks.WaitLine(1, "close "), HasSubstr(who));
  EXPECT_EQ(ranks.Wait(1), 0) << ranks.Output(1);
}

}  // namespace
}  // namespace iris

int main(int argc, char** argv) {
  return iris::testing::TestMain(
      argc, argv,
      {{"buffers", [](const auto&) { return iris::testing::RegisteredBuffers(); }},
       {"together", [](const auto&) { return iris::testing::RegisteredTogether(); }},
       {"member_dies", iris::MemberDies},
       {"opens_and_closes", iris::OpensAndCloses},
       {"many_pieces", iris::ManyPieces},
       {"mistakes", iris::Mistakes},
       {"owner_dies", iris::OwnerDies}});
}
