// SessionClient: one attested connection to irisd. Calls go out on its socket, each as one frame,
// and answers, descriptors and errors come in, by a thread of its own, which hands them to the
// threads that wait. When the socket hangs up, the session has ended, and never reconnects.
//
// Another irisd may take the session over (kRestarted); the socket stays. It does not know the
// calls without a final answer, so the thread that waits for such a call, or polls it, makes it
// again, as a new call with the same contents: the session's thread must go on receiving, whatever
// irisd reads. The deadline stays. A stream that no thread reads or polls is not made again before
// one does.
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
  // For this long it is tried while nobody answers; zero: once. A handshake may take 5 s anyhow.
  absl::Duration connect_timeout;
  // Called once when the session ends for whatever reason but the destructor; on the session's
  // thread.
  std::function<void()> on_end;
};

class SessionClient {
 public:
  // Whom CancelWaits concerns.
  enum class Caller {
    kMember,  // a call of a rank: it is of no use any more once the rank leaves
    kLeaver,  // the call by which it leaves
  };
  struct Answer {
    absl::Status status;
    std::string message;    // if ok
    bool answered = false;  // the status is irisd's word on this call
    // If answered: of the irisd that did. 0: the one that has welcomed this session.
    uint64_t generation = 0;
  };
  // A stream that irisd writes. Its reader holds it.
  struct Stream;

  // Descriptors that wait for a call that takes them. More end the session.
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

  // OK while connected; then why it ended: irisd's own words if it said any.
  absl::Status status() const;
  // Waits until the session has ended; true if it has.
  bool WaitForEnd(absl::Duration timeout) const;

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

  // Waits for the descriptors and takes them, in the order of `keys`. Those that came before the
  // session ended can still be taken after it. kDeadlineExceeded, or status(): nothing is taken
  // then.
  //
  // `generation`: the irisd of that number was to send them, and no other one will (Answer has it).
  // kUnavailable, while status() is OK: another one has come before all were there.
  absl::StatusOr<std::vector<wire::UniqueFd>> TakeDescriptors(
      absl::Span<const DescriptorKey> keys, absl::Time deadline,
      std::optional<uint64_t> generation = std::nullopt);
  // Ends every wait of TakeDescriptors, and of a member for an answer, now and later, with
  // kCancelled.
  void CancelWaits();
  // Closes all descriptors that nobody has taken.
  void DropDescriptors();
  // Closes these alone.
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

  SessionClient() = default;
  // Connects once, and waits for its turn until `give_up` if others connect, too; an errno.
  static int TryConnect(const std::string& path, absl::Time give_up, wire::UniqueFd* socket);
  absl::Status Handshake(absl::Duration patience);
  void ReceiveLoop();
  // Receives one frame. The session ends with an error.
  absl::Status Receive();
  absl::Status TakeIn(wire::Frame frame) ABSL_LOCKS_EXCLUDED(mu_);  // of descriptors
  // A kAnswer or a kFailure. An error if irisd has broken the protocol, as of OnRestarted.
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

  std::string runtime_dir_;
  wire::UniqueFd socket_;
  wire::UniqueFd stop_event_;
  wire::WelcomePayload welcome_;
  std::function<void()> on_end_;
  std::thread receiver_;

  mutable absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  // It grows from one irisd to the next, and is 0 for the one that has welcomed this session.
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t last_call_ ABSL_GUARDED_BY(mu_) = 0;
  // Something is to be sent that irisd's queue had no room for.
  bool owes_seen_ ABSL_GUARDED_BY(mu_) = false;  // the kRestartSeen of generation_
  uint32_t owes_acks_ ABSL_GUARDED_BY(mu_) = 0;  // for so many descriptors
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
