#include "client/internal/options.h"

#include <cstdlib>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/base/launcher.h"

namespace iris::internal {

absl::StatusOr<uint64_t> ParseBytes(absl::string_view text) {
  const std::string lower = absl::AsciiStrToLower(text);
  absl::string_view digits = lower;
  if (!absl::ConsumeSuffix(&digits, "ib")) absl::ConsumeSuffix(&digits, "b");
  int shift = 0;
  if (!digits.empty()) {
    switch (digits.back()) {
      case 'k':
        shift = 10;
        break;
      case 'm':
        shift = 20;
        break;
      case 'g':
        shift = 30;
        break;
      case 't':
        shift = 40;
        break;
      default:
        break;
    }
    if (shift != 0) digits.remove_suffix(1);
  }
  uint64_t value = 0;
  if (digits.empty() || !absl::ascii_isdigit(static_cast<unsigned char>(digits.front())) ||
      !absl::SimpleAtoi(digits, &value) ||
      value > (std::numeric_limits<uint64_t>::max() >> shift)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text.substr(0, 64),
                     "\" is not a number of bytes; write for instance 1073741824, 512M or 2G"));
  }
  return value << shift;
}

absl::StatusOr<ContextOptions> ResolveOptions(
    const ContextOptions& options,
    const std::function<std::optional<std::string>(const char*)>& get) {
  ContextOptions resolved = options;
  const bool all_given = options.rank >= 0 && options.n_ranks >= 0;
  LauncherInfo launcher;
  launcher.job = "default";
  if (all_given) {
    if (const auto job = get("IRIS_JOB"); job.has_value() && !job->empty()) launcher.job = *job;
  } else {
    auto read = ReadLauncher(get);
    if (!read.ok()) return read.status();
    launcher = *std::move(read);
  }
  if (resolved.job.empty()) resolved.job = launcher.job;
  if (resolved.rank < -1 || resolved.n_ranks < -1 || resolved.local_rank < -1) {
    return absl::InvalidArgumentError(
        "options rank, n_ranks and local_rank must not be negative; -1 means from the environment");
  }
  if (resolved.rank == -1) resolved.rank = launcher.rank;
  if (resolved.n_ranks == -1) resolved.n_ranks = launcher.n_ranks;
  if (resolved.local_rank == -1) {
    resolved.local_rank = options.rank >= 0 ? options.rank : launcher.local_rank;
  }
  if (resolved.n_ranks == 0 || resolved.rank >= resolved.n_ranks) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", resolved.rank, " of ", resolved.n_ranks,
                                                   " ranks: ranks go from 0 to n_ranks - 1"));
  }
  if (options.heap_bytes == ContextOptions().heap_bytes) {
    if (const auto text = get("IRIS_HEAP_BYTES"); text.has_value() && !text->empty()) {
      auto bytes = ParseBytes(*text);
      if (!bytes.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("environment variable IRIS_HEAP_BYTES: ", bytes.status().message()));
      }
      resolved.heap_bytes = *bytes;
    }
  }
  if (resolved.max_heap_bytes != 0 && resolved.max_heap_bytes < resolved.heap_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_heap_bytes=", resolved.max_heap_bytes,
                     " is less than heap_bytes=", resolved.heap_bytes));
  }
  return resolved;
}

absl::StatusOr<ContextOptions> ResolveOptions(const ContextOptions& options) {
  return ResolveOptions(options, [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  });
}

}  // namespace iris::internal
