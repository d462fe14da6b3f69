// iris::ccl::Communicator with ranks that are real processes, on a real irisd: results, and what
// its errors say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <iostream>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "iris/ccl.h"
#include "tests/integration/job_fixture.h"
#include "tests/integration/rank_processes.h"
#include "tests/integration/require.h"

namespace iris::ccl {
namespace {

using iris::testing::RankProcesses;
using iris::testing::Text;
using ::testing::HasSubstr;

ContextOptions Small() {
  ContextOptions options;
  options.heap_bytes = 32 << 20;
  options.timeout = std::chrono::seconds(60);
  return options;
}

void WaitForLine(const std::string& wanted) {
  for (std::string line; std::getline(std::cin, line);) {
    if (line == wanted) return;
  }
}

int Results(const std::vector<std::string>&) {
  auto context = Context::Create(Small());
  REQUIRE_OK(context);
  const uint32_t n = context->n_ranks(), me = context->rank();
  auto stream = Stream::Create(*context);
  REQUIRE_OK(stream);
  auto comm = Communicator::Create(*context, context->world(), {.name = "workspace"});
  REQUIRE_OK(comm);
  auto x = context->Allocate({.bytes = 1 << 20});
  REQUIRE_OK(x);
  for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{1000}, uint64_t{100000}}) {
    for (const Variant variant : {Variant::kOneShot, Variant::kTwoShot, Variant::kAuto}) {
      float* data = x->As<float>();
      for (uint64_t i = 0; i < count; ++i) data[i] = static_cast<float>(me + i % 7);
      REQUIRE_OK(comm->AllReduce(data, data, count, DType::kF32, ReduceOp::kSum, *stream, variant));
      REQUIRE_OK(comm->Synchronize(*stream));
      const float ranks = static_cast<float>(n * (n - 1)) / 2;
      for (uint64_t i = 0; i < count; ++i) {
        REQUIRE(data[i] == ranks + static_cast<float>(n * (i % 7)));
      }
    }
  }
  // Memory outside the heap as well.
  std::vector<int32_t> mine(100, static_cast<int32_t>(me)), all(100 * n);
  REQUIRE_OK(comm->AllGather(mine.data(), all.data(), 100, DType::kI32, *stream));
  REQUIRE_OK(comm->Synchronize(*stream));
  for (uint32_t r = 0; r < n; ++r) REQUIRE(all[r * 100 + 50] == static_cast<int32_t>(r));
  std::vector<int64_t> value(1000, me == n - 1 ? 77 : 0);
  REQUIRE_OK(
      comm->Broadcast(value.data(), value.data(), value.size(), DType::kI64, n - 1, *stream));
  REQUIRE_OK(comm->Barrier(*stream));
  REQUIRE_OK(comm->Synchronize(*stream));
  for (const int64_t v : value) REQUIRE(v == 77);
  REQUIRE(comm->Broadcast(value.data(), value.data(), 1, DType::kI64, 99, *stream).code() ==
          StatusCode::kInvalidArgument);
  REQUIRE_OK(comm->Destroy());
  REQUIRE(comm->Barrier(*stream).code() == StatusCode::kFailedPrecondition);
  REQUIRE(comm->Destroy().code() == StatusCode::kFailedPrecondition);
  // The workspace is free again, and its name too.
  comm = Communicator::Create(*context, context->world(), {.name = "workspace"});
  REQUIRE_OK(comm);
  REQUIRE_OK(comm->Barrier(*stream));
  REQUIRE_OK(comm->Synchronize(*stream));
  return 0;
}

int TeamOfSome(const std::vector<std::string>&) {
  auto context = Context::Create(Small());
  REQUIRE_OK(context);
  const uint32_t me = context->rank();
  auto team = context->CreateTeam({2, 0});
  REQUIRE_OK(team);
  auto made = Communicator::Create(*context, *team);
  if (!team->member()) {
    REQUIRE(made.status().code() == StatusCode::kFailedPrecondition);
  } else {
    REQUIRE_OK(made);
    auto stream = Stream::Create(*context);
    REQUIRE_OK(stream);
    std::vector<double> mine(10, me), all(20);
    REQUIRE_OK(made->AllGather(mine.data(), all.data(), 10, DType::kF64, *stream));
    REQUIRE_OK(made->Synchronize(*stream));
    REQUIRE(all[0] == 2 && all[10] == 0);  // in team order
    REQUIRE(made->Broadcast(mine.data(), mine.data(), 1, DType::kF64, 1, *stream).code() ==
            StatusCode::kInvalidArgument);
    REQUIRE_OK(made->Destroy());
  }
  REQUIRE_OK(context->Barrier());
  return 0;
}

// Rank 1 does not take part: the others are told who, and go on after a reset.
int Missing(const std::vector<std::string>&) {
  auto context = Context::Create(Small());
  REQUIRE_OK(context);
  CommunicatorOptions options;
  options.timeout = std::chrono::milliseconds(200);
  auto comm = Communicator::Create(*context, context->world(), options);
  REQUIRE_OK(comm);
  auto stream = Stream::Create(*context);
  REQUIRE_OK(stream);
  std::vector<float> x(100, 1);
  if (context->rank() != 1) {
    REQUIRE_OK(comm->AllReduce(x.data(), x.data(), x.size(), DType::kF32, ReduceOp::kSum, *stream));
    std::cout << "error " << Text(comm->Synchronize(*stream)) << std::endl;
    REQUIRE(!comm->Check().ok());  // it stays
    std::cout << "later "
              << Text(comm->AllReduce(x.data(), x.data(), x.size(), DType::kF32, ReduceOp::kSum,
                                      *stream))
              << std::endl;
  }
  REQUIRE_OK(context->Barrier());
  REQUIRE_OK(comm->Reset());
  REQUIRE_OK(comm->Check());
  std::fill(x.begin(), x.end(), 1.0f);
  REQUIRE_OK(comm->AllReduce(x.data(), x.data(), x.size(), DType::kF32, ReduceOp::kSum, *stream));
  // Generously: what counts is that it works again.
  const Status again = comm->Synchronize(*stream);
  std::cout << "again " << Text(again) << std::endl;
  return 0;
}

// Rank 0 gives up and resets, while what rank 1 calls is still to come and to fail.
int ResetEarly(const std::vector<std::string>&) {
  auto context = Context::Create(Small());
  REQUIRE_OK(context);
  CommunicatorOptions options;
  options.timeout = std::chrono::seconds(2);
  auto comm = Communicator::Create(*context, context->world(), options);
  REQUIRE_OK(comm);
  auto stream = Stream::Create(*context);
  REQUIRE_OK(stream);
  const auto reduce = [&](std::vector<float>& x) {
    const Status status = comm->AllReduce(x.data(), x.data(), x.size(), DType::kF32, ReduceOp::kSum,
                                          *stream, Variant::kPackets);
    return status.ok() ? comm->Synchronize(*stream) : status;
  };
  std::vector<float> stale(100, 7), x(100, 1);
  if (context->rank() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    REQUIRE(reduce(stale).code() == StatusCode::kDeadlineExceeded);
  }
  REQUIRE_OK(comm->Reset());
  // What rank 0 takes now must not be what rank 1 sent before.
  if (context->rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  REQUIRE_OK(reduce(x));
  for (const float sum : x) REQUIRE(sum == 2);
  return 0;
}

int Killed(const std::vector<std::string>&) {
  auto context = Context::Create(Small());
  REQUIRE_OK(context);
  auto comm = Communicator::Create(*context, context->world());
  REQUIRE_OK(comm);
  auto stream = Stream::Create(*context);
  REQUIRE_OK(stream);
  std::cout << "ready" << std::endl;
  if (context->rank() == 2) WaitForLine("never");
  std::vector<float> x(100, 1);
  REQUIRE_OK(comm->AllReduce(x.data(), x.data(), x.size(), DType::kF32, ReduceOp::kSum, *stream));
  std::cout << "error " << Text(comm->Synchronize(*stream)) << std::endl;
  return 0;
}

// Rank 2 calls something else, and everybody is told so in the same words.
int Differs(const std::vector<std::string>&) {
  auto context = Context::Create(Small());
  REQUIRE_OK(context);
  auto comm = Communicator::Create(*context, context->world());
  REQUIRE_OK(comm);
  auto stream = Stream::Create(*context);
  REQUIRE_OK(stream);
  std::vector<int32_t> x(1024, 1);
  if (context->rank() == 2) {
    REQUIRE_OK(comm->Broadcast(x.data(), x.data(), 512, DType::kF32, 1, *stream));
  } else {
    REQUIRE_OK(comm->AllReduce(x.data(), x.data(), 1024, DType::kI32, ReduceOp::kMax, *stream,
                               Variant::kOneShot));
  }
  std::cout << "error " << Text(comm->Synchronize(*stream)) << std::endl;
  REQUIRE_OK(context->Barrier());
  REQUIRE_OK(comm->Reset());
  REQUIRE_OK(comm->Barrier(*stream));
  REQUIRE_OK(comm->Synchronize(*stream));
  return 0;
}

// All send first, by SendRecv and in groups, and what a group refuses.
int Rings(const std::vector<std::string>&) {
  auto context = Context::Create(Small());
  REQUIRE_OK(context);
  const uint32_t n = context->n_ranks(), me = context->rank();
  const uint32_t next = (me + 1) % n, previous = (me + n - 1) % n;
  auto stream = Stream::Create(*context);
  REQUIRE_OK(stream);
  auto other = Stream::Create(*context);
  REQUIRE_OK(other);
  auto comm = Communicator::Create(*context);
  REQUIRE_OK(comm);
  constexpr uint64_t kCount = 50'000;
  auto heap = context->Allocate({.bytes = 2 * kCount * 4});
  REQUIRE_OK(heap);
  std::vector<int32_t> apart(2 * kCount);
  for (int32_t* const data : {heap->As<int32_t>(), apart.data()}) {
    int32_t* const out = data + kCount;
    for (const uint64_t count : {uint64_t{1}, uint64_t{777}, kCount}) {
      for (uint64_t i = 0; i < count; ++i) data[i] = static_cast<int32_t>(me * 1000 + i);
      const auto right = [&](uint64_t from, uint64_t to) {
        for (uint64_t i = from; i < to; ++i) {
          if (out[i] != static_cast<int32_t>(previous * 1000 + i)) return false;
        }
        return true;
      };
      std::fill(out, out + count, -1);
      REQUIRE_OK(comm->SendRecv(data, count, next, out, count, previous, *stream));
      REQUIRE_OK(comm->Synchronize(*stream));
      REQUIRE(right(0, count));
      std::fill(out, out + count, -1);
      // Two messages to the same rank arrive in their order.
      const uint64_t half = count / 2;
      REQUIRE_OK(comm->GroupStart());
      REQUIRE_OK(comm->Send(data, half, next, *stream));
      REQUIRE_OK(comm->Send(data + half, count - half, next, *stream));
      REQUIRE_OK(comm->Recv(out, half, previous, *stream));
      REQUIRE_OK(comm->Recv(out + half, count - half, previous, *stream));
      REQUIRE_OK(comm->GroupEnd());
      REQUIRE_OK(comm->Synchronize(*stream));
      REQUIRE(right(0, count));
    }
  }
  // A group takes nothing else, and none of it starts after an error.
  int32_t* const data = heap->As<int32_t>();
  const auto refused = [](const Status& status, const char* text) {
    if (!status.ok() && Text(status).find(text) != std::string::npos) return true;
    std::cout << "not refused: " << Text(status) << std::endl;
    return false;
  };
  REQUIRE(refused(comm->GroupEnd(), "is open: begin it with GroupStart()"));
  REQUIRE_OK(comm->GroupStart());
  REQUIRE(refused(comm->GroupStart(), "a group of this communicator is open"));
  REQUIRE(refused(comm->Barrier(*stream), "takes send and recv alone"));
  REQUIRE(refused(comm->Synchronize(*stream), "takes send and recv alone"));
  REQUIRE(refused(comm->SendRecv(data, 1, next, data + 1, 1, previous, *stream), "is open"));
  REQUIRE_OK(comm->Check());
  REQUIRE_OK(comm->GroupEnd());  // nothing was kept
  REQUIRE_OK(comm->GroupStart());
  REQUIRE_OK(comm->Send(data, 1, next, *stream));
  REQUIRE(refused(comm->Recv(data + 1, 1, previous, *other), "different streams"));
  REQUIRE(refused(comm->GroupEnd(), "different streams"));
  REQUIRE_OK(comm->GroupStart());
  REQUIRE(refused(comm->Send(data, 1, 99, *stream), "rank 99 is not one of the team"));
  REQUIRE_OK(comm->Recv(data + 1, 1, previous, *stream));
  REQUIRE(refused(comm->GroupEnd(), "rank 99 is not one of the team"));
  REQUIRE(refused(comm->SendRecv(data, 1, 99, data + 1, 1, previous, *stream), "rank 99"));
  REQUIRE_OK(comm->GroupStart());
  {
    auto gone = Stream::Create(*context);
    REQUIRE_OK(gone);
    REQUIRE_OK(comm->Send(data, 1, next, *gone));
    REQUIRE_OK(comm->Recv(data + 1, 1, previous, *gone));
  }
  REQUIRE(refused(comm->GroupEnd(), "stream"));
  REQUIRE_OK(comm->Barrier(*stream));
  REQUIRE_OK(comm->Synchronize(*stream));
  REQUIRE_OK(comm->Destroy());
  return 0;
}

class CollectivesTest : public iris::testing::JobTest {};

class CollectivesRanksTest : public CollectivesTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, CollectivesRanksTest, ::testing::Values(1, 2, 4));

TEST_P(CollectivesRanksTest, ResultsAreRight) { Run("results", GetParam()); }

TEST_P(CollectivesRanksTest, AllSendFirst) { Run("rings", GetParam()); }

TEST_F(CollectivesTest, TeamOfSomeRanks) { Run("team_of_some", 3); }

TEST_F(CollectivesTest, MissingRankIsNamedAndResetGoesOn) {
  RankProcesses ranks("missing", 2, Ranks());
  const std::string error = ranks.WaitLine(0, "error ");
  EXPECT_THAT(error, HasSubstr("DEADLINE_EXCEEDED"));
  EXPECT_THAT(error, HasSubstr("all_reduce #0 of 2 ranks: "));
  EXPECT_THAT(error, HasSubstr(absl::StrCat("rank 1 (pid ", ranks.pid(1), ")")));
  // The calls by their names in C++.
  EXPECT_THAT(ranks.WaitLine(0, "later "),
              HasSubstr("failed: Check() says which and why, Reset() makes it usable again"));
  ranks.ExpectAllSucceed();
}

TEST_F(CollectivesTest, ResetWaitsForWhatOthersStillCall) { Run("reset_early", 2); }

TEST_F(CollectivesTest, CallsThatDifferAreNamedAlikeOnAllRanks) {
  RankProcesses ranks("differs", 4, Ranks());
  for (int r = 0; r < 4; ++r) {
    const std::string error = ranks.WaitLine(r, "error ");
    EXPECT_THAT(error, HasSubstr("INVALID_ARGUMENT: all_reduce #0: rank 2 called broadcast("
                                 "count=512, type=f32, root=1, variant=packets, blocks="));
    EXPECT_THAT(error, HasSubstr("), ranks 0, 1 and 3 called all_reduce(count=1024, type=i32, "
                                 "op=max, variant=packets, blocks="));
    EXPECT_THAT(error, HasSubstr(absl::StrCat("; rank 2 is pid ", ranks.pid(2))));
  }
  ranks.ExpectAllSucceed();
}

TEST_F(CollectivesTest, KilledRankIsNamed) {
  RankProcesses ranks("killed", 4, Ranks());
  for (int r = 0; r < 4; ++r) ranks.WaitLine(r, "ready");
  grpc::ClientContext context;
  v1::ListAllocationsReply listed;
  ASSERT_TRUE(daemon_->admin().ListAllocations(&context, {}, &listed).ok());
  int workspaces = 0;
  for (const v1::Allocation& allocation : listed.allocations()) {
    workspaces += allocation.name() == "(workspace of a communicator)" ? 1 : 0;
  }
  EXPECT_EQ(workspaces, 1) << listed.DebugString();
  ExpectTheKilledIsNamed(ranks, 2, "all_reduce");
}

}  // namespace
}  // namespace iris::ccl

int main(int argc, char** argv) {
  return iris::testing::TestMain(argc, argv,
                                 {{"results", iris::ccl::Results},
                                  {"team_of_some", iris::ccl::TeamOfSome},
                                  {"missing", iris::ccl::Missing},
                                  {"killed", iris::ccl::Killed},
                                  {"differs", iris::ccl::Differs},
                                  {"rings", iris::ccl::Rings},
                                  {"reset_early", iris::ccl::ResetEarly}});
}
