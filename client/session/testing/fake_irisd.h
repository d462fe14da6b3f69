// FakeIrisd: an irisd with a real session socket, whose answers the test chooses. For tests only.
// Thread-safe.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "proto/iris/v1/heap.pb.h"
#include "proto/wire/frame.h"
#include "proto/wire/unique_fd.h"

namespace iris::internal {

class FakeIrisd {
 public:
  explicit FakeIrisd(std::string dir, uint64_t daemon_id = 1,
                     absl::Status resume = absl::OkStatus())
      : dir_(std::move(dir)), daemon_id_(daemon_id), resume_(std::move(resume)) {
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

  ~FakeIrisd() {
    unlink(SocketPath().c_str());
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
    }
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
    HangUp();
  }

  // Ends every session, as when irisd dies; the listener stays.
  void HangUp() {
    absl::MutexLock lock(&mu_);
    HangUpLocked();
  }

  void SayLastWords(const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    for (auto& [fd, session] : sessions_) {
      EXPECT_TRUE(
          wire::SendFrame(fd, wire::FrameType::kError, wire::MakeErrorPayload(status)).ok());
    }
  }

  // Answers of Operate: one after the other, then OK for ever. kUnavailable "break" breaks the
  // session instead; kDataLoss stands for a daemon that does not answer.
  void AnswerOperations(std::deque<absl::Status> answers) {
    absl::MutexLock lock(&mu_);
    answers_ = std::move(answers);
  }
  // Answers every Operate from now on with this outcome, except for its k.
  void AnswerWithOutcome(const v1::Outcome& outcome) {
    absl::MutexLock lock(&mu_);
    outcome_ = outcome;
  }
  void AnswerResume(const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    resume_ = status;
  }
  // The next n calls of Resume break the session instead of being answered.
  void BreakResumes(int n) {
    absl::MutexLock lock(&mu_);
    n_breaks_ = n;
  }
  // So does every call of Join from now on. Then answers come again.
  void BreakJoins(bool yes) {
    absl::MutexLock lock(&mu_);
    breaks_joins_ = yes;
  }
  void SendEvent(const v1::WatchEvent& event) {
    absl::MutexLock lock(&mu_);
    events_.push_back(event);
  }
  void EndWatch() {
    absl::MutexLock lock(&mu_);
    for (auto& [fd, session] : sessions_) {
      if (session.watch != 0) Answer(fd, session.watch, wire::kAnswerEnds, "");
      session.watch = 0;
    }
  }

  // Another irisd takes every session over, as when this one was killed and its sockets were kept:
  // calls without an answer are forgotten, and frames before kRestartSeen are dropped. While
  // `deaf`, until Hear, it reads nothing.
  void Restart(bool deaf = false) {
    absl::MutexLock lock(&mu_);
    wire::RestartedPayload restarted;
    restarted.generation = ++generation_;
    deaf_ = deaf;
    for (auto& [fd, session] : sessions_) {
      session.watch = 0;
      session.awaits_seen = true;
      EXPECT_TRUE(wire::SendFrame(fd, wire::FrameType::kRestarted, restarted).ok());
    }
  }
  void Hear() {
    absl::MutexLock lock(&mu_);
    deaf_ = false;
  }
  // Answers of Borrow, in place of a refusal: a segment of this number, whose descriptor comes only
  // from a later irisd than the first one.
  void LendAfterRestart(uint64_t segment_id) {
    absl::MutexLock lock(&mu_);
    lends_ = segment_id;
  }
  // AwaitBarrier is not answered before a restart; then the barrier cannot end.
  void KnowBarriersAfterRestart() {
    absl::MutexLock lock(&mu_);
    knows_barriers_ = true;
  }

  std::vector<uint64_t> ks() {
    absl::MutexLock lock(&mu_);
    return ks_;
  }
  // How many descriptors came along with each Operate.
  std::vector<size_t> descriptors() {
    absl::MutexLock lock(&mu_);
    return descriptors_;
  }
  int joins() { return joins_.load(); }
  int borrows() { return borrows_.load(); }
  int barriers() { return barriers_.load(); }
  int seen() { return seen_.load(); }
  int resumes() { return resumes_.load(); }
  int watches() { return watches_.load(); }
  int cancels() { return cancels_.load(); }
  int takens() { return takens_.load(); }
  bool WaitFor(const std::function<bool()>& condition) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (!condition()) {
      if (absl::Now() > deadline) return false;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return true;
  }

 private:
  struct Session {
    uint64_t id = 0;
    uint64_t watch = 0;        // the number of the call
    uint64_t last_call = 0;    // its number
    bool awaits_seen = false;  // what comes is not for this irisd
  };

  std::string SocketPath() const { return dir_ + "/session.sock"; }

  void HangUpLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (auto& [fd, session] : sessions_) close(fd);
    sessions_.clear();
  }

  void Answer(int fd, uint64_t call, uint32_t flags, const std::string& bytes) {
    wire::AnswerPayload answer;
    answer.call = call;
    answer.flags = flags;
    EXPECT_TRUE(wire::SendFrame(fd, wire::FrameType::kAnswer, answer, bytes).ok());
  }
  void Fail(int fd, uint64_t call, const absl::Status& status) {
    wire::FailurePayload failure;
    failure.call = call;
    failure.error = wire::MakeErrorPayload(status);
    EXPECT_TRUE(wire::SendFrame(fd, wire::FrameType::kFailure, failure).ok());
  }
  // Answers a call with the reply if `status` is OK, and with a failure otherwise.
  void Conclude(int fd, uint64_t call, const absl::Status& status,
                const google::protobuf::MessageLite& reply) {
    if (!status.ok()) return Fail(fd, call, status);
    Answer(fd, call, wire::kAnswerMessage | wire::kAnswerEnds, reply.SerializeAsString());
  }

  // One call. Returns false if the sessions were broken.
  bool OnCall(int fd, Session& session, const wire::Frame& frame)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto parts = frame.Split<wire::CallPayload>();
    EXPECT_TRUE(parts.ok());
    const uint64_t call = parts->first.call;
    EXPECT_GT(call, session.last_call);
    session.last_call = call;
    const std::string bytes(parts->second);
    switch (static_cast<wire::CallMethod>(parts->first.method)) {
      case wire::CallMethod::kJoin: {
        v1::JoinRequest request;
        EXPECT_TRUE(request.ParseFromString(bytes));
        EXPECT_EQ(request.session_id(), session.id);
        ++joins_;
        if (breaks_joins_) {
          HangUpLocked();
          return false;
        }
        v1::JoinReply reply;
        reply.set_job_id(request.session_id());
        Conclude(fd, call, absl::OkStatus(), reply);
        return true;
      }
      case wire::CallMethod::kMapped: {
        v1::MappedReply reply;
        reply.set_same_address(true);
        Conclude(fd, call, absl::OkStatus(), reply);
        return true;
      }
      case wire::CallMethod::kGrowMapped:
        Conclude(fd, call, absl::OkStatus(), v1::GrowMappedReply());
        return true;
      case wire::CallMethod::kLeave:
        Conclude(fd, call, absl::OkStatus(), v1::LeaveReply());
        return true;
      case wire::CallMethod::kBorrow:
        ++borrows_;
        if (lends_ == 0) {
          Fail(fd, call, absl::UnimplementedError("this irisd lends nothing"));
        } else {
          Lend(fd, call);
        }
        return true;
      case wire::CallMethod::kAwaitBarrier:
        ++barriers_;
        if (!knows_barriers_) {
          Fail(fd, call, absl::UnimplementedError("this irisd knows nothing"));
        } else if (generation_ > 0) {
          v1::AwaitBarrierReply reply;
          reply.set_cannot_end(true);
          reply.set_text("they wait for each other");
          Conclude(fd, call, absl::OkStatus(), reply);
        }
        return true;
      case wire::CallMethod::kOperate:
        descriptors_.push_back(frame.fds.size());
        return OnOperate(fd, call, bytes);
      case wire::CallMethod::kResume: {
        v1::ResumeRequest request;
        EXPECT_TRUE(request.ParseFromString(bytes));
        EXPECT_EQ(request.job(), "job");
        EXPECT_EQ(request.rank(), 3);
        EXPECT_EQ(request.epoch(), 6u);
        ++resumes_;
        if (n_breaks_ > 0) {
          --n_breaks_;
          HangUpLocked();
          return false;
        }
        Conclude(fd, call, resume_, v1::ResumeReply());
        return true;
      }
      case wire::CallMethod::kWatch:
        session.watch = call;
        ++watches_;
        return true;
    }
    ADD_FAILURE() << "a call of method " << parts->first.method;
    return true;
  }

  void Lend(int fd, uint64_t call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    v1::BorrowReply reply;
    reply.set_job_id(5);
    reply.set_epoch(6);
    v1::Segment* const segment = reply.add_segments();
    segment->set_segment_id(lends_);
    segment->set_bytes(4096);
    Conclude(fd, call, absl::OkStatus(), reply);
    if (generation_ == 0) return;
    wire::DescriptorsPayload payload;
    payload.count = 1;
    payload.records[0].job_id = 5;
    payload.records[0].epoch = 6;
    payload.records[0].segment_id = lends_;
    payload.records[0].bytes = 4096;
    payload.records[0].kind = static_cast<uint32_t>(wire::DescriptorKind::kSegment);
    const wire::UniqueFd memory(memfd_create("lent", MFD_CLOEXEC));
    const int fds[] = {memory.get()};
    EXPECT_TRUE(wire::SendFrame(fd, wire::FrameType::kDescriptors, payload, fds).ok());
  }

  // Returns true if a frame is for this irisd.
  bool Concerns(Session& session, const wire::Frame& frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!session.awaits_seen) {
      EXPECT_NE(frame.type, wire::FrameType::kRestartSeen);
      return true;
    }
    if (frame.type == wire::FrameType::kRestartSeen) {
      const auto seen = frame.As<wire::RestartSeenPayload>();
      EXPECT_TRUE(seen.ok());
      ++seen_;
      session.awaits_seen = !seen.ok() || seen->generation != generation_;
    }
    // Numbers go on upwards.
    if (frame.type == wire::FrameType::kCall) {
      session.last_call = frame.Split<wire::CallPayload>()->first.call;
    }
    return false;
  }

  bool OnOperate(int fd, uint64_t call, const std::string& bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    v1::OperateRequest request;
    EXPECT_TRUE(request.ParseFromString(bytes));
    ks_.push_back(request.k());
    absl::Status answer;
    if (!answers_.empty()) {
      answer = answers_.front();
      answers_.pop_front();
    }
    if (absl::IsDataLoss(answer)) return true;
    if (answer == absl::UnavailableError("break")) {
      HangUpLocked();
      return false;
    }
    v1::OperateReply reply;
    *reply.mutable_outcome() = outcome_;
    reply.mutable_outcome()->set_k(request.k());
    Conclude(fd, call, answer, reply);
    return true;
  }

  void Serve() {
    for (;;) {
      struct pollfd p = {listener_.get(), POLLIN, 0};
      const bool comes = poll(&p, 1, 2) > 0;
      {
        absl::MutexLock lock(&mu_);
        if (stopping_) return;
        while (!deaf_ && ReadFrames()) continue;
        SendEvents();
      }
      if (comes) Accept();
    }
  }

  // Returns true if the sessions have changed, so that the caller looks again.
  bool ReadFrames() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (auto& [fd, session] : sessions_) {
      for (;;) {
        const auto frame = wire::ReceiveFrame(fd);
        if (!frame.ok()) break;
        if (!Concerns(session, *frame)) continue;
        if (frame->type == wire::FrameType::kCancelCall) ++cancels_;
        if (frame->type == wire::FrameType::kTaken) ++takens_;
        if (frame->type == wire::FrameType::kCall && !OnCall(fd, session, *frame)) return true;
      }
    }
    return false;
  }

  void SendEvents() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (auto& [fd, session] : sessions_) {
      if (session.watch == 0) continue;
      for (const v1::WatchEvent& event : std::exchange(events_, {})) {
        Answer(fd, session.watch, wire::kAnswerMessage, event.SerializeAsString());
      }
    }
  }

  void Accept() {
    wire::UniqueFd peer(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!peer.valid()) return;
    struct pollfd p = {peer.get(), POLLIN, 0};
    poll(&p, 1, 30000);
    const auto hello = wire::ReceiveFrame(peer.get());
    if (!hello.ok()) return;
    EXPECT_EQ(hello->As<wire::HelloPayload>()->flags, wire::kCallsByFrames);
    // HangUp, once the client knows the session, is to find it here.
    absl::MutexLock lock(&mu_);
    wire::WelcomePayload welcome;
    welcome.session_id = ++next_session_;
    welcome.daemon_id = daemon_id_;
    EXPECT_TRUE(wire::SendFrame(peer.get(), wire::FrameType::kWelcome, welcome).ok());
    sessions_[peer.Release()].id = welcome.session_id;
  }

  const std::string dir_;
  const uint64_t daemon_id_;
  wire::UniqueFd listener_;
  std::thread thread_;
  uint64_t next_session_ = 100;
  std::atomic<int> joins_{0};
  std::atomic<int> borrows_{0};
  std::atomic<int> barriers_{0};
  std::atomic<int> seen_{0};
  std::atomic<int> resumes_{0};
  std::atomic<int> watches_{0};
  std::atomic<int> cancels_{0};
  std::atomic<int> takens_{0};

  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool breaks_joins_ ABSL_GUARDED_BY(mu_) = false;
  bool deaf_ ABSL_GUARDED_BY(mu_) = false;
  bool knows_barriers_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t lends_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<size_t> descriptors_ ABSL_GUARDED_BY(mu_);
  int n_breaks_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<int, Session> sessions_ ABSL_GUARDED_BY(mu_);  // by descriptor, which it owns
  std::deque<absl::Status> answers_ ABSL_GUARDED_BY(mu_);
  v1::Outcome outcome_ ABSL_GUARDED_BY(mu_);
  std::deque<v1::WatchEvent> events_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> ks_ ABSL_GUARDED_BY(mu_);
  absl::Status resume_ ABSL_GUARDED_BY(mu_);
};

}  // namespace iris::internal
