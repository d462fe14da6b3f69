// The built-in tables of rules: what kAuto takes. Measured; see docs/benchmarks.md.
#pragma once

#include <cstdint>

#include "iris/collective/collective.h"

namespace iris::ccl::impl {

struct Table {
  const Rule* rules;
  uint32_t n_rules;
};

// Whether the backend that this is built for is the emulator.
bool Emulated();

// For emulated devices or for GPUs.
Table BuiltInTable(bool emulated);

// For GPUs, where a Comm has kFewBlocks or fewer.
inline constexpr uint32_t kFewBlocks = 16;
Table FewBlocksTable(uint32_t max_blocks);

// Every field set.
Config Complete(Config config);

}  // namespace iris::ccl::impl
