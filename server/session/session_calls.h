// SessionCalls: the calls that one session makes by frames of its own socket, and their answers.
// What comes is hostile until it is checked: what breaks a rule of proto/wire/frame.h is an error,
// and whoever owns this ends the session with it.
//
// Two kinds of thread: the session thread, which owns it, hands it frames and is told when to stop;
// and whoever answers a call, who writes without waiting for the session thread. Shared by its
// owner and by the calls under way. It borrows the socket until Close.
//
// A client that does not read its answers is not read either, once kMaxWaitingBytes wait for it. It
// is ended when all that waits for its tenant is more than the tenant's share.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/wire/frame.h"
#include "server/link/incoming_call.h"
#include "server/session/poller.h"
#include "server/session/rpc_host.h"

namespace iris::server {

// Answers a call, now or later. Null if it has been answered. See Services::Serve.
using ServeCall = std::function<std::shared_ptr<ActiveCall>(const IncomingCall&)>;

class SessionCalls : public std::enable_shared_from_this<SessionCalls> {
 public:
  // Beyond this, no more is read from the client.
  static constexpr size_t kMaxWaitingBytes = 256 << 10;

  // `socket` is the session's, watched for kSessionEvents. `end` ends the session, later; any
  // thread calls it, under a lock.
  struct Setup {
    Poller::Watched* socket = nullptr;
    RpcPeer peer;  // with an account
    const ServeCall* serve = nullptr;
    std::function<void(const absl::Status&)> end;
    // Closes a descriptor that the client gave; any thread, also after the session.
    std::function<void(wire::UniqueFd)> close;
  };
  static std::shared_ptr<SessionCalls> Create(Setup setup);
  ~SessionCalls();

  // The session thread.

  // A kCall, kCancelCall or kTaken. kInvalidArgument: the client broke a rule.
  absl::Status OnFrame(const wire::Frame& frame) ABSL_LOCKS_EXCLUDED(mu_);
  // The socket may take more.
  void OnWritable() ABSL_LOCKS_EXCLUDED(mu_);
  // Whether the socket is left unread, whatever is in it.
  void SetHeld(bool held) ABSL_LOCKS_EXCLUDED(mu_);
  // Cancels every call, and forgets the socket. Idempotent.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class CallReplier;
  struct Call {
    bool streams = false;
    uint32_t on_their_way = 0;          // messages of a stream, sent without their kTaken
    std::optional<LinkPayload> answer;  // of a call that does not stream, until its end
    std::shared_ptr<ActiveCall> active;
  };
  // What waits to be written.
  struct Item {
    uint64_t call = 0;
    bool ends = false;
    std::optional<LinkPayload> message;
    absl::Status failure;  // if not ok: this, and nothing else

    // What it takes by itself, and what it may share.
    size_t own_bytes() const;
    const std::string* tail() const;
    size_t size() const { return own_bytes() + (tail() == nullptr ? 0 : tail()->size()); }
  };

  explicit SessionCalls(Setup setup) : setup_(std::move(setup)) {}
  CallShare& share() const { return setup_.peer.account->calls; }

  // The session thread.
  absl::Status OnCall(const wire::Frame& frame) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnCancel(uint64_t call) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnTaken(uint64_t call) ABSL_LOCKS_EXCLUDED(mu_);
  void Refuse(uint64_t call, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // Any thread.
  void Send(uint64_t call, LinkPayload message) ABSL_LOCKS_EXCLUDED(mu_);
  void Finish(uint64_t call, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  void Queue(Item item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes the front out of the queue.
  void Pop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Writes what the socket takes, and watches for what is to happen next.
  void Flush() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Writes the front of the queue, or a piece of it. Not OK: it cannot be written now.
  absl::Status WriteFront() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Setup setup_;
  uint64_t last_call_ = 0;  // the session thread's

  absl::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  uint32_t events_ ABSL_GUARDED_BY(mu_);  // that are watched
  std::unordered_map<uint64_t, Call> calls_ ABSL_GUARDED_BY(mu_);
  std::deque<Item> queue_ ABSL_GUARDED_BY(mu_);
  size_t written_ ABSL_GUARDED_BY(mu_) = 0;  // of the front's message
  size_t queued_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

// The bytes of a request that came as a descriptor: a memfd of `bytes` bytes, sealed against
// writing and shrinking, so that reading it neither waits nor changes. kInvalidArgument: it is no
// such thing.
absl::StatusOr<std::string> ReadSealed(int fd, size_t bytes);

}  // namespace iris::server
