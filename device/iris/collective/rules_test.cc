#include "iris/collective/rules.h"

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "iris/collective/table.h"

namespace iris::ccl {
namespace {

struct Parsed {
  Result result;
  std::vector<Rule> rules;
  uint32_t line = 0;
};

Parsed Parse(const std::string& text, uint32_t capacity = kMaxRules) {
  Parsed parsed;
  parsed.rules.resize(capacity);
  uint32_t n = ~0u;
  parsed.result = ParseRules(text.c_str(), parsed.rules.data(), capacity, &n, &parsed.line);
  EXPECT_LE(n, capacity);
  if (!parsed.result.ok()) {
    EXPECT_EQ(n, 0u);
  }
  parsed.rules.resize(n);
  return parsed;
}

std::string Format(const Rule& rule) {
  char buffer[kMaxRuleLineBytes + 1];
  const int n = FormatRule(rule, buffer, sizeof(buffer));
  return n < 0 ? "refused" : std::string(buffer, static_cast<size_t>(n));
}

bool Same(const Rule& a, const Rule& b) {
  return a.operation == b.operation && a.max_members == b.max_members &&
         a.max_bytes == b.max_bytes && a.variant == b.variant && a.blocks == b.blocks &&
         a.threads == b.threads && a.unroll == b.unroll;
}

TEST(ParseRulesTest, ReadsEachField) {
  const Parsed parsed = Parse(
      "# a table\n"
      "\n"
      "all_reduce 4 128KiB packets 0 0\n"
      "  \tall_gather\tany any copy_engine 1 32 # the rest\r\n"
      "send_recv 64 3GiB direct 128 512\n"
      "reduce 2 4097 two_shot 16 256 2");
  ASSERT_TRUE(parsed.result.ok()) << parsed.result.what << " in line " << parsed.line;
  const std::vector<Rule> wanted = {
      {Operation::kAllReduce, 4, 128 << 10, Variant::kPackets, 0, 0},
      {Operation::kAllGather, kMaxTeamRanks, kAnyBytes, Variant::kCopyEngine, 1, 32},
      {Operation::kSendRecv, 64, 3ull << 30, Variant::kDirect, kMaxBlocks, kMaxThreads},
      {Operation::kReduce, 2, 4097, Variant::kTwoShot, 16, 256, 2},
  };
  ASSERT_EQ(parsed.rules.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_TRUE(Same(parsed.rules[i], wanted[i])) << i;
}

TEST(ParseRulesTest, ATextWithoutRulesIsEmpty) {
  for (const char* text : {"", "\n", "# nothing", " \t\r\n#\n\n"}) {
    const Parsed parsed = Parse(text);
    EXPECT_TRUE(parsed.result.ok()) << text;
    EXPECT_TRUE(parsed.rules.empty()) << text;
  }
}

// Each is wrong in its second line.
TEST(ParseRulesTest, SaysWhatIsWrongAndWhere) {
  const struct {
    std::string line;
    const char* what;
  } cases[] = {
      {"all_reduces 4 1KiB packets 0 0", "no such operation"},
      {"none 4 1KiB direct 0 0", "no such operation"},
      {"barrier 4 1KiB direct 0 0", "no such operation"},
      {"unknown 4 1KiB direct 0 0", "no such operation"},
      {"all_reduce 0 1KiB packets 0 0", "the members"},
      {"all_reduce 65 1KiB packets 0 0", "the members"},
      {"all_reduce -1 1KiB packets 0 0", "the members"},
      {"all_reduce 4x 1KiB packets 0 0", "the members"},
      {"all_reduce 4294967300 1KiB packets 0 0", "the members"},
      {"all_reduce 4 0 packets 0 0", "the bytes"},
      {"all_reduce 4 KiB packets 0 0", "the bytes"},
      {"all_reduce 4 1Ki packets 0 0", "the bytes"},
      {"all_reduce 4 1.5KiB packets 0 0", "the bytes"},
      {"all_reduce 4 18446744073709551616 packets 0 0", "the bytes"},
      {"all_reduce 4 17179869184GiB packets 0 0", "the bytes"},
      {"all_reduce 4 1KiB packet 0 0", "no such variant"},
      {"all_reduce 4 1KiB auto 0 0", "no such variant"},
      {"all_reduce 4 1KiB unknown 0 0", "no such variant"},
      {"all_gather 4 1KiB two_shot 0 0", "does not have this variant"},
      {"send_recv 4 1KiB packets 0 0", "does not have this variant"},
      {"all_reduce 4 1KiB packets 129 0", "the blocks"},
      {"all_reduce 4 1KiB packets any 0", "the blocks"},
      {"all_reduce 4 1KiB packets 1 513", "the threads"},
      {"all_reduce 4 1KiB packets 1 0x10", "the threads"},
      {"all_reduce 4 1KiB packets 0", "fewer than six words"},
      {"all_reduce", "fewer than six words"},
      {"all_reduce 4 1KiB packets # 0 0", "fewer than six words"},
      {"all_reduce 4 1KiB packets 0 0 0 0", "more than seven words"},
      {"all_reduce 4 1KiB packets 0 0 3", "the unroll"},
      {"all_reduce 4 1KiB packets 0 0 two", "the unroll"},
      {"all_reduce 4 1KiB " + std::string(32, 'x') + " 0 0", "a word is longer"},
      {"#" + std::string(kMaxRuleLineBytes, 'x'), "the line is longer"},
  };
  for (const auto& c : cases) {
    const Parsed parsed = Parse("reduce 2 1KiB two_shot 0 0\n" + c.line + "\n\n");
    EXPECT_EQ(parsed.result.code, StatusCode::kInvalidArgument) << c.line;
    EXPECT_NE(std::string(parsed.result.what).find(c.what), std::string::npos)
        << c.line << ": " << parsed.result.what;
    EXPECT_EQ(parsed.line, 2u) << c.line;
  }
}

TEST(ParseRulesTest, TheLongestLineIsRead) {
  std::string line = "reduce 2 1KiB two_shot 0 0 #";
  line += std::string(kMaxRuleLineBytes - line.size(), 'x');
  EXPECT_EQ(Parse(line + "\n" + line).rules.size(), 2u);
}

TEST(ParseRulesTest, RefusesMoreRulesThanThereIsRoomFor) {
  const std::string line = "reduce 2 1KiB two_shot 0 0\n";
  EXPECT_EQ(Parse(line + line, 2).rules.size(), 2u);
  const Parsed three = Parse(line + line + line, 2);
  EXPECT_STREQ(three.result.what, "more rules than there is room for");
  EXPECT_EQ(three.line, 3u);
  std::string many;
  for (uint32_t i = 0; i < kMaxRules; ++i) many += line;
  EXPECT_EQ(Parse(many, 2 * kMaxRules).rules.size(), kMaxRules);
  const Parsed too_many = Parse(many + line, 2 * kMaxRules);
  EXPECT_STREQ(too_many.result.what, "more than 1024 rules");
  EXPECT_EQ(too_many.line, kMaxRules + 1);
}

TEST(FormatRuleTest, WritesWhatIsRead) {
  std::string text;
  std::vector<Rule> written;
  for (uint32_t o = 0; o < 16; ++o) {
    for (uint32_t v = 0; v < 16; ++v) {
      for (uint64_t bytes : {uint64_t{1}, uint64_t{2897}, uint64_t{5} << 20, kAnyBytes}) {
        const Rule rule = {static_cast<Operation>(o),
                           1 + o * 4,
                           bytes,
                           static_cast<Variant>(v),
                           v * 8,
                           512 - v,
                           v % 3};
        if (!HasVariant(rule.operation, rule.variant)) {
          EXPECT_EQ(Format(rule), "refused") << o << ", " << v;
          continue;
        }
        const std::string line = Format(rule);
        ASSERT_NE(line, "refused") << o << ", " << v;
        text += line + "\n";
        written.push_back(rule);
      }
    }
  }
  EXPECT_GT(written.size(), 4u * 24);
  const Parsed parsed = Parse(text);
  ASSERT_TRUE(parsed.result.ok()) << parsed.result.what << " in line " << parsed.line;
  ASSERT_EQ(parsed.rules.size(), written.size());
  for (size_t i = 0; i < written.size(); ++i) EXPECT_TRUE(Same(parsed.rules[i], written[i])) << i;
}

// No rule of a built-in table is one that a text could not have.
TEST(FormatRuleTest, WritesTheBuiltInTables) {
  for (const bool emulated : {true, false}) {
    const impl::Table table = impl::BuiltInTable(emulated);
    ASSERT_GT(table.n_rules, 0u);
    for (uint32_t i = 0; i < table.n_rules; ++i) {
      EXPECT_NE(Format(table.rules[i]), "refused") << emulated << ", rule " << i;
    }
  }
}

TEST(FormatRuleTest, PutsColumnsBelowEachOther) {
  EXPECT_EQ(
      Format({Operation::kAllReduce, kMaxTeamRanks, 64 << 10, Variant::kTwoPackets, 16, 0, 2}),
      "all_reduce     any   64KiB  two_packets  16   0 2");
}

TEST(FormatRuleTest, RefusesWhatCouldNotBeRead) {
  const Rule good = {Operation::kAllReduce, 4, 1024, Variant::kPackets, 1, 32};
  ASSERT_NE(Format(good), "refused");
  for (void (*spoil)(Rule*) : std::vector<void (*)(Rule*)>{
           [](Rule* r) { r->operation = Operation::kBarrier; },
           [](Rule* r) { r->operation = static_cast<Operation>(200); },
           [](Rule* r) { r->variant = Variant::kAuto; },
           [](Rule* r) { r->variant = static_cast<Variant>(200); },
           [](Rule* r) { r->max_members = 0; },
           [](Rule* r) { r->max_members = kMaxTeamRanks + 1; },
           [](Rule* r) { r->max_bytes = 0; },
           [](Rule* r) { r->blocks = kMaxBlocks + 1; },
           [](Rule* r) { r->threads = kMaxThreads + 1; },
           [](Rule* r) { r->unroll = kMaxUnroll + 1; },
       }) {
    Rule rule = good;
    spoil(&rule);
    EXPECT_EQ(Format(rule), "refused");
  }
  char buffer[kMaxRuleLineBytes + 1];
  const int n = FormatRule(good, buffer, sizeof(buffer));
  EXPECT_EQ(FormatRule(good, buffer, static_cast<size_t>(n)), -1);
  EXPECT_EQ(FormatRule(good, buffer, static_cast<size_t>(n) + 1), n);
}

// Every rule that is read from anything is one that could have been written.
TEST(ParseRulesTest, AnyBytesAreReadOrRefused) {
  std::mt19937 random(1);
  const auto draw = [&](uint32_t below) { return static_cast<uint32_t>(random() % below); };
  const char* words[] = {"all_reduce", "reduce", "any", "packets", "direct", "64KiB", "0",
                         "4",          "512",    "#",   "\n",      " ",      "\t",    "GiB"};
  uint32_t read = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    if (round % 2 == 0) {
      for (uint32_t i = draw(400); i > 0; --i) text.push_back(static_cast<char>(1 + draw(255)));
    } else {
      // Nearly a rule.
      text = "all_reduce 4 64KiB packets 1 32\nreduce any any two_shot 0 0\n";
      for (uint32_t i = draw(3); i > 0; --i) {
        const size_t at = draw(static_cast<uint32_t>(text.size()));
        const std::string with = draw(2) == 0 ? std::string(1, static_cast<char>(1 + draw(255)))
                                              : words[draw(std::size(words))];
        text.replace(at, draw(4), with);
      }
    }
    const Parsed parsed = Parse(text, 8);
    for (const Rule& rule : parsed.rules) EXPECT_NE(Format(rule), "refused") << text;
    read += static_cast<uint32_t>(parsed.rules.size());
  }
  EXPECT_GT(read, 1000u);
}

TEST(ParseVariantTest, KnowsEachByItsName) {
  uint32_t known = 0;
  for (uint32_t v = 1; v < 32; ++v) {
    Variant read = Variant::kAuto;
    const Variant variant = static_cast<Variant>(v);
    if (std::strcmp(VariantName(variant), "unknown") == 0) continue;
    ASSERT_TRUE(ParseVariant(VariantName(variant), &read)) << VariantName(variant);
    EXPECT_EQ(read, variant);
    ++known;
  }
  EXPECT_GE(known, 7u);
}

}  // namespace
}  // namespace iris::ccl
