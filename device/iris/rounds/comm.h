// Comms: one member's side of a team, on which all operations of the team run. A Comm has a
// workspace in the symmetric heap, by which the kernels of the members meet, and a share of its
// device.
//
// Thread-safety: a Comm is a plain value; what is launched with it may come from any thread, one at
// a time per Comm.
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

namespace impl {
// CreateComm (iris/collective/collective.h), but for the kernels of collectives, which it loads
// before, and their built-in rules, which it puts into the config.
Result MakeComm(const CommOptions& options, Comm* out);
}  // namespace impl

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

}  // namespace iris::ccl
