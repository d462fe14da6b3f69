// The journal of a real machine's history: read back after each change, cut at each byte, damaged
// at each byte, on a full file system, and in folders that are not irisd's own.
#include "server/state/journal.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/wire/version.h"
#include "server/job/testing/job_machine_testing.h"
#include "server/state/change_table.h"
#include "server/state/machine_state.h"
#include "server/state/machine_state.pb.h"
#include "tests/cc/require.h"

namespace iris::server {
namespace {

namespace fs = std::filesystem;
using iris::testing::Require;
using ::testing::HasSubstr;

constexpr size_t kHeadBytes = 112;
constexpr size_t kRecordHeadBytes = 24;

// Limits how long files may get, as a full file system does. Writes are cut short there first.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(uint64_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    struct rlimit limit = before_;
    limit.rlim_cur = bytes;
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  struct rlimit before_ = {};
};

class JournalTest : public MachineTest {
 protected:
  void SetUp() override {
    MachineTest::SetUp();
    char name[] = "/tmp/iris-journal-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::string folder() const { return directory_ + "/state"; }
  std::string path() const { return folder() + "/journal"; }
  std::string next() const { return folder() + "/journal.next"; }

  absl::StatusOr<std::unique_ptr<Journal>> Create(JournalOwner owner = {77, 3}) {
    return Journal::Create(directory_, owner, [this] { return MachineState::Encode(*machine_); });
  }

  void Begin() {
    journal_ = Require(Create());
    states_ = {MachineState::Encode(*machine_)};
    ends_ = {journal_->bytes()};
  }

  // Stores what each input of the machine has changed, as the daemon does.
  void Applied() override {
    if (journal_ == nullptr) return;
    std::string change;
    MachineState::EncodeChange(*machine_, &change);
    if (change.empty()) return;
    appended_ = journal_->Append(change);
    if (must_append_) {
      ASSERT_TRUE(appended_.ok()) << appended_;
    }
    if (appended_.ok()) {
      ASSERT_EQ(fs::file_size(path()), journal_->bytes());
    }
    states_.push_back(MachineState::Encode(*machine_));
    ends_.push_back(journal_->bytes());
  }

  // A history with jobs, values and memory that come and go.
  void History() {
    Begin();
    const TestJob job = ReadyJob(2);
    const std::vector<CallId> memory = AskAll(job, 0, AllocateOp{.bytes = 500, .name = "w"});
    AskAll(job, 1, BroadcastOp{1, "value"});
    AskAll(job, 2, CreateTeamOp{{1}});
    AskAll(job, 3, FreeOp{OffsetOf(memory[0])});
    HangUp(job.sessions[1]);
    Gone(job.sessions[1]);
    DropSegments();
    const TestJob wide = JobOfTwoNodes(/*taken=*/1);
    Do(PortTook{wide.id, 2});
  }

  // A job whose ranks are given values of 4 KiB until `done`.
  template <typename Done>
  void Broadcast(const Done& done) {
    if (job_.sessions.empty()) job_ = ReadyJob(1);
    for (int i = 0; i < 10000 && !done(); ++i) {
      AskAll(job_, next_k_++, BroadcastOp{0, std::string(4096, 'v')});
    }
    ASSERT_TRUE(done());
  }

  std::string Bytes() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Write(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << bytes;
  }
  absl::StatusOr<StoredState> Read() const { return ReadJournal(directory_); }
  bool Exists(const std::string& file) const { return fs::exists(fs::symlink_status(file)); }

  void ExpectStored(const std::string& state) const {
    const auto stored = Require(Read());
    EXPECT_EQ(MachineState::BytesOf(*stored.state), state);
    EXPECT_EQ(stored.torn_bytes, 0u);
  }

  // From `begin`, where a record is, puts its checksums right.
  static void Seal(std::string* bytes, size_t begin) {
    const auto sum = [](const char* from, size_t n) {
      return static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(from), n));
    };
    uint32_t length = 0;
    char* const record = bytes->data() + begin;
    memcpy(&length, record, sizeof(length));
    const uint32_t of_content = sum(record + kRecordHeadBytes, length);
    memcpy(record + 16, &of_content, sizeof(of_content));
    const uint32_t of_head = sum(record, 20);
    memcpy(record + 20, &of_head, sizeof(of_head));
  }

  std::string directory_;
  std::unique_ptr<Journal> journal_;
  std::vector<std::string> states_;  // after so many changes
  std::vector<uint64_t> ends_;       // where the file ended then
  absl::Status appended_;            // the last one
  bool must_append_ = true;
  TestJob job_;
  uint64_t next_k_ = 0;
};

TEST_F(JournalTest, EachChangeIsReadBack) {
  Begin();
  ExpectStored(states_[0]);
  History();
  const std::string bytes = Bytes();
  ASSERT_EQ(bytes.size(), ends_.back());
  ASSERT_GT(ends_.size(), 15u);
  for (size_t i = 0; i < ends_.size(); ++i) {
    const auto stored = Require(ParseJournal(absl::string_view(bytes).substr(0, ends_[i])));
    EXPECT_EQ(MachineState::BytesOf(*stored.state), states_[i]);
    EXPECT_EQ(stored.n_changes, i);
    EXPECT_TRUE(MachineState::Decode(*stored.state, Limits(), Ledger(Devices())).ok());
  }
}

TEST_F(JournalTest, SaysWhoWroteIt) {
  History();
  const auto stored = Require(Read());
  EXPECT_EQ(stored.owner.daemon_id, 77u);
  EXPECT_EQ(stored.owner.generation, 3u);
  EXPECT_EQ(stored.writer, wire::kIrisVersion);
  EXPECT_EQ(stored.boot_id, BootId().value());
  EXPECT_NE(stored.boot_id, "");
  EXPECT_EQ(stored.boot_id.size(), 36u);
  EXPECT_EQ(stored.bytes, ends_.back());
  EXPECT_EQ(stored.n_changes, ends_.size() - 1);
  EXPECT_EQ(journal_->n_rewrites(), 1u);
}

TEST_F(JournalTest, IsReadWhereItsLastChangeIsTorn) {
  History();
  const std::string bytes = Bytes();
  size_t whole = 0;  // changes that are all there
  for (size_t n = 0; n < bytes.size(); ++n) {
    const auto stored = ParseJournal(absl::string_view(bytes).substr(0, n));
    if (n < ends_[0]) {
      ASSERT_TRUE(absl::IsDataLoss(stored.status())) << n << ": " << stored.status();
      continue;
    }
    if (n == ends_[whole + 1]) ++whole;
    ASSERT_TRUE(stored.ok()) << n << ": " << stored.status();
    ASSERT_EQ(MachineState::BytesOf(*stored->state), states_[whole]) << n;
    ASSERT_EQ(stored->n_changes, whole) << n;
    ASSERT_EQ(stored->torn_bytes, n - ends_[whole]) << n;
  }
}

TEST_F(JournalTest, EachDamagedByteIsNoticed) {
  History();
  const std::string good = Bytes();
  for (size_t at = 0; at < good.size(); ++at) {
    for (const char flip : {'\x01', '\x10', '\x80', '\xff'}) {
      std::string bytes = good;
      bytes[at] ^= flip;
      const absl::Status told = ParseJournal(bytes).status();
      const bool is_format = at >= 8 && at < 12;
      ASSERT_EQ(told.code(),
                is_format ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kDataLoss)
          << at << ": " << told;
    }
  }
}

TEST_F(JournalTest, SaysWhereTheDamageIs) {
  History();
  std::string bytes = Bytes();
  bytes[ends_[2] + kRecordHeadBytes] ^= 1;
  Write(bytes);
  const absl::Status told = Read().status();
  EXPECT_TRUE(absl::IsDataLoss(told));
  EXPECT_THAT(told.message(), HasSubstr(absl::StrCat(path(), ": ")));
  EXPECT_THAT(told.message(),
              HasSubstr(absl::StrCat("at byte ", ends_[2], ": the checksum of record 3")));
}

TEST_F(JournalTest, RecordsLeftOutSwappedOrRepeatedAreNoticed) {
  History();
  const std::string bytes = Bytes();
  const auto record = [&](size_t i) { return bytes.substr(ends_[i - 1], ends_[i] - ends_[i - 1]); };
  const std::string head = bytes.substr(0, ends_[0]);
  for (const std::string& tail :
       {record(2), record(2) + record(1), record(1) + record(1), record(1) + record(3)}) {
    const absl::Status told = ParseJournal(head + tail).status();
    EXPECT_TRUE(absl::IsDataLoss(told)) << told;
    EXPECT_THAT(told.message(), HasSubstr("is in the place of record"));
  }
  EXPECT_TRUE(absl::IsDataLoss(ParseJournal(bytes + "x" + record(1)).status()));
  const std::string again = bytes + bytes;  // two journals in one file
  EXPECT_TRUE(absl::IsDataLoss(ParseJournal(again).status()));
}

TEST_F(JournalTest, RecordsOfAWrongTypeAreNoticed) {
  History();
  const std::string good = Bytes();
  for (const size_t at : {kHeadBytes, static_cast<size_t>(ends_[0])}) {
    for (const char type : {'\0', at == kHeadBytes ? '\2' : '\1', '\3'}) {
      std::string bytes = good;
      bytes[at + 4] = type;
      Seal(&bytes, at);
      EXPECT_THAT(ParseJournal(bytes).status().message(), HasSubstr("has type"));
    }
  }
}

TEST_F(JournalTest, ALengthBeyondAMessageIsDamage) {
  History();
  std::string bytes = Bytes().substr(0, ends_[0] + kRecordHeadBytes);
  const uint32_t length = 0x80000000;
  memcpy(bytes.data() + ends_[0], &length, sizeof(length));
  const uint32_t sum =
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data() + ends_[0]), 20) & 0xffffffff;
  memcpy(bytes.data() + ends_[0] + 20, &sum, sizeof(sum));
  EXPECT_TRUE(absl::IsDataLoss(ParseJournal(bytes).status()));
}

// Checksums do not stop who can compute them.
TEST_F(JournalTest, ForgedChangesAreBorne) {
  History();
  const std::string good = Bytes();
  std::minstd_rand random(20261122);
  int n_read = 0, n_refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string bytes = good;
    const size_t record = random() % ends_.size();
    const size_t begin = record == 0 ? kHeadBytes : ends_[record - 1];
    const size_t content = begin + kRecordHeadBytes;
    if (content == ends_[record]) continue;
    for (uint32_t n = 1 + random() % 3; n > 0; --n) {
      bytes[content + random() % (ends_[record] - content)] = static_cast<char>(random());
    }
    Seal(&bytes, begin);
    const auto stored = ParseJournal(bytes);
    const absl::Status told =
        stored.ok() ? MachineState::Decode(*stored->state, Limits(), Ledger(Devices())).status()
                    : stored.status();
    ++(told.ok() ? n_read : n_refused);
    if (stored.ok()) continue;
    ASSERT_TRUE(absl::IsDataLoss(told) || absl::IsFailedPrecondition(told)) << told;
  }
  EXPECT_GT(n_read, 100);
  EXPECT_GT(n_refused, 100);
}

TEST_F(JournalTest, AChangeOfARankWithoutThoseBeforeItIsRefused) {
  state::Change change;
  change.add_jobs()->mutable_job()->set_id(1);
  for (const uint32_t rank : {0, 1, 63}) {
    change.mutable_jobs(0)->add_ranks()->set_rank(rank);
    ChangeTable table;
    ASSERT_TRUE(table.Begin(MachineState::Encode(*machine_)).ok());
    const absl::Status told = table.Apply(change.SerializeAsString());
    EXPECT_EQ(told.code(), rank < 2 ? absl::StatusCode::kOk : absl::StatusCode::kDataLoss) << told;
  }
}

TEST_F(JournalTest, AnotherFormatIsRefusedWithItsNumber) {
  History();
  std::string bytes = Bytes();
  bytes[8] = 2;
  Write(bytes);
  const absl::Status told = Read().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(told));
  EXPECT_THAT(told.message(), HasSubstr("has format 2, and this irisd"));
}

TEST_F(JournalTest, AStateOfAnotherVersionIsRefusedWithItsNumber) {
  Begin();
  std::string bytes = Bytes();
  char* const version = bytes.data() + kHeadBytes + kRecordHeadBytes + 1;  // behind its key
  ASSERT_EQ(*version, 1);
  *version = 9;
  Seal(&bytes, kHeadBytes);
  const absl::Status told = ParseJournal(bytes).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(told)) << told;
  EXPECT_THAT(told.message(), HasSubstr("has version 9, and this irisd reads 1"));
}

TEST_F(JournalTest, SomethingElseIsNoJournal) {
  for (const std::string& bytes :
       {std::string(), std::string("nonsense"), std::string(5000, '\0')}) {
    EXPECT_TRUE(absl::IsDataLoss(ParseJournal(bytes).status()));
  }
}

TEST_F(JournalTest, IsWrittenAnewWhenItIsLong) {
  Begin();
  Broadcast([this] { return journal_->n_rewrites() >= 3; });
  uint64_t longest = 0;
  for (const uint64_t end : ends_) longest = std::max(longest, end);
  EXPECT_GT(longest, Journal::kSlackBytes);
  EXPECT_LT(longest, 2 * Journal::kSlackBytes);
  EXPECT_LT(journal_->bytes(), 1 << 20);
  EXPECT_FALSE(Exists(next()));
  ExpectStored(states_.back());
  EXPECT_EQ(Read()->n_changes, 0u);
  AskAll(job_, next_k_++, BroadcastOp{0, "after"});
  ExpectStored(states_.back());
  EXPECT_EQ(Read()->n_changes, 1u);
}

TEST_F(JournalTest, ALongOneThatCannotBeWrittenAnewTakesChanges) {
  Begin();
  fs::create_directory(next());
  Broadcast([this] { return journal_->bytes() > 2 * Journal::kSlackBytes; });
  EXPECT_EQ(journal_->n_rewrites(), 1u);
  ExpectStored(states_.back());
  fs::remove(next());
  absl::SleepFor(absl::Milliseconds(1100));  // the next try
  AskAll(job_, next_k_++, BroadcastOp{0, "x"});
  EXPECT_EQ(journal_->n_rewrites(), 2u);
  ExpectStored(states_.back());
}

TEST_F(JournalTest, WhatADeathInWritingLeftIsNoObstacle) {
  fs::create_directory(folder());
  fs::permissions(folder(), fs::perms::owner_all);
  std::ofstream(next()) << "half of a jour";
  History();
  EXPECT_FALSE(Exists(next()));
  ExpectStored(states_.back());
}

TEST_F(JournalTest, TheNextOneTakesItsPlace) {
  History();
  const auto other = Require(Create({77, 4}));
  const auto stored = Require(Read());
  EXPECT_EQ(stored.owner.generation, 4u);
  EXPECT_EQ(stored.n_changes, 0u);
  EXPECT_EQ(MachineState::BytesOf(*stored.state), states_.back());
}

TEST_F(JournalTest, OneThatCannotBeginLeavesTheEarlierOne) {
  History();
  const std::string before = Bytes();
  {
    const FileSizeLimit limit(kHeadBytes + 100);
    EXPECT_FALSE(Create().ok());
  }
  EXPECT_EQ(Bytes(), before);
  EXPECT_FALSE(Exists(next()));
  fs::create_directory(next());
  EXPECT_FALSE(Create().ok());
  EXPECT_EQ(Bytes(), before);
  EXPECT_TRUE(absl::IsResourceExhausted(
      Journal::Create(directory_, {}, [] { return std::string(); }).status()));
  EXPECT_EQ(Bytes(), before);
}

// Two of them do not fit: the earlier one makes room.
TEST_F(JournalTest, OneThatGoesOnTakesTheRoomOfTheEarlierOne) {
  History();
  const auto goes_on = [this] {
    return Journal::Create(
        directory_, {77, 9}, [this] { return states_.back(); }, /*goes_on=*/true);
  };
  {
    const FileSizeLimit limit(kHeadBytes + 100);
    const auto journal = Require(goes_on());
    EXPECT_FALSE(journal->stored());
    EXPECT_FALSE(Exists(path()));
    const absl::Status appended = journal->Append("");
    EXPECT_THAT(appended.message(), HasSubstr("File too large"));
    EXPECT_FALSE(Exists(folder()));
  }
  const auto journal = Require(goes_on());
  EXPECT_TRUE(journal->stored());
  ExpectStored(states_.back());
  // Another error than a full file system is one.
  fs::create_directory(next());
  EXPECT_FALSE(goes_on().ok());
  ExpectStored(states_.back());
}

TEST_F(JournalTest, WhereAChangeDoesNotFitTheStateMayStillFit) {
  History();
  const uint64_t n_rewrites = journal_->n_rewrites();
  must_append_ = false;
  {
    // The next change begins, and does not end.
    const FileSizeLimit limit(journal_->bytes() + kRecordHeadBytes + 5);
    Advance(absl::Minutes(2));
    Open(555);
  }
  EXPECT_TRUE(appended_.ok()) << appended_;
  EXPECT_EQ(journal_->n_rewrites(), n_rewrites + 1);
  ExpectStored(states_.back());
  Open(556);
  EXPECT_TRUE(appended_.ok()) << appended_;
  ExpectStored(states_.back());
}

TEST_F(JournalTest, OnAFullFileSystemNoOldStateStays) {
  Begin();
  must_append_ = false;
  {
    const FileSizeLimit limit(512 << 10);
    Broadcast([this] { return !appended_.ok(); });
  }
  EXPECT_THAT(appended_.message(), HasSubstr(absl::StrCat("write ", path())));
  EXPECT_FALSE(Exists(folder()));
  EXPECT_TRUE(absl::IsNotFound(Read().status()));
  EXPECT_EQ(journal_->bytes(), 0u);
  EXPECT_EQ(journal_->n_rewrites(), 2u) << "there was room once, and at once";

  absl::SleepFor(absl::Milliseconds(1100));
  AskAll(job_, next_k_++, BroadcastOp{0, "after"});
  EXPECT_TRUE(appended_.ok()) << appended_;
  ExpectStored(states_.back());
  AskAll(job_, next_k_++, BroadcastOp{0, "and on"});
  ExpectStored(states_.back());
}

TEST_F(JournalTest, AFullFileSystemIsTriedOnceInASecond) {
  Begin();
  must_append_ = false;
  {
    const FileSizeLimit limit(512 << 10);
    Broadcast([this] { return !appended_.ok(); });
  }
  absl::SleepFor(absl::Milliseconds(1100));
  {
    const FileSizeLimit limit(200);
    AskAll(job_, next_k_++, BroadcastOp{0, "x"});
    EXPECT_THAT(appended_.message(), HasSubstr("write irisd's state"));
    EXPECT_FALSE(Exists(path()));
    EXPECT_FALSE(Exists(next()));
  }
  AskAll(job_, next_k_++, BroadcastOp{0, "x"});
  EXPECT_TRUE(absl::IsUnavailable(appended_)) << appended_;
  EXPECT_FALSE(Exists(path()));
  absl::SleepFor(absl::Milliseconds(1100));
  AskAll(job_, next_k_++, BroadcastOp{0, "x"});
  EXPECT_TRUE(appended_.ok()) << appended_;
  ExpectStored(states_.back());
}

TEST_F(JournalTest, RemoveLeavesNothing) {
  History();
  std::ofstream(next()) << "of a death";
  journal_->Remove();
  EXPECT_TRUE(fs::is_empty(directory_));
  EXPECT_TRUE(absl::IsNotFound(Read().status()));
}

TEST_F(JournalTest, AFileThatCannotBeRemovedIsNoStateAnyMore) {
  History();
  fs::rename(path(), folder() + "/moved");
  fs::create_directory(path());
  journal_->Remove();
  EXPECT_EQ(fs::file_size(folder() + "/moved"), 0u);
}

TEST_F(JournalTest, WithoutADirectoryThereIsNone) {
  EXPECT_TRUE(absl::IsNotFound(Read().status()));
  EXPECT_FALSE(Exists(folder()));
  EXPECT_TRUE(absl::IsNotFound(ReadJournal(directory_ + "/none").status()));
  fs::create_directory(folder());
  fs::permissions(folder(), fs::perms::owner_all);
  EXPECT_TRUE(absl::IsNotFound(Read().status()));
}

TEST_F(JournalTest, FilesAreTheOwnersAlone) {
  const mode_t before = umask(0);
  History();
  umask(before);
  struct stat info = {};
  ASSERT_EQ(stat(folder().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  ASSERT_EQ(stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(JournalTest, ALinkOpenToOthersOrAnothersIsRefused) {
  History();
  const auto expect_refused = [this](bool writes) {
    EXPECT_TRUE(absl::IsPermissionDenied(Read().status())) << Read().status();
    if (!writes) return;
    const absl::Status made = Create().status();
    EXPECT_TRUE(absl::IsPermissionDenied(made)) << made;
  };
  // The folder may be open to others, or a link.
  for (const fs::perms open : {fs::perms::group_read, fs::perms::others_exec}) {
    fs::permissions(folder(), open, fs::perm_options::add);
    expect_refused(true);
    fs::permissions(folder(), fs::perms::owner_all);
  }
  fs::rename(folder(), directory_ + "/elsewhere");
  fs::create_directory_symlink(directory_ + "/elsewhere", folder());
  expect_refused(true);
  fs::remove(folder());
  std::ofstream(folder()) << "a file";
  expect_refused(true);
  fs::remove(folder());
  fs::rename(directory_ + "/elsewhere", folder());
  ExpectStored(states_.back());

  // The file may be open to others, a link, or no file.
  fs::permissions(path(), fs::perms::others_read, fs::perm_options::add);
  expect_refused(false);
  fs::permissions(path(), fs::perms::owner_read | fs::perms::owner_write);
  ExpectStored(states_.back());
  fs::rename(path(), folder() + "/elsewhere");
  fs::create_symlink(folder() + "/elsewhere", path());
  expect_refused(false);
  fs::remove(path());
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  expect_refused(false);
  fs::remove(path());
  fs::create_directory(path());
  expect_refused(false);
  fs::remove(path());
  ASSERT_TRUE(Create().ok());
  ExpectStored(states_.back());

  if (geteuid() != 0) GTEST_SKIP() << "root alone gives files to other users";
  ASSERT_EQ(chown(path().c_str(), 65534, 65534), 0);
  expect_refused(false);
  ASSERT_EQ(chown(path().c_str(), 0, 0), 0);
  ASSERT_EQ(chown(folder().c_str(), 65534, 65534), 0);
  expect_refused(true);
}

TEST_F(JournalTest, OneThatIsTooLongIsNotRead) {
  History();
  ASSERT_EQ(truncate(path().c_str(), static_cast<off_t>(Journal::kMaxBytes) + 1), 0);
  EXPECT_THAT(Read().status().message(), HasSubstr("are read"));
}

TEST_F(JournalTest, IsReadWhileItIsWritten) {
  Begin();
  const pid_t reader = fork();
  ASSERT_GE(reader, 0);
  if (reader == 0) {
    for (;;) {
      const auto stored = Read();
      if (!stored.ok()) _exit(absl::IsNotFound(stored.status()) ? 0 : 1);
      if (!MachineState::Decode(*stored->state, Limits(), Ledger(Devices())).ok()) _exit(2);
    }
  }
  Broadcast([this] { return journal_->n_rewrites() >= 3; });
  journal_->Remove();
  int status = 0;
  ASSERT_EQ(waitpid(reader, &status, 0), reader);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace iris::server
