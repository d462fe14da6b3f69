// Physical memory of the jobs: what is booked, created, dropped, and given back to the ledger.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "device/base/bytes.h"
#include "server/heap/check.h"
#include "server/job/job_machine_impl.h"
#include "server/job/text.h"

namespace iris::server {

void JobMachine::Impl::CountDescriptors(const Party& party, int64_t change) {
  uint64_t& of_user = descriptors_by_account_[party.Account()];
  of_user += static_cast<uint64_t>(change);
  n_descriptors_ += static_cast<uint64_t>(change);
  if (of_user == 0) descriptors_by_account_.erase(party.Account());
}

absl::Status JobMachine::Impl::CheckDescriptors(uint64_t n, const Party& party) const {
  const uint64_t max = limits_.max_descriptors;
  if (max == 0) return absl::OkStatus();
  const auto found = descriptors_by_account_.find(party.Account());
  const uint64_t of_user = found == descriptors_by_account_.end() ? 0 : found->second;
  // A user may have more as long as a third as many stay free as he has: whatever some take,
  // another user finds some.
  const auto fits = [n, max](uint64_t of_all, uint64_t mine) {
    return of_all + n <= max && mine + n <= 3 * (max - of_all - n);
  };
  if (fits(n_descriptors_, of_user)) return absl::OkStatus();
  uint64_t n_dropping = 0, n_dropping_of_user = 0;
  for (const auto& [id, segment] : segments_) {
    if (!segment.dropping) continue;
    ++n_dropping;
    if (segment.holder.party.Account() == party.Account()) ++n_dropping_of_user;
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      n, " more file descriptors are needed for memory and pages; ", party.Account().Text(),
      " has ", of_user, " of the ", n_descriptors_, " that irisd holds for all users (", n_dropping,
      " are being given back), at most ", max,
      " are allowed, and a third as many are to stay free as one user has: ",
      fits(n_descriptors_ - n_dropping, of_user - n_dropping_of_user)
          ? "try again in a moment"
          : "free registered memory or end jobs, or raise LimitNOFILE of irisd's unit"));
}

absl::Status JobMachine::Impl::Book(uint32_t device_index, uint64_t bytes,
                                    const Ledger::Holder& holder) {
  const Party account = holder.party.Account();
  const auto found = booked_bytes_by_account_.find(account);
  const uint64_t kept = kept_->bytes(account);
  const uint64_t booked = (found == booked_bytes_by_account_.end() ? 0 : found->second) + kept;
  const uint64_t quota = limits_.max_heap_bytes_per_uid;
  if (quota != 0 && (booked > quota || bytes > quota - booked)) {
    std::string text = absl::StrCat("reserve ", base::SizeText(bytes), " for rank ", holder.rank,
                                    ": ", account.Text(), " holds ", base::SizeText(booked),
                                    " of the ", base::SizeText(quota), " that irisd allows it");
    if (kept > 0) {
      absl::StrAppend(&text, "; ", base::SizeText(kept),
                      " of them are of ranks that left or failed, and count until the processes "
                      "that may have them mapped have ended: ",
                      kept_->Holders(account));
    }
    return absl::ResourceExhaustedError(text);
  }
  if (absl::Status s = ledger_.Reserve(device_index, bytes, holder); !s.ok()) return s;
  booked_bytes_by_account_[account] += bytes;
  return absl::OkStatus();
}

void JobMachine::Impl::Unbook(uint32_t device_index, uint64_t bytes, const Ledger::Holder& holder) {
  ledger_.Release(device_index, bytes, holder);
  const auto booked = booked_bytes_by_account_.find(holder.party.Account());
  IRIS_CHECK(booked != booked_bytes_by_account_.end() && booked->second >= bytes,
             "an account adds up");
  booked->second -= bytes;
  if (booked->second == 0) booked_bytes_by_account_.erase(booked);
}

bool JobMachine::Impl::RoomAfterDrops(uint32_t device_index, uint64_t bytes,
                                      const Party& party) const {
  const auto value = [](const auto& map, const auto& key) {
    const auto found = map.find(key);
    return found == map.end() ? uint64_t{0} : found->second;
  };
  const auto& device = ledger_.devices()[device_index];
  const uint64_t kept = device.used_bytes - value(dropping_bytes_by_device_, device_index);
  if (kept > device.memory_bytes || bytes > device.memory_bytes - kept) return false;
  const uint64_t quota = limits_.max_heap_bytes_per_uid;
  if (quota == 0) return true;
  const Party account = party.Account();
  const uint64_t held = value(booked_bytes_by_account_, account) -
                        value(dropping_bytes_by_account_, account) + kept_->bytes(account);
  return held <= quota && bytes <= quota - held;
}

SegmentId JobMachine::Impl::CreateBooked(Job& job, Rank rank, uint32_t index, uint64_t offset_bytes,
                                         uint64_t bytes) {
  const Member& member = job.ranks[rank];
  Segment segment;
  segment.info = {SegmentId{next_segment_++}, rank, index, offset_bytes, bytes};
  segment.job = job.id;
  segment.device_index = member.device_index;
  segment.holder = {job.name, rank, job.party};
  const SegmentId id = segment.info.id;
  CountDescriptors(segment.holder.party, 1);
  segments_.emplace(id, std::move(segment));
  Emit(CreateSegment{id, job.id, member.device_index, bytes, member.prealloc});
  return id;
}

absl::Status JobMachine::Impl::CheckMemory(uint32_t device_index, uint64_t bytes,
                                           const Ledger::Holder& holder) {
  if (RoomAfterDrops(device_index, bytes, holder.party)) return absl::OkStatus();
  absl::Status refused = Book(device_index, bytes, holder);
  IRIS_CHECK(!refused.ok(), "what has no room after drops has none before");
  return refused;
}

void JobMachine::Impl::CreateFirstSegment(Job& job, Rank rank) {
  Member& member = job.ranks[rank];
  if (Book(member.device_index, job.heap_bytes, {job.name, rank, job.party}).ok()) {
    member.segments.push_back(CreateBooked(job, rank, 0, 0, job.heap_bytes));
  } else {
    starved_.insert({job.id, rank});
  }
}

void JobMachine::Impl::Drop(SegmentId id) {
  Segment& segment = segments_.at(id);
  IRIS_CHECK(!segment.dropping, "a segment is dropped once");
  segment.dropping = true;
  if (segment.registered) {
    Emit(DropSegment{id});
    return;
  }
  dropping_bytes_by_account_[segment.holder.party.Account()] += segment.info.bytes;
  dropping_bytes_by_device_[segment.device_index] += segment.info.bytes;
  Emit(DropSegment{id});
}

void JobMachine::Impl::DropAll(const std::vector<SegmentId>& segments) {
  for (const SegmentId id : segments) {
    if (segments_.contains(id)) Drop(id);
  }
}

void JobMachine::Impl::SegmentCreated(SegmentId id, const absl::Status& status) {
  if (!segments_.contains(id)) return;
  Segment& segment = segments_.at(id);
  if (segment.dropping || segment.created) return;  // SegmentDropped will follow
  Job* job = FindJob(segment.job);
  IRIS_CHECK(job != nullptr, "a segment that is not being dropped has a job");
  if (status.ok()) {
    segment.created = true;
    if (job->growth.has_value()) GrowthSegmentCreated(*job, id, status);
    StartMappingIfComplete(*job);
    return;
  }
  const Segment failed = segment;
  segments_.erase(id);
  CountDescriptors(failed.holder.party, -1);
  Unbook(failed.device_index, failed.info.bytes, failed.holder);
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
    if (call.value != 0) Answer(call, absl::Status(status.code(), absl::StrCat("join: ", text)));
    const absl::Status told =
        absl::AbortedError(absl::StrCat("join job '", job->name, "': ", text));
    RememberRefused(
        {job->party, job->name}, job, job->n_ranks(),
        {told, failed.info.rank, now_.steady, now_.steady + limits_.join_timeout_default, {}});
    FailJob(*job, told);
  }
  ServeStarved();
}

void JobMachine::Impl::SegmentDropped(SegmentId id) {
  const auto found = segments_.find(id);
  if (found == segments_.end() || !found->second.dropping) return;
  const Segment segment = found->second;
  segments_.erase(id);
  CountDescriptors(segment.holder.party, -1);
  if (segment.registered) return;
  const auto subtract = [&](auto& map, const auto& key) {
    const auto entry = map.find(key);
    entry->second -= segment.info.bytes;
    if (entry->second == 0) map.erase(entry);
  };
  subtract(dropping_bytes_by_account_, segment.holder.party.Account());
  subtract(dropping_bytes_by_device_, segment.device_index);
  Unbook(segment.device_index, segment.info.bytes, segment.holder);
  ServeStarved();
}

void JobMachine::Impl::ServeStarved() {
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

void JobMachine::Impl::KeepAccountOf(const Job& job, uint64_t bytes) {
  std::set<KeptMemory::Process> holders;
  for (const Member& member : job.ranks) {
    if (member.keeps_memory) holders.insert(KeptMemory::ProcessOf(member.lease.process));
  }
  kept_.Change().Add(job.party, std::move(holders), bytes);
}

bool JobMachine::Impl::WatchesKeeper(const Session& session) const {
  if (limits_.max_heap_bytes_per_uid == 0) return false;
  const CallerInfo& process = session.caller;
  bool keeps = kept_->Holds(process.party, KeptMemory::ProcessOf(process));
  if (const auto mine = jobs_by_account_.find(process.party.Account());
      mine != jobs_by_account_.end()) {
    for (auto id = mine->second.begin(); !keeps && id != mine->second.end(); ++id) {
      const TrackedVector<Member>& ranks = jobs_.at(*id)->ranks;
      keeps = std::any_of(ranks.begin(), ranks.end(), [&](const Member& member) {
        return member.keeps_memory && member.lease.OfProcess(process);
      });
    }
  }
  if (!keeps) return false;
  // One session of a process is enough.
  const auto& sessions = sessions_by_account_.at(process.party.Account());
  return std::none_of(sessions.begin(), sessions.end(), [&](SessionId id) {
    return id != session.id && sessions_.at(id).caller.SameProcess(process);
  });
}

void JobMachine::Impl::ForgetKeeper(const CallerInfo& process) {
  kept_.Change().ProcessGone(process.party, KeptMemory::ProcessOf(process));
  const auto mine = jobs_by_account_.find(process.party.Account());
  if (mine == jobs_by_account_.end()) return;
  for (const JobId id : mine->second) {
    Job& job = *FindJob(id);
    for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
      Member& member = job.ranks[rank];
      if (member.lease.OfProcess(process)) member.keeps_memory = false;
    }
  }
}

std::vector<SegmentInfo> JobMachine::Impl::SegmentsOf(const Job& job) const {
  std::vector<SegmentInfo> infos;
  for (const Member& member : job.ranks) {
    for (const SegmentId id : member.segments) infos.push_back(segments_.at(id).info);
  }
  return infos;
}

}  // namespace iris::server
