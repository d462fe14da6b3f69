#include "server/rpc/services.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "device/base/bytes.h"
#include "proto/wire/limits.h"
#include "server/rpc/heap_calls.h"
#include "server/rpc/listings.h"

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
      return calls_.Ask<JoinCall, v1::JoinRequest>(
          call, [&daemon](const Result& result) { return JoinReplyOf(daemon, result); });
    case Method::kMapped:
      return calls_.Ask<MappedCall, v1::MappedRequest>(call,
                                                       Convert<MappedResult, v1::MappedReply>);
    case Method::kOperate:
      return calls_.Ask<OperateCall, v1::OperateRequest>(
          call,
          [](const Result& result) { return SerializeOperateReply(std::get<Outcome>(result)); },
          [&](v1::OperateRequest& request) { return TakeRegistered(daemon, call, &request); });
    case Method::kGrowMapped:
      return calls_.Ask<GrowMappedCall, v1::GrowMappedRequest>(call,
                                                               Convert<Done, v1::GrowMappedReply>);
    case Method::kLeave:
      return calls_.Ask<LeaveCall, v1::LeaveRequest>(call, Convert<Done, v1::LeaveReply>);
    case Method::kResume:
      return calls_.Ask<ResumeCall, v1::ResumeRequest>(call,
                                                       Convert<ResumeResult, v1::ResumeReply>);
    case Method::kAwaitBarrier:
      return calls_.Ask<AwaitBarrierCall, v1::AwaitBarrierRequest>(
          call, Convert<BarrierAnswer, v1::AwaitBarrierReply>);
    case Method::kWatch:
      return calls_.Stream<v1::WatchRequest>(call, [&](const v1::WatchRequest& request) {
        return Watch(daemon_, calls_.counter(), call, request);
      });
    case Method::kBorrow:
      return calls_.Answer<v1::BorrowRequest, v1::BorrowReply>(
          call, [&](const v1::BorrowRequest& request, v1::BorrowReply* reply) {
            return Borrow(daemon_, call, request, reply);
          });
    case Method::kEvents:
      return calls_.Stream<v1::EventsRequest>(call, [&](const v1::EventsRequest& request) {
        return Events(&daemon_->events(), calls_.counter(), call, request);
      });
    case Method::kGetStatus:
      return calls_.Answer(call, all, GetStatus);
    case Method::kListTenants:
      return calls_.Answer(call, all, ListTenants);
    case Method::kListDevices:
      return calls_.Answer(call, daemon, ListDevices);
    case Method::kListJobs:
      return calls_.Answer(call, daemon, ListJobs);
    case Method::kListHeaps:
      return calls_.Answer(call, daemon, ListHeaps);
    case Method::kListAllocations:
      return calls_.Answer(call, daemon, ListAllocations);
    case Method::kListSessions:
      return calls_.Answer(call, daemon, ListSessions);
    case Method::kListWaits:
      return calls_.Answer(call, daemon, ListWaits);
    case Method::kDescribeJobs:
      return calls_.Answer(call, daemon, DescribeJobs);
    case Method::kPeek:
      return calls_.Answer(call, daemon, Peek);
  }
  call.reply->Finish(absl::UnimplementedError("no such method"));
  return nullptr;
}

}  // namespace iris::server
