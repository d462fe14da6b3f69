#include "client/bench/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace iris::bench {
namespace {

constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};

std::string CellText(const nlohmann::json& cell, int decimals) {
  if (cell.is_null()) return "-";
  if (cell.is_string()) return cell.get<std::string>();
  if (cell.is_number_float()) return absl::StrFormat("%.*f", decimals, cell.get<double>());
  return cell.dump();
}

std::string FactText(const std::string& name, const nlohmann::json& value) {
  return absl::StrCat(name, ": ", CellText(value, 1), "\n");
}

// Returns the first of 1, 2, 5, 10, 20, 50 ... that is not below `value`.
double NiceStep(double value) {
  const double power = std::pow(10.0, std::floor(std::log10(value)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= value) return factor * power;
  }
  return 10 * power;
}

std::string Escape(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

constexpr double kPlotWidth = 560, kPlotHeight = 400;
constexpr double kLeft = 60, kRight = 120, kTop = 40, kBottom = 50;
constexpr const char* kColours[] = {"#1b6ca8", "#d1495b", "#3c8d53", "#edae49", "#6a4c93",
                                    "#00798c", "#8d6a4f", "#5c5c5c", "#b5179e", "#3d348b"};

void AppendPlot(const Plot& plot, double x_offset, std::string* out) {
  uint64_t low = 0, high = 0;
  double bottom = 0, top = 0;
  const auto shown = [&](double value) { return !plot.log_y || value > 0; };
  for (const Plot::Line& line : plot.lines) {
    for (const auto& [bytes, value] : line.points) {
      if (!shown(value)) continue;
      low = low == 0 ? bytes : std::min(low, bytes);
      high = std::max(high, bytes);
      bottom = bottom == 0 ? value : std::min(bottom, value);
      top = std::max(top, value);
    }
  }
  absl::StrAppendFormat(out, "<g transform=\"translate(%.0f,0)\">\n", x_offset);
  absl::StrAppendFormat(out, "<text x=\"%.0f\" y=\"24\" class=\"title\">%s</text>\n", kLeft,
                        Escape(plot.title));
  if (low == 0 || top <= 0) {
    absl::StrAppend(out, "</g>\n");
    return;
  }
  const double width = kPlotWidth - kLeft - kRight, height = kPlotHeight - kTop - kBottom;
  const double log_low = std::log2(static_cast<double>(low));
  const double log_span = std::max(1.0, std::log2(static_cast<double>(high)) - log_low);
  const double step = plot.log_y ? 1 : NiceStep(top / 5);  // of powers of ten
  const double y_min = plot.log_y ? std::floor(std::log10(bottom)) : 0;
  const double y_max =
      plot.log_y ? std::max(y_min + 1, std::ceil(std::log10(top))) : std::ceil(top / step) * step;
  const auto x_of = [&](uint64_t bytes) {
    return kLeft + width * (std::log2(static_cast<double>(bytes)) - log_low) / log_span;
  };
  const auto at_y = [&](double y) { return kTop + height * (y_max - y) / (y_max - y_min); };
  const auto y_of = [&](double value) { return at_y(plot.log_y ? std::log10(value) : value); };

  for (double y = y_min; y <= y_max + step / 1000; y += step) {
    absl::StrAppendFormat(out,
                          "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"grid\"/>\n"
                          "<text x=\"%.1f\" y=\"%.1f\" class=\"right\">%g</text>\n",
                          kLeft, at_y(y), kLeft + width, at_y(y), kLeft - 6, at_y(y) + 4,
                          plot.log_y ? std::pow(10.0, y) : y);
  }
  // One label for each factor of 16, so that labels do not touch.
  for (uint64_t bytes = low; bytes <= high; bytes *= 16) {
    absl::StrAppendFormat(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"middle\">%s</text>\n",
                          x_of(bytes), kTop + height + 18, BytesText(bytes));
  }
  absl::StrAppendFormat(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"middle\">%s</text>\n",
                        kLeft + width / 2, kTop + height + 38, "bytes");
  absl::StrAppendFormat(
      out, "<text transform=\"translate(16,%.1f) rotate(-90)\" class=\"middle\">%s</text>\n",
      kTop + height / 2, Escape(plot.y_title));

  size_t n = 0;
  for (const Plot::Line& line : plot.lines) {
    if (line.points.empty()) continue;
    const char* colour = kColours[n % std::size(kColours)];
    std::string points;
    for (const auto& [bytes, value] : line.points) {
      if (!shown(value)) continue;
      absl::StrAppendFormat(&points, "%s%.1f,%.1f", points.empty() ? "" : " ", x_of(bytes),
                            y_of(value));
    }
    const double legend_y = kTop + 14 + 18 * static_cast<double>(n);
    absl::StrAppendFormat(out,
                          "<polyline points=\"%s\" stroke=\"%s\" class=\"line\"/>\n"
                          "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
                          "class=\"line\"/>\n<text x=\"%.1f\" y=\"%.1f\">%s</text>\n",
                          points, colour, kLeft + width + 12, legend_y - 4, kLeft + width + 30,
                          legend_y - 4, colour, kLeft + width + 36, legend_y, Escape(line.name));
    ++n;
  }
  absl::StrAppend(out, "</g>\n");
}

}  // namespace

Spread SpreadOf(const std::vector<double>& samples) {
  std::vector<double> sorted = samples;
  std::sort(sorted.begin(), sorted.end());
  const size_t middle = sorted.size() / 2;
  const double p50 =
      sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  return {sorted.front(), p50, sorted.back()};
}

std::string BytesText(uint64_t bytes) {
  size_t unit = 0;
  while (bytes != 0 && bytes % 1024 == 0 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return absl::StrCat(bytes, " ", kUnits[unit]);
}

void Table::Add(std::vector<nlohmann::json> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::Text() const {
  std::vector<std::vector<std::string>> lines(1);
  for (const Column& column : columns_) lines[0].push_back(column.name);
  for (const auto& row : rows_) {
    std::vector<std::string> line;
    for (size_t i = 0; i < row.size(); ++i) line.push_back(CellText(row[i], columns_[i].decimals));
    lines.push_back(std::move(line));
  }
  std::vector<size_t> widths(columns_.size());
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text = absl::StrCat("== ", name_, ": ", title_, "\n");
  for (size_t n = 0; n < lines.size(); ++n) {
    for (size_t i = 0; i < lines[n].size(); ++i) {
      // Words to the left, numbers to the right; a heading as its first cell.
      const bool left = !rows_.empty() && rows_[0][i].is_string();
      const std::string fill(widths[i] - lines[n][i].size(), ' ');
      absl::StrAppend(&text, i == 0 ? "" : "  ", left ? "" : fill, lines[n][i], left ? fill : "");
    }
    while (text.back() == ' ') text.pop_back();
    text.push_back('\n');
  }
  for (const std::string& note : notes_) absl::StrAppend(&text, note, "\n");
  return text;
}

nlohmann::json Table::Json() const {
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& row : rows_) {
    nlohmann::json object = nlohmann::json::object();
    for (size_t i = 0; i < row.size(); ++i) object[columns_[i].name] = row[i];
    rows.push_back(std::move(object));
  }
  return {{"title", title_}, {"rows", std::move(rows)}, {"notes", notes_}};
}

void BenchReport::Fact(std::string name, nlohmann::json value) {
  Print(FactText(name, value));
  facts_.emplace_back(std::move(name), std::move(value));
}

void BenchReport::Add(Table table) {
  Print(absl::StrCat("\n", table.Text()));
  tables_.push_back(std::move(table));
}

void BenchReport::PrintTo(std::FILE* file) {
  file_ = file;
  Print(Text());
}

void BenchReport::Print(const std::string& text) const {
  if (file_ == nullptr) return;
  std::fputs(text.c_str(), file_);
  std::fflush(file_);
}

std::string BenchReport::Text() const {
  std::string text = "iris_bench\n";
  for (const auto& [name, value] : facts_) absl::StrAppend(&text, FactText(name, value));
  for (const Table& table : tables_) absl::StrAppend(&text, "\n", table.Text());
  return text;
}

std::string BenchReport::Json() const {
  nlohmann::json out;
  out["benchmark"] = "iris_bench";
  for (const auto& [name, value] : facts_) out[name] = value;
  out["tables"] = nlohmann::json::object();
  for (const Table& table : tables_) out["tables"][table.name()] = table.Json();
  return out.dump(2) + "\n";
}

std::string Svg(const std::vector<Plot>& plots) {
  std::string out = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\">\n"
      "<style>text{font:12px sans-serif;fill:#222}.title{font-weight:bold;font-size:14px}"
      ".right{text-anchor:end}.middle{text-anchor:middle}.grid{stroke:#ddd}"
      ".line{fill:none;stroke-width:2}</style>\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kPlotWidth * static_cast<double>(plots.size()), kPlotHeight);
  for (size_t i = 0; i < plots.size(); ++i) {
    AppendPlot(plots[i], kPlotWidth * static_cast<double>(i), &out);
  }
  return out + "</svg>\n";
}

}  // namespace iris::bench
