// Recording and replay: the same again, whatever a file holds.
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/recording/codec.h"
#include "server/recording/recorder.h"
#include "server/recording/replay.h"

namespace iris::server {
namespace {

using ::testing::HasSubstr;

MachineSetup TheSetup() {
  MachineSetup setup;
  setup.devices = {{.uuid = "dev-0", .memory_bytes = 64 << 20, .granularity_bytes = 65536}};
  setup.unusable[{0, 7}] = absl::UnavailableError("no link");
  return setup;
}

class RecordingTest : public ::testing::Test {
 protected:
  RecordingTest() { unlink(file_.c_str()); }

  // Records a machine. One rank joins, makes some calls, and dies.
  void RecordALife(uint64_t max_bytes = Recorder::kMaxBytes) {
    auto recorder = Recorder::Create(file_, max_bytes);
    ASSERT_TRUE(recorder.ok()) << recorder.status();
    recorder_ = *std::move(recorder);
    recorder_->Begin(TheSetup());
    JobMachine machine(TheSetup().limits, TheSetup().MakeLedger(), TheSetup().unusable);
    const auto apply = [&](const Input& input) {
      now_.steady += absl::Milliseconds(3);
      now_.wall += absl::Milliseconds(3);
      const Effects effects = machine.Apply(input, now_);
      (void)recorder_->Record(input, now_, effects);
    };
    const SessionId session{7};
    apply(SessionOpened{session, {.pid = 100, .party = {5}}});
    apply(JoinCall{session,
                   CallId{1},
                   {.job = std::string("a\0b\n", 4), .n_ranks = 1, .heap_bytes = 1 << 20}});
    apply(JoinCall{session, CallId{2}, {.job = "a", .n_ranks = 1, .heap_bytes = 1 << 20}});
    apply(SegmentCreated{SegmentId{1}, absl::OkStatus()});
    apply(WatchOpened{session, CallId{3}, JobId{1}});
    apply(MappedCall{session, CallId{4}, JobId{1}, 1, 0, ""});
    apply(OperateCall{session,
                      CallId{5},
                      {.job = JobId{1}, .op = AllocateOp{.bytes = 10, .tensor = {"f32", {2, 5}}}}});
    apply(
        OperateCall{session, CallId{6}, {.job = JobId{1}, .k = 1, .op = BroadcastOp{0, "value"}}});
    apply(DriverFree{0, 12345});
    apply(LimitsChanged{{.max_jobs = 1, .max_heap_bytes_per_uid = 1 << 20}});
    apply(Tick{});
    apply(ProcessGone{session});
    apply(SegmentDropped{SegmentId{1}});
    apply(StopRequested{"test"});
  }
  std::string Bytes() {
    std::ifstream in(file_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void Write(const std::string& bytes) { std::ofstream(file_, std::ios::binary) << bytes; }

  const std::string file_ = ::testing::TempDir() + "/recording";
  std::unique_ptr<Recorder> recorder_;
  Time now_{absl::UnixEpoch() + absl::Hours(1), absl::UnixEpoch() + absl::Hours(2)};
};

TEST_F(RecordingTest, HasTheSameEffectsAgain) {
  RecordALife();
  const auto report = Replay(file_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->n_inputs, 14u);
  EXPECT_GT(report->n_effect_bytes, 1000u);
  EXPECT_FALSE(report->cut);
}

TEST_F(RecordingTest, AnotherEffectIsShown) {
  RecordALife();
  std::string bytes = Bytes();
  const size_t at = bytes.find("offset_bytes");  // of no effect: all are compared as values
  EXPECT_EQ(at, bytes.npos);
  const size_t value = bytes.rfind("'value'");
  ASSERT_NE(value, bytes.npos);
  bytes[value + 1] = 'V';
  Write(bytes);
  const absl::Status status = Replay(file_).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("input 7: OperateCall{"));
}

TEST_F(RecordingTest, ATruncatedFileIsReplayedUpToItsEnd) {
  RecordALife();
  const std::string bytes = Bytes();
  size_t n_before = 0;
  for (size_t size = bytes.size() - 1; size > bytes.size() * 3 / 4; size -= 37) {
    Write(bytes.substr(0, size));
    const auto report = Replay(file_);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_LT(report->n_inputs, 14u);
    n_before = std::max(n_before, report->n_inputs);
  }
  EXPECT_EQ(n_before, 13u);
}

TEST_F(RecordingTest, DamagedBytesAreNoRecordingAndNoCrash) {
  RecordALife();
  const std::string bytes = Bytes();
  // The header's layout is one long text; what follows it is values.
  for (size_t at = 0; at < bytes.size(); at += 61) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x5a);
    const size_t header = bytes.find("dev-0") + 200;
    if (at > header) break;  // an input that is not the recorded one is another history
    Write(damaged);
    EXPECT_FALSE(Replay(file_).ok() && at < bytes.find("dev-0") - 100) << at;
  }
  Write("");
  EXPECT_TRUE(absl::IsInvalidArgument(Replay(file_).status()));
  Write("hello, this is no recording");
  EXPECT_TRUE(absl::IsInvalidArgument(Replay(file_).status()));
}

TEST_F(RecordingTest, AnotherBuildsRecordingIsRefused) {
  RecordALife();
  std::string bytes = Bytes();
  const size_t at = bytes.find("JoinSpec{");
  ASSERT_NE(at, bytes.npos);
  bytes[at] = 'X';
  Write(bytes);
  EXPECT_TRUE(absl::IsFailedPrecondition(Replay(file_).status())) << Replay(file_).status();
}

TEST_F(RecordingTest, FileIsItsOwnersAloneAndNeverALink) {
  const mode_t before = umask(0);
  RecordALife();
  umask(before);
  struct stat info;
  ASSERT_EQ(stat(file_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  unlink(file_.c_str());
  ASSERT_EQ(symlink("/tmp/iris_recording_target", file_.c_str()), 0);
  EXPECT_TRUE(absl::IsAlreadyExists(Recorder::Create(file_).status()));
  unlink(file_.c_str());
}

TEST_F(RecordingTest, EarlierFilesStayByNumber) {
  const auto bytes_of = [](const std::string& file) {
    struct stat info = {};
    return stat(file.c_str(), &info) == 0 ? static_cast<int64_t>(info.st_size) : -1;
  };
  RecordALife();
  const int64_t life = bytes_of(file_);
  ASSERT_GT(life, 0);
  for (int k = 1; k <= Recorder::kEarlierFiles; ++k) {
    ASSERT_TRUE(Recorder::Create(file_).ok());
    EXPECT_EQ(bytes_of(file_), 0);
    EXPECT_EQ(bytes_of(absl::StrCat(file_, ".", k)), life);
  }
  ASSERT_TRUE(Recorder::Create(file_).ok());
  EXPECT_EQ(bytes_of(absl::StrCat(file_, ".", Recorder::kEarlierFiles)), 0);
  EXPECT_EQ(bytes_of(absl::StrCat(file_, ".", Recorder::kEarlierFiles + 1)), -1);
  for (int k = 1; k <= Recorder::kEarlierFiles; ++k) {
    unlink(absl::StrCat(file_, ".", k).c_str());
  }
}

TEST_F(RecordingTest, WhatFindsNoRoomIsCountedAndLeavesNoGap) {
  RecordALife();
  const uint64_t whole = recorder_->bytes();
  unlink(file_.c_str());
  RecordALife(whole - 1);
  EXPECT_EQ(recorder_->n_dropped(), 1u);
  unlink(file_.c_str());
  RecordALife(whole - whole / 4);
  EXPECT_GT(recorder_->n_dropped(), 1u);
  EXPECT_LE(recorder_->bytes(), whole - whole / 4);
  const auto report = Replay(file_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->n_inputs + recorder_->n_dropped(), 14u);
}

}  // namespace
}  // namespace iris::server
