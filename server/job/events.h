// Events: typed values that report changes. The log, `iris-ctl events` and counters of events read
// them. Plain data, and pure functions that turn events into words.
//
// Each kind of event has a word (docs/protocol.md lists them) and a severity: frequent events are
// kept for `iris-ctl events`, and logged at debug level only. The orderly end of a rank or session
// is never a warning.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/account/party.h"
#include "server/job/ids.h"

namespace iris::server {

enum class Severity : uint32_t { kDebug, kInfo, kWarning };

struct EventKind {
  const char* word;
  Severity severity;
};

namespace event {

struct SessionOpened {
  static constexpr EventKind kKind{"session_opened", Severity::kDebug};
  SessionId session;
};
// The session's socket closed; its process may still run.
struct SessionHungUp {
  static constexpr EventKind kKind{"session_hung_up", Severity::kDebug};
  SessionId session;
};
// The session's process has ended, or the session hung up without a rank.
struct SessionClosed {
  static constexpr EventKind kKind{"session_closed", Severity::kDebug};
  SessionId session;
};

// The first rank has joined.
struct JobForming {
  static constexpr EventKind kKind{"job_forming", Severity::kInfo};
  uint32_t n_ranks = 0;
  uint64_t heap_bytes = 0;
  uint64_t stride_bytes = 0;
};
// Another node of the job is connected to the leader, or, on another node, the leader is.
struct NodeConnected {
  static constexpr EventKind kKind{"node_connected", Severity::kInfo};
  uint32_t node = 0;  // its first rank
  std::string host;
};
struct NodeLost {
  static constexpr EventKind kKind{"node_lost", Severity::kWarning};
  uint32_t node = 0;
  std::string host;
  std::string reason;
};
struct RankJoined {
  static constexpr EventKind kKind{"rank_joined", Severity::kInfo};
  uint32_t n_joined = 0;
  uint32_t n_ranks = 0;
};
// One rank's Join was refused, withdrawn or timed out.
struct JoinFailed {
  static constexpr EventKind kKind{"join_failed", Severity::kInfo};
  std::string reason;
};
// All memory exists, and every rank maps it next.
struct JobMapping {
  static constexpr EventKind kKind{"job_mapping", Severity::kInfo};
  uint64_t epoch = 0;
};
struct DeviceShared {
  static constexpr EventKind kKind{"device_shared", Severity::kInfo};
  struct Device {
    uint32_t index = 0;
    std::vector<Rank> ranks;  // more than one
  };
  uint32_t n_ranks = 0;
  uint32_t n_devices_used = 0;
  uint32_t n_devices = 0;
  std::vector<Device> shared;
};
// The epoch is committed.
struct JobReady {
  static constexpr EventKind kKind{"job_ready", Severity::kInfo};
  uint64_t epoch = 0;
  bool same_address = false;
};
// The job ended before it was ready.
struct JobFailed {
  static constexpr EventKind kKind{"job_failed", Severity::kInfo};
  std::string reason;
};
struct RankHungUp {
  static constexpr EventKind kKind{"rank_hung_up", Severity::kInfo};
};
struct RankDead {
  static constexpr EventKind kKind{"rank_dead", Severity::kInfo};
};
struct RankLeft {
  static constexpr EventKind kKind{"rank_left", Severity::kInfo};
};
struct RankResumed {
  static constexpr EventKind kKind{"rank_resumed", Severity::kInfo};
  SessionId session;
};
// A rank hung up or died while others were in the job.
struct JobBroken {
  static constexpr EventKind kKind{"job_broken", Severity::kWarning};
  std::string reason;
};
struct JobEnded {
  static constexpr EventKind kKind{"job_ended", Severity::kInfo};
};

struct Allocated {
  static constexpr EventKind kKind{"allocated", Severity::kDebug};
  TeamId team = kWorldTeam;
  uint64_t k = 0;
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;
  std::string name;
};
struct Freed {
  static constexpr EventKind kKind{"freed", Severity::kDebug};
  TeamId team = kWorldTeam;
  uint64_t k = 0;
  uint64_t offset_bytes = 0;
};
struct GrowthStarted {
  static constexpr EventKind kKind{"growth_started", Severity::kInfo};
  GrowId grow;
  uint64_t bytes = 0;
  uint64_t heap_bytes = 0;  // before
};
struct HeapGrown {
  static constexpr EventKind kKind{"heap_grown", Severity::kInfo};
  GrowId grow;
  uint64_t heap_bytes = 0;
};
struct GrowthFailed {
  static constexpr EventKind kKind{"growth_failed", Severity::kInfo};
  std::string reason;
};
struct TeamCreated {
  static constexpr EventKind kKind{"team_created", Severity::kInfo};
  TeamId team = kWorldTeam;
  uint32_t slot = 0;
  std::vector<Rank> ranks;
};
struct TeamDestroyed {
  static constexpr EventKind kKind{"team_destroyed", Severity::kInfo};
  TeamId team = kWorldTeam;
};
// Ranks asked for different operations, or one rank asked for an invalid one.
struct OperationMismatch {
  static constexpr EventKind kKind{"operation_mismatch", Severity::kInfo};
  std::string reason;
};
struct OperationTimeout {
  static constexpr EventKind kKind{"operation_timeout", Severity::kInfo};
  std::string reason;
};
// An operation had any other outcome that is not OK.
struct OperationFailed {
  static constexpr EventKind kKind{"operation_failed", Severity::kInfo};
  std::string reason;
};
// Another irisd has taken over. `n_lost` of the sessions had lost their connection.
struct Recovered {
  static constexpr EventKind kKind{"recovered", Severity::kInfo};
  uint64_t generation = 0;
  uint32_t n_jobs = 0;
  uint32_t n_sessions = 0;
  uint32_t n_lost = 0;
};
// The new irisd did not inherit memory that a rank of the job has.
struct MemoryLost {
  static constexpr EventKind kKind{"memory_lost", Severity::kWarning};
  std::string reason;
};
// The new irisd inherited a descriptor that belongs to nothing, and closed it.
struct OrphanClosed {
  static constexpr EventKind kKind{"orphan_closed", Severity::kInfo};
  std::string what;
};
// The recording of inputs has reached its size limit, or cannot be written: later inputs are
// missing.
struct RecordingFull {
  static constexpr EventKind kKind{"recording_full", Severity::kWarning};
  std::string file;
  uint64_t bytes = 0;
};
// A worker ended without being asked to, and a tenant's gRPC connections with it.
struct WorkerEnded {
  static constexpr EventKind kKind{"worker_ended", Severity::kWarning};
  std::string tenant;
  std::string reason;
};

}  // namespace event

using EventDetail =
    std::variant<event::SessionOpened, event::SessionHungUp, event::SessionClosed,
                 event::JobForming, event::NodeConnected, event::NodeLost, event::RankJoined,
                 event::JoinFailed, event::JobMapping, event::DeviceShared, event::JobReady,
                 event::JobFailed, event::RankHungUp, event::RankDead, event::RankLeft,
                 event::RankResumed, event::JobBroken, event::JobEnded, event::Allocated,
                 event::Freed, event::GrowthStarted, event::HeapGrown, event::GrowthFailed,
                 event::TeamCreated, event::TeamDestroyed, event::OperationMismatch,
                 event::OperationTimeout, event::OperationFailed, event::Recovered,
                 event::MemoryLost, event::OrphanClosed, event::RecordingFull, event::WorkerEnded>;

struct Event {
  std::string job;    // empty if the event concerns no job
  int32_t rank = -1;  // -1 if it concerns no rank
  int64_t pid = 0;    // 0 if it concerns no process
  Party party;        // of the job or session
  EventDetail detail;
};

// Returns the word that names the kind of event, such as "job_forming".
absl::string_view KindOf(const Event& event);
Severity SeverityOf(const Event& event);
// Returns the details of the event besides job, rank, pid and uid.
std::string TextOf(const Event& event);

}  // namespace iris::server
