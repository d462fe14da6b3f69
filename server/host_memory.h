// HostMemory: how much of the host's memory this process may still take before the kernel ends it
// or another process: the least of what its cgroups and the machine have left. Emulated devices
// have their memory there, and the kernel charges reserved pages to irisd.
//
// Thread-safe. Owns nothing but counters.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace iris::server {

// What is left of one limit.
struct MemoryLeft {
  uint64_t left_bytes = ~uint64_t{0};  // page cache that can go counts as left
  uint64_t limit_bytes = 0;
  std::string whose;  // "cgroup /iris (memory.max)", or "this machine (MemAvailable)"
};

// The tightest limit: of this process's memory cgroup, version 1 or 2, of those above it as far as
// they are visible, and of the machine. `root` stands before /proc and the cgroups' mount points;
// it is empty but in tests. What cannot be read limits nothing.
MemoryLeft TightestMemory(const std::string& root = "");

class HostMemory {
 public:
  // Kept free for irisd itself.
  static constexpr uint64_t kKeptBytes = 64ull << 20;

  explicit HostMemory(std::string root = "") : root_(std::move(root)) {}
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // Promises `bytes` to the caller, who takes them and then calls Taken. May wait for others who
  // are about to take theirs. kResourceExhausted if there are not so many; then do not call Taken.
  absl::Status Promise(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // The pages are taken, or will not be.
  void Taken(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const std::string root_;
  absl::Mutex mu_;
  uint64_t promised_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace iris::server
