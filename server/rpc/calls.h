// Calls: what every call of every service goes through, once: it is counted, its bytes are parsed,
// its connection says whose it is, it is answered or cancelled, and finished. A service is then a
// table of conversions. No thread waits for an answer.
//
// Thread-safe. Borrows the daemon.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/daemon.h"
#include "server/link/incoming_call.h"
#include "server/rpc/call_counter.h"
#include "server/rpc/convert.h"
#include "server/rpc/message.h"

namespace iris::server {

class Calls {
 public:
  explicit Calls(Daemon* daemon) : daemon_(daemon) {}

  // A call of a session, which the machine answers now or later. Request names its session, and
  // ToInput (server/rpc/convert.h) makes it an input.
  //   to_reply(const Result&) -> LinkPayload
  template <typename Request, typename ToReply>
  std::shared_ptr<ActiveCall> Ask(const IncomingCall& incoming, ToReply to_reply) {
    return Ask<Request>(incoming, to_reply, [](Request&) -> absl::StatusOr<Daemon::Registered> {
      return Daemon::Registered();
    });
  }
  // The same of a call that may come with memory to be registered.
  //   registered(Request&) -> absl::StatusOr<Daemon::Registered>
  template <typename Request, typename ToReply, typename ToRegistered>
  std::shared_ptr<ActiveCall> Ask(const IncomingCall& incoming, ToReply to_reply,
                                  ToRegistered to_registered) {
    const auto call = std::make_shared<Unary>(daemon_, &counter_, incoming.reply);
    Daemon::Registered registered;
    absl::StatusOr<Input> input = OrOutOfMemory([&]() -> absl::StatusOr<Input> {
      Request message;
      const absl::Status parsed = ParseMessage(incoming.request, &message);
      if (!parsed.ok()) return parsed;
      const absl::StatusOr<SessionId> session = SessionOf(incoming, message.session_id());
      if (!session.ok()) return session.status();
      absl::StatusOr<Daemon::Registered> given = to_registered(message);
      if (!given.ok()) return given.status();
      registered = *std::move(given);
      return ToInput(*session, call->id(), std::move(message));
    });
    if (!input.ok()) {
      call->Fail(input.status());
      return nullptr;
    }
    daemon_->Call(
        call->id(), *std::move(input),
        [call, to_reply](const Reply& answer) {
          if (answer.status.ok()) {
            call->Succeed(to_reply(answer.result));
          } else {
            call->Fail(answer.status);
          }
        },
        std::move(registered));
    return call;
  }

  // A call of anybody who is connected, answered at once.
  //   answer(const CallerInfo&, const Request&, ReplyMessage*) -> absl::Status
  template <typename Request, typename ReplyMessage, typename Function>
  std::shared_ptr<ActiveCall> Answer(const IncomingCall& incoming, Function answer) {
    Unary call(daemon_, &counter_, incoming.reply);
    Request message;
    ReplyMessage out;
    absl::Status status = ParseMessage(incoming.request, &message);
    if (status.ok()) status = answer(incoming.caller, message, &out);
    if (status.ok()) {
      call.Succeed(SerializeMessage(out));
    } else {
      call.Fail(status);
    }
    return nullptr;
  }

  // For streams, which end in their own ways.

  // The session behind the call's connection. kPermissionDenied: an admin connection, or the
  // request names another session.
  static absl::StatusOr<SessionId> SessionOf(const IncomingCall& incoming, uint64_t session_id);
  CallCounter* counter() { return &counter_; }

  // Waits until no call is under way: every answer is on its way to its worker. False: the timeout
  // came first.
  bool Drain(absl::Duration timeout) { return counter_.WaitForNone(timeout); }

 private:
  // One unary call. Finished either by its answer or by its cancellation: the daemon decides which.
  class Unary : public ActiveCall {
   public:
    Unary(Daemon* daemon, CallCounter* counter, std::shared_ptr<Replier> reply)
        : hold_(counter), daemon_(daemon), id_(daemon->NewCall()), reply_(std::move(reply)) {}
    CallId id() const { return id_; }

    // One of these, once.
    void Succeed(LinkPayload reply);
    void Fail(const absl::Status& status) { reply_->Finish(status); }

    void OnCancel() override;

   private:
    const CallCounter::Hold hold_;
    Daemon* const daemon_;
    const CallId id_;
    const std::shared_ptr<Replier> reply_;
  };

  // What a call is told that the system has no memory for.
  static absl::Status OutOfMemory();
  template <typename F>
  static absl::StatusOr<Input> OrOutOfMemory(F to_input) {
    try {
      return to_input();
    } catch (const std::bad_alloc&) {
      return OutOfMemory();
    }
  }

  Daemon* const daemon_;
  CallCounter counter_;
};

}  // namespace iris::server
