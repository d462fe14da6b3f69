#include "tests/fuzz/life.h"

#include <algorithm>
#include <variant>

#include "proto/wire/limits.h"
#include "server/state/machine_state.h"
#include "tests/fuzz/require.h"

namespace iris::fuzz {
namespace {

using server::CallId;
using server::JobId;
using server::Rank;
using server::SegmentId;
using server::SessionId;
using server::TeamId;

constexpr uint64_t kGranularity = 64 << 10;
constexpr uint64_t kDeviceBytes = 64 << 20;
constexpr size_t kMaxSessions = 24;

}  // namespace

std::vector<server::Ledger::DeviceAccount> Devices() {
  return {{"dev-0", kDeviceBytes, kGranularity, 0}, {"dev-1", kDeviceBytes, kGranularity, 0}};
}

Life::Life(server::JobMachine* machine, uint32_t seed, Stored stored)
    : machine_(*machine), stored_(std::move(stored)), random_(seed + 1) {
  const absl::Status begun = table_.Begin(server::MachineState::Encode(machine_));
  Require(begun.ok(), "a state that was written is read: ", begun.ToString());
  for (const server::SessionSnapshot& session : machine_.Sessions()) {
    next_session_ = std::max(next_session_, session.id.value + 1);
  }
  if (next_session_ == 0) next_session_ = 1;
}

void Life::Restart(Kept kept) {
  const auto is_kept = [&] { return kept == Kept::kAll || (kept == Kept::kSome && Below(8) != 0); };
  server::Recovered input{.generation = 2};
  for (const server::SessionSnapshot& session : machine_.Sessions()) {
    if (!session.ending && is_kept()) input.sessions.push_back(session.id);
  }
  for (const server::Segment& segment : machine_.Segments()) {
    if (is_kept()) input.memory.push_back(segment.info.id);
  }
  for (const server::JobSnapshot& job : machine_.Jobs({.allocations = true})) {
    if (is_kept()) input.pages.push_back(job.id);
  }
  to_create_.clear();
  to_drop_.clear();
  waiting_.clear();
  Apply(input);
}

void Life::Step() {
  switch (Below(20)) {
    case 0:
    case 1: {
      if (machine_.n_sessions() >= kMaxSessions) return;
      const int64_t pid = 100 + static_cast<int64_t>(Below(6));
      const uint32_t uid = Below(4) == 0 ? 1001 : 1000;
      server::CallerInfo caller{.pid = pid, .party = {uid}, .gid = uid, .process_start = 7};
      return Apply(server::SessionOpened{SessionId{next_session_++}, caller});
    }
    case 2:
    case 3:
    case 4:
      return Join();
    case 5:
    case 6: {
      if (to_create_.empty()) return;
      const SegmentId id = OneOf(to_create_);
      std::erase(to_create_, id);
      return Apply(server::SegmentCreated{
          id, Below(16) == 0 ? absl::InternalError("no memory") : absl::OkStatus()});
    }
    case 7: {
      if (to_drop_.empty()) return;
      const SegmentId id = OneOf(to_drop_);
      std::erase(to_drop_, id);
      return Apply(server::SegmentDropped{id});
    }
    case 8:
      now_ += absl::Seconds(Below(4) == 0 ? Below(100) : Below(5));
      return Apply(server::Tick{});
    case 9:
      if (Below(8) == 0) return Apply(server::StopRequested{"fuzz"});
      return Apply(server::DriverFree{static_cast<uint32_t>(Below(2)), random_()});
    case 10:
      if (machine_.n_sessions() == 0 || Below(4) != 0) return;
      if (Below(2) == 0) return Apply(server::SessionHungUp{SomeSession(), "fuzz"});
      return Apply(server::ProcessGone{SomeSession()});
    case 11: {
      if (waiting_.empty() || Below(4) != 0) return;
      const CallId call = *std::next(waiting_.begin(), static_cast<int>(Below(waiting_.size())));
      waiting_.erase(call);
      return Apply(server::CallCancelled{call});
    }
    default:
      return OfMember();
  }
}

void Life::Finish() {
  for (const server::SessionSnapshot& session : machine_.Sessions()) {
    if (Below(2) == 0 && !session.ending) Apply(server::SessionHungUp{session.id, "fuzz"});
    Apply(server::ProcessGone{session.id});
  }
  while (!to_create_.empty()) {
    const SegmentId id = to_create_.back();
    to_create_.pop_back();
    Apply(server::SegmentCreated{id, absl::OkStatus()});
  }
  while (!to_drop_.empty()) {
    const SegmentId id = to_drop_.back();
    to_drop_.pop_back();
    Apply(server::SegmentDropped{id});
  }
  CheckStored();
  Require(machine_.n_jobs() == 0, machine_.n_jobs(), " jobs are left");
  Require(machine_.n_sessions() == 0, machine_.n_sessions(), " sessions are left");
  Require(machine_.Segments().empty(), machine_.Segments().size(), " segments are left");
  Require(machine_.ledger().used_bytes_total() == 0, "memory is left");
  Require(machine_.kept_bytes() == 0, "memory is kept for nobody");
  Require(waiting_.empty(), waiting_.size(), " calls are not answered");
  Require(machine_.NextDeadline() == absl::InfiniteFuture(), "a deadline is left");
}

void Life::Apply(const server::Input& input) {
  const server::Effects effects = machine_.Apply(input, {now_, now_});
  for (const server::Effect& effect : effects) Note(effect);
  const absl::Status sound = machine_.CheckInvariants();
  Require(sound.ok(), "input ", input.index(), ": ", sound.ToString());
  std::string change;
  server::MachineState::EncodeChange(machine_, &change);
  const absl::Status taken = table_.Apply(change);
  Require(taken.ok(), "input ", input.index(), ": its change: ", taken.ToString());
  if (stored_ != nullptr) stored_(change);
}

void Life::Note(const server::Effect& effect) {
  if (const auto* reply = std::get_if<server::Reply>(&effect)) {
    Require(waiting_.erase(reply->call) == 1, "call ", reply->call.value, " is answered unasked");
    const auto asked = asked_.find(reply->call);
    if (asked == asked_.end()) return;
    const auto* const outcome = std::get_if<server::Outcome>(&reply->result);
    if (reply->status.ok() && outcome != nullptr) position_[asked->second] = outcome->k + 1;
    asked_.erase(asked);
  } else if (const auto* create = std::get_if<server::CreateSegment>(&effect)) {
    to_create_.push_back(create->id);
  } else if (const auto* drop = std::get_if<server::DropSegment>(&effect)) {
    std::erase(to_create_, drop->id);
    to_drop_.push_back(drop->id);
  } else if (const auto* notify = std::get_if<server::NotifyWatch>(&effect)) {
    if (const auto* added = std::get_if<server::SegmentsAdded>(&notify->event)) {
      grows_[notify->session] = added->grow;
    }
  }
}

// What the changes add up to is what a machine of this state would write.
void Life::CheckStored() {
  const std::string whole = server::MachineState::Encode(machine_);
  Require(server::MachineState::BytesOf(*table_.Take()) == whole,
          "the changes lead to another state");
  Require(table_.Begin(whole).ok(), "a state that was written is read");
}

void Life::Join() {
  if (machine_.n_sessions() == 0) return;
  server::JoinSpec spec;
  const char* const names[] = {"train", "other", "forming", "alone"};
  const uint64_t which = Below(4);
  spec.job = names[which];
  spec.n_ranks = static_cast<int32_t>(which == 3 ? 1 : 2 + which % 2);
  spec.rank = static_cast<int32_t>(Below(static_cast<uint64_t>(spec.n_ranks)));
  spec.heap_bytes = kGranularity * (1 + which);
  spec.max_heap_bytes = spec.heap_bytes * (1 + which * 3);
  spec.local_rank = spec.rank;
  spec.prealloc = which == 1;
  spec.team_sync_bytes = 8 << 10;
  spec.number = Below(3);
  spec.timeout = absl::Seconds(Below(10));
  Apply(server::JoinCall{SomeSession(), NewCall(), spec});
}

void Life::OfMember() {
  const std::vector<Member> members = Members();
  if (members.empty()) return;
  const Member member = OneOf(members);
  if (member.state == server::JobState::kMapping) {
    const std::string error = Below(16) == 0 ? "cannot map" : "";
    return Apply(
        server::MappedCall{member.session, NewCall(), member.job, 1, wire::kProposedBase, error});
  }
  switch (Below(16)) {
    case 0:
      return Apply(server::WatchOpened{member.session, NewCall(), member.job});
    case 1: {
      server::AwaitBarrierSpec spec{.job = member.job, .epoch = static_cast<uint32_t>(Below(3))};
      spec.missing = {static_cast<Rank>(Below(3))};
      spec.only_thread = Below(2) == 0;
      return Apply(server::AwaitBarrierCall{member.session, NewCall(), spec});
    }
    case 2:
    case 3:
    case 4:
      return Apply(server::GrowMappedCall{member.session, NewCall(), member.job,
                                          grows_[member.session],
                                          Below(16) == 0 ? "cannot map" : ""});
    case 5:
      if (Below(4) != 0) return;
      return Apply(server::LeaveCall{member.session, NewCall(), member.job});
    case 6:
      return Apply(server::ResumeCall{SomeSession(), NewCall(), member.job, "train",
                                      static_cast<int32_t>(member.rank), 1});
    default:
      break;
  }
  static constexpr TeamId kTeams[] = {server::kWorldTeam, server::kWorldTeam, 1, 2};
  const TeamId team = Below(4) == 0 ? server::OwnTeam(member.rank) : kTeams[Below(4)];
  uint64_t k = position_[{member.session, team}];
  if (Below(8) == 0) k += Below(3);
  if (Below(16) == 0) k = 0;
  const CallId call = NewCall();
  asked_[call] = {member.session, team};
  // Members of a team mostly ask for the same.
  const uint64_t seed = Below(32) == 0 ? random_() : k * 7 + team * 13 + member.job.value;
  Apply(server::OperateCall{
      member.session,
      call,
      {member.job, team, k, absl::Seconds(Below(9)), OperationOf(seed, member.rank)}});
}

server::Operation Life::OperationOf(uint64_t seed, Rank rank) {
  const std::string name = seed % 3 == 0 ? "" : absl::StrCat("name", seed % 5);
  const uint64_t offset = 1024 * (seed % 16);
  switch (seed % 11) {
    case 0:
    case 1:
    case 2:
      return server::AllocateOp{.bytes = 300 * (seed % 9), .alignment_bytes = 1024, .name = name};
    case 3:
      return server::FreeOp{offset};
    case 4:
      return server::BroadcastOp{static_cast<Rank>(seed % 2), std::string(seed % 40, 'v')};
    case 5:
      return server::CreateTeamOp{{0, 1}};
    case 6:
      return server::DestroyTeamOp{static_cast<uint32_t>(seed % 4)};
    case 7:
      return server::GrowOp{kGranularity};
    case 8:
      return server::OpenOp{static_cast<Rank>(seed % 2), name};
    case 9:
      return server::RegisterOp{.piece_bytes = {kGranularity}, .bytes = 100, .name = name};
    default:
      if (seed % 7 == 0) {
        return server::SplitOp{{{rank, static_cast<int32_t>(seed % 3) - 1, -1 * int32_t(rank)}}};
      }
      if (seed % 2 == 0) return server::PublishOp{offset, name};
      return server::ConfirmOp{offset, rank == 1 && seed % 5 == 0 ? "cannot map" : ""};
  }
}

std::vector<Life::Member> Life::Members() const {
  std::vector<Member> members;
  for (const server::JobSnapshot& job : machine_.Jobs()) {
    if (job.state == server::JobState::kForming) continue;
    for (const server::RankSnapshot& rank : job.ranks) {
      if (rank.session.value != 0) members.push_back({job.id, rank.rank, rank.session, job.state});
    }
  }
  return members;
}

SessionId Life::SomeSession() {
  std::vector<SessionId> ids;
  for (const server::SessionSnapshot& session : machine_.Sessions()) ids.push_back(session.id);
  return OneOf(ids);
}

CallId Life::NewCall() {
  const CallId call{next_call_++};
  waiting_.insert(call);
  return call;
}

}  // namespace iris::fuzz
