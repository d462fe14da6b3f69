#include "server/port/secret.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <sys/random.h>

#include <cstdint>

namespace iris::port {

std::string Hmac(std::string_view key, std::initializer_list<std::string_view> parts) {
  std::string input;
  for (const std::string_view part : parts) {
    const uint64_t bytes = part.size();
    for (int shift = 0; shift < 64; shift += 8) input.push_back(static_cast<char>(bytes >> shift));
    input.append(part);
  }
  std::string mac(kMacBytes, '\0');
  unsigned int n = 0;
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(input.data()), input.size(),
           reinterpret_cast<unsigned char*>(mac.data()), &n) == nullptr ||
      n != kMacBytes) {
    abort();  // libcrypto has no memory; an empty hash would be a known one
  }
  return mac;
}

bool SameBytes(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
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
