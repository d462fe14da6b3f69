// CallRecord: a norm call of one rank, and its packed form for the other ranks. Host code.
#pragma once

#include <cstdint>

#include "iris/backend/numeric.h"
#include "iris/norm/norm.h"
#include "iris/rounds/errors.h"

namespace iris::norm {

struct CallRecord {
  Problem problem;           // without its variant
  Plan plan;                 // without its threads
  bool check_calls = false;  // ccl::Config::check_calls
};

inline ccl::PackedCall Pack(const CallRecord& call) {
  const Problem& p = call.problem;
  return {{static_cast<uint32_t>(p.operation) | static_cast<uint32_t>(p.in) << 8 |
               static_cast<uint32_t>(p.out) << 12 | static_cast<uint32_t>(p.weight) << 16 |
               (p.residual ? 1u << 20 : 0u) | static_cast<uint32_t>(p.scaling) << 21 |
               static_cast<uint32_t>(call.plan.variant) << 24,
           static_cast<uint32_t>(p.rows), static_cast<uint32_t>(p.hidden),
           call.plan.blocks | (call.check_calls ? ccl::kChecksCalls : 0) | call.plan.parts << 16,
           numeric::BitsOf(p.epsilon), numeric::BitsOf(p.weight_offset)}};
}

inline CallRecord Unpack(const ccl::PackedCall& packed) {
  const uint32_t* const words = packed.words;
  CallRecord call;
  Problem& p = call.problem;
  p.operation = packed.operation();
  p.in = static_cast<DType>(words[0] >> 8 & 0xf);
  p.out = static_cast<DType>(words[0] >> 12 & 0xf);
  p.weight = static_cast<DType>(words[0] >> 16 & 0xf);
  p.residual = (words[0] >> 20 & 1) != 0;
  p.scaling = static_cast<Scaling>(words[0] >> 21 & 7);
  p.rows = words[1];
  p.hidden = words[2];
  p.epsilon = numeric::FloatOf(words[4]);
  p.weight_offset = numeric::FloatOf(words[5]);
  call.plan.variant = static_cast<Variant>(words[0] >> 24);
  call.plan.blocks = words[3] & (ccl::kChecksCalls - 1);
  call.plan.parts = words[3] >> 16;
  call.check_calls = (words[3] & ccl::kChecksCalls) != 0;
  return call;
}

}  // namespace iris::norm
