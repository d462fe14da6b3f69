#include "client/internal/grpc_control_plane.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/wire/frame.h"

namespace iris::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using wire::FrameType;

// An irisd with a real session socket and a real gRPC server, whose answers the test chooses.
class FakeIrisd : public v1::HeapService::Service {
 public:
  explicit FakeIrisd(std::string dir, uint64_t daemon_id = 1,
                     grpc::Status resume = grpc::Status::OK)
      : dir_(std::move(dir)), daemon_id_(daemon_id), resume_(std::move(resume)) {
    grpc::ServerBuilder builder;
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    listener_.Reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    struct sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, SocketPath().c_str());
    unlink(SocketPath().c_str());
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<struct sockaddr*>(&address), sizeof(address)),
              0);
    EXPECT_EQ(listen(listener_.get(), 8), 0);
    thread_ = std::thread([this] { Serve(); });
  }

  ~FakeIrisd() override {
    unlink(SocketPath().c_str());
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
    }
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
    HangUp();
    server_->Shutdown(std::chrono::system_clock::now());
  }

  // Ends every session, as when irisd dies; the listener stays.
  void HangUp() {
    absl::MutexLock lock(&mu_);
    for (wire::UniqueFd& fd : sessions_) shutdown(fd.get(), SHUT_RDWR);
    for (wire::UniqueFd& fd : channels_) shutdown(fd.get(), SHUT_RDWR);
    sessions_.clear();
    channels_.clear();
  }

  void SayLastWords(const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    for (wire::UniqueFd& fd : sessions_) {
      EXPECT_TRUE(
          wire::SendFrame(fd.get(), FrameType::kError, wire::MakeErrorPayload(status)).ok());
    }
  }

  // Answers of Operate: one after the other, then OK for ever. kUnavailable breaks the
  // connection first.
  void AnswerOperations(std::deque<grpc::Status> answers) {
    absl::MutexLock lock(&mu_);
    answers_ = std::move(answers);
  }
  // What every Operate from now on has, but for its k.
  void AnswerWithOutcome(const v1::Outcome& outcome) {
    absl::MutexLock lock(&mu_);
    outcome_ = outcome;
  }
  void AnswerResume(const grpc::Status& status) {
    absl::MutexLock lock(&mu_);
    resume_ = status;
  }
  void SendEvent(const v1::WatchEvent& event) {
    absl::MutexLock lock(&mu_);
    events_.push_back(event);
  }
  void EndWatch() {
    absl::MutexLock lock(&mu_);
    ++watch_generation_;
  }

  std::vector<uint64_t> ks() {
    absl::MutexLock lock(&mu_);
    return ks_;
  }
  int resumes() { return resumes_.load(); }
  int watches() { return watches_.load(); }
  bool WaitFor(const std::function<bool()>& condition) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (!condition()) {
      if (absl::Now() > deadline) return false;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return true;
  }

  grpc::Status Join(grpc::ServerContext*, const v1::JoinRequest* request,
                    v1::JoinReply* reply) override {
    reply->set_job_id(request->session_id());
    return grpc::Status::OK;
  }
  grpc::Status Operate(grpc::ServerContext* context, const v1::OperateRequest* request,
                       v1::OperateReply* reply) override {
    grpc::Status answer;
    bool hang = false;
    {
      absl::MutexLock lock(&mu_);
      ks_.push_back(request->k());
      if (!answers_.empty()) {
        answer = answers_.front();
        answers_.pop_front();
      }
      hang = answer.error_code() == grpc::StatusCode::DATA_LOSS;
    }
    if (hang) {  // stands for a daemon that does not answer
      while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
      return grpc::Status::CANCELLED;
    }
    if (answer.error_code() == grpc::StatusCode::UNAVAILABLE && answer.error_message() == "break") {
      HangUp();
    }
    absl::MutexLock lock(&mu_);
    *reply->mutable_outcome() = outcome_;
    reply->mutable_outcome()->set_k(request->k());
    return answer;
  }
  grpc::Status Resume(grpc::ServerContext*, const v1::ResumeRequest* request,
                      v1::ResumeReply*) override {
    EXPECT_EQ(request->job(), "job");
    EXPECT_EQ(request->rank(), 3);
    EXPECT_EQ(request->epoch(), 6u);
    ++resumes_;
    absl::MutexLock lock(&mu_);
    return resume_;
  }
  grpc::Status Leave(grpc::ServerContext*, const v1::LeaveRequest*, v1::LeaveReply*) override {
    return grpc::Status::OK;
  }
  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest*,
                     grpc::ServerWriter<v1::WatchEvent>* writer) override {
    int generation = 0;
    {
      absl::MutexLock lock(&mu_);
      generation = watch_generation_;
    }
    ++watches_;
    while (!context->IsCancelled()) {
      {
        absl::MutexLock lock(&mu_);
        if (watch_generation_ != generation) return grpc::Status::OK;
        while (!events_.empty()) {
          writer->Write(events_.front());
          events_.pop_front();
        }
      }
      absl::SleepFor(absl::Milliseconds(1));
    }
    return grpc::Status::CANCELLED;
  }

 private:
  std::string SocketPath() const { return dir_ + "/session.sock"; }

  void Serve() {
    for (;;) {
      wire::UniqueFd peer(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      {
        absl::MutexLock lock(&mu_);
        if (stopping_) return;
      }
      if (!peer.valid()) continue;
      struct pollfd p = {peer.get(), POLLIN, 0};
      poll(&p, 1, 30000);
      if (!wire::ReceiveFrame(peer.get()).ok()) continue;
      int ends[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
      const wire::UniqueFd theirs(ends[1]);
      EXPECT_EQ(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
      wire::UniqueFd ours(fcntl(ends[0], F_DUPFD_CLOEXEC, 3));
      grpc::AddInsecureChannelFromFd(server_.get(), ends[0]);
      wire::WelcomePayload welcome;
      welcome.session_id = ++next_session_;
      welcome.daemon_id = daemon_id_;
      const int fds[] = {theirs.get()};
      // HangUp, once the client knows the session, is to find it here.
      absl::MutexLock lock(&mu_);
      EXPECT_TRUE(wire::SendFrame(peer.get(), FrameType::kWelcome, welcome, fds).ok());
      sessions_.push_back(std::move(peer));
      channels_.push_back(std::move(ours));
    }
  }

  const std::string dir_;
  const uint64_t daemon_id_;
  std::unique_ptr<grpc::Server> server_;
  wire::UniqueFd listener_;
  std::thread thread_;
  uint64_t next_session_ = 100;
  std::atomic<int> resumes_{0};
  std::atomic<int> watches_{0};

  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<wire::UniqueFd> sessions_ ABSL_GUARDED_BY(mu_);
  std::vector<wire::UniqueFd> channels_ ABSL_GUARDED_BY(mu_);
  std::deque<grpc::Status> answers_ ABSL_GUARDED_BY(mu_);
  v1::Outcome outcome_ ABSL_GUARDED_BY(mu_);
  std::deque<v1::WatchEvent> events_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> ks_ ABSL_GUARDED_BY(mu_);
  grpc::Status resume_ ABSL_GUARDED_BY(mu_);
  int watch_generation_ ABSL_GUARDED_BY(mu_) = 0;
};

class Events : public WatchHandler {
 public:
  void OnRankChange(const RankChange& change) override {
    EXPECT_EQ(change.state, wire::PageRankState::kEnding);
    EXPECT_EQ(change.reason, "hung up");
    ++rank_changes;
  }
  void OnSegmentsAdded(const SegmentsAdded& added) override {
    absl::MutexLock lock(&mu);
    last_added = added;
  }
  void OnGrowDone(const GrowDone& done) override { grown = done.grow_id; }
  void OnStopping(const std::string& reason) override {
    EXPECT_EQ(reason, "update");
    ++stops;
  }
  absl::Mutex mu;
  SegmentsAdded last_added ABSL_GUARDED_BY(mu);
  std::atomic<uint64_t> grown{0};
  std::atomic<int> stops{0};
  std::atomic<int> rank_changes{0};
};

class GrpcControlPlaneTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/iris-cp-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    dir_ = name;
    irisd_ = std::make_unique<FakeIrisd>(dir_);
    auto plane = GrpcControlPlane::Connect({{dir_}, absl::Seconds(10)});
    ASSERT_TRUE(plane.ok()) << plane.status();
    plane_ = *std::move(plane);
  }
  void TearDown() override {
    plane_.reset();
    irisd_.reset();
    rmdir(dir_.c_str());
  }
  void Watch() {
    plane_->StartWatching({5, 6, "job", 3}, &events_, [] {});
  }

  absl::StatusOr<Outcome> Operate(uint64_t k, absl::Duration reach = absl::Seconds(60),
                                  absl::Duration answer = absl::Seconds(60)) {
    OperationCall call;
    call.k = k;
    return plane_->Operate(call, absl::Now() + reach, absl::Now() + answer, &unanswered_);
  }

  std::string dir_;
  std::unique_ptr<FakeIrisd> irisd_;
  Events events_;
  std::unique_ptr<GrpcControlPlane> plane_;
  bool unanswered_ = false;
};

const grpc::Status kBreak(grpc::StatusCode::UNAVAILABLE, "break");

TEST_F(GrpcControlPlaneTest, CallsCarryTheSession) {
  auto reply = plane_->Join({}, absl::Now() + absl::Seconds(60));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->job_id, 101u);
}

TEST_F(GrpcControlPlaneTest, AnswersKeepCodeAndText) {
  irisd_->AnswerOperations({grpc::Status(grpc::StatusCode::ALREADY_EXISTS, "name in use")});
  Watch();
  EXPECT_EQ(Operate(0).status(), absl::AlreadyExistsError("name in use"));
  EXPECT_FALSE(unanswered_);
}

TEST_F(GrpcControlPlaneTest, BrokenConnectionIsResumedAndTheCallRepeatedWithItsK) {
  Watch();
  irisd_->AnswerOperations({kBreak});
  auto reply = Operate(7);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->k, 7u);
  EXPECT_THAT(irisd_->ks(), ElementsAre(7u, 7u));
  EXPECT_EQ(irisd_->resumes(), 1);
  EXPECT_FALSE(unanswered_);
}

TEST_F(GrpcControlPlaneTest, BreaksAgainAndAgain) {
  Watch();
  irisd_->AnswerOperations({kBreak, kBreak, kBreak});
  EXPECT_TRUE(Operate(1).ok());
  EXPECT_EQ(irisd_->resumes(), 3);
}

TEST_F(GrpcControlPlaneTest, StoppingDaemonIsAskedAgain) {
  Watch();
  irisd_->AnswerOperations({grpc::Status(grpc::StatusCode::UNAVAILABLE, "irisd is stopping")});
  EXPECT_TRUE(Operate(1).ok());
  EXPECT_THAT(irisd_->ks(), ElementsAre(1u, 1u));
  EXPECT_EQ(irisd_->resumes(), 0);
}

TEST_F(GrpcControlPlaneTest, WithoutWatchingABreakEndsTheCall) {
  irisd_->AnswerOperations({kBreak});
  EXPECT_EQ(Operate(1, absl::Seconds(5)).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(GrpcControlPlaneTest, GoneDaemonIsNamedAfterTheDeadline) {
  Watch();
  irisd_.reset();
  const absl::Status status = Operate(1, absl::Milliseconds(600)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot reach irisd at " + dir_));
}

TEST_F(GrpcControlPlaneTest, DaemonThatComesBackWithTheJobIsResumed) {
  Watch();
  irisd_.reset();
  irisd_ = std::make_unique<FakeIrisd>(dir_, 2);  // a later version of irisd keeps jobs
  EXPECT_TRUE(Operate(1).ok());
  EXPECT_TRUE(plane_->lost().ok());
}

TEST_F(GrpcControlPlaneTest, DaemonThatForgotTheJobIsFinal) {
  Watch();
  irisd_.reset();
  irisd_ = std::make_unique<FakeIrisd>(dir_, 2,
                                       grpc::Status(grpc::StatusCode::NOT_FOUND, "no such job"));
  const absl::Status status = Operate(1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("restarted and no longer knows job \"job\""));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("mapped memory stays valid, create a new Context"));
  // At once, not after a deadline.
  EXPECT_EQ(Operate(2).status(), status);
  EXPECT_EQ(plane_->lost(), status);
}

TEST_F(GrpcControlPlaneTest, SameDaemonThatDoesNotTakeTheRankBackIsNotCalledRestarted) {
  Watch();
  irisd_->AnswerResume(grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "another process"));
  irisd_->HangUp();
  const absl::Status status = Operate(1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("another process"));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("restarted")));
}

TEST_F(GrpcControlPlaneTest, RankWhoseJobBrokeCanStillLeave) {
  Watch();
  irisd_->AnswerResume(grpc::Status(grpc::StatusCode::ABORTED, "the job is broken"));
  irisd_->HangUp();
  EXPECT_EQ(Operate(1).status().code(), absl::StatusCode::kAborted);
  plane_->StopWatching();
  EXPECT_TRUE(plane_->Leave(5, absl::Now() + absl::Seconds(60)).ok());
}

TEST_F(GrpcControlPlaneTest, ResumeIsRepeatedWhileIrisdIsNotReady) {
  Watch();
  irisd_->AnswerResume(grpc::Status(grpc::StatusCode::UNAVAILABLE, "not yet"));
  irisd_->HangUp();
  ASSERT_TRUE(irisd_->WaitFor([&] { return irisd_->resumes() >= 2; }));
  irisd_->AnswerResume(grpc::Status::OK);
  EXPECT_TRUE(Operate(1).ok());
}

TEST_F(GrpcControlPlaneTest, SilentDaemonEndsTheCallAtItsDeadline) {
  Watch();
  irisd_->AnswerOperations({grpc::Status(grpc::StatusCode::DATA_LOSS, "hang")});
  const absl::Status status = Operate(1, absl::Seconds(60), absl::Milliseconds(200)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("did not answer"));
  EXPECT_TRUE(unanswered_);
}

TEST_F(GrpcControlPlaneTest, RefusalOfARetryLeavesTheFirstRequestUnanswered) {
  Watch();
  irisd_->AnswerOperations(
      {kBreak, grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many wait")});
  EXPECT_EQ(Operate(3).status(), absl::ResourceExhaustedError("too many wait"));
  EXPECT_TRUE(unanswered_);
  EXPECT_TRUE(Operate(3).ok());
  EXPECT_FALSE(unanswered_);
}

TEST_F(GrpcControlPlaneTest, FailedOperationIsAnAnswerOfTheCall) {
  Watch();
  v1::Outcome failed;
  failed.set_code(static_cast<uint32_t>(absl::StatusCode::kFailedPrecondition));
  failed.set_text("live allocations come first");
  irisd_->AnswerWithOutcome(failed);
  const auto outcome = Operate(4);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->status, absl::FailedPreconditionError("live allocations come first"));
  EXPECT_EQ(outcome->k, 4u);
}

TEST_F(GrpcControlPlaneTest, LastWordsBecomeTheErrorOfWhatWaits) {
  // Not watching yet, as during a join: there is nothing to go back to.
  irisd_->SayLastWords(absl::PermissionDeniedError("this uid is not welcome"));
  irisd_->HangUp();
  const absl::Status status = plane_->Join({}, absl::Now() + absl::Seconds(60)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr("this uid is not welcome"));
}

TEST_F(GrpcControlPlaneTest, EventsArriveAlsoAfterAReconnection) {
  Watch();
  v1::WatchEvent event;
  event.mutable_rank_changed()->set_rank(1);
  event.mutable_rank_changed()->set_state(v1::RANK_STATE_ENDING);
  event.mutable_rank_changed()->set_reason("hung up");
  irisd_->SendEvent(event);
  ASSERT_TRUE(irisd_->WaitFor([&] { return events_.rank_changes == 1; }));
  irisd_->HangUp();
  ASSERT_TRUE(irisd_->WaitFor([&] { return irisd_->watches() >= 2; }));
  irisd_->SendEvent(event);
  EXPECT_TRUE(irisd_->WaitFor([&] { return events_.rank_changes == 2; }));
}

TEST_F(GrpcControlPlaneTest, EventsBecomePlainValues) {
  Watch();
  v1::WatchEvent event;
  auto* added = event.mutable_segments_added();
  added->set_grow_id(9);
  added->set_heap_bytes(4096);
  added->set_timeout_ms(1500);
  v1::Segment* segment = added->add_segments();
  segment->set_segment_id(5);
  segment->set_rank(1);
  segment->set_offset_bytes(2048);
  segment->set_bytes(2048);
  irisd_->SendEvent(event);
  event.mutable_grow_done()->set_grow_id(9);
  irisd_->SendEvent(event);
  event.mutable_stopping()->set_reason("update");
  irisd_->SendEvent(event);
  ASSERT_TRUE(irisd_->WaitFor([&] { return events_.stops == 1; }));
  EXPECT_EQ(events_.grown, 9u);
  absl::MutexLock lock(&events_.mu);
  EXPECT_EQ(events_.last_added.grow_id, 9u);
  EXPECT_EQ(events_.last_added.heap_bytes, 4096u);
  EXPECT_EQ(events_.last_added.timeout, absl::Milliseconds(1500));
  ASSERT_EQ(events_.last_added.segments.size(), 1u);
  const Segment& got = events_.last_added.segments[0];
  EXPECT_EQ(got.segment_id, 5u);
  EXPECT_EQ(got.rank, 1u);
  EXPECT_EQ(got.offset_bytes, 2048u);
  EXPECT_EQ(got.bytes, 2048u);
}

TEST_F(GrpcControlPlaneTest, EndedWatchIsOpenedAgainOnTheSameSession) {
  Watch();
  ASSERT_TRUE(irisd_->WaitFor([&] { return irisd_->watches() == 1; }));
  irisd_->EndWatch();
  EXPECT_TRUE(irisd_->WaitFor([&] { return irisd_->watches() == 2; }));
  EXPECT_EQ(irisd_->resumes(), 0);
}

TEST_F(GrpcControlPlaneTest, StopEndsCallsThatWaitForASession) {
  Watch();
  irisd_.reset();
  absl::Status status;
  std::thread caller([&] { status = Operate(1, absl::Seconds(600)).status(); });
  absl::SleepFor(absl::Milliseconds(50));
  plane_->StopWatching();
  caller.join();
  EXPECT_FALSE(status.ok());
}

TEST_F(GrpcControlPlaneTest, StopIsQuickWhateverTheThreadDoes) {
  Watch();
  plane_->StopWatching();
  plane_->StopWatching();
}

TEST_F(GrpcControlPlaneTest, LeaveWithoutASessionSaysWhy) {
  Watch();
  irisd_.reset();
  // The end of the session is noticed by a thread.
  absl::Status status;
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  do {
    status = plane_->Leave(5, absl::Now() + absl::Seconds(5));
  } while (status.ok() && absl::Now() < deadline);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace iris::internal
