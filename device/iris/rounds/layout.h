// The layout of a workspace, and the arguments of a kernel.
//
//   header    one per workspace
//   sync      [max_blocks]: BlockState, calls[2][members]: each rank's call, by the parity of the
//             epoch; signals[members]: chunks that each has pushed
//   pairs     [sender][receiver][kPairBlocks]: the same for messages, of two ranks
//   packets   [packet_blocks][2][members][2 * packet_bytes]: inboxes of kPackets, by parity
//   lines     [line_blocks][2][members][LineInboxBytes]: inboxes of kLines and kTwoLines, for teams
//             of up to kMaxLineMembers. Apart from packets, so that flags are never where data was
//   pushes    [push_blocks][kPushSlots][members - 1][PushInboxBytes]: inboxes of kPush, by chunks.
//             Apart from stages, which others may still read when an operation begins
//   stages    [max_blocks]: in[stage_bytes], out[stage_bytes]: for buffers that are not in the heap
//   partners  [max_blocks][2][kMaxPartners]: words by which blocks of one rank that share a row
//             exchange their results for it; zero between kernels
//
// Blocks of different index never wait for each other.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/rounds/comm.h"
#include "iris/rounds/errors.h"

namespace iris::ccl::impl {

inline constexpr uint64_t kNotInHeap = ~0ull;
inline constexpr uint32_t kPairBlocks = 8;  // of a message
// Larger teams have no lines, because their rows are short.
inline constexpr uint32_t kMaxLineMembers = 8;
// A line has data and, in its last eight bytes, the flag.
inline constexpr uint32_t kLineBytes = 128;
inline constexpr uint32_t kLineDataBytes = 120;
inline constexpr uint32_t kLineLanes = kLineBytes / 16;
// The bytes that the largest warp stores at once; the size of an inbox is a multiple of them.
inline constexpr uint32_t kLineUnitBytes = 64 / kLineLanes * kLineBytes;
// Chunks of a block in its inboxes: see variants/push.h.
inline constexpr uint32_t kPushSlots = 4;

// The most blocks of a rank that work on one row together.
inline constexpr uint32_t kMaxPartners = 32;
inline constexpr uint64_t kPartnerBytes = 2 * kMaxPartners * sizeof(uint32_t);
static_assert(kPartnerBytes % kWorkspaceAlignmentBytes == 0);

// The result of comparing the ranks' calls, which CheckError unpacks. Ranks are bits, by index in
// the team.
struct Verdict {
  enum : uint32_t {
    kMost,                                        // ranks with the most frequent call
    kOther,                                       // ranks with the first different call
    kRest,                                        // ranks with further calls
    kAbsent,                                      // ranks that had not come
    kMostCall,                                    // PackedCall
    kOtherCall = kMostCall + PackedCall::kWords,  // PackedCall
    kRows = kOtherCall + PackedCall::kWords,      // 1 + sender | receiver << 8, of AllToAllV; or 0
    kSent,                                        // bytes of that row
    kExpected,                                    // its expected bytes, low 32 bits
    kWords
  };
};
static_assert(Verdict::kWords == ErrorReport::kMismatchWords);

struct Header {
  uint32_t failed;    // not 0: waits of all blocks end
  uint32_t sequence;  // operations of the whole team so far
  uint64_t missing;   // ranks that had not come when it failed
  // The following fields are used when ranks make different calls; see diagnosis.h. A tag is the
  // number of the operation, from 1 (TagOf).
  uint64_t calling;                         // tag | signature << 32 of a rank that has waited long
  uint32_t called_off;                      // the tag of an operation that ranks call differently
  uint32_t diagnosing;                      // 1: a thread of this rank runs Diagnose
  uint32_t judge;                           // 1 + the rank that compares the calls
  uint32_t verdict_tag;                     // the operation of `verdict`
  uint64_t record[PackedCall::kWords + 1];  // tag | word << 32; the last one: the signature
  uint64_t verdict[Verdict::kWords];
  uint64_t reserved[1];
};
static_assert(sizeof(Header) == 256);

struct BlockState {
  uint32_t epoch;    // rounds that this block has made
  uint32_t failed;   // not 0: an operation of this block failed, and it makes no more rounds
  uint64_t signals;  // chunks that this block has pushed
  uint64_t
      turns;  // kSpinlock: the lock of this rank's slice, as the number of its holders up to now
  uint32_t awaited;  // for a message alone in its launch: the epoch for which it has waited long
  uint32_t begun;    // in emulation: the current epoch; see Rounds::AwaitReadersOfLines
  uint32_t reserved[8];
};
static_assert(sizeof(BlockState) == 64);

// The words of 32 bits that one rank sends another in a round, each with the epoch that validates
// it.
struct CallWords {
  enum : uint32_t { kSignature, kIn, kOut, kHigh, kCount };
  uint64_t words[kCount];
};

IRIS_HOST_DEVICE constexpr uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

IRIS_HOST_DEVICE constexpr uint64_t Min(uint64_t a, uint64_t b) { return a < b ? a : b; }

IRIS_HOST_DEVICE constexpr uint64_t SyncBytes(uint32_t n_members) {
  return RoundUp(
      sizeof(BlockState) + 2 * n_members * sizeof(CallWords) + n_members * sizeof(uint64_t),
      kWorkspaceAlignmentBytes);
}

IRIS_HOST_DEVICE constexpr uint64_t PacketBytes(uint32_t n_members, uint64_t packet_bytes) {
  return RoundUp(2 * n_members * 2 * packet_bytes, kWorkspaceAlignmentBytes);
}

// Returns the bytes of lines that a block receives from one rank at a time.
IRIS_HOST_DEVICE constexpr uint64_t LineInboxBytes(uint32_t n_members, uint64_t line_bytes) {
  return line_bytes / n_members / kLineUnitBytes * kLineUnitBytes;
}

// Returns the bytes of a chunk that a block receives from one rank: a multiple of 128 if there is
// room, else of 16.
IRIS_HOST_DEVICE constexpr uint64_t PushInboxBytes(uint32_t n_members, uint64_t push_bytes) {
  const uint64_t bytes = push_bytes / kPushSlots / (n_members < 2 ? 1 : n_members - 1);
  return bytes < 128 ? bytes / 16 * 16 : bytes / 128 * 128;
}

// Offsets in a workspace, for a complete config.
struct Offsets {
  uint64_t sync_bytes;
  uint64_t pair_bytes;
  uint64_t packet_bytes;
  uint64_t line_bytes;
  uint64_t push_bytes;
  uint64_t stage_bytes;
  uint64_t partner_bytes;
  uint64_t total_bytes;
};

constexpr Offsets OffsetsOf(uint32_t n, const Config& config) {
  Offsets offsets = {};
  offsets.sync_bytes = sizeof(Header);
  offsets.pair_bytes = offsets.sync_bytes + config.max_blocks * SyncBytes(n);
  const uint64_t pairs = config.barriers_only ? 0 : static_cast<uint64_t>(n) * (n - 1);
  offsets.packet_bytes = offsets.pair_bytes + pairs * kPairBlocks * SyncBytes(2);
  offsets.line_bytes =
      offsets.packet_bytes + config.packet_blocks * PacketBytes(n, config.packet_bytes);
  const uint64_t line_blocks = n > kMaxLineMembers ? 0 : config.line_blocks;
  offsets.push_bytes = offsets.line_bytes + line_blocks * 2 * config.line_bytes;
  offsets.stage_bytes = offsets.push_bytes + config.push_blocks * config.push_bytes;
  offsets.partner_bytes = RoundUp(offsets.stage_bytes + config.max_blocks * 2 * config.stage_bytes,
                                  kWorkspaceAlignmentBytes);
  offsets.total_bytes = offsets.partner_bytes + config.max_blocks * kPartnerBytes;
  return offsets;
}

// Returns the offset of the rounds for messages from `from` to `to`: each direction has its own.
constexpr uint64_t PairOffset(uint32_t n, const Config& config, uint32_t from, uint32_t to) {
  const uint64_t pair = static_cast<uint64_t>(from) * (n - 1) + (to > from ? to - 1 : to);
  return OffsetsOf(n, config).pair_bytes + pair * kPairBlocks * SyncBytes(2);
}

// The arguments of every kernel: the ranks, the workspace and the call. For kSendRecv the ranks are
// the two of the message.
struct Common {
  DeviceContext context;  // only window, timeout and abort word are used
  ErrorReport* report;
  uint64_t header_offset_bytes;  // in every heap
  uint64_t sync_offset_bytes;
  uint64_t packet_offset_bytes;
  uint64_t line_offset_bytes;
  uint64_t push_offset_bytes;
  uint64_t stage_offset_bytes;
  uint64_t packet_bytes;
  uint64_t line_bytes;        // of one inbox
  uint64_t push_bytes;        // of one inbox
  uint64_t push_block_bytes;  // of all inboxes of a block
  uint64_t stage_bytes;
  uint32_t size;   // number of ranks
  uint32_t index;  // of this rank
  uint8_t members[kMaxTeamRanks];
  uint8_t pair[2];  // kSendRecv: the indexes of its two ranks in the team
  uint8_t alone;    // kSendRecv: the launch has no other message
  Operation operation;
  uint8_t check;  // 1: packets compare the calls before they wait
  uint8_t ends;   // 1: the operation's last kernel, which counts it
  uint8_t early;  // 1: the next kernel may begin before this one ends
  // The launch has the blocks from first_block on, of `blocks` that synchronize with other ranks.
  // See residency.h.
  uint8_t first_block;
  uint8_t blocks;
  uint32_t signature;
  uint32_t traced;  // TraceEvent::op, and above it TraceEvent::peer
  PackedCall call;
  uint64_t answer_offset_bytes;  // kSendRecv: sync_offset_bytes of the other direction
  uint64_t in_offset_bytes;      // in this rank's heap, or kNotInHeap; ignored if no rank reads it
  uint64_t out_offset_bytes;
};

static_assert(kMaxBlocks <= 255);

// Return the index of the calling thread's block in the call, and the number of the call's blocks,
// in whatever pieces they are launched. Kernels of several messages use PairCall instead.
IRIS_DEVICE inline uint32_t BlockOf(const Common& common) {
  return common.first_block + backend::BlockIndex();
}
IRIS_DEVICE inline uint32_t GridOf(const Common& common) { return common.blocks; }

// Rows of any length, for AllToAllV. Each receiver sends the sender the place and the length of its
// row.
struct Vector {
  uint64_t send_offset_bytes[kMaxTeamRanks];
  uint64_t send_bytes[kMaxTeamRanks];
  uint64_t receive_offset_bytes[kMaxTeamRanks];
  uint64_t receive_bytes[kMaxTeamRanks];
};
// The error word is code | operation << 8 | (member + 1) << 16 | sequence << 32, or 0 for no error.
IRIS_HOST_DEVICE constexpr uint64_t PackError(StatusCode code, Operation operation, uint32_t member,
                                              uint32_t sequence) {
  return static_cast<uint64_t>(code) | static_cast<uint64_t>(operation) << 8 |
         (static_cast<uint64_t>(member + 1) & 0xff) << 16 | static_cast<uint64_t>(sequence) << 32;
}

}  // namespace iris::ccl::impl
