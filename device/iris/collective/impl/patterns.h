// The rows that each rank sends to each other rank, and their partition among threads.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/collective/impl/reduce.h"
#include "iris/rounds/layout.h"

namespace iris::ccl::impl {

// Returns true if rank `from` sends a row to rank `to`. RowSent is the index of the row in the
// sender's `in`, RowReceived in the receiver's `out`.
IRIS_DEVICE inline bool Sends(const MoveCall& call, uint32_t from, uint32_t to) {
  switch (call.pattern) {
    case Pattern::kBroadcast:
    case Pattern::kScatter:
      return from == call.root;
    case Pattern::kGather:
      return to == call.root;
    default:
      return true;
  }
}
IRIS_DEVICE inline uint64_t RowSent(const MoveCall& call, uint32_t to) {
  return call.pattern == Pattern::kAllToAll || call.pattern == Pattern::kScatter ? to : 0;
}
IRIS_DEVICE inline uint64_t RowReceived(const MoveCall& call, uint32_t from) {
  return call.pattern == Pattern::kBroadcast || call.pattern == Pattern::kScatter ? 0 : from;
}

// The jobs of a thread: job, job + step, ... `share` is the thread's part of each. Neighbouring
// warps do different jobs, so that all links are busy.
struct Jobs {
  uint32_t job;
  uint32_t step;
  Share share;
};
// Divides jobs among whole warps. Warp number `warp` of `warps` has several jobs if there are fewer
// warps than jobs.
IRIS_DEVICE inline Jobs WarpJobs(uint32_t warp, uint32_t warps, uint32_t n_jobs) {
  const uint32_t lanes = backend::WarpSize();
  if (warps < n_jobs) return {warp, warps, {backend::LaneIndex(), lanes}};
  const uint32_t job = warp % n_jobs;
  const uint32_t sharing = warps / n_jobs + (job < warps % n_jobs ? 1 : 0);
  return {job,
          n_jobs,
          {warp / n_jobs * uint64_t{lanes} + backend::LaneIndex(), uint64_t{sharing} * lanes}};
}
IRIS_DEVICE inline Jobs JobsOf(uint32_t block, uint32_t blocks, uint32_t n_jobs) {
  const uint32_t lanes = backend::WarpSize();
  const uint32_t per_block = (backend::BlockSize() + lanes - 1) / lanes;
  // If the last warp of a block is short, or warps are few, all threads share each job.
  if (backend::BlockSize() % lanes != 0 || per_block * blocks < n_jobs) {
    return {0,
            1,
            {block * uint64_t{backend::BlockSize()} + backend::ThreadIndex(),
             uint64_t{blocks} * backend::BlockSize()}};
  }
  return WarpJobs(block * per_block + backend::WarpIndex(), per_block * blocks, n_jobs);
}

}  // namespace iris::ccl::impl
