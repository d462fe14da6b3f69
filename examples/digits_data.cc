#include "examples/digits_data.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace example {

absl::StatusOr<Digits> ReadDigits(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return absl::NotFoundError(
        absl::StrCat("cannot read the digits from ", path,
                     ": run from the repository's root, or say --data PATH"));
  }
  Digits digits;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, ',');
    bool good = fields.size() == kPixels + 1;
    for (size_t i = 0; good && i < fields.size(); ++i) {
      uint32_t value = 0;
      good = absl::SimpleAtoi(fields[i], &value) && value <= (i < kPixels ? 16u : kClasses - 1);
      if (!good) break;
      if (i < kPixels) {
        digits.pixels.push_back(static_cast<float>(value) / 16);
      } else {
        digits.labels.push_back(value);
      }
    }
    if (!good) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number, ": not ", kPixels, " numbers 0..16 and a label 0..9"));
    }
  }
  if (digits.labels.empty())
    return absl::InvalidArgumentError(absl::StrCat(path, " has no digits"));
  return digits;
}

void Split(const Digits& all, Digits* train, Digits* test) {
  for (uint32_t i = 0; i < all.size(); ++i) {
    Digits* to = i % 5 == 4 ? test : train;
    to->pixels.insert(to->pixels.end(), all.pixels.begin() + i * kPixels,
                      all.pixels.begin() + (i + 1) * kPixels);
    to->labels.push_back(all.labels[i]);
  }
}

std::vector<uint32_t> Shuffled(uint32_t n, uint64_t seed) {
  std::vector<uint32_t> order(n);
  for (uint32_t i = 0; i < n; ++i) order[i] = i;
  uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
  for (uint32_t i = n; i > 1; --i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    std::swap(order[i - 1], order[(state >> 33) % i]);
  }
  return order;
}

}  // namespace example
