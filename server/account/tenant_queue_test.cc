#include "server/account/tenant_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace iris::server {
namespace {

constexpr Party kAnn{1000}, kBob{1001}, kEve{1002};

TEST(TenantQueueTest, IsEmptyAtFirst) {
  const TenantQueue crowd;
  EXPECT_EQ(crowd.total(), 0u);
  EXPECT_FALSE(crowd.OldestOf(kAnn).has_value());
  EXPECT_FALSE(crowd.OldestOfMost().has_value());
}

TEST(TenantQueueTest, AmongTenantsWithAsManyTheOldestOfAllComesFirst) {
  TenantQueue crowd;
  const TenantQueue::Ticket ann = crowd.Add(kAnn, 1);
  crowd.Add(kBob, 2);
  crowd.Add(kEve, 3);
  EXPECT_EQ(crowd.OldestOfMost()->key, 1u);
  const TenantQueue::Ticket renewed = crowd.Renew(kAnn, ann);
  EXPECT_EQ(crowd.OldestOfMost()->key, 2u);
  crowd.Add(kEve, 4);
  EXPECT_EQ(crowd.OldestOfMost()->key, 3u) << "Eve has most";
  crowd.Remove(kAnn, renewed);
  EXPECT_EQ(crowd.of(kAnn), 0u);
  EXPECT_EQ(crowd.total(), 3u);
}

// A simple model: one list, in order, and everything is counted when a test asks.
struct Model {
  struct One {
    Party tenant;
    TenantQueue::Ticket ticket;
    uint64_t key;
  };
  std::vector<One> all;  // the oldest first

  uint64_t Count(const Party& tenant) const {
    return static_cast<uint64_t>(std::count_if(
        all.begin(), all.end(), [&](const One& one) { return one.tenant == tenant; }));
  }
  const One* OldestOfMost() const {
    const One* best = nullptr;
    for (const One& one : all) {
      if (best == nullptr || Count(one.tenant) > Count(best->tenant)) best = &one;
    }
    return best;
  }
};

TEST(TenantQueueTest, DoesWhatTheModelDoes) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    TenantQueue crowd;
    Model model;
    uint64_t key = 0;
    for (int step = 0; step < 1000; ++step) {
      const Party tenant{static_cast<uint32_t>(random() % 5)};
      const size_t at = model.all.empty() ? 0 : random() % model.all.size();
      const uint32_t what = random() % 5;
      if (what < 2 || model.all.empty()) {
        ++key;
        model.all.push_back({tenant, crowd.Add(tenant, key), key});
      } else if (what < 4) {
        crowd.Remove(model.all[at].tenant, model.all[at].ticket);
        model.all.erase(model.all.begin() + static_cast<std::ptrdiff_t>(at));
      } else {
        Model::One one = model.all[at];
        one.ticket = crowd.Renew(one.tenant, one.ticket);
        model.all.erase(model.all.begin() + static_cast<std::ptrdiff_t>(at));
        model.all.push_back(one);
      }
      ASSERT_EQ(crowd.total(), model.all.size()) << "step " << step;
      ASSERT_EQ(crowd.of(tenant), model.Count(tenant)) << "step " << step;
      const auto most = crowd.OldestOfMost();
      const Model::One* const want = model.OldestOfMost();
      ASSERT_EQ(most.has_value(), want != nullptr) << "step " << step;
      if (want == nullptr) continue;
      ASSERT_EQ(most->key, want->key) << "step " << step;
      ASSERT_EQ(most->count, model.Count(want->tenant)) << "step " << step;
    }
  }
}

}  // namespace
}  // namespace iris::server
