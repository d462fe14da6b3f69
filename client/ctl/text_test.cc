#include "client/ctl/text.h"

#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace iris::ctl {
namespace {

TEST(HumanDurationTest, ShowsTwoUnits) {
  EXPECT_EQ(HumanDuration(absl::Milliseconds(900)), "0s");
  EXPECT_EQ(HumanDuration(absl::Seconds(59)), "59s");
  EXPECT_EQ(HumanDuration(absl::Seconds(245)), "4m 5s");
  EXPECT_EQ(HumanDuration(absl::Minutes(123)), "2h 3m");
  EXPECT_EQ(HumanDuration(absl::Hours(126)), "5d 6h");
  EXPECT_EQ(HumanDuration(-absl::Hours(1)), "0s");
}

TEST(ReadDurationTest, SecondsOrUnits) {
  const std::pair<const char*, absl::Duration> right[] = {{"5", absl::Seconds(5)},
                                                          {"0.5", absl::Milliseconds(500)},
                                                          {"500ms", absl::Milliseconds(500)},
                                                          {"1m30s", absl::Seconds(90)},
                                                          {"0", absl::ZeroDuration()}};
  for (const auto& [text, expected] : right) {
    absl::Duration read = absl::InfiniteDuration();
    EXPECT_TRUE(ReadDuration(text, &read)) << text;
    EXPECT_EQ(read, expected) << text;
  }
}

TEST(ReadDurationTest, NothingElse) {
  for (const char* text : {"", "x", "-1", "-1s", "5 apples", "inf", "infinity", "nan", "1e999"}) {
    absl::Duration read = absl::Seconds(7);
    EXPECT_FALSE(ReadDuration(text, &read)) << text;
    EXPECT_EQ(read, absl::Seconds(7)) << text;
  }
}

TEST(EscapeNameTest, LeavesPrintableTextAlone) {
  EXPECT_EQ(EscapeName("layer.0/weights"), "layer.0/weights");
  EXPECT_EQ(EscapeName("größe 日本 🙂"), "größe 日本 🙂");
}

TEST(EscapeNameTest, EscapesWhatSteersATerminal) {
  EXPECT_EQ(EscapeName("\033[2Jx"), "\\x1b[2Jx");
  EXPECT_EQ(EscapeName("a\nb\tc\r"), "a\\nb\\tc\\x0d");
  EXPECT_EQ(EscapeName(absl::string_view("\0\x7f", 2)), "\\x00\\x7f");
  EXPECT_EQ(EscapeName("\xc2\x9b"
                       "2J"),
            "\\xc2\\x9b2J");  // C1 control
  EXPECT_EQ(EscapeName("\xe2\x80\xae"
                       "evil"),
            "\\xe2\\x80\\xaeevil");  // right-to-left override
}

TEST(EscapeNameTest, EscapesWhatIsNoText) {
  EXPECT_EQ(EscapeName("\xff"), "\\xff");
  EXPECT_EQ(EscapeName("\xc3"), "\\xc3");
  EXPECT_EQ(EscapeName("\xc0\xaf"), "\\xc0\\xaf");           // overlong
  EXPECT_EQ(EscapeName("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // surrogate
}

TEST(EscapeNameTest, IsUnambiguous) { EXPECT_EQ(EscapeName("\\x1b"), "\\\\x1b"); }

TEST(TableTest, AlignsColumns) {
  Table table({{"NAME"}, {"BYTES", Table::Align::kRight}, {"LAST"}});
  table.Add({"a", "1", "x"});
  table.Add({"longer", "1234567", ""});
  EXPECT_EQ(table.Take(),
            "NAME      BYTES  LAST\n"
            "a             1  x\n"
            "longer  1234567  -\n");
  EXPECT_EQ(table.rows(), 2u);
}

TEST(TableTest, IsShownPartByPart) {
  Table table({{"NAME"}, {"BYTES", Table::Align::kRight}});
  EXPECT_EQ(table.Take(), "");
  table.Add({"name", "1"});
  EXPECT_EQ(table.Take(),
            "NAME  BYTES\n"
            "name      1\n");
  EXPECT_EQ(table.Take(), "");
  table.Add({"longer", "22"});
  table.Add({"a", "3"});
  EXPECT_EQ(table.Take(),
            "longer     22\n"
            "a           3\n");
  table.Add({"b", "4"});
  EXPECT_EQ(table.Take(), "b           4\n");
  EXPECT_EQ(table.rows(), 4u);
}

TEST(TableTest, CutsTheLastColumnAloneAndOnlyOnANarrowTerminal) {
  const auto shown = [](size_t max_width, bool may_be_cut) {
    Table table({{"NAME"}, {"COMMAND", Table::Align::kLeft, may_be_cut}});
    table.set_max_width(max_width);
    table.Add({"a long name", "größe --of 12345"});
    table.Add({"b", "short"});
    return table.Take();
  };
  const std::string whole =
      "NAME         COMMAND\n"
      "a long name  größe --of 12345\n"
      "b            short\n";
  EXPECT_EQ(shown(0, true), whole);
  EXPECT_EQ(shown(29, true), whole);
  EXPECT_EQ(shown(10, false), whole);
  EXPECT_EQ(shown(28, true),
            "NAME         COMMAND\n"
            "a long name  größe --of 12..\n"
            "b            short\n");
  EXPECT_EQ(shown(10, true),
            "NAME         COMMAND\n"
            "a long name  größe ..\n"
            "b            short\n");
}

TEST(TableTest, CountsCharactersNotBytes) {
  Table table({{"N"}, {"X"}});
  table.Add({"ö", "1"});
  table.Add({"ab", "2"});
  EXPECT_EQ(table.Take(), "N   X\nö   1\nab  2\n");
}

TEST(HexDumpTest, ShowsOffsetHexAndText) {
  EXPECT_EQ(HexDump("Hello, heap!\n", 0x400),
            "0000000400  48 65 6c 6c 6f 2c 20 68  65 61 70 21 0a           |Hello, heap!.|\n"
            "000000040d\n");
}

TEST(HexDumpTest, FoldsRepeatedLines) {
  EXPECT_EQ(HexDump(std::string(64, '\0') + std::string(16, 'a'), 0),
            "0000000000  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  |................|\n"
            "*\n"
            "0000000040  61 61 61 61 61 61 61 61  61 61 61 61 61 61 61 61  |aaaaaaaaaaaaaaaa|\n"
            "0000000050\n");
}

TEST(HexDumpTest, OfNothingIsItsOffset) { EXPECT_EQ(HexDump("", 16), "0000000010\n"); }

}  // namespace
}  // namespace iris::ctl
