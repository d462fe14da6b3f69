// What operators ask about the state that irisd has stored: `irisd state check|dump|stat`, and
// `irisd --check-state`. The journal is read, also while irisd writes it; nothing is written or
// made. No devices are needed. Thread-safe: there is no state.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/job/limits.h"

namespace iris::server {

// Says about the journal under the runtime directory `directory`, according to `command`:
//   check  that it is whole, and decodes: who wrote it, and how much of it there is
//   dump   the state after its last change, as text of the protocol buffer state.MachineState
//   stat   a line "key: value" for each of its numbers
// Not OK: the codes of ReadJournal, or, with `check` alone, of MachineState::Check.
absl::StatusOr<std::string> RunStateCommand(absl::string_view command,
                                            const std::string& directory);

// Says that an irisd of this version and with these limits could go on with the journal under
// `directory`, or that there is none. Devices are not compared, since none are opened. Not OK: it
// could not, and would begin with nothing or end.
absl::StatusOr<std::string> CheckStoredState(const std::string& directory, const JobLimits& limits);

}  // namespace iris::server
