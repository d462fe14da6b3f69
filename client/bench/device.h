// What iris_bench measures on one rank's device: kernels written on the device API as a user writes
// them, started and timed. Compiled for one backend; this header is of none, so that the rest of
// iris_bench needs no device compiler.
//
// A Device belongs to one thread, on which its device is current. Calls that involve a peer say
// what the peer does meanwhile. Every call returns samples: nanoseconds of one operation each, or
// what it says. A wait inside a kernel that fails is kDeadlineExceeded or kAborted.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "iris/types.h"

namespace iris {
class Context;
}

namespace iris::bench {

// By kernel: kLoad and kStore touch the peer's memory alone, kGet and kPut copy between it and this
// rank's. kCopyPut and kCopyGet: by copy engine, Stream::Put and Get.
enum class Transfer { kLoad, kStore, kGet, kPut, kCopyGet, kCopyPut };
inline constexpr Transfer kTransfers[] = {Transfer::kLoad, Transfer::kStore,   Transfer::kGet,
                                          Transfer::kPut,  Transfer::kCopyGet, Transfer::kCopyPut};
const char* TransferName(Transfer transfer);

struct TransferSpec {
  Transfer transfer = Transfer::kPut;
  uint32_t peer = 0;
  uint8_t* remote = nullptr;  // address in this rank's heap; means the peer's
  uint8_t* local = nullptr;
  uint64_t bytes = 0;        // a multiple of 16
  uint32_t grid = 1;         // of the kernel
  uint32_t block = 512;      // threads
  uint64_t chunk_bytes = 0;  // of get and put: what a block does at a time; 0: its whole part
  uint32_t samples = 10;
  uint32_t per_sample = 1;  // operations, one after another; more than one: as a graph
};

enum class AtomicKind { kAdd, kFetchAdd, kExchange };
inline constexpr AtomicKind kAtomicKinds[] = {AtomicKind::kAdd, AtomicKind::kFetchAdd,
                                              AtomicKind::kExchange};
const char* AtomicName(AtomicKind kind);

struct AtomicSpec {
  AtomicKind kind = AtomicKind::kAdd;
  uint32_t peer = 0;
  uint64_t* words = nullptr;  // n_words of them, in every heap
  uint32_t n_words = 1;
  uint32_t grid = 1;
  uint32_t block = 256;
  uint32_t rounds = 100;  // operations of each thread
  uint32_t samples = 5;
};

struct PingPongSpec {
  uint32_t peer = 0;
  bool first = false;
  uint64_t* flag = nullptr;  // one word in every heap
  uint64_t base = 0;         // value of the flag before; both grow alike, see PingPongRounds
  uint8_t* payload =
      nullptr;  // put before each signal, of payload_bytes; 2 * payload_bytes of heap
  uint64_t payload_bytes = 0;
  uint32_t block = 1;
  uint32_t rounds = 1000;
  uint32_t samples = 10;
};

struct BarrierSpec {
  uint32_t grid = 1;
  uint32_t block = 32;
  uint32_t rounds = 1000;
  uint32_t samples = 10;
};

class Device {
 public:
  // Makes a stream, and loads all kernels. `context` may be null: then copies are made by the
  // backend's stream copy; it outlives this.
  static absl::StatusOr<std::unique_ptr<Device>> Create(const DeviceContext& device_context,
                                                        Context* context);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  static std::string BackendName();
  static bool Emulated();
  static uint32_t MultiprocessorCount();

  // The peer does nothing.
  absl::StatusOr<std::vector<double>> RunTransfer(const TransferSpec& spec);
  // The peer does nothing, or the same. Of all operations of one launch.
  absl::StatusOr<std::vector<double>> RunAtomics(const AtomicSpec& spec);
  // The peer calls it too, with the other `first`. Round trips, the mean of a sample's rounds.
  absl::StatusOr<std::vector<double>> RunPingPong(const PingPongSpec& spec);
  static uint64_t PingPongRounds(const PingPongSpec& spec);  // by how much the flag grows
  // All ranks call it. In the kernel: the mean of a sample's rounds.
  absl::StatusOr<std::vector<double>> RunBarriersInKernel(const BarrierSpec& spec);
  // All ranks call it. Each barrier is a kernel of a graph with `rounds` of them.
  absl::StatusOr<std::vector<double>> RunBarrierKernels(const BarrierSpec& spec);

 private:
  struct Impl;
  explicit Device(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace iris::bench
