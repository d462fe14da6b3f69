// job_model_campaign --minutes N: every test of job_model_test over random histories, one after the
// other, for N minutes in all. Each history is replayed.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "gtest/gtest.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 3 || std::strcmp(argv[1], "--minutes") != 0 || std::atoi(argv[2]) < 1) {
    std::fprintf(stderr, "usage: job_model_campaign --minutes N\n");
    return 2;
  }
  // The time is the tests' together; each takes whole minutes.
  const int n_tests = testing::UnitTest::GetInstance()->total_test_count();
  const int each = (std::atoi(argv[2]) + n_tests - 1) / n_tests;
  setenv("IRIS_TEST_MINUTES", std::to_string(each).c_str(), 1);
  setenv("IRIS_TEST_SEED", "random", 0);  // unless it is given
  return RUN_ALL_TESTS();
}
