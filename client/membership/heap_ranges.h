// HeapRanges: the allocations that this process knows, with which the emulator explains a wrong
// address of a kernel, and how much of the heaps is mapped, with which the launchers of collectives
// refuse buffers. TeamCalls fills it; both find it in their DeviceContext. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "client/base/environment.h"
#include "client/membership/heap_size.h"
#include "iris/backend/heap_map.h"

namespace iris::internal {

class HeapRanges {
 public:
  // It lives as long as the process: kernels and graphs keep copies of the DeviceContext. End
  // clears its knowledge. IRIS_CHECK_ACCESS in the environment says which accesses Refusal refuses:
  // 0: none; 1: all that do not lie in one known allocation; else those that touch a known
  // allocation and do not lie in it, which are wrong whatever other teams have allocated.
  static HeapRanges* Make(
      std::optional<std::string> (*environment)(const char* variable) = &Environment);
  HeapRanges(const HeapRanges&) = delete;
  HeapRanges& operator=(const HeapRanges&) = delete;

  // The bytes at `offset_bytes` in the heaps of `ranks`. Replaces what began there. `internal`: it
  // is memory of Iris itself, which kernels access through the calls of Iris alone.
  void Add(uint64_t offset_bytes, uint64_t bytes, absl::string_view name,
           absl::Span<const uint32_t> ranks, bool internal = false);
  // Forgets what begins there, while irisd is asked to free it; Restore is for a refusal. Not
  // afterwards: by then another thread may have been given the same place.
  struct Range {
    uint64_t bytes = 0;
    uint64_t ranks = 0;  // a bit for each
    bool internal = false;
    std::string name;
  };
  std::optional<Range> Remove(uint64_t offset_bytes);
  void Restore(uint64_t offset_bytes, std::optional<Range> removed);

  // The context has ended: forgets all. Does nothing in a forked child, where another thread of the
  // parent may have held the lock.
  void End();

  // Borrows it until End: so much of every heap is mapped.
  void Follow(const HeapSize* heap);

  // The reason why no call may access these bytes of the heap of `rank`: "x has 256 bytes, the call
  // 400". Nothing if calls may. Cheap where the same thread accesses one allocation again and
  // again.
  std::optional<std::string> Refusal(uint32_t rank, uint64_t offset_bytes, uint64_t bytes);

  // For DeviceContext::heap_map.
  const backend::HeapMap* map() const { return &shared_; }

 private:
  // The map that kernels point to, with a pointer back.
  struct Shared : backend::HeapMap {
    HeapRanges* ranges = nullptr;
  };

  enum class Check { kNone, kOverruns, kAll };
  using Ranges = std::map<uint64_t, Range>;  // by offset

  explicit HeapRanges(Check check);
  static bool Nearest(const backend::HeapMap* map, uint32_t rank, uint64_t offset_bytes,
                      backend::HeapRange* out);
  static bool Mapped(const backend::HeapMap* map, uint32_t rank, uint64_t offset_bytes,
                     uint64_t bytes);
  static bool Allowed(const backend::HeapMap* map, uint32_t rank, uint64_t offset_bytes,
                      uint64_t bytes, char* why, uint64_t why_bytes);
  // The bytes from `begin` to `end` around a place, any range of which may be accessed if `of`, the
  // known range that has the place, allows it. `of` null: no known range has it.
  struct Around {
    uint64_t begin = 0;
    uint64_t end = 0;
    const Range* of = nullptr;
    uint64_t of_offset = 0;
  };
  Around Look(uint32_t rank, uint64_t offset_bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Shared shared_;
  const Check check_;
  std::atomic<uint64_t> changes_{1};  // of ranges_: what threads remember is of one state
  absl::Mutex mu_;
  const HeapSize* heap_ ABSL_GUARDED_BY(mu_) = nullptr;  // null: not known
  Ranges ranges_ ABSL_GUARDED_BY(mu_);
};

}  // namespace iris::internal
