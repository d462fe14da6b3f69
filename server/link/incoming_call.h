// IncomingCall: one call as a worker or a session relays it, and how it is answered. The caller was
// identified by the connection, before: nothing in the request can change it.
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
// may release the ActiveCall in Finish. Ignores everything after the call has ended.
class Replier {
 public:
  virtual ~Replier() = default;
  // Sends one message of the answer: at most wire::kMaxRpcBytes.
  virtual void Send(LinkPayload message) = 0;
  // Ends the call. Once.
  virtual void Finish(const absl::Status& status) = 0;
};

// Passes the answer of one call to its owner, which knows the call by its number.
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
  // The caller is gone. The call ends soon, if it has not ended already.
  virtual void OnCancel() = 0;
  // The caller has taken one message of a stream.
  virtual void OnSent() {}
};

struct IncomingCall {
  Method method = Method::kJoin;
  SessionId session;  // zero: of an admin connection
  CallerInfo caller;
  std::string_view request;  // until the service returns
  // Descriptors of memory to be registered, borrowed until the service returns.
  absl::Span<const wire::UniqueFd> descriptors;
  // Closes a duplicate of one of them, which may take as long as the client likes. Any thread, at
  // any time. Null where no call has any.
  std::function<void(wire::UniqueFd)> close;
  std::shared_ptr<Replier> reply;
};

// Answers a call, now or later. Returns null if it is answered. See Services::Serve.
using ServeCall = std::function<std::shared_ptr<ActiveCall>(const IncomingCall&)>;

}  // namespace iris::server
