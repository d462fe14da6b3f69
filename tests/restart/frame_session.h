// FrameSession: a client that calls by frames and does only what it is told, so that a test decides
// what it sends around a restart. One thread. Everything waits for at most 30 s.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/iris/v1/heap.pb.h"
#include "proto/wire/frame.h"
#include "proto/wire/unique_fd.h"
#include "tests/integration/daemon_harness.h"

namespace iris::testing {

class FrameSession {
 public:
  using Descriptor = std::pair<wire::DescriptorRecord, wire::UniqueFd>;

  // `version`: the highest that its hello names.
  static absl::StatusOr<std::unique_ptr<FrameSession>> Open(
      const std::string& path, uint16_t version = wire::kVersionRestarts) {
    auto session = std::make_unique<FrameSession>();
    absl::StatusOr<wire::UniqueFd> socket = Connect(path, SOCK_SEQPACKET);
    if (!socket.ok()) return socket.status();
    session->socket_ = *std::move(socket);
    wire::HelloPayload hello;
    hello.version_max = version;
    hello.flags = wire::kCallsByFrames;
    absl::Status sent = session->Send(wire::FrameType::kHello, hello);
    if (!sent.ok()) return sent;
    for (;;) {
      absl::StatusOr<wire::Frame> frame = session->Next();
      if (!frame.ok()) return frame.status();
      if (frame->type == wire::FrameType::kWelcome) {
        session->id_ = frame->As<wire::WelcomePayload>()->session_id;
        return session;
      }
      if (frame->type != wire::FrameType::kChallenge) return absl::InternalError("no challenge");
      sent = session->Send(wire::FrameType::kChallengeReply, *frame->As<wire::NoncePayload>());
      if (!sent.ok()) return sent;
    }
  }

  int socket() const { return socket_.get(); }
  uint64_t id() const { return id_; }
  uint64_t generation() const { return generation_; }
  std::vector<Descriptor>& descriptors() { return descriptors_; }

  template <typename P>
  absl::Status Send(wire::FrameType type, const P& payload, const std::vector<int>& fds = {}) {
    return wire::SendFrame(socket_.get(), type, payload, absl::Span<const int>(fds));
  }

  // Makes a call, and returns its number.
  template <typename M>
  uint64_t Make(wire::CallMethod method, const M& request, const std::vector<int>& fds = {}) {
    const std::string bytes = request.SerializeAsString();
    wire::CallPayload call;
    call.call = ++last_call_;
    call.method = static_cast<uint32_t>(method);
    call.bytes = static_cast<uint32_t>(bytes.size());
    send_status_ = wire::SendFrame(socket_.get(), wire::FrameType::kCall, call, bytes,
                                   absl::Span<const int>(fds));
    return last_call_;
  }

  // Waits for the next message of a call, or its end if it sends none.
  template <typename M>
  absl::StatusOr<M> Await(uint64_t number) {
    std::string message;
    for (;;) {
      absl::StatusOr<wire::Frame> frame = Next();
      if (!frame.ok()) return frame.status();
      if (frame->type == wire::FrameType::kFailure) {
        const auto failure = frame->As<wire::FailurePayload>();
        if (!failure.ok()) return failure.status();
        if (failure->call == number) return wire::StatusFromErrorPayload(failure->error);
      }
      if (frame->type == wire::FrameType::kRestarted) {
        return absl::UnavailableError("irisd was restarted");
      }
      if (frame->type != wire::FrameType::kAnswer) continue;
      const auto answer = frame->Split<wire::AnswerPayload>();
      if (!answer.ok()) return answer.status();
      if (answer->first.call != number) continue;
      message += answer->second;
      if ((answer->first.flags & wire::kAnswerContinues) != 0) continue;
      M reply;
      if (!reply.ParseFromString(message)) return absl::InternalError("no message");
      return reply;
    }
  }
  template <typename Reply, typename M>
  absl::StatusOr<Reply> Call(wire::CallMethod method, const M& request,
                             const std::vector<int>& fds = {}) {
    return Await<Reply>(Make(method, request, fds));
  }

  // Waits until irisd says that another one has taken over, and gives the generation.
  absl::StatusOr<uint64_t> AwaitRestarted() {
    for (;;) {
      absl::StatusOr<wire::Frame> frame = Next();
      if (!frame.ok()) return frame.status();
      if (frame->type == wire::FrameType::kRestarted) return generation_;
    }
  }
  absl::Status Seen(uint64_t generation) {
    return Send(wire::FrameType::kRestartSeen, wire::RestartSeenPayload{generation});
  }
  // Both.
  absl::Status FollowRestart() {
    const auto generation = AwaitRestarted();
    return generation.ok() ? Seen(*generation) : generation.status();
  }

  // The error with which irisd ends the session; kUnavailable: it hangs up without one.
  absl::Status AwaitEnd() {
    for (;;) {
      const absl::StatusOr<wire::Frame> frame = Next();
      if (!frame.ok()) return frame.status();
    }
  }

  // Receives descriptors until there are n, and acknowledges them.
  absl::Status AwaitDescriptors(size_t n) {
    std::deque<wire::Frame> others;
    while (descriptors_.size() < n) {
      absl::StatusOr<wire::Frame> frame = Next();
      if (!frame.ok()) return frame.status();
      if (frame->type != wire::FrameType::kDescriptors) others.push_back(*std::move(frame));
    }
    // They are for whoever waits for them next.
    for (wire::Frame& frame : others) passed_.push_back(std::move(frame));
    return absl::OkStatus();
  }

  iris::v1::JoinRequest JoinRequest(const std::string& job, int rank, int n_ranks) const {
    iris::v1::JoinRequest request = JoinRequestOf(id_, job, rank, n_ranks);
    request.set_max_heap_bytes(64 << 20);
    request.set_number(1);
    return request;
  }
  iris::v1::MappedRequest MappedRequest(const iris::v1::JoinReply& joined) const {
    return MappedRequestOf(id_, joined);
  }
  iris::v1::OperateRequest OperateRequest(const iris::v1::JoinReply& joined, uint64_t k) const {
    return OperateRequestOf(id_, joined, k);
  }
  iris::v1::OperateRequest AllocateRequest(const iris::v1::JoinReply& joined, uint64_t k,
                                           uint64_t bytes, const std::string& name) const {
    return AllocateRequestOf(id_, joined, k, bytes, name);
  }
  iris::v1::ResumeRequest ResumeRequest(const iris::v1::JoinReply& joined, const std::string& job,
                                        int rank) const {
    iris::v1::ResumeRequest request;
    request.set_session_id(id_);
    request.set_job_id(joined.job_id());
    request.set_job(job);
    request.set_rank(rank);
    request.set_epoch(joined.epoch());
    return request;
  }
  absl::Status Leave(const iris::v1::JoinReply& joined) {
    return Call<iris::v1::LeaveReply>(wire::CallMethod::kLeave, LeaveRequestOf(id_, joined))
        .status();
  }

 private:
  absl::StatusOr<wire::Frame> Receive() {
    return ReceiveFrameBefore(socket_.get(), absl::Now() + absl::Seconds(30));
  }
  // Takes descriptors in, acknowledges them, and remembers generations.
  absl::StatusOr<wire::Frame> Next() {
    if (!passed_.empty()) {
      wire::Frame frame = std::move(passed_.front());
      passed_.pop_front();
      return frame;
    }
    absl::StatusOr<wire::Frame> frame = Receive();
    if (!frame.ok()) return frame;
    if (frame->type == wire::FrameType::kError) {
      const auto error = frame->As<wire::ErrorPayload>();
      return error.ok() ? wire::StatusFromErrorPayload(*error) : error.status();
    }
    if (frame->type == wire::FrameType::kRestarted) {
      const auto restarted = frame->As<wire::RestartedPayload>();
      if (!restarted.ok()) return restarted.status();
      generation_ = restarted->generation;
    }
    if (frame->type == wire::FrameType::kDescriptors) {
      const auto payload = frame->As<wire::DescriptorsPayload>();
      if (!payload.ok()) return payload.status();
      for (uint32_t i = 0; i < payload->count && i < frame->fds.size(); ++i) {
        if (payload->records[i].kind != static_cast<uint32_t>(wire::DescriptorKind::kLink)) {
          descriptors_.emplace_back(payload->records[i], std::move(frame->fds[i]));
        }
      }
      const absl::Status sent =
          Send(wire::FrameType::kAck, wire::AckPayload{.count = payload->count});
      if (!sent.ok()) return sent;
    }
    return frame;
  }

  wire::UniqueFd socket_;
  uint64_t id_ = 0;
  uint64_t last_call_ = 0;
  uint64_t generation_ = 0;
  absl::Status send_status_;
  std::vector<Descriptor> descriptors_;
  std::deque<wire::Frame> passed_;
};

}  // namespace iris::testing
