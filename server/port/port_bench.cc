// Compares transfers by two irisd-port processes with UCX's own benchmark, ucx_perftest, in one run
// and on one network: two network namespaces, or the loopback without root. Each figure is the
// median of runs that alternate.
//
//   port_bench UCX [runs]     UCX has lib/libucp.so.0 and bin/ucx_perftest.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/port/testing/port_node.h"

namespace iris::port {
namespace {

PortRequest Put(uint32_t to, uint64_t dst, uint64_t bytes) {
  PortRequest request = {};
  request.op = PortOp::kPut;
  request.to = to;
  request.dst = dst;
  request.bytes = bytes;
  request.signal = kNoPortSignal;
  return request;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double Micros(absl::Time since) { return absl::ToDoubleMicroseconds(absl::Now() - since); }

struct Bench {
  Cluster* cluster;
  PortNode& node(int i) { return *cluster->nodes[i]; }

  // MB/s of puts of 1 MiB.
  double Bandwidth() {
    PortRequester ring = node(0).Requester(0);
    ring.Resume();
    constexpr int kPuts = 400;
    const absl::Time start = absl::Now();
    for (int i = 0; i < kPuts; ++i) {
      ring.Post(Put(1, (i % 32) << 20, 1 << 20));
      // As perftest, at most 32 at a time.
      if (ring.posted() > 31) (void)ring.WaitFor(ring.posted() - 31);
    }
    (void)ring.WaitAll();
    return kPuts * 1.048576 * 1e6 / Micros(start);
  }
  // Median time until the result of one request is known.
  double Complete(const PortRequest& request) {
    PortRequester ring = node(0).Requester(0);
    ring.Resume();
    std::vector<double> times;
    for (int i = 0; i < 3000; ++i) {
      const absl::Time start = absl::Now();
      (void)ring.Wait(ring.Post(request));
      times.push_back(Micros(start));
    }
    return Median(times);
  }
  double Put8() { return Complete(Put(1, 64, 8)); }
  double FetchAdd() {
    PortRequest request = {};
    request.op = PortOp::kAtomic;
    request.type = PortType::kUint64;
    request.to = 1;
    request.dst = 128;
    request.bytes = 1;
    return Complete(request);
  }
  // Half of a round trip of puts of 4 KiB with signals.
  double PutSignal() {
    constexpr int kRounds = 3000;
    // On few CPUs it sleeps between looks, as the port does: threads that yield to other programs
    // come back after milliseconds.
    const int spins = std::thread::hardware_concurrency() > 4 ? 1 << 30 : 10;
    const auto wait = [spins](uint8_t* heap, uint64_t value) {
      constexpr struct timespec kNap = {0, 3000};
      for (int i = 0;
           __atomic_load_n(reinterpret_cast<uint64_t*>(heap + 8192), __ATOMIC_ACQUIRE) < value;
           ++i) {
        if (i >= spins) nanosleep(&kNap, nullptr);
      }
    };
    memset(node(0).heap(0) + 8192, 0, 8);
    memset(node(1).heap(1) + 8192, 0, 8);
    const auto send = [](PortRequester* ring, uint32_t to, uint64_t value) {
      PortRequest request = Put(to, 0, 4096);
      request.signal = 8192;
      request.signal_value = value;
      ring->Post(request);
    };
    (void)prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);  // also of the thread
    std::thread other([&] {
      PortRequester ring = node(1).Requester(1);
      ring.Resume();
      for (int i = 1; i <= kRounds; ++i) {
        wait(node(1).heap(1), i);
        send(&ring, 0, i);
      }
    });
    PortRequester ring = node(0).Requester(0);
    ring.Resume();
    std::vector<double> times;
    for (int i = 1; i <= kRounds; ++i) {
      const absl::Time start = absl::Now();
      send(&ring, 1, i);
      wait(node(0).heap(0), i);
      times.push_back(Micros(start) / 2);
    }
    other.join();
    return Median(times);
  }
  // Million puts of 8 bytes a second.
  double Rate() {
    PortRequester ring = node(0).Requester(0);
    ring.Resume();
    constexpr int kPuts = 400'000;
    const absl::Time start = absl::Now();
    for (int i = 0; i < kPuts; ++i) {
      (void)ring.Add(Put(1, 8 * (i % 4096), 8));
      if (i % 128 == 127) ring.Wake();
    }
    ring.Wake();
    (void)ring.WaitAll();
    return kPuts / Micros(start);
  }
};

// Runs ucx_perftest, which polls, or sleeps until data comes, as irisd-port does on few CPUs.
// `field` counts from the end of its last line; 0 is the rate.
double Perftest(const std::string& ucx, const Network* network, const std::string& test, int size,
                int iterations, int field, bool sleeps) {
  const std::string environment =
      absl::StrCat("env LD_LIBRARY_PATH=", ucx, "/lib:", ucx,
                   "/../libucx_cu13.libs UCX_TLS=tcp UCX_TCP_BRIDGE_ENABLE=y UCX_NET_DEVICES=");
  const auto in = [&](int i, const char* name) {
    return network == nullptr
               ? environment + "lo "
               : absl::StrCat("ip netns exec ", network->Space(i), " ", environment, name, " ");
  };
  const std::string at = network == nullptr ? "127.0.0.1" : network->Address(0);
  const std::string options = absl::StrCat(" -p 13377 -t ", test, " -s ", size, " -n ", iterations,
                                           " -w 200 -f", sleeps ? " -E sleep" : "");
  const std::string command = absl::StrCat(
      "(timeout 20 ", in(0, "br0"), ucx, "/bin/ucx_perftest", " -p 13377",
      sleeps ? " -E sleep" : "", " >/dev/null 2>&1 &) ; sleep 0.3; timeout 20 ", in(1, "eth0"), ucx,
      "/bin/ucx_perftest", " ", at, options, " 2>/dev/null | tail -1");
  FILE* const pipe = popen(command.c_str(), "r");
  char line[512] = {};
  (void)!fgets(line, sizeof(line), pipe);
  pclose(pipe);
  std::vector<double> numbers;
  for (char* at_number = strtok(line, " \n"); at_number != nullptr;
       at_number = strtok(nullptr, " \n")) {
    numbers.push_back(atof(at_number));
  }
  return numbers.size() < 8 ? 0 : numbers[numbers.size() - 1 - field];
}

int Main(const std::string& ucx, int runs) {
  std::string why;
  std::unique_ptr<Network> network = Network::Create(2, &why);
  if (network == nullptr) printf("on the loopback: %s\n", why.c_str());
  Cluster cluster = Start(2, 1, std::move(network), [&](int, PortNodeOptions* options) {
    options->heap_bytes = 64 << 20;
    options->setup.set_silence_ms(20'000);
    options->setup.set_ucx(ucx + "/lib/libucp.so.0");
  });
  if (!cluster.ok) return 1;
  for (auto& node : cluster.nodes) {
    const uint32_t rank = &node == &cluster.nodes[0] ? 0 : 1;
    memset(node->heap(rank), 1, node->heap_bytes());
  }
  Bench bench{&cluster};
  struct Other {
    const char* test;
    int size, iterations, field;  // 0: rate; 2: MB/s; 6: latency, p50
  };
  struct Row {
    const char* name;
    std::function<double()> ours;
    std::vector<Other> others;
    bool less_is_better;
    double goal;  // of ours / theirs
    double scale = 1;
  };
  const Row rows[] = {
      {"put 1 MiB, MB/s",
       [&] { return bench.Bandwidth(); },
       {{"ucp_am_bw", 1 << 20, 400, 2}, {"ucp_put_bw", 1 << 20, 400, 2}},
       false,
       0.9,
       1.048576},
      {"put 8 B complete, us",
       [&] { return bench.Put8(); },
       {{"ucp_put_lat", 8, 3000, 6}},
       true,
       1.1},
      {"put 4 KiB and signal seen, us",
       [&] { return bench.PutSignal(); },
       {{"ucp_am_lat", 4096, 3000, 6}},
       true,
       1.3},
      {"fetch-add, us", [&] { return bench.FetchAdd(); }, {{"ucp_fadd", 8, 3000, 6}}, true, 1.25},
      {"puts of 8 B, M/s",
       [&] { return bench.Rate(); },
       {{"ucp_put_bw", 8, 30'000, 0}},
       false,
       5,
       1e-6},
  };
  printf("%-32s %10s   %s\n", "median of runs", "ours", "ucx_perftest (ours / theirs)");
  for (const Row& row : rows) {
    std::vector<double> ours;
    std::vector<std::vector<double>> theirs(2 * row.others.size());
    std::vector<bool> failed(theirs.size());
    for (int i = 0; i < runs; ++i) {
      ours.push_back(row.ours());
      for (size_t o = 0; o < theirs.size(); ++o) {
        // What has failed once is not tried again: some tests hang without polling.
        if (failed[o]) continue;
        const Other& other = row.others[o / 2];
        const double value = Perftest(ucx, cluster.network.get(), other.test, other.size,
                                      other.iterations, other.field, o % 2 == 1);
        failed[o] = value <= 0;
        if (!failed[o]) theirs[o].push_back(value * row.scale);
      }
    }
    printf("%-32s %10.2f  ", row.name, Median(ours));
    for (size_t o = 0; o < theirs.size(); ++o) {
      const double other = Median(theirs[o]);
      printf(" %s%s %.2f (%.2f)", row.others[o / 2].test, o % 2 == 1 ? " asleep" : "", other,
             other > 0 ? Median(ours) / other : 0.0);
    }
    printf("; goal %s %.2f\n", row.less_is_better ? "<=" : ">=", row.goal);
    fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace iris::port

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: port_bench UCX [RUNS]\n");
    return 2;
  }
  return iris::port::Main(argv[1], argc > 2 ? atoi(argv[2]) : 7);
}
