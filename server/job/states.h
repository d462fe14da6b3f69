// States of ranks and jobs, calling processes, and leases. Plain data.
#pragma once

#include <cstdint>

#include "server/account/party.h"
#include "server/job/ids.h"

namespace iris::server {

// Same numbers as iris.v1.RankState and wire::PageRankState.
enum class RankState : uint32_t {
  kAbsent = 1,
  kJoined = 2,
  kMapped = 3,
  kReady = 4,
  kEnding = 5,
  kDead = 6,
  kLeft = 7,
};
// Of a node of a job that spans several. The last two are in snapshots alone: only the leader
// knows its state, or nothing has come from it.
enum class NodeState : uint32_t {
  kConnected = 1,
  kJoined = 2,
  kMapped = 3,
  kLost = 4,
  kUnknown = 5,
  kAwaited = 6
};
enum class JobState : uint32_t { kForming = 1, kMapping = 2, kReady = 3, kBroken = 4 };

struct CallerInfo {
  int64_t pid = 0;
  Party party;
  uint32_t gid = 0;
  uint64_t process_start = 0;  // start time, to detect that the pid was reused

  // Returns true if both are the same process. The pid does not suffice, since pids are reused.
  bool SameProcess(const CallerInfo& other) const {
    return pid == other.pid && party == other.party && process_start == other.process_start;
  }
};

// Appended to a rank in messages, if its session hung up.
inline constexpr char kHungUp[] = "hung up (its process may still run)";

// Lease: the hold of a process on a rank. It ends when the process ends or leaves. A session is a
// connection that speaks for the lease: it may break and be replaced by another session of the same
// process (Resume), while the lease stays.
struct Lease {
  CallerInfo process;  // the process that holds the rank, or held it last
  bool held = false;   // false: the rank is free
  SessionId session;   // speaks for it, or did so until it hung up; zero unless held

  bool OfProcess(const CallerInfo& other) const { return process.SameProcess(other); }
};

// Names a lease: each rank of a job has one.
struct LeaseRef {
  JobId job;
  Rank rank = 0;
  friend bool operator==(const LeaseRef&, const LeaseRef&) = default;
};

}  // namespace iris::server
