// StreamWriter: writes the messages of one call that is answered by a stream. CallCounter: counts
// the calls that are under way. No thread waits for an answer. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "google/protobuf/message_lite.h"
#include "server/link/incoming_call.h"

namespace iris::server {

// Counts the calls that are under way, so that a stopping irisd can let them finish. Thread-safe.
class CallCounter {
 public:
  // Counts one call while it lives.
  class Hold {
   public:
    explicit Hold(CallCounter* counter) : counter_(counter) { counter_->Change(1); }
    ~Hold() { counter_->Change(-1); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    CallCounter* const counter_;
  };

  // Waits until no call is under way. Returns false on a timeout.
  bool WaitForNone(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return n_ == 0; };
    return mu_.AwaitWithTimeout(absl::Condition(&none), timeout);
  }

 private:
  void Change(int by) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    n_ += by;
  }

  absl::Mutex mu_;
  int n_ ABSL_GUARDED_BY(mu_) = 0;
};

// One stream that irisd writes: a queue of messages, a few of which are being sent, and then an
// end. Thread-safe. The relay shares it, until the stream ends, with its writer, which derives
// from this class. kStreamCredits bounds the messages being sent, Queue the others.
class StreamWriter : public ActiveCall, public std::enable_shared_from_this<StreamWriter> {
 public:
  StreamWriter(CallCounter* calls, std::shared_ptr<Replier> reply)
      : hold_(calls), reply_(std::move(reply)) {}

  // Queues a message, and sends nothing yet. Returns false if `max_queued` messages already wait. A
  // stream that has ended ignores all calls.
  bool Queue(const google::protobuf::MessageLite& message, size_t max_queued)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the stream after the queued messages. Idempotent: the first status is used.
  void Finish(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

 protected:
  // Called, with no lock held, when the reader is gone.
  virtual void OnReaderGone() = 0;

 private:
  void OnCancel() final ABSL_LOCKS_EXCLUDED(mu_);
  void OnSent() final ABSL_LOCKS_EXCLUDED(mu_);

  // Sends as much as the reader's credits allow, and ends the stream after the last message.
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
