// HeapPart: a part of a rank's heap, for calls that read it or lend its memory. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/host/daemon.h"

namespace iris::server {

// A part of a rank's heap, and the memory that holds it.
struct HeapPart {
  JobId job_id;
  uint64_t epoch = 0;
  uint32_t device_index = 0;
  std::vector<SegmentInfo> segments;  // segments that contain the part, in order and without holes
  bool of_member = false;             // the caller's process has a rank of that job
};

struct HeapPartQuery {
  const char* what = "";  // the call, for errors
  std::string job;
  uint32_t rank = 0;
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;
};

// Returns kNotFound if the caller may see no such job, if no such rank has memory, or if the part
// has a hole. Returns kFailedPrecondition if several users have a job of that name, and
// kInvalidArgument if the part is empty, or not within the heap.
absl::StatusOr<HeapPart> FindHeapPart(const Daemon& daemon, const CallerInfo& caller,
                                      const HeapPartQuery& query);

}  // namespace iris::server
