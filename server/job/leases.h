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

  // Gives the rank to the session's process, and makes the session speak for it.
  void GrantLease(Job& job, Rank rank, Session& session);
  // Frees the rank. Pending calls of its session that name the job are answered `told`.
  void EndLease(Job& job, Rank rank, const absl::Status& told);

  void On(const SessionHungUp& in);
  void On(const ProcessGone& in);
  void On(const ResumeCall& in);
  void HangUp(Session& session);

  void Break(Job& job, std::string reason);
  // Ends a job that is not ready yet. Every rank gets the error, also those of other nodes unless
  // these sent it.
  void FailJob(Job& job, const absl::Status& status, bool tells_nodes = true);
  // Ends the job if nobody needs it.
  void EndIfEmpty(Job& job);
  void EndJob(Job& job);

 private:
  void Gone(SessionId session);
  // Ends the session's right to speak for its lease. Its pending calls that name the job, and those
  // about barriers, are answered `told`; a rank that resumes asks about its barriers again.
  void Release(Job& job, Rank rank, const absl::Status& told);
};

}  // namespace iris::server
