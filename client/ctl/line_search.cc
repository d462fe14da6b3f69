#include "client/ctl/line_search.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/base/absl_status.h"
#include "iris/context.h"

namespace iris::ctl {
namespace {

using base::ToAbsl;

constexpr uint32_t kMaxRanks = 8;
constexpr uint64_t kDurationNs = 1000ull * 1000 * 1000;

absl::Status During(const char* step, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(step, ": ", status.message()));
}

absl::Status RunRank(const std::string& runtime_dir, uint32_t rank, uint32_t n_ranks,
                     internal::LinesSeen* seen) {
  ContextOptions options;
  options.job = absl::StrCat("doctor-lines-", getpid());
  options.rank = static_cast<int>(rank);
  options.n_ranks = static_cast<int>(n_ranks);
  options.local_rank = static_cast<int>(rank);
  options.heap_bytes = 4 << 20;
  options.runtime_dir = runtime_dir;
  options.join_timeout = options.timeout = std::chrono::seconds(10);
  StatusOr<Context> created = Context::Create(options);
  if (!created.ok()) return During("join", ToAbsl(created.status()));
  Context& context = *created;
  const auto bytes = internal::LineSearchBytes(context.backend(), n_ranks);
  if (!bytes.ok()) return During("load the kernels", bytes.status());
  // The first allocation of a fresh heap: all zero.
  const StatusOr<Array<uint8_t>> area = context.Allocate<uint8_t>(*bytes, "lines");
  if (!area.ok()) return During("allocate", ToAbsl(area.status()));
  if (Status status = context.Barrier(); !status.ok()) return During("barrier", ToAbsl(status));
  // The others come to the next barrier, whatever fails here.
  const auto searched = internal::SearchTornLines(context.backend(), context.device_context(),
                                                  context.device_uuid(), area->get(), kDurationNs);
  if (Status status = context.Barrier(); !status.ok()) return During("barrier", ToAbsl(status));
  if (!searched.ok()) return During("search", searched.status());
  *seen = *searched;
  if (Status status = context.Free(*area); !status.ok()) return During("free", ToAbsl(status));
  return During("leave", ToAbsl(context.Leave()));
}

}  // namespace

absl::StatusOr<TornLines> SearchTornLines(const std::string& runtime_dir, uint32_t n_devices) {
  const uint32_t n_ranks = std::min(n_devices, kMaxRanks);
  if (n_ranks < 2) return absl::InvalidArgumentError("there are not two devices");
  std::vector<absl::Status> statuses(n_ranks);
  std::vector<internal::LinesSeen> seen(n_ranks);
  std::vector<std::thread> ranks;
  for (uint32_t r = 0; r < n_ranks; ++r) {
    ranks.emplace_back([&, r] { statuses[r] = RunRank(runtime_dir, r, n_ranks, &seen[r]); });
  }
  for (std::thread& rank : ranks) rank.join();
  // A rank that lost its peer says less than the peer.
  const absl::Status* failed = nullptr;
  for (const absl::Status& status : statuses) {
    if (!status.ok() && (failed == nullptr || absl::IsAborted(*failed))) failed = &status;
  }
  if (failed != nullptr) return *failed;
  TornLines sum;
  sum.n_devices = n_ranks;
  for (const internal::LinesSeen& one : seen) {
    sum.seen.written += one.written;
    sum.seen.read += one.read;
    sum.seen.changed += one.changed;
    sum.seen.torn += one.torn;
  }
  return sum;
}

}  // namespace iris::ctl
