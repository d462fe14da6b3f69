#include "client/bench/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace iris::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr char kGood[] =
    R"({"lib": "other", "op": "all_reduce", "bytes": 1024, "n": 4, "us": 9.5})";

CollectiveFigure Ours(const std::string& operation, uint32_t ranks, uint64_t bytes, double us) {
  CollectiveFigure figure;
  figure.what.operation = operation;
  figure.what.bytes = bytes;
  figure.ranks = ranks;
  figure.variant = "packets";
  figure.blocks = 4;
  figure.us = us;
  figure.bus_gb_per_s = 1.5;
  return figure;
}

PeerFigure Theirs(const std::string& name, const std::string& operation, uint32_t ranks,
                  uint64_t bytes, double us) {
  return {name, operation, bytes, ranks, us};
}

TEST(ParsePeersTest, ReadsEachKey) {
  const auto figures = ParsePeers(absl::StrCat(
      "starting\n", kGood, "\r\n",
      R"({"lib": "other", "variant": "tree", "op": "barrier", "n": 2, "us": 3, "x": [1, {}]})",
      "\n", R"({"lib": "a", "variant": null, "op": "all_gather", "bytes": 17179869184, "n": 8, )",
      R"("us": 1})"));
  ASSERT_THAT(figures, SizeIs(3));
  EXPECT_EQ(figures[0].name, "other");
  EXPECT_EQ(figures[0].operation, "all_reduce");
  EXPECT_EQ(figures[0].bytes, 1024u);
  EXPECT_EQ(figures[0].ranks, 4u);
  EXPECT_EQ(figures[0].us, 9.5);
  EXPECT_EQ(figures[1].name, "other tree");
  EXPECT_EQ(figures[1].operation, "barrier");
  EXPECT_EQ(figures[1].bytes, 0u);
  EXPECT_EQ(figures[2].name, "a");
  EXPECT_EQ(figures[2].bytes, 16ull << 30);
}

TEST(ParsePeersTest, PassesOverWhatIsNoFigure) {
  ASSERT_THAT(ParsePeers(kGood), SizeIs(1));
  const std::string deep(100000, '[');
  for (const std::string& line : std::vector<std::string>{
           "",
           "all_reduce 1024 9.5",
           "[1, 2]",
           "{",
           deep,
           "{\"lib\": \"\xff\"}",
           R"({"op": "all_reduce", "bytes": 1024, "n": 4, "us": 9.5})",
           R"({"lib": "other", "bytes": 1024, "n": 4, "us": 9.5})",
           R"({"lib": "other", "op": "all_reduce", "n": 4, "us": 9.5})",
           R"({"lib": "other", "op": "all_reduce", "bytes": 1024, "us": 9.5})",
           R"({"lib": "other", "op": "all_reduce", "bytes": 1024, "n": 4})",
           R"({"lib": "", "op": "all_reduce", "bytes": 1024, "n": 4, "us": 9.5})",
           R"({"lib": 7, "op": "all_reduce", "bytes": 1024, "n": 4, "us": 9.5})",
           R"({"lib": "a\u001b[31m", "op": "all_reduce", "bytes": 1024, "n": 4, "us": 9.5})",
           R"({"lib": "a", "variant": 7, "op": "all_reduce", "bytes": 1024, "n": 4, "us": 9.5})",
           R"({"lib": "other", "op": "all_reduce", "bytes": 0, "n": 4, "us": 9.5})",
           R"({"lib": "other", "op": "all_reduce", "bytes": -8, "n": 4, "us": 9.5})",
           R"({"lib": "other", "op": "all_reduce", "bytes": 1024, "n": 4.5, "us": 9.5})",
           R"({"lib": "other", "op": "all_reduce", "bytes": 1024, "n": 4294967300, "us": 9.5})",
           R"({"lib": "other", "op": "all_reduce", "bytes": 1024, "n": 4, "us": 0})",
           R"({"lib": "other", "op": "all_reduce", "bytes": 1024, "n": 4, "us": -1})",
           R"({"lib": "other", "op": "all_reduce", "bytes": 1024, "n": 4, "us": 1e999})",
           R"({"lib": "other", "op": "all_reduce", "bytes": 1024, "n": 4, "us": "9.5"})",
           absl::StrCat(R"({"lib": ")", std::string(65, 'x'),
                        R"(", "op": "all_reduce", "bytes": 1024, "n": 4, "us": 9.5})"),
       }) {
    EXPECT_THAT(ParsePeers(line), IsEmpty()) << line.substr(0, 200);
    EXPECT_THAT(ParsePeers(absl::StrCat(line, "\n", kGood)), SizeIs(1)) << line.substr(0, 200);
  }
}

TEST(ReadPeersTest, AFileWithoutFiguresIsAnError) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/peers");
  std::ofstream(path) << "hello\n" << kGood << "\n";
  const auto good = ReadPeers(path);
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_THAT(*good, SizeIs(1));
  std::ofstream(path) << "hello\n";
  EXPECT_THAT(std::string(ReadPeers(path).status().message()),
              HasSubstr(absl::StrCat("no line of ", path, " is a peer's figure such as {")));
  EXPECT_THAT(std::string(ReadPeers(path + "x").status().message()),
              HasSubstr(absl::StrCat("cannot read: ", path, "x: ")));
  EXPECT_THAT(std::string(ReadPeers(::testing::TempDir()).status().message()),
              HasSubstr(absl::StrCat("cannot read: ", ::testing::TempDir())));
}

TEST(RunPeersTest, PutsTheRanksIn) {
  const auto figures = RunPeers(
      "echo begins; for i in {ranks} 9; do "
      R"(echo '{"lib": "a", "op": "barrier", "us": 1, "n": '$i'}'; done)",
      4, absl::Minutes(1));
  ASSERT_TRUE(figures.ok()) << figures.status();
  ASSERT_THAT(*figures, SizeIs(2));
  EXPECT_EQ((*figures)[0].ranks, 4u);
  EXPECT_EQ((*figures)[1].ranks, 9u);
}

TEST(RunPeersTest, ReadsMoreThanAPipeHolds) {
  const auto figures =
      RunPeers(absl::StrCat("yes '", kGood, "' | head -n 20000"), 4, absl::Minutes(1));
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_THAT(*figures, SizeIs(20000));
}

TEST(RunPeersTest, ErrorsQuoteTheCommand) {
  const struct {
    std::string command;
    absl::StatusCode code;
    std::string message;
  } cases[] = {
      {absl::StrCat("echo '", kGood, "'; exit $((1 + {ranks}))"), absl::StatusCode::kAborted,
       absl::StrCat("failed with exit code 3: echo '", kGood, "'; exit $((1 + 2))")},
      {"kill -TERM $$", absl::StatusCode::kAborted,
       "signal 15 ended the peers' command: kill -TERM $$"},
      {"echo hello {ranks}", absl::StatusCode::kInvalidArgument, "figure such as {\"lib\""},
      {"no-such-program-{ranks} 2>/dev/null", absl::StatusCode::kAborted,
       "exit code 127: no-such-program-2"},
  };
  for (const auto& c : cases) {
    const auto figures = RunPeers(c.command, 2, absl::Minutes(1));
    EXPECT_EQ(figures.status().code(), c.code) << c.command;
    EXPECT_THAT(std::string(figures.status().message()), HasSubstr(c.message));
  }
}

// A pipe that children inherit: they have ended when it has no writer any more.
class Children {
 public:
  Children() { EXPECT_EQ(pipe(ends_), 0); }
  ~Children() { close(ends_[0]); }
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  bool HaveEnded() {
    close(ends_[1]);
    pollfd waits = {ends_[0], POLLIN, 0};
    return poll(&waits, 1, 60 * 1000) == 1;
  }

 private:
  int ends_[2];
};

TEST(RunPeersTest, EndsWhatTakesTooLong) {
  Children children;
  const auto figures =
      RunPeers(absl::StrCat("echo '", kGood, "'; sleep 300 & sleep 300"), 2, absl::Seconds(1));
  EXPECT_EQ(figures.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(figures.status().message()),
              HasSubstr("did not end within 1s, which --peers-timeout changes: echo"));
  EXPECT_TRUE(children.HaveEnded());
}

// A leftover process would disturb the next measurement, and holds the pipe open.
TEST(RunPeersTest, EndsWhatIsLeftBehind) {
  Children children;
  const auto figures =
      RunPeers(absl::StrCat("sleep 300 & echo '", kGood, "'"), 2, absl::Minutes(4));
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_TRUE(children.HaveEnded());
}

TEST(CompareTableTest, PutsPeersBesideOurs) {
  const Table table = CompareTable(
      {Ours("all_reduce", 2, 1024, 4), Ours("all_reduce", 2, 8192, 4), Ours("barrier", 2, 0, 2)},
      {Theirs("b", "all_reduce", 2, 1024, 10), Theirs("a tree", "all_reduce", 2, 1024, 8),
       Theirs("b", "barrier", 2, 0, 1.5)});
  EXPECT_EQ(
      table.Text(),
      "== compare: us of collectives in bf16; bytes of the whole tensor; ratio: best peer / "
      "Iris\n"
      "operation   ranks  bytes  Iris us  variant  blocks  GB/s bus      b  a tree  best peer  "
      "ratio\n"
      "all_reduce      2   1024     4.00  packets       4       1.5  10.00    8.00  a tree      "
      "2.00\n"
      "all_reduce      2   8192     4.00  packets       4       1.5      -       -  -              "
      "-\n"
      "barrier         2      -     2.00  -             4         -   1.50       -  b           "
      "0.75\n"
      "Ratio below 1.0: 1 of 2 rows: barrier on 2 (0.750, b).\n");
  const nlohmann::json json = table.Json();
  EXPECT_EQ(json["rows"][0]["a tree"], 8.0);
  EXPECT_EQ(json["rows"][0]["ratio"], 2.0);
  EXPECT_TRUE(json["rows"][1]["b"].is_null());
  EXPECT_TRUE(json["rows"][2]["bytes"].is_null());
  EXPECT_EQ(json["rows"][2]["best peer"], "b");
}

TEST(CompareTableTest, OfTheSameTheLeastCounts) {
  const nlohmann::json json =
      CompareTable({Ours("all_reduce", 2, 1024, 4)},
                   {Theirs("b", "all_reduce", 2, 1024, 10), Theirs("b", "all_reduce", 2, 1024, 6),
                    Theirs("b", "all_reduce", 2, 1024, 8)})
          .Json();
  EXPECT_EQ(json["rows"][0]["b"], 6.0);
  EXPECT_EQ(json["rows"][0]["ratio"], 1.5);
  EXPECT_THAT(json["notes"], ElementsAre("Ratio below 1.0: 0 of 1 rows."));
}

TEST(CompareTableTest, CountsFiguresThatHaveNoRow) {
  const nlohmann::json json =
      CompareTable({Ours("all_reduce", 2, 1024, 4)},
                   {Theirs("b", "all_reduce", 4, 1024, 10), Theirs("c", "all_reduce", 2, 2048, 6),
                    Theirs("d", "all_gather", 2, 1024, 8)})
          .Json();
  EXPECT_FALSE(json["rows"][0].contains("b"));
  EXPECT_TRUE(json["rows"][0]["ratio"].is_null());
  EXPECT_THAT(std::string(json["notes"][1]), HasSubstr("3 figures of peers are of operations"));
}

TEST(CompareTableTest, WithoutPeersSaysHowToGiveThem) {
  const std::string text = CompareTable({Ours("all_reduce", 2, 1024, 4)}, {}).Text();
  EXPECT_THAT(text, HasSubstr("--peers FILE or --peers-command 'CMD {ranks}'"));
  EXPECT_THAT(text, HasSubstr("\nall_reduce      2   1024     4.00"));
}

TEST(CompareTableTest, APeerHidesNoColumn) {
  const nlohmann::json row = CompareTable({Ours("all_reduce", 2, 1024, 4)},
                                          {Theirs("ratio", "all_reduce", 2, 1024, 8),
                                           Theirs("Iris us", "all_reduce", 2, 1024, 12),
                                           Theirs("best peer", "all_reduce", 2, 1024, 9)})
                                 .Json()["rows"][0];
  EXPECT_EQ(row["Iris us"], 4.0);
  EXPECT_EQ(row["Iris us (peer)"], 12.0);
  EXPECT_EQ(row["ratio"], 2.0);
  EXPECT_EQ(row["best peer"], "ratio");
}

TEST(ComparePlotsTest, DrawsOursAndTheBestPeer) {
  const auto plots =
      ComparePlots({Ours("all_reduce", 2, 8192, 5), Ours("all_reduce", 2, 1024, 4),
                    Ours("all_reduce", 4, 1024, 6), Ours("barrier", 2, 0, 2)},
                   {Theirs("b", "all_reduce", 2, 1024, 10), Theirs("a", "all_reduce", 2, 1024, 8)});
  ASSERT_THAT(plots, SizeIs(1));
  EXPECT_EQ(plots[0].title, "all_reduce");
  EXPECT_TRUE(plots[0].log_y);
  ASSERT_THAT(plots[0].lines, SizeIs(4));
  EXPECT_EQ(plots[0].lines[0].name, "Iris, 2");
  EXPECT_THAT(plots[0].lines[0].points,
              ElementsAre(std::make_pair(1024, 4), std::make_pair(8192, 5)));
  EXPECT_EQ(plots[0].lines[1].name, "best peer, 2");
  EXPECT_THAT(plots[0].lines[1].points, ElementsAre(std::make_pair(1024, 8)));
  EXPECT_EQ(plots[0].lines[2].name, "Iris, 4");
  EXPECT_THAT(plots[0].lines[3].points, IsEmpty());
}

}  // namespace
}  // namespace iris::bench
