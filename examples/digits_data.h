// The digits data set of example 10: reading it, and splitting it for training and test.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "iris/status.h"

namespace example {

inline constexpr uint32_t kPixels = 64;
inline constexpr uint32_t kClasses = 10;

struct Digits {
  std::vector<float> pixels;     // kPixels for each digit, 0 to 1
  std::vector<uint32_t> labels;  // one for each digit, below kClasses
  uint32_t size() const { return static_cast<uint32_t>(labels.size()); }
};

// Where the program's copy of the data set is: beside the program, in the folder of the bundle that
// it lies in, or in the working directory. kNotFound names the places that were looked at.
iris::StatusOr<std::string> FindDigits();
// The same for a program of this path, started in this folder.
iris::StatusOr<std::string> FindDigits(const std::string& program, const std::string& folder);

// Reads lines of kPixels numbers 0..16 and a label. The error names the file, and the line that is
// not like that.
iris::StatusOr<Digits> ReadDigits(const std::string& path);

// Every fifth digit is for the test, the others are for training.
void Split(const Digits& all, Digits* train, Digits* test);

// A permutation of 0..n-1, the same on every rank for the same seed.
std::vector<uint32_t> Shuffled(uint32_t n, uint64_t seed);

}  // namespace example
