// Reports on the stored state for operators: `irisd state check|dump|stat`, and `irisd
// --check-state`. They only read the journal, even while irisd writes it, and need no devices.
// Thread-safe.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/job/inputs.h"

namespace iris::server {

// Returns a report on the journal under the runtime directory `directory`, according to `command`:
//   check  its writer and size, if it is complete and decodes
//   dump   the state after its last change, as text of the protocol buffer state.MachineState
//   stat   a line "key: value" for each of its numbers
// Errors are those of ReadJournal, and of MachineState::Check for `check`.
absl::StatusOr<std::string> RunStateCommand(absl::string_view command,
                                            const std::string& directory);

// Returns a text if an irisd of this version and with these limits could continue with the journal
// under `directory`, or if there is none. Devices are not compared. Returns an error if such an
// irisd would begin with nothing, or end.
absl::StatusOr<std::string> CheckStoredState(const std::string& directory, const JobLimits& limits);

}  // namespace iris::server
