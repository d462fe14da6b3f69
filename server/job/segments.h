// Segments: the physical memory of the jobs. It books memory in the ledger and against the quota,
// counts descriptors, and orders the creation and the drop of segments.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/heap/ledger.h"
#include "server/job/kept_memory.h"
#include "server/job/registry.h"
#include "server/job/tracked.h"

namespace iris::server {

// Returns the value of a key, or 0 if there is none.
template <typename Map>
uint64_t ValueOf(const Map& map, const typename Map::key_type& key) {
  const auto found = map.find(key);
  return found == map.end() ? 0 : found->second;
}

struct Segments : Registry {
  using Segment = server::Segment;

  Segments(const JobLimits& limits, Ledger ledger);

  // Returns an error if irisd may not hold `n` more descriptors of segments and pages for the user.
  absl::Status CheckDescriptors(uint64_t n, const Party& party) const;
  // Adds `change` to the number of the user's descriptors.
  void CountDescriptors(const Party& party, int64_t change);
  // Counts a segment in the ledger and in the quota. On kResourceExhausted nothing is booked.
  absl::Status Book(uint32_t device_index, uint64_t bytes, const Ledger::Holder& holder);
  void Unbook(uint32_t device_index, uint64_t bytes, const Ledger::Holder& holder);
  // Books nothing. Returns kResourceExhausted if Book would fail even after all segments that are
  // being dropped are gone. Another call may take the room first.
  absl::Status CheckMemory(uint32_t device_index, uint64_t bytes, const Ledger::Holder& holder);

  // Adds a segment of the rank, which is booked, but not created yet.
  Segment& NewSegment(const Job& job, Rank rank, uint32_t index, uint64_t bytes);
  // Starts the creation of a booked segment.
  SegmentId CreateBooked(const Job& job, Rank rank, uint64_t offset_bytes, uint64_t bytes);
  // Adds a segment of a rank of another node, which clients here import.
  SegmentId Import(const Job& job, Rank rank, uint64_t offset_bytes, uint64_t bytes,
                   const std::string& fabric);
  // Creates the segment of a rank in Join, after CheckMemory: now, or once memory is freed.
  void CreateFirstSegment(Job& job, Rank rank);
  // Forgets a segment that could not be created, or was dropped, and takes it off its account.
  Segment Forget(SegmentId segment);
  void Drop(SegmentId segment);
  // Drops those of the segments that still exist.
  void DropAll(const std::vector<SegmentId>& segments);

  // Keeps on the user's account, while a process of the job lives, the `bytes` of its segments that
  // were sent to its ranks and are about to be dropped.
  void KeepAccountOf(const Job& job, uint64_t bytes);
  // Returns true if a session without a rank must be kept: only through it irisd detects the end of
  // its process, which may have memory mapped.
  bool WatchesKeeper(const Session& session) const;
  // Notes that a process, and with it its mappings, has ended.
  void ForgetKeeper(const CallerInfo& process);

  std::vector<SegmentInfo> InfosOf(const std::vector<SegmentId>& segments) const;
  // Those that clients map, and those of them that are of this node.
  std::vector<SegmentInfo> SegmentsOf(const Job& job) const;
  std::vector<SegmentInfo> OwnSegmentsOf(const Job& job) const;
  // Returns the handles of segments of this node's ranks, by rank; none if one has none.
  std::vector<std::string> OwnHandles(const std::vector<SegmentInfo>& segments) const;

  Ledger ledger_;
  bool driver_free_changed_ = false;                  // for a device of the ledger, by this input
  uint64_t n_descriptors_ = 0;                        // of segments and pages, of every job
  std::map<Party, uint64_t> descriptors_by_account_;  // no zeros
  uint64_t granularity_bytes_ = 0;                    // of every device's memory
  std::map<Party, uint64_t> booked_bytes_by_account_;
  std::map<Party, uint64_t> dropping_bytes_by_account_;
  std::map<uint32_t, uint64_t> dropping_bytes_by_device_;
  Watched<KeptMemory> kept_;                  // empty unless users have a quota
  std::set<std::pair<JobId, Rank>> starved_;  // ranks in Join that wait for memory being dropped
  Tracked<std::map<SegmentId, Segment>> segments_;  // not a hash table, which never shrinks
  uint64_t next_segment_ = 1;
};

}  // namespace iris::server
