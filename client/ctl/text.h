// The texts of iris-ctl: times, names from outside, tables, bytes. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "device/base/bytes.h"

namespace iris::ctl {

using base::HumanBytes;

// Returns texts such as "3s", "4m 5s", "2h 3m", "5d 6h". Negative times count as 0.
std::string HumanDuration(absl::Duration duration);

// Reads a time that a user wrote: a number of seconds ("5", "0.5"), or numbers with units ("500ms",
// "1m30s"). Returns false, with *duration unchanged, for another text and for a negative or endless
// time.
bool ReadDuration(absl::string_view text, absl::Duration* duration);

// Returns a name from outside as base::Printable writes it, and with \\ for a backslash, so that no
// name can control a terminal, break a table or look like another one.
std::string EscapeName(absl::string_view name);

// Rows of cells under headings, columns as wide as their widest cell and two blanks apart. A long
// table can be shown in parts: columns then become wider from part to part, never narrower. Only
// the last column is cut, on a terminal, if it has may_be_cut.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string heading;
    Align align = Align::kLeft;
    bool may_be_cut = false;  // if it is the last one
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // `cells` has one for each column; an empty one becomes "-".
  void Add(std::vector<std::string> cells);
  size_t rows() const { return n_rows_; }
  // Sets the limit of a line's columns on the terminal; 0, the initial value, means no limit.
  void set_max_width(size_t columns) { max_width_ = columns; }
  // Returns the rows that were added since the last Take. The first Take also returns the headings.
  std::string Take();

 private:
  void CutLastColumn();
  std::string Line(const std::vector<std::string>& cells) const;

  std::vector<Column> columns_;
  std::vector<size_t> widths_;
  std::vector<std::vector<std::string>> rows_;  // not shown yet
  size_t n_rows_ = 0;
  size_t max_width_ = 0;
};

// Splits `bytes` into lines of `line_bytes`, whose texts `line_text` makes. Lines that repeat the
// line before are shown as one "*".
std::string DumpLines(
    absl::string_view bytes, size_t line_bytes,
    absl::FunctionRef<std::string(size_t offset, absl::string_view line)> line_text);

// Dumps lines of 16 bytes: offset, hex, ASCII. The offset after the last byte ends the dump.
std::string HexDump(absl::string_view bytes, uint64_t first_offset_bytes);

}  // namespace iris::ctl
