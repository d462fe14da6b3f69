// Logger: one line per event on stderr, as key=value pairs or JSON. Thread-safe.
//
// It never waits for whoever reads stderr: see LineWriter.
//
// Texts are constants; what varies goes into fields. Values may come from clients: they are
// escaped, so a line is always one line and a field always one field.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace spdlog {
class logger;
}

namespace iris::server {

class LineWriter;

enum class LogLevel { kDebug, kInfo, kWarn, kError };
enum class LogFormat { kKeyValue, kJson };

struct LogField {
  template <typename T, std::enable_if_t<std::is_integral_v<T>, int> = 0>
  LogField(std::string_view field_key, T number)
      : key(field_key), value(std::to_string(number)), is_number(true) {}
  LogField(std::string_view field_key, absl::string_view text) : key(field_key), value(text) {}
  LogField(std::string_view field_key, const std::string& text) : key(field_key), value(text) {}
  LogField(std::string_view field_key, const char* text) : key(field_key), value(text) {}

  std::string_view key;
  std::string value;
  bool is_number = false;
};

class Logger {
 public:
  // Borrows `fd`, which is stderr but in tests.
  Logger(LogLevel level, LogFormat format, int fd = 2);
  // Waits a moment for the lines to be written: LineWriter::kEndWithin.
  ~Logger();
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  // From now on, by any thread.
  void SetLevel(LogLevel level) const;
  // False: a line of this level goes nowhere.
  bool WouldLog(LogLevel level) const;
  // Waits until all lines are written, at most so long. False: time is up.
  bool Flush(absl::Duration within) const;
  // Lines that nobody read in time, since the start.
  uint64_t lines_left_out() const;
  // Writes a line for people who start irisd by hand: without time, level and fields.
  void Plain(std::string_view text) const;
  void Log(LogLevel level, std::string_view text, std::initializer_list<LogField> fields) const;
  void Debug(std::string_view text, std::initializer_list<LogField> fields = {}) const;
  void Info(std::string_view text, std::initializer_list<LogField> fields = {}) const;
  void Warn(std::string_view text, std::initializer_list<LogField> fields = {}) const;
  void Error(std::string_view text, std::initializer_list<LogField> fields = {}) const;

 private:
  const LogFormat format_;
  const std::unique_ptr<LineWriter> writer_;  // logger_ uses it
  std::shared_ptr<spdlog::logger> logger_;
};

// The part of a line after time and level. Pure; for Logger and its test.
std::string FormatLogBody(LogFormat format, std::string_view text,
                          std::initializer_list<LogField> fields);

// `text` with control characters, quotes, backslashes and bytes beyond ASCII as \xNN; at most
// `max_bytes` of it.
std::string EscapeForLog(std::string_view text, size_t max_bytes = 512);

}  // namespace iris::server
