// FakeGpu: what a test sets and sees of the fake vendors' library, libfake_gpu.so. It has the entry
// points of libcuda and of libamdhip64 that the drivers use, on memfds and mmap, and is as strict
// as the real ones were seen to be. Loaded like them, so the drivers' whole path runs: loading,
// versions, errors, life cycle.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace iris::driver::testing {

struct FakeGpu {
  // The test sets what the library reports.
  int cuda_version = 13000;
  int hip_version = 70'253'211;
  int n_devices = 2;
  uint64_t device_bytes = 1ull << 30;
  bool exportable = true;  // devices have virtual memory management
  bool peers = true;       // devices reach each other
  bool fabric = false;     // cuda: devices have handles for other nodes
  bool channel = true;     // this process may use the fabric
  // The registration of each device with its NVLink domain, as the management library tells it.
  struct Registration {
    std::string cluster_uuid = std::string(16, 'u');
    unsigned clique_id = 7;
    unsigned char state = 3;
    int status = 0;
  };
  std::vector<Registration> registrations = {{}, {}};
  // The call of this name fails so, once `fail_after` calls of it have gone well.
  std::string fail_call;
  int fail_error = 0;
  int fail_after = 0;
  // A thread captures a stream for all threads: calls that could wait for it, or change memory that
  // it uses, fail unless the calling thread has excluded that (relaxed mode), and count.
  bool capturing = false;
  int n_refused_for_capture = 0;

  // Counts of present objects in this process.
  int n_handles = 0;
  int n_reservations = 0;
  int n_mappings = 0;
  int n_streams = 0;
  int n_registered = 0;
  std::vector<int> retained;  // primary contexts, by device
  uint64_t calls_needing_context = 0;
  int n_registered_read_only = 0;  // since the beginning
  bool busy = false;               // copies of streams are not done
  // Since the beginning: writes that wait until kernels of other processes give the device up.
  int n_writes_in_turn = 0;
  // Misuses that a real library would have answered with a crash or with wrong data.
  std::vector<std::string> violations;
};

// The library exports these as extern "C": fake_gpu(), its settings and counts; fake_gpu_reset(),
// which restores the initial state once all its objects are gone.
using GetFakeGpu = FakeGpu* (*)();
using ResetFakeGpu = void (*)();

}  // namespace iris::driver::testing
