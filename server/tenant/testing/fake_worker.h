// FakeWorker: the worker's end of a link, for tests, which choose its messages. Not thread-safe.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/wire/unique_fd.h"
#include "server/link/link.h"
#include "server/link/methods.h"

namespace iris::server {

class FakeWorker {
 public:
  FakeWorker() {
    int pair[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    core_.Reset(pair[0]);
    socket_.Reset(pair[1]);
  }

  wire::UniqueFd TakeCoreEnd() { return std::move(core_); }
  int socket() const { return socket_.get(); }
  void Die() { socket_.Reset(); }

  void Say(LinkType type, uint64_t connection = 0, uint64_t call = 0, std::string payload = {},
           uint16_t method = 0) {
    writer_.Queue({.type = type, .method = method, .connection = connection, .call = call},
                  {std::move(payload), nullptr});
    (void)writer_.Flush(socket_.get());
  }
  void Ready() { Say(LinkType::kReady, 0, 0, "test"); }
  void Call(uint64_t connection, uint64_t call, Method method, std::string request = {}) {
    Say(LinkType::kCall, connection, call, std::move(request), static_cast<uint16_t>(method));
  }
  // No worker has reason to.
  void SendDescriptor() {
    writer_.Queue({.type = LinkType::kCancel, .call = 1}, {}, wire::UniqueFd(dup(socket_.get())));
    (void)writer_.Flush(socket_.get());
  }
  // Sends data that the socket did not take before. Returns true if all is written.
  bool Flush() {
    const auto flushed = writer_.Flush(socket_.get());
    return flushed.ok() && *flushed == LinkWriter::Flushed::kAll;
  }

  struct Heard {
    LinkHeader header;
    std::string payload;
    wire::UniqueFd fd;
    LinkType type() const { return header.type; }
  };
  // Returns the core's messages that no call has returned yet.
  std::vector<Heard> Hear() {
    std::vector<Heard> heard;
    while (true) {
      const auto received = reader_.Receive(socket_.get());
      if (!received.ok()) closed_ = true;
      if (!received.ok() || *received == LinkReader::Received::kNothingYet) return heard;
      while (true) {
        auto message = reader_.Next();
        EXPECT_TRUE(message.ok()) << message.status();
        if (!message.ok() || !message->has_value()) break;
        heard.push_back(
            {(*message)->header, std::string((*message)->payload), std::move((*message)->fd)});
      }
    }
  }
  // Returns true if Hear has seen the core's end close.
  bool closed() const { return closed_; }

 private:
  wire::UniqueFd core_;
  wire::UniqueFd socket_;
  LinkReader reader_{LinkSender::kCore};
  LinkWriter writer_;
  bool closed_ = false;
};

}  // namespace iris::server
