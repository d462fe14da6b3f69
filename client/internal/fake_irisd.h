// FakeIrisd: an irisd with a real session socket and a real gRPC server, whose answers the test
// chooses. It gives a session another gRPC socket when it asks. For tests only. Thread-safe.
#pragma once

#include <fcntl.h>
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
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "proto/iris/v1/heap.grpc.pb.h"
#include "proto/wire/frame.h"
#include "proto/wire/unique_fd.h"

namespace iris::internal {

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

  // Ends every gRPC connection; the sessions stay.
  void CutChannels() {
    absl::MutexLock lock(&mu_);
    for (wire::UniqueFd& fd : channels_) shutdown(fd.get(), SHUT_RDWR);
    channels_.clear();
  }
  // The next n calls of any kind but Operate cut the connection instead of being answered.
  void CutCalls(int n) {
    absl::MutexLock lock(&mu_);
    n_cuts_ = n;
  }
  // Whether requests for another gRPC socket are left unanswered from now on.
  void WithholdSockets(bool withhold) {
    absl::MutexLock lock(&mu_);
    withhold_ = withhold;
  }
  int rpc_requests() { return rpc_requests_.load(); }
  std::vector<v1::JoinRequest> joins() {
    absl::MutexLock lock(&mu_);
    return joins_;
  }
  int leaves() { return leaves_.load(); }

  void SayLastWords(const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    for (wire::UniqueFd& fd : sessions_) {
      EXPECT_TRUE(
          wire::SendFrame(fd.get(), wire::FrameType::kError, wire::MakeErrorPayload(status)).ok());
    }
  }

  // Answers of Operate: one after the other, then OK for ever. kUnavailable "break" breaks the
  // session first, "cut" its gRPC connection.
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
    {
      absl::MutexLock lock(&mu_);
      joins_.push_back(*request);
    }
    CutIfWanted();
    reply->set_job_id(request->session_id());
    return grpc::Status::OK;
  }
  grpc::Status GrowMapped(grpc::ServerContext*, const v1::GrowMappedRequest*,
                          v1::GrowMappedReply*) override {
    CutIfWanted();
    return grpc::Status::OK;
  }
  grpc::Status Mapped(grpc::ServerContext*, const v1::MappedRequest*,
                      v1::MappedReply* reply) override {
    CutIfWanted();
    reply->set_same_address(true);
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
    if (answer.error_message() == "cut") CutChannels();
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
    CutIfWanted();
    absl::MutexLock lock(&mu_);
    return resume_;
  }
  grpc::Status Leave(grpc::ServerContext*, const v1::LeaveRequest*, v1::LeaveReply*) override {
    ++leaves_;
    CutIfWanted();
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

  void CutIfWanted() {
    {
      absl::MutexLock lock(&mu_);
      if (n_cuts_ == 0) return;
      --n_cuts_;
    }
    CutChannels();
  }

  // A new gRPC connection; returns the client's end.
  wire::UniqueFd MakeChannel() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    EXPECT_EQ(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    channels_.emplace_back(fcntl(ends[0], F_DUPFD_CLOEXEC, 3));
    grpc::AddInsecureChannelFromFd(server_.get(), ends[0]);
    return wire::UniqueFd(ends[1]);
  }

  void Serve() {
    for (;;) {
      struct pollfd p = {listener_.get(), POLLIN, 0};
      const bool comes = poll(&p, 1, 2) > 0;
      {
        absl::MutexLock lock(&mu_);
        if (stopping_) return;
        ReadFrames();
      }
      if (comes) Accept();
    }
  }

  // Acknowledgements say nothing here.
  void ReadFrames() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (const wire::UniqueFd& session : sessions_) {
      for (;;) {
        const auto frame = wire::ReceiveFrame(session.get());
        if (!frame.ok()) break;
        if (frame->type != wire::FrameType::kRpcRequest) continue;
        ++rpc_requests_;
        if (withhold_) continue;
        const wire::UniqueFd theirs = MakeChannel();
        const int fds[] = {theirs.get()};
        EXPECT_TRUE(wire::SendEmptyFrame(session.get(), wire::FrameType::kRpcSocket, fds).ok());
      }
    }
  }

  void Accept() {
    wire::UniqueFd peer(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!peer.valid()) return;
    struct pollfd p = {peer.get(), POLLIN, 0};
    poll(&p, 1, 30000);
    if (!wire::ReceiveFrame(peer.get()).ok()) return;
    // HangUp, once the client knows the session, is to find it here.
    absl::MutexLock lock(&mu_);
    const wire::UniqueFd theirs = MakeChannel();
    wire::WelcomePayload welcome;
    welcome.session_id = ++next_session_;
    welcome.daemon_id = daemon_id_;
    const int fds[] = {theirs.get()};
    EXPECT_TRUE(wire::SendFrame(peer.get(), wire::FrameType::kWelcome, welcome, fds).ok());
    sessions_.push_back(std::move(peer));
  }

  const std::string dir_;
  const uint64_t daemon_id_;
  std::unique_ptr<grpc::Server> server_;
  wire::UniqueFd listener_;
  std::thread thread_;
  uint64_t next_session_ = 100;
  std::atomic<int> resumes_{0};
  std::atomic<int> watches_{0};
  std::atomic<int> leaves_{0};
  std::atomic<int> rpc_requests_{0};

  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  int n_cuts_ ABSL_GUARDED_BY(mu_) = 0;
  bool withhold_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<v1::JoinRequest> joins_ ABSL_GUARDED_BY(mu_);
  std::vector<wire::UniqueFd> sessions_ ABSL_GUARDED_BY(mu_);
  std::vector<wire::UniqueFd> channels_ ABSL_GUARDED_BY(mu_);
  std::deque<grpc::Status> answers_ ABSL_GUARDED_BY(mu_);
  v1::Outcome outcome_ ABSL_GUARDED_BY(mu_);
  std::deque<v1::WatchEvent> events_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> ks_ ABSL_GUARDED_BY(mu_);
  grpc::Status resume_ ABSL_GUARDED_BY(mu_);
  int watch_generation_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace iris::internal
