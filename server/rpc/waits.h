// Finds which ranks of a job wait for which, from the job machine, the ranks' control pages and, if
// the host can read device memory, the progress of the devices (docs/decisions/025). Pure
// functions. Ranks write pages and heaps meanwhile; hostile ranks can only falsify a bounded answer
// about their own job.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "proto/iris/v1/admin.pb.h"
#include "proto/wire/pages.h"
#include "server/job/snapshots.h"

namespace iris::server {

struct WaitSources {
  const JobSnapshot& job;
  const WaitsSnapshot& waits;
  absl::Span<const wire::ControlPage> pages;  // one per rank of this node; empty: there are none
  absl::Time now;                             // on the steady clock
  // Copies bytes of a rank's heap. Returns false if the host cannot, or if there is no memory.
  absl::FunctionRef<bool(Rank, uint64_t offset_bytes, absl::Span<uint8_t>)> read_heap;
  // Returns true if a signal or a debugger has stopped the process.
  absl::FunctionRef<bool(int64_t pid)> is_stopped;
};

// `key` stays the same while the wait lasts, and is never 0. A job's waits are ordered by key.
struct FoundWait {
  uint64_t key = 0;
  v1::Wait wait;
};
std::vector<FoundWait> FindWaits(const WaitSources& from);

// Returns null for a rank of another node, and if there are no pages.
const wire::ControlPage* PageOf(const WaitSources& from, Rank rank);

// FindWaits calls the following functions.
std::vector<FoundWait> FindPendingOperations(const WaitSources& from);
std::vector<FoundWait> FindHostBarriers(const WaitSources& from);
std::vector<FoundWait> FindCollectives(const WaitSources& from);  // collective_waits.cc
std::vector<FoundWait> FindKernelWaits(const WaitSources& from);

// All functions above use the following declarations.
enum class WaitKey : uint64_t {
  kJob = 1,
  kOperation = 2,
  kBarrier = 3,
  kCollective = 4,
  kKernel = 5
};
constexpr uint64_t MakeWaitKey(WaitKey kind, uint64_t which) {
  return static_cast<uint64_t>(kind) << 56 | (which & ((uint64_t{1} << 56) - 1));
}
v1::Wait NewWait(const WaitSources& from, v1::WaitKind kind, uint32_t team, size_t n_members);
void AddMember(const WaitSources& from, Rank rank, v1::WaitPlace place,
               google::protobuf::RepeatedPtrField<v1::WaitMember>* members);
// Adds the team's ranks of other nodes to those that are waited for: all of this node have come,
// and only the other nodes know who has come there.
void AddOtherNodes(const WaitSources& from, const TeamInfo& team, v1::Wait* wait);
bool IsStopped(const WaitSources& from, Rank rank);
// Returns true if the rank is in the job and alive. Pages of other ranks are outdated.
bool IsHere(const WaitSources& from, Rank rank);
// Returns the milliseconds since a time in a page; at most 49 days, after which page times wrap. 0:
// the time is at most a minute ahead, since its writer read the clock later. -1: there is no time.
int64_t AgeOfPageTime(uint32_t page_ms, absl::Time now);

}  // namespace iris::server
