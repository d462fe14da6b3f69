// Tests the command's reports on stored states: whole ones, damaged ones, and none.
#include "server/state/state_command.h"

#include <stdlib.h>
#include <zlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "server/job/testing/job_machine_testing.h"
#include "server/state/journal.h"
#include "server/state/machine_state.h"
#include "server/state/machine_state.pb.h"
#include "tests/cc/require.h"

namespace iris::server {
namespace {

namespace fs = std::filesystem;
using iris::testing::Require;
using ::testing::HasSubstr;

class StateCommandTest : public MachineTest {
 protected:
  void SetUp() override {
    MachineTest::SetUp();
    char name[] = "/tmp/iris-state-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
  }
  void TearDown() override { fs::remove_all(directory_); }

  void Applied() override {
    if (journal_ == nullptr) return;
    std::string change;
    MachineState::EncodeChange(*machine_, &change);
    if (change.empty()) return;
    ASSERT_TRUE(journal_->Append(change).ok());
  }

  // A job of two ranks with an allocation, in a journal.
  void Store() {
    StoreAs([this] { return MachineState::Encode(*machine_); });
  }
  void StoreAs(Journal::Whole whole) {
    journal_ = Require(Journal::Create(directory_, {0xabc, 3}, std::move(whole)));
    const TestJob job = ReadyJob(2);
    AskAll(job, 0, AllocateOp{.bytes = 5, .name = "weights"});
  }
  // Stores a state with this in place of what the machine's state says.
  void StoreChanged(const std::function<void(state::MachineState*)>& change) {
    ReadyJob(2);
    state::MachineState state;
    ASSERT_TRUE(state.ParseFromString(MachineState::Encode(*machine_)));
    change(&state);
    ASSERT_TRUE(
        Journal::Create(directory_, {1, 1}, [&] { return state.SerializeAsString(); }).ok());
  }

  std::string path() const { return directory_ + "/state/journal"; }
  absl::StatusOr<std::string> Run(absl::string_view command) {
    return RunStateCommand(command, directory_);
  }
  absl::StatusOr<std::string> CheckState() { return CheckStoredState(directory_, JobLimits()); }
  std::string Bytes() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Write(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << bytes;
  }

  std::string directory_;
  std::unique_ptr<Journal> journal_;
};

TEST_F(StateCommandTest, AWholeStateIsSaidToBe) {
  Store();
  const uint64_t n_changes = ReadJournal(directory_)->n_changes;
  const auto told = Require(Run("check"));
  EXPECT_EQ(told, absl::StrCat(path(), " is whole: ", n_changes, " changes in ", journal_->bytes(),
                               " bytes, by irisd ", ReadJournal(directory_)->writer,
                               ", generation 3, in this boot\n"));
  const auto upgrade = Require(CheckState());
  EXPECT_THAT(upgrade, HasSubstr("can go on with " + path()));
}

TEST_F(StateCommandTest, StatCounts) {
  Store();
  const auto told = Require(Run("stat"));
  for (const char* line :
       {"daemon_id: 0000000000000abc\n", "generation: 3\n", "boot: this\n", "torn_bytes: 0\n",
        "devices: 2\n", "jobs: 1\n", "ranks: 2\n", "segments: 2\n", "sessions: 2\n"}) {
    EXPECT_THAT(told, HasSubstr(line));
  }
  EXPECT_THAT(told, HasSubstr(absl::StrCat("\nbytes: ", journal_->bytes(), "\n")));
  EXPECT_THAT(told, HasSubstr(absl::StrCat("allocations: ", TheJob().allocations.size(), "\n")));
}

TEST_F(StateCommandTest, DumpIsTheStateAsText) {
  Store();
  const auto told = Require(Run("dump"));
  EXPECT_THAT(told, HasSubstr("name: \"weights\""));
  state::MachineState state;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(told, &state));
  EXPECT_EQ(state.SerializeAsString(), MachineState::Encode(*machine_));
}

TEST_F(StateCommandTest, ATornChangeIsMentioned) {
  Store();
  const std::string bytes = Bytes();
  Write(bytes.substr(0, bytes.size() - 3));
  EXPECT_THAT(*Run("check"), HasSubstr("its last change is left out: only "));
  EXPECT_THAT(*Run("stat"),
              HasSubstr(absl::StrCat("torn_bytes: ", ReadJournal(directory_)->torn_bytes, "\n")));
  EXPECT_TRUE(CheckState().ok());
}

TEST_F(StateCommandTest, DamageIsSaidWithItsPlace) {
  Store();
  std::string bytes = Bytes();
  bytes[bytes.size() / 2] ^= 1;
  Write(bytes);
  for (const absl::Status& told :
       {Run("check").status(), Run("stat").status(), Run("dump").status(), CheckState().status()}) {
    EXPECT_TRUE(absl::IsDataLoss(told)) << told;
    EXPECT_THAT(told.message(), HasSubstr(path()));
    EXPECT_THAT(told.message(), HasSubstr("is damaged at byte "));
  }
}

TEST_F(StateCommandTest, AStateThatMakesNoSenseIsRefusedAndShown) {
  StoreChanged([](state::MachineState* state) {
    state->mutable_jobs(0)->mutable_ranks(1)->set_device_index(7);
  });
  for (const absl::Status& told : {Run("check").status(), CheckState().status()}) {
    EXPECT_TRUE(absl::IsDataLoss(told)) << told;
    EXPECT_THAT(told.message(), HasSubstr(path() + ": state of irisd: job 1"));
  }
  EXPECT_THAT(*Run("dump"), HasSubstr("device_index: 7"));
  EXPECT_THAT(*Run("stat"), HasSubstr("ranks: 2\n"));
}

// Nothing has compared them with devices that there are.
TEST_F(StateCommandTest, DevicesThatThereCannotBeAreRefused) {
  for (const std::vector<uint64_t>& granularities :
       {std::vector<uint64_t>{0, 0}, {1ull << 63, 1}, {(1ull << 40) - 1, (1ull << 40) - 3}}) {
    Restart();
    StoreChanged([&](state::MachineState* state) {
      for (int i = 0; i < 2; ++i) {
        state->mutable_devices(i)->set_granularity_bytes(granularities[static_cast<size_t>(i)]);
      }
    });
    const absl::Status told = Run("check").status();
    if (granularities[0] == 0) {
      EXPECT_TRUE(told.ok()) << told;
      continue;
    }
    EXPECT_TRUE(absl::IsDataLoss(told)) << told;
    EXPECT_THAT(told.message(), HasSubstr("the granularity of a device"));
  }
}

TEST_F(StateCommandTest, AnotherVersionOfTheStateStopsAnUpgrade) {
  StoreChanged([](state::MachineState* state) { state->set_version(9); });
  const absl::Status told = CheckState().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(told));
  EXPECT_THAT(told.message(), HasSubstr("has version 9"));
}

TEST_F(StateCommandTest, AStateOfAnotherBootIsReadAndNotGoneOnWith) {
  Store();
  std::string bytes = Bytes();
  bytes[72] ^= 1;  // in the name of the boot
  const uint32_t sum =
      static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data() + 16), 96));
  memcpy(bytes.data() + 12, &sum, sizeof(sum));
  Write(bytes);
  EXPECT_THAT(*Run("check"), HasSubstr("in another boot\n"));
  EXPECT_THAT(*Run("stat"), HasSubstr("boot: another\n"));
  const absl::Status told = CheckState().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(told));
  EXPECT_THAT(told.message(), HasSubstr("of an earlier boot"));
}

TEST_F(StateCommandTest, WithoutAStateThereIsNothingToCheckAndNothingInTheWay) {
  for (const char* command : {"check", "dump", "stat"}) {
    EXPECT_TRUE(absl::IsNotFound(Run(command).status())) << command;
  }
  const auto upgrade = Require(CheckState());
  EXPECT_THAT(upgrade, HasSubstr("would begin with nothing"));
  EXPECT_TRUE(fs::is_empty(directory_));
}

}  // namespace
}  // namespace iris::server
