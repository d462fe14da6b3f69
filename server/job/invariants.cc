// The invariants of the machine between two inputs, for tests, and for states that were read. Each
// check names the broken invariant.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/limits.h"
#include "server/job/job_machine_impl.h"

namespace iris::server {
namespace {

using Impl = JobMachine::Impl;
using Due = DeadlineKey::Kind;

class Invariants {
 public:
  explicit Invariants(const Impl& impl) : impl_(impl) {}

  absl::Status Check() {
    Hold(impl_.out_.empty(), "effects were left behind");
    Sessions();
    Hold(impl_.jobs_by_name_.size() == impl_.jobs_.size(), "names and jobs do not match");
    std::map<Party, std::set<JobId>> by_account;
    for (const auto& [id, job] : impl_.jobs_) {
      by_account[job->party.Account()].insert(id);
      if (!OneJob(*job)) return broken_;
    }
    Hold(by_account == impl_.jobs_by_account_, "jobs per account do not add up");
    if (broken_.ok()) Segments();
    if (broken_.ok()) Kept();
    if (broken_.ok()) WaitingCalls();
    if (broken_.ok()) Deadlines();
    return broken_;
  }

 private:
  // Each of these returns true if the condition holds, and remembers the first one that does not.
  template <typename... Parts>
  bool Hold(bool holds, const Parts&... parts) {
    if (!holds && broken_.ok()) broken_ = absl::InternalError(absl::StrCat(parts...));
    return holds;
  }
  template <typename... Parts>
  bool Hold(const Job& job, bool holds, const Parts&... parts) {
    return holds || Hold(holds, "job ", job.id.value, " '", job.name, "': ", parts...);
  }

  // Returns null if the segment does not exist, or is being dropped.
  const Segment* Live(SegmentId id) const {
    const Segment* const segment = impl_.segments_.Find(id);
    return segment == nullptr || segment->dropping ? nullptr : segment;
  }
  bool IsDue(const DeadlineKey& key) const { return impl_.deadlines_.Get(key).has_value(); }

  void Sessions() {
    std::map<Party, std::set<SessionId>> by_account;
    for (const auto& [id, session] : impl_.sessions_) {
      by_account[session.caller.party.Account()].insert(id);
      Hold(session.id == id, "a session has another's id");
      if (!session.lease.has_value()) continue;
      const auto job = impl_.jobs_.find(session.lease->job);
      Hold(job != impl_.jobs_.end() && session.lease->rank < job->second->n_ranks() &&
               job->second->ranks[session.lease->rank].lease.session == id,
           "session ", id.value, " speaks for a lease that does not know it");
    }
    Hold(by_account == impl_.sessions_by_account_, "sessions per account do not add up");
  }

  bool OneJob(const Job& job) {
    const auto named = impl_.jobs_by_name_.find({job.party, job.name});
    Hold(job, named != impl_.jobs_by_name_.end() && named->second == job.id,
         "is not found by its name");
    const uint32_t most = job.nodes.has_value() ? wire::kMaxWorldRanks : wire::kMaxRanks;
    if (!Hold(job, job.n_ranks() > 0 && job.n_ranks() <= most, "n_ranks")) return false;
    if (job.nodes.has_value()) {
      const JobNodes& nodes = *job.nodes;
      if (!Hold(job,
                nodes.n_local > 0 && nodes.n_local <= wire::kMaxRanks &&
                    nodes.own < job.n_ranks() && nodes.n_local <= job.n_ranks() - nodes.own &&
                    nodes.all.contains(nodes.own),
                "its nodes")) {
        return false;
      }
      for (size_t i = 0; i < nodes.outbox.size(); ++i) {
        Hold(job,
             nodes.outbox[i].job == job.id &&
                 nodes.outbox[i].number + nodes.outbox.size() == nodes.sent + i + 1,
             "the numbers of its messages to other nodes");
      }
      Hold(job, (nodes.epoch != 0) == (job.state != JobState::kForming), "its layout");
      const auto [first, end] = nodes.MappedBy(nodes.own);
      if (!Hold(job,
                first <= nodes.own && end >= nodes.own + nodes.n_local && end <= job.n_ranks() &&
                    end - first <= wire::kMaxRanks,
                "the ranks that its ranks map")) {
        return false;
      }
    }
    const bool decides_for_others = job.nodes.has_value() && job.nodes->leads();
    Hold(job, job.n_held() > 0 || decides_for_others, "nobody is in it");
    Hold(job, job.heap_bytes <= job.stride_bytes, "the heap exceeds the stride");
    Hold(job,
         job.heap_bytes % impl_.granularity_bytes_ == 0 &&
             job.stride_bytes % impl_.granularity_bytes_ == 0,
         "sizes off the granularity");
    const bool committed = !job.is_starting();
    for (Rank rank = 0; rank < job.n_ranks(); ++rank) OneMember(job, rank);
    Hold(job, committed == job.teams.contains(kWorldTeam),
         "the world exists iff the epoch is committed");
    for (Rank rank = job.first_local(); rank < job.end_local(); ++rank) {
      Hold(job, committed == job.teams.contains(OwnTeam(rank)), "rank ", rank,
           " has its own team iff the epoch is committed");
    }
    Hold(job, committed == (job.allocator.capacity_bytes() > 0), "a heap without an epoch");
    uint64_t value_bytes = 0;
    for (const auto& [id, team] : job.teams) {
      Hold(job, team.info.id == id, "team ", id, " has another's id");
      if (!OneTeam(job, team)) return false;
      if (team.op.has_value()) value_bytes += HeldBytes(team.op->op);
      for (const Outcome& outcome : team.history) value_bytes += outcome.result.value.size();
    }
    for (const Team& team : *job.past_teams) {
      for (const Outcome& outcome : team.history) value_bytes += outcome.result.value.size();
    }
    Hold(job, value_bytes == job.value_bytes, "bytes of values do not add up");
    Hold(job, job.slots_in_use.size() == job.n_teams(), "slots and teams do not match");
    Hold(job, job.past_teams->size() <= kMaxPastTeams, "too many past teams");
    if (broken_.ok()) OneGrowth(job);
    if (broken_.ok() && committed) Heap(job);
    return broken_.ok();
  }

  void OneMember(const Job& job, Rank rank) {
    const Member& member = job.ranks[rank];
    const auto hold = [&](bool holds, absl::string_view text) {
      return Hold(job, holds, "rank ", rank, ": ", text);
    };
    const Lease& lease = member.lease;
    const RankState state = member.state;
    if (!job.IsLocal(rank)) {
      hold(!lease.held && member.barriers.empty() && member.join_call.value == 0 &&
               member.mapped_calls.empty(),
           "is of another node, and has something here");
      hold(job.is_starting() == (state == RankState::kAbsent), "state");
      const bool imported = job.IsMapped(rank) && job.state != JobState::kForming;
      const size_t n_segments = imported ? job.ranks[job.first_local()].segments.size() : 0;
      if (hold(member.segments.size() == n_segments, "imported segments")) {
        InOrder(job, rank, /*imported=*/true);
      }
      return;
    }
    hold(lease.held == (state >= RankState::kJoined && state <= RankState::kEnding),
         "is held in the wrong state");
    hold(lease.held == (lease.session.value != 0), "nobody speaks for it, or somebody for nothing");
    if (lease.held) {
      const Impl::Session* const session = impl_.sessions_.Find(lease.session);
      if (!hold(session != nullptr, "its session is not open")) return;
      hold(session->lease == LeaseRef{job.id, rank}, "its session is elsewhere");
      hold(lease.OfProcess(session->caller) && session->caller.party == job.party,
           "its session is another process's");
      const bool resumed_broken =
          job.state == JobState::kBroken && member.state == RankState::kEnding;
      const bool may_resume = IsDue({job.id, Due::kResume, rank});
      hold(!may_resume || (session->ending && member.state == RankState::kReady),
           "is to be resumed in the wrong state");
      hold(session->ending == (member.state == RankState::kEnding) || resumed_broken || may_resume,
           "its session's end is not its own");
    }
    hold(member.join_call.value == 0 || job.state == JobState::kForming, "joins a formed job");
    hold(member.mapped_calls.empty() || job.state == JobState::kMapping, "maps a mapped job");
    const bool starved = impl_.starved_.contains({job.id, rank});
    size_t n_segments = job.ranks[job.first_local()].segments.size();
    if (job.state == JobState::kForming) {
      hold(state == RankState::kAbsent || state == RankState::kJoined, "state");
      hold(!lease.held || member.join_call.value != 0 || IsDue({job.id, Due::kWithdraw, rank}),
           "is joined without a call");
      n_segments = lease.held && !starved ? 1 : 0;
    } else if (job.state == JobState::kMapping) {
      hold(state == RankState::kJoined || state == RankState::kMapped, "state");
      n_segments = 1;
    } else {
      hold(
          state != RankState::kAbsent && state != RankState::kJoined && state != RankState::kMapped,
          "state");
    }
    hold(member.segments.size() == n_segments && (!starved || job.state == JobState::kForming),
         "segments");
    InOrder(job, rank, /*imported=*/false);
  }

  // Checks that the segments of a rank are its heap.
  void InOrder(const Job& job, Rank rank, bool imported) {
    const Member& member = job.ranks[rank];
    const auto hold = [&](bool holds, absl::string_view text) {
      return Hold(job, holds, "rank ", rank, ": ", text);
    };
    uint64_t end = 0;
    for (size_t i = 0; i < member.segments.size(); ++i) {
      const Segment* const segment = Live(member.segments[i]);
      if (!hold(segment != nullptr, "a segment is gone")) return;
      const SegmentInfo& info = segment->info;
      hold(info.rank == rank && info.index == i && info.offset_bytes == end,
           "segments are out of order");
      end += info.bytes;
      hold(segment->created || job.state == JobState::kForming, "a segment is not created");
      hold(segment->imported == imported && !segment->registered, "a segment of another kind");
    }
    hold(member.segments.empty() || end == job.heap_bytes, "segments do not make up the heap");
  }

  bool OneTeam(const Job& job, const Team& team) {
    const auto hold = [&](bool holds, absl::string_view text) {
      return Hold(job, holds, "team ", team.info.id, ": ", text);
    };
    const size_t n = team.info.ranks.size();
    const bool own = IsOwnTeam(team.info.id);
    if (!hold(n > 0 && team.position.size() == n, "sizes")) return false;
    if (own) {
      hold(team.info.ranks == std::vector<Rank>{OwnerOf(team.info.id)}, "its rank");
    } else {
      hold(job.slots_in_use.contains(team.info.barrier_slot), "its slot is free");
      hold(team.info.id < job.next_team, "an id from the future");
    }
    hold(team.history.size() <= kMaxOutcomesPerTeam, "too much history");
    for (size_t i = 0; i < team.history.size(); ++i) {
      hold(team.history[i].k + (team.history.size() - i) == team.next_k, "history has a gap");
    }
    if (team.op.has_value()) {
      const PendingOp& op = *team.op;
      if (!hold(op.asked.size() == n && op.calls.size() == n && op.given.size() == n,
                "sizes of the operation")) {
        return false;
      }
      for (size_t i = 0; i < n; ++i) {
        const bool gives = std::holds_alternative<RegisterOp>(*op.op) && op.asked[i] &&
                           job.IsLocal(team.info.ranks[i]);
        const bool has = !op.given[i].pieces.empty();
        // The leader of another node tells why a rank can give nothing.
        hold(has == gives || (gives && !job.Decides()), "memory to be registered");
        for (const SegmentId id : op.given[i].pieces) {
          const Segment* const piece = Live(id);
          hold(piece != nullptr && piece->registered && piece->info.rank == team.info.ranks[i],
               "memory that waits to be registered is gone");
        }
      }
      hold(!job.Decides() || job.CheckAlive(team).ok(), "an operation waits that cannot succeed");
      for (size_t i = 0; i < n; ++i) {
        hold(op.asked[i] || op.calls[i].empty(), "a call waits that did not ask");
        hold(op.calls[i].size() <= kMaxWaitingCallsPerRank, "too many calls wait");
      }
    }
    for (size_t i = 0; i < n; ++i) {
      const bool asked = team.op.has_value() && team.op->asked[i];
      hold(asked ? team.position[i] == team.next_k + 1 : team.position[i] <= team.next_k,
           "positions");
    }
    if (!job.Decides()) {
      hold(!IsDue({job.id, Due::kOperation, team.info.id}), "deadline of what the leader decides");
      return broken_.ok();
    }
    const bool all_asked = team.op.has_value() && team.op->AllAsked();
    const bool in_growth =
        (job.growth.has_value() && job.growth->team == team.info.id) ||
        std::count(job.growth_queue.begin(), job.growth_queue.end(), team.info.id) == 1;
    hold(all_asked == in_growth,
         "an operation that all asked for waits for no growth, or none does");
    hold(IsDue({job.id, Due::kOperation, team.info.id}) == (team.op.has_value() && !all_asked),
         "deadline");
    return broken_.ok();
  }

  void Heap(const Job& job) {
    const absl::Status ranges = job.allocator.CheckInvariants();
    Hold(job, ranges.ok(), ranges.message());
    Hold(job, job.allocator.capacity_bytes() == job.heap_bytes,
         "allocator and heap differ in size");
    Hold(job, job.given_back.empty(), "pieces of registered memory are left behind");
    uint64_t end = 0;
    size_t n_registered = 0, n_pieces = 0;
    size_t n_named = 0, n_sync = 0;
    std::map<TeamId, size_t> by_team;
    for (const auto& entry : job.allocations) {
      const auto& [offset, allocation] = entry;
      const RegisteredMemory& registered = *allocation.registered;
      Hold(job, offset - registered.lead_bytes >= end, "allocations overlap at ", offset);
      const Team* const team = job.teams.Find(allocation.team);
      if (!allocation.is_registered()) {
        end = offset + std::max<uint64_t>(allocation.bytes, 1);
        Hold(job, end <= job.heap_bytes, "an allocation beyond the heap");
      } else {
        if (!Hold(job, team != nullptr, "registered memory of no team")) return;
        Registered(job, *team, offset, allocation);
        end = offset - registered.lead_bytes + registered.piece_bytes;
        ++n_registered;
        n_pieces += registered.pieces.size();
      }
      Hold(job, offset % allocation.alignment_bytes() == 0, "an allocation off its alignment");
      if (!allocation.label.name().empty() && !allocation.freed) {
        const auto name = job.names.find(&entry);
        Hold(job, name != job.names.end() && *name == &entry, "a name is missing");
        ++n_named;
      }
      Opens(job, allocation);
      if (!Hold(job, team != nullptr, "an allocation of no team")) return;
      if (allocation.sync) {
        ++n_sync;
        Hold(job, team->info.sync_offset_bytes == offset, "a stray barrier area");
      } else {
        ++by_team[allocation.team];
      }
    }
    Hold(job, job.allocator.n_allocations() + n_registered == job.allocations.size(),
         "allocations do not match");
    for (const auto& [id, team] : job.teams) {
      Hold(job, team.n_allocations == by_team[id], "allocations of team ", id, " do not add up");
      if (!team.op.has_value()) continue;
      for (const GivenMemory& given : team.op->given) n_pieces += given.pieces.size();
    }
    Hold(job, n_pieces == job.n_pieces, "pieces of registered memory do not add up");
    Hold(job, n_named == job.names.size(), "names do not add up");
    Hold(job, n_sync == (job.team_sync_bytes > 0 ? job.n_teams() : 0),
         "barrier areas do not add up");
  }

  // Checks which ranks have an allocation of another rank open, and whether it is freed.
  void Opens(const Job& job, const HeapAllocation& allocation) {
    if (!IsOwnTeam(allocation.team)) {
      Hold(job, allocation.opens->empty() && !allocation.freed,
           "what several ranks allocated is open, or half freed");
      return;
    }
    Hold(job, !allocation.freed || !allocation.opens->empty(),
         "a range that was freed is nobody's");
    for (const auto& [rank, n] : *allocation.opens) {
      Hold(job,
           rank < job.n_ranks() && rank != OwnerOf(allocation.team) && n > 0 &&
               job.ranks[rank].state != RankState::kLeft,
           "rank ", rank, " has something open");
    }
  }

  void Registered(const Job& job, const Team& team, uint64_t offset_bytes,
                  const HeapAllocation& allocation) {
    const uint64_t start = offset_bytes - allocation.registered->lead_bytes;
    const uint64_t end = start + allocation.registered->piece_bytes;
    // The range of each rank's pieces.
    std::map<Rank, std::pair<uint64_t, uint64_t>> reach;
    for (const SegmentId id : allocation.registered->pieces) {
      const Segment* const piece = Live(id);
      if (!Hold(job, piece != nullptr && piece->registered,
                "a piece of registered memory is gone")) {
        return;
      }
      const SegmentInfo& info = piece->info;
      const auto [mine, first] =
          reach.try_emplace(info.rank, info.offset_bytes, info.offset_bytes + info.bytes);
      Hold(job, first || mine->second.second == info.offset_bytes,
           "a piece of registered memory is not where it should be");
      mine->second.second = info.offset_bytes + info.bytes;
    }
    uint64_t lowest = ~uint64_t{0}, highest = 0;
    size_t n_local = 0;
    for (const Rank rank : team.info.ranks) {
      if (!job.IsLocal(rank)) continue;
      ++n_local;
      const auto mine = reach.find(rank);
      if (!Hold(job,
                mine != reach.end() && mine->second.first <= offset_bytes &&
                    offset_bytes + allocation.bytes <= mine->second.second &&
                    mine->second.first % impl_.granularity_bytes_ == 0,
                "rank ", rank, " has not registered what its team has")) {
        return;
      }
      lowest = std::min(lowest, mine->second.first);
      highest = std::max(highest, mine->second.second);
    }
    const bool all_here = n_local == team.info.ranks.size();
    Hold(job,
         reach.size() == n_local &&
             (all_here ? lowest == start && highest == end : lowest >= start && highest <= end),
         "registered memory at ", offset_bytes, " has another room than it needs");
    Hold(job, start >= job.HeapEndBytes() && end <= job.stride_bytes, "registered memory at ",
         offset_bytes, " is not in its place");
  }

  void OneGrowth(const Job& job) {
    const auto asks = [&](TeamId id) {
      const Team* const team = job.teams.Find(id);
      return team != nullptr && team->op.has_value();
    };
    for (const TeamId id : job.growth_queue) Hold(job, asks(id), "a team waits for no growth");
    if (!job.growth.has_value()) {
      Hold(job, job.growth_queue.empty(), "a queue for no growth");
      return;
    }
    const Growth& growth = *job.growth;
    Hold(job, job.state == JobState::kReady, "grows in the wrong state");
    Hold(job, asks(growth.team) || !job.Decides(), "a growth for nobody");
    Hold(job, growth.bytes <= job.stride_bytes - job.heap_bytes, "grows beyond the stride");
    if (!Hold(job, growth.segments.size() == job.n_ranks(), "a growth has a segment per rank")) {
      return;
    }
    for (Rank rank = job.first_local(); rank < job.end_local(); ++rank) {
      const Segment* const segment = Live(growth.segments[rank]);
      if (!Hold(job, segment != nullptr, "a growth's segment is gone")) return;
      Hold(job, segment->created == growth.created[rank], "a growth's segment is not as it says");
      Hold(job, !growth.mapping || growth.created[rank], "maps what is not created");
      Hold(job, growth.mapping || !growth.mapped[rank], "mapped what is not announced");
    }
    for (Rank rank = job.first_mapped(); rank < job.end_mapped(); ++rank) {
      Hold(job, job.IsLocal(rank) || (Live(growth.segments[rank]) != nullptr) == growth.mapping,
           "a growth's imported segment");
    }
  }

  void Segments() {
    std::map<Party, uint64_t> by_account, dropping_by_account, descriptors;
    std::map<uint32_t, uint64_t> by_device, dropping_by_device;
    size_t n_live = 0, n_owned = 0;
    for (const auto& [id, segment] : impl_.segments_) {
      const Party account = segment.holder.party.Account();
      ++descriptors[account];
      if (!segment.dropping) ++n_live;
      if (!segment.is_booked()) continue;
      by_account[account] += segment.info.bytes;
      by_device[segment.device_index] += segment.info.bytes;
      if (!segment.dropping) continue;
      dropping_by_account[account] += segment.info.bytes;
      dropping_by_device[segment.device_index] += segment.info.bytes;
    }
    for (const auto& [id, job] : impl_.jobs_) {
      descriptors[job->party.Account()] += job->n_pages();
      for (const Member& member : job->ranks) n_owned += member.segments.size();
      if (job->growth.has_value()) {
        n_owned += job->growth->mapping ? job->end_mapped() - job->first_mapped()
                                        : job->end_local() - job->first_local();
      }
      n_owned += job->n_pieces;
    }
    Hold(descriptors == impl_.descriptors_by_account_, "descriptors of a user");
    Hold(by_account == impl_.booked_bytes_by_account_, "bytes per account do not add up");
    Hold(dropping_by_account == impl_.dropping_bytes_by_account_, "dropping bytes per account");
    Hold(dropping_by_device == impl_.dropping_bytes_by_device_, "dropping bytes per device");
    for (uint32_t i = 0; i < impl_.ledger_.devices().size(); ++i) {
      Hold(impl_.ledger_.devices()[i].used_bytes == by_device[i], "the ledger of device ", i,
           " is not the sum of its segments");
    }
    Hold(n_owned == n_live, "a segment belongs to no job");
    for (const auto& [job, rank] : impl_.starved_) {
      Hold(impl_.jobs_.contains(job), "a rank of no job waits for memory");
    }
    Hold(impl_.starved_.empty() || !impl_.dropping_bytes_by_device_.empty(),
         "a rank waits for memory that nobody drops");
  }

  void Kept() {
    const bool has_quota = impl_.limits_.max_heap_bytes_per_uid != 0;
    const auto watched = [&](const Party& party, const KeptMemory::Process& process) {
      return std::any_of(impl_.sessions_.begin(), impl_.sessions_.end(), [&](const auto& entry) {
        return entry.second.caller.party.Account() == party.Account() &&
               KeptMemory::ProcessOf(entry.second.caller) == process;
      });
    };
    for (const auto& [account, parts] : impl_.kept_->all()) {
      Hold(has_quota, "memory kept off no quota");
      Hold(parts.size() <= KeptMemory::kMaxPartsPerUid, "too much is kept");
      for (const auto& [holders, bytes] : parts) {
        Hold(bytes > 0 && !holders.empty(), "nothing is kept");
        for (const KeptMemory::Process& process : holders) {
          Hold(watched(account, process), "memory is kept for ever");
        }
      }
    }
    for (const auto& [id, job] : impl_.jobs_) {
      for (const Member& member : job->ranks) {
        if (!member.keeps_memory) continue;
        Hold(has_quota && watched(job->party, KeptMemory::ProcessOf(member.lease.process)),
             "a process that may keep memory is not watched");
      }
    }
  }

  void WaitingCalls() {
    using Kind = Impl::WaitingCall::Kind;
    size_t n_waiting = 0;
    for (const auto& [id, each] : impl_.jobs_) {
      const Job& job = *each;
      const auto known = [&](CallId call, Kind kind, Rank rank, absl::string_view what) {
        ++n_waiting;
        const auto found = impl_.waiting_.find(call);
        Hold(job,
             found != impl_.waiting_.end() && found->second.kind == kind &&
                 found->second.job == job.id && found->second.rank == rank,
             what, " waits unknown");
      };
      for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
        const Member& member = job.ranks[rank];
        if (member.join_call.value != 0) known(member.join_call, Kind::kJoin, rank, "a Join");
        for (const CallId call : member.mapped_calls) known(call, Kind::kMapped, rank, "a Mapped");
        for (const AwaitedBarrier& barrier : member.barriers) {
          known(barrier.call, Kind::kBarrier, rank, "a host barrier");
        }
      }
      for (const auto& [team_id, team] : job.teams) {
        for (size_t i = 0; team.op.has_value() && i < team.op->calls.size(); ++i) {
          for (const CallId call : team.op->calls[i]) {
            known(call, Kind::kOperation, team.info.ranks[i], "an operation");
          }
        }
      }
    }
    Hold(n_waiting == impl_.waiting_.size(), "a call waits for nothing");
  }

  void Deadlines() {
    size_t n = 0;
    for (const auto& [id, job] : impl_.jobs_) {
      for (Rank rank = 0; rank < job->n_ranks(); ++rank) {
        const Member& member = job->ranks[rank];
        const bool joining = IsDue({id, Due::kJoin, rank});
        const bool cancelled = IsDue({id, Due::kWithdraw, rank});
        const bool may_resume = IsDue({id, Due::kResume, rank});
        Hold(*job, joining == (member.join_call.value != 0), "rank ", rank,
             ": deadline of its Join");
        Hold(*job, !cancelled || (!joining && member.state == RankState::kJoined), "rank ", rank,
             ": deadline to withdraw its Join");
        Hold(*job, !may_resume || member.lease.held, "rank ", rank, ": deadline to resume it");
        n += joining + cancelled + may_resume;
      }
      const bool mapping = IsDue({id, Due::kMap});
      const bool growing = IsDue({id, Due::kGrow});
      Hold(*job, mapping == (job->state == JobState::kMapping), "deadline to map");
      Hold(*job, growing == (job->growth.has_value() && job->Decides()), "deadline of a growth");
      n += mapping + growing;
      for (const auto& [team_id, team] : job->teams) n += IsDue({id, Due::kOperation, team_id});
    }
    Hold(n == impl_.deadlines_.size(), "a deadline of nothing");
  }

  const Impl& impl_;
  absl::Status broken_;
};

}  // namespace

absl::Status JobMachine::CheckInvariants() const { return Invariants(*impl_).Check(); }

}  // namespace iris::server
