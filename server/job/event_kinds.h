// The words of EmitEvent::kind: every kind of event that the job machine reports. docs/protocol.md
// lists them too.
#pragma once

namespace iris::server::event {

inline constexpr char kSessionOpened[] = "session_opened";
inline constexpr char kSessionHungUp[] =
    "session_hung_up";  // its socket closed; the process may still run
inline constexpr char kSessionClosed[] = "session_closed";  // its process is gone

inline constexpr char kJobForming[] = "job_forming";  // the first rank has joined
inline constexpr char kRankJoined[] = "rank_joined";
inline constexpr char kJoinFailed[] =
    "join_failed";  // one rank's Join was refused, withdrawn or timed out
inline constexpr char kJobMapping[] = "job_mapping";      // all memory exists, every rank maps it
inline constexpr char kDeviceShared[] = "device_shared";  // by several ranks of a job
inline constexpr char kJobReady[] = "job_ready";          // the epoch is committed
inline constexpr char kJobFailed[] = "job_failed";        // it ended before it was ready
inline constexpr char kRankHungUp[] = "rank_hung_up";
inline constexpr char kRankDead[] = "rank_dead";
inline constexpr char kRankLeft[] = "rank_left";
inline constexpr char kRankResumed[] = "rank_resumed";
inline constexpr char kJobBroken[] = "job_broken";
inline constexpr char kJobEnded[] = "job_ended";

inline constexpr char kAllocated[] = "allocated";
inline constexpr char kFreed[] = "freed";
inline constexpr char kGrowthStarted[] = "growth_started";
inline constexpr char kHeapGrown[] = "heap_grown";
inline constexpr char kGrowthFailed[] = "growth_failed";
inline constexpr char kTeamCreated[] = "team_created";
inline constexpr char kTeamDestroyed[] = "team_destroyed";
inline constexpr char kOperationMismatch[] =
    "operation_mismatch";  // ranks asked for different things
inline constexpr char kOperationTimeout[] = "operation_timeout";
inline constexpr char kOperationFailed[] = "operation_failed";  // any other outcome that is not ok

}  // namespace iris::server::event
