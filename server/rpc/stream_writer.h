// StreamWriter: one stream that irisd writes: a queue of messages, a few of them on their way, and
// an end that comes after everything queued. Thread-safe.
//
// It is shared: by whoever relays it, until it ends, and by whoever pushes. Whoever pushes derives
// from it. How much of it waits for a reader is bounded here: what is on its way by kStreamCredits,
// the rest by what Queue is told.
#pragma once

#include <deque>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "google/protobuf/message_lite.h"
#include "server/link/incoming_call.h"
#include "server/rpc/call_counter.h"

namespace iris::server {

class StreamWriter : public ActiveCall, public std::enable_shared_from_this<StreamWriter> {
 public:
  StreamWriter(CallCounter* calls, std::shared_ptr<Replier> reply)
      : hold_(calls), reply_(std::move(reply)) {}

  // Queues; sends nothing yet. False: `max_queued` messages wait already. A stream that has ended
  // swallows everything.
  bool Queue(const google::protobuf::MessageLite& message, size_t max_queued)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Sends what is queued.
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the stream after what is queued. Idempotent: the first status counts.
  void Finish(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

 protected:
  // Nobody reads any more: nothing needs to be pushed. Called with no lock held.
  virtual void OnReaderGone() = 0;

 private:
  void OnCancel() final ABSL_LOCKS_EXCLUDED(mu_);
  void OnSent() final ABSL_LOCKS_EXCLUDED(mu_);

  // Sends what may be sent, and ends the stream when all is.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const CallCounter::Hold hold_;
  const std::shared_ptr<Replier> reply_;
  absl::Mutex mu_;
  std::deque<LinkPayload> queue_ ABSL_GUARDED_BY(mu_);
  uint32_t on_their_way_ ABSL_GUARDED_BY(mu_) = 0;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace iris::server
