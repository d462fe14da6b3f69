// bystander: an honest user of the same irisd, while tests/hostile attacks it.
//
//   bystander work    one rank of a job (IRIS_RANK, IRIS_N_RANKS, IRIS_JOB): allocates, puts words
//                     into the next rank's heap, meets, compares every word, broadcasts, frees;
//                     again and again, and times each call
//   bystander grpc    the same without memory, by a rank that speaks gRPC, without the client
//                     library
//   bystander join    two ranks in this process join a job of their own and leave it, again and
//                     again; prints how long each join took
//   bystander hoard --allocations N
//                     a job of one rank with so many live allocations; prints "ready"
//
// Each ends in order on SIGTERM: its last line is then "done ...", and its exit code 0. Exit code
// 1: something failed or was wrong; the output says what. Heaps are emulated: the host reads and
// writes them. One thread, but for the second rank of `join`.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "iris/context.h"
#include "tests/integration/grpc_rank.h"

namespace iris::testing {
namespace {

constexpr uint64_t kWords = 8 << 10;  // that a rank puts in a round
constexpr absl::Duration kPause = absl::Milliseconds(5);
constexpr absl::Duration kPatience = absl::Seconds(60);

volatile sig_atomic_t stop_asked = 0;

// What `rank` puts in round `round` at place i.
uint32_t Word(uint32_t rank, uint64_t round, uint64_t i) {
  uint32_t x = static_cast<uint32_t>(round * 2654435761u) ^ static_cast<uint32_t>(i * 40503u) ^
               (rank + 1) * 2246822519u;
  x ^= x >> 15;
  return x * 2654435761u;
}

// A rank of a job that works. Not thread-safe.
class Worker {
 public:
  explicit Worker(Context* context) : context_(*context) {}

  // Until rank 0 has been asked to stop and has told all. OK: every word of every round was right.
  Status Run() {
    for (bool stop = false; !stop; ++rounds_) {
      StatusOr<bool> told = Round(rounds_);
      if (!told.ok()) return told.status();
      stop = *told;
      absl::SleepFor(kPause);
    }
    return OkStatus();
  }

  // What came of it, on one line.
  std::string Report() const {
    std::string text = absl::StrCat("rounds=", rounds_);
    for (const auto& [call, slowest] : slowest_) {
      absl::StrAppend(&text, " ", call, "_us=", absl::ToInt64Microseconds(slowest));
    }
    return text;
  }

 private:
  // True if this was the last one.
  StatusOr<bool> Round(uint64_t round) {
    const uint32_t n = context_.n_ranks(), me = context_.rank();
    absl::Time start = absl::Now();
    StatusOr<Allocation> x = context_.Allocate(
        {.bytes = kWords * sizeof(uint32_t), .name = absl::StrCat("round ", round)});
    if (!x.ok()) return x.status();
    Note("allocate", start);

    uint32_t* const mine = x->As<uint32_t>();
    uint32_t* const theirs = context_.Translate((me + 1) % n, mine);
    for (uint64_t i = 0; i < kWords; ++i) theirs[i] = Word(me, round, i);
    start = absl::Now();
    if (const Status met = context_.Barrier(); !met.ok()) return met;
    Note("barrier", start);
    for (uint64_t i = 0; i < kWords; ++i) {
      if (mine[i] != Word((me + n - 1) % n, round, i)) {
        return Status(StatusCode::kDataLoss,
                      absl::StrCat("word ", i, " of round ", round, " is wrong"));
      }
    }

    // Rank 0's word and whether this is the last round.
    const std::string said = absl::StrCat(Word(0, round, 0), stop_asked ? " stop" : " go on");
    start = absl::Now();
    StatusOr<std::string> heard = context_.Broadcast(me == 0 ? said : "", 0);
    if (!heard.ok()) return heard.status();
    Note("broadcast", start);
    if (std::atoll(heard->c_str()) != Word(0, round, 0)) {
      return Status(StatusCode::kDataLoss,
                    absl::StrCat("broadcast ", round, " is wrong: ", *heard));
    }

    start = absl::Now();
    if (const Status freed = context_.Free(*x); !freed.ok()) return freed;
    Note("free", start);
    if (const Status health = context_.Health(); !health.ok()) return health;
    const bool last = heard->find("stop") != std::string::npos;
    // All have seen that nobody has left before anybody leaves.
    if (last) {
      if (const Status met = context_.Barrier(); !met.ok()) return met;
    }
    return last;
  }

  void Note(const char* call, absl::Time start) {
    absl::Duration& slowest = slowest_[call];
    slowest = std::max(slowest, absl::Now() - start);
  }

  Context& context_;
  uint64_t rounds_ = 0;
  std::map<std::string, absl::Duration> slowest_;
};

// Of either library's Status.
template <typename AnyStatus>
int Fail(const AnyStatus& status) {
  std::printf("failed: %s\n", status.ToString().c_str());
  return 1;
}

int Work() {
  auto context = Context::Create({.heap_bytes = 4 << 20, .max_heap_bytes = 4 << 20});
  if (!context.ok()) return Fail(context.status());
  std::printf("ready\n");
  Worker worker(&*context);
  const Status worked = worker.Run();
  if (!worked.ok()) return Fail(worked);
  std::printf("done %s\n", worker.Report().c_str());
  return 0;
}

// What the environment says, or an empty text.
std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int WorkByGrpc() {
  const int me = std::atoi(Environment("IRIS_RANK").c_str());
  const int n = std::atoi(Environment("IRIS_N_RANKS").c_str());
  auto rank = GrpcRank::Connect(Environment("IRIS_RUNTIME_DIR") + "/session.sock", kPatience);
  if (!rank.ok()) return Fail(rank.status());
  if (const absl::Status joined = (*rank)->Join(Environment("IRIS_JOB"), me, n, 4 << 20);
      !joined.ok()) {
    return Fail(joined);
  }
  std::printf("ready\n");
  std::map<std::string, absl::Duration> slowest;
  const auto operate = [&](const char* call, const iris::v1::OperateRequest& request) {
    const absl::Time start = absl::Now();
    auto result = (*rank)->Operate(request);
    slowest[call] = std::max(slowest[call], absl::Now() - start);
    return result;
  };
  uint64_t round = 0;
  for (bool stop = false; !stop; ++round) {
    iris::v1::OperateRequest allocate;
    allocate.mutable_allocate()->set_bytes(kWords);
    allocate.mutable_allocate()->set_alignment_bytes(1024);
    const auto x = operate("allocate", allocate);
    if (!x.ok()) return Fail(x.status());
    iris::v1::OperateRequest broadcast;
    broadcast.mutable_broadcast()->set_root(0);
    const std::string said = absl::StrCat(Word(0, round, 0), stop_asked ? " stop" : " go on");
    if (me == 0) broadcast.mutable_broadcast()->set_value(said);
    const auto heard = operate("broadcast", broadcast);
    if (!heard.ok()) return Fail(heard.status());
    if (std::atoll(heard->value().c_str()) != Word(0, round, 0)) {
      return Fail(absl::DataLossError(absl::StrCat("broadcast ", round, " is wrong")));
    }
    iris::v1::OperateRequest free;
    free.mutable_free()->set_offset_bytes(x->offset_bytes());
    if (const auto freed = operate("free", free); !freed.ok()) return Fail(freed.status());
    stop = heard->value().find("stop") != std::string::npos;
    absl::SleepFor(kPause);
  }
  if (const absl::Status left = (*rank)->Leave(); !left.ok()) return Fail(left);
  std::string report = absl::StrCat("rounds=", round, " sockets=", (*rank)->replaced());
  for (const auto& [call, took] : slowest) {
    absl::StrAppend(&report, " ", call, "_us=", absl::ToInt64Microseconds(took));
  }
  std::printf("done %s\n", report.c_str());
  return 0;
}

// Rank `rank` of a job of two ranks.
StatusOr<Context> JoinAs(const std::string& job, int rank) {
  return Context::Create({.job = job,
                          .rank = rank,
                          .n_ranks = 2,
                          .local_rank = rank,
                          .heap_bytes = 2 << 20,
                          .max_heap_bytes = 2 << 20});
}

// A failed join is printed and counted, and the next one tried: the test judges.
int Join() {
  uint64_t joins = 0, failures = 0;
  std::printf("ready\n");
  while (!stop_asked) {
    const std::string job = absl::StrCat("join-", joins++);
    const absl::Time start = absl::Now();
    StatusOr<Context> other = Status(StatusCode::kUnknown, "not joined");
    std::thread second([&] { other = JoinAs(job, 1); });
    StatusOr<Context> mine = JoinAs(job, 0);
    second.join();
    const absl::Duration took = absl::Now() - start;
    if (mine.ok() && other.ok()) {
      std::printf("join_us=%lld\n", static_cast<long long>(absl::ToInt64Microseconds(took)));
    } else {
      ++failures;
      std::printf("failed: %s | %s\n", mine.status().ToString().c_str(),
                  other.status().ToString().c_str());
    }
    absl::SleepFor(kPause);
  }
  std::printf("done joins=%llu failures=%llu\n", static_cast<unsigned long long>(joins),
              static_cast<unsigned long long>(failures));
  return 0;
}

int Hoard(uint64_t n) {
  const uint64_t heap_bytes = (n + 4096) * 1024;
  auto context = Context::Create({.job = "hoard",
                                  .rank = 0,
                                  .n_ranks = 1,
                                  .local_rank = 0,
                                  .heap_bytes = heap_bytes,
                                  .max_heap_bytes = heap_bytes});
  if (!context.ok()) return Fail(context.status());
  for (uint64_t i = 0; i < n && !stop_asked; ++i) {
    const auto one = context->Allocate(
        {.bytes = 1024, .name = absl::StrCat("one of very many allocations, number ", i)});
    if (!one.ok()) return Fail(one.status());
  }
  std::printf("ready\n");
  while (!stop_asked) absl::SleepFor(absl::Milliseconds(20));
  std::printf("done\n");
  return 0;
}

int Main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // it does not outlive the test
  struct sigaction action = {};
  action.sa_handler = [](int) { stop_asked = 1; };
  ::sigaction(SIGTERM, &action, nullptr);
  const std::string_view mode = argc > 1 ? argv[1] : "";
  if (mode == "work" && argc == 2) return Work();
  if (mode == "grpc" && argc == 2) return WorkByGrpc();
  if (mode == "join" && argc == 2) return Join();
  if (mode == "hoard" && argc == 4 && std::strcmp(argv[2], "--allocations") == 0) {
    return Hoard(std::strtoull(argv[3], nullptr, 10));
  }
  std::fprintf(stderr, "usage: bystander work | grpc | join | hoard --allocations N\n");
  return 2;
}

}  // namespace
}  // namespace iris::testing

int main(int argc, char** argv) { return iris::testing::Main(argc, argv); }
