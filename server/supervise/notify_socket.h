// NotifySocket: the datagram socket of a supervised irisd's messages to its supervisor. It is in a
// private folder of the runtime directory, which one supervisor at a time has. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/wire/unique_fd.h"

namespace iris::server {

struct NotifyDatagram {
  pid_t sender = 0;       // as the kernel says; 0: unknown
  bool whole = false;     // neither text nor descriptors were cut off
  std::string_view text;  // valid until the next Receive
  std::vector<wire::UniqueFd> fds;
};

class NotifySocket {
 public:
  // Makes the runtime directory, unless it exists, and in it the private folder, its lock and the
  // socket. Returns kAlreadyExists, and changes nothing, if another supervisor has the folder.
  // Returns kPermissionDenied if the folder is another user's, or if others may look into it.
  static absl::StatusOr<std::unique_ptr<NotifySocket>> Open(const std::string& runtime_dir);
  // Removes the socket, the folder, and the runtime directory if Open made it and it is empty.
  ~NotifySocket();
  NotifySocket(const NotifySocket&) = delete;
  NotifySocket& operator=(const NotifySocket&) = delete;

  const std::string& path() const { return path_; }
  int fd() const { return socket_.get(); }

  // Takes the next message. Returns false if there is none now. Never waits.
  bool Receive(NotifyDatagram* datagram);

  // Returns true if messages that are sent to path() arrive here.
  bool IsInPlace() const;
  // Makes a new socket in place, and all else that was removed. Loses messages to the old one.
  absl::Status OpenAgain();

 private:
  NotifySocket() = default;
  absl::Status OpenFolder();
  absl::Status Bind();
  // Returns true if the folder's lock is still the one that this process took.
  bool HoldsFolder() const;

  std::string runtime_dir_;
  std::string folder_;
  std::string path_;
  bool made_runtime_dir_ = false;
  wire::UniqueFd lock_;
  wire::UniqueFd socket_;
  dev_t device_ = 0;  // of the file at path_
  ino_t inode_ = 0;
  std::vector<char> text_;
};

}  // namespace iris::server
