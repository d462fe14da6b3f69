#include "server/rpc/services.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "device/base/bytes.h"
#include "proto/wire/limits.h"

namespace iris::server {
namespace {

// Names, numbers and page tokens: what those who look at jobs ask needs no more.
constexpr size_t kMaxLookRequestBytes = 16 << 10;

// A look at jobs, which copies what it sees: not on the thread of sessions. What tenants have at
// the doors is that thread's own.
bool Looks(Method method) {
  return (IsAdmin(method) && method != Method::kEvents && method != Method::kListTenants) ||
         method == Method::kBorrow;
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
  switch (call.method) {
    case Method::kJoin:
      return heap_.Join(call);
    case Method::kMapped:
      return heap_.Mapped(call);
    case Method::kOperate:
      return heap_.Operate(call);
    case Method::kGrowMapped:
      return heap_.GrowMapped(call);
    case Method::kLeave:
      return heap_.Leave(call);
    case Method::kResume:
      return heap_.Resume(call);
    case Method::kWatch:
      return heap_.Watch(call);
    case Method::kBorrow:
      return heap_.Borrow(call);
    case Method::kAwaitBarrier:
      return heap_.AwaitBarrier(call);
    case Method::kGetStatus:
      return admin_.GetStatus(call);
    case Method::kListDevices:
      return admin_.ListDevices(call);
    case Method::kListJobs:
      return admin_.ListJobs(call);
    case Method::kListHeaps:
      return admin_.ListHeaps(call);
    case Method::kListAllocations:
      return admin_.ListAllocations(call);
    case Method::kListSessions:
      return admin_.ListSessions(call);
    case Method::kEvents:
      return admin_.Events(call);
    case Method::kPeek:
      return admin_.Peek(call);
    case Method::kListWaits:
      return admin_.ListWaits(call);
    case Method::kDescribeJobs:
      return admin_.DescribeJobs(call);
    case Method::kListTenants:
      return admin_.ListTenants(call);
  }
  call.reply->Finish(absl::UnimplementedError("no such method"));
  return nullptr;
}

}  // namespace iris::server
