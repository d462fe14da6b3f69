#include "client/ctl/round_trip.h"

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/base/absl_status.h"
#include "client/internal/local_devices.h"
#include "iris/context.h"

namespace iris::ctl {
namespace {

using base::ToAbsl;

constexpr int kRanks = 2;
constexpr uint64_t kWords = 512;

uint64_t Pattern(uint32_t rank, uint64_t i) { return (uint64_t{rank} + 1) << 32 | i; }

absl::Status During(const char* step, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(step, ": ", status.message()));
}

absl::Status RunRank(const std::string& runtime_dir, int rank) {
  ContextOptions options;
  options.job = absl::StrCat("doctor-", getpid());
  options.rank = rank;
  options.n_ranks = kRanks;
  options.local_rank = rank;
  options.heap_bytes = 4 << 20;
  options.runtime_dir = runtime_dir;
  options.join_timeout = options.timeout = std::chrono::seconds(10);
  StatusOr<Context> created = Context::Create(options);
  if (!created.ok()) return During("join", ToAbsl(created.status()));
  Context& context = *created;

  const StatusOr<Array<uint64_t>> words = context.Allocate<uint64_t>(kWords, "round-trip");
  if (!words.ok()) return During("allocate", ToAbsl(words.status()));
  const uint32_t peer = 1 - context.rank();
  uint64_t* mine = words->get();
  uint64_t* theirs = context.Translate(peer, mine);
  // The device copies: the memory of a GPU is none of the host's.
  const auto driver = internal::ProcessDriver(context.backend());
  if (!driver.ok()) return During("open the device driver", driver.status());
  std::vector<uint64_t> sent(kWords), here(kWords), there(kWords);
  for (uint64_t i = 0; i < kWords; ++i) sent[i] = Pattern(context.rank(), i);
  const uint64_t bytes = kWords * sizeof(uint64_t);
  if (absl::Status status = (*driver)->Copy(theirs, sent.data(), bytes); !status.ok()) {
    return During("write", status);
  }
  if (Status status = context.Barrier(); !status.ok()) return During("barrier", ToAbsl(status));
  for (const auto& [to, from] : {std::pair(&here, mine), std::pair(&there, theirs)}) {
    if (absl::Status status = (*driver)->Copy(to->data(), from, bytes); !status.ok()) {
      return During("read", status);
    }
  }
  for (uint64_t i = 0; i < kWords; ++i) {
    if (here[i] != Pattern(peer, i) || there[i] != sent[i]) {
      return absl::DataLossError(
          absl::StrCat("rank ", rank, " did not find what its peer wrote, at word ", i));
    }
  }
  if (Status status = context.Barrier(); !status.ok()) return During("barrier", ToAbsl(status));
  if (Status status = context.Free(*words); !status.ok()) return During("free", ToAbsl(status));
  return During("leave", ToAbsl(context.Leave()));
}

}  // namespace

absl::Status RoundTrip(const std::string& runtime_dir) {
  absl::Status statuses[kRanks];
  std::thread other([&] { statuses[1] = RunRank(runtime_dir, 1); });
  statuses[0] = RunRank(runtime_dir, 0);
  other.join();
  // A rank that lost its peer says less than the peer.
  if (absl::IsAborted(statuses[0]) && !statuses[1].ok()) return statuses[1];
  return statuses[0].ok() ? statuses[1] : statuses[0];
}

}  // namespace iris::ctl
