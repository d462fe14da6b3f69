// What iris-ctl shows of the machine.
#include "server/job/snapshots.h"

#include <utility>

#include "server/job/job_machine_impl.h"

namespace iris::server {
namespace {

// The job without its ranks and allocations.
JobSnapshot HeadOf(const Job& job) {
  JobSnapshot head;
  head.id = job.id;
  head.name = job.name;
  head.party = job.party;
  head.state = job.state;
  head.epoch = job.epoch;
  head.n_ranks = job.n_ranks();
  head.heap_bytes = job.heap_bytes;
  head.stride_bytes = job.stride_bytes;
  head.same_address = job.same_address;
  head.n_teams = static_cast<uint32_t>(job.n_teams());
  head.n_allocations = static_cast<uint32_t>(job.allocations.size());
  head.allocated_bytes = job.allocator.used_bytes();
  head.largest_free_bytes = job.allocator.largest_free_bytes();
  head.created = job.created;
  return head;
}

AllocationSnapshot SnapshotOf(uint64_t offset_bytes, const HeapAllocation& allocation) {
  return {
      offset_bytes,
      allocation.bytes,
      allocation.alignment_bytes(),
      std::string(allocation.label.name()),
      allocation.label.tensor(),
      allocation.team,
      allocation.k,
      allocation.created,
      static_cast<uint32_t>(allocation.opens->size()),
      allocation.freed,
      allocation.is_registered(),
  };
}

}  // namespace

RankSnapshot JobMachine::Impl::SnapshotOf(const Member& member, Rank rank) const {
  RankSnapshot shot;
  shot.rank = rank;
  shot.state = member.state;
  shot.pid = member.lease.process.pid;
  shot.session = member.lease.session;
  shot.device_index = member.device_index;
  shot.base = member.base;
  return shot;
}

std::vector<SegmentInfo> JobMachine::Impl::SegmentsOf(const Member& member) const {
  std::vector<SegmentInfo> infos;
  for (const SegmentId segment : member.segments) infos.push_back(segments_.at(segment).info);
  return infos;
}

SessionSnapshot JobMachine::Impl::SnapshotOf(const Session& session) const {
  SessionSnapshot shot{.id = session.id,
                       .caller = session.caller,
                       .ending = session.ending,
                       .created = session.created};
  if (const Job* job = JobOf(session); job != nullptr) {
    shot.job = job->name;
    shot.rank = static_cast<int32_t>(session.lease->rank);
  }
  return shot;
}

template <typename Visit>
void JobMachine::Impl::ForJobs(const JobQuery& query, JobId from, Visit visit) const {
  if (query.party.has_value()) {
    if (!query.name.empty()) {
      const auto named = jobs_by_name_.find({*query.party, query.name});
      if (named != jobs_by_name_.end() && named->second >= from) visit(*jobs_.at(named->second));
      return;
    }
    const auto mine = jobs_by_account_.find(query.party->Account());
    if (mine == jobs_by_account_.end()) return;
    for (auto id = mine->second.lower_bound(from); id != mine->second.end(); ++id) {
      const Job& job = *jobs_.at(*id);
      if (job.party == *query.party && !visit(job)) return;
    }
    return;
  }
  for (auto entry = jobs_.lower_bound(from); entry != jobs_.end(); ++entry) {
    if (!query.name.empty() && entry->second->name != query.name) continue;
    if (!visit(*entry->second)) return;
  }
}

AccountSnapshot JobMachine::AccountOf(const Party& account) const {
  const auto value = [&account](const std::map<Party, uint64_t>& map) {
    const auto found = map.find(account);
    return found == map.end() ? uint64_t{0} : found->second;
  };
  AccountSnapshot shot{
      .descriptors = value(impl_->descriptors_by_account_),
      .heap_bytes = value(impl_->booked_bytes_by_account_) + impl_->kept_->bytes(account)};
  const auto mine = impl_->jobs_by_account_.find(account);
  if (mine == impl_->jobs_by_account_.end()) return shot;
  shot.jobs = mine->second.size();
  for (const JobId id : mine->second) {
    const Job& job = *impl_->jobs_.at(id);
    shot.teams += job.n_teams();
    shot.allocations += job.allocations.size();
    shot.registered_pieces += job.n_pieces;
    shot.value_bytes += job.value_bytes;
  }
  return shot;
}

const JobLimits& JobMachine::limits() const { return impl_->limits_; }

size_t JobMachine::n_jobs() const { return impl_->jobs_.size(); }

size_t JobMachine::n_sessions() const { return impl_->sessions_.size(); }

uint64_t JobMachine::kept_bytes() const {
  uint64_t sum = 0;
  for (const auto& [account, parts] : impl_->kept_->all()) sum += impl_->kept_->bytes(account);
  return sum;
}

std::vector<JobSnapshot> JobMachine::Jobs(const JobQuery& query) const {
  std::vector<JobSnapshot> snapshots;
  VisitJobs(query, {}, [&](const JobSnapshot& shot) {
    snapshots.push_back(shot);
    const Job& job = *impl_->jobs_.at(shot.id);
    for (RankSnapshot& rank : snapshots.back().ranks) {
      rank.segments = impl_->SegmentsOf(job.ranks[rank.rank]);
    }
    for (const auto& [offset, allocation] : job.allocations) {
      for (const SegmentId piece : allocation.registered->pieces) {
        const SegmentInfo& info = impl_->segments_.at(piece).info;
        snapshots.back().ranks[info.rank].registered.push_back(info);
      }
    }
    if (!query.allocations) return true;
    snapshots.back().allocations.reserve(job.allocations.size());
    for (const auto& [offset, allocation] : job.allocations) {
      snapshots.back().allocations.push_back(server::SnapshotOf(offset, allocation));
    }
    return true;
  });
  return snapshots;
}

std::vector<SessionSnapshot> JobMachine::Sessions() const {
  std::vector<SessionSnapshot> snapshots;
  VisitSessions(std::nullopt, {}, [&](const SessionSnapshot& shot) {
    snapshots.push_back(shot);
    return true;
  });
  return snapshots;
}

std::vector<SegmentSnapshot> JobMachine::Segments() const {
  std::vector<SegmentSnapshot> snapshots;
  for (const SegmentId id : impl_->SortedSegments()) {
    const Impl::Segment& segment = std::as_const(impl_->segments_).at(id);
    snapshots.push_back({segment.info, segment.job, segment.holder.party, segment.device_index,
                         segment.registered});
  }
  return snapshots;
}

void JobMachine::VisitJobs(const JobQuery& query, ListPosition after, VisitJob visit) const {
  impl_->ForJobs(query, JobId{after.id}, [&](const Job& job) {
    if (job.id.value == after.id) return true;
    JobSnapshot shot = HeadOf(job);
    for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
      shot.ranks.push_back(impl_->SnapshotOf(job.ranks[rank], rank));
    }
    return visit(shot);
  });
}

void JobMachine::VisitRanks(const JobQuery& query, ListPosition after, VisitRank visit) const {
  impl_->ForJobs(query, JobId{after.id}, [&](const Job& job) {
    const bool entered = job.id.value == after.id;
    if (entered && after.item >= job.n_ranks()) return true;
    const JobSnapshot head = HeadOf(job);
    for (Rank rank = entered ? static_cast<Rank>(after.item) + 1 : 0; rank < job.n_ranks();
         ++rank) {
      RankSnapshot shot = impl_->SnapshotOf(job.ranks[rank], rank);
      shot.segments = impl_->SegmentsOf(job.ranks[rank]);
      if (!visit(head, shot)) return false;
    }
    return true;
  });
}

void JobMachine::VisitAllocations(const JobQuery& query, ListPosition after,
                                  VisitAllocation visit) const {
  impl_->ForJobs(query, JobId{after.id}, [&](const Job& job) {
    const bool entered = job.id.value == after.id;
    auto entry = entered ? job.allocations.upper_bound(after.item) : job.allocations.begin();
    if (entry == job.allocations.end()) return true;
    const JobSnapshot head = HeadOf(job);
    for (; entry != job.allocations.end(); ++entry) {
      if (!visit(head, server::SnapshotOf(entry->first, entry->second))) return false;
    }
    return true;
  });
}

void JobMachine::VisitSessions(const std::optional<Party>& party, ListPosition after,
                               VisitSession visit) const {
  const SessionId from{after.id};
  if (!party.has_value()) {
    const auto& all = impl_->sessions_;
    for (auto entry = all.upper_bound(from); entry != all.end(); ++entry) {
      if (!visit(impl_->SnapshotOf(entry->second))) return;
    }
    return;
  }
  const auto mine = impl_->sessions_by_account_.find(party->Account());
  if (mine == impl_->sessions_by_account_.end()) return;
  for (auto id = mine->second.upper_bound(from); id != mine->second.end(); ++id) {
    const Impl::Session& session = impl_->sessions_.at(*id);
    if (session.caller.party == *party && !visit(impl_->SnapshotOf(session))) return;
  }
}

}  // namespace iris::server
