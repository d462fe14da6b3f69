#include "client/ctl/line_prefixer.h"

#include <string>

#include "gtest/gtest.h"

namespace iris::ctl {
namespace {

TEST(LinePrefixerTest, GivesWholeLinesAtOnce) {
  LinePrefixer prefixer("[1] ");
  std::string out;
  prefixer.Append("one\ntwo\n", &out);
  EXPECT_EQ(out, "[1] one\n[1] two\n");
}

TEST(LinePrefixerTest, HoldsAPartialLineUntilItsLineFeed) {
  LinePrefixer prefixer("[1] ");
  std::string out;
  prefixer.Append("half", &out);
  EXPECT_EQ(out, "");
  prefixer.Append(" and half\nrest", &out);
  EXPECT_EQ(out, "[1] half and half\n");
  prefixer.Finish(&out);
  EXPECT_EQ(out, "[1] half and half\n[1] rest\n");
}

TEST(LinePrefixerTest, FinishAddsNothingAfterALineFeed) {
  LinePrefixer prefixer("> ");
  std::string out;
  prefixer.Append("line\n", &out);
  prefixer.Finish(&out);
  prefixer.Finish(&out);
  EXPECT_EQ(out, "> line\n");
}

TEST(LinePrefixerTest, KeepsEmptyLinesAndZeroBytes) {
  LinePrefixer prefixer("> ");
  std::string out;
  prefixer.Append(absl::string_view("\na\0b\n", 5), &out);
  EXPECT_EQ(out, std::string("> \n> a\0b\n", 9));
}

TEST(LinePrefixerTest, CutsALineThatGrowsBeyondTheLimit) {
  LinePrefixer prefixer("> ", /*max_line_bytes=*/4);
  std::string out;
  prefixer.Append("abcdefghij\n", &out);
  EXPECT_EQ(out, "> abcd\n> efgh\n> ij\n");
}

TEST(LinePrefixerTest, ALineOfExactlyTheLimitStaysWhole) {
  LinePrefixer prefixer("> ", /*max_line_bytes=*/4);
  std::string out;
  prefixer.Append("abcd", &out);
  prefixer.Append("\nef\n", &out);
  EXPECT_EQ(out, "> abcd\n> ef\n");
}

TEST(LinePrefixerTest, BytewiseInputGivesTheSameLines) {
  const std::string text = "one\n\nthree is longer\nfour";
  LinePrefixer whole("# "), bytewise("# ");
  std::string expected, out;
  whole.Append(text, &expected);
  whole.Finish(&expected);
  for (const char byte : text) bytewise.Append(absl::string_view(&byte, 1), &out);
  bytewise.Finish(&out);
  EXPECT_EQ(out, expected);
}

}  // namespace
}  // namespace iris::ctl
