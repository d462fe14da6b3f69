// SessionCalls: the calls that one session makes by frames of its own socket, and their answers.
// Frames are hostile until they are checked: for a frame that breaks a rule of proto/wire/frame.h,
// a function returns an error, and the owner ends the session.
//
// Two kinds of threads call SessionCalls: the session thread, which owns it and passes it frames;
// and threads that answer calls, which write without waiting for the session thread. The owner and
// the calls under way share the object. It borrows the socket until Close.
//
// It stops reading from a client that does not read its answers, once kMaxWaitingBytes wait. The
// session ends when more bytes wait for its tenant than the tenant's share.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "proto/wire/frame.h"
#include "server/link/incoming_call.h"
#include "server/session/poller.h"
#include "server/session/rpc_host.h"

namespace iris::server {

class SessionCalls : public std::enable_shared_from_this<SessionCalls> {
 public:
  // If more bytes of answers wait, SessionCalls reads no more from the client.
  static constexpr size_t kMaxWaitingBytes = 256 << 10;

  // `socket` is the session's, watched for EPOLLIN and EPOLLRDHUP. `end` ends the session, later;
  // any thread may call it, under a lock.
  struct Setup {
    Poller::Watched* socket = nullptr;
    RpcPeer peer;  // with an account
    const ServeCall* serve = nullptr;
    std::function<void(const absl::Status&)> end;
    // Closes a descriptor that the client gave. Any thread may call it, even after the session.
    std::function<void(wire::UniqueFd)> close;
  };
  static std::shared_ptr<SessionCalls> Create(Setup setup);
  ~SessionCalls();

  // Only the session thread calls the following functions.

  // Handles a kCall, kCancelCall or kTaken. kInvalidArgument if the client broke a rule.
  absl::Status OnFrame(const wire::Frame& frame) ABSL_LOCKS_EXCLUDED(mu_);
  // Continues to write. Call it when the socket may take more.
  void OnWritable() ABSL_LOCKS_EXCLUDED(mu_);
  // Stops reading the socket if `held`, and continues otherwise.
  void SetHeld(bool held) ABSL_LOCKS_EXCLUDED(mu_);
  // Cancels every call, and forgets the socket. Idempotent.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

  // Reply to a call. Any thread may call these.
  void Send(uint64_t call, LinkPayload message) ABSL_LOCKS_EXCLUDED(mu_);
  void Finish(uint64_t call, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Call {
    bool streams = false;
    uint32_t on_their_way = 0;          // messages of a stream, sent without their kTaken
    std::optional<LinkPayload> answer;  // not of a stream; held until the call's end
    std::shared_ptr<ActiveCall> active;
  };
  // An answer that waits to be written.
  struct Item {
    uint64_t call = 0;
    bool ends = false;
    std::optional<LinkPayload> message;
    absl::Status failure;  // if not OK, sent instead of a message

    // Return the bytes that the answer takes by itself, and the text that it may share.
    size_t own_bytes() const;
    const std::string* tail() const;
    size_t size() const { return own_bytes() + (tail() == nullptr ? 0 : tail()->size()); }
  };

  explicit SessionCalls(Setup setup) : setup_(std::move(setup)) {}
  CallShare& share() const { return setup_.peer.account->calls; }

  // Only the session thread calls the following functions.
  absl::Status OnCall(const wire::Frame& frame) ABSL_LOCKS_EXCLUDED(mu_);
  // Passes a checked call to the service. An error refuses the call, but does not end the session.
  absl::Status Begin(const wire::CallPayload& header, std::string_view request,
                     absl::Span<const wire::UniqueFd> descriptors) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnCancelOrTaken(uint64_t call, bool taken) ABSL_LOCKS_EXCLUDED(mu_);
  void Refuse(uint64_t call, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // Any thread may call these functions. Queue adds an answer after the others, and flushes.
  void Queue(Item item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Pop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Writes what the socket takes, and sets the events to watch for.
  void Flush() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Writes the front of the queue, or a piece of it. Returns an error if it cannot be written now.
  absl::Status WriteFront() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Setup setup_;
  uint64_t last_call_ = 0;  // only the session thread uses it

  absl::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  uint32_t events_ ABSL_GUARDED_BY(mu_);  // that are watched
  std::unordered_map<uint64_t, Call> calls_ ABSL_GUARDED_BY(mu_);
  std::deque<Item> queue_ ABSL_GUARDED_BY(mu_);
  size_t written_ ABSL_GUARDED_BY(mu_) = 0;  // of the front's message
  size_t queued_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

// Reads a request that came as a descriptor: a memfd of `bytes` bytes, sealed against writing and
// shrinking, so that reading it neither waits nor changes. kInvalidArgument for any other.
absl::StatusOr<std::string> ReadSealed(int fd, size_t bytes);

}  // namespace iris::server
