// The layout of a workspace of moe, and the arguments of its kernels.
//
//   head      the last Dispatch of this rank, and the result of its routing
//   told      [members]: each rank's message to this one in Dispatch: Told, and the number of that
//             rank's rows for each of all experts
//   own       the number of this rank's rows for each of all experts; then the number of rows that
//             it sends to each rank
//   checks    for each group of tokens: the first token that chooses an invalid expert
//   taken     [experts]: with a capacity: the rows that earlier ranks have for each of all experts
//   bases     [members][experts]: the rows that earlier ranks have for each local expert
//   firsts    [experts + 1]: the first row of each local expert
//   places    [members][max_tokens]: the row of token t in a rank's inbox; -1: it is not sent there
//   orders    [max_tokens][top_k]: the number of a choice among this rank's rows for its expert
//   entries   [members][max_tokens][top_k]: for received rows: each choice of the row's token
//   targets   [members][max_tokens][top_k]: the row, in order of experts, of each choice of a local
//             expert; -1: it was dropped
//   rows      [members][max_tokens][row_stride]: the rows received from each rank; in Combine the
//             sums that each rank sent back
//
// If ranks are on several nodes, these follow:
//
//   arrived   [members]: 1 once all rows from that rank have come; of ranks on other nodes
//   staged_entries, staged_rows   as `entries` and `rows`, by receiver: sources of puts
//
// Other ranks write `told`, `entries` and `rows` only after the first round of an operation: then
// all ranks have reached the operation, so that none still reads the old values. The kernels after
// the last round read the new values.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/moe/moe.h"
#include "iris/nodes/impl/layout.h"
#include "iris/nodes/nodes.h"
#include "iris/rounds/layout.h"

namespace iris::moe::impl {

using ccl::Operation;
using ccl::impl::Common;

// Why routing failed; the numbers are those of moe::BadExpert.
enum class BadId : uint32_t { kNone, kNoSuchExpert, kRepeated };
// How a Combine fits the Dispatch before it.
enum class Fit : uint32_t { kFits, kOtherTokens, kNoDispatch };

struct Head {
  uint64_t tag;      // of the complete Dispatch in this workspace; 0: none
  uint32_t tokens;   // the number that this member dispatched
  uint32_t counted;  // 1: `taken` is complete
  uint32_t reserved[12];
};
static_assert(sizeof(Head) == 64);

// Followed by uint32_t rows_of_expert[n_experts]. Between nodes, it is the same for all members,
// and uint32_t rows_for[members] follows.
struct Told {
  uint32_t rows;  // rows for this member; of a team on one node
  BadId bad;
  uint32_t bad_token;
  // Set in Combine.
  Fit fit;
  int64_t bad_value;
  uint32_t dispatched_tokens;
  uint32_t combined_tokens;
  uint64_t more[4];
};
static_assert(sizeof(Told) == 64);

struct Entry {
  int32_t expert;  // an expert of the receiver; -1: another member's
  uint32_t order;
  float weight;
  uint32_t token;  // index at its member
};
static_assert(sizeof(Entry) == sizeof(Bytes16));

inline constexpr uint32_t kLeastThreads = 64;  // of a block

struct Offsets {
  uint64_t told_bytes;
  uint64_t told_stride_bytes;
  uint64_t own_bytes;
  uint64_t sent_bytes;  // uint32_t [members]
  uint64_t checks_bytes;
  uint64_t taken_bytes;
  uint64_t bases_bytes;
  uint64_t firsts_bytes;
  uint64_t places_bytes;
  uint64_t orders_bytes;
  uint64_t entries_bytes;
  uint64_t targets_bytes;
  uint64_t rows_bytes;
  uint64_t row_stride_bytes;   // in Dispatch
  uint64_t back_stride_bytes;  // in Combine
  uint64_t scales_at_bytes;
  uint64_t arrived_bytes;
  uint64_t staged_entries_bytes;
  uint64_t staged_rows_bytes;
  uint64_t total_bytes;
};

constexpr uint64_t ScaleColumnsOf(const Config& config) {
  return config.rows == DType::kF8E4M3
             ? (uint64_t{config.hidden} + kScaleColumns - 1) / kScaleColumns
             : 0;
}

// Computes the layout for a config whose types are all set. `on_nodes`: ranks may be on several.
constexpr Offsets OffsetsOf(uint32_t members, const Config& config, bool on_nodes) {
  using ccl::impl::RoundUp;
  constexpr uint64_t kAlign = kWorkspaceAlignmentBytes;
  Offsets at = {};
  at.told_bytes = kAlign;
  const uint64_t numbers = uint64_t{config.n_experts} + (on_nodes ? members : 0);
  at.told_stride_bytes = RoundUp(sizeof(Told) + 4 * numbers, kAlign);
  at.own_bytes = at.told_bytes + members * at.told_stride_bytes;
  at.sent_bytes = at.own_bytes + at.told_stride_bytes;
  at.checks_bytes = at.sent_bytes + RoundUp(uint64_t{4} * members, kAlign);
  const uint64_t checks = (uint64_t{config.max_tokens} + kLeastThreads - 1) / kLeastThreads;
  at.taken_bytes = at.checks_bytes + RoundUp(4 * checks, kAlign);
  at.bases_bytes =
      at.taken_bytes + RoundUp(config.capacity != 0 ? uint64_t{4} * config.n_experts : 0, kAlign);
  // The largest number of experts of a member.
  const uint64_t local = (uint64_t{config.n_experts} + members - 1) / members;
  at.firsts_bytes = at.bases_bytes + RoundUp(4 * members * local, kAlign);
  at.places_bytes = at.firsts_bytes + RoundUp(4 * (local + 1), kAlign);
  const uint64_t slots = uint64_t{members} * config.max_tokens;
  at.orders_bytes = at.places_bytes + RoundUp(4 * slots, kAlign);
  at.entries_bytes =
      at.orders_bytes + RoundUp(uint64_t{4} * config.max_tokens * config.top_k, kAlign);
  at.targets_bytes = at.entries_bytes + RoundUp(sizeof(Entry) * slots * config.top_k, kAlign);
  at.rows_bytes = at.targets_bytes + RoundUp(4 * slots * config.top_k, kAlign);
  at.scales_at_bytes = RoundUp(config.hidden * DTypeBytes(config.rows), 16);
  at.row_stride_bytes = at.scales_at_bytes + RoundUp(4 * ScaleColumnsOf(config), 16);
  at.back_stride_bytes = RoundUp(config.hidden * DTypeBytes(config.partials), 16);
  const uint64_t rows =
      RoundUp(slots * (at.row_stride_bytes > at.back_stride_bytes ? at.row_stride_bytes
                                                                  : at.back_stride_bytes),
              kAlign);
  at.arrived_bytes = at.rows_bytes + rows;
  at.staged_entries_bytes = at.arrived_bytes + RoundUp(uint64_t{8} * members, kAlign);
  at.staged_rows_bytes = at.staged_entries_bytes + (at.targets_bytes - at.entries_bytes);
  at.total_bytes = on_nodes ? at.staged_rows_bytes + rows : at.arrived_bytes;
  return at;
}

// In Common::members: the member is on another node.
inline constexpr uint8_t kElsewhere = 0xff;

// The arguments of all kernels.
struct MoeCall {
  // Between nodes, of the whole team; it is for no kernel that meets other members.
  Common common;
  ccl::NodesReport* nodes;          // null: all members are on one node
  uint64_t nodes_state_bytes;       // offset of NodesState in the heap
  uint64_t workspace_offset_bytes;  // in every heap
  Offsets at;
  uint64_t tag;  // of the config
  uint32_t tokens;
  uint32_t n_experts;
  uint32_t top_k;
  uint32_t hidden;
  uint32_t max_tokens;
  uint32_t capacity;
  uint32_t sync_blocks;  // Config::max_blocks of the Comm
  // 1: this member's rows for its own experts stay in place until Expand takes them.
  uint32_t own_stay;
  DType in;
  DType rows;
  DType partials;
  DType ids_type;
  const uint8_t* x;
  const float* x_scales;
  const uint8_t* ids;
  const float* weights;
  uint8_t* out_rows;
  float* out_scales;
  int32_t* counts;
  int32_t* offsets;
  int32_t* dropped;
  int32_t* sources;
  const uint8_t* y;
  uint8_t* out;
  DType y_type;
  DType out_type;
};
static_assert(sizeof(MoeCall) + sizeof(ccl::impl::NodesCall) <= 4000,
              "a launch takes 4 KiB of arguments");

// The experts of a member: the first (n_experts mod members) have one more.
struct Experts {
  uint32_t begin;
  uint32_t count;
};
IRIS_HOST_DEVICE constexpr Experts ExpertsOf(uint32_t n_experts, uint32_t members,
                                             uint32_t member) {
  const uint32_t each = n_experts / members;
  const uint32_t longer = n_experts % members;
  return {member * each + (member < longer ? member : longer), each + (member < longer ? 1 : 0)};
}

}  // namespace iris::moe::impl
