// FindStuck: which ranks wait for each other without end. Pure; thread-safe.
//
// The rule never fails a rank that may still come. A rank counts only while it is *blocked*: one
// thread alone has used its context, and this thread is in one call that needs other ranks. So the
// rank makes no other call before this one ends. A blocked rank is stuck if a rank that it needs is
// stuck. The others are not: a rank that needs only ranks that compute, have several threads, or
// are in calls that can end, may be served by them.
#pragma once

#include <vector>

#include "server/job/ids.h"

namespace iris::server {

struct Blocked {
  Rank rank = 0;
  std::vector<Rank> needs;  // ranks that have not come to its call; all of them must
};

// The stuck ranks among `blocked`, in order. Each rank appears there once.
std::vector<Rank> FindStuck(const std::vector<Blocked>& blocked);

}  // namespace iris::server
