// LoadBackend: loads the functions of the backend of the heap's memory.
//
// Thread-safe. An opened library stays open until the process ends.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/backend/operations.h"

namespace iris::backend {

// Returns the table of the backend that irisd calls `name`: the one linked into this program, else
// that of libiris_NAME.so in the folder of the host library. kFailedPrecondition if there is no
// such library, or if it has another version; the message names the file and the remedy.
absl::StatusOr<const BackendOperations*> LoadBackend(absl::string_view name);

}  // namespace iris::backend
