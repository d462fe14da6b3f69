#include "client/team/team_calls.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/base/annotate.h"
#include "client/base/clock.h"
#include "client/base/log.h"
#include "client/base/utf8.h"
#include "device/base/bytes.h"
#include "iris/dtype.h"
#include "iris/team_members.h"
#include "proto/wire/limits.h"

namespace iris::internal {
namespace {

// Team id of a Team that this rank is not in.
constexpr uint32_t kNoTeam = std::numeric_limits<uint32_t>::max();

// Pauses between two requests for a name that another rank may soon publish.
constexpr absl::Duration kFirstPause = absl::Microseconds(200);
constexpr absl::Duration kLongestPause = absl::Milliseconds(20);

// Returns a name for messages, cut so that a too long one is recognized; "" for an empty name.
std::string Quoted(const std::string& name) {
  if (name.empty()) return "";
  return absl::StrCat(" \"", name.substr(0, wire::kMaxAllocationNameBytes + 1), "\"");
}

std::string RegisterText(const void* memory, const AllocateOptions& options) {
  return absl::StrCat("register ", base::SizeText(options.bytes), " at 0x",
                      absl::Hex(reinterpret_cast<uint64_t>(memory)), Quoted(options.name));
}

// Returns the type with this name; kNone if this library does not know it.
DType DTypeOfName(absl::string_view name) {
  for (uint32_t type = 0; type < kDTypeCount; ++type) {
    if (name == DTypeName(static_cast<DType>(type))) return static_cast<DType>(type);
  }
  return DType::kNone;
}

// Checks the name of a call that a rank makes alone; irisd checks the names of other calls.
absl::Status CheckName(absl::string_view what, absl::string_view name) {
  if (!IsUtf8(name)) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": the name is not UTF-8"));
  }
  if (name.size() <= wire::kMaxAllocationNameBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, ": the name has ", name.size(), " bytes, ",
                                                 wire::kMaxAllocationNameBytes, " are allowed"));
}

// The port process takes registered memory within some ms, unless it cannot.
constexpr absl::Duration kPortTakesMemoryWithin = absl::Seconds(10);

// The time that an error waits for irisd's answer.
constexpr absl::Duration kWhereTimeout = absl::Milliseconds(250);

// Asks irisd about one barrier. irisd knows in which calls the other ranks are.
class HelpOfIrisd : public BarrierHelp {
 public:
  HelpOfIrisd(ControlPlane* plane, BarrierWait wait, const OnlyThread* threads)
      : plane_(plane), wait_(std::move(wait)), threads_(threads) {}

  std::string WhyItCannotEnd(uint32_t epoch, const std::vector<uint32_t>& missing) override {
    if (refused_) return "";
    if (question_ == nullptr) {
      wait_.epoch = epoch;
      wait_.missing = missing;
      wait_.only_thread = threads_->alone();
      question_ = plane_->AskOfBarrier(wait_);
      refused_ = question_ == nullptr;
      return "";
    }
    const auto answer = question_();
    if (!answer.has_value()) return "";
    question_ = nullptr;
    refused_ = !answer->ok();
    if (refused_) return "";
    if ((*answer)->cannot_end) return (*answer)->text;
    // These `missing` may be older than the answer: the next ones are not.
    wait_.moment = (*answer)->moment;
    return "";
  }

  std::string WhyItCouldNotEnd() override {
    // irisd answers every question when a rank leaves or dies, so this ends soon.
    for (const absl::Time deadline = DeadlineIn(kWhereTimeout);
         question_ != nullptr && Now() < deadline;) {
      const std::string why = WhyItCannotEnd(wait_.epoch, {});
      if (!why.empty()) return why;
      if (question_ != nullptr) absl::SleepFor(absl::Milliseconds(1));
    }
    return "";
  }

  std::string WhereAre(uint32_t epoch, const std::vector<uint32_t>& missing) override {
    wait_.epoch = epoch;
    wait_.missing = missing;
    wait_.time_is_up = true;
    const auto answer = plane_->WhereAreMissing(wait_, DeadlineIn(kWhereTimeout));
    return answer.ok() ? answer->text : "";
  }

 private:
  ControlPlane* const plane_;
  BarrierWait wait_;
  const OnlyThread* const threads_;
  BarrierQuestion question_;
  bool refused_ = false;
};

}  // namespace

Team TeamCalls::AddTeam(const TeamInfo& info) {
  const uint32_t slot = info.barrier_slot % wire::kMaxTeamsPerJob;
  std::vector<uint32_t> here = Here(info.ranks);
  std::vector<const uint32_t*> words;
  for (const uint32_t r : here) words.push_back(&window_->control_page(r)->words[slot]);
  uint32_t* const own_word = &window_->control_page(options_.rank)->words[slot];
  Team team;
  team.id = info.team_id;
  team.ranks = info.ranks;
  const auto me = std::find(team.ranks.begin(), team.ranks.end(), options_.rank);
  team.index = me == team.ranks.end() ? -1 : static_cast<int>(me - team.ranks.begin());
  team.device.id = team.id;
  team.device.size = static_cast<uint32_t>(team.ranks.size());
  team.device.index = static_cast<uint32_t>(team.index);
  team.device.sync_offset_bytes = info.sync_offset_bytes;
  const uint32_t first = window_->first_rank(), n_mapped = window_->n_ranks();
  SetMembers(team.ranks.data(), first, n_mapped, &team.device);
  if (team.device.step == DeviceTeam::kTable) {
    auto table = KernelTable::Make(&window_->driver(), team.ranks);
    if (table.ok()) {
      SetMembers((*table)->numbers(), first, n_mapped, &team.device);
      absl::MutexLock lock(&mu_);
      tables_.push_back(*std::move(table));
    } else {
      log::Warning("team ", team.id, " is of no use to kernels: ", table.status().message());
      team.device.size = 0;
    }
  }
  UseFirst(info.sync_offset_bytes, kSyncAreaBytes);
  ranges_->Add(info.sync_offset_bytes, kSyncAreaBytes,
               absl::StrCat("the barrier area of team ", info.team_id), info.ranks,
               /*internal=*/true);
  std::unique_ptr<NodeMeeting> nodes;
  auto groups = NodeMeeting::GroupsOf(info.ranks, options_.nodes);
  if (port_ != nullptr && groups.size() > 1 && team.member()) {
    nodes =
        std::make_unique<NodeMeeting>(info.ranks, std::move(groups), options_.nodes, options_.rank,
                                      info.sync_offset_bytes, port_, window_->status());
  }
  MakeState(team,
            HostBarrier(std::move(here), info.barrier_start_epoch, std::move(words), own_word,
                        window_->status()),
            std::move(nodes));
  return team;
}

std::vector<uint32_t> TeamCalls::Here(absl::Span<const uint32_t> ranks) const {
  std::vector<uint32_t> here;
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(here),
               [this](uint32_t rank) { return window_->IsLocal(rank); });
  return here;
}

void TeamCalls::MakeState(const Team& team, HostBarrier barrier,
                          std::unique_ptr<NodeMeeting> nodes) {
  auto state = std::make_shared<State>(team, plane_, heap_, options_.job_id, &threads_,
                                       std::move(barrier), std::move(nodes));
  absl::MutexLock lock(&mu_);
  teams_[team.id] = std::move(state);
}

absl::StatusOr<std::shared_ptr<TeamCalls::State>> TeamCalls::Find(const Team& team) const {
  threads_.Use();
  if (absl::Status status = guard_->Usable(); !status.ok()) return status;
  if (!team.member()) {
    return absl::FailedPreconditionError(absl::StrCat("rank ", options_.rank,
                                                      " is not a member of the team of ranks ",
                                                      absl::StrJoin(team.ranks, ",")));
  }
  absl::MutexLock lock(&mu_);
  const auto it = teams_.find(team.id);
  if (it == teams_.end() || it->second->team.ranks != team.ranks) {
    return absl::FailedPreconditionError(
        absl::StrCat("team ", team.id, " does not exist in this context; was it destroyed?"));
  }
  return it->second;
}

absl::StatusOr<OperationResult> TeamCalls::Operate(const Team& team, absl::string_view what,
                                                   Operation op,
                                                   std::optional<absl::Duration> timeout) {
  auto state = Find(team);
  if (!state.ok()) return Annotate(state.status(), what);
  auto result = (*state)->operations.Run(std::move(op), timeout.value_or(options_.timeout));
  if (!result.ok()) return AnnotateOperation(result.status(), what);
  return result;
}

bool TeamCalls::UseFirst(uint64_t offset_bytes, uint64_t bytes) {
  absl::MutexLock lock(&mu_);
  const bool first = offset_bytes >= fresh_from_bytes_;
  fresh_from_bytes_ = std::max(fresh_from_bytes_, offset_bytes + bytes);
  return first;
}

absl::StatusOr<Allocation> TeamCalls::Allocate(const AllocateOptions& wanted, const Team& team,
                                               std::optional<absl::Duration> timeout, bool* fresh) {
  const TraceRecorder::Span span(trace_, TraceHostCall::kAllocate, wanted.bytes);
  const std::string what =
      absl::StrCat("allocate ", base::SizeText(wanted.bytes), Quoted(wanted.name));
  auto allocation = Allocated(wanted, team.id, team.ranks, Operate(team, what, wanted, timeout));
  const bool first = allocation.ok() && UseFirst(allocation->offset_bytes, wanted.bytes);
  if (fresh != nullptr) *fresh = first;
  return allocation;
}

template <typename Ask>
absl::Status TeamCalls::GiveBack(uint64_t offset_bytes, Ask ask) {
  std::optional<HeapRanges::Range> range = ranges_->Remove(offset_bytes);
  const absl::Status status = ask();
  if (!status.ok()) ranges_->Restore(offset_bytes, std::move(range));
  return status;
}

absl::StatusOr<Allocation> TeamCalls::AllocateLocal(const AllocateOptions& wanted) {
  const std::string what = absl::StrCat("allocate ", base::SizeText(wanted.bytes),
                                        Quoted(wanted.name), " in its own heap");
  if (absl::Status status = CheckName(what, wanted.name); !status.ok()) return status;
  // The name is published last, so that ranks that open the memory by name find it cleared.
  AllocateOptions unnamed = wanted;
  unnamed.name.clear();
  auto allocation = Allocated(unnamed, own_.id, {options_.rank}, Operate(own_, what, unnamed));
  if (allocation.ok()) UseFirst(allocation->offset_bytes, wanted.bytes);
  if (!allocation.ok() || wanted.name.empty()) return allocation;
  absl::Status status;
  if (wanted.bytes > 0) {
    status =
        Annotate(window_->driver().Fill(window_->address(options_.rank, allocation->offset_bytes),
                                        0, wanted.bytes),
                 what);
  }
  if (status.ok()) status = PublishAs(what, allocation->offset_bytes, wanted.bytes, wanted.name);
  if (!status.ok()) {
    const uint64_t offset = allocation->offset_bytes;
    (void)GiveBack(offset, [&] { return Operate(own_, what, FreeOp{offset}).status(); });
    return status;
  }
  return allocation;
}

absl::StatusOr<RegisterOp> TeamCalls::Shared(void* memory, const AllocateOptions& options) const {
  const uint64_t at = reinterpret_cast<uint64_t>(memory);
  if (memory == nullptr || options.bytes == 0 || options.bytes > ~uint64_t{0} - at) {
    return absl::InvalidArgumentError("that is no memory");
  }
  if (at - window_->address(window_->first_rank(), 0) <
      window_->n_ranks() * window_->stride_bytes()) {
    return absl::InvalidArgumentError(
        "it is in the heap already: give what was allocated there a name");
  }
  const auto pieces =
      window_->driver().Share(options_.devices.empty() ? 0 : options_.devices.front(), at,
                              options.bytes, wire::kMaxDescriptorsPerCall);
  if (!pieces.ok()) return pieces.status();
  RegisterOp op;
  op.options = options;
  op.lead_bytes = at - pieces->front().address;
  for (const driver::SharedPiece& piece : *pieces) {
    op.piece_bytes.push_back(piece.bytes);
    op.descriptors.push_back(std::make_shared<const wire::UniqueFd>(piece.fd));
  }
  return op;
}

absl::StatusOr<Allocation> TeamCalls::Register(void* memory, const AllocateOptions& options) {
  const std::string what = RegisterText(memory, options);
  if (absl::Status status = guard_->Usable(); !status.ok()) return Annotate(status, what);
  if (absl::Status status = CheckName(what, options.name); !status.ok()) return status;
  absl::StatusOr<RegisterOp> op = Shared(memory, options);
  if (!op.ok()) return Annotate(op.status(), what);
  // Where there are other nodes, the name is published last, so that ranks that open the memory by
  // name find it in the port.
  if (port_ != nullptr) op->options.name.clear();
  const auto result = Operate(own_, what, *std::move(op));
  if (!result.ok()) return result.status();
  const uint64_t offset = result->offset_bytes;
  absl::Status status = InPort(offset, options.bytes);
  if (status.ok() && port_ != nullptr && !options.name.empty()) {
    status = PublishAs(what, offset, options.bytes, options.name);
  }
  if (!status.ok()) {
    (void)Operate(own_, what, FreeOp{offset});
    return Annotate(status, what);
  }
  return Allocation{offset, options.bytes, memory, own_.id};
}

absl::Status TeamCalls::InPort(uint64_t offset_bytes, uint64_t bytes) {
  if (port_ == nullptr) return absl::OkStatus();
  return port_->AwaitMemory(offset_bytes, bytes,
                            DeadlineIn(std::min(options_.timeout, kPortTakesMemoryWithin)));
}

absl::StatusOr<Allocation> TeamCalls::RegisterTogether(void* memory, const AllocateOptions& options,
                                                       const Team& team) {
  const std::string what = absl::StrCat(RegisterText(memory, options), " together");
  const auto state = Find(team);
  if (!state.ok()) return Annotate(state.status(), what);
  absl::StatusOr<RegisterOp> op = Shared(memory, options);
  if (!IsUtf8(options.name)) op = absl::InvalidArgumentError("the name is not UTF-8");
  if (!op.ok()) {
    // The call is made even so: other ranks wait for it, and irisd reports the error to them.
    const absl::Status error = op.status();
    op = RegisterOp();
    op->error = error;
  }
  Together together = {options.bytes, team.ranks, Here(team.ranks), {}};
  const auto result = (*state)->operations.RunBoth(
      *std::move(op), options_.timeout,
      [&](const OperationResult& registered) -> Operation {
        absl::Status status = MapTogether(registered.offset_bytes, &together);
        if (status.ok()) status = InPort(registered.offset_bytes, options.bytes);
        return ConfirmOp{registered.offset_bytes, status};
      },
      [&](const OperationResult& registered) { UnmapTogether(registered.offset_bytes, together); });
  if (!result.ok()) return Annotate(result.status(), what);
  return Allocated(options, team.id, team.ranks, *result);
}

absl::Status TeamCalls::MapTogether(uint64_t offset_bytes, Together* together) {
  const std::vector<BorrowedMemory::Segments> wanted = std::exchange(together->segments, {});
  absl::Status status;
  for (const uint32_t rank : together->here) {
    const HeapPart part = {options_.job, rank, offset_bytes, together->bytes};
    auto lent = plane_->Borrow(part, DeadlineIn(options_.timeout));
    status = lent.status();
    if (status.ok()) {
      BorrowedMemory::Segments segments;
      absl::MutexLock lock(&mu_);
      status = borrowed_.Map(part, *std::move(lent), &segments);
      if (status.ok()) together->segments.push_back(std::move(segments));
    }
    const size_t n = together->segments.size();
    if (status.ok() && !wanted.empty() && together->segments[n - 1] != wanted[n - 1]) {
      status = absl::AbortedError("its place has been given to others meanwhile");
    }
    if (!status.ok()) {
      status = Annotate(status, absl::StrCat("the memory of rank ", rank));
      break;
    }
  }
  absl::MutexLock lock(&mu_);
  // Another team may have registered memory at this place since irisd has undone this registration.
  for (size_t i = 0; status.ok() && i < together->here.size(); ++i) {
    if (borrowed_.Is(together->here[i], offset_bytes, together->segments[i])) continue;
    status = absl::AbortedError(absl::StrCat("the memory of rank ", together->here[i],
                                             ": its place has been given to others meanwhile"));
  }
  if (status.ok()) {
    // Another entry at this offset is stale: its ranks have unmapped it, or are about to.
    together_[offset_bytes] = *together;
    return status;
  }
  UnmapParts(offset_bytes, *together);
  together->segments.clear();
  return status;
}

void TeamCalls::UnmapParts(uint64_t offset_bytes, const Together& together) {
  for (size_t i = 0; i < together.segments.size(); ++i) {
    borrowed_.Unmap(together.here[i], offset_bytes, together.segments[i]);
  }
}

void TeamCalls::UnmapTogether(uint64_t offset_bytes, const Together& together) {
  absl::MutexLock lock(&mu_);
  const auto found = together_.find(offset_bytes);
  if (found != together_.end() && found->second.ranks == together.ranks &&
      found->second.segments == together.segments) {
    together_.erase(found);
  }
  UnmapParts(offset_bytes, together);
}

std::optional<TeamCalls::Together> TeamCalls::UnmapTogether(uint64_t offset_bytes) {
  absl::MutexLock lock(&mu_);
  const auto found = together_.find(offset_bytes);
  if (found == together_.end()) return std::nullopt;
  Together together = std::move(found->second);
  together_.erase(found);
  UnmapParts(offset_bytes, together);
  return together;
}

bool TeamCalls::HaveTogether(absl::Span<const uint32_t> ranks, uint64_t offset_bytes,
                             uint64_t bytes) const {
  absl::MutexLock lock(&mu_);
  auto next = together_.upper_bound(offset_bytes);
  if (next == together_.begin()) return false;
  const auto& [start, together] = *--next;
  if (offset_bytes - start > together.bytes || bytes > together.bytes - (offset_bytes - start)) {
    return false;
  }
  return std::all_of(ranks.begin(), ranks.end(), [&all = together.ranks](uint32_t rank) {
    return std::find(all.begin(), all.end(), rank) != all.end();
  });
}

absl::Status TeamCalls::Publish(const Allocation& allocation, const std::string& name) {
  const std::string what =
      absl::StrCat("publish the allocation at offset ", allocation.offset_bytes, Quoted(name));
  if (absl::Status status = CheckName(what, name); !status.ok()) return status;
  return PublishAs(what, allocation.offset_bytes, allocation.bytes, name);
}

absl::Status TeamCalls::PublishAs(absl::string_view what, uint64_t offset_bytes, uint64_t bytes,
                                  const std::string& name) {
  const absl::Status status = Operate(own_, what, PublishOp{offset_bytes, name}).status();
  // Registered memory is not in the heap.
  if (status.ok() && offset_bytes < heap_->bytes()) {
    ranges_->Add(offset_bytes, bytes, name, {options_.rank});
  }
  return status;
}

absl::StatusOr<Allocation> TeamCalls::Allocated(const AllocateOptions& wanted, uint32_t team_id,
                                                absl::Span<const uint32_t> ranks,
                                                absl::StatusOr<OperationResult> result) {
  if (!result.ok()) return result.status();
  const uint64_t offset = result->offset_bytes;
  ranges_->Add(offset, wanted.bytes, wanted.name, ranks);
  return Allocation{offset, wanted.bytes,
                    reinterpret_cast<void*>(window_->address(options_.rank, offset)), team_id};
}

absl::Status TeamCalls::Free(const Allocation& allocation) {
  const TraceRecorder::Span span(trace_, TraceHostCall::kFree, allocation.bytes);
  const std::string what = absl::StrCat("free the allocation at offset ", allocation.offset_bytes);
  if (absl::Status status = guard_->Usable(); !status.ok()) return Annotate(status, what);
  Team team;
  {
    absl::MutexLock lock(&mu_);
    const auto it = teams_.find(allocation.team_id);
    if (it == teams_.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat(what, ": team ", allocation.team_id,
                       ", which allocated it, does not exist in this context"));
    }
    team = it->second->team;
  }
  // Memory that the team has registered is unmapped first: its place may be reused as soon as all
  // ranks have called.
  const uint64_t offset = allocation.offset_bytes;
  std::optional<Together> together;
  if (team.id != own_.id) together = UnmapTogether(offset);
  const absl::Status status =
      GiveBack(offset, [&] { return Operate(team, what, FreeOp{offset}).status(); });
  if (!status.ok() && together.has_value()) {
    const absl::Status mapped = MapTogether(offset, &*together);
    if (!mapped.ok()) {
      return absl::Status(
          status.code(),
          absl::StrCat(status.message(), "; and it is mapped here no more: ", mapped.message()));
    }
  }
  return status;
}

absl::StatusOr<Opened> TeamCalls::Open(uint32_t rank, const std::string& name,
                                       absl::Duration timeout) {
  const TraceRecorder::Span span(trace_, TraceHostCall::kOpen);
  const std::string what = absl::StrCat("open", Quoted(name), " of rank ", rank);
  if (absl::Status status = CheckName(what, name); !status.ok()) return status;
  const absl::Time start = Now();
  const absl::Time deadline = DeadlineIn(TimeOr(timeout));
  absl::Duration pause = kFirstPause;
  while (true) {
    auto result = Operate(own_, what, OpenOp{rank, name});
    if (!result.ok()) return result.status();
    if (result->opened.has_value()) return OpenedAs(what, rank, name, *result->opened);
    const absl::Time now = Now();
    if (now >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(what, ": time is up after ",
                       absl::FormatDuration(absl::Trunc(now - start, absl::Milliseconds(1))), ": ",
                       window_->status().MissingNames({rank}),
                       " has allocated nothing of this name in its own heap, or has freed it"));
    }
    absl::SleepFor(std::min(pause, deadline - now));
    pause = std::min(2 * pause, kLongestPause);
  }
}

absl::StatusOr<Opened> TeamCalls::OpenedAs(absl::string_view what, uint32_t rank,
                                           const std::string& name, const OpenedRange& range) {
  if (absl::Status status = TakeOpened(rank, range); !status.ok()) {
    (void)Operate(own_, what, FreeOp{range.offset_bytes});
    return Annotate(status, what);
  }
  ranges_->Add(range.offset_bytes, range.bytes, name, {rank});
  const auto address_in = [&](uint32_t heap) {
    return reinterpret_cast<void*>(window_->address(heap, range.offset_bytes));
  };
  return Opened{rank,
                range.offset_bytes,
                range.bytes,
                window_->Has(rank) ? address_in(rank) : nullptr,
                address_in(options_.rank),
                DTypeOfName(range.dtype)};
}

absl::Status TeamCalls::TakeOpened(uint32_t rank, const OpenedRange& range) {
  if (!range.registered || !window_->IsLocal(rank)) {
    absl::MutexLock lock(&mu_);
    const uint64_t n = opened_[range.offset_bytes].n + 1;
    opened_[range.offset_bytes] = {n, rank, range.registered ? range.bytes : 0};
    return absl::OkStatus();
  }
  const HeapPart part = {options_.job, rank, range.offset_bytes, range.bytes};
  auto lent = plane_->Borrow(part, DeadlineIn(options_.timeout));
  if (!lent.ok()) return lent.status();
  // Mapped and counted under one lock, so that a Close on another thread does not unmap it.
  absl::MutexLock lock(&mu_);
  absl::Status status = borrowed_.Map(part, *std::move(lent));
  if (status.ok()) ++opened_[range.offset_bytes].n;
  return status;
}

bool TeamCalls::Borrows(uint32_t owner, uint64_t offset_bytes, uint64_t bytes) const {
  {
    absl::MutexLock lock(&mu_);
    if (borrowed_.Has(owner, offset_bytes, bytes)) return true;
    auto next = opened_.upper_bound(offset_bytes);
    if (next != opened_.begin()) {
      const auto& [start, opens] = *--next;
      const uint64_t within = offset_bytes - start;
      if (opens.owner == owner && within <= opens.bytes && bytes <= opens.bytes - within) {
        return true;
      }
    }
  }
  return !window_->IsLocal(owner) && HaveTogether({owner}, offset_bytes, bytes);
}

absl::Status TeamCalls::Close(const Opened& opened) {
  const uint64_t offset = opened.offset_bytes;
  const std::string what = absl::StrCat("close what rank ", opened.rank, " has at offset ", offset);
  if (absl::Status status = guard_->Usable(); !status.ok()) return Annotate(status, what);
  const auto close = [&] { return Operate(own_, what, FreeOp{offset}).status(); };
  bool last = false;
  Opens opens;
  {
    absl::MutexLock lock(&mu_);
    const auto open = opened_.find(offset);
    if (open == opened_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": this context has not opened it, or has closed it already"));
    }
    opens = open->second;
    last = --open->second.n == 0;
    if (last) opened_.erase(open);
    if (last) borrowed_.Unmap(offset);
  }
  const absl::Status status = last ? GiveBack(offset, close) : close();
  if (!status.ok()) {
    absl::MutexLock lock(&mu_);
    opens.n = opened_[offset].n + 1;
    opened_[offset] = opens;
  }
  return status;
}

absl::Status TeamCalls::Grow(uint64_t bytes, const Team& world) {
  return Operate(world, absl::StrCat("grow the heap by ", base::SizeText(bytes)), GrowOp{bytes})
      .status();
}

absl::StatusOr<std::string> TeamCalls::Broadcast(absl::string_view value, uint32_t root,
                                                 const Team& team) {
  const TraceRecorder::Span span(trace_, TraceHostCall::kBroadcast, value.size());
  BroadcastOp op;
  op.root = root;
  if (root == options_.rank) op.value = value;
  auto result = Operate(team, absl::StrCat("broadcast from rank ", root), op);
  if (!result.ok()) return result.status();
  return std::move(result->value);
}

absl::StatusOr<Team> TeamCalls::CreateTeam(absl::Span<const uint32_t> ranks, const Team& parent) {
  const TraceRecorder::Span span(trace_, TraceHostCall::kTeam);
  Team other;
  other.id = kNoTeam;
  other.ranks.assign(ranks.begin(), ranks.end());
  return NewTeam(absl::StrCat("create a team of ", ranks.size(), " ranks"),
                 CreateTeamOp{other.ranks}, parent, other);
}

absl::StatusOr<Team> TeamCalls::SplitTeam(int32_t color, int32_t key, const Team& parent) {
  const TraceRecorder::Span span(trace_, TraceHostCall::kTeam);
  return NewTeam("split a team", SplitOp{options_.rank, color, key}, parent, Team());
}

absl::StatusOr<Team> TeamCalls::NewTeam(absl::string_view what, Operation op, const Team& parent,
                                        const Team& if_in_none) {
  auto result = Operate(parent, what, std::move(op));
  if (!result.ok()) return result.status();
  auto state = Find(parent);
  // Barriers of several nodes use words of the team's area, so the parent's holds the ranks.
  const bool by_parent = state.ok() && (*state)->nodes != nullptr;
  if (!result->team.has_value() && !by_parent) return if_in_none;
  const Team team = result->team.has_value() ? AddTeam(*result->team) : if_in_none;
  // The team's area may have been another team's. Each rank clears its own, and the barrier holds
  // all of them until the last has done so.
  absl::Status status;
  if (result->team.has_value()) {
    status = window_->driver().Fill(
        window_->address(options_.rank, result->team->sync_offset_bytes), 0, kSyncAreaBytes);
  }
  if (!by_parent) state = Find(team);
  const absl::Status met = state.ok() ? Meet(**state, options_.timeout) : state.status();
  if (status.ok()) status = met;
  if (!status.ok()) return Annotate(status, what);
  return team;
}

absl::Status TeamCalls::DestroyTeam(const Team& team) {
  const TraceRecorder::Span span(trace_, TraceHostCall::kTeam);
  const std::string what = absl::StrCat("destroy team ", team.id);
  auto state = Find(team);
  if (!state.ok()) return Annotate(state.status(), what);
  DestroyTeamOp op;
  {
    TimedLock lock(&(*state)->barrier_mutex, DeadlineIn(options_.timeout));
    if (!lock.held()) {
      return absl::FailedPreconditionError(absl::StrCat(what, ": a barrier of it is running"));
    }
    op.last_barrier_epoch = (*state)->barrier.epoch();
  }
  const uint64_t area = team.device.sync_offset_bytes;
  std::optional<HeapRanges::Range> range = ranges_->Remove(area);
  const absl::Status status = Operate(team, what, op).status();
  if (!status.ok()) {
    ranges_->Restore(area, std::move(range));
    return status;
  }
  absl::MutexLock lock(&mu_);
  teams_.erase(team.id);
  return absl::OkStatus();
}

absl::Status TeamCalls::Barrier(const Team& team, absl::Duration timeout) {
  const TraceRecorder::Span span(trace_, TraceHostCall::kBarrier);
  auto state = Find(team);
  if (!state.ok()) return Annotate(state.status(), "host barrier");
  return Meet(**state, TimeOr(timeout));
}

absl::Status TeamCalls::Meet(State& state, absl::Duration timeout) {
  const absl::Time deadline = DeadlineIn(timeout);
  TimedLock lock(&state.barrier_mutex, deadline);
  if (!lock.held()) {
    return absl::DeadlineExceededError(
        "host barrier: another thread's barrier on the same team did not end in time");
  }
  HelpOfIrisd help(plane_, {.job_id = options_.job_id, .team_id = state.team.id}, &threads_);
  if (state.nodes != nullptr) return MeetNodes(state, deadline, &help);
  return state.barrier.Run(deadline, guard_->closed(), &help);
}

absl::Status TeamCalls::MeetNodes(State& state, absl::Time deadline, BarrierHelp* help) {
  NodeMeeting& nodes = *state.nodes;
  const bool leads = nodes.leader() == options_.rank;
  const absl::Time start = Now();
  const auto fail = [&](const absl::Status& status) {
    absl::Status why;
    if (absl::IsDeadlineExceeded(status) || absl::IsAborted(status)) why = nodes.Left();
    if (why.ok() || window_->status().aborted()) why = state.barrier.WhyBroken(status, deadline);
    return Annotate(why, absl::StrCat("host barrier of ", state.team.ranks.size(), " ranks"));
  };
  // What this rank has put arrives before other nodes hear that it has come.
  absl::Status status = port_->Settle(deadline);
  if (status.ok()) {
    status = state.barrier.Run(deadline, guard_->closed(), help);
  } else {
    state.barrier.Skip();
  }
  if (!leads) {
    nodes.Skip();
    if (!status.ok()) {
      state.barrier.Skip();
      return fail(status);
    }
    status = state.barrier.AwaitRelease(nodes.leader(), deadline, guard_->closed());
    return status.ok() ? status : fail(status);
  }
  if (status.ok()) {
    state.barrier.SetWaiting(true);
    status = nodes.Meet(deadline);
    state.barrier.SetWaiting(false);
  } else {
    nodes.Skip();
  }
  state.barrier.Release(status.ok() ? std::nullopt : std::optional(Now() - start));
  return status.ok() ? status : fail(status);
}

}  // namespace iris::internal
