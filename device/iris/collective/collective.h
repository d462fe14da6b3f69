// iris::ccl: operations that all members of a team make together, on a stream, over the symmetric
// heap.
//
//   CommOptions options;                      // once, on every member
//   options.context = ctx;
//   options.team = ctx.world;
//   options.workspace = workspace;            // in the heap, WorkspaceBytes() of it
//   options.workspace_bytes = bytes;
//   options.report = report;
//   Comm comm;
//   CreateComm(options, &comm);
//
//   AllReduce(comm, x, x, n, DType::kF32, ReduceOp::kSum, stream);   // asynchronous
//   stream.Synchronize();
//   CheckError(comm);                         // a member that did not come shows here
//
// Rules of all operations
//
// Every member of the team calls the same operations in the same order, with the same count, type,
// op and root, on a Comm with the same Config. What differs is noticed on the device within a
// fraction of a second and ends as kInvalidArgument in CheckError, on every member, with both calls
// in full. A call of zero elements does nothing at all: it is not counted and not compared.
//
// `in` and `out` are any memory that the device can read and write, aligned to the element. What
// lies in the symmetric heap is used where it lies, at whatever offset each member has it; anything
// else goes through the workspace, in chunks. `out` may be `in` ("in place", see each operation);
// otherwise the two must not overlap, nor touch the workspace.
//
// A launcher checks its arguments, starts kernels on the stream and returns: no allocation, no
// waiting; it may be captured in a graph and replayed for ever. When the stream has passed the
// operation, `out` is complete and `in` may be changed; a member that has finished says nothing
// about the others' `out`. Operations of one Comm follow each other on one stream at a time. Any
// number of Comms over overlapping teams may be in use, each with its own workspace, also at the
// same time on different streams, in any order on any member: each has a share of the device's room
// for blocks, and what needs more is launched in pieces.
//
// Sums go in the order of the team's members, f16 and bf16 in fp32 with one rounding at the end:
// the bits are the same on all members, run after run, in each variant. Two variants are not like
// this: kRing begins slice m with member m, and rounds at each member; kAtomic adds floats in any
// order, so that its sums and products are the same on all members, but not run after run. Integers
// wrap. kAvg is the sum divided by the number of members (integers: towards zero; u8: of the sum
// that does not wrap). kMin and kMax give NaN if any element is NaN. Zero elements are legal and do
// nothing.
//
// Failure: a member that does not come within the timeout, or the abort word, ends the kernel and
// is recorded in the report. `out` is then undefined. The Comm has failed for good: later
// operations fail at once, also those already on the stream. To go on, let all members synchronize,
// PrepareWorkspace, synchronize, a host barrier, and ResetError.
//
// Thread-safety: a Comm is a plain value; the launchers may be called from any thread, one at a
// time per Comm.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/ccl_types.h"
#include "iris/dtype.h"
#include "iris/norm_types.h"
#include "iris/ops_types.h"
#include "iris/types.h"

namespace iris::ops {
struct Resources;  // iris/ops/ops.h
}

namespace iris::ccl {

inline constexpr uint32_t kMaxBlocks = SyncArea::kMaxBlocks;
inline constexpr uint32_t kMaxThreads = 512;  // a block
inline constexpr uint32_t kMaxUnroll = 2;

// One row of the table that kAuto follows: the first one that fits decides.
struct Rule {
  Operation operation;
  uint32_t max_members;
  uint64_t max_bytes;  // of the larger of in and out
  Variant variant;
  uint32_t blocks;
  uint32_t threads;
  uint32_t unroll = 0;  // as Config::unroll
};

// The same on all members. 0: what suits the backend.
struct Config {
  uint32_t blocks = 0;         // instead of what the table says, 1 to max_blocks
  uint32_t block_threads = 0;  // likewise, 1 to kMaxThreads
  // Likewise. 1: a thread has eight loads of 16 bytes under way where it reduces, four where it
  // gives all members the same; 2: twice as many. Without effect on packets, rings, atomics and
  // locks, on what goes to one member each, and on reductions of 3, 5, 6, 7 or more than 8 members
  // or other than sums and averages of f32, f16 and bf16, whose kernels are general ones.
  uint32_t unroll = 0;
  uint32_t max_blocks = 0;  // 1 to kMaxBlocks: what the workspace has room for. See
                            // MaxBlocksWhenShared
  // Of a device, that kernels of this Comm are on at once, at most: max_blocks is no more, since a
  // block is on one. 16 and fewer have a table of their own. 0: all.
  uint32_t max_multiprocessors = 0;
  uint32_t packet_blocks = 0;  // up to max_blocks: of kPackets, likewise
  uint64_t packet_bytes = 0;   // of data, each block and member, at a time; a multiple of 16
  uint32_t line_blocks = 0;    // up to max_blocks: of kLines and kTwoLines
  uint64_t line_bytes = 0;     // of lines from all members, each block, twice: a multiple of 8 KiB
  uint32_t push_blocks = 0;    // up to max_blocks: of kPush
  uint64_t push_bytes = 0;     // of the chunks from all members, each block: a multiple of 4 KiB
  uint64_t stage_bytes = 0;    // of each block, twice; a multiple of 16 * kMaxTeamRanks
  uint64_t timeout_ns = 0;     // 0: DeviceContext::timeout_ns
  // kPackets compares what the members call before it waits for any packet, at the price of a
  // round, instead of when it has waited for long.
  bool check_calls = false;
  // No 128-byte lines: kAuto takes the next rule that fits, and kLines and kTwoLines become other
  // variants. For machines where doctor saw a line torn.
  bool without_lines = false;
  // A kernel of up to half of max_blocks begins while the one before it on the stream ends, where
  // the platform can do that; it waits before it touches memory.
  bool early = true;
  bool symmetric = false;  // a promise: what lies in the heap has the same offset on all members
  // Instead of the built-in table; borrowed.
  const Rule* rules = nullptr;
  uint32_t n_rules = 0;
};

// Config::max_blocks for ranks of which up to `ranks_per_device` share a device of so many
// multiprocessors (0: the current device): blocks of a collective wait for each other, so those of
// all these ranks have to fit on it at once. 0, what suits the backend, where that is no matter:
// one rank each, or emulated devices, which run any number of blocks. The same on all members if
// the arguments are.
uint32_t MaxBlocksWhenShared(uint32_t ranks_per_device, uint32_t multiprocessors = 0);

// A call, as far as its plan depends on it. All members say the same; where their buffers lie is no
// part of it, for that may differ from member to member.
struct Shape {
  Operation operation = Operation::kNone;
  uint64_t count = 0;  // as the operation's function gets it: of a row, where there is one for each
                       // member. kAllToAllV, kBarrier: without effect
  DType type = DType::kU8;
  ReduceOp op = ReduceOp::kSum;
  Variant variant = Variant::kAuto;
};

// What a launch is: the kernel of this variant, by so many blocks of so many threads. A team of one
// member launches no kernel: its calls are copies, kCopyEngine with no block, but for the barrier.
struct Plan {
  Variant variant = Variant::kAuto;
  uint32_t blocks = 0;
  uint32_t threads = 0;
  uint32_t unroll = 1;
};

// Alignment of a workspace.
inline constexpr uint64_t kWorkspaceAlignmentBytes = 256;
// Where a workspace tells those who look from outside how far its device is, in bytes from its
// begin: uint32_t, how many operations are finished; uint64_t, whose lower half is 1 + the number
// of the last operation in which the device has waited long.
inline constexpr uint16_t kWorkspaceFinishedAt = 4;
inline constexpr uint16_t kWorkspaceWaitingAt = 16;

// Bytes of workspace that a team of `n_members` needs. 0 if the config is not valid.
uint64_t WorkspaceBytes(uint32_t n_members, const Config& config = {});

// What kernels tell the host of a failure. Only CheckError and ResetError need to know what it
// holds.
struct ErrorReport {
  static constexpr uint32_t kMismatchWords = 19;
  uint64_t word = 0;  // not 0: an operation failed
  uint64_t mismatch[kMismatchWords] = {};
};

// The rules of a table that a team of one size can ever follow, by operation.
struct ResolvedRules {
  static constexpr uint32_t kMax = 256;
  struct Row {
    uint64_t max_bytes = 0;
    uint16_t blocks = 0;
    uint16_t threads = 0;
    Variant variant = Variant::kAuto;
    uint8_t unroll = 0;
  };
  uint16_t end[kOperationCount] =
      {};  // of the rows of each; they begin where those of the one before end
  Row rows[kMax] = {};
};

// What a launcher has put on the stream. For tests.
struct LaunchNote {
  Plan plan;           // what was launched, read from the launch itself
  const char* kernel;  // its name, without what it is a template of
};
struct LaunchTrace {
  static constexpr uint32_t kMax = 4;
  uint32_t n = 0;  // of all since the test set it to 0
  LaunchNote notes[kMax];
};

class DeviceShare;

// One member's side of a team's collective operations. Made by CreateComm. A plain value; owns
// nothing, but stands for a share of the device until ReleaseComm.
struct Comm {
  DeviceContext context;
  DeviceTeam team;
  uint64_t workspace_offset_bytes = 0;  // the same in every heap
  uint64_t workspace_bytes = 0;
  ErrorReport* report = nullptr;
  Config config;
  ResolvedRules rules;  // of config.rules; see UseRules
  LaunchTrace* trace = nullptr;
  ops::Resources* products = nullptr;
  DeviceShare* share = nullptr;  // of the room for blocks; null: there is room for any number
};

struct CommOptions {
  DeviceContext context;
  DeviceTeam team;
  // In the caller's heap, at the same offset on all members, aligned to kWorkspaceAlignmentBytes.
  // All zero on every member before the first operation of any: fresh heap memory is; else
  // PrepareWorkspace, Synchronize, then a host barrier.
  void* workspace = nullptr;
  uint64_t workspace_bytes = 0;
  // Host memory that kernels can write (backend::MallocHost), this member's own, with the values
  // that a new ErrorReport has. Lives as long as the Comm.
  ErrorReport* report = nullptr;
  Config config = {};
  // Of iris::ops, which see: this Comm's own, and alive as long as it. Null: products go without.
  ops::Resources* products = nullptr;
  const char* name = "";  // for messages: see ListShares
};

// kInvalidArgument: says what is wrong. *out is unchanged on failure.
// Loads kernels, which may wait until those that run have ended: no member starts an operation
// before all have come out of it.
//
// The Comm has a share of the current device beside the other Comms of this process, whose shares
// become smaller. Where more of theirs is under way than they then may have, this waits until the
// device is idle. kResourceExhausted: the others leave nothing. kDeadlineExceeded: the device was
// not idle within the timeout, since what runs there waits for a rank that has not launched its
// part; so let all ranks make their Comms before they start operations, or synchronize first.
Result CreateComm(const CommOptions& options, Comm* out);

// Gives the share of a Comm back, which is not used any more, nor a graph in which it was captured:
// its streams have been synchronized. Does nothing to one that was not made, or was released.
void ReleaseComm(Comm* comm);

// What the Comms of this process have of the current device.
struct ShareInfo {
  char name[48] = {};     // the begin of CommOptions::name
  uint32_t rank = 0;      // whose it is
  uint32_t members = 0;   // of its team
  uint32_t blocks = 0;    // that it may have there
  uint32_t captured = 0;  // that a launch in a graph has: they stay with it
  bool products = false;  // it has room for products of matrices
};
// Fills in up to `capacity` of them; returns how many there are.
uint32_t ListShares(ShareInfo* out, uint32_t capacity);

// Whether this process has made Comms of other ranks with the same heaps: ranks that are threads.
// All of a process have been made when an operation starts, as CreateComm says.
bool SharesProcess(const Comm& comm);

// Lets the operations follow other rules from now on; the same on all members. The rules are no
// longer needed when it returns. kInvalidArgument, with *comm unchanged: more rules than a Comm has
// room for.
Result UseRules(const Rule* rules, uint32_t n_rules, Comm* comm);

// Puts a zeroing of this member's workspace on the stream.
Result PrepareWorkspace(const Comm& comm, backend::Stream& stream);

// Loads all kernels of this library onto the current device. CreateComm does so; here for a thread
// that changes its device afterwards.
Result PrepareKernels();

// Elements of each member in a buffer of all_to_all_v: counts[m], from offsets[m] on. Arrays of
// team.size in host memory, read before the call returns.
struct Layout {
  const uint64_t* counts;
  const uint64_t* offsets;
};

// A collective, as each rank of the team calls it. `row` is count * DTypeBytes(type) bytes, n the
// size of the team, and m and index places in it.
//
//   operation       result                              in       out      in place
//   all_reduce      out[i] = op over m of in[i]         row      row      out == in
//   reduce_scatter  out[i] = op of in[index][i]         n rows   row      out == in[index]
//   reduce          all_reduce, at the root alone       row      row      out == in
//   all_gather      out[m][i] = in[i] of m              row      n rows   in == out[index]
//   gather          all_gather, at the root alone       row      n rows   in == out[index]
//   scatter         out[i] = in[index][i] of the root   n rows   row      out == in[index]
//   all_to_all      out[m][i] = in[index][i] of m       n rows   n rows   only if n is 1
//   broadcast       out[i] = in[i] of the root          row      row      out == in
//   all_to_all_v    as all_to_all, with a count and an offset for each rank: to.counts[m] elements
//                   from in + to.offsets[m] go to m, and from.counts[m] from m go to out +
//                   from.offsets[m]. m must send as many as this rank expects. Not in place.
//   barrier         when the stream has passed it, the streams of all members have reached it
//
// A buffer that the operation does not use on this member (the others' `out` of reduce and gather,
// their `in` of scatter and broadcast) may be null.
struct Call {
  Operation operation = Operation::kNone;
  const void* in = nullptr;
  void* out = nullptr;
  uint64_t count = 0;  // elements of a row; all_to_all_v and barrier: without effect
  DType type = DType::kU8;
  ReduceOp op = ReduceOp::kSum;      // of reductions
  uint32_t root = 0;                 // place in the team; without effect where there is no root
  Variant variant = Variant::kAuto;  // all_to_all_v and barrier: without effect
  Layout to = {};                    // all_to_all_v
  Layout from = {};                  // all_to_all_v
};

// Puts the call on the stream. kInvalidArgument, kUnimplemented: says what is wrong with it.
// kFailedPrecondition: an earlier operation of this Comm failed.
Result Run(const Comm& comm, const Call& call, backend::Stream& stream);

// Run, with a call's arguments by position.
inline Result AllReduce(const Comm& comm, const void* in, void* out, uint64_t count, DType type,
                        ReduceOp op, backend::Stream& stream, Variant variant = Variant::kAuto) {
  return Run(comm, {Operation::kAllReduce, in, out, count, type, op, 0, variant}, stream);
}
inline Result ReduceScatter(const Comm& comm, const void* in, void* out, uint64_t count_per_member,
                            DType type, ReduceOp op, backend::Stream& stream,
                            Variant variant = Variant::kAuto) {
  return Run(comm, {Operation::kReduceScatter, in, out, count_per_member, type, op, 0, variant},
             stream);
}
inline Result Reduce(const Comm& comm, const void* in, void* out, uint64_t count, DType type,
                     ReduceOp op, uint32_t root_index, backend::Stream& stream,
                     Variant variant = Variant::kAuto) {
  return Run(comm, {Operation::kReduce, in, out, count, type, op, root_index, variant}, stream);
}
inline Result AllGather(const Comm& comm, const void* in, void* out, uint64_t count_per_member,
                        DType type, backend::Stream& stream, Variant variant = Variant::kAuto) {
  return Run(comm, {Operation::kAllGather, in, out, count_per_member, type, {}, 0, variant},
             stream);
}
inline Result Gather(const Comm& comm, const void* in, void* out, uint64_t count_per_member,
                     DType type, uint32_t root_index, backend::Stream& stream,
                     Variant variant = Variant::kAuto) {
  return Run(comm, {Operation::kGather, in, out, count_per_member, type, {}, root_index, variant},
             stream);
}
inline Result Scatter(const Comm& comm, const void* in, void* out, uint64_t count_per_member,
                      DType type, uint32_t root_index, backend::Stream& stream,
                      Variant variant = Variant::kAuto) {
  return Run(comm, {Operation::kScatter, in, out, count_per_member, type, {}, root_index, variant},
             stream);
}
inline Result AllToAll(const Comm& comm, const void* in, void* out, uint64_t count_per_member,
                       DType type, backend::Stream& stream, Variant variant = Variant::kAuto) {
  return Run(comm, {Operation::kAllToAll, in, out, count_per_member, type, {}, 0, variant}, stream);
}
inline Result AllToAllV(const Comm& comm, const void* in, const Layout& to, void* out,
                        const Layout& from, DType type, backend::Stream& stream) {
  return Run(comm, {Operation::kAllToAllV, in, out, 0, type, {}, 0, {}, to, from}, stream);
}
inline Result Broadcast(const Comm& comm, const void* in, void* out, uint64_t count, DType type,
                        uint32_t root_index, backend::Stream& stream,
                        Variant variant = Variant::kAuto) {
  return Run(comm, {Operation::kBroadcast, in, out, count, type, {}, root_index, variant}, stream);
}
inline Result Barrier(const Comm& comm, backend::Stream& stream) {
  return Run(comm, {Operation::kBarrier}, stream);
}

// One side of a message between this member and `peer_index`, which may be this one, too.
struct Message {
  const void* in = nullptr;  // what is sent; null: it is received
  void* out = nullptr;       // where to; null: it is sent
  uint64_t count = 0;
  DType type = DType::kU8;
  uint32_t peer_index = 0;
};

// Any number of messages at once. A message waits only for the other side, and for those of earlier
// calls and earlier ones of this call between the same members in the same direction. All members
// may send first if each does all its messages in one Exchange. Otherwise, as with Send and Recv,
// the calls must have an order in which nobody waits in a circle. Nothing that is received may
// overlap with another buffer of the call.
Result Exchange(const Comm& comm, const Message* messages, uint32_t n_messages,
                backend::Stream& stream);

// Exchange, with the messages by position. Only the two ranks call Send and Recv, each of which
// names the other. Send waits on its stream for Recv, so two ranks that both begin with Send fail.
// What a rank sends another is received in the order in which it is sent.
inline Result Send(const Comm& comm, const void* in, uint64_t count, DType type, uint32_t to_index,
                   backend::Stream& stream) {
  const Message message = {in, nullptr, count, type, to_index};
  return Exchange(comm, &message, 1, stream);
}
inline Result Recv(const Comm& comm, void* out, uint64_t count, DType type, uint32_t from_index,
                   backend::Stream& stream) {
  const Message message = {nullptr, out, count, type, from_index};
  return Exchange(comm, &message, 1, stream);
}
// Sends and receives at once, so that all ranks of a ring may call it first. The rank `to_index`
// must receive as much by SendRecv, Recv or Exchange. Both peers may be the same rank, also the
// calling one. A count of 0 leaves out that message. `in` and `out` must not overlap.
inline Result SendRecv(const Comm& comm, const void* in, uint64_t count, uint32_t to_index,
                       void* out, uint64_t out_count, uint32_t from_index, DType type,
                       backend::Stream& stream) {
  const Message messages[2] = {{in, nullptr, count, type, to_index},
                               {nullptr, out, out_count, type, from_index}};
  return Exchange(comm, messages, 2, stream);
}

// What the launcher of this call launches, exactly. For calls that the launcher accepts.
Plan Choose(const Comm& comm, const Shape& shape);

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

// "all_reduce" and so on; for messages.
const char* VariantName(Variant variant);
const char* ReduceOpName(ReduceOp op);

}  // namespace iris::ccl
