#include "client/ctl/cpu_binding.h"

#include <sched.h>

#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace iris::ctl {
namespace {

using ::testing::ElementsAre;

TEST(CpuBindingTest, CoresAreDealtEvenlyAndEachOnce) {
  const std::vector<Core> cores = {{0, 8}, {1, 9}, {2, 10}, {3, 11}};
  EXPECT_THAT(SpreadCores(cores, 1), ElementsAre(ElementsAre(0, 1, 2, 3, 8, 9, 10, 11)));
  EXPECT_THAT(SpreadCores(cores, 2),
              ElementsAre(ElementsAre(0, 1, 8, 9), ElementsAre(2, 3, 10, 11)));
  EXPECT_THAT(SpreadCores(cores, 3),
              ElementsAre(ElementsAre(0, 8), ElementsAre(1, 9), ElementsAre(2, 3, 10, 11)));
}

TEST(CpuBindingTest, NoRankIsWithoutACoreAndNoCoreIsLeft) {
  for (int n_cores = 1; n_cores <= 9; ++n_cores) {
    std::vector<Core> cores;
    for (int i = 0; i < n_cores; ++i) cores.push_back({i});
    for (int n_ranks = 1; n_ranks <= 20; ++n_ranks) {
      std::set<int> used;
      for (const auto& cpus : SpreadCores(cores, n_ranks)) {
        ASSERT_FALSE(cpus.empty()) << n_cores << " cores, " << n_ranks << " ranks";
        used.insert(cpus.begin(), cpus.end());
      }
      EXPECT_EQ(used.size(), static_cast<size_t>(n_cores)) << n_ranks;
    }
  }
}

TEST(CpuBindingTest, NeighboursShareWhereCoresAreFew) {
  EXPECT_THAT(SpreadCores({{0}, {1}}, 4),
              ElementsAre(ElementsAre(0), ElementsAre(0), ElementsAre(1), ElementsAre(1)));
}

TEST(CpuBindingTest, OnlyCpusThatThisProcessMayUse) {
  const auto all = AllowedCores();
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_FALSE(all->empty());
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  const int cpu = all->back().back();
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  const auto cores = AllowedCores();
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
  ASSERT_TRUE(cores.ok()) << cores.status();
  EXPECT_THAT(*cores, ElementsAre(ElementsAre(cpu)));
}

TEST(CpuBindingTest, ListsAreWrittenAsTheKernelWritesThem) {
  EXPECT_EQ(CpuList({}), "");
  EXPECT_EQ(CpuList({3}), "3");
  EXPECT_EQ(CpuList({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
}

}  // namespace
}  // namespace iris::ctl
