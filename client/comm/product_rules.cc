#include "client/comm/product_rules.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "iris/collective/rules.h"
#include "iris/types.h"

namespace iris::internal {
namespace {

using ccl::Operation;
using ops::Variant;

constexpr Operation kOperations[] = {Operation::kMatmulAllReduce, Operation::kMatmulReduceScatter,
                                     Operation::kAllGatherMatmul, Operation::kMatmulAllGather,
                                     Operation::kMatmulAllScatter};
constexpr Variant kVariants[] = {Variant::kFused, Variant::kPair, Variant::kPersistent,
                                 Variant::kCopyEngine};
static_assert(sizeof(kVariants) / sizeof(kVariants[0]) == ops::kVariantCount - 1,
              "all but kAuto, here and in a message below");
static_assert(ccl::kMaxRuleLineBytes == 256 && ProductRules::kMaxRules == 1024 &&
                  ops::kMaxDimension == 2147483647 && kMaxTeamRanks == 64,
              "messages below name these");
constexpr char kAny[] = "any";
constexpr size_t kWords = 6;

Operation OperationOf(absl::string_view name) {
  for (const Operation operation : kOperations) {
    if (name == ccl::OperationName(operation)) return operation;
  }
  return Operation::kNone;
}

// A word of the text for a message: whatever bytes it has.
std::string Quoted(absl::string_view word) {
  constexpr size_t kMost = 32;
  std::string quoted = "\"";
  for (const char c : word.substr(0, kMost)) quoted.push_back(c < 0x20 || c > 0x7e ? '?' : c);
  return quoted + (word.size() > kMost ? "...\"" : "\"");
}

bool ReadNumber(absl::string_view word, uint64_t most, uint64_t* number) {
  *number = 0;
  if (word == kAny) return true;
  // SimpleAtoi takes signs, too.
  if (word.empty() || word[0] < '0' || word[0] > '9') return false;
  return absl::SimpleAtoi(word, number) && *number >= 1 && *number <= most;
}

absl::Status ReadRule(const std::vector<absl::string_view>& words, ops::Rule* rule) {
  if (words.size() != kWords) {
    return absl::InvalidArgumentError(
        absl::StrCat(words[0], " has ", words.size(),
                     " words, and a line of it has six: operation members m n k variant"));
  }
  uint64_t members = 0;
  if (!ReadNumber(words[1], kMaxTeamRanks, &members)) {
    return absl::InvalidArgumentError(absl::StrCat("the members are ", Quoted(words[1]),
                                                   ": write `any`, or a number from 1 to 64"));
  }
  rule->members = static_cast<uint32_t>(members);
  uint64_t* const dimensions[] = {&rule->m, &rule->n, &rule->k};
  constexpr const char* kNames[] = {"m", "n", "k"};
  for (int i = 0; i < 3; ++i) {
    if (ReadNumber(words[2 + i], ops::kMaxDimension, dimensions[i])) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(kNames[i], " is ", Quoted(words[2 + i]),
                     ": write `any`, or a number of rows or columns from 1 to 2^31 - 1"));
  }
  const bool sums = rule->operation == Operation::kMatmulAllReduce ||
                    rule->operation == Operation::kMatmulReduceScatter;
  if ((sums && rule->k != 0) || (rule->operation == Operation::kAllGatherMatmul && rule->n != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("members of ", words[0], " may differ in ", sums ? "k" : "n",
                     ", and must not choose different variants: write `any` for it"));
  }
  for (const Variant variant : kVariants) {
    if (words[5] == ops::VariantName(variant)) rule->variant = variant;
  }
  if (rule->variant == Variant::kAuto) {
    return absl::InvalidArgumentError(absl::StrCat(
        Quoted(words[5]),
        " is no variant of products: write fused, pair, persistent or copy_engine, or leave out "
        "the line for what goes by itself"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ProductRules> ProductRules::Take(absl::string_view text, std::string* others) {
  ProductRules made;
  others->clear();
  uint64_t number = 0;
  while (!text.empty()) {
    ++number;
    const size_t end = text.find('\n');
    const absl::string_view line = text.substr(0, end);
    // The first words; longer lines than any that is known are refused, by whoever reads them.
    const absl::string_view head = line.substr(0, ccl::kMaxRuleLineBytes);
    const std::vector<absl::string_view> words =
        absl::StrSplit(head.substr(0, head.find('#')), absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    ops::Rule rule;
    if (!words.empty()) rule.operation = OperationOf(words[0]);
    if (rule.operation == Operation::kNone) {
      absl::StrAppend(others, line);
    } else {
      absl::Status status;
      if (line.size() > ccl::kMaxRuleLineBytes) {
        status =
            absl::InvalidArgumentError("the line is longer than 256 bytes: shorten its comment");
      } else if (made.rules_.size() == kMaxRules) {
        status = absl::InvalidArgumentError(
            "more than 1024 lines of products: keep those of the shapes that are used");
      } else {
        status = ReadRule(words, &rule);
      }
      if (!status.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("line ", number, " of the rules: ", status.message()));
      }
      made.rules_.push_back(rule);
    }
    if (end == absl::string_view::npos) break;
    others->push_back('\n');
    text.remove_prefix(end + 1);
  }
  return made;
}

}  // namespace iris::internal
