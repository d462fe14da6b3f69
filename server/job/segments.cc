#include "server/job/segments.h"

#include <algorithm>
#include <numeric>

#include "device/base/bytes.h"
#include "proto/wire/limits.h"
#include "server/heap/check.h"

namespace iris::server {
namespace {

// Returns the unit of heap sizes, a multiple of every device's granularity, so that offsets do not
// depend on the device.
uint64_t CommonGranularity(const Ledger& ledger) {
  uint64_t common = wire::kMinAlignmentBytes;
  for (const auto& device : ledger.devices()) {
    common = std::lcm(common, std::max<uint64_t>(device.granularity_bytes, 1));
  }
  return common;
}

// Subtracts `bytes`, and removes a value that becomes 0.
template <typename Map>
void Subtract(Map& map, const typename Map::key_type& key, uint64_t bytes) {
  const auto found = map.find(key);
  IRIS_CHECK(found != map.end() && found->second >= bytes, "an account adds up");
  found->second -= bytes;
  if (found->second == 0) map.erase(found);
}

}  // namespace

Segments::Segments(const JobLimits& limits, Ledger ledger)
    : Registry(limits),
      ledger_(std::move(ledger)),
      granularity_bytes_(CommonGranularity(ledger_)) {}

void Segments::CountDescriptors(const Party& party, int64_t change) {
  uint64_t& of_user = descriptors_by_account_[party.Account()];
  of_user += static_cast<uint64_t>(change);
  n_descriptors_ += static_cast<uint64_t>(change);
  if (of_user == 0) descriptors_by_account_.erase(party.Account());
}

absl::Status Segments::CheckDescriptors(uint64_t n, const Party& party) const {
  const uint64_t max = limits_.max_descriptors;
  if (max == 0) return absl::OkStatus();
  const uint64_t of_user = ValueOf(descriptors_by_account_, party.Account());
  // A user may take more while the free descriptors are at least a third of the user's own, so
  // another user always finds some.
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
  return Error(Code::kResourceExhausted, n,
               " more file descriptors are needed for memory and pages; ", party.Account().Text(),
               " has ", of_user, " of the ", n_descriptors_, " that irisd holds for all users (",
               n_dropping, " are being given back), at most ", max,
               " are allowed, and a third as many are to stay free as one user has: ",
               fits(n_descriptors_ - n_dropping, of_user - n_dropping_of_user)
                   ? "try again in a moment"
                   : "free registered memory or end jobs, or raise LimitNOFILE of irisd's unit");
}

absl::Status Segments::Book(uint32_t device_index, uint64_t bytes, const Ledger::Holder& holder) {
  const Party account = holder.party.Account();
  const uint64_t kept = kept_->bytes(account);
  const uint64_t booked = ValueOf(booked_bytes_by_account_, account) + kept;
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

void Segments::Unbook(uint32_t device_index, uint64_t bytes, const Ledger::Holder& holder) {
  ledger_.Release(device_index, bytes, holder);
  Subtract(booked_bytes_by_account_, holder.party.Account(), bytes);
}

absl::Status Segments::CheckMemory(uint32_t device_index, uint64_t bytes,
                                   const Ledger::Holder& holder) {
  const auto& device = ledger_.devices()[device_index];
  const Party account = holder.party.Account();
  const uint64_t used = device.used_bytes - ValueOf(dropping_bytes_by_device_, device_index);
  const uint64_t held = ValueOf(booked_bytes_by_account_, account) -
                        ValueOf(dropping_bytes_by_account_, account) + kept_->bytes(account);
  const uint64_t quota = limits_.max_heap_bytes_per_uid;
  const bool room = used <= device.memory_bytes && bytes <= device.memory_bytes - used;
  if (room && (quota == 0 || (held <= quota && bytes <= quota - held))) return absl::OkStatus();
  absl::Status refused = Book(device_index, bytes, holder);
  IRIS_CHECK(!refused.ok(), "what has no room after drops has none before");
  return refused;
}

Segment& Segments::NewSegment(const Job& job, Rank rank, uint32_t index, uint64_t bytes) {
  const SegmentId id{next_segment_++};
  CountDescriptors(job.party, 1);
  segments_.emplace(id, {.info = {.id = id, .rank = rank, .index = index, .bytes = bytes},
                         .job = job.id,
                         .device_index = job.ranks[rank].device_index,
                         .holder = {job.name, rank, job.party}});
  return segments_.at(id);
}

SegmentId Segments::CreateBooked(const Job& job, Rank rank, uint64_t offset_bytes, uint64_t bytes) {
  const Member& member = job.ranks[rank];
  SegmentInfo& info =
      NewSegment(job, rank, static_cast<uint32_t>(member.segments.size()), bytes).info;
  info.offset_bytes = offset_bytes;
  Emit(CreateSegment{info.id, job.id, member.device_index, bytes, member.prealloc});
  return info.id;
}

SegmentId Segments::Import(const Job& job, Rank rank, uint64_t offset_bytes, uint64_t bytes,
                           const std::string& fabric) {
  Segment& segment =
      NewSegment(job, rank, static_cast<uint32_t>(job.ranks[rank].segments.size()), bytes);
  segment.info.offset_bytes = offset_bytes;
  segment.created = segment.imported = true;
  Emit(ImportSegment{segment.info.id, bytes, fabric});
  return segment.info.id;
}

void Segments::CreateFirstSegment(Job& job, Rank rank) {
  Member& member = job.ranks[rank];
  if (Book(member.device_index, job.heap_bytes, {job.name, rank, job.party}).ok()) {
    member.segments.push_back(CreateBooked(job, rank, 0, job.heap_bytes));
  } else {
    starved_.insert({job.id, rank});
  }
}

void Segments::Drop(SegmentId id) {
  Segment& segment = segments_.at(id);
  IRIS_CHECK(!segment.dropping, "a segment is dropped once");
  segment.dropping = true;
  Emit(DropSegment{id});
  if (segment.registered) {
    const Job* const job = FindJob(segment.job);
    const bool has_port = job != nullptr && job->nodes.has_value();
    if (has_port) Emit(SetLayout{segment.job, job->nodes->epoch, {}, {}, {id}});
  }
  if (!segment.is_booked()) return;
  dropping_bytes_by_account_[segment.holder.party.Account()] += segment.info.bytes;
  dropping_bytes_by_device_[segment.device_index] += segment.info.bytes;
}

Segment Segments::Forget(SegmentId id) {
  const Segment segment = segments_.at(id);
  const Party account = segment.holder.party.Account();
  segments_.erase(id);
  CountDescriptors(account, -1);
  if (!segment.is_booked()) return segment;
  if (segment.dropping) {
    Subtract(dropping_bytes_by_account_, account, segment.info.bytes);
    Subtract(dropping_bytes_by_device_, segment.device_index, segment.info.bytes);
  }
  Unbook(segment.device_index, segment.info.bytes, segment.holder);
  return segment;
}

void Segments::DropAll(const std::vector<SegmentId>& segments) {
  for (const SegmentId id : segments) {
    if (segments_.contains(id)) Drop(id);
  }
}

void Segments::KeepAccountOf(const Job& job, uint64_t bytes) {
  std::set<KeptMemory::Process> holders;
  for (const Member& member : job.ranks) {
    if (member.keeps_memory) holders.insert(KeptMemory::ProcessOf(member.lease.process));
  }
  kept_.Change().Add(job.party, std::move(holders), bytes);
}

bool Segments::WatchesKeeper(const Session& session) const {
  if (limits_.max_heap_bytes_per_uid == 0) return false;
  const CallerInfo& process = session.caller;
  bool keeps = kept_->Holds(process.party, KeptMemory::ProcessOf(process));
  for (const JobId id : JobsOf(process.party.Account())) {
    const TrackedVector<Member>& ranks = jobs_.at(id)->ranks;
    keeps = keeps || std::any_of(ranks.begin(), ranks.end(), [&](const Member& member) {
              return member.keeps_memory && member.lease.OfProcess(process);
            });
  }
  if (!keeps) return false;
  // One session per process suffices.
  const auto& sessions = sessions_by_account_.at(process.party.Account());
  return std::none_of(sessions.begin(), sessions.end(), [&](SessionId id) {
    return id != session.id && sessions_.at(id).caller.SameProcess(process);
  });
}

void Segments::ForgetKeeper(const CallerInfo& process) {
  kept_.Change().ProcessGone(process.party, KeptMemory::ProcessOf(process));
  for (const JobId id : JobsOf(process.party.Account())) {
    Job& job = *FindJob(id);
    for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
      Member& member = job.ranks[rank];
      if (member.lease.OfProcess(process)) member.keeps_memory = false;
    }
  }
}

std::vector<SegmentInfo> Segments::InfosOf(const std::vector<SegmentId>& segments) const {
  std::vector<SegmentInfo> infos;
  for (const SegmentId id : segments) infos.push_back(segments_.at(id).info);
  return infos;
}

std::vector<SegmentInfo> Segments::SegmentsOf(const Job& job) const {
  std::vector<SegmentId> all;
  for (const Member& member : job.ranks) {
    all.insert(all.end(), member.segments.begin(), member.segments.end());
  }
  return InfosOf(all);
}

std::vector<std::string> Segments::OwnHandles(const std::vector<SegmentInfo>& segments) const {
  std::vector<std::string> handles;
  for (const SegmentInfo& info : segments) {
    handles.push_back(segments_.at(info.id).fabric);
    if (handles.back().empty()) return {};
  }
  return handles;
}

std::vector<SegmentInfo> Segments::OwnSegmentsOf(const Job& job) const {
  std::vector<SegmentInfo> own = SegmentsOf(job);
  std::erase_if(own, [&job](const SegmentInfo& info) { return !job.IsLocal(info.rank); });
  return own;
}

}  // namespace iris::server
