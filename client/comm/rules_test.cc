#include "client/comm/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "iris/collective/table.h"

namespace iris::internal {
namespace {

using ccl::kAnyBytes;
using ccl::kMaxBlocks;
using ccl::kMaxThreads;
using ccl::kMaxUnroll;
using ccl::Operation;
using ccl::Rule;
using ccl::Variant;
using ::testing::HasSubstr;
using ::testing::StartsWith;

absl::StatusOr<Rules> Parse(const std::string& text) { return ParseRules(text, ccl::HasVariant); }

std::string Format(const Rule& rule) {
  return FormatRule(rule, ccl::HasVariant).value_or("refused");
}

bool Same(const Rule& a, const Rule& b) {
  return a.operation == b.operation && a.max_members == b.max_members &&
         a.max_bytes == b.max_bytes && a.variant == b.variant && a.blocks == b.blocks &&
         a.threads == b.threads && a.unroll == b.unroll;
}

TEST(ParseRulesTest, ReadsEachField) {
  const absl::StatusOr<Rules> parsed = Parse(
      "# a table\n"
      "\n"
      "all_reduce 4 128KiB packets 0 0\n"
      "  \tall_gather\tany any copy_engine 1 32 # the rest\r\n"
      "matmul_all_reduce\t4 64  8192 any pair # measured\n"
      "send_recv 64 3GiB direct 128 512\n"
      "all_gather_matmul any any any 7 persistent\n"
      "reduce 2 4097 two_shot 16 256 2");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const std::vector<Rule> wanted = {
      {Operation::kAllReduce, 4, 128 << 10, Variant::kPackets, 0, 0},
      {Operation::kAllGather, kMaxTeamRanks, kAnyBytes, Variant::kCopyEngine, 1, 32},
      {Operation::kSendRecv, 64, 3ull << 30, Variant::kDirect, kMaxBlocks, kMaxThreads},
      {Operation::kReduce, 2, 4097, Variant::kTwoShot, 16, 256, 2},
  };
  ASSERT_EQ(parsed->collectives.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i)
    EXPECT_TRUE(Same(parsed->collectives[i], wanted[i])) << i;
  ASSERT_EQ(parsed->gemms.size(), 2u);
  const ops::Rule& first = parsed->gemms[0];
  EXPECT_EQ(first.operation, Operation::kMatmulAllReduce);
  EXPECT_EQ(first.members, 4u);
  EXPECT_EQ(first.m, 64u);
  EXPECT_EQ(first.n, 8192u);
  EXPECT_EQ(first.k, 0u);
  EXPECT_EQ(first.variant, ops::Variant::kPair);
  EXPECT_EQ(parsed->gemms[1].members, 0u);
  EXPECT_EQ(parsed->gemms[1].k, 7u);
  EXPECT_EQ(parsed->gemms[1].variant, ops::Variant::kPersistent);
}

TEST(ParseRulesTest, ATextWithoutRulesIsEmpty) {
  for (const char* text : {"", "\n", "# nothing", " \t\r\n#\n\n"}) {
    const absl::StatusOr<Rules> parsed = Parse(text);
    ASSERT_TRUE(parsed.ok()) << text << parsed.status();
    EXPECT_TRUE(parsed->collectives.empty() && parsed->gemms.empty()) << text;
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
      {"all_reduce any\n\x01\xff zzz", "fewer than six words"},
      {"\x01\xff zzz", "no such operation: \"\?\?\""},
      {"all_reduce 4 1KiB packets 0 0 3", "the unroll"},
      {"all_reduce 4 1KiB packets 0 0 two", "the unroll"},
      {"all_reduce 4 1KiB " + std::string(33, 'x') + " 0 0", "xxx...\""},
      {"#" + std::string(kMaxRuleLineBytes, 'x'), "longer than 256 bytes"},
      {"matmul_all_reduce", "has 1 words, and a line of it has six: operation members m n k"},
      {"matmul_all_reduce 2 8 8 any pair 1", "has 7 words"},
      {"matmul_all_reduce 0 8 8 any pair", "the members are \"0\": write `any`, or a number"},
      {"matmul_all_reduce 65 8 8 any pair", "the members are \"65\""},
      {"matmul_all_reduce 2 -8 8 any pair", "m is \"-8\": write `any`"},
      {"matmul_all_reduce 2 +8 8 any pair", "m is \"+8\""},
      {"matmul_all_reduce 2 8 0 any pair", "n is \"0\""},
      {"matmul_all_reduce 2 8 8KiB any pair", "n is \"8KiB\""},
      {"matmul_all_gather 2 8 8 2147483648 pair", "k is \"2147483648\""},
      {"matmul_all_gather 2 8 8 99999999999999999999999 pair", "k is \"99999999999999"},
      {"matmul_all_gather 2 8 8 \x01\xff pair", "k is \"\?\?\""},
      {"matmul_all_reduce 2 8 8 8 pair", "may differ in k, and must not choose different variants"},
      {"matmul_reduce_scatter 2 8 8 8 pair", "may differ in k"},
      {"all_gather_matmul 2 8 8 8 pair", "may differ in n"},
      {"matmul_all_scatter 2 8 8 8 auto", "\"auto\" is no variant of GEMMs: write fused"},
      {"matmul_all_scatter 2 8 8 8 two_shot", "\"two_shot\" is no variant of GEMMs"},
      {"nodes", "a line between nodes has five words, and this one has 1: nodes, how many"},
      {"nodes 2 any piece_bytes 1MiB 1", "and this one has 6"},
      {"nodes 0 any piece_bytes 1MiB", "the number of nodes is \"0\": write `any`, or a number"},
      {"nodes 257 any piece_bytes 1MiB", "from 1 to 256"},
      {"nodes -1 any piece_bytes 1MiB", "the number of nodes is \"-1\""},
      {"nodes 2 any pieces_bytes 1MiB", "no such setting: \"pieces_bytes\": write one of "},
      {"nodes 2 any path 1", "leaders_most_bytes, leader_bytes, piece_bytes, message_bytes, "},
      {"nodes 2 any \x01\xff 1", "no such setting: \"\?\?\""},
      {"nodes 2 all_reduce piece_bytes 1MiB", "the operation of piece_bytes is \"all_reduce\": "},
      {"nodes 2 all_reduces leaders_most_bytes 1MiB", "the operation is \"all_reduces\": write"},
      {"nodes 2 barrier leaders_most_bytes 1MiB", "the operation is \"barrier\""},
      {"nodes 2 send_recv leaders_most_bytes 1MiB", "the operation is \"send_recv\""},
      {"nodes 2 matmul_all_reduce leaders_most_bytes 1", "the operation is \"matmul_all_reduce\""},
      {"nodes 2 any leaders_most_bytes 0", "leaders_most_bytes is \"0\": write `any`, or a size"},
      {"nodes 2 any leaders_most_bytes -1", "leaders_most_bytes is \"-1\""},
      {"nodes 2 any piece_bytes 4095",
       "piece_bytes is \"4095\": write a multiple of 256 from 4KiB"},
      {"nodes 2 any piece_bytes 4097", "a multiple of 256 from 4KiB to 1GiB"},
      {"nodes 2 any piece_bytes 1025MiB", "piece_bytes is \"1025MiB\""},
      {"nodes 2 any leader_bytes any", "leader_bytes is \"any\""},
      {"nodes 2 any message_bytes 0",
       "message_bytes is \"0\": write a multiple of 256 from 256 to"},
      {"nodes 2 any direct_nodes 0", "direct_nodes is \"0\": write a number from 1 to 256"},
      {"nodes 2 any blocks 129", "blocks is \"129\": write a number from 1 to 128"},
      {"nodes 2 any threads 1KiB", "threads is \"1KiB\": write a number from 1 to 512"},
      {"matmul_all_scatter 2 8 8 8 pair #" + std::string(300, 'x'), "longer than 256 bytes"},
  };
  for (const auto& c : cases) {
    const absl::StatusOr<Rules> parsed = Parse("reduce 2 1KiB two_shot 0 0\n" + c.line + "\n\n");
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << c.line;
    const std::string message(parsed.status().message());
    EXPECT_THAT(message, StartsWith("line 2 of the rules: ")) << c.line;
    EXPECT_THAT(message, HasSubstr(c.what)) << c.line;
  }
}

TEST(ParseRulesTest, TheLongestLineIsRead) {
  std::string line = "reduce 2 1KiB two_shot 0 0 #";
  line += std::string(kMaxRuleLineBytes - line.size(), 'x');
  ASSERT_TRUE(Parse(line + "\n" + line).ok());
  EXPECT_EQ(Parse(line + "\n" + line)->collectives.size(), 2u);
}

TEST(ParseRulesTest, RefusesMoreRulesThanThereIsRoomFor) {
  for (const std::string line : {"reduce 2 1KiB two_shot 0 0\n",
                                 "matmul_all_reduce 2 8 8 any pair\n", "nodes 2 any blocks 1\n"}) {
    std::string many;
    for (size_t i = 0; i < kMaxRules; ++i) many += line;
    EXPECT_TRUE(Parse(many).ok());
    EXPECT_THAT(std::string(Parse(many + line).status().message()),
                HasSubstr("line 1025 of the rules: more than 1024 rules"));
  }
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
        if (!ccl::HasVariant(rule.operation, rule.variant)) {
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
  const absl::StatusOr<Rules> parsed = Parse(text);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->collectives.size(), written.size());
  for (size_t i = 0; i < written.size(); ++i)
    EXPECT_TRUE(Same(parsed->collectives[i], written[i])) << i;
}

uint64_t& MostOf(Operation operation, ccl::NodesConfig* config) {
  return config->leaders_most_bytes_of[static_cast<uint32_t>(operation)];
}

TEST(NodesRulesTest, TheFirstLineThatReachesDecides) {
  const absl::StatusOr<Rules> parsed = Parse(
      "nodes 2 any piece_bytes 256KiB\n"
      "nodes 4\tany  piece_bytes 0x80000 # measured\n"
      "reduce 2 1KiB two_shot 0 0\n"
      "nodes 2 any leaders_most_bytes 5000\n"
      "nodes any all_reduce leaders_most_bytes any\n"
      "nodes 2 all_reduce leaders_most_bytes 1\n"
      "nodes 256 any threads 512\n");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->collectives.size(), 1u);
  ASSERT_EQ(parsed->nodes.size(), 6u);
  ccl::NodesConfig config = NodesConfigOf(parsed->nodes, 2);
  EXPECT_EQ(config.piece_bytes, 256u << 10);
  EXPECT_EQ(config.leaders_most_bytes, 5000u);
  EXPECT_EQ(MostOf(Operation::kAllReduce, &config), kAnyBytes);
  EXPECT_EQ(MostOf(Operation::kAllGather, &config), 0u);
  EXPECT_EQ(config.threads, 512u);
  EXPECT_EQ(config.blocks, 0u);
  config = NodesConfigOf(parsed->nodes, 3);
  EXPECT_EQ(config.piece_bytes, 512u << 10);
  EXPECT_EQ(config.leaders_most_bytes, 0u);
  EXPECT_EQ(NodesConfigOf(parsed->nodes, 5).piece_bytes, 0u);
  EXPECT_EQ(NodesConfigOf(parsed->nodes, ccl::kMaxNodes).threads, 512u);
}

TEST(NodesRulesTest, WritesWhatIsRead) {
  EXPECT_EQ(FormatNodesConfig({}), "");
  ccl::NodesConfig config;
  config.leaders_most_bytes = 4097;
  MostOf(Operation::kReduce, &config) = kAnyBytes;
  MostOf(Operation::kAllToAll, &config) = 1;
  config.leader_bytes = 1 << 20;
  config.piece_bytes = 4096 + 256;
  config.message_bytes = 256;
  config.direct_nodes = 256;
  config.blocks = 128;
  config.threads = 512;
  const std::string text = FormatNodesConfig(config);
  const absl::StatusOr<Rules> parsed = Parse(text);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->nodes.size(), 9u);
  for (const uint32_t nodes : {2u, ccl::kMaxNodes}) {
    ccl::NodesConfig read = NodesConfigOf(parsed->nodes, nodes);
    EXPECT_EQ(FormatNodesConfig(read), text);
    EXPECT_EQ(read.leaders_most_bytes, 4097u);
    EXPECT_EQ(MostOf(Operation::kReduce, &read), kAnyBytes);
    EXPECT_EQ(MostOf(Operation::kAllToAll, &read), 1u);
    EXPECT_EQ(read.leader_bytes, config.leader_bytes);
    EXPECT_EQ(read.piece_bytes, config.piece_bytes);
    EXPECT_EQ(read.message_bytes, config.message_bytes);
    EXPECT_EQ(read.direct_nodes, config.direct_nodes);
    EXPECT_EQ(read.blocks, config.blocks);
    EXPECT_EQ(read.threads, config.threads);
  }
}

// No rule of a built-in table is one that a text could not have.
TEST(FormatRuleTest, WritesTheBuiltInTables) {
  for (const bool emulated : {true, false}) {
    const ccl::impl::Table table = ccl::impl::BuiltInTable(emulated);
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
}

// Every rule that is read from anything is one that could have been written.
TEST(ParseRulesTest, AnyBytesAreReadOrRefused) {
  std::mt19937 random(1);
  const auto draw = [&](uint32_t below) { return static_cast<uint32_t>(random() % below); };
  const char* words[] = {"all_reduce", "reduce", "any", "packets", "direct", "64KiB", "0",
                         "4",          "512",    "#",   "\n",      " ",      "\t",    "GiB"};
  uint32_t read = 0, n_nodes_lines = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    if (round % 2 == 0) {
      for (uint32_t i = draw(400); i > 0; --i) text.push_back(static_cast<char>(draw(256)));
    } else {
      // Nearly a rule.
      text = "all_reduce 4 64KiB packets 1 32\nnodes 4 any blocks 4\nreduce any any two_shot 0 0\n";
      for (uint32_t i = draw(3); i > 0; --i) {
        const size_t at = draw(static_cast<uint32_t>(text.size()));
        const std::string with = draw(2) == 0 ? std::string(1, static_cast<char>(draw(256)))
                                              : words[draw(std::size(words))];
        text.replace(at, draw(4), with);
      }
    }
    const absl::StatusOr<Rules> parsed = Parse(text);
    if (!parsed.ok()) continue;
    for (const Rule& rule : parsed->collectives) EXPECT_NE(Format(rule), "refused") << text;
    const std::string between = FormatNodesConfig(NodesConfigOf(parsed->nodes, 2));
    EXPECT_TRUE(Parse(between).ok()) << text;
    read += static_cast<uint32_t>(parsed->collectives.size());
    n_nodes_lines += static_cast<uint32_t>(parsed->nodes.size());
  }
  EXPECT_GT(read, 1000u);
  EXPECT_GT(n_nodes_lines, 1000u);
}

TEST(VariantNamedTest, KnowsEachByItsName) {
  uint32_t known = 0;
  for (uint32_t v = 1; v < ccl::kVariantCount; ++v) {
    if (!ccl::IsVariant(v)) continue;
    EXPECT_EQ(VariantNamed(ccl::VariantName(static_cast<Variant>(v))), static_cast<Variant>(v));
    ++known;
  }
  EXPECT_GE(known, 7u);
  EXPECT_EQ(VariantNamed("unknown"), Variant::kAuto);
}

std::vector<ops::Rule> Read(const std::string& text) {
  const absl::StatusOr<Rules> rules = Parse(text);
  EXPECT_TRUE(rules.ok()) << rules.status();
  return rules.ok() ? rules->gemms : std::vector<ops::Rule>();
}

ops::Variant Choose(const std::vector<ops::Rule>& rules, uint64_t m, uint64_t n, uint64_t k,
                    Operation operation = Operation::kMatmulAllGather, uint32_t members = 2) {
  return ops::ChooseByRules(rules.data(), rules.size(), {operation, {m, n, k}}, members);
}

TEST(ProductRulesTest, TheNearestLineThatReachesDecides) {
  const std::vector<ops::Rule> rules = Read(
      "matmul_all_gather 2 64 64 64 pair\n"
      "matmul_all_gather 2 256 64 64 fused\n"
      "matmul_all_gather 2 256 64 64 persistent\n");
  EXPECT_EQ(Choose(rules, 64, 64, 64), ops::Variant::kPair);
  EXPECT_EQ(Choose(rules, 256, 64, 64), ops::Variant::kFused);
  EXPECT_EQ(Choose(rules, 127, 64, 64), ops::Variant::kPair);
  EXPECT_EQ(Choose(rules, 128, 64, 64), ops::Variant::kPair);  // as near to both: the first
  EXPECT_EQ(Choose(rules, 129, 64, 64), ops::Variant::kFused);
  // As far as four times, and a quarter, of each number.
  EXPECT_EQ(Choose(rules, 1024, 256, 16), ops::Variant::kFused);
  EXPECT_EQ(Choose(rules, 1025, 256, 16), ops::Variant::kAuto);
  EXPECT_EQ(Choose(rules, 1024, 257, 16), ops::Variant::kAuto);
  EXPECT_EQ(Choose(rules, 1024, 256, 15), ops::Variant::kAuto);
  EXPECT_EQ(Choose(rules, 16, 64, 64), ops::Variant::kPair);
  EXPECT_EQ(Choose(rules, 15, 64, 64), ops::Variant::kAuto);
  EXPECT_EQ(Choose(rules, 0, 64, 64), ops::Variant::kAuto);
  EXPECT_EQ(Choose(rules, ~uint64_t{0}, 64, 64), ops::Variant::kAuto);
  // No line applies to another operation, or to other ranks.
  EXPECT_EQ(Choose(rules, 64, 64, 64, Operation::kMatmulAllScatter), ops::Variant::kAuto);
  EXPECT_EQ(Choose(rules, 64, 64, 64, Operation::kMatmulAllGather, 4), ops::Variant::kAuto);
}

TEST(ProductRulesTest, MoreNumbersGoBeforeFewer) {
  const std::vector<ops::Rule> rules = Read(
      "matmul_all_gather any any any any pair\n"
      "matmul_all_gather any 64 any any persistent\n"
      "matmul_all_gather any 128 64 any fused\n");
  EXPECT_EQ(Choose(rules, 9999, 64, 64), ops::Variant::kPair);
  EXPECT_EQ(Choose(rules, 64, 9999, 64), ops::Variant::kPersistent);
  EXPECT_EQ(Choose(rules, 64, 64, 1), ops::Variant::kFused);
  EXPECT_EQ(Choose(rules, 64, 64, 1, Operation::kMatmulAllGather, 64), ops::Variant::kFused);
}

// The members may differ in these, and choose the same.
TEST(ProductRulesTest, WhatMembersMayDifferInDecidesNothing) {
  const std::vector<ops::Rule> rules = Read(
      "matmul_all_reduce 2 64 64 any pair\n"
      "all_gather_matmul 2 64 any 64 pair\n");
  for (const uint64_t own : {uint64_t{1}, uint64_t{1000000}}) {
    EXPECT_EQ(Choose(rules, 64, 64, own, Operation::kMatmulAllReduce), ops::Variant::kPair);
    EXPECT_EQ(Choose(rules, 64, own, 64, Operation::kAllGatherMatmul), ops::Variant::kPair);
  }
}

}  // namespace
}  // namespace iris::internal
