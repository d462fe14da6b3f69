// Makes text from outside (the environment, irisd, other users) safe to print. Pure functions;
// thread-safe.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace iris::base {

// Returns the bytes of the UTF-8 character with which `text` begins; 0 if it begins with none, with
// a control character, or with one that changes the direction of later text or is invisible.
size_t PrintableCharacterBytes(absl::string_view text);

// Returns the text on one line, with \n, \t or \xNN in place of each byte that belongs to no
// printable character, so that the text cannot control a terminal or begin a new line.
std::string Printable(absl::string_view text);

}  // namespace iris::base
