// A call on its way from the launcher of its operation to the launch of its variant. Host code.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/collective/call_record.h"
#include "iris/collective/collective.h"
#include "iris/rounds/launch.h"
#include "iris/rounds/layout.h"

namespace iris::ccl::impl {

inline constexpr uint32_t kNoRoot = CallRecord::kNobody;

// An operation as it is called.
struct Request {
  Operation operation;
  const void* in;
  void* out;
  uint64_t count;  // elements of a row
  DType type;
  uint32_t in_rows = 1;   // that `in` has here; 0: it is not read here
  uint32_t out_rows = 1;  // likewise
  bool in_place_ok = true;
  int64_t in_place_rows = 0;  // in place: in == out + so many rows
  ReduceOp op = ReduceOp::kSum;
  uint32_t root = kNoRoot;
  uint32_t to = kNoRoot;  // kSendRecv: who receives; `root` sends
  Variant variant = Variant::kAuto;
  const Vector* vector = nullptr;  // kAllToAllV

  // Where the buffers lie in this member's heap, as CheckRequest finds; kNotInHeap.
  uint64_t in_offset_bytes = 0;
  uint64_t out_offset_bytes = 0;
};

// Places in the team from a message's sender to its receiver, 1 to n - 1.
inline uint32_t MessageDistance(const Request& message, uint32_t n) {
  return (message.to + n - message.root) % n;
}

// Checks the arguments of a call and fills in its offsets. *nothing: nothing is to be done.
Result CheckRequest(const Comm& comm, Request* request, bool* nothing);

}  // namespace iris::ccl::impl
