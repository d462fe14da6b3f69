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
// kInvalidArgument in CheckError.
//
// `in` and `out` are any memory that the device can read and write, aligned to the element. What
// lies in the symmetric heap is used where it lies, at whatever offset each member has it; anything
// else goes through the workspace, in chunks. `out` may be `in` ("in place", see each operation);
// otherwise the two must not overlap, nor touch the workspace.
//
// A launcher checks its arguments, starts kernels on the stream and returns: no allocation, no
// waiting. When the stream has passed the operation, `out` is complete and `in` may be changed; a
// member that has finished says nothing about the others' `out`. Operations of one Comm follow each
// other on one stream at a time. Any number of Comms over overlapping teams may be in use, each
// with its own workspace.
//
// Sums go in the order of the team's members, f16 and bf16 in fp32 with one rounding at the end:
// the bits are the same on all members, run after run, in each variant. i32 and i64 wrap. kMin and
// kMax give NaN if any element is NaN. Zero elements are legal and do nothing.
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

enum class DataType : uint8_t { kF32, kF64, kF16, kBf16, kI32, kI64 };
enum class ReduceOp : uint8_t { kSum, kProd, kMin, kMax };

// How an all-reduce goes. kOneShot: everybody sends everything to everybody, one synchronization:
// best when small. kTwoShot: each member reduces its slice and sends the result to all: least data.
// kAuto: by Config::one_shot_max_bytes.
enum class Variant : uint8_t { kAuto, kOneShot, kTwoShot };

enum class Operation : uint8_t { kNone, kAllReduce, kAllGather, kBroadcast, kBarrier };

// The same on all members.
struct Config {
  uint32_t max_blocks = 8;      // 1 to kMaxBlocks; how many are used depends on the size alone
  uint32_t block_threads = 64;  // 1 to kMaxBlockThreads
  uint64_t bytes_per_block = 16 << 10;      // one block more for each so many bytes
  uint64_t one_shot_max_bytes = 16 << 10;   // kAuto: up to here in one shot
  uint64_t one_shot_chunk_bytes = 8 << 10;  // of each block and member, twice; a multiple of 16
  uint64_t stage_bytes = 64 << 10;  // of each block, twice; a multiple of 16 * kMaxTeamRanks
  uint64_t timeout_ns = 0;          // 0: DeviceContext::timeout_ns
};
inline constexpr uint32_t kMaxBlocks = SyncArea::kMaxBlocks;

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
Result CreateComm(const CommOptions& options, Comm* out);

// Puts a zeroing of this member's workspace on the stream.
Result PrepareWorkspace(const Comm& comm, backend::Stream& stream);

// out[i] = op over the members of in[i]. In place: out == in.
Result AllReduce(const Comm& comm, const void* in, void* out, uint64_t count, DataType type,
                 ReduceOp op, backend::Stream& stream, Variant variant = Variant::kAuto);

// out[m * count_per_member + i] = in[i] of member m. In place: in == out + index *
// count_per_member.
Result AllGather(const Comm& comm, const void* in, void* out, uint64_t count_per_member,
                 DataType type, backend::Stream& stream);

// out[i] = in[i] of member `root_index`. The others' `in` is not read and may be null. In place:
// out == in.
Result Broadcast(const Comm& comm, const void* in, void* out, uint64_t count, DataType type,
                 uint32_t root_index, backend::Stream& stream);

// When the stream has passed it, the streams of all members have reached it.
Result Barrier(const Comm& comm, backend::Stream& stream);

// What failed first. member_index: which member was missing or called something else, in the team;
// kNoMember: not known.
struct ErrorInfo {
  Operation operation = Operation::kNone;
  uint32_t member_index = kNoMember;
  static constexpr uint32_t kNoMember = ~0u;
};

// The first failure of an operation since CreateComm, as far as the stream has come:
// kDeadlineExceeded, kAborted, or kInvalidArgument if a member called something else. Does not
// clear it. `info` may be null.
Result CheckError(const Comm& comm, ErrorInfo* info = nullptr);

// Clears the error word. Right only after PrepareWorkspace on all members, as above.
void ResetError(const Comm& comm);

// "all_reduce" and so on; for messages.
const char* OperationName(Operation operation);

// Bytes of an element.
uint64_t ElementBytes(DataType type);

}  // namespace iris::ccl
