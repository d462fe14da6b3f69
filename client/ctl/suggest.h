// What a user perhaps meant who wrote a name that does not exist. Pure functions; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace iris::ctl {

// The names of `known` that are like `word`, nearest first, at most `max` of them: those that a few
// letters more, fewer, changed or swapped make of it (one of three letters, at most three), and
// those that begin with it or that it is a part of, where it has at least three letters. Case does
// not count.
std::vector<std::string> NearNames(absl::string_view word, const std::vector<std::string>& known,
                                   size_t max);

// "; did you mean 'jobs'?", or nothing. The name is as it is known: who shows the text escapes it.
std::string DidYouMean(absl::string_view word, const std::vector<std::string>& known);

}  // namespace iris::ctl
