// How long the host library takes: a context from Create to its usable window, an allocation, a
// barrier. Starts an irisd of its own; ranks are processes. --supervised: one whose state and
// descriptors are kept for the next irisd.
//
//   bazel run -c opt //tests/bench:context_bench [-- --json] [-- --quick] [-- --supervised]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "iris/context.h"
#include "tests/bench/report.h"
#include "tests/integration/daemon_harness.h"
#include "tests/integration/rank_processes.h"

namespace iris {
namespace {

using testing::RankProcesses;

double Microseconds(std::chrono::nanoseconds duration) {
  return static_cast<double>(duration.count()) / 1e3;
}

double MonotonicMicroseconds() {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

uint64_t Number(const std::string& text) {
  uint64_t value = 0;
  if (!absl::SimpleAtoi(text, &value)) std::abort();
  return value;
}

int Fail(const Status& status) {
  std::cout << "failed " << status << std::endl;
  return 1;
}

void PrintSamples(const std::vector<double>& samples) {
  std::string line = "samples";
  for (const double sample : samples) absl::StrAppend(&line, " ", sample);
  std::cout << line << std::endl;
}

// Ranks.

// Makes a context each time it is told to; prints when it was usable, and where the time went.
int CreateRank(const std::vector<std::string>& args) {
  ContextOptions options;
  options.heap_bytes = Number(args[0]);
  options.prealloc = args[1] == "prealloc";
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line) && line == "go";) {
    auto context = Context::Create(options);
    if (!context.ok()) return Fail(context.status());
    const double end = MonotonicMicroseconds();
    const CreateTimings t = context->create_timings();
    std::printf("usable %.1f %.1f %.1f %.1f %.1f\n", end, Microseconds(t.connect),
                Microseconds(t.join), Microseconds(t.map), Microseconds(t.commit));
    if (!std::getline(std::cin, line)) break;  // all are usable: let go
    *context = Context();
    std::cout << "ready" << std::endl;
  }
  return 0;
}

int AllocateRank(const std::vector<std::string>& args) {
  ContextOptions options;
  options.heap_bytes = 256 << 20;
  auto context = Context::Create(options);
  if (!context.ok()) return Fail(context.status());
  std::vector<double> samples;
  const size_t rounds = Number(args[0]);
  for (size_t i = 0; i < rounds + 20; ++i) {
    if (Status status = context->Barrier(); !status.ok()) return Fail(status);
    const double start = MonotonicMicroseconds();
    auto a = context->Allocate({.bytes = 4096});
    const double end = MonotonicMicroseconds();
    if (!a.ok()) return Fail(a.status());
    if (i >= 20) samples.push_back(end - start);
    if (Status status = context->Free(*a); !status.ok()) return Fail(status);
  }
  PrintSamples(samples);
  return 0;
}

int BarrierRank(const std::vector<std::string>& args) {
  ContextOptions options;
  options.heap_bytes = 4 << 20;
  auto context = Context::Create(options);
  if (!context.ok()) return Fail(context.status());
  std::vector<double> samples;
  const size_t rounds = Number(args[0]);
  for (size_t i = 0; i < rounds + 100; ++i) {
    const double start = MonotonicMicroseconds();
    if (Status status = context->Barrier(); !status.ok()) return Fail(status);
    if (i >= 100) samples.push_back(MonotonicMicroseconds() - start);
  }
  PrintSamples(samples);
  return 0;
}

// The benchmark.

class Bench {
 public:
  Bench(bench::Report* report, bool supervised) : report_(report) {
    testing::DaemonOptions options;
    options.supervised = supervised;
    auto daemon = testing::Daemon::Start(options);
    if (!daemon.ok()) {
      std::cerr << daemon.status() << std::endl;
      std::exit(1);
    }
    daemon_ = *std::move(daemon);
  }

  // From the moment that all ranks are told to go until the last one has its window.
  void Create(const std::string& what, int n_ranks, uint64_t heap_bytes, bool prealloc, int rounds,
              bool fresh_processes) {
    std::vector<double> total, connect, join, map, commit;
    std::unique_ptr<RankProcesses> ranks;
    for (int round = 0; round < rounds; ++round) {
      if (ranks == nullptr || fresh_processes) {
        ranks.reset();
        ranks =
            Start("create", n_ranks, {absl::StrCat(heap_bytes), prealloc ? "prealloc" : "lazy"});
        // Contexts of a process after its first are the point of the second kind.
        if (!fresh_processes) OneCreate(*ranks, nullptr, nullptr, nullptr, nullptr);
      }
      total.push_back(OneCreate(*ranks, &connect, &join, &map, &commit));
    }
    report_->Add(what, total, "ms");
    report_->Add("  of a rank: session", connect, "ms");
    report_->Add("  of a rank: join (waits for all, creates memory)", join, "ms");
    report_->Add("  of a rank: map", map, "ms");
    report_->Add("  of a rank: commit (waits for all)", commit, "ms");
  }

  void Samples(const std::string& what, const std::string& scenario, int n_ranks, int rounds) {
    auto ranks = Start(scenario, n_ranks, {absl::StrCat(rounds)});
    std::vector<double> samples;
    for (int r = 0; r < n_ranks; ++r) {
      const std::string line = ranks->WaitLine(r, "samples");
      for (const absl::string_view word : absl::StrSplit(line, ' ')) {
        double value = 0;
        if (absl::SimpleAtod(word, &value)) samples.push_back(value);
      }
    }
    report_->Add(what, samples, "us");
  }

 private:
  std::unique_ptr<RankProcesses> Start(const std::string& scenario, int n_ranks,
                                       std::vector<std::string> args) {
    RankProcesses::Options options;
    options.runtime_dir = daemon_->runtime_dir();
    options.job = absl::StrCat("bench-", ++n_jobs_);
    options.args = std::move(args);
    return std::make_unique<RankProcesses>(scenario, n_ranks, options);
  }

  double OneCreate(RankProcesses& ranks, std::vector<double>* connect, std::vector<double>* join,
                   std::vector<double>* map, std::vector<double>* commit) {
    for (int r = 0; r < ranks.n_ranks(); ++r) ranks.WaitLine(r, "ready");
    const double start = MonotonicMicroseconds();
    ranks.TellAll("go");
    double end = start;
    for (int r = 0; r < ranks.n_ranks(); ++r) {
      double values[5] = {};
      const std::string line = ranks.WaitLine(r, "usable");
      std::sscanf(line.c_str(), "usable %lf %lf %lf %lf %lf", &values[0], &values[1], &values[2],
                  &values[3], &values[4]);
      end = std::max(end, values[0]);
      std::vector<double>* const parts[] = {connect, join, map, commit};
      for (int i = 0; i < 4; ++i) {
        if (parts[i] != nullptr) parts[i]->push_back(values[i + 1] / 1e3);
      }
    }
    ranks.TellAll("let go");
    return (end - start) / 1e3;
  }

  bench::Report* const report_;
  std::unique_ptr<testing::Daemon> daemon_;
  int n_jobs_ = 0;
};

int Main(int argc, char** argv) {
  bool quick = false, supervised = false;
  for (int i = 1; i < argc; ++i) {
    quick = quick || std::strcmp(argv[i], "--quick") == 0;
    supervised = supervised || std::strcmp(argv[i], "--supervised") == 0;
  }
  bench::Report report("context_bench", argc, argv);
  {
    Bench bench(&report, supervised);
    const int rounds = quick ? 3 : 20;
    bench.Create("create, 8 ranks x 1 GiB, fresh processes", 8, 1ull << 30, false, rounds, true);
    bench.Create("create, 8 ranks x 1 GiB, again", 8, 1ull << 30, false, rounds, false);
    bench.Create("create, 8 ranks x 256 MiB preallocated, fresh processes", 8, 256ull << 20, true,
                 quick ? 1 : 5, true);
    bench.Samples("allocate, one rank alone", "allocate", 1, quick ? 200 : 2000);
    bench.Samples("allocate, 8 ranks together", "allocate", 8, quick ? 50 : 500);
    bench.Samples("host barrier, 2 ranks", "barrier", 2, quick ? 500 : 5000);
    bench.Samples("host barrier, 4 ranks", "barrier", 4, quick ? 500 : 5000);
    bench.Samples("host barrier, 8 ranks", "barrier", 8, quick ? 500 : 5000);
  }
  return report.Print();
}

}  // namespace
}  // namespace iris

int main(int argc, char** argv) {
  const std::map<std::string, iris::testing::Scenario> scenarios = {
      {"create", iris::CreateRank},
      {"allocate", iris::AllocateRank},
      {"barrier", iris::BarrierRank},
  };
  if (auto code = iris::testing::RunScenario(argc, argv, scenarios)) return *code;
  return iris::Main(argc, argv);
}
