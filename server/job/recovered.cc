// Another irisd continues with the state of one that ended.
#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/job/job_machine_impl.h"

namespace iris::server {
namespace {

template <typename Id>
std::set<Id> SetOf(const std::vector<Id>& all) {
  return {all.begin(), all.end()};
}

}  // namespace

void JobMachine::Impl::On(const Recovered& in) {
  stopping_ = false;
  ForgetCalls();
  const std::set<JobId> pages = SetOf(in.pages);
  std::vector<JobId> ids;
  for (const auto& [id, job] : jobs_) ids.push_back(id);
  for (const JobId id : ids) {
    RestorePages(*FindJob(id), pages.contains(id));
    if (Job* const job = FindJob(id); job != nullptr) RestoreAccount(*job);
  }
  if (limits_.max_heap_bytes_per_uid == 0) kept_.Change() = KeptMemory();
  // Handles lost memory first, so that none of it is sent.
  const std::set<SegmentId> memory = SetOf(in.memory);
  std::vector<SegmentId> segments;
  for (const auto& [id, segment] : segments_) segments.push_back(id);
  for (const SegmentId id : segments) {
    const Segment* const segment = segments_.Find(id);
    // A job with memory of other nodes breaks below.
    const bool is_there = segment == nullptr || segment->dropping || !segment->created ||
                          segment->imported || memory.contains(id);
    if (is_there) continue;
    Job& job = *FindJob(segment->job);
    const Rank rank = segment->info.rank;
    LoseMemory(job, rank, absl::StrCat("the memory of ", job.Who(rank)));
  }
  const std::set<SessionId> kept = SetOf(in.sessions);
  std::vector<SessionId> lost;
  for (const auto& [id, session] : sessions_) {
    if (!session.ending && !kept.contains(id)) lost.push_back(id);
  }
  for (const SessionId id : lost) LoseSession(id);
  const std::set<JobId> ports = SetOf(in.ports);
  for (const JobId id : ids) RestorePort(id, ports.contains(id));
  for (const JobId id : ids) {
    if (const Job* const job = FindJob(id); job != nullptr) SendDescriptorsAgain(*job);
  }
  for (const SegmentId id : segments) {
    const Segment* const segment = segments_.Find(id);
    if (segment == nullptr) continue;
    if (segment->dropping) {
      if (memory.contains(id)) {
        Emit(DropSegment{id});
      } else {
        On(SegmentDropped{id});
      }
    } else if (!segment->created) {
      if (memory.contains(id)) {
        On(SegmentCreated{id, absl::OkStatus()});
      } else {
        Emit(CreateSegment{id, segment->job, segment->device_index, segment->info.bytes,
                           FindJob(segment->job)->ranks[segment->info.rank].prealloc});
      }
    }
  }
  ServeStarved();
  Emit(EmitEvent{{.detail = event::Recovered{in.generation, static_cast<uint32_t>(jobs_.size()),
                                             static_cast<uint32_t>(sessions_.size()),
                                             static_cast<uint32_t>(lost.size())}}});
}

void JobMachine::Impl::ForgetCalls() {
  waiting_.clear();
  const absl::Time not_before = now_.steady + kRepeatsWithin;
  // Makes a copy, since Set changes the queue.
  const std::map<DeadlineKey, absl::Time> deadlines(deadlines_.all().begin(),
                                                    deadlines_.all().end());
  for (const auto& [key, when] : deadlines) {
    DeadlineKey kept = key;
    if (key.kind == Due::kJoin) {
      deadlines_.Clear(key);
      kept.kind = Due::kWithdraw;
    }
    deadlines_.Set(kept, std::max(when, not_before));
  }
  for (const auto& [id, each] : jobs_) {
    Job& job = *FindJob(id);
    for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
      Member& member = job.ranks[rank];
      member.join_call = member.answered_join = CallId();
      member.mapped_calls.clear();
      member.barriers.clear();
    }
    for (const auto& [team_id, each_team] : job.teams) {
      if (!each_team.op.has_value()) continue;
      for (std::vector<CallId>& calls : job.teams.at(team_id).op->calls) calls.clear();
    }
  }
}

void JobMachine::Impl::RestorePages(Job& job, bool kept) {
  if (!kept && job.state == JobState::kForming) {
    Emit(CreatePages{job.id, job.first_local(), job.end_local() - job.first_local(), job.epoch,
                     job.nodes.has_value()});
  }
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    const RankState state = job.ranks[rank].state;
    const bool abort = job.state == JobState::kBroken &&
                       (state == RankState::kEnding || state == RankState::kDead);
    Emit(SetRankState{job.id, rank, state, job.ranks[rank].lease.process.pid, abort});
  }
  if (kept || job.state == JobState::kForming) return;
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    if (job.ranks[rank].lease.held) return LoseMemory(job, rank, "the pages of its host barriers");
  }
}

void JobMachine::Impl::RestorePort(JobId id, bool kept) {
  Job* const job = FindJob(id);
  if (job == nullptr || !job->nodes.has_value()) return;
  const JobNodes& nodes = *job->nodes;
  // The handles by which nodes map each other's memory are not stored.
  if (!kept || job->is_starting() || nodes.MapsOthers(nodes.own)) {
    return On(PortFailed{id, "irisd was restarted"});
  }
  SetLayout layout{id, 0, {}, OwnSegmentsOf(*job), {}, job->HeapEndBytes()};
  if (job->growth.has_value() && job->growth->mapping) {
    const std::vector<SegmentInfo> more = InfosOf(OwnSegments(*job, *job->growth));
    layout.segments.insert(layout.segments.end(), more.begin(), more.end());
  }
  for (const auto& [offset, allocation] : job->allocations) {
    const std::vector<SegmentInfo> more = InfosOf(allocation.registered->pieces);
    layout.segments.insert(layout.segments.end(), more.begin(), more.end());
  }
  if (job->state == JobState::kReady) {
    layout.epoch = nodes.epoch;
    layout.nodes = nodes.Parts();
  }
  Emit(AttachPort{id, nodes.own, job->n_ranks(), nodes.heard, nodes.sent,
                  nodes.sent - nodes.outbox.size(), std::move(layout)});
  for (const SendToNode& each : nodes.outbox) Emit(each);
}

void JobMachine::Impl::RestoreAccount(Job& job) {
  const bool has_quota = limits_.max_heap_bytes_per_uid != 0;
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    Member& member = job.ranks[rank];
    const bool maps = job.state != JobState::kForming && member.lease.held;
    member.keeps_memory = has_quota && (member.keeps_memory || maps);
  }
}

void JobMachine::Impl::LoseMemory(Job& job, Rank rank, const std::string& what) {
  const std::string reason =
      absl::StrCat(what, " was lost when irisd was restarted: leave the job and join a new one");
  Note(job, rank, event::MemoryLost{reason});
  switch (job.state) {
    case JobState::kForming:
    case JobState::kMapping:
      return FailJob(job, ErrorOf(job, Code::kAborted, "join", reason));
    case JobState::kReady: {
      // A rank that has left keeps its state; the others still use its memory.
      const Member& lost = job.ranks[rank];
      SetState(job, rank, lost.lease.held ? RankState::kEnding : lost.state, true);
      deadlines_.Clear({job.id, Due::kResume, rank});
      for (const Member& member : job.ranks) {
        if (!member.lease.held) continue;
        Emit(NotifyWatch{member.lease.session,
                         RankChanged{rank, lost.state, lost.lease.process.pid, reason}});
      }
      return Break(job, reason);
    }
    case JobState::kBroken:
      return;
  }
}

void JobMachine::Impl::LoseSession(SessionId id) {
  Session* const session = FindSession(id);
  if (session == nullptr || session->ending) return;
  const Job* const job = JobOf(*session);
  if (job == nullptr || job->state != JobState::kReady) {
    return On(SessionHungUp{id, "its connection was lost when irisd was restarted"});
  }
  session->ending = true;
  NoteSession(*session, event::SessionHungUp{id});
  deadlines_.Set({job->id, Due::kResume, session->lease->rank}, now_.steady + kResumesWithin);
}

void JobMachine::Impl::SendDescriptorsAgain(const Job& job) {
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    const Member& member = job.ranks[rank];
    if (job.state == JobState::kMapping && member.state != RankState::kMapped) {
      Emit(SendDescriptors{member.lease.session, job.id, job.epoch, rank, job.n_ranks(),
                           SegmentsOf(job), true});
    }
    SendGrowthAgain(job, rank);
  }
}

}  // namespace iris::server
