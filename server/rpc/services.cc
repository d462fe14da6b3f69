#include "server/rpc/services.h"

#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "device/base/bytes.h"
#include "proto/wire/limits.h"
#include "server/rpc/convert.h"
#include "server/rpc/heap_calls.h"
#include "server/rpc/listings.h"
#include "server/rpc/message.h"

namespace iris::server {
namespace {

// Enough for names, numbers and page tokens.
constexpr size_t kMaxLookRequestBytes = 16 << 10;

// True if the call copies data of jobs, so that it must not run on the session thread. kListTenants
// must: the figures of connections are that thread's own.
bool Looks(Method method) {
  return (IsAdmin(method) && method != Method::kEvents && method != Method::kListTenants) ||
         method == Method::kBorrow;
}

template <typename R, typename Message>
LinkPayload Convert(const Result& result) {
  Message reply;
  Write(std::get<R>(result), &reply);
  return SerializeMessage(reply);
}

}  // namespace

// One call that is answered by one message. Either its answer or its cancellation finishes it: the
// daemon decides.
class Services::Unary : public ActiveCall {
 public:
  Unary(Daemon* daemon, CallCounter* counter, std::shared_ptr<Replier> reply)
      : hold_(counter), daemon_(daemon), id_(daemon->NewCall()), reply_(std::move(reply)) {}
  CallId id() const { return id_; }

  // One of these, once.
  void Succeed(LinkPayload reply) {
    if (reply.size() > wire::kMaxRpcBytes) {
      return Fail(absl::ResourceExhaustedError(absl::StrCat(
          "the answer has ", base::SizeText(reply.size()), "; irisd sends at most ",
          base::SizeText(wire::kMaxRpcBytes), " in a message: ask for less at a time")));
    }
    reply_->Send(std::move(reply));
    reply_->Finish(absl::OkStatus());
  }
  void Fail(const absl::Status& status) { reply_->Finish(status); }

  void OnCancel() override {
    if (daemon_->Cancel(id_)) Fail(absl::CancelledError("the caller is gone"));
  }

 private:
  const CallCounter::Hold hold_;
  Daemon* const daemon_;
  const CallId id_;
  const std::shared_ptr<Replier> reply_;
};

template <typename Call, typename Request, typename ToReply>
std::shared_ptr<ActiveCall> Services::Ask(const IncomingCall& incoming, ToReply to_reply) {
  const auto call = std::make_shared<Unary>(daemon_, &counter_, incoming.reply);
  Call input{{}, call->id()};
  Daemon::Registered registered;
  const auto read = [&]() -> absl::Status {
    Request message;
    const absl::Status parsed = ParseMessage(incoming.request, &message);
    if (!parsed.ok()) return parsed;
    const absl::StatusOr<SessionId> session = SessionOf(incoming, message.session_id());
    if (!session.ok()) return session.status();
    input.session = *session;
    Read(message, &input);
    if constexpr (std::is_same_v<Call, OperateCall>) {
      absl::StatusOr<Daemon::Registered> given = TakeRegistered(*daemon_, incoming, &message);
      if (!given.ok()) return given.status();
      registered = *std::move(given);
      absl::StatusOr<Operation> op = OperationOfRequest(std::move(message));
      if (!op.ok()) return op.status();
      input.spec.op = *std::move(op);
    }
    return absl::OkStatus();
  };
  absl::Status status;
  try {
    status = read();
  } catch (const std::bad_alloc&) {
    status = absl::ResourceExhaustedError(
        "the system gives irisd no memory for this call; it is as if it had not been made: call "
        "again later, or have the operator see to the limits of irisd's unit");
  }
  if (!status.ok()) {
    call->Fail(status);
    return nullptr;
  }
  daemon_->Call(
      call->id(), std::move(input),
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

template <typename Request, typename ReplyMessage, typename Function>
std::shared_ptr<ActiveCall> Services::Answer(const IncomingCall& incoming, Function answer) {
  Unary call(daemon_, &counter_, incoming.reply);
  Request message;
  ReplyMessage out;
  absl::Status status = ParseMessage(incoming.request, &message);
  if (status.ok()) status = answer(message, &out);
  if (status.ok()) {
    call.Succeed(SerializeMessage(out));
  } else {
    call.Fail(status);
  }
  return nullptr;
}

template <typename Source, typename Request, typename ReplyMessage>
std::shared_ptr<ActiveCall> Services::Answer(
    const IncomingCall& incoming, const Source& source,
    absl::Status (*answer)(const Source&, const CallerInfo&, const Request&, ReplyMessage*)) {
  return Answer<Request, ReplyMessage>(incoming, [&](const Request& request, ReplyMessage* reply) {
    return answer(source, incoming.caller, request, reply);
  });
}

template <typename Request, typename Start>
std::shared_ptr<ActiveCall> Services::Stream(const IncomingCall& incoming, Start start) {
  Request message;
  absl::Status status = ParseMessage(incoming.request, &message);
  if (status.ok()) {
    absl::StatusOr<std::shared_ptr<ActiveCall>> stream = start(message);
    if (stream.ok()) return *std::move(stream);
    status = stream.status();
  }
  incoming.reply->Finish(status);
  return nullptr;
}

std::shared_ptr<ActiveCall> Services::Serve(const IncomingCall& call) {
  const bool admin = IsAdmin(call.method) || Looks(call.method);
  const size_t most = admin ? kMaxLookRequestBytes : wire::kMaxRequestBytes;
  if (call.request.size() > most) {
    call.reply->Finish(absl::ResourceExhaustedError(
        absl::StrCat("the request has ", base::SizeText(call.request.size()),
                     "; this call takes at most ", base::SizeText(most))));
    return nullptr;
  }
  if (!Looks(call.method)) return Dispatch(call);
  readers_.Post([this, call = IncomingCall(call), request = std::string(call.request)]() mutable {
    call.request = request;
    Dispatch(call);
  });
  return nullptr;
}

std::shared_ptr<ActiveCall> Services::Dispatch(const IncomingCall& call) {
  const AdminSources all{*daemon_, facts_};
  const Daemon& daemon = *daemon_;
  switch (call.method) {
    case Method::kJoin:
      return Ask<JoinCall, v1::JoinRequest>(call, [&daemon](const Result& result) {
        return JoinReplyOf(daemon, std::get<JoinResult>(result));
      });
    case Method::kMapped:
      return Ask<MappedCall, v1::MappedRequest>(call, Convert<MappedResult, v1::MappedReply>);
    case Method::kOperate:
      return Ask<OperateCall, v1::OperateRequest>(
          call, [](const Result& result) { return OperateReplyOf(std::get<Outcome>(result)); });
    case Method::kGrowMapped:
      return Ask<GrowMappedCall, v1::GrowMappedRequest>(call, Convert<Done, v1::GrowMappedReply>);
    case Method::kLeave:
      return Ask<LeaveCall, v1::LeaveRequest>(call, Convert<Done, v1::LeaveReply>);
    case Method::kResume:
      return Ask<ResumeCall, v1::ResumeRequest>(call, Convert<ResumeResult, v1::ResumeReply>);
    case Method::kAwaitBarrier:
      return Ask<AwaitBarrierCall, v1::AwaitBarrierRequest>(
          call, Convert<BarrierAnswer, v1::AwaitBarrierReply>);
    case Method::kWatch:
      return Stream<v1::WatchRequest>(call, [&](const v1::WatchRequest& request) {
        return Watch(daemon_, &counter_, call, request);
      });
    case Method::kBorrow:
      return Answer<v1::BorrowRequest, v1::BorrowReply>(
          call, [&](const v1::BorrowRequest& request, v1::BorrowReply* reply) {
            return Borrow(daemon_, call, request, reply);
          });
    case Method::kEvents:
      return Stream<v1::EventsRequest>(call, [&](const v1::EventsRequest& request) {
        return Events(&daemon_->events(), &counter_, call, request);
      });
    case Method::kGetStatus:
      return Answer(call, all, GetStatus);
    case Method::kListTenants:
      return Answer(call, all, ListTenants);
    case Method::kListDevices:
      return Answer(call, daemon, ListDevices);
    case Method::kListJobs:
      return Answer(call, daemon, ListJobs);
    case Method::kListHeaps:
      return Answer(call, daemon, ListHeaps);
    case Method::kListAllocations:
      return Answer(call, daemon, ListAllocations);
    case Method::kListSessions:
      return Answer(call, daemon, ListSessions);
    case Method::kListWaits:
      return Answer(call, daemon, ListWaits);
    case Method::kDescribeJobs:
      return Answer(call, daemon, DescribeJobs);
    case Method::kPeek:
      return Answer(call, daemon, Peek);
  }
  call.reply->Finish(absl::UnimplementedError("no such method"));
  return nullptr;
}

}  // namespace iris::server
