// Logger: writes one line per event to stderr, as key=value pairs or as JSON. Thread-safe. Logger
// never waits for a reader of stderr.
//
// Texts are constants; values go into fields. Values may come from clients, so they are escaped: a
// value cannot start another line or another field.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace iris::server {

// Writes lines to a descriptor from a thread of its own, so that logging never waits for a reader.
// Lines that do not fit into the queue are dropped and counted; once the descriptor takes bytes
// again, one line says how many are missing.
//
// Borrows the descriptor, whose flags it does not change: other processes may share it. The thread
// starts with the first line, and inherits the signal mask of that line's thread.
class LineWriter {
 public:
  static constexpr size_t kMaxQueuedBytes = 1 << 20;
  // The destructor waits at most this long for lines to be written. Later lines are lost.
  static constexpr absl::Duration kEndWithin = absl::Seconds(1);

  // `left_out` makes the line that stands for `lines` missing ones. It is called on the writer's
  // thread, which may outlive *this, so it must own what it uses.
  LineWriter(int fd, std::function<std::string(uint64_t lines)> left_out);
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  // Queues a line that ends with '\n'. Never waits for the descriptor.
  void Write(std::string line);

  // Waits until all lines are written. Returns false if that takes longer than `within`.
  bool Flush(absl::Duration within) const;

  uint64_t n_left_out() const;

 private:
  struct Shared;
  // The writer shares this with its thread, which stays in write(2) while nobody reads.
  const std::shared_ptr<Shared> shared_;
};

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
  // Borrows `fd`, which is stderr except in tests.
  Logger(LogLevel level, LogFormat format, int fd = 2);
  // Waits at most LineWriter::kEndWithin for lines to be written.
  ~Logger() = default;
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  void SetLevel(LogLevel level) const { level_.store(level, std::memory_order_relaxed); }
  bool WouldLog(LogLevel level) const { return level >= level_.load(std::memory_order_relaxed); }
  // Waits until all lines are written. Returns false if that takes longer than `within`.
  bool Flush(absl::Duration within) const { return writer_->Flush(within); }
  // Returns the number of lines that were dropped because nobody read them in time.
  uint64_t lines_left_out() const { return writer_->n_left_out(); }
  // Writes a line for people who start irisd by hand: without time, level and fields.
  void Plain(std::string_view text) const { writer_->Write(std::string(text) + "\n"); }
  using Fields = std::initializer_list<LogField>;
  void Log(LogLevel level, std::string_view text, Fields fields) const;
  void Debug(std::string_view text, Fields fields = {}) const {
    Log(LogLevel::kDebug, text, fields);
  }
  void Info(std::string_view text, Fields fields = {}) const { Log(LogLevel::kInfo, text, fields); }
  void Warn(std::string_view text, Fields fields = {}) const { Log(LogLevel::kWarn, text, fields); }
  void Error(std::string_view text, Fields fields = {}) const {
    Log(LogLevel::kError, text, fields);
  }

 private:
  const LogFormat format_;
  mutable std::atomic<LogLevel> level_;
  const std::unique_ptr<LineWriter> writer_;
};

// Returns the part of a line after time and level. Pure; for Logger and its test.
std::string FormatLogBody(LogFormat format, std::string_view text,
                          std::initializer_list<LogField> fields);

// Returns at most `max_bytes` of `text`, with control characters, quotes, backslashes and bytes
// beyond ASCII as \xNN.
std::string EscapeForLog(std::string_view text, size_t max_bytes = 512);

}  // namespace iris::server
