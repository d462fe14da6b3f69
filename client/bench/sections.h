// The sub-commands of iris_bench. All ranks call the same ones. A sub-command adds its tables to
// the report, the same on every rank.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/bench/rank.h"
#include "client/bench/report.h"
#include "iris/ccl.h"
#include "iris/status.h"
#include "iris/stream.h"

namespace iris::bench {

struct BenchOptions {
  uint64_t bytes = 256ull << 20;  // of a transfer of `bandwidth` and `fill`; the largest of
                                  // `sweep`
  uint32_t grid = 0;              // blocks of `bandwidth` and `atomics`; 0: a power of two
  uint32_t block = 512;           // threads of a block
  uint64_t chunk_bytes = 0;       // blocks of get and put take chunks alternately; 0: a part each
  std::vector<uint32_t> grids = {1, 2, 4, 8, 16, 32, 64, 128};  // of `sweep`
  uint32_t samples = 10;
  uint32_t rounds = 1000;       // of pingpong and barrier, in a kernel
  std::string pairs = "first";  // of pingpong: "first" (0 with each), "all", or "0-1,2-3"
  std::vector<uint64_t> heaps = {1ull << 30};  // of `create`
  uint64_t grow_bytes = 64ull << 20;
  uint32_t moe_tokens = 0;  // of each rank; 0: 4,096, or 16 on emulated devices
  uint32_t moe_hidden = 0;  // 0: 7,168, or 256 on emulated devices
  uint32_t moe_experts = 64;
  uint32_t moe_top_k = 8;
  std::string moe_peers_command;  // empty: no peers
  double moe_peers_timeout_seconds = 600;
  uint32_t norm_pairs = 160;    // of `norm`, in a graph
  uint64_t norm_hidden = 8192;  // columns
  std::string svg_path;         // of `sweep`; empty: no plot
};

// Memory that sections share, at the same place of every heap.
struct Areas {
  uint8_t* source = nullptr;  // `bytes` of BenchOptions each
  uint8_t* target = nullptr;
  uint64_t* flags = nullptr;   // kFlags words, zero at first
  uint64_t* words = nullptr;   // kWords words
  uint8_t* payload = nullptr;  // 2 * kPayloadBytes

  static constexpr uint64_t kFlags = kMaxTeamRanks * kMaxTeamRanks;
  static constexpr uint64_t kWords = 4096;
  static constexpr uint64_t kPayloadBytes = 64 << 10;
  static absl::StatusOr<Areas> Allocate(Rank& rank, uint64_t bytes);
  static uint64_t HeapBytes(uint64_t bytes);  // heap that Allocate needs, with room for the rest
};

struct Run {
  Rank& rank;
  const BenchOptions& options;
  const Areas& areas;
  absl::Time end;  // of measurements; the report lists the rest as omitted
  BenchReport* report;

  // Returns false, on all ranks alike, if the time for measurements is over. Collective.
  absl::StatusOr<bool> TimeLeft() const { return rank.Agree(absl::Now() < end); }
};

// Returns the samples of all ranks, one rank after another. Collective.
absl::StatusOr<std::vector<double>> AllSamples(Rank& rank, const std::vector<double>& mine);
// Returns the slowest rank's time for each sample. Collective.
absl::StatusOr<std::vector<double>> SlowestSamples(Rank& rank, const std::vector<double>& mine);

// Calls `put` once to warm up and then for each sample, and returns the nanoseconds that its work
// on the stream took. If `comm` is not null, ranks begin each sample together.
absl::StatusOr<std::vector<double>> TimeOnStream(Rank& rank, uint32_t samples,
                                                 ccl::Communicator* comm, Stream& stream,
                                                 const std::function<Status()>& put);

absl::Status Bandwidth(const Run& run);
absl::Status Sweep(const Run& run);
absl::Status Atomics(const Run& run);
absl::Status PingPong(const Run& run);
absl::Status Barriers(const Run& run);
// These need a Context.
absl::Status Create(const Run& run);
absl::Status Allocate(const Run& run);
absl::Status Grow(const Run& run);
absl::Status Fill(const Run& run);
absl::Status Moe(const Run& run);
absl::Status NormSteps(const Run& run);

// Parses "first", "all" or "0-1,2-3" into pairs of ranks. kInvalidArgument says what is wrong.
absl::StatusOr<std::vector<std::pair<uint32_t, uint32_t>>> ParsePairs(const std::string& text,
                                                                      uint32_t n_ranks);

}  // namespace iris::bench
