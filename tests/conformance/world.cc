#include "tests/conformance/world.h"

#include <cstdlib>
#include <cstring>

namespace iris::conformance {
namespace {

constexpr uint64_t kReports = 1024;
constexpr uint64_t kReportBytes = 256;  // room for an ErrorReport, which is not known here
constexpr uint64_t kBounceBytes = 1 << 20;
constexpr uint64_t kPageBytes = 4096;

uint32_t DevicesInUse() {
  const uint32_t all = backend::DeviceCount();
  const char* wanted = getenv("IRIS_TEST_DEVICES");
  const unsigned long n = wanted != nullptr ? strtoul(wanted, nullptr, 10) : 0;
  return n > 0 && n < all ? static_cast<uint32_t>(n) : all;
}

class NeedsADevice : public testing::Environment {
 public:
  void SetUp() override {
    if (DevicesInUse() == 0) {
      GTEST_SKIP() << "no device of the backend '" << backend::BackendName() << "' on this machine";
    }
  }
};
testing::Environment* const g_needs_a_device = testing::AddGlobalTestEnvironment(new NeedsADevice);

}  // namespace

World::World(uint32_t n_ranks, uint64_t heap_bytes, uint64_t timeout_ns) {
  const uint32_t devices = DevicesInUse();
  uint64_t stride_bytes = (heap_bytes + kSyncAreaBytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  uint64_t base = 0;
  if (std::strcmp(backend::BackendName(), "emu") == 0) {
    malloced_ = backend::MallocDevice(n_ranks * stride_bytes + kPageBytes);
    EXPECT_NE(malloced_, nullptr);
    base = (reinterpret_cast<uint64_t>(malloced_) + kPageBytes - 1) / kPageBytes * kPageBytes;
  } else {
    window_ = std::make_unique<Window>(backend::BackendName(), n_ranks, stride_bytes, devices);
    EXPECT_EQ(window_->error(), "");
    base = window_->base();
    stride_bytes = window_->stride_bytes();
  }
  abort_word_ = static_cast<uint32_t*>(backend::MallocHost(sizeof(uint32_t)));
  reports_ = static_cast<uint8_t*>(backend::MallocHost(kReports * kReportBytes));
  EXPECT_NE(abort_word_, nullptr);
  EXPECT_NE(reports_, nullptr);
  *abort_word_ = 0;
  std::memset(reports_, 0, kReports * kReportBytes);
  for (uint32_t r = 0; r < n_ranks; ++r) {
    auto rank = std::make_unique<Rank>();
    DeviceContext& ctx = rank->ctx;
    ctx.rank = r;
    ctx.n_ranks = n_ranks;
    ctx.base = base;
    ctx.stride_bytes = stride_bytes;
    ctx.timeout_ns = timeout_ns;
    ctx.abort_word = abort_word_;
    ctx.world.size = n_ranks;
    ctx.world.index = r;
    ctx.world.sync_offset_bytes = 0;
    for (uint32_t i = 0; i < n_ranks; ++i) ctx.world.members[i] = static_cast<uint8_t>(i);
    rank->world_ = this;
    rank->used_bytes_ = kSyncAreaBytes;
    rank->device_ = r % devices;
    rank->bounce_ = backend::MallocHost(kBounceBytes);
    EXPECT_NE(rank->bounce_, nullptr);
    EXPECT_TRUE(backend::SetDevice(rank->device_).ok());
    EXPECT_TRUE(backend::Stream::Create(&rank->stream).ok());
    EXPECT_TRUE(backend::FillAsync(AtOffset<void>(ctx, r, 0), 0, stride_bytes, rank->stream).ok());
    EXPECT_TRUE(rank->stream.Synchronize().ok());
    ranks_.push_back(std::move(rank));
  }
}

World::~World() {
  for (auto& rank : ranks_) {
    rank->stream = backend::Stream();
    backend::FreeHost(rank->bounce_);
  }
  ranks_.clear();
  backend::FreeHost(reports_);
  backend::FreeHost(abort_word_);
  backend::FreeDevice(malloced_);
}

void World::Run(const std::function<void(Rank&)>& body) {
  std::vector<std::thread> threads;
  for (auto& rank : ranks_) {
    threads.emplace_back([&body, &rank] {
      EXPECT_TRUE(backend::SetDevice(rank->device_).ok());
      body(*rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void World::HostBarrier() {
  std::unique_lock<std::mutex> lock(mu_);
  const uint64_t round = rounds_;
  if (++arrived_ == n()) {
    arrived_ = 0;
    ++rounds_;
    changed_.notify_all();
    return;
  }
  changed_.wait(lock, [&] { return rounds_ != round; });
}

void Rank::HostBarrier() { world_->HostBarrier(); }

DeviceTeam Rank::NewTeam(const std::vector<uint32_t>& ranks) {
  DeviceTeam team;
  team.id = ++teams_;
  team.size = static_cast<uint32_t>(ranks.size());
  team.index = team.size;
  for (uint32_t i = 0; i < team.size; ++i) {
    team.members[i] = static_cast<uint8_t>(ranks[i]);
    if (ranks[i] == rank()) team.index = i;
  }
  team.sync_offset_bytes = OffsetBytes(ctx, New<uint8_t>(kSyncAreaBytes));
  return team;
}

ccl::ErrorReport* World::NewErrorReport() {
  std::lock_guard<std::mutex> lock(mu_);
  EXPECT_LT(n_reports_, kReports);
  return reinterpret_cast<ccl::ErrorReport*>(reports_ + kReportBytes * n_reports_++);
}

void Rank::ReadBytes(void* to, const void* from, uint64_t bytes) {
  Synchronize();
  for (uint64_t at = 0; at < bytes; at += kBounceBytes) {
    const uint64_t part = bytes - at < kBounceBytes ? bytes - at : kBounceBytes;
    const void* source = static_cast<const uint8_t*>(from) + at;
    const Result result = backend::CopyAsync(bounce_, source, part, stream);
    ASSERT_TRUE(result.ok()) << result.what;
    Synchronize();
    std::memcpy(static_cast<uint8_t*>(to) + at, bounce_, part);
  }
}

void Rank::WriteBytes(void* to, const void* from, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += kBounceBytes) {
    const uint64_t part = bytes - at < kBounceBytes ? bytes - at : kBounceBytes;
    std::memcpy(bounce_, static_cast<const uint8_t*>(from) + at, part);
    const Result result = backend::CopyAsync(static_cast<uint8_t*>(to) + at, bounce_, part, stream);
    ASSERT_TRUE(result.ok()) << result.what;
    Synchronize();
  }
}

}  // namespace iris::conformance
