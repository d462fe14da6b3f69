// What every benchmark of Iris shares: quantiles of samples, and one way to print them, as a table
// and as JSON.
//
//   iris::bench::Report report("device_bench", argc, argv);  // --json: an object, not a table
//   report.Add("block sync, 1,024 threads", samples_us, "us");
//   report.AddValue("waste", 3.1, "%");
//   return report.Print();
//
// Of samples it prints the median, p10, p90, p99, the least and the number of samples.
//
// Not thread-safe. Header-only.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"

namespace iris::bench {

// The q-quantile (0..1) of samples that need not be sorted; linear between neighbours. Samples must
// not be empty.
inline double Quantile(std::vector<double> samples, double q) {
  std::sort(samples.begin(), samples.end());
  const double position = q * static_cast<double>(samples.size() - 1);
  const size_t below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, samples.size() - 1);
  return samples[below] +
         (samples[above] - samples[below]) * (position - static_cast<double>(below));
}

class Report {
 public:
  Report(std::string name, int argc, char** argv) : name_(std::move(name)) {
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], "--json") == 0) json_ = true;
    }
  }

  // A row of samples in `unit`.
  void Add(const std::string& what, const std::vector<double>& samples, const std::string& unit) {
    if (samples.empty()) return;
    nlohmann::json row;
    row["what"] = what;
    row["unit"] = unit;
    row["p50"] = Quantile(samples, 0.5);
    row["p10"] = Quantile(samples, 0.1);
    row["p90"] = Quantile(samples, 0.9);
    row["p99"] = Quantile(samples, 0.99);
    row["min"] = Quantile(samples, 0.0);
    row["n"] = samples.size();
    rows_.push_back(std::move(row));
  }

  // A row of one figure that is no sample of anything.
  void AddValue(const std::string& what, double value, const std::string& unit) {
    rows_.push_back({{"what", what}, {"unit", unit}, {"value", value}});
  }

  // Prints everything to stdout. Returns 0, for main.
  int Print() const {
    if (json_) {
      nlohmann::json out;
      out["benchmark"] = name_;
      out["machine"] = Machine();
      out["rows"] = rows_;
      std::printf("%s\n", out.dump(2).c_str());
      return 0;
    }
    std::printf("%s on %s\n", name_.c_str(), Machine().c_str());
    std::printf("%-56s %12s %12s %12s %12s %8s  %s\n", "what", "p50", "p10", "p90", "p99", "n",
                "unit");
    for (const nlohmann::json& row : rows_) {
      const std::string what = row["what"], unit = row["unit"];
      if (row.contains("value")) {
        std::printf("%-56s %12.3f %12s %12s %12s %8s  %s\n", what.c_str(),
                    row["value"].get<double>(), "", "", "", "", unit.c_str());
      } else {
        std::printf("%-56s %12.3f %12.3f %12.3f %12.3f %8zu  %s\n", what.c_str(),
                    row["p50"].get<double>(), row["p10"].get<double>(), row["p90"].get<double>(),
                    row["p99"].get<double>(), row["n"].get<size_t>(), unit.c_str());
      }
    }
    return 0;
  }

 private:
  static std::string Machine() {
    std::string model = "unknown processor";
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
      if (line.rfind("model name", 0) == 0) {
        model = line.substr(line.find(':') + 2);
        break;
      }
    }
    return model + ", " + std::to_string(std::thread::hardware_concurrency()) + " cores";
  }

  std::string name_;
  bool json_ = false;
  std::vector<nlohmann::json> rows_;
};

}  // namespace iris::bench
