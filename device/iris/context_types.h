// Options and results of the calls of iris::Context, as plain values that the public headers and
// the library's implementation share. C++17, the standard library alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "iris/dtype.h"
#include "iris/types.h"

struct iris_team;  // a handle of the C API

namespace iris {

// A field left at its default is read from the environment: IRIS_JOB, IRIS_RANK, IRIS_N_RANKS,
// IRIS_LOCAL_RANK and IRIS_N_LOCAL, then the variables of torchrun, Open MPI, MPICH, PMIx and
// Slurm; IRIS_HEAP_BYTES; IRIS_RUNTIME_DIR; IRIS_RENDEZVOUS; IRIS_JOB_SECRET. If neither the
// options nor the environment name a job or ranks, the process is rank 0 of 1, in a job that no
// other process can join.
struct ContextOptions {
  std::string job{};
  int rank = -1;
  int n_ranks = -1;
  int local_rank = -1;
  uint64_t heap_bytes = 0;      // per rank; 0: IRIS_HEAP_BYTES, else 1 GiB
  uint64_t max_heap_bytes = 0;  // address space to grow into, per rank; 0: four times heap_bytes
  bool prealloc = false;        // reserve all pages now
  std::string device_uuid{};    // empty: device local_rank mod the number of devices
  std::string runtime_dir{};  // empty: IRIS_RUNTIME_DIR, else /run/iris, else $XDG_RUNTIME_DIR/iris
  std::chrono::nanoseconds join_timeout{0};     // 0: 60 s
  std::chrono::nanoseconds timeout{0};          // of every other wait, on host and device; 0: 60 s
  std::chrono::nanoseconds connect_timeout{0};  // to retry while no irisd answers; 0: 2 s
  // Of a job that spans nodes, which is one with fewer ranks on this node than in all. The ranks of
  // a node are consecutive, and local_rank counts them.
  int n_local = -1;  // ranks on this node
  // HOST:PORT of the node of rank 0, where the nodes meet; without one, irisd's network.etcd.
  std::string rendezvous{};
  // Known to the job's nodes alone: 16 to 64 bytes, or twice as many hexadecimal digits. Without it
  // the irisds use their own. It is never logged.
  std::string secret{};
};

struct AllocateOptions {
  uint64_t bytes = 0;
  uint64_t alignment_bytes = 1024;  // a power of two
  // Unique in the job, or empty; shown by iris-ctl. For AllocateLocal, other ranks may use the same
  // name.
  std::string name{};
  DType dtype = DType::kNone;  // shown by iris-ctl, must agree between ranks
  std::vector<uint64_t> shape{};
};

// A range of the symmetric heap. It is a plain value: copying it copies no memory, and
// Context::Free ends it.
struct Allocation {
  uint64_t offset_bytes = 0;  // the same on every rank
  uint64_t bytes = 0;
  void* address = nullptr;  // of this rank's copy
  uint32_t team_id = 0;     // of the team that allocated it, and must free it

  template <typename T>
  T* As() const {
    return static_cast<T*>(address);
  }
};

// An allocation of another rank (Context::AllocateLocal, Context::Register), as opened here. It is
// a plain value; Context::Close ends it.
struct Opened {
  uint32_t rank = 0;          // the owner
  uint64_t offset_bytes = 0;  // in the owner's heap
  uint64_t bytes = 0;
  void* address = nullptr;  // of the owner's memory, for loads and stores of this rank
  // The address at that offset in this rank's heap, unused there. Pass it to Put, Get, signals and
  // atomics, with `rank` as the peer.
  void* symmetric_address = nullptr;
  DType dtype = DType::kNone;  // given by the owner
};

// An ordered set of ranks. It is a plain value, valid until Context::DestroyTeam or the end of the
// context. In a call, a default-constructed or omitted Team means the world.
struct Team {
  uint32_t id = 0;
  std::vector<uint32_t> ranks{};  // world ranks in team order
  int index = -1;                 // of this rank; -1: not a member
  DeviceTeam device{};            // for kernels
  iris_team* handle = nullptr;    // null: the world
  bool member() const { return index >= 0; }
};

// Says where the time of Create went, for benchmarks and logs. An indented entry is part of the
// entry above it.
struct CreateTimings {
  std::chrono::nanoseconds connect{0};     // session handshake and first answer
  std::chrono::nanoseconds device{0};      // vendor's library and the device's context
  std::chrono::nanoseconds join{0};        // until every rank has joined and all memory is there
  std::chrono::nanoseconds create{0};      //   irisd: to create this rank's memory
  std::chrono::nanoseconds export_fds{0};  //   irisd: to make descriptors of it
  std::chrono::nanoseconds map{0};         // descriptors, import, map
  std::chrono::nanoseconds import{0};      //   of all segments
  std::chrono::nanoseconds map_memory{0};  //   the same
  std::chrono::nanoseconds set_access{0};  //   the same
  std::chrono::nanoseconds commit{0};      // until every rank has mapped
};

}  // namespace iris
