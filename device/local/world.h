// World: ranks that are threads of one process, without irisd. Each has a stream and a heap, and
// all heaps lie in one window, so device code reaches every peer as it does in a job.
//
// Rank r is on device r modulo the number of devices. World only uses the seam (iris/backend), so
// every backend compiles it; heaps are written and read by copies on streams.
//
//   absl::StatusOr<std::unique_ptr<local::World>> world = local::World::Create({.n_ranks = 4});
//   if (!world.ok()) return world.status();
//   (*world)->Run([](local::Rank& rank) {             // on a thread per rank
//     int* x = rank.New<int>(1);                      // the same offset on every rank; zero
//     backend::Launch({1, 32}, rank.stream, Kernel, rank.ctx, x);
//     rank.stream.Synchronize();
//   });
//
// The World owns its ranks. Only the methods that say so may be called by several threads at once.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/local/port_thread.h"
#include "device/local/window.h"
#include "iris/backend/select.h"
#include "iris/device.h"

namespace iris::ccl {
struct Comm;
struct Config;
}  // namespace iris::ccl

namespace iris::local {

class World;

// One rank. Used by its own thread only.
class Rank {
 public:
  DeviceContext ctx;
  backend::Stream stream;

  uint32_t rank() const { return ctx.rank; }
  uint32_t device() const { return device_; }
  uint32_t n_ranks() const { return ctx.n_ranks; }

  // Returns zeroed memory, or null if the symmetric heap is full. All ranks call it in the same
  // order, with the same arguments.
  template <typename T>
  T* New(uint64_t count, uint64_t alignment_bytes = 256) {
    return static_cast<T*>(NewBytes(count * sizeof(T), alignment_bytes));
  }

  // Copy between device and host memory, after the earlier work of the stream; wait for the copy.
  Result ReadBytes(void* to, const void* from, uint64_t bytes);
  Result WriteBytes(void* to, const void* from, uint64_t bytes);

  // Waits for all ranks of the world, on the host. If some rank has returned from its body, or does
  // not come for minutes, this rank's body ends by an exception that Run catches.
  void HostBarrier();

  // Makes a team with its own barrier area. All ranks call it with the same arguments; only ranks
  // of the team get an index. kInvalidArgument if the heap has no room for the area. In a world of
  // several nodes a team with ranks of several is evenly spaced, or has a table that lives as long
  // as the world.
  Result NewTeam(const std::vector<uint32_t>& ranks, DeviceTeam* team);

  // Makes a Comm over `team`. All ranks of the world call it alike. For targets that link :comm.
  Result NewComm(const DeviceTeam& team, const ccl::Config& config, ccl::Comm* comm);

 private:
  friend class World;
  void* NewBytes(uint64_t bytes, uint64_t alignment_bytes);

  World* world_ = nullptr;
  uint32_t device_ = 0;
  // Pinned host memory, so that copies of a rank's thread do not hold up other ranks' launches.
  void* bounce_ = nullptr;
  uint64_t used_bytes_ = 0;
  uint32_t n_teams_ = 0;
};

struct WorldOptions {
  uint32_t n_ranks = 1;
  uint64_t heap_bytes = 1 << 20;
  // The limit of waits on the device, which only a hang reaches, even on a busy machine.
  uint64_t timeout_ns = 120ull * 1000 * 1000 * 1000;
  // The number of devices to use, from the first on; 0 or too many: all of them.
  uint32_t n_devices = 0;
  // The ranks may be told that they are on several nodes of equal size. Then a PortThread with
  // these options carries their requests from one node to another. On GPUs it copies, so atomics of
  // other nodes are not atomic to those of kernels.
  uint32_t n_nodes = 1;
  PortThread::Options port = {};
};

class World {
 public:
  // Creates the ranks. kFailedPrecondition without a device, kResourceExhausted without memory.
  static absl::StatusOr<std::unique_ptr<World>> Create(const WorldOptions& options);
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World();

  // Calls `body` for every rank, each on a thread, and joins them. Heaps and allocations stay.
  // kAborted if a rank returned while another one waited for it at a host barrier.
  // kDeadlineExceeded if a rank did not come for minutes. Other errors mean that nothing ran.
  absl::Status Run(const std::function<void(Rank&)>& body);

  Rank& rank(uint32_t r) { return *ranks_[r]; }
  uint32_t n_ranks() const { return static_cast<uint32_t>(ranks_.size()); }
  // Returns the number of ranks on the first device, which has the most.
  uint32_t ranks_per_device() const;

  // Returns null if the world has one node.
  PortThread* port_thread() { return port_thread_.get(); }

  // Sets the word of DeviceContext::abort_word. Any thread may call it.
  void Abort(uint32_t value = 1) { __atomic_store_n(abort_word_, value, __ATOMIC_RELEASE); }

 private:
  friend class Rank;
  World() = default;
  absl::Status Init(const WorldOptions& options);
  absl::Status AddRank(uint32_t r, uint32_t n_devices, const DeviceContext& context);
  // Gives the ranks their ports, and starts the thread.
  absl::Status AddPorts(const WorldOptions& options);
  void HostBarrier(uint32_t rank);
  // Lets the World call `end` when it is destroyed and its streams are idle.
  void AtEnd(std::function<void()> end);
  // Returns zeroed host memory for the report of one Comm, or null if none is left or `bytes` is
  // too large.
  void* NewReport(uint64_t bytes);

  std::mutex mu_;
  std::condition_variable changed_;
  // Guarded by mu_.
  uint32_t n_arrived_ = 0;
  uint64_t n_rounds_ = 0;
  std::vector<uint32_t> ended_;  // the ranks whose bodies have ended in this Run

  Window window_;
  void* malloced_ = nullptr;
  uint32_t* abort_word_ = nullptr;
  uint64_t* reports_ = nullptr;
  uint64_t n_reports_ = 0;
  std::vector<std::function<void()>> at_end_;  // guarded by mu_
  // What each of the ranks of several nodes has, in memory that kernels reach.
  struct Port {
    PortMemory memory;
    DevicePort device;
  };
  std::vector<Port*> ports_;
  backend::Stream port_stream_;
  DeviceAtomics* port_atomics_ = nullptr;
  std::vector<uint32_t*> tables_;            // of teams' members, for kernels; guarded by mu_
  std::unique_ptr<PortThread> port_thread_;  // ends before the ports
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace iris::local
