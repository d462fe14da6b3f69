#include "server/session/poller.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "proto/wire/frame.h"

namespace iris::server {
namespace {

constexpr int kEventsPerWait = 256;
constexpr absl::Duration kLongestWait = absl::Minutes(1);

int Control(int epoll, int operation, int fd, uint32_t events, uint64_t id) {
  struct epoll_event event = {};
  event.events = events;
  event.data.u64 = id;
  return epoll_ctl(epoll, operation, fd, &event);
}

}  // namespace

void Poller::Watched::SetEvents(uint32_t events) {
  Control(poller_->epoll_.get(), EPOLL_CTL_MOD, fd_.get(), events, id_);
}

wire::UniqueFd Poller::Watched::Release() {
  if (fd_.valid()) {
    epoll_ctl(poller_->epoll_.get(), EPOLL_CTL_DEL, fd_.get(), nullptr);
    poller_->handlers_.erase(id_);
  }
  return std::move(fd_);
}

absl::StatusOr<std::unique_ptr<Poller>> Poller::Create() {
  std::unique_ptr<Poller> poller(new Poller());
  poller->epoll_.Reset(epoll_create1(EPOLL_CLOEXEC));
  poller->wake_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!poller->epoll_.valid() || !poller->wake_.valid() ||
      Control(poller->epoll_.get(), EPOLL_CTL_ADD, poller->wake_.get(), EPOLLIN, 0) != 0) {
    return wire::ErrnoStatus(errno, "set up epoll");
  }
  return poller;
}

absl::StatusOr<Poller::Watched> Poller::Watch(wire::UniqueFd* fd, uint32_t events,
                                              Handler handler) {
  const uint64_t id = next_id_++;
  if (Control(epoll_.get(), EPOLL_CTL_ADD, fd->get(), events, id) != 0) {
    return wire::ErrnoStatus(errno, "watch a descriptor");
  }
  handlers_.emplace(id, std::make_shared<Handler>(std::move(handler)));
  return Watched(this, id, std::move(*fd));
}

void Poller::Wait(absl::Duration timeout) {
  int timeout_ms = -1;
  if (timeout != absl::InfiniteDuration()) {
    timeout = std::clamp(timeout, absl::ZeroDuration(), kLongestWait);
    timeout_ms =
        static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(timeout, absl::Milliseconds(1))));
  }
  struct epoll_event events[kEventsPerWait];
  const int n = epoll_wait(epoll_.get(), events, kEventsPerWait, timeout_ms);
  for (int i = 0; i < n; ++i) {
    const uint64_t id = events[i].data.u64;  // a copy: the structure is packed
    if (id == 0) {
      uint64_t ignored;
      [[maybe_unused]] const ssize_t got = read(wake_.get(), &ignored, sizeof(ignored));
      continue;
    }
    const auto it = handlers_.find(id);
    if (it == handlers_.end()) continue;
    const std::shared_ptr<Handler> handler = it->second;  // the handler may release itself
    (*handler)(events[i].events);
  }
}

void Poller::Wake() {
  const uint64_t one = 1;
  // If the eventfd is full, a wake is pending.
  [[maybe_unused]] const ssize_t n = write(wake_.get(), &one, sizeof(one));
}

}  // namespace iris::server
