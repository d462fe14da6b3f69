// The built-in tables of rules: what kAuto takes. Measured; see docs/benchmarks.md.
#pragma once

#include <cstdint>

#include "device/collective/collective.h"

namespace iris::ccl::impl {

struct Table {
  const Rule* rules;
  uint32_t n_rules;
};

// For the backend that this is built for.
Table BuiltInTable();

// Every field set.
Config Complete(Config config);

}  // namespace iris::ccl::impl
