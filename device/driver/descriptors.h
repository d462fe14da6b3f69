// File descriptors, as the drivers of GPUs hold them and count them. This folder depends on nothing
// else of Iris, so it has its own owner of one.
#pragma once

#include <unistd.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace iris::driver {

// Owns one descriptor, or none (-1). Not thread-safe.
class OwnedFd {
 public:
  explicit OwnedFd(int fd = -1) : fd_(fd) {}
  ~OwnedFd() { Close(); }
  OwnedFd(OwnedFd&& other) noexcept : fd_(other.Release()) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    if (this != &other) {
      Close();
      fd_ = other.Release();
    }
    return *this;
  }
  int get() const { return fd_; }
  // The caller owns it from here on.
  int Release() { return std::exchange(fd_, -1); }
  void Close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_;
};

// kResourceExhausted, with the limit, where so few descriptors are left that a vendor's library
// could run out of them. `any_fd`: an open one, or -1.
absl::Status CheckDescriptors(int any_fd, absl::string_view what);

}  // namespace iris::driver
