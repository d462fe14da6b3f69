// Recorder: writes every input of a JobMachine, its time and its effects to one file, from which
// replay.h makes the same machine do the same again. For whoever must find out why irisd did what
// it did, and for tests.
//
// Not thread-safe: the machine's owner locks. Owns the file. A recording holds what clients said,
// broadcast values included: the file is new, and its owner's alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/wire/unique_fd.h"
#include "server/heap/ledger.h"
#include "server/job/effects.h"
#include "server/job/inputs.h"
#include "server/job/limits.h"

namespace iris::server {

// What a JobMachine is made of: the same, and the same inputs, give the same effects.
struct MachineSetup {
  JobLimits limits;
  std::vector<Ledger::DeviceAccount> devices;
  uint32_t operator_uid = 0;
  UnusablePairs unusable;
  // Of MachineState::Encode: it goes on with this. Empty: it begins with nothing.
  std::string state;

  Ledger MakeLedger() const { return Ledger(devices, operator_uid); }
};

class Recorder {
 public:
  static constexpr uint64_t kMaxBytes = 1ull << 30;

  // Recordings of earlier processes that stay: FILE.1 is the last one, then FILE.2 and so on.
  static constexpr int kEarlierFiles = 3;

  // Makes the file (mode 0600). A regular file of this user's that has the name is renamed to
  // FILE.1. kAlreadyExists: something else has the name; it is left alone.
  static absl::StatusOr<std::unique_ptr<Recorder>> Create(const std::string& file,
                                                          uint64_t max_bytes = kMaxBytes);

  // Once, before the first Record.
  void Begin(const MachineSetup& setup);

  // Appends. False, once: this record found no room, or could not be written; it and all that
  // follow are dropped and counted, so that what is in the file has no gap.
  bool Record(const Input& input, const Time& now, const Effects& effects);

  const std::string& file() const { return file_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t n_dropped() const { return n_dropped_; }

 private:
  Recorder(std::string file, uint64_t max_bytes, wire::UniqueFd fd);
  bool Append(const std::string& payload);

  const std::string file_;
  const uint64_t max_bytes_;
  const wire::UniqueFd fd_;
  uint64_t bytes_ = 0;
  uint64_t n_dropped_ = 0;
};

}  // namespace iris::server
