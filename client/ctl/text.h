// How iris-ctl writes things down: sizes, times, names from outside, tables, bytes. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace iris::ctl {

// "0 B", "1023 B", "1.00 KiB", "15.9 GiB", "1 TiB": three digits, powers of 1,024; whole numbers
// without a fraction.
std::string HumanBytes(uint64_t bytes);

// "3s", "4m 5s", "2h 3m", "5d 6h". Negative times count as 0.
std::string HumanDuration(absl::Duration duration);

// Names come from outside: control characters and bytes that are not UTF-8 become \n, \t or \xNN,
// and a backslash \\, so that no name can steer a terminal or break a table.
std::string EscapeName(absl::string_view name);

// Rows of cells under headings, columns as wide as their widest cell and two blanks apart.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string heading;
    Align align = Align::kLeft;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // `cells` has one for each column; an empty one is shown as "-".
  void Add(std::vector<std::string> cells);
  size_t rows() const { return rows_.size(); }
  std::string ToString() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Lines of 16 bytes: offset, hex, ASCII. A line that repeats the one before is shown as "*", once.
// The offset after the last byte ends the dump.
std::string HexDump(absl::string_view bytes, uint64_t first_offset_bytes);

}  // namespace iris::ctl
