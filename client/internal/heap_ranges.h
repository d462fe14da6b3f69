// HeapRanges: which allocations this process knows, for what the emulator says of a kernel that
// uses a wrong address, and how much of the heaps is mapped, for what the launchers of collectives
// refuse. Fed by TeamCalls; both find it in their DeviceContext. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "client/base/environment.h"
#include "client/internal/heap_size.h"
#include "iris/backend/heap_map.h"

namespace iris::internal {

class HeapRanges {
 public:
  // It lives as long as the process: kernels and graphs keep copies of the DeviceContext. What it
  // knows ends with End. With IRIS_CHECK_ACCESS=1 in the environment, kernels may access known
  // allocations alone.
  static HeapRanges* Make(
      std::optional<std::string> (*environment)(const char* variable) = &Environment);
  HeapRanges(const HeapRanges&) = delete;
  HeapRanges& operator=(const HeapRanges&) = delete;

  // The bytes at `offset_bytes` in the heaps of `ranks`. Replaces what began there.
  void Add(uint64_t offset_bytes, uint64_t bytes, absl::string_view name,
           absl::Span<const uint32_t> ranks);
  // Likewise for memory of Iris itself, which kernels access through the calls of Iris alone.
  void AddInternal(uint64_t offset_bytes, uint64_t bytes, absl::string_view name,
                   absl::Span<const uint32_t> ranks);
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

  // For DeviceContext::heap_map.
  const backend::HeapMap* map() const { return &shared_; }

 private:
  // What kernels point to, and the way back.
  struct Shared : backend::HeapMap {
    HeapRanges* ranges = nullptr;
  };

  explicit HeapRanges(bool check_access);
  static bool Nearest(const backend::HeapMap* map, uint32_t rank, uint64_t offset_bytes,
                      backend::HeapRange* out);
  static bool Mapped(const backend::HeapMap* map, uint32_t rank, uint64_t offset_bytes,
                     uint64_t bytes);
  void Put(uint64_t offset_bytes, Range range, absl::Span<const uint32_t> ranks);

  Shared shared_;
  absl::Mutex mu_;
  const HeapSize* heap_ ABSL_GUARDED_BY(mu_) = nullptr;    // null: not known
  std::map<uint64_t, Range> ranges_ ABSL_GUARDED_BY(mu_);  // by offset
};

}  // namespace iris::internal
