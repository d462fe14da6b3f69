// The built-in tables of rules: what kAuto takes. Measured; see docs/benchmarks.md.
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

// Returns the rules for GPUs of a Comm that has kFewBlocks blocks or fewer.
inline constexpr uint32_t kFewBlocks = 16;
Table FewBlocksTable(uint32_t max_blocks);

// Returns `config` with the built-in rules if it has none.
Config WithRules(Config config);

}  // namespace iris::ccl::impl
