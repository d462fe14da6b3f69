#include "server/host/job_pages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/base/descriptors.h"
#include "tests/cc/require.h"

namespace iris::server {
namespace {

using iris::testing::Require;

class JobPagesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    pages_ = Require(JobPages::Create({JobId{7}, 0, 3, 9}));
    auto fd = Require(pages_->status_page()->Open(/*read_only=*/true));
    void* const mapped = mmap(nullptr, wire::kPageBytes, PROT_READ, MAP_SHARED, fd, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    close(fd);
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

TEST_F(JobPagesTest, WhoBrokeTheJobFirstStays) {
  pages_->SetRankState(2, RankState::kLeft, 1, false);
  EXPECT_EQ(status_->broken_by, 0u);
  pages_->SetRankState(1, RankState::kDead, 1, true);
  pages_->SetRankState(0, RankState::kDead, 2, true);
  EXPECT_EQ(status_->broken_by, 2u);
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
    EXPECT_EQ(info.st_mode & 0777, file == pages_->status_page() ? 0400u : 0600u);
    EXPECT_EQ(info.st_size, static_cast<off_t>(wire::kPageBytes));
    EXPECT_NE(ftruncate(file->fd(), 0), 0);
  }
}

TEST_F(JobPagesTest, AReadOnlyPageCannotBeMappedWritable) {
  auto fd = Require(pages_->control_page(1)->Open(/*read_only=*/true));
  EXPECT_EQ(mmap(nullptr, wire::kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  close(fd);
}

TEST_F(JobPagesTest, EveryRankHasAPageOfItsOwn) {
  auto fd = Require(pages_->control_page(1)->Open(/*read_only=*/false));
  ASSERT_EQ(pwrite(fd, "x", 1, 0), 1);
  close(fd);
  char other = 'y';
  ASSERT_EQ(pread(pages_->control_page(0)->fd(), &other, 1, 0), 1);
  EXPECT_EQ(other, 0);
}

// Pages that an earlier irisd made, and that others still have.
class AdoptPagesTest : public JobPagesTest {
 protected:
  void SetUp() override {
    JobPagesTest::SetUp();
    pages_->SetRankState(1, RankState::kReady, 4711, false);
    auto writer = Require(pages_->control_page(2)->Open(/*read_only=*/false));
    ASSERT_EQ(pwrite(writer, "x", 1, 8), 1);
    close(writer);
    for (const uint32_t rank : {1, 0}) all_.push_back(Keep(pages_->control_page(rank)));
    all_.push_back(Keep(pages_->status_page()));
    all_.push_back(Keep(pages_->control_page(2)));
    pages_.reset();
  }
  static wire::UniqueFd Keep(const std::shared_ptr<const PageFile>& page) {
    return wire::UniqueFd(page->Open(/*read_only=*/false).value_or(-1));
  }
  static wire::UniqueFd Page(int seals, off_t bytes = wire::kPageBytes, mode_t mode = 0600) {
    wire::UniqueFd fd(memfd_create("planted", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(fchmod(fd.get(), mode), 0);
    EXPECT_EQ(ftruncate(fd.get(), bytes), 0);
    EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    return fd;
  }
  std::string Refused(uint64_t job = 7, uint64_t epoch = 9, uint32_t n_ranks = 3) {
    const absl::Status status =
        JobPages::Adopt({JobId{job}, 0, n_ranks, epoch}, std::move(all_)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  }
  // With another page in the place of rank 1's.
  std::string RefusedWith(wire::UniqueFd page) {
    all_[0] = std::move(page);
    return Refused();
  }

  static constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  std::vector<wire::UniqueFd> all_;  // the first one is rank 1's
};

TEST_F(AdoptPagesTest, OfTheRanksOfOneOfSeveralNodes) {
  auto adopted = Require(JobPages::Adopt({JobId{7}, 4, 3, 9, /*ports=*/true}, std::move(all_)));
  EXPECT_EQ(adopted->port(5), nullptr);
  adopted->SetRankState(6, RankState::kEnding, 4711, false);
  EXPECT_EQ(status_->rank_state[2], static_cast<uint32_t>(wire::PageRankState::kEnding));
  EXPECT_EQ(status_->abort, 0u);
  // Of other nodes.
  adopted->SetRankState(0, RankState::kLeft, 0, false);
  adopted->SetRankState(33, RankState::kLeft, 0, false);
  adopted->SetRankState(1, RankState::kReady, 0, false);
  EXPECT_EQ(status_->left_elsewhere[0], 1u);
  EXPECT_EQ(status_->left_elsewhere[1], 2u);
  adopted->SetRankState(33, RankState::kAbsent, 0, false);
  EXPECT_EQ(status_->left_elsewhere[1], 0u);
  adopted->SetRankState(0, RankState::kDead, 0, true);
  EXPECT_EQ(status_->broken_by, 1u);
  EXPECT_EQ(status_->abort, 1u);
}

TEST_F(AdoptPagesTest, PagesGoOnAsTheyWere) {
  for (const wire::UniqueFd& fd : all_) ASSERT_EQ(fcntl(fd.get(), F_SETFD, 0), 0);
  const uint32_t before = status_->changes;
  auto adopted = Require(JobPages::Adopt({JobId{7}, 0, 3, 9}, std::move(all_)));
  ASSERT_EQ(adopted->n_ranks(), 3u);
  // A rank that mapped the page of the earlier irisd sees what this one writes.
  EXPECT_EQ(status_->rank_pid[1], 4711);
  EXPECT_EQ(status_->changes, before);
  adopted->SetRankState(1, RankState::kEnding, 4711, true);
  EXPECT_EQ(status_->rank_state[1], static_cast<uint32_t>(wire::PageRankState::kEnding));
  EXPECT_EQ(status_->abort, 1u);
  EXPECT_EQ(status_->changes, before + 1);
  char byte = 0;
  ASSERT_EQ(pread(adopted->control_page(2)->fd(), &byte, 1, 8), 1);
  EXPECT_EQ(byte, 'x');
  EXPECT_EQ(fcntl(adopted->control_page(2)->fd(), F_GETFD), FD_CLOEXEC);
  auto reader = Require(adopted->control_page(0)->Open(/*read_only=*/true));
  EXPECT_EQ(mmap(nullptr, wire::kPageBytes, PROT_WRITE, MAP_SHARED, reader, 0), MAP_FAILED);
  close(reader);
}

TEST_F(AdoptPagesTest, RefusesAnotherJob) {
  EXPECT_NE(Refused(8).find("of job 7"), std::string::npos);
}

TEST_F(AdoptPagesTest, RefusesAnotherEpoch) {
  EXPECT_NE(Refused(7, 10).find("epoch 9"), std::string::npos);
}

TEST_F(AdoptPagesTest, RefusesAnotherNumberOfRanks) {
  EXPECT_NE(Refused(7, 9, 2).find("with 3 ranks"), std::string::npos);
}

TEST_F(AdoptPagesTest, RefusesOnePageForTwo) {
  EXPECT_EQ(RefusedWith(wire::UniqueFd(dup(all_[1].get()))),
            "the control page of rank 1 of job 7 is missing");
}

TEST_F(AdoptPagesTest, RefusesToGoOnWithoutAStatusPage) {
  all_[2].Reset();
  EXPECT_NE(Refused().find("the status page of job 7 is missing"), std::string::npos);
}

TEST_F(AdoptPagesTest, RefusesPagesThatIrisdDidNotMake) {
  const int before = base::CountDescriptors() - 4;  // those that are given away
  struct Case {
    wire::UniqueFd page;
    const char* reason;
  };
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  close(pipe_fds[0]);
  const int reader = open(("/proc/self/fd/" + std::to_string(all_[0].get())).c_str(), O_RDONLY);
  Case cases[] = {{Page(0), "seals"},
                  {Page(F_SEAL_SHRINK | F_SEAL_GROW), "seals"},
                  {Page(kSeals | F_SEAL_WRITE), "seals"},
                  {Page(kSeals, 2 * wire::kPageBytes), "8192 bytes"},
                  {Page(kSeals, 0), "0 bytes"},
                  {Page(kSeals, wire::kPageBytes, 0666), "mode 0400 or 0600"},
                  {wire::UniqueFd(pipe_fds[1]), "not a memfd"},
                  {wire::UniqueFd(open("/dev/null", O_RDWR)), "not a memfd"},
                  {wire::UniqueFd(reader), "reading and writing"},
                  {wire::UniqueFd(), "not open"}};
  for (Case& c : cases) {
    const absl::Status status = PageFile::Adopt(std::move(c.page)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find(c.reason), std::string::npos) << status;
  }
  const std::string refused = RefusedWith(Page(0));
  EXPECT_NE(refused.find("control page of rank 1 of job 7 is missing"), std::string::npos);
  EXPECT_NE(refused.find("seals"), std::string::npos) << refused;
  EXPECT_EQ(base::CountDescriptors(), before);
}

TEST(JobPagesLifeTest, LeavesNoDescriptor) {
  const int before = base::CountDescriptors();
  {
    auto pages = Require(JobPages::Create({JobId{1}, 0, 64, 1}));
    EXPECT_EQ(base::CountDescriptors(), before + 65);
  }
  EXPECT_EQ(base::CountDescriptors(), before);
}

}  // namespace
}  // namespace iris::server
