// KeptName: the name under which a descriptor is kept for the next irisd. Names are short, because
// all of them travel in one string of the environment. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace iris::server {

struct KeptName {
  enum class Kind : char {
    kSegment = 'g',  // memory of the segment `id`
    kPages = 'p',    // the pages of the job `id`: several descriptors, identified by mode and inode
    kSession = 's',  // the socket of the session `id`
    kPort = 'n',  // of the port process of the job `id`: the socket to attach to it, and its pidfd
  };
  static constexpr uint64_t kMaxId = (uint64_t{1} << 54) - 1;

  Kind kind = Kind::kSegment;
  uint64_t id = 0;  // 1 to kMaxId

  // Returns at most 10 characters of [A-Za-z0-9_-].
  std::string Text() const;
  // Parses a result of Text. Returns nothing for other texts.
  static std::optional<KeptName> Parse(absl::string_view text);

  friend bool operator==(const KeptName&, const KeptName&) = default;
};

// Names of the listening sockets. No KeptName has the same text.
inline constexpr char kKeptSessionListener[] = "lsession";
inline constexpr char kKeptAdminListener[] = "ladmin";

}  // namespace iris::server
