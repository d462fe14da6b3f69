// The built-in tables of rules for kAuto, from measurements; see docs/benchmarks.md.
#pragma once

#include <cstdint>

#include "iris/collective/collective.h"

namespace iris::ccl::impl {

struct Table {
  const Rule* rules;
  uint32_t n_rules;
};

// Returns the built-in rules for emulated devices if `emulated`, otherwise for GPUs.
Table BuiltInTable(bool emulated);

// Returns the rules for GPUs of a Comm that has `max_blocks` blocks, at most kFewBlocks.
inline constexpr uint32_t kFewBlocks = 16;
Table FewBlocksTable(uint32_t max_blocks);

// Returns `config`, which is complete, with the built-in rules if it has none.
Config WithRules(Config config);

}  // namespace iris::ccl::impl
