// Services: every method that a worker can relay, by its number. To add a method: its messages in
// proto/iris/v1, its number in server/link/methods.h, its row in services.cc. Thread-safe. Borrows
// the daemon.
//
// The relaying thread handles calls of the heap service, in microseconds. Calls that look at jobs
// run on separate threads: they read device memory and files of other processes, which may take
// long.
#pragma once

#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "server/host/daemon.h"
#include "server/host/threads.h"
#include "server/link/incoming_call.h"
#include "server/rpc/admin_calls.h"
#include "server/rpc/stream_writer.h"

namespace iris::server {

// Returns the reply of an operation. Texts are cut to wire::kMaxErrorTextBytes. The value of a
// broadcast is not copied: the replies of all ranks share it, as the tail of each.
LinkPayload OperateReplyOf(const Outcome& outcome);

class Services {
 public:
  Services(Daemon* daemon, DaemonFacts facts) : daemon_(daemon), facts_(std::move(facts)) {}

  // Answers the call, now or later. Returns null if it has been answered, or cannot be cancelled.
  std::shared_ptr<ActiveCall> Serve(const IncomingCall& call);

  // Waits until every answer has been passed to its worker. Returns false on a timeout.
  bool Drain(absl::Duration timeout) { return counter_.WaitForNone(timeout); }

  // Finishes the calls that were read, and ends the threads. Idempotent.
  void Stop() { readers_.Stop(); }

 private:
  class Unary;

  std::shared_ptr<ActiveCall> Dispatch(const IncomingCall& call);
  // Passes a session's call to the machine, which answers now or later. `Request` has the session;
  // `Call` is the input of the machine; `to_reply` makes the LinkPayload of its Result.
  template <typename Call, typename Request, typename ToReply>
  std::shared_ptr<ActiveCall> Ask(const IncomingCall& incoming, ToReply to_reply);
  // Answers a call of any connection immediately:
  //   answer(const Request&, ReplyMessage*) -> absl::Status
  template <typename Request, typename ReplyMessage, typename Function>
  std::shared_ptr<ActiveCall> Answer(const IncomingCall& incoming, Function answer);
  // Answers a call immediately with answer(source, caller, request, reply).
  template <typename Source, typename Request, typename ReplyMessage>
  std::shared_ptr<ActiveCall> Answer(const IncomingCall& incoming, const Source& source,
                                     absl::Status (*answer)(const Source&, const CallerInfo&,
                                                            const Request&, ReplyMessage*));
  // Answers a call with a stream:
  //   start(const Request&) -> absl::StatusOr<std::shared_ptr<ActiveCall>>
  template <typename Request, typename Start>
  std::shared_ptr<ActiveCall> Stream(const IncomingCall& incoming, Start start);

  Daemon* const daemon_;
  const DaemonFacts facts_;
  CallCounter counter_;
  WorkerPool readers_{2};  // for calls that look at jobs
};

}  // namespace iris::server
