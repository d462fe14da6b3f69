// What always holds between two inputs. For tests; each check names what is broken.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/limits.h"
#include "server/job/job_machine_impl.h"
#include "server/job/operations/operation.h"

namespace iris::server {
namespace {

template <typename... Parts>
absl::Status Broken(const Job& job, Parts... parts) {
  return absl::InternalError(absl::StrCat("job ", job.id.value, " '", job.name, "': ", parts...));
}

// Who has what a rank allocated alone open, and what becomes of it.
absl::Status CheckOpens(const Job& job, const HeapAllocation& allocation) {
  if (!IsOwnTeam(allocation.team)) {
    return allocation.opens->empty() && !allocation.freed
               ? absl::OkStatus()
               : Broken(job, "what several ranks allocated is open, or half freed");
  }
  if (allocation.freed && allocation.opens->empty())
    return Broken(job, "a range that was freed is nobody's");
  for (const auto& [rank, n] : *allocation.opens) {
    if (rank >= job.n_ranks() || rank == OwnerOf(allocation.team) || n == 0 ||
        job.ranks[rank].state == RankState::kLeft) {
      return Broken(job, "rank ", rank, " has something open");
    }
  }
  return absl::OkStatus();
}

bool HeldState(RankState state) {
  return state == RankState::kJoined || state == RankState::kMapped || state == RankState::kReady ||
         state == RankState::kEnding;
}

}  // namespace

absl::Status JobMachine::Impl::CheckInvariants() const {
  if (!out_.empty()) return absl::InternalError("effects were left behind");
  if (absl::Status s = CheckSessions(); !s.ok()) return s;
  if (jobs_by_name_.size() != jobs_.size())
    return absl::InternalError("names and jobs do not match");
  std::map<Party, std::set<JobId>> by_account;
  for (const auto& [id, job] : jobs_) {
    by_account[job->party.Account()].insert(id);
    if (absl::Status s = CheckJob(*job); !s.ok()) return s;
  }
  if (by_account != jobs_by_account_) return absl::InternalError("jobs per account do not add up");
  if (absl::Status s = CheckSegments(); !s.ok()) return s;
  if (absl::Status s = CheckWaitingCalls(); !s.ok()) return s;
  return CheckDeadlines();
}

absl::Status JobMachine::Impl::CheckSessions() const {
  std::map<Party, std::set<SessionId>> by_account;
  for (const auto& [id, session] : sessions_) by_account[session.caller.party.Account()].insert(id);
  if (by_account != sessions_by_account_)
    return absl::InternalError("sessions per account do not add up");
  for (const auto& [id, session] : sessions_) {
    if (session.id != id) return absl::InternalError("a session has another's id");
    if (!session.lease.has_value()) continue;
    const auto job = jobs_.find(session.lease->job);
    if (job == jobs_.end() || session.lease->rank >= job->second->n_ranks() ||
        job->second->ranks[session.lease->rank].lease.session != id) {
      return absl::InternalError(
          absl::StrCat("session ", id.value, " speaks for a lease that does not know it"));
    }
  }
  return absl::OkStatus();
}

absl::Status JobMachine::Impl::CheckJob(const Job& job) const {
  const auto named = jobs_by_name_.find({job.party, job.name});
  if (named == jobs_by_name_.end() || named->second != job.id)
    return Broken(job, "is not found by its name");
  if (job.n_ranks() == 0 || job.n_ranks() > wire::kMaxRanks) return Broken(job, "n_ranks");
  if (job.n_held() == 0) return Broken(job, "nobody is in it");
  if (job.heap_bytes > job.stride_bytes) return Broken(job, "the heap exceeds the stride");
  if (job.heap_bytes % granularity_bytes_ != 0 || job.stride_bytes % granularity_bytes_ != 0) {
    return Broken(job, "sizes off the granularity");
  }
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    if (absl::Status s = CheckMember(job, rank); !s.ok()) return s;
  }
  const bool committed = job.state == JobState::kReady || job.state == JobState::kBroken;
  if (committed != job.teams.contains(kWorldTeam))
    return Broken(job, "the world exists iff the epoch is committed");
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    if (committed != job.teams.contains(OwnTeam(rank)))
      return Broken(job, "rank ", rank, " has its own team iff the epoch is committed");
  }
  if (committed != (job.allocator.capacity_bytes() > 0))
    return Broken(job, "a heap without an epoch");
  uint64_t value_bytes = 0;
  for (const auto& [id, team] : job.teams) {
    if (team.info.id != id) return Broken(job, "team ", id, " has another's id");
    if (absl::Status s = CheckTeam(job, team); !s.ok()) return s;
    if (team.op.has_value()) value_bytes += HeldBytes(team.op->op);
    for (const Outcome& outcome : team.history) value_bytes += outcome.result.value.size();
  }
  for (const Team& team : *job.past_teams) {
    for (const Outcome& outcome : team.history) value_bytes += outcome.result.value.size();
  }
  if (value_bytes != job.value_bytes) return Broken(job, "bytes of values do not add up");
  if (job.slots_in_use.size() != job.n_teams()) return Broken(job, "slots and teams do not match");
  if (job.past_teams->size() > kMaxPastTeams) return Broken(job, "too many past teams");
  if (absl::Status s = CheckGrowth(job); !s.ok()) return s;
  return committed ? CheckHeap(job) : absl::OkStatus();
}

absl::Status JobMachine::Impl::CheckMember(const Job& job, Rank rank) const {
  const Member& member = job.ranks[rank];
  const auto broken = [&](absl::string_view text) {
    return Broken(job, "rank ", rank, ": ", text);
  };
  if (member.lease.held != HeldState(member.state)) return broken("is held in the wrong state");
  if (member.lease.held != (member.lease.session.value != 0)) {
    return broken("nobody speaks for it, or somebody for nothing");
  }
  if (member.lease.held) {
    const auto session = sessions_.find(member.lease.session);
    if (session == sessions_.end()) return broken("its session is not open");
    if (session->second.lease != LeaseRef{job.id, rank}) return broken("its session is elsewhere");
    const CallerInfo& caller = session->second.caller;
    if (!member.lease.OfProcess(caller) || caller.party != job.party) {
      return broken("its session is another process's");
    }
    const bool resumed_broken =
        job.state == JobState::kBroken && member.state == RankState::kEnding;
    const bool may_resume = deadlines_.Get({job.id, DeadlineKey::Kind::kResume, rank}).has_value();
    if (may_resume && (!session->second.ending || member.state != RankState::kReady)) {
      return broken("is to be resumed in the wrong state");
    }
    if (session->second.ending != (member.state == RankState::kEnding) && !resumed_broken &&
        !may_resume) {
      return broken("its session's end is not its own");
    }
  }
  if ((member.join_call.value != 0) && job.state != JobState::kForming)
    return broken("joins a formed job");
  if (!member.mapped_calls.empty() && job.state != JobState::kMapping)
    return broken("maps a mapped job");
  const bool starved = starved_.contains({job.id, rank});
  switch (job.state) {
    case JobState::kForming:
      if (member.state != RankState::kAbsent && member.state != RankState::kJoined)
        return broken("state");
      if (member.lease.held && member.join_call.value == 0 &&
          !deadlines_.Get({job.id, DeadlineKey::Kind::kWithdraw, rank}).has_value()) {
        return broken("is joined without a call");
      }
      if (member.segments.size() != (member.lease.held && !starved ? 1u : 0u))
        return broken("segments");
      break;
    case JobState::kMapping:
      if (member.state != RankState::kJoined && member.state != RankState::kMapped)
        return broken("state");
      if (starved || member.segments.size() != 1) return broken("segments");
      break;
    case JobState::kReady:
    case JobState::kBroken:
      if (member.state == RankState::kAbsent || member.state == RankState::kJoined ||
          member.state == RankState::kMapped) {
        return broken("state");
      }
      if (starved || member.segments.size() != job.ranks[0].segments.size())
        return broken("segments");
      break;
  }
  uint64_t end = 0;
  for (size_t i = 0; i < member.segments.size(); ++i) {
    const auto segment = segments_.find(member.segments[i]);
    if (segment == segments_.end() || segment->second.dropping) return broken("a segment is gone");
    const SegmentInfo& info = segment->second.info;
    if (info.rank != rank || info.index != i || info.offset_bytes != end)
      return broken("segments are out of order");
    end += info.bytes;
    if (job.state != JobState::kForming && !segment->second.created)
      return broken("a segment is not created");
  }
  if (!member.segments.empty() && end != job.heap_bytes)
    return broken("segments do not make up the heap");
  return absl::OkStatus();
}

absl::Status JobMachine::Impl::CheckTeam(const Job& job, const Team& team) const {
  const auto broken = [&](absl::string_view text) {
    return Broken(job, "team ", team.info.id, ": ", text);
  };
  const size_t n = team.info.ranks.size();
  if (n == 0 || team.position.size() != n) return broken("sizes");
  if (IsOwnTeam(team.info.id)) {
    if (team.info.ranks != std::vector<Rank>{OwnerOf(team.info.id)}) return broken("its rank");
  } else {
    if (!job.slots_in_use.contains(team.info.barrier_slot)) return broken("its slot is free");
    if (team.info.id >= job.next_team) return broken("an id from the future");
  }
  if (team.history.size() > kMaxOutcomesPerTeam) return broken("too much history");
  for (size_t i = 0; i < team.history.size(); ++i) {
    if (team.history[i].k + (team.history.size() - i) != team.next_k)
      return broken("history has a gap");
  }
  if (team.op.has_value()) {
    const PendingOp& op = *team.op;
    if (op.asked.size() != n || op.calls.size() != n || op.given.size() != n) {
      return broken("sizes of the operation");
    }
    for (size_t i = 0; i < n; ++i) {
      const bool gives =
          std::holds_alternative<RegisterOp>(*op.op) && op.asked[i] && !IsOwnTeam(team.info.id);
      if (gives == op.given[i].pieces.empty()) return broken("memory to be registered");
      for (const SegmentId id : op.given[i].pieces) {
        const auto piece = segments_.find(id);
        if (piece == segments_.end() || piece->second.dropping || !piece->second.registered ||
            piece->second.info.rank != team.info.ranks[i]) {
          return broken("memory that waits to be registered is gone");
        }
      }
    }
    if (!job.CheckAlive(team).ok()) return broken("an operation waits that cannot succeed");
    for (size_t i = 0; i < n; ++i) {
      if (!op.asked[i] && !op.calls[i].empty()) return broken("a call waits that did not ask");
      if (op.calls[i].size() > kMaxWaitingCallsPerRank) return broken("too many calls wait");
    }
  }
  for (size_t i = 0; i < n; ++i) {
    const bool asked = team.op.has_value() && team.op->asked[i];
    if (asked ? team.position[i] != team.next_k + 1 : team.position[i] > team.next_k)
      return broken("positions");
  }
  const bool all_asked = team.op.has_value() && team.op->AllAsked();
  const bool in_growth =
      (job.growth.has_value() && job.growth->team == team.info.id) ||
      std::count(job.growth_queue.begin(), job.growth_queue.end(), team.info.id) == 1;
  if (all_asked != in_growth)
    return broken("an operation that all asked for waits for no growth, or none does");
  const bool deadline =
      deadlines_.Get({job.id, DeadlineKey::Kind::kOperation, team.info.id}).has_value();
  if (deadline != (team.op.has_value() && !all_asked)) return broken("deadline");
  return absl::OkStatus();
}

absl::Status JobMachine::Impl::CheckHeap(const Job& job) const {
  if (absl::Status s = job.allocator.CheckInvariants(); !s.ok()) return Broken(job, s.message());
  if (job.allocator.capacity_bytes() != job.heap_bytes)
    return Broken(job, "allocator and heap differ in size");
  if (!job.given_back.empty()) return Broken(job, "pieces of registered memory are left behind");
  uint64_t end = 0;
  size_t n_registered = 0, n_pieces = 0;
  size_t n_named = 0, n_sync = 0;
  std::map<TeamId, size_t> by_team;
  for (const auto& entry : job.allocations) {
    const auto& [offset, allocation] = entry;
    const RegisteredMemory& registered = *allocation.registered;
    if (offset - registered.lead_bytes < end) return Broken(job, "allocations overlap at ", offset);
    if (registered.pieces.empty()) {
      end = offset + std::max<uint64_t>(allocation.bytes, 1);
      if (end > job.heap_bytes) return Broken(job, "an allocation beyond the heap");
    } else {
      if (absl::Status s = CheckRegistered(job, offset, allocation); !s.ok()) return s;
      end = offset - registered.lead_bytes + registered.piece_bytes;
      ++n_registered;
      n_pieces += registered.pieces.size();
    }
    if (offset % allocation.alignment_bytes() != 0)
      return Broken(job, "an allocation off its alignment");
    if (!allocation.label.name().empty() && !allocation.freed) {
      const auto name = job.names.find(&entry);
      if (name == job.names.end() || *name != &entry) return Broken(job, "a name is missing");
      ++n_named;
    }
    if (absl::Status s = CheckOpens(job, allocation); !s.ok()) return s;
    if (!job.teams.contains(allocation.team)) return Broken(job, "an allocation of no team");
    if (allocation.sync) {
      ++n_sync;
      if (job.teams.at(allocation.team).info.sync_offset_bytes != offset)
        return Broken(job, "a stray barrier area");
    } else {
      ++by_team[allocation.team];
    }
  }
  if (job.allocator.n_allocations() + n_registered != job.allocations.size())
    return Broken(job, "allocations do not match");
  for (const auto& [id, team] : job.teams) {
    if (!team.op.has_value()) continue;
    for (const GivenMemory& given : team.op->given) n_pieces += given.pieces.size();
  }
  if (n_pieces != job.n_pieces) return Broken(job, "pieces of registered memory do not add up");
  if (n_named != job.names.size()) return Broken(job, "names do not add up");
  if (n_sync != (job.team_sync_bytes > 0 ? job.n_teams() : 0))
    return Broken(job, "barrier areas do not add up");
  for (const auto& [id, team] : job.teams) {
    const auto count = by_team.find(id);
    if (team.n_allocations != (count == by_team.end() ? 0 : count->second)) {
      return Broken(job, "allocations of team ", id, " do not add up");
    }
  }
  return absl::OkStatus();
}

absl::Status JobMachine::Impl::CheckRegistered(const Job& job, uint64_t offset_bytes,
                                               const HeapAllocation& allocation) const {
  const uint64_t start = offset_bytes - allocation.registered->lead_bytes;
  const uint64_t end = start + allocation.registered->piece_bytes;
  const auto team = job.teams.find(allocation.team);
  if (team == job.teams.end()) return Broken(job, "registered memory of no team");
  // From where to where each member's pieces reach.
  std::map<Rank, std::pair<uint64_t, uint64_t>> reach;
  for (const SegmentId id : allocation.registered->pieces) {
    const auto piece = segments_.find(id);
    if (piece == segments_.end() || piece->second.dropping || !piece->second.registered) {
      return Broken(job, "a piece of registered memory is gone");
    }
    const SegmentInfo& info = piece->second.info;
    const auto [mine, first] =
        reach.try_emplace(info.rank, info.offset_bytes, info.offset_bytes + info.bytes);
    if (!first && mine->second.second != info.offset_bytes) {
      return Broken(job, "a piece of registered memory is not where it should be");
    }
    mine->second.second = info.offset_bytes + info.bytes;
  }
  uint64_t lowest = ~uint64_t{0}, highest = 0;
  for (const Rank rank : team->second.info.ranks) {
    const auto mine = reach.find(rank);
    if (mine == reach.end() || mine->second.first > offset_bytes ||
        offset_bytes + allocation.bytes > mine->second.second ||
        mine->second.first % granularity_bytes_ != 0) {
      return Broken(job, "rank ", rank, " has not registered what its team has");
    }
    lowest = std::min(lowest, mine->second.first);
    highest = std::max(highest, mine->second.second);
  }
  if (reach.size() != team->second.info.ranks.size() || lowest != start || highest != end) {
    return Broken(job, "registered memory at ", offset_bytes, " has another room than it needs");
  }
  const uint64_t floor =
      job.heap_bytes + (job.growth.has_value() ? job.growth->bytes : uint64_t{0});
  if (start < floor || end > job.stride_bytes) {
    return Broken(job, "registered memory at ", offset_bytes, " is not in its place");
  }
  return absl::OkStatus();
}

absl::Status JobMachine::Impl::CheckGrowth(const Job& job) const {
  for (const TeamId id : job.growth_queue) {
    const auto team = job.teams.find(id);
    if (team == job.teams.end() || !team->second.op.has_value())
      return Broken(job, "a team waits for no growth");
  }
  if (!job.growth.has_value()) {
    return job.growth_queue.empty() ? absl::OkStatus() : Broken(job, "a queue for no growth");
  }
  const Growth& growth = *job.growth;
  if (job.state != JobState::kReady) return Broken(job, "grows in the wrong state");
  const auto team = job.teams.find(growth.team);
  if (team == job.teams.end() || !team->second.op.has_value())
    return Broken(job, "a growth for nobody");
  if (growth.segments.size() != job.n_ranks())
    return Broken(job, "a growth has a segment per rank");
  if (growth.bytes > job.stride_bytes - job.heap_bytes)
    return Broken(job, "grows beyond the stride");
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    const auto segment = segments_.find(growth.segments[rank]);
    if (segment == segments_.end() || segment->second.dropping)
      return Broken(job, "a growth's segment is gone");
    if (segment->second.created != growth.created[rank])
      return Broken(job, "a growth's segment is not as it says");
    if (growth.mapping && !growth.created[rank]) return Broken(job, "maps what is not created");
    if (!growth.mapping && growth.mapped[rank]) return Broken(job, "mapped what is not announced");
  }
  return absl::OkStatus();
}

absl::Status JobMachine::Impl::CheckSegments() const {
  std::map<Party, uint64_t> by_account, dropping_by_account, descriptors;
  std::map<uint32_t, uint64_t> by_device, dropping_by_device;
  for (const auto& [id, job] : jobs_) descriptors[job->party.Account()] += job->n_ranks() + 1;
  size_t n_kept = 0;
  for (const auto& [id, segment] : segments_) {
    ++descriptors[segment.holder.party.Account()];
    if (segment.registered) {
      n_kept += segment.dropping ? 0 : 1;
      continue;
    }
    by_account[segment.holder.party.Account()] += segment.info.bytes;
    by_device[segment.device_index] += segment.info.bytes;
    if (segment.dropping) {
      dropping_by_account[segment.holder.party.Account()] += segment.info.bytes;
      dropping_by_device[segment.device_index] += segment.info.bytes;
    } else {
      ++n_kept;
    }
  }
  if (descriptors != descriptors_by_account_) return absl::InternalError("descriptors of a user");
  if (by_account != booked_bytes_by_account_)
    return absl::InternalError("bytes per account do not add up");
  if (dropping_by_account != dropping_bytes_by_account_)
    return absl::InternalError("dropping bytes per account");
  if (dropping_by_device != dropping_bytes_by_device_)
    return absl::InternalError("dropping bytes per device");
  for (uint32_t i = 0; i < ledger_.devices().size(); ++i) {
    const auto found = by_device.find(i);
    if (ledger_.devices()[i].used_bytes != (found == by_device.end() ? 0 : found->second)) {
      return absl::InternalError(
          absl::StrCat("the ledger of device ", i, " is not the sum of its segments"));
    }
  }
  const auto watched = [&](const Party& party, const KeptMemory::Process& process) {
    return std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
      return entry.second.caller.party.Account() == party.Account() &&
             KeptMemory::ProcessOf(entry.second.caller) == process;
    });
  };
  for (const auto& [account, parts] : kept_->all()) {
    if (limits_.max_heap_bytes_per_uid == 0) return absl::InternalError("memory kept off no quota");
    if (parts.size() > KeptMemory::kMaxPartsPerUid) return absl::InternalError("too much is kept");
    for (const auto& [holders, bytes] : parts) {
      if (bytes == 0 || holders.empty()) return absl::InternalError("nothing is kept");
      for (const KeptMemory::Process& process : holders) {
        if (!watched(account, process)) return absl::InternalError("memory is kept for ever");
      }
    }
  }
  size_t n_held = 0;
  for (const auto& [id, job] : jobs_) {
    for (const Member& member : job->ranks) {
      if (member.keeps_memory &&
          (limits_.max_heap_bytes_per_uid == 0 ||
           !watched(job->party, KeptMemory::ProcessOf(member.lease.process)))) {
        return absl::InternalError("a process that may keep memory is not watched");
      }
    }
    for (const Member& member : job->ranks) n_held += member.segments.size();
    if (job->growth.has_value()) n_held += job->growth->segments.size();
    n_held += job->n_pieces;
  }
  if (n_held != n_kept) return absl::InternalError("a segment belongs to no job");
  for (const auto& [job, rank] : starved_) {
    if (!jobs_.contains(job)) return absl::InternalError("a rank of no job waits for memory");
  }
  if (!starved_.empty() && dropping_bytes_by_device_.empty()) {
    return absl::InternalError("a rank waits for memory that nobody drops");
  }
  return absl::OkStatus();
}

absl::Status JobMachine::Impl::CheckWaitingCalls() const {
  size_t n_waiting = 0;
  const auto known = [&](CallId call, WaitingCall::Kind kind, const Job& job, Rank rank) {
    ++n_waiting;
    const auto found = waiting_.find(call);
    return found != waiting_.end() && found->second.kind == kind && found->second.job == job.id &&
           found->second.rank == rank;
  };
  for (const auto& [id, job] : jobs_) {
    for (Rank rank = 0; rank < job->n_ranks(); ++rank) {
      const Member& member = job->ranks[rank];
      if (member.join_call.value != 0 &&
          !known(member.join_call, WaitingCall::Kind::kJoin, *job, rank)) {
        return Broken(*job, "a Join waits unknown");
      }
      for (const CallId call : member.mapped_calls) {
        if (!known(call, WaitingCall::Kind::kMapped, *job, rank))
          return Broken(*job, "a Mapped waits unknown");
      }
      for (const AwaitedBarrier& barrier : member.barriers) {
        if (!known(barrier.call, WaitingCall::Kind::kBarrier, *job, rank)) {
          return Broken(*job, "a host barrier waits unknown");
        }
      }
    }
    for (const auto& [team_id, team] : job->teams) {
      if (!team.op.has_value()) continue;
      for (size_t i = 0; i < team.op->calls.size(); ++i) {
        for (const CallId call : team.op->calls[i]) {
          if (!known(call, WaitingCall::Kind::kOperation, *job, team.info.ranks[i])) {
            return Broken(*job, "an operation waits unknown");
          }
        }
      }
    }
  }
  if (n_waiting != waiting_.size()) return absl::InternalError("a call waits for nothing");
  return absl::OkStatus();
}

absl::Status JobMachine::Impl::CheckDeadlines() const {
  size_t n = 0;
  for (const auto& [id, job] : jobs_) {
    for (Rank rank = 0; rank < job->n_ranks(); ++rank) {
      const bool joining = job->ranks[rank].join_call.value != 0;
      if (deadlines_.Get({id, DeadlineKey::Kind::kJoin, rank}).has_value() != joining) {
        return Broken(*job, "rank ", rank, ": deadline of its Join");
      }
      const bool cancelled = deadlines_.Get({id, DeadlineKey::Kind::kWithdraw, rank}).has_value();
      if (cancelled && (joining || job->ranks[rank].state != RankState::kJoined)) {
        return Broken(*job, "rank ", rank, ": deadline to withdraw its Join");
      }
      const bool may_resume = deadlines_.Get({id, DeadlineKey::Kind::kResume, rank}).has_value();
      if (may_resume && !job->ranks[rank].lease.held) {
        return Broken(*job, "rank ", rank, ": deadline to resume it");
      }
      n += joining + cancelled + may_resume;
    }
    const bool mapping = job->state == JobState::kMapping;
    if (deadlines_.Get({id, DeadlineKey::Kind::kMap}).has_value() != mapping)
      return Broken(*job, "deadline to map");
    if (deadlines_.Get({id, DeadlineKey::Kind::kGrow}).has_value() != job->growth.has_value()) {
      return Broken(*job, "deadline of a growth");
    }
    n += mapping + job->growth.has_value();
    for (const auto& [team_id, team] : job->teams) {
      n += deadlines_.Get({id, DeadlineKey::Kind::kOperation, team_id}).has_value();
    }
  }
  if (n != deadlines_.size()) return absl::InternalError("a deadline of nothing");
  return absl::OkStatus();
}

}  // namespace iris::server
