// iris::ccl: operations that all members of a team make together, on a stream, over the symmetric
// heap.
//
//   CommOptions options;                      // once, on every member
//   options.context = ctx;
//   options.team = ctx.world;
//   options.workspace = workspace;            // in the heap, WorkspaceBytes() of it
//   options.workspace_bytes = bytes;
//   options.error_word = word;
//   Comm comm;
//   CreateComm(options, &comm);
//
//   AllReduce(comm, x, x, n, DataType::kF32, ReduceOp::kSum, stream);   // asynchronous
//   stream.Synchronize();
//   CheckError(comm);                         // a member that did not come shows here
//
// Rules of all operations
//
// Every member of the team calls the same operations in the same order, with the same count, type,
// op and root, on a Comm with the same Config. What differs is noticed on the device, and ends as
// kInvalidArgument in CheckError (in the variant kPackets only with Config::check_calls).
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
// same time on different streams, as long as the device has room for all their blocks.
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
// is recorded in the error word. `out` is then undefined. The Comm has failed for good: later
// operations fail at once, also those already on the stream. To go on, let all members synchronize,
// PrepareWorkspace, synchronize, a host barrier, and ResetError.
//
// Thread-safety: a Comm is a plain value; the launchers may be called from any thread, one at a
// time per Comm.
#pragma once

#include <cstdint>

#include "device/backend/select.h"
#include "device/iris/types.h"

namespace iris::ccl {

enum class DataType : uint8_t { kF32, kF64, kF16, kBf16, kI32, kI64, kU8 };
enum class ReduceOp : uint8_t { kSum, kProd, kMin, kMax, kAvg };

// How an operation goes. kAuto: as the table of rules says.
//   kPackets   each 8 bytes travel with flags that say they are there ("LL"): one way through the
//              links and no round; twice the bytes. Small sizes; buffers anywhere. One-shot.
//   kDirect    one-shot by load or store: reductions pull everything, movements push it.
//   kTwoPackets  all_reduce: slices, as packets, and then what each member made of its slice.
//   kTwoShot   each member reduces (broadcast: fetches) its slice and stores it to all.
//   kTwoPhase  all_reduce: the same, but all is read before anything is stored.
//   kCopyEngine  all_reduce, all_gather, all_to_all: what a member gives the others is copied by
//              the copy engine. `in` and `out` must lie in the heap, at the same offset on all
//              members: nothing can check that in time. kAuto takes it only with Config::symmetric.
//   kPipeline  large reductions: members push slices into each other's workspace while they reduce
//              the ones before.
//   kRing      all_reduce: slices go around from neighbour to neighbour, through the workspace.
//              For links between neighbours alone. kAvg of u8 goes as kTwoShot.
//   kAtomic    all_reduce: everybody adds to the sums in their owners' workspace by atomics.
//   kSpinlock  all_reduce: the same, one member at a time, under a lock that goes by their order.
enum class Variant : uint8_t {
  kAuto,
  kPackets,
  kOneShot = kPackets,
  kDirect,
  kTwoShot,
  kPipeline,
  kTwoPackets,
  kTwoPhase,
  kCopyEngine,
  kRing,
  kAtomic,
  kSpinlock,
};

enum class Operation : uint8_t {
  kNone,
  kAllReduce,
  kAllGather,
  kBroadcast,
  kBarrier,
  kReduceScatter,
  kAllToAll,
  kReduce,
  kGather,
  kScatter,
  kSendRecv,
};

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
  uint32_t max_blocks = 0;     // 1 to kMaxBlocks: what the workspace has room for. See
                               // MaxBlocksWhenShared
  uint32_t packet_blocks = 0;  // up to max_blocks: of kPackets, likewise
  uint64_t packet_bytes = 0;   // of data, each block and member, at a time; a multiple of 16
  uint64_t stage_bytes = 0;    // of each block, twice; a multiple of 16 * kMaxTeamRanks
  uint64_t timeout_ns = 0;     // 0: DeviceContext::timeout_ns
  bool check_calls = false;    // kPackets also compares what the members call
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

// What a launch will be.
struct Plan {
  Variant variant;
  uint32_t blocks;
  uint32_t threads;
  uint32_t unroll = 1;
};

// Alignment of a workspace.
inline constexpr uint64_t kWorkspaceAlignmentBytes = 256;

// Bytes of workspace that a team of `n_members` needs. 0 if the config is not valid.
uint64_t WorkspaceBytes(uint32_t n_members, const Config& config = {});

// One member's side of a team's collectives. Made by CreateComm. A plain value; owns nothing.
struct Comm {
  DeviceContext context;
  DeviceTeam team;
  uint64_t workspace_offset_bytes = 0;  // the same in every heap
  uint64_t workspace_bytes = 0;
  uint64_t* error_word = nullptr;
  Config config;
};

struct CommOptions {
  DeviceContext context;
  DeviceTeam team;
  // In the caller's heap, at the same offset on all members, aligned to kWorkspaceAlignmentBytes.
  // All zero on every member before the first operation of any: fresh heap memory is; else
  // PrepareWorkspace, Synchronize, then a host barrier.
  void* workspace = nullptr;
  uint64_t workspace_bytes = 0;
  // Host memory that kernels can write (backend::MallocHost), this member's own, 0 at first. Lives
  // as long as the Comm.
  uint64_t* error_word = nullptr;
  Config config = {};
};

// kInvalidArgument: says what is wrong. *out is unchanged on failure.
// Loads kernels, which may wait until those that run have ended: no member starts an operation
// before all have come out of it.
Result CreateComm(const CommOptions& options, Comm* out);

// Puts a zeroing of this member's workspace on the stream.
Result PrepareWorkspace(const Comm& comm, backend::Stream& stream);

// Loads all kernels of this library onto the current device. CreateComm does so; here for a thread
// that changes its device afterwards.
Result PrepareKernels();

// out[i] = op over the members of in[i]. In place: out == in.
Result AllReduce(const Comm& comm, const void* in, void* out, uint64_t count, DataType type,
                 ReduceOp op, backend::Stream& stream, Variant variant = Variant::kAuto);

// out[i] = op over the members of in[index * count_per_member + i]; `in` has count_per_member
// elements for each member. In place: out == in + index * count_per_member.
Result ReduceScatter(const Comm& comm, const void* in, void* out, uint64_t count_per_member,
                     DataType type, ReduceOp op, backend::Stream& stream,
                     Variant variant = Variant::kAuto);

// As AllReduce, at member `root_index` alone. The others' `out` is not written and may be null.
Result Reduce(const Comm& comm, const void* in, void* out, uint64_t count, DataType type,
              ReduceOp op, uint32_t root_index, backend::Stream& stream,
              Variant variant = Variant::kAuto);

// out[m * count_per_member + i] = in[i] of member m. In place: in == out + index *
// count_per_member.
Result AllGather(const Comm& comm, const void* in, void* out, uint64_t count_per_member,
                 DataType type, backend::Stream& stream, Variant variant = Variant::kAuto);

// As AllGather, at member `root_index` alone. The others' `out` is not written and may be null.
Result Gather(const Comm& comm, const void* in, void* out, uint64_t count_per_member, DataType type,
              uint32_t root_index, backend::Stream& stream, Variant variant = Variant::kAuto);

// out[i] = in[index * count_per_member + i] of member `root_index`. The others' `in` is not read
// and may be null. In place at the root: out == in + index * count_per_member.
Result Scatter(const Comm& comm, const void* in, void* out, uint64_t count_per_member,
               DataType type, uint32_t root_index, backend::Stream& stream,
               Variant variant = Variant::kAuto);

// out[m * count_per_member + i] = in[index * count_per_member + i] of member m. Not in place.
Result AllToAll(const Comm& comm, const void* in, void* out, uint64_t count_per_member,
                DataType type, backend::Stream& stream, Variant variant = Variant::kAuto);

// Elements of each member in a buffer of AllToAllV: counts[m], from offsets[m] on. Arrays of
// team.size in host memory, read before the call returns.
struct Layout {
  const uint64_t* counts;
  const uint64_t* offsets;
};

// To member m go to.counts[m] elements from in + to.offsets[m]; from it come from.counts[m] to out
// + from.offsets[m]. What m sends must be what this member expects. Not in place.
Result AllToAllV(const Comm& comm, const void* in, const Layout& to, void* out, const Layout& from,
                 DataType type, backend::Stream& stream);

// out[i] = in[i] of member `root_index`. The others' `in` is not read and may be null. In place:
// out == in.
Result Broadcast(const Comm& comm, const void* in, void* out, uint64_t count, DataType type,
                 uint32_t root_index, backend::Stream& stream, Variant variant = Variant::kAuto);

// From one member to another: only these two call, each the one that names the other. Send waits on
// its stream for Recv: two members that both begin with Send wait for each other until the timeout.
Result Send(const Comm& comm, const void* in, uint64_t count, DataType type, uint32_t to_index,
            backend::Stream& stream);
Result Recv(const Comm& comm, void* out, uint64_t count, DataType type, uint32_t from_index,
            backend::Stream& stream);

// When the stream has passed it, the streams of all members have reached it.
Result Barrier(const Comm& comm, backend::Stream& stream);

// What kAuto would take for `bytes`, those of the larger of in and out.
Plan Choose(const Comm& comm, Operation operation, uint64_t bytes,
            Variant variant = Variant::kAuto);

// What failed first. member_index: which member was missing or called something else, in the team;
// kNoMember: not known. sequence: the how-manieth operation of the Comm it was, from 0.
struct ErrorInfo {
  Operation operation = Operation::kNone;
  uint32_t member_index = kNoMember;
  uint32_t sequence = 0;
  static constexpr uint32_t kNoMember = ~0u;
};

// The first failure of an operation since CreateComm, as far as the stream has come:
// kDeadlineExceeded, kAborted, or kInvalidArgument if a member called something else. Does not
// clear it. `info` may be null.
Result CheckError(const Comm& comm, ErrorInfo* info = nullptr);

// Clears the error word. Right only after PrepareWorkspace on all members, as above.
void ResetError(const Comm& comm);

// The members that had not come when it failed, one bit each: puts a copy of them to `*mask`, host
// memory, on the stream.
Result CopyMissing(const Comm& comm, uint64_t* mask, backend::Stream& stream);

// "all_reduce" and so on; for messages.
const char* OperationName(Operation operation);
const char* VariantName(Variant variant);

// Bytes of an element.
uint64_t ElementBytes(DataType type);

}  // namespace iris::ccl
