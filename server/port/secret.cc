#include "server/port/secret.h"

#include <gcrypt.h>
#include <stdlib.h>
#include <sys/random.h>

#include <cstdint>
#include <string>

namespace iris::port {

namespace {

// libgcrypt wants this before its first use. Nothing here needs its locked memory.
bool Initialized() {
  if (gcry_control(GCRYCTL_INITIALIZATION_FINISHED_P) != 0) return true;  // by libsystemd
  return gcry_check_version(GCRYPT_VERSION) != nullptr &&
         gcry_control(GCRYCTL_DISABLE_SECMEM, 0) == 0 &&
         gcry_control(GCRYCTL_INITIALIZATION_FINISHED, 0) == 0;
}

}  // namespace

std::string Hmac(std::string_view key, std::initializer_list<std::string_view> parts) {
  std::string input(key);
  for (const std::string_view part : parts) {
    const uint64_t bytes = part.size();
    for (int shift = 0; shift < 64; shift += 8) input.push_back(static_cast<char>(bytes >> shift));
    input.append(part);
  }
  static const bool initialized = Initialized();
  gcry_buffer_t buffers[2] = {};  // the key, then the text
  for (gcry_buffer_t& each : buffers) each.data = input.data();
  buffers[0].len = key.size();
  buffers[1].off = key.size();
  buffers[1].len = input.size() - key.size();
  std::string mac(kMacBytes, '\0');
  if (!initialized ||
      gcry_md_hash_buffers(GCRY_MD_SHA256, GCRY_MD_FLAG_HMAC, mac.data(), buffers, 2) != 0) {
    abort();  // libgcrypt has no memory; an empty hash would be a known one
  }
  return mac;
}

bool SameBytes(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  volatile unsigned char differences =
      0;  // volatile, so that no compiler ends the loop at a difference
  for (size_t i = 0; i < a.size(); ++i)
    differences = differences | static_cast<unsigned char>(a[i] ^ b[i]);
  return differences == 0;
}

std::string RandomBytes(size_t n) {
  std::string bytes(n, '\0');
  size_t done = 0;
  while (done < n) {
    const ssize_t got = getrandom(bytes.data() + done, n - done, 0);
    if (got > 0) done += static_cast<size_t>(got);
  }
  return bytes;
}

}  // namespace iris::port
