#include "server/rpc/waits.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace iris::server {
namespace {

using v1::WaitPlace;

constexpr int64_t kAheadMs = 60'000;

v1::WaitKind KindOf(PendingSnapshot::Kind kind) {
  static constexpr v1::WaitKind kKinds[] = {v1::WAIT_KIND_JOIN, v1::WAIT_KIND_MAP,
                                            v1::WAIT_KIND_OPERATION, v1::WAIT_KIND_GROWTH};
  return kKinds[static_cast<size_t>(kind)];
}

// Returns the epoch at which the ranks of a node meet in a barrier, from a rank's word. A barrier
// of several nodes has two epochs: the second one lets the ranks go, once all nodes have met.
uint32_t ArrivalOf(const TeamInfo& team, bool several_nodes, uint32_t word) {
  const uint32_t n = word - team.barrier_start_epoch;
  return several_nodes && n != 0 ? team.barrier_start_epoch + ((n - 1) | 1) : word;
}

}  // namespace

v1::Wait NewWait(const WaitSources& from, v1::WaitKind kind, uint32_t team, size_t n_members) {
  v1::Wait wait;
  wait.set_job_id(from.job.id.value);
  wait.set_job(from.job.name);
  wait.set_uid(from.job.party.uid);
  wait.set_kind(kind);
  wait.set_team_id(team);
  wait.set_n_members(static_cast<uint32_t>(n_members));
  if (from.job.leader.has_value()) wait.set_leader(*from.job.leader);
  return wait;
}

void AddMember(const WaitSources& from, Rank rank, WaitPlace place,
               google::protobuf::RepeatedPtrField<v1::WaitMember>* members) {
  v1::WaitMember* const member = members->Add();
  member->set_rank(rank);
  member->set_place(place);
  member->set_stopped(IsStopped(from, rank));
  if (rank >= from.job.ranks.size()) return;
  member->set_pid(from.job.ranks[rank].pid);
  const RankSnapshot& shot = from.job.ranks[rank];
  if (!shot.node.has_value()) return;
  member->set_node(*shot.node);
  if (shot.node_rank.has_value()) member->set_node_rank(*shot.node_rank);
  // Ranks of other nodes ask the leader.
  if (from.job.leader.has_value()) member->set_place(v1::WAIT_PLACE_UNSPECIFIED);
}

void AddOtherNodes(const WaitSources& from, const TeamInfo& team, v1::Wait* wait) {
  for (const Rank rank : team.ranks) {
    if (rank - from.job.first_local < from.job.n_local) continue;
    AddMember(from, rank, v1::WAIT_PLACE_UNSPECIFIED, wait->mutable_missing());
  }
}

bool IsStopped(const WaitSources& from, Rank rank) {
  const bool local = rank - from.job.first_local < from.job.n_local;
  const int64_t pid = local && rank < from.job.ranks.size() ? from.job.ranks[rank].pid : 0;
  return pid > 0 && from.is_stopped(pid);
}

const wire::ControlPage* PageOf(const WaitSources& from, Rank rank) {
  const Rank local = rank - from.job.first_local;
  return local < from.pages.size() ? &from.pages[local] : nullptr;
}

bool IsHere(const WaitSources& from, Rank rank) {
  return rank < from.job.ranks.size() && from.job.ranks[rank].state == RankState::kReady;
}

int64_t AgeOfPageTime(uint32_t page_ms, absl::Time now) {
  if (page_ms == 0) return -1;
  const uint32_t age = static_cast<uint32_t>(absl::ToUnixMillis(now)) - page_ms;
  if (static_cast<int64_t>(uint32_t{0} - age) <= kAheadMs) return 0;
  return age;
}

std::vector<FoundWait> FindPendingOperations(const WaitSources& from) {
  std::vector<FoundWait> found;
  for (const PendingSnapshot& pending : from.waits.pending) {
    v1::Wait wait = NewWait(from, KindOf(pending.kind), pending.team, pending.n_members);
    wait.set_call(pending.call);
    wait.set_number(pending.k);
    wait.set_waited_ms(std::max<int64_t>(0, absl::ToInt64Milliseconds(from.now - pending.since)));
    for (const Rank rank : pending.waiting) {
      AddMember(from, rank, v1::WAIT_PLACE_INSIDE, wait.mutable_waiting());
    }
    for (const Rank rank : pending.missing) {
      const bool called = pending.kind == PendingSnapshot::Kind::kGrowth;
      AddMember(from, rank, called ? v1::WAIT_PLACE_INSIDE : v1::WAIT_PLACE_NOT_COME,
                wait.mutable_missing());
    }
    const bool of_team = pending.kind == PendingSnapshot::Kind::kOperation ||
                         pending.kind == PendingSnapshot::Kind::kGrowth;
    found.push_back(
        {of_team ? MakeWaitKey(WaitKey::kOperation, pending.team) : MakeWaitKey(WaitKey::kJob, 0),
         std::move(wait)});
  }
  return found;
}

std::vector<FoundWait> FindHostBarriers(const WaitSources& from) {
  std::vector<FoundWait> found;
  if (from.pages.empty()) return found;
  for (const TeamInfo& team : from.waits.teams) {
    const uint32_t slot = team.barrier_slot % wire::kMaxTeamsPerJob;
    const bool several_nodes = std::any_of(team.ranks.begin(), team.ranks.end(), [&](Rank rank) {
      return PageOf(from, rank) == nullptr;
    });
    const auto arrival = [&](const wire::ControlPage& page) {
      return ArrivalOf(team, several_nodes, page.words[slot]);
    };
    // Uses the latest barrier that a rank is in: a rank that gave one up may be in the next.
    bool any = false;
    uint32_t epoch = 0;
    for (const Rank rank : team.ranks) {
      const wire::ControlPage* const page = PageOf(from, rank);
      if (page == nullptr || page->waits_since_ms[slot] == 0 || !IsHere(from, rank)) continue;
      if (!any || wire::EpochReached(arrival(*page), epoch)) epoch = arrival(*page);
      any = true;
    }
    if (!any) continue;
    v1::Wait wait = NewWait(from, v1::WAIT_KIND_HOST_BARRIER, team.id, team.ranks.size());
    wait.set_call("host barrier");
    wait.set_number(epoch);
    wait.set_waited_ms(-1);
    for (const Rank rank : team.ranks) {
      const wire::ControlPage* const page = PageOf(from, rank);
      if (page == nullptr) continue;
      if (!wire::EpochReached(arrival(*page), epoch)) {
        AddMember(from, rank, v1::WAIT_PLACE_NOT_COME, wait.mutable_missing());
      } else if (page->waits_since_ms[slot] != 0 && IsHere(from, rank)) {
        AddMember(from, rank, v1::WAIT_PLACE_INSIDE, wait.mutable_waiting());
        wait.set_waited_ms(
            std::max(wait.waited_ms(), AgeOfPageTime(page->waits_since_ms[slot], from.now)));
      }
    }
    if (wait.missing().empty()) AddOtherNodes(from, team, &wait);
    // All ranks have entered: the sleeping ones are about to wake.
    if (wait.missing().empty()) continue;
    found.push_back({MakeWaitKey(WaitKey::kBarrier, team.id), std::move(wait)});
  }
  return found;
}

std::vector<FoundWait> FindKernelWaits(const WaitSources& from) {
  std::vector<FoundWait> found;
  for (Rank local = 0; local < from.pages.size(); ++local) {
    const Rank rank = from.job.first_local + local;
    if (!IsHere(from, rank)) continue;
    for (uint32_t slot = 0; slot < wire::kKernelWaitSlots; ++slot) {
      const wire::KernelWait& noted = from.pages[local].kernel_waits[slot];
      if (noted.state != wire::kKernelWaitNoted || noted.from >= from.job.n_ranks) continue;
      v1::Wait wait = NewWait(from, v1::WAIT_KIND_KERNEL, 0, 0);
      wait.set_call("kernel signal");
      wait.set_waited_ms(noted.waited_ms);
      wait.set_block(noted.block);
      wait.set_wanted(noted.wanted);
      wait.set_seen(noted.seen);
      AddMember(from, rank, v1::WAIT_PLACE_INSIDE, wait.mutable_waiting());
      AddMember(from, noted.from, v1::WAIT_PLACE_UNSPECIFIED, wait.mutable_missing());
      found.push_back(
          {MakeWaitKey(WaitKey::kKernel, rank * wire::kKernelWaitSlots + slot), std::move(wait)});
    }
  }
  return found;
}

std::vector<FoundWait> FindWaits(const WaitSources& from) {
  std::vector<FoundWait> found = FindPendingOperations(from);
  for (auto part : {FindHostBarriers, FindCollectives, FindKernelWaits}) {
    for (FoundWait& each : part(from)) found.push_back(std::move(each));
  }
  std::sort(found.begin(), found.end(),
            [](const FoundWait& a, const FoundWait& b) { return a.key < b.key; });
  return found;
}

}  // namespace iris::server
