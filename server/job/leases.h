// Leases: records which process holds a rank and which session speaks for it, and handles ranks
// that hang up, die or resume.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/job/growths.h"

namespace iris::server {

struct Leases : Growths {
  using Growths::Growths;
  using Growths::On;

  // Gives the rank to the session's process; from now on the session speaks for it.
  void GrantLease(Job& job, Rank rank, Session& session);
  // Frees the rank. Calls of its session that still name the job get `told`.
  void EndLease(Job& job, Rank rank, const absl::Status& told);

  void On(const SessionHungUp& in);
  void On(const ProcessGone& in);
  void On(const ResumeCall& in);
  void HangUp(Session& session);

  void Break(Job& job, std::string reason);
  // Ends a job that is not ready yet: every rank gets the error.
  void FailJob(Job& job, const absl::Status& status);
  void EndJob(Job& job);

 private:
  void Gone(SessionId session);
  // Makes the session speak for its lease no longer. Its calls that still name the job, and those
  // of its barriers, get `told`; a rank that resumes asks for its barriers again.
  void Release(Job& job, Rank rank, const absl::Status& told);
};

}  // namespace iris::server
