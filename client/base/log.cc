#include "client/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <iterator>
#include <memory>
#include <string>

#include "absl/strings/ascii.h"
#include "client/base/environment.h"
#include "client/base/printable.h"

namespace iris::log {
namespace {

constexpr char kLevelVariable[] = "IRIS_LOG_LEVEL";
constexpr const char* kNames[] = {"debug", "info", "warning", "error", "off"};  // of Level
constexpr uint64_t kNoRank = ~0ull;

// rank in the high half, n_ranks in the low half.
thread_local uint64_t thread_rank = kNoRank;
std::atomic<uint64_t> process_rank{kNoRank};

std::atomic<int>& CurrentLevel() {
  static std::atomic<int> level = [] {
    const std::string name = internal::Environment(kLevelVariable).value_or("");
    return static_cast<int>(ParseLevel(name, Level::kWarning));
  }();
  return level;
}

// Never destroyed: threads may log while the process exits.
spdlog::logger& Logger() {
  static spdlog::logger* const logger = [] {
    auto* made = new spdlog::logger("iris", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("[iris] %v");
    made->set_level(spdlog::level::trace);
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return *logger;
}

}  // namespace

void SetLevel(Level level) { CurrentLevel().store(static_cast<int>(level)); }

Level GetLevel() { return static_cast<Level>(CurrentLevel().load(std::memory_order_relaxed)); }

absl::Status CheckLevel(const internal::Getter& get) {
  const std::string name = get(kLevelVariable).value_or("");
  // A valid name gives the same level with any fallback.
  if (name.empty() || ParseLevel(name, Level::kOff) == ParseLevel(name, Level::kDebug)) {
    return absl::OkStatus();
  }
  return internal::WrongVariable(kLevelVariable, name, "debug, info, warning, error or off");
}

Level ParseLevel(absl::string_view given, Level fallback) {
  const std::string name = absl::AsciiStrToLower(given);
  for (size_t level = 0; level < std::size(kNames); ++level) {
    if (name == kNames[level]) return static_cast<Level>(level);
  }
  return name == "warn" ? Level::kWarning : fallback;
}

void SetRank(uint32_t rank, uint32_t n_ranks) {
  thread_rank = (static_cast<uint64_t>(rank) << 32) | n_ranks;
  uint64_t none = kNoRank;
  process_rank.compare_exchange_strong(none, thread_rank);
}

void Write(Level level, absl::string_view text) {
  if (level < GetLevel() || level >= Level::kOff) return;
  uint64_t rank = thread_rank;
  if (rank == kNoRank) rank = process_rank.load();
  std::string line;
  if (rank != kNoRank) {
    absl::StrAppend(&line, "[", rank >> 32, "/", rank & 0xffffffffu, "] ");
  }
  absl::StrAppend(&line, kNames[static_cast<int>(level)], ": ", base::Printable(text));
  Logger().log(spdlog::level::info, spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace iris::log
