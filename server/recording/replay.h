// Replay: feeds a recording to a new JobMachine, and compares the effects. Pure, except that it
// reads the file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/job/job_machine.h"
#include "server/recording/recorder.h"

namespace iris::server {

struct ReplayReport {
  uint64_t n_inputs = 0;
  uint64_t n_effect_bytes = 0;  // of all effects as text
  bool cut = false;             // the last record is incomplete: its writer was killed
};

// Runs after each input, and may replace the machine.
using AfterInput =
    std::function<absl::Status(const MachineSetup& setup, std::unique_ptr<JobMachine>* machine)>;

// Returns kDataLoss if an input had other effects than recorded (the message names the input and
// shows both), or broke an invariant of the machine. Returns kFailedPrecondition if another build
// of irisd wrote the file, and kInvalidArgument if it is no recording.
absl::StatusOr<ReplayReport> Replay(const std::string& file, const AfterInput& after = nullptr);

}  // namespace iris::server
