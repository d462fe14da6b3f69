// irisd as a whole: a real process, real sockets, raw sessions. What its clients and iris-ctl rely
// on.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "device/driver/backend_kind.h"
#include "grpcpp/channel.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/impl/codegen/client_unary_call.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/channel_arguments.h"
#include "grpcpp/support/slice.h"
#include "proto/wire/frame.h"
#include "proto/wire/limits.h"
#include "proto/wire/pages.h"
#include "proto/wire/version.h"
#include "tests/cc/require.h"
#include "tests/integration/daemon_harness.h"

namespace iris::testing {
namespace {

using absl::StatusCode;
using Descriptors = std::vector<std::pair<wire::DescriptorRecord, wire::UniqueFd>>;

class IrisdTest : public ::testing::Test {
 protected:
  void SetUp() override { Start({}); }
  void Start(const DaemonOptions& options) {
    daemon_.reset();
    daemon_ = Require(Daemon::Start(options));
  }
  std::unique_ptr<RawSession> Open() {
    auto session = RawSession::Open(daemon_->session_socket());
    EXPECT_TRUE(session.ok()) << session.status();
    return session.ok() ? *std::move(session) : nullptr;
  }

  struct Member {
    std::unique_ptr<RawSession> session;
    iris::v1::JoinReply joined;
    iris::v1::MappedReply mapped;
    Descriptors descriptors;
    absl::Status status;
  };
  // Joins as one rank and waits until the first epoch is committed.
  Member JoinAs(const std::string& job, int rank, int n_ranks, uint64_t heap_bytes = 2 << 20) {
    Member m;
    auto session = RawSession::Open(daemon_->session_socket());
    if (!session.ok()) {
      m.status = session.status();
      return m;
    }
    m.session = *std::move(session);
    auto joined = m.session->Join(m.session->JoinRequest(job, rank, n_ranks, heap_bytes));
    if (!joined.ok()) {
      m.status = joined.status();
      return m;
    }
    m.joined = *joined;
    auto descriptors = m.session->ReceiveDescriptors(static_cast<size_t>(2 * n_ranks + 1));
    if (!descriptors.ok()) {
      m.status = descriptors.status();
      return m;
    }
    m.descriptors = *std::move(descriptors);
    auto mapped = m.session->Mapped(m.joined);
    m.status = mapped.status();
    if (mapped.ok()) m.mapped = *mapped;
    return m;
  }
  // All ranks of a job, each in a thread, all sessions of this process.
  std::vector<Member> JoinAll(const std::string& job, int n_ranks, uint64_t heap_bytes = 2 << 20) {
    std::vector<std::future<Member>> ranks;
    for (int rank = 0; rank < n_ranks; ++rank) {
      ranks.push_back(std::async(std::launch::async, [this, job, rank, n_ranks, heap_bytes] {
        return JoinAs(job, rank, n_ranks, heap_bytes);
      }));
    }
    std::vector<Member> members;
    for (auto& rank : ranks) {
      members.push_back(rank.get());
      EXPECT_TRUE(members.back().status.ok()) << members.back().status;
    }
    return members;
  }
  static void LeaveAll(std::vector<Member>& members) {
    for (Member& m : members) {
      if (m.session == nullptr) continue;
      EXPECT_TRUE(m.session->Leave(m.joined).ok());
    }
  }

  std::unique_ptr<Daemon> daemon_;
};

TEST_F(IrisdTest, AJobOfOneRankLivesAndLeavesNothing) {
  auto members = JoinAll("one", 1);
  auto allocated = Require(members[0].session->Allocate(members[0].joined, 0, 4096, "weights"));
  EXPECT_EQ(allocated.offset_bytes() % 1024, 0u);
  LeaveAll(members);
  members.clear();
  EXPECT_TRUE(daemon_->WaitIdle(1000).ok());
}

TEST_F(IrisdTest, EightRanksGetTheSameOffsets) {
  auto members = JoinAll("eight", 8);
  std::vector<std::future<uint64_t>> offsets;
  for (Member& m : members) {
    offsets.push_back(std::async(std::launch::async, [&m] {
      auto reply = m.session->Allocate(m.joined, 0, 100'000);
      EXPECT_TRUE(reply.ok()) << reply.status();
      return reply.ok() ? reply->offset_bytes() : ~uint64_t{0};
    }));
  }
  const uint64_t first = offsets[0].get();
  for (size_t i = 1; i < offsets.size(); ++i) EXPECT_EQ(offsets[i].get(), first);
  for (Member& m : members) EXPECT_TRUE(m.mapped.same_address());
  LeaveAll(members);
}

TEST_F(IrisdTest, JoinNamesPeersAndSegmentsOfEveryRank) {
  auto members = JoinAll("peers", 3, 5 << 20);
  for (const Member& m : members) {
    ASSERT_EQ(m.joined.peers_size(), 3);
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(m.joined.peers(rank).rank(), static_cast<uint32_t>(rank));
      EXPECT_EQ(m.joined.peers(rank).pid(), getpid());
      EXPECT_TRUE(absl::StartsWith(m.joined.peers(rank).device_uuid(), "EMU-"));
    }
    EXPECT_EQ(m.joined.segments_size(), 3);
    EXPECT_EQ(m.joined.heap_bytes(), 6u << 20);  // rounded to the granularity
    EXPECT_GE(m.joined.stride_bytes(), m.joined.heap_bytes());
    EXPECT_EQ(m.joined.device().backend(), "emu");
  }
  EXPECT_EQ(members[1].joined.device().index(), 1u);
  LeaveAll(members);
}

std::set<uint32_t> DevicesOf(const v1::JoinReply& joined) {
  std::set<uint32_t> devices;
  for (const v1::Peer& peer : joined.peers()) devices.insert(peer.device_index());
  return devices;
}

TEST_F(IrisdTest, DescriptorsMatchTheirRecords) {
  auto members = JoinAll("records", 2);
  for (uint32_t me = 0; me < 2; ++me) {
    int segments = 0, controls = 0, statuses = 0;
    std::set<uint32_t> links;
    for (const auto& [record, fd] : members[me].descriptors) {
      EXPECT_EQ(record.job_id, members[me].joined.job_id());
      EXPECT_EQ(record.epoch, members[me].joined.epoch());
      struct stat info = {};
      ASSERT_EQ(fstat(fd.get(), &info), 0);
      EXPECT_EQ(static_cast<uint64_t>(info.st_size), record.bytes);
      const bool writable = (fcntl(fd.get(), F_GETFL) & O_ACCMODE) == O_RDWR;
      switch (static_cast<wire::DescriptorKind>(record.kind)) {
        case wire::DescriptorKind::kSegment:
          ++segments;
          EXPECT_TRUE(writable);
          EXPECT_NE(record.segment_id, 0u);
          break;
        case wire::DescriptorKind::kControlPage:
          ++controls;
          EXPECT_EQ(writable, record.rank == me);
          break;
        case wire::DescriptorKind::kStatusPage:
          ++statuses;
          EXPECT_FALSE(writable);
          break;
        case wire::DescriptorKind::kLink:
          links.insert(record.rank);
          EXPECT_EQ(record.bytes, members[me].joined.link_bytes());
          break;
        case wire::DescriptorKind::kPortMemory:
        case wire::DescriptorKind::kPortWake:
          ADD_FAILURE() << "the job has one node";
          break;
      }
    }
    EXPECT_EQ(segments, 2);
    EXPECT_EQ(controls, 2);
    EXPECT_EQ(statuses, 1);
    EXPECT_EQ(links, DevicesOf(members[me].joined));
  }
  LeaveAll(members);
}

TEST_F(IrisdTest, SixteenRanksReceiveMoreThanAWindowOfDescriptors) {
  static_assert(2 * 16 + 1 > wire::kDescriptorWindow);
  auto members = JoinAll("window", 16);
  for (const Member& m : members) {
    EXPECT_EQ(m.descriptors.size(), 33u + DevicesOf(m.joined).size());
  }
  LeaveAll(members);
}

TEST_F(IrisdTest, WithoutAcknowledgementsNoMoreThanAWindowIsInFlight) {
  std::vector<std::future<Member>> others;
  for (int rank = 1; rank < 17; ++rank) {
    others.push_back(
        std::async(std::launch::async, [this, rank] { return JoinAs("w", rank, 17); }));
  }
  auto session = Open();
  auto joined = Require(session->Join(session->JoinRequest("w", 0, 17)));
  const uint32_t due = 35 + static_cast<uint32_t>(DevicesOf(joined).size());
  // Count arrivals while nothing is acknowledged.
  uint32_t received = 0;
  while (received < wire::kDescriptorWindow) {
    auto frame = Require(ReceiveFrameBefore(session->socket(), absl::Now() + absl::Seconds(20)));
    received += frame.fds.size();
  }
  EXPECT_EQ(received, wire::kDescriptorWindow);
  EXPECT_TRUE(wire::IsNoFrameYet(wire::ReceiveFrame(session->socket()).status()));
  wire::AckPayload ack;
  ack.count = received;
  ASSERT_TRUE(wire::SendFrame(session->socket(), wire::FrameType::kAck, ack).ok());
  while (received < due) {
    auto frame = Require(ReceiveFrameBefore(session->socket(), absl::Now() + absl::Seconds(20)));
    received += frame.fds.size();
  }
  EXPECT_EQ(received, due);
  ASSERT_TRUE(session->Mapped(joined).ok());
  std::vector<Member> members;
  for (auto& other : others) members.push_back(other.get());
  LeaveAll(members);
  EXPECT_TRUE(session->Leave(joined).ok());
}

TEST_F(IrisdTest, ASessionThatNeverJoinedIsForgottenWhenItCloses) {
  // This process lives on: only the hang-up tells.
  for (int i = 0; i < 20; ++i) ASSERT_NE(Open(), nullptr);
  EXPECT_TRUE(Eventually([this] { return daemon_->ListSessions()->sessions_size() == 0; }));
}

TEST_F(IrisdTest, ASessionThatLeftIsForgottenWhenItCloses) {
  auto members = JoinAll("left", 1);
  LeaveAll(members);
  members.clear();
  EXPECT_TRUE(Eventually([this] { return daemon_->ListSessions()->sessions_size() == 0; }));
}

TEST_F(IrisdTest, AHangUpWithARankKeepsTheSessionUntilItsProcessIsGone) {
  auto members = JoinAll("hangup", 1);
  members.clear();  // both sockets close; the process, this one, lives
  EXPECT_TRUE(Eventually([this] {
    auto sessions = daemon_->ListSessions();
    return sessions->sessions_size() == 1 && sessions->sessions(0).state() == "ending";
  }));
  EXPECT_GT(daemon_->GetStatus()->heap_bytes(), 0u);
}

TEST_F(IrisdTest, NonceAttestationOpensSessions) {
  Start({.flags = {"--attestation", "nonce"}});
  auto members = JoinAll("nonce", 2);
  EXPECT_EQ(daemon_->GetStatus()->attestation(), "nonce");
  LeaveAll(members);
}

TEST_F(IrisdTest, AWrongNonceIsRefused) {
  Start({.flags = {"--attestation", "nonce"}});
  auto socket = Require(Connect(daemon_->session_socket(), SOCK_SEQPACKET));
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  ASSERT_TRUE(wire::SendFrame(socket.get(), wire::FrameType::kHello, wire::HelloPayload()).ok());
  auto challenge = Require(ReceiveFrameBefore(socket.get(), deadline));
  ASSERT_EQ(challenge.type, wire::FrameType::kChallenge);
  auto nonce = Require(challenge.As<wire::NoncePayload>());
  nonce.nonce[31] ^= 1;
  ASSERT_TRUE(wire::SendFrame(socket.get(), wire::FrameType::kChallengeReply, nonce).ok());
  auto answer = Require(ReceiveFrameBefore(socket.get(), deadline));
  ASSERT_EQ(answer.type, wire::FrameType::kError);
  EXPECT_EQ(wire::StatusFromErrorPayload(*answer.As<wire::ErrorPayload>()).code(),
            StatusCode::kPermissionDenied);
}

TEST_F(IrisdTest, ANonceFromAnotherProcessIsRefused) {
  Start({.flags = {"--attestation", "nonce"}});
  auto socket = Require(Connect(daemon_->session_socket(), SOCK_SEQPACKET));
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  ASSERT_TRUE(wire::SendFrame(socket.get(), wire::FrameType::kHello, wire::HelloPayload()).ok());
  auto challenge = Require(ReceiveFrameBefore(socket.get(), deadline));
  auto nonce = challenge.As<wire::NoncePayload>();
  const pid_t child = fork();
  if (child == 0) {
    _exit(wire::SendFrame(socket.get(), wire::FrameType::kChallengeReply, *nonce).ok() ? 0 : 1);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  auto answer = Require(ReceiveFrameBefore(socket.get(), deadline));
  ASSERT_EQ(answer.type, wire::FrameType::kError);
  EXPECT_TRUE(absl::StrContains(
      wire::StatusFromErrorPayload(*answer.As<wire::ErrorPayload>()).message(), "forked"));
}

TEST_F(IrisdTest, EachConnectionIsItsOwnIdentity) {
  // gRPC calls a handed-in socket "fd:N": if a release changes that, no call is attributed and this
  // fails.
  auto a = Open(), b = Open();
  EXPECT_TRUE(a->Join(a->JoinRequest("a", 0, 1)).ok());
  auto stolen = b->JoinRequest("b", 0, 1);
  stolen.set_session_id(a->id());
  auto refused = b->Join(stolen);
  EXPECT_EQ(refused.status().code(), StatusCode::kPermissionDenied) << refused.status();
  EXPECT_TRUE(b->Join(b->JoinRequest("b", 0, 1)).ok());
}

TEST_F(IrisdTest, TheChannelOfAnEndedSessionServesNothing) {
  auto session = Open();
  ASSERT_EQ(shutdown(session->socket(), SHUT_RDWR), 0);  // the channel is still held
  EXPECT_TRUE(Eventually([this] { return daemon_->ListSessions()->sessions_size() == 0; }));
  EXPECT_FALSE(session->Join(session->JoinRequest("late", 0, 1)).ok());
  EXPECT_EQ(daemon_->GetStatus()->n_jobs(), 0u);
}

// A watch stream in a thread of its own is not needed: reads block with the call's deadline.
class Watcher {
 public:
  Watcher(RawSession& session, const iris::v1::JoinReply& joined) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(40)));
    iris::v1::WatchRequest request;
    request.set_session_id(session.id());
    request.set_job_id(joined.job_id());
    reader_ = session.heap().Watch(&context_, request);
  }
  bool Read(iris::v1::WatchEvent* event) { return reader_->Read(event); }
  grpc::Status Finish() { return reader_->Finish(); }
  void Cancel() { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<iris::v1::WatchEvent>> reader_;
};

TEST_F(IrisdTest, WatchSaysFirstThatItIsEstablished) {
  auto members = JoinAll("watch", 1);
  Watcher watcher(*members[0].session, members[0].joined);
  iris::v1::WatchEvent event;
  ASSERT_TRUE(watcher.Read(&event));
  EXPECT_TRUE(event.watching());
  LeaveAll(members);
}

TEST_F(IrisdTest, WatchTellsOfAPeerThatHangsUp) {
  auto members = JoinAll("peer", 2);
  Watcher watcher(*members[0].session, members[0].joined);
  iris::v1::WatchEvent event;
  ASSERT_TRUE(watcher.Read(&event));
  members[1].session.reset();
  do {
    ASSERT_TRUE(watcher.Read(&event)) << watcher.Finish().error_message();
  } while (!event.has_rank_changed() || event.rank_changed().rank() != 1);
  EXPECT_EQ(event.rank_changed().state(), iris::v1::RANK_STATE_ENDING);
  EXPECT_EQ(event.rank_changed().pid(), getpid());
}

TEST_F(IrisdTest, TheStatusPageTellsOfAPeerThatHangsUp) {
  auto members = JoinAll("page", 2);
  const wire::StatusPage* page = nullptr;
  for (const auto& [record, fd] : members[0].descriptors) {
    if (record.kind != static_cast<uint32_t>(wire::DescriptorKind::kStatusPage)) continue;
    page = static_cast<const wire::StatusPage*>(
        mmap(nullptr, wire::kPageBytes, PROT_READ, MAP_SHARED, fd.get(), 0));
  }
  ASSERT_NE(page, nullptr);
  EXPECT_EQ(__atomic_load_n(&page->abort, __ATOMIC_ACQUIRE), 0u);
  EXPECT_EQ(page->rank_state[1], static_cast<uint32_t>(wire::PageRankState::kReady));
  members[1].session.reset();
  EXPECT_TRUE(Eventually([page] { return __atomic_load_n(&page->abort, __ATOMIC_ACQUIRE) != 0; }));
  EXPECT_EQ(__atomic_load_n(&page->rank_state[1], __ATOMIC_ACQUIRE),
            static_cast<uint32_t>(wire::PageRankState::kEnding));
  EXPECT_EQ(page->rank_pid[1], getpid());
  munmap(const_cast<wire::StatusPage*>(page), wire::kPageBytes);
}

TEST_F(IrisdTest, ASecondWatchTakesTheFirstOnesPlace) {
  auto members = JoinAll("twice", 1);
  Watcher first(*members[0].session, members[0].joined);
  iris::v1::WatchEvent event;
  ASSERT_TRUE(first.Read(&event));
  Watcher second(*members[0].session, members[0].joined);
  ASSERT_TRUE(second.Read(&event));
  EXPECT_FALSE(first.Read(&event));
  EXPECT_EQ(first.Finish().error_code(), grpc::StatusCode::CANCELLED);
  LeaveAll(members);
}

TEST_F(IrisdTest, WatchingAnotherSessionsJobIsRefused) {
  auto members = JoinAll("mine", 1);
  auto other = Open();
  Watcher watcher(*other, members[0].joined);
  iris::v1::WatchEvent event;
  EXPECT_FALSE(watcher.Read(&event));
  EXPECT_EQ(watcher.Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  LeaveAll(members);
}

TEST_F(IrisdTest, ACancelledJoinFreesItsRank) {
  auto session = Open();
  {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Milliseconds(200)));
    iris::v1::JoinReply reply;
    const grpc::Status status =
        session->heap().Join(&context, session->JoinRequest("cancel", 0, 2), &reply);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  EXPECT_TRUE(Eventually([this] {
    auto status = daemon_->GetStatus();
    return status->n_jobs() == 0 && status->heap_bytes() == 0;
  }));
  EXPECT_TRUE(session->Join(session->JoinRequest("cancel", 0, 1)).ok());
}

TEST_F(IrisdTest, StatusIsTrue) {
  auto members = JoinAll("status", 2);
  auto status = Require(daemon_->GetStatus());
  EXPECT_EQ(status.version(), wire::kIrisVersion);
  EXPECT_EQ(status.pid(), daemon_->pid());
  EXPECT_EQ(status.runtime_dir(), daemon_->runtime_dir());
  EXPECT_EQ(status.n_devices(), 8u);
  EXPECT_EQ(status.n_jobs(), 1u);
  EXPECT_EQ(status.n_sessions(), 2u);
  EXPECT_EQ(status.heap_bytes(), 4u << 20);
  EXPECT_EQ(status.sessions_total(), 2u);
  EXPECT_GT(status.rss_bytes(), 1u << 20);
  EXPECT_NEAR(status.open_fds(), daemon_->OpenFds(), 2);
  EXPECT_GE(status.fd_limit(), status.open_fds());
  EXPECT_FALSE(status.stopping());
  ASSERT_GE(status.backends_size(), 1);
  for (const v1::BackendStatus& backend : status.backends()) {
    EXPECT_EQ(backend.available(), driver::KindOf(backend.backend()) == driver::BackendKind::kEmu)
        << backend.backend();
    EXPECT_FALSE(backend.detail().empty()) << backend.backend();
  }
  const int64_t age_ms = absl::ToUnixMillis(absl::Now()) - status.start_time_unix_ms();
  EXPECT_GE(age_ms, 0);
  EXPECT_LT(age_ms, 10 * 60 * 1000);
  LeaveAll(members);
}

TEST_F(IrisdTest, DevicesShowWhatIsUsed) {
  auto members = JoinAll("devices", 1, 6 << 20);
  grpc::ClientContext context;
  iris::v1::ListDevicesReply reply;
  ASSERT_TRUE(daemon_->admin().ListDevices(&context, {}, &reply).ok());
  ASSERT_EQ(reply.devices_size(), 8);
  EXPECT_EQ(reply.devices(0).used_bytes(), 6u << 20);
  EXPECT_EQ(reply.devices(1).used_bytes(), 0u);
  EXPECT_EQ(reply.devices(0).memory_bytes(), 4ull << 30);
  LeaveAll(members);
}

TEST_F(IrisdTest, JobsHeapsAndAllocationsAreListed) {
  auto members = JoinAll("listed", 1);
  iris::v1::OperateRequest request =
      AllocateRequestOf(members[0].session->id(), members[0].joined, 0, 24, "w");
  request.mutable_allocate()->mutable_tensor()->set_dtype("f32");
  request.mutable_allocate()->mutable_tensor()->add_shape(2);
  request.mutable_allocate()->mutable_tensor()->add_shape(3);
  auto allocated = Require(members[0].session->Operate(request));

  auto jobs = Require(daemon_->ListJobs());
  ASSERT_EQ(jobs.jobs_size(), 1);
  EXPECT_EQ(jobs.jobs(0).job(), "listed");
  EXPECT_EQ(jobs.jobs(0).state(), iris::v1::JOB_STATE_READY);
  EXPECT_EQ(jobs.jobs(0).uid(), getuid());
  ASSERT_EQ(jobs.jobs(0).ranks_size(), 1);
  EXPECT_EQ(jobs.jobs(0).ranks(0).base(), 0x400000000000u);
  EXPECT_EQ(jobs.jobs(0).ranks(0).pid(), getpid());

  grpc::ClientContext heaps_context;
  iris::v1::ListHeapsReply heaps;
  ASSERT_TRUE(daemon_->admin().ListHeaps(&heaps_context, {}, &heaps).ok());
  ASSERT_EQ(heaps.heaps_size(), 1);
  EXPECT_EQ(heaps.heaps(0).heap_bytes(), 2u << 20);
  EXPECT_EQ(heaps.heaps(0).n_segments(), 1u);
  EXPECT_GE(heaps.heaps(0).allocated_bytes(), 24u);
  EXPECT_GT(heaps.heaps(0).largest_free_bytes(), 0u);

  grpc::ClientContext context;
  iris::v1::ListAllocationsReply allocations;
  ASSERT_TRUE(daemon_->admin().ListAllocations(&context, {}, &allocations).ok());
  const iris::v1::Allocation* found = nullptr;
  for (const auto& allocation : allocations.allocations()) {
    if (allocation.name() == "w") found = &allocation;
  }
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->offset_bytes(), allocated.offset_bytes());
  EXPECT_EQ(found->bytes(), 24u);
  EXPECT_EQ(found->tensor().dtype(), "f32");
  EXPECT_EQ(found->tensor().shape(1), 3u);
  LeaveAll(members);
}

TEST_F(IrisdTest, AFilterForAJobThatIsNotThereIsNotFound) {
  grpc::ClientContext context;
  iris::v1::ListJobsRequest request;
  request.set_job("no\nsuch");
  iris::v1::ListJobsReply reply;
  const grpc::Status status = daemon_->admin().ListJobs(&context, request, &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_TRUE(absl::StrContains(status.error_message(), "no\\x0asuch")) << status.error_message();
}

TEST_F(IrisdTest, SessionsShowTheirCommand) {
  auto session = Open();
  auto sessions = Require(daemon_->ListSessions());
  ASSERT_EQ(sessions.sessions_size(), 1);
  EXPECT_EQ(sessions.sessions(0).pid(), getpid());
  EXPECT_EQ(sessions.sessions(0).session_id(), session->id());
  EXPECT_EQ(sessions.sessions(0).state(), "open");
  EXPECT_EQ(sessions.sessions(0).rank(), -1);
  EXPECT_TRUE(absl::StrContains(sessions.sessions(0).command(), "irisd_test"));
}

class PeekTest : public IrisdTest {
 protected:
  grpc::Status Peek(const std::string& job, uint32_t rank, uint64_t offset, uint32_t bytes,
                    std::string* data) {
    grpc::ClientContext context;
    iris::v1::PeekRequest request;
    request.set_job(job);
    request.set_rank(rank);
    request.set_offset_bytes(offset);
    request.set_bytes(bytes);
    iris::v1::PeekReply reply;
    const grpc::Status status = daemon_->admin().Peek(&context, request, &reply);
    *data = reply.data();
    return status;
  }
  std::string data_;
};

TEST_F(PeekTest, ReadsWhatARankWrote) {
  auto members = JoinAll("peek", 2);
  for (const auto& [record, fd] : members[0].descriptors) {
    if (record.kind == static_cast<uint32_t>(wire::DescriptorKind::kSegment) && record.rank == 1) {
      ASSERT_EQ(pwrite(fd.get(), "symmetric", 9, 4096), 9);
    }
  }
  ASSERT_TRUE(Peek("peek", 1, 4096, 9, &data_).ok());
  EXPECT_EQ(data_, "symmetric");
  ASSERT_TRUE(Peek("peek", 0, 4096, 9, &data_).ok());
  EXPECT_EQ(data_, std::string(9, '\0'));
  LeaveAll(members);
}

TEST_F(PeekTest, BoundsAreChecked) {
  auto members = JoinAll("peek", 1);
  const uint64_t end = 2 << 20;
  EXPECT_TRUE(Peek("peek", 0, end - 1, 1, &data_).ok());
  EXPECT_TRUE(Peek("peek", 0, 0, wire::kMaxPeekBytes, &data_).ok());
  const auto code = [this](const std::string& job, uint32_t rank, uint64_t offset, uint32_t n) {
    return Peek(job, rank, offset, n, &data_).error_code();
  };
  EXPECT_EQ(code("peek", 0, end - 1, 2), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code("peek", 0, ~0ull, 2), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code("peek", 0, 0, wire::kMaxPeekBytes + 1), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code("peek", 0, 0, 0), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code("peek", 7, 0, 1), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(code("nobody", 0, 0, 1), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(code("", 0, 0, 1), grpc::StatusCode::INVALID_ARGUMENT);
  LeaveAll(members);
}

// A client that looks from outside borrows the memory, and is in no job.
class BorrowTest : public IrisdTest {
 protected:
  grpc::Status Borrow(RawSession& session, const std::string& job, uint32_t rank, uint64_t offset,
                      uint64_t bytes, iris::v1::BorrowReply* reply) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(20)));
    iris::v1::BorrowRequest request;
    request.set_session_id(session.id());
    request.set_job(job);
    request.set_rank(rank);
    request.set_offset_bytes(offset);
    request.set_bytes(bytes);
    return session.heap().Borrow(&context, request, reply);
  }
};

TEST_F(BorrowTest, LendsTheMemoryOfARank) {
  auto members = JoinAll("lend", 2);
  for (const auto& [record, fd] : members[0].descriptors) {
    if (record.kind == static_cast<uint32_t>(wire::DescriptorKind::kSegment) && record.rank == 1) {
      ASSERT_EQ(pwrite(fd.get(), "symmetric", 9, 4096), 9);
    }
  }
  auto outside = Open();
  iris::v1::BorrowReply reply;
  const grpc::Status status = Borrow(*outside, "lend", 1, 4096, 9, &reply);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(reply.job_id(), members[0].joined.job_id());
  EXPECT_EQ(reply.epoch(), members[0].joined.epoch());
  EXPECT_EQ(reply.device_uuid(), members[0].joined.peers(1).device_uuid());
  ASSERT_EQ(reply.segments_size(), 1);
  EXPECT_EQ(reply.segments(0).offset_bytes(), 0u);
  EXPECT_EQ(reply.segments(0).bytes(), 2u << 20);
  const auto descriptors = Require(outside->ReceiveDescriptors(1));
  const auto& [record, fd] = descriptors.front();
  EXPECT_EQ(record.kind, static_cast<uint32_t>(wire::DescriptorKind::kSegment));
  EXPECT_EQ(record.segment_id, reply.segments(0).segment_id());
  EXPECT_EQ(record.bytes, 2u << 20);
  std::string seen(9, '\0');
  ASSERT_EQ(pread(fd.get(), seen.data(), seen.size(), 4096), 9);
  EXPECT_EQ(seen, "symmetric");
  LeaveAll(members);
}

TEST_F(BorrowTest, RefusesWhatIsNotThere) {
  auto members = JoinAll("lend", 1);
  auto outside = Open();
  const uint64_t end = 2 << 20;
  const auto code = [&](const std::string& job, uint32_t rank, uint64_t offset, uint64_t n) {
    iris::v1::BorrowReply reply;
    return Borrow(*outside, job, rank, offset, n, &reply).error_code();
  };
  EXPECT_EQ(code("lend", 0, end - 1, 2), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code("lend", 0, 1, ~0ull), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code("lend", 0, ~0ull, 1), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code("lend", 0, 0, 0), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code("", 0, 0, 1), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code("lend", 1, 0, 1), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(code("nobody", 0, 0, 1), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(code(std::string(20 << 10, 'x'), 0, 0, 1), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(code("lend", 0, end - 1, 1), grpc::StatusCode::OK);
  // Another's session, and none at all.
  iris::v1::BorrowRequest request;
  request.set_session_id(members[0].session->id());
  request.set_job("lend");
  request.set_bytes(1);
  iris::v1::BorrowReply reply;
  grpc::ClientContext context;
  EXPECT_EQ(outside->heap().Borrow(&context, request, &reply).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  LeaveAll(members);
}

TEST_F(IrisdTest, EventsKeepAndFollow) {
  auto session = Open();
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(30)));
  iris::v1::EventsRequest request;
  request.set_follow(true);
  auto reader = daemon_->admin().Events(&context, request);
  iris::v1::Event event;
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.kind(), "session_opened");
  EXPECT_EQ(event.pid(), getpid());
  const uint64_t first = event.sequence();
  ASSERT_TRUE(session->Join(session->JoinRequest("events", 0, 1)).ok());
  bool joined = false;
  while (!joined && reader->Read(&event)) joined = event.kind() == "rank_joined";
  EXPECT_TRUE(joined);
  EXPECT_EQ(event.job(), "events");
  EXPECT_GT(event.sequence(), first);
  context.TryCancel();
}

TEST_F(IrisdTest, AReaderOfEventsThatSleepsIsToldHowManyItLost) {
  auto session = Open();
  // One event each.
  const auto refused = [&session] {
    iris::v1::JoinRequest request = session->JoinRequest(std::string(64, 'j'), 0, 1);
    request.set_device_uuid(std::string(64, 'x'));
    EXPECT_FALSE(session->Join(request).ok());
  };
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
  iris::v1::EventsRequest request;
  request.set_follow(true);
  // A fixed flow-control window lets irisd's queue for this client fill up soon.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  const auto admin = iris::v1::AdminService::NewStub(grpc::CreateCustomChannel(
      "unix:" + daemon_->admin_socket(), grpc::InsecureChannelCredentials(), arguments));
  auto reader = admin->Events(&context, request);
  iris::v1::Event event;
  ASSERT_TRUE(reader->Read(&event));  // it follows now
  for (int i = 0; i < 800; ++i) refused();
  // The events in flight come, then a hole, whose size the event after it has.
  uint64_t last = event.sequence();
  for (int n = 0;; ++n) {
    if (n % 16 == 0) refused();
    ASSERT_TRUE(reader->Read(&event)) << "nothing was lost";
    EXPECT_EQ(event.sequence(), last + 1 + event.dropped());
    if (event.dropped() > 0) break;
    last = event.sequence();
  }
  context.TryCancel();
}

TEST_F(IrisdTest, EventsWithoutFollowEnd) {
  auto session = Open();
  grpc::ClientContext context;
  auto reader = daemon_->admin().Events(&context, {});
  iris::v1::Event event;
  int n = 0;
  while (reader->Read(&event)) ++n;
  EXPECT_GE(n, 1);
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(IrisdTest, HealthAndReflectionAnswer) {
  // Their generated stubs are not part of this build: a call by name with an empty message is
  // enough to tell that the service is there.
  auto channel =
      grpc::CreateChannel("unix:" + daemon_->admin_socket(), grpc::InsecureChannelCredentials());
  const auto call = [&channel](const char* method) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(20)));
    iris::v1::GetStatusRequest request;
    iris::v1::GetStatusReply reply;
    grpc::internal::RpcMethod rpc(method, grpc::internal::RpcMethod::NORMAL_RPC, channel);
    return grpc::internal::BlockingUnaryCall(channel.get(), rpc, &context, request, &reply);
  };
  EXPECT_NE(call("/grpc.health.v1.Health/Check").error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_NE(call("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo").error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(call("/iris.v1.NoSuchService/Call").error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(IrisdTest, ARequestThatDoesNotParseIsSaidToBeMalformed) {
  const auto session = Open();
  const std::string text = "this is no message at all";
  const grpc::Slice slice(text);
  const auto call = [&](const std::shared_ptr<grpc::Channel>& channel, const char* method) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(20)));
    grpc::ByteBuffer request(&slice, 1), reply;
    grpc::internal::RpcMethod rpc(method, grpc::internal::RpcMethod::NORMAL_RPC, channel);
    return grpc::internal::BlockingUnaryCall(channel.get(), rpc, &context, request, &reply);
  };
  const auto admin =
      grpc::CreateChannel("unix:" + daemon_->admin_socket(), grpc::InsecureChannelCredentials());
  for (const char* method : {"Join", "Mapped", "Operate", "GrowMapped", "Leave", "Resume"}) {
    const grpc::Status status =
        call(session->channel(), absl::StrCat("/iris.v1.HeapService/", method).c_str());
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    EXPECT_TRUE(absl::StrContains(status.error_message(),
                                  absl::StrCat("of type iris.v1.", method, "Request")))
        << status.error_message();
  }
  const grpc::Status status = call(admin, "/iris.v1.AdminService/ListJobs");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  EXPECT_TRUE(absl::StrContains(status.error_message(), "of type iris.v1.ListJobsRequest"))
      << status.error_message();
}

TEST_F(IrisdTest, AValueOfAMebibyteReachesEveryMemberByteForByte) {
  auto members = JoinAll("value", 3);
  std::string value(wire::kMaxBroadcastBytes, '\0');
  for (size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i * 2654435761u >> 13);
  for (uint64_t k = 0; k < 3; ++k) {  // from each rank in turn
    std::vector<std::future<absl::StatusOr<iris::v1::OperationResult>>> answers;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      answers.push_back(std::async(std::launch::async, [&members, &value, k, rank] {
        iris::v1::OperateRequest request =
            OperateRequestOf(members[rank].session->id(), members[rank].joined, k);
        request.mutable_broadcast()->set_root(static_cast<uint32_t>(k));
        if (rank == k) request.mutable_broadcast()->set_value(value);
        return members[rank].session->Operate(request);
      }));
    }
    for (auto& pending : answers) {
      const auto answer = Require(pending.get());
      EXPECT_TRUE(answer.value() == value) << answer.value().size() << " bytes";
    }
  }
  LeaveAll(members);
}

TEST_F(IrisdTest, OrderlyExitsAreNoWarnings) {
  for (int i = 0; i < 20; ++i) {
    auto members = JoinAll(absl::StrCat("orderly-", i), 2);
    LeaveAll(members);
  }
  auto silent = Open();  // a client that never joins, and goes
  silent.reset();
  EXPECT_TRUE(Eventually([this] { return daemon_->ListSessions()->sessions_size() == 0; }));
  const std::string log = daemon_->Log();
  EXPECT_FALSE(absl::StrContains(log, "level=warn")) << log;
  EXPECT_FALSE(absl::StrContains(log, "level=error")) << log;
}

TEST_F(IrisdTest, StopAnswersWhoWaits) {
  auto session = Open();
  auto waiting = std::async(std::launch::async, [&session] {
    return session->Join(session->JoinRequest("waits", 0, 2)).status();
  });
  EXPECT_TRUE(Eventually([this] { return daemon_->GetStatus()->n_jobs() == 1; }));
  EXPECT_EQ(Require(daemon_->Stop()), 0);
  const absl::Status status = waiting.get();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "stopping")) << status;
}

TEST_F(IrisdTest, StopTellsWatchers) {
  auto members = JoinAll("stop", 1);
  Watcher watcher(*members[0].session, members[0].joined);
  iris::v1::WatchEvent event;
  ASSERT_TRUE(watcher.Read(&event));
  auto stop = std::async(std::launch::async, [this] { return daemon_->Stop(); });
  bool told = false;
  while (watcher.Read(&event)) told = told || event.has_stopping();
  EXPECT_TRUE(told);
  EXPECT_EQ(watcher.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Require(stop.get()), 0);
}

TEST_F(IrisdTest, StopTellsIdleSessions) {
  auto session = Open();
  Require(daemon_->Stop());
  auto frame = Require(ReceiveFrameBefore(session->socket(), absl::Now() + absl::Seconds(10)));
  ASSERT_EQ(frame.type, wire::FrameType::kError);
  EXPECT_EQ(wire::StatusFromErrorPayload(*frame.As<wire::ErrorPayload>()).code(),
            StatusCode::kUnavailable);
}

TEST_F(IrisdTest, StopEndsEventFollowers) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(40)));
  iris::v1::EventsRequest request;
  request.set_follow(true);
  auto session = Open();
  auto reader = daemon_->admin().Events(&context, request);
  iris::v1::Event event;
  ASSERT_TRUE(reader->Read(&event));
  auto stop = std::async(std::launch::async, [this] { return daemon_->Stop(); });
  while (reader->Read(&event)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(*stop.get(), 0);
}

TEST_F(IrisdTest, AStoppedClientDoesNotHoldUpTheStop) {
  // A child that joins nothing, opens a session and is stopped: it reads nothing any more.
  auto silent = Require(Connect(daemon_->admin_socket(), SOCK_STREAM));
  auto session = Open();
  EXPECT_EQ(Require(daemon_->Stop(absl::Seconds(20))), 0);
}

TEST_F(IrisdTest, SigintStopsToo) {
  const std::string dir = daemon_->runtime_dir();
  ASSERT_EQ(kill(daemon_->pid(), SIGINT), 0);
  EXPECT_TRUE(Eventually([this] { return !daemon_->alive(); }));
  EXPECT_FALSE(std::filesystem::exists(dir));
}

// Fills a pipe, so that the next writer blocks.
void Fill(int pipe) {
  const std::string page(4096, 'x');
  const int flags = fcntl(pipe, F_GETFL);
  fcntl(pipe, F_SETFL, flags | O_NONBLOCK);
  while (write(pipe, page.data(), page.size()) > 0) {
  }
  fcntl(pipe, F_SETFL, flags);
}

TEST_F(IrisdTest, ALogThatNobodyReadsHoldsNothingUp) {
  int log[2];
  ASSERT_EQ(pipe2(log, O_CLOEXEC), 0);
  const wire::UniqueFd reads(log[0]), writes(log[1]);
  Fill(writes.get());
  Start({.flags = {"--log-level", "debug"}, .stderr_fd = writes.get()});
  ASSERT_NE(daemon_, nullptr);
  auto members = JoinAll("unread", 1);
  LeaveAll(members);
  members.clear();
  EXPECT_TRUE(daemon_->GetStatus().ok());
  // Waiting data comes once the client reads.
  std::string text;
  char buffer[4096];
  fcntl(reads.get(), F_SETFL, O_NONBLOCK);
  EXPECT_TRUE(Eventually([&] {
    const ssize_t n = read(reads.get(), buffer, sizeof(buffer));
    if (n > 0) text.append(buffer, static_cast<size_t>(n));
    return absl::StrContains(text, "irisd serves") && absl::StrContains(text, "job=unread");
  })) << text.substr(text.size() - std::min<size_t>(text.size(), 500));
  Fill(writes.get());
  EXPECT_EQ(Require(daemon_->Stop(absl::Seconds(15))), 0);
}

// The workers of irisd that serve tenants.
std::vector<pid_t> WorkersOf(pid_t irisd) {
  std::vector<pid_t> workers;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = atoi(entry.path().filename().c_str());
    std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
    std::string text((std::istreambuf_iterator<char>(status)), {});
    if (pid > 0 && absl::StrContains(text, "Name:\tirisd-worker") &&
        absl::StrContains(text, absl::StrCat("PPid:\t", irisd, "\n"))) {
      workers.push_back(pid);
    }
  }
  return workers;
}

TEST_F(IrisdTest, AWorkerThatIsStoppedIsReplaced) {
  if (geteuid() != 0) GTEST_SKIP() << "nobody else may stop workers";
  ASSERT_TRUE(daemon_->GetStatus().ok());
  const std::vector<pid_t> workers = WorkersOf(daemon_->pid());
  ASSERT_EQ(workers.size(), 1u);
  ASSERT_EQ(kill(workers[0], SIGSTOP), 0);
  const absl::Time stopped = absl::Now();
  // A call meanwhile fails because the connection is gone, and does not wait for ever.
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(stopped + absl::Seconds(60)));
  iris::v1::GetStatusReply reply;
  EXPECT_EQ(daemon_->admin().GetStatus(&context, iris::v1::GetStatusRequest(), &reply).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_LT(absl::Now() - stopped, absl::Seconds(17));  // documented: 15 s
  auto status = Require(daemon_->GetStatus());
  EXPECT_EQ(status.worker_troubles_total(), 1u);
  EXPECT_TRUE(absl::StrContains(status.last_worker_trouble(), "did not answer for 10s"))
      << status.last_worker_trouble();
  EXPECT_TRUE(absl::StrContains(daemon_->Log(), "kind=worker_ended")) << daemon_->Log();
  const std::vector<pid_t> now = WorkersOf(daemon_->pid());
  EXPECT_EQ(std::count(now.begin(), now.end(), workers[0]), 0);
}

// A memory cgroup of its own with a limit, version 1 or 2, for as long as it is empty again then.
class MemoryCgroup {
 public:
  explicit MemoryCgroup(uint64_t limit_bytes) {
    for (const auto& [root, limit] : {std::pair("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                                      std::pair("/sys/fs/cgroup", "memory.max"),
                                      std::pair("/sys/fs/cgroup/unified", "memory.max")}) {
      const std::string path = absl::StrCat(root, "/iris-test-", getpid());
      if (mkdir(path.c_str(), 0755) != 0) continue;
      path_ = path;
      if (std::filesystem::exists(path + "/" + limit) && Write(limit, limit_bytes)) return;
      rmdir(path.c_str());
      path_.clear();
    }
  }
  ~MemoryCgroup() {
    if (!path_.empty()) rmdir(path_.c_str());
  }
  bool there() const { return !path_.empty(); }
  bool Take(pid_t pid) const { return Write("cgroup.procs", static_cast<uint64_t>(pid)); }

 private:
  bool Write(const std::string& file, uint64_t number) const {
    std::ofstream out(path_ + "/" + file);
    out << number << std::flush;
    return out.good();
  }

  std::string path_;
};

TEST_F(IrisdTest, AHeapBeyondItsCgroupIsRefusedAndIrisdLives) {
  const MemoryCgroup cgroup(400 << 20);
  if (!cgroup.there()) GTEST_SKIP() << "no memory cgroup can be made here";
  ASSERT_TRUE(cgroup.Take(daemon_->pid()));
  auto session = Open();
  iris::v1::JoinRequest request = session->JoinRequest("large", 0, 1, 1 << 30);
  request.set_prealloc(true);
  const absl::Status refused = session->Join(request).status();
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused;
  for (const char* part : {"1 GiB", "of 400 MiB", "cgroup", "iris-test-", "64 MiB"}) {
    EXPECT_TRUE(absl::StrContains(refused.message(), part)) << part << ": " << refused;
  }
  request = session->JoinRequest("small", 0, 1, 16 << 20);
  request.set_prealloc(true);
  EXPECT_TRUE(session->Join(request).ok());
  EXPECT_TRUE(daemon_->alive());
  session.reset();
  EXPECT_EQ(*daemon_->Stop(), 0);
}

TEST_F(IrisdTest, StopUnderJobsSaysWhatThatMeans) {
  auto members = JoinAll("lives", 2);
  auto more = JoinAll("lives too", 1);
  ASSERT_TRUE(daemon_->Stop().ok());
  const std::string log = daemon_->Log();
  EXPECT_TRUE(absl::StrContains(log, "level=warning msg=\"jobs live: ")) << log;
  EXPECT_TRUE(absl::StrContains(log, "jobs=2 ranks=3 heap_bytes=6291456")) << log;
}

TEST_F(IrisdTest, StopWithoutJobsWarnsOfNothing) {
  auto members = JoinAll("leaves", 1);
  LeaveAll(members);
  auto session = Open();
  EXPECT_TRUE(Eventually([this] { return daemon_->GetStatus()->n_jobs() == 0; }));
  ASSERT_TRUE(daemon_->Stop().ok());
  EXPECT_FALSE(absl::StrContains(daemon_->Log(), "level=warn")) << daemon_->Log();
}

class ReloadTest : public IrisdTest {
 protected:
  void SetUp() override {
    Write("");
    Start({.flags = {"--config", file()}});
  }
  std::string file() const { return dir_.path() + "/irisd.toml"; }
  void Write(const std::string& text) { std::ofstream(file()) << text; }
  // Has irisd read `text`, and waits until its log says the line `n` times in all.
  void Reload(const std::string& text, const std::string& line, size_t n = 1) {
    Write(text);
    ASSERT_EQ(kill(daemon_->pid(), SIGHUP), 0);
    ASSERT_TRUE(Eventually([&] {
      const std::string log = daemon_->Log();
      size_t seen = 0;
      for (size_t at = log.find(line); at != log.npos; at = log.find(line, at + 1)) ++seen;
      return seen >= n;
    })) << line
        << daemon_->Log();
  }
  const std::string done_ = "the settings are reloaded";
  TempDir dir_;
};

TEST_F(ReloadTest, AQuotaHoldsFromThenOnAndGoesAgain) {
  auto members = JoinAll("a", 1);
  Reload("[jobs]\nmax_heap_per_uid = \"2MiB\"\n", "changed=jobs.max_heap_per_uid");
  auto session = Open();
  const absl::Status refused = session->Join(session->JoinRequest("b", 0, 1)).status();
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused;
  Reload("", done_, 2);
  EXPECT_TRUE(session->Join(session->JoinRequest("b", 0, 1)).ok());
  EXPECT_TRUE(members[0].session->Allocate(members[0].joined, 0, 4096).ok()) << "a lives on";
}

TEST_F(ReloadTest, TheLogLevelAndTheSessionsOfATenantChange) {
  Reload("[log]\nlevel = \"debug\"\n[sessions]\nmax_per_tenant = 1\n", done_);
  auto session = Open();
  ASSERT_TRUE(Eventually([this] {
    return absl::StrContains(daemon_->Log(), "level=debug msg=\"event\" kind=session_opened");
  })) << daemon_->Log();
  EXPECT_EQ(RawSession::Open(daemon_->session_socket()).status().code(),
            StatusCode::kResourceExhausted);
}

TEST_F(ReloadTest, ASettingThatCannotChangeIsNamedAndKeepsItsValue) {
  Reload("socket_mode = \"0666\"\n[log]\nformat = \"json\"\n", done_);
  const std::string log = daemon_->Log();
  for (const char* setting : {"setting=socket_mode", "setting=log.format"}) {
    EXPECT_TRUE(absl::StrContains(log, setting)) << log;
  }
  EXPECT_FALSE(absl::StrContains(log, "{\"time\"")) << log;
}

TEST_F(ReloadTest, AFileWithMistakesChangesNothingAndListsThemAll) {
  Reload("[jobs]\nmax = 0\nmax_heap_per_uid = \"2MiB\"\n[log]\nlevel = \"loud\"\n",
         "irisd.toml:5: log.level: ");
  const std::string log = daemon_->Log();
  EXPECT_TRUE(absl::StrContains(log, "irisd.toml:2: jobs.max: ")) << log;
  EXPECT_FALSE(absl::StrContains(log, done_)) << log;
  auto members = JoinAll("a", 2);  // 4 MiB
  unlink(file().c_str());
  ASSERT_EQ(kill(daemon_->pid(), SIGHUP), 0);
  EXPECT_TRUE(Eventually(
      [&] { return absl::StrContains(daemon_->Log(), "cannot read the configuration file"); }));
  LeaveAll(members);
  EXPECT_EQ(*daemon_->Stop(), 0);
}

TEST_F(ReloadTest, EveryReloadIsInTheRecording) {
  const std::string recording = dir_.path() + "/recording";
  Start({.flags = {"--config", file(), "--record", recording}});
  auto members = JoinAll("a", 1);
  Reload("[jobs]\nmax_heap_per_uid = \"2MiB\"\n", done_);
  auto session = Open();
  EXPECT_FALSE(session->Join(session->JoinRequest("b", 0, 1)).ok());
  LeaveAll(members);
  ASSERT_TRUE(daemon_->Stop().ok());
  const RunResult replayed =
      RunProgram({ProgramPath("server/recording/iris-replay"), recording}, absl::Seconds(60));
  EXPECT_EQ(replayed.exit_code, 0) << replayed.output;
}

TEST_F(IrisdTest, TheStoredStateIsReadWhileIrisdRuns) {
  Start({.n_devices = 2, .supervised = true});
  const auto irisd = [this](std::vector<std::string> args) {
    args.insert(args.begin(), ProgramPath("server/irisd"));
    return RunProgram(args, absl::Seconds(60), {{"IRIS_RUNTIME_DIR", daemon_->runtime_dir()}});
  };
  std::vector<Member> members = JoinAll("stored", 2);
  for (int i = 0; i < 20; ++i) {
    const RunResult whole = irisd({"state", "check"});
    ASSERT_EQ(whole.exit_code, 0) << whole.output;
    EXPECT_TRUE(absl::StrContains(whole.output, "is whole: ")) << whole.output;
    JoinAll(absl::StrCat("short ", i), 1);  // a change meanwhile
  }
  const RunResult numbers = irisd({"state", "stat"});
  EXPECT_EQ(numbers.exit_code, 0) << numbers.output;
  EXPECT_TRUE(absl::StrContains(numbers.output, "\ngeneration: 1\nboot: this\n")) << numbers.output;
  EXPECT_TRUE(absl::StrContains(numbers.output, "\ndevices: 2\n")) << numbers.output;
  const RunResult text = irisd({"state", "dump"});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_TRUE(absl::StrContains(text.output, "name: \"stored\"")) << text.output;
  const RunResult upgrade = irisd({"--check-state", "--emu-devices", "2"});
  EXPECT_EQ(upgrade.exit_code, 0) << upgrade.output;
  EXPECT_TRUE(absl::StrContains(upgrade.output, "can go on with ")) << upgrade.output;

  {
    std::fstream file(daemon_->runtime_dir() + "/state/journal", std::ios::in | std::ios::out);
    file.seekp(300).put('x').put('y');
  }
  for (const RunResult& damaged : {irisd({"state", "check"}), irisd({"--check-state"})}) {
    EXPECT_EQ(damaged.exit_code, 1);
    EXPECT_TRUE(absl::StrContains(damaged.output, "is damaged at byte ")) << damaged.output;
  }
  LeaveAll(members);
}

TEST(IrisdStateTest, WithoutAStoredStateNothingIsMade) {
  TempDir dir;
  const std::string none = dir.path() + "/none";
  const auto irisd = [&none](std::vector<std::string> args) {
    args.insert(args.begin(), ProgramPath("server/irisd"));
    args.insert(args.end(), {"--runtime-dir", none});
    return RunProgram(args, absl::Seconds(60));
  };
  for (const char* command : {"check", "dump", "stat"}) {
    const RunResult told = irisd({"state", command});
    EXPECT_EQ(told.exit_code, 1);
    EXPECT_EQ(told.output, absl::StrCat("irisd: there is no ", none, "/state/journal\n"));
  }
  const RunResult upgrade = irisd({"--check-state"});
  EXPECT_EQ(upgrade.exit_code, 0);
  EXPECT_TRUE(absl::StrContains(upgrade.output, "would begin with nothing")) << upgrade.output;
  EXPECT_EQ(irisd({"state", "chekc"}).exit_code, 2);
  EXPECT_FALSE(std::filesystem::exists(none));
}

TEST(IrisdNotifyTest, TellsTheServiceManager) {
  TempDir dir;
  const std::string path = dir.path() + "/notify";
  wire::UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  struct sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(socket.get(), reinterpret_cast<struct sockaddr*>(&address), sizeof(address)), 0);
  struct timeval timeout = {30, 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  const auto receive = [&socket] {
    char text[256] = {};
    const ssize_t n = recv(socket.get(), text, sizeof(text) - 1, 0);
    return std::string(text, n > 0 ? static_cast<size_t>(n) : 0);
  };
  const pid_t child = fork();
  if (child == 0) {
    setenv("NOTIFY_SOCKET", path.c_str(), 1);
    const std::string program = ProgramPath("server/irisd"), run = dir.path() + "/run";
    execl(program.c_str(), "irisd", "--runtime-dir", run.c_str(), "--log-level", "error", nullptr);
    _exit(127);
  }
  EXPECT_TRUE(absl::StrContains(receive(), "READY=1"));
  ASSERT_EQ(kill(child, SIGHUP), 0);
  EXPECT_TRUE(absl::StrContains(receive(), "RELOADING=1\nMONOTONIC_USEC="));
  EXPECT_TRUE(absl::StrContains(receive(), "READY=1"));
  ASSERT_EQ(kill(child, SIGTERM), 0);
  EXPECT_TRUE(absl::StrContains(receive(), "STOPPING=1"));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(IrisdSelfCheckTest, ProvesItsDevicesBeforeItServes) {
  auto daemon = Require(Daemon::Start({.n_devices = 3, .self_check = true}));
  const std::string log = daemon->Log();
  EXPECT_TRUE(absl::StrContains(log, "\"self-check done\" pairs=4 failed=0")) << log;
  EXPECT_LT(log.find("self-check done"), log.find("irisd serves")) << log;
}

TEST_F(IrisdTest, RoundsOfSessionsLeaveNoDescriptor) {
  const auto round = [this] {
    std::vector<std::unique_ptr<RawSession>> sessions;
    for (int i = 0; i < 50; ++i) sessions.push_back(Open());
    sessions.clear();
    EXPECT_TRUE(Eventually([this] { return daemon_->ListSessions()->sessions_size() == 0; }));
  };
  round();
  int fds = 0;
  EXPECT_TRUE(Eventually([&] { return (fds = daemon_->OpenFds()) < 40; })) << fds;
  for (int i = 0; i < 3; ++i) round();
  EXPECT_TRUE(Eventually([&] { return daemon_->OpenFds() <= fds; })) << daemon_->OpenFds();
}

}  // namespace
}  // namespace iris::testing
