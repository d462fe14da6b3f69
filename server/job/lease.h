// Lease: what holds a rank of a job. It belongs to a process, and ends when that process is gone or
// leaves. A session is a connection that speaks for it: the session may break and another of the
// same process take its place (Resume), while the lease stays. Plain data.
#pragma once

#include "server/job/ids.h"
#include "server/job/states.h"

namespace iris::server {

// Said of a rank whose session hung up: that its process is gone is another matter.
inline constexpr char kHungUp[] = "hung up (its process may still run)";

struct Lease {
  CallerInfo process;  // who holds the rank, or held it last
  bool held = false;   // false: the rank is nobody's
  SessionId session;   // speaks for it, or did so until it hung up; zero unless held

  // Whether `other` is this lease's process.
  bool OfProcess(const CallerInfo& other) const { return process.SameProcess(other); }
};

// Which lease: each rank of a job has one.
struct LeaseRef {
  JobId job;
  Rank rank = 0;
  friend bool operator==(const LeaseRef&, const LeaseRef&) = default;
};

}  // namespace iris::server
