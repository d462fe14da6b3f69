#include "server/job/job.h"

#include <cstring>

#include "proto/wire/limits.h"
#include "server/heap/check.h"
#include "server/job/text.h"

namespace iris::server {
namespace {

bool IsNamed(const HeapAllocation& allocation) {
  return !allocation.label.name().empty() && !allocation.freed;
}

void CarryOver(Team& team) {
  IRIS_CHECK(!team.op.has_value(), "no operation is under way between two epochs");
  std::fill(team.position.begin(), team.position.end(), team.next_k);
  team.history.clear();
  team.info.barrier_start_epoch = 0;
}

}  // namespace

AllocationLabel::AllocationLabel(absl::string_view name, const TensorInfo& tensor) {
  static_assert(wire::kMaxAllocationNameBytes < 256 && wire::kMaxDtypeBytes < 256 &&
                wire::kMaxDims < 256);
  const size_t parts[kHeadBytes] = {name.size(), tensor.dtype.size(), tensor.shape.size()};
  if (parts[0] + parts[1] + parts[2] == 0) return;
  IRIS_CHECK(parts[0] <= wire::kMaxAllocationNameBytes && parts[1] <= wire::kMaxDtypeBytes &&
                 parts[2] <= wire::kMaxDims,
             "the label of an allocation has been checked");
  const size_t shape_bytes = parts[2] * sizeof(uint64_t);
  block_.reset(new unsigned char[kHeadBytes + parts[0] + parts[1] + shape_bytes]);
  unsigned char* to = block_.get();
  for (const size_t part : parts) *to++ = static_cast<unsigned char>(part);
  to = std::copy(name.begin(), name.end(), to);
  to = std::copy(tensor.dtype.begin(), tensor.dtype.end(), to);
  if (shape_bytes != 0) memcpy(to, tensor.shape.data(), shape_bytes);
}

absl::string_view AllocationLabel::name() const {
  if (block_ == nullptr) return {};
  return {reinterpret_cast<const char*>(block_.get()) + kHeadBytes, head(0)};
}

TensorInfo AllocationLabel::tensor() const {
  TensorInfo tensor;
  if (block_ == nullptr) return tensor;
  const unsigned char* const dtype = block_.get() + kHeadBytes + head(0);
  tensor.dtype.assign(dtype, dtype + head(1));
  tensor.shape.resize(head(2));
  if (head(2) != 0) memcpy(tensor.shape.data(), dtype + head(1), head(2) * sizeof(uint64_t));
  return tensor;
}

std::string Job::Who(Rank rank) const {
  const int64_t pid = ranks[rank].lease.process.pid;
  std::string who = absl::StrCat("rank ", rank, " (");
  if (IsLocal(rank)) return absl::StrCat(who, "pid ", pid, ")");
  const auto* const found = nodes->NodeOf(rank);
  if (pid != 0) absl::StrAppend(&who, "pid ", pid, " ");
  return absl::StrCat(who, found == nullptr ? "on another node" : "on node ",
                      found == nullptr ? "" : found->second.name, ")");
}

std::vector<std::string> Job::Who(const std::vector<Rank>& several) const {
  std::vector<std::string> all;
  for (const Rank rank : several) all.push_back(Who(rank));
  return all;
}

std::vector<std::string> JobNodes::HandlesFor(NodeId node) const {
  std::vector<std::string> handles;
  if (!MapsOthers(node)) return handles;
  const auto [first, end] = MappedBy(node);
  for (auto each = all.find(first); each != all.end() && each->first < end; ++each) {
    handles.insert(handles.end(), each->second.handles.begin(), each->second.handles.end());
  }
  return handles;
}

size_t Job::n_teams() const {
  size_t n = 0;
  for (auto each = teams.begin(); each != teams.end() && !IsOwnTeam(each->first); ++each) ++n;
  return n;
}

Team* Job::TeamOfNodes(TeamId team) {
  const bool lacks = IsOwnTeam(team) && OwnerOf(team) < n_ranks() && !IsLocal(OwnerOf(team)) &&
                     !teams.contains(team);
  if (lacks) {
    Team own{.info = {.id = team, .ranks = {OwnerOf(team)}}, .position = {0}};
    teams.emplace(team, std::move(own));
  }
  return teams.Find(team);
}

absl::StatusOr<uint64_t> Job::Place(HeapAllocation allocation) {
  if (allocations.size() >= wire::kMaxAllocationsPerJob) {
    return Error(Code::kResourceExhausted, "job '", name, "' has ", allocations.size(),
                 " live allocations, the limit: free some");
  }
  const auto offset = allocator.Allocate(allocation.bytes, allocation.alignment_bytes());
  if (offset.ok()) Keep(*offset, std::move(allocation));
  return offset;
}

void Job::Keep(uint64_t offset_bytes, HeapAllocation allocation) {
  const auto [entry, placed] = allocations.emplace(offset_bytes, std::move(allocation));
  IRIS_CHECK(placed, "there was room");
  if (IsNamed(entry->second)) names.insert(&*entry);
  if (entry->second.sync) return;
  if (Team* const team = teams.Find(entry->second.team); team != nullptr) ++team->n_allocations;
}

void Job::Unplace(uint64_t offset_bytes) {
  const auto found = allocations.find(offset_bytes);
  IRIS_CHECK(found != allocations.end(), "what is given back was placed");
  const std::vector<SegmentId> pieces = found->second.registered->pieces;
  const bool registered = found->second.is_registered();
  if (IsNamed(found->second)) names.erase(&*found);
  if (!found->second.sync) --teams.at(found->second.team).n_allocations;
  allocations.erase(offset_bytes);
  if (!registered) {
    const absl::Status freed = allocator.Free(offset_bytes);
    IRIS_CHECK(freed.ok(), "the allocator knows every live allocation");
  }
  n_pieces -= pieces.size();
  given_back.insert(given_back.end(), pieces.begin(), pieces.end());
}

std::optional<uint64_t> Job::RoomAboveHeap(uint64_t bytes) const {
  // Allocated from the top downwards, so that the heap can grow as long as possible.
  const uint64_t floor = HeapEndBytes();
  uint64_t end = stride_bytes;
  for (auto next = allocations.rbegin(); next != allocations.rend(); ++next) {
    const HeapAllocation& other = next->second;
    if (!other.is_registered()) break;  // this one and all further ones belong to the heap
    const uint64_t start = next->first - other.registered->lead_bytes;
    if (end - (start + other.registered->piece_bytes) >= bytes) return end - bytes;
    end = start;
  }
  if (end < floor || end - floor < bytes) return std::nullopt;
  return end - bytes;
}

uint64_t Job::GrowthLimitBytes() const {
  uint64_t limit = stride_bytes;
  for (auto next = allocations.rbegin(); next != allocations.rend(); ++next) {
    if (!next->second.is_registered()) break;
    limit = next->first - next->second.registered->lead_bytes;
  }
  return limit;
}

bool Job::RegisteredBy(TeamId team, uint64_t offset_bytes) const {
  const HeapAllocation* const found = allocations.Find(offset_bytes);
  return found != nullptr && found->team == team && found->is_registered();
}

absl::Status Job::CheckName(TeamId team, const std::string& wanted) const {
  if (wanted.empty()) return absl::OkStatus();
  const auto first = names.lower_bound(ByName::Key(wanted, kWorldTeam));
  const bool taken = IsOwnTeam(team)
                         ? names.contains(ByName::Key(wanted, kWorldTeam)) ||
                               names.contains(ByName::Key(wanted, team))
                         : first != names.end() && (*first)->second.label.name() == wanted;
  if (!taken) return absl::OkStatus();
  return Error(Code::kAlreadyExists, "an allocation named '", wanted,
               "' is live: free it or choose another name");
}

void Job::SetName(uint64_t offset_bytes, const std::string& wanted) {
  HeapAllocation* const allocation = allocations.Find(offset_bytes);
  IRIS_CHECK(allocation != nullptr && allocation->label.name().empty(),
             "an allocation has one name");
  allocation->label = AllocationLabel(wanted, allocation->label.tensor());
  names.insert(&*allocations.find(offset_bytes));
}

void Job::FreeOwn(uint64_t offset_bytes) {
  const auto entry = allocations.find(offset_bytes);
  IRIS_CHECK(entry != allocations.end() && IsOwnTeam(entry->second.team) && !entry->second.freed,
             "it is its owner's to free");
  if (entry->second.opens->empty()) return Unplace(offset_bytes);
  if (IsNamed(entry->second)) names.erase(&*entry);
  allocations.at(offset_bytes).freed = true;
}

void Job::CloseOpened(uint64_t offset_bytes, Rank rank, uint64_t n) {
  HeapAllocation& allocation = allocations.at(offset_bytes);
  std::map<Rank, uint64_t>& opens = allocation.opens.Change();
  const auto open = opens.find(rank);
  IRIS_CHECK(open != opens.end() && open->second >= n, "who closes has it open");
  open->second -= n;
  if (open->second == 0) opens.erase(open);
  if (allocation.freed && opens.empty()) Unplace(offset_bytes);
}

void Job::CloseAllOf(Rank rank) {
  for (auto next = allocations.begin(); next != allocations.end();) {
    const auto here = next++;
    const auto open = here->second.opens->find(rank);
    if (open != here->second.opens->end()) CloseOpened(here->first, rank, open->second);
  }
}

std::optional<uint32_t> Job::FreeSlot() const {
  for (uint32_t slot = 0; slot < wire::kMaxTeamsPerJob; ++slot) {
    const auto used = slot_epochs.find(slot);
    const bool worn_out = used != slot_epochs.end() && used->second >= kMaxSlotEpoch;
    if (!worn_out && !slots_in_use.contains(slot)) return slot;
  }
  return std::nullopt;
}

absl::StatusOr<TeamInfo> Job::MakeTeam(const std::vector<Rank>& members, uint32_t slot,
                                       absl::Time wall) {
  const auto used = slot_epochs.find(slot);
  Team team;
  team.info = {.id = next_team, .ranks = members, .barrier_slot = slot};
  if (used != slot_epochs.end()) {
    team.info.barrier_start_epoch = static_cast<uint32_t>(used->second);
  }
  team.position.resize(members.size());
  if (team_sync_bytes > 0) {
    const auto offset = Place({.bytes = team_sync_bytes,
                               .created = wall,
                               .label = AllocationLabel(absl::StrCat("iris.sync.", next_team), {}),
                               .team = next_team,
                               .alignment_log2 = Log2(wire::kMinAlignmentBytes),
                               .sync = true});
    if (!offset.ok()) return offset.status();
    team.info.sync_offset_bytes = *offset;
  }
  slots_in_use.insert(slot);
  return teams.emplace(next_team++, std::move(team)).first->second.info;
}

void Job::UnmakeLastTeam() {
  GiveBackSlotAndArea(teams.at(--next_team).info);
  teams.erase(next_team);
}

void Job::GiveBackSlotAndArea(const TeamInfo& team) {
  slots_in_use.erase(team.barrier_slot);
  if (team_sync_bytes > 0) Unplace(team.sync_offset_bytes);
}

void Job::EndTeam(Team& team) {
  while (team.history.size() > 1) ForgetOldest(team);
  const TeamId ended = team.info.id;
  std::deque<Team>& past = past_teams.Change();
  past.push_back(std::move(team));
  teams.erase(ended);
  if (past.size() > kMaxPastTeams) past.pop_front();
}

absl::Status Job::CheckAlive(const Team& team) const {
  if (state == JobState::kBroken) {
    return Error(Code::kAborted, "job '", name, "' is broken: ", broken_reason);
  }
  for (const Rank rank : team.info.ranks) {
    const RankState now = ranks[rank].state;
    if (now == RankState::kReady) continue;
    return Error(Code::kAborted, TeamText(team.info.id), " of job '", name, "': ", Who(rank), " ",
                 now == RankState::kLeft     ? "has left the job"
                 : now == RankState::kEnding ? kHungUp
                                             : "died");
  }
  return absl::OkStatus();
}

void Job::AddOutcome(Team& team, Outcome outcome) {
  value_bytes += outcome.result.value.size();
  team.history.push_back(std::move(outcome));
}

void Job::ForgetOldest(Team& team) {
  value_bytes -= team.history.front().result.value.size();
  team.history.pop_front();
}

void Job::TrimHistory(Team& team) {
  // A node that follows does not hear what ranks of other nodes have asked for.
  const bool hears_all = !nodes.has_value() || nodes->leads();
  uint64_t slowest = team.next_k + 1;
  for (size_t i = 0; i < team.position.size(); ++i) {
    if (hears_all || IsLocal(team.info.ranks[i])) slowest = std::min(slowest, team.position[i]);
  }
  size_t n_forget =
      team.history.size() > kMaxOutcomesPerTeam ? team.history.size() - kMaxOutcomesPerTeam : 0;
  // A value is large, and useless once every rank has asked for the next operation.
  for (size_t i = n_forget; i < team.history.size(); ++i) {
    const Outcome& outcome = team.history[i];
    if (outcome.k + 1 < slowest && !outcome.result.value.empty()) n_forget = i + 1;
  }
  for (; n_forget > 0; --n_forget) ForgetOldest(team);
}

void Job::NewEpoch(absl::Time wall) {
  IRIS_CHECK(!growth.has_value() && growth_queue.empty(),
             "no growth is under way between two epochs");
  slot_epochs.clear();
  past_teams.Change().clear();
  value_bytes = 0;
  last_growth = GrowDone();
  last_published = GrowId();
  if (teams.empty()) {
    allocator = OffsetAllocator(heap_bytes);
    std::vector<Rank> everyone(n_ranks());
    for (Rank rank = 0; rank < n_ranks(); ++rank) everyone[rank] = rank;
    IRIS_CHECK(MakeTeam(everyone, 0, wall).ok(), "an empty heap holds the world's barrier area");
    for (Rank rank = first_local(); rank < end_local(); ++rank) {
      Team own{.info = {.id = OwnTeam(rank), .ranks = {rank}}, .position = {0}};
      teams.emplace(OwnTeam(rank), std::move(own));
    }
  } else {
    for (const auto& [team_id, team] : teams) CarryOver(teams.at(team_id));
  }
  same_address = std::all_of(ranks.begin(), ranks.end(), [](const Member& member) {
    return member.base == wire::kProposedBase;
  });
  broken_reason.clear();
  state = JobState::kReady;
}

}  // namespace iris::server
