#include "client/bench/rank.h"

#include <cstring>
#include <string_view>
#include <utility>

#include "client/base/absl_status.h"

namespace iris::bench {
namespace {

using base::ToAbsl;

class ProcessRank final : public Rank {
 public:
  explicit ProcessRank(Context context) : context_(std::move(context)) {}

  absl::Status Prepare() {
    auto device = Device::Create(context_.device_context(), &context_);
    if (!device.ok()) return device.status();
    device_ = *std::move(device);
    return absl::OkStatus();
  }

  DeviceContext device_context() const override { return context_.device_context(); }
  Device& device() override { return *device_; }
  Context* context() override { return &context_; }

  absl::StatusOr<uint8_t*> Allocate(uint64_t bytes) override {
    const auto allocation = context_.Allocate<uint8_t>(bytes);
    if (!allocation.ok()) return ToAbsl(allocation.status());
    return allocation->get();
  }

  absl::Status Barrier() override { return ToAbsl(context_.Barrier()); }

  absl::StatusOr<std::vector<std::vector<double>>> AllGather(
      const std::vector<double>& values) override {
    std::vector<std::vector<double>> all(context_.n_ranks());
    const std::string_view mine(reinterpret_cast<const char*>(values.data()),
                                values.size() * sizeof(double));
    for (uint32_t r = 0; r < context_.n_ranks(); ++r) {
      const auto bytes = context_.Broadcast(mine, r);
      if (!bytes.ok()) return ToAbsl(bytes.status());
      all[r].resize(bytes->size() / sizeof(double));
      if (!bytes->empty()) std::memcpy(all[r].data(), bytes->data(), bytes->size());
    }
    return all;
  }

 private:
  Context context_;
  std::unique_ptr<Device> device_;  // destroyed first: its stream uses the heap
};

}  // namespace

absl::StatusOr<bool> Rank::Agree(bool value) {
  const auto all = AllGather({value ? 1.0 : 0.0});
  if (!all.ok()) return all.status();
  return (*all)[0][0] != 0;
}

absl::StatusOr<std::unique_ptr<Rank>> JoinAsProcess(uint64_t heap_bytes, absl::Duration timeout) {
  ContextOptions options;
  options.heap_bytes = heap_bytes;
  options.timeout = absl::ToChronoNanoseconds(timeout);
  auto context = Context::Create(options);
  if (!context.ok()) return ToAbsl(context.status());
  auto rank = std::make_unique<ProcessRank>(*std::move(context));
  if (absl::Status status = rank->Prepare(); !status.ok()) return status;
  return rank;
}

}  // namespace iris::bench
