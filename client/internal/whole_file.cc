#include "client/internal/whole_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "device/base/bytes.h"

namespace iris::internal {
namespace {

absl::Status Failed(const std::string& path, int error) {
  const std::string text = absl::StrCat(path, ": ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(text) : absl::UnavailableError(text);
}

}  // namespace

absl::Status WriteFile(const std::string& path, absl::string_view text) {
  std::FILE* const out = std::fopen(path.c_str(), "we");
  if (out == nullptr) return Failed(path, errno);
  int error = 0;
  if (std::fwrite(text.data(), 1, text.size(), out) != text.size()) error = errno;
  // What is still in the buffer is written now, and may fail for lack of room.
  if (std::fclose(out) != 0 && error == 0) error = errno;
  return error == 0 ? absl::OkStatus() : Failed(path, error);
}

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t bytes_max) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> in(std::fopen(path.c_str(), "re"),
                                                           &std::fclose);
  if (in == nullptr) return Failed(path, errno);
  std::string text;
  char piece[1 << 16];
  for (;;) {
    errno = 0;
    const size_t n = std::fread(piece, 1, sizeof(piece), in.get());
    if (n == 0) break;
    if (n > bytes_max - text.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": it has more than ", base::SizeText(bytes_max)));
    }
    text.append(piece, n);
  }
  if (std::ferror(in.get()) != 0) return Failed(path, errno);
  return text;
}

}  // namespace iris::internal
