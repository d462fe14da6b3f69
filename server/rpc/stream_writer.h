// StreamWriter: one stream that irisd writes: a queue of messages, at most one write under way, and
// an end that comes after everything queued. Thread-safe.
//
// It is shared: by gRPC, until OnDone, and by whoever pushes. Whoever pushes derives from it.
#pragma once

#include <deque>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/rpc/call_counter.h"

namespace iris::server {

class StreamWriter : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  explicit StreamWriter(CallCounter* calls) : hold_(calls) {}

  // Hands the stream to gRPC, which holds it from here on, until OnDone. Returns it.
  static StreamWriter* GiveToGrpc(std::shared_ptr<StreamWriter> stream);

  // Queues; sends nothing yet. False: `max_queued` messages wait already. A stream that has ended
  // swallows everything.
  bool Queue(const google::protobuf::MessageLite& message, size_t max_queued)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Sends what is queued.
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the stream after what is queued. Idempotent: the first status counts.
  void Finish(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

 protected:
  // Nobody reads any more: nothing needs to be pushed. May be called more than once, with no lock
  // held.
  virtual void OnReaderGone() = 0;

 private:
  void OnWriteDone(bool ok) final ABSL_LOCKS_EXCLUDED(mu_);
  void OnCancel() final;
  void OnDone() final;

  // Starts the next write, or ends the stream when all is written. The message that is being
  // written is the queue's front.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const CallCounter::Hold hold_;
  std::shared_ptr<StreamWriter> self_;  // until OnDone
  absl::Mutex mu_;
  std::deque<grpc::ByteBuffer> queue_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace iris::server
