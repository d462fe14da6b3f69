// How a workspace is laid out, and what a kernel is given.
//
//   header    one per workspace
//   sync      [max_blocks]: BlockState, calls[2][members]: what each member is calling, by the
//             parity of the epoch; signals[members]: chunks that each has pushed
//   pairs     [sender][receiver][kPairBlocks]: the same for messages, of two members
//   packets   [packet_blocks][2][members][2 * packet_bytes]: inboxes of kPackets, by parity
//   lines     [line_blocks][2][members][LineInboxBytes]: the same of kLines and kTwoLines, for
//             teams of up to kMaxLineMembers. Apart from packets: no data ever was where flags are
//   pushes    [push_blocks][kPushSlots][members - 1][PushInboxBytes]: inboxes of kPush, by chunks.
//             Apart from stages, which others may still read when an operation begins
//   stages    [max_blocks]: in[stage_bytes], out[stage_bytes]: for buffers that are not in the heap
//   partners  [max_blocks][2][kMaxPartners]: words by which blocks of one member that share a row
//             tell each other what they have of it; zero between kernels
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
// Larger teams have no lines: their rows are short.
inline constexpr uint32_t kMaxLineMembers = 8;
// A line: data and, in its last eight bytes, the flag.
inline constexpr uint32_t kLineBytes = 128;
inline constexpr uint32_t kLineDataBytes = 120;
inline constexpr uint32_t kLineLanes = kLineBytes / 16;
// What the largest warp stores at once; an inbox is a multiple of it.
inline constexpr uint32_t kLineUnitBytes = 64 / kLineLanes * kLineBytes;
// Chunks of a block that may be in its inboxes: see variants/push.h.
inline constexpr uint32_t kPushSlots = 4;

// Blocks of a member that work on one row together, at most.
inline constexpr uint32_t kMaxPartners = 32;
inline constexpr uint64_t kPartnerBytes = 2 * kMaxPartners * sizeof(uint32_t);
static_assert(kPartnerBytes % kWorkspaceAlignmentBytes == 0);

// What came of comparing the calls of the members, as CheckError unpacks it. Members are places in
// the team, a bit each.
struct Verdict {
  enum : uint32_t {
    kMost,                                        // who made the call that most have made
    kOther,                                       // who made the one of the first that differs
    kRest,                                        // who called something else again
    kAbsent,                                      // who had not come
    kMostCall,                                    // PackedCall
    kOtherCall = kMostCall + PackedCall::kWords,  // likewise
    kRows = kOtherCall + PackedCall::kWords,      // 1 + sender | receiver << 8, of AllToAllV; or 0
    kSent,                                        // bytes of that row
    kExpected,                                    // likewise; its low 32 bits
    kWords
  };
};
static_assert(Verdict::kWords == ErrorReport::kMismatchWords);

struct Header {
  uint32_t failed;    // not 0: waits of all blocks end
  uint32_t sequence;  // operations of the whole team so far
  uint64_t missing;   // members that had not come when it failed
  // What follows is of use when members call differently; see diagnosis.h. A tag is the number
  // of the operation, from 1 (TagOf).
  uint64_t calling;      // tag | signature << 32, of who has waited long for the others
  uint32_t called_off;   // the tag of an operation that members call differently
  uint32_t diagnosing;   // 1: a thread of this member is at it
  uint32_t judge;        // 1 + the member that compares the calls
  uint32_t verdict_tag;  // what `verdict` is of
  uint64_t record[PackedCall::kWords + 1];  // tag | word << 32; the last one: the signature
  uint64_t verdict[Verdict::kWords];
  uint64_t reserved[1];
};
static_assert(sizeof(Header) == 256);

struct BlockState {
  uint32_t epoch;    // rounds that this block has made
  uint32_t failed;   // not 0: what this block had a part in failed, and it makes no more
  uint64_t signals;  // chunks that this block has pushed
  uint64_t turns;    // kSpinlock: the lock of what this member owns. Who has had it, in all
  uint32_t awaited;  // a message that is alone in its launch: the epoch that it has waited long for
  uint32_t begun;    // in emulation: the epoch it is in; see Rounds::AwaitReadersOfLines
  uint32_t reserved[8];
};
static_assert(sizeof(BlockState) == 64);

// What one member tells another in a round: words of 32 bits, each beside the epoch that makes it
// valid.
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

// Of the lines that a block takes from one member at a time.
IRIS_HOST_DEVICE constexpr uint64_t LineInboxBytes(uint32_t n_members, uint64_t line_bytes) {
  return line_bytes / n_members / kLineUnitBytes * kLineUnitBytes;
}

// Of a chunk that a block takes from one member: a multiple of 128 where there is room, else of 16.
IRIS_HOST_DEVICE constexpr uint64_t PushInboxBytes(uint32_t n_members, uint64_t push_bytes) {
  const uint64_t bytes = push_bytes / kPushSlots / (n_members < 2 ? 1 : n_members - 1);
  return bytes < 128 ? bytes / 16 * 16 : bytes / 128 * 128;
}

// Offsets in a workspace, for a config whose fields are all set.
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
  offsets.packet_bytes =
      offsets.pair_bytes + static_cast<uint64_t>(n) * (n - 1) * kPairBlocks * SyncBytes(2);
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

// Where the rounds of what `from` sends `to` are: each direction has its own.
constexpr uint64_t PairOffset(uint32_t n, const Config& config, uint32_t from, uint32_t to) {
  const uint64_t pair = static_cast<uint64_t>(from) * (n - 1) + (to > from ? to - 1 : to);
  return OffsetsOf(n, config).pair_bytes + pair * kPairBlocks * SyncBytes(2);
}

// What every kernel gets: who the members are, where the workspace is, and what the call is. Of
// kSendRecv the members are the two that make it.
struct Common {
  DeviceContext context;  // of its members only window, timeout and abort word
  ErrorReport* report;
  uint64_t header_offset_bytes;  // in every heap
  uint64_t sync_offset_bytes;
  uint64_t packet_offset_bytes;
  uint64_t line_offset_bytes;
  uint64_t push_offset_bytes;
  uint64_t stage_offset_bytes;
  uint64_t packet_bytes;
  uint64_t line_bytes;        // of an inbox
  uint64_t push_bytes;        // likewise
  uint64_t push_block_bytes;  // of all inboxes of a block
  uint64_t stage_bytes;
  uint32_t size;   // members
  uint32_t index;  // of this member
  uint8_t members[kMaxTeamRanks];
  uint8_t pair[2];  // kSendRecv: the places of its two members in the team
  uint8_t alone;    // kSendRecv: the launch has no other message
  Operation operation;
  uint8_t check;  // packets: compare the calls before anything is waited for
  uint8_t ends;   // 1: the operation's last kernel, which counts it
  uint8_t early;  // 1: the next kernel may begin beside this one
  // The blocks that meet those of others: of so many, the launch has those from this one on. See
  // residency.h.
  uint8_t first_block;
  uint8_t blocks;
  uint32_t signature;
  uint32_t traced;  // what the trace calls it: TraceEvent::op, and above it TraceEvent::peer
  PackedCall call;
  uint64_t answer_offset_bytes;  // kSendRecv: as sync_offset_bytes, of the other direction
  uint64_t in_offset_bytes;      // in this member's heap; kNotInHeap. Any value if nobody reads it
  uint64_t out_offset_bytes;
};

static_assert(kMaxBlocks <= 255);

// Which of the call's blocks the calling thread is in, and how many there are, in whatever pieces
// they are launched. Kernels of several messages have another way to tell: see PairCall.
IRIS_DEVICE inline uint32_t BlockOf(const Common& common) {
  return common.first_block + backend::BlockIndex();
}
IRIS_DEVICE inline uint32_t GridOf(const Common& common) { return common.blocks; }

// Rows of any length, for AllToAllV. Each receiver tells the sender where its row goes, and how
// long it is.
struct Vector {
  uint64_t send_offset_bytes[kMaxTeamRanks];
  uint64_t send_bytes[kMaxTeamRanks];
  uint64_t receive_offset_bytes[kMaxTeamRanks];
  uint64_t receive_bytes[kMaxTeamRanks];
};
// The error word: code | operation << 8 | (member + 1) << 16 | sequence << 32. 0: no error.
IRIS_HOST_DEVICE constexpr uint64_t PackError(StatusCode code, Operation operation, uint32_t member,
                                              uint32_t sequence) {
  return static_cast<uint64_t>(code) | static_cast<uint64_t>(operation) << 8 |
         (static_cast<uint64_t>(member + 1) & 0xff) << 16 | static_cast<uint64_t>(sequence) << 32;
}

}  // namespace iris::ccl::impl
