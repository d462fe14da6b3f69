#include "client/ctl/host_list.h"

#include <stdio.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace iris::ctl {
namespace {

using ::testing::HasSubstr;

std::string Text(const absl::StatusOr<std::vector<HostRanks>>& hosts) {
  if (!hosts.ok()) return absl::StrCat("error: ", hosts.status().message());
  return absl::StrJoin(*hosts, " ", [](std::string* out, const HostRanks& host) {
    absl::StrAppend(out, host.name, "=", host.n_ranks);
  });
}

TEST(HostListTest, ReadsHostsInTheirOrder) {
  EXPECT_EQ(Text(ParseHosts("b:2,a,c-1.example_x:64")), "b=2 a=1 c-1.example_x=64");
  EXPECT_EQ(Text(ParseHosts("10.0.0.1:8")), "10.0.0.1=8");
  EXPECT_EQ(Text(ParseHosts("[fd00::1]:2,[fe80::2%eth0],[::ffff:10.0.0.1]:3")),
            "fd00::1=2 fe80::2%eth0=1 ::ffff:10.0.0.1=3");
}

TEST(HostListTest, AHostThatIsListedAgainAddsToItsFirstEntry) {
  EXPECT_EQ(Text(ParseHosts("a,b:2,a:3")), "a=4 b=2");
  EXPECT_THAT(Text(ParseHosts("a:64,a")), HasSubstr("at most 64 ranks"));
}

TEST(HostListTest, RefusesWhatIsNoHost) {
  for (const char* const wrong : {"",        "a,,b",     "-oProxyCommand=x",
                                  "a,-b:2",  ".a",       "a b",
                                  "a;b",     "a$(x)",    "a\nb",
                                  "a'b",     "a/b",      "u@a",
                                  "a:b:c:2", "fd00::1",  "[fd00::1",
                                  "[]",      "[a]:2",    "[-1]:2",
                                  "[::1]x",  "[::1%]:2", "[fe80::1%-x]",
                                  "[:",      ":2",       "]:",
                                  "[",       ":"}) {
    EXPECT_THAT(Text(ParseHosts(wrong)), HasSubstr("error: \"")) << wrong;
  }
  EXPECT_THAT(Text(ParseHosts(std::string(254, 'a'))), HasSubstr("is no host"));
  EXPECT_EQ(Text(ParseHosts(std::string(253, 'a'))), absl::StrCat(std::string(253, 'a'), "=1"));
  EXPECT_THAT(Text(ParseHosts("a\033[2J")), HasSubstr("\"a\\x1b[2J\""));
  EXPECT_THAT(Text(ParseHosts("fd00::1:2")), HasSubstr("in brackets"));
  EXPECT_THAT(Text(ParseHosts("a:2 b:2")), HasSubstr("commas"));
  EXPECT_THAT(Text(ParseHosts("a, b")), HasSubstr("commas"));
}

TEST(HostListTest, RefusesNumbersOfRanksThatAreNone) {
  for (const char* const wrong : {"a:", "a:0", "a:-1", "a:+2", "a: 2", "a:2x", "a:0x2", "a:65",
                                  "a:99999999999999999999", "[::1]:", "[::1]:0"}) {
    EXPECT_THAT(Text(ParseHosts(wrong)), HasSubstr("error: \"")) << wrong;
  }
}

TEST(HostListTest, ReadsAHostfile) {
  EXPECT_EQ(Text(ParseHostfile("# nodes\n\na slots=8\r\n  b:2   # the other\nc\n[::2]\tslots=3")),
            "a=8 b=2 c=1 ::2=3");
  EXPECT_THAT(Text(ParseHostfile("a\nb max_slots=3\n")), HasSubstr("line 2: \"b max_slots=3\""));
  EXPECT_THAT(Text(ParseHostfile("a slots=2 x\n")), HasSubstr("line 1: "));
  EXPECT_THAT(Text(ParseHostfile("a:2 slots=2\n")), HasSubstr("line 1: "));
  EXPECT_THAT(Text(ParseHostfile("a slots=\n")), HasSubstr("line 1: "));
  EXPECT_THAT(Text(ParseHostfile("a,b\n")), HasSubstr("line 1: "));
  EXPECT_THAT(Text(ParseHostfile("\n# none\n")), HasSubstr("names no host"));
}

TEST(HostListTest, RanksFillTheHostsInOrder) {
  const std::vector<HostRanks> hosts = {{"a", 2}, {"b", 3}, {"c", 1}};
  EXPECT_EQ(Text(PlaceRanks(hosts, 0)), "a=2 b=3 c=1");
  EXPECT_EQ(Text(PlaceRanks(hosts, 6)), "a=2 b=3 c=1");
  EXPECT_EQ(Text(PlaceRanks(hosts, 4)), "a=2 b=2");
  EXPECT_EQ(Text(PlaceRanks(hosts, 2)), "a=2");
  EXPECT_EQ(Text(PlaceRanks(hosts, 1)), "a=1");
  EXPECT_THAT(Text(PlaceRanks(hosts, 7)), HasSubstr("room for 6 ranks, and -n asks for 7"));
  std::vector<HostRanks> many(129, {"x", 64});
  EXPECT_THAT(Text(PlaceRanks(many, 0)), HasSubstr("8256 ranks; a job has at most 8192"));
  EXPECT_TRUE(PlaceRanks(many, 8192).ok());
}

TEST(HostListTest, KnowsNamesThatOtherNodesCannotUse) {
  for (const char* const name : {"localhost", "LocalHost", "127.0.0.1", "127.1.2.3", "::1"}) {
    EXPECT_TRUE(IsLoopback(name)) << name;
  }
  for (const char* const name : {"a", "10.0.0.1", "localhost.example", "::2"}) {
    EXPECT_FALSE(IsLoopback(name)) << name;
  }
}

TEST(HostListTest, AShellReadsAQuotedTextBack) {
  for (const std::string& text :
       {std::string("plain"), std::string(""), std::string("a b"), std::string("it's"),
        std::string("''"), std::string("\"$HOME\" `id` \\ * ; & |"), std::string("two\nlines"),
        std::string("-n"), std::string("\\'")}) {
    FILE* const shell = popen(absl::StrCat("printf '<%s>' ", ShellQuote(text)).c_str(), "r");
    ASSERT_NE(shell, nullptr);
    char read[256] = {};
    const size_t n = fread(read, 1, sizeof(read) - 1, shell);
    EXPECT_EQ(pclose(shell), 0);
    EXPECT_EQ(std::string(read, n), absl::StrCat("<", text, ">"));
  }
}

}  // namespace
}  // namespace iris::ctl
