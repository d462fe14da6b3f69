// SessionClient: one attested connection to irisd. Calls go out on its socket, and answers,
// descriptors and errors come in, by a thread of its own. When the socket hangs up, the session has
// ended, and never reconnects. When another irisd takes the session over, the socket stays, and
// calls go on (FrameCalls).
//
// Thread-safe. The destructor closes the socket and joins the thread; it must not run on that
// thread, nor while a call is under way.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/wire/frame_calls.h"
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
  FrameCalls& calls() { return calls_; }

  // OK while connected; then why it ended: irisd's own words if it said any.
  absl::Status status() const;
  // Waits until the session has ended; true if it has.
  bool WaitForEnd(absl::Duration timeout) const;

  // Waits for the descriptors and takes them, in the order of `keys`. Those that came before the
  // session ended can still be taken after it. kDeadlineExceeded, or status(): nothing is taken
  // then.
  //
  // `generation`: the irisd of that number was to send them, and no other one will
  // (FrameCalls::Answer has it). kUnavailable, while status() is OK: another one has come before
  // all were there.
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
  SessionClient() = default;
  // Connects once, and waits for its turn until `give_up` if others connect, too; an errno.
  static int TryConnect(const std::string& path, absl::Time give_up, wire::UniqueFd* socket);
  absl::Status Handshake(absl::Duration patience);
  void ReceiveLoop();
  // Receives one frame. The session ends with an error.
  absl::Status Receive();
  absl::Status TakeIn(wire::Frame frame);  // of descriptors
  absl::Status OnRestarted(const wire::Frame& frame);
  void End(const absl::Status& status);

  std::string runtime_dir_;
  wire::UniqueFd socket_;
  wire::UniqueFd stop_event_;
  wire::WelcomePayload welcome_;
  FrameCalls calls_;
  std::function<void()> on_end_;
  std::thread receiver_;

  mutable absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  bool takes_cancelled_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;  // as FrameCalls counts them
  std::map<DescriptorKey, wire::UniqueFd> descriptors_ ABSL_GUARDED_BY(mu_);
};

}  // namespace iris::internal
