// Tests the snapshots of waits in the control plane.
#include <string>
#include <utility>
#include <vector>

#include "server/job/testing/job_machine_testing.h"

namespace iris::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Kind = PendingSnapshot::Kind;

class PendingSnapshotsTest : public MachineTest {
 protected:
  std::vector<PendingSnapshot> Pending(const JobQuery& query = {}, ListPosition after = {}) {
    std::vector<PendingSnapshot> all;
    machine_->VisitWaits(query, after, [&](const JobSnapshot&, const WaitsSnapshot& waits) {
      for (const PendingSnapshot& each : waits.pending) all.push_back(each);
      return true;
    });
    return all;
  }
};

TEST_F(PendingSnapshotsTest, AJoin) {
  const absl::Time start = clock_.Now();
  Join(Open(100), Spec(0, 3));
  Advance(absl::Seconds(1));
  Join(Open(102), Spec(2, 3));
  const auto pending = Pending();
  ASSERT_THAT(pending, SizeIs(1));
  EXPECT_EQ(pending[0].kind, Kind::kJoin);
  EXPECT_EQ(pending[0].n_members, 3u);
  EXPECT_EQ(pending[0].since, start);
  EXPECT_THAT(pending[0].waiting, ElementsAre(0, 2));
  EXPECT_THAT(pending[0].missing, ElementsAre(1));
}

TEST_F(PendingSnapshotsTest, Mapping) {
  const TestJob job = MappingJob(2);
  Mapped(job, 1);
  const auto pending = Pending();
  ASSERT_THAT(pending, SizeIs(1));
  EXPECT_EQ(pending[0].kind, Kind::kMap);
  EXPECT_THAT(pending[0].waiting, ElementsAre(1));
  EXPECT_THAT(pending[0].missing, ElementsAre(0));
}

TEST_F(PendingSnapshotsTest, AnOperation) {
  const TestJob job = ReadyJob(3);
  EXPECT_THAT(Pending(), IsEmpty());
  AskAll(job, 0, AllocateOp{.bytes = 100});
  EXPECT_THAT(Pending(), IsEmpty());
  const absl::Time start = clock_.Now();
  Ask(job, 2, 1, AllocateOp{.bytes = 4096, .name = "weights"});
  clock_.Advance(absl::Seconds(2));
  Ask(job, 0, 1, AllocateOp{.bytes = 4096, .name = "weights"});
  const auto pending = Pending();
  ASSERT_THAT(pending, SizeIs(1));
  EXPECT_EQ(pending[0].kind, Kind::kOperation);
  EXPECT_EQ(pending[0].team, kWorldTeam);
  EXPECT_EQ(pending[0].k, 1u);
  EXPECT_THAT(pending[0].call, HasSubstr("allocate"));
  EXPECT_THAT(pending[0].call, HasSubstr("weights"));
  EXPECT_EQ(pending[0].since, start);
  EXPECT_THAT(pending[0].waiting, ElementsAre(0, 2));
  EXPECT_THAT(pending[0].missing, ElementsAre(1));
}

TEST_F(PendingSnapshotsTest, AGrowth) {
  const TestJob job = ReadyJob(2);
  AskAll(job, 0, GrowOp{kHeap});
  auto pending = Pending();
  ASSERT_THAT(pending, SizeIs(1));
  EXPECT_EQ(pending[0].kind, Kind::kGrowth);
  EXPECT_THAT(pending[0].waiting, ElementsAre(0, 1));
  EXPECT_THAT(pending[0].missing, ElementsAre(0, 1));  // no segment is there yet
}

TEST_F(PendingSnapshotsTest, VisitsTheJobThatIsEnteredAgain) {
  const TestJob job = ReadyJob(2);
  Ask(job, 0, 0, AllocateOp{.bytes = 100});
  EXPECT_THAT(Pending({}, {.id = job.id.value, .item = 1}), SizeIs(1));
  EXPECT_THAT(Pending({}, {.id = job.id.value + 1}), IsEmpty());
  EXPECT_THAT(Pending({.party = Party{1000}}), SizeIs(1));
  EXPECT_THAT(Pending({.party = Party{1001}}), IsEmpty());
  EXPECT_THAT(Pending({.name = "other"}), IsEmpty());
}

}  // namespace
}  // namespace iris::server
