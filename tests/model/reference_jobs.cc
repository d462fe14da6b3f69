#include "tests/model/reference_jobs.h"

#include <tuple>
#include <utility>

namespace iris::model {
namespace {

constexpr uint64_t kSmallestAlignment = 1024;

bool PowerOfTwo(uint64_t value) { return value != 0 && (value & (value - 1)) == 0; }

bool Committed(const RefJob& job) {
  return job.state == JobState::kReady || job.state == JobState::kBroken;
}

uint64_t AlignmentOf(const AllocateOp& op) {
  return op.alignment_bytes < kSmallestAlignment &&
                 (op.alignment_bytes == 0 || PowerOfTwo(op.alignment_bytes))
             ? kSmallestAlignment
             : op.alignment_bytes;
}

bool WellFormed(const RefTeam& team, TeamId id, Rank asker, const Operation& op) {
  const auto* open = std::get_if<OpenOp>(&op);
  const auto* publish = std::get_if<PublishOp>(&op);
  const auto* registers = std::get_if<RegisterOp>(&op);
  const bool of_one = open != nullptr || registers != nullptr ||
                      std::holds_alternative<AllocateOp>(op) ||
                      std::holds_alternative<FreeOp>(op) || publish != nullptr;
  if (IsOwnTeam(id) && !of_one) return false;
  if (publish != nullptr)
    return IsOwnTeam(id) && !publish->name.empty() && publish->name.rfind("iris.", 0) != 0;
  if (registers != nullptr) {
    uint64_t before_last = 0, total = 0;
    for (const uint64_t bytes : registers->piece_bytes) {
      before_last = total;
      total += bytes;
    }
    const uint64_t end = registers->lead_bytes + registers->bytes;
    return registers->error.empty() && !registers->piece_bytes.empty() && registers->bytes > 0 &&
           registers->lead_bytes < registers->piece_bytes.front() && end > before_last &&
           end <= total && registers->name.rfind("iris.", 0) != 0;
  }
  if (open != nullptr) return IsOwnTeam(id) && open->owner != OwnerOf(id) && !open->name.empty();
  const std::set<Rank> members(team.ranks.begin(), team.ranks.end());
  if (const auto* allocate = std::get_if<AllocateOp>(&op)) {
    return PowerOfTwo(AlignmentOf(*allocate)) && allocate->name.rfind("iris.", 0) != 0;
  }
  if (const auto* broadcast = std::get_if<BroadcastOp>(&op))
    return members.contains(broadcast->root);
  if (const auto* create = std::get_if<CreateTeamOp>(&op)) {
    const std::set<Rank> asked(create->ranks.begin(), create->ranks.end());
    return !asked.empty() && asked.size() == create->ranks.size() &&
           std::includes(members.begin(), members.end(), asked.begin(), asked.end());
  }
  if (const auto* split = std::get_if<SplitOp>(&op)) {
    return std::count_if(split->wishes.begin(), split->wishes.end(),
                         [&](const SplitOp::Wish& wish) { return wish.rank == asker; }) == 1;
  }
  if (std::holds_alternative<DestroyTeamOp>(op)) return id != 0;
  if (const auto* grow = std::get_if<GrowOp>(&op)) return id == 0 && grow->bytes > 0;
  return true;
}

bool Agree(Operation a, Operation b) {
  for (Operation* op : {&a, &b}) {
    if (auto* allocate = std::get_if<AllocateOp>(op))
      allocate->alignment_bytes = AlignmentOf(*allocate);
  }
  if (a.index() != b.index()) return false;
  if (std::holds_alternative<AllocateOp>(a))
    return std::get<AllocateOp>(a) == std::get<AllocateOp>(b);
  if (std::holds_alternative<FreeOp>(a)) return std::get<FreeOp>(a) == std::get<FreeOp>(b);
  if (std::holds_alternative<BroadcastOp>(a))
    return std::get<BroadcastOp>(a).root == std::get<BroadcastOp>(b).root;
  if (std::holds_alternative<CreateTeamOp>(a))
    return std::get<CreateTeamOp>(a) == std::get<CreateTeamOp>(b);
  if (std::holds_alternative<PublishOp>(a)) return std::get<PublishOp>(a) == std::get<PublishOp>(b);
  if (std::holds_alternative<RegisterOp>(a)) {
    const auto& x = std::get<RegisterOp>(a);
    const auto& y = std::get<RegisterOp>(b);
    return x.bytes == y.bytes && x.name == y.name && x.tensor == y.tensor;
  }
  if (std::holds_alternative<ConfirmOp>(a)) {
    return std::get<ConfirmOp>(a).offset_bytes == std::get<ConfirmOp>(b).offset_bytes;
  }
  if (std::holds_alternative<OpenOp>(a)) return std::get<OpenOp>(a) == std::get<OpenOp>(b);
  if (std::holds_alternative<GrowOp>(a)) return std::get<GrowOp>(a) == std::get<GrowOp>(b);
  return true;
}

}  // namespace

// Membership.

RefJob* ReferenceJobs::Member(SessionId id, CallId call, JobId job) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) {
    Expect(call, Code::kPermissionDenied);
  } else if (found->second.ending) {
    Expect(call, Code::kFailedPrecondition);
  } else if (found->second.job == job && job.value != 0) {
    return Find(job);
  } else if (found->second.past_job == job && job.value != 0) {
    Expect(call, found->second.past_code);
  } else {
    Expect(call, Code::kPermissionDenied);
  }
  return nullptr;
}

void ReferenceJobs::Join(SessionId id, CallId call, const server::JoinSpec& spec) {
  const auto session = sessions_.find(id);
  if (session == sessions_.end()) return Expect(call, Code::kPermissionDenied);
  RefSession& who = session->second;
  if (!who.ending && JoinAgain(who, call, spec)) return;
  if (RefJob* mine = Find(who.job); mine != nullptr && !who.ending) {
    if (mine->ranks[who.rank].withdraw_deadline.has_value()) WithdrawCancelled(*mine, who.rank);
  }
  if (who.ending || who.job.value != 0) return Expect(call, Code::kFailedPrecondition);
  const auto refused = refused_.find({who.uid, spec.job});
  if (refused != refused_.end() && clock_->Now() < refused->second.until &&
      who.began <= refused->second.when && spec.rank >= 0 &&
      refused->second.untold.erase(static_cast<Rank>(spec.rank)) == 1) {
    return Expect(call, refused->second.code);
  }
  RefJob* job = nullptr;
  for (auto& [job_id, one] : jobs_) {
    if (one->name == spec.job && one->uid == who.uid) job = one.get();
  }
  if (spec.n_ranks < 1 || spec.rank < 0 || spec.rank >= spec.n_ranks) {
    return Expect(call, Code::kInvalidArgument);
  }
  if (spec.heap_bytes == 0) return Refuse(who, call, spec, job, Code::kInvalidArgument);
  const uint64_t heap = (spec.heap_bytes + granularity_ - 1) / granularity_ * granularity_;
  const Rank rank = static_cast<Rank>(spec.rank);
  if (job == nullptr) {
    new_job_ = std::make_unique<RefJob>();
    job = new_job_.get();
    job->name = spec.job;
    job->uid = who.uid;
    job->heap_initial = heap;
    job->stride = 4 * heap;
    job->sync_bytes = spec.team_sync_bytes;
    job->ranks.resize(spec.n_ranks);
  } else if (job->state == JobState::kBroken) {
    return Expect(call, Code::kFailedPrecondition);
  } else if (job->state == JobState::kForming) {
    if (static_cast<size_t>(spec.n_ranks) != job->ranks.size() || heap != job->heap_initial ||
        spec.team_sync_bytes != job->sync_bytes) {
      return Refuse(who, call, spec, job, Code::kInvalidArgument);
    }
    if (job->ranks[rank].attached()) return Expect(call, Code::kAlreadyExists);
  } else {
    const bool taken = rank < job->ranks.size() && job->ranks[rank].attached();
    return Expect(call, taken ? Code::kAlreadyExists : Code::kFailedPrecondition);
  }
  if (refused != refused_.end()) {
    refused->second.untold.erase(rank);
    if (rank == refused->second.rank) refused_.erase(refused);
  }
  RefMember& member = job->ranks[rank];
  member.state = RankState::kJoined;
  member.session = id;
  member.pid = who.pid;
  member.join_call = call;
  member.join_deadline = clock_->Now() + spec.timeout;
  who.rank = rank;
  who.join_number = spec.number;
}

void ReferenceJobs::Refuse(const RefSession& who, CallId call, const server::JoinSpec& spec,
                           RefJob* job, Code code) {
  Expect(call, code);
  const Rank rank = static_cast<Rank>(spec.rank);
  if (job != nullptr && (job->state != JobState::kForming || rank >= job->ranks.size() ||
                         job->ranks[rank].attached())) {
    return;
  }
  RememberRefused(who.uid, spec.job, job,
                  job == nullptr ? static_cast<size_t>(spec.n_ranks) : job->ranks.size(),
                  {code, rank, clock_->Now(), clock_->Now() + spec.timeout, {}});
  if (job != nullptr) FailJob(*job, code);
}

void ReferenceJobs::RememberRefused(uint32_t uid, const std::string& name, const RefJob* job,
                                    size_t n_ranks, RefRefused refused) {
  for (Rank rank = 0; rank < n_ranks; ++rank) {
    if (job != nullptr && job->ranks[rank].attached()) continue;
    if (rank != refused.rank) refused.untold.insert(rank);
  }
  refused_[{uid, name}] = std::move(refused);
}

bool ReferenceJobs::JoinAgain(RefSession& who, CallId call, const server::JoinSpec& spec) {
  if (spec.number == 0 || spec.number != who.join_number) return false;
  RefJob* job = Find(who.job);
  if (job == nullptr) {
    Expect(call, who.past_code);
    return true;
  }
  RefMember& member = job->ranks[who.rank];
  const bool same = spec.job == job->name && spec.rank == static_cast<int32_t>(who.rank) &&
                    spec.n_ranks > spec.rank && spec.heap_bytes > 0;
  if (Committed(*job) || !same) return false;
  member.withdraw_deadline.reset();
  if (job->state == JobState::kMapping) {
    Expect(call, Code::kOk);
    return true;
  }
  if (member.join_call.has_value()) Expect(*member.join_call, Code::kCancelled);
  member.join_call = call;
  member.answered_join.reset();
  member.join_deadline = clock_->Now() + spec.timeout;
  return true;
}

void ReferenceJobs::LearnSegment(JobId job_id, SegmentId id, uint64_t bytes) {
  RefJob& job = *Find(job_id);
  segments_[id] = {.bytes = bytes, .job = job_id};
  if (job.growth.has_value()) {
    job.growth->segments.push_back(id);
    return;
  }
  for (RefMember& member : job.ranks) {
    if (!member.attached() || member.first_segment.has_value()) continue;
    member.first_segment = id;
    sessions_.at(member.session).job = job_id;
  }
}

void ReferenceJobs::FinishForming(RefJob& job) {
  if (job.state != JobState::kForming) return;
  for (const RefMember& member : job.ranks) {
    if (!member.attached() || !segments_.at(*member.first_segment).created) return;
  }
  job.state = JobState::kMapping;
  job.map_deadline = clock_->Now() + absl::Seconds(60);
  for (RefMember& member : job.ranks) {
    member.keeps = follows_memory_;
    if (!member.join_call.has_value()) continue;  // cancelled a moment ago
    Expect(*member.join_call, Code::kOk);
    member.answered_join = std::exchange(member.join_call, std::nullopt);
    // It can be repeated, so a cancellation means nothing any more.
    if (sessions_.at(member.session).join_number != 0) member.answered_join.reset();
  }
}

void ReferenceJobs::Mapped(SessionId id, CallId call, JobId job_id, bool error) {
  RefJob* job = Member(id, call, job_id);
  if (job == nullptr) return;
  if (job->state == JobState::kForming) return Expect(call, Code::kFailedPrecondition);
  if (job->state == JobState::kBroken) return Expect(call, Code::kAborted);
  if (job->state == JobState::kReady) return Expect(call, Code::kOk);
  if (error) {
    Expect(call, Code::kAborted);
    return FailJob(*job, Code::kAborted);
  }
  RefMember& member = job->ranks[sessions_.at(id).rank];
  if (member.mapped_calls.size() == 8) return Expect(call, Code::kResourceExhausted);
  member.mapped_calls.push_back(call);
  member.state = RankState::kMapped;
  member.withdraw_deadline.reset();
  for (const RefMember& one : job->ranks) {
    if (one.state != RankState::kMapped) return;
  }
  job->state = JobState::kReady;
  job->heap = NaiveHeap(job->heap_initial, 1024);
  std::vector<Rank> world;
  for (Rank rank = 0; rank < job->ranks.size(); ++rank) {
    world.push_back(rank);
    job->ranks[rank].state = RankState::kReady;
    for (const CallId mapped : std::exchange(job->ranks[rank].mapped_calls, {}))
      Expect(mapped, Code::kOk);
  }
  MakeTeam(*job, world, 0);
  for (const Rank rank : world) {
    RefTeam& own = job->teams[OwnTeam(rank)];
    own.ranks = {rank};
    own.position[rank] = 0;
  }
}

void ReferenceJobs::Detach(RefJob& job, Rank rank, Code told) {
  RefSession& session = sessions_.at(job.ranks[rank].session);
  session.job = JobId();
  session.past_job = job.id;
  session.past_code = told;
  job.ranks[rank].session = SessionId();
  job.ranks[rank].withdraw_deadline.reset();
  for (const RefBarrier& barrier : std::exchange(job.ranks[rank].barriers, {})) {
    Expect(barrier.call, told);
  }
}

void ReferenceJobs::WithdrawCancelled(RefJob& job, Rank rank) {
  job.ranks[rank].withdraw_deadline.reset();
  if (job.state == JobState::kForming) {
    sessions_.at(job.ranks[rank].session).join_number = 0;
    Withdraw(job, rank, Code::kCancelled);
  } else {
    FailJob(job, Code::kAborted);
  }
}

void ReferenceJobs::Withdraw(RefJob& job, Rank rank, Code code) {
  RefMember& member = job.ranks[rank];
  if (member.join_call.has_value()) Expect(*member.join_call, code);
  Drop(*member.first_segment);
  Detach(job, rank, code);
  member = RefMember();
  if (job.n_attached() == 0) EndJob(job);
}

void ReferenceJobs::FailJob(RefJob& job, Code code) {
  for (Rank rank = 0; rank < job.ranks.size(); ++rank) {
    RefMember& member = job.ranks[rank];
    if (!member.attached()) continue;
    if (member.join_call.has_value()) Expect(*member.join_call, code);
    for (const CallId call : member.mapped_calls) Expect(call, code);
    Detach(job, rank, code);
  }
  EndJob(job);
}

void ReferenceJobs::EndJob(RefJob& job) {
  uint64_t bytes = 0;
  for (auto& [id, segment] : segments_) {
    if (segment.job != job.id || segment.dropping) continue;
    segment.dropping = true;
    bytes += segment.bytes;
  }
  Keep(job, bytes);
  jobs_.erase(job.id);
}

void ReferenceJobs::Leave(SessionId id, CallId call, JobId job_id) {
  const auto session = sessions_.find(id);
  if (session != sessions_.end() && !session->second.ending && job_id.value != 0 &&
      session->second.job != job_id && session->second.past_job == job_id) {
    return Expect(call, Code::kOk);
  }
  RefJob* job = Member(id, call, job_id);
  if (job == nullptr) return;
  Expect(call, Code::kOk);
  const Rank rank = session->second.rank;
  if (job->state == JobState::kForming) return Withdraw(*job, rank, Code::kAborted);
  if (job->state == JobState::kMapping) return FailJob(*job, Code::kAborted);
  job->ranks[rank].state = RankState::kLeft;
  FailGrowth(*job, Code::kAborted);
  for (auto next = job->opens.begin(); next != job->opens.end();) {
    const auto open = next++;
    if (open->second == rank) Close(*job, open);
  }
  AbortDeadTeams(*job);
  Detach(*job, rank, Code::kFailedPrecondition);
  if (job->n_attached() == 0) EndJob(*job);
}

void ReferenceJobs::HangUp(SessionId id) {
  const auto session = sessions_.find(id);
  if (session == sessions_.end() || session->second.ending) return;
  session->second.ending = true;
  RefJob* job = Find(session->second.job);
  if (job == nullptr || !Committed(*job)) {
    if (job != nullptr) FailJob(*job, Code::kAborted);
    if (!Stays(id)) sessions_.erase(id);  // it holds no rank any more
    return;
  }
  job->ranks[session->second.rank].state = RankState::kEnding;
  if (job->n_attached() > 1) job->state = JobState::kBroken;
  FailGrowth(*job, Code::kAborted);
  AbortDeadTeams(*job);
}

void ReferenceJobs::Keep(const RefJob& job, uint64_t bytes) {
  RefKept kept{.uid = job.uid, .bytes = bytes};
  for (const RefMember& member : job.ranks) {
    if (member.keeps) kept.pids.insert(member.pid);
  }
  if (!kept.pids.empty()) kept_.push_back(kept);
}

bool ReferenceJobs::Stays(SessionId id) const {
  const RefSession& session = sessions_.at(id);
  for (const auto& [other_id, other] : sessions_) {
    if (other_id != id && other.pid == session.pid && other.uid == session.uid) return false;
  }
  for (const RefKept& kept : kept_) {
    if (kept.uid == session.uid && kept.pids.contains(session.pid)) return true;
  }
  for (const auto& [job_id, job] : jobs_) {
    for (const RefMember& member : job->ranks) {
      if (member.keeps && member.pid == session.pid && job->uid == session.uid) return true;
    }
  }
  return false;
}

uint64_t ReferenceJobs::KeptBytes() const {
  uint64_t sum = 0;
  for (const RefKept& kept : kept_) sum += kept.bytes;
  return sum;
}

void ReferenceJobs::Gone(SessionId id) {
  const auto session = sessions_.find(id);
  if (session == sessions_.end()) return;
  const RefSession who = session->second;
  for (RefKept& kept : kept_) {
    if (kept.uid == who.uid) kept.pids.erase(who.pid);
  }
  std::erase_if(kept_, [](const RefKept& kept) { return kept.pids.empty(); });
  for (auto& [job_id, job] : jobs_) {
    for (RefMember& member : job->ranks) {
      if (job->uid == who.uid && member.pid == who.pid) member.keeps = false;
    }
  }
  if (RefJob* job = Find(session->second.job); job != nullptr) {
    if (!Committed(*job)) {
      FailJob(*job, Code::kAborted);
    } else {
      job->ranks[session->second.rank].state = RankState::kDead;
      job->state = JobState::kBroken;
      FailGrowth(*job, Code::kAborted);
      AbortDeadTeams(*job);
      Detach(*job, session->second.rank, Code::kAborted);
      if (job->n_attached() == 0) EndJob(*job);
    }
  }
  sessions_.erase(id);
}

void ReferenceJobs::Resume(SessionId id, CallId call, JobId job_id, const std::string& name,
                           int32_t rank, uint64_t epoch) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return Expect(call, Code::kPermissionDenied);
  RefSession& session = found->second;
  if (session.ending) return Expect(call, Code::kFailedPrecondition);
  RefJob* job = Find(job_id);
  if (job == nullptr || job->uid != session.uid || job->name != name)
    return Expect(call, Code::kNotFound);
  if (rank < 0 || static_cast<size_t>(rank) >= job->ranks.size())
    return Expect(call, Code::kInvalidArgument);
  if (epoch != 1) return Expect(call, Code::kFailedPrecondition);
  RefMember& member = job->ranks[rank];
  const Code outcome = job->state == JobState::kBroken ? Code::kAborted : Code::kOk;
  if (member.session == id) return Expect(call, outcome);
  if (session.job.value != 0) return Expect(call, Code::kFailedPrecondition);
  if (!member.attached() || member.pid != session.pid) return Expect(call, Code::kPermissionDenied);
  if (!sessions_.at(member.session).ending) return Expect(call, Code::kUnavailable);
  Detach(*job, rank, Code::kFailedPrecondition);
  member.session = id;
  session.job = job_id;
  session.rank = rank;
  if (outcome == Code::kOk) member.state = RankState::kReady;
  Expect(call, outcome);
}

void ReferenceJobs::Cancelled(CallId call) {
  for (auto& [id, job] : jobs_) {
    for (Rank rank = 0; rank < job->ranks.size(); ++rank) {
      RefMember& member = job->ranks[rank];
      if (job->state == JobState::kMapping && member.answered_join == call &&
          member.state == RankState::kJoined) {
        return FailJob(*job, Code::kAborted);
      }
      std::erase(member.mapped_calls, call);
      if (member.join_call != call) continue;
      member.answered_join = std::exchange(member.join_call, std::nullopt);
      member.withdraw_deadline = clock_->Now() + server::kWithdrawAfter;
      return;
    }
    for (auto& [team_id, team] : job->teams) {
      if (!team.op.has_value()) continue;
      for (auto& [rank, calls] : team.op->calls) std::erase(calls, call);
    }
    for (RefMember& member : job->ranks) {
      std::erase_if(member.barriers, [&](const RefBarrier& one) { return one.call == call; });
    }
  }
}

void ReferenceJobs::Watch(SessionId id, CallId call, JobId job) {
  if (Member(id, call, job) != nullptr) Expect(call, Code::kOk);
}

// Segments.

void ReferenceJobs::SegmentCreated(SegmentId id, bool ok) {
  const auto found = segments_.find(id);
  if (found == segments_.end() || found->second.dropping || found->second.created) return;
  RefJob& job = *Find(found->second.job);
  if (ok) {
    found->second.created = true;
    if (job.growth.has_value()) {
      RefGrowth& growth = *job.growth;
      growth.created.insert(id);
      growth.mapping = growth.created.size() == growth.segments.size();
      if (growth.mapping) growth.deadline = clock_->Now() + absl::Seconds(30);
    }
    return FinishForming(job);
  }
  segments_.erase(found);
  if (Committed(job)) return FailGrowth(job, Code::kResourceExhausted);
  for (Rank rank = 0; rank < job.ranks.size(); ++rank) {
    RefMember& member = job.ranks[rank];
    if (member.first_segment != id) continue;
    RememberRefused(job.uid, job.name, &job, job.ranks.size(),
                    {Code::kAborted, rank, clock_->Now(), clock_->Now() + absl::Seconds(60), {}});
    if (member.join_call.has_value()) Expect(*member.join_call, Code::kInternal);  // as it said
    member.join_call.reset();
    member.first_segment.reset();
  }
  FailJob(job, Code::kAborted);
}

void ReferenceJobs::SegmentDropped(SegmentId id) {
  const auto found = segments_.find(id);
  if (found != segments_.end() && found->second.dropping) segments_.erase(found);
}

uint64_t ReferenceJobs::BookedBytes() const {
  uint64_t sum = 0;
  for (const auto& [id, segment] : segments_) sum += segment.bytes;
  return sum;
}

// Time.

std::vector<ReferenceJobs::Due> ReferenceJobs::Deadlines() const {
  std::vector<Due> all;
  for (const auto& [id, job] : jobs_) {
    for (Rank rank = 0; rank < job->ranks.size(); ++rank) {
      if (job->ranks[rank].join_call.has_value())
        all.push_back({job->ranks[rank].join_deadline, id, 0, rank});
      if (job->ranks[rank].withdraw_deadline.has_value())
        all.push_back({*job->ranks[rank].withdraw_deadline, id, 4, rank});
    }
    if (job->state == JobState::kMapping) all.push_back({job->map_deadline, id, 1, 0});
    for (const auto& [team_id, team] : job->teams) {
      if (team.op.has_value() && team.op->calls.size() < team.ranks.size()) {
        all.push_back({team.op->deadline, id, 2, team_id});
      }
    }
    if (job->growth.has_value()) all.push_back({job->growth->deadline, id, 3, 0});
  }
  return all;
}

absl::Time ReferenceJobs::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const Due& due : Deadlines()) next = std::min(next, due.when);
  return next;
}

void ReferenceJobs::Tick() {
  const absl::Time now = clock_->Now();
  while (true) {
    const auto all = Deadlines();
    const auto first = std::min_element(
        all.begin(), all.end(), [](const Due& a, const Due& b) { return a.Key() < b.Key(); });
    if (first == all.end() || first->when > now) return;
    RefJob& job = *Find(first->job);
    if (first->kind == 0) Withdraw(job, first->index, Code::kDeadlineExceeded);
    if (first->kind == 1) FailJob(job, Code::kDeadlineExceeded);
    if (first->kind == 2) Fail(job, first->index, Code::kDeadlineExceeded);
    if (first->kind == 3) FailGrowth(job, Code::kResourceExhausted);
    if (first->kind == 4) WithdrawCancelled(job, first->index);
  }
}

// Operations of teams.

bool ReferenceJobs::Alive(const RefJob& job, const RefTeam& team) const {
  return job.state == JobState::kReady &&
         std::all_of(team.ranks.begin(), team.ranks.end(),
                     [&](Rank rank) { return job.ranks[rank].state == RankState::kReady; });
}

Expected ReferenceJobs::ForRank(const RefOutcome& outcome, Rank rank) {
  Expected expected = outcome.expected;
  expected.is_outcome = true;
  for (const auto& [id, ranks] : outcome.teams) {
    if (std::count(ranks.begin(), ranks.end(), rank) == 0) continue;
    expected.team = id;
    expected.team_ranks = ranks;
  }
  return expected;
}

// Old outcomes are forgotten: all but 64, and those before a value that every member has got
// behind.
void ReferenceJobs::Forget(RefTeam& team) {
  uint64_t slowest = ~uint64_t{0};
  for (const auto& [rank, position] : team.position) slowest = std::min(slowest, position);
  for (uint64_t k = team.forgotten_below; k < team.log.size(); ++k) {
    const bool has_value = !team.log[k].expected.value.value_or("").empty();
    if (k + 64 < team.log.size() || (has_value && k + 1 < slowest)) team.forgotten_below = k + 1;
  }
}

void ReferenceJobs::Operate(SessionId id, CallId call, const OperationSpec& spec) {
  RefJob* job = Member(id, call, spec.job);
  if (job == nullptr) return;
  const Rank rank = sessions_.at(id).rank;
  if (!Committed(*job)) return Expect(call, Code::kFailedPrecondition);
  const auto found = job->teams.find(spec.team);
  const bool known =
      found != job->teams.end() &&
      (!found->second.destroyed || std::count(job->past.begin(), job->past.end(), spec.team) > 0);
  if (!known) return Expect(call, Code::kNotFound);
  RefTeam& team = found->second;
  if (!team.position.contains(rank)) return Expect(call, Code::kPermissionDenied);
  uint64_t& position = team.position[rank];
  if (spec.k > position || (team.destroyed && spec.k == position))
    return Expect(call, Code::kFailedPrecondition);
  if (spec.k < team.log.size()) {
    if (spec.k < team.forgotten_below) {
      Expect(call, Code::kOutOfRange);
    } else {
      expected_[call] = ForRank(team.log[spec.k], rank);
    }
    if (spec.k == position) ++position;
    return Forget(team);
  }
  if (spec.k < position) {
    auto& calls = team.op->calls[rank];
    if (calls.size() == 8) return Expect(call, Code::kResourceExhausted);
    calls.push_back(call);
    if (!spec.only_thread) team.op->asked_alone.erase(rank);
    return;
  }
  if (spec.k > team.log.size()) return Expect(call, Code::kFailedPrecondition);
  ++position;
  Forget(team);
  if (!team.op.has_value()) team.op = RefOp{.op = spec.op};
  RefOp& op = *team.op;
  op.calls[rank].push_back(call);
  if (spec.only_thread) op.asked_alone[rank] = ++job->moment;
  if (!Alive(*job, team)) return Fail(*job, spec.team, Code::kAborted);
  if (!WellFormed(team, spec.team, rank, spec.op))
    return Fail(*job, spec.team, Code::kInvalidArgument);
  if (const auto* confirm = std::get_if<ConfirmOp>(&spec.op);
      confirm != nullptr && !confirm->error.empty()) {
    Unconfirmed(*job, spec.team, spec.op);
    return Fail(*job, spec.team, Code::kResourceExhausted);
  }
  if (!Agree(op.op, spec.op)) {
    Unconfirmed(*job, spec.team, spec.op);
    return Fail(*job, spec.team, Code::kInvalidArgument);
  }
  if (const auto* registers = std::get_if<RegisterOp>(&spec.op)) {
    for (const uint64_t bytes : registers->piece_bytes) {
      if (bytes % granularity_ != 0) return Fail(*job, spec.team, Code::kInvalidArgument);
    }
    op.given.push_back(*registers);
  }
  if (const auto* broadcast = std::get_if<BroadcastOp>(&spec.op);
      broadcast != nullptr && broadcast->root == rank) {
    op.value = std::string(broadcast->value.view());
  }
  if (const auto* split = std::get_if<SplitOp>(&spec.op)) {
    for (const SplitOp::Wish& wish : split->wishes) {
      if (wish.rank == rank) op.wishes[rank] = wish;
    }
  }
  op.deadline = std::min(op.deadline, clock_->Now() + spec.timeout);
  if (op.calls.size() == team.ranks.size()) return Execute(*job, spec.team);
  if (spec.only_thread) EndStuckCalls(*job);
}

void ReferenceJobs::AwaitBarrier(SessionId id, CallId call, const server::AwaitBarrierSpec& spec) {
  RefJob* job = Member(id, call, spec.job);
  if (job == nullptr) return;
  if (job->state != JobState::kReady) return Expect(call, Code::kFailedPrecondition);
  const Rank rank = sessions_.at(id).rank;
  const auto team = job->teams.find(spec.team);
  if (team == job->teams.end() || team->second.destroyed || !team->second.position.contains(rank)) {
    return Expect(call, Code::kNotFound);
  }
  for (const Rank missing : spec.missing) {
    if (missing == rank || !team->second.position.contains(missing)) {
      return Expect(call, Code::kInvalidArgument);
    }
  }
  if (spec.missing.size() >= team->second.ranks.size()) {
    return Expect(call, Code::kInvalidArgument);
  }
  if (spec.time_is_up) return (void)(expected_[call] = {.cannot_end = false});
  RefMember& member = job->ranks[rank];
  if (member.barriers.size() == 8) return Expect(call, Code::kResourceExhausted);
  const uint64_t looked = std::min(spec.moment, job->moment);
  const uint64_t entered = looked > 0 ? looked : ++job->moment;
  member.barriers.push_back({call, spec.team, spec.missing, spec.only_thread, entered, looked});
  if (spec.only_thread) EndStuckCalls(*job);
}

void ReferenceJobs::EndStuckCalls(RefJob& job) {
  if (job.state != JobState::kReady) return;
  struct InCall {
    std::optional<TeamId> team;  // of an operation
    std::vector<Rank> needs;
    uint64_t entered = 0;
  };
  std::map<Rank, InCall> blocked;
  for (Rank rank = 0; rank < job.ranks.size(); ++rank) {
    size_t n_calls = 0;
    bool judged = true;
    InCall in;
    for (auto& [id, team] : job.teams) {
      if (!team.op.has_value() || !team.op->calls.contains(rank) ||
          team.op->calls.at(rank).empty()) {
        continue;
      }
      ++n_calls;
      judged = team.op->asked_alone.contains(rank);
      in.team = id;
      in.entered = judged ? team.op->asked_alone.at(rank) : 0;
      for (const Rank other : team.ranks) {
        if (!team.op->calls.contains(other)) in.needs.push_back(other);
      }
    }
    for (const RefBarrier& barrier : job.ranks[rank].barriers) {
      ++n_calls;
      judged = barrier.only_thread;
      in = {std::nullopt, barrier.missing, barrier.entered};
    }
    if (n_calls == 1 && judged) blocked[rank] = in;
  }
  std::map<Rank, InCall> stuck;
  uint64_t newest = 0;
  for (const auto& [rank, in] : blocked) {
    std::set<Rank> ahead = {rank};
    for (size_t step = 0; step < job.ranks.size(); ++step) {
      std::set<Rank> next;
      for (const Rank one : ahead) {
        if (blocked.contains(one))
          next.insert(blocked[one].needs.begin(), blocked[one].needs.end());
      }
      ahead = next;
    }
    if (std::none_of(ahead.begin(), ahead.end(), [&](Rank one) { return blocked.contains(one); })) {
      continue;
    }
    stuck[rank] = in;
    newest = std::max(newest, in.entered);
  }
  const auto answer = [&](Rank rank, bool cannot_end) {
    const RefBarrier barrier = job.ranks[rank].barriers[0];
    job.ranks[rank].barriers.clear();
    expected_[barrier.call] = {.cannot_end = cannot_end};
  };
  bool look_again = false;
  for (const auto& [rank, in] : stuck) {
    if (in.team.has_value() || job.ranks[rank].barriers[0].looked >= newest) continue;
    look_again = true;
    answer(rank, false);
  }
  if (look_again) return;
  for (const auto& [rank, in] : stuck) {
    if (!in.team.has_value()) answer(rank, true);
    if (in.team.has_value() && job.teams.at(*in.team).op.has_value()) {
      Fail(job, *in.team, Code::kInvalidArgument);
    }
  }
}

void ReferenceJobs::Conclude(RefJob& job, TeamId id, Expected expected,
                             std::map<TeamId, std::vector<Rank>> teams) {
  RefTeam& team = job.teams.at(id);
  if (expected.code == Code::kOk) expected.heap_bytes = job.heap.capacity();
  const RefOp op = *std::exchange(team.op, std::nullopt);
  if (expected.code != Code::kOk) Unconfirmed(job, id, op.op);
  team.log.push_back({expected, teams});
  for (const auto& [rank, calls] : op.calls) {
    for (const CallId call : calls) expected_[call] = ForRank(team.log.back(), rank);
  }
  Forget(team);
}

void ReferenceJobs::AbortDeadTeams(RefJob& job) {
  for (auto& [id, team] : job.teams) {
    if (team.op.has_value() && !Alive(job, team)) Fail(job, id, Code::kAborted);
  }
  for (RefMember& member : job.ranks) {
    std::erase_if(member.barriers, [&](const RefBarrier& barrier) {
      const RefTeam& team = job.teams.at(barrier.team);
      const bool dead = team.destroyed || !Alive(job, team);
      if (dead) expected_[barrier.call] = {.cannot_end = false};
      return dead;
    });
  }
}

std::optional<uint64_t> ReferenceJobs::MakeTeam(RefJob& job, const std::vector<Rank>& ranks,
                                                TeamId id) {
  const auto offset = job.heap.Allocate(job.sync_bytes, kSmallestAlignment);
  if (!offset.has_value()) return offset;
  RefTeam team;
  team.ranks = ranks;
  for (const Rank rank : ranks) team.position[rank] = 0;
  team.sync_offset = offset;
  job.teams[id] = team;
  return offset;
}

void ReferenceJobs::Execute(RefJob& job, TeamId id) {
  RefTeam& team = job.teams.at(id);
  const RefOp& op = *team.op;
  if (std::holds_alternative<BroadcastOp>(op.op)) {
    return Conclude(job, id, {.value = op.value});
  }
  if (const auto* allocate = std::get_if<AllocateOp>(&op.op)) {
    if (Taken(job, id, allocate->name)) return Fail(job, id, Code::kAlreadyExists);
    const auto offset = job.heap.Allocate(allocate->bytes, AlignmentOf(*allocate));
    if (!offset.has_value()) {
      if (allocate->bytes > job.stride) return NeedGrowth(job, id, ~uint64_t{0}, 0);
      const uint64_t needed = job.heap.Shortfall(allocate->bytes, AlignmentOf(*allocate));
      return NeedGrowth(job, id, needed, std::max(needed, job.heap_initial));
    }
    team.allocations.insert(*offset);
    if (!allocate->name.empty()) job.name_of[*offset] = allocate->name;
    if (IsOwnTeam(id)) job.owner_of[*offset] = OwnerOf(id);
    return Conclude(job, id, {.offset = *offset});
  }
  if (const auto* free = std::get_if<FreeOp>(&op.op)) {
    return FreeOrClose(job, id, free->offset_bytes);
  }
  if (const auto* publish = std::get_if<PublishOp>(&op.op)) {
    const uint64_t offset = publish->offset_bytes;
    if (!team.allocations.contains(offset)) return Fail(job, id, Code::kInvalidArgument);
    if (job.name_of.contains(offset)) return Fail(job, id, Code::kFailedPrecondition);
    if (Taken(job, id, publish->name)) return Fail(job, id, Code::kAlreadyExists);
    job.name_of[offset] = publish->name;
    return Conclude(job, id, {});
  }
  if (const auto* registers = std::get_if<RegisterOp>(&op.op)) return Register(job, id, *registers);
  if (const auto* confirm = std::get_if<ConfirmOp>(&op.op)) {
    const bool there = team.allocations.contains(confirm->offset_bytes) &&
                       job.registered.contains(confirm->offset_bytes);
    return there ? Conclude(job, id, {}) : Fail(job, id, Code::kInvalidArgument);
  }
  if (const auto* open = std::get_if<OpenOp>(&op.op)) {
    if (open->owner >= job.ranks.size()) return Fail(job, id, Code::kInvalidArgument);
    const auto found = Named(job, open->name, open->owner);
    if (found.has_value()) {
      job.opens.emplace(*found, OwnerOf(id));
      return Conclude(job, id, {.opened = found});
    }
    if (Named(job, open->name, std::nullopt).has_value())
      return Fail(job, id, Code::kInvalidArgument);
    if (job.ranks[open->owner].state != RankState::kReady) return Fail(job, id, Code::kAborted);
    return Conclude(job, id, {});
  }
  if (const auto* create = std::get_if<CreateTeamOp>(&op.op)) {
    return MakeTeams(job, id, {create->ranks});
  }
  if (std::holds_alternative<SplitOp>(op.op)) {
    std::map<int32_t, std::map<std::pair<int32_t, size_t>, Rank>> colors;  // by key and place
    for (size_t place = 0; place < team.ranks.size(); ++place) {
      const SplitOp::Wish& wish = op.wishes.at(team.ranks[place]);
      if (wish.color >= 0) colors[wish.color][{wish.key, place}] = wish.rank;
    }
    std::vector<std::vector<Rank>> lists;
    for (const auto& [color, members] : colors) {
      lists.emplace_back();
      for (const auto& [order, rank] : members) lists.back().push_back(rank);
    }
    return MakeTeams(job, id, lists);
  }
  if (std::holds_alternative<DestroyTeamOp>(op.op)) {
    if (!team.allocations.empty()) return Fail(job, id, Code::kFailedPrecondition);
    job.heap.Free(*team.sync_offset);
    Conclude(job, id, {});
    team.destroyed = true;
    team.forgotten_below = std::max<uint64_t>(team.forgotten_below, team.log.size() - 1);
    job.past.push_back(id);
    if (job.past.size() > 16) job.past.pop_front();
    return;
  }
  if (op.growth_done) return Conclude(job, id, {});
  const uint64_t bytes = std::get<GrowOp>(op.op).bytes;
  NeedGrowth(job, id, bytes, bytes);
}

void ReferenceJobs::MakeTeams(RefJob& job, TeamId id, const std::vector<std::vector<Rank>>& lists) {
  std::map<TeamId, std::vector<Rank>> made;
  for (const std::vector<Rank>& ranks : lists) {
    const TeamId next = static_cast<TeamId>(job.teams.size() - job.ranks.size());
    if (MakeTeam(job, ranks, next).has_value()) made[next] = ranks;
  }
  if (made.size() == lists.size()) return Conclude(job, id, {}, made);
  for (const auto& [undone, ranks] : made) {
    job.heap.Free(*job.teams.at(undone).sync_offset);
    job.teams.erase(undone);
  }
  // One hole for all of them.
  const uint64_t area = (job.sync_bytes + 1023) / 1024 * 1024;
  const uint64_t needed = job.heap.Shortfall(lists.size() * area, kSmallestAlignment);
  NeedGrowth(job, id, needed, std::max(needed, job.heap_initial));
}

// What a rank allocates alone.

void ReferenceJobs::Register(RefJob& job, TeamId id, const RegisterOp& op) {
  uint64_t before = 0, behind = 0;
  const std::vector<RegisterOp> given = job.teams.at(id).op->given;
  for (const RegisterOp& one : given) {
    uint64_t total = 0;
    for (const uint64_t bytes : one.piece_bytes) total += bytes;
    if ((one.lead_bytes - given.front().lead_bytes) % granularity_ != 0) {
      return Fail(job, id, Code::kInvalidArgument);
    }
    before = std::max(before, one.lead_bytes);
    behind = std::max(behind, total - one.lead_bytes);
  }
  if (Taken(job, id, op.name)) return Fail(job, id, Code::kAlreadyExists);
  const uint64_t total = before + behind;
  const uint64_t floor = job.heap.capacity() + (job.growth.has_value() ? job.growth->bytes : 0);
  for (uint64_t end = job.stride; end >= floor + total; end -= granularity_) {
    const uint64_t start = end - total;
    const bool free = std::all_of(job.registered.begin(), job.registered.end(), [&](const auto& r) {
      return r.second.second <= start || r.second.first >= end;
    });
    if (!free) continue;
    const uint64_t offset = start + before;
    job.registered[offset] = {start, end};
    job.teams.at(id).allocations.insert(offset);
    if (!op.name.empty()) job.name_of[offset] = op.name;
    if (IsOwnTeam(id)) job.owner_of[offset] = OwnerOf(id);
    return Conclude(job, id, {.offset = offset});
  }
  Fail(job, id, Code::kResourceExhausted);
}

void ReferenceJobs::Unconfirmed(RefJob& job, TeamId id, const Operation& op) {
  const auto* confirm = std::get_if<ConfirmOp>(&op);
  if (confirm == nullptr || IsOwnTeam(id) || !job.registered.contains(confirm->offset_bytes))
    return;
  if (job.teams.at(id).allocations.erase(confirm->offset_bytes) == 0) return;
  job.name_of.erase(confirm->offset_bytes);
  Release(job, confirm->offset_bytes);
}

std::optional<uint64_t> ReferenceJobs::Named(const RefJob& job, const std::string& name,
                                             std::optional<Rank> owner) {
  for (const auto& [offset, other] : job.name_of) {
    const auto whose = job.owner_of.find(offset);
    const bool own = whose != job.owner_of.end();
    if (other == name && own == owner.has_value() && (!own || whose->second == *owner))
      return offset;
  }
  return std::nullopt;
}

bool ReferenceJobs::Taken(const RefJob& job, TeamId id, const std::string& name) {
  bool taken = Named(job, name, std::nullopt).has_value();
  for (Rank rank = 0; rank < job.ranks.size(); ++rank) {
    const bool apart = IsOwnTeam(id) && OwnerOf(id) != rank;
    taken |= !apart && Named(job, name, rank).has_value();
  }
  return taken && !name.empty();
}

void ReferenceJobs::FreeOrClose(RefJob& job, TeamId id, uint64_t offset) {
  for (auto open = job.opens.begin(); open != job.opens.end(); ++open) {
    if (!IsOwnTeam(id) || open->first != offset || open->second != OwnerOf(id)) continue;
    Close(job, open);
    return Conclude(job, id, {});
  }
  if (job.teams.at(id).allocations.erase(offset) == 0) return Fail(job, id, Code::kInvalidArgument);
  job.name_of.erase(offset);
  if (!job.opens.contains(offset)) Release(job, offset);
  Conclude(job, id, {});
}

void ReferenceJobs::Close(RefJob& job, std::multimap<uint64_t, Rank>::iterator open) {
  const uint64_t offset = open->first;
  job.opens.erase(open);
  const bool owned = job.teams.at(OwnTeam(job.owner_of.at(offset))).allocations.contains(offset);
  if (!owned && !job.opens.contains(offset)) Release(job, offset);
}

void ReferenceJobs::Release(RefJob& job, uint64_t offset) {
  if (job.registered.erase(offset) == 0) job.heap.Free(offset);
  job.owner_of.erase(offset);
}

// Growth.

void ReferenceJobs::NeedGrowth(RefJob& job, TeamId id, uint64_t needed, uint64_t wanted) {
  if (job.growth.has_value()) {
    job.growth_queue.push_back(id);
    return;
  }
  uint64_t top = job.stride;
  for (const auto& [offset, range] : job.registered) top = std::min(top, range.first);
  const uint64_t room = top - job.heap.capacity();
  const bool all_here = std::all_of(job.ranks.begin(), job.ranks.end(), [](const RefMember& m) {
    return m.state == RankState::kReady;
  });
  if (!all_here || needed > room) return Fail(job, id, Code::kResourceExhausted);
  const uint64_t bytes = (std::min(wanted, room) + granularity_ - 1) / granularity_ * granularity_;
  job.growth = RefGrowth{.id = next_grow_++,
                         .team = id,
                         .bytes = bytes,
                         .deadline = clock_->Now() + absl::Seconds(30)};
}

void ReferenceJobs::GrowMapped(SessionId id, CallId call, JobId job_id, uint64_t grow, bool error) {
  RefJob* job = Member(id, call, job_id);
  if (job == nullptr) return;
  if (job->last_published == grow && grow != 0) return Expect(call, Code::kOk);
  if (job->last_growth.has_value() && job->last_growth->first == grow) {
    return Expect(call, Code::kAborted);
  }
  if (!job->growth.has_value() || job->growth->id != grow || !job->growth->mapping) {
    return Expect(call, Code::kFailedPrecondition);
  }
  Expect(call, Code::kOk);
  if (error) return FailGrowth(*job, Code::kResourceExhausted);
  job->growth->mapped.insert(sessions_.at(id).rank);
  if (job->growth->mapped.size() < job->ranks.size()) return;
  const RefGrowth growth = *std::exchange(job->growth, std::nullopt);
  job->heap.Grow(job->heap.capacity() + growth.bytes);
  job->last_growth = {growth.id, true};
  job->last_published = growth.id;
  job->teams.at(growth.team).op->growth_done = true;
  Execute(*job, growth.team);
  RunQueue(*job);
}

void ReferenceJobs::FailGrowth(RefJob& job, Code code) {
  if (!job.growth.has_value()) return;
  const RefGrowth growth = *std::exchange(job.growth, std::nullopt);
  job.last_growth = {growth.id, false};
  if (growth.mapping) Keep(job, growth.bytes * job.ranks.size());
  for (const SegmentId id : growth.segments) {
    if (segments_.contains(id)) Drop(id);
  }
  Fail(job, growth.team, code);
  RunQueue(job);
}

void ReferenceJobs::RunQueue(RefJob& job) {
  while (!job.growth.has_value() && !job.growth_queue.empty()) {
    const TeamId id = job.growth_queue.front();
    job.growth_queue.pop_front();
    if (Alive(job, job.teams.at(id))) {
      Execute(job, id);
    } else {
      Fail(job, id, Code::kAborted);
    }
  }
}

}  // namespace iris::model
