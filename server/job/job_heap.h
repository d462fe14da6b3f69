// Ranges of a job's heap, with what is known of each. Not thread-safe: inside the JobMachine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/job/job.h"

namespace iris::server {

// Finds room for a client's range or an area of irisd's own, and returns its offset.
// kResourceExhausted may be cured by growth: OffsetAllocator::ShortfallBytes says so. The
// allocation's name, if any, is not in use.
absl::StatusOr<uint64_t> Place(Job& job, HeapAllocation allocation);

// Where so many bytes of registered memory can lie: above the heap, also above what it is growing
// to, below other registered memory.
std::optional<uint64_t> RoomAboveHeap(const Job& job, uint64_t bytes);
// How far the heap may grow: up to the lowest registered memory, or to its stride.
uint64_t GrowthLimitBytes(const Job& job);
// Registered memory, whose pieces and bytes are known and counted, at an offset that is free for
// it.
void PlaceRegistered(Job& job, uint64_t offset_bytes, HeapAllocation allocation);

// Whether what begins there is memory that this team has registered.
bool RegisteredBy(const Job& job, TeamId team, uint64_t offset_bytes);

// Gives back what Place or PlaceRegistered placed, and its name.
absl::Status Unplace(Job& job, uint64_t offset_bytes);

// Keeps an allocation whose room is taken, and its name, if it has one that is not freed.
void Keep(Job& job, uint64_t offset_bytes, HeapAllocation allocation);
// Whether the team may not give `name` to an allocation: an allocation of several ranks has a name
// that nobody else has; of those of single ranks each rank's names are apart from the others'.
bool NameTaken(const Job& job, TeamId team, const std::string& name);
absl::Status NameTakenError(const std::string& name);
// Gives a name that is not taken to an allocation that has none.
void SetName(Job& job, uint64_t offset_bytes, const std::string& name);

// The owner gives its range back. What others have open stays theirs until they give it back too,
// and nobody can open it any more.
void FreeOwn(Job& job, uint64_t offset_bytes);
// A rank that has it open does not any more, `n` times.
void CloseOpened(Job& job, uint64_t offset_bytes, Rank rank, uint64_t n);
// The rank has left: it has nothing open any more.
void CloseAllOf(Job& job, Rank rank);

}  // namespace iris::server
