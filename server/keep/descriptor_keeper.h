// DescriptorKeeper: has the manager of this process keep descriptors for the next irisd. That is
// systemd's service manager, or `irisd --supervise`, which speaks its protocol (sd_notify(3),
// FDSTORE=1). The manager does not answer, and silently drops descriptors beyond its limit, so this
// class counts them. Messages that a busy manager does not take are sent later, in order.
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
  // The longest time for which the keeper waits for a manager that takes nothing.
  static constexpr absl::Duration kPatience = absl::Seconds(2);
  static constexpr size_t kMaxAtOnce = 253;

  // Connects to the socket named by NOTIFY_SOCKET in the environment. FDSTORE in the environment is
  // the number of descriptors that the manager keeps: systemd sets it from version 254 on; with
  // older ones, the unit must. Returns null if no manager keeps descriptors for this process.
  // Errors: kInvalidArgument if FDSTORE is not a number, kUnavailable if nobody is at the socket.
  static absl::StatusOr<std::unique_ptr<DescriptorKeeper>> FromEnvironment();
  // `path` is the manager's datagram socket; one that begins with '@' is abstract.
  static absl::StatusOr<std::unique_ptr<DescriptorKeeper>> Connect(const std::string& path,
                                                                   size_t capacity);
  DescriptorKeeper(const DescriptorKeeper&) = delete;
  DescriptorKeeper& operator=(const DescriptorKeeper&) = delete;

  // Stores `fds`, which are borrowed, in addition to others of that name. After an error some
  // descriptors are not kept, and status() returns an error from then on.
  absl::Status Store(absl::string_view name, absl::Span<const int> fds) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes all descriptors of that name. No-op if there are none.
  void Remove(absl::string_view name) ABSL_LOCKS_EXCLUDED(mu_);
  // Notes that the manager already keeps `n` descriptors of that name. Ignores a name that no
  // manager accepts: its characters could add lines to the message that Remove sends.
  void Count(absl::string_view name, size_t n) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes all descriptors; nothing is stored afterwards.
  void RemoveAll() ABSL_LOCKS_EXCLUDED(mu_);

  // Returns OK if everything that was stored and not removed is kept; otherwise the reason why not.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);
  // Sends waiting messages until the manager takes no more; returns status() after that.
  absl::Status Retry() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns true if Retry cannot help: nothing more is kept.
  bool gave_up() const ABSL_LOCKS_EXCLUDED(mu_);
  size_t capacity() const { return capacity_; }
  size_t n_kept() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  DescriptorKeeper(wire::UniqueFd socket, size_t capacity)
      : socket_(std::move(socket)), capacity_(capacity) {}
  // A message that the manager has not taken yet.
  struct Waiting {
    std::string name;
    std::vector<wire::UniqueFd> fds;  // empty: asks the manager to drop all of that name
  };
  // Sends a message after those that wait, or queues it.
  void Tell(absl::string_view name, absl::Span<const int> fds) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SendWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns 0 if the message was sent, or errno.
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
