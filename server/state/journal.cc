#include "server/state/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "device/base/bytes.h"
#include "device/base/posix.h"
#include "proto/wire/frame.h"
#include "proto/wire/version.h"
#include "server/job/clock.h"
#include "server/state/change_table.h"

namespace iris::server {
namespace {

constexpr uint32_t kFormat = 1;
constexpr auto kRetryEvery = absl::Seconds(1);
// The longest protocol buffer.
constexpr uint64_t kMaxRecordBytes = 0x7fffffff;
constexpr char kNextFile[] = "journal.next";

struct Head {
  char magic[8] = {'I', 'R', 'I', 'S', 'T', 'A', 'T', 'E'};
  uint32_t format = kFormat;
  uint32_t crc = 0;  // of the rest
  uint64_t daemon_id = 0;
  uint64_t generation = 0;
  uint64_t flags = 0;
  char writer[32] = {};
  char boot_id[40] = {};
};
static_assert(sizeof(Head) == 112);
constexpr size_t kHeadChecked = 16;
constexpr uint64_t kPairsChecked = 1;

enum class RecordType : uint32_t { kWhole = 1, kChange = 2 };

struct RecordHead {
  uint32_t bytes = 0;  // size of the bytes after this head
  uint32_t type = 0;
  uint64_t sequence = 0;  // from 0 on
  uint32_t crc_bytes = 0;
  uint32_t crc_head = 0;  // of this head, up to here
};
static_assert(sizeof(RecordHead) == 24);
constexpr size_t kRecordChecked = 20;

uint32_t Checksum(const void* from, size_t n) {
  return static_cast<uint32_t>(crc32_z(0, static_cast<const Bytef*>(from), n));
}

template <size_t n>
void CopyText(absl::string_view from, char (&to)[n]) {
  memcpy(to, from.data(), std::min(from.size(), n - 1));
}

template <size_t n>
std::string TextOf(const char (&text)[n]) {
  return std::string(text, strnlen(text, n));
}

RecordHead MakeRecord(RecordType type, uint64_t sequence, absl::string_view bytes) {
  RecordHead head;
  head.bytes = static_cast<uint32_t>(bytes.size());
  head.type = static_cast<uint32_t>(type);
  head.sequence = sequence;
  head.crc_bytes = Checksum(bytes.data(), bytes.size());
  head.crc_head = Checksum(&head, kRecordChecked);
  return head;
}

// Returns errno, or 0 if all was written.
int WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = base::Retry([&] { return write(fd, bytes.data(), bytes.size()); });
    if (n <= 0) return n < 0 ? errno : ENOSPC;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return 0;
}

// Returns kPermissionDenied if the folder is a link, another user's, or open to others.
absl::StatusOr<wire::UniqueFd> OpenFolder(const std::string& folder) {
  wire::UniqueFd opened(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  // A link fails with ELOOP or ENOTDIR, depending on the kernel's version.
  const bool is_other = !opened.valid() && (errno == ELOOP || errno == ENOTDIR);
  if (!opened.valid() && !is_other) {
    return wire::ErrnoStatus(errno, absl::StrCat("open ", folder));
  }
  struct stat info = {};
  if (!is_other && fstat(opened.get(), &info) != 0) {
    return wire::ErrnoStatus(errno, absl::StrCat("look at ", folder));
  }
  if (is_other || info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(folder, " is not a private directory of this user: remove it"));
  }
  return opened;
}

absl::Status NotOurs(const std::string& path) {
  return absl::PermissionDeniedError(absl::StrCat(
      path, " is not a file that this user alone can read and write: look who made it"));
}

}  // namespace

absl::StatusOr<std::string> BootId() {
  constexpr char kPath[] = "/proc/sys/kernel/random/boot_id";
  const wire::UniqueFd file(open(kPath, O_RDONLY | O_CLOEXEC));
  if (!file.valid()) {
    if (errno == ENOENT || errno == EACCES) return std::string();
    return wire::ErrnoStatus(errno, absl::StrCat("open ", kPath));
  }
  char text[64];
  const ssize_t n = base::Retry([&] { return read(file.get(), text, sizeof(text)); });
  if (n < 0) return wire::ErrnoStatus(errno, absl::StrCat("read ", kPath));
  const absl::string_view id(text, static_cast<size_t>(n));
  return std::string(absl::StripAsciiWhitespace(id));
}

absl::StatusOr<std::unique_ptr<Journal>> Journal::Create(const std::string& directory,
                                                         const JournalOwner& owner, Whole whole,
                                                         bool goes_on) {
  const std::string folder = absl::StrCat(directory, "/", kFolder);
  std::unique_ptr<Journal> journal(new Journal(folder, owner, std::move(whole)));
  const absl::Status written = journal->Rewrite();
  if (written.ok()) return journal;
  if (!goes_on || !journal->is_full_) return written;
  journal->Remove();
  if (!journal->Rewrite().ok()) {
    journal->retry_ns_ = absl::ToUnixNanos(SteadyNow()) + absl::ToInt64Nanoseconds(kRetryEvery);
  }
  return journal;
}

absl::Status Journal::Failed(absl::Status why) {
  rmdir(folder_.c_str());  // in case Rewrite has made it
  failure_ = std::string(why.message());
  return why;
}

absl::Status Journal::Failed(int error, const std::string& what) {
  is_full_ = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return Failed(wire::ErrnoStatus(error, what));
}

absl::Status Journal::Rewrite() {
  is_full_ = false;
  const absl::StatusOr<std::string> boot_id = BootId();
  if (!boot_id.ok()) return Failed(boot_id.status());
  const std::string whole = whole_();
  if (whole.empty() || whole.size() > kMaxRecordBytes) {
    return Failed(absl::ResourceExhaustedError(absl::StrCat(
        "the state of irisd is too long to be stored: at most ", kMaxRecordBytes, " bytes")));
  }
  if (mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) {
    return Failed(errno, absl::StrCat("make ", folder_));
  }
  const absl::StatusOr<wire::UniqueFd> folder = OpenFolder(folder_);
  if (!folder.ok()) return Failed(folder.status());
  unlinkat(folder->get(), kNextFile, 0);  // remains of an irisd that died here
  wire::UniqueFd file(openat(folder->get(), kNextFile,
                             O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW,
                             0600));
  if (!file.valid()) return Failed(errno, absl::StrCat("make ", folder_, "/", kNextFile));
  Head head;
  head.daemon_id = owner_.daemon_id;
  head.generation = owner_.generation;
  head.flags = owner_.pairs_checked ? kPairsChecked : 0;
  CopyText(wire::kIrisVersion, head.writer);
  CopyText(*boot_id, head.boot_id);
  head.crc =
      Checksum(reinterpret_cast<const char*>(&head) + kHeadChecked, sizeof(head) - kHeadChecked);
  const RecordHead record = MakeRecord(RecordType::kWhole, 0, whole);
  int error = 0;
  for (const absl::string_view part :
       {absl::string_view(reinterpret_cast<const char*>(&head), sizeof(head)),
        absl::string_view(reinterpret_cast<const char*>(&record), sizeof(record)),
        absl::string_view(whole)}) {
    if (error == 0) error = WriteAll(file.get(), part);
  }
  if (error == 0 && renameat(folder->get(), kNextFile, folder->get(), kFile) != 0) error = errno;
  if (error != 0) {
    unlinkat(folder->get(), kNextFile, 0);
    return Failed(error, absl::StrCat("write irisd's state to ", folder_, "/", kFile));
  }
  file_ = std::move(file);
  sequence_ = 1;
  whole_bytes_ = sizeof(head) + sizeof(record) + whole.size();
  bytes_ = whole_bytes_;
  ++n_rewrites_;
  return absl::OkStatus();
}

absl::Status Journal::Append(absl::string_view change) {
  const bool is_long = bytes_ > whole_bytes_ * 3 + kSlackBytes;
  const bool fits =
      change.size() <= kMaxRecordBytes && bytes_ + sizeof(RecordHead) + change.size() <= kMaxBytes;
  if (!file_.valid() || is_long || !fits) {
    const int64_t now = absl::ToUnixNanos(SteadyNow());
    absl::Status written = absl::UnavailableError(
        absl::StrCat("irisd's state is not stored since its file failed: ", failure_));
    if (now >= retry_ns_) {
      written = Rewrite();
      if (written.ok()) return written;
      retry_ns_ = now + absl::ToInt64Nanoseconds(kRetryEvery);
    }
    // Without room for both files, the present file still takes changes.
    if (!file_.valid()) return written;
    if (!fits) {
      Remove();
      return written;
    }
  }
  const RecordHead head = MakeRecord(RecordType::kChange, sequence_, change);
  record_.assign(reinterpret_cast<const char*>(&head), sizeof(head));
  record_.append(change.data(), change.size());
  // Writes once, so that other records follow only a complete one.
  const ssize_t n = base::Retry([&] { return write(file_.get(), record_.data(), record_.size()); });
  if (n == static_cast<ssize_t>(record_.size())) {
    ++sequence_;
    bytes_ += record_.size();
    return absl::OkStatus();
  }
  absl::Status failed =
      wire::ErrnoStatus(n < 0 ? errno : ENOSPC, absl::StrCat("write ", folder_, "/", kFile));
  failure_ = std::string(failed.message());
  Remove();
  // There may be room for the state now. An idle irisd would not try again by itself.
  const int64_t now = absl::ToUnixNanos(SteadyNow());
  if (now < retry_ns_) return failed;
  retry_ns_ = now + absl::ToInt64Nanoseconds(kRetryEvery);
  return Rewrite().ok() ? absl::OkStatus() : failed;
}

void Journal::Remove() {
  const bool is_gone = unlink(absl::StrCat(folder_, "/", kFile).c_str()) == 0 || errno == ENOENT;
  // A later irisd cannot take an empty file for the present state.
  if (!is_gone && file_.valid()) (void)!ftruncate(file_.get(), 0);
  unlink(absl::StrCat(folder_, "/", kNextFile).c_str());
  rmdir(folder_.c_str());
  file_.Reset();
  bytes_ = 0;
  whole_bytes_ = 0;
}

absl::StatusOr<StoredState> ParseJournal(absl::string_view bytes) {
  const auto damaged = [](uint64_t at, absl::string_view what) {
    return absl::DataLossError(
        absl::StrCat("the stored state of irisd is damaged at byte ", at, ": ", what));
  };
  Head head;
  if (bytes.size() < sizeof(head)) return damaged(bytes.size(), "its head is not all there");
  memcpy(&head, bytes.data(), sizeof(head));
  if (memcmp(head.magic, Head().magic, sizeof(head.magic)) != 0) {
    return damaged(0, "it is no state of irisd's");
  }
  if (head.format != kFormat) {
    return absl::FailedPreconditionError(
        absl::StrCat("the stored state of irisd has format ", head.format, ", and this irisd, ",
                     wire::kIrisVersion, ", reads format ", kFormat,
                     ": start the irisd that wrote it, or a newer one"));
  }
  if (head.crc != Checksum(bytes.data() + kHeadChecked, sizeof(head) - kHeadChecked)) {
    return damaged(0, "the checksum of its head");
  }
  StoredState stored;
  stored.owner = {head.daemon_id, head.generation, (head.flags & kPairsChecked) != 0};
  stored.writer = TextOf(head.writer);
  stored.boot_id = TextOf(head.boot_id);
  stored.bytes = bytes.size();
  ChangeTable table;
  uint64_t at = sizeof(head);
  for (uint64_t sequence = 0; at < bytes.size(); ++sequence) {
    RecordHead record;
    stored.torn_bytes = bytes.size() - at;
    if (stored.torn_bytes < sizeof(record)) break;
    memcpy(&record, bytes.data() + at, sizeof(record));
    if (record.crc_head != Checksum(&record, kRecordChecked)) {
      return damaged(at, absl::StrCat("the checksum of the head of record ", sequence));
    }
    if (record.sequence != sequence) {
      return damaged(
          at, absl::StrCat("record ", record.sequence, " is in the place of record ", sequence));
    }
    if (record.bytes > kMaxRecordBytes) {
      return damaged(at, absl::StrCat("record ", sequence, " has ", record.bytes, " bytes"));
    }
    if (stored.torn_bytes - sizeof(record) < record.bytes) break;
    stored.torn_bytes = 0;
    const absl::string_view content = bytes.substr(at + sizeof(record), record.bytes);
    if (record.crc_bytes != Checksum(content.data(), content.size())) {
      return damaged(at, absl::StrCat("the checksum of record ", sequence));
    }
    const RecordType wanted = sequence == 0 ? RecordType::kWhole : RecordType::kChange;
    if (record.type != static_cast<uint32_t>(wanted)) {
      return damaged(at, absl::StrCat("record ", sequence, " has type ", record.type));
    }
    const absl::Status applied = sequence == 0 ? table.Begin(content) : table.Apply(content);
    if (absl::IsFailedPrecondition(applied)) return applied;
    if (!applied.ok()) {
      return damaged(at, absl::StrCat("record ", sequence, ": ", applied.message()));
    }
    if (sequence > 0) ++stored.n_changes;
    at += sizeof(record) + record.bytes;
  }
  if (at == sizeof(head)) return damaged(at, "the state that it begins with is not all there");
  stored.state = table.Take();
  return stored;
}

absl::StatusOr<StoredState> ReadJournal(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", Journal::kFolder, "/", Journal::kFile);
  const absl::StatusOr<wire::UniqueFd> folder =
      OpenFolder(absl::StrCat(directory, "/", Journal::kFolder));
  if (absl::IsNotFound(folder.status())) {
    return absl::NotFoundError(absl::StrCat("there is no ", path));
  }
  if (!folder.ok()) return folder.status();
  const wire::UniqueFd file(openat(folder->get(), Journal::kFile,
                                   O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (!file.valid()) {
    if (errno == ENOENT) return absl::NotFoundError(absl::StrCat("there is no ", path));
    // ELOOP: a link. ENXIO: a socket.
    if (errno == ELOOP || errno == ENXIO) return NotOurs(path);
    return wire::ErrnoStatus(errno, absl::StrCat("open ", path));
  }
  struct stat info = {};
  if (fstat(file.get(), &info) != 0) {
    return wire::ErrnoStatus(errno, absl::StrCat("look at ", path));
  }
  if (!S_ISREG(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
    return NotOurs(path);
  }
  if (info.st_size < 0 || static_cast<uint64_t>(info.st_size) > Journal::kMaxBytes) {
    return absl::DataLossError(absl::StrCat(path, " has ", info.st_size, " bytes; at most ",
                                            base::SizeText(Journal::kMaxBytes), " are read"));
  }
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = base::Retry([&] {
      return pread(file.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    });
    if (n < 0) return wire::ErrnoStatus(errno, absl::StrCat("read ", path));
    if (n == 0) {
      bytes.resize(done);
      break;
    }
    done += static_cast<size_t>(n);
  }
  absl::StatusOr<StoredState> stored = ParseJournal(bytes);
  if (stored.ok()) return stored;
  return absl::Status(stored.status().code(), absl::StrCat(path, ": ", stored.status().message()));
}

}  // namespace iris::server
