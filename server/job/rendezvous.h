// Rendezvous: ranks join a job, wait until all have joined and have memory, and map the memory;
// then the epoch is committed. It remembers failed attempts, for ranks that join late.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/job/leases.h"

namespace iris::server {

struct Rendezvous : Leases {
  Rendezvous(const JobLimits& limits, Ledger ledger, UnusablePairs unusable)
      : Leases(limits, std::move(ledger)), unusable_(std::move(unusable)) {}

  using Leases::On;
  void On(const JoinCall& in);
  void On(const MappedCall& in);
  void On(const LeaveCall& in);
  void On(const SegmentCreated& in);
  void On(const SegmentDropped& in);
  void On(const PortReady& in);
  void On(const PortFailed& in);
  void On(const PortTook& in);
  void On(const NodeConnected& in);
  void On(const NodeLost& in);
  void On(const NodeSaid& in);
  void JoinTimedOut(Job& job, Rank rank);
  void MapTimedOut(Job& job);
  // Removes a rank that waits in Join.
  void WithdrawJoin(Job& job, Rank rank, const absl::Status& status);
  // Withdraws a Join whose caller is gone, after kWithdrawAfter.
  void CancelJoin(Job& job, Rank rank);
  void WithdrawCancelled(Job& job, Rank rank);
  void AnsweredJoinCancelled(CallId call);

  // Creates segments of ranks that wait for memory, if memory has become free.
  void ServeStarved();

  const UnusablePairs unusable_;
  Tracked<std::map<Name, AbandonedJob>> abandoned_;
  Tracked<std::map<Name, RefusedJoin>> refused_;
  uint64_t next_job_ = 1;

 private:
  absl::Status TryJoin(Session& session, CallId call, const JoinSpec& spec);
  // Returns true if the call repeats the session's last Join, and thus is answered or waits.
  bool JoinAgain(Session& session, CallId call, const JoinSpec& spec);
  // Returns the answer for a rank of a job that is being mapped.
  JoinResult JoinResultOf(const Job& job, Rank rank) const;
  void StartMappingIfComplete(Job& job);
  // Returns true if every rank of this node has joined and has memory.
  bool HasJoinedHere(const Job& job);
  void StartMapping(Job& job);
  // Commits the epoch, after every rank has mapped its peers.
  void Commit(Job& job);
  // Handles a Join whose answer was not delivered: the rank will not map.
  void JoinUndelivered(Job& job, Rank rank);
  Job& NewJob(const Name& name, const JoinSpec& spec);
  void ReportSharedDevices(const Job& job);

  // These functions check a Join before anything changes. CheckJoin returns the spec with defaults
  // filled in and sizes rounded, or an error that is evident without a job. In the result,
  // max_heap_bytes is the stride, and device_uuid names the device.
  absl::StatusOr<JoinSpec> CheckJoin(JoinSpec spec) const;
  static absl::Status CheckNodes(const JoinSpec& spec);
  absl::Duration JoinTimeout(const JoinSpec& spec) const;
  absl::Status CheckSizes(JoinSpec& spec) const;
  absl::StatusOr<uint32_t> ChooseDevice(const JoinSpec& spec) const;
  // These functions take a spec that CheckJoin has passed.
  absl::Status CheckMayJoin(const Job& job, const JoinSpec& spec) const;
  absl::Status CheckAgreement(const Job& job, const std::string& what, const JoinSpec& spec) const;
  absl::Status CheckJobLimits(const Party& party) const;
  // Returns the error of the first pair of devices that cannot use each other's memory, among this
  // rank's device and those of ranks that have joined. `job` is null if no other rank has joined.
  absl::Status CheckPeers(const Job* job, const JoinSpec& spec, uint32_t device_index) const;

  // nodes.cc defines the following functions: what a job of several nodes has to do more.
  // Tells the leader that all ranks of this node have joined, or that one gave up since.
  void NodeHasJoined(Job& job);
  void TellJoined(Job& job);
  void NodeWithdraws(Job& job);
  void NodeHasMapped(Job& job);
  // On the leader's node: goes on if every node has joined, or has mapped.
  void LayOutIfComplete(Job& job);
  // Forgets the messages up to number `taken`, which the port process has.
  static void DropTaken(JobNodes& nodes, uint64_t taken);
  // Notes the number of a message from the port process. Returns false if the machine has heard
  // that message; 0 is never heard.
  static bool Hear(JobNodes& nodes, uint64_t number);
  void CommitIfMapped(Job& job);
  void CommitNodes(Job& job, bool same_address);
  // Begins the mapping, with all nodes known. `handles` are as of NodesJoined, and checked.
  void LayOut(Job& job, uint64_t epoch, const std::vector<std::string>& handles);
  // Ends or breaks the job because ranks of other nodes, as `lost` says, cannot be reached.
  void LoseRanks(Job& job, const std::string& reason, bool (*lost)(const JobNodes&, Rank, NodeId),
                 NodeId node);
  absl::Status Handle(Job& job, NodeId from, const NodeJoined& message);
  absl::Status Handle(Job& job, NodeId from, const NodeWithdrawn& message);
  absl::Status Handle(Job& job, NodeId from, const NodesJoined& message);
  absl::Status Handle(Job& job, NodeId from, const NodeMapped& message);
  absl::Status Handle(Job& job, NodeId from, const NodesMapped& message);
  absl::Status Handle(Job& job, NodeId from, const OperationAsked& message);
  absl::Status Handle(Job& job, NodeId from, const OperationDecided& message);
  absl::Status Handle(Job& job, NodeId from, const JoinsFailed& message);
  absl::Status Handle(Job& job, NodeId from, const RankIs& message);
  absl::Status Handle(Job& job, NodeId from, const NodeIsLost& message);
  absl::Status Handle(Job& job, NodeId from, const GrowthBegun& message);
  absl::Status Handle(Job& job, NodeId from, const GrowthCreated& message);
  absl::Status Handle(Job& job, NodeId from, const GrowthMaps& message);
  absl::Status Handle(Job& job, NodeId from, const GrowthMapped& message);
  absl::Status Handle(Job& job, NodeId from, const GrowthEnded& message);

  // failed_joins.cc defines the following functions.
  // Fails the join of a whole job because one of its ranks was refused.
  void RefuseJob(const Session& session, const JoinSpec& spec, const absl::Status& why);
  void RefuseRank(const CallerInfo& caller, const JoinSpec& spec, const absl::Status& why);
  // Fails the job `name` if it exists, and remembers the refusal for its other ranks; if it does
  // not, for the ranks of a job of `n_ranks`.
  void FailAllJoins(const Name& name, uint32_t n_ranks, RefusedJoin refused,
                    bool tells_nodes = true);
  // Notes that a rank has joined a job whose name had a refusal.
  void ForgetRefused(const Job& job, Rank joined);
  // Returns the error that RefuseJob stored for ranks that join after the refused one, or OK if the
  // rank may join.
  absl::Status RefusedBefore(const Session& session, const JoinSpec& spec);
  // Remembers the ranks that gave up, for a rank that joins after all of them. RecallAbandoned adds
  // them to a new job of the same name.
  void RememberAbandoned(const Job& job);
  void RecallAbandoned(Job& job);
};

}  // namespace iris::server
