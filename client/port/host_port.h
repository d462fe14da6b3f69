// HostPort: a rank's way to ranks of other nodes: the PortMemory that irisd made for it
// (iris/port_types.h), the requests of its host, and what its kernels need for theirs.
//
// Requests to one rank take effect in the order of the calls that a thread makes. A call whose
// request fails later, which a put does, is reported by the next Quiet.
//
// Thread-safe. Nothing waits without a deadline. Borrows the driver.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "device/driver/gpu_driver.h"
#include "iris/port_types.h"
#include "iris/types.h"
#include "proto/wire/unique_fd.h"

namespace iris::internal {

class HostPort {
 public:
  struct Options {
    uint32_t rank = 0;
    uint64_t heap_address = 0;  // of this rank's heap in this process
    uint64_t stride_bytes = 0;  // of each heap, with the room to grow
    absl::Duration timeout;     // of every wait without its own
    // Returns an error once waits are of no use. Called about every millisecond of a wait.
    std::function<absl::Status()> over;
  };

  // Maps the memory, also for kernels. kInternal if the descriptors are not what irisd sends to
  // this rank.
  static absl::StatusOr<std::unique_ptr<HostPort>> Map(Options options, driver::GpuDriver* driver,
                                                       wire::UniqueFd memory, wire::UniqueFd wake);
  ~HostPort();
  HostPort(const HostPort&) = delete;
  HostPort& operator=(const HostPort&) = delete;

  // Returns the address for DeviceContext::port, valid as long as this object.
  const DevicePort* device() const { return device_; }
  // Returns the address where kernels count the copies of streams that have failed.
  PortFailures* failures() const { return failures_; }
  uint64_t n_failures() const;
  // Returns an error if more than *told copies of streams have failed, and sets *told. Thread-safe
  // for each counter.
  absl::Status FailedCopies(std::atomic<uint64_t>* told) const;

  // A signal in the heap of the rank that a put goes to.
  struct Signal {
    uint64_t offset_bytes = 0;
    uint64_t value = 0;
    SignalOp op = SignalOp::kSet;
  };

  // Puts from memory of this rank's heap or of the host to an offset in the heap of `to`, then
  // sends the signal. 0 bytes with a signal are a signal alone. When it returns, `src` may be
  // reused. An error means that not all has been posted.
  absl::Status Put(uint32_t to, uint64_t dst_offset, const void* src, uint64_t bytes,
                   const std::optional<Signal>& signal = std::nullopt);
  absl::Status PutRows(uint32_t to, uint64_t dst_offset, const void* src, const RowsToCopy& rows,
                       const std::optional<Signal>& signal = std::nullopt);
  // Gets to memory of this rank's heap or of the host. When it returns, the data is there.
  absl::Status Get(uint32_t from, void* dst, uint64_t src_offset, uint64_t bytes);
  absl::Status GetRows(uint32_t from, void* dst, uint64_t src_offset, const RowsToCopy& rows);
  // Returns the old value, like the operands in the lowest bytes.
  absl::StatusOr<uint64_t> Atomic(uint32_t to, uint64_t offset, PortAtomic op, PortType type,
                                  uint64_t value, uint64_t compare);

  // Waits until the port process has memory that this rank has registered, so that puts and gets of
  // other nodes, and those from it, find it. kOutOfRange: it does not get it.
  absl::Status AwaitMemory(uint64_t offset, uint64_t bytes, absl::Time deadline);

  // Says at which offset of this rank's heap kernels count their requests. Until then they have
  // none.
  void CountKernelsAt(uint64_t posted_offset) { kernels_posted_ = posted_offset; }

  // Waits until all requests that the host and kernels have posted are complete.
  absl::Status Settle(absl::Time deadline);
  // Settles, and returns once an error of a request of the host that no call has returned, or of a
  // kernel's request.
  absl::Status Quiet(absl::Duration timeout = absl::ZeroDuration());

  // Waits until the word at an offset of this rank's heap, which others put there, is at least
  // `value`. Acquires.
  absl::Status AwaitWord(uint64_t offset, uint64_t value, absl::Time deadline);

 private:
  // A part of PortMemory::values. It is free again when a word of the ring has passed a number.
  enum class Until { kNow, kRead, kCompleted };
  struct Piece {
    uint64_t begin = 0;  // counted without end; its place is `begin % kPortHostValueBytes`
    bool held = true;    // by a call
    Until until = Until::kNow;
    uint64_t number = 0;
  };
  // Shared with kernels.
  struct DevicePage {
    DevicePort port;
    PortFailures failures;
  };
  HostPort(Options options, driver::GpuDriver* driver)
      : options_(std::move(options)), driver_(driver) {}

  // Waits until `done`: first it lets others run, then it sleeps longer and longer. Returns why the
  // wait is of no use, or kDeadlineExceeded; `what` names the wait.
  absl::Status WaitUntil(absl::string_view what, absl::Time deadline,
                         absl::FunctionRef<bool()> done) const;
  // Returns the error of a request that has ended with `code`, in the job's own words if the job is
  // over, for which it waits a little if somebody is lost.
  absl::Status Failed(uint32_t code, absl::string_view what) const;
  // Posts a request, and returns its number. With `keeps_result`, the place of the result stays
  // until Await of the number.
  absl::StatusOr<uint64_t> Post(const PortRequest& request, const PortRows* rows, bool keeps_result,
                                absl::Time deadline);
  bool TryPost(const PortRequest& request, const PortRows* rows, bool keeps_result,
               uint64_t* number);
  absl::StatusOr<uint64_t> Await(uint64_t number, uint32_t to, absl::Time deadline);
  absl::Status AwaitRead(uint64_t next, absl::Time deadline);

  // Takes a part of the values of at most kPieceBytes. TryTake returns null if there is none now.
  Piece* TryTake(uint64_t bytes) ABSL_LOCKS_EXCLUDED(pieces_mu_);
  absl::StatusOr<Piece*> Take(uint64_t bytes, absl::Time deadline);
  // Gives it back: now, or as soon as the request with this number has been read or is complete.
  void GiveBack(Piece* piece, Until until, uint64_t number = 0);
  uint8_t* At(const Piece& piece) const {
    return memory_->values + piece.begin % kPortHostValueBytes;
  }
  // Puts or gets ranges outside the heap, by pieces.
  absl::Status PutByPieces(PortRequest request, const uint8_t* src, uint64_t bytes,
                           absl::Time deadline);
  absl::Status GetByPieces(PortRequest request, uint8_t* dst, uint64_t bytes, absl::Time deadline);

  // Reads a word of this rank's heap.
  absl::StatusOr<uint64_t> HeapWord(uint64_t offset) const;
  bool InHeap(const void* p, uint64_t bytes, uint64_t* offset) const;
  absl::Time Deadline(absl::Duration timeout = absl::ZeroDuration()) const;
  uint64_t Word(const uint64_t* word) const { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
  PortRingWords& words() const { return memory_->words[kPortHostRing]; }
  PortRing& ring() const { return memory_->rings[kPortHostRing]; }

  const Options options_;
  driver::GpuDriver* const driver_;
  PortMemory* memory_ = nullptr;
  wire::UniqueFd wake_;
  bool registered_ = false;
  std::optional<uint64_t> kernels_posted_;
  DevicePage* device_page_ = nullptr;
  const DevicePort* device_ = nullptr;  // of the page, as kernels address it, like the next
  PortFailures* failures_ = nullptr;

  absl::Mutex mu_;
  uint64_t posted_ ABSL_GUARDED_BY(mu_) = 0;
  bool keeps_[kPortSlots] ABSL_GUARDED_BY(mu_) = {};     // results that no call has read yet
  uint64_t told_[kPortRings] ABSL_GUARDED_BY(mu_) = {};  // failures that calls have returned

  absl::Mutex pieces_mu_;
  std::deque<Piece> pieces_ ABSL_GUARDED_BY(pieces_mu_);
  uint64_t pieces_end_ ABSL_GUARDED_BY(pieces_mu_) = 0;
};

}  // namespace iris::internal
