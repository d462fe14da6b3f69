// The test data of example 10: its flags, the digits, in the order of training and test, and what
// is said of a run. No part of Iris.
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

// The digits of this file; of the one that FindDigits finds if `path` is empty.
iris::StatusOr<Digits> LoadDigits(const std::string& path);

// Every fifth digit is for the test: these go behind all others, which are for training, and whose
// number it gives.
uint32_t Split(Digits* digits);

// A permutation of 0..n-1, the same on every rank for the same seed.
std::vector<uint32_t> Shuffled(uint32_t n, uint64_t seed);

struct TrainingOptions {
  uint32_t epochs = 120;
  uint32_t batch = 32;
  float rate = 0.005f;
  float momentum = 0.9f;
  std::string data;  // for LoadDigits
};

// Ends the program after --help and after flags that cannot be.
TrainingOptions ParseTraining(int argc, char** argv);

// What rank 0 says of a run. Of an epoch: in about 30 lines, the first epoch always. `loss` is the
// mean, and `accuracy` a share of the digits that were learned from.
void PrintTask(uint32_t n_ranks, uint32_t n_train, uint32_t n_test, uint32_t n_parameters,
               uint32_t batch);
void PrintEpoch(const TrainingOptions& options, uint32_t epoch, double loss, double accuracy,
                double first_loss);
// `weights` are printed as a checksum, by which two runs can be compared bit for bit.
void PrintTest(float correct, uint32_t n_test, uint32_t n_differing, uint32_t n_ranks,
               const std::vector<float>& weights);

}  // namespace example
