// Calls: what every call of every service goes through, once: it is counted, its bytes are parsed,
// its connection says whose it is, it is answered or cancelled, and finished. A service is then a
// table of conversions. Over gRPC's callback API: no thread waits for an answer.
//
// Thread-safe. Borrows the daemon and the connection table.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/daemon.h"
#include "server/rpc/call_counter.h"
#include "server/rpc/convert.h"
#include "server/rpc/message.h"
#include "server/session/connections.h"

namespace iris::server {

class Calls {
 public:
  using Context = grpc::CallbackServerContext;

  Calls(Daemon* daemon, const Connections* connections)
      : daemon_(daemon), connections_(connections) {}

  // A call of a session, which the machine answers now or later. Request names its session, and
  // ToInput (server/rpc/convert.h) makes it an input.
  //   to_reply(const Result&) -> grpc::ByteBuffer
  template <typename Request, typename ToReply>
  grpc::ServerUnaryReactor* Ask(Context* context, const grpc::ByteBuffer* request,
                                grpc::ByteBuffer* reply, ToReply to_reply) {
    auto* const call = new Unary(daemon_, &counter_, reply);
    absl::StatusOr<Input> input = [&]() -> absl::StatusOr<Input> {
      Request message;
      const absl::Status parsed = ParseMessage(*request, &message);
      if (!parsed.ok()) return parsed;
      const absl::StatusOr<SessionId> session = SessionOf(*context, message.session_id());
      if (!session.ok()) return session.status();
      return ToInput(*session, call->id(), std::move(message));
    }();
    if (!input.ok()) {
      call->End(input.status());
      return call;
    }
    daemon_->Call(call->id(), *input, [call, to_reply](const Reply& answer) {
      if (answer.status.ok()) call->SetReply(to_reply(answer.result));
      call->End(answer.status);
    });
    return call;
  }

  // A call of anybody who is connected, answered at once.
  //   answer(const CallerInfo&, const Request&, ReplyMessage*) -> absl::Status
  template <typename Request, typename ReplyMessage, typename Function>
  grpc::ServerUnaryReactor* Answer(Context* context, const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* reply, Function answer) {
    auto* const call = new Unary(daemon_, &counter_, reply);
    call->End([&] {
      Request message;
      const absl::Status parsed = ParseMessage(*request, &message);
      if (!parsed.ok()) return parsed;
      const absl::StatusOr<CallerInfo> caller = CallerOf(*context);
      if (!caller.ok()) return caller.status();
      ReplyMessage out;
      const absl::Status status = answer(*caller, message, &out);
      if (status.ok()) call->SetReply(SerializeMessage(out));
      return status;
    }());
    return call;
  }

  // For streams, which end in their own ways.

  // The session behind the call's connection. kPermissionDenied: an admin connection, or the
  // request names another session.
  absl::StatusOr<SessionId> SessionOf(const Context& context, uint64_t session_id) const;
  // Whose connection it is. kPermissionDenied: the connection has ended.
  absl::StatusOr<CallerInfo> CallerOf(const Context& context) const;
  CallCounter* counter() { return &counter_; }

  // Waits until no call is under way: every answer is on its way to its client. False: the timeout
  // came first.
  bool Drain(absl::Duration timeout) { return counter_.WaitForNone(timeout); }

 private:
  // One unary call. Finished either by its answer or by its cancellation: the daemon decides which.
  // Owns itself.
  class Unary : public grpc::ServerUnaryReactor {
   public:
    Unary(Daemon* daemon, CallCounter* counter, grpc::ByteBuffer* reply)
        : hold_(counter), daemon_(daemon), id_(daemon->NewCall()), reply_(reply) {}
    CallId id() const { return id_; }

    // Before End(OK).
    void SetReply(grpc::ByteBuffer reply) { *reply_ = std::move(reply); }
    // Once; the call may then be gone.
    void End(const absl::Status& status);

    void OnCancel() override;
    void OnDone() override { delete this; }

   private:
    const CallCounter::Hold hold_;
    Daemon* const daemon_;
    const CallId id_;
    grpc::ByteBuffer* const reply_;
  };

  Daemon* const daemon_;
  const Connections* const connections_;
  CallCounter counter_;
};

}  // namespace iris::server
