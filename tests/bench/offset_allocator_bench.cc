// Random allocate and free on one heap: operations a second, and how much of the heap is lost to
// holes.
//
// Each workload fills a heap to a steady state, then replaces random allocations. Waste is what
// rounding adds to the sizes that were asked for; fragmentation is the share of free bytes outside
// the largest hole when the first allocation fails.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "server/heap/offset_allocator.h"
#include "tests/bench/report.h"

namespace {

using iris::server::OffsetAllocator;

constexpr int kOperations = 1000000;
constexpr int kRounds = 5;

struct Workload {
  std::string name;
  uint64_t capacity_bytes;
  uint64_t size_bytes_max;
  size_t n_live;
  int alignment_log2_max;  // alignments are 1024 to 1 << this
};

struct Live {
  uint64_t offset_bytes;
  uint64_t bytes;
};

struct Round {
  double million_operations_per_s;
  double waste_percent;
};

class Runner {
 public:
  Runner(const Workload& workload, uint64_t seed)
      : workload_(workload), random_(seed), heap_(workload.capacity_bytes) {}

  Round Run() {
    while (live_.size() < workload_.n_live && AllocateOne()) {
    }
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kOperations / 2; ++i) {
      FreeOne();
      AllocateOne();
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    uint64_t asked = 0;
    for (const Live& live : live_) asked += live.bytes;
    const double used = static_cast<double>(heap_.used_bytes());
    return {kOperations / took.count() / 1e6, 100 * (used - static_cast<double>(asked)) / used};
  }

  // Fills the heap until an allocation fails.
  double FragmentationPercent() {
    while (AllocateOne()) {
    }
    const double free = static_cast<double>(heap_.free_bytes());
    return free == 0 ? 0 : 100 * (free - static_cast<double>(heap_.largest_free_bytes())) / free;
  }
  double FreePercentAtFailure() const {
    return 100 * static_cast<double>(heap_.free_bytes()) /
           static_cast<double>(heap_.capacity_bytes());
  }

 private:
  bool AllocateOne() {
    const uint64_t bytes = 1 + random_() % workload_.size_bytes_max;
    const int log2 = 10 + static_cast<int>(random_() % (workload_.alignment_log2_max - 9));
    const auto offset = heap_.Allocate(bytes, uint64_t{1} << log2);
    if (!offset.ok()) return false;
    live_.push_back({*offset, bytes});
    return true;
  }

  void FreeOne() {
    if (live_.empty()) return;
    const size_t victim = random_() % live_.size();
    if (!heap_.Free(live_[victim].offset_bytes).ok()) std::abort();
    live_[victim] = live_.back();
    live_.pop_back();
  }

  Workload workload_;
  std::mt19937_64 random_;
  OffsetAllocator heap_;
  std::vector<Live> live_;
};

}  // namespace

int main(int argc, char** argv) {
  iris::bench::Report report("offset_allocator_bench", argc, argv);
  const std::vector<Workload> workloads = {
      {"1,000 live, to 1 MiB", 1ull << 30, 1ull << 20, 1000, 10},
      {"10,000 live, to 64 KiB", 1ull << 30, 64ull << 10, 10000, 10},
      {"100,000 live, to 64 KiB", 4ull << 30, 64ull << 10, 100000, 10},
      {"10,000 live, to 64 KiB, aligned to 1..64 KiB", 4ull << 30, 64ull << 10, 10000, 16},
  };
  for (const Workload& workload : workloads) {
    std::vector<double> speed, waste, fragmentation, free_at_failure;
    for (int round = 0; round < kRounds; ++round) {
      Runner runner(workload, 1 + round);
      const Round result = runner.Run();
      speed.push_back(result.million_operations_per_s);
      waste.push_back(result.waste_percent);
      fragmentation.push_back(runner.FragmentationPercent());
      free_at_failure.push_back(runner.FreePercentAtFailure());
    }
    report.Add(workload.name + ": speed", speed, "Mop/s");
    report.Add(workload.name + ": waste by rounding", waste, "%");
    report.Add(workload.name + ": free at first failure", free_at_failure, "%");
    report.Add(workload.name + ": of it outside largest hole", fragmentation, "%");
  }
  return report.Print();
}
