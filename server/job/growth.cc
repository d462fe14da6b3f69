// Growth of a job's heap, inside its reserved stride, in two phases: every rank's new segment is
// created; then every rank maps all of them and says so; only then is the new size published. What
// fails for one rank fails for all. One growth at a time per job; operations that need another wait
// in a queue.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "device/base/bytes.h"
#include "proto/wire/limits.h"
#include "server/heap/check.h"
#include "server/job/job_machine_impl.h"
#include "server/job/operations/operation.h"
#include "server/job/text.h"

namespace iris::server {

void JobMachine::Impl::RequestGrowth(Job& job, Team& team, const NeedsGrowth& needs) {
  if (job.growth.has_value()) {
    job.growth_queue.push_back(team.info.id);
    return;
  }
  const absl::Status started = StartGrowth(job, team, needs.needed_bytes, needs.wanted_bytes);
  if (started.ok()) return;
  Conclude(job, team,
           absl::Status(
               needs.unfit.code(),
               absl::StrCat(needs.unfit.message(), "; the heap cannot grow: ", started.message())));
}

absl::Status JobMachine::Impl::StartGrowth(Job& job, Team& team, uint64_t needed_bytes,
                                           uint64_t wanted_bytes) {
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    if (job.ranks[rank].state != RankState::kReady) {
      return absl::FailedPreconditionError(absl::StrCat(job.Who(rank), " is no longer in the job"));
    }
  }
  const uint64_t limit = job.GrowthLimitBytes();
  const uint64_t room = limit - job.heap_bytes;
  if (needed_bytes > room) {
    return absl::ResourceExhaustedError(absl::StrCat(
        base::SizeText(needed_bytes), " more are needed, and ", base::SizeText(room),
        " of a maximum of ", base::SizeText(job.stride_bytes),
        " are left (max_heap_bytes of a Context; four times heap_bytes unless it says)",
        limit == job.stride_bytes ? ""
                                  : absl::StrCat("; ", base::SizeText(job.stride_bytes - limit),
                                                 " are of registered memory")));
  }
  if (job.ranks[0].segments.size() >= wire::kMaxSegmentsPerHeap) {
    return absl::ResourceExhaustedError(
        absl::StrCat("it has ", wire::kMaxSegmentsPerHeap, " segments, the limit"));
  }
  // Room and needed are below the stride, so rounding cannot overflow; the stride is a multiple of
  // the granularity.
  const auto rounded = [&](uint64_t bytes) {
    return (std::min(bytes, room) + granularity_bytes_ - 1) / granularity_bytes_ *
           granularity_bytes_;
  };
  uint64_t bytes = rounded(wanted_bytes);
  absl::Status booked = BookGrowth(job, bytes);
  if (!booked.ok() && rounded(needed_bytes) < bytes) {
    bytes = rounded(needed_bytes);
    booked = BookGrowth(job, bytes);
  }
  if (!booked.ok()) return booked;

  Growth growth;
  growth.id = GrowId{next_grow_++};
  growth.team = team.info.id;
  growth.bytes = bytes;
  growth.created.resize(job.n_ranks());
  growth.mapped.resize(job.n_ranks());
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    const uint32_t index = static_cast<uint32_t>(job.ranks[rank].segments.size());
    growth.segments.push_back(CreateBooked(job, rank, index, job.heap_bytes, bytes));
  }
  Note(job, event::GrowthStarted{growth.id, bytes, job.heap_bytes});
  job.growth = std::move(growth);
  deadlines_.Set({job.id, DeadlineKey::Kind::kGrow}, now_.steady + limits_.grow_timeout);
  return absl::OkStatus();
}

absl::Status JobMachine::Impl::BookGrowth(const Job& job, uint64_t bytes) {
  if (absl::Status s = CheckDescriptors(job.n_ranks(), job.party); !s.ok()) return s;
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    const absl::Status booked =
        Book(job.ranks[rank].device_index, bytes, {job.name, rank, job.party});
    if (booked.ok()) continue;
    for (Rank undo = 0; undo < rank; ++undo) {
      Unbook(job.ranks[undo].device_index, bytes, {job.name, undo, job.party});
    }
    return booked;
  }
  return absl::OkStatus();
}

void JobMachine::Impl::GrowthSegmentCreated(Job& job, SegmentId segment,
                                            const absl::Status& status) {
  Growth& growth = *job.growth;
  const auto found = std::find(growth.segments.begin(), growth.segments.end(), segment);
  if (found == growth.segments.end()) return;
  if (!status.ok()) {
    return FailGrowth(
        job, absl::ResourceExhaustedError(absl::StrCat("grow the heap: ", status.message())));
  }
  growth.created[found - growth.segments.begin()] = true;
  if (growth.Missing().empty()) AnnounceGrowth(job);
}

SegmentsAdded JobMachine::Impl::SegmentsAddedBy(const Job& job) const {
  SegmentsAdded added;
  added.grow = job.growth->id;
  for (const SegmentId id : job.growth->segments) added.segments.push_back(segments_.at(id).info);
  added.heap_bytes = job.heap_bytes + job.growth->bytes;
  added.timeout = limits_.grow_timeout;
  return added;
}

void JobMachine::Impl::AnnounceGrowth(Job& job) {
  job.growth->mapping = true;
  deadlines_.Set({job.id, DeadlineKey::Kind::kGrow}, now_.steady + limits_.grow_timeout);
  const SegmentsAdded added = SegmentsAddedBy(job);
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    const SessionId session = job.ranks[rank].lease.session;
    Emit(SendDescriptors{session, job.id, job.epoch, rank, job.n_ranks(), added.segments, false});
    Emit(NotifyWatch{session, added});
  }
}

void JobMachine::Impl::GrowMapped(SessionId id, CallId call, JobId job_id, GrowId grow,
                                  const std::string& error) {
  const auto membership = FindMembership(id, job_id);
  if (!membership.ok()) return Answer(call, membership.status());
  Job& job = *membership->job;
  const Rank rank = membership->rank;
  const std::string what = absl::StrCat("growth ", grow.value, " of job '", job.name, "': ");
  if (grow.value != 0 && job.last_published == grow) return Answer(call, absl::OkStatus());
  if (grow.value != 0 && job.last_growth.grow == grow) {
    return Answer(call, absl::AbortedError(absl::StrCat(what, job.last_growth.reason)));
  }
  if (!job.growth.has_value() || job.growth->id != grow || !job.growth->mapping) {
    return Answer(
        call, absl::FailedPreconditionError(absl::StrCat(what, "no such growth is being mapped")));
  }
  Answer(call, absl::OkStatus());
  if (!error.empty()) {
    return FailGrowth(job, absl::ResourceExhaustedError(absl::StrCat(
                               "grow the heap: ", job.Who(rank),
                               " could not map: ", CleanText(error, wire::kMaxErrorTextBytes))));
  }
  job.growth->mapped[rank] = true;
  if (job.growth->Missing().empty()) PublishGrowth(job);
}

void JobMachine::Impl::PublishGrowth(Job& job) {
  const Growth growth = *std::exchange(job.growth, std::nullopt);
  deadlines_.Clear({job.id, DeadlineKey::Kind::kGrow});
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    job.ranks[rank].segments.push_back(growth.segments[rank]);
  }
  job.heap_bytes += growth.bytes;
  const absl::Status grown = job.allocator.Grow(job.heap_bytes);
  IRIS_CHECK(grown.ok(), "a heap only grows");
  job.last_growth = {growth.id, true, ""};
  job.last_published = growth.id;
  for (const Member& member : job.ranks) Emit(NotifyWatch{member.lease.session, job.last_growth});
  Note(job, event::HeapGrown{growth.id, job.heap_bytes});
  Team& team = job.teams.at(growth.team);
  team.op->grown = true;
  Execute(job, team);
  RunGrowthQueue(job);
}

void JobMachine::Impl::FailGrowth(Job& job, const absl::Status& status) {
  Growth growth = *std::exchange(job.growth, std::nullopt);
  deadlines_.Clear({job.id, DeadlineKey::Kind::kGrow});
  job.last_growth = {growth.id, false, std::string(status.message())};
  for (const Member& member : job.ranks) {
    if (growth.mapping && member.lease.held)
      Emit(NotifyWatch{member.lease.session, job.last_growth});
  }
  if (growth.mapping) KeepAccountOf(job, growth.bytes * job.n_ranks());
  DropAll(growth.segments);
  Note(job, event::GrowthFailed{std::string(status.message())});
  Conclude(job, job.teams.at(growth.team), status);
  RunGrowthQueue(job);
}

void JobMachine::Impl::GrowthTimedOut(Job& job) {
  FailGrowth(job, absl::ResourceExhaustedError(absl::StrCat(
                      "grow the heap: time is up: ",
                      job.growth->mapping ? "not mapped by " : "memory not created for ",
                      absl::StrJoin(job.Who(job.growth->Missing()), ", "))));
}

void JobMachine::Impl::RunGrowthQueue(Job& job) {
  while (!job.growth.has_value() && !job.growth_queue.empty()) {
    Team& team = job.teams.at(job.growth_queue.front());
    job.growth_queue.pop_front();
    if (absl::Status s = job.CheckAlive(team); !s.ok()) {
      Conclude(job, team, s);
    } else {
      Execute(job, team);
    }
  }
}

}  // namespace iris::server
