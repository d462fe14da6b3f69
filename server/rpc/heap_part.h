// HeapPart: a part of a rank's heap, and the memory behind it, as somebody who looks from outside
// asks for it. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/daemon.h"
#include "server/job/ids.h"
#include "server/job/results.h"
#include "server/job/states.h"

namespace iris::server {

struct HeapPart {
  JobId job_id;
  uint64_t epoch = 0;
  uint32_t device_index = 0;
  std::vector<SegmentInfo> segments;  // that hold the part, in order and without holes
  bool of_member = false;             // the caller's process has a rank of that job
};

struct HeapPartQuery {
  const char* what = "";  // for errors: the call
  std::string job;
  uint32_t rank = 0;
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;
};

// kNotFound: no such job that the caller may see, no such rank with memory, or a hole.
// kFailedPrecondition: several users have a job of that name. kInvalidArgument: the part is empty,
// or leaves the heap.
absl::StatusOr<HeapPart> FindHeapPart(const Daemon& daemon, const CallerInfo& caller,
                                      const HeapPartQuery& query);

}  // namespace iris::server
