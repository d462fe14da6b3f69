// SessionClient: one attested connection to irisd. A call is one frame on its socket. The session's
// thread receives answers, descriptors and errors, and passes them to the threads that wait. When
// the socket hangs up, the session has ended, and never reconnects.
//
// Another irisd may take the session over (kRestarted); the socket stays. The new irisd does not
// know the calls without a final answer, so the thread that waits for such a call, or polls it,
// repeats it as a new call with the same contents and deadline. The session's thread does not,
// since it must keep receiving even if irisd reads nothing. A stream is repeated once a thread
// reads or polls it.
//
// Every frame after the handshake is sent under the lock of this class, so the numbers of calls are
// in the order of their frames, and no frame comes between a restart and kRestartSeen. Only the
// reader of a stream waits without a deadline.
//
// Thread-safe. The destructor closes the socket and joins the thread; it must not run on that
// thread, nor while a call is under way.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/wire/job.h"
#include "proto/wire/frame.h"
#include "proto/wire/unique_fd.h"

namespace iris::internal {

struct SessionOptions {
  std::vector<std::string> runtime_dirs;  // tried in order
  // How long to retry while no irisd answers; zero: one attempt. A handshake may take 5 s more.
  absl::Duration connect_timeout;
  // Called once, on the session's thread, when the session ends for any reason but the destructor.
  std::function<void()> on_end;
};

class SessionClient {
 public:
  // Says whether CancelWaits ends the wait of a call.
  enum class Caller {
    kMember,  // a call of a rank: it is of no use any more once the rank leaves
    kLeaver,  // the call by which it leaves
  };
  struct Answer {
    absl::Status status;
    std::string message;    // if ok
    bool answered = false;  // the status is irisd's word on this call
    // If answered: that of the answering irisd. 0: the irisd that has welcomed this session.
    uint64_t generation = 0;
  };
  // A stream that irisd writes. Its reader holds it.
  struct Stream;

  // Limit of the descriptors that wait for a call that takes them. More end the session.
  static constexpr size_t kMaxDescriptors = 16384;

  // Connects and does the handshake, with back-off while no irisd answers, or one answers
  // kUnavailable. CannotReach describes kUnavailable. Other errors are irisd's refusals.
  static absl::StatusOr<std::shared_ptr<SessionClient>> Connect(SessionOptions options);
  ~SessionClient();
  SessionClient(const SessionClient&) = delete;
  SessionClient& operator=(const SessionClient&) = delete;

  uint64_t session_id() const { return welcome_.session_id; }
  uint64_t daemon_id() const { return welcome_.daemon_id; }
  // The backend of irisd's devices: "emu" or a vendor's.
  std::string backend() const {
    return std::string(welcome_.backend, strnlen(welcome_.backend, sizeof(welcome_.backend)));
  }
  const std::string& runtime_dir() const { return runtime_dir_; }

  // Returns OK while connected; afterwards the reason of the end, in irisd's words if it sent any.
  absl::Status status() const;
  // Waits until the session has ended. Returns true if it has.
  bool WaitForEnd(absl::Duration timeout) const;

  // Makes a call and waits for its answer. Without an answer, returns the session's status if that
  // has ended, kCancelled, or kDeadlineExceeded, after which the call is cancelled at irisd. `fds`
  // go along with a request that fits in a frame; they are borrowed, and sent again with it.
  Answer Call(wire::CallMethod method, const std::string& request, absl::Time deadline,
              Caller caller, absl::Span<const int> fds = {}) ABSL_LOCKS_EXCLUDED(mu_);

  // Opens a stream, as Caller::kMember. Never waits: if irisd's queue is full, the call is made
  // once the stream is read or polled.
  absl::StatusOr<std::shared_ptr<Stream>> Open(wire::CallMethod method, const std::string& request)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for the stream's next message and acknowledges it. Returns false if the stream or the
  // session has ended, or if calls are cancelled; End says how.
  bool Read(Stream& stream, std::string* message) ABSL_LOCKS_EXCLUDED(mu_);
  // Polls the stream, and returns how it ended if it has ended; never waits.
  Answer End(Stream& stream) ABSL_LOCKS_EXCLUDED(mu_);

  // Waits for the descriptors and takes them, in the order of `keys`. Those that came before the
  // session ended can still be taken after it. kDeadlineExceeded, or status(): nothing is taken
  // then.
  //
  // Only the irisd with the number `generation` (see Answer) sends these descriptors. kUnavailable,
  // while status() is OK, if another irisd has taken over before all arrived.
  absl::StatusOr<std::vector<wire::UniqueFd>> TakeDescriptors(
      absl::Span<const DescriptorKey> keys, absl::Time deadline,
      std::optional<uint64_t> generation = std::nullopt);
  // Ends every wait of TakeDescriptors, and of a kMember for an answer, now and later, with
  // kCancelled.
  void CancelWaits();
  // Closes all descriptors that were not taken, or only those of `keys`.
  void DropDescriptors();
  void DropDescriptors(absl::Span<const DescriptorKey> keys);

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
    uint64_t number = 0;      // 0: the call must be made, for the first time or again
    uint64_t generation = 0;  // in which it was made
    bool streams = false;
    uint32_t untold = 0;  // messages that were read and not yet reported to irisd
    size_t old = 0;       // number of the first `messages`, which an earlier irisd sent
    bool ended = false;
    absl::Status status;               // once it has ended
    std::string partial;               // of a message that comes in pieces
    std::deque<std::string> messages;  // a call that does not stream has at most one
  };

  SessionClient() = default;
  // Connects once. Waits until `give_up` while others connect. Returns an errno.
  static int TryConnect(const std::string& path, absl::Time give_up, wire::UniqueFd* socket);
  absl::Status Handshake(absl::Duration patience);
  void ReceiveLoop();
  // Receives one frame. An error ends the session.
  absl::Status Receive();
  absl::Status TakeIn(wire::Frame frame) ABSL_LOCKS_EXCLUDED(mu_);  // of descriptors
  // Handle a kAnswer or a kFailure, and a kRestarted. An error if irisd has broken the protocol.
  absl::Status OnAnswer(const wire::Frame& frame) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnRestarted(const wire::Frame& frame) ABSL_LOCKS_EXCLUDED(mu_);
  void Ended(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  // `bytes` and `fds` are borrowed.
  static absl::StatusOr<Request> MakeRequest(wire::CallMethod method, const std::string& bytes,
                                             absl::Span<const int> fds);
  // Makes a call, whose answer goes to `pending`. Never waits. kResourceExhausted if irisd's queue
  // is full.
  absl::Status TryMake(const Request& request, Pending* pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes a call, and waits for room until the deadline.
  absl::Status Make(const Request& request, absl::Time deadline, Caller caller, Pending* pending)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Makes the stream's call if it is due and irisd has room now.
  void TryMake(Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends the owed frames, which precede all others. kResourceExhausted if irisd's queue is full.
  absl::Status TrySendOwed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Reports to irisd which messages were read, if its queue has room.
  void TellTaken(Pending& pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Drops a call, and cancels it at irisd if it was made and has not ended.
  void Forget(const Pending& pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the reason why `caller` need not wait any more; OK if there is none.
  absl::Status Over(Caller caller) const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  std::string runtime_dir_;
  wire::UniqueFd socket_;
  wire::UniqueFd stop_event_;
  wire::WelcomePayload welcome_;
  std::function<void()> on_end_;
  std::thread receiver_;

  mutable absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  // Grows from one irisd to the next, and is 0 for the one that has welcomed this session.
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t last_call_ ABSL_GUARDED_BY(mu_) = 0;
  // Frames to be sent for which irisd's queue had no room.
  bool owes_seen_ ABSL_GUARDED_BY(mu_) = false;  // the kRestartSeen of generation_
  uint32_t owes_acks_ ABSL_GUARDED_BY(mu_) = 0;  // the number of descriptors
  // Calls of this generation, by number, that have not ended.
  std::map<uint64_t, Pending*> pending_ ABSL_GUARDED_BY(mu_);
  std::map<DescriptorKey, wire::UniqueFd> descriptors_ ABSL_GUARDED_BY(mu_);
};

struct SessionClient::Stream {
  explicit Stream(SessionClient* of) : session(of) {}
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  SessionClient* const session;
  std::string bytes;  // of the request
  Request request;
  Pending pending;  // under the session's lock
};

}  // namespace iris::internal
