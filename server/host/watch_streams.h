// WatchStreams: each session's watch stream, and those that the machine has not accepted yet. Not
// thread-safe: the daemon locks.
#pragma once

#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "server/job/effects.h"
#include "server/job/ids.h"

namespace iris::server {

// One watch stream. Push queues, in order, with the daemon's mutex held; Kick sends the queue.
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

  // Offers a stream to the session: the reply to `call` accepts or refuses it.
  void Offer(CallId call, SessionId session, Sink sink) {
    offered_[call] = {session, std::move(sink)};
  }
  // Null: `call` is no watch. If it was accepted, the stream becomes its session's.
  Sink Answer(CallId call, bool accepted) {
    const auto found = offered_.extract(call);
    if (found.empty()) return nullptr;
    const auto& [session, sink] = found.mapped();
    if (accepted) streams_[session] = sink;
    return sink;
  }
  // Null: the session has none.
  Sink Find(SessionId session) const {
    const auto it = streams_.find(session);
    return it == streams_.end() ? nullptr : it->second;
  }
  // Removes the session's stream; null if it has none.
  Sink Take(SessionId session) {
    auto found = streams_.extract(session);
    return found.empty() ? nullptr : std::move(found.mapped());
  }

 private:
  std::map<CallId, std::pair<SessionId, Sink>> offered_;
  std::map<SessionId, Sink> streams_;
};

}  // namespace iris::server
