// CallOn: one call to irisd on one session, on as many gRPC channels of it as it takes. A call that
// is lost with its channel is made again on the next one: every call of the heap service may be.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/internal/clock.h"
#include "client/internal/session_client.h"
#include "proto/iris/v1/heap.grpc.pb.h"
#include "proto/status/status.h"

namespace iris::internal {

// gRPC notices a broken socket before the session's thread has noticed it, or has read irisd's last
// words: wait so long for that.
inline constexpr absl::Duration kLastWords = absl::Milliseconds(250);

template <typename Request, typename Reply>
using RpcMethod = grpc::Status (iris::v1::HeapService::Stub::*)(grpc::ClientContext*,
                                                                const Request&, Reply*);

template <typename Request>
struct CallOptions {
  RpcChannels::Waiter waiter = RpcChannels::Waiter::kMember;
  // Called with the request before each attempt but the first.
  std::function<void(Request&)> prepare = [](Request&) {};
};

struct CallAnswer {
  absl::Status status;
  bool answered = false;  // `status` is irisd's; else the session ended, or irisd is stopping
  bool repeated = false;  // irisd may have taken an earlier attempt, whose answer was lost
};

// `request` gets the session's id.
template <typename Request, typename Reply>
CallAnswer CallOn(SessionClient& session, RpcMethod<Request, Reply> method, Request& request,
                  Reply* reply, absl::Time deadline, const CallOptions<Request>& options = {}) {
  request.set_session_id(session.session_id());
  CallAnswer answer;
  uint64_t lost = 0;
  for (;;) {
    const auto channel = session.channels().Wait(lost, options.waiter, deadline);
    if (!channel.ok()) {
      answer.answered = false;
      answer.status = channel.status();
      return answer;
    }
    if (answer.repeated) options.prepare(request);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + (deadline - Now())));
    const grpc::Status status = ((*channel)->stub.get()->*method)(&context, request, reply);
    answer.answered = true;
    answer.status = status.ok() ? absl::OkStatus() : proto::FromGrpc(status);
    if (status.ok()) return answer;
    const bool unavailable = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                             status.error_code() == grpc::StatusCode::CANCELLED;
    if (unavailable || status.error_code() == grpc::StatusCode::UNKNOWN ||
        status.error_code() == grpc::StatusCode::INTERNAL) {
      // These are also what gRPC makes of a connection that broke.
      const auto loss = session.channels().WaitForLoss((*channel)->number, kLastWords);
      if (loss == RpcChannels::Loss::kChannel) {
        lost = (*channel)->number;
        answer.repeated = true;
        reply->Clear();
        continue;
      }
      if (loss == RpcChannels::Loss::kSession) answer.status = session.status();
      answer.answered = loss == RpcChannels::Loss::kNone && !unavailable;
    }
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED && Now() >= deadline) {
      answer.answered = false;
      answer.status = absl::DeadlineExceededError(
          absl::StrCat("irisd at ", session.runtime_dir(),
                       " did not answer in time; is it stopped? (", status.error_message(), ")"));
    }
    return answer;
  }
}

}  // namespace iris::internal
