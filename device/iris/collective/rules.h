// Tables of rules as text, so that what was measured on a machine needs no compiler. One rule a
// line, the first one that fits decides:
//
//   # operation  members  bytes   variant  blocks  threads  unroll
//   all_reduce   4        128KiB  packets  0       0
//   all_reduce   any      any     two_shot 64      512      2
//
// members, bytes: up to so many; `any` for no limit; bytes as device/base/bytes.h reads them.
// blocks, threads: 0 for by size. unroll, of Config, may be missing or 0: what is usual. Operations
// and variants as OperationName and VariantName say. What follows a # is a comment.
//
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "iris/collective/collective.h"

namespace iris::ccl {

// What a text may hold.
inline constexpr uint32_t kMaxRules = 1024;
inline constexpr uint32_t kMaxRuleLineBytes = 256;  // without the line feed

// Rule::max_bytes of `any`.
inline constexpr uint64_t kAnyBytes = ~uint64_t{0};

// Reads `text`, which ends with a zero byte, into rules[0, capacity). kInvalidArgument explains an
// error in line *line, from 1. On failure *n_rules is 0 and rules may hold anything. Any bytes may
// come.
Result ParseRules(const char* text, Rule* rules, uint32_t capacity, uint32_t* n_rules,
                  uint32_t* line);

// Writes a line that ParseRules reads as `rule`, without a line feed. Returns its length; -1 if
// ParseRules would refuse it or the buffer is too small (kMaxRuleLineBytes + 1 is not).
int FormatRule(const Rule& rule, char* buffer, size_t buffer_bytes);

// By the name that OperationName or VariantName gives. False if there is none that a rule can have.
bool ParseOperation(const char* name, Operation* operation);
bool ParseVariant(const char* name, Variant* variant);

// Whether the operation has this variant for some type, op and team. Of calls, Choose says more.
bool HasVariant(Operation operation, Variant variant);

}  // namespace iris::ccl
