// The implementation of JobMachine: the top layer (registry.h). Its functions On handle inputs.
#pragma once

#include <string>

#include "server/job/job_machine.h"
#include "server/job/rendezvous.h"

namespace iris::server {

struct JobMachine::Impl final : Rendezvous {
  using Rendezvous::Rendezvous;

  // Clears the marks of changed entries (tracked.h). Call it before each input.
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
  // Removes a waiting call from the list in which it waits.
  void Unlist(CallId call, const WaitingCall& waiting);

  void ForgetCalls();
  // If the pages were not kept, makes new ones if the job is forming; otherwise they are lost.
  void RestorePages(Job& job, bool kept);
  // Takes the port process over; without it, the job breaks, or fails if it is not ready yet.
  void RestorePort(JobId id, bool kept);
  // Makes KeptMemory consistent with the present quota.
  void RestoreAccount(Job& job);
  // Breaks the job, or fails it if it is not ready yet.
  void LoseMemory(Job& job, Rank rank, const std::string& what);
  void LoseSession(SessionId session);
  void SendDescriptorsAgain(const Job& job);
};

}  // namespace iris::server
