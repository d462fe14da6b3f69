// How long irisd is away: from its death to the first call that is answered, with many jobs of many
// ranks and allocations. Starts a supervised irisd of its own on emulated devices; the ranks are
// threads of this process.
//
//   bazel run -c opt //tests/bench:restart_bench [-- JOBS RANKS ALLOCATIONS RESTARTS]
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "iris/context.h"
#include "tests/bench/report.h"
#include "tests/integration/daemon_harness.h"

namespace iris {
namespace {

constexpr uint64_t kHeapBytes = 2 << 20;

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "restart_bench: %s\n", what.c_str());
  std::_Exit(1);
}

struct Job {
  std::vector<std::optional<Context>> ranks;
};

// Every rank of the job joins, and all of them allocate.
void Make(const std::string& runtime_dir, const std::string& name, int n_ranks, int n_allocations,
          Job* job) {
  job->ranks.resize(static_cast<size_t>(n_ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n_ranks; ++rank) {
    threads.emplace_back([=] {
      ContextOptions options;
      options.job = name;
      options.rank = rank;
      options.n_ranks = n_ranks;
      options.local_rank = rank;
      options.heap_bytes = kHeapBytes;
      options.max_heap_bytes = kHeapBytes;
      options.runtime_dir = runtime_dir;
      StatusOr<Context> context = Context::Create(options);
      if (!context.ok()) Fail(std::string(context.status().message()));
      for (int i = 0; i < n_allocations; ++i) {
        const auto allocated = context->Allocate<char>(64, absl::StrCat("tensor ", i));
        if (!allocated.ok()) Fail(std::string(allocated.status().message()));
      }
      job->ranks[static_cast<size_t>(rank)].emplace(*std::move(context));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

int Main(int argc, char** argv) {
  int counts[] = {100, 8, 100, 20};
  for (int i = 1; i < argc && i <= 4; ++i) counts[i - 1] = std::atoi(argv[i]);
  const auto [n_jobs, n_ranks, n_allocations, n_restarts] = counts;
  testing::DaemonOptions options;
  options.supervised = true;
  options.device_memory = "64GiB";
  options.flags = {"--max-jobs", "100000", "--max-jobs-per-uid", "100000"};
  auto daemon = testing::Daemon::Start(options);
  if (!daemon.ok()) Fail(std::string(daemon.status().message()));
  std::vector<Job> jobs(static_cast<size_t>(n_jobs));
  for (int i = 0; i < n_jobs; ++i) {
    Make((*daemon)->runtime_dir(), absl::StrCat("job ", i), n_ranks, n_allocations,
         &jobs[static_cast<size_t>(i)]);
  }
  std::vector<double> first_ms, last_ms;
  pid_t killed = 0;
  for (int i = 0; i < n_restarts; ++i) {
    pid_t irisd = -1;
    while ((irisd = (*daemon)->Supervised()) <= 0 || irisd == killed) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    absl::SleepFor(absl::Seconds(1));
    const absl::Time start = absl::Now();
    kill(irisd, SIGKILL);
    killed = irisd;
    // A call of one rank, then one of each job.
    for (size_t job = 0; job < jobs.size(); ++job) {
      Context& rank = *jobs[job].ranks[0];
      const auto own = rank.AllocateLocal<char>(64);
      if (!own.ok()) Fail(std::string(own.status().message()));
      if (job == 0) first_ms.push_back(absl::ToDoubleMilliseconds(absl::Now() - start));
      const Status freed = rank.Free(*own);
      if (!freed.ok()) Fail(std::string(freed.message()));
    }
    last_ms.push_back(absl::ToDoubleMilliseconds(absl::Now() - start));
  }
  bench::Report report(absl::StrCat("restart_bench, ", n_jobs, " jobs of ", n_ranks, " ranks, ",
                                    n_allocations, " allocations each"),
                       0, nullptr);
  report.Add("from the kill to the first answer", first_ms, "ms");
  report.Add("from the kill until every job had one", last_ms, "ms");
  const int code = report.Print();
  std::fflush(stdout);
  daemon->reset();
  std::_Exit(code);  // hundreds of contexts need not leave one by one
}

}  // namespace
}  // namespace iris

int main(int argc, char** argv) { return iris::Main(argc, argv); }
