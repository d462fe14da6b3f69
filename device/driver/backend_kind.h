// BackendKind is a driver's platform. Its names are for command lines, the wire and logs.
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

// Returns nothing if there is no such kind: the sender of the name is newer than this program.
constexpr std::optional<BackendKind> KindOf(std::string_view name) {
  for (const BackendKind kind : kBackendKinds) {
    if (NameOf(kind) == name) return kind;
  }
  return std::nullopt;
}

}  // namespace iris::driver
