// Poller: waits on one thread for many descriptors (epoll). Each watched descriptor has its own
// handler, which runs on the waiting thread.
//
// Not thread-safe, except for Wake and Watched::SetEvents. The Poller outlives what it watches.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/wire/unique_fd.h"

namespace iris::server {

class Poller {
 public:
  // `events` are those that epoll reports. A handler may destroy the Watched that it handles.
  using Handler = std::function<void(uint32_t events)>;

  // Owns a descriptor that is watched. Its destructor ends the watching, then closes: a close alone
  // would not end it, since a duplicate elsewhere would keep epoll's registration alive.
  class Watched {
   public:
    Watched() = default;
    Watched(Watched&& other) noexcept { *this = std::move(other); }
    Watched& operator=(Watched&& other) noexcept {
      std::swap(poller_, other.poller_);
      std::swap(id_, other.id_);
      std::swap(fd_, other.fd_);
      return *this;
    }
    ~Watched() { Reset(); }

    int get() const { return fd_.get(); }
    bool valid() const { return fd_.valid(); }
    // Sets the events to watch for, as for epoll_ctl; events that are already pending are reported
    // too. Any thread may call it while the descriptor is watched.
    void SetEvents(uint32_t events);
    void Reset() { Release().Reset(); }
    // Ends the watching, and returns the open descriptor.
    wire::UniqueFd Release();

   private:
    friend class Poller;
    Watched(Poller* poller, uint64_t id, wire::UniqueFd fd)
        : poller_(poller), id_(id), fd_(std::move(fd)) {}

    Poller* poller_ = nullptr;
    uint64_t id_ = 0;
    wire::UniqueFd fd_;
  };

  static absl::StatusOr<std::unique_ptr<Poller>> Create();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  // Watches the descriptor, and takes it from *fd only on success. `events` as for epoll_ctl.
  absl::StatusOr<Watched> Watch(wire::UniqueFd* fd, uint32_t events, Handler handler);

  // Waits until a descriptor has an event, `timeout` is over (never if it is InfiniteDuration), or
  // Wake was called, then runs the handlers, except those that an earlier handler has released.
  void Wait(absl::Duration timeout);

  // Ends the wait under way, or the next one. Any thread may call it.
  void Wake();

 private:
  Poller() = default;

  wire::UniqueFd epoll_;
  wire::UniqueFd wake_;
  uint64_t next_id_ = 1;  // ids are never reused; 0 is wake_
  std::unordered_map<uint64_t, std::shared_ptr<Handler>> handlers_;
};

}  // namespace iris::server
