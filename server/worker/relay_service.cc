#include "server/worker/relay_service.h"

#include <deque>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/impl/codegen/server_callback_handlers.h"
#include "grpcpp/impl/rpc_service_method.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "grpcpp/support/slice.h"
#include "proto/iris/v1/admin.pb.h"
#include "proto/iris/v1/heap.pb.h"
#include "proto/status/status.h"
#include "proto/wire/limits.h"
#include "server/link/methods.h"

namespace iris::server {
namespace {

using grpc::ByteBuffer;
using grpc::CallbackServerContext;

ByteBuffer ToBytes(std::string_view payload) {
  const grpc::Slice slice(payload.data(), payload.size());
  return ByteBuffer(&slice, 1);
}

grpc::Status ToGrpc(const absl::Status& status) {
  return proto::ToGrpc(status, wire::kMaxErrorTextBytes);
}

absl::Status Cancelled() { return absl::CancelledError("the caller is gone"); }

// One call, between gRPC on one side and the relay on the other. gRPC shares it until OnDone, and
// the relay while the call is open. Threads of both call it at the same time.
template <typename Reactor>
class SharedReactor : public Reactor, public RelayedCall {
 public:
  // Starts to relay. Returns `call` for gRPC, which calls it back only after that.
  static Reactor* Start(std::shared_ptr<SharedReactor> call, Method method,
                        const ByteBuffer* request) {
    SharedReactor* const started = call.get();
    started->self_ = call;
    const auto number =
        started->relay_->Open(started->connection_, method, *request, std::move(call));
    if (number.ok()) {
      started->number_ = *number;
    } else {
      started->OnFinish(number.status());
    }
    return started;
  }

 protected:
  SharedReactor(Relay* relay, const CallbackServerContext& context)
      : relay_(relay), connection_(relay->ConnectionOf(context.peer())) {}

  // May destroy this object when it returns.
  void OnDone() final { const std::shared_ptr<SharedReactor> self = std::move(self_); }

  Relay* const relay_;
  const uint64_t connection_;
  uint64_t number_ = 0;  // the relay's; 0: not opened; set before gRPC has the reactor

 private:
  std::shared_ptr<SharedReactor> self_;  // until OnDone
};

// Passes gRPC one message, or a failure.
class UnaryCall final : public SharedReactor<grpc::ServerUnaryReactor> {
 public:
  // gRPC owns `reply`, which is valid until OnDone.
  UnaryCall(Relay* relay, const CallbackServerContext& context, ByteBuffer* reply)
      : SharedReactor(relay, context), reply_(reply) {}
  ~UnaryCall() override { relay_->ReleaseUnread(connection_, unread_bytes_); }

  void OnMessage(std::string_view payload) override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (!ended_) answer_ = ToBytes(payload);
  }

  void OnFinish(const absl::Status& status) override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::Status told = status;
    {
      absl::MutexLock lock(&mu_);
      if (ended_) return;
      if (told.ok() && !answer_.Valid()) told = absl::InternalError("irisd has given no answer");
      if (told.ok()) told = relay_->HoldUnread(connection_, answer_.Length());
      if (told.ok()) unread_bytes_ = answer_.Length();
    }
    End(told);
  }

 private:
  void OnCancel() override {
    relay_->Cancel(number_);
    End(Cancelled());
  }

  // Ends the gRPC call. Only the first call of End counts.
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (std::exchange(ended_, true)) return;
      if (status.ok()) *reply_ = std::move(answer_);
      answer_.Clear();
    }
    Finish(ToGrpc(status));
  }

  ByteBuffer* const reply_;
  absl::Mutex mu_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  ByteBuffer answer_ ABSL_GUARDED_BY(mu_);
  size_t unread_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // released by the destructor
};

// Passes gRPC messages, one write at a time, then the end.
class StreamCall final : public SharedReactor<grpc::ServerWriteReactor<ByteBuffer>> {
 public:
  StreamCall(Relay* relay, const CallbackServerContext& context) : SharedReactor(relay, context) {}

  void OnMessage(std::string_view payload) override ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (ending_) return;
      queue_.push_back(ToBytes(payload));
    }
    Advance();
  }

  void OnFinish(const absl::Status& status) override ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      EndWith(status);
    }
    Advance();
  }

 private:
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      writing_ = false;
      if (ok) {
        queue_.pop_front();
      } else {  // the reader is gone: OnCancel notifies the core
        queue_.clear();
        EndWith(Cancelled());
      }
    }
    if (ok) relay_->Sent(number_);
    Advance();
  }

  void OnCancel() override ABSL_LOCKS_EXCLUDED(mu_) {
    relay_->Cancel(number_);
    {
      absl::MutexLock lock(&mu_);
      queue_.erase(queue_.begin() + (writing_ ? 1 : 0), queue_.end());
      EndWith(Cancelled());
    }
    Advance();
  }

  // Records the end. Only the first call counts.
  void EndWith(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!std::exchange(ending_, true)) status_ = status;
  }

  // Starts the next write, or passes gRPC the end after the last write. Holds no lock while it
  // calls gRPC; only the thread that finds something to do does it.
  void Advance() ABSL_LOCKS_EXCLUDED(mu_) {
    const ByteBuffer* message = nullptr;
    grpc::Status end;
    {
      absl::MutexLock lock(&mu_);
      if (writing_ || ended_ || (queue_.empty() && !ending_)) return;
      if (queue_.empty()) {
        ended_ = true;
        end = ToGrpc(status_);
      } else {
        writing_ = true;
        message = &queue_.front();
      }
    }
    if (message != nullptr) {
      StartWrite(message);
    } else {
      Finish(end);
    }
  }

  absl::Mutex mu_;
  std::deque<ByteBuffer> queue_ ABSL_GUARDED_BY(mu_);  // the front is being written
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

RelayService::RelayService(Relay* relay, bool admin) {
  using grpc::internal::RpcMethod;
  // Reflection finds the files of the messages only if the messages are linked.
  google::protobuf::LinkMessageReflection<v1::EventsRequest>();
  google::protobuf::LinkMessageReflection<v1::JoinRequest>();
  int index = 0;
  for (const MethodInfo& info : kMethods) {
    if (IsAdmin(info.method) != admin) continue;
    const auto type = info.streams ? RpcMethod::SERVER_STREAMING : RpcMethod::NORMAL_RPC;
    AddMethod(new grpc::internal::RpcServiceMethod(info.name.data(), type, nullptr));
    grpc::internal::MethodHandler* handler = nullptr;
    if (info.streams) {
      handler = new grpc::internal::CallbackServerStreamingHandler<ByteBuffer, ByteBuffer>(
          [=, method = info.method](CallbackServerContext* context, const ByteBuffer* request) {
            return StreamCall::Start(std::make_shared<StreamCall>(relay, *context), method,
                                     request);
          });
    } else {
      handler = new grpc::internal::CallbackUnaryHandler<ByteBuffer, ByteBuffer>(
          [=, method = info.method](CallbackServerContext* context, const ByteBuffer* request,
                                    ByteBuffer* reply) {
            return UnaryCall::Start(std::make_shared<UnaryCall>(relay, *context, reply), method,
                                    request);
          });
    }
    MarkMethodRawCallback(index++, handler);
  }
}

}  // namespace iris::server
