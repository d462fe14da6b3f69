// RunAsThreads: the ranks of the conformance tests, for iris_bench.
#include <unistd.h>

#include <cstdio>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "device/backend/select.h"
#include "tests/bench/iris_bench_rank.h"
#include "tests/conformance/world.h"

namespace iris::bench {
namespace {

struct Shared {
  std::mutex mu;
  std::vector<std::vector<double>> values;
};

class ThreadRank final : public Rank {
 public:
  ThreadRank(conformance::Rank* rank, Shared* shared) : rank_(*rank), shared_(*shared) {}

  absl::Status Prepare() {
    auto device = Device::Create(rank_.ctx, nullptr);
    if (!device.ok()) return device.status();
    device_ = *std::move(device);
    return absl::OkStatus();
  }

  DeviceContext device_context() const override { return rank_.ctx; }
  Device& device() override { return *device_; }

  absl::StatusOr<uint8_t*> Allocate(uint64_t bytes) override { return rank_.New<uint8_t>(bytes); }

  absl::Status Barrier() override {
    rank_.HostBarrier();
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::vector<double>>> AllGather(
      const std::vector<double>& values) override {
    {
      std::lock_guard<std::mutex> lock(shared_.mu);
      shared_.values.resize(rank_.n());
      shared_.values[rank_.rank()] = values;
    }
    rank_.HostBarrier();
    std::vector<std::vector<double>> all;
    {
      std::lock_guard<std::mutex> lock(shared_.mu);
      all = shared_.values;
    }
    rank_.HostBarrier();
    return all;
  }

 private:
  conformance::Rank& rank_;
  Shared& shared_;
  std::unique_ptr<Device> device_;
};

}  // namespace

absl::Status RunAsThreads(uint32_t n_ranks, uint64_t heap_bytes,
                          const std::function<absl::Status(Rank&)>& body) {
  if (backend::DeviceCount() == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("no device of backend ", backend::BackendName(), " on this machine"));
  }
  conformance::World world(n_ranks, heap_bytes);
  Shared shared;
  world.Run([&](conformance::Rank& rank) {
    ThreadRank thread(&rank, &shared);
    const absl::Status prepared = thread.Prepare();
    const absl::Status status = prepared.ok() ? body(thread) : prepared;
    if (!status.ok()) {
      std::fprintf(stderr, "error: rank %u: %s\n", rank.rank(),
                   std::string(status.message()).c_str());
      _exit(1);
    }
  });
  return absl::OkStatus();
}

}  // namespace iris::bench
