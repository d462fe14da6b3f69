#include "server/rpc/heap_service.h"

#include <deque>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "server/rpc/convert.h"

namespace iris::server {
namespace {

constexpr size_t kMaxWatchQueue = 256;

// One unary call. Finished either by its answer or by its cancellation: the daemon decides which.
// Owns itself.
class PendingCall : public grpc::ServerUnaryReactor {
 public:
  PendingCall(Daemon* daemon, CallCounter* calls)
      : hold_(calls), daemon_(daemon), id_(daemon->NewCall()) {}
  CallId id() const { return id_; }

  void OnCancel() override {
    if (daemon_->Cancel(id_)) {
      Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the caller is gone"));
    }
  }
  void OnDone() override { delete this; }

 private:
  const CallCounter::Hold hold_;
  Daemon* const daemon_;
  const CallId id_;
};

// A watch stream. Shared by gRPC (until OnDone) and the daemon (until closed).
class WatchStream : public grpc::ServerWriteReactor<v1::WatchEvent>, public WatchSink {
 public:
  WatchStream(Daemon* daemon, CallCounter* calls, SessionId session)
      : hold_(calls), daemon_(daemon), session_(session) {}

  // Keeps the object until OnDone.
  void HoldSelf(std::shared_ptr<WatchStream> self) { self_ = std::move(self); }

  bool Push(const WatchItem& item) override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (closing_) return true;
    if (queue_.size() >= kMaxWatchQueue) return false;
    queue_.emplace_back();
    ToProto(item, &queue_.back());
    return true;
  }

  void Kick() override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    Advance();
  }

  void Close(const absl::Status& status) override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (closing_) return;
    closing_ = true;
    status_ = ToGrpc(status);
    Advance();
  }

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    if (!ok) {  // the reader is gone
      queue_.clear();
      closing_ = true;
    } else if (!queue_.empty()) {
      queue_.pop_front();
    }
    Advance();
  }

  void OnCancel() override ABSL_LOCKS_EXCLUDED(mu_) {
    daemon_->Unwatch(session_, this);
    absl::MutexLock lock(&mu_);
    closing_ = true;
    status_ = grpc::Status(grpc::StatusCode::CANCELLED, "the reader is gone");
    Advance();
  }

  void OnDone() override {
    daemon_->Unwatch(session_, this);
    self_.reset();  // may destroy this
  }

 private:
  // Starts the next write, or ends the stream when all is written. At most one write is under way;
  // its message is the queue's front.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_ || finished_) return;
    if (!queue_.empty()) {
      writing_ = true;
      StartWrite(&queue_.front());
      return;
    }
    if (closing_) {
      finished_ = true;
      Finish(status_);
    }
  }

  const CallCounter::Hold hold_;
  Daemon* const daemon_;
  const SessionId session_;
  std::shared_ptr<WatchStream> self_;
  absl::Mutex mu_;
  std::deque<v1::WatchEvent> queue_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<SessionId> HeapService::Caller(const grpc::CallbackServerContext& context,
                                              uint64_t session_id) const {
  const std::optional<Connection> connection = connections_->Find(context.peer());
  if (!connection.has_value()) {
    return absl::PermissionDeniedError("the connection's session has ended");
  }
  if (connection->session.value == 0) {
    return absl::PermissionDeniedError(
        "heap calls need a session: connect to session.sock, and call on the socket that its "
        "handshake returns");
  }
  if (connection->session.value != session_id) {
    return absl::PermissionDeniedError(
        absl::StrCat("the request names session ", session_id, ", which is not this connection's"));
  }
  return connection->session;
}

grpc::ServerUnaryReactor* HeapService::Join(grpc::CallbackServerContext* context,
                                            const v1::JoinRequest* request, v1::JoinReply* reply) {
  auto* const call = new PendingCall(daemon_, calls_);
  const absl::StatusOr<SessionId> session = Caller(*context, request->session_id());
  if (!session.ok()) {
    call->Finish(ToGrpc(session.status()));
    return call;
  }
  daemon_->Call(
      call->id(), JoinCall{*session, call->id(), FromProto(*request)},
      [call, reply, daemon = daemon_, rank = request->rank()](const Reply& answer) {
        if (answer.status.ok()) {
          const auto& joined = std::get<JoinResult>(answer.result);
          ToProto(joined, daemon->driver().devices(), reply);
          reply->set_link_bytes(daemon->descriptors().link_bytes());
          driver::CreateTimes times;
          for (const SegmentInfo& segment : joined.segments) {
            if (segment.rank != static_cast<uint32_t>(rank)) continue;
            const driver::CreateTimes one = daemon->segments().TimesOf(segment.id);
            times.create += one.create;
            times.export_fd += one.export_fd;
          }
          reply->set_create_ns(static_cast<uint64_t>(absl::ToInt64Nanoseconds(times.create)));
          reply->set_export_ns(static_cast<uint64_t>(absl::ToInt64Nanoseconds(times.export_fd)));
        }
        call->Finish(ToGrpc(answer.status));
      });
  return call;
}

grpc::ServerUnaryReactor* HeapService::Mapped(grpc::CallbackServerContext* context,
                                              const v1::MappedRequest* request,
                                              v1::MappedReply* reply) {
  auto* const call = new PendingCall(daemon_, calls_);
  const absl::StatusOr<SessionId> session = Caller(*context, request->session_id());
  if (!session.ok()) {
    call->Finish(ToGrpc(session.status()));
    return call;
  }
  daemon_->Call(call->id(),
                MappedCall{*session, call->id(), JobId{request->job_id()}, request->epoch(),
                           request->base(), request->error()},
                [call, reply](const Reply& answer) {
                  if (answer.status.ok()) ToProto(std::get<MappedResult>(answer.result), reply);
                  call->Finish(ToGrpc(answer.status));
                });
  return call;
}

grpc::ServerUnaryReactor* HeapService::Operate(grpc::CallbackServerContext* context,
                                               const v1::OperateRequest* request,
                                               v1::OperateReply* reply) {
  auto* const call = new PendingCall(daemon_, calls_);
  const absl::StatusOr<SessionId> session = Caller(*context, request->session_id());
  if (!session.ok()) {
    call->Finish(ToGrpc(session.status()));
    return call;
  }
  const absl::StatusOr<OperationSpec> spec = FromProto(*request);
  if (!spec.ok()) {
    call->Finish(ToGrpc(spec.status()));
    return call;
  }
  daemon_->Call(call->id(), OperateCall{*session, call->id(), *spec},
                [call, reply](const Reply& answer) {
                  if (answer.status.ok()) {
                    ToProto(std::get<Outcome>(answer.result), reply->mutable_outcome());
                  }
                  call->Finish(ToGrpc(answer.status));
                });
  return call;
}

grpc::ServerUnaryReactor* HeapService::GrowMapped(grpc::CallbackServerContext* context,
                                                  const v1::GrowMappedRequest* request,
                                                  v1::GrowMappedReply* /*reply*/) {
  auto* const call = new PendingCall(daemon_, calls_);
  const absl::StatusOr<SessionId> session = Caller(*context, request->session_id());
  if (!session.ok()) {
    call->Finish(ToGrpc(session.status()));
    return call;
  }
  daemon_->Call(call->id(),
                GrowMappedCall{*session, call->id(), JobId{request->job_id()},
                               GrowId{request->grow_id()}, request->error()},
                [call](const Reply& answer) { call->Finish(ToGrpc(answer.status)); });
  return call;
}

grpc::ServerUnaryReactor* HeapService::Leave(grpc::CallbackServerContext* context,
                                             const v1::LeaveRequest* request,
                                             v1::LeaveReply* /*reply*/) {
  auto* const call = new PendingCall(daemon_, calls_);
  const absl::StatusOr<SessionId> session = Caller(*context, request->session_id());
  if (!session.ok()) {
    call->Finish(ToGrpc(session.status()));
    return call;
  }
  daemon_->Call(call->id(), LeaveCall{*session, call->id(), JobId{request->job_id()}},
                [call](const Reply& answer) { call->Finish(ToGrpc(answer.status)); });
  return call;
}

grpc::ServerUnaryReactor* HeapService::Resume(grpc::CallbackServerContext* context,
                                              const v1::ResumeRequest* request,
                                              v1::ResumeReply* reply) {
  auto* const call = new PendingCall(daemon_, calls_);
  const absl::StatusOr<SessionId> session = Caller(*context, request->session_id());
  if (!session.ok()) {
    call->Finish(ToGrpc(session.status()));
    return call;
  }
  daemon_->Call(
      call->id(),
      ResumeCall{*session, call->id(), JobId{request->job_id()}, request->job(), request->rank(),
                 request->epoch()},
      [call, reply](const Reply& answer) {
        if (answer.status.ok()) {
          reply->set_state(static_cast<v1::RankState>(std::get<ResumeResult>(answer.result).state));
        }
        call->Finish(ToGrpc(answer.status));
      });
  return call;
}

grpc::ServerWriteReactor<v1::WatchEvent>* HeapService::Watch(grpc::CallbackServerContext* context,
                                                             const v1::WatchRequest* request) {
  const absl::StatusOr<SessionId> session = Caller(*context, request->session_id());
  auto stream =
      std::make_shared<WatchStream>(daemon_, calls_, session.ok() ? *session : SessionId());
  stream->HoldSelf(stream);
  WatchStream* const raw = stream.get();
  if (!session.ok()) {
    raw->Close(session.status());
    return raw;
  }
  daemon_->Watch(WatchOpened{*session, daemon_->NewCall(), JobId{request->job_id()}},
                 std::move(stream));
  return raw;
}

}  // namespace iris::server
