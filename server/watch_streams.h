// WatchStreams: the watch stream of each session, and those that the machine has not accepted yet.
// Not thread-safe: the daemon locks.
#pragma once

#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "server/job/effects.h"
#include "server/job/ids.h"

namespace iris::server {

// One watch stream. Push queues (called in order, under the daemon's mutex); Kick sends what is
// queued.
class WatchSink {
 public:
  virtual ~WatchSink() = default;
  // False: the reader is too slow, the queue is full.
  virtual bool Push(const WatchItem& item) = 0;
  virtual void Kick() = 0;
  // Ends the stream after what is queued. Idempotent.
  virtual void Close(const absl::Status& status) = 0;
};

class WatchStreams {
 public:
  using Sink = std::shared_ptr<WatchSink>;

  // A stream asks to be the session's: the reply to `call` will say whether it is.
  void Offer(CallId call, SessionId session, Sink sink) {
    offered_[call] = {session, std::move(sink)};
  }
  // The reply came. Null: `call` is no watch. The stream becomes its session's if it was accepted.
  Sink Answer(CallId call, bool accepted) {
    const auto it = offered_.find(call);
    if (it == offered_.end()) return nullptr;
    const auto [session, sink] = std::move(it->second);
    offered_.erase(it);
    if (accepted) streams_[session] = sink;
    return sink;
  }
  // Null: the session has none.
  Sink Find(SessionId session) const {
    const auto it = streams_.find(session);
    return it == streams_.end() ? nullptr : it->second;
  }
  // Takes the session's stream out; null if it has none.
  Sink Take(SessionId session) {
    const auto it = streams_.find(session);
    if (it == streams_.end()) return nullptr;
    Sink sink = std::move(it->second);
    streams_.erase(it);
    return sink;
  }

 private:
  std::map<CallId, std::pair<SessionId, Sink>> offered_;
  std::map<SessionId, Sink> streams_;
};

}  // namespace iris::server
