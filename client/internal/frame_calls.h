// FrameCalls: the calls of one session, as frames of its socket. A call is one frame to irisd, and
// its answer comes back by the session's thread, which hands it to whoever waits.
//
// Thread-safe, but for what is the session thread's own. Nothing waits without a deadline, a
// stream's reader apart.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "proto/wire/frame.h"

namespace iris::internal {

class FrameCalls {
 public:
  // Whom Cancel concerns.
  enum class Caller {
    kMember,  // a call of a rank: it is of no use any more once the rank leaves
    kLeaver,  // the call by which it leaves
  };
  struct Answer {
    absl::Status status;
    std::string message;    // if ok
    bool answered = false;  // the status is irisd's word on this call
  };
  // A stream that irisd writes. Its reader holds it.
  struct Stream;

  FrameCalls() = default;
  FrameCalls(const FrameCalls&) = delete;
  FrameCalls& operator=(const FrameCalls&) = delete;

  // Makes a call and waits for its answer. Not answered: the session's status, if that has ended;
  // kCancelled; kDeadlineExceeded, and then irisd is told that nobody waits any more. `fds` go
  // along with a request that fits in a frame; they are borrowed.
  Answer Call(wire::CallMethod method, const std::string& request, absl::Time deadline,
              Caller caller, absl::Span<const int> fds = {}) ABSL_LOCKS_EXCLUDED(mu_);

  // Opens a stream; of a member.
  absl::StatusOr<std::shared_ptr<Stream>> Open(wire::CallMethod method, const std::string& request,
                                               absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for the stream's next message and acknowledges it. False: the stream has ended, or the
  // session has, or calls are cancelled; End says how.
  bool Read(Stream& stream, std::string* message) ABSL_LOCKS_EXCLUDED(mu_);
  Answer End(Stream& stream) ABSL_LOCKS_EXCLUDED(mu_);

  // Ends what members wait for, now and later.
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);

  // The session's thread, or whoever sets the session up.

  // `socket` is borrowed until SessionEnded.
  void Use(int socket) ABSL_LOCKS_EXCLUDED(mu_);
  // A kAnswer or a kFailure. Not ok: irisd has broken the protocol.
  absl::Status OnFrame(const wire::Frame& frame) ABSL_LOCKS_EXCLUDED(mu_);
  // The session has ended; `status` says why.
  void SessionEnded(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A call that waits for its answer.
  struct Pending {
    bool streams = false;
    uint32_t untold = 0;  // messages that were read, which irisd does not know yet
    bool ended = false;
    absl::Status status;               // once it has ended
    std::string partial;               // of a message that comes in pieces
    std::deque<std::string> messages;  // a call that does not stream has at most one
  };

  // Sends a call of its own number, which is returned, and has its answer go to `pending`.
  absl::StatusOr<uint64_t> Start(wire::CallMethod method, const std::string& request,
                                 absl::Time deadline, Caller caller, absl::Span<const int> fds,
                                 Pending* pending) ABSL_LOCKS_EXCLUDED(mu_);
  // Tells irisd what was read, as far as it takes that now.
  void TellTaken(Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes it out of what waits, and tells irisd if it had not ended.
  void Forget(uint64_t number, const Pending& pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Why whoever waits does so in vain; ok if he does not.
  absl::Status Over(Caller caller) const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  int socket_ ABSL_GUARDED_BY(mu_) = -1;
  uint64_t last_call_ ABSL_GUARDED_BY(mu_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status ended_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, Pending*> pending_ ABSL_GUARDED_BY(mu_);
};

struct FrameCalls::Stream {
  explicit Stream(FrameCalls* of) : calls(of) {}
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  FrameCalls* const calls;
  uint64_t number = 0;
  Pending pending;  // under the calls' lock
};

// A memfd with these bytes, sealed against every change.
absl::StatusOr<wire::UniqueFd> MakeSealed(const std::string& bytes);

}  // namespace iris::internal
