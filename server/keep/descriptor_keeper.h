// DescriptorKeeper: has descriptors kept for the next irisd by the manager of this process:
// systemd's service manager, or `irisd --supervise`, which speaks its protocol (sd_notify(3),
// FDSTORE=1). The manager answers nothing and silently drops what is too much, so this counts.
// Messages that a busy manager does not take are sent later, in order.
//
// Thread-safe. Owns the socket to the manager.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "proto/wire/unique_fd.h"

namespace iris::server {

class DescriptorKeeper {
 public:
  // The longest wait for a manager that takes nothing.
  static constexpr absl::Duration kPatience = absl::Seconds(2);
  static constexpr size_t kMaxAtOnce = 253;

  // Connects to NOTIFY_SOCKET of the environment. FDSTORE there is the number that is kept: systemd
  // sets it from version 254 on; before, the unit has to. Null: nobody keeps descriptors for this
  // process. kInvalidArgument: FDSTORE is no number. kUnavailable: nobody is at the socket.
  static absl::StatusOr<std::unique_ptr<DescriptorKeeper>> FromEnvironment();
  // `path` is the manager's datagram socket; one that begins with '@' is abstract.
  static absl::StatusOr<std::unique_ptr<DescriptorKeeper>> Connect(const std::string& path,
                                                                   size_t capacity);
  DescriptorKeeper(const DescriptorKeeper&) = delete;
  DescriptorKeeper& operator=(const DescriptorKeeper&) = delete;

  // Has `fds`, which are borrowed, kept besides others of that name. On an error not everything is
  // kept any more, or not yet, as status() says from then on.
  absl::Status Store(absl::string_view name, absl::Span<const int> fds) ABSL_LOCKS_EXCLUDED(mu_);
  // Gives up all of that name, if there are any.
  void Remove(absl::string_view name) ABSL_LOCKS_EXCLUDED(mu_);
  // Notes that `n` of that name are kept from before. Ignores a name under which a manager keeps
  // nothing: its characters could be more lines of the message that Remove sends.
  void Count(absl::string_view name, size_t n) ABSL_LOCKS_EXCLUDED(mu_);
  // Gives up everything, and keeps nothing more.
  void RemoveAll() ABSL_LOCKS_EXCLUDED(mu_);

  // Says why not everything that was stored and not removed is kept; OK: it is.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);
  // Sends messages that wait, as far as the manager takes them now; returns status() after that.
  absl::Status Retry() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns whether no Retry will help: nothing more is kept.
  bool gave_up() const ABSL_LOCKS_EXCLUDED(mu_);
  size_t capacity() const { return capacity_; }
  size_t n_kept() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  DescriptorKeeper(wire::UniqueFd socket, size_t capacity)
      : socket_(std::move(socket)), capacity_(capacity) {}
  // A message that the manager has not taken yet.
  struct Waiting {
    std::string name;
    std::vector<wire::UniqueFd> fds;  // none: all of that name are to be given up
  };
  // Sends a message after those that wait, or has it wait, too.
  void Tell(absl::string_view name, absl::Span<const int> fds) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SendWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns errno; 0: it was sent.
  int Send(absl::string_view name, absl::Span<const int> fds, int flags)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GiveUp(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const wire::UniqueFd socket_;
  const size_t capacity_;
  mutable absl::Mutex mu_;
  std::map<std::string, size_t, std::less<>> by_name_ ABSL_GUARDED_BY(mu_);
  size_t n_kept_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  bool gave_up_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace iris::server
