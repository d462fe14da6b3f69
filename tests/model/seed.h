// Seed and length of a random test. The seed is the same in every run, so that a run is repeatable;
// the environment has another one drawn, or replays one, and both are printed:
//   bazel test --test_env=IRIS_TEST_SEED=random //tests/model/...
//   bazel test --test_env=IRIS_TEST_SEED=123 --test_env=IRIS_TEST_OPS=5000 //tests/model/...
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

namespace iris::model {

inline constexpr uint64_t kDefaultSeed = 20240229;

struct RandomRun {
  uint64_t seed = 0;
  uint64_t n_ops = 0;
};

inline uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoull(text, nullptr, 0);
}

inline RandomRun BeginRandomRun(const char* test, uint64_t n_ops) {
  const char* wanted = std::getenv("IRIS_TEST_SEED");
  const bool draw = wanted != nullptr && std::strcmp(wanted, "random") == 0;
  const uint64_t seed =
      draw ? std::random_device()() : FromEnvironment("IRIS_TEST_SEED", kDefaultSeed);
  const RandomRun run{seed, FromEnvironment("IRIS_TEST_OPS", n_ops)};
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
