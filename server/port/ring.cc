#include "server/port/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "device/iris/port_atomic.h"
#include "device/iris/types.h"
#include "proto/wire/frame.h"

namespace iris::port {
namespace {

constexpr uint64_t kMask = kPortSlots - 1;
constexpr uint64_t kMaxRows = 1ull << 40;

// Copies a slot, each word once.
template <typename T>
T Snapshot(const void* from) {
  static_assert(sizeof(T) == 64);
  uint64_t words[8];
  for (int i = 0; i < 8; ++i) {
    words[i] = __atomic_load_n(static_cast<const uint64_t*>(from) + i, __ATOMIC_RELAXED);
  }
  T value;
  memcpy(&value, words, sizeof(value));
  return value;
}

uint64_t Extent(uint64_t rows, uint64_t stride, uint64_t length) {
  return rows == 0 || length == 0 ? 0 : (rows - 1) * stride + length;
}

// Sets *extent to the bytes from the first row's beginning to the last one's end; false if the rows
// overlap, or if that is more than any memory has.
bool CheckRows(uint64_t rows, uint64_t stride, uint64_t length, uint64_t* extent) {
  if (length > kMaxRows || rows > kMaxRows || stride > kMaxRows) return false;
  if (rows > 1 && stride < length) return false;
  if (rows > 1 && length > 0 && stride > (kMaxRows * 16) / (rows - 1)) return false;
  *extent = Extent(rows, stride, length);
  return true;
}

bool Within(uint64_t offset, uint64_t bytes, uint64_t limit) {
  return offset <= limit && bytes <= limit - offset;
}

}  // namespace

absl::StatusOr<std::shared_ptr<PortMapping>> PortMapping::Map(wire::UniqueFd fd, uint32_t rank) {
  const std::string name = absl::StrCat("the ring of rank ", rank);
  struct stat info = {};
  if (!fd.valid() || fstat(fd.get(), &info) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": no descriptor"));
  }
  const int seals = S_ISREG(info.st_mode) ? fcntl(fd.get(), F_GET_SEALS) : -1;
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
      static_cast<uint64_t>(info.st_size) != sizeof(PortMemory)) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": not a memfd of ", sizeof(PortMemory),
                                                   " bytes that is sealed against shrinking"));
  }
  void* const memory =
      mmap(nullptr, sizeof(PortMemory), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return wire::ErrnoStatus(errno, absl::StrCat("map ", name));
  std::shared_ptr<PortMapping> mapping(new PortMapping(static_cast<PortMemory*>(memory)));
  const PortMemory& mapped = mapping->memory();
  if (mapped.magic != kPortMagic || mapped.version != kPortVersion || mapped.rank != rank) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": its memory has magic ", mapped.magic, ", version ", mapped.version, " and rank ",
        mapped.rank, ", expected were ", kPortMagic, ", ", kPortVersion, " and ", rank));
  }
  return mapping;
}

PortMapping::~PortMapping() { munmap(memory_, sizeof(PortMemory)); }

uint64_t LocalExtent(const PortRequest& request, const PortRows& rows) {
  if (!IsRows(request.op)) return request.bytes;
  return Extent(rows.rows, IsPut(request.op) ? rows.src_stride : rows.dst_stride, request.bytes);
}

StatusCode CheckRequest(const PortRequest& request, const PortRows& rows,
                        const RequestLimits& limits) {
  const bool covers = request.op == PortOp::kCovers;
  if (request.op < PortOp::kPut || request.op > PortOp::kCovers || request.flags != 0 ||
      request.reserved[0] != 0 || request.reserved[1] != 0 || request.reserved[2] != 0 ||
      request.to >= limits.n_ranks || covers != (request.to - limits.first_rank < limits.n_local)) {
    return StatusCode::kInvalidArgument;
  }
  if (covers) {
    return Within(request.dst, request.bytes, limits.max_heap_bytes) ? StatusCode::kOk
                                                                     : StatusCode::kOutOfRange;
  }
  if (request.op == PortOp::kAtomic) {
    if (!IsPortAtomic(request.atomic, request.type) ||
        request.dst % PortTypeBytes(request.type) != 0) {
      return StatusCode::kInvalidArgument;
    }
    return Within(request.dst, PortTypeBytes(request.type), limits.max_heap_bytes)
               ? StatusCode::kOk
               : StatusCode::kOutOfRange;
  }
  uint64_t local = request.bytes, remote = request.bytes;
  const bool put = IsPut(request.op);
  if (IsRows(request.op)) {
    if (!CheckRows(rows.rows, put ? rows.src_stride : rows.dst_stride, request.bytes, &local) ||
        !CheckRows(rows.rows, put ? rows.dst_stride : rows.src_stride, request.bytes, &remote)) {
      return StatusCode::kInvalidArgument;
    }
  }
  switch (request.space) {
    case PortSpace::kHeap:
      if (!Within(put ? request.src : request.dst, local, limits.max_heap_bytes)) {
        return StatusCode::kOutOfRange;
      }
      break;
    case PortSpace::kValues:
      if (!Within(put ? request.src : request.dst, local, kPortValueBytes)) {
        return StatusCode::kOutOfRange;
      }
      break;
    case PortSpace::kInline:
      if (request.op != PortOp::kPut || request.bytes > 8) return StatusCode::kInvalidArgument;
      break;
    default:
      return StatusCode::kInvalidArgument;
  }
  if (!Within(put ? request.dst : request.src, remote, limits.max_heap_bytes)) {
    return StatusCode::kOutOfRange;
  }
  if (!put || request.signal == kNoPortSignal) return StatusCode::kOk;
  if (request.signal % 8 != 0 || request.signal_op > static_cast<uint8_t>(SignalOp::kAdd)) {
    return StatusCode::kInvalidArgument;
  }
  return Within(request.signal, 8, limits.max_heap_bytes) ? StatusCode::kOk
                                                          : StatusCode::kOutOfRange;
}

bool Ring::HasNext() const {
  return mapping_ != nullptr && taken_ - completed_ < kPortSlots &&
         __atomic_load_n(&Shared(taken_).sequence, __ATOMIC_ACQUIRE) == taken_ + 1;
}

bool Ring::Take(uint32_t* index) {
  if (!HasNext()) return false;
  const auto request = Snapshot<PortRequest>(&Shared(taken_));
  uint64_t n = 1;
  PortRows rows = {};
  if (IsRows(request.op)) {
    n = 2;
    if (taken_ + n - completed_ > kPortSlots ||
        __atomic_load_n(&Shared(taken_ + 1).sequence, __ATOMIC_ACQUIRE) != taken_ + 2) {
      return false;
    }
    rows = Snapshot<PortRows>(&Shared(taken_ + 1));
    // The second slot is done when the first one is; Complete passes both.
    Slot& second = slots_[(taken_ + 1) & kMask];
    second = Slot();
    second.done = second.read = true;
  }
  *index = static_cast<uint32_t>(taken_ & kMask);
  Slot& slot = slots_[*index];
  slot = Slot();
  slot.request = request;
  slot.rows = rows;
  slot.request.sequence = taken_ + 1;
  taken_ += n;
  return true;
}

void Ring::MarkRead(uint32_t index) {
  slots_[index].read = true;
  if (index == (read_ & kMask)) changed_ = true;
}

void Ring::Complete(uint32_t index, StatusCode status, uint64_t value) {
  Slot& slot = slots_[index];
  slot.done = true;
  changed_ = true;
  const uint64_t done = slot.request.sequence << 8 | static_cast<uint64_t>(status);
  if (status != StatusCode::kOk && failed_++ == 0) first_failed_ = done;
  if (mapping_ == nullptr) return;
  PortResult& result = mapping_->memory().rings[index_].results[index];
  __atomic_store_n(&result.value, value, __ATOMIC_RELAXED);
  // A rank that waits for this result may look at the count of failures next.
  if (status != StatusCode::kOk) {
    __atomic_store_n(&words().first_failed, first_failed_, __ATOMIC_RELAXED);
    __atomic_store_n(&words().failed, failed_, __ATOMIC_RELEASE);
  }
  __atomic_store_n(&result.done, done, __ATOMIC_RELEASE);
}

void Ring::Publish() {
  if (!std::exchange(changed_, false)) return;
  const uint64_t completed = completed_, read = read_;
  while (completed_ < taken_ && slots_[completed_ & kMask].done) ++completed_;
  if (read_ < completed_) read_ = completed_;
  while (read_ < taken_ && slots_[read_ & kMask].read) ++read_;
  if (mapping_ == nullptr) return;
  if (read_ != read) __atomic_store_n(&words().read, read_, __ATOMIC_RELEASE);
  if (completed_ != completed) __atomic_store_n(&words().completed, completed_, __ATOMIC_RELEASE);
  WakeWaiters();
}

void Ring::WakeWaiters() {
  __atomic_store_n(&words().events, ++events_, __ATOMIC_SEQ_CST);
  uint32_t* const waiting = &mapping_->memory().waiting[index_];
  if (__atomic_load_n(waiting, __ATOMIC_SEQ_CST) == 0) return;
  __atomic_store_n(waiting, 0u, __ATOMIC_SEQ_CST);
  (void)syscall(SYS_futex, &words().events, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Ring::Stop(StatusCode code) {
  if (mapping_ == nullptr) return;
  __atomic_store_n(&words().stopped, static_cast<uint32_t>(code), __ATOMIC_RELEASE);
  WakeWaiters();
}

}  // namespace iris::port
