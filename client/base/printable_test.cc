#include "client/base/printable.h"

#include <gtest/gtest.h>

namespace iris::base {
namespace {

TEST(PrintableTest, TextStaysAsItIs) {
  for (const char* text :
       {"", "plain text, with \\ and \"quotes\"", "h\xc3\xa9 \xe6\xbc\xa2\xf0\x9f\x98\x80"}) {
    EXPECT_EQ(Printable(text), text);
  }
}

TEST(PrintableTest, ControlCharactersAreEscaped) {
  EXPECT_EQ(Printable("a\x1b[31mb\nc\td\r\x7f"), "a\\x1b[31mb\\nc\\td\\x0d\\x7f");
  EXPECT_EQ(Printable(absl::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(Printable("\xc2\x9b"), "\\xc2\\x9b");           // CSI of 8 bits
  EXPECT_EQ(Printable("\xe2\x80\xae"), "\\xe2\\x80\\xae");  // from right to left
  EXPECT_EQ(Printable("\xe2\x80\x8b"), "\\xe2\\x80\\x8b");  // a space of no width
  EXPECT_EQ(Printable("\xef\xbb\xbf"), "\\xef\\xbb\\xbf");  // a byte order mark
}

TEST(PrintableTest, WhatIsNotUtf8IsEscaped) {
  EXPECT_EQ(Printable("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(Printable("\xc0\x9b"), "\\xc0\\x9b");           // a long form of ESC
}

}  // namespace
}  // namespace iris::base
