#include "server/job_pages.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

namespace iris::server {
namespace {

int CountFds() {
  int n = 0;
  DIR* dir = opendir("/proc/self/fd");
  while (readdir(dir) != nullptr) ++n;
  closedir(dir);
  return n;
}

class JobPagesTest : public testing::Test {
 protected:
  void SetUp() override {
    auto pages = JobPages::Create(JobId{7}, 3, 9);
    ASSERT_TRUE(pages.ok()) << pages.status();
    pages_ = *std::move(pages);
    auto fd = pages_->status_page()->Open(/*read_only=*/true);
    ASSERT_TRUE(fd.ok());
    void* const mapped = mmap(nullptr, wire::kPageBytes, PROT_READ, MAP_SHARED, *fd, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    close(*fd);
    status_ = static_cast<const wire::StatusPage*>(mapped);
  }
  void TearDown() override { munmap(const_cast<wire::StatusPage*>(status_), wire::kPageBytes); }

  std::unique_ptr<JobPages> pages_;
  const wire::StatusPage* status_ = nullptr;
};

TEST_F(JobPagesTest, SaysWhoseItIs) {
  EXPECT_EQ(status_->job_id, 7u);
  EXPECT_EQ(status_->epoch, 9u);
  EXPECT_EQ(status_->n_ranks, 3u);
  EXPECT_EQ(status_->abort, 0u);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(status_->rank_state[rank], static_cast<uint32_t>(wire::PageRankState::kAbsent));
  }
}

TEST_F(JobPagesTest, PublishesAStateAndCountsTheChange) {
  const uint32_t before = status_->changes;
  pages_->SetRankState(1, RankState::kReady, 4711, false);
  EXPECT_EQ(status_->rank_state[1], static_cast<uint32_t>(wire::PageRankState::kReady));
  EXPECT_EQ(status_->rank_pid[1], 4711);
  EXPECT_EQ(status_->abort, 0u);
  EXPECT_EQ(status_->changes, before + 1);
}

TEST_F(JobPagesTest, AnAbortStays) {
  pages_->SetRankState(0, RankState::kEnding, 1, true);
  pages_->SetRankState(1, RankState::kLeft, 2, false);
  EXPECT_EQ(status_->abort, 1u);
}

TEST_F(JobPagesTest, ARankBeyondTheJobIsIgnored) {
  const uint32_t before = status_->changes;
  pages_->SetRankState(3, RankState::kDead, 1, true);
  EXPECT_EQ(status_->changes, before);
  EXPECT_EQ(status_->abort, 0u);
}

TEST_F(JobPagesTest, WakesWhoWaitsForAChange) {
  const uint32_t seen = __atomic_load_n(&status_->changes, __ATOMIC_ACQUIRE);
  std::thread waiter([this, seen] {
    while (__atomic_load_n(&status_->changes, __ATOMIC_ACQUIRE) == seen) {
      // Without a wake this would wait for the test's time limit.
      syscall(SYS_futex, &status_->changes, FUTEX_WAIT, seen, nullptr, nullptr, 0);
    }
  });
  pages_->SetRankState(2, RankState::kDead, 1, true);
  waiter.join();
  EXPECT_EQ(status_->abort, 1u);
}

TEST_F(JobPagesTest, PagesAreSealedAndPrivate) {
  for (const auto& file : {pages_->status_page(), pages_->control_page(0)}) {
    struct stat info = {};
    ASSERT_EQ(fstat(file->fd(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
    EXPECT_EQ(info.st_size, static_cast<off_t>(wire::kPageBytes));
    EXPECT_NE(ftruncate(file->fd(), 0), 0);
  }
}

TEST_F(JobPagesTest, AReadOnlyPageCannotBeMappedWritable) {
  auto fd = pages_->control_page(1)->Open(/*read_only=*/true);
  ASSERT_TRUE(fd.ok());
  EXPECT_EQ(mmap(nullptr, wire::kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0),
            MAP_FAILED);
  close(*fd);
}

TEST_F(JobPagesTest, EveryRankHasAPageOfItsOwn) {
  auto fd = pages_->control_page(1)->Open(/*read_only=*/false);
  ASSERT_TRUE(fd.ok());
  ASSERT_EQ(pwrite(*fd, "x", 1, 0), 1);
  close(*fd);
  char other = 'y';
  ASSERT_EQ(pread(pages_->control_page(0)->fd(), &other, 1, 0), 1);
  EXPECT_EQ(other, 0);
}

TEST(JobPagesLifeTest, LeavesNoDescriptor) {
  const int before = CountFds();
  {
    auto pages = JobPages::Create(JobId{1}, 64, 1);
    ASSERT_TRUE(pages.ok());
    EXPECT_EQ(CountFds(), before + 65);
  }
  EXPECT_EQ(CountFds(), before);
}

}  // namespace
}  // namespace iris::server
