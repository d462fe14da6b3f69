// The values in a heap as iris-ctl peek shows them: which types it knows, and how to write values.
// Pure functions; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace iris::ctl {

// A type of elements, as an allocation's dtype names it.
struct ElementType {
  const char* name;  // "f32"
  size_t bytes;
  // The value whose bytes are at `data`, which need not be aligned.
  std::string (*text)(const char* data);
  // A number; for what JSON has no number, "nan", "inf" or "-inf".
  nlohmann::ordered_json (*json)(const char* data);
};

// The type of that name, or of what other software calls it ("float32", "int8", "bfloat16");
// nullptr: none is known.
const ElementType* FindElementType(absl::string_view name);

// The names of all types.
std::vector<std::string> ElementTypeNames();

// Lines of values, each with the index of its first one. `bytes` has a whole number of elements, of
// which the first has the index `first`. A line that repeats the one before is shown as "*", once.
std::string ValueDump(const ElementType& type, absl::string_view bytes, uint64_t first);

}  // namespace iris::ctl
