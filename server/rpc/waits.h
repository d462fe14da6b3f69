// Who waits for whom in one job, as it looks from outside: what the job machine knows, what the
// ranks have written into their control pages, and, where the host can read device memory, how far
// the devices are. docs/decisions/025 says why it is done so.
//
// Pure functions of what they are given. Pages and heaps are written by the ranks meanwhile, and
// none of it is believed: whatever they hold, the answer is bounded, and wrong of that job alone.
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

// What a job is looked at with.
struct WaitSources {
  const JobSnapshot& job;
  const WaitsSnapshot& waits;
  absl::Span<const wire::ControlPage> pages;  // one per rank; empty: there are none
  absl::Time now;                             // on the steady clock
  // Copies bytes of a rank's heap. False: the host cannot, or nothing is there.
  absl::FunctionRef<bool(Rank, uint64_t offset_bytes, absl::Span<uint8_t>)> read_heap;
  // Whether a process is stopped by a signal or a debugger.
  absl::FunctionRef<bool(int64_t pid)> is_stopped;
};

// `key` stays the same while the wait lasts; the waits of a job come in its order. Never 0.
struct FoundWait {
  uint64_t key = 0;
  v1::Wait wait;
};
std::vector<FoundWait> FindWaits(const WaitSources& from);

// The parts of FindWaits.
std::vector<FoundWait> FindPendingOperations(const WaitSources& from);
std::vector<FoundWait> FindHostBarriers(const WaitSources& from);
std::vector<FoundWait> FindCollectives(const WaitSources& from);  // collective_waits.cc
std::vector<FoundWait> FindKernelWaits(const WaitSources& from);

// What they share.
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
// The job, and which of its teams.
v1::Wait NewWait(const WaitSources& from, v1::WaitKind kind, uint32_t team, size_t n_members);
void AddMember(const WaitSources& from, Rank rank, v1::WaitPlace place,
               google::protobuf::RepeatedPtrField<v1::WaitMember>* members);
// Whether the rank has a process, and that is stopped.
bool IsStopped(const WaitSources& from, Rank rank);
// Whether the rank is in the job and lives: what others have left in their pages is old.
bool IsHere(const WaitSources& from, Rank rank);
// How long ago a point of time in a page was; at most 49 days, after which page times wrap. 0: it
// lies at most a minute ahead, because its writer was a moment later. -1: it is none.
int64_t AgeOfPageTime(uint32_t page_ms, absl::Time now);

}  // namespace iris::server
