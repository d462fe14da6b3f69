// CallRecord: a GEMM call of one rank, and its packed form for the other ranks. Host code.
#pragma once

#include <cstdint>

#include "iris/ccl_types.h"
#include "iris/dtype.h"
#include "iris/ops_types.h"
#include "iris/rounds/errors.h"

namespace iris::ops {

struct CallRecord {
  ccl::Operation operation = ccl::Operation::kNone;
  DType type = DType::kNone;  // of A and B
  DType out_type = DType::kNone;
  uint32_t m = 0;
  uint32_t n = 0;  // 0: ranks may differ in n
  uint32_t k = 0;  // 0: ranks may differ in k
  uint32_t ldd = 0;
  uint32_t d_place = 0;  // low bits of D's offset in the heap / 2; 0: ranks may differ
  bool bias = false;
  bool transposed_b = false;
  Activation activation = Activation::kNone;
  Variant variant = Variant::kAuto;  // of the plan
  uint32_t blocks = 0;
};

inline ccl::PackedCall Pack(const CallRecord& call) {
  return {{static_cast<uint32_t>(call.operation) | static_cast<uint32_t>(call.type) << 8 |
               static_cast<uint32_t>(call.out_type) << 12 | (call.bias ? 1u << 16 : 0u) |
               (call.transposed_b ? 1u << 17 : 0u) | static_cast<uint32_t>(call.activation) << 18 |
               static_cast<uint32_t>(call.variant) << 21 | (call.blocks - 1) << 24,
           call.m, call.n, call.k, call.ldd, call.d_place}};
}

inline CallRecord Unpack(const ccl::PackedCall& packed) {
  const uint32_t* const words = packed.words;
  CallRecord call;
  call.operation = packed.operation();
  call.type = static_cast<DType>(words[0] >> 8 & 0xf);
  call.out_type = static_cast<DType>(words[0] >> 12 & 0xf);
  call.bias = (words[0] >> 16 & 1) != 0;
  call.transposed_b = (words[0] >> 17 & 1) != 0;
  call.activation = static_cast<Activation>(words[0] >> 18 & 7);
  call.variant = static_cast<Variant>(words[0] >> 21 & 7);
  call.blocks = (words[0] >> 24) + 1;
  call.m = words[1];
  call.n = words[2];
  call.k = words[3];
  call.ldd = words[4];
  call.d_place = words[5];
  return call;
}

}  // namespace iris::ops
