// The reactors of relayed calls: each is a call of gRPC's on one side, and one of the relay's on
// the other. Bytes pass; nothing is looked at.
//
// A reactor is shared: by gRPC until OnDone, and by the relay while the call is open. gRPC's
// threads and the worker's own call it at the same time.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/link/methods.h"
#include "server/worker/relay.h"

namespace iris::server {

// One message back, or a failure.
class UnaryCall final : public grpc::ServerUnaryReactor, public RelayedCall {
 public:
  // Starts to relay; the result is for gRPC. `reply` is gRPC's, until OnDone.
  static grpc::ServerUnaryReactor* Start(Relay* relay, Method method,
                                         grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request, grpc::ByteBuffer* reply);

  void OnMessage(std::string_view payload) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnFinish(const absl::Status& status) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  UnaryCall(Relay* relay, uint64_t connection, grpc::ByteBuffer* reply)
      : relay_(relay), connection_(connection), reply_(reply) {}

  void OnCancel() override ABSL_LOCKS_EXCLUDED(mu_);
  void OnDone() override;
  // Gives gRPC the end. The first counts.
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  Relay* const relay_;
  const uint64_t connection_;
  grpc::ByteBuffer* const reply_;
  std::shared_ptr<UnaryCall> self_;  // until OnDone
  uint64_t number_ = 0;              // the relay's; 0: not asked; set before gRPC has the reactor
  absl::Mutex mu_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ByteBuffer answer_ ABSL_GUARDED_BY(mu_);
  Relay::Unread unread_ ABSL_GUARDED_BY(mu_);
};

// Messages back, one write under way at a time, then the end.
class StreamCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public RelayedCall {
 public:
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(Relay* relay, Method method,
                                                           grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request);

  void OnMessage(std::string_view payload) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnFinish(const absl::Status& status) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit StreamCall(Relay* relay) : relay_(relay) {}

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnCancel() override ABSL_LOCKS_EXCLUDED(mu_);
  void OnDone() override;
  // Starts the next write, or gives gRPC the end when all is written. Holds no lock as it does,
  // and is done by one thread at a time: by whoever finds something to do.
  void Advance() ABSL_LOCKS_EXCLUDED(mu_);

  Relay* const relay_;
  std::shared_ptr<StreamCall> self_;  // until OnDone
  uint64_t number_ = 0;               // the relay's; 0: not asked; set before gRPC has the reactor
  absl::Mutex mu_;
  std::deque<grpc::ByteBuffer> queue_ ABSL_GUARDED_BY(mu_);  // its front is being written
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace iris::server
