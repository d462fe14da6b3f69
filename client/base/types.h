// Arguments and results of a context's calls, as plain values of the library's inside. The public
// headers have shapes of their own (client/iris/context.h); client/abi translates.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "iris/types.h"

namespace iris::internal {

struct ContextOptions {
  // Fields left at their default come from the environment: IRIS_JOB, IRIS_RANK, IRIS_N_RANKS,
  // IRIS_LOCAL_RANK, then those of torchrun, Open MPI, MPICH, PMIx and Slurm
  // (client/base/launcher.h). Without any: rank 0 of 1, of a job that no other process meets.
  std::string job;
  int rank = -1;
  int n_ranks = -1;
  int local_rank = -1;

  uint64_t heap_bytes = 0;      // per rank; 0: IRIS_HEAP_BYTES, else 1 GiB
  uint64_t max_heap_bytes = 0;  // address space for growth, per rank; 0: four times heap_bytes
  bool prealloc = false;        // reserve all pages now
  std::string device_uuid;      // empty: device local_rank mod number of devices
  std::string kernels;          // the backend of the program's own kernels; empty: none
  std::string runtime_dir;  // empty: IRIS_RUNTIME_DIR, else /run/iris, else $XDG_RUNTIME_DIR/iris
  absl::Duration join_timeout = absl::Seconds(60);
  absl::Duration timeout = absl::Seconds(60);  // default of every other wait, on host and device
  absl::Duration connect_timeout = absl::Seconds(2);  // how long to retry while no irisd answers

  // Filled in by ResolveOptions from IRIS_TRACE_EVENTS and IRIS_TRACE: how many events the trace of
  // a rank has room for, 0: no trace; and where each rank writes its own when it leaves.
  uint64_t trace_events = 0;
  std::string trace_file;
};

struct AllocateOptions {
  uint64_t bytes = 0;
  uint64_t alignment_bytes = 1024;  // a power of two
  std::string name;                 // unique in the job, or empty; shown by iris-ctl
  std::string dtype;                // "f32", ...: shown by iris-ctl, must agree between ranks
  std::vector<uint64_t> shape;
};

// A range of the symmetric heap, which HostContext::Free ends.
struct Allocation {
  uint64_t offset_bytes = 0;  // the same on every rank
  uint64_t bytes = 0;
  void* address = nullptr;  // of this rank's copy
  uint32_t team_id = 0;     // that allocated it, and must free it
  std::string name;

  template <typename T>
  T* As() const {
    return static_cast<T*>(address);
  }
};

// An allocation of another rank alone, as opened here. TeamCalls::Close ends it.
struct Opened {
  uint32_t rank = 0;          // whose it is
  uint64_t offset_bytes = 0;  // in that rank's heap
  uint64_t bytes = 0;
  void* address = nullptr;    // of that rank's memory, in this process
  void* symmetric = nullptr;  // the same offset in this rank's heap, which has nothing there
  std::string dtype;          // as that rank said
};

// An ordered set of ranks, valid until HostContext::DestroyTeam or the end of the context.
struct Team {
  uint32_t id = 0;
  std::vector<uint32_t> ranks;  // world ranks in team order
  int index = -1;               // of this rank; -1: not a member
  DeviceTeam device;            // for kernels
  bool member() const { return index >= 0; }
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
