#include "server/keep/descriptor_keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/frame.h"
#include "proto/wire/rights.h"

namespace iris::server {
namespace {

constexpr char kGiveDescriptor[] = "give the service manager a descriptor to keep";

// Returns true if a later attempt to send the same message may succeed.
bool IsOfNow(int error) {
  return error == EAGAIN || error == ENOBUFS || error == ENOMEM || error == ETOOMANYREFS;
}

// Returns true if a manager keeps descriptors under the name, by systemd's rule for FDNAME.
bool CanBeKept(absl::string_view name) {
  constexpr size_t kMaxNameBytes = 255;
  return name.size() <= kMaxNameBytes && std::all_of(name.begin(), name.end(), [](char each) {
           return each >= ' ' && each < 0x7f && each != ':';
         });
}

}  // namespace

absl::StatusOr<std::unique_ptr<DescriptorKeeper>> DescriptorKeeper::FromEnvironment() {
  const char* const path = getenv("NOTIFY_SOCKET");
  const char* const capacity = getenv("FDSTORE");
  if (path == nullptr || capacity == nullptr) return nullptr;
  size_t n = 0;
  if (!absl::SimpleAtoi(capacity, &n)) {
    return absl::InvalidArgumentError(
        absl::StrCat("FDSTORE='", capacity,
                     "' in the environment is not a number of descriptors: it is set by the "
                     "service manager, or by Environment= of irisd's unit"));
  }
  if (n == 0) return nullptr;
  return Connect(path, n);
}

absl::StatusOr<std::unique_ptr<DescriptorKeeper>> DescriptorKeeper::Connect(const std::string& path,
                                                                            size_t capacity) {
  struct sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the service manager's socket '", path, "' is no path of a Unix socket"));
  }
  memcpy(address.sun_path, path.data(), path.size());
  socklen_t length = offsetof(struct sockaddr_un, sun_path) + path.size() + 1;
  if (path[0] == '@') {
    address.sun_path[0] = '\0';
    --length;
  }
  wire::UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return wire::ErrnoStatus(errno, "make a socket to the service manager");
  const struct timeval patience = absl::ToTimeval(kPatience);
  if (setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)) != 0 ||
      connect(socket.get(), reinterpret_cast<const struct sockaddr*>(&address), length) != 0) {
    return wire::ErrnoStatus(errno, absl::StrCat("connect to the service manager at ", path));
  }
  return std::unique_ptr<DescriptorKeeper>(new DescriptorKeeper(std::move(socket), capacity));
}

int DescriptorKeeper::Send(absl::string_view name, absl::Span<const int> fds, int flags) {
  const std::string text = fds.empty() ? absl::StrCat("FDSTOREREMOVE=1\nFDNAME=", name)
                                       : absl::StrCat("FDSTORE=1\nFDNAME=", name, "\nFDPOLL=0");
  const struct iovec content = {const_cast<char*>(text.data()), text.size()};
  const ssize_t sent = wire::SendRights(socket_.get(), {&content, 1}, fds, MSG_NOSIGNAL | flags);
  return sent >= 0 ? 0 : errno;
}

void DescriptorKeeper::GiveUp(const absl::Status& why) {
  gave_up_ = true;
  status_ = why;
  waiting_.clear();
}

void DescriptorKeeper::Tell(absl::string_view name, absl::Span<const int> fds) {
  SendWaiting();
  if (gave_up_) {
    if (fds.empty()) (void)Send(name, fds, MSG_DONTWAIT);
    return;
  }
  if (waiting_.empty()) {
    const int error = Send(name, fds, 0);
    if (error == 0) return;
    const absl::Status failed =
        wire::ErrnoStatus(error == EAGAIN ? ETIMEDOUT : error, kGiveDescriptor);
    if (!IsOfNow(error)) return GiveUp(failed);
    status_ = failed;
  }
  Waiting& more = waiting_.emplace_back();
  more.name = std::string(name);
  for (const int fd : fds) {
    more.fds.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 3));
    if (!more.fds.back().valid()) {
      return GiveUp(wire::ErrnoStatus(errno, "duplicate a descriptor that is to be kept later"));
    }
  }
}

void DescriptorKeeper::SendWaiting() {
  while (!waiting_.empty()) {
    std::vector<int> fds;
    for (const wire::UniqueFd& fd : waiting_.front().fds) fds.push_back(fd.get());
    const int error = Send(waiting_.front().name, fds, MSG_DONTWAIT);
    if (IsOfNow(error)) return;
    if (error != 0) return GiveUp(wire::ErrnoStatus(error, kGiveDescriptor));
    waiting_.pop_front();
  }
  if (!gave_up_) status_ = absl::OkStatus();
}

absl::Status DescriptorKeeper::Store(absl::string_view name, absl::Span<const int> fds) {
  absl::MutexLock lock(&mu_);
  if (gave_up_) return status_;
  if (fds.empty()) return absl::OkStatus();
  if (fds.size() > kMaxAtOnce || n_kept_ + fds.size() > capacity_) {
    GiveUp(absl::ResourceExhaustedError(
        absl::StrCat(fds.size(), " more descriptors are to be kept; the service manager keeps ",
                     capacity_, ", and has ", n_kept_)));
    return status_;
  }
  Tell(name, fds);
  by_name_[std::string(name)] += fds.size();
  n_kept_ += fds.size();
  return status_;
}

void DescriptorKeeper::Remove(absl::string_view name) {
  absl::MutexLock lock(&mu_);
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return;
  size_t n_known = found->second;  // descriptors that the manager has
  n_kept_ -= found->second;
  by_name_.erase(found);
  std::erase_if(waiting_, [name, &n_known](const Waiting& each) {
    if (each.name != name) return false;
    n_known -= each.fds.size();
    return !each.fds.empty();
  });
  if (n_known > 0 || gave_up_) Tell(name, {});
}

void DescriptorKeeper::Count(absl::string_view name, size_t n) {
  if (!CanBeKept(name)) return;
  absl::MutexLock lock(&mu_);
  by_name_[std::string(name)] += n;
  n_kept_ += n;
}

void DescriptorKeeper::RemoveAll() {
  absl::MutexLock lock(&mu_);
  waiting_.clear();
  for (const auto& [name, n] : by_name_) {
    if (Send(name, {}, 0) == EAGAIN) break;  // it would not take the others either
  }
  by_name_.clear();
  n_kept_ = 0;
  gave_up_ = true;
  if (status_.ok()) status_ = absl::CancelledError("irisd stops");
}

absl::Status DescriptorKeeper::Retry() {
  absl::MutexLock lock(&mu_);
  SendWaiting();
  return status_;
}

bool DescriptorKeeper::gave_up() const {
  absl::MutexLock lock(&mu_);
  return gave_up_;
}

absl::Status DescriptorKeeper::status() const {
  absl::MutexLock lock(&mu_);
  return status_;
}

size_t DescriptorKeeper::n_kept() const {
  absl::MutexLock lock(&mu_);
  return n_kept_;
}

}  // namespace iris::server
