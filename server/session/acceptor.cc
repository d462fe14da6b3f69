#include "server/session/acceptor.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <utility>

#include "server/job/clock.h"

namespace iris::server {
namespace {

constexpr int kAcceptsAtOnce = 4;  // of one listener, before other descriptors are served
constexpr auto kListenAgainAfter = absl::Milliseconds(100);

wire::UniqueFd AcceptOne(int listener) {
  return wire::UniqueFd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

wire::UniqueFd OpenReserve() { return wire::UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

Acceptor::Acceptor(Poller* poller, TakeSocket refuse)
    : poller_(poller), refuse_(std::move(refuse)), reserve_(OpenReserve()) {}

absl::Status Acceptor::Listen(wire::UniqueFd listener, TakeSocket accept) {
  Listener& added = listeners_.emplace_back();
  added.paused = std::move(listener);
  added.accept = std::move(accept);
  return Watch(added);
}

absl::Status Acceptor::Watch(Listener& listener) {
  if (listener.watched.valid()) return absl::OkStatus();
  absl::StatusOr<Poller::Watched> watched =
      poller_->Watch(&listener.paused, EPOLLIN, [this, &listener](uint32_t) { Accept(listener); });
  if (!watched.ok()) return watched.status();
  listener.watched = *std::move(watched);
  return absl::OkStatus();
}

void Acceptor::RunDeadlines(absl::Time now) {
  if (listen_again_ > now) return;
  listen_again_ = absl::InfiniteFuture();
  for (Listener& listener : listeners_) {
    if (!Watch(listener).ok()) listen_again_ = now + kListenAgainAfter;
  }
}

void Acceptor::Accept(Listener& listener) {
  for (int i = 0; i < kAcceptsAtOnce && listener.watched.valid(); ++i) {
    wire::UniqueFd socket = AcceptOne(listener.watched.get());
    if (!socket.valid()) {
      const int error = errno;
      if (error == ECONNABORTED || error == EINTR) continue;
      if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS) {
        AcceptWithReserve(listener);
      }
      return;
    }
    if (!reserve_.valid()) reserve_ = OpenReserve();
    listener.accept(std::move(socket));
  }
}

void Acceptor::AcceptWithReserve(Listener& listener) {
  reserve_.Reset();
  wire::UniqueFd socket = AcceptOne(listener.watched.get());
  const bool accepted = socket.valid();
  if (accepted) refuse_(std::move(socket));
  reserve_ = OpenReserve();
  if (accepted && reserve_.valid()) return;
  for (Listener& each : listeners_) {
    if (each.watched.valid()) each.paused = each.watched.Release();
  }
  listen_again_ = SteadyNow() + kListenAgainAfter;
}

}  // namespace iris::server
