// What kernels report of a failure, and the host reads.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/ccl_types.h"
#include "iris/dtype.h"
#include "iris/norm_types.h"
#include "iris/ops_types.h"

namespace iris::ccl {

struct Comm;  // iris/rounds/comm.h

// What kernels tell the host of a failure. Only CheckError and ResetError need to know what it
// holds.
struct ErrorReport {
  static constexpr uint32_t kMismatchWords = 19;
  uint64_t word = 0;  // not 0: an operation failed
  uint64_t mismatch[kMismatchWords] = {};
};

// A call as its member made it.
struct CallRecord {
  static constexpr uint32_t kNobody = ~0u;
  Operation operation = Operation::kNone;
  uint64_t count = 0;  // as in Shape
  DType type = DType::kU8;
  ReduceOp op = ReduceOp::kSum;
  uint32_t root = kNobody;           // place in the team; kSendRecv: who sends
  uint32_t to = kNobody;             // kSendRecv: who receives
  Variant variant = Variant::kAuto;  // of the plan, as the blocks
  uint32_t blocks = 0;
  bool check_calls = false;  // Config::check_calls; of products and moe: false
  // Of products of matrices; then `count`, `op`, `root`, `to` and `variant` have no meaning.
  uint32_t m = 0;
  uint32_t n = 0;  // 0: members may differ in it
  uint32_t k = 0;  // likewise
  uint32_t ldd = 0;
  DType out_type = DType::kNone;
  uint32_t d_place = 0;  // the low bits of D's offset in the heap by 2 bytes; 0: may differ
  bool bias = false;
  bool transposed_b = false;
  ops::Activation activation = ops::Activation::kNone;
  ops::Variant ops_variant = ops::Variant::kAuto;
  uint32_t hidden = 0;  // columns: of a mixture of experts, and of a norm
  // Of a mixture of experts: `type` and `out_type` are what goes in and what comes out, and the
  // fields from `count` to `ldd` have no meaning, but for `blocks`.
  uint32_t n_experts = 0;
  uint32_t top_k = 0;
  uint32_t max_tokens = 0;
  uint32_t capacity = 0;
  DType moe_type = DType::kNone;  // of the rows that travel, there or back
  uint64_t moe_place = 0;         // the low bits of the workspace's offset in the heap
  // Of norms of sums; then `type`, `out_type`, `blocks`, `check_calls` and these have a meaning.
  uint32_t rows = 0;
  uint32_t parts = 0;  // blocks that share a row
  bool residual = false;
  DType weight = DType::kNone;
  norm::Scaling scaling = norm::Scaling::kNone;
  float epsilon = 0;
  float weight_offset = 0;
  norm::Variant norm_variant = norm::Variant::kAuto;
};

// Members that called differently: masks of their places in the team. The same on every member.
struct Mismatch {
  uint64_t most =
      0;  // who made the call that most have made; of two such, that of the first member
  uint64_t other = 0;   // who made `other_call`, that of the first member that differs
  uint64_t rest = 0;    // who called something else again
  uint64_t absent = 0;  // who had not come when the calls were compared
  CallRecord most_call;
  CallRecord other_call;
  // Where all made the same call of kAllToAllV: a row that is not what its receiver expects.
  bool rows_differ = false;
  uint32_t sender = 0;
  uint32_t receiver = 0;
  uint64_t sent_bytes = 0;
  uint64_t expected_bytes = 0;  // the lower 32 bits
};

// What failed first. member_index: which member was missing or called something else, in the team;
// kNoMember: not known. sequence: the how-manieth operation of the whole team it was, from 0; Send
// and Recv do not count. mismatch: of kInvalidArgument.
struct ErrorInfo {
  Operation operation = Operation::kNone;
  uint32_t member_index = kNoMember;
  uint32_t sequence = 0;
  Mismatch mismatch;
  // Of kOutOfRange: the choice of a token that is no expert's.
  enum class BadExpert : uint32_t { kNone, kNoSuchExpert, kRepeated };
  BadExpert bad_expert = BadExpert::kNone;
  uint32_t bad_token = 0;  // of the member
  int64_t bad_value = 0;   // what it has for an expert
  // Of kFailedPrecondition: the member's dispatch in the workspace had another number of tokens
  // than its combine. Else there was none of this config.
  bool other_tokens = false;
  uint64_t dispatched_tokens = 0;
  uint64_t combined_tokens = 0;
  static constexpr uint32_t kNoMember = ~0u;
};

// The first failure of an operation since CreateComm, as far as the stream has come:
// kDeadlineExceeded, kAborted, or kInvalidArgument if members called differently; of moe alone,
// kOutOfRange and kFailedPrecondition. Does not clear it. `info` may be null.
// kInvalidArgument, with an empty `info`, also for a Comm that CreateComm has not made.
Result CheckError(const Comm& comm, ErrorInfo* info = nullptr);

// Clears the report. Right only after PrepareWorkspace on all members, as above.
void ResetError(const Comm& comm);

// The members that had not come when it failed, one bit each: puts a copy of them to `*mask`, host
// memory, on the stream.
Result CopyMissing(const Comm& comm, uint64_t* mask, backend::Stream& stream);

}  // namespace iris::ccl
