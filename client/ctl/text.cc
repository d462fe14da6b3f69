#include "client/ctl/text.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/base/printable.h"

namespace iris::ctl {
namespace {

// Returns the columns of a text on a terminal, which are its characters and not its bytes.
size_t Width(absl::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string FirstCharacters(absl::string_view text, size_t n) {
  size_t end = 0;
  for (size_t characters = 0; end < text.size(); ++end) {
    if ((text[end] & 0xc0) != 0x80 && ++characters > n) break;
  }
  return std::string(text.substr(0, end));
}

}  // namespace

std::string HumanDuration(absl::Duration duration) {
  const int64_t seconds = std::max<int64_t>(0, absl::ToInt64Seconds(duration));
  if (seconds < 60) return absl::StrCat(seconds, "s");
  if (seconds < 3600) return absl::StrCat(seconds / 60, "m ", seconds % 60, "s");
  if (seconds < 86400) return absl::StrCat(seconds / 3600, "h ", seconds / 60 % 60, "m");
  return absl::StrCat(seconds / 86400, "d ", seconds / 3600 % 24, "h");
}

bool ReadDuration(absl::string_view text, absl::Duration* duration) {
  absl::Duration read;
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds)) {
    read = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &read)) {
    return false;
  }
  if (!(read >= absl::ZeroDuration()) || read == absl::InfiniteDuration() || seconds != seconds) {
    return false;
  }
  *duration = read;
  return true;
}

std::string EscapeName(absl::string_view name) {
  return base::Printable(absl::StrReplaceAll(name, {{"\\", "\\\\"}}));
}

void Table::Add(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  for (std::string& cell : cells) {
    if (cell.empty()) cell.push_back('-');  // g++ 12 warns at -O2 about = "-"
  }
  rows_.push_back(std::move(cells));
  ++n_rows_;
}

std::string Table::Line(const std::vector<std::string>& cells) const {
  std::string line;
  for (size_t i = 0; i < columns_.size(); ++i) {
    const std::string blanks(widths_[i] - Width(cells[i]), ' ');
    if (i > 0) line += "  ";
    absl::StrAppend(&line, columns_[i].align == Align::kRight ? blanks : "", cells[i],
                    columns_[i].align == Align::kRight ? "" : blanks);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

void Table::CutLastColumn() {
  if (max_width_ == 0 || !columns_.back().may_be_cut) return;
  size_t before = 0;
  for (size_t i = 0; i + 1 < columns_.size(); ++i) before += widths_[i] + 2;
  // A terminal that has no room for the column still shows a few letters.
  const size_t room = std::max(max_width_ > before ? max_width_ - before : 0,
                               std::max<size_t>(8, Width(columns_.back().heading)));
  for (auto& row : rows_) {
    if (Width(row.back()) > room) row.back() = FirstCharacters(row.back(), room - 2) + "..";
  }
  widths_.back() = std::min(widths_.back(), room);
}

std::string Table::Take() {
  if (rows_.empty()) return "";
  const bool first = widths_.empty();
  if (first) {
    for (const Column& column : columns_) widths_.push_back(Width(column.heading));
  }
  for (const auto& row : rows_) {
    for (size_t i = 0; i < columns_.size(); ++i) widths_[i] = std::max(widths_[i], Width(row[i]));
  }
  CutLastColumn();
  std::string result;
  if (first) {
    std::vector<std::string> headings;
    for (const Column& column : columns_) headings.push_back(column.heading);
    result = Line(headings);
  }
  for (const auto& row : rows_) absl::StrAppend(&result, Line(row));
  rows_.clear();
  return result;
}

std::string DumpLines(
    absl::string_view bytes, size_t line_bytes,
    absl::FunctionRef<std::string(size_t offset, absl::string_view line)> line_text) {
  std::string result;
  absl::string_view before;
  bool starred = false;
  for (size_t at = 0; at < bytes.size(); at += line_bytes) {
    const absl::string_view line = bytes.substr(at, line_bytes);
    const bool repeats = at > 0 && line == before;
    if (!repeats) {
      absl::StrAppend(&result, line_text(at, line), "\n");
    } else if (!starred) {
      result += "*\n";
    }
    starred = repeats;
    before = line;
  }
  return result;
}

std::string HexDump(absl::string_view bytes, uint64_t first_offset_bytes) {
  constexpr size_t kLine = 16;
  return DumpLines(bytes, kLine,
                   [&](size_t at, absl::string_view line) {
                     std::string text = absl::StrFormat("%010x ", first_offset_bytes + at);
                     std::string characters;
                     for (size_t i = 0; i < kLine; ++i) {
                       if (i == kLine / 2) text += ' ';
                       if (i >= line.size()) {
                         text += "   ";
                         continue;
                       }
                       const char c = line[i];
                       absl::StrAppendFormat(&text, " %02x", static_cast<unsigned char>(c));
                       characters += c >= 0x20 && c < 0x7f ? c : '.';
                     }
                     return absl::StrCat(text, "  |", characters, "|");
                   }) +
         absl::StrFormat("%010x\n", first_offset_bytes + bytes.size());
}

}  // namespace iris::ctl
