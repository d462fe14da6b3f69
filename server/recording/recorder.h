// Recorder: writes every input of a JobMachine, with its time and effects, to one file for Replay,
// to find out why irisd did something, and for tests.
//
// Not thread-safe: the machine's owner locks. Owns the file. A recording contains all data of
// clients' calls, including broadcast values, so the file is new and private.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/wire/unique_fd.h"
#include "server/heap/ledger.h"
#include "server/job/effects.h"
#include "server/job/inputs.h"

namespace iris::server {

// The arguments of a JobMachine. With equal arguments and inputs it has equal effects.
struct MachineSetup {
  JobLimits limits;
  std::vector<Ledger::DeviceAccount> devices;
  uint32_t operator_uid = 0;
  UnusablePairs unusable;
  std::string state;  // MachineState::Encode of the machine at its start; empty: no state

  Ledger MakeLedger() const { return Ledger(devices, operator_uid); }
};

class Recorder {
 public:
  static constexpr uint64_t kMaxBytes = 1ull << 30;

  static constexpr int kEarlierFiles = 3;  // earlier recordings that are kept: FILE.1 is the latest

  // Makes the file (mode 0600). An existing regular file of this user with that name is renamed to
  // FILE.1. Returns kAlreadyExists if something else, which stays, has the name.
  static absl::StatusOr<std::unique_ptr<Recorder>> Create(const std::string& file,
                                                          uint64_t max_bytes = kMaxBytes);

  // Writes the header. Call it once, before the first Record.
  void Begin(const MachineSetup& setup);

  // Appends a record. Returns false once: when a record does not fit or cannot be written. That
  // record and all later ones are dropped and counted, so that the file has no gap.
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
