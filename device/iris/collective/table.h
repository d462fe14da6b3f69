// The built-in tables of rules: what kAuto takes. Measured; see docs/benchmarks.md.
#pragma once

#include <cstdint>

#include "iris/collective/collective.h"

namespace iris::ccl::impl {

struct Table {
  const Rule* rules;
  uint32_t n_rules;
};

// For emulated devices or for GPUs.
Table BuiltInTable(bool emulated);

// For GPUs, where a Comm has kFewBlocks or fewer.
inline constexpr uint32_t kFewBlocks = 16;
Table FewBlocksTable(uint32_t max_blocks);

// A complete config, with the built-in rules where it has none.
Config WithRules(Config config);

}  // namespace iris::ccl::impl
