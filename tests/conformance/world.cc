#include "tests/conformance/world.h"

#include <cstdlib>
#include <utility>

namespace iris::conformance {
namespace {

// As many devices as the environment leaves; 0: all.
uint32_t WantedDevices() {
  const char* wanted = getenv("IRIS_TEST_DEVICES");
  return wanted != nullptr ? static_cast<uint32_t>(strtoul(wanted, nullptr, 10)) : 0;
}

class NeedsADevice : public testing::Environment {
 public:
  void SetUp() override {
    if (backend::DeviceCount() == 0) {
      GTEST_SKIP() << "no device of the backend '" << backend::BackendName() << "' on this machine";
    }
  }
};
testing::Environment* const g_needs_a_device = testing::AddGlobalTestEnvironment(new NeedsADevice);

}  // namespace

void FailSetUp(const std::string& why) {
  ADD_FAILURE() << why;
  throw SetUpFailed(why);
}

World::World(uint32_t n_ranks, uint64_t heap_bytes, uint64_t timeout_ns)
    : World({.n_ranks = n_ranks, .heap_bytes = heap_bytes, .timeout_ns = timeout_ns}) {}

World::World(local::WorldOptions options) {
  options.n_devices = WantedDevices();
  absl::StatusOr<std::unique_ptr<local::World>> world = local::World::Create(options);
  if (!world.ok()) FailSetUp(world.status().ToString());
  world_ = *std::move(world);
  for (uint32_t r = 0; r < options.n_ranks; ++r) {
    ranks_.push_back(std::make_unique<Rank>(world_.get(), &world_->rank(r)));
  }
}

void World::Run(const std::function<void(Rank&)>& body) {
  const absl::Status status = world_->Run([&](local::Rank& rank) {
    try {
      body(*ranks_[rank.rank()]);
    } catch (const SetUpFailed&) {
      // It has failed the test. Ranks that wait for this one are told that it has ended.
    }
  });
  EXPECT_TRUE(status.ok()) << status;
}

DeviceTeam Rank::NewTeam(const std::vector<uint32_t>& ranks) {
  DeviceTeam team;
  RequireOk(rank_.NewTeam(ranks, &team));
  return team;
}

void Rank::WriteBytes(void* to, const void* from, uint64_t bytes) {
  const Result result = rank_.WriteBytes(to, from, bytes);
  ASSERT_TRUE(result.ok()) << result.what;
}

}  // namespace iris::conformance
