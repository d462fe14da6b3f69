#include "server/job/rendezvous.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "device/base/bytes.h"
#include "proto/wire/limits.h"
#include "server/heap/check.h"

namespace iris::server {
namespace {

// Errors name at most this many ranks that have not mapped.
constexpr size_t kRanksNamed = 16;

uint64_t RoundUp(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

}  // namespace

void Rendezvous::On(const JoinCall& in) {
  const auto& [id, call, spec] = in;
  const auto calling = CallingSession(id);
  if (!calling.ok()) return Answer(call, calling.status());
  Session* const session = FindSession(id);
  if (JoinAgain(*session, call, spec)) return;
  if (Job* job = JobOf(*session); job != nullptr) {
    // Ends a Join that the session cancelled and that is about to be withdrawn.
    const Rank rank = session->lease->rank;
    if (deadlines_.Get({job->id, Due::kWithdraw, rank}).has_value()) {
      WithdrawCancelled(*job, rank);
    }
  }
  const absl::Status told = RefusedBefore(*session, spec);
  const absl::Status status = told.ok() ? TryJoin(*session, call, spec) : told;
  if (status.ok()) return;
  Emit(EmitEvent{{CleanText(spec.job, wire::kMaxJobNameBytes), spec.rank, session->caller.pid,
                  session->caller.party, event::JoinFailed{std::string(status.message())}}});
  Answer(call, status);
  if (told.ok()) RefuseJob(*session, spec, status);
}

absl::Status Rendezvous::TryJoin(Session& session, CallId call, const JoinSpec& asked) {
  if (const Job* current = JobOf(session); current != nullptr) {
    return Error(Code::kFailedPrecondition, "join: this session is already rank ",
                 session.lease->rank, " of job '", current->name, "': leave it first");
  }
  const auto checked = CheckJoin(asked);
  if (!checked.ok()) return checked.status();
  const JoinSpec& spec = *checked;
  const Party& party = session.caller.party;
  const Rank rank = static_cast<Rank>(spec.rank);
  const uint32_t device_index = static_cast<uint32_t>(ledger_.IndexOf(spec.device_uuid));
  const Name name(party, spec.job);
  Job* job = FindJob(name);
  const absl::Status fits = job == nullptr ? CheckJobLimits(party) : CheckMayJoin(*job, spec);
  if (!fits.ok()) return fits;
  if (absl::Status s = CheckPeers(job, spec, device_index); !s.ok()) return s;
  if (absl::Status s = CheckMemory(device_index, spec.heap_bytes, {spec.job, rank, party});
      !s.ok()) {
    return s;
  }
  // A new job needs descriptors for its pages and for a segment of each rank of this node.
  const uint64_t n_descriptors = job != nullptr ? 1
                                 : spec.nodes.has_value()
                                     ? uint64_t{4} * spec.nodes->n_local + 1
                                     : 2 * static_cast<uint64_t>(spec.n_ranks) + 1;
  absl::Status room = CheckDescriptors(n_descriptors, party);
  if (room.ok() && job == nullptr) room = spec.room;
  if (!room.ok()) return WithPrefix(absl::StrCat("join job '", spec.job, "': "), room);
  if (job == nullptr) {
    job = &NewJob(name, spec);
    if (spec.nodes.has_value()) {
      Emit(StartPort{job->id, job->name, session.caller, spec.nodes->first_local,
                     spec.nodes->n_local, job->n_ranks(), job->stride_bytes, spec.nodes->rendezvous,
                     spec.nodes->secret, spec.timeout});
    }
  }
  ForgetRefused(*job, rank);

  Member& member = job->ranks[rank];
  member.device_index = device_index;
  member.prealloc = spec.prealloc;
  member.join_call = call;
  GrantLease(*job, rank, session);
  session.join_number = spec.number;
  AddWaiting(call, {WaitingCall::Kind::kJoin, job->id, rank});
  deadlines_.Set({job->id, Due::kJoin, rank}, now_.steady + spec.timeout);
  SetState(*job, rank, RankState::kJoined, false);
  CreateFirstSegment(*job, rank);
  Note(*job, rank, event::RankJoined{static_cast<uint32_t>(job->n_held()), job->n_ranks()});
  return absl::OkStatus();
}

absl::StatusOr<JoinSpec> Rendezvous::CheckJoin(JoinSpec spec) const {
  if (absl::Status s = CheckText("join: the name of the job", spec.job, 1, wire::kMaxJobNameBytes);
      !s.ok()) {
    return s;
  }
  const std::string what =
      absl::StrCat("join job '", spec.job, "' as rank ", spec.rank, " of ", spec.n_ranks, ": ");
  const uint32_t most = spec.nodes.has_value() ? wire::kMaxWorldRanks : wire::kMaxRanks;
  if (spec.n_ranks < 1 || spec.n_ranks > static_cast<int32_t>(most)) {
    return Error(Code::kInvalidArgument, what, "a job ",
                 spec.nodes.has_value() ? "" : "on one node ", "has 1 to ", most, " ranks");
  }
  if (spec.rank < 0 || spec.rank >= spec.n_ranks) {
    return Error(Code::kInvalidArgument, what, "ranks count from 0 to ", spec.n_ranks - 1);
  }
  if (absl::Status s = CheckNodes(spec); !s.ok()) return WithPrefix(what, s);
  spec.timeout = JoinTimeout(spec);
  if (absl::Status s = CheckSizes(spec); !s.ok()) return WithPrefix(what, s);
  const auto device = ChooseDevice(spec);
  if (!device.ok()) return WithPrefix(what, device.status());
  spec.device_uuid = ledger_.devices()[*device].uuid;
  return spec;
}

absl::Status Rendezvous::CheckNodes(const JoinSpec& spec) {
  if (!spec.nodes.has_value()) return absl::OkStatus();
  const JoinNodes& nodes = *spec.nodes;
  const uint64_t end = uint64_t{nodes.first_local} + nodes.n_local;
  const uint64_t rank = static_cast<uint64_t>(spec.rank);
  const uint64_t n_ranks = static_cast<uint64_t>(spec.n_ranks);
  if (nodes.n_local == 0 || nodes.n_local > wire::kMaxRanks || nodes.n_local >= n_ranks) {
    return Error(Code::kInvalidArgument, "a job of several nodes has 1 to ",
                 std::min<uint64_t>(wire::kMaxRanks, n_ranks - 1), " of its ranks on each, not ",
                 nodes.n_local);
  }
  if (rank < nodes.first_local || rank >= end || end > n_ranks) {
    return Error(Code::kInvalidArgument, "the ranks of this node would be ", nodes.first_local,
                 " to ", end - 1, ": the ranks of a node follow each other, and this is one");
  }
  constexpr size_t kMaxRendezvousBytes = 300;
  if (!nodes.rendezvous.empty()) {  // else they meet by etcd
    const absl::Status s =
        CheckText("the rendezvous (HOST:PORT)", nodes.rendezvous, 3, kMaxRendezvousBytes);
    if (!s.ok()) return s;
  }
  if (!nodes.secret.empty() && (nodes.secret.size() < 16 || nodes.secret.size() > 64)) {
    return Error(Code::kInvalidArgument, "the secret of the job has ", nodes.secret.size(),
                 " bytes: 16 to 64 are allowed");
  }
  return absl::OkStatus();
}

absl::Duration Rendezvous::JoinTimeout(const JoinSpec& spec) const {
  const bool asks = spec.timeout > absl::ZeroDuration();
  return std::min(asks ? spec.timeout : limits_.join_timeout_default, limits_.join_timeout_max);
}

absl::Status Rendezvous::CheckSizes(JoinSpec& spec) const {
  if (spec.heap_bytes == 0 || spec.heap_bytes > wire::kMaxHeapBytes) {
    return Error(Code::kInvalidArgument, "heap_bytes=", base::SizeText(spec.heap_bytes),
                 ": 1 byte to ", base::SizeText(wire::kMaxHeapBytes), " are allowed");
  }
  if (spec.max_heap_bytes > wire::kMaxHeapBytes ||
      (spec.max_heap_bytes != 0 && spec.max_heap_bytes < spec.heap_bytes)) {
    return Error(Code::kInvalidArgument, "max_heap_bytes=", base::SizeText(spec.max_heap_bytes),
                 ": heap_bytes=", base::SizeText(spec.heap_bytes), " to ",
                 base::SizeText(wire::kMaxHeapBytes), " are allowed, or 0 for the default");
  }
  spec.heap_bytes = RoundUp(spec.heap_bytes, granularity_bytes_);
  const uint64_t n_ranks =
      spec.nodes.has_value() ? spec.nodes->n_local : static_cast<uint64_t>(spec.n_ranks);
  const uint64_t window_share =
      wire::kMaxWindowBytes / n_ranks / granularity_bytes_ * granularity_bytes_;
  const uint64_t roomy = std::min({4 * spec.heap_bytes, wire::kMaxHeapBytes, window_share});
  const uint64_t stride = spec.max_heap_bytes == 0 ? roomy : spec.max_heap_bytes;
  spec.max_heap_bytes = std::max(RoundUp(stride, granularity_bytes_), spec.heap_bytes);
  if (spec.max_heap_bytes > window_share) {
    return Error(Code::kInvalidArgument, n_ranks, " ranks times ",
                 base::SizeText(spec.max_heap_bytes), " exceed a window of ",
                 base::SizeText(wire::kMaxWindowBytes));
  }
  if (spec.team_sync_bytes > wire::kMaxTeamSyncBytes || spec.team_sync_bytes > spec.heap_bytes) {
    return Error(Code::kInvalidArgument, "team_sync_bytes=", base::SizeText(spec.team_sync_bytes),
                 ": at most ", base::SizeText(std::min(wire::kMaxTeamSyncBytes, spec.heap_bytes)),
                 " are allowed for a heap of ", base::SizeText(spec.heap_bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> Rendezvous::ChooseDevice(const JoinSpec& spec) const {
  const auto& devices = ledger_.devices();
  if (devices.empty()) return absl::FailedPreconditionError("irisd has no device");
  if (spec.device_uuid.empty()) {
    if (spec.local_rank < 0) {
      return Error(Code::kInvalidArgument, "local_rank=", spec.local_rank, " is negative");
    }
    return static_cast<uint32_t>(static_cast<size_t>(spec.local_rank) % devices.size());
  }
  const int index = ledger_.IndexOf(spec.device_uuid);
  if (index >= 0) return static_cast<uint32_t>(index);
  std::vector<std::string> known;
  for (const auto& device : devices) known.push_back(device.uuid);
  return Error(Code::kInvalidArgument, "irisd has no device '", CleanText(spec.device_uuid, 64),
               "': its devices are ", absl::StrJoin(known, ", "));
}

absl::Status Rendezvous::CheckMayJoin(const Job& job, const JoinSpec& spec) const {
  const std::string what = absl::StrCat("join job '", job.name, "' as rank ", spec.rank, ": ");
  if (job.state == JobState::kBroken) {
    return Error(Code::kFailedPrecondition, what, "a job of that name is broken (",
                 job.broken_reason, ") and ends when ", job.n_held(),
                 " more ranks have left: choose another name or end them");
  }
  const bool forming = job.state == JobState::kForming;
  if (forming) {
    if (absl::Status s = CheckAgreement(job, what, spec); !s.ok()) return s;
  }
  const Rank rank = static_cast<Rank>(spec.rank);
  if (rank < job.n_ranks() && job.ranks[rank].lease.held) {
    return Error(Code::kAlreadyExists, what, "that rank is taken by pid ",
                 job.ranks[rank].lease.process.pid, forming ? "" : "; the job is running");
  }
  if (forming) return absl::OkStatus();
  return Error(Code::kFailedPrecondition, what,
               "a job of that name is running: choose another name or end it");
}

absl::Status Rendezvous::CheckAgreement(const Job& job, const std::string& what,
                                        const JoinSpec& spec) const {
  const auto first = std::find_if(job.ranks.begin(), job.ranks.end(),
                                  [](const Member& member) { return member.lease.held; });
  IRIS_CHECK(first != job.ranks.end(), "a forming job has a rank");
  const std::string who = job.Who(static_cast<Rank>(first - job.ranks.begin()));
  const struct {
    absl::string_view field;
    uint64_t here;
    uint64_t there;
  } kFields[] = {{"n_ranks", static_cast<uint64_t>(spec.n_ranks), job.n_ranks()},
                 {"heap_bytes", spec.heap_bytes, job.heap_bytes},
                 {"max_heap_bytes", spec.max_heap_bytes, job.stride_bytes},
                 {"team_sync_bytes", spec.team_sync_bytes, job.team_sync_bytes}};
  for (const auto& [field, here, there] : kFields) {
    if (here == there) continue;
    return Error(Code::kInvalidArgument, what, field, "=", here, " but ", who, " said ", there);
  }
  const auto nodes = job.nodes.has_value()
                         ? std::optional<JoinNodes>({job.nodes->own, job.nodes->n_local,
                                                     job.nodes->rendezvous, job.nodes->secret})
                         : std::nullopt;
  if (spec.nodes.has_value() && nodes.has_value() &&
      spec.nodes->first_local != nodes->first_local) {
    return Error(Code::kInvalidArgument, what, "the first rank of its node would be ",
                 spec.nodes->first_local, ", and that of ", who, " ", nodes->first_local, "; ",
                 wire::kPlaceByBlock);
  }
  if (spec.nodes != nodes) {
    return Error(Code::kInvalidArgument, what, "it says other nodes than ", who,
                 ": the ranks of a node have the same first rank, number of ranks on the node, "
                 "rendezvous and secret");
  }
  return absl::OkStatus();
}

absl::Status Rendezvous::CheckJobLimits(const Party& party) const {
  if (jobs_.size() >= limits_.max_jobs) {
    return Error(Code::kResourceExhausted, "join: irisd serves ", jobs_.size(), " jobs, its limit");
  }
  const size_t n_jobs = JobsOf(party.Account()).size();
  if (n_jobs > 0 && n_jobs >= limits_.max_jobs_per_uid) {
    return Error(Code::kResourceExhausted, "join: ", party.Account().Text(), " has ", n_jobs,
                 " jobs, its limit");
  }
  return absl::OkStatus();
}

absl::Status Rendezvous::CheckPeers(const Job* job, const JoinSpec& spec, uint32_t mine) const {
  if (unusable_.empty()) return absl::OkStatus();
  const auto name = [&](uint32_t device) {
    return absl::StrCat("device ", device, " (", ledger_.devices()[device].uuid, ")");
  };
  const std::string what = absl::StrCat("join job '", spec.job, "' as rank ", spec.rank, ": ");
  if (const auto found = unusable_.find({mine, mine}); found != unusable_.end()) {
    return WithPrefix(absl::StrCat(what, name(mine), " cannot be used: "), found->second);
  }
  for (Rank rank = 0; job != nullptr && rank < job->n_ranks(); ++rank) {
    const Member& member = job->ranks[rank];
    if (!member.lease.held) continue;
    const uint32_t theirs = member.device_index;
    for (const auto& [from, to] : {std::pair(mine, theirs), std::pair(theirs, mine)}) {
      const auto found = unusable_.find({from, to});
      if (found == unusable_.end()) continue;
      return WithPrefix(absl::StrCat(what, name(from), " cannot use the memory of ", name(to),
                                     ", and ", job->Who(rank), " is on ", name(theirs), ": "),
                        found->second);
    }
  }
  return absl::OkStatus();
}

bool Rendezvous::JoinAgain(Session& session, CallId call, const JoinSpec& asked) {
  if (asked.number == 0 || asked.number != session.join_number) return false;
  Job* const job = JobOf(session);
  if (job == nullptr) {  // the Join has ended, and its caller did not get the outcome
    Answer(call, session.past_status);
    return true;
  }
  const auto spec = CheckJoin(asked);
  const Rank rank = session.lease->rank;
  const bool same = spec.ok() && spec->job == job->name && static_cast<Rank>(spec->rank) == rank;
  const bool over = job->state == JobState::kReady || job->state == JobState::kBroken;
  if (!same || over) return false;  // refused as a second Join
  Member& member = job->ranks[rank];
  deadlines_.Clear({job->id, Due::kWithdraw, rank});
  if (job->state == JobState::kMapping) {
    // The rank's descriptors have been sent, or are being sent.
    Answer(call, absl::OkStatus(), JoinResultOf(*job, rank));
    return true;
  }
  const CallId earlier = std::exchange(member.join_call, call);
  member.answered_join = CallId();
  if (earlier.value != 0) {
    Refuse(earlier, Code::kCancelled, "join job '", job->name, "' as rank ", rank,
           ": a repetition took this call's place");
  }
  AddWaiting(call, {WaitingCall::Kind::kJoin, job->id, rank});
  deadlines_.Set({job->id, Due::kJoin, rank}, now_.steady + spec->timeout);
  return true;
}

Job& Rendezvous::NewJob(const Name& name, const JoinSpec& spec) {
  const Party& party = name.first;
  const uint32_t n_ranks = static_cast<uint32_t>(spec.n_ranks);
  const JobId id{next_job_++};
  Job& job = *jobs_[id];
  job.id = id;
  job.party = party;
  job.name = name.second;
  job.heap_bytes_initial = spec.heap_bytes;
  job.heap_bytes = spec.heap_bytes;
  job.stride_bytes = spec.max_heap_bytes;
  job.team_sync_bytes = spec.team_sync_bytes;
  job.created = now_.wall;
  job.ranks.resize(n_ranks);
  if (spec.nodes.has_value()) {
    const auto& [first_local, n_local, rendezvous, secret] = *spec.nodes;
    job.nodes = JobNodes{
        .own = first_local, .n_local = n_local, .rendezvous = rendezvous, .secret = secret};
    job.nodes->all[first_local].n_ranks = n_local;
  }
  RecallAbandoned(job);
  jobs_by_name_[name] = id;
  jobs_by_account_[party.Account()].insert(id);
  CountDescriptors(party, job.n_pages());
  Emit(CreatePages{id, job.first_local(), job.end_local() - job.first_local(), job.epoch,
                   job.nodes.has_value()});
  Note(job, event::JobForming{n_ranks, spec.heap_bytes, spec.max_heap_bytes});
  return job;
}

void Rendezvous::WithdrawJoin(Job& job, Rank rank, const absl::Status& status) {
  Member& member = job.ranks[rank];
  if (member.join_call.value != 0) Answer(member.join_call, status);
  Note(job, rank, event::JoinFailed{std::string(status.message())});
  DropAll(member.segments);
  NodeWithdraws(job);
  job.gave_up[rank] = {member.lease.process.pid, now_.steady, now_.steady - member.joined,
                       absl::IsDeadlineExceeded(status)};
  SetState(job, rank, RankState::kAbsent, false);
  EndLease(job, rank, status);
  member = Member();
  if (job.n_held() > 0) return;
  RememberAbandoned(job);
  EndJob(job);
}

void Rendezvous::CancelJoin(Job& job, Rank rank) {
  Member& member = job.ranks[rank];
  member.answered_join = std::exchange(member.join_call, CallId());
  deadlines_.Clear({job.id, Due::kJoin, rank});
  deadlines_.Set({job.id, Due::kWithdraw, rank}, now_.steady + kWithdrawAfter);
}

void Rendezvous::WithdrawCancelled(Job& job, Rank rank) {
  deadlines_.Clear({job.id, Due::kWithdraw, rank});
  if (job.state == JobState::kForming) {
    // A repetition that arrives later is a new Join.
    FindSession(job.ranks[rank].lease.session)->join_number = 0;
    WithdrawJoin(job, rank, absl::CancelledError("the call was cancelled"));
  } else {
    JoinUndelivered(job, rank);
  }
}

void Rendezvous::JoinUndelivered(Job& job, Rank rank) {
  FailJob(job, ErrorOf(job, Code::kAborted, "map", job.Who(rank), " cancelled its join"));
}

void Rendezvous::AnsweredJoinCancelled(CallId call) {
  for (const auto& [id, job] : jobs_) {
    if (job->state != JobState::kMapping) continue;
    for (Rank rank = 0; rank < job->n_ranks(); ++rank) {
      const Member& member = job->ranks[rank];
      if (member.answered_join == call && member.state != RankState::kMapped) {
        return JoinUndelivered(*FindJob(id), rank);
      }
    }
  }
}

void Rendezvous::On(const SegmentCreated& in) {
  const SegmentId id = in.segment;
  const absl::Status& status = in.status;
  Segment* const segment = segments_.Find(id);
  if (segment == nullptr || segment->dropping || segment->created) {
    return;  // SegmentDropped will follow, if there is one
  }
  Job* job = FindJob(segment->job);
  IRIS_CHECK(job != nullptr, "a segment that is not being dropped has a job");
  if (status.ok()) {
    segment->created = true;
    if (in.fabric.size() == wire::kFabricHandleBytes) segment->fabric = in.fabric;
    if (job->growth.has_value()) GrowthSegmentCreated(*job, id, status);
    StartMappingIfComplete(*job);
    return;
  }
  const Segment failed = Forget(id);
  std::string text = absl::StrCat("the memory of ", job->Who(failed.info.rank),
                                  " could not be created: ", CleanText(status.message(), 512));
  if (absl::IsResourceExhausted(status)) {
    absl::StrAppend(&text, "; ", ledger_.Describe(failed.device_index, failed.holder.party));
  }
  if (job->growth.has_value()) {
    GrowthSegmentCreated(*job, id, absl::ResourceExhaustedError(text));
  } else {
    Member& member = job->ranks[failed.info.rank];
    std::erase(member.segments, id);
    const CallId call = std::exchange(member.join_call, CallId());
    if (call.value != 0) Refuse(call, status.code(), "join: ", text);
    const absl::Status told = ErrorOf(*job, Code::kAborted, "join", text);
    FailAllJoins(
        {job->party, job->name}, job->n_ranks(),
        {told, failed.info.rank, now_.steady, now_.steady + limits_.join_timeout_default, {}});
  }
  ServeStarved();
}

void Rendezvous::On(const SegmentDropped& in) {
  const auto found = segments_.find(in.segment);
  if (found == segments_.end() || !found->second.dropping) return;
  if (Forget(in.segment).is_booked()) ServeStarved();
}

void Rendezvous::ServeStarved() {
  const auto starved = std::exchange(starved_, {});
  for (const auto& [job_id, rank] : starved) {
    Job* job = FindJob(job_id);
    if (job == nullptr || !job->ranks[rank].lease.held) continue;  // failed a moment ago, below
    const absl::Status status =
        CheckMemory(job->ranks[rank].device_index, job->heap_bytes, {job->name, rank, job->party});
    if (status.ok()) {
      CreateFirstSegment(*job, rank);
    } else {
      const CallerInfo caller = job->ranks[rank].lease.process;
      JoinSpec spec{.job = job->name, .rank = static_cast<int32_t>(rank)};
      spec.n_ranks = static_cast<int32_t>(job->n_ranks());
      WithdrawJoin(*job, rank, status);
      RefuseRank(caller, spec, status);
    }
  }
}

JoinResult Rendezvous::JoinResultOf(const Job& job, Rank rank) const {
  JoinResult result{.job = job.id,
                    .rank = rank,
                    .epoch = job.epoch,
                    .proposed_base = wire::kProposedBase,
                    .stride_bytes = job.stride_bytes,
                    .granularity_bytes = granularity_bytes_,
                    .heap_bytes = job.heap_bytes,
                    .segments = SegmentsOf(job),
                    .device_index = job.ranks[rank].device_index,
                    .map_timeout = limits_.map_timeout,
                    .first_local = job.first_local()};
  if (job.nodes.has_value()) result.nodes = job.nodes->Parts();
  for (Rank peer = job.first_local(); peer < job.end_local(); ++peer) {
    result.peers.push_back({peer, job.ranks[peer].lease.process.pid, job.ranks[peer].device_index});
  }
  return result;
}

void Rendezvous::StartMappingIfComplete(Job& job) {
  if (job.state != JobState::kForming || !HasJoinedHere(job)) return;
  if (job.nodes.has_value()) return NodeHasJoined(job);
  StartMapping(job);
}

bool Rendezvous::HasJoinedHere(const Job& job) {
  for (Rank rank = job.first_local(); rank < job.end_local(); ++rank) {
    const Member& member = job.ranks[rank];
    if (!member.lease.held || member.segments.empty()) return false;
    if (!segments_.at(member.segments[0]).created) return false;
  }
  return true;
}

void Rendezvous::StartMapping(Job& job) {
  job.state = JobState::kMapping;
  job.gave_up.clear();
  JoinResult result = JoinResultOf(job, job.first_local());
  for (Rank rank = job.first_local(); rank < job.end_local(); ++rank) {
    Member& member = job.ranks[rank];
    deadlines_.Clear({job.id, Due::kJoin, rank});
    Emit(SendDescriptors{member.lease.session, job.id, job.epoch, rank, job.n_ranks(),
                         result.segments, true});
    member.keeps_memory = limits_.max_heap_bytes_per_uid != 0;
    result.rank = rank;
    result.device_index = member.device_index;
    if (member.join_call.value == 0) continue;  // cancelled a moment ago
    // A Join that has a number can be repeated, so a lost answer does not mean a lost rank.
    const bool repeatable = FindSession(member.lease.session)->join_number != 0;
    member.answered_join = repeatable ? CallId() : member.join_call;
    Answer(std::exchange(member.join_call, CallId()), absl::OkStatus(), result);
  }
  deadlines_.Set({job.id, Due::kMap}, now_.steady + limits_.map_timeout);
  Note(job, event::JobMapping{job.epoch});
  ReportSharedDevices(job);
}

// Reports ranks that share a device, which is no mistake, but affects every measurement.
void Rendezvous::ReportSharedDevices(const Job& job) {
  std::map<uint32_t, std::vector<Rank>> ranks;
  for (Rank rank = job.first_local(); rank < job.end_local(); ++rank) {
    ranks[job.ranks[rank].device_index].push_back(rank);
  }
  const uint32_t n_local = job.end_local() - job.first_local();
  if (ranks.size() == n_local) return;
  event::DeviceShared shared{n_local,
                             static_cast<uint32_t>(ranks.size()),
                             static_cast<uint32_t>(ledger_.devices().size()),
                             {}};
  for (const auto& [device, sharing] : ranks) {
    if (sharing.size() > 1) shared.shared.push_back({device, sharing});
  }
  Note(job, std::move(shared));
}

void Rendezvous::On(const MappedCall& in) {
  const CallId call = in.call;
  const auto membership = FindMembership(in.session, in.job);
  if (!membership.ok()) return Answer(call, membership.status());
  Job& job = *membership->job;
  Member& member = *membership->member;
  const Rank rank = membership->rank;
  const std::string what = absl::StrCat("map job '", job.name, "' as rank ", rank, ": ");
  if (in.epoch != job.epoch || job.state == JobState::kForming) {
    return Refuse(call, Code::kFailedPrecondition, what, "epoch ", in.epoch,
                  " is not being mapped");
  }
  if (job.state == JobState::kBroken) {
    return Refuse(call, Code::kAborted, what, job.broken_reason);
  }
  if (job.state == JobState::kReady)
    return Answer(call, absl::OkStatus(),
                  MappedResult{job.same_address, job.teams.at(kWorldTeam).info});
  if (!in.error.empty()) {
    const absl::Status status =
        ErrorOf(job, Code::kAborted, "map", job.Who(rank),
                " could not map: ", CleanText(in.error, wire::kMaxErrorTextBytes));
    Answer(call, status);
    return FailJob(job, status);
  }
  if (member.mapped_calls.size() >= kMaxWaitingCallsPerRank) {
    return Refuse(call, Code::kResourceExhausted, what, "too many calls wait already");
  }
  member.mapped_calls.push_back(call);
  AddWaiting(call, {WaitingCall::Kind::kMapped, job.id, rank});
  if (member.state == RankState::kMapped) return;  // a retry
  member.base = in.base;
  deadlines_.Clear({job.id, Due::kWithdraw, rank});
  SetState(job, rank, RankState::kMapped, false);
  for (Rank each = job.first_local(); each < job.end_local(); ++each) {
    if (std::as_const(job).ranks[each].state != RankState::kMapped) return;
  }
  if (job.nodes.has_value()) return NodeHasMapped(job);
  Commit(job);
}

void Rendezvous::Commit(Job& job) {
  deadlines_.Clear({job.id, Due::kMap});
  job.NewEpoch(now_.wall);
  for (Rank each = 0; each < job.n_ranks(); ++each) SetState(job, each, RankState::kReady, false);
  const MappedResult result{job.same_address, job.teams.at(kWorldTeam).info};
  for (Rank each = job.first_local(); each < job.end_local(); ++each) {
    for (const CallId waits : std::exchange(job.ranks[each].mapped_calls, {})) {
      Answer(waits, absl::OkStatus(), result);
    }
  }
  Note(job, event::JobReady{job.epoch, job.same_address});
}

void Rendezvous::MapTimedOut(Job& job) {
  std::vector<std::string> missing;
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    if (std::as_const(job).ranks[rank].state == RankState::kMapped) continue;
    if (job.IsLocal(rank) || job.nodes->leads()) missing.push_back(job.Who(rank));
  }
  if (missing.empty()) missing.push_back("ranks of other nodes");
  if (missing.size() > kRanksNamed) {
    missing.resize(kRanksNamed);
    missing.push_back("more");
  }
  FailJob(job, ErrorOf(job, Code::kDeadlineExceeded, "map",
                       "time is up: these have not mapped: ", absl::StrJoin(missing, ", ")));
}

void Rendezvous::On(const LeaveCall& in) {
  const auto& [id, call, job_id] = in;
  const auto session = CallingSession(id);
  const bool left_already = session.ok() && job_id.value != 0 && (*session)->past_job == job_id &&
                            (!(*session)->lease.has_value() || (*session)->lease->job != job_id);
  if (left_already) return Answer(call, absl::OkStatus());
  const auto membership = FindMembership(id, job_id);
  if (!membership.ok()) return Answer(call, membership.status());
  Job& job = *membership->job;
  const Rank rank = membership->rank;
  Answer(call, absl::OkStatus());
  const std::string reason = absl::StrCat(job.Who(rank), " has left the job");
  if (job.state == JobState::kForming) {
    return WithdrawJoin(job, rank, ErrorOf(job, Code::kAborted, "join", reason));
  }
  if (job.state == JobState::kMapping) {
    return FailJob(job, ErrorOf(job, Code::kAborted, "map", reason));
  }
  SetState(job, rank, RankState::kLeft, false);
  NotifyPeers(job, rank, reason);
  Note(job, rank, event::RankLeft{});
  if (job.Decides()) FailGrowth(job, absl::AbortedError(reason));
  job.CloseAllOf(rank);
  DropAll(std::exchange(job.given_back, {}));
  ConcludeDeadTeams(job);
  EndLease(job, rank,
           Error(Code::kFailedPrecondition, "rank ", rank, " has left job '", job.name, "'"));
  EndIfEmpty(job);
}

}  // namespace iris::server
