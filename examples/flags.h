// What the examples without flags of their own say of the words behind their names. No part of
// Iris.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace example {

// Ends the program with 0 after --help, which prints `usage`, and with 1 if `wrong`, or if there
// are more than `most` words; then `usage` is the error. "[m n k]" is a usage: the program's name
// is written before it.
inline void Usage(int argc, char** argv, bool wrong, int most, const char* usage) {
  const bool help =
      argc > 1 && (std::strcmp(argv[1], "--help") == 0 || std::strcmp(argv[1], "-h") == 0);
  if (!help && !wrong && argc <= 1 + most) return;
  const char* const slash = std::strrchr(argv[0], '/');
  std::fprintf(help ? stdout : stderr, "%s: %s %s\n", help ? "usage" : "error: usage",
               slash == nullptr ? argv[0] : slash + 1, usage);
  std::exit(help ? 0 : 1);
}

// Word number i as a whole number from 1 to `most`; `absent` if there is no such word, and 0 if it
// is anything else.
inline uint32_t Number(int argc, char** argv, int i, uint32_t absent, uint32_t most) {
  if (i >= argc) return absent;
  char* end = nullptr;
  errno = 0;
  const long long number = std::strtoll(argv[i], &end, 10);
  const bool whole = end != argv[i] && *end == '\0' && errno == 0;
  return whole && number >= 1 && number <= most ? static_cast<uint32_t>(number) : 0;
}

}  // namespace example
