// CheckPairs proves that devices can be used as Iris uses them. For each ordered pair (from, to),
// one process creates and exports memory of `to`; another imports and maps it, writes it by device
// `from`, reads it back by device `to`, and measures copies by `from`.
//
// Both processes are children of the caller. Every step has a deadline at which the child is
// killed, so a driver that hangs or crashes costs only a child. The children run the caller's own
// program, whose main begins with this line:
//
//   if (iris::driver::IsPairCheckChild(argc, argv)) return iris::driver::RunPairCheckChild(argv);
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "device/driver/gpu_driver.h"
#include "device/driver/open.h"

namespace iris::driver {

struct PairCheckOptions {
  OpenOptions open;  // how the children open the driver; the backend is the driver's
  std::string program = "/proc/self/exe";
  uint32_t max_devices = 16;  // the first ones
  uint64_t bytes = 0;         // of each segment; 0: 2 MiB of emulated memory, 128 MiB of a GPU's
  absl::Duration start_timeout = absl::Seconds(60);  // until a child has opened the driver
  absl::Duration step_timeout = absl::Seconds(20);   // of each step; the first makes a context
  absl::Duration timeout = absl::Minutes(3);  // of all pairs together: later pairs are not tried
  std::function<bool()> stop;                 // called before each pair; true ends the check
};

struct PairResult {
  uint32_t from = 0;
  uint32_t to = 0;
  bool ok = false;
  bool conclusive = false;  // the failure is not due to a lack of time, memory or a process
  std::string step;         // the step that failed: "import", "map", ...
  std::string cause;        // empty if ok, as are step and remedy
  std::string remedy;       // what to do
  double bytes_per_second = 0;
};

struct PairTable {
  std::vector<DeviceInfo> devices;
  std::vector<PairResult> pairs;  // in order of from, then to
  size_t n_failed() const;
};

PairTable CheckPairs(GpuDriver& driver, const PairCheckOptions& options);

// Returns a matrix of GB/s with a row for each `from`, and "fail" for pairs that failed.
std::string PairTableText(const PairTable& table);

bool IsPairCheckChild(int argc, char** argv);
int RunPairCheckChild(char** argv);

}  // namespace iris::driver
