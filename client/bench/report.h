// The results of iris_bench: tables as text and as JSON, and a plot as SVG. Host only; not
// thread-safe.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"

namespace iris::bench {

struct Spread {
  double min = 0;
  double p50 = 0;
  double max = 0;
};
Spread SpreadOf(const std::vector<double>& samples);  // not empty

// Returns bytes in the largest unit that divides them: "4 KiB" for 4096.
std::string BytesText(uint64_t bytes);

// Returns a cell with the value if `there`, otherwise an empty cell.
template <typename T>
nlohmann::json CellIf(bool there, const T& value) {
  return there ? nlohmann::json(value) : nlohmann::json();
}

// Named columns, and rows of cells: null, integers, floating point numbers or strings. Numbers are
// printed with the column's decimals; JSON has all their digits, by the column's name.
class Table {
 public:
  struct Column {
    std::string name;
    int decimals = 1;  // of floating point numbers
  };

  Table(std::string name, std::string title, std::vector<Column> columns)
      : name_(std::move(name)), title_(std::move(title)), columns_(std::move(columns)) {}

  // Adds a row, which has as many cells as there are columns.
  void Add(std::vector<nlohmann::json> cells);
  // Adds a sentence below the table.
  void Note(std::string text) { notes_.push_back(std::move(text)); }

  const std::string& name() const { return name_; }
  std::string Text() const;
  nlohmann::json Json() const;  // {"title": ..., "rows": [{column: value}], "notes": [...]}

 private:
  std::string name_, title_;
  std::vector<Column> columns_;
  std::vector<std::vector<nlohmann::json>> rows_;
  std::vector<std::string> notes_;
};

class BenchReport {
 public:
  void Fact(std::string name, nlohmann::json value);
  void Add(Table table);

  // Writes facts and tables to `file` from now on, and flushes it, so that the finished
  // measurements are printed even if the run fails. Borrows the file.
  void PrintTo(std::FILE* file);

  std::string Text() const;
  std::string Json() const;

 private:
  std::vector<std::pair<std::string, nlohmann::json>> facts_;
  std::vector<Table> tables_;
  void Print(const std::string& text) const;

  std::FILE* file_ = nullptr;
};

// Lines over a logarithmic axis of bytes.
struct Plot {
  struct Line {
    std::string name;
    std::vector<std::pair<uint64_t, double>> points;  // ascending; bytes > 0
  };
  std::string title;
  std::string y_title;
  std::vector<Line> lines;
  bool log_y = false;  // from one power of ten to another; values not above 0 are left out
};

// Draws plots next to each other with one legend each. Lines with no points are left out.
std::string Svg(const std::vector<Plot>& plots);

}  // namespace iris::bench
