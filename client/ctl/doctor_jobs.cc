#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "client/backend/device_status.h"
#include "client/backend/load.h"
#include "client/backend/local_devices.h"
#include "client/base/absl_status.h"
#include "client/base/annotate.h"
#include "client/ctl/doctor.h"
#include "iris/context.h"

namespace iris::ctl {
namespace {

using internal::FromDevice;

constexpr uint32_t kMaxRanks = 8;
constexpr uint64_t kSearchNs = 1000ull * 1000 * 1000;
constexpr uint64_t kWords = 512;

uint64_t Pattern(uint32_t rank, uint64_t i) { return (uint64_t{rank} + 1) << 32 | i; }

absl::Status During(const char* step, const absl::Status& status) {
  return internal::Annotate(status, step);
}
absl::Status During(const char* step, const Status& status) {
  return During(step, base::ToAbsl(status));
}

absl::Status RunRank(ContextOptions options, uint32_t rank,
                     absl::FunctionRef<absl::Status(Context&)> body) {
  options.rank = options.local_rank = static_cast<int>(rank);
  options.heap_bytes = 4 << 20;
  options.join_timeout = options.timeout = std::chrono::seconds(10);
  StatusOr<Context> context = Context::Create(options);
  if (!context.ok()) return During("join", context.status());
  if (absl::Status status = body(*context); !status.ok()) return status;
  return During("leave", context->Leave());
}

// Runs `body` in a thread for each rank of a new job.
absl::Status RunJob(const std::string& name, const std::string& runtime_dir, uint32_t n_ranks,
                    absl::FunctionRef<absl::Status(Context&)> body) {
  ContextOptions options;
  options.job = absl::StrCat(name, "-", getpid());
  options.n_ranks = static_cast<int>(n_ranks);
  options.runtime_dir = runtime_dir;
  std::vector<absl::Status> statuses(n_ranks);
  std::vector<std::thread> ranks;
  for (uint32_t r = 0; r < n_ranks; ++r) {
    ranks.emplace_back([&, r] { statuses[r] = RunRank(options, r, body); });
  }
  for (std::thread& rank : ranks) rank.join();
  // Prefers another rank's error to kAborted, with which a rank reports only that its peer left.
  absl::Status failed;
  for (const absl::Status& status : statuses) {
    if (!status.ok() && (failed.ok() || absl::IsAborted(failed))) failed = status;
  }
  return failed;
}

absl::Status WriteAndRead(Context& context) {
  const StatusOr<Array<uint64_t>> words = context.Allocate<uint64_t>(kWords, "round-trip");
  if (!words.ok()) return During("allocate", words.status());
  const uint32_t peer = 1 - context.rank();
  uint64_t* mine = words->get();
  uint64_t* theirs = context.Translate(peer, mine);
  // The device copies, because the host cannot access a GPU's memory.
  const auto driver = internal::ProcessDriver(context.backend());
  if (!driver.ok()) return During("open the device driver", driver.status());
  std::vector<uint64_t> sent(kWords), here(kWords), there(kWords);
  for (uint64_t i = 0; i < kWords; ++i) sent[i] = Pattern(context.rank(), i);
  const uint64_t bytes = kWords * sizeof(uint64_t);
  if (absl::Status status = (*driver)->Copy(theirs, sent.data(), bytes); !status.ok()) {
    return During("write", status);
  }
  if (Status status = context.Barrier(); !status.ok()) return During("barrier", status);
  for (const auto& [to, from] : {std::pair(&here, mine), std::pair(&there, theirs)}) {
    if (absl::Status status = (*driver)->Copy(to->data(), from, bytes); !status.ok()) {
      return During("read", status);
    }
  }
  for (uint64_t i = 0; i < kWords; ++i) {
    if (here[i] != Pattern(peer, i) || there[i] != sent[i]) {
      return absl::DataLossError(
          absl::StrCat("rank ", context.rank(), " did not find what its peer wrote, at word ", i));
    }
  }
  if (Status status = context.Barrier(); !status.ok()) return During("barrier", status);
  return During("free", context.Free(*words));
}

// Writes to all ranks of the world and reads their writes. `area` is zero on all ranks before any
// of them begins; afterwards its first bytes are the counts.
absl::Status SearchOnStream(const backend::BackendOperations& table, const Context& context,
                            void* area, ccl::LinesSeen* seen) {
  const auto driver = internal::ProcessDriver(context.backend());
  if (!driver.ok()) return driver.status();
  const auto device =
      internal::ChooseDevice(**driver, context.device_uuid(), static_cast<int>(context.rank()));
  if (!device.ok()) return device.status();
  for (const uint32_t index : device->indices) {
    if (absl::Status status = (*driver)->MakeCurrent(index); !status.ok()) return status;
  }
  backend::Stream* stream = nullptr;
  absl::Status status = FromDevice(table.CreateStream(&stream), "make a stream");
  if (!status.ok()) return status;
  auto* const copy = static_cast<ccl::LinesSeen*>(table.MallocHost(sizeof(ccl::LinesSeen)));
  if (copy == nullptr) status = absl::ResourceExhaustedError("no host memory");
  ccl::LineSearch search;
  search.context = context.device_context();
  search.team = search.context.world;
  search.area = area;
  search.duration_ns = kSearchNs;
  if (status.ok()) {
    status = FromDevice(table.SearchTornLines(search, *stream), "search for torn lines");
  }
  if (status.ok()) {
    status = FromDevice(table.CopyAsync(copy, area, sizeof(*copy), *stream), "read the counts");
  }
  // Also after an error: work on the stream uses the memory.
  status.Update(FromDevice(table.Synchronize(*stream), "search for torn lines"));
  if (status.ok()) *seen = *copy;
  table.DestroyStream(stream);
  table.FreeHost(copy);
  return status;
}

absl::Status Search(Context& context, ccl::LinesSeen* seen) {
  const auto table = backend::LoadBackend(context.backend());
  if (!table.ok()) return During("load the kernels", table.status());
  // The first allocation of a fresh heap: all zero.
  const StatusOr<Array<uint8_t>> area =
      context.Allocate<uint8_t>((*table)->LineSearchBytes(context.n_ranks()), "lines");
  if (!area.ok()) return During("allocate", area.status());
  if (Status status = context.Barrier(); !status.ok()) return During("barrier", status);
  // The other ranks call the next barrier, so this rank calls it also after a failure.
  const absl::Status searched = SearchOnStream(**table, context, area->get(), seen);
  if (Status status = context.Barrier(); !status.ok()) return During("barrier", status);
  if (!searched.ok()) return During("search", searched);
  return During("free", context.Free(*area));
}

}  // namespace

absl::Status RoundTrip(const std::string& runtime_dir) {
  return RunJob("doctor", runtime_dir, 2, WriteAndRead);
}

absl::StatusOr<TornLines> SearchTornLines(const std::string& runtime_dir, uint32_t n_devices) {
  const uint32_t n_ranks = std::min(n_devices, kMaxRanks);
  if (n_ranks < 2) return absl::InvalidArgumentError("there are not two devices");
  std::vector<ccl::LinesSeen> seen(n_ranks);
  const absl::Status status =
      RunJob("doctor-lines", runtime_dir, n_ranks,
             [&seen](Context& context) { return Search(context, &seen[context.rank()]); });
  if (!status.ok()) return status;
  TornLines sum;
  sum.n_devices = n_ranks;
  for (const ccl::LinesSeen& one : seen) {
    sum.seen.written += one.written;
    sum.seen.read += one.read;
    sum.seen.changed += one.changed;
    sum.seen.torn += one.torn;
  }
  return sum;
}

}  // namespace iris::ctl
