#include "examples/digits_data.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

namespace example {

namespace {

// Adds the digit of a line. False if it is none.
bool AddDigit(const std::string& line, Digits* digits) {
  std::istringstream fields(line);
  std::string field;
  uint32_t n_fields = 0;
  for (; std::getline(fields, field, ','); ++n_fields) {
    uint32_t value = 0;
    const char* const end = field.data() + field.size();
    const auto read = std::from_chars(field.data(), end, value);
    const uint32_t most = n_fields < kPixels ? 16 : kClasses - 1;
    if (read.ec != std::errc() || read.ptr != end || value > most || n_fields > kPixels) {
      return false;
    }
    if (n_fields < kPixels) {
      digits->pixels.push_back(static_cast<float>(value) / 16);
    } else {
      digits->labels.push_back(value);
    }
  }
  return n_fields == kPixels + 1;
}

}  // namespace

iris::StatusOr<std::string> FindDigits() {
  std::error_code none;
  return FindDigits(std::filesystem::read_symlink("/proc/self/exe", none).string(),
                    std::filesystem::current_path(none).string());
}

iris::StatusOr<std::string> FindDigits(const std::string& program, const std::string& folder) {
  using std::filesystem::path;
  // The first is where CMake puts it, the second where Bazel does. In the bundle, programs are in
  // libexec/iris/BACKEND/examples. The last is the repository's.
  const path beside = path(program).parent_path();
  const path places[] = {beside / "data/digits.csv",
                         path(program + ".runfiles") / "iris/examples/data/digits.csv",
                         beside / "../../../../share/iris/examples/data/digits.csv",
                         path(folder) / "examples/data/digits.csv"};
  std::string looked;
  for (const path& place : places) {
    std::error_code none;
    if (std::filesystem::is_regular_file(place, none)) return place.lexically_normal().string();
    looked += (looked.empty() ? "" : ", ") + place.lexically_normal().string();
  }
  return iris::Status(iris::StatusCode::kNotFound,
                      "cannot find the digits, examples/data/digits.csv of Iris: say --data PATH. "
                      "They are not in any of " +
                          looked);
}

iris::StatusOr<Digits> ReadDigits(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return iris::Status(iris::StatusCode::kNotFound,
                        "cannot read the digits from " + path + ": say --data PATH");
  }
  Digits digits;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (!AddDigit(line, &digits)) {
      return iris::Status(iris::StatusCode::kInvalidArgument,
                          path + ":" + std::to_string(number) + ": not " + std::to_string(kPixels) +
                              " numbers 0..16 and a label 0..9");
    }
  }
  if (digits.labels.empty()) {
    return iris::Status(iris::StatusCode::kInvalidArgument, path + " has no digits");
  }
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
