// JobMachine's inside: the top of its layers (registry.h), which act on its inputs by On.
#pragma once

#include <string>

#include "server/job/job_machine.h"
#include "server/job/rendezvous.h"

namespace iris::server {

struct JobMachine::Impl final : Rendezvous {
  using Rendezvous::Rendezvous;

  // Before an input: what it changes is marked (tracked.h).
  void ClearMarks();

  using Rendezvous::On;
  void On(const SessionOpened& in);
  void On(const CallCancelled& in);
  void On(const WatchOpened& in);
  void On(const DriverFree& in);
  void On(const LimitsChanged& in);
  void On(const Noted& in) { Emit(EmitEvent{in.event}); }
  void On(const Recovered& in);  // recovered.cc
  void On(const Tick& in);
  void On(const StopRequested& in);

 private:
  void Expire(Job& job, const DeadlineKey& due);
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
