// Suggestions for a name that does not exist, among those that do. Pure functions; thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace iris::base {
namespace suggest {

// Names longer than this are compared by their beginnings, so that a comparison has bounded cost.
inline constexpr size_t kMaxCompared = 256;
inline constexpr size_t kMaxChanges = 3;

// Returns the number of letters to insert, remove, change, or swap with the next one, to turn `a`
// into `b` (Damerau-Levenshtein, each place changed once).
inline size_t Changes(std::string_view a, std::string_view b) {
  // Three rows of the table: the one before the previous, the previous, and the present one.
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

// Values of Unlikeness; less is nearer. One change (2) is nearer than a name that begins with the
// word, two changes (4) are farther; a name that contains the word elsewhere is the farthest.
inline constexpr size_t kGoesOn = 3;
inline constexpr size_t kHasIt = 2 * kMaxChanges + 1;
inline constexpr size_t kUnlike = kHasIt + 1;

inline size_t Unlikeness(const std::string& word, const std::string& name) {
  const size_t allowed = std::clamp<size_t>((word.size() + 2) / 3, 1, kMaxChanges);
  const size_t changes = Changes(word, name);
  size_t unlikeness = kUnlike;
  if (changes <= allowed && changes < std::max(word.size(), name.size())) unlikeness = 2 * changes;
  if (word.size() < 3) return unlikeness;
  const size_t at = name.find(word);
  if (at == 0) return std::min(unlikeness, kGoesOn);
  return at != std::string::npos ? std::min(unlikeness, kHasIt) : unlikeness;
}

inline std::string Lower(std::string_view text) {
  std::string lower(text.substr(0, kMaxCompared));
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return lower;
}

}  // namespace suggest

// Returns at most `max` names of `known` that are like `word`, nearest first: names that differ by
// a few inserted, removed, changed or swapped letters (one for a word of three letters, at most
// three), and, if `word` has at least three letters, names that contain it. Case does not count.
inline std::vector<std::string> NearNames(std::string_view word,
                                          const std::vector<std::string>& known, size_t max) {
  std::vector<std::pair<size_t, size_t>> ranked;  // unlikeness, index
  for (size_t i = 0; i < known.size(); ++i) {
    const size_t unlikeness = suggest::Unlikeness(suggest::Lower(word), suggest::Lower(known[i]));
    if (unlikeness < suggest::kUnlike) ranked.emplace_back(unlikeness, i);
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::string> near;
  for (const auto& [unlikeness, i] : ranked) {
    if (near.size() == max) break;
    if (std::find(near.begin(), near.end(), known[i]) == near.end()) near.push_back(known[i]);
  }
  return near;
}

// Returns "; did you mean 'jobs'?", or nothing. The caller escapes the text.
inline std::string DidYouMean(std::string_view word, const std::vector<std::string>& known,
                              const std::string& quote = "'") {
  const std::vector<std::string> near = NearNames(word, known, 1);
  return near.empty() ? "" : "; did you mean " + quote + near[0] + quote + "?";
}

}  // namespace iris::base
