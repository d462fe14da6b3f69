#include "examples/digits_data.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "CLI/CLI.hpp"

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

iris::StatusOr<Digits> LoadDigits(const std::string& path) {
  if (!path.empty()) return ReadDigits(path);
  IRIS_ASSIGN_OR_RETURN(const std::string found, FindDigits());
  return ReadDigits(found);
}

uint32_t Split(Digits* digits) {
  Digits sorted;
  uint32_t n_train = 0;
  for (const bool test : {false, true}) {
    for (uint32_t i = 0; i < digits->size(); ++i) {
      if ((i % 5 == 4) != test) continue;
      const auto first = digits->pixels.begin() + i * kPixels;
      sorted.pixels.insert(sorted.pixels.end(), first, first + kPixels);
      sorted.labels.push_back(digits->labels[i]);
    }
    if (!test) n_train = sorted.size();
  }
  *digits = std::move(sorted);
  return n_train;
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

TrainingOptions ParseTraining(int argc, char** argv) {
  CLI::App app("Data-parallel training of a perceptron on handwritten digits.",
               "10_digits_training");
  TrainingOptions options;
  app.add_option("--epochs", options.epochs, "How often to go through the training data [120]")
      ->check(CLI::Range(1, 100000));
  app.add_option("--batch", options.batch, "Digits in a batch, over all ranks [32]")
      ->check(CLI::Range(1, 1024));
  app.add_option("--rate", options.rate, "Learning rate [0.005]");
  app.add_option("--data", options.data, "The data set [the one that lies beside the program]");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 1);
  }
  return options;
}

void PrintTask(uint32_t n_ranks, uint32_t n_train, uint32_t n_test, uint32_t n_parameters,
               uint32_t batch) {
  std::printf(
      "%u ranks, %u digits to learn from, %u to test with, %u parameters, %u digits a step\n",
      n_ranks, n_train, n_test, n_parameters, batch);
}

void PrintEpoch(const TrainingOptions& options, uint32_t epoch, double loss, double accuracy,
                double first_loss) {
  if (epoch != 1 && epoch % ((options.epochs + 29) / 30) != 0) return;
  constexpr int kWidth = 40;
  const int bars = static_cast<int>(std::lround(std::fmin(loss / first_loss, 1.0) * kWidth));
  std::printf("epoch %3u  loss %7.4f  train accuracy %.3f  %s\n", epoch, loss, accuracy,
              std::string(static_cast<size_t>(bars < 1 ? 1 : bars), '#').c_str());
}

void PrintTest(float correct, uint32_t n_test, uint32_t n_differing, uint32_t n_ranks,
               const std::vector<float>& weights) {
  std::printf("test accuracy %.4f (%.0f of %u)\n", correct / n_test, correct, n_test);
  if (n_differing != 0) return;
  uint64_t checksum = 0xcbf29ce484222325;  // FNV-1a, by 32 bits
  for (const float weight : weights) {
    checksum = (checksum ^ std::bit_cast<uint32_t>(weight)) * 0x100000001b3;
  }
  std::printf("weights identical on %u ranks, checksum %016llx\n", n_ranks,
              static_cast<unsigned long long>(checksum));
}

}  // namespace example
