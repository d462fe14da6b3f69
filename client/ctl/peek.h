// iris-ctl peek: which bytes of a heap are meant, and how to show them. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/ctl/element_type.h"
#include "nlohmann/json.hpp"
#include "proto/iris/v1/admin.pb.h"

namespace iris::ctl {

// What a user asks for.
struct PeekWish {
  std::string job;
  uint32_t rank = 0;
  std::string place;  // an offset, if it is a number of bytes, else an allocation's name
  std::string dtype;  // "hex"; empty: the allocation's own
  std::optional<uint64_t> count;  // of elements
  std::optional<uint64_t> bytes;  // instead of count
  uint64_t first_element = 0;     // counted from the place
};

// What is read and shown.
struct PeekPlan {
  std::string name;  // of the allocation; empty: none was named
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;
  const ElementType* type = nullptr;  // nullptr: bytes, as a hex dump
  uint64_t first_element = 0;
  std::string what;  // of the allocation: "f32 64x64, 16 KiB"
};

// True if the place of a wish is the name of an allocation.
bool NamesAllocation(const PeekWish& wish);

// `allocations` has all of the job, if the place names one. kNotFound: none of that name; the text
// has names that are like it. kFailedPrecondition: several of that name. kInvalidArgument: the wish
// contradicts itself, or goes beyond the allocation.
absl::StatusOr<PeekPlan> PlanPeek(const PeekWish& wish,
                                  const v1::ListAllocationsReply& allocations);

std::string PeekText(const PeekWish& wish, const PeekPlan& plan, const std::string& data);
nlohmann::ordered_json PeekJson(const PeekWish& wish, const PeekPlan& plan,
                                const std::string& data);

}  // namespace iris::ctl
