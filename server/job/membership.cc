// Who is a rank of which job: join, map, leave, resume, hang-up, death.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "device/base/bytes.h"
#include "proto/wire/limits.h"
#include "server/heap/check.h"
#include "server/job/job_machine_impl.h"
#include "server/job/text.h"

namespace iris::server {
namespace {

uint64_t RoundUp(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

// Of a time that was measured.
std::string Readable(absl::Duration time) {
  return absl::FormatDuration(absl::Trunc(time, absl::Milliseconds(1)));
}

// "rank 1 (pid 4711) after 5s (its own timeout)".
std::string WhoGaveUp(Rank rank, const GaveUp& gave_up) {
  return absl::StrCat("rank ", rank, " (pid ", gave_up.pid, ") after ", Readable(gave_up.waited),
                      gave_up.timed_out ? " (its own timeout)" : "");
}

absl::Duration Clamp(absl::Duration asked, absl::Duration standard, absl::Duration longest) {
  if (asked <= absl::ZeroDuration()) asked = standard;
  return std::min(asked, longest);
}

}  // namespace

// Join.

void JobMachine::Impl::Join(SessionId id, CallId call, const JoinSpec& spec) {
  const auto calling = CallingSession(id);
  if (!calling.ok()) return Answer(call, calling.status());
  Session* const session = FindSession(id);
  if (JoinAgain(*session, call, spec)) return;
  if (Job* job = JobOf(*session); job != nullptr) {
    // One that the session cancelled just now is over at last.
    const Rank rank = session->lease->rank;
    if (deadlines_.Get({job->id, DeadlineKey::Kind::kWithdraw, rank}).has_value()) {
      WithdrawCancelled(*job, rank);
    }
  }
  const absl::Status told = RefusedBefore(*session, spec);
  const absl::Status status = told.ok() ? TryJoin(*session, call, spec) : told;
  if (status.ok()) return;
  Emit(EmitEvent{{CleanText(spec.job, wire::kMaxJobNameBytes), spec.rank, session->caller.pid,
                  session->caller.party, event::JoinFailed{std::string(status.message())}}});
  Answer(call, status);
  if (told.ok()) Refuse(*session, spec, status);
}

// A refusal ends the join of the others only if it is of a rank that the job cannot form without:
// the caller is of the job's party (to which the name belongs), names one of the job's ranks, that
// rank is free, and the job forms or does not exist yet. Every other refusal concerns its caller
// alone:
// another user, another name, a number that is no rank of the job, a second claim to a rank that
// has joined, a session that holds a rank, a job that runs or is broken.
void JobMachine::Impl::Refuse(const Session& session, const JoinSpec& spec,
                              const absl::Status& why) {
  if (session.lease.has_value()) return;
  if (!CheckText("the name", spec.job, 1, wire::kMaxJobNameBytes).ok()) return;
  const bool is_rank = spec.rank >= 0 && spec.rank < spec.n_ranks &&
                       spec.n_ranks <= static_cast<int32_t>(wire::kMaxRanks);
  if (!is_rank) return;
  const Rank rank = static_cast<Rank>(spec.rank);
  const auto named = jobs_by_name_.find({session.caller.party, spec.job});
  if (named != jobs_by_name_.end()) {
    const Job& job = *FindJob(named->second);
    if (job.state != JobState::kForming || rank >= job.n_ranks() || job.ranks[rank].lease.held) {
      return;
    }
  }
  RefuseRank(session.caller, spec, why);
}

void JobMachine::Impl::RefuseRank(const CallerInfo& caller, const JoinSpec& spec,
                                  const absl::Status& why) {
  absl::string_view reason = why.message();
  const std::string as_rank = absl::StrCat("join job '", spec.job, "' as rank ", spec.rank);
  if (!absl::ConsumePrefix(&reason, absl::StrCat(as_rank, " of ", spec.n_ranks, ": "))) {
    absl::ConsumePrefix(&reason, absl::StrCat(as_rank, ": "));
  }
  const absl::Status told(
      why.code(), absl::StrCat("join job '", spec.job, "': rank ", spec.rank, " (pid ", caller.pid,
                               ") was refused, and no rank joins without it: ", reason,
                               "; mend that, then start all ranks again"));
  const absl::Duration timeout =
      Clamp(spec.timeout, limits_.join_timeout_default, limits_.join_timeout_max);
  const auto named = jobs_by_name_.find({caller.party, spec.job});
  Job* const job = named == jobs_by_name_.end() ? nullptr : FindJob(named->second);
  RememberRefused({caller.party, spec.job}, job,
                  job == nullptr ? static_cast<uint32_t>(spec.n_ranks) : job->n_ranks(),
                  {told, static_cast<Rank>(spec.rank), now_.steady, now_.steady + timeout, {}});
  if (job != nullptr) FailJob(*job, told);
}

void JobMachine::Impl::RememberRefused(const std::pair<Party, std::string>& name, const Job* job,
                                       uint32_t n_ranks, RefusedJoin refused) {
  for (Rank rank = 0; rank < n_ranks; ++rank) {
    const bool told = job != nullptr && job->ranks[rank].lease.held;
    if (!told && rank != refused.rank) refused.untold.insert(rank);
  }
  refused_.erase(name);
  if (refused.untold.empty()) return;
  if (refused_.size() >= kMaxRefusedJoins) {
    refused_.erase(
        std::min_element(refused_.begin(), refused_.end(), [](const auto& a, const auto& b) {
          return a.second.when < b.second.when;
        })->first);
  }
  refused_[name] = std::move(refused);
}

absl::Status JobMachine::Impl::RefusedBefore(const Session& session, const JoinSpec& spec) {
  const std::pair name(session.caller.party, spec.job);
  if (!refused_.contains(name) || session.lease.has_value() || spec.rank < 0) {
    return absl::OkStatus();
  }
  RefusedJoin& refused = refused_.at(name);
  if (now_.steady >= refused.until) {
    refused_.erase(name);
    return absl::OkStatus();
  }
  // A process that began later belongs to another attempt, which may well succeed.
  if (session.process_began > refused.when) return absl::OkStatus();
  if (refused.untold.erase(static_cast<Rank>(spec.rank)) == 0) return absl::OkStatus();
  absl::Status told = refused.told;
  if (refused.untold.empty()) refused_.erase(name);
  return told;
}

void JobMachine::Impl::ForgetRefused(const Job& job, Rank joined) {
  RefusedJoin* const refused = refused_.Find({job.party, job.name});
  if (refused == nullptr) return;
  refused->untold.erase(joined);
  if (refused->untold.empty() || joined == refused->rank) refused_.erase({job.party, job.name});
}

absl::Status JobMachine::Impl::TryJoin(Session& session, CallId call, const JoinSpec& asked) {
  if (const Job* current = JobOf(session); current != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("join: this session is already rank ",
                                                      session.lease->rank, " of job '",
                                                      current->name, "': leave it first"));
  }
  const auto checked = CheckJoin(asked);
  if (!checked.ok()) return checked.status();
  const JoinSpec& spec = *checked;
  const Party& party = session.caller.party;
  const Rank rank = static_cast<Rank>(spec.rank);
  const uint32_t device_index = static_cast<uint32_t>(ledger_.IndexOf(spec.device_uuid));
  const auto named = jobs_by_name_.find({party, spec.job});
  Job* job = named == jobs_by_name_.end() ? nullptr : FindJob(named->second);
  const absl::Status fits = job == nullptr ? CheckJobLimits(party) : CheckMayJoin(*job, spec);
  if (!fits.ok()) return fits;
  if (absl::Status s = CheckPeers(job, spec, device_index); !s.ok()) return s;
  if (absl::Status s = CheckMemory(device_index, spec.heap_bytes, {spec.job, rank, party});
      !s.ok()) {
    return s;
  }
  // A new job: its pages, and a segment of each rank.
  const uint64_t n_descriptors = job == nullptr ? 2 * static_cast<uint64_t>(spec.n_ranks) + 1 : 1;
  if (absl::Status s = CheckDescriptors(n_descriptors, party); !s.ok()) {
    return absl::Status(s.code(), absl::StrCat("join job '", spec.job, "': ", s.message()));
  }
  if (job == nullptr && !spec.room.ok()) {
    return absl::Status(spec.room.code(),
                        absl::StrCat("join job '", spec.job, "': ", spec.room.message()));
  }
  if (job == nullptr) job = &NewJob(spec.job, party, spec);
  ForgetRefused(*job, rank);

  Member& member = job->ranks[rank];
  member.device_index = device_index;
  member.prealloc = spec.prealloc;
  member.join_call = call;
  GrantLease(*job, rank, session);
  session.join_number = spec.number;
  AddWaiting(call, {WaitingCall::Kind::kJoin, job->id, rank});
  deadlines_.Set({job->id, DeadlineKey::Kind::kJoin, rank}, now_.steady + spec.timeout);
  SetState(*job, rank, RankState::kJoined, false);
  CreateFirstSegment(*job, rank);
  Note(*job, static_cast<int32_t>(rank),
       event::RankJoined{static_cast<uint32_t>(job->n_held()), job->n_ranks()});
  return absl::OkStatus();
}

absl::StatusOr<JoinSpec> JobMachine::Impl::CheckJoin(JoinSpec spec) const {
  if (absl::Status s = CheckText("join: the name of the job", spec.job, 1, wire::kMaxJobNameBytes);
      !s.ok()) {
    return s;
  }
  const std::string what =
      absl::StrCat("join job '", spec.job, "' as rank ", spec.rank, " of ", spec.n_ranks, ": ");
  if (spec.n_ranks < 1 || spec.n_ranks > static_cast<int32_t>(wire::kMaxRanks)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, "a job has 1 to ", wire::kMaxRanks, " ranks"));
  }
  if (spec.rank < 0 || spec.rank >= spec.n_ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, "ranks count from 0 to ", spec.n_ranks - 1));
  }
  spec.timeout = Clamp(spec.timeout, limits_.join_timeout_default, limits_.join_timeout_max);
  if (absl::Status s = CheckSizes(spec); !s.ok()) {
    return absl::Status(s.code(), absl::StrCat(what, s.message()));
  }
  const auto device = ChooseDevice(spec);
  if (!device.ok()) {
    return absl::Status(device.status().code(), absl::StrCat(what, device.status().message()));
  }
  spec.device_uuid = ledger_.devices()[*device].uuid;
  return spec;
}

absl::Status JobMachine::Impl::CheckSizes(JoinSpec& spec) const {
  if (spec.heap_bytes == 0 || spec.heap_bytes > wire::kMaxHeapBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("heap_bytes=", base::SizeText(spec.heap_bytes), ": 1 byte to ",
                     base::SizeText(wire::kMaxHeapBytes), " are allowed"));
  }
  if (spec.max_heap_bytes > wire::kMaxHeapBytes ||
      (spec.max_heap_bytes != 0 && spec.max_heap_bytes < spec.heap_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_heap_bytes=", base::SizeText(spec.max_heap_bytes),
                     ": heap_bytes=", base::SizeText(spec.heap_bytes), " to ",
                     base::SizeText(wire::kMaxHeapBytes), " are allowed, or 0 for the default"));
  }
  spec.heap_bytes = RoundUp(spec.heap_bytes, granularity_bytes_);
  const uint64_t n_ranks = static_cast<uint64_t>(spec.n_ranks);
  const uint64_t window_share =
      wire::kMaxWindowBytes / n_ranks / granularity_bytes_ * granularity_bytes_;
  const uint64_t roomy = std::min({4 * spec.heap_bytes, wire::kMaxHeapBytes, window_share});
  const uint64_t stride = spec.max_heap_bytes == 0 ? roomy : spec.max_heap_bytes;
  spec.max_heap_bytes = std::max(RoundUp(stride, granularity_bytes_), spec.heap_bytes);
  if (spec.max_heap_bytes > window_share) {
    return absl::InvalidArgumentError(
        absl::StrCat(n_ranks, " ranks times ", base::SizeText(spec.max_heap_bytes),
                     " exceed a window of ", base::SizeText(wire::kMaxWindowBytes)));
  }
  if (spec.team_sync_bytes > wire::kMaxTeamSyncBytes || spec.team_sync_bytes > spec.heap_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("team_sync_bytes=", base::SizeText(spec.team_sync_bytes), ": at most ",
                     base::SizeText(std::min(wire::kMaxTeamSyncBytes, spec.heap_bytes)),
                     " are allowed for a heap of ", base::SizeText(spec.heap_bytes)));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> JobMachine::Impl::ChooseDevice(const JoinSpec& spec) const {
  const auto& devices = ledger_.devices();
  if (devices.empty()) return absl::FailedPreconditionError("irisd has no device");
  if (spec.device_uuid.empty()) {
    if (spec.local_rank < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("local_rank=", spec.local_rank, " is negative"));
    }
    return static_cast<uint32_t>(static_cast<size_t>(spec.local_rank) % devices.size());
  }
  const int index = ledger_.IndexOf(spec.device_uuid);
  if (index >= 0) return static_cast<uint32_t>(index);
  std::vector<std::string> known;
  for (const auto& device : devices) known.push_back(device.uuid);
  return absl::InvalidArgumentError(
      absl::StrCat("irisd has no device '", CleanText(spec.device_uuid, 64), "': its devices are ",
                   absl::StrJoin(known, ", ")));
}

absl::Status JobMachine::Impl::CheckMayJoin(const Job& job, const JoinSpec& spec) const {
  const std::string what = absl::StrCat("join job '", job.name, "' as rank ", spec.rank, ": ");
  if (job.state == JobState::kBroken) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, "a job of that name is broken (", job.broken_reason, ") and ends when ",
                     job.n_held(), " more ranks have left: choose another name or end them"));
  }
  const bool forming = job.state == JobState::kForming;
  if (absl::Status s = forming ? CheckAgreement(job, what, spec) : absl::OkStatus(); !s.ok()) {
    return s;
  }
  const Rank rank = static_cast<Rank>(spec.rank);
  if (rank < job.n_ranks() && job.ranks[rank].lease.held) {
    return absl::AlreadyExistsError(absl::StrCat(what, "that rank is taken by pid ",
                                                 job.ranks[rank].lease.process.pid,
                                                 forming ? "" : "; the job is running"));
  }
  if (forming) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what, "a job of that name is running: choose another name or end it"));
}

absl::Status JobMachine::Impl::CheckAgreement(const Job& job, const std::string& what,
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
    return absl::InvalidArgumentError(
        absl::StrCat(what, field, "=", here, " but ", who, " said ", there));
  }
  return absl::OkStatus();
}

absl::Status JobMachine::Impl::CheckJobLimits(const Party& party) const {
  if (jobs_.size() >= limits_.max_jobs) {
    return absl::ResourceExhaustedError(
        absl::StrCat("join: irisd serves ", jobs_.size(), " jobs, its limit"));
  }
  const auto found = jobs_by_account_.find(party.Account());
  if (found != jobs_by_account_.end() && found->second.size() >= limits_.max_jobs_per_uid) {
    return absl::ResourceExhaustedError(absl::StrCat("join: ", party.Account().Text(), " has ",
                                                     found->second.size(), " jobs, its limit"));
  }
  return absl::OkStatus();
}

absl::Status JobMachine::Impl::CheckPeers(const Job* job, const JoinSpec& spec,
                                          uint32_t mine) const {
  if (unusable_.empty()) return absl::OkStatus();
  const auto name = [&](uint32_t device) {
    return absl::StrCat("device ", device, " (", ledger_.devices()[device].uuid, ")");
  };
  const std::string what = absl::StrCat("join job '", spec.job, "' as rank ", spec.rank, ": ");
  if (const auto found = unusable_.find({mine, mine}); found != unusable_.end()) {
    return absl::Status(
        found->second.code(),
        absl::StrCat(what, name(mine), " cannot be used: ", found->second.message()));
  }
  for (Rank rank = 0; job != nullptr && rank < job->n_ranks(); ++rank) {
    const Member& member = job->ranks[rank];
    if (!member.lease.held) continue;
    const uint32_t theirs = member.device_index;
    for (const auto& [from, to] : {std::pair(mine, theirs), std::pair(theirs, mine)}) {
      const auto found = unusable_.find({from, to});
      if (found == unusable_.end()) continue;
      return absl::Status(
          found->second.code(),
          absl::StrCat(what, name(from), " cannot use the memory of ", name(to), ", and ",
                       job->Who(rank), " is on ", name(theirs), ": ", found->second.message()));
    }
  }
  return absl::OkStatus();
}

Job& JobMachine::Impl::NewJob(const std::string& name, const Party& party, const JoinSpec& spec) {
  const uint32_t n_ranks = static_cast<uint32_t>(spec.n_ranks);
  const JobId id{next_job_++};
  Job& job = *jobs_[id];
  job.id = id;
  job.name = name;
  job.party = party;
  job.heap_bytes_initial = spec.heap_bytes;
  job.heap_bytes = spec.heap_bytes;
  job.stride_bytes = spec.max_heap_bytes;
  job.team_sync_bytes = spec.team_sync_bytes;
  job.created = now_.wall;
  job.ranks.resize(n_ranks);
  RecallAbandoned(job);
  jobs_by_name_[{party, name}] = id;
  jobs_by_account_[party.Account()].insert(id);
  CountDescriptors(party, n_ranks + 1);
  Emit(CreatePages{id, n_ranks, job.epoch});
  Note(job, event::JobForming{n_ranks, spec.heap_bytes, spec.max_heap_bytes});
  return job;
}

void JobMachine::Impl::WithdrawJoin(Job& job, Rank rank, const absl::Status& status) {
  Member& member = job.ranks[rank];
  if (member.join_call.value != 0) Answer(member.join_call, status);
  Note(job, static_cast<int32_t>(rank), event::JoinFailed{std::string(status.message())});
  DropAll(member.segments);
  job.gave_up[rank] = {member.lease.process.pid, now_.steady, now_.steady - member.joined,
                       absl::IsDeadlineExceeded(status)};
  SetState(job, rank, RankState::kAbsent, false);
  EndLease(job, rank, status);
  member = Member();
  if (job.n_held() > 0) return;
  RememberAbandoned(job);
  EndJob(job);
}

void JobMachine::Impl::RememberAbandoned(const Job& job) {
  if (abandoned_.size() >= kMaxAbandonedJobs) {
    abandoned_.erase(
        std::min_element(abandoned_.begin(), abandoned_.end(), [](const auto& a, const auto& b) {
          return a.second.when < b.second.when;
        })->first);
  }
  abandoned_[{job.party, job.name}] = {job.n_ranks(), now_.steady, job.gave_up};
}

void JobMachine::Impl::RecallAbandoned(Job& job) {
  AbandonedJob* const found = abandoned_.Find({job.party, job.name});
  if (found == nullptr) return;
  if (found->n_ranks == job.n_ranks() && now_.steady - found->when < kAbandonedJobKept) {
    job.gave_up = std::move(found->gave_up);
  }
  abandoned_.erase({job.party, job.name});
}

// A rank that was here while this one waited did come, even if its own time was up first: ranks
// whose time is up together must not be told of each other. One that came and gave up earlier is
// missing, but not for want of trying.
void JobMachine::Impl::JoinTimedOut(Job& job, Rank rank) {
  std::vector<std::string> missing, gave_up, came_before, slow;
  const absl::Time joined = job.ranks[rank].joined;
  for (Rank r = 0; r < job.n_ranks(); ++r) {
    const Member& member = job.ranks[r];
    const auto left = job.gave_up.find(r);
    if (member.lease.held) {
      if (member.segments.empty() || !segments_.at(member.segments[0]).created) {
        slow.push_back(job.Who(r));
      }
    } else if (left != job.gave_up.end() && left->second.when > joined) {
      gave_up.push_back(WhoGaveUp(r, left->second));
    } else {
      missing.push_back(absl::StrCat(r));
      if (left == job.gave_up.end()) continue;
      const absl::Duration ago = joined - left->second.when;
      came_before.push_back(absl::StrCat(WhoGaveUp(r, left->second), ", ",
                                         ago < absl::Milliseconds(1) ? "shortly" : Readable(ago),
                                         " before this rank came"));
    }
  }
  std::string text = absl::StrCat("join job '", job.name, "' as rank ", rank, ": time is up after ",
                                  Readable(now_.steady - joined), " (join_timeout)");
  if (!missing.empty()) {
    came_before.insert(came_before.begin(), gave_up.begin(), gave_up.end());
    if (!came_before.empty()) {
      absl::StrAppend(&text, ": these came and gave up: ", absl::StrJoin(came_before, "; "));
    }
    absl::StrAppend(&text, came_before.empty() ? ": of " : "; of ", job.n_ranks(),
                    " ranks these have not joined: ", absl::StrJoin(missing, ", "));
  } else if (!gave_up.empty()) {
    absl::StrAppend(&text, ": all ", job.n_ranks(),
                    " ranks have come, but these gave up before the last one did: ",
                    absl::StrJoin(gave_up, ", "));
  } else {
    absl::StrAppend(&text, ": memory is not ready yet for ", absl::StrJoin(slow, ", "));
  }
  WithdrawJoin(job, rank, absl::DeadlineExceededError(text));
}

// Mapping.

void JobMachine::Impl::StartMappingIfComplete(Job& job) {
  if (job.state != JobState::kForming) return;
  for (const Member& member : job.ranks) {
    if (!member.lease.held || member.segments.empty()) return;
    if (!segments_.at(member.segments[0]).created) return;
  }
  job.state = JobState::kMapping;
  job.gave_up.clear();
  JoinResult result = JoinResultOf(job, 0);
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    Member& member = job.ranks[rank];
    deadlines_.Clear({job.id, DeadlineKey::Kind::kJoin, rank});
    Emit(SendDescriptors{member.lease.session, job.id, job.epoch, rank, job.n_ranks(),
                         result.segments, true});
    member.keeps_memory = limits_.max_heap_bytes_per_uid != 0;
    result.rank = rank;
    result.device_index = member.device_index;
    if (member.join_call.value == 0) continue;  // cancelled a moment ago
    // A Join that has a number can be repeated: that its answer was lost means nothing.
    const bool repeatable = FindSession(member.lease.session)->join_number != 0;
    member.answered_join = repeatable ? CallId() : member.join_call;
    Answer(std::exchange(member.join_call, CallId()), absl::OkStatus(), result);
  }
  deadlines_.Set({job.id, DeadlineKey::Kind::kMap}, now_.steady + limits_.map_timeout);
  Note(job, event::JobMapping{job.epoch});
  ReportSharedDevices(job);
}

// More ranks than devices is no mistake, but shows in every figure.
void JobMachine::Impl::ReportSharedDevices(const Job& job) {
  std::map<uint32_t, std::vector<Rank>> ranks;
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    ranks[job.ranks[rank].device_index].push_back(rank);
  }
  if (ranks.size() == job.n_ranks()) return;
  event::DeviceShared shared{job.n_ranks(),
                             static_cast<uint32_t>(ranks.size()),
                             static_cast<uint32_t>(ledger_.devices().size()),
                             {}};
  for (const auto& [device, sharing] : ranks) {
    if (sharing.size() > 1) shared.shared.push_back({device, sharing});
  }
  Note(job, std::move(shared));
}

void JobMachine::Impl::Mapped(SessionId id, CallId call, JobId job_id, uint64_t epoch,
                              uint64_t base, const std::string& error) {
  const auto membership = FindMembership(id, job_id);
  if (!membership.ok()) return Answer(call, membership.status());
  Job& job = *membership->job;
  Member& member = *membership->member;
  const Rank rank = membership->rank;
  const std::string what = absl::StrCat("map job '", job.name, "' as rank ", rank, ": ");
  if (epoch != job.epoch || job.state == JobState::kForming) {
    return Answer(call, absl::FailedPreconditionError(
                            absl::StrCat(what, "epoch ", epoch, " is not being mapped")));
  }
  if (job.state == JobState::kBroken) {
    return Answer(call, absl::AbortedError(absl::StrCat(what, job.broken_reason)));
  }
  if (job.state == JobState::kReady) return Answer(call, absl::OkStatus(), MappedResultOf(job));
  if (!error.empty()) {
    const absl::Status status = absl::AbortedError(
        absl::StrCat("map job '", job.name, "': ", job.Who(rank),
                     " could not map: ", CleanText(error, wire::kMaxErrorTextBytes)));
    Answer(call, status);
    return FailJob(job, status);
  }
  if (member.mapped_calls.size() >= kMaxWaitingCallsPerRank) {
    return Answer(call,
                  absl::ResourceExhaustedError(absl::StrCat(what, "too many calls wait already")));
  }
  member.mapped_calls.push_back(call);
  AddWaiting(call, {WaitingCall::Kind::kMapped, job.id, rank});
  if (member.state == RankState::kMapped) return;  // a retry
  member.base = base;
  deadlines_.Clear({job.id, DeadlineKey::Kind::kWithdraw, rank});
  SetState(job, rank, RankState::kMapped, false);
  const bool all = std::all_of(job.ranks.begin(), job.ranks.end(),
                               [](const Member& m) { return m.state == RankState::kMapped; });
  if (all) CommitEpoch(job);
}

MappedResult JobMachine::Impl::MappedResultOf(const Job& job) const {
  return {job.same_address, job.teams.at(kWorldTeam).info};
}

void JobMachine::Impl::CommitEpoch(Job& job) {
  deadlines_.Clear({job.id, DeadlineKey::Kind::kMap});
  job.NewEpoch(now_.wall);
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) SetState(job, rank, RankState::kReady, false);
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    for (const CallId call : std::exchange(job.ranks[rank].mapped_calls, {})) {
      Answer(call, absl::OkStatus(), MappedResultOf(job));
    }
  }
  Note(job, event::JobReady{job.epoch, job.same_address});
}

// A Join that was cancelled.

void JobMachine::Impl::CancelJoin(Job& job, Rank rank) {
  Member& member = job.ranks[rank];
  member.answered_join = std::exchange(member.join_call, CallId());
  deadlines_.Clear({job.id, DeadlineKey::Kind::kJoin, rank});
  deadlines_.Set({job.id, DeadlineKey::Kind::kWithdraw, rank}, now_.steady + kWithdrawAfter);
}

void JobMachine::Impl::WithdrawCancelled(Job& job, Rank rank) {
  deadlines_.Clear({job.id, DeadlineKey::Kind::kWithdraw, rank});
  if (job.state == JobState::kForming) {
    // A repetition that comes after this is a new Join.
    FindSession(job.ranks[rank].lease.session)->join_number = 0;
    WithdrawJoin(job, rank, absl::CancelledError("the call was cancelled"));
  } else {
    JoinUndelivered(job, rank);
  }
}

void JobMachine::Impl::JoinUndelivered(Job& job, Rank rank) {
  FailJob(job, absl::AbortedError(absl::StrCat("map job '", job.name, "': ", job.Who(rank),
                                               " cancelled its join")));
}

void JobMachine::Impl::AnsweredJoinCancelled(CallId call) {
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

void JobMachine::Impl::MapTimedOut(Job& job) {
  std::vector<std::string> missing;
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    if (job.ranks[rank].state != RankState::kMapped) missing.push_back(job.Who(rank));
  }
  FailJob(job, absl::DeadlineExceededError(absl::StrCat(
                   "map job '", job.name,
                   "': time is up: these have not mapped: ", absl::StrJoin(missing, ", "))));
}

// The end of a membership.

void JobMachine::Impl::GrantLease(Job& job, Rank rank, Session& session) {
  job.ranks[rank].lease = {session.caller, true, session.id};
  job.ranks[rank].joined = now_.steady;
  session.lease = LeaseRef{job.id, rank};
}

void JobMachine::Impl::MoveLease(Job& job, Rank rank, Session& to, const absl::Status& told) {
  Lease& lease = job.ranks[rank].lease;
  Session* from = FindSession(lease.session);
  IRIS_CHECK(from != nullptr, "a session speaks for a lease that is held");
  from->lease.reset();
  from->past_job = job.id;
  from->past_status = told;
  RefuseBarriers(job, rank, told);  // the rank asks again by the new session
  deadlines_.Clear({job.id, DeadlineKey::Kind::kResume, rank});
  lease.session = to.id;
  to.lease = LeaseRef{job.id, rank};
}

void JobMachine::Impl::EndLease(Job& job, Rank rank, const absl::Status& told) {
  Lease& lease = job.ranks[rank].lease;
  Session* session = FindSession(lease.session);
  IRIS_CHECK(session != nullptr, "a session speaks for a lease that is held");
  session->lease.reset();
  session->past_job = job.id;
  session->past_status = told;
  RefuseBarriers(job, rank, told);
  lease.held = false;
  lease.session = SessionId();
  starved_.erase({job.id, rank});
  for (const auto kind :
       {DeadlineKey::Kind::kJoin, DeadlineKey::Kind::kWithdraw, DeadlineKey::Kind::kResume}) {
    deadlines_.Clear({job.id, kind, rank});
  }
}

void JobMachine::Impl::Leave(SessionId id, CallId call, JobId job_id) {
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
  if (job.state == JobState::kForming)
    return WithdrawJoin(job, rank,
                        absl::AbortedError(absl::StrCat("join job '", job.name, "': ", reason)));
  if (job.state == JobState::kMapping) {
    return FailJob(job, absl::AbortedError(absl::StrCat("map job '", job.name, "': ", reason)));
  }
  SetState(job, rank, RankState::kLeft, false);
  NotifyPeers(job, rank, reason);
  Note(job, static_cast<int32_t>(rank), event::RankLeft{});
  if (job.growth.has_value())
    FailGrowth(job, absl::AbortedError(absl::StrCat("grow the heap: ", reason)));
  job.CloseAllOf(rank);
  DropAll(std::exchange(job.given_back, {}));
  ConcludeDeadTeams(job);
  EndLease(
      job, rank,
      absl::FailedPreconditionError(absl::StrCat("rank ", rank, " has left job '", job.name, "'")));
  if (job.n_held() == 0) EndJob(job);
}

void JobMachine::Impl::HangUp(Session& session) {
  session.ending = true;
  NoteSession(session, event::SessionHungUp{session.id});
  Job* job = JobOf(session);
  if (job == nullptr) return;
  const Rank rank = session.lease->rank;
  const std::string reason = absl::StrCat(job->Who(rank), " ", kHungUp);
  const bool forming = job->state == JobState::kForming || job->state == JobState::kMapping;
  // A rank that has no peers left breaks nothing: nobody was told, so it may resume.
  const bool breaks = !forming && job->state == JobState::kReady && job->n_held() > 1;
  Note(*job, static_cast<int32_t>(rank), event::RankHungUp{});
  SetState(*job, rank, RankState::kEnding, forming || breaks || job->state == JobState::kBroken);
  if (forming)
    return FailJob(*job, absl::AbortedError(absl::StrCat("join job '", job->name, "': ", reason)));
  NotifyPeers(*job, rank, reason);
  if (breaks) return Break(*job, reason);
  if (job->growth.has_value())
    FailGrowth(*job, absl::AbortedError(absl::StrCat("grow the heap: ", reason)));
  ConcludeDeadTeams(*job);
}

void JobMachine::Impl::Gone(SessionId id) {
  Session& session = *FindSession(id);
  if (Job* job = JobOf(session); job != nullptr) {
    const Rank rank = session.lease->rank;
    const std::string reason = absl::StrCat(job->Who(rank), " died");
    SetState(*job, rank, RankState::kDead, true);
    Note(*job, static_cast<int32_t>(rank), event::RankDead{});
    if (job->state == JobState::kForming || job->state == JobState::kMapping) {
      FailJob(*job, absl::AbortedError(absl::StrCat("join job '", job->name, "': ", reason)));
    } else {
      NotifyPeers(*job, rank, reason);
      if (job->state == JobState::kReady) Break(*job, reason);
      EndLease(*job, rank, absl::AbortedError(reason));
      if (job->n_held() == 0) EndJob(*job);
    }
  }
  NoteSession(session, event::SessionClosed{id});
  const auto mine = sessions_by_account_.find(session.caller.party.Account());
  mine->second.erase(id);
  if (mine->second.empty()) sessions_by_account_.erase(mine);
  sessions_.erase(id);
  Emit(ReleaseSession{id});
}

void JobMachine::Impl::Break(Job& job, std::string reason) {
  job.state = JobState::kBroken;
  job.broken_reason = std::move(reason);
  Note(job, event::JobBroken{job.broken_reason});
  if (job.growth.has_value()) {
    FailGrowth(job, absl::AbortedError(absl::StrCat("grow the heap: ", job.broken_reason)));
  }
  ConcludeDeadTeams(job);
}

void JobMachine::Impl::FailJob(Job& job, const absl::Status& status) {
  Note(job, event::JobFailed{std::string(status.message())});
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    Member& member = job.ranks[rank];
    if (!member.lease.held) continue;
    if (member.join_call.value != 0) Answer(std::exchange(member.join_call, CallId()), status);
    for (const CallId call : std::exchange(member.mapped_calls, {})) Answer(call, status);
    EndLease(job, rank, status);
  }
  EndJob(job);
}

void JobMachine::Impl::EndJob(Job& job) {
  IRIS_CHECK(job.n_held() == 0 && !job.growth.has_value(), "a job ends when nobody is in it");
  deadlines_.Clear({job.id, DeadlineKey::Kind::kMap});
  uint64_t bytes = 0;
  for (const Member& member : job.ranks) {
    for (const SegmentId id : member.segments) bytes += segments_.at(id).info.bytes;
  }
  KeepAccountOf(job, bytes);
  for (const Member& member : job.ranks) DropAll(member.segments);
  for (const auto& [offset, allocation] : job.allocations) DropAll(allocation.registered->pieces);
  CountDescriptors(job.party, -static_cast<int64_t>(job.n_ranks() + 1));
  Emit(DropPages{job.id});
  Note(job, event::JobEnded{});
  const auto mine = jobs_by_account_.find(job.party.Account());
  mine->second.erase(job.id);
  if (mine->second.empty()) jobs_by_account_.erase(mine);
  jobs_by_name_.erase({job.party, job.name});
  jobs_.erase(job.id);
}

// Resume.

void JobMachine::Impl::Resume(SessionId id, CallId call, JobId job_id, const std::string& name,
                              int32_t rank_in, uint64_t epoch) {
  const auto calling = CallingSession(id);
  if (!calling.ok()) return Answer(call, calling.status());
  Session& session = *FindSession(id);
  Job* job = FindJob(job_id);
  const std::string what = absl::StrCat("resume rank ", rank_in, " of job '",
                                        CleanText(name, wire::kMaxJobNameBytes), "': ");
  const bool known = job != nullptr && job->party == session.caller.party && job->name == name;
  if (!known)
    return Answer(call, absl::NotFoundError(absl::StrCat(what, "irisd does not know that job")));
  if (rank_in < 0 || static_cast<uint32_t>(rank_in) >= job->n_ranks()) {
    return Answer(call, absl::InvalidArgumentError(
                            absl::StrCat(what, "the job has ", job->n_ranks(), " ranks")));
  }
  if (epoch != job->epoch) {
    return Answer(call, absl::FailedPreconditionError(
                            absl::StrCat(what, "its epoch is ", job->epoch, ", not ", epoch)));
  }
  const Rank rank = static_cast<Rank>(rank_in);
  Member& member = job->ranks[rank];
  if (session.lease == LeaseRef{job_id, rank}) {  // a retry
    if (job->state == JobState::kBroken) {
      return Answer(
          call, absl::AbortedError(absl::StrCat(what, "the job is broken: ", job->broken_reason)));
    }
    return Answer(call, absl::OkStatus(), ResumeResult{member.state});
  }
  if (session.lease.has_value()) {
    return Answer(call, absl::FailedPreconditionError(
                            absl::StrCat(what, "this session is a member of another job")));
  }
  if (!member.lease.held || !member.lease.OfProcess(session.caller)) {
    return Answer(
        call, absl::PermissionDeniedError(absl::StrCat(what, "another process holds or held it")));
  }
  Session& old = *FindSession(member.lease.session);
  if (!old.ending) {
    return Answer(call, absl::UnavailableError(
                            absl::StrCat(what, "its earlier session has not hung up yet: retry")));
  }
  MoveLease(*job, rank, session,
            absl::FailedPreconditionError(absl::StrCat(what, "a newer session has it")));
  if (job->state == JobState::kBroken) {
    // The peers were told, so the job stays broken; but the rank can now leave it.
    return Answer(call,
                  absl::AbortedError(absl::StrCat(what, "the job is broken: ", job->broken_reason,
                                                  ": leave it and join a new one")));
  }
  SetState(*job, rank, RankState::kReady, false);
  SendGrowthAgain(*job, rank);
  Note(*job, static_cast<int32_t>(rank), event::RankResumed{session.id});
  Answer(call, absl::OkStatus(), ResumeResult{RankState::kReady});
}

}  // namespace iris::server
