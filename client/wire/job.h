// Jobs and teams as irisd describes them, in plain values. Only convert.h makes them from messages.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "proto/wire/frame.h"
#include "proto/wire/pages.h"

namespace iris::internal {

// The key of one descriptor that irisd sends over the session socket.
struct DescriptorKey {
  wire::DescriptorKind kind = wire::DescriptorKind::kSegment;
  uint64_t job_id = 0;
  uint64_t epoch = 0;
  uint32_t rank = 0;        // kLink: index of the device; 0 for other kinds but kControlPage
  uint64_t segment_id = 0;  // 0 unless kind is kSegment
  friend bool operator<(const DescriptorKey& a, const DescriptorKey& b) {
    return std::tie(a.kind, a.job_id, a.epoch, a.rank, a.segment_id) <
           std::tie(b.kind, b.job_id, b.epoch, b.rank, b.segment_id);
  }
};

// One physical allocation: the unit of export and of mapping.
struct Segment {
  uint64_t segment_id = 0;
  uint32_t rank = 0;          // that has it in its heap
  uint64_t offset_bytes = 0;  // of its start in that heap
  uint64_t bytes = 0;
};

inline std::vector<DescriptorKey> KeysOf(uint64_t job_id, uint64_t epoch,
                                         const std::vector<Segment>& segments) {
  std::vector<DescriptorKey> keys;
  for (const Segment& segment : segments) {
    keys.push_back({wire::DescriptorKind::kSegment, job_id, epoch, 0, segment.segment_id});
  }
  return keys;
}

struct Peer {
  int64_t pid = 0;
  std::string device_uuid;
  uint32_t device_index = 0;  // irisd's number of the device
};

// A node of a job that spans several.
struct Node {
  uint32_t first_rank = 0;
  uint32_t n_ranks = 0;
  std::string name;               // of the host
  bool with_previous = false;     // its ranks and those of the node before it map each other
  uint32_t ranks_per_device = 0;  // on its device that most of its ranks share
};

// A rank's identity, with which a new session resumes the rank.
struct RankIdentity {
  uint64_t job_id = 0;
  uint64_t epoch = 0;
  std::string job;
  uint32_t rank = 0;
};

// Answer of Join, once every rank has joined: the memory to map.
struct JoinedJob {
  uint64_t job_id = 0;
  uint64_t epoch = 0;
  uint64_t proposed_base = 0;
  uint64_t stride_bytes = 0;
  uint64_t heap_bytes = 0;        // rounded up to the granularity
  std::vector<Segment> segments;  // of all ranks that this node's ranks map
  std::vector<Peer> peers;        // one a rank of this node, in order
  std::string backend;            // of this rank's device
  std::string device_uuid;        // the same
  uint32_t device_index = 0;      // the same
  absl::Duration map_timeout;     // Mapped must be called within this time
  // If not 0, irisd also sends a link (device_warmup.h) to every device of the job.
  uint64_t link_bytes = 0;
  absl::Duration create;      // irisd: to create this rank's memory
  absl::Duration export_fds;  // irisd: to make descriptors of it
  std::vector<Node> nodes;    // by first rank; none if all ranks are on this node
  uint32_t first_local = 0;   // first rank of this node
};

struct TeamInfo {
  uint32_t team_id = 0;              // 0 is the world
  std::vector<uint32_t> ranks;       // world ranks, in team order
  uint32_t barrier_slot = 0;         // index of the team's epoch word in every control page
  uint32_t barrier_start_epoch = 0;  // members' words count from here
  uint64_t sync_offset_bytes = 0;    // the team's area for device barriers
};

// Answer of Mapped, once every rank has mapped and the epoch is committed.
struct CommittedJob {
  bool same_address = false;
  TeamInfo world;
};

struct RankChange {
  uint32_t rank = 0;
  wire::PageRankState state = wire::PageRankState::kUnspecified;
  int64_t pid = 0;
  std::string reason;
};

// A part of a rank's heap that a rank borrows.
struct HeapPart {
  std::string job;
  uint32_t rank = 0;
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;
};

// Answer of Borrow: the memory. The descriptors come separately.
struct Borrowed {
  uint64_t job_id = 0;
  uint64_t epoch = 0;
  std::vector<Segment> segments;
};

// First phase of a growth of the heap: the rank maps these segments and reports it.
struct SegmentsAdded {
  uint64_t grow_id = 0;
  std::vector<Segment> segments;  // of all ranks that this node's ranks map
  uint64_t heap_bytes = 0;        // once published
  absl::Duration timeout;
};

// Second phase of a growth.
struct GrowDone {
  uint64_t grow_id = 0;
  bool published = false;  // false: the segments are to be unmapped again
  std::string reason;
};

struct Stopping {
  std::string reason;
};

// One event of the watch stream; monostate: an event that ranks ignore.
using WatchEvent = std::variant<std::monostate, RankChange, SegmentsAdded, GrowDone, Stopping>;

}  // namespace iris::internal
