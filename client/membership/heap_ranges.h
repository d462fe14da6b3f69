// HeapRanges: the allocations that this process knows, and the mapped size of the heaps. With them
// the emulator explains a wrong address of a kernel, and the launchers of collectives refuse
// buffers. TeamCalls fills it; both users find it in their DeviceContext. Thread-safe.
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
  // Makes an object that lives as long as the process, because kernels and graphs keep copies of
  // the DeviceContext; End clears it. IRIS_CHECK_ACCESS in the environment says which accesses
  // Refusal refuses: 0: none; 1: all that do not lie in one known allocation; else those that touch
  // a known allocation and do not lie in it, which are wrong whatever other teams have allocated.
  static HeapRanges* Make(
      std::optional<std::string> (*environment)(const char* variable) = &Environment);
  HeapRanges(const HeapRanges&) = delete;
  HeapRanges& operator=(const HeapRanges&) = delete;

  // Counts ranks from this one, the first one of this node. Call it before the first Add. A rank
  // before it, or 64 and more after it, is of another node, and counts as having every known range:
  // no two allocations of a job overlap, also of different teams.
  void CountFrom(uint32_t first_rank) { first_ = first_rank; }

  // Adds the bytes at `offset_bytes` in the heaps of `ranks`, and replaces a range that began
  // there. `internal` memory belongs to Iris: kernels access it only through calls of Iris.
  void Add(uint64_t offset_bytes, uint64_t bytes, absl::string_view name,
           absl::Span<const uint32_t> ranks, bool internal = false);
  // Removes the range that begins at an offset, before irisd is asked to free it; Restore is for a
  // refusal. After the request would be too late: another thread may have got the same place.
  struct Range {
    uint64_t bytes = 0;
    uint64_t ranks = 0;  // a bit for each of the first 64
    bool internal = false;
    std::string name;
  };
  std::optional<Range> Remove(uint64_t offset_bytes);
  void Restore(uint64_t offset_bytes, std::optional<Range> removed);

  // Removes everything at the end of the context. Does nothing in a forked child, where another
  // thread of the parent may have held the lock.
  void End();

  // Reads the mapped size of every heap from `heap`, which is borrowed until End.
  void Follow(const HeapSize* heap);

  // Returns the reason why no call may access these bytes of the heap of `rank`: "x has 256 bytes,
  // the call 400"; nullopt if calls may. It is fast if a thread repeatedly accesses one allocation.
  std::optional<std::string> Refusal(uint32_t rank, uint64_t offset_bytes, uint64_t bytes);

  // For DeviceContext::heap_map, which counts ranks from the first one of this node.
  const backend::HeapMap* map() const { return &shared_; }

 private:
  // The map that kernels point to, with a pointer to this object.
  struct Shared : backend::HeapMap {
    HeapRanges* ranges = nullptr;
  };

  // The bit of the rank that is `index` places after the first one; all bits if it has none.
  static constexpr uint64_t BitOf(uint32_t index) {
    return index < 64 ? uint64_t{1} << index : ~uint64_t{0};
  }
  // For a rank with these bits.
  std::optional<std::string> RefusalOf(uint64_t rank, uint64_t offset_bytes, uint64_t bytes);

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
  Around Look(uint64_t rank, uint64_t offset_bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Shared shared_;
  const Check check_;
  uint32_t first_ = 0;
  std::atomic<uint64_t> changes_{1};  // of ranges_; threads remember ranges of one state
  absl::Mutex mu_;
  const HeapSize* heap_ ABSL_GUARDED_BY(mu_) = nullptr;  // null: not known
  Ranges ranges_ ABSL_GUARDED_BY(mu_);
};

}  // namespace iris::internal
