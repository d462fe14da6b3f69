// How long irisd is away: from its death to the first call that is answered, with many jobs of many
// ranks and allocations. Starts a supervised irisd of its own on emulated devices; the ranks are
// threads of this process.
//
//   bazel run -c opt //tests/bench:restart_bench [-- JOBS RANKS ALLOCATIONS RESTARTS]
//
// Or what irisd and its parent process hold over many restarts, while ranks allocate, broadcast,
// join and leave: a line of CSV each hundred restarts, for docs/soak_chart.py.
//
//   bazel run -c opt //tests/bench:restart_bench -- soak RESTARTS
#include <signal.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "device/base/descriptors.h"
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

// What the ranks of the soak do until it ends: values of memory and of broadcasts are checked.
void Traffic(Context* rank, std::atomic<uint64_t>* rounds, const std::atomic<bool>* stop) {
  const auto check = [](const Status& status, const char* what) {
    if (!status.ok()) Fail(absl::StrCat(what, ": ", std::string(status.message())));
  };
  // All ranks end after the same round: the first one says which it is.
  for (uint64_t round = 0;; ++round) {
    const auto all = rank->Allocate<uint64_t>(1000);
    check(all.status(), "allocate");
    for (uint64_t i = 0; i < 1000; ++i) all->get()[i] = round + i;
    const auto value = rank->Broadcast(
        rank->rank() == 0 ? absl::StrCat(stop->load() ? "end " : "go on ", round) : "", 0);
    check(value.status(), "broadcast");
    if (!absl::EndsWith(*value, absl::StrCat(" ", round))) Fail("another value was broadcast");
    for (uint64_t i = 0; i < 1000; ++i) {
      if (all->get()[i] != round + i) Fail("memory has changed");
    }
    check(rank->Free(*all), "free");
    if (rank->rank() == 0) *rounds = round;
    if (absl::StartsWith(*value, "end")) return;
  }
}

// Kilobytes, threads and the like, from /proc/PID/status; 0 if it is not there.
uint64_t OfStatus(pid_t pid, const std::string& key) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  uint64_t value = 0;
  for (std::string line; std::getline(status, line);) {
    if (absl::StartsWith(line, key + ":"))
      value = std::strtoull(&line[key.size() + 1], nullptr, 10);
  }
  return value;
}

int Soak(int n_restarts) {
  testing::DaemonOptions options;
  options.supervised = true;
  auto daemon = testing::Daemon::Start(options);
  if (!daemon.ok()) Fail(std::string(daemon.status().message()));
  const std::string& dir = (*daemon)->runtime_dir();
  Job job;
  Make(dir, "soak", 4, 10, &job);
  std::atomic<uint64_t> rounds{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (std::optional<Context>& rank : job.ranks) {
    threads.emplace_back([&rank, &rounds, &stop] { Traffic(&*rank, &rounds, &stop); });
  }
  threads.emplace_back([&dir, &stop] {  // joins and leaves
    for (uint64_t i = 0; !stop; ++i) {
      Job other;
      Make(dir, absl::StrCat("other ", i), 2, 2, &other);
      for (std::optional<Context>& rank : other.ranks) {
        if (const Status left = rank->Leave(); !left.ok()) Fail(std::string(left.message()));
      }
    }
  });
  std::printf(
      "restarts,irisd RSS KiB,irisd descriptors,irisd threads,parent RSS KiB,"
      "parent descriptors,stored KiB\n");
  pid_t irisd = 0;
  for (int i = 1; i <= n_restarts; ++i) {
    const pid_t killed = irisd;
    while ((irisd = (*daemon)->Supervised()) <= 0 || irisd == killed) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    // One in four is killed while it starts, the others between two answers.
    const uint64_t before = rounds;
    absl::SleepFor(absl::Milliseconds(i % 20));
    while (i % 4 != 1 && rounds == before) absl::SleepFor(absl::Milliseconds(1));
    if (i % 100 == 0) {
      absl::SleepFor(absl::Milliseconds(300));
      std::error_code error;
      std::printf("%d,%llu,%d,%llu,%llu,%d,%llu\n", i,
                  static_cast<unsigned long long>(OfStatus(irisd, "VmRSS")),
                  base::CountDescriptors(irisd),
                  static_cast<unsigned long long>(OfStatus(irisd, "Threads")),
                  static_cast<unsigned long long>(OfStatus((*daemon)->pid(), "VmRSS")),
                  (*daemon)->OpenFds(),
                  static_cast<unsigned long long>(
                      std::filesystem::file_size(dir + "/state/journal", error) >> 10));
      std::fflush(stdout);
    }
    kill(irisd, SIGKILL);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  return 0;
}

int Main(int argc, char** argv) {
  if (argc == 3 && argv[1] == std::string("soak")) return Soak(std::atoi(argv[2]));
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
