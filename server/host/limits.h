// Limits of this process and of the host. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace iris::server {

// Raises the limit of descriptors as far as possible, and returns it.
uint64_t RaiseDescriptorLimit();

// Returns kResourceExhausted if irisd cannot serve with so few descriptors, or so little address
// space.
absl::Status CheckLimits(uint64_t fd_limit);

// For std::set_terminate: want of memory, and any std::system_error, ends the process with one line
// on stderr and exit code 1, without a core file. Anything else is a bug, and aborts.
[[noreturn]] void EndForWant();

struct MemoryLeft {
  uint64_t left_bytes = ~uint64_t{0};  // page cache that can go counts as left
  uint64_t limit_bytes = 0;
  std::string whose;  // "cgroup /iris (memory.max)", or "this machine (MemAvailable)"
};

// The tightest limit: of this process's memory cgroup, version 1 or 2, of the visible ones above
// it, and of the machine. Tests have files under another `root`. A file that cannot be read is no
// limit.
MemoryLeft TightestMemory(const std::string& root = "");

// How much of the host's memory this process may still take before the kernel kills a process.
// Memory of emulated devices is there, and the kernel charges reserved pages to irisd.
class HostMemory {
 public:
  // Kept free for irisd itself.
  static constexpr uint64_t kKeptBytes = 64ull << 20;

  explicit HostMemory(std::string root = "") : root_(std::move(root)) {}
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // Promises `bytes` to the caller, which takes them and then calls Taken. May wait for other
  // callers that are about to take theirs. kResourceExhausted if there are not so many; do not call
  // Taken then.
  absl::Status Promise(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Also if the bytes will not be taken.
  void Taken(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const std::string root_;
  absl::Mutex mu_;
  uint64_t promised_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace iris::server
