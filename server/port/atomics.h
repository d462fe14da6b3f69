// DeviceQueue: atomics of other nodes on memory of one device, which the device carries out in the
// order of Add. Several go in one launch. Not thread-safe.
//
// Nobody waits: kernels of ranks may occupy the device for milliseconds, and the port has other
// things to do meanwhile. Poll starts what was added and looks for what is done.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "device/iris/port/device_atomics.h"
#include "device/iris/status_code.h"

namespace iris::port {

// Opens libiris_BACKEND.so of the folder that belongs to this program's, and returns its table. No
// environment variable names the file. Call it before the process gives up opening files.
// kFailedPrecondition, with what to install, if there is none or if it is another build's.
absl::StatusOr<const DeviceAtomicsTable*> LoadDeviceAtomics(const std::string& backend);

class DeviceQueue {
 public:
  struct Outcome {
    bool done = false;
    // kDeadlineExceeded: the device did not come to it in time, and may still carry it out.
    // kInternal: the device fails.
    StatusCode code = StatusCode::kOk;
    uint64_t old = 0;
  };

  // For the current device. An atomic that is not done within `give_up_after` ends with
  // kDeadlineExceeded, as all do from then on until the device has done it after all.
  static absl::StatusOr<std::unique_ptr<DeviceQueue>> Create(const DeviceAtomicsTable* table,
                                                             std::string name,
                                                             absl::Duration give_up_after);
  // Waits for what was started.
  ~DeviceQueue();
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  // `pin` keeps the memory mapped until the device has done it.
  std::shared_ptr<const Outcome> Add(const DeviceAtomic& atomic, std::shared_ptr<const void> pin);

  // False: Poll would do nothing.
  bool has_work() const { return !waiting_.empty(); }
  // Makes progress; the device is current. Returns true if something is not done.
  bool Poll(absl::Time now);

  // Why atomics have failed, for a log; OK if none has since the last call.
  absl::Status TakeFailure() { return std::exchange(failure_, absl::OkStatus()); }

 private:
  struct Waiting {
    DeviceAtomic atomic;
    std::shared_ptr<Outcome> outcome;
    std::shared_ptr<const void> pin;
  };

  DeviceQueue(const DeviceAtomicsTable* table, std::string name, absl::Duration give_up_after)
      : table_(table), name_(std::move(name)), give_up_after_(give_up_after) {}
  // Ends all that is not done.
  void Fail(StatusCode code, absl::Status why);

  const DeviceAtomicsTable* const table_;
  const std::string name_;
  const absl::Duration give_up_after_;
  DeviceAtomics* atomics_ = nullptr;
  std::deque<Waiting> waiting_;  // the first n_started_ are under way
  uint32_t n_started_ = 0;
  absl::Time started_at_;
  StatusCode refuses_ = StatusCode::kOk;  // what Add ends with
  absl::Status failure_;
};

}  // namespace iris::port
