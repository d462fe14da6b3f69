// CallOn: one call to irisd on one session. Requests and answers are encoded messages (convert.h).
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/base/clock.h"
#include "client/session/session_client.h"
#include "proto/wire/frame.h"

namespace iris::internal {

// irisd's answer that it stops comes before its last words: wait so long for these.
inline constexpr absl::Duration kLastWords = absl::Milliseconds(250);

struct CallAnswer {
  absl::Status status;
  bool answered = false;    // `status` is irisd's; else the session ended, or irisd is stopping
  std::string message;      // if ok
  uint64_t generation = 0;  // if answered: of the irisd that did
};

// `request` names the session's id.
inline CallAnswer CallOn(SessionClient& session, wire::CallMethod method,
                         const std::string& request, absl::Time deadline,
                         FrameCalls::Caller caller = FrameCalls::Caller::kMember,
                         absl::Span<const int> fds = {}) {
  FrameCalls::Answer got = session.calls().Call(method, request, deadline, caller, fds);
  CallAnswer answer;
  answer.status = std::move(got.status);
  answer.answered = got.answered;
  answer.message = std::move(got.message);
  answer.generation = got.generation;
  if (answer.status.ok()) return answer;
  if (!answer.answered && absl::IsDeadlineExceeded(answer.status)) {
    answer.status = absl::DeadlineExceededError(
        absl::StrCat("irisd at ", session.runtime_dir(),
                     " did not answer in time; is it stopped? (", answer.status.message(), ")"));
    return answer;
  }
  // It stops, or the call was cancelled there: the session's end says more, and comes at once.
  if (answer.answered && (absl::IsUnavailable(answer.status) || absl::IsCancelled(answer.status))) {
    answer.answered = false;
    if (session.WaitForEnd(kLastWords)) answer.status = session.status();
  }
  return answer;
}

}  // namespace iris::internal
