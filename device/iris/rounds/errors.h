// Failures that kernels report to the host.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/ccl_types.h"

namespace iris::ccl {

struct Comm;  // iris/rounds/comm.h

// The failure that kernels report to the host. Only CheckError and ResetError interpret it.
struct ErrorReport {
  static constexpr uint32_t kMismatchWords = 19;
  uint64_t word = 0;  // not 0: an operation failed
  uint64_t mismatch[kMismatchWords] = {};
};

// A call of one rank, packed by its family of operations: see each family's call_record.h. The low
// eight bits of the first word are the operation; traces have the first three words.
struct PackedCall {
  static constexpr uint32_t kWords = 6;
  uint32_t words[kWords] = {};
  constexpr Operation operation() const { return static_cast<Operation>(words[0] & 0xff); }
};
// Added to the number of blocks in a word if the rank has Config::check_calls.
inline constexpr uint32_t kChecksCalls = 1u << 15;

// The ranks that made different calls, as masks of their indexes in the team, equal on all ranks.
struct Mismatch {
  uint64_t most = 0;    // made the most frequent call; of two equally frequent, the first rank's
  uint64_t other = 0;   // made `other_call`, the first rank's that differs
  uint64_t rest = 0;    // made further calls
  uint64_t absent = 0;  // had not come when the calls were compared
  PackedCall most_call;
  PackedCall other_call;
  // If all made the same call of kAllToAllV, this is a row whose size its receiver does not expect.
  bool rows_differ = false;
  uint32_t sender = 0;
  uint32_t receiver = 0;
  uint64_t sent_bytes = 0;
  uint64_t expected_bytes = 0;  // the lower 32 bits
};

// The first failure. `member_index` is the rank that was missing or made another call, as its index
// in the team, or kNoMember. `sequence` numbers the operations of the whole team, from 0; Send and
// Recv do not count. `mismatch` is set for kInvalidArgument.
struct ErrorInfo {
  Operation operation = Operation::kNone;
  uint32_t member_index = kNoMember;
  uint32_t sequence = 0;
  Mismatch mismatch;
  // Two words of the operation's family, for kOutOfRange and kFailedPrecondition.
  uint64_t detail[2] = {};
  static constexpr uint32_t kNoMember = ~0u;
};

// Returns the first failure of an operation since CreateComm that the stream has reached, and keeps
// it: kDeadlineExceeded, kAborted, or kInvalidArgument if ranks made different calls; for some
// families also kOutOfRange and kFailedPrecondition. `info` may be null. Returns kInvalidArgument,
// with an empty `info`, for a Comm that CreateComm has not made.
Result CheckError(const Comm& comm, ErrorInfo* info = nullptr);

// Clears the report. Call it only after PrepareWorkspace on all ranks.
void ResetError(const Comm& comm);

// Enqueues a copy of the ranks that had not come, one bit each, to `*mask` in host memory.
Result CopyMissing(const Comm& comm, uint64_t* mask, backend::Stream& stream);

}  // namespace iris::ccl
