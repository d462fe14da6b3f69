// An input of state_fuzzer, and the frames of the journal in it. Pure.
//
// An input is a Setting of 4 bytes, and a journal as it is in the file (server/state/journal.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace iris::fuzz {

struct Setting {
  // Bits of `mode`.
  static constexpr uint8_t kSealed = 1;    // checksums, numbers and types are made right first
  static constexpr uint8_t kQuota = 2;     // users have a quota: memory is followed
  static constexpr uint8_t kAllKept = 4;   // nothing was lost over the restart
  static constexpr uint8_t kNoneKept = 8;  // everything was lost

  uint8_t mode = 0;
  uint8_t n_steps = 0;  // of the life that the machine of the journal leads
  uint16_t seed = 0;    // of that life
};
static_assert(sizeof(Setting) == 4);

inline constexpr size_t kHeadBytes = 112;       // of a journal
inline constexpr size_t kRecordHeadBytes = 24;  // of a record

// The records of a journal whose lengths may be wrong: each has what is there.
struct JournalText {
  std::string head;                  // kHeadBytes, or less if that is all there is
  std::vector<std::string> records;  // without their heads
  size_t torn_bytes = 0;             // of the last record, not there
};
JournalText Split(std::string_view journal);

// The journal, with checksums, numbers and types as they have to be.
std::string Join(const JournalText& text);

}  // namespace iris::fuzz
