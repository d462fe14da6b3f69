// FrameCalls: the calls of one session, as frames of its socket. A call is one frame to irisd. The
// session's thread receives the answer, and gives it to the thread that waits.
//
// Another irisd may take the session over (kRestarted). It does not know the calls without a final
// answer, so the thread that waits for such a call, or polls it, makes it again, as a new call with
// the same contents: the session's thread must go on receiving, whatever irisd reads. The deadline
// stays. A stream that no thread reads or polls is not made again before one does.
//
// Every frame after the handshake is sent under the lock of this class: so numbers of calls are in
// the order of their frames, and nothing comes between a restart and kRestartSeen.
//
// Thread-safe, but for what is the session thread's own. Nothing waits without a deadline, a
// stream's reader apart.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "proto/wire/frame.h"
#include "proto/wire/unique_fd.h"

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
    std::string message;      // if ok
    bool answered = false;    // the status is irisd's word on this call
    uint64_t generation = 0;  // if answered: of the irisd that did; see OnRestarted
  };
  // A stream that irisd writes. Its reader holds it.
  struct Stream;

  FrameCalls() = default;
  FrameCalls(const FrameCalls&) = delete;
  FrameCalls& operator=(const FrameCalls&) = delete;

  // Makes a call and waits for its answer. Without an answer: the session's status, if that has
  // ended; kCancelled; kDeadlineExceeded, after which irisd learns that nobody waits any more.
  // `fds` go along with a request that fits in a frame; they are borrowed, and sent again with it.
  Answer Call(wire::CallMethod method, const std::string& request, absl::Time deadline,
              Caller caller, absl::Span<const int> fds = {}) ABSL_LOCKS_EXCLUDED(mu_);

  // Opens a stream; of a member. Never waits: if irisd's queue is full, the call is made once the
  // stream is read or looked at.
  absl::StatusOr<std::shared_ptr<Stream>> Open(wire::CallMethod method, const std::string& request)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for the stream's next message and acknowledges it. Returns false if the stream or the
  // session has ended, or if calls are cancelled; End says how.
  bool Read(Stream& stream, std::string* message) ABSL_LOCKS_EXCLUDED(mu_);
  // Looks at the stream; never waits.
  Answer End(Stream& stream) ABSL_LOCKS_EXCLUDED(mu_);

  // Cancels the waits of members, now and later.
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);

  // Called by the session's thread, or by the thread that sets the session up.

  // `socket` is borrowed until SessionEnded.
  void Use(int socket) ABSL_LOCKS_EXCLUDED(mu_);
  // A kAnswer or a kFailure. An error if irisd has broken the protocol.
  absl::Status OnFrame(const wire::Frame& frame) ABSL_LOCKS_EXCLUDED(mu_);
  // Acknowledges so many descriptors more.
  void Acknowledge(uint32_t count) ABSL_LOCKS_EXCLUDED(mu_);
  // A kRestarted. `generation` grows from one irisd to the next, and is 0 for the one that has
  // welcomed this session; not ok if it does not grow.
  absl::Status OnRestarted(uint64_t generation) ABSL_LOCKS_EXCLUDED(mu_);
  // Something is to be sent that irisd's queue had no room for: call SendOwed once it has.
  bool owes() const ABSL_LOCKS_EXCLUDED(mu_);
  void SendOwed() ABSL_LOCKS_EXCLUDED(mu_);
  // The session has ended; `status` says why.
  void SessionEnded(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // The contents of a call, which may be made several times.
  struct Request {
    wire::CallPayload header;  // but for the number
    std::string_view bytes;    // if they fit in a frame
    wire::UniqueFd sealed;     // else
    absl::Span<const int> fds;
  };
  // A call that waits for its answer.
  struct Pending {
    uint64_t number = 0;      // 0: it is to be made, for the first time or again
    uint64_t generation = 0;  // in which it was made
    bool streams = false;
    uint32_t untold = 0;  // messages that were read, which irisd does not know yet
    size_t old = 0;       // of `messages`, the first ones: another irisd sent them
    bool ended = false;
    absl::Status status;               // once it has ended
    std::string partial;               // of a message that comes in pieces
    std::deque<std::string> messages;  // a call that does not stream has at most one
  };

  // `bytes` and `fds` are borrowed.
  static absl::StatusOr<Request> MakeRequest(wire::CallMethod method, const std::string& bytes,
                                             absl::Span<const int> fds);
  // Makes a call, whose answer goes to `pending`. Never waits. kResourceExhausted if irisd's queue
  // is full.
  absl::Status TryMake(const Request& request, Pending* pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes a call, and waits for room until the deadline.
  absl::Status Make(const Request& request, absl::Time deadline, Caller caller, Pending* pending)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Makes the stream's call if that is to be done and irisd has room now.
  void TryMake(Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends the frames that go before every other one. kResourceExhausted if irisd's queue is full.
  absl::Status TrySendOwed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Reports to irisd which messages were read, as far as its queue has room.
  void TellTaken(Pending& pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Drops a call, and cancels it at irisd if it was made and has not ended.
  void Forget(const Pending& pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The reason why `caller` waits in vain; ok if there is none.
  absl::Status Over(Caller caller) const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  int socket_ ABSL_GUARDED_BY(mu_) = -1;
  uint64_t last_call_ ABSL_GUARDED_BY(mu_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status ended_ ABSL_GUARDED_BY(mu_);
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  bool owes_seen_ ABSL_GUARDED_BY(mu_) = false;  // the kRestartSeen of generation_
  uint32_t owes_acks_ ABSL_GUARDED_BY(mu_) = 0;  // for so many descriptors
  // Calls of this generation, by number, that have not ended.
  std::map<uint64_t, Pending*> pending_ ABSL_GUARDED_BY(mu_);
};

struct FrameCalls::Stream {
  explicit Stream(FrameCalls* of) : calls(of) {}
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  FrameCalls* const calls;
  std::string bytes;  // of the request
  Request request;
  Pending pending;  // under the calls' lock
};

// A memfd with these bytes, sealed against every change.
absl::StatusOr<wire::UniqueFd> MakeSealed(const std::string& bytes);

}  // namespace iris::internal
