// For tests: descriptors that take long to close, and how they are sent.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "proto/wire/unique_fd.h"
#include "server/link/pass_descriptor.h"

namespace iris::testing {

// A connection whose last close waits for `seconds`: there is something to send, and nobody reads.
struct SlowSocket {
  wire::UniqueFd socket, peer, listener;
  explicit SlowSocket(int seconds) {
    listener = wire::UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int small = 8 << 10;  // many of them are made
    EXPECT_EQ(setsockopt(listener.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
    struct sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof(at);
    EXPECT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&at), bytes), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    EXPECT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &bytes), 0);
    socket = wire::UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
    EXPECT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&at), bytes), 0);
    peer = wire::UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::string data(1 << 16, 'x');
    while (send(socket.get(), data.data(), data.size(), MSG_DONTWAIT) > 0) {
    }
    const struct linger linger = {1, seconds};
    EXPECT_EQ(setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), 0);
  }
};

// Sends a byte and a descriptor; fails the test if it cannot.
inline void SendFd(int socket, int fd) {
  ASSERT_EQ(server::PassDescriptor(socket, "x", 1, fd), server::Passed::kYes);
}

}  // namespace iris::testing
