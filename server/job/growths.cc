#include "server/job/growths.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "device/base/bytes.h"
#include "proto/wire/limits.h"
#include "server/heap/check.h"

namespace iris::server {

void Growths::RequestGrowth(Job& job, Team& team, const NeedsGrowth& needs) {
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

absl::Status Growths::StartGrowth(Job& job, Team& team, uint64_t needed_bytes,
                                  uint64_t wanted_bytes) {
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    if (job.ranks[rank].state != RankState::kReady) {
      return Error(Code::kFailedPrecondition, job.Who(rank), " is no longer in the job");
    }
  }
  const uint64_t limit = job.GrowthLimitBytes();
  const uint64_t room = limit - job.heap_bytes;
  if (needed_bytes > room) {
    return Error(Code::kResourceExhausted, base::SizeText(needed_bytes), " more are needed, and ",
                 base::SizeText(room), " of a maximum of ", base::SizeText(job.stride_bytes),
                 " are left (max_heap_bytes of a Context; four times heap_bytes unless it says)",
                 limit == job.stride_bytes
                     ? ""
                     : absl::StrCat("; ", base::SizeText(job.stride_bytes - limit),
                                    " are of registered memory"));
  }
  // `room` and `needed` are below the stride, so rounding cannot overflow; the stride is a multiple
  // of the granularity.
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
  const GrowId id{next_grow_++};
  BeginGrowth(job, team.info.id, id, GrowId(), bytes);
  if (job.nodes.has_value()) TellNodes(job, GrowthBegun{id, bytes});
  deadlines_.Set({job.id, Due::kGrow}, now_.steady + limits_.grow_timeout);
  return absl::OkStatus();
}

void Growths::BeginGrowth(Job& job, TeamId team, GrowId id, GrowId leaders_id, uint64_t bytes) {
  Growth growth{.id = id, .leaders_id = leaders_id, .team = team, .bytes = bytes};
  growth.segments.resize(job.n_ranks());
  growth.created.resize(job.n_ranks());
  growth.mapped.resize(job.n_ranks());
  for (Rank rank = job.first_local(); rank < job.end_local(); ++rank) {
    growth.segments[rank] = CreateBooked(job, rank, job.heap_bytes, bytes);
  }
  Note(job, event::GrowthStarted{growth.id, bytes, job.heap_bytes});
  job.growth = std::move(growth);
}

absl::Status Growths::FollowGrowth(Job& job, const GrowthBegun& begun) {
  const uint64_t room = job.GrowthLimitBytes() - job.heap_bytes;
  if (job.growth.has_value() || begun.bytes == 0 || begun.bytes > room ||
      begun.bytes % granularity_bytes_ != 0) {
    return absl::InternalError("the heap cannot grow so here");
  }
  if (absl::Status s = BookGrowth(job, begun.bytes); !s.ok()) return s;
  BeginGrowth(job, kWorldTeam, GrowId{next_grow_++}, begun.grow, begun.bytes);
  return absl::OkStatus();
}

absl::Status Growths::BookGrowth(const Job& job, uint64_t bytes) {
  const Rank first = job.first_local();
  const Rank end = job.end_local();
  for (Rank rank = first; rank < end; ++rank) {
    if (job.ranks[rank].state == RankState::kReady) continue;
    return Error(Code::kFailedPrecondition, job.Who(rank), " is no longer in the job");
  }
  if (job.ranks[first].segments.size() >= wire::kMaxSegmentsPerHeap) {
    return Error(Code::kResourceExhausted, "it has ", wire::kMaxSegmentsPerHeap,
                 " segments, the limit");
  }
  if (absl::Status s = CheckDescriptors(job.end_mapped() - job.first_mapped(), job.party);
      !s.ok()) {
    return s;
  }
  for (Rank rank = first; rank < end; ++rank) {
    const absl::Status booked =
        Book(job.ranks[rank].device_index, bytes, {job.name, rank, job.party});
    if (booked.ok()) continue;
    for (Rank undo = first; undo < rank; ++undo) {
      Unbook(job.ranks[undo].device_index, bytes, {job.name, undo, job.party});
    }
    return booked;
  }
  return absl::OkStatus();
}

void Growths::GrowthSegmentCreated(Job& job, SegmentId segment, const absl::Status& status) {
  Growth& growth = *job.growth;
  const auto found = std::find(growth.segments.begin(), growth.segments.end(), segment);
  if (found == growth.segments.end()) return;
  if (!status.ok()) return GrowthFails(job, status);
  growth.created[found - growth.segments.begin()] = true;
  const bool others_map_it = job.nodes.has_value() && job.nodes->MapsOthers(job.nodes->own);
  if (others_map_it && segments_.at(segment).fabric.empty()) {
    return GrowthFails(job, Error(Code::kResourceExhausted, "the new memory of ",
                                  job.Who(segments_.at(segment).info.rank),
                                  " could not be exported to the nodes of its fabric: look at the "
                                  "log of irisd there"));
  }
  GrowthGoesOn(job);
}

void Growths::GrowthGoesOn(Job& job) {
  const Growth& growth = *job.growth;
  if (job.Decides()) {
    if (!growth.Missing().empty()) return;
    if (growth.mapping) return PublishGrowth(job);
    std::vector<std::string> handles;
    if (job.nodes.has_value()) {
      job.nodes->all[job.nodes->own].handles = OwnHandles(InfosOf(OwnSegments(job, growth)));
      TellHandles(job, GrowthMaps{growth.id, {}});
      handles = job.nodes->HandlesFor(job.nodes->own);
    }
    deadlines_.Set({job.id, Due::kGrow}, now_.steady + limits_.grow_timeout);
    MapGrowth(job, handles);
  } else if (GrewHere(job)) {
    if (growth.mapping) {
      TellNodes(job, GrowthMapped{growth.leaders_id, ""});
    } else {
      TellNodes(
          job, GrowthCreated{growth.leaders_id, "", OwnHandles(InfosOf(OwnSegments(job, growth)))});
    }
  }
}

bool Growths::GrewHere(const Job& job) {
  const std::vector<Rank> missing = job.growth->Missing();
  return std::none_of(missing.begin(), missing.end(),
                      [&job](Rank rank) { return job.IsLocal(rank); });
}

void Growths::GrowthFails(Job& job, const absl::Status& why) {
  if (job.Decides()) return FailGrowth(job, why);
  const GrowId grow = job.growth->leaders_id;
  const std::string text(why.message());
  if (job.growth->mapping) {
    TellNodes(job, GrowthMapped{grow, text});
  } else {
    TellNodes(job, GrowthCreated{grow, text});
  }
}

std::vector<SegmentId> Growths::OwnSegments(const Job& job, const Growth& growth) {
  return {growth.segments.begin() + job.first_local(), growth.segments.begin() + job.end_local()};
}

void Growths::MapGrowth(Job& job, const std::vector<std::string>& handles) {
  Growth& growth = *job.growth;
  growth.mapping = true;
  for (size_t i = 0; i < handles.size(); ++i) {
    const Rank rank = job.first_mapped() + static_cast<Rank>(i);
    if (job.IsLocal(rank)) continue;
    growth.segments[rank] = Import(job, rank, job.heap_bytes, growth.bytes, handles[i]);
  }
  const SegmentsAdded added = SegmentsAddedBy(job);
  if (job.nodes.has_value()) {
    Emit(SetLayout{job.id, job.nodes->epoch, {}, InfosOf(OwnSegments(job, growth)), {}});
  }
  for (Rank rank = job.first_local(); rank < job.end_local(); ++rank) {
    if (!std::as_const(job).ranks[rank].lease.held) continue;  // it left, and the leader will hear
    SendGrowthAgain(job, rank);
    Emit(NotifyWatch{job.ranks[rank].lease.session, added});
  }
}

void Growths::NodeGrew(Job& job, NodeId node, GrowId grow, bool mapped, const std::string& error) {
  if (!job.growth.has_value() || job.growth->id != grow || job.growth->mapping != mapped) return;
  if (!error.empty()) {
    return FailGrowth(job, Error(Code::kResourceExhausted, "on node ", job.nodes->all[node].name,
                                 ": ", CleanText(error, wire::kMaxErrorTextBytes)));
  }
  for (uint32_t i = 0; i < job.nodes->all[node].n_ranks; ++i) {
    (mapped ? job.growth->mapped : job.growth->created)[node + i] = true;
  }
  GrowthGoesOn(job);
}

SegmentsAdded Growths::SegmentsAddedBy(const Job& job) const {
  const std::vector<SegmentId>& all = job.growth->segments;
  return {job.growth->id,
          InfosOf({all.begin() + job.first_mapped(), all.begin() + job.end_mapped()}),
          job.heap_bytes + job.growth->bytes, limits_.grow_timeout};
}

void Growths::SendGrowthAgain(const Job& job, Rank rank) {
  if (!job.growth.has_value() || !job.growth->mapping || job.growth->mapped[rank]) return;
  Emit(SendDescriptors{job.ranks[rank].lease.session, job.id, job.epoch, rank, job.n_ranks(),
                       SegmentsAddedBy(job).segments, false});
}

void Growths::On(const GrowMappedCall& in) {
  const auto& [id, call, job_id, grow, error] = in;
  const auto membership = FindMembership(id, job_id);
  if (!membership.ok()) return Answer(call, membership.status());
  Job& job = *membership->job;
  const Rank rank = membership->rank;
  const std::string what = absl::StrCat("growth ", grow.value, " of job '", job.name, "': ");
  if (grow.value != 0 && job.last_published == grow) return Answer(call, absl::OkStatus());
  if (grow.value != 0 && job.last_growth.grow == grow) {
    return Refuse(call, Code::kAborted, what, job.last_growth.reason);
  }
  if (!job.growth.has_value() || job.growth->id != grow || !job.growth->mapping) {
    return Refuse(call, Code::kFailedPrecondition, what, "no such growth is being mapped");
  }
  Answer(call, absl::OkStatus());
  if (!error.empty()) {
    return GrowthFails(job, Error(Code::kResourceExhausted, job.Who(rank),
                                  " could not map: ", CleanText(error, wire::kMaxErrorTextBytes)));
  }
  if (job.growth->mapped[rank]) return;
  job.growth->mapped[rank] = true;
  GrowthGoesOn(job);
}

void Growths::PublishGrowth(Job& job) {
  const Growth growth = *std::exchange(job.growth, std::nullopt);
  deadlines_.Clear({job.id, Due::kGrow});
  for (Rank rank = job.first_mapped(); rank < job.end_mapped(); ++rank) {
    job.ranks[rank].segments.push_back(growth.segments[rank]);
  }
  job.heap_bytes += growth.bytes;
  const absl::Status grown = job.allocator.Grow(job.heap_bytes);
  IRIS_CHECK(grown.ok(), "a heap only grows");
  job.last_growth = {growth.id, true, ""};
  job.last_published = growth.id;
  for (const Member& member : std::as_const(job).ranks) {
    if (member.lease.held) Emit(NotifyWatch{member.lease.session, job.last_growth});
  }
  Note(job, event::HeapGrown{growth.id, job.heap_bytes});
  if (!job.Decides()) return;
  if (job.nodes.has_value()) TellNodes(job, GrowthEnded{growth.id, true, ""});
  Team& team = job.teams.at(growth.team);
  team.op->grown = true;
  Execute(job, team);
  RunGrowthQueue(job);
}

void Growths::FailGrowth(Job& job, const absl::Status& why) {
  if (!job.growth.has_value()) return;
  const absl::Status status = WithPrefix("grow the heap: ", why);
  Growth growth = *std::exchange(job.growth, std::nullopt);
  const std::vector<SegmentId> own = OwnSegments(job, growth);
  std::erase(growth.segments, SegmentId());  // of ranks that are not mapped
  deadlines_.Clear({job.id, Due::kGrow});
  job.last_growth = {growth.id, false, std::string(status.message())};
  for (const Member& member : job.ranks) {
    if (growth.mapping && member.lease.held)
      Emit(NotifyWatch{member.lease.session, job.last_growth});
  }
  if (growth.mapping) KeepAccountOf(job, growth.bytes * (job.end_local() - job.first_local()));
  DropAll(growth.segments);
  Note(job, event::GrowthFailed{std::string(status.message())});
  if (job.nodes.has_value()) {
    if (growth.mapping) Emit(SetLayout{job.id, job.nodes->epoch, {}, {}, own});
    if (!job.nodes->leads()) return;  // the leader concludes, or the job is broken
    TellNodes(job, GrowthEnded{growth.id, false, std::string(status.message())});
  }
  Conclude(job, job.teams.at(growth.team), status);
  RunGrowthQueue(job);
}

void Growths::GrowthTimedOut(Job& job) {
  FailGrowth(job, Error(Code::kResourceExhausted, "time is up: ",
                        job.growth->mapping ? "not mapped by " : "memory not created for ",
                        absl::StrJoin(job.Who(job.growth->Missing()), ", ")));
}

void Growths::RunGrowthQueue(Job& job) {
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
