#include "server/worker/grpc_log.h"

#include <grpc/support/log.h>

#include <atomic>
#include <cstdint>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace iris::server {
namespace {

constexpr int kLinesPerMinute = 3;

struct GrpcLog {
  const Logger* logger;
  const std::string key, name;
};
const GrpcLog* grpc_log = nullptr;

void Log(gpr_log_func_args* line) {
  static std::atomic<int64_t> minute{0};
  static std::atomic<int> lines{0};
  const int64_t now = absl::ToInt64Minutes(absl::Now() - absl::UnixEpoch());
  if (minute.exchange(now, std::memory_order_relaxed) != now) lines.store(0);
  const int n = lines.fetch_add(1, std::memory_order_relaxed);
  if (n > kLinesPerMinute) return;
  if (n == kLinesPerMinute) {
    grpc_log->logger->Warn("gRPC says more; the rest of this minute is left out");
  } else {
    grpc_log->logger->Warn("gRPC says", {{grpc_log->key, grpc_log->name}, {"text", line->message}});
  }
}

}  // namespace

void LogForGrpc(const Logger* logger, std::string_view key, const std::string& name) {
  grpc_log = new GrpcLog{logger, std::string(key), name};
  gpr_set_log_function(Log);
}

}  // namespace iris::server
