// Leases: which process holds a rank and which session speaks for it, and what becomes of a job
// whose rank hangs up, dies or resumes.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/job/growths.h"

namespace iris::server {

struct Leases : Growths {
  using Growths::Growths;

  // The rank belongs to the session's process, and the session speaks for it.
  void GrantLease(Job& job, Rank rank, Session& session);
  // No process holds the rank. Calls of the session that still name the job get `told`.
  void EndLease(Job& job, Rank rank, const absl::Status& told);

  void CloseSession(SessionId session, const std::string& reason);
  void EndProcess(SessionId session);
  void HangUp(Session& session);
  void Resume(const ResumeCall& in);

  void Break(Job& job, std::string reason);
  // Ends a job that is not ready yet: every rank gets the error.
  void FailJob(Job& job, const absl::Status& status);
  void EndJob(Job& job);

 private:
  void Gone(SessionId session);
  // Another session of the same process speaks for the rank from now on.
  void MoveLease(Job& job, Rank rank, Session& to, const absl::Status& told);
  // The session speaks for its lease no longer.
  void Release(Job& job, Rank rank, const absl::Status& told);
};

}  // namespace iris::server
