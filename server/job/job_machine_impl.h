// JobMachine's inside: the top of its layers (registry.h). It knows what each input means.
#pragma once

#include <string>
#include <utility>

#include "server/job/job_machine.h"
#include "server/job/rendezvous.h"

namespace iris::server {

struct JobMachine::Impl final : Rendezvous {
  using Rendezvous::Rendezvous;

  // Before an input: what it changes is marked (tracked.h).
  void ClearMarks();
  void OpenSession(SessionId session, const CallerInfo& caller, absl::Duration process_age);
  void OpenWatch(SessionId session, CallId call, JobId job);
  void Cancelled(CallId call);
  void Tick();
  void ChangeLimits(const JobLimits& limits);
  void Stop(const std::string& reason);

  // recovered.cc.
  void Recover(const Recovered& in);

 private:
  // Takes a waiting call out of whatever waits with it.
  void Unlist(CallId call, const WaitingCall& waiting);

  void ForgetCalls();
  // Pages that no rank has yet are made again if they were not kept; otherwise the job has lost
  // them.
  void RestorePages(Job& job, bool kept);
  // KeptMemory follows the quota that there is now.
  void RestoreAccount(Job& job);
  // Breaks the job, or fails it if it is not ready yet.
  void LoseMemory(Job& job, Rank rank, const std::string& what);
  void LoseSession(SessionId session);
  void SendDescriptorsAgain(const Job& job);
};

}  // namespace iris::server
