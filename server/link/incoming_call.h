// IncomingCall: one call as a worker relays it, and how it is answered. Who the caller is was found
// by the connection, before: nothing in the request can change it.
//
// Whoever relays holds the ActiveCall until the call has ended; whoever answers holds the Replier.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/wire/unique_fd.h"
#include "server/job/ids.h"
#include "server/job/states.h"
#include "server/link/link.h"
#include "server/link/methods.h"

namespace iris::server {

// Where the answer of one call goes. Thread-safe. Never blocks, and never calls back into the call,
// but may let go of the ActiveCall in Finish. A call that has ended swallows everything.
class Replier {
 public:
  virtual ~Replier() = default;
  // One message of the answer: at most wire::kMaxRpcBytes.
  virtual void Send(LinkPayload message) = 0;
  // The call's end. Once.
  virtual void Finish(const absl::Status& status) = 0;
};

// A call under way. What follows is called with no lock held, by the thread that relays.
class ActiveCall {
 public:
  virtual ~ActiveCall() = default;
  // The caller is gone. The call ends soon, if it has not ended just now.
  virtual void OnCancel() = 0;
  // gRPC has taken one message of a stream.
  virtual void OnSent() {}
};

struct IncomingCall {
  Method method = Method::kJoin;
  SessionId session;  // zero: of an admin connection
  CallerInfo caller;
  std::string_view request;  // until the service returns
  // That came with it, of memory to be registered: borrowed until the service returns.
  absl::Span<const wire::UniqueFd> descriptors;
  // Closes a duplicate of one of them, which may take as long as the client likes; any thread, at
  // any time. Null where no call has any.
  std::function<void(wire::UniqueFd)> close;
  std::shared_ptr<Replier> reply;
};

}  // namespace iris::server
