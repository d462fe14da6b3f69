// Rules that choose how collectives run, as text, so that measured results need no compiler. A line
// is a rule:
//
//   # operation          members  bytes             variant     blocks  threads  unroll
//   all_reduce           4        128KiB            packets     0       0
//   all_reduce           any      any               two_shot    64      512      2
//   # operation          members  m     n     k     variant
//   matmul_all_reduce    4        64    8192  any   pair
//   all_gather_matmul    any      8192  any   any   fused
//   # between  nodes  operation   setting             value
//   nodes      2      all_reduce  leaders_most_bytes  32KiB
//   nodes      any    any         piece_bytes         512KiB
//
// Collectives: the first rule decides whose members and bytes are not less than those of the call.
// `any` stands for no limit, and device/base/bytes.h reads the bytes. If blocks or threads are 0,
// the size decides. unroll, as in ccl::Config, may be missing or 0: the default.
//
// GEMMs: ops::ChooseByRules (iris/ops/rules.h) says which rule decides. `any` stands for every
// number. All ranks must choose alike, so a number in which they may differ (k of matmul_all_reduce
// and matmul_reduce_scatter, n of all_gather_matmul) is always `any`.
//
// Between nodes: a field of ccl::NodesConfig for teams with ranks on up to so many nodes. The first
// line of a setting that reaches decides; of leaders_most_bytes, the first one that names the
// operation goes before those for `any`. Other settings are for `any` operation.
//
// Names are those of OperationName and VariantName. A # begins a comment.
//
// Pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "iris/collective/collective.h"
#include "iris/nodes/nodes.h"
#include "iris/ops/rules.h"

namespace iris::internal {

struct NodesRule {
  uint32_t max_nodes = ccl::kMaxNodes;
  ccl::NodesConfig config;  // one field of it is not 0
};

struct Rules {
  std::vector<ccl::Rule> collectives;
  std::vector<ops::Rule> gemms;
  std::vector<NodesRule> nodes;
};

// The most rules of each kind in a text.
inline constexpr size_t kMaxRules = 1024;
inline constexpr size_t kMaxRuleLineBytes = 256;  // without the line feed

// Returns the value with this name; kNone or kAuto if there is none.
ccl::Operation OperationNamed(absl::string_view name);
ccl::Variant VariantNamed(absl::string_view name);

// Returns true if a collective has the variant: ccl::HasVariant, of the backend.
using HasVariant = bool (*)(ccl::Operation operation, ccl::Variant variant);

// Reads a text, which may have any bytes. kInvalidArgument names a line, its mistake, and the
// remedy.
absl::StatusOr<Rules> ParseRules(absl::string_view text, HasVariant has_variant);

// Returns the line that ParseRules reads as `rule`, without a line feed; nothing if there is none.
std::optional<std::string> FormatRule(const ccl::Rule& rule, HasVariant has_variant);

// The pieces, of NodesConfig::piece_bytes each, for which the workspace of a team on so many nodes
// has room.
constexpr uint64_t NodesPieces(uint64_t n_nodes) { return 11 * n_nodes + 3; }

// Returns the config that the rules give a team with ranks on so many nodes.
ccl::NodesConfig NodesConfigOf(const std::vector<NodesRule>& rules, uint32_t n_nodes);

// Returns the lines, for `any` number of nodes, that ParseRules reads as the fields of the config
// that are not 0. The path has no line.
std::string FormatNodesConfig(const ccl::NodesConfig& config);

}  // namespace iris::internal
