#include "client/port/host_port.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/base/annotate.h"
#include "client/base/clock.h"
#include "proto/wire/frame.h"
#include "proto/wire/pages.h"

#ifndef F_GET_SEALS
#define F_GET_SEALS 1034
#define F_SEAL_SHRINK 0x0002
#endif

namespace iris::internal {
namespace {

// Puts and gets of more are cut into such pieces, of which several are under way.
constexpr uint64_t kPieceBytes = 256 << 10;
constexpr size_t kPiecesOfAGet = 3;
// Values begin at multiples of this, so that no two requests share a cache line.
constexpr uint64_t kValueAlignment = 64;

// How a wait passes its time: first it lets others run, then it sleeps longer and longer.
constexpr int kYields = 200;
constexpr absl::Duration kFirstSleep = absl::Microseconds(5);
constexpr absl::Duration kLongestSleep = absl::Microseconds(500);
constexpr absl::Duration kLookPeriod = absl::Milliseconds(1);
// If a rank or a node is lost, the port often knows it before irisd has told this rank.
constexpr absl::Duration kReasonFollows = absl::Milliseconds(500);

constexpr absl::string_view kNoAnswer =
    "time is up; the port process of this node, or the other node, does not answer";

absl::Status FailureOf(uint32_t code, absl::string_view what) {
  const auto status = static_cast<absl::StatusCode>(code);
  absl::string_view why = "the port process refused it";
  if (status == absl::StatusCode::kDeadlineExceeded) {
    why = kNoAnswer;
  } else if (status == absl::StatusCode::kOutOfRange) {
    why =
        "there is no memory at one of its places, in the heap here or there: both are addresses of "
        "this rank's own copies, inside its heap";
  } else if (status == absl::StatusCode::kInvalidArgument) {
    why = "the port process found it malformed";
  } else if (status == absl::StatusCode::kUnavailable || status == absl::StatusCode::kAborted) {
    why = "the other node, or a rank on it, is lost";
  }
  return absl::Status(status == absl::StatusCode::kOk ? absl::StatusCode::kInternal : status,
                      absl::StrCat(what, ": ", why));
}

absl::Status Unmapped(absl::string_view why) {
  return absl::InternalError(absl::StrCat("map the memory for ranks of other nodes: ", why));
}

PortRequest RequestOf(PortOp op, uint32_t to) {
  PortRequest request = {};
  request.op = op;
  request.to = to;
  request.signal = kNoPortSignal;
  return request;
}

PortRequest PutOf(PortOp op, uint32_t to, uint64_t dst,
                  const std::optional<HostPort::Signal>& signal) {
  PortRequest request = RequestOf(op, to);
  request.dst = dst;
  if (signal.has_value()) {
    request.signal = signal->offset_bytes;
    request.signal_value = signal->value;
    request.signal_op = static_cast<uint8_t>(signal->op);
  }
  return request;
}

PortRows StridesOf(const RowsToCopy& rows) {
  return {rows.rows, rows.dst_pitch_bytes, rows.src_pitch_bytes, {}, 0};
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostPort>> HostPort::Map(Options options, driver::GpuDriver* driver,
                                                        wire::UniqueFd memory,
                                                        wire::UniqueFd wake) {
  struct stat info = {};
  if (fstat(memory.get(), &info) != 0) return wire::ErrnoStatus(errno, "map the port's memory");
  const int seals = fcntl(memory.get(), F_GET_SEALS);
  if (static_cast<uint64_t>(info.st_size) != sizeof(PortMemory) || seals < 0 ||
      (seals & F_SEAL_SHRINK) == 0) {
    return Unmapped("irisd sent something that is not a sealed file of its size");
  }
  std::unique_ptr<HostPort> port(new HostPort(std::move(options), driver));
  void* const mapped =
      mmap(nullptr, sizeof(PortMemory), PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (mapped == MAP_FAILED) return wire::ErrnoStatus(errno, "map the port's memory");
  madvise(mapped, sizeof(PortMemory), MADV_DONTFORK);
  port->memory_ = static_cast<PortMemory*>(mapped);
  port->wake_ = std::move(wake);
  const PortMemory& seen = *port->memory_;
  if (seen.magic != kPortMagic || seen.version != kPortVersion ||
      seen.rank != port->options_.rank) {
    return Unmapped(absl::StrCat("it is of version ", seen.version, " and of rank ", seen.rank,
                                 ", and this library has version ", kPortVersion));
  }
  void* const page =
      mmap(nullptr, wire::kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return wire::ErrnoStatus(errno, "map the port's memory");
  port->device_page_ = new (page) DevicePage();
  const auto registered =
      driver->RegisterHost(mapped, sizeof(PortMemory), driver::Access::kReadWrite);
  if (!registered.ok()) return registered.status();
  port->registered_ = true;
  auto* const for_kernels = static_cast<PortMemory*>(const_cast<void*>(*registered));
  DevicePort* const device = &port->device_page_->port;
  device->slots = for_kernels->rings[kPortKernelRing].slots;
  device->results = for_kernels->rings[kPortKernelRing].results;
  device->words = &for_kernels->words[kPortKernelRing];
  device->asleep = &for_kernels->asleep;
  device->wake_fd = port->wake_.get();
  device->stages = for_kernels->values + kPortHostValueBytes;
  const auto shared = driver->RegisterHost(page, wire::kPageBytes, driver::Access::kReadWrite);
  if (!shared.ok()) return shared.status();
  auto* const page_of_kernels = static_cast<DevicePage*>(const_cast<void*>(*shared));
  port->device_ = &page_of_kernels->port;
  port->failures_ = &page_of_kernels->failures;
  return port;
}

HostPort::~HostPort() {
  if (device_ != nullptr) (void)driver_->UnregisterHost(device_page_);
  if (device_page_ != nullptr) munmap(device_page_, wire::kPageBytes);
  if (registered_) (void)driver_->UnregisterHost(memory_);
  if (memory_ != nullptr) munmap(memory_, sizeof(PortMemory));
}

absl::Time HostPort::Deadline(absl::Duration timeout) const {
  return DeadlineIn(timeout == absl::ZeroDuration() ? options_.timeout : timeout);
}

bool HostPort::InHeap(const void* p, uint64_t bytes, uint64_t* offset) const {
  *offset = reinterpret_cast<uint64_t>(p) - options_.heap_address;
  return *offset < options_.stride_bytes && bytes <= options_.stride_bytes - *offset;
}

absl::Status HostPort::WaitUntil(absl::string_view what, absl::Time deadline,
                                 absl::FunctionRef<bool()> done) const {
  absl::Duration sleep = kFirstSleep;
  absl::Time looked = absl::InfinitePast();
  for (int yields = 0; !done();) {
    if (++yields <= kYields) {
      sched_yield();
      continue;
    }
    const uint32_t stopped = __atomic_load_n(&words().stopped, __ATOMIC_ACQUIRE);
    const absl::Time now = Now();
    if (now - looked >= kLookPeriod) {
      looked = now;
      // The job's own reason says more than the port's.
      if (absl::Status over = options_.over(); !over.ok()) return over;
    }
    if (stopped != 0) {
      return FailureOf(stopped, absl::StrCat(what, ": the port process has stopped"));
    }
    if (now >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(what, ": ", kNoAnswer));
    }
    absl::SleepFor(sleep);
    sleep = std::min(2 * sleep, kLongestSleep);
  }
  return absl::OkStatus();
}

absl::Status HostPort::Failed(uint32_t code, absl::string_view what) const {
  if (static_cast<absl::StatusCode>(code) == absl::StatusCode::kAborted) {
    const absl::Time until = Now() + kReasonFollows;
    absl::Status over;
    while ((over = options_.over()).ok() && Now() < until) absl::SleepFor(kLongestSleep);
    if (!over.ok()) return Annotate(over, what);
  }
  return FailureOf(code, what);
}

// Requests.

bool HostPort::TryPost(const PortRequest& request, const PortRows* rows, bool keeps_result,
                       uint64_t* number) {
  const auto write = [this](uint64_t place, const void* slot) {
    uint64_t words[8];
    std::memcpy(words, slot, sizeof(words));
    auto* const to = reinterpret_cast<uint64_t*>(&ring().slots[place % kPortSlots]);
    for (int k = 0; k < 7; ++k) __atomic_store_n(to + k, words[k], __ATOMIC_RELAXED);
    __atomic_store_n(to + 7, place + 1, __ATOMIC_RELEASE);
  };
  const uint64_t places = rows == nullptr ? 1 : 2;
  absl::MutexLock lock(&mu_);
  if (posted_ + places - Word(&words().completed) > kPortSlots) return false;
  for (uint64_t i = 0; i < places; ++i) {
    if (keeps_[(posted_ + i) % kPortSlots]) return false;
  }
  *number = posted_;
  posted_ += places;
  keeps_[*number % kPortSlots] = keeps_result;
  __atomic_store_n(&memory_->host_posted, posted_, __ATOMIC_RELAXED);
  if (rows != nullptr) write(*number + 1, rows);
  write(*number, &request);
  return true;
}

absl::StatusOr<uint64_t> HostPort::Post(const PortRequest& request, const PortRows* rows,
                                        bool keeps_result, absl::Time deadline) {
  uint64_t number = 0;
  const absl::Status status =
      WaitUntil("wait for room for a request to another node", deadline,
                [&] { return TryPost(request, rows, keeps_result, &number); });
  if (!status.ok()) return status;
  // The port process sets the word, then looks for requests.
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (__atomic_load_n(&memory_->asleep, __ATOMIC_RELAXED) != 0 &&
      __atomic_exchange_n(&memory_->asleep, 0u, __ATOMIC_ACQ_REL) != 0) {
    const uint64_t one = 1;
    (void)!write(wake_.get(), &one, sizeof(one));
  }
  return number;
}

absl::StatusOr<uint64_t> HostPort::Await(uint64_t number, uint32_t to, absl::Time deadline) {
  const PortResult& result = ring().results[number % kPortSlots];
  uint64_t done = 0, value = 0;
  const absl::Status status = WaitUntil("wait for the answer", deadline, [&] {
    done = Word(&result.done);
    return done >> 8 == number + 1;
  });
  if (status.ok()) value = __atomic_load_n(&result.value, __ATOMIC_RELAXED);
  const uint32_t code = static_cast<uint32_t>(done & 0xff);
  {
    absl::MutexLock lock(&mu_);
    keeps_[number % kPortSlots] = false;
    if (status.ok() && code != 0) ++told_[kPortHostRing];
  }
  if (!status.ok()) return Annotate(status, absl::StrCat("request to rank ", to));
  if (code == 0) return value;
  return Failed(code, absl::StrCat("request to rank ", to));
}

absl::Status HostPort::AwaitRead(uint64_t next, absl::Time deadline) {
  return WaitUntil("wait until the source may be reused", deadline,
                   [&] { return Word(&words().read) >= next; });
}

// Pieces of the values.

HostPort::Piece* HostPort::TryTake(uint64_t bytes) {
  const uint64_t read = Word(&words().read), completed = Word(&words().completed);
  const auto is_free = [&](const Piece& piece) {
    if (piece.held || piece.until == Until::kNow) return !piece.held;
    return piece.number < (piece.until == Until::kRead ? read : completed);
  };
  absl::MutexLock lock(&pieces_mu_);
  while (!pieces_.empty() && is_free(pieces_.front())) pieces_.pop_front();
  uint64_t begin = (pieces_end_ + kValueAlignment - 1) / kValueAlignment * kValueAlignment;
  if (begin % kPortHostValueBytes + bytes > kPortHostValueBytes) {
    begin = (begin / kPortHostValueBytes + 1) * kPortHostValueBytes;
  }
  const uint64_t first = pieces_.empty() ? begin : pieces_.front().begin;
  if (begin + bytes - first > kPortHostValueBytes) return nullptr;
  pieces_end_ = begin + bytes;
  return &pieces_.emplace_back(Piece{begin});
}

absl::StatusOr<HostPort::Piece*> HostPort::Take(uint64_t bytes, absl::Time deadline) {
  Piece* piece = nullptr;
  const absl::Status status = WaitUntil("wait for room for values", deadline, [&] {
    piece = TryTake(bytes);
    return piece != nullptr;
  });
  return status.ok() ? absl::StatusOr<Piece*>(piece) : status;
}

void HostPort::GiveBack(Piece* piece, Until until, uint64_t number) {
  absl::MutexLock lock(&pieces_mu_);
  piece->held = false;
  piece->until = until;
  piece->number = number;
}

absl::Status HostPort::PutByPieces(PortRequest request, const uint8_t* src, uint64_t bytes,
                                   absl::Time deadline) {
  const uint64_t signal = std::exchange(request.signal, kNoPortSignal);
  request.space = PortSpace::kValues;
  for (uint64_t at = 0; at < bytes; at += kPieceBytes) {
    const uint64_t n = std::min(kPieceBytes, bytes - at);
    const absl::StatusOr<Piece*> piece = Take(n, deadline);
    if (!piece.ok()) return piece.status();
    std::memcpy(At(**piece), src + at, n);
    PortRequest part = request;
    part.dst += at;
    part.src = (*piece)->begin % kPortHostValueBytes;
    part.bytes = n;
    if (at + n == bytes) part.signal = signal;
    const absl::StatusOr<uint64_t> number = Post(part, nullptr, false, deadline);
    GiveBack(*piece, number.ok() ? Until::kRead : Until::kNow, number.value_or(0));
    if (!number.ok()) return number.status();
  }
  return absl::OkStatus();
}

absl::Status HostPort::GetByPieces(PortRequest request, uint8_t* dst, uint64_t bytes,
                                   absl::Time deadline) {
  struct Part {
    Piece* piece;
    uint64_t number;
    uint64_t at;
    uint64_t bytes;
  };
  std::deque<Part> parts;
  absl::Status status;
  const auto finish = [&] {
    const Part part = parts.front();
    parts.pop_front();
    const auto got = Await(part.number, request.to, deadline);
    if (got.ok()) std::memcpy(dst + part.at, At(*part.piece), part.bytes);
    // A late answer may still write to the piece of a get that has failed.
    GiveBack(part.piece, got.ok() ? Until::kNow : Until::kCompleted, part.number);
    status.Update(got.status());
  };
  request.space = PortSpace::kValues;
  for (uint64_t at = 0; at < bytes && status.ok();) {
    const uint64_t n = std::min(kPieceBytes, bytes - at);
    Piece* piece = parts.size() < kPiecesOfAGet ? TryTake(n) : nullptr;
    if (piece == nullptr && !parts.empty()) {
      finish();
      continue;
    }
    if (piece == nullptr) {
      const absl::StatusOr<Piece*> taken = Take(n, deadline);
      if (!taken.ok()) return taken.status();
      piece = *taken;
    }
    PortRequest part = request;
    part.src += at;
    part.dst = piece->begin % kPortHostValueBytes;
    part.bytes = n;
    const absl::StatusOr<uint64_t> number = Post(part, nullptr, true, deadline);
    if (number.ok()) {
      parts.push_back({piece, *number, at, n});
    } else {
      GiveBack(piece, Until::kNow);
    }
    status.Update(number.status());
    at += n;
  }
  while (!parts.empty()) finish();
  return status;
}

// Calls.

absl::Status HostPort::Put(uint32_t to, uint64_t dst_offset, const void* src, uint64_t bytes,
                           const std::optional<Signal>& signal) {
  if (bytes == 0 && !signal.has_value()) return absl::OkStatus();
  const absl::Time deadline = Deadline();
  PortRequest request = PutOf(PortOp::kPut, to, bytes == 0 ? 0 : dst_offset, signal);
  request.bytes = bytes;
  uint64_t offset = 0;
  // The heap of a GPU is not for the host to read.
  const bool in_heap = InHeap(src, bytes, &offset);
  const bool readable = !in_heap || driver_->kind() == driver::BackendKind::kEmu;
  if (bytes == 0 || (bytes <= sizeof(request.src) && readable)) {
    request.space = PortSpace::kInline;
    if (bytes > 0) std::memcpy(&request.src, src, bytes);
    return Post(request, nullptr, false, deadline).status();
  }
  if (!in_heap) {
    return PutByPieces(request, static_cast<const uint8_t*>(src), bytes, deadline);
  }
  request.src = offset;
  const absl::StatusOr<uint64_t> number = Post(request, nullptr, false, deadline);
  return number.ok() ? AwaitRead(*number + 1, deadline) : number.status();
}

absl::Status HostPort::PutRows(uint32_t to, uint64_t dst_offset, const void* src,
                               const RowsToCopy& rows, const std::optional<Signal>& signal) {
  if (rows.rows == 0 || rows.row_bytes == 0) return Put(to, 0, nullptr, 0, signal);
  const absl::Time deadline = Deadline();
  const uint64_t src_bytes = (rows.rows - 1) * rows.src_pitch_bytes + rows.row_bytes;
  uint64_t offset = 0;
  if (!InHeap(src, src_bytes, &offset)) {
    for (uint64_t row = 0; row < rows.rows; ++row) {
      const auto* const from = static_cast<const uint8_t*>(src) + row * rows.src_pitch_bytes;
      const bool last = row + 1 == rows.rows;
      const absl::Status status = Put(to, dst_offset + row * rows.dst_pitch_bytes, from,
                                      rows.row_bytes, last ? signal : std::nullopt);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }
  PortRequest request = PutOf(PortOp::kPutRows, to, dst_offset, signal);
  request.src = offset;
  request.bytes = rows.row_bytes;
  const PortRows strides = StridesOf(rows);
  const absl::StatusOr<uint64_t> number = Post(request, &strides, false, deadline);
  return number.ok() ? AwaitRead(*number + 2, deadline) : number.status();
}

absl::Status HostPort::Get(uint32_t from, void* dst, uint64_t src_offset, uint64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  const absl::Time deadline = Deadline();
  uint64_t offset = 0;
  const bool in_heap = InHeap(dst, bytes, &offset);
  if (!in_heap && (bytes == 4 || bytes == 8) && src_offset % bytes == 0) {
    const auto word = Atomic(from, src_offset, PortAtomic::kLoad,
                             bytes == 4 ? PortType::kUint32 : PortType::kUint64, 0, 0);
    if (word.ok()) std::memcpy(dst, &*word, bytes);
    return word.status();
  }
  PortRequest request = RequestOf(PortOp::kGet, from);
  request.src = src_offset;
  request.dst = offset;
  request.bytes = bytes;
  if (!in_heap) return GetByPieces(request, static_cast<uint8_t*>(dst), bytes, deadline);
  const absl::StatusOr<uint64_t> number = Post(request, nullptr, true, deadline);
  return number.ok() ? Await(*number, from, deadline).status() : number.status();
}

absl::Status HostPort::GetRows(uint32_t from, void* dst, uint64_t src_offset,
                               const RowsToCopy& rows) {
  if (rows.rows == 0 || rows.row_bytes == 0) return absl::OkStatus();
  const absl::Time deadline = Deadline();
  const uint64_t dst_bytes = (rows.rows - 1) * rows.dst_pitch_bytes + rows.row_bytes;
  uint64_t offset = 0;
  if (!InHeap(dst, dst_bytes, &offset)) {
    for (uint64_t row = 0; row < rows.rows; ++row) {
      const absl::Status status = Get(from, static_cast<uint8_t*>(dst) + row * rows.dst_pitch_bytes,
                                      src_offset + row * rows.src_pitch_bytes, rows.row_bytes);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }
  PortRequest request = RequestOf(PortOp::kGetRows, from);
  request.src = src_offset;
  request.dst = offset;
  request.bytes = rows.row_bytes;
  const PortRows strides = StridesOf(rows);
  const absl::StatusOr<uint64_t> number = Post(request, &strides, true, deadline);
  return number.ok() ? Await(*number, from, deadline).status() : number.status();
}

absl::StatusOr<uint64_t> HostPort::Atomic(uint32_t to, uint64_t offset, PortAtomic op,
                                          PortType type, uint64_t value, uint64_t compare) {
  const absl::Time deadline = Deadline();
  PortRequest request = RequestOf(PortOp::kAtomic, to);
  request.atomic = op;
  request.type = type;
  request.dst = offset;
  request.src = compare;
  request.bytes = value;
  const absl::StatusOr<uint64_t> number = Post(request, nullptr, true, deadline);
  return number.ok() ? Await(*number, to, deadline) : number.status();
}

absl::Status HostPort::AwaitMemory(uint64_t offset, uint64_t bytes, absl::Time deadline) {
  PortRequest request = RequestOf(PortOp::kCovers, options_.rank);
  request.dst = offset;
  request.bytes = bytes;
  for (;;) {
    const absl::StatusOr<uint64_t> number = Post(request, nullptr, true, deadline);
    if (!number.ok()) return number.status();
    const absl::Status covers = Await(*number, options_.rank, deadline).status();
    if (!absl::IsOutOfRange(covers)) return covers;
    if (Now() >= deadline) {
      return absl::OutOfRangeError(
          "the port process of this node does not have the memory: irisd's log says why");
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
}

absl::StatusOr<uint64_t> HostPort::HeapWord(uint64_t offset) const {
  const auto* const word = reinterpret_cast<const uint64_t*>(options_.heap_address + offset);
  if (driver_->kind() == driver::BackendKind::kEmu) return Word(word);
  uint64_t value = 0;
  const absl::Status status = driver_->Copy(&value, word, sizeof(value));
  return status.ok() ? absl::StatusOr<uint64_t>(value) : status;
}

absl::Status HostPort::AwaitWord(uint64_t offset, uint64_t value, absl::Time deadline) {
  absl::StatusOr<uint64_t> word = 0;
  const absl::Status status = WaitUntil("wait for another node", deadline, [&] {
    word = HeapWord(offset);
    return !word.ok() || *word >= value;
  });
  return word.ok() ? status : word.status();
}

absl::Status HostPort::Settle(absl::Time deadline) {
  uint64_t posted[kPortRings] = {};
  {
    absl::MutexLock lock(&mu_);
    posted[kPortHostRing] = posted_;
  }
  if (kernels_posted_.has_value()) {
    const auto kernels = HeapWord(*kernels_posted_);
    if (!kernels.ok()) return kernels.status();
    posted[kPortKernelRing] = *kernels;
  }
  for (uint32_t r = 0; r < kPortRings; ++r) {
    const absl::Status status =
        WaitUntil("wait until all requests to other nodes are complete", deadline,
                  [&] { return Word(&memory_->words[r].completed) >= posted[r]; });
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

uint64_t HostPort::n_failures() const { return Word(&device_page_->failures.count); }

absl::Status HostPort::FailedCopies(std::atomic<uint64_t>* told) const {
  const uint64_t count = n_failures();
  uint64_t before = told->load();
  while (before < count && !told->compare_exchange_weak(before, count)) {
  }
  if (before >= count) return absl::OkStatus();
  const uint64_t n = count - before;
  const uint64_t first = Word(&device_page_->failures.first);
  const std::string what = absl::StrCat(
      n, n == 1 ? " copy" : " copies", " between nodes on streams failed; the first of all was a ",
      (first >> 8 & 1) != 0 ? "put to rank " : "get from rank ", first >> 16);
  return Failed(first & 0xff, what);
}

absl::Status HostPort::Quiet(absl::Duration timeout) {
  if (absl::Status status = Settle(Deadline(timeout)); !status.ok()) return status;
  constexpr absl::string_view kWhats[kPortRings] = {"puts", "requests of kernels"};
  for (uint32_t r = 0; r < kPortRings; ++r) {
    const PortRingWords& seen = memory_->words[r];
    uint64_t n = 0;
    {
      absl::MutexLock lock(&mu_);
      const uint64_t failed = Word(&seen.failed);
      n = failed - std::exchange(told_[r], failed);
    }
    if (n == 0) continue;
    return Failed(
        seen.first_failed & 0xff,
        absl::StrCat(n, " ", kWhats[r], " to other nodes have failed, the first of all failures ",
                     "was request #", (seen.first_failed >> 8) - 1));
  }
  return absl::OkStatus();
}

}  // namespace iris::internal
