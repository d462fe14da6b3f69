// StreamWriter: the messages of one call that is answered by a stream. CallCounter: how many calls
// are under way. No thread waits for an answer. Thread-safe.
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
  // Counts for as long as it lives.
  class Hold {
   public:
    explicit Hold(CallCounter* counter) : counter_(counter) { counter_->Change(1); }
    ~Hold() { counter_->Change(-1); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    CallCounter* const counter_;
  };

  // Returns true once there is none, and false on a timeout.
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

// One stream that irisd writes: a queue of messages, a few of them on their way, and an end that
// comes after everything queued. Thread-safe. It is shared by the relay, until it ends, and by its
// writer, which derives from it. kStreamCredits bounds what is on its way, Queue the rest.
class StreamWriter : public ActiveCall, public std::enable_shared_from_this<StreamWriter> {
 public:
  StreamWriter(CallCounter* calls, std::shared_ptr<Replier> reply)
      : hold_(calls), reply_(std::move(reply)) {}

  // Queues; sends nothing yet. Returns false if `max_queued` messages wait already. A stream that
  // has ended ignores everything.
  bool Queue(const google::protobuf::MessageLite& message, size_t max_queued)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the stream after what is queued. Idempotent: the first status counts.
  void Finish(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

 protected:
  // The reader is gone. Called with no lock held.
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
