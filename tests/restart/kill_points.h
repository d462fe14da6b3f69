// KillPoints: has an irisd kill itself at a chosen system call, so that a test can go through
// all of them. A library that is loaded into irisd before the C library (LD_PRELOAD) counts the
// calls that somebody outside irisd could notice. The test and the library share a file.
//
// The supervisor and the workers have the library too, and it does nothing in them.
#pragma once

#include <atomic>
#include <cstdint>

namespace iris::testing {

inline constexpr char kKillPointsVariable[] = "IRIS_TEST_KILL_POINTS";  // the path of the file

struct KillPointsPage {
  std::atomic<int64_t> left{0};     // calls up to the one that is the last; 0 or less: no end
  std::atomic<int64_t> next{0};     // takes the place of `left` then, for the next irisd
  std::atomic<bool> after{false};   // the last call is carried out
  std::atomic<uint32_t> killed{0};  // how often
  char last[32] = {};               // the name of the last call
};

}  // namespace iris::testing
