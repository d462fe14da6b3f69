// The test data of example 14: its flags, the values that its grid begins with, and what is said
// in the end. No part of Iris: a program that has a grid of its own needs none of it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "iris/status.h"

namespace example {

struct JacobiOptions {
  uint64_t rows = 8192, columns = 8192, steps = 1000;
};

// Ends the program after --help and after flags that cannot be.
inline JacobiOptions ParseJacobi(int argc, char** argv) {
  CLI::App app("Jacobi's method on a grid whose rows are split over the ranks.", "14_jacobi");
  JacobiOptions options;
  app.add_option("--rows", options.rows, "Of the grid, all ranks together [8192]")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--columns", options.columns, "Of the grid [8192]")->check(CLI::Range(1, 1 << 20));
  app.add_option("--steps", options.steps, "To take [1000]")->check(CLI::Range(1, 1 << 30));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 1);
  }
  return options;
}

// kInvalidArgument for a grid that cannot be split over so many ranks.
inline iris::Status CheckJacobi(const JacobiOptions& options, uint32_t n_ranks) {
  if (options.rows >= 2 * uint64_t{n_ranks} && options.columns >= 3) return iris::OkStatus();
  return {iris::StatusCode::kInvalidArgument,
          "the grid is too small: it needs 2 rows for each of the " + std::to_string(n_ranks) +
              " ranks, and 3 columns; give more --rows or --columns"};
}

// The values of `rows` rows, from first_row on: 1 in the first row of the grid, else below 1/4.
inline std::vector<float> JacobiValues(uint64_t first_row, uint64_t rows, uint64_t columns) {
  std::vector<float> values(rows * columns);
  for (uint64_t i = 0; i < values.size(); ++i) {
    const uint64_t at = first_row * columns + i;
    values[i] = at < columns ? 1.0f : static_cast<float>(at * 2654435761u % 1024) / 4096;
  }
  return values;
}

// `us`: of a step on all ranks, and on one.
inline void PrintJacobi(const JacobiOptions& options, uint32_t n_ranks, double us,
                        double us_alone) {
  std::printf("%llu steps on %llu x %llu points: the same bits on %u ranks and on one\n",
              static_cast<unsigned long long>(options.steps),
              static_cast<unsigned long long>(options.rows),
              static_cast<unsigned long long>(options.columns), n_ranks);
  std::printf("a step takes %.1f us, and %.1f us on one rank\n", us, us_alone);
  std::printf("result ok figure %.1f us\n", us);
}

}  // namespace example
