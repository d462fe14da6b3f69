// Plain values of the library's inside. Arguments and results of a context's calls have the shapes
// of the public headers (iris/context_types.h).
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "iris/context_types.h"

namespace iris::internal {

// The options of a context, with those that no caller of C++ gives.
struct HostContextOptions : ContextOptions {
  std::string kernels;  // the backend of the program's own kernels; empty: none
  // Filled in by ResolveOptions from IRIS_TRACE_EVENTS and IRIS_TRACE: how many events the trace of
  // a rank has room for, 0: no trace; and where each rank writes its own when it leaves.
  uint64_t trace_events = 0;
  std::string trace_file;
};

// The times of a join's steps. An indented one is part of the one above it.
struct CreateTimings {
  absl::Duration connect;  // session handshake and first answer
  absl::Duration device;   // vendor's library and the device's context, where this process had none
  absl::Duration join;     // until every rank has joined and irisd has created all memory
  absl::Duration create;   //   irisd: to create this rank's memory
  absl::Duration export_fds;  //   irisd: to make descriptors of it
  absl::Duration map;         // descriptors, import, map
  absl::Duration import;      //   of all segments
  absl::Duration map_memory;  //   the same
  absl::Duration set_access;  //   the same
  absl::Duration commit;      // until every rank has mapped
};

}  // namespace iris::internal
