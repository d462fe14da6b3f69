// The checks of a Join, before anything changes.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "device/base/bytes.h"
#include "proto/wire/limits.h"
#include "server/heap/check.h"
#include "server/job/rendezvous.h"

namespace iris::server {
namespace {

uint64_t RoundUp(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

}  // namespace

absl::StatusOr<JoinSpec> Rendezvous::CheckJoin(JoinSpec spec) const {
  if (absl::Status s = CheckText("join: the name of the job", spec.job, 1, wire::kMaxJobNameBytes);
      !s.ok()) {
    return s;
  }
  const std::string what =
      absl::StrCat("join job '", spec.job, "' as rank ", spec.rank, " of ", spec.n_ranks, ": ");
  if (spec.n_ranks < 1 || spec.n_ranks > static_cast<int32_t>(wire::kMaxRanks)) {
    return Error(Code::kInvalidArgument, what, "a job has 1 to ", wire::kMaxRanks, " ranks");
  }
  if (spec.rank < 0 || spec.rank >= spec.n_ranks) {
    return Error(Code::kInvalidArgument, what, "ranks count from 0 to ", spec.n_ranks - 1);
  }
  spec.timeout = JoinTimeout(spec);
  if (absl::Status s = CheckSizes(spec); !s.ok()) return WithPrefix(what, s);
  const auto device = ChooseDevice(spec);
  if (!device.ok()) return WithPrefix(what, device.status());
  spec.device_uuid = ledger_.devices()[*device].uuid;
  return spec;
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
  const uint64_t n_ranks = static_cast<uint64_t>(spec.n_ranks);
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

}  // namespace iris::server
