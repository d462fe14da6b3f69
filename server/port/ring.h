// Ring: one ring of requests of a local rank, as the port process sees it. The rank writes to the
// same memory at any time, so each word is read once, and progress is kept here. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/iris/port_types.h"
#include "device/iris/status_code.h"
#include "proto/wire/unique_fd.h"

namespace iris::port {

// A rank's PortMemory, mapped. Shared with sends from its area of values.
class PortMapping {
 public:
  // kInvalidArgument if the descriptor is not a PortMemory of that rank, or if its file could still
  // be cut off, which would kill this process.
  static absl::StatusOr<std::shared_ptr<PortMapping>> Map(wire::UniqueFd fd, uint32_t rank);
  ~PortMapping();
  PortMapping(const PortMapping&) = delete;
  PortMapping& operator=(const PortMapping&) = delete;

  PortMemory& memory() const { return *memory_; }

 private:
  explicit PortMapping(PortMemory* memory) : memory_(memory) {}
  PortMemory* const memory_;
};

// The part of the job that a check of a request needs.
struct RequestLimits {
  uint32_t first_rank = 0;  // of this node
  uint32_t n_local = 0;
  uint32_t n_ranks = 0;
  uint64_t max_heap_bytes = 0;
};

inline bool IsRows(PortOp op) { return op == PortOp::kPutRows || op == PortOp::kGetRows; }
inline bool IsPut(PortOp op) { return op == PortOp::kPut || op == PortOp::kPutRows; }
inline bool HasSignal(const PortRequest& request) { return request.signal != kNoPortSignal; }

// Checks all of a request but whether its memory exists. kOk, or the result for the rank:
// kInvalidArgument for malformed requests, kOutOfRange for places beyond the heap or the values.
StatusCode CheckRequest(const PortRequest& request, const PortRows& rows,
                        const RequestLimits& limits);

// The end of a source of a put or a target of a get, as a distance from its beginning.
uint64_t LocalExtent(const PortRequest& request, const PortRows& rows);

class Ring {
 public:
  // What is known of a request from Take until its completion.
  struct Slot {
    PortRequest request = {};
    PortRows rows = {};
    StatusCode status = StatusCode::kOk;
    uint64_t value = 0;
    uint64_t issued = 0;      // bytes that are on their way
    uint32_t next = 0;        // slot of the next request to the same node, for its queue
    uint32_t sending = 0;     // pieces whose source UCX still reads
    uint32_t unanswered = 0;  // records
    bool all_issued = false;
    bool read = false;
    bool done = false;
  };

  Ring(uint32_t rank, uint32_t index, uint32_t id) : rank_(rank), index_(index), id_(id) {}

  void Attach(std::shared_ptr<PortMapping> mapping) { mapping_ = std::move(mapping); }
  bool attached() const { return mapping_ != nullptr; }
  const std::shared_ptr<PortMapping>& mapping() const { return mapping_; }

  uint32_t rank() const { return rank_; }
  uint32_t id() const { return id_; }
  Slot& slot(uint32_t index) { return slots_[index]; }

  // Copies the next request, if it is there and its slot free, into slot(*index).
  bool Take(uint32_t* index);
  // True if Take would return one.
  bool HasNext() const;

  // The sources of the request in this slot may be overwritten.
  void MarkRead(uint32_t index);
  // Writes the result. The rank may reuse the slot after the next Publish.
  void Complete(uint32_t index, StatusCode status, uint64_t value);
  // Writes what has changed to the words of the ring.
  void Publish();
  // Tells the rank that nothing more is taken.
  void Stop(StatusCode code);

 private:
  const PortRequest& Shared(uint64_t number) const {
    return mapping_->memory().rings[index_].slots[number % kPortSlots];
  }
  // Tells waiting threads of the rank that something has changed.
  void WakeWaiters();
  PortRingWords& words() const { return mapping_->memory().words[index_]; }

  const uint32_t rank_;
  const uint32_t index_;  // kPortHostRing or kPortKernelRing
  const uint32_t id_;
  std::shared_ptr<PortMapping> mapping_;
  uint64_t taken_ = 0;  // numbers below it are in slots_, or complete
  uint64_t completed_ = 0;
  uint64_t read_ = 0;
  uint64_t failed_ = 0;
  uint64_t first_failed_ = 0;
  uint32_t events_ = 0;
  bool changed_ = false;
  std::unique_ptr<Slot[]> slots_ = std::make_unique<Slot[]>(kPortSlots);
};

}  // namespace iris::port
