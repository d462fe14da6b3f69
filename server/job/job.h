// Job: the state of one job: its ranks, heap, teams and their operations. Its functions keep
// dependent fields consistent: ranges, names and counts of the heap; teams, slots and areas;
// outcomes and the bytes of their values. invariants.cc has the invariants. Not thread-safe: inside
// the JobMachine.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/heap/offset_allocator.h"
#include "server/job/effects.h"
#include "server/job/ids.h"
#include "server/job/operation_spec.h"
#include "server/job/results.h"
#include "server/job/states.h"
#include "server/job/tracked.h"

namespace iris::server {

// The most calls of a rank that wait at once. A retried call waits together with the first one;
// more calls are refused.
inline constexpr size_t kMaxWaitingCallsPerRank = 8;
// Outcomes kept per team, for retries and for ranks that ask late.
inline constexpr size_t kMaxOutcomesPerTeam = 64;
// Destroyed teams kept per job, so that a retried destroy finds its outcome.
inline constexpr size_t kMaxPastTeams = 16;
// Bytes of broadcast values that irisd holds for a job: of pending operations, or kept for retries.
inline constexpr uint64_t kMaxValueBytesPerJob = 64ull << 20;
// A team slot whose epochs have reached this number is not used again, because stale words could
// look like later epochs.
inline constexpr uint64_t kMaxSlotEpoch = 1ull << 31;

// A host barrier that a rank waits in and has reported (awaited_barriers.cc).
struct AwaitedBarrier {
  CallId call;
  TeamId team = kWorldTeam;
  uint32_t epoch = 0;
  std::vector<Rank> missing;  // when the rank looked
  bool only_thread = false;   // no other thread of the rank has used its context
  uint64_t entered = 0;       // the rank entered it at or before this moment of the job
  uint64_t looked = 0;        // the rank looked for `missing` after this moment; 0: unknown
};

struct Member {
  RankState state = RankState::kAbsent;
  Lease lease;
  uint32_t device_index = 0;
  bool prealloc = false;
  uint64_t base = 0;
  absl::Time joined;  // when its lease was granted
  // True if the rank's process was sent descriptors of the job's memory and has not ended: it may
  // have it mapped even after it left. Maintained only while users have a quota (KeptMemory).
  bool keeps_memory = false;
  CallId join_call;      // zero if none waits
  CallId answered_join;  // the call that was answered, once the job maps
  std::vector<CallId> mapped_calls;
  std::vector<SegmentId> segments;  // in order of growth
  std::vector<AwaitedBarrier> barriers;
};

// A rank that joined and left again before the job was complete.
struct GaveUp {
  int64_t pid = 0;
  absl::Time when;
  absl::Duration waited;
  bool timed_out = false;  // its timeout was over; else its call was cancelled, or failed
};

// A job whose ranks all gave up before it was complete, for the error of a rank that comes late.
struct AbandonedJob {
  uint32_t n_ranks = 0;
  absl::Time when;
  std::map<Rank, GaveUp> gave_up;
};
inline constexpr size_t kMaxAbandonedJobs = 64;
inline constexpr absl::Duration kAbandonedJobKept = absl::Minutes(10);

// A Join refused while its job formed. Kept for ranks that join later (Rendezvous::RefuseJob).
struct RefusedJoin {
  absl::Status told;      // the error that every other rank gets
  Rank rank = 0;          // the refused one; the first of its node if that is another one
  absl::Time when;        // processes that began later are of a new attempt
  absl::Time until;       // end of the refused rank's timeout
  std::set<Rank> untold;  // ranks that have not received the error
};
// If more Joins are refused, the oldest one is forgotten: its job's ranks then wait for the refused
// rank until they time out.
inline constexpr size_t kMaxRefusedJoins = 256;

// Memory that a rank registers, until the operation of its team has an outcome.
struct GivenMemory {
  uint64_t lead_bytes = 0;
  uint64_t bytes = 0;             // of all its allocations
  std::vector<SegmentId> pieces;  // none of a rank of another node
};

// An operation that some ranks of the team have asked for.
struct PendingOp {
  Watched<Operation> op;  // of the first rank, with arguments of the others merged in (Merge)
  size_t first = 0;       // that rank's index in the team
  absl::Time since;       // when the first rank asked, on the steady clock
  std::vector<bool> asked;
  std::vector<std::vector<CallId>> calls;  // waiting calls, per member
  std::vector<GivenMemory> given;          // per member; of a register operation of several ranks
  // Per rank: the job's moment at which the rank asked, if no other thread of the rank has used its
  // context; otherwise 0.
  std::vector<uint64_t> asked_alone;
  bool grown = false;  // the growth that the operation needed is published
  size_t hurried = 0;  // index of the rank whose timeout ends first
  absl::Duration hurried_timeout;

  bool AllAsked() const { return std::find(asked.begin(), asked.end(), false) == asked.end(); }
};

struct Team {
  TeamInfo info;
  std::vector<uint64_t> position;  // per member: the k of its next call
  uint64_t next_k = 0;             // of the pending operation, or of the next one
  std::optional<PendingOp> op;
  TrackedQueue<Outcome> history;  // consecutive k, up to next_k - 1
  size_t n_allocations = 0;       // the members' live allocations

  // Returns -1 if the rank is not in the team.
  int IndexOf(Rank rank) const {
    const auto found = std::find(info.ranks.begin(), info.ranks.end(), rank);
    return found == info.ranks.end() ? -1 : static_cast<int>(found - info.ranks.begin());
  }
  // Returns null if the outcome is not kept.
  const Outcome* FindOutcome(uint64_t k) const {
    if (history.empty() || k < history.front().k || k > history.back().k) return nullptr;
    return &history[k - history.front().k];
  }
  // Returns the ranks that have not asked for the pending operation.
  std::vector<Rank> Missing() const {
    std::vector<Rank> missing;
    for (size_t i = 0; i < info.ranks.size(); ++i) {
      if (!op->asked[i]) missing.push_back(info.ranks[i]);
    }
    return missing;
  }
};

// Holds a T that rarely changes from its default. Takes only a pointer's room until it changes.
template <typename T>
class Rare {
 public:
  Rare() = default;
  Rare(T value) : value_(std::make_unique<T>(std::move(value))) {}

  const T& operator*() const {
    static const T& unchanged = *new T;
    return value_ == nullptr ? unchanged : *value_;
  }
  const T* operator->() const { return &**this; }
  T& Change() {
    if (value_ == nullptr) value_ = std::make_unique<T>();
    return *value_;
  }

 private:
  std::unique_ptr<T> value_;
};

// Memory that ranks allocated themselves and registered. It lies above the heap.
struct RegisteredMemory {
  // For each rank of the team on this node, the consecutive allocations that contain its range.
  std::vector<SegmentId> pieces;
  uint64_t lead_bytes = 0;   // the most that a rank's first allocation has before the range
  uint64_t piece_bytes = 0;  // the size into which each rank's pieces fit; not 0
};

// AllocationLabel: the name, dtype and shape of an allocation, in one block of memory, since a job
// has up to a million allocations. Immutable and move-only.
class AllocationLabel {
 public:
  AllocationLabel() = default;  // no name, dtype or shape
  // The name and tensor are at most as long as CheckAllocationName and CheckTensor allow.
  AllocationLabel(absl::string_view name, const TensorInfo& tensor);

  // Views stay valid as long as the label's contents, even if the label is moved.
  absl::string_view name() const;
  TensorInfo tensor() const;

 private:
  // The block begins with three numbers: bytes of the name, bytes of the dtype, and dimensions.
  static constexpr size_t kHeadBytes = 3;
  size_t head(size_t i) const { return block_ == nullptr ? 0 : block_[i]; }

  std::unique_ptr<unsigned char[]> block_;
};

constexpr uint8_t Log2(uint64_t power) { return static_cast<uint8_t>(std::countr_zero(power)); }

// A range of the heap. A job has up to a million of these. An allocation with a usual name takes at
// most 300 bytes of irisd's memory, indexes included (allocation_bytes_test).
struct HeapAllocation {
  uint64_t bytes = 0;
  uint64_t k = 0;
  absl::Time created;
  AllocationLabel label;
  // For an allocation of a rank's own team: how often each other rank has it open. The range is
  // freed when neither the owner nor another rank uses it: see `freed`.
  Rare<std::map<Rank, uint64_t>> opens;
  Rare<RegisteredMemory> registered;
  TeamId team = kWorldTeam;
  uint8_t alignment_log2 = 0;
  bool sync = false;   // a team's barrier area, which no client can free
  bool freed = false;  // the owner freed it, and other ranks have it open

  uint64_t alignment_bytes() const { return uint64_t{1} << alignment_log2; }
  bool is_registered() const { return registered->piece_bytes != 0; }
};
using HeapAllocations = Tracked<std::map<uint64_t, HeapAllocation>>;  // by offset

// Orders allocations by name, then by the own team that allocated them. Allocations of several
// ranks count as the world team's.
struct ByName {
  using is_transparent = void;
  using Key = std::pair<absl::string_view, TeamId>;
  using Entry = const HeapAllocations::value_type*;
  static Key KeyOf(const Key& key) { return key; }
  static Key KeyOf(Entry entry) {
    const TeamId team = entry->second.team;
    return {entry->second.label.name(), IsOwnTeam(team) ? team : kWorldTeam};
  }
  template <typename A, typename B>
  bool operator()(const A& a, const B& b) const {
    return KeyOf(a) < KeyOf(b);
  }
};

// A growth under way. First every rank's segment is created, then every rank maps all of them.
struct Growth {
  GrowId id;
  GrowId leaders_id;         // if another node leads
  TeamId team = kWorldTeam;  // whose operation needs it
  uint64_t bytes = 0;        // per rank
  bool mapping = false;
  std::vector<SegmentId> segments;  // per rank; zeros of ranks that are not mapped here (yet)
  std::vector<bool> created;
  std::vector<bool> mapped;

  // Returns the ranks for which the present phase has not ended.
  std::vector<Rank> Missing() const {
    const std::vector<bool>& done = mapping ? mapped : created;
    std::vector<Rank> missing;
    for (Rank rank = 0; rank < done.size(); ++rank) {
      if (!done[rank]) missing.push_back(rank);
    }
    return missing;
  }
};

// The nodes of a job that spans several. One irisd, on the node of rank 0, leads: it decides the
// outcome of each operation. The others carry it out on their own copy of the job's state.
struct JobNodes {
  struct Node {
    using State = NodeState;
    State state = State::kConnected;
    uint32_t n_ranks = 0;  // 0: not known yet
    std::string name;      // of the host
    bool same_address = false;
    std::string lost_because;  // if it is lost
    // As of NodePart. The layout sets the first.
    bool with_previous = false;
    std::string fabric;
    uint32_t ranks_per_device = 0;
    // On the leader's node: of the memory that the node's ranks have made last, by rank, until all
    // have it (NodeJoined, GrowthCreated). Not stored.
    std::vector<std::string> handles;
  };
  NodeId own = 0;  // this node
  uint32_t n_local = 0;
  std::string rendezvous;
  std::string secret;
  uint64_t random = 0;  // of PortReady
  uint64_t epoch = 0;   // of the ports; 0 before there is a layout
  // Before there is a layout: this node, and the nodes that are connected to it.
  std::map<NodeId, Node> all;
  // What the port process may not have taken yet, with consecutive numbers up to `sent`.
  TrackedQueue<SendToNode> outbox;
  uint64_t sent = 0;
  uint64_t heard = 0;  // the number of the last message from the port process

  bool leads() const { return own == kLeader; }
  // Returns the node of a rank, or null if it is not known.
  const std::pair<const NodeId, Node>* NodeOf(Rank rank) const {
    const auto after = all.upper_bound(rank);
    if (after == all.begin()) return nullptr;
    const auto& found = *std::prev(after);
    return rank - found.first < found.second.n_ranks ? &found : nullptr;
  }
  static NodePart PartOf(NodeId id, const Node& node) {
    return {id, node.n_ranks, node.name, node.with_previous, node.fabric, node.ranks_per_device};
  }
  std::vector<NodePart> Parts() const {
    std::vector<NodePart> parts;
    for (const auto& [id, node] : all) parts.push_back(PartOf(id, node));
    return parts;
  }
  // On the leader's node: returns the handles of all ranks that those of the node map; none if
  // these are the node's own.
  std::vector<std::string> HandlesFor(NodeId node) const;
  // Returns the ranks, from the first one to the end, that those of a node map.
  std::pair<Rank, Rank> MappedBy(NodeId node) const {
    auto first = all.find(node);
    auto end = std::next(first);
    while (first->second.with_previous && first != all.begin()) --first;
    while (end != all.end() && end->second.with_previous) ++end;
    const auto& [last, has] = *std::prev(end);
    return {first->first, last + has.n_ranks};
  }
  // Returns true if the ranks of a node map those of others.
  bool MapsOthers(NodeId node) const {
    const auto [first, end] = MappedBy(node);
    return end - first != all.at(node).n_ranks;
  }
};

struct Job : JobHead {
  std::string broken_reason;
  uint64_t heap_bytes_initial = 0;
  uint64_t team_sync_bytes = 0;
  TrackedVector<Member> ranks;
  std::map<Rank, GaveUp> gave_up;  // while the job forms: the last of each rank
  std::optional<JobNodes> nodes;   // none: the job has one node

  OffsetAllocator allocator{0};  // since the epoch was committed
  HeapAllocations allocations;
  size_t n_pieces = 0;                // of registered memory, with what waits to be registered
  std::vector<SegmentId> given_back;  // unused pieces; none between two inputs
  // Finds an allocation that has a name and is not freed, by name. See CheckName.
  absl::btree_set<ByName::Entry, ByName> names;
  Tracked<std::map<TeamId, Team>> teams;  // includes every rank's own team
  Watched<std::deque<Team>> past_teams;
  TeamId next_team = 0;
  std::map<uint32_t, uint64_t> slot_epochs;  // where a slot's next team starts; absent: never used
  std::set<uint32_t> slots_in_use;
  uint64_t value_bytes = 0;  // of pending operations and kept outcomes
  // Counts the calls whose order matters to the search for stuck ranks (awaited_barriers.cc).
  uint64_t moment = 0;

  std::optional<Growth> growth;
  std::deque<TeamId> growth_queue;  // teams whose operation waits for a later growth
  GrowDone last_growth;
  // The last growth that was published. Every rank has mapped it, so none missed an earlier one.
  GrowId last_published;

  uint32_t n_ranks() const { return static_cast<uint32_t>(ranks.size()); }
  // The ranks of this node. Only they have leases, memory and control pages here.
  Rank first_local() const { return nodes.has_value() ? nodes->own : 0; }
  Rank end_local() const { return nodes.has_value() ? nodes->own + nodes->n_local : n_ranks(); }
  bool IsLocal(Rank rank) const { return rank >= first_local() && rank < end_local(); }
  // The ranks whose memory those of this node map: of this node, and of others that share its
  // fabric domain.
  Rank first_mapped() const { return nodes.has_value() ? nodes->MappedBy(nodes->own).first : 0; }
  Rank end_mapped() const {
    return nodes.has_value() ? nodes->MappedBy(nodes->own).second : n_ranks();
  }
  bool IsMapped(Rank rank) const { return rank >= first_mapped() && rank < end_mapped(); }
  // Returns true if this irisd decides outcomes: it leads, or the job is broken.
  bool Decides() const {
    return !nodes.has_value() || nodes->leads() || state == JobState::kBroken;
  }
  // On a node that follows, values of its ranks wait for the leader while decided ones arrive.
  uint64_t MaxValueBytes() const {
    return (nodes.has_value() && !nodes->leads() ? 2 : 1) * kMaxValueBytesPerJob;
  }
  // The descriptors of its pages: the status page and, for each rank of this node, a control page
  // and, if there are other nodes, the memory of its port and what wakes that. Then there are two
  // of the port process, too.
  uint32_t n_pages() const {
    const uint32_t n_local = end_local() - first_local();
    return nodes.has_value() ? 3 + 3 * n_local : 1 + n_local;
  }
  // Excludes the ranks' own teams.
  size_t n_teams() const;
  // Returns the team, or null if there is none. A rank of another node has its own team here only
  // from its first operation on.
  Team* TeamOfNodes(TeamId team);
  // Counts the ranks that a process holds.
  size_t n_held() const {
    return std::count_if(ranks.begin(), ranks.end(), [](const Member& m) { return m.lease.held; });
  }
  // Returns true until every rank has mapped the memory of all other ranks.
  bool is_starting() const { return state == JobState::kForming || state == JobState::kMapping; }
  // Returns for example "rank 2 (pid 4711)", or "rank 2 (pid 4711 on node host-b)".
  std::string Who(Rank rank) const;
  std::vector<std::string> Who(const std::vector<Rank>& several) const;

  // Finds room for a client's range or an area of irisd's own, and returns its offset. Growth may
  // cure kResourceExhausted: see OffsetAllocator::ShortfallBytes. The allocation's name, if any,
  // must not be in use.
  absl::StatusOr<uint64_t> Place(HeapAllocation allocation);
  // Adds an allocation whose range is reserved: in the heap, or above it if it is registered
  // memory. The pieces of registered memory are counted.
  void Keep(uint64_t offset_bytes, HeapAllocation allocation);
  // Reverts Keep: frees the range and its name.
  void Unplace(uint64_t offset_bytes);

  // Returns the size of the heap, with a growth under way.
  uint64_t HeapEndBytes() const {
    return heap_bytes + (growth.has_value() ? growth->bytes : uint64_t{0});
  }
  // Returns an offset at which `bytes` bytes of registered memory fit: above the heap and above a
  // growth under way, below other registered memory.
  std::optional<uint64_t> RoomAboveHeap(uint64_t bytes) const;
  // Returns how far the heap may grow: up to the lowest registered memory, or to its stride.
  uint64_t GrowthLimitBytes() const;
  // Returns true if the allocation at the offset is memory that the team has registered.
  bool RegisteredBy(TeamId team, uint64_t offset_bytes) const;

  // Returns kAlreadyExists if `team` may not use the name `wanted` for an allocation. The name of
  // an allocation of several ranks is unique in the job; different ranks may use one name for
  // allocations of their own.
  absl::Status CheckName(TeamId team, const std::string& wanted) const;
  // Names an allocation that has no name. The name must not be in use.
  void SetName(uint64_t offset_bytes, const std::string& wanted);

  // Frees a range on behalf of its owner. Ranks that have the range open keep it until they close
  // it, and no rank can open it any more.
  void FreeOwn(uint64_t offset_bytes);
  // Closes, `n` times, a range that the rank has open.
  void CloseOpened(uint64_t offset_bytes, Rank rank, uint64_t n);
  // Closes everything that a rank has open, after the rank left.
  void CloseAllOf(Rank rank);

  // Returns a barrier slot that no team uses, and that is not worn out, if there is one.
  std::optional<uint32_t> FreeSlot() const;
  // Makes the job's next team, with a free slot. An error leaves the job unchanged: there is no
  // room for the team's area (see Place).
  absl::StatusOr<TeamInfo> MakeTeam(const std::vector<Rank>& members, uint32_t slot,
                                    absl::Time wall);
  // Removes the team that MakeTeam made last, before any rank knows of it.
  void UnmakeLastTeam();
  // Frees the barrier slot and the area of a team that ends.
  void GiveBackSlotAndArea(const TeamInfo& team);
  // Ends a team after its last operation. Ranks can still ask for the outcome of that operation.
  void EndTeam(Team& team);
  // Returns an error if no operation of this team can succeed any more.
  absl::Status CheckAlive(const Team& team) const;

  void AddOutcome(Team& team, Outcome outcome);
  // Forgets outcomes beyond the limit, and values that every rank has asked for.
  void TrimHistory(Team& team);

  // Starts an epoch of the job, the first one or a later one, after every rank has mapped every
  // heap. The caller sets the ranks' states, and writes them to the status page. A new counter of a
  // job gets a line here:
  //
  //   state                         at a new epoch
  //   number of the epoch           carried over: the ranks have mapped under it already
  //   ranges of the heap            carried over, with names and contents: nothing that is
  //                                 mapped moves. The first epoch begins with an empty heap.
  //   teams: ids, ranks, areas      carried over. The first epoch makes the world's, and the own
  //                                 team of every rank. Ids are never used again within a job.
  //   open allocations              carried over: nothing that is mapped moves
  //   a team's k                    carried over: the next operation has the next number
  //   a rank's k                    the team's: a call of an earlier epoch is not retried
  //   outcomes and values kept      forgotten, and so are destroyed teams: nobody can retry them
  //   where a barrier starts        at 0 for every team, and no slot is worn out: the epoch has
  //                                 control pages of its own (CreatePages), whose words are 0
  //   areas of device barriers      carried over with the heap. Their words are of no use once a
  //                                 kernel was cut off in a barrier: each member clears its own
  //                                 before its first barrier of the epoch, as after create_team.
  //   abort word, ranks' states     as in the epoch's own status page: no abort, every rank ready
  //   the job's moment              carried over: it only grows
  //   why the job was broken        forgotten
  //   the growth announced last     forgotten: its segments are of the heap that was mapped
  //   an operation or growth        none may be under way: they were concluded when the epoch
  //   under way                     before this one ended
  void NewEpoch(absl::Time wall);

 private:
  void ForgetOldest(Team& team);
};

}  // namespace iris::server
