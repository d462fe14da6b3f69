// Registry: the sessions and jobs of a JobMachine, the calls that wait for a Reply, the deadlines,
// and the effects that the present input has caused so far, in order.
//
// The machine consists of layers, each of which uses those below it: Registry, Segments, Teams,
// Growths, Leases, Rendezvous, JobMachine::Impl. Their fields are accessible to MachineState
// (server/state), which writes and reads all of them. No layer is thread-safe: the daemon locks.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/job/deadlines.h"
#include "server/job/effects.h"
#include "server/job/inputs.h"
#include "server/job/job.h"
#include "server/job/text.h"
#include "server/job/tracked.h"

namespace iris::server {

struct Registry {
  using Due = DeadlineKey::Kind;
  using Name = std::pair<Party, std::string>;  // of a job: its party and its name

  struct Session {
    SessionId id;
    CallerInfo caller;
    bool ending = false;
    std::optional<LeaseRef> lease;  // that the session speaks for
    absl::Time created;
    absl::Time process_began;  // on the steady clock
    // The last job to which the session belonged, and the answer to calls that still name it.
    JobId past_job;
    absl::Status past_status;
    // Number of the Join that made the session a rank of its present or past job; 0 if there was
    // none, or if it was withdrawn.
    uint64_t join_number = 0;
  };

  struct WaitingCall {
    enum class Kind { kJoin, kMapped, kOperation, kBarrier };
    Kind kind = Kind::kJoin;
    JobId job;
    Rank rank = 0;
    TeamId team = kWorldTeam;
  };

  struct Membership {
    Job* job = nullptr;
    Member* member = nullptr;
    Rank rank = 0;
  };

  explicit Registry(const JobLimits& limits) : limits_(limits) {}

  template <typename T>
  void Emit(T effect) {
    out_.push_back(std::move(effect));
  }
  void Answer(CallId call, absl::Status status, Result result = Done{});
  template <typename... Parts>
  void Refuse(CallId call, Code code, const Parts&... parts) {
    Answer(call, Error(code, parts...));
  }
  // Returns an error that begins with the verb and the job: "join job 'train': ".
  template <typename... Parts>
  static absl::Status ErrorOf(const Job& job, Code code, absl::string_view verb,
                              const Parts&... parts) {
    return Error(code, verb, " job '", job.name, "': ", parts...);
  }
  // As the leader, sends the other nodes a message that has `handles`, with those of the memory
  // that the receiver's ranks map.
  template <typename Message>
  void TellHandles(Job& job, Message message) {
    const auto& all = std::as_const(job).nodes->all;
    if (std::none_of(all.begin(), all.end(),
                     [](const auto& each) { return each.second.with_previous; })) {
      return TellNodes(job, std::move(message));
    }
    for (const auto& [id, node] : all) {
      if (id == job.nodes->own) continue;
      message.handles = job.nodes->HandlesFor(id);
      Send(job, id, false, message);
    }
  }
  // Reports what happened to a job, to one of its ranks, or to a session.
  void Note(const Job& job, EventDetail detail);
  void Note(const Job& job, Rank rank, EventDetail detail);
  void NoteSession(const Session& session, EventDetail detail);
  // Changes the rank's state in the machine and on the status page.
  void SetState(Job& job, Rank rank, RankState state, bool abort);
  // Notifies the other ranks of this rank's new state, with the reason. If the rank is of this
  // node, other nodes are told.
  void NotifyPeers(Job& job, Rank rank, const std::string& reason);
  // Sends a message to the leader or, on the leader's node, to all other nodes.
  void TellNodes(Job& job, NodeMessage message);
  // Sends it (SendToNode), now and to the port process of the next irisd until it is taken.
  void Send(Job& job, NodeId node, bool all, NodeMessage message);

  Session* FindSession(SessionId session) { return sessions_.Find(session); }
  Job* FindJob(JobId job);
  // Returns null if there is no such job.
  Job* FindJob(const Name& name);
  const std::set<JobId>& JobsOf(const Party& account) const;
  // Returns the job that the session speaks for, or null if there is none.
  Job* JobOf(const Session& session);
  // Returns an error if the session may make no calls now.
  absl::StatusOr<const Session*> CallingSession(SessionId session) const;
  absl::StatusOr<Membership> FindMembership(SessionId session, JobId job);
  void AddWaiting(CallId call, const WaitingCall& waiting) { waiting_[call] = waiting; }

  JobLimits limits_;
  bool stopping_ = false;
  Time now_;  // time of the input that is being applied
  Tracked<std::map<SessionId, Session>> sessions_;
  Tracked<std::map<JobId, Box<Job>>> jobs_;
  std::map<Name, JobId> jobs_by_name_;
  std::map<Party, std::set<JobId>> jobs_by_account_;
  std::map<Party, std::set<SessionId>> sessions_by_account_;
  std::map<CallId, WaitingCall> waiting_;
  DeadlineQueue deadlines_;
  Effects out_;
};

}  // namespace iris::server
