// The states that released versions of irisd have stored can be read: server/state/testdata has one
// file for each. A release adds its own:
//
//   IRIS_TEST_WRITE_STATE=$PWD/server/state/testdata/0.2.0.journal bazel run --config=plain
//   //server/state:state_test
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/job/testing/job_machine_testing.h"
#include "server/state/journal.h"
#include "server/state/machine_state.h"

namespace iris::server {
namespace {

constexpr char kFolder[] = "server/state/testdata";

std::string Read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class ReleasedStatesTest : public MachineTest {
 protected:
  void Applied() override {
    if (journal_ == nullptr) return;
    std::string change;
    MachineState::EncodeChange(*machine_, &change);
    ASSERT_TRUE(journal_->Append(change).ok());
  }

  // A bit of everything that a state can have.
  void LiveThrough() {
    const TestJob job = ReadyJob(3);
    AskAll(job, 0, AllocateOp{.bytes = 4000, .name = "weights"});
    AskAll(job, 1, BroadcastOp{.root = 0, .value = "value"});
    AskAll(job, 2, CreateTeamOp{{0, 2}});
    AskAll(job, 3, AllocateOp{.bytes = 100});
    (void)Ask(job, 1, 0, AllocateOp{.bytes = 64, .name = "own"}, OwnTeam(1));
    (void)Ask(job, 0, 0, OpenOp{1, "own"}, OwnTeam(0));
    for (const Rank rank : {0, 2}) (void)Ask(job, rank, 0, AllocateOp{.bytes = 10}, 1);
    for (size_t rank = 0; rank < 3; ++rank) (void)Ask(job, rank, 4, GrowOp{kGranularity});
    CreateSegments();
    (void)GrowMapped(job, 0, Watched<SegmentsAdded>(job.sessions[0]).at(0).grow);
    (void)Ask(job, 0, 1, RegisterOp{.piece_bytes = {kGranularity}, .bytes = 100}, OwnTeam(0));

    JoinSpec forming = Spec(0, 2);
    forming.job = "forming";
    forming.number = 1;
    (void)Join(Open(200), forming);
    JoinSpec broken = Spec(0, 2);
    broken.job = "broken";
    TestJob gone;
    for (int rank = 0; rank < 2; ++rank) {
      broken.rank = rank;
      gone.sessions.push_back(Open(300 + rank));
      const CallId call = Join(gone.sessions.back(), broken);
      CreateSegments();
      if (rank == 1) gone.id = ResultOf<JoinResult>(call).job;
    }
    for (size_t rank = 0; rank < 2; ++rank) (void)Mapped(gone, rank);
    Gone(gone.sessions[1]);
    JoinSpec refused = Spec(0, 2);
    refused.job = "refused";
    refused.heap_bytes = 1ull << 50;
    refused.max_heap_bytes = 1ull << 50;
    (void)Join(Open(400), refused);
    JoinSpec abandoned = Spec(0, 2);
    abandoned.job = "abandoned";
    const SessionId leaver = Open(500);
    const CallId waits = Join(leaver, abandoned);
    Do(CallCancelled{waits});
    Advance(kWithdrawAfter);
  }

  // A journal of LiveThrough, as an empty state and its changes.
  std::filesystem::path Write() {
    const std::string folder = testing::TempDir();
    auto journal =
        Journal::Create(folder, {0x1234, 1}, [this] { return MachineState::Encode(*machine_); });
    EXPECT_TRUE(journal.ok()) << journal.status();
    journal_ = journal->get();
    LiveThrough();
    journal_ = nullptr;
    return absl::StrCat(folder, "/", Journal::kFolder, "/", Journal::kFile);
  }

  Journal* journal_ = nullptr;  // that takes every change
};

TEST_F(ReleasedStatesTest, CanBeRead) {
  size_t n = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    SCOPED_TRACE(entry.path().string());
    ++n;
    const absl::StatusOr<StoredState> stored = ParseJournal(Read(entry.path()));
    ASSERT_TRUE(stored.ok()) << stored.status();
    EXPECT_EQ(absl::StrCat(stored->writer, ".journal"), entry.path().filename().string());
    EXPECT_EQ(stored->torn_bytes, 0u);
    auto machine = MachineState::Decode(*stored->state, Limits(), Ledger(Devices()));
    ASSERT_TRUE(machine.ok()) << machine.status();
    machine_ = *std::move(machine);
    EXPECT_EQ(MachineState::Encode(*machine_), MachineState::BytesOf(*stored->state));
    std::vector<SegmentId> memory;
    for (const Segment& segment : machine_->Segments()) memory.push_back(segment.info.id);
    std::vector<SessionId> sessions;
    for (const SessionSnapshot& session : machine_->Sessions()) sessions.push_back(session.id);
    std::vector<JobId> pages;
    for (const JobSnapshot& job : machine_->Jobs()) pages.push_back(job.id);
    EXPECT_EQ(pages.size(), 3u);
    effects_.clear();
    Do(Recovered{2, sessions, memory, pages});
    EXPECT_TRUE(Events<event::MemoryLost>().empty());
    // A kept outcome is for ranks that have not received it.
    for (const JobSnapshot& job : machine_->Jobs()) {
      if (job.name != "train") continue;
      const TestJob train{job.id,
                          {job.ranks[0].session, job.ranks[1].session, job.ranks[2].session}};
      next_call_ = 1000;
      const CallId again = Ask(train, 2, 0, AllocateOp{.bytes = 10}, 1);
      EXPECT_TRUE(StatusOf(again).ok()) << StatusOf(again);
    }
  }
  EXPECT_GE(n, 1u);
}

// A machine that lives through this in another way needs the file of a newer version here.
TEST_F(ReleasedStatesTest, ChangesHaveTheSameBytes) {
  const std::filesystem::path written = Write();
  if (const char* const path = std::getenv("IRIS_TEST_WRITE_STATE")) {
    std::filesystem::copy_file(written, path, std::filesystem::copy_options::overwrite_existing);
  }
  // The head comes first, with the writer and its boot.
  constexpr size_t kHeadBytes = 112;
  EXPECT_EQ(Read(written).substr(kHeadBytes),
            Read(absl::StrCat(kFolder, "/0.2.0.journal")).substr(kHeadBytes));
}

}  // namespace
}  // namespace iris::server
