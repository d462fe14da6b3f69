#include "server/job/text.h"

#include <string>

#include "gtest/gtest.h"

namespace iris::server {
namespace {

TEST(Text, PrintableIsUtf8WithoutControls) {
  EXPECT_TRUE(IsPrintable(""));
  EXPECT_TRUE(IsPrintable("a b~"));
  EXPECT_TRUE(IsPrintable("\xc3\xa9\xe2\x98\x80\xf0\x9f\x98\x80"));
  EXPECT_FALSE(IsPrintable("\x1f"));
  EXPECT_FALSE(IsPrintable("\xc2\x9f"));
  EXPECT_FALSE(IsPrintable("\xe2\x80\xa8"));
  EXPECT_FALSE(IsPrintable("\xe2\x98"));
  EXPECT_FALSE(IsPrintable("\x80"));
}

TEST(Text, OverlongAndSurrogateFormsAreNotUtf8) {
  EXPECT_FALSE(IsPrintable("\xc1\xbf"));
  EXPECT_FALSE(IsPrintable("\xe0\x9f\xbf"));
  EXPECT_FALSE(IsPrintable("\xf0\x8f\xbf\xbf"));
  EXPECT_FALSE(IsPrintable("\xed\xbf\xbf"));
  EXPECT_FALSE(IsPrintable("\xf4\x90\x80\x80"));
}

TEST(Text, CheckNamesWhatIsWrongAndNeverRepeatsIt) {
  const absl::Status status = CheckText("the name", "\x1b[31m", 1, 10);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(status.message().find('\x1b'), std::string::npos);
  EXPECT_NE(status.message().find("the name"), std::string::npos);
  EXPECT_TRUE(CheckText("the name", "0123456789", 1, 10).ok());
  EXPECT_FALSE(CheckText("the name", "0123456789a", 1, 10).ok());
  EXPECT_FALSE(CheckText("the name", "", 1, 10).ok());
  EXPECT_TRUE(CheckText("the name", "", 0, 10).ok());
}

TEST(Text, ANameHasSomethingToSee) {
  for (const char* const name :
       {" ", "   ", "\xc2\xa0", "\xe3\x80\x80 ", "\xe2\xa0\x80", "\xef\xb8\x8f"}) {
    EXPECT_EQ(CheckText("the name", name, 1, 10).message(), "the name has no visible character");
  }
  EXPECT_TRUE(CheckText("the name", " a ", 1, 10).ok());
  EXPECT_TRUE(CheckText("the name", "\xe2\x9d\xa4\xef\xb8\x8f", 1, 10).ok());  // a red heart
  EXPECT_TRUE(CheckText("the name", "", 0, 10).ok());
}

TEST(Text, FormatCharactersAreRefusedWhereverTheyAre) {
  for (const char* const hidden :
       {"\xef\xbb\xbf", "\xe2\x80\x8b", "\xc2\xad", "\xe2\x80\x8d", "\xe2\x80\xae", "\xe2\x81\xa0",
        "\xd8\x9c", "\xf3\xa0\x81\x81"}) {
    for (const std::string& name : {std::string(hidden), std::string("train") + hidden}) {
      EXPECT_FALSE(IsPrintable(name));
      EXPECT_EQ(CheckText("the name", name, 1, 10).message(),
                "the name contains control characters or invisible ones, or is not UTF-8");
    }
  }
}

TEST(Text, CleanReplacesWhatCannotBeShown) {
  EXPECT_EQ(CleanText("a\nb\xff", 10), "a?b?");
  EXPECT_EQ(CleanText(std::string("\0x", 2), 10), "?x");
}

TEST(Text, CleanCutsBetweenCharacters) {
  EXPECT_EQ(CleanText("abcdef", 3), "abc");
  EXPECT_EQ(CleanText("ab\xe2\x98\x80", 4), "ab");
  EXPECT_EQ(CleanText("ab\xe2\x98\x80", 5), "ab\xe2\x98\x80");
}

}  // namespace
}  // namespace iris::server
