#include "server/recording/recorder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "device/base/posix.h"
#include "proto/wire/frame.h"
#include "server/recording/codec.h"
#include "server/recording/record.h"

namespace iris::server {
namespace {

// Renames earlier recordings, so that none has the name `file`: the recording of a killed irisd
// must stay when irisd is started again. Files that this user cannot have recorded are not renamed.
absl::Status MakeWay(const std::string& file) {
  struct stat there = {};
  if (lstat(file.c_str(), &there) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return wire::ErrnoStatus(errno, absl::StrCat("look for the recording ", file));
  }
  if (!S_ISREG(there.st_mode) || there.st_uid != geteuid()) {
    return absl::AlreadyExistsError(absl::StrCat(
        "record to ", file, ": what has that name is no file of this user's: name another file"));
  }
  for (int k = Recorder::kEarlierFiles; k > 0; --k) {
    const std::string from = k == 1 ? file : absl::StrCat(file, ".", k - 1);
    const std::string to = absl::StrCat(file, ".", k);
    if (rename(from.c_str(), to.c_str()) != 0 && errno != ENOENT) {
      return wire::ErrnoStatus(errno, absl::StrCat("rename the recording ", from, " to ", to));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Recorder>> Recorder::Create(const std::string& file,
                                                           uint64_t max_bytes) {
  if (absl::Status s = MakeWay(file); !s.ok()) return s;
  wire::UniqueFd fd(
      open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_APPEND, 0600));
  if (!fd.valid()) return wire::ErrnoStatus(errno, absl::StrCat("make the recording ", file));
  return std::unique_ptr<Recorder>(new Recorder(file, max_bytes, std::move(fd)));
}

Recorder::Recorder(std::string file, uint64_t max_bytes, wire::UniqueFd fd)
    : file_(std::move(file)), max_bytes_(max_bytes), fd_(std::move(fd)) {}

void Recorder::Begin(const MachineSetup& setup) {
  recording::Encoder encoder;
  encoder.Put(recording::Header{recording::kMagic, recording::FileLayout(), setup});
  if (!Append(encoder.Take())) ++n_dropped_;
}

bool Recorder::Record(const Input& input, const Time& now, const Effects& effects) {
  if (n_dropped_ == 0) {
    recording::Encoder encoder;
    encoder.Put(recording::Record{now, input, recording::ValueText(effects)});
    if (Append(encoder.Take())) return true;
  }
  return ++n_dropped_ != 1;
}

bool Recorder::Append(const std::string& payload) {
  recording::Encoder length;
  length.Put(static_cast<uint32_t>(payload.size()));
  const std::string record = length.Take() + payload;
  if (record.size() > max_bytes_ - bytes_) return false;
  // Writes once, so that only the last record of a killed process can be incomplete.
  const ssize_t n = base::Retry([&] { return write(fd_.get(), record.data(), record.size()); });
  if (n < 0 || static_cast<size_t>(n) != record.size()) return false;
  bytes_ += record.size();
  return true;
}

}  // namespace iris::server
