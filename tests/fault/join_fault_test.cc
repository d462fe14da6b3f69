// Bad joins and bad operations: wrong numbers, wrong names, ranks that disagree, ranks that are
// somebody else's, and processes that die between any two steps.
#include <signal.h>

#include <future>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "tests/fault/fault_fixture.h"

namespace iris::testing {
namespace {

using iris::v1::JoinRequest;

struct BadJoin {
  const char* name;
  void (*spoil)(JoinRequest&);
  absl::StatusCode code;
  const char* says;
};

class BadJoinTest : public FaultTest, public ::testing::WithParamInterface<BadJoin> {};

TEST_P(BadJoinTest, IsRefusedWithAReason) {
  auto session = OpenSession();
  JoinRequest request = session->JoinRequest("bad", 0, 2);
  GetParam().spoil(request);
  auto joined = session->Join(request);
  EXPECT_EQ(joined.status().code(), GetParam().code) << joined.status();
  EXPECT_TRUE(absl::StrContains(joined.status().message(), GetParam().says)) << joined.status();
  // The same session is still good for a correct join.
  JoinRequest good = session->JoinRequest("good", 0, 1);
  EXPECT_TRUE(session->Join(good).ok());
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

INSTANTIATE_TEST_SUITE_P(
    Joins, BadJoinTest,
    ::testing::Values(
        BadJoin{"rank_at_n", [](JoinRequest& r) { r.set_rank(2); }, kInvalid, "rank"},
        BadJoin{"rank_far_beyond_n", [](JoinRequest& r) { r.set_rank(2'000'000'000); }, kInvalid,
                "rank"},
        BadJoin{"negative_rank", [](JoinRequest& r) { r.set_rank(-1); }, kInvalid, "rank"},
        BadJoin{"no_ranks", [](JoinRequest& r) { r.set_n_ranks(0); }, kInvalid, "ranks"},
        BadJoin{"negative_ranks", [](JoinRequest& r) { r.set_n_ranks(-4); }, kInvalid, "ranks"},
        BadJoin{"too_many_ranks", [](JoinRequest& r) { r.set_n_ranks(65); }, kInvalid, "ranks"},
        BadJoin{"zero_heap", [](JoinRequest& r) { r.set_heap_bytes(0); }, kInvalid, "heap"},
        BadJoin{"negative_heap",
                [](JoinRequest& r) { r.set_heap_bytes(static_cast<uint64_t>(-4096)); }, kInvalid,
                "heap"},
        BadJoin{"huge_heap",
                [](JoinRequest& r) { r.set_heap_bytes(std::numeric_limits<uint64_t>::max()); },
                kInvalid, "heap"},
        BadJoin{"heap_beyond_the_device", [](JoinRequest& r) { r.set_heap_bytes(1ull << 38); },
                kExhausted, "free"},
        BadJoin{"max_heap_below_heap",
                [](JoinRequest& r) {
                  r.set_heap_bytes(8 << 20);
                  r.set_max_heap_bytes(4 << 20);
                },
                kInvalid, "max_heap"},
        BadJoin{"huge_max_heap",
                [](JoinRequest& r) { r.set_max_heap_bytes(std::numeric_limits<uint64_t>::max()); },
                kInvalid, "max_heap"},
        BadJoin{"huge_sync_area",
                [](JoinRequest& r) { r.set_team_sync_bytes(std::numeric_limits<uint64_t>::max()); },
                kInvalid, "sync"},
        BadJoin{"empty_name", [](JoinRequest& r) { r.set_job(""); }, kInvalid, "name"},
        BadJoin{"control_characters", [](JoinRequest& r) { r.set_job("a\n\x1b[31mb"); }, kInvalid,
                "name"},
        BadJoin{"nul_in_name", [](JoinRequest& r) { r.set_job(std::string("a\0b", 3)); }, kInvalid,
                "name"},
        BadJoin{"name_of_1_mib", [](JoinRequest& r) { r.set_job(std::string(1 << 20, 'x')); },
                kInvalid, "name"},
        BadJoin{"unknown_device", [](JoinRequest& r) { r.set_device_uuid("EMU-nowhere"); },
                kInvalid, "EMU-nowhere"},
        BadJoin{"device_uuid_of_1_mib",
                [](JoinRequest& r) { r.set_device_uuid(std::string(1 << 20, '\n')); }, kInvalid,
                "device"},
        BadJoin{"negative_local_rank", [](JoinRequest& r) { r.set_local_rank(-3); }, kInvalid,
                "local_rank"}),
    [](const auto& test) { return test.param.name; });

class JoinFaultTest : public FaultTest {};

TEST_F(JoinFaultTest, ASizeThatIsNotGranularIsRoundedUp) {
  auto session = OpenSession();
  auto joined = Require(session->Join(session->JoinRequest("round", 0, 1, 1)));
  EXPECT_EQ(joined.heap_bytes(), joined.granularity_bytes());
}

TEST_F(JoinFaultTest, RanksThatDisagreeAboutTheirNumberAreNamed) {
  auto first = OpenSession(), second = OpenSession();
  auto waiting =
      std::async(std::launch::async, [&] { return first->Join(first->JoinRequest("odd", 0, 2)); });
  // Until the first is in, the second cannot disagree.
  while (daemon_->ListJobs()->jobs_size() == 0) {
  }
  auto odd = second->Join(second->JoinRequest("odd", 1, 3));
  EXPECT_EQ(odd.status().code(), absl::StatusCode::kInvalidArgument) << odd.status();
  EXPECT_TRUE(absl::StrContains(odd.status().message(), "n_ranks")) << odd.status();
  const absl::Status told = waiting.get().status();
  EXPECT_EQ(told.code(), absl::StatusCode::kInvalidArgument) << told;
  EXPECT_TRUE(absl::StrContains(told.message(), "rank 1 (pid ")) << told;
}

TEST_F(JoinFaultTest, ARankThatIsTakenNamesItsHolder) {
  auto first = OpenSession(), second = OpenSession(), third = OpenSession();
  auto waiting = std::async(std::launch::async,
                            [&] { return first->Join(first->JoinRequest("twice", 0, 2)); });
  while (daemon_->ListJobs()->jobs_size() == 0) {
  }
  auto again = second->Join(second->JoinRequest("twice", 0, 2));
  EXPECT_EQ(again.status().code(), absl::StatusCode::kAlreadyExists) << again.status();
  EXPECT_TRUE(absl::StrContains(again.status().message(), absl::StrCat(::getpid())))
      << again.status();
  EXPECT_TRUE(third->Join(third->JoinRequest("twice", 1, 2)).ok());
  EXPECT_TRUE(waiting.get().ok());
}

TEST_F(JoinFaultTest, AJoinThatNobodyFollowsNamesTheMissing) {
  auto session = OpenSession();
  JoinRequest request = session->JoinRequest("lonely", 1, 4);
  request.set_timeout_ms(200);
  auto joined = session->Join(request);
  EXPECT_EQ(joined.status().code(), absl::StatusCode::kDeadlineExceeded) << joined.status();
  for (const char* missing : {"0", "2", "3"}) {
    EXPECT_TRUE(absl::StrContains(joined.status().message(), missing)) << joined.status();
  }
}

TEST_F(JoinFaultTest, ARankThatNeverReadsItsDescriptorsFailsTheJobByName) {
  TearDown();
  StartDaemon({.flags = {"--map-timeout", "500ms"}});
  auto reader = OpenSession(), sleeper = OpenSession();
  auto other = std::async(std::launch::async,
                          [&] { return sleeper->Join(sleeper->JoinRequest("sleepy", 1, 2)); });
  auto joined = Require(reader->Join(reader->JoinRequest("sleepy", 0, 2)));
  ASSERT_TRUE(other.get().ok());
  ASSERT_TRUE(reader->ReceiveDescriptors(5).ok());
  auto mapped = reader->Mapped(joined);
  EXPECT_FALSE(mapped.ok());
  EXPECT_TRUE(absl::StrContains(mapped.status().message(), "rank 1")) << mapped.status();
}

TEST_F(JoinFaultTest, ARankThatCannotMapFailsEveryMappedWithItsReason) {
  auto first = OpenSession(), second = OpenSession();
  auto other = std::async(std::launch::async,
                          [&] { return second->Join(second->JoinRequest("nomap", 1, 2)); });
  auto joined = Require(first->Join(first->JoinRequest("nomap", 0, 2)));
  auto joined_second = Require(other.get());
  auto waiting = std::async(std::launch::async, [&] { return first->Mapped(joined); });
  (void)second->Mapped(joined_second, 0, "no address space left\nfor this");
  auto mapped = waiting.get();
  EXPECT_EQ(mapped.status().code(), absl::StatusCode::kAborted) << mapped.status();
  EXPECT_TRUE(absl::StrContains(mapped.status().message(), "rank 1")) << mapped.status();
  EXPECT_TRUE(absl::StrContains(mapped.status().message(), "no address space left"))
      << mapped.status();
}

TEST_F(JoinFaultTest, ANotMyErrorTextOfAMebibyteIsBounded) {
  auto joined = JoinAlone("text");
  (void)joined.session->Mapped(joined.reply, 0, std::string(1 << 20, 'e'));
  ServeOneClient();
}

TEST_F(JoinFaultTest, NamingAnotherSessionIsRefused) {
  auto owner = JoinAlone("mine");
  auto thief = OpenSession();
  JoinRequest request = thief->JoinRequest("mine2", 0, 1);
  request.set_session_id(owner.session->id());
  EXPECT_EQ(thief->Join(request).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(JoinFaultTest, NamingAnotherSessionsJobIsRefused) {
  auto owner = JoinAlone("owner");
  auto thief = JoinAlone("thief");
  auto stolen = thief.session->Allocate(owner.reply, 0, 4096);
  EXPECT_EQ(stolen.status().code(), absl::StatusCode::kPermissionDenied) << stolen.status();
  EXPECT_EQ(thief.session->Leave(owner.reply).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(thief.session->Mapped(owner.reply).status().code(),
            absl::StatusCode::kPermissionDenied);
}

TEST_F(JoinFaultTest, HeapCallsOnTheAdminSocketAreRefusedWithAHint) {
  auto channel =
      grpc::CreateChannel("unix:" + daemon_->admin_socket(), grpc::InsecureChannelCredentials());
  auto stub = iris::v1::HeapService::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(20)));
  JoinRequest request;
  request.set_session_id(1);
  iris::v1::JoinReply reply;
  const absl::Status status = FromGrpc(stub->Join(&context, request, &reply));
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "session.sock")) << status;
}

TEST_F(JoinFaultTest, AMessageBeyondTheLimitIsRefused) {
  auto joined = JoinAlone("big");
  auto result = joined.session->Allocate(joined.reply, 0, 4096, std::string(5 << 20, 'n'));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted) << result.status();
}

struct BadAllocation {
  const char* name;
  void (*spoil)(iris::v1::AllocateOp&);
  absl::StatusCode code;
};

class BadAllocationTest : public FaultTest, public ::testing::WithParamInterface<BadAllocation> {};

TEST_P(BadAllocationTest, IsRefusedAndTheNextOneWorks) {
  auto joined = JoinAlone("alloc");
  iris::v1::OperateRequest request =
      AllocateRequestOf(joined.session->id(), joined.reply, 0, 4096, "");
  GetParam().spoil(*request.mutable_allocate());
  auto result = joined.session->Operate(request);
  EXPECT_EQ(result.status().code(), GetParam().code) << result.status();
  // Whether a malformed call consumed k or not, one of the two numbers is next.
  auto next = joined.session->Allocate(joined.reply, 1, 4096);
  if (!next.ok()) next = joined.session->Allocate(joined.reply, 0, 4096);
  EXPECT_TRUE(next.ok()) << next.status();
}

INSTANTIATE_TEST_SUITE_P(
    Allocations, BadAllocationTest,
    ::testing::Values(
        BadAllocation{"more_than_the_stride",
                      [](iris::v1::AllocateOp& op) { op.set_bytes(1ull << 40); }, kExhausted},
        BadAllocation{
            "all_the_bytes_there_are",
            [](iris::v1::AllocateOp& op) { op.set_bytes(std::numeric_limits<uint64_t>::max()); },
            kExhausted},
        BadAllocation{"alignment_of_three",
                      [](iris::v1::AllocateOp& op) { op.set_alignment_bytes(3); }, kInvalid},
        BadAllocation{"huge_alignment",
                      [](iris::v1::AllocateOp& op) { op.set_alignment_bytes(1ull << 63); },
                      kInvalid},
        BadAllocation{"control_characters",
                      [](iris::v1::AllocateOp& op) { op.set_name("weights\r\n"); }, kInvalid},
        BadAllocation{"name_of_1_mib",
                      [](iris::v1::AllocateOp& op) { op.set_name(std::string(1 << 20, 'n')); },
                      kInvalid},
        BadAllocation{"long_dtype",
                      [](iris::v1::AllocateOp& op) {
                        op.mutable_tensor()->set_dtype(std::string(1000, 'f'));
                      },
                      kInvalid},
        BadAllocation{"too_many_dimensions",
                      [](iris::v1::AllocateOp& op) {
                        for (int i = 0; i < 100'000; ++i) op.mutable_tensor()->add_shape(1);
                      },
                      kInvalid}),
    [](const auto& test) { return test.param.name; });

class OperationFaultTest : public FaultTest {
 protected:
  // A job of two ranks, both mapped.
  void JoinTwo() {
    for (int rank = 0; rank < 2; ++rank) sessions_[rank] = OpenSession();
    std::future<void> done[2];
    for (int rank = 0; rank < 2; ++rank) {
      done[rank] = std::async(std::launch::async, [this, rank] {
        RawSession& s = *sessions_[rank];
        auto joined = s.Join(s.JoinRequest("pair", rank, 2));
        ASSERT_TRUE(joined.ok()) << joined.status();
        replies_[rank] = *joined;
        ASSERT_TRUE(s.ReceiveDescriptors(5).ok());
        auto mapped = s.Mapped(*joined);
        ASSERT_TRUE(mapped.ok()) << mapped.status();
      });
    }
    for (auto& d : done) d.get();
  }

  iris::v1::OperateRequest Request(int rank, uint64_t k) {
    return OperateRequestOf(sessions_[rank]->id(), replies_[rank], k);
  }

  // Both ranks ask at once.
  std::pair<absl::Status, absl::Status> Both(const iris::v1::OperateRequest& first,
                                             const iris::v1::OperateRequest& second) {
    auto other =
        std::async(std::launch::async, [&] { return sessions_[1]->Operate(second).status(); });
    const absl::Status mine = sessions_[0]->Operate(first).status();
    return {mine, other.get()};
  }

  void TearDown() override {
    for (int rank = 0; rank < 2; ++rank) {
      if (sessions_[rank] != nullptr) sessions_[rank]->Leave(replies_[rank]).IgnoreError();
      sessions_[rank].reset();
    }
    FaultTest::TearDown();
  }

  std::unique_ptr<RawSession> sessions_[2];
  iris::v1::JoinReply replies_[2];
};

TEST_F(OperationFaultTest, AllocationsThatDifferGiveBothTheSameError) {
  JoinTwo();
  auto first = Request(0, 0), second = Request(1, 0);
  first.mutable_allocate()->set_bytes(4096);
  second.mutable_allocate()->set_bytes(8192);
  const auto [a, b] = Both(first, second);
  EXPECT_EQ(a.code(), absl::StatusCode::kInvalidArgument) << a;
  EXPECT_EQ(a, b);
  EXPECT_TRUE(absl::StrContains(a.message(), "4096")) << a;
  EXPECT_TRUE(absl::StrContains(a.message(), "8192")) << a;
  // Both are in step afterwards.
  first = Request(0, 1);
  second = Request(1, 1);
  first.mutable_allocate()->set_bytes(4096);
  second.mutable_allocate()->set_bytes(4096);
  const auto [c, d] = Both(first, second);
  EXPECT_TRUE(c.ok()) << c;
  EXPECT_TRUE(d.ok()) << d;
}

TEST_F(OperationFaultTest, AnAllocationAgainstAFreeIsAMismatch) {
  JoinTwo();
  auto first = Request(0, 0), second = Request(1, 0);
  first.mutable_allocate()->set_bytes(4096);
  second.mutable_free()->set_offset_bytes(0);
  const auto [a, b] = Both(first, second);
  EXPECT_EQ(a.code(), absl::StatusCode::kInvalidArgument) << a;
  EXPECT_EQ(a, b);
}

TEST_F(OperationFaultTest, FreeOfWhatIsNotAllocatedIsRefused) {
  JoinTwo();
  auto first = Request(0, 0), second = Request(1, 0);
  first.mutable_free()->set_offset_bytes(1 << 20);
  second.mutable_free()->set_offset_bytes(1 << 20);
  const auto [a, b] = Both(first, second);
  EXPECT_EQ(a.code(), absl::StatusCode::kInvalidArgument) << a;
  EXPECT_EQ(a, b);
}

TEST_F(OperationFaultTest, AnEmptyOperationIsRefused) {
  JoinTwo();
  EXPECT_EQ(sessions_[0]->Operate(Request(0, 0)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(OperationFaultTest, ASequenceNumberFromTheFutureIsRefused) {
  JoinTwo();
  auto request = Request(0, 17);
  request.mutable_allocate()->set_bytes(4096);
  EXPECT_EQ(sessions_[0]->Operate(request).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(OperationFaultTest, AnUnknownTeamIsRefused) {
  JoinTwo();
  auto request = Request(0, 0);
  request.set_team_id(77);
  request.mutable_allocate()->set_bytes(4096);
  EXPECT_FALSE(sessions_[0]->Operate(request).ok());
}

TEST_F(OperationFaultTest, ARankThatDoesNotAskIsNamedAndBothStayInStep) {
  JoinTwo();
  auto request = Request(0, 0);
  request.set_timeout_ms(200);
  request.mutable_allocate()->set_bytes(4096);
  const absl::Status late = sessions_[0]->Operate(request).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
  EXPECT_TRUE(absl::StrContains(late.message(), "rank 1")) << late;
  auto other = Request(1, 0);
  other.mutable_allocate()->set_bytes(4096);
  EXPECT_EQ(sessions_[1]->Operate(other).status(), late);
}

// A process that dies between any two steps.

struct Death {
  const char* step;
  const char* action;
};

class DeathTest : public FaultTest, public ::testing::WithParamInterface<Death> {};

TEST_P(DeathTest, NamesItToThePeerAndLeavesNothing) {
  auto peer = OpenSession();
  iris::v1::JoinReply member;
  auto peer_result = std::async(std::launch::async, [&]() -> absl::Status {
    JoinRequest request = peer->JoinRequest("death", 0, 2);
    request.set_timeout_ms(2'000);
    auto joined = peer->Join(request);
    if (!joined.ok()) return joined.status();
    member = *joined;
    auto descriptors = peer->ReceiveDescriptors(5);
    if (!descriptors.ok()) return absl::OkStatus();  // the job was over before they were sent
    auto mapped = peer->Mapped(*joined);
    if (!mapped.ok()) return mapped.status();
    for (uint64_t k = 0; k < 2; ++k) {
      auto allocated = peer->Allocate(*joined, k, 4096);
      if (!allocated.ok()) return allocated.status();
    }
    return absl::OkStatus();
  });
  const RunResult result =
      RunProgram({ProgramPath("tests/fault/misbehaving_client"), daemon_->session_socket(), "death",
                  "1", "2", GetParam().step, GetParam().action},
                 absl::Seconds(60));
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.output;
  const absl::Status status = peer_result.get();
  ASSERT_FALSE(status.ok());
  EXPECT_TRUE(absl::StrContains(status.message(), "rank 1") ||
              absl::StrContains(status.message(), "ranks 1") ||
              absl::StrContains(status.message(), "1"))
      << status;
  if (status.code() == absl::StatusCode::kAborted) {
    const std::string pid = result.output.substr(0, result.output.find('\n'));
    EXPECT_TRUE(absl::StrContains(status.message(), pid)) << status << " should name " << pid;
  } else {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  }
  if (member.job_id() != 0) peer->Leave(member).IgnoreError();
}

INSTANTIATE_TEST_SUITE_P(
    Steps, DeathTest,
    ::testing::Values(Death{"connect", "kill"}, Death{"hello", "kill"}, Death{"welcome", "kill"},
                      Death{"channel", "kill"}, Death{"join_sent", "kill"}, Death{"joined", "kill"},
                      Death{"descriptors", "kill"}, Death{"mapped_sent", "kill"},
                      Death{"mapped", "kill"}, Death{"allocate_sent", "kill"},
                      Death{"allocated", "kill"}, Death{"hello", "fork"}, Death{"welcome", "fork"},
                      Death{"join_sent", "fork"}, Death{"descriptors", "fork"},
                      Death{"mapped", "fork"}, Death{"allocated", "fork"}),
    [](const auto& test) { return absl::StrCat(test.param.step, "_", test.param.action); });

}  // namespace
}  // namespace iris::testing
