// CallRecord: a call of iris::moe by one rank, and its packed form for the other ranks. Also the
// details of failures that the kernels report. Host code.
#pragma once

#include <cstdint>

#include "iris/moe/moe.h"
#include "iris/rounds/comm.h"
#include "iris/rounds/errors.h"

namespace iris::moe {

struct CallRecord {
  ccl::Operation operation = ccl::Operation::kNone;
  DType type = DType::kNone;      // of the input
  DType travels = DType::kNone;   // of rows that travel in either direction
  DType out_type = DType::kNone;  // of the output
  Config setup;                   // without its types
  uint64_t place = 0;             // low bits of the workspace's offset in the heap
  uint32_t blocks = 0;
};

inline ccl::PackedCall Pack(const CallRecord& call) {
  return {{static_cast<uint32_t>(call.operation) | static_cast<uint32_t>(call.type) << 8 |
               static_cast<uint32_t>(call.out_type) << 12 |
               static_cast<uint32_t>(call.travels) << 16 | (call.blocks - 1) << 24,
           call.setup.hidden, call.setup.n_experts | call.setup.top_k << 16, call.setup.max_tokens,
           call.setup.capacity, static_cast<uint32_t>(call.place / ccl::kWorkspaceAlignmentBytes)}};
}

inline CallRecord Unpack(const ccl::PackedCall& packed) {
  const uint32_t* const words = packed.words;
  CallRecord call;
  call.operation = packed.operation();
  call.type = static_cast<DType>(words[0] >> 8 & 0xf);
  call.out_type = static_cast<DType>(words[0] >> 12 & 0xf);
  call.travels = static_cast<DType>(words[0] >> 16 & 0xf);
  call.blocks = (words[0] >> 24) + 1;
  call.setup.hidden = words[1];
  call.setup.n_experts = words[2] & 0xffff;
  call.setup.top_k = words[2] >> 16;
  call.setup.max_tokens = words[3];
  call.setup.capacity = words[4];
  call.place = uint64_t{words[5]} * ccl::kWorkspaceAlignmentBytes;
  return call;
}

// Detail of kOutOfRange: the invalid choice of a token.
enum class BadExpert : uint32_t { kNone, kNoSuchExpert, kRepeated };
struct BadChoice {
  BadExpert why;
  uint32_t token;  // index among the tokens of the rank that ErrorInfo names
  int64_t value;   // the token's choice
};
inline BadChoice BadChoiceOf(const ccl::ErrorInfo& info) {
  return {static_cast<BadExpert>(info.detail[0] & 0xffffffff),
          static_cast<uint32_t>(info.detail[0] >> 32), static_cast<int64_t>(info.detail[1])};
}

// Detail of kFailedPrecondition: the rank's dispatch in the workspace had another number of tokens
// than its combine, or (`differ` is false) there was no dispatch of this config.
struct OtherTokens {
  bool differ;
  uint64_t dispatched;
  uint64_t combined;
};
inline OtherTokens OtherTokensOf(const ccl::ErrorInfo& info) {
  return {(info.detail[0] & 0xffffffff) != 0, info.detail[1], info.detail[0] >> 32};
}

}  // namespace iris::moe
