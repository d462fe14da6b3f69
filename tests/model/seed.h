// Seed and length of a random test: printed at its start, and taken from the environment to replay
// a failure:
//   IRIS_TEST_SEED=123 IRIS_TEST_OPS=5000 bazel test --test_env=IRIS_TEST_SEED
//   --test_env=IRIS_TEST_OPS ...
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace iris::model {

struct RandomRun {
  uint64_t seed = 0;
  uint64_t n_ops = 0;
};

inline uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoull(text, nullptr, 0);
}

inline RandomRun BeginRandomRun(const char* test, uint64_t n_ops) {
  const uint64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
  const RandomRun run{FromEnvironment("IRIS_TEST_SEED", now % 1000000007),
                      FromEnvironment("IRIS_TEST_OPS", n_ops)};
  std::printf("%s: IRIS_TEST_SEED=%llu IRIS_TEST_OPS=%llu\n", test,
              static_cast<unsigned long long>(run.seed),
              static_cast<unsigned long long>(run.n_ops));
  std::fflush(stdout);
  return run;
}

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  // 0 to n - 1.
  uint64_t Below(uint64_t n) { return engine_() % n; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace iris::model
