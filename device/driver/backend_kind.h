// BackendKind: which platform a driver speaks for. Names stand on command lines, on the wire and in
// logs; inside the program a kind is compared, never a name.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace iris::driver {

enum class BackendKind : uint8_t { kEmu, kCuda, kHip };

inline constexpr BackendKind kBackendKinds[] = {BackendKind::kEmu, BackendKind::kCuda,
                                                BackendKind::kHip};

constexpr std::string_view NameOf(BackendKind kind) {
  switch (kind) {
    case BackendKind::kEmu:
      return "emu";
    case BackendKind::kCuda:
      return "cuda";
    case BackendKind::kHip:
      return "hip";
  }
  return "unknown";
}

// The kind of that name. Empty: there is none, so whoever sent the name knows more than this
// program.
constexpr std::optional<BackendKind> KindOf(std::string_view name) {
  for (const BackendKind kind : kBackendKinds) {
    if (NameOf(kind) == name) return kind;
  }
  return std::nullopt;
}

}  // namespace iris::driver
