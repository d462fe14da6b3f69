// LoadBackend: the functions of the backend whose memory a heap is.
//
// Thread-safe. What was opened stays open until the process ends.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/backend/operations.h"

namespace iris::backend {

// The table of the backend `name`, as irisd says it: the one that is linked into this program, else
// that of libiris_NAME.so, which lies beside the host library. kFailedPrecondition: there is none,
// or it is of another version; says which file was looked for and what to do.
absl::StatusOr<const BackendOperations*> LoadBackend(absl::string_view name);

}  // namespace iris::backend
