// The version of this Iris, for every binary's --version, the handshake and GetStatus.
#pragma once

namespace iris::wire {

inline constexpr char kIrisVersion[] = "0.2.0";

}  // namespace iris::wire
