// What clients do while there is no irisd, and what they see afterwards: ranks that die, stop,
// join, grow and leave; clients of protocol version 1; streams; clients that break the rules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>

#include <array>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "tests/integration/require.h"
#include "tests/model/seed.h"
#include "tests/restart/frame_session.h"
#include "tests/restart/restart_fixture.h"

namespace iris {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using testing::Eventually;
using testing::FrameSession;
using ::testing::HasSubstr;
using testing::Prober;
using testing::RankProcesses;
using testing::RawSession;
using testing::Require;
using testing::Text;
using wire::CallMethod;
using wire::FrameType;

constexpr uint64_t kMiB = 1 << 20;

// Scenarios: what a rank does.

// Does what it is told, line by line, and says when it is done.
int Obeys(const std::vector<std::string>&) {
  std::unique_ptr<Context> context;
  std::vector<Array<uint64_t>> held;
  const auto run = [&](const std::string& what) -> int {
    if (what == "join" || what == "join patiently") {
      ContextOptions options;
      if (what != "join") options.connect_timeout = std::chrono::seconds(60);
      options.heap_bytes = 2 * kMiB;
      options.max_heap_bytes = 64 * kMiB;
      context = std::make_unique<Context>(Require(Context::Create(options)));
    } else if (what == "allocate") {
      auto allocated = Require(context->Allocate<uint64_t>(1000));
      held.push_back(allocated);
      for (uint64_t i = 0; i < 1000; ++i) allocated.get()[i] = context->rank() + 10 * i;
    } else if (what == "check") {
      REQUIRE_OK(context->Barrier());
      for (const Array<uint64_t>& each : held) {
        for (uint32_t peer = 0; peer < context->n_ranks(); ++peer) {
          for (uint64_t i = 0; i < 1000; ++i) {
            REQUIRE(context->Translate(peer, each.get())[i] == peer + 10 * i);
          }
        }
      }
      REQUIRE_OK(context->Barrier());
    } else if (what == "grow") {
      REQUIRE_OK(context->Grow(2 * kMiB));
    } else if (what == "broadcast") {
      const std::string value(100'000, 'b');
      REQUIRE(Require(context->Broadcast(value, 0)) == value);
    } else if (what == "fail") {  // irisd has to say soon that somebody died
      Status health = context->Health();
      for (int i = 0; i < 2000 && health.ok(); ++i) {
        absl::SleepFor(absl::Milliseconds(10));
        health = context->Health();
      }
      std::cout << "health " << Text(health) << std::endl;
    } else if (what == "healthy") {
      REQUIRE_OK(context->Health());
    } else if (what == "leave") {
      REQUIRE_OK(context->Leave());
      context.reset();
      held.clear();
    }
    return 0;
  };
  for (std::string line; std::getline(std::cin, line) && line != "end";) {
    if (const int code = run(line); code != 0) return code;
    std::cout << "done: " << line << std::endl;
  }
  return 0;
}

// Tests.

class ClientsTest : public testing::RestartFixture {
 protected:
  void SetUp() override {
    RestartFixture::SetUp();
    if (HasFatalFailure()) return;
    ASSERT_GT(Serving(), 0);
    before_ = NowHeld();
  }
  void TearDown() override {
    if (daemon_ != nullptr) {
      ExpectNoMoreHeldThan({0, before_.irisd_fds + 4, before_.irisd_memfds, before_.supervisor_fds,
                            before_.supervisor_memfds});
      // The next client is served.
      RankProcesses next("obeys", 2, Ranks("next"));
      for (const char* what : {"join", "allocate", "check", "leave", "end"}) next.TellAll(what);
      next.ExpectAllSucceed();
    }
    RestartFixture::TearDown();
  }

  // Each does it, and says so.
  void All(RankProcesses& ranks, const std::string& what) {
    ranks.TellAll(what);
    Done(ranks, what);
  }
  void Done(RankProcesses& ranks, const std::string& what) {
    for (int rank = 0; rank < ranks.n_ranks(); ++rank) ranks.WaitLine(rank, "done: " + what);
  }

  std::unique_ptr<FrameSession> OpenFrames(uint16_t version = wire::kVersionRestarts) {
    auto session = FrameSession::Open(daemon_->session_socket(), version);
    EXPECT_TRUE(session.ok()) << session.status();
    return session.ok() ? *std::move(session) : nullptr;
  }
  // One after the other, in this thread: joins and maps all ranks of a job.
  std::vector<v1::JoinReply> JoinAll(const std::vector<FrameSession*>& ranks,
                                     const std::string& job) {
    const int n = static_cast<int>(ranks.size());
    std::vector<uint64_t> calls;
    std::vector<v1::JoinReply> joined;
    for (int rank = 0; rank < n; ++rank) {
      FrameSession& session = *ranks[static_cast<size_t>(rank)];
      calls.push_back(session.Make(CallMethod::kJoin, session.JoinRequest(job, rank, n)));
    }
    for (int rank = 0; rank < n; ++rank) {
      FrameSession& session = *ranks[static_cast<size_t>(rank)];
      auto reply = session.Await<v1::JoinReply>(calls[static_cast<size_t>(rank)]);
      EXPECT_TRUE(reply.ok()) << reply.status();
      if (!reply.ok()) return {};
      EXPECT_TRUE(session.AwaitDescriptors(1 + 2 * static_cast<size_t>(n)).ok());
      session.descriptors().clear();
      joined.push_back(*reply);
    }
    calls.clear();
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      calls.push_back(
          ranks[rank]->Make(CallMethod::kMapped, ranks[rank]->MappedRequest(joined[rank])));
    }
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      auto reply = ranks[rank]->Await<v1::MappedReply>(calls[rank]);
      EXPECT_TRUE(reply.ok()) << reply.status();
    }
    return joined;
  }

  Held before_;
};

TEST_F(ClientsTest, WhoDiedMeanwhileIsToldToItsPeersAndToNobodyElse) {
  RankProcesses ranks("obeys", 3, Ranks("dies"));
  RankProcesses others("obeys", 2, Ranks("others"));
  for (const char* what : {"join", "allocate", "check"}) {
    All(ranks, what);
    All(others, what);
  }
  EndIrisd();
  const pid_t dead = ranks.pid(1);
  ranks.Signal(1, SIGKILL);
  EXPECT_EQ(ranks.Wait(1), 128 + SIGKILL);
  StartAgain();
  for (const int rank : {0, 2}) {
    ranks.Tell(rank, "fail");
    EXPECT_THAT(ranks.WaitLine(rank, "health"),
                AllOf(HasSubstr("rank 1"), HasSubstr(absl::StrCat(dead)), HasSubstr("died")));
    ranks.Tell(rank, "leave");
    ranks.WaitLine(rank, "done: leave");
  }
  for (const char* what : {"healthy", "allocate", "check", "leave"}) All(others, what);
  EXPECT_EQ(InLog("rank_dead"), 1);
}

TEST_F(ClientsTest, WhoIsStoppedOverSeveralRestartsGoesOn) {
  RankProcesses ranks("obeys", 2, Ranks("stops"));
  for (const char* what : {"join", "allocate"}) All(ranks, what);
  ranks.Signal(1, SIGSTOP);
  ranks.TellAll("allocate");
  for (int i = 0; i < 5; ++i) Restart();
  ranks.Signal(1, SIGCONT);
  Done(ranks, "allocate");
  for (const char* what : {"check", "grow", "broadcast", "healthy", "leave"}) All(ranks, what);
  ExpectNobodyWasTold();
}

TEST_F(ClientsTest, JoinsGrowthsAndLeavesGoOn) {
  RankProcesses ranks("obeys", 2, Ranks("goes-on"));
  for (int i = 0; i < 3; ++i) {
    ranks.Tell(0, "join");
    ASSERT_TRUE(Eventually([&] {
      const auto status = daemon_->GetStatus();
      return status.ok() && status->n_jobs() == 1;
    }));
    Restart();
    EndIrisd();
    ranks.Tell(1, "join");
    absl::SleepFor(absl::Milliseconds(20));
    StartAgain();
    Done(ranks, "join");
    for (const char* what : {"allocate", "grow", "broadcast", "check", "leave"}) {
      // Asked by one, by nobody and by both, when irisd ends.
      if (what != std::string("leave")) ranks.Tell(0, what);
      absl::SleepFor(absl::Milliseconds(20));
      EndIrisd();
      ranks.Tell(1, what);
      if (what == std::string("leave")) ranks.Tell(0, what);
      absl::SleepFor(absl::Milliseconds(20));
      StartAgain();
      Done(ranks, what);
    }
    ASSERT_TRUE(Eventually([&] {
      const auto status = daemon_->GetStatus();
      return status.ok() && status->n_jobs() == 0 && status->heap_bytes() == 0;
    }));
  }
  ranks.TellAll("end");
  ranks.ExpectAllSucceed();
  ExpectNobodyWasTold();
}

TEST_F(ClientsTest, WhoJoinsMeanwhileWaitsForAsLongAsItMayConnect) {
  RankProcesses ranks("obeys", 2, Ranks("patient"));
  EndIrisd();
  ranks.TellAll("join patiently");
  absl::SleepFor(absl::Seconds(6));  // longer than a handshake takes otherwise
  StartAgain();
  Done(ranks, "join patiently");
  for (const char* what : {"allocate", "check", "leave"}) All(ranks, what);
}

TEST_F(ClientsTest, WhoJoinsAndDiesMeanwhileEndsTheJoinOfOthers) {
  RankProcesses ranks("obeys", 2, Ranks("dies"));
  ranks.Tell(0, "join");
  ASSERT_TRUE(Eventually([&] {
    const auto status = daemon_->GetStatus();
    return status.ok() && status->n_jobs() == 1;
  }));
  EndIrisd();
  ranks.Signal(0, SIGKILL);
  EXPECT_EQ(ranks.Wait(0), 128 + SIGKILL);
  StartAgain();
  ASSERT_TRUE(Eventually([&] {
    const auto status = daemon_->GetStatus();
    return status.ok() && status->n_jobs() == 0;
  }));
}

TEST_F(ClientsTest, OneOutcomeWhateverIsAskedAgain) {
  auto first = OpenFrames(), second = OpenFrames();
  ASSERT_TRUE(first != nullptr && second != nullptr);
  const auto joined = JoinAll({first.get(), second.get()}, "again");
  ASSERT_EQ(joined.size(), 2u);
  // Asked by one alone.
  v1::OperateRequest broadcast = first->OperateRequest(joined[0], 0);
  broadcast.mutable_broadcast()->set_root(0);
  broadcast.mutable_broadcast()->set_value("the first value");
  first->Make(CallMethod::kOperate, broadcast);
  absl::SleepFor(absl::Milliseconds(50));
  Restart();
  ASSERT_TRUE(first->FollowRestart().ok());
  ASSERT_TRUE(second->FollowRestart().ok());
  broadcast.mutable_broadcast()->set_value("another value");
  const uint64_t again = first->Make(CallMethod::kOperate, broadcast);
  v1::OperateRequest hears = second->OperateRequest(joined[1], 0);
  hears.mutable_broadcast()->set_root(0);
  const auto heard = Require(second->Call<v1::OperateReply>(CallMethod::kOperate, hears));
  EXPECT_EQ(heard.outcome().result().value(), "the first value");
  const auto told = Require(first->Await<v1::OperateReply>(again));
  EXPECT_EQ(told.outcome().result().value(), "the first value");
  // Decided, and asked for again by both after another restart, as something else.
  Restart();
  ASSERT_TRUE(first->FollowRestart().ok());
  ASSERT_TRUE(second->FollowRestart().ok());
  for (FrameSession* rank : {first.get(), second.get()}) {
    const v1::JoinReply& job = joined[rank == first.get() ? 0 : 1];
    const auto outcome = Require(rank->Call<v1::OperateReply>(
        CallMethod::kOperate, rank->AllocateRequest(job, 0, 4096, "other")));
    EXPECT_EQ(outcome.outcome().result().value(), "the first value");
  }
  EXPECT_TRUE(first->Leave(joined[0]).ok());
  EXPECT_TRUE(second->Leave(joined[1]).ok());
}

TEST_F(ClientsTest, AGrowthThatIsBeingMappedIsSentAgain) {
  auto first = OpenFrames(), second = OpenFrames();
  ASSERT_TRUE(first != nullptr && second != nullptr);
  const auto joined = JoinAll({first.get(), second.get()}, "grows");
  ASSERT_EQ(joined.size(), 2u);
  const auto watch = [&](FrameSession* rank, const v1::JoinReply& job) {
    v1::WatchRequest request;
    request.set_session_id(rank->id());
    request.set_job_id(job.job_id());
    return rank->Make(CallMethod::kWatch, request);
  };
  uint64_t stream = watch(first.get(), joined[0]);
  auto event = first->Await<v1::WatchEvent>(stream);
  ASSERT_TRUE(event.ok() && event->watching()) << event.status();
  const auto grow = [](FrameSession* rank, const v1::JoinReply& job) {
    v1::OperateRequest request = rank->OperateRequest(job, 0);
    request.mutable_grow()->set_bytes(2 * kMiB);
    return rank->Make(CallMethod::kOperate, request);
  };
  grow(first.get(), joined[0]);
  grow(second.get(), joined[1]);
  ASSERT_TRUE(first->AwaitDescriptors(2).ok());
  Restart();
  first->descriptors().clear();
  second->descriptors().clear();
  ASSERT_TRUE(first->FollowRestart().ok());
  ASSERT_TRUE(second->FollowRestart().ok());
  const uint64_t calls[] = {grow(first.get(), joined[0]), grow(second.get(), joined[1])};
  stream = watch(first.get(), joined[0]);
  ASSERT_TRUE(first->AwaitDescriptors(2).ok());
  ASSERT_TRUE(second->AwaitDescriptors(2).ok());
  uint64_t grow_id = 0;
  while (grow_id == 0) {
    event = first->Await<v1::WatchEvent>(stream);
    ASSERT_TRUE(event.ok()) << event.status();
    if (event->has_segments_added()) grow_id = event->segments_added().grow_id();
  }
  // One of the two has mapped before the next restart.
  const auto mapped = [&](FrameSession* rank, const v1::JoinReply& job) {
    v1::GrowMappedRequest request;
    request.set_session_id(rank->id());
    request.set_job_id(job.job_id());
    request.set_grow_id(grow_id);
    return rank->Call<v1::GrowMappedReply>(CallMethod::kGrowMapped, request).status();
  };
  ASSERT_TRUE(mapped(first.get(), joined[0]).ok());
  Restart();
  ASSERT_TRUE(first->FollowRestart().ok());
  ASSERT_TRUE(second->FollowRestart().ok());
  EXPECT_TRUE(mapped(second.get(), joined[1]).ok());
  const uint64_t last[] = {grow(first.get(), joined[0]), grow(second.get(), joined[1])};
  EXPECT_GT(last[0], calls[0]);
  EXPECT_GT(last[1], calls[1]);
  auto outcome = first->Await<v1::OperateReply>(last[0]);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->outcome().code(), 0u) << outcome->outcome().text();
  outcome = second->Await<v1::OperateReply>(last[1]);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->outcome().code(), 0u) << outcome->outcome().text();
  const auto status = Require(daemon_->GetStatus());
  EXPECT_EQ(status.heap_bytes(), 8 * kMiB);
  EXPECT_TRUE(first->Leave(joined[0]).ok());
  EXPECT_TRUE(second->Leave(joined[1]).ok());
  ExpectNobodyWasTold();
}

// Version 1: the session hangs up, and a new one of the process takes the rank back.
TEST_F(ClientsTest, ClientsOfVersion1Resume) {
  auto other = OpenFrames();
  auto old = OpenFrames(wire::kVersion);
  ASSERT_TRUE(old != nullptr && other != nullptr);
  const auto joined = JoinAll({other.get(), old.get()}, "old");
  ASSERT_EQ(joined.size(), 2u);
  for (uint64_t k = 0; k < 3; ++k) {
    other->Make(CallMethod::kOperate, other->AllocateRequest(joined[0], k, 4096, ""));
    if (k == 1) old->Make(CallMethod::kOperate, old->AllocateRequest(joined[1], k, 4096, ""));
    absl::SleepFor(absl::Milliseconds(20));
    Restart();
    EXPECT_EQ(old->AwaitEnd().code(), StatusCode::kUnavailable);
    ASSERT_TRUE(other->FollowRestart().ok());
    auto next = OpenFrames(wire::kVersion);
    ASSERT_TRUE(next != nullptr);
    Require(
        next->Call<v1::ResumeReply>(CallMethod::kResume, next->ResumeRequest(joined[1], "old", 1)));
    old = std::move(next);
    const uint64_t call =
        other->Make(CallMethod::kOperate, other->AllocateRequest(joined[0], k, 4096, ""));
    const auto mine = Require(old->Call<v1::OperateReply>(
        CallMethod::kOperate, old->AllocateRequest(joined[1], k, 4096, "")));
    EXPECT_EQ(mine.outcome().code(), 0u) << mine.outcome().text();
    const auto theirs = Require(other->Await<v1::OperateReply>(call));
    EXPECT_EQ(theirs.outcome().result().offset_bytes(), mine.outcome().result().offset_bytes());
  }
  EXPECT_TRUE(other->Leave(joined[0]).ok());
  EXPECT_TRUE(old->Leave(joined[1]).ok());
  EXPECT_EQ(InLog("rank_dead"), 0);
  EXPECT_EQ(InLog("job_broken"), 0);
}

// The worker of a gRPC client ends with its irisd. The client connects again and resumes.
TEST_F(ClientsTest, ClientsOfGrpcResume) {
  auto rank = RawSession::Open(daemon_->session_socket());
  ASSERT_TRUE(rank.ok()) << rank.status();
  const auto joined = Require((*rank)->Join((*rank)->JoinRequest("grpc", 0, 1)));
  ASSERT_TRUE((*rank)->ReceiveDescriptors(3).ok());
  ASSERT_TRUE((*rank)->Mapped(joined).ok());
  for (uint64_t k = 0; k < 3; ++k) {
    Restart();
    EXPECT_TRUE(testing::WaitClosed((*rank)->socket(), absl::Seconds(20)));
    rank = RawSession::Open(daemon_->session_socket());
    ASSERT_TRUE(rank.ok()) << rank.status();
    grpc::ClientContext context;
    v1::ResumeRequest resume;
    resume.set_session_id((*rank)->id());
    resume.set_job_id(joined.job_id());
    resume.set_job("grpc");
    resume.set_rank(0);
    resume.set_epoch(joined.epoch());
    v1::ResumeReply reply;
    const grpc::Status resumed = (*rank)->heap().Resume(&context, resume, &reply);
    ASSERT_TRUE(resumed.ok()) << resumed.error_message();
    const auto allocated = (*rank)->Allocate(joined, k, 4096);
    EXPECT_TRUE(allocated.ok()) << allocated.status();
  }
  EXPECT_TRUE((*rank)->Leave(joined).ok());
  EXPECT_EQ(InLog("rank_dead"), 0);
}

TEST_F(ClientsTest, ACommandThatWatchesGoesOn) {
  testing::TempDir folder;
  const std::string out = folder.path() + "/out";
  const pid_t watcher = fork();
  if (watcher == 0) {
    const int fd = open(out.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    const std::string program = testing::ProgramPath("client/ctl/iris-ctl");
    execl(program.c_str(), program.c_str(), "jobs", "--watch", "0.1", "--runtime-dir",
          daemon_->runtime_dir().c_str(), nullptr);
    _exit(127);
  }
  const auto tables = [&out] {
    std::ifstream file(out);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return std::vector<std::string>(absl::StrSplit(text, "iris-ctl jobs")).size();
  };
  for (int i = 0; i < 5; ++i) {
    const size_t seen = tables();
    ASSERT_TRUE(Eventually([&] { return tables() > seen + 1; }, absl::Seconds(20)))
        << "after " << i << " restarts";
    Restart();
  }
  EXPECT_EQ(kill(watcher, SIGINT), 0);
  int status = 0;
  ASSERT_EQ(waitpid(watcher, &status, 0), watcher);
}

// Those who break the rules around a restart: each is told what is wrong and ends alone.

TEST_F(ClientsTest, AGenerationThatIsNoneEndsTheSession) {
  auto bystander = OpenFrames();
  struct Case {
    const char* what;
    std::function<absl::Status(FrameSession&, uint64_t)> act;
    const char* error;
  };
  const Case cases[] = {
      {"a future one", [](FrameSession& s, uint64_t g) { return s.Seen(g + 1); }, "generation"},
      {"the last one there can be", [](FrameSession& s, uint64_t) { return s.Seen(~0ull); },
       "generation"},
      {"twice",
       [](FrameSession& s, uint64_t g) {
         (void)s.Seen(g);
         return s.Seen(g);
       },
       "session frame of type 16"},
      {"too short",
       [](FrameSession& s, uint64_t) { return s.Send(FrameType::kRestartSeen, uint32_t{1}); },
       "wrong length"},
      {"too long",
       [](FrameSession& s, uint64_t g) {
         return s.Send(FrameType::kRestartSeen, std::array<uint64_t, 2>{g, g});
       },
       "wrong length"},
      {"a hello",
       [](FrameSession& s, uint64_t) { return s.Send(FrameType::kHello, wire::HelloPayload{}); },
       "session frame of type 1 "},
      {"a frame of irisd's",
       [](FrameSession& s, uint64_t g) {
         return s.Send(FrameType::kRestarted, wire::RestartedPayload{g});
       },
       "session frame of type 15"},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.what);
    auto session = OpenFrames();
    ASSERT_TRUE(session != nullptr);
    Restart();
    ASSERT_TRUE(bystander->FollowRestart().ok());
    const auto generation = Require(session->AwaitRestarted());
    ASSERT_TRUE(each.act(*session, generation).ok());
    const absl::Status end = session->AwaitEnd();
    EXPECT_EQ(end.code(), StatusCode::kInvalidArgument) << end;
    EXPECT_THAT(std::string(end.message()), HasSubstr(each.error));
  }
  auto unasked = OpenFrames();
  ASSERT_TRUE(unasked->Seen(unasked->generation()).ok());
  EXPECT_EQ(unasked->AwaitEnd().code(), StatusCode::kInvalidArgument);
  // Whoever kept to the rules is served.
  const auto joined = JoinAll({bystander.get()}, "bystander");
  ASSERT_EQ(joined.size(), 1u);
  EXPECT_TRUE(bystander->Leave(joined[0]).ok());
}

// What was sent before the answer is dropped: also calls, and what comes with descriptors.
TEST_F(ClientsTest, WhatIsSaidBeforeTheAnswerIsDropped) {
  auto session = OpenFrames();
  ASSERT_TRUE(session != nullptr);
  const auto joined = JoinAll({session.get()}, "early");
  ASSERT_EQ(joined.size(), 1u);
  EndIrisd();
  for (uint64_t k = 0; k < 20; ++k) {
    session->Make(CallMethod::kOperate, session->AllocateRequest(joined[0], k, 4096, ""));
  }
  std::vector<wire::UniqueFd> own;
  std::vector<int> fds;
  for (int i = 0; i < 20; ++i) {
    own.emplace_back(memfd_create("some", MFD_CLOEXEC));
    fds.push_back(own.back().get());
  }
  for (int i = 0; i < 20; ++i) {
    session->Make(CallMethod::kOperate, session->AllocateRequest(joined[0], 0, 4096, ""), fds);
    (void)session->Send(FrameType::kAck, wire::AckPayload{.count = 1000});
    (void)session->Send(FrameType::kTaken, wire::CallNumberPayload{77});
    (void)session->Send(FrameType::kCancelCall, wire::CallNumberPayload{78});
    (void)session->Send(FrameType::kRestartSeen, wire::RestartSeenPayload{0});
  }
  StartAgain();
  ASSERT_TRUE(session->FollowRestart().ok());
  const auto allocated = Require(session->Call<v1::OperateReply>(
      CallMethod::kOperate, session->AllocateRequest(joined[0], 0, 4096, "only")));
  EXPECT_EQ(allocated.outcome().code(), 0u) << allocated.outcome().text();
  EXPECT_EQ(allocated.outcome().k(), 0u);
  // What it has not received since then it cannot acknowledge.
  ASSERT_TRUE(session->Send(FrameType::kAck, wire::AckPayload{.count = 1}).ok());
  EXPECT_EQ(session->AwaitEnd().code(), StatusCode::kInvalidArgument);
  // Its process lives, so the rank is to leave or to resume; another session of it does.
  auto next = OpenFrames();
  (void)next->Call<v1::ResumeReply>(CallMethod::kResume,
                                    next->ResumeRequest(joined[0], "early", 0));
  EXPECT_TRUE(next->Leave(joined[0]).ok());
}

// A client that never answers holds nothing up, and ends with its process or its socket.
TEST_F(ClientsTest, WhoNeverAnswersDisturbsNobody) {
  auto silent = OpenFrames(), other = OpenFrames();
  ASSERT_TRUE(silent != nullptr && other != nullptr);
  const auto joined = JoinAll({other.get(), silent.get()}, "silent");
  ASSERT_EQ(joined.size(), 2u);
  for (int i = 0; i < 3; ++i) {
    Restart();
    ASSERT_TRUE(other->FollowRestart().ok());
  }
  auto another = OpenFrames();
  const auto served = JoinAll({another.get()}, "served");
  ASSERT_EQ(served.size(), 1u);
  EXPECT_TRUE(another->Leave(served[0]).ok());
  EXPECT_TRUE(other->Leave(joined[0]).ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(silent->FollowRestart().ok());
  EXPECT_TRUE(silent->Leave(joined[1]).ok());
}

}  // namespace
}  // namespace iris

int main(int argc, char** argv) {
  return iris::testing::TestMain(argc, argv, {{"obeys", iris::Obeys}});
}
