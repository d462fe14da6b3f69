#include "server/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/line_writer.h"

namespace iris::server {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

bool IsPlain(std::string_view value) {
  return !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.' || c == ':' || c == '/' || c == '@' || c == '+';
  });
}

std::string JsonString(std::string_view value) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : value.substr(0, 512)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte >= 0x7f) {
      absl::StrAppend(&out, "\\u00");
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  out += '"';
  return out;
}

std::unique_ptr<spdlog::pattern_formatter> FormatterOf(LogFormat format) {
  return std::make_unique<spdlog::pattern_formatter>(
      format == LogFormat::kJson ? "{\"time\":\"%Y-%m-%dT%H:%M:%S.%eZ\",\"level\":\"%l\",%v}"
                                 : "time=%Y-%m-%dT%H:%M:%S.%eZ level=%l %v",
      spdlog::pattern_time_type::utc);
}

// The line that stands for lines that nobody read in time.
std::string LeftOutLine(LogFormat format, uint64_t lines) {
  const std::string body = FormatLogBody(
      format, "lines were left out, because the log was not read", {{"lines", lines}});
  spdlog::memory_buf_t line;
  FormatterOf(format)->format(
      spdlog::details::log_msg("irisd", spdlog::level::warn, {body.data(), body.size()}), line);
  return {line.data(), line.size()};
}

// Formats lines, and hands them to a LineWriter.
class QueueSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  QueueSink(LogFormat format, LineWriter* writer)
      : base_sink(FormatterOf(format)), writer_(writer) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    writer_->Write({line.data(), line.size()});
  }
  void flush_() override {}

  LineWriter* const writer_;
};

}  // namespace

std::string EscapeForLog(std::string_view text, size_t max_bytes) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const char c : text.substr(0, max_bytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte >= 0x7f) {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
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
    if (IsPlain(field.value) && field.value.size() <= 512) {
      absl::StrAppend(&out, field.value);
    } else {
      absl::StrAppend(&out, "\"", EscapeForLog(field.value), "\"");
    }
  }
  return out;
}

Logger::Logger(LogLevel level, LogFormat format, int fd)
    : format_(format),
      writer_(std::make_unique<LineWriter>(
          fd, [format](uint64_t lines) { return LeftOutLine(format, lines); })),
      logger_(std::make_shared<spdlog::logger>(
          "irisd", std::make_shared<QueueSink>(format, writer_.get()))) {
  logger_->set_level(ToSpdlog(level));
}

Logger::~Logger() = default;

void Logger::SetLevel(LogLevel level) const { logger_->set_level(ToSpdlog(level)); }

bool Logger::WouldLog(LogLevel level) const { return logger_->should_log(ToSpdlog(level)); }

void Logger::Log(LogLevel level, std::string_view text,
                 std::initializer_list<LogField> fields) const {
  const spdlog::level::level_enum to = ToSpdlog(level);
  if (!logger_->should_log(to)) return;
  // A string view, not a format string: braces in values mean nothing.
  const std::string body = FormatLogBody(format_, text, fields);
  logger_->log(to, spdlog::string_view_t(body.data(), body.size()));
}

void Logger::Plain(std::string_view text) const {
  writer_->Write(absl::StrCat(absl::string_view(text.data(), text.size()), "\n"));
}

bool Logger::Flush(absl::Duration within) const { return writer_->Flush(within); }

uint64_t Logger::lines_left_out() const { return writer_->n_left_out(); }

void Logger::Debug(std::string_view text, std::initializer_list<LogField> fields) const {
  Log(LogLevel::kDebug, text, fields);
}
void Logger::Info(std::string_view text, std::initializer_list<LogField> fields) const {
  Log(LogLevel::kInfo, text, fields);
}
void Logger::Warn(std::string_view text, std::initializer_list<LogField> fields) const {
  Log(LogLevel::kWarn, text, fields);
}
void Logger::Error(std::string_view text, std::initializer_list<LogField> fields) const {
  Log(LogLevel::kError, text, fields);
}

}  // namespace iris::server
