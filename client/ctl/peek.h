// iris-ctl peek: finds the bytes of a heap that a user asks for, and shows them. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "proto/iris/v1/admin.pb.h"

namespace iris::ctl {

// A type of elements, as an allocation's dtype names it.
struct ElementType {
  const char* name;  // "f32"
  size_t bytes;
  // The value whose bytes are at `data`, which need not be aligned.
  std::string (*text)(const char* data);
  // The value as a number, or, because JSON has no such numbers, as "nan", "inf" or "-inf".
  nlohmann::ordered_json (*json)(const char* data);
};

// Finds a type by its name, or by its name in other software ("float32", "int8", "bfloat16").
// Returns null if none is known.
const ElementType* FindElementType(absl::string_view name);

std::vector<std::string> ElementTypeNames();

// Returns lines of values, each after the index of its first value. `bytes` has complete elements,
// and the first one has the index `first`. Lines that repeat the line before are shown as one "*".
std::string ValueDump(const ElementType& type, absl::string_view bytes, uint64_t first);

struct PeekWish {
  std::string job;
  uint32_t rank = 0;
  std::string place;  // an offset, if it is a number of bytes, else an allocation's name
  std::string dtype;  // "hex"; empty: the allocation's own
  std::optional<uint64_t> count;  // of elements
  std::optional<uint64_t> bytes;  // instead of count
  uint64_t first_element = 0;     // counted from the place
};

struct PeekPlan {
  std::string name;  // of the allocation; empty: none was named
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;
  const ElementType* type = nullptr;  // null for bytes, which are shown in hex
  uint64_t first_element = 0;
  std::string what;  // of the allocation: "f32 64x64, 16 KiB"
};

// Returns true if the place of a wish is the name of an allocation.
bool NamesAllocation(const PeekWish& wish);

// Finds the bytes of a wish. `allocations` has all of the job if the place names an allocation.
// kNotFound if none has that name; the message has similar names. kFailedPrecondition if several
// have it. kInvalidArgument if the wish contradicts itself, or goes beyond the allocation.
absl::StatusOr<PeekPlan> PlanPeek(const PeekWish& wish,
                                  const v1::ListAllocationsReply& allocations);

std::string PeekText(const PeekWish& wish, const PeekPlan& plan, const std::string& data);
nlohmann::ordered_json PeekJson(const PeekWish& wish, const PeekPlan& plan,
                                const std::string& data);

}  // namespace iris::ctl
