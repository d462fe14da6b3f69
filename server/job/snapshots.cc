// What iris-ctl shows of the machine.
#include "server/job/snapshots.h"

#include "server/job/job_machine_impl.h"

namespace iris::server {

size_t JobMachine::n_jobs() const { return impl_->jobs_.size(); }

size_t JobMachine::n_sessions() const { return impl_->sessions_.size(); }

std::vector<JobSnapshot> JobMachine::Jobs(const JobQuery& query) const {
  std::vector<JobSnapshot> snapshots;
  for (const auto& [id, entry] : impl_->jobs_) {
    const Job& job = *entry;
    if (query.uid.has_value() && job.uid != *query.uid) continue;
    if (!query.name.empty() && job.name != query.name) continue;
    JobSnapshot& shot = snapshots.emplace_back();
    shot.id = id;
    shot.name = job.name;
    shot.uid = job.uid;
    shot.state = job.state;
    shot.epoch = job.epoch;
    shot.n_ranks = job.n_ranks();
    shot.heap_bytes = job.heap_bytes;
    shot.stride_bytes = job.stride_bytes;
    shot.same_address = job.same_address;
    shot.n_teams = static_cast<uint32_t>(job.teams.size());
    shot.n_allocations = static_cast<uint32_t>(job.allocations.size());
    shot.allocated_bytes = job.allocator.used_bytes();
    shot.largest_free_bytes = job.allocator.largest_free_bytes();
    shot.created = job.created;
    for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
      const Member& member = job.ranks[rank];
      RankSnapshot& rank_shot = shot.ranks.emplace_back();
      rank_shot.rank = rank;
      rank_shot.state = member.state;
      rank_shot.pid = member.caller.pid;
      rank_shot.session = member.session;
      rank_shot.device_index = member.device_index;
      rank_shot.base = member.base;
      for (const SegmentId segment : member.segments) {
        rank_shot.segments.push_back(impl_->segments_.at(segment).info);
      }
    }
    if (!query.allocations) continue;
    shot.allocations.reserve(job.allocations.size());
    for (const auto& [offset, allocation] : job.allocations) {
      shot.allocations.push_back({offset, allocation.bytes, allocation.alignment_bytes,
                                  allocation.name, allocation.tensor, allocation.team, allocation.k,
                                  allocation.created});
    }
  }
  return snapshots;
}

std::vector<SessionSnapshot> JobMachine::Sessions() const {
  std::vector<SessionSnapshot> snapshots;
  for (const auto& [id, session] : impl_->sessions_) {
    SessionSnapshot shot{
        .id = id, .caller = session.caller, .ending = session.ending, .created = session.created};
    if (const Job* job = impl_->FindJob(session.job); job != nullptr) {
      shot.job = job->name;
      shot.rank = static_cast<int32_t>(session.rank);
    }
    snapshots.push_back(std::move(shot));
  }
  std::sort(snapshots.begin(), snapshots.end(),
            [](const SessionSnapshot& a, const SessionSnapshot& b) { return a.id < b.id; });
  return snapshots;
}

}  // namespace iris::server
