// What the doctor found, as text and as JSON.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/doctor.h"
#include "client/ctl/text.h"

namespace iris::ctl {
namespace {

const char* Word(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kWarn:
      return "warn";
    case Verdict::kFail:
      return "fail";
  }
  return "fail";
}

}  // namespace

std::string FindingsText(const std::vector<Finding>& findings) {
  std::string text;
  size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, finding.check.size());
  for (const Finding& finding : findings) {
    absl::StrAppendFormat(&text, "%-4s  %-*s  %s\n", Word(finding.verdict), static_cast<int>(width),
                          finding.check, EscapeName(finding.detail));
    if (!finding.remedy.empty()) {
      absl::StrAppendFormat(&text, "      %-*s  remedy: %s\n", static_cast<int>(width), "",
                            EscapeName(finding.remedy));
    }
  }
  for (const Finding& finding : findings) {
    if (finding.pairs.has_value())
      absl::StrAppend(&text, "\n", PairTableText(*finding.pairs), "\n");
  }
  const auto count = [&](Verdict verdict) {
    return std::count_if(findings.begin(), findings.end(),
                         [&](const Finding& finding) { return finding.verdict == verdict; });
  };
  absl::StrAppend(&text, count(Verdict::kOk), " ok, ", count(Verdict::kWarn), " warnings, ",
                  count(Verdict::kFail), " failed\n");
  return text;
}

nlohmann::ordered_json FindingsJson(const std::vector<Finding>& findings) {
  nlohmann::ordered_json result = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    result.push_back({{"check", finding.check},
                      {"verdict", Word(finding.verdict)},
                      {"detail", finding.detail},
                      {"remedy", finding.remedy}});
    if (!finding.pairs.has_value()) continue;
    auto pairs = nlohmann::ordered_json::array();
    for (const driver::PairResult& pair : finding.pairs->pairs) {
      pairs.push_back({{"from", pair.from},
                       {"to", pair.to},
                       {"ok", pair.ok},
                       {"step", pair.step},
                       {"cause", pair.cause},
                       {"remedy", pair.remedy},
                       {"bytes_per_second", pair.bytes_per_second}});
    }
    result.back()["pairs"] = std::move(pairs);
  }
  return result;
}

bool AnyFailed(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.verdict == Verdict::kFail; });
}

}  // namespace iris::ctl
