#include "server/events/log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/events/line_writer.h"

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

Logger::Logger(LogLevel level, LogFormat format, int fd)
    : format_(format),
      level_(level),
      writer_(std::make_unique<LineWriter>(fd, [format](uint64_t lines) {
        return Line(format, LogLevel::kWarn, "lines were left out, because the log was not read",
                    {{"lines", lines}});
      })) {}

Logger::~Logger() = default;

void Logger::Log(LogLevel level, std::string_view text,
                 std::initializer_list<LogField> fields) const {
  if (WouldLog(level)) writer_->Write(Line(format_, level, text, fields));
}

void Logger::Plain(std::string_view text) const { writer_->Write(std::string(text) + "\n"); }

bool Logger::Flush(absl::Duration within) const { return writer_->Flush(within); }

uint64_t Logger::lines_left_out() const { return writer_->n_left_out(); }

}  // namespace iris::server
