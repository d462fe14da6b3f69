// A collective as its rank called it, and its packed words for the other ranks. Host code.
#pragma once

#include <cstdint>

#include "iris/ccl_types.h"
#include "iris/dtype.h"
#include "iris/rounds/errors.h"

namespace iris::ccl {

// The part of a call on which its plan depends. It is the same on all ranks, so it has no buffers.
struct Shape {
  Operation operation = Operation::kNone;
  uint64_t count = 0;  // elements of a row; ignored by all_to_all_v and barrier
  DType type = DType::kU8;
  ReduceOp op = ReduceOp::kSum;      // of reductions
  Variant variant = Variant::kAuto;  // ignored by all_to_all_v and barrier
};

// A call as the ranks compare it. The variant is that of the plan.
struct CallRecord : Shape {
  static constexpr uint32_t kNobody = ~0u;
  uint32_t root = kNobody;  // place in the team; kSendRecv: the sender
  uint32_t to = kNobody;    // kSendRecv: the receiver
  uint32_t blocks = 0;
  bool check_calls = false;  // Config::check_calls
};

inline PackedCall Pack(const CallRecord& call) {
  return {{static_cast<uint32_t>(call.operation) | static_cast<uint32_t>(call.type) << 8 |
               static_cast<uint32_t>(call.op) << 16 | static_cast<uint32_t>(call.variant) << 24,
           static_cast<uint32_t>(call.count), static_cast<uint32_t>(call.count >> 32),
           call.blocks | (call.check_calls ? kChecksCalls : 0) | (call.root & 0xff) << 16 |
               (call.to & 0xff) << 24}};
}

inline CallRecord Unpack(const PackedCall& packed) {
  const uint32_t* const words = packed.words;
  const auto place = [](uint32_t word) { return word == 0xff ? CallRecord::kNobody : word; };
  CallRecord call;
  call.operation = packed.operation();
  call.type = static_cast<DType>(words[0] >> 8 & 0xff);
  call.op = static_cast<ReduceOp>(words[0] >> 16 & 0xff);
  call.variant = static_cast<Variant>(words[0] >> 24);
  call.count = words[1] | static_cast<uint64_t>(words[2]) << 32;
  call.blocks = words[3] & (kChecksCalls - 1);
  call.check_calls = (words[3] & kChecksCalls) != 0;
  call.root = place(words[3] >> 16 & 0xff);
  call.to = place(words[3] >> 24);
  return call;
}

}  // namespace iris::ccl
