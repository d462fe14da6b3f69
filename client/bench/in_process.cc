// RunAsThreads: ranks that are threads of this process, for iris_bench --in-process.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/bench/rank.h"
#include "device/local/world.h"

namespace iris::bench {
namespace {

struct Shared {
  std::mutex mu;
  std::vector<std::vector<double>> values;
};

class ThreadRank final : public Rank {
 public:
  ThreadRank(local::Rank* rank, Shared* shared, std::unique_ptr<Device> device)
      : rank_(*rank), shared_(*shared), device_(std::move(device)) {}

  DeviceContext device_context() const override { return rank_.ctx; }
  Device& device() override { return *device_; }

  absl::StatusOr<uint8_t*> Allocate(uint64_t bytes) override {
    uint8_t* p = rank_.New<uint8_t>(bytes);
    if (p == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the heap of rank ", rank_.rank(), " has no room for ", bytes, " bytes"));
    }
    return p;
  }

  absl::Status Barrier() override {
    rank_.HostBarrier();
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::vector<double>>> AllGather(
      const std::vector<double>& values) override {
    {
      std::lock_guard<std::mutex> lock(shared_.mu);
      shared_.values.resize(rank_.n_ranks());
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
  local::Rank& rank_;
  Shared& shared_;
  std::unique_ptr<Device> device_;
};

}  // namespace

absl::Status RunAsThreads(uint32_t n_ranks, uint64_t heap_bytes,
                          const std::function<absl::Status(Rank&)>& body) {
  local::WorldOptions options;
  options.n_ranks = n_ranks;
  options.heap_bytes = heap_bytes;
  absl::StatusOr<std::unique_ptr<local::World>> world = local::World::Create(options);
  if (!world.ok()) return world.status();
  Shared shared;
  return (*world)->Run([&](local::Rank& rank) {
    auto device = Device::Create(rank.ctx, nullptr);
    absl::Status status = device.status();
    // After a failure the device is not destroyed: its kernels may wait for ranks that do not come.
    std::optional<ThreadRank> thread;
    if (status.ok()) status = body(thread.emplace(&rank, &shared, *std::move(device)));
    if (!status.ok()) {
      std::fprintf(stderr, "error: rank %u: %s\n", rank.rank(),
                   std::string(status.message()).c_str());
      _exit(1);
    }
  });
}

}  // namespace iris::bench
