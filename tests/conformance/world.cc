#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

constexpr uint64_t kErrorWords = 1024;

}  // namespace

World::World(uint32_t n_ranks, uint64_t heap_bytes, uint64_t timeout_ns) {
  const uint64_t stride_bytes = (heap_bytes + kSyncAreaBytes + 4095) / 4096 * 4096;
  window_ = backend::MallocDevice(n_ranks * stride_bytes + 4096);
  abort_word_ = static_cast<uint32_t*>(backend::MallocHost(sizeof(uint32_t)));
  error_words_ = static_cast<uint64_t*>(backend::MallocHost(kErrorWords * sizeof(uint64_t)));
  EXPECT_NE(window_, nullptr);
  EXPECT_NE(abort_word_, nullptr);
  EXPECT_NE(error_words_, nullptr);
  *abort_word_ = 0;
  for (uint64_t i = 0; i < kErrorWords; ++i) error_words_[i] = 0;
  for (uint32_t r = 0; r < n_ranks; ++r) {
    auto rank = std::make_unique<Rank>();
    DeviceContext& ctx = rank->ctx;
    ctx.rank = r;
    ctx.n_ranks = n_ranks;
    ctx.base = (reinterpret_cast<uint64_t>(window_) + 4095) / 4096 * 4096;
    ctx.stride_bytes = stride_bytes;
    ctx.timeout_ns = timeout_ns;
    ctx.abort_word = abort_word_;
    ctx.world.size = n_ranks;
    ctx.world.index = r;
    ctx.world.sync_offset_bytes = 0;
    for (uint32_t i = 0; i < n_ranks; ++i) ctx.world.members[i] = static_cast<uint8_t>(i);
    rank->world_ = this;
    rank->used_bytes_ = kSyncAreaBytes;
    EXPECT_TRUE(backend::Stream::Create(&rank->stream).ok());
    EXPECT_TRUE(backend::FillAsync(AtOffset<void>(ctx, r, 0), 0, stride_bytes, rank->stream).ok());
    EXPECT_TRUE(rank->stream.Synchronize().ok());
    ranks_.push_back(std::move(rank));
  }
}

World::~World() {
  ranks_.clear();
  backend::FreeHost(error_words_);
  backend::FreeHost(abort_word_);
  backend::FreeDevice(window_);
}

void World::Run(const std::function<void(Rank&)>& body) {
  std::vector<std::thread> threads;
  for (auto& rank : ranks_) threads.emplace_back([&body, &rank] { body(*rank); });
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

ccl::Comm Rank::NewComm(const DeviceTeam& team, const ccl::Config& config) {
  ccl::CommOptions options;
  options.context = ctx;
  options.team = team;
  options.config = config;
  options.workspace_bytes = ccl::WorkspaceBytes(team.size, config);
  options.workspace = New<uint8_t>(options.workspace_bytes);
  {
    std::lock_guard<std::mutex> lock(world_->mu_);
    EXPECT_LT(world_->n_error_words_, kErrorWords);
    options.error_word = world_->error_words_ + world_->n_error_words_++;
  }
  ccl::Comm comm;
  if (team.index < team.size) {
    const Result result = ccl::CreateComm(options, &comm);
    EXPECT_TRUE(result.ok()) << result.what;
  }
  return comm;
}

}  // namespace iris::conformance
