#include "client/base/options.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/base/launcher.h"
#include "client/base/log.h"
#include "device/base/bytes.h"
#include "iris/trace_area.h"

namespace iris::internal {
namespace {

// A trace of 1 MiB, the default for heaps of at least kTracedHeapBytes, or if IRIS_TRACE is set.
constexpr uint64_t kTraceEvents = ((1 << 20) - sizeof(TraceArea)) / sizeof(TraceEvent);
constexpr uint64_t kTracedHeapBytes = 256ull << 20;
constexpr uint64_t kTraceEventsMax = 1 << 24;

absl::Status ResolveTrace(const Getter& get, HostContextOptions* options) {
  options->trace_file = get("IRIS_TRACE").value_or("");
  options->trace_events =
      !options->trace_file.empty() || options->heap_bytes >= kTracedHeapBytes ? kTraceEvents : 0;
  const auto events = ReadNumber(get, "IRIS_TRACE_EVENTS", 0, kTraceEventsMax);
  if (!events.ok()) return events.status();
  options->trace_events = events->value_or(options->trace_events);
  if (options->trace_events == 0 && !options->trace_file.empty()) {
    return absl::InvalidArgumentError(
        "environment variables: IRIS_TRACE names a file for the trace, and IRIS_TRACE_EVENTS=0 "
        "leaves no room for one: set one of the two");
  }
  return absl::OkStatus();
}

// Returns a unique name for a job of one rank without a name, because two such programs must not
// meet in one job.
std::string NameOfLoneJob() {
  uint32_t number = 0;
  (void)!getrandom(&number, sizeof(number), 0);  // the pid alone is not enough in containers
  return absl::StrCat("alone-", getpid(), "-", absl::Hex(number & 0xffffff, absl::kZeroPad6));
}

// Fills in the fields about nodes. `options` has the rank, the number of ranks and the local rank.
absl::Status ResolveNodes(const Getter& get, bool local_rank_is_known,
                          const base::LauncherInfo& launcher, HostContextOptions* options) {
  if (options->n_local < -1) {
    return absl::InvalidArgumentError(
        "option n_local must not be negative; -1 means from the environment");
  }
  if (options->n_local == -1) options->n_local = std::min(launcher.n_local, options->n_ranks);
  if (options->n_local == 0) options->n_local = options->n_ranks;
  if (options->n_local > options->n_ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("n_local=", options->n_local, " is more than ", options->n_ranks, " ranks"));
  }
  if (!options->spans_nodes()) return absl::OkStatus();
  const auto named = base::ReadNamedNode(get);
  if (!named.ok()) return named.status();
  if (!local_rank_is_known && named->local_rank.has_value()) {
    options->local_rank = *named->local_rank;
  } else if (!local_rank_is_known) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", options->rank, " of ", options->n_ranks, ", ", options->n_local,
        " of them on this node: give the local rank, too (option local_rank, or IRIS_LOCAL_RANK)"));
  }
  const auto first = base::FirstLocalRank(
      {options->rank, options->n_ranks, options->local_rank, options->n_local}, get);
  if (!first.ok()) return first.status();
  if (options->rendezvous.empty()) {
    auto rendezvous = base::ReadRendezvous(get);
    if (!rendezvous.ok()) return rendezvous.status();
    options->rendezvous = *std::move(rendezvous);
  } else if (absl::Status status = base::CheckRendezvous("option rendezvous", options->rendezvous);
             !status.ok()) {
    return status;
  }
  const bool given = !options->secret.empty();
  if (!given) options->secret = get("IRIS_JOB_SECRET").value_or("");
  options->asks_pmix = options->rank == launcher.rank && options->n_ranks == launcher.n_ranks &&
                       base::HasPmix(launcher, get) &&
                       (options->rendezvous.empty() || options->secret.empty());
  if (options->secret.empty()) return absl::OkStatus();
  auto secret = base::ReadSecret(given ? "option secret" : "environment variable IRIS_JOB_SECRET",
                                 options->secret);
  if (!secret.ok()) return secret.status();
  options->secret = *std::move(secret);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HostContextOptions> ResolveOptions(const HostContextOptions& options,
                                                  const Getter& get) {
  HostContextOptions resolved = options;
  const bool all_given = options.rank >= 0 && options.n_ranks >= 0;
  base::LauncherInfo launcher;
  if (all_given) {
    launcher.job = base::NamedJob(get).value_or(launcher.job);
    const auto named = base::ReadNamedNode(get);
    if (!named.ok()) return named.status();
    launcher.n_local = named->n_local.value_or(0);
  } else {
    auto read = base::ReadLauncher(get);
    if (!read.ok()) return read.status();
    launcher = *std::move(read);
  }
  if (resolved.rank < -1 || resolved.n_ranks < -1 || resolved.local_rank < -1) {
    return absl::InvalidArgumentError(
        "options rank, n_ranks and local_rank must not be negative; -1 means from the environment");
  }
  if (resolved.rank == -1) resolved.rank = launcher.rank;
  if (resolved.n_ranks == -1) resolved.n_ranks = launcher.n_ranks;
  const bool local_rank_is_known = options.local_rank >= 0 || options.rank == -1;
  if (resolved.local_rank == -1) {
    resolved.local_rank = options.rank >= 0 ? options.rank : launcher.local_rank;
  }
  if (resolved.n_ranks == 0 || resolved.rank >= resolved.n_ranks) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", resolved.rank, " of ", resolved.n_ranks,
                                                   " ranks: ranks go from 0 to n_ranks - 1"));
  }
  if (absl::Status status = ResolveNodes(get, local_rank_is_known, launcher, &resolved);
      !status.ok()) {
    return status;
  }
  if (resolved.job.empty()) {
    const bool alone =
        resolved.n_ranks == 1 && launcher.launcher == "none" && !base::NamedJob(get).has_value();
    resolved.job = alone ? NameOfLoneJob() : launcher.job;
  }
  if (options.heap_bytes == 0) {
    resolved.heap_bytes = 1ull << 30;
    if (const auto text = get("IRIS_HEAP_BYTES"); text.has_value() && !text->empty()) {
      if (!base::ParseBytes(*text, &resolved.heap_bytes)) {
        return WrongVariable("IRIS_HEAP_BYTES", *text, base::kBytesGrammar);
      }
    }
  }
  for (auto* const timeout : {&resolved.join_timeout, &resolved.timeout}) {
    if (*timeout == timeout->zero()) *timeout = std::chrono::seconds(60);
  }
  if (resolved.connect_timeout == resolved.connect_timeout.zero()) {
    resolved.connect_timeout = std::chrono::seconds(2);
  }
  if (absl::Status status = ResolveTrace(get, &resolved); !status.ok()) return status;
  if (absl::Status status = CheckVariables(get); !status.ok()) return status;
  if (absl::Status status = log::CheckLevel(get); !status.ok()) return status;
  if (resolved.max_heap_bytes != 0 && resolved.max_heap_bytes < resolved.heap_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_heap_bytes=", base::SizeText(resolved.max_heap_bytes),
                     " is less than heap_bytes=", base::SizeText(resolved.heap_bytes)));
  }
  return resolved;
}

}  // namespace iris::internal
