#include "examples/digits_data.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace example {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Write(const std::string& text) {
  const std::string path = ::testing::TempDir() + "/digits.csv";
  std::ofstream(path) << text;
  return path;
}

std::string Line(int label) {
  std::string line;
  for (int i = 0; i < 64; ++i) line += i == 5 ? "16," : "0,";
  return line + std::to_string(label) + "\n";
}

TEST(ReadDigitsTest, ReadsThePublishedSet) {
  const iris::StatusOr<Digits> digits = ReadDigits("examples/data/digits.csv");
  ASSERT_TRUE(digits.ok()) << digits.status();
  EXPECT_EQ(digits->size(), 1797u);
  EXPECT_EQ(digits->pixels.size(), 1797u * kPixels);
  EXPECT_EQ(*std::max_element(digits->pixels.begin(), digits->pixels.end()), 1.0f);
  EXPECT_EQ(*std::max_element(digits->labels.begin(), digits->labels.end()), 9u);
}

TEST(ReadDigitsTest, ScalesToOne) {
  const iris::StatusOr<Digits> digits = ReadDigits(Write(Line(7)));
  ASSERT_TRUE(digits.ok()) << digits.status();
  EXPECT_EQ(digits->pixels[5], 1.0f);
  EXPECT_EQ(digits->pixels[4], 0.0f);
  EXPECT_EQ(digits->labels[0], 7u);
}

TEST(ReadDigitsTest, NamesTheFileThatIsMissing) {
  EXPECT_THAT(std::string(ReadDigits("/nowhere.csv").status().message()),
              HasSubstr("/nowhere.csv"));
}

TEST(ReadDigitsTest, NamesTheLineThatIsWrong) {
  for (const std::string& bad :
       {std::string("1,2,3\n"), Line(10), "x" + Line(1), Line(1) + Line(1).substr(2)}) {
    const iris::StatusOr<Digits> digits = ReadDigits(Write(Line(1) + bad));
    EXPECT_EQ(digits.status().code(), iris::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(digits.status().message()), HasSubstr("digits.csv:"));
  }
}

TEST(ReadDigitsTest, RefusesAnEmptyFile) {
  EXPECT_EQ(ReadDigits(Write("")).status().code(), iris::StatusCode::kInvalidArgument);
}

// Programs are where Bazel, CMake and the bundle put them; the last one finds what the folder has.
TEST(FindDigitsTest, LooksBesideTheProgram) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(::testing::TempDir()) / "find_digits";
  fs::remove_all(root);
  const struct {
    fs::path program, data;
  } cases[] = {
      {root / "cmake/10_digits_training", root / "cmake/data/digits.csv"},
      {root / "bazel/10", root / "bazel/10.runfiles/iris/examples/data/digits.csv"},
      {root / "bundle/libexec/iris/emu/examples/10",
       root / "bundle/share/iris/examples/data/digits.csv"},
      {root / "elsewhere/10", root / "repository/examples/data/digits.csv"},
  };
  for (const auto& [program, data] : cases) {
    const auto missing = FindDigits(program.string(), (root / "repository").string());
    ASSERT_FALSE(missing.ok());
    EXPECT_EQ(missing.status().code(), iris::StatusCode::kNotFound);
    EXPECT_THAT(missing.status().message(), HasSubstr("say --data PATH"));
    EXPECT_THAT(missing.status().message(), HasSubstr(data.string()));
    fs::create_directories(program.parent_path());
    fs::create_directories(data.parent_path());
    std::ofstream(data.string()) << Line(1);
    const auto found = FindDigits(program.string(), (root / "repository").string());
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(*found, data.string());
    EXPECT_TRUE(ReadDigits(*found).ok());
    fs::remove(data);
  }
}

TEST(SplitTest, PutsEveryFifthDigitBehindTheOthers) {
  Digits digits;
  for (uint32_t i = 0; i < 12; ++i) {
    digits.labels.push_back(i % kClasses);
    digits.pixels.insert(digits.pixels.end(), kPixels, static_cast<float>(i));
  }
  EXPECT_EQ(Split(&digits), 10u);
  EXPECT_THAT(digits.labels, ElementsAre(0, 1, 2, 3, 5, 6, 7, 8, 0, 1, 4, 9));
  ASSERT_EQ(digits.pixels.size(), 12 * kPixels);
  EXPECT_EQ(digits.pixels[4 * kPixels - 1], 3.0f);
  EXPECT_EQ(digits.pixels[4 * kPixels], 5.0f);
  EXPECT_EQ(digits.pixels[10 * kPixels], 4.0f);
  EXPECT_EQ(digits.pixels[11 * kPixels], 9.0f);
}

TEST(LoadDigitsTest, ReadsTheFileThatIsNamedAndElseTheOneThatIsFound) {
  EXPECT_EQ(LoadDigits(Write(Line(7)))->size(), 1u);
  EXPECT_EQ(LoadDigits("/nowhere.csv").status().code(), iris::StatusCode::kNotFound);
  EXPECT_EQ(LoadDigits("")->size(), 1797u);
}

TEST(ShuffledTest, IsAPermutationThatTheSeedDecides) {
  const std::vector<uint32_t> one = Shuffled(100, 1);
  EXPECT_EQ(one, Shuffled(100, 1));
  EXPECT_NE(one, Shuffled(100, 2));
  std::vector<uint32_t> sorted = one;
  std::sort(sorted.begin(), sorted.end());
  for (uint32_t i = 0; i < 100; ++i) EXPECT_EQ(sorted[i], i);
}

}  // namespace
}  // namespace example
