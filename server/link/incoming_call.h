// IncomingCall: one call as a worker or a session relays it, with the object that takes its answer.
// The connection has already identified the caller: nothing in the request can change the caller.
//
// The relaying side holds the ActiveCall until the call has ended; the answering side holds the
// Replier.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/wire/unique_fd.h"
#include "server/job/ids.h"
#include "server/job/states.h"
#include "server/link/link.h"
#include "server/link/methods.h"

namespace iris::server {

// Takes the answer of one call. Thread-safe. Never blocks, and never calls back into the call, but
// may release the ActiveCall in Finish. Ignores everything after the end of the call.
class Replier {
 public:
  virtual ~Replier() = default;
  // Sends one message of the answer, of at most wire::kMaxRpcBytes.
  virtual void Send(LinkPayload message) = 0;
  // Ends the call. Call it once.
  virtual void Finish(const absl::Status& status) = 0;
};

// Passes the answer of one call to its owner, which identifies the call by a number.
template <typename Owner>
class NumberedReplier : public Replier {
 public:
  NumberedReplier(std::shared_ptr<Owner> owner, uint64_t call)
      : owner_(std::move(owner)), call_(call) {}
  void Send(LinkPayload message) override { owner_->Send(call_, std::move(message)); }
  void Finish(const absl::Status& status) override { owner_->Finish(call_, status); }

 private:
  const std::shared_ptr<Owner> owner_;
  const uint64_t call_;
};

// A call under way. The relaying thread calls it, with no lock held.
class ActiveCall {
 public:
  virtual ~ActiveCall() = default;
  // Called when the caller is gone. The call ends soon, if it has not yet ended.
  virtual void OnCancel() = 0;
  // Called when the caller has taken one message of a stream.
  virtual void OnSent() {}
};

struct IncomingCall {
  Method method = Method::kJoin;
  SessionId session;  // zero: for an admin connection
  CallerInfo caller;
  std::string_view request;  // valid until the service returns
  // Descriptors of memory to be registered, borrowed until the service returns.
  absl::Span<const wire::UniqueFd> descriptors;
  // Closes a duplicate of one of `descriptors`, which may take as long as the client likes. Any
  // thread may call it at any time. Null if calls cannot have descriptors.
  std::function<void(wire::UniqueFd)> close;
  std::shared_ptr<Replier> reply;
};

// Answers a call, now or later. Returns null if it is already answered. See Services::Serve.
using ServeCall = std::function<std::shared_ptr<ActiveCall>(const IncomingCall&)>;

}  // namespace iris::server
