// ServiceManager: the service manager's side of a DescriptorKeeper, for tests.
#pragma once

#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "proto/wire/unique_fd.h"
#include "server/keep/descriptor_keeper.h"

namespace iris::server {

struct ServiceManager {
  // Binds the socket, and connects a keeper of so many descriptors to it. A process has one at a
  // time.
  explicit ServiceManager(size_t capacity) {
    struct sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, path.size());
    address.sun_path[0] = '\0';
    const socklen_t length = offsetof(struct sockaddr_un, sun_path) + path.size();
    EXPECT_EQ(bind(socket.get(), reinterpret_cast<const struct sockaddr*>(&address), length), 0);
    auto connected = DescriptorKeeper::Connect(path, capacity);
    EXPECT_TRUE(connected.ok()) << connected.status();
    if (connected.ok()) keeper = *std::move(connected);
  }

  const std::string path = absl::StrCat("@iris-manager-", getpid());
  wire::UniqueFd socket{::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)};  // gets what is kept
  std::unique_ptr<DescriptorKeeper> keeper;
};

}  // namespace iris::server
