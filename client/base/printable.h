// Text from outside (the environment, irisd, other users) as it may be printed. Pure functions;
// thread-safe.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace iris::base {

// The bytes of the UTF-8 character that `text` begins with; 0 if it begins with none, with a
// control character, or with one that changes the direction of what follows or shows nothing.
size_t PrintableCharacterBytes(absl::string_view text);

// The text on one line, with \n, \t or \xNN in place of each byte that belongs to no printable
// character: it cannot steer a terminal, nor begin a line of its own.
std::string Printable(absl::string_view text);

}  // namespace iris::base
