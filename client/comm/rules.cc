#include "client/comm/rules.h"

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "device/base/bytes.h"
#include "iris/types.h"

namespace iris::internal {
namespace {

using ccl::Operation;

constexpr char kAny[] = "any";
constexpr char kNodes[] = "nodes";  // the first word of lines between nodes
constexpr char kLeadersMostBytes[] = "leaders_most_bytes";
static_assert(kMaxRules == 1024 && kMaxRuleLineBytes == 256 && kMaxTeamRanks == 64 &&
                  ccl::kMaxBlocks == 128 && ccl::kMaxThreads == 512 && ccl::kMaxUnroll == 2 &&
                  ops::kMaxDimension == 2147483647 && ops::kVariantCount == 5 &&
                  ccl::kMaxNodes == 256,
              "messages below name these");

using Words = std::vector<absl::string_view>;

// Returns a word of the text, which may have any bytes, for a message.
std::string Quoted(absl::string_view word) {
  constexpr size_t kMost = 32;
  std::string quoted = "\"";
  for (const char c : word.substr(0, kMost)) quoted.push_back(c < 0x20 || c > 0x7e ? '?' : c);
  return quoted + (word.size() > kMost ? "...\"" : "\"");
}

// `name` has its verb, such as "the members are".
absl::Status Wrong(absl::string_view name, absl::string_view word, absl::string_view remedy) {
  return absl::InvalidArgumentError(absl::StrCat(name, " ", Quoted(word), ": write ", remedy));
}

template <typename T>
bool ReadNumber(absl::string_view word, uint64_t least, uint64_t most, T* number) {
  // SimpleAtoi takes signs, too.
  uint64_t read = 0;
  if (word.empty() || word[0] < '0' || word[0] > '9' || !absl::SimpleAtoi(word, &read)) {
    return false;
  }
  *number = static_cast<T>(read);
  return read >= least && read <= most;
}

template <typename T>
bool ReadNumberOrAny(absl::string_view word, uint64_t most, T any, T* number) {
  if (word != kAny) return ReadNumber(word, 1, most, number);
  *number = any;
  return true;
}

// Reads a size from 1, or `any`.
bool ReadBytesOrAny(absl::string_view word, uint64_t* bytes) {
  *bytes = ccl::kAnyBytes;
  return word == kAny || (base::ParseBytes(std::string(word), bytes) && *bytes != 0);
}

std::string BytesText(uint64_t bytes) {
  if (bytes == ccl::kAnyBytes) return kAny;
  constexpr const char* kUnits[] = {"", "KiB", "MiB", "GiB"};
  int unit = 0;
  for (; unit < 3 && bytes != 0 && bytes % 1024 == 0; ++unit) bytes /= 1024;
  return absl::StrCat(bytes, kUnits[unit]);
}

absl::Status ReadCollective(const Words& words, HasVariant has_variant, ccl::Rule* rule) {
  if (words.size() < 6) {
    return absl::InvalidArgumentError(
        "fewer than six words: operation members bytes variant blocks threads");
  }
  if (words.size() > 7) return absl::InvalidArgumentError("more than seven words in a line");
  if (!ReadNumberOrAny(words[1], kMaxTeamRanks, kMaxTeamRanks, &rule->max_members)) {
    return Wrong("the members are", words[1], "`any`, or a number from 1 to 64");
  }
  if (!ReadBytesOrAny(words[2], &rule->max_bytes)) {
    return Wrong("the bytes are", words[2],
                 "`any`, or a number from 1 such as 4096, 64KiB or 1GiB");
  }
  rule->variant = VariantNamed(words[3]);
  if (rule->variant == ccl::Variant::kAuto) {
    return absl::InvalidArgumentError(absl::StrCat("no such variant: ", Quoted(words[3])));
  }
  if (!has_variant(rule->operation, rule->variant)) {
    return absl::InvalidArgumentError(
        absl::StrCat(words[0], " does not have this variant: ", words[3]));
  }
  if (!ReadNumber(words[4], 0, ccl::kMaxBlocks, &rule->blocks)) {
    return Wrong("the blocks are", words[4], "a number from 0 (by size) to 128");
  }
  if (!ReadNumber(words[5], 0, ccl::kMaxThreads, &rule->threads)) {
    return Wrong("the threads are", words[5], "a number from 0 (by size) to 512");
  }
  rule->unroll = 0;
  if (words.size() == 7 && !ReadNumber(words[6], 0, ccl::kMaxUnroll, &rule->unroll)) {
    return Wrong("the unroll is", words[6], "a number from 0 (the default) to 2");
  }
  return absl::OkStatus();
}

absl::Status ReadGemm(const Words& words, ops::Rule* rule) {
  if (words.size() != 6) {
    return absl::InvalidArgumentError(
        absl::StrCat(words[0], " has ", words.size(),
                     " words, and a line of it has six: operation members m n k variant"));
  }
  if (!ReadNumberOrAny(words[1], kMaxTeamRanks, 0u, &rule->members)) {
    return Wrong("the members are", words[1], "`any`, or a number from 1 to 64");
  }
  uint64_t* const dimensions[] = {&rule->m, &rule->n, &rule->k};
  constexpr const char* kNames[] = {"m is", "n is", "k is"};
  for (int i = 0; i < 3; ++i) {
    if (ReadNumberOrAny(words[2 + i], ops::kMaxDimension, uint64_t{0}, dimensions[i])) continue;
    return Wrong(kNames[i], words[2 + i], "`any`, or a number of rows or columns below 2^31");
  }
  const bool sums = rule->operation == Operation::kMatmulAllReduce ||
                    rule->operation == Operation::kMatmulReduceScatter;
  if ((sums && rule->k != 0) || (rule->operation == Operation::kAllGatherMatmul && rule->n != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("members of ", words[0], " may differ in ", sums ? "k" : "n",
                     ", and must not choose different variants: write `any` for it"));
  }
  for (uint32_t v = 1; v < ops::kVariantCount; ++v) {
    if (words[5] == ops::VariantName(static_cast<ops::Variant>(v))) {
      rule->variant = static_cast<ops::Variant>(v);
    }
  }
  if (rule->variant == ops::Variant::kAuto) {
    return absl::InvalidArgumentError(absl::StrCat(
        Quoted(words[5]),
        " is no variant of GEMMs: write fused, pair, persistent or copy_engine, or leave out the "
        "line for automatic choice"));
  }
  return absl::OkStatus();
}

struct Setting {
  const char* name;
  uint64_t least;
  uint64_t most;
  bool is_size = false;  // and a multiple of 256
};
// Calls visit(setting, field of each config) for the settings of all operations together.
template <typename Visit, typename... Config>
void ForSettings(Visit visit, Config&... config) {
  constexpr uint64_t kGiB = 1 << 30;
  visit(Setting{"leader_bytes", 4096, kGiB, true}, config.leader_bytes...);
  visit(Setting{"piece_bytes", 4096, kGiB, true}, config.piece_bytes...);
  visit(Setting{"message_bytes", 256, kGiB, true}, config.message_bytes...);
  visit(Setting{"direct_nodes", 1, ccl::kMaxNodes}, config.direct_nodes...);
  visit(Setting{"blocks", 1, ccl::kMaxBlocks}, config.blocks...);
  visit(Setting{"threads", 1, ccl::kMaxThreads}, config.threads...);
}

bool IsCollective(Operation operation, HasVariant has_variant) {
  return has_variant(operation, ccl::Variant::kDirect) ||
         has_variant(operation, ccl::Variant::kTwoShot);
}

absl::Status ReadNodes(const Words& words, HasVariant has_variant, NodesRule* rule) {
  if (words.size() != 5) {
    return absl::InvalidArgumentError(
        absl::StrCat("a line between nodes has five words, and this one has ", words.size(),
                     ": nodes, how many of them, operation, setting and value"));
  }
  if (!ReadNumberOrAny(words[1], ccl::kMaxNodes, ccl::kMaxNodes, &rule->max_nodes)) {
    return Wrong("the number of nodes is", words[1], "`any`, or a number from 1 to 256");
  }
  const absl::string_view name = words[3], value = words[4];
  if (name == kLeadersMostBytes) {
    uint64_t* most = &rule->config.leaders_most_bytes;
    if (words[2] != kAny) {
      const Operation operation = OperationNamed(words[2]);
      if (!IsCollective(operation, has_variant) || operation == Operation::kSendRecv) {
        return Wrong("the operation is", words[2], "`any`, or a collective such as all_reduce");
      }
      most = &rule->config.leaders_most_bytes_of[static_cast<uint32_t>(operation)];
    }
    if (ReadBytesOrAny(value, most)) return absl::OkStatus();
    return Wrong("leaders_most_bytes is", value, "`any`, or a size such as 64KiB");
  }
  std::string names = kLeadersMostBytes;
  absl::Status status = absl::NotFoundError("");
  ForSettings(
      [&](const Setting& setting, auto& field) {
        absl::StrAppend(&names, ", ", setting.name);
        if (name != setting.name) return;
        const auto [unused, least, most, is_size] = setting;
        uint64_t number = 0;
        const bool read = is_size ? base::ParseBytes(std::string(value), &number) &&
                                        number >= least && number <= most && number % 256 == 0
                                  : ReadNumber(value, least, most, &number);
        field = static_cast<std::decay_t<decltype(field)>>(number);
        status = read ? absl::OkStatus()
                      : Wrong(absl::StrCat(name, " is"), value,
                              is_size ? absl::StrCat("a multiple of 256 from ", BytesText(least),
                                                     " to ", BytesText(most))
                                      : absl::StrCat("a number from ", least, " to ", most));
      },
      rule->config);
  if (absl::IsNotFound(status)) {
    return absl::InvalidArgumentError(
        absl::StrCat("no such setting: ", Quoted(name), ": write one of ", names));
  }
  if (status.ok() && words[2] != kAny) {
    return Wrong(absl::StrCat("the operation of ", name, " is"), words[2],
                 "`any`: only leaders_most_bytes differs between operations");
  }
  return status;
}

template <typename Rule>
absl::Status Add(const absl::Status& status, const Rule& rule, const char* kind,
                 std::vector<Rule>* rules) {
  if (!status.ok()) return status;
  if (rules->size() == kMaxRules) {
    return absl::InvalidArgumentError(
        absl::StrCat("more than 1024 rules of ", kind, ": keep those that are used"));
  }
  rules->push_back(rule);
  return absl::OkStatus();
}

absl::Status ReadLine(absl::string_view line, HasVariant has_variant, Rules* rules) {
  if (line.size() > kMaxRuleLineBytes) {
    return absl::InvalidArgumentError("the line is longer than 256 bytes: shorten its comment");
  }
  const Words words =
      absl::StrSplit(line.substr(0, line.find('#')), absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  if (words.empty()) return absl::OkStatus();
  if (words[0] == kNodes) {
    NodesRule rule;
    return Add(ReadNodes(words, has_variant, &rule), rule, "settings between nodes", &rules->nodes);
  }
  const Operation operation = OperationNamed(words[0]);
  if (ccl::IsMatmul(operation)) {
    ops::Rule rule;
    rule.operation = operation;
    return Add(ReadGemm(words, &rule), rule, "GEMMs", &rules->gemms);
  }
  if (!IsCollective(operation, has_variant)) {
    return absl::InvalidArgumentError(absl::StrCat("no such operation: ", Quoted(words[0])));
  }
  ccl::Rule rule = {};
  rule.operation = operation;
  return Add(ReadCollective(words, has_variant, &rule), rule, "collectives", &rules->collectives);
}

}  // namespace

Operation OperationNamed(absl::string_view name) {
  for (uint32_t o = 1; o < ccl::kOperationCount; ++o) {
    if (name == ccl::OperationName(static_cast<Operation>(o))) return static_cast<Operation>(o);
  }
  return Operation::kNone;
}

ccl::Variant VariantNamed(absl::string_view name) {
  for (uint32_t v = 1; v < ccl::kVariantCount; ++v) {
    const auto variant = static_cast<ccl::Variant>(v);
    if (ccl::IsVariant(v) && name == ccl::VariantName(variant)) return variant;
  }
  return ccl::Variant::kAuto;
}

absl::StatusOr<Rules> ParseRules(absl::string_view text, HasVariant has_variant) {
  Rules rules;
  size_t number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (absl::Status status = ReadLine(line, has_variant, &rules); !status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, " of the rules: ", status.message()));
    }
  }
  return rules;
}

std::optional<std::string> FormatRule(const ccl::Rule& rule, HasVariant has_variant) {
  const std::string members =
      rule.max_members == kMaxTeamRanks ? kAny : absl::StrCat(rule.max_members);
  const std::string line =
      absl::StrFormat("%-14s %3s %7s  %-11s %3u %3u %u", ccl::OperationName(rule.operation),
                      members, BytesText(rule.max_bytes), ccl::VariantName(rule.variant),
                      rule.blocks, rule.threads, rule.unroll);
  // This refuses unknown enumerators and numbers out of range.
  if (!ParseRules(line, has_variant).ok()) return std::nullopt;
  return line;
}

ccl::NodesConfig NodesConfigOf(const std::vector<NodesRule>& rules, uint32_t n_nodes) {
  ccl::NodesConfig config;
  const auto take = [](auto& field, const auto& rule_field) {
    if (field == 0) field = rule_field;
  };
  for (const NodesRule& rule : rules) {
    if (n_nodes > rule.max_nodes) continue;
    take(config.leaders_most_bytes, rule.config.leaders_most_bytes);
    for (uint32_t o = 0; o < ccl::kOperationCount; ++o) {
      take(config.leaders_most_bytes_of[o], rule.config.leaders_most_bytes_of[o]);
    }
    ForSettings([&](const Setting&, auto& field, const auto& from) { take(field, from); }, config,
                rule.config);
  }
  return config;
}

std::string FormatNodesConfig(const ccl::NodesConfig& config) {
  std::string text;
  const auto add = [&text](const char* operation, const char* setting, uint64_t value, bool size) {
    if (value == 0) return;
    absl::StrAppend(&text, kNodes, " any ", operation, " ", setting, " ",
                    size ? BytesText(value) : absl::StrCat(value), "\n");
  };
  for (uint32_t o = 0; o < ccl::kOperationCount; ++o) {
    add(ccl::OperationName(static_cast<Operation>(o)), kLeadersMostBytes,
        config.leaders_most_bytes_of[o], /*size=*/true);
  }
  add(kAny, kLeadersMostBytes, config.leaders_most_bytes, /*size=*/true);
  ForSettings([&](const Setting& setting,
                  const auto& field) { add(kAny, setting.name, field, setting.is_size); },
              config);
  return text;
}

}  // namespace iris::internal
