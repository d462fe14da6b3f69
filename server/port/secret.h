// Keyed hashes for the connections between ports: HMAC-SHA256 of libgcrypt, and random bytes.
// Thread-safe.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

namespace iris::port {

inline constexpr size_t kMacBytes = 32;
inline constexpr size_t kNonceBytes = 32;

// Returns the HMAC-SHA256 of the parts, each preceded by its length, so that no two different lists
// of parts have the same input. The result has kMacBytes bytes.
std::string Hmac(std::string_view key, std::initializer_list<std::string_view> parts);

// Compares in a time that depends on the lengths alone.
bool SameBytes(std::string_view a, std::string_view b);

// Returns bytes that nobody can predict.
std::string RandomBytes(size_t n);

}  // namespace iris::port
