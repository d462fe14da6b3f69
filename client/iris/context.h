// iris::Context: a process's membership in a job and its window onto every peer's heap.
//
//   // Rank and number of ranks come from the launcher.
//   auto context = iris::Context::Create({.job = "train", .heap_bytes = 1ull << 30});
//   if (!context.ok()) {
//     std::cerr << context.status();
//     return 1;
//   }
//   auto x = (*context)->Allocate({.bytes = 4096, .name = "x"});  // collective: one offset
//   float* mine = x->As<float>();
//   float* theirs = (*context)->Translate(mine, /*to=*/1);
//   auto status = (*context)->Barrier();
//
// The plain types (ContextOptions, AllocateOptions, Allocation, Team, CreateTimings) are in
// client/base/types.h.
//
// Needs irisd on this node. Nothing here includes gRPC or protobuf. Every call that waits has a
// deadline and, when it expires or a peer is gone, says which ranks are missing or which rank (and
// pid) left, hung up or died: a rank that hung up has lost its session with irisd, and its process
// may still run.
//
// Thread-safe, but calls that are collective (marked so) must be made by all ranks of the team in
// the same order. In a forked child every call fails with kFailedPrecondition, and the windows are
// not mapped. After irisd has gone, mapped memory, barriers and kernels go on; calls that need
// irisd retry with back-off until their deadline, then fail with kUnavailable.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/base/types.h"
#include "device/iris/types.h"

namespace iris {

namespace backend {
class Stream;
}

// What a copy on a stream tells the peer when it is done. Device code waits for it as for any
// signal.
struct SignalOptions {
  uint64_t* signal = nullptr;  // in this rank's heap; means its copy in the peer's. Null: no signal
  uint64_t value = 1;
  SignalOp op = SignalOp::kSet;
};

class Context {
 public:
  // Collective over the job's ranks. Connects, joins, maps every peer's heap, and makes the rank's
  // device the calling thread's, for the kernels that it starts. Errors: see
  // HeapService.Join in docs/protocol.md; kUnavailable names the socket and says how to start
  // irisd.
  static absl::StatusOr<std::unique_ptr<Context>> Create(const ContextOptions& options);

  // Leaves the job and unmaps in reverse order. Not collective: peers that still wait for this rank
  // get kAborted.
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  uint32_t rank() const;
  uint32_t n_ranks() const;
  const std::string& job() const;
  uint64_t job_id() const;
  uint64_t epoch() const;
  const std::string& device_uuid() const;
  uint32_t device_index() const;       // irisd's number of it; another one in this process
  uint32_t ranks_per_device() const;   // of the device that most ranks of the job share
  const std::string& backend() const;  // of the heap's memory: "emu", or the name of a GPU driver
  uint64_t heap_bytes() const;         // grows
  uint64_t stride_bytes() const;
  bool same_address() const;              // raw pointers mean the same on every rank
  std::vector<void*> heap_bases() const;  // one per rank
  int64_t peer_pid(uint32_t rank) const;
  const CreateTimings& create_timings() const;

  // For kernels. Valid as long as the context, also under growth.
  DeviceContext device_context() const;
  const Team& world() const;

  // Collective over the team. Memory is not cleared: fresh heaps are zero, reused ranges hold what
  // was there. kInvalidArgument: the ranks asked for different things (who asked for what).
  // kResourceExhausted: no room, also after growth. kDeadlineExceeded: names the ranks that did not
  // ask. kAborted: a rank died, hung up or left. Each consumes the call on every rank, so ranks
  // stay in step.
  absl::StatusOr<Allocation> Allocate(const AllocateOptions& options);
  absl::StatusOr<Allocation> Allocate(const AllocateOptions& options, const Team& team);

  // Collective over the team that allocated. The range is reused after every rank has freed it.
  absl::Status Free(const Allocation& allocation);

  // Collective over all ranks: at least so many more bytes in every heap. Nothing that is mapped
  // moves.
  absl::Status Grow(uint64_t bytes);

  // True if the range lies in any rank's heap as mapped here.
  bool IsSymmetric(const void* address, uint64_t bytes = 1) const;
  // Rank and offset of an address inside the window; kInvalidArgument outside.
  struct Location {
    uint32_t rank = 0;
    uint64_t offset_bytes = 0;
  };
  absl::StatusOr<Location> Locate(const void* address) const;

  // The peer's copy of something in this rank's heap. Address arithmetic alone: `mine` must be in
  // this rank's heap.
  template <typename T>
  T* Translate(T* mine, uint32_t to) const {
    return const_cast<T*>(static_cast<const T*>(TranslateAddress(mine, to)));
  }

  // Copies by the device's copy engine, in the order of the stream, without a kernel (a signal is
  // one of one thread). In //client/iris:rma, which is built for one backend.
  //
  // `dst` (of a put) and `src` (of a get) are addresses in this rank's heap and mean the peer's
  // copy, as in kernels; the other side is any memory that the stream's device can use. They return
  // at once: the memory must stay until the stream has come there. The signal is set in the peer's
  // heap once all bytes are there (put), or have been read (get), and releases them.
  //
  // kInvalidArgument: a rank or a range outside the job's heaps, ranges that overlap, a signal that
  // is not aligned to 8 bytes or lies in what the copy overwrites. Nothing was put on the stream
  // then.
  absl::Status PutAsync(void* dst, const void* src, uint64_t bytes, uint32_t to,
                        backend::Stream& stream, const SignalOptions& signal = {});
  absl::Status GetAsync(void* dst, const void* src, uint64_t bytes, uint32_t from,
                        backend::Stream& stream, const SignalOptions& signal = {});
  // Loads the signal's kernel onto the current device. Without it the first signal may wait until
  // kernels that run have ended: call it before one that waits for such a signal.
  static absl::Status PrepareSignals();

  // Collective over the team. Through shared memory: no call to irisd. Host work alone: synchronize
  // streams first.
  absl::Status Barrier();
  absl::Status Barrier(const Team& team);
  absl::Status Barrier(const Team& team, absl::Duration timeout);

  // Collective over the team: root's value on every rank. At most 1 MiB. `root` is a world rank.
  absl::StatusOr<std::string> Broadcast(absl::string_view value, uint32_t root);
  absl::StatusOr<std::string> Broadcast(absl::string_view value, uint32_t root, const Team& team);
  template <typename T>
  absl::StatusOr<T> BroadcastValue(const T& value, uint32_t root) {
    static_assert(std::is_trivially_copyable_v<T>);
    return BroadcastChecked<T>(
        Broadcast(absl::string_view(reinterpret_cast<const char*>(&value), sizeof(T)), root));
  }

  // Collective over the parent: every member of the parent calls, with the same list of world ranks
  // (a subset of the parent, in the order wanted). Ranks that are not listed get a Team that is not
  // member().
  absl::StatusOr<Team> CreateTeam(absl::Span<const uint32_t> ranks);
  absl::StatusOr<Team> CreateTeam(absl::Span<const uint32_t> ranks, const Team& parent);
  // Collective over the team.
  absl::Status DestroyTeam(const Team& team);

  // OK while every rank is alive and none has left; else kAborted naming who and why. No call to
  // irisd.
  absl::Status Health() const;

  // Ends membership now rather than in the destructor. Every later call fails with
  // kFailedPrecondition.
  absl::Status Leave();

 private:
  struct Impl;
  explicit Context(std::unique_ptr<Impl> impl);
  const void* TranslateAddress(const void* mine, uint32_t to) const;
  template <typename T>
  static absl::StatusOr<T> BroadcastChecked(absl::StatusOr<std::string> bytes) {
    if (!bytes.ok()) return bytes.status();
    if (bytes->size() != sizeof(T)) {
      return absl::InvalidArgumentError("broadcast of a value: root sent a value of another size");
    }
    T value;
    __builtin_memcpy(&value, bytes->data(), sizeof(T));
    return value;
  }
  std::unique_ptr<Impl> impl_;
};

}  // namespace iris
