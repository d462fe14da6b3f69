#include "server/events/log.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

namespace iris::server {
namespace {

constexpr size_t kMaxValueBytes = 512;

const char* NameOf(LogLevel level) {
  static constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
  return kNames[static_cast<size_t>(level)];
}

bool IsPlain(std::string_view value) {
  return !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.' ||
           c == ':' || c == '/' || c == '@' || c == '+';
  });
}

// Appends `text` with control characters and bytes beyond ASCII as two hex digits after `prefix`.
void AppendEscaped(std::string* out, std::string_view text, const char* prefix) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      *out += {'\\', c};
    } else if (byte < 0x20 || byte >= 0x7f) {
      absl::StrAppend(out, prefix, absl::Hex(byte, absl::kZeroPad2));
    } else {
      *out += c;
    }
  }
}

std::string JsonString(std::string_view value) {
  std::string out = "\"";
  AppendEscaped(&out, value.substr(0, kMaxValueBytes), "\\u00");
  return out + "\"";
}

std::string Line(LogFormat format, LogLevel level, std::string_view text,
                 std::initializer_list<LogField> fields) {
  const std::string time =
      absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
  const std::string body = FormatLogBody(format, text, fields);
  if (format == LogFormat::kJson) {
    return absl::StrCat("{\"time\":\"", time, "\",\"level\":\"", NameOf(level), "\",", body, "}\n");
  }
  return absl::StrCat("time=", time, " level=", NameOf(level), " ", body, "\n");
}

}  // namespace

std::string EscapeForLog(std::string_view text, size_t max_bytes) {
  std::string out;
  AppendEscaped(&out, text.substr(0, max_bytes), "\\x");
  if (text.size() > max_bytes) out += "...";
  return out;
}

std::string FormatLogBody(LogFormat format, std::string_view text,
                          std::initializer_list<LogField> fields) {
  std::string out;
  if (format == LogFormat::kJson) {
    absl::StrAppend(&out, "\"msg\":", JsonString(text));
    for (const LogField& field : fields) {
      absl::StrAppend(&out, ",", JsonString(field.key), ":",
                      field.is_number ? field.value : JsonString(field.value));
    }
    return out;
  }
  absl::StrAppend(&out, "msg=\"", EscapeForLog(text), "\"");
  for (const LogField& field : fields) {
    absl::StrAppend(&out, " ", absl::string_view(field.key.data(), field.key.size()), "=");
    if (IsPlain(field.value) && field.value.size() <= kMaxValueBytes) {
      absl::StrAppend(&out, field.value);
    } else {
      absl::StrAppend(&out, "\"", EscapeForLog(field.value), "\"");
    }
  }
  return out;
}

struct LineWriter::Shared {
  int fd = -1;
  std::function<std::string(uint64_t)> left_out;

  absl::Mutex mu;
  std::vector<std::string> lines ABSL_GUARDED_BY(mu);
  size_t queued_bytes ABSL_GUARDED_BY(mu) = 0;
  uint64_t n_unsaid ABSL_GUARDED_BY(mu) = 0;  // left out, and not yet reported
  uint64_t n_left_out ABSL_GUARDED_BY(mu) = 0;
  std::thread thread ABSL_GUARDED_BY(mu);
  bool writing ABSL_GUARDED_BY(mu) = false;
  bool ending ABSL_GUARDED_BY(mu) = false;

  void LeaveOut(uint64_t n) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    n_unsaid += n;
    n_left_out += n;
  }
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mu) { return ending || !lines.empty(); }
  bool IsDone() const ABSL_SHARED_LOCKS_REQUIRED(mu) { return lines.empty() && !writing; }

  void Run() ABSL_LOCKS_EXCLUDED(mu);
  // Writes a line; waits while the descriptor takes nothing. Returns false if bytes are missing.
  bool WriteAll(const std::string& line) const;
};

bool LineWriter::Shared::WriteAll(const std::string& line) const {
  for (size_t written = 0; written < line.size();) {
    const ssize_t n = write(fd, line.data() + written, line.size() - written);
    if (n > 0) {
      written += static_cast<size_t>(n);
    } else if (n < 0 && errno == EAGAIN) {
      struct pollfd takes = {fd, POLLOUT, 0};  // another process may have made it non-blocking
      (void)poll(&takes, 1, -1);
    } else if (n == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

void LineWriter::Shared::Run() {
  while (true) {
    std::vector<std::string> taken;
    uint64_t n_after = 0;  // left out after the last of `taken`
    {
      absl::MutexLock lock(&mu);
      mu.Await(absl::Condition(this, &Shared::HasWork));
      if (lines.empty()) return;
      taken.swap(lines);
      queued_bytes = 0;
      n_after = std::exchange(n_unsaid, 0);
      writing = true;
    }
    uint64_t n_failed = 0;
    for (const std::string& line : taken) n_failed += WriteAll(line) ? 0 : 1;
    const bool said = n_after == 0 || WriteAll(left_out(n_after));
    absl::MutexLock lock(&mu);
    LeaveOut(n_failed);
    if (!said) n_unsaid += n_after;
    writing = false;
  }
}

LineWriter::LineWriter(int fd, std::function<std::string(uint64_t)> left_out)
    : shared_(std::make_shared<Shared>()) {
  shared_->fd = fd;
  shared_->left_out = std::move(left_out);
}

LineWriter::~LineWriter() {
  const bool done = Flush(kEndWithin);
  std::thread thread;
  {
    absl::MutexLock lock(&shared_->mu);
    shared_->ending = true;
    thread.swap(shared_->thread);
  }
  if (!thread.joinable()) return;
  done ? thread.join() : thread.detach();
}

void LineWriter::Write(std::string line) {
  absl::MutexLock lock(&shared_->mu);
  if (shared_->queued_bytes + line.size() > kMaxQueuedBytes) return shared_->LeaveOut(1);
  if (!shared_->thread.joinable()) {
    try {
      shared_->thread = std::thread([shared = shared_] { shared->Run(); });
    } catch (const std::system_error&) {
      // Without a thread, writes only if the descriptor takes bytes now. The next line tries again.
      struct pollfd takes = {shared_->fd, POLLOUT, 0};
      if (poll(&takes, 1, 0) != 1 || !shared_->WriteAll(line)) shared_->LeaveOut(1);
      return;
    }
  }
  shared_->queued_bytes += line.size();
  shared_->lines.push_back(std::move(line));
}

bool LineWriter::Flush(absl::Duration within) const {
  absl::MutexLock lock(&shared_->mu);
  return shared_->mu.AwaitWithTimeout(absl::Condition(shared_.get(), &Shared::IsDone), within);
}

uint64_t LineWriter::n_left_out() const {
  absl::MutexLock lock(&shared_->mu);
  return shared_->n_left_out;
}

Logger::Logger(LogLevel level, LogFormat format, int fd)
    : format_(format),
      level_(level),
      writer_(std::make_unique<LineWriter>(fd, [format](uint64_t lines) {
        return Line(format, LogLevel::kWarn, "lines were left out, because the log was not read",
                    {{"lines", lines}});
      })) {}

void Logger::Log(LogLevel level, std::string_view text,
                 std::initializer_list<LogField> fields) const {
  if (WouldLog(level)) writer_->Write(Line(format_, level, text, fields));
}

}  // namespace iris::server
