// Limits of this process and of the host. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace iris::server {

// Raises the limit of descriptors to the most that the system allows, and returns it.
uint64_t RaiseDescriptorLimit();

// Returns kResourceExhausted if the descriptors or the address space do not suffice for irisd.
absl::Status CheckLimits(uint64_t fd_limit);

// Ends the process on lack of memory, or any std::system_error, with one line on stderr and exit
// code 1, without a core file. Anything else is a bug, and aborts. For std::set_terminate.
[[noreturn]] void EndForWant();

struct MemoryLeft {
  uint64_t left_bytes = ~uint64_t{0};  // includes page cache that can be dropped
  uint64_t limit_bytes = 0;
  std::string whose;  // "cgroup /iris (memory.max)", or "this machine (MemAvailable)"
};

// Returns the tightest of these limits: of this process's memory cgroup, version 1 or 2, of its
// visible parents, and of the machine. Tests set another `root`. A file that cannot be read counts
// as no limit.
MemoryLeft TightestMemory(const std::string& root = "");

// Counts how much of the host's memory this process may still take before the kernel kills one.
// Emulated devices have host memory, and the kernel charges reserved pages to irisd.
class HostMemory {
 public:
  // Memory that stays free for irisd itself.
  static constexpr uint64_t kKeptBytes = 64ull << 20;

  explicit HostMemory(std::string root = "") : root_(std::move(root)) {}
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // Promises `bytes` to the caller, which takes the memory and then calls Taken. May wait for other
  // callers that have a promise and have not called Taken. Returns kResourceExhausted if there is
  // not enough memory; do not call Taken then.
  absl::Status Promise(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends a promise. Call it also if the bytes will not be taken.
  void Taken(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const std::string root_;
  absl::Mutex mu_;
  uint64_t promised_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace iris::server
