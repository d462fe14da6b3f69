#include "client/ctl/suggest.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace iris::ctl {
namespace {

// Names longer than this are compared by their beginnings: what a comparison costs has a bound.
constexpr size_t kMaxCompared = 256;
constexpr size_t kMaxChanges = 3;

// How many letters must be put in, left out, changed, or swapped with the next one, to make `b` of
// `a` (Damerau-Levenshtein, each place changed once).
size_t Changes(absl::string_view a, absl::string_view b) {
  // Three rows of the table: what is two behind, one behind, and now.
  std::vector<size_t> two(b.size() + 1), one(b.size() + 1), now(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) one[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({one[j] + 1, now[j - 1] + 1, one[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        now[j] = std::min(now[j], two[j - 2] + 1);
      }
    }
    std::swap(two, one);
    std::swap(one, now);
  }
  return one[b.size()];
}

// The less, the nearer. One change is nearer than a name that goes on, two are farther; farthest is
// a name that has the word inside.
constexpr size_t kGoesOn = 3;
constexpr size_t kHasIt = 2 * kMaxChanges + 1;
constexpr size_t kUnlike = kHasIt + 1;

size_t Unlikeness(const std::string& word, const std::string& name) {
  const size_t allowed = std::clamp<size_t>((word.size() + 2) / 3, 1, kMaxChanges);
  const size_t changes = Changes(word, name);
  size_t unlikeness = kUnlike;
  if (changes <= allowed && changes < std::max(word.size(), name.size())) unlikeness = 2 * changes;
  if (word.size() < 3) return unlikeness;
  if (absl::StartsWith(name, word)) return std::min(unlikeness, kGoesOn);
  return absl::StrContains(name, word) ? std::min(unlikeness, kHasIt) : unlikeness;
}

}  // namespace

std::vector<std::string> NearNames(absl::string_view word, const std::vector<std::string>& known,
                                   size_t max) {
  const std::string wanted = absl::AsciiStrToLower(word.substr(0, kMaxCompared));
  std::vector<std::pair<size_t, size_t>> ranked;  // unlikeness, index
  for (size_t i = 0; i < known.size(); ++i) {
    const std::string name =
        absl::AsciiStrToLower(absl::string_view(known[i]).substr(0, kMaxCompared));
    const size_t unlikeness = Unlikeness(wanted, name);
    if (unlikeness < kUnlike) ranked.emplace_back(unlikeness, i);
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::string> near;
  for (const auto& [unlikeness, i] : ranked) {
    if (near.size() == max) break;
    if (std::find(near.begin(), near.end(), known[i]) == near.end()) near.push_back(known[i]);
  }
  return near;
}

std::string DidYouMean(absl::string_view word, const std::vector<std::string>& known) {
  const std::vector<std::string> near = NearNames(word, known, 1);
  return near.empty() ? "" : absl::StrCat("; did you mean '", near[0], "'?");
}

}  // namespace iris::ctl
