// What kernels report of a failure, and the host reads.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/ccl_types.h"

namespace iris::ccl {

struct Comm;  // iris/rounds/comm.h

// What kernels tell the host of a failure. Only CheckError and ResetError need to know what it
// holds.
struct ErrorReport {
  static constexpr uint32_t kMismatchWords = 19;
  uint64_t word = 0;  // not 0: an operation failed
  uint64_t mismatch[kMismatchWords] = {};
};

// A call as its member made it, in words that its family of operations makes and reads: see the
// call_record.h of each. The last eight bits of the first word are the operation; the first three
// words are also in traces.
struct PackedCall {
  static constexpr uint32_t kWords = 6;
  uint32_t words[kWords] = {};
  constexpr Operation operation() const { return static_cast<Operation>(words[0] & 0xff); }
};
// In a word beside the number of blocks: the member has Config::check_calls.
inline constexpr uint32_t kChecksCalls = 1u << 15;

// Members that called differently: masks of their places in the team. The same on every member.
struct Mismatch {
  uint64_t most =
      0;  // who made the call that most have made; of two such, that of the first member
  uint64_t other = 0;   // who made `other_call`, that of the first member that differs
  uint64_t rest = 0;    // who called something else again
  uint64_t absent = 0;  // who had not come when the calls were compared
  PackedCall most_call;
  PackedCall other_call;
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
  // Of kOutOfRange and kFailedPrecondition: two words of the operation's family.
  uint64_t detail[2] = {};
  static constexpr uint32_t kNoMember = ~0u;
};

// The first failure of an operation since CreateComm, as far as the stream has come:
// kDeadlineExceeded, kAborted, or kInvalidArgument if members called differently; of some
// families, kOutOfRange and kFailedPrecondition. Does not clear it. `info` may be null.
// kInvalidArgument, with an empty `info`, also for a Comm that CreateComm has not made.
Result CheckError(const Comm& comm, ErrorInfo* info = nullptr);

// Clears the report. Right only after PrepareWorkspace on all members, as above.
void ResetError(const Comm& comm);

// The members that had not come when it failed, one bit each: puts a copy of them to `*mask`, host
// memory, on the stream.
Result CopyMissing(const Comm& comm, uint64_t* mask, backend::Stream& stream);

}  // namespace iris::ccl
