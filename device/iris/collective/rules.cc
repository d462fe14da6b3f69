#include "iris/collective/rules.h"

#include <cstdio>
#include <cstring>

#include "device/base/bytes.h"
#include "iris/collective/variants/variant.h"

namespace iris::ccl {
namespace {

constexpr Operation kOperations[] = {
    Operation::kAllReduce, Operation::kAllGather, Operation::kReduceScatter,
    Operation::kAllToAll,  Operation::kBroadcast, Operation::kReduce,
    Operation::kGather,    Operation::kScatter,   Operation::kSendRecv};

constexpr char kAny[] = "any";
constexpr uint32_t kWords = 7;
constexpr uint32_t kMinWords = kWords - 1;  // the unroll may be missing
constexpr uint32_t kMaxWordBytes = 31;

struct Unit {
  const char* name;
  uint32_t shift;
};
constexpr Unit kUnits[] = {{"GiB", 30}, {"MiB", 20}, {"KiB", 10}, {"", 0}};

Result Invalid(const char* what) { return {StatusCode::kInvalidArgument, what}; }

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

// Decimal digits at *at, which comes to stand behind them.
bool ParseDigits(const char** at, uint64_t* value) {
  if (**at < '0' || **at > '9') return false;
  *value = 0;
  for (; **at >= '0' && **at <= '9'; ++*at) {
    const uint64_t digit = static_cast<uint64_t>(**at - '0');
    if (*value > (kAnyBytes - digit) / 10) return false;
    *value = 10 * *value + digit;
  }
  return true;
}

bool ParseCount(const char* word, uint32_t min, uint32_t max, uint32_t* count) {
  uint64_t value = 0;
  if (!ParseDigits(&word, &value) || *word != '\0' || value < min || value > max) return false;
  *count = static_cast<uint32_t>(value);
  return true;
}

bool ParseMaxBytes(const char* word, uint64_t* bytes) {
  if (std::strcmp(word, kAny) == 0) {
    *bytes = kAnyBytes;
    return true;
  }
  return base::ParseBytes(word, bytes) && *bytes != 0;
}

Result ParseWords(const char (*words)[kMaxWordBytes + 1], uint32_t n_words, Rule* rule) {
  if (!ParseOperation(words[0], &rule->operation)) return Invalid("no such operation");
  if (std::strcmp(words[1], kAny) == 0) {
    rule->max_members = kMaxTeamRanks;
  } else if (!ParseCount(words[1], 1, kMaxTeamRanks, &rule->max_members)) {
    return Invalid("the members must be `any` or a number from 1 to kMaxTeamRanks, 64");
  }
  if (!ParseMaxBytes(words[2], &rule->max_bytes)) {
    return Invalid("the bytes must be `any`, or a number from 1 such as 4096, 64KiB or 1GiB");
  }
  if (!ParseVariant(words[3], &rule->variant)) return Invalid("no such variant");
  if (!HasVariant(rule->operation, rule->variant)) {
    return Invalid("the operation does not have this variant");
  }
  if (!ParseCount(words[4], 0, kMaxBlocks, &rule->blocks)) {
    return Invalid("the blocks must be a number from 0 (by size) to kMaxBlocks, 128");
  }
  if (!ParseCount(words[5], 0, kMaxThreads, &rule->threads)) {
    return Invalid("the threads must be a number from 0 (by size) to kMaxThreads, 512");
  }
  rule->unroll = 0;
  if (n_words > kMinWords && !ParseCount(words[6], 0, kMaxUnroll, &rule->unroll)) {
    return Invalid("the unroll must be a number from 0 (by default) to kMaxUnroll, 2");
  }
  return {};
}

// The line at `text`, `bytes` long. *is_rule: it is neither blank nor a comment.
Result ParseLine(const char* text, size_t bytes, Rule* rule, bool* is_rule) {
  *is_rule = false;
  if (bytes > kMaxRuleLineBytes) return Invalid("the line is longer than 256 bytes");
  char words[kWords][kMaxWordBytes + 1];
  uint32_t n_words = 0;
  for (size_t at = 0; at < bytes && text[at] != '#';) {
    if (IsBlank(text[at])) {
      ++at;
      continue;
    }
    const size_t begin = at;
    while (at < bytes && text[at] != '#' && !IsBlank(text[at])) ++at;
    if (n_words == kWords) return Invalid("more than seven words in a line");
    if (at - begin > kMaxWordBytes) return Invalid("a word is longer than any that is known");
    std::memcpy(words[n_words], text + begin, at - begin);
    words[n_words++][at - begin] = '\0';
  }
  if (n_words == 0) return {};
  if (n_words < kMinWords) {
    return Invalid("fewer than six words: operation members bytes variant blocks threads");
  }
  *is_rule = true;
  return ParseWords(words, n_words, rule);
}

}  // namespace

static_assert(kMaxTeamRanks == 64 && kMaxBlocks == 128 && kMaxThreads == 512 && kMaxUnroll == 2 &&
                  kMaxRuleLineBytes == 256,
              "messages above name these");

bool ParseOperation(const char* name, Operation* operation) {
  for (Operation candidate : kOperations) {
    if (std::strcmp(name, OperationName(candidate)) != 0) continue;
    *operation = candidate;
    return true;
  }
  return false;
}

bool ParseVariant(const char* name, Variant* variant) {
  for (const impl::VariantRow* row : impl::kRows) {
    if (std::strcmp(name, VariantName(row->variant)) != 0) continue;
    *variant = row->variant;
    return true;
  }
  return false;
}

bool HasVariant(Operation operation, Variant variant) {
  if (operation > Operation::kSendRecv || operation == Operation::kBarrier) return false;
  const impl::VariantRow* row = impl::FindRow(impl::kRows, variant);
  return row != nullptr && (row->operations & impl::Bit(operation)) != 0;
}

Result ParseRules(const char* text, Rule* rules, uint32_t capacity, uint32_t* n_rules,
                  uint32_t* line) {
  *n_rules = 0;
  *line = 0;
  uint32_t n = 0;
  while (*text != '\0') {
    ++*line;
    const size_t bytes = std::strcspn(text, "\n");
    Rule rule;
    bool is_rule = false;
    if (Result result = ParseLine(text, bytes, &rule, &is_rule); !result.ok()) return result;
    if (is_rule) {
      if (n == kMaxRules) return Invalid("more than 1024 rules");
      if (n == capacity) return Invalid("more rules than there is room for");
      rules[n++] = rule;
    }
    text += bytes;
    if (*text == '\n') ++text;
  }
  *n_rules = n;
  return {};
}

static_assert(kMaxRules == 1024, "a message above names it");

int FormatRule(const Rule& rule, char* buffer, size_t buffer_bytes) {
  char members[16];
  if (rule.max_members == kMaxTeamRanks) {
    std::snprintf(members, sizeof(members), "%s", kAny);
  } else {
    std::snprintf(members, sizeof(members), "%u", rule.max_members);
  }
  char bytes[32] = "";
  if (rule.max_bytes == kAnyBytes) {
    std::snprintf(bytes, sizeof(bytes), "%s", kAny);
  } else {
    for (const Unit& unit : kUnits) {
      if (rule.max_bytes % (uint64_t{1} << unit.shift) != 0) continue;
      std::snprintf(bytes, sizeof(bytes), "%llu%s",
                    static_cast<unsigned long long>(rule.max_bytes >> unit.shift), unit.name);
      break;
    }
  }
  const int n = std::snprintf(buffer, buffer_bytes, "%-14s %3s %7s  %-11s %3u %3u %u",
                              OperationName(rule.operation), members, bytes,
                              VariantName(rule.variant), rule.blocks, rule.threads, rule.unroll);
  if (n < 0 || static_cast<size_t>(n) >= buffer_bytes) return -1;
  // Whatever ParseRules refuses shows here: unknown enumerators, numbers out of range.
  Rule read;
  bool is_rule = false;
  if (!ParseLine(buffer, static_cast<size_t>(n), &read, &is_rule).ok() || !is_rule) return -1;
  return n;
}

}  // namespace iris::ccl
