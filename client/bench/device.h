// A Device launches and times kernels on one rank's device. The kernels use the device API as those
// of a user do. The code is compiled for one backend; this header needs none, so that the rest of
// iris_bench needs no device compiler.
//
// A Device belongs to one thread, on which its device is current. Calls that involve a peer say
// what the peer does meanwhile. Every call returns samples, in nanoseconds of one operation unless
// it says otherwise. A wait inside a kernel that fails is kDeadlineExceeded or kAborted.
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

// kLoad and kStore are kernels that access only the peer's memory, which has to be mapped; kGet and
// kPut copy between it and this rank's. kCopyPut and kCopyGet are Stream::Put and Get, which use
// the copy engine where the memory is mapped.
enum class Transfer { kLoad, kStore, kGet, kPut, kCopyGet, kCopyPut };
inline constexpr const char* kTransferNames[] = {"load", "store",    "get",
                                                 "put",  "copy get", "copy put"};

enum class AtomicKind { kAdd, kFetchAdd, kExchange };
inline constexpr const char* kAtomicNames[] = {"add", "fetch add", "exchange"};

struct KernelSpec {
  uint32_t peer = 0;
  uint32_t grid = 1;
  uint32_t block = 256;  // threads
  uint32_t rounds = 1;   // operations of a thread, round trips or barriers of a sample
  uint32_t samples = 10;
};

struct TransferSpec : KernelSpec {
  Transfer transfer = Transfer::kPut;
  uint8_t* remote = nullptr;  // address in this rank's heap; stands for the peer's
  uint8_t* local = nullptr;
  uint64_t bytes = 0;        // a multiple of 16
  uint64_t chunk_bytes = 0;  // of get and put: bytes of a block at a time; 0: all of its part
  uint32_t per_sample = 1;   // operations, one after another; more than one: as a graph
};

struct AtomicSpec : KernelSpec {
  AtomicKind kind = AtomicKind::kAdd;
  uint64_t* words = nullptr;  // n_words of them, in every heap
  uint32_t n_words = 1;
};

struct PingPongSpec : KernelSpec {
  bool first = false;
  uint64_t* flag = nullptr;  // one word in every heap
  uint64_t base = 0;         // value of the flag before; both grow alike, see PingPongRounds
  // payload_bytes are put before each signal; the heap has 2 * payload_bytes.
  uint8_t* payload = nullptr;
  uint64_t payload_bytes = 0;
};

class Device {
 public:
  // Makes a stream, and loads all kernels. `context`, which outlives this, may be null; then copies
  // use the backend's stream copy.
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
  // The peer does nothing, or calls it too. A sample is the time of all operations of one launch.
  absl::StatusOr<std::vector<double>> RunAtomics(const AtomicSpec& spec);
  // The peer calls it too, with the other `first`. A sample is the mean round trip of its rounds.
  absl::StatusOr<std::vector<double>> RunPingPong(const PingPongSpec& spec);
  static uint64_t PingPongRounds(const PingPongSpec& spec);  // the increase of the flag
  // Runs barriers inside a kernel; a sample is the mean of its rounds. All ranks call it.
  absl::StatusOr<std::vector<double>> RunBarriersInKernel(const KernelSpec& spec);
  // Runs a graph of `rounds` kernels, of which each is a barrier. All ranks call it.
  absl::StatusOr<std::vector<double>> RunBarrierKernels(const KernelSpec& spec);

 private:
  struct Impl;
  explicit Device(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace iris::bench
