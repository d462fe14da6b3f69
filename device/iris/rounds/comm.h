// Comms: one rank's side of a team, on which all operations of the team run. A Comm has a workspace
// in the symmetric heap, through which the kernels of the ranks synchronize, and a share of its
// device.
//
// Thread-safety: a Comm is a plain value; any thread may launch operations on it, one at a time per
// Comm.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/ccl_types.h"
#include "iris/rounds/errors.h"
#include "iris/types.h"

namespace iris::ops {
struct Resources;  // iris/ops/ops.h
}

namespace iris::ccl {

inline constexpr uint32_t kMaxBlocks = SyncArea::kMaxBlocks;
inline constexpr uint32_t kMaxThreads = 512;  // a block
inline constexpr uint32_t kMaxUnroll = 2;

inline constexpr uint64_t kAnyBytes = ~uint64_t{0};  // Rule::max_bytes without a limit

// A row of kAuto's table: the first row that applies decides.
struct Rule {
  Operation operation;
  uint32_t max_members;
  uint64_t max_bytes;  // of the larger of in and out
  Variant variant;
  uint32_t blocks;
  uint32_t threads;
  uint32_t unroll = 0;  // as Config::unroll
};

// The configuration, the same on all ranks. 0 stands for the backend's default.
struct Config {
  uint32_t blocks = 0;         // overrides the table; 1 to max_blocks
  uint32_t block_threads = 0;  // overrides the table; 1 to kMaxThreads
  // Overrides the table. With 1, a thread has eight loads of 16 bytes in flight in reductions, and
  // four if all ranks get the same; with 2, twice as many. No effect on packets, rings, atomics and
  // locks, on operations with data for one rank each, and on the general kernels: reductions of 3,
  // 5, 6, 7 or more than 8 ranks, or other than sums and averages of f32, f16 and bf16.
  uint32_t unroll = 0;
  // The most blocks of a kernel, 1 to kMaxBlocks: the workspace has room for them. See
  // MaxBlocksWhenShared.
  uint32_t max_blocks = 0;
  // The most multiprocessors of a device that kernels of this Comm use at once. It limits
  // max_blocks: a block runs on one multiprocessor. 16 and fewer have their own table. 0: all.
  uint32_t max_multiprocessors = 0;
  uint32_t packet_blocks = 0;  // up to max_blocks: the most for kPackets
  uint64_t packet_bytes = 0;   // at a time, for each block and rank; a multiple of 16
  uint32_t line_blocks = 0;    // up to max_blocks: of kLines and kTwoLines
  uint64_t line_bytes = 0;     // of lines from all ranks, each block, twice: a multiple of 8 KiB
  uint32_t push_blocks = 0;    // up to max_blocks: of kPush
  uint64_t push_bytes = 0;     // of the chunks from all ranks, each block: a multiple of 4 KiB
  uint64_t stage_bytes = 0;    // of each block, twice; a multiple of 16 * kMaxTeamRanks
  uint64_t timeout_ns = 0;     // 0: DeviceContext::timeout_ns
  // kPackets compares the ranks' calls before it waits for any packet, which costs a round;
  // otherwise it does so only after a long wait.
  bool check_calls = false;
  // No 128-byte lines: kAuto takes the next rule that fits, and kLines and kTwoLines become other
  // variants. For machines on which iris-ctl doctor saw a torn line.
  bool without_lines = false;
  // A kernel of up to half of max_blocks may begin before the previous one on the stream ends,
  // where the platform supports that; it waits before it touches memory.
  bool early = true;
  bool symmetric = false;  // a promise: buffers in the heap have the same offset on all ranks
  // Barriers alone: the workspace has a few words for each rank, and all sizes above are ignored.
  bool barriers_only = false;
  // Replaces the built-in table; borrowed.
  const Rule* rules = nullptr;
  uint32_t n_rules = 0;
};

// Returns Config::max_blocks if up to `ranks_per_device` ranks share a device with this many
// multiprocessors (0: the current device). Blocks of a collective wait for each other, so those of
// all these ranks must fit on the device at once. Returns 0, the backend's default, for one rank
// per device and for emulated devices, which run any number of blocks. All ranks with the same
// arguments get the same result.
uint32_t MaxBlocksWhenShared(uint32_t ranks_per_device, uint32_t multiprocessors = 0);

// A launch: the kernel of this variant, with these blocks and threads. A team of one rank launches
// only barriers: its other calls are copies, with kCopyEngine and no blocks.
struct Plan {
  Variant variant = Variant::kAuto;
  uint32_t blocks = 0;
  uint32_t threads = 0;
  uint32_t unroll = 1;
};

inline constexpr uint64_t kWorkspaceAlignmentBytes = 256;
// Observers find the progress of the device at these bytes of a workspace: a uint32_t, the number
// of finished operations, and a uint64_t, whose lower half is 1 + the number of the last operation
// in which the device waited long.
inline constexpr uint16_t kWorkspaceFinishedAt = 4;
inline constexpr uint16_t kWorkspaceWaitingAt = 16;

// Returns the bytes of workspace for a team of `n_members`, or 0 if the config is not valid.
uint64_t WorkspaceBytes(uint32_t n_members, const Config& config = {});

// The rules of a table that can apply to a team of one size, by operation.
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
      {};  // of each operation's rows, which begin at the end of the previous operation's
  Row rows[kMax] = {};
};

// Describes the launches that a launcher has put on the stream; for tests.
struct LaunchNote {
  Plan plan;           // what was launched, read from the launch itself
  const char* kernel;  // its name, without template arguments
};
struct LaunchTrace {
  static constexpr uint32_t kMax = 4;
  uint32_t n = 0;  // launches since the test set it to 0
  LaunchNote notes[kMax];
};

class DeviceShare;

// One rank's side of a team's operations, made by CreateComm. A plain value that owns nothing; it
// has a share of the device until ReleaseComm.
struct Comm {
  DeviceContext context;
  DeviceTeam team;
  uint64_t workspace_offset_bytes = 0;  // the same in every heap
  uint64_t workspace_bytes = 0;
  ErrorReport* report = nullptr;
  Config config;
  ResolvedRules rules;  // from config.rules; see UseRules
  LaunchTrace* trace = nullptr;
  ops::Resources* products = nullptr;
  DeviceShare* share = nullptr;  // null: the device has room for any number of blocks
};

struct CommOptions {
  DeviceContext context;
  DeviceTeam team;
  // Lies in the caller's heap, at the same offset on all ranks, aligned to
  // kWorkspaceAlignmentBytes. It must be zero on all ranks before the first operation: fresh heap
  // memory is; otherwise call PrepareWorkspace, Synchronize, then a host barrier.
  void* workspace = nullptr;
  uint64_t workspace_bytes = 0;
  // Host memory of this rank that kernels can write (backend::MallocHost), initialized as a new
  // ErrorReport. It must outlive the Comm.
  ErrorReport* report = nullptr;
  Config config = {};
  // GEMM state (iris/ops/ops.h) that only this Comm uses, and that outlives it. Null: no GEMMs.
  ops::Resources* products = nullptr;
  const char* name = "";  // for messages: see ListShares
};

namespace impl {
// Does the part of CreateComm (iris/collective/collective.h) that neither loads kernels nor adds
// the built-in rules.
Result MakeComm(const CommOptions& options, Comm* out);
}  // namespace impl

// Returns the Comm's share of the device. The Comm and graphs that captured it must not be used any
// more, and its streams must have been synchronized. Does nothing for a Comm that was never made,
// or was released.
void ReleaseComm(Comm* comm);

// The share that a Comm of this process has of the current device.
struct ShareInfo {
  char name[48] = {};     // the beginning of CommOptions::name
  uint32_t rank = 0;      // the owner
  uint32_t members = 0;   // ranks of its team
  uint32_t blocks = 0;    // that it may use
  uint32_t captured = 0;  // kept by launches in graphs
  bool products = false;  // it has workspace for GEMMs
};
// Fills in up to `capacity` shares and returns how many there are.
uint32_t ListShares(ShareInfo* out, uint32_t capacity);

// Returns true if this process has made Comms of other ranks with the same heaps, so that ranks are
// threads. All Comms of a process must be made before an operation starts: see CreateComm.
bool SharesProcess(const Comm& comm);

// Replaces the rules of the Comm by a copy of `rules`, the same on all ranks. kInvalidArgument if a
// Comm has no room for that many; `*comm` is unchanged then.
Result UseRules(const Rule* rules, uint32_t n_rules, Comm* comm);

// Enqueues the zeroing of this rank's workspace.
Result PrepareWorkspace(const Comm& comm, backend::Stream& stream);

}  // namespace iris::ccl
