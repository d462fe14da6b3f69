// A rank of iris_bench: a process with an iris::Context, or a thread of this process.
//
// Used by one thread. Calls marked collective are made by all ranks in the same order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/bench/device.h"
#include "iris/context.h"
#include "iris/types.h"

namespace iris::bench {

class Rank {
 public:
  virtual ~Rank() = default;

  virtual DeviceContext device_context() const = 0;
  virtual Device& device() = 0;
  // Returns null if ranks are threads, which have no irisd.
  virtual Context* context() { return nullptr; }

  // Allocates zeroed bytes at the same place of every heap. Collective.
  virtual absl::StatusOr<uint8_t*> Allocate(uint64_t bytes) = 0;
  // Waits on the host for all ranks. Collective.
  virtual absl::Status Barrier() = 0;
  // Returns the values of every rank, by rank. Collective.
  virtual absl::StatusOr<std::vector<std::vector<double>>> AllGather(
      const std::vector<double>& values) = 0;

  // Returns true if the rank's heap is mapped here.
  bool Reaches(uint32_t rank) { return context() == nullptr || context()->Reaches(rank); }
  uint32_t rank() const { return device_context().rank; }
  uint32_t n_ranks() const { return device_context().n_ranks; }

  // Returns rank 0's value on all ranks. Collective.
  absl::StatusOr<bool> Agree(bool value);
};

// Joins the job as the rank that the launcher chose. `timeout` limits every wait of the rank.
absl::StatusOr<std::unique_ptr<Rank>> JoinAsProcess(uint64_t heap_bytes, absl::Duration timeout);

// Runs n ranks as threads of this process, each with a heap of `heap_bytes`: calls `body` for each.
// If a rank fails, the process ends, because the others wait for it. kFailedPrecondition if there
// is no device.
absl::Status RunAsThreads(uint32_t n_ranks, uint64_t heap_bytes,
                          const std::function<absl::Status(Rank&)>& body);

}  // namespace iris::bench
