#include "server/recording/recorder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "device/base/posix.h"
#include "proto/wire/frame.h"
#include "server/recording/codec.h"
#include "server/recording/record.h"
#include "server/recording/value_text.h"

namespace iris::server {

absl::StatusOr<std::unique_ptr<Recorder>> Recorder::Create(const std::string& file,
                                                           uint64_t max_bytes) {
  wire::UniqueFd fd(
      open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_APPEND, 0600));
  if (!fd.valid() && errno == EEXIST) {
    return absl::AlreadyExistsError(
        absl::StrCat("record to ", file, ": the file exists: name another, or remove it"));
  }
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
  // One write: a process that is killed leaves whole records, but for the last one.
  const ssize_t n = base::Retry([&] { return write(fd_.get(), record.data(), record.size()); });
  if (n < 0 || static_cast<size_t>(n) != record.size()) return false;
  bytes_ += record.size();
  return true;
}

}  // namespace iris::server
