// iris::Context against a real irisd, with ranks that are real processes (scenarios at the top) or
// threads of this one.
#include "iris/context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "device/base/descriptors.h"
#include "tests/cc/require.h"
#include "tests/integration/daemon_harness.h"
#include "tests/integration/rank_processes.h"
#include "tests/integration/require.h"

#if defined(IRIS_ASAN)
// In a forked child the threads are gone whose stacks held memory: the leak check would report what
// is none.
static bool in_forked_child = false;
extern "C" int __lsan_is_turned_off();
extern "C" int __lsan_is_turned_off() { return in_forked_child; }
#endif

namespace iris {
namespace {

using namespace std::chrono_literals;
using ::testing::AnyOf;
using testing::Daemon;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RankProcesses;
using testing::Require;
using testing::Text;

constexpr uint64_t kMiB = 1 << 20;

// Scenarios: what a rank does.

ContextOptions Small() {
  ContextOptions options;
  options.heap_bytes = 8 * kMiB;
  options.max_heap_bytes = 64 * kMiB;
  return options;
}

bool Has(const Status& status, StatusCode code, const std::string& text) {
  const bool has =
      status.code() == code && std::string(status.message()).find(text) != std::string::npos;
  if (!has) std::cout << "unexpected status: " << Text(status) << std::endl;
  return has;
}

void WaitForLine(const std::string& wanted) {
  for (std::string line; std::getline(std::cin, line);) {
    if (line == wanted) return;
  }
}

// Writes and reads every peer's memory.
int Basics(const std::vector<std::string>&) {
  Context context = Require(Context::Create(Small()));
  const uint32_t n = context.n_ranks(), me = context.rank();
  REQUIRE(context.peer_pid(me) == getpid());
  REQUIRE(context.heap_bases().size() == n);
  REQUIRE(context.heap_bytes() >= 8 * kMiB);
  REQUIRE(context.stride_bytes() >= 64 * kMiB);
  REQUIRE(context.Health().ok());

  auto x =
      Require(context.Allocate({.bytes = n * sizeof(uint32_t), .name = "x", .dtype = DType::kI32}));
  REQUIRE(x.offset_bytes % 1024 == 0);
  REQUIRE(context.IsSymmetric(x.address, n * 4));
  const auto location = Require(context.Locate(x.address));
  REQUIRE(location.rank == me && location.offset_bytes == x.offset_bytes);

  uint32_t* mine = x.As<uint32_t>();
  for (uint32_t i = 0; i < n; ++i) REQUIRE(mine[i] == 0);  // fresh heaps are zero
  REQUIRE_OK(context.Barrier());
  for (uint32_t to = 0; to < n; ++to) context.Translate(to, mine)[me] = 100 + me;
  REQUIRE_OK(context.Barrier());
  for (uint32_t i = 0; i < n; ++i) REQUIRE(mine[i] == 100 + i);
  REQUIRE_OK(context.Barrier());
  for (uint32_t from = 0; from < n; ++from) {
    REQUIRE(context.Translate(from, mine)[me] == 100 + me);
    REQUIRE(context.Translate(me, context.Translate(from, mine)) != nullptr);
  }
  const DeviceContext device = context.device_context();
  REQUIRE(device.base + me * device.stride_bytes + x.offset_bytes ==
          reinterpret_cast<uint64_t>(mine));
  REQUIRE(device.abort_word != nullptr && *device.abort_word == 0);
  REQUIRE(device.world.size == n && device.world.index == me);
  REQUIRE_OK(context.Barrier());
  std::cout << "same_address=" << context.same_address() << std::endl;
  REQUIRE_OK(context.Free(x));
  REQUIRE_OK(context.Leave());
  REQUIRE(Has(context.Barrier(), StatusCode::kFailedPrecondition, "left the job"));
  return 0;
}

// Puts, gets, signals and atomics of the host.
int HostTransfers(const std::vector<std::string>&) {
  Context context = Require(Context::Create(Small()));
  const uint32_t n = context.n_ranks(), me = context.rank(), next = (me + 1) % n;
  REQUIRE(context.first_local() == 0 && context.n_local() == n && context.Reaches(next));
  REQUIRE(context.local()->ranks.size() == n);
  auto words = Require(context.Allocate<uint64_t>(64, "words"));
  uint64_t* const mine = words.get();
  const uint64_t values[] = {me + 10, me + 20, me + 30, me + 40};
  REQUIRE_OK(context.Put(next, mine, values, 4, {mine + 8, 1, SignalOp::kAdd}));
  while (__atomic_load_n(mine + 8, __ATOMIC_ACQUIRE) == 0) std::this_thread::yield();
  const uint32_t before = (me + n - 1) % n;
  REQUIRE(mine[0] == before + 10 && mine[3] == before + 40);
  REQUIRE_OK(context.Put(next, mine + 16, values, Strided{2, 1, 3, 2}));
  REQUIRE_OK(context.Signal(next, {mine + 9, 5}));
  REQUIRE_OK(context.Quiet());
  REQUIRE_OK(context.Fence());
  REQUIRE_OK(context.Barrier());
  REQUIRE(mine[16] == before + 10 && mine[19] == before + 30 && mine[9] == 5);
  uint64_t back[2] = {};
  REQUIRE_OK(context.Get(next, back, mine + 16, Strided{2, 1, 1, 3}));
  REQUIRE(back[0] == me + 10 && back[1] == me + 30);
  REQUIRE_OK(context.Get(next, static_cast<void*>(back), mine, 8));
  REQUIRE(back[0] == me + 10);
  for (uint32_t i = 0; i < 100; ++i) {
    REQUIRE_OK(context.Atomic(AtomicOp::kAdd, 0, mine + 32, 1));
  }
  REQUIRE_OK(context.Barrier());
  REQUIRE(*context.AtomicLoad(0, mine + 32) == 100 * n);
  auto* const real = reinterpret_cast<float*>(mine + 33);
  REQUIRE(*context.AtomicCompareExchange(next, real, 0.0f, 1.5f) == 0.0f);
  REQUIRE(*context.Atomic(AtomicOp::kMax, next, real, 2.5f) == 1.5f);
  REQUIRE(Has(context.Put(n, mine, values, 1), StatusCode::kInvalidArgument, "no such rank"));
  REQUIRE(Has(context.Put(next, mine, values, 65), StatusCode::kInvalidArgument, "has"));
  REQUIRE(Has(context.Put(next, back, values, 1), StatusCode::kInvalidArgument,
              "not in this rank's heap"));
  REQUIRE_OK(context.Barrier());
  return 0;
}

int FreeAndReuse(const std::vector<std::string>&) {
  Context context = Require(Context::Create(Small()));
  auto a = Require(context.Allocate({.bytes = 4 * kMiB}));
  std::memset(a.address, static_cast<int>(context.rank() + 1), a.bytes);
  REQUIRE_OK(context.Barrier());
  REQUIRE_OK(context.Free(a));
  // The range is free only now that every rank has freed it; the next allocation gets it.
  auto b = Require(context.Allocate({.bytes = 4 * kMiB}));
  REQUIRE(b.offset_bytes == a.offset_bytes);
  REQUIRE_OK(context.Free(b));
  REQUIRE(Has(context.Free(b), StatusCode::kInvalidArgument, "free"));  // a double free
  // Still in step.
  REQUIRE_OK(context.Allocate({.bytes = 1}));
  return 0;
}

int Names(const std::vector<std::string>&) {
  Context context = Require(Context::Create(Small()));
  auto a = Require(context.Allocate({.bytes = 64, .name = "weights"}));
  REQUIRE(Has(context.Allocate({.bytes = 64, .name = "weights"}).status(),
              StatusCode::kAlreadyExists, "weights"));
  REQUIRE_OK(context.Free(a));
  REQUIRE_OK(context.Allocate({.bytes = 64, .name = "weights"}));
  REQUIRE(Has(context.Allocate({.bytes = 64, .name = "a\nb"}).status(),
              StatusCode::kInvalidArgument, ""));
  REQUIRE(Has(context.Allocate({.bytes = 64, .name = std::string(1 << 20, 'n')}).status(),
              StatusCode::kInvalidArgument, "128"));
  REQUIRE(Has(context.Allocate({.bytes = 64, .dtype = static_cast<DType>(200)}).status(),
              StatusCode::kInvalidArgument, "200 is no iris_dtype"));
  REQUIRE(Has(context.Allocate({.bytes = 64, .shape = std::vector<uint64_t>(1 << 20, 1)}).status(),
              StatusCode::kInvalidArgument, "16 are allowed"));
  REQUIRE_OK(context.Allocate({.bytes = 64, .name = "more"}));
  return 0;
}

int Mismatch(const std::vector<std::string>&) {
  Context context = Require(Context::Create(Small()));
  const uint64_t me = context.rank();
  const Status sizes = context.Allocate({.bytes = 1024 + me}).status();
  REQUIRE(Has(sizes, StatusCode::kInvalidArgument, "rank 0"));
  REQUIRE(Has(sizes, StatusCode::kInvalidArgument, "rank 1"));
  REQUIRE(Has(context.Allocate({.bytes = 1024, .name = me == 0 ? "a" : "b"}).status(),
              StatusCode::kInvalidArgument, "differ"));
  const Status kinds =
      me == 0 ? context.Allocate({.bytes = 1024}).status() : context.Broadcast("v", 0).status();
  REQUIRE(Has(kinds, StatusCode::kInvalidArgument, "differ"));
  REQUIRE_OK(context.Allocate({.bytes = 0}));  // legal: a range of its own
  REQUIRE(Has(context.Allocate({.bytes = 8, .alignment_bytes = 3000}).status(),
              StatusCode::kInvalidArgument, "alignment"));
  // Every rank is still in step.
  auto a = Require(context.Allocate({.bytes = 1024}));
  REQUIRE(Require(context.BroadcastValue(a.offset_bytes, 1)) == a.offset_bytes);
  return 0;
}

// Rank 1 comes late to an operation that has timed out, and gets the same outcome.
int LateRank(const std::vector<std::string>&) {
  ContextOptions options = Small();
  options.timeout = 30s;
  // Long enough for the call that both make at the end, on a machine that is busy.
  if (absl::string_view(getenv("IRIS_RANK")) == "0") options.timeout = 2s;
  Context context = Require(Context::Create(options));
  if (context.rank() == 1) WaitForLine("go");
  const Status status = context.Allocate({.bytes = 1024}).status();
  REQUIRE(Has(status, StatusCode::kDeadlineExceeded, "rank 1"));
  std::cout << "timed out" << std::endl;
  WaitForLine("on");
  REQUIRE_OK(context.Barrier(context.world(), 60s));
  REQUIRE_OK(context.Allocate({.bytes = 1024}));
  WaitForLine("end");
  return 0;
}

// Room for the trace is a part of the join: few operations of many ranks are so short.
int TraceRoom(const std::vector<std::string>&) {
  ContextOptions options = Small();
  options.timeout = 1ms;
  for (int i = 0; i < 10; ++i) {
    options.job = "trace" + std::to_string(i);
    REQUIRE_OK(Context::Create(options));
  }
  return 0;
}

int Growth(const std::vector<std::string>&) {
  Context context = Require(Context::Create(Small()));
  const uint32_t n = context.n_ranks(), me = context.rank();
  auto first = Require(context.Allocate({.bytes = 1024}));
  *first.As<uint64_t>() = 4711 + me;
  const std::vector<void*> bases = context.heap_bases();
  const DeviceContext device = context.device_context();

  auto big = context.Allocate({.bytes = 16 * kMiB});  // more than the heap has
  REQUIRE_OK(big);
  REQUIRE(context.heap_bytes() >= big->offset_bytes + big->bytes);
  REQUIRE(context.heap_bases() == bases);
  REQUIRE(context.device_context().base == device.base);
  REQUIRE(*first.As<uint64_t>() == 4711 + me);
  REQUIRE(context.IsSymmetric(big->address, big->bytes));
  uint64_t* last = big->As<uint64_t>() + big->bytes / 8 - 1;
  REQUIRE_OK(context.Barrier());
  *context.Translate((me + 1) % n, last) = me;
  REQUIRE_OK(context.Barrier());
  REQUIRE(*last == (me + n - 1) % n);

  const uint64_t before = context.heap_bytes();
  REQUIRE_OK(context.Grow(2 * kMiB));
  REQUIRE(context.heap_bytes() >= before + 2 * kMiB);
  REQUIRE(Has(context.Grow(1ull << 40), StatusCode::kResourceExhausted, ""));
  REQUIRE(
      Has(context.Allocate({.bytes = 1ull << 40}).status(), StatusCode::kResourceExhausted, ""));
  REQUIRE_OK(context.Free(*big));
  REQUIRE_OK(context.Allocate({.bytes = 16 * kMiB}));
  return 0;
}

// Ranks 0 and 1 allocate as a team more than there is, while the others do something else.
int TeamGrowth(const std::vector<std::string>&) {
  Context context = Require(Context::Create(Small()));
  auto team = Require(context.CreateTeam({0, 1}));
  if (team.member()) {
    auto big = Require(context.Allocate({.bytes = 16 * kMiB, .name = "big"}, team));
    std::memset(big.address, 1, big.bytes);
    REQUIRE(context.heap_bytes() >= 16 * kMiB);
  }
  REQUIRE_OK(context.Barrier());
  // The ranks outside have mapped it too: they were asked before it was published.
  Require(context.Allocate({.bytes = 1024}));
  REQUIRE(context.heap_bytes() >= 16 * kMiB);
  uint8_t* of_zero = static_cast<uint8_t*>(context.heap_bases()[0]);
  of_zero[context.heap_bytes() - 1 - context.rank()] = 1;
  return 0;
}

int Teams(const std::vector<std::string>&) {
  Context context = Require(Context::Create(Small()));
  const uint32_t me = context.rank();
  // Two teams, each rank in one.
  auto even = Require(context.CreateTeam({2, 0}));
  auto odd = Require(context.CreateTeam({1, 3}));
  const Team& own = me % 2 == 0 ? even : odd;
  const Team& other = me % 2 == 0 ? odd : even;
  REQUIRE(own.member() && !other.member());
  if (me == 0) REQUIRE(own.index == 1);
  if (me == 2) REQUIRE(own.index == 0);
  REQUIRE(own.device.size == 2 && own.device.members[own.index] == me);
  for (int i = 0; i < 20; ++i) REQUIRE_OK(context.Barrier(own));
  REQUIRE(Has(context.Barrier(other), StatusCode::kFailedPrecondition, "not a member"));
  REQUIRE(Has(context.Allocate({.bytes = 8}, other).status(), StatusCode::kFailedPrecondition,
              "not a member"));
  auto x = Require(context.Allocate({.bytes = 1024}, own));
  auto said = Require(context.Broadcast(absl::StrCat("from ", me), me % 2, own));
  REQUIRE(said == absl::StrCat("from ", me % 2));
  // Its area is clear, also if it was another team's before.
  const auto* area =
      reinterpret_cast<const uint8_t*>(context.heap_bases()[me]) + own.device.sync_offset_bytes;
  for (uint64_t i = 0; i < kSyncAreaBytes; ++i) REQUIRE(area[i] == 0);
  REQUIRE_OK(context.Barrier());

  // A team of a team, and of one.
  if (me % 2 == 0) {
    auto alone = Require(context.CreateTeam({2}, own));
    REQUIRE(alone.member() == (me == 2));
    if (alone.member()) REQUIRE_OK(context.Barrier(alone));
    REQUIRE(Has(context.CreateTeam({1}, own).status(), StatusCode::kInvalidArgument, "rank 1"));
  }
  REQUIRE(Has(context.CreateTeam({}).status(), StatusCode::kInvalidArgument, ""));
  REQUIRE(Has(context.CreateTeam({0, 0}).status(), StatusCode::kInvalidArgument, "twice"));
  REQUIRE(Has(context.CreateTeam({0, 9}).status(), StatusCode::kInvalidArgument, "rank 9"));
  REQUIRE(Has(context.CreateTeam(std::vector<uint32_t>(1000, 1)).status(),
              StatusCode::kInvalidArgument, ""));

  // A refused DestroyTeam is an outcome like any other: the team goes on.
  REQUIRE(Has(context.DestroyTeam(own), StatusCode::kFailedPrecondition, "live allocations"));
  REQUIRE_OK(context.Barrier(own));
  REQUIRE_OK(context.Free(x));
  REQUIRE_OK(context.DestroyTeam(own));
  REQUIRE(Has(context.Barrier(own), StatusCode::kInvalidArgument, "destroyed"));
  REQUIRE(Has(context.DestroyTeam(context.world()), StatusCode::kInvalidArgument, "world"));
  // Slots are used again; old words in them must not be taken for arrivals.
  for (int round = 0; round < 5; ++round) {
    auto team = Require(context.CreateTeam({3, 2, 1, 0}));
    REQUIRE(team.index == static_cast<int>(3 - me));
    for (int i = 0; i < round; ++i) REQUIRE_OK(context.Barrier(team));
    auto* dirty = static_cast<uint8_t*>(context.heap_bases()[me]) + team.device.sync_offset_bytes;
    for (uint64_t i = 0; i < kSyncAreaBytes; ++i) REQUIRE(dirty[i] == 0);
    REQUIRE_OK(context.Barrier(team));
    std::memset(dirty, 0xff, kSyncAreaBytes);
    REQUIRE_OK(context.DestroyTeam(team));
  }
  return 0;
}

int Broadcasts(const std::vector<std::string>&) {
  Context context = Require(Context::Create(Small()));
  const uint32_t me = context.rank();
  for (const size_t size : {size_t{0}, size_t{1}, size_t{4096}, size_t{1} << 20}) {
    const std::string value(size, static_cast<char>('a' + me));
    REQUIRE(Require(context.Broadcast(value, 1)) == std::string(size, 'b'));
  }
  REQUIRE(Has(context.Broadcast(std::string(8 << 20, 'x'), 1).status(),
              StatusCode::kInvalidArgument, "1 MiB are allowed"));
  REQUIRE(Has(context.Broadcast("v", 99).status(), StatusCode::kInvalidArgument, "99"));
  struct Pair {
    int a;
    double b;
  };
  auto pair = Require(context.BroadcastValue(Pair{static_cast<int>(me), 0.5}, 0));
  REQUIRE(pair.a == 0 && pair.b == 0.5);
  return 0;
}

// Says "ready", then does what `args[0]` says until an error comes, and prints it.
int UntilError(const std::vector<std::string>& args) {
  Context context = Require(Context::Create(Small()));
  const uint32_t victim = 2;
  auto team = Require(context.CreateTeam({0, 1, 3}));
  REQUIRE_OK(context.Barrier());
  std::cout << "ready" << std::endl;
  const bool is_victim = context.rank() == victim;
  Status status;
  if (args[0] == "barrier") {
    // All are in the barrier again and again, the victim as well.
    while (status.ok()) status = context.Barrier();
  } else if (args[0] == "barrier_without_victim") {
    if (is_victim) WaitForLine("never");
    status = context.Barrier();
  } else if (args[0] == "other_team") {
    if (is_victim) WaitForLine("never");
    while (status.ok()) status = context.Barrier(team);
  } else if (args[0] == "allocate") {
    if (is_victim) WaitForLine("never");
    status = context.Allocate({.bytes = 1024}).status();
  } else if (args[0] == "allocate_loop") {
    while (status.ok()) {
      auto a = context.Allocate({.bytes = 1024});
      status = a.status();
      if (status.ok()) status = context.Free(*a);
    }
  } else if (args[0] == "grow_loop") {
    while (status.ok()) {
      auto a = context.Allocate({.bytes = 32 * kMiB});
      status = a.status();
      if (status.ok()) status = context.Free(*a);
    }
  } else if (args[0] == "team_loop") {
    while (status.ok()) {
      auto t = context.CreateTeam({0, 1, 2, 3});
      status = t.status();
      if (status.ok()) status = context.DestroyTeam(*t);
    }
  } else if (args[0] == "broadcast") {
    if (is_victim) WaitForLine("never");
    status = context.Broadcast("x", victim).status();
  } else if (args[0] == "leave") {
    if (is_victim) {
      WaitForLine("leave");
      REQUIRE_OK(context.Leave());
      std::cout << "left" << std::endl;
      WaitForLine("never");
    }
    status = context.Barrier();
  }
  std::cout << "error " << Text(status) << std::endl;
  std::cout << "health " << Text(context.Health()) << std::endl;
  std::cout << "next " << Text(context.Allocate({.bytes = 8}).status()) << std::endl;
  if (args[0] == "leave") {
    // Teams without the rank go on.
    std::cout << "team " << Text(context.Barrier(team)) << std::endl;
    std::cout << "team_allocate " << Text(context.Allocate({.bytes = 8}, team).status())
              << std::endl;
  }
  // Mapped memory stays, the dead rank's too.
  auto* theirs = static_cast<uint8_t*>(context.heap_bases()[victim]);
  theirs[context.heap_bytes() - 1] = 1;
  std::cout << "memory ok" << std::endl;
  WaitForLine("end");
  return 0;
}

// Rank 1's session ends while its process runs on.
int HangUp(const std::vector<std::string>&) {
  Context context = Require(Context::Create(Small()));
  REQUIRE_OK(context.Barrier());
  if (context.rank() == 1) {
    bool found = false;
    for (int fd = 3; fd < 1024; ++fd) {
      int type = 0;
      socklen_t bytes = sizeof(type);
      if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) != 0 || type != SOCK_SEQPACKET)
        continue;
      REQUIRE(shutdown(fd, SHUT_RDWR) == 0);
      found = true;
    }
    REQUIRE(found);
  } else {
    std::cout << "error " << Text(context.Barrier()) << std::endl;
    std::cout << "health " << Text(context.Health()) << std::endl;
    std::cout << "next " << Text(context.Allocate({.bytes = 8}).status()) << std::endl;
  }
  WaitForLine("end");
  return 0;
}

int Fork(const std::vector<std::string>&) {
  Context context = Require(Context::Create(Small()));
  auto x = Require(context.Allocate({.bytes = 1024}));
  *x.As<int>() = 5;
  const pid_t child = fork();
  if (child == 0) {
#if defined(IRIS_ASAN)
    in_forked_child = true;
#endif
    const StatusCode code = StatusCode::kFailedPrecondition;
    REQUIRE(Has(context.Barrier(), code, "parent process"));
    REQUIRE(Has(context.Allocate({.bytes = 8}).status(), code, "parent process"));
    REQUIRE(Has(context.Free(x), code, "parent process"));
    REQUIRE(Has(context.Broadcast("v", 0).status(), code, "parent process"));
    REQUIRE(Has(context.CreateTeam({0}).status(), code, "parent process"));
    REQUIRE(Has(context.Grow(1), code, "parent process"));
    REQUIRE(Has(context.Health(), code, "parent process"));
    REQUIRE(Has(context.Leave(), code, "parent process"));
    REQUIRE(Has(Context::Create(Small()).status(), code, "forked"));
    context = Context();  // the destructor touches nothing
    std::cout << "child ends" << std::endl;
    std::exit(0);  // with all of atexit
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  // The parent and its peers are as before.
  REQUIRE(*x.As<int>() == 5);
  REQUIRE_OK(context.Allocate({.bytes = 8}));
  REQUIRE_OK(context.Health());
  REQUIRE_OK(context.Barrier());
  return 0;
}

// irisd ends and perhaps comes back, as the test says.
int DaemonGone(const std::vector<std::string>&) {
  ContextOptions options = Small();
  options.timeout = 3s;
  auto created = Context::Create(options);
  REQUIRE_OK(created);
  Context& context = *created;
  auto x = Require(context.Allocate({.bytes = 4096}));
  const uint32_t n = context.n_ranks(), me = context.rank();
  std::cout << "ready" << std::endl;
  WaitForLine("gone");
  for (uint32_t i = 0; i < 50; ++i) {
    context.Translate((me + 1) % n, x.As<uint32_t>())[i] = 1000 * i + me;
    REQUIRE_OK(context.Barrier());
    REQUIRE(x.As<uint32_t>()[i] == 1000 * i + (me + n - 1) % n);
  }
  REQUIRE(context.Health().ok());
  const absl::Time start = absl::Now();
  std::cout << "allocate " << Text(context.Allocate({.bytes = 8}).status()) << std::endl;
  std::cout << "seconds " << absl::ToDoubleSeconds(absl::Now() - start) << std::endl;
  WaitForLine("back");
  Status status;
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  do {
    status = context.Allocate({.bytes = 8}).status();
  } while (status.code() == StatusCode::kUnavailable && absl::Now() < deadline);
  std::cout << "after_restart " << Text(status) << std::endl;
  REQUIRE_OK(context.Barrier());
  x.As<uint32_t>()[0] = 1;
  *created = Context();  // does not hang
  // And a new context works.
  created = Context::Create(options);
  REQUIRE_OK(created);
  REQUIRE_OK(created->Allocate({.bytes = 8}));
  return 0;
}

// irisd is stopped (not dead) in the middle of an allocation.
int DaemonStopped(const std::vector<std::string>&) {
  ContextOptions options = Small();
  options.timeout = 2s;  // long enough for the calls at the end, on a machine that is busy
  Context context = Require(Context::Create(options));
  std::cout << "ready" << std::endl;
  WaitForLine("stopped");
  const Status status = context.Allocate({.bytes = 2048}).status();
  REQUIRE(Has(status, StatusCode::kDeadlineExceeded, "did not answer"));
  REQUIRE_OK(context.Barrier(context.world(), 60s));
  std::cout << "timed out" << std::endl;
  WaitForLine("goes on");
  // The outcome of the call that timed out comes first: all ranks are in step again, whatever it
  // was.
  StatusOr<Allocation> next = context.Allocate({.bytes = 1024});
  for (int i = 0; i < 20 && !next.ok(); ++i) next = context.Allocate({.bytes = 1024});
  REQUIRE_OK(next);
  REQUIRE(Require(context.BroadcastValue(next->offset_bytes, 0)) == next->offset_bytes);
  return 0;
}

int JoinOnly(const std::vector<std::string>& args) {
  ContextOptions options = Small();
  double seconds = 60;
  if (!args.empty() && absl::SimpleAtod(args[0], &seconds)) {
    options.join_timeout = absl::ToChronoNanoseconds(absl::Seconds(seconds));
  }
  auto created = Context::Create(options);
  std::cout << "created " << Text(created.status()) << std::endl;
  if (created.ok()) {
    const CreateTimings t = created->create_timings();
    REQUIRE(t.connect > 0ns && t.join > 0ns && t.map > 0ns && t.commit > 0ns);
  }
  WaitForLine("end");
  return 0;
}

// Rank 1 has not enough address space for the window.
int LittleAddressSpace(const std::vector<std::string>&) {
  ContextOptions options = Small();
  options.max_heap_bytes = 64ull << 30;
  if (absl::string_view(getenv("IRIS_RANK")) == "1") {
    struct rlimit limit = {32ull << 30, 32ull << 30};
    REQUIRE(setrlimit(RLIMIT_AS, &limit) == 0);
  }
  std::cout << "created " << Text(Context::Create(options).status()) << std::endl;
  WaitForLine("end");
  return 0;
}

int HoldMemory(const std::vector<std::string>&) {
  auto created = Require(Context::Create(Small()));
  std::cout << "ready" << std::endl;
  WaitForLine("end");
  return 0;
}

// Tests.

class ContextTest : public ::testing::Test {
 protected:
  void SetUp() override { StartDaemon({}); }

  void StartDaemon(const testing::DaemonOptions& options) {
    daemon_.reset();
    daemon_ = Require(Daemon::Start(options));
    Require(daemon_->GetStatus());
    idle_fds_ = daemon_->OpenFds();
  }

  RankProcesses::Options Ranks(std::vector<std::string> args = {}) {
    RankProcesses::Options options;
    options.runtime_dir = daemon_->runtime_dir();
    options.args = std::move(args);
    return options;
  }

  // Every rank does the scenario; irisd has nothing left after it.
  void Run(const std::string& scenario, int n_ranks) {
    RankProcesses ranks(scenario, n_ranks, Ranks());
    ranks.ExpectAllSucceed();
    ExpectIdle();
  }

  void ExpectIdle() {
    const absl::Status idle = daemon_->WaitIdle(idle_fds_ + 2);
    EXPECT_TRUE(idle.ok()) << idle << "\n" << daemon_->Log();
  }

  // Options of a rank that is a thread of this process.
  ContextOptions Thread(int rank, int n_ranks, const std::string& job = "threads") {
    ContextOptions options;
    options.job = job;
    options.rank = rank;
    options.n_ranks = n_ranks;
    options.heap_bytes = 4 * kMiB;
    options.max_heap_bytes = 16 * kMiB;
    options.runtime_dir = daemon_->runtime_dir();
    return options;
  }

  // Creates contexts of all `options` at once, each on a thread; status of each.
  std::vector<Status> CreateAll(
      const std::vector<ContextOptions>& options,
      const std::function<void(Context&)>& body = [](Context&) {}) {
    std::vector<Status> statuses(options.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < options.size(); ++i) {
      threads.emplace_back([&, i] {
        auto context = Context::Create(options[i]);
        statuses[i] = context.status();
        if (context.ok()) body(*context);
      });
    }
    for (auto& t : threads) t.join();
    return statuses;
  }

  // Nothing of any job is left; sessions of this process may be.
  void ExpectIdleHeap() {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    for (;;) {
      auto status = Require(daemon_->GetStatus());
      if (status.heap_bytes() == 0 && status.n_jobs() == 0) return;
      ASSERT_LT(absl::Now(), deadline) << status.ShortDebugString();
      absl::SleepFor(absl::Milliseconds(5));
    }
  }

  std::unique_ptr<Daemon> daemon_;
  int idle_fds_ = 0;
};

class RanksTest : public ContextTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, RanksTest, ::testing::Values(1, 2, 3, 4, 8));

TEST_P(RanksTest, WriteAndReadEveryPeer) { Run("basics", GetParam()); }

TEST_F(ContextTest, SameAddressInEveryProcess) {
  RankProcesses ranks("basics", 2, Ranks());
#if defined(IRIS_TSAN)
  ranks.ExpectAllSucceed();
#else
  EXPECT_EQ(ranks.WaitLine(0, "same_address"), "same_address=1");
  EXPECT_EQ(ranks.WaitLine(1, "same_address"), "same_address=1");
  ranks.ExpectAllSucceed();
#endif
}

TEST_P(RanksTest, HostTransfers) { Run("host_transfers", GetParam()); }
TEST_F(ContextTest, FreedRangesAreUsedAgain) { Run("free_and_reuse", 3); }
TEST_F(ContextTest, NamesAreUniqueAndChecked) { Run("names", 2); }
TEST_F(ContextTest, RanksThatDisagreeAreToldWhoAskedForWhat) { Run("mismatch", 2); }
TEST_F(ContextTest, HeapGrowsWithoutMoving) { Run("growth", 3); }
TEST_F(ContextTest, HeapOfAllGrowsForATeam) { Run("team_growth", 4); }
TEST_F(ContextTest, Teams) { Run("teams", 4); }
TEST_F(ContextTest, Broadcasts) { Run("broadcasts", 3); }
TEST_F(ContextTest, ForkedChildFailsClearlyAndHarmsNobody) { Run("fork", 2); }

TEST_F(ContextTest, LateRankGetsTheOutcomeOfItsPeers) {
  RankProcesses ranks("late_rank", 2, Ranks());
  ranks.WaitLine(0, "timed out");
  ranks.Tell(1, "go");
  ranks.WaitLine(1, "timed out");
  ranks.TellAll("on");
  ranks.TellAll("end");
  ranks.ExpectAllSucceed();
  ExpectIdle();
}

TEST_F(ContextTest, RoomForTheTraceIsMadeInTheTimeOfTheJoin) {
  auto options = Ranks();
  options.environment["IRIS_TRACE_EVENTS"] = "64";
  RankProcesses ranks("trace_room", 6, options);
  ranks.ExpectAllSucceed();
  ExpectIdle();
}

TEST_F(ContextTest, JoinTimeoutNamesTheMissingRanks) {
  auto options = Thread(1, 4);
  options.join_timeout = 200ms;
  const Status status = Context::Create(options).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("0, 2, 3"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("join job 'threads' as rank 1: "));
  ExpectIdleHeap();
}

TEST_F(ContextTest, SizesThatDisagreeNameWhoSaidWhat) {
  auto a = Thread(0, 2);
  auto b = Thread(1, 3);
  a.join_timeout = b.join_timeout = 2s;
  const auto statuses = CreateAll({a, b});
  int invalid = 0;
  for (const Status& status : statuses) {
    EXPECT_FALSE(status.ok());
    if (status.code() == StatusCode::kInvalidArgument) {
      ++invalid;
      EXPECT_THAT(std::string(status.message()), HasSubstr("n_ranks"));
    }
  }
  EXPECT_GE(invalid, 1);
}

TEST_F(ContextTest, RankThatIsTaken) {
  auto a = Thread(0, 2);
  a.join_timeout = 2s;
  const auto statuses = CreateAll({a, a});
  EXPECT_EQ(std::count_if(statuses.begin(), statuses.end(),
                          [](const Status& s) { return s.code() == StatusCode::kAlreadyExists; }),
            1);
}

TEST_F(ContextTest, BadOptionsAreRefusedByIrisd) {
  struct Case {
    const char* what;
    std::function<void(ContextOptions&)> change;
    StatusCode code;
  };
  const std::vector<Case> cases = {
      {"job name with a control character", [](auto& o) { o.job = "a\tb"; },
       StatusCode::kInvalidArgument},
      {"job name of 1 MiB", [](auto& o) { o.job = std::string(1 << 20, 'j'); },
       StatusCode::kInvalidArgument},
      {"a heap larger than its window",
       [](auto& o) {
         o.heap_bytes = 4 * kMiB;
         o.max_heap_bytes = 2 * kMiB;
       },
       StatusCode::kInvalidArgument},
      {"a huge heap",
       [](auto& o) {
         o.heap_bytes = 1ull << 60;
         o.max_heap_bytes = 0;
       },
       StatusCode::kInvalidArgument},
      {"more than the device has",
       [](auto& o) {
         o.heap_bytes = 8ull << 30;
         o.max_heap_bytes = 0;
       },
       StatusCode::kResourceExhausted},
      {"unknown device", [](auto& o) { o.device_uuid = "EMU-none"; }, StatusCode::kInvalidArgument},
      {"too many ranks", [](auto& o) { o.n_ranks = 1000; }, StatusCode::kInvalidArgument},
  };
  for (const Case& c : cases) {
    auto options = Thread(0, 1);
    c.change(options);
    const Status status = Context::Create(options).status();
    EXPECT_EQ(status.code(), c.code) << c.what << ": " << status;
    EXPECT_LT(status.message().size(), 2000u) << c.what;
  }
  // And irisd serves the next one.
  EXPECT_TRUE(Context::Create(Thread(0, 1)).ok());
}

TEST_F(ContextTest, DeviceByUuid) {
  auto options = Thread(0, 1);
  options.device_uuid = "EMU-00000000-0000-0000-0000-000000000005";
  auto context = Context::Create(options);
  ASSERT_TRUE(context.ok()) << context.status();
  EXPECT_EQ(context->device_index(), 5u);
  EXPECT_EQ(context->device_uuid(), options.device_uuid);
  EXPECT_EQ(context->backend(), "emu");
}

TEST_F(ContextTest, DeviceOfTheLocalRank) {
  auto options = Thread(0, 1);
  options.local_rank = 10;
  auto context = Context::Create(options);
  ASSERT_TRUE(context.ok()) << context.status();
  EXPECT_EQ(context->device_index(), 10u % 8);
}

TEST_F(ContextTest, HeapSizeThatIsLeftOutIsTheEnvironments) {
  ASSERT_EQ(setenv("IRIS_HEAP_BYTES", "6291456", 1), 0);
  auto options = Thread(0, 1);
  options.heap_bytes = 0;
  auto context = Context::Create(options);
  ASSERT_EQ(unsetenv("IRIS_HEAP_BYTES"), 0);
  ASSERT_TRUE(context.ok()) << context.status();
  EXPECT_GE(context->heap_bytes(), 6 * kMiB);
  EXPECT_LT(context->heap_bytes(), 16 * kMiB);
}

TEST_F(ContextTest, PreallocatedHeap) {
  auto options = Thread(0, 1);
  options.prealloc = true;
  auto context = Context::Create(options);
  ASSERT_TRUE(context.ok()) << context.status();
  auto x = context->Allocate({.bytes = kMiB});
  ASSERT_TRUE(x.ok());
  std::memset(x->address, 1, x->bytes);
}

TEST_F(ContextTest, AddressesOutsideTheWindowAreNotSymmetric) {
  auto context = Context::Create(Thread(0, 1));
  ASSERT_TRUE(context.ok()) << context.status();
  int local = 0;
  EXPECT_FALSE(context->IsSymmetric(&local));
  EXPECT_EQ(context->Locate(&local).status().code(), StatusCode::kInvalidArgument);
  auto* base = static_cast<char*>(context->heap_bases()[0]);
  const uint64_t heap = context->heap_bytes();
  EXPECT_TRUE(context->IsSymmetric(base, heap));
  EXPECT_FALSE(context->IsSymmetric(base, heap + 1));
  EXPECT_FALSE(context->IsSymmetric(base + heap));
  EXPECT_FALSE(context->IsSymmetric(base, ~0ull));
  EXPECT_FALSE(context->IsSymmetric(base - 1));
  EXPECT_FALSE(context->Locate(base + context->stride_bytes()).ok());
}

TEST_F(ContextTest, ContextsOfOneProcessOneAfterTheOther) {
  for (int i = 0; i < 5; ++i) {
    auto context = Context::Create(Thread(0, 1));
    ASSERT_TRUE(context.ok()) << context.status();
    auto x = context->Allocate({.bytes = 1024});
    ASSERT_TRUE(x.ok());
    *x->As<int>() = i;
  }
  ExpectIdleHeap();
}

TEST_F(ContextTest, TwoJobsInOneProcess) {
  auto a = Context::Create(Thread(0, 1, "a"));
  auto b = Context::Create(Thread(0, 1, "b"));
  ASSERT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
  auto x = a->Allocate({.bytes = 1024});
  auto y = b->Allocate({.bytes = 1024});
  ASSERT_TRUE(x.ok() && y.ok());
  *x->As<int>() = 1;
  *y->As<int>() = 2;
  EXPECT_EQ(*x->As<int>(), 1);
  EXPECT_FALSE(a->IsSymmetric(y->address));
}

TEST_F(ContextTest, RanksThatAreThreadsShareOneWindow) {
  constexpr int kRanks = 4;
  std::vector<ContextOptions> options;
  for (int r = 0; r < kRanks; ++r) options.push_back(Thread(r, kRanks));
  std::atomic<int> errors{0};
  std::array<void*, kRanks> bases = {};
  std::array<uint64_t, kRanks> sums = {};
  const auto statuses = CreateAll(options, [&](Context& context) {
    const auto check = [&](bool ok) { errors += ok ? 0 : 1; };
    const uint32_t me = context.rank();
    bases[me] = context.heap_bases()[0];
    check(context.peer_pid(0) == getpid());
    auto x = context.Allocate({.bytes = 1024});
    check(x.ok());
    if (!x.ok()) return;
    for (int round = 1; round <= 20; ++round) {
      for (uint32_t to = 0; to < kRanks; ++to) {
        context.Translate(to, x->As<uint64_t>())[me] = static_cast<uint64_t>(round);
      }
      check(context.Barrier().ok());
      for (uint32_t from = 0; from < kRanks; ++from) sums[me] += x->As<uint64_t>()[from];
      check(context.Barrier().ok());
    }
    // Growth is mapped once, by whoever comes first.
    auto big = context.Allocate({.bytes = 8 * kMiB});
    check(big.ok());
    if (big.ok()) std::memset(big->address, 1, big->bytes);
    check(context.Barrier().ok());
  });
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(errors.load(), 0);
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_EQ(bases[r], bases[0]);
    EXPECT_EQ(sums[r], 4u * 210u);
  }
  ExpectIdleHeap();
}

TEST_F(ContextTest, NothingStaysInTheProcess) {
  // Once first: what libraries open once stays.
  ASSERT_TRUE(Context::Create(Thread(0, 1)).ok());
  const int before = base::CountDescriptors();
  for (int i = 0; i < 3; ++i) {
    auto context = Context::Create(Thread(0, 1));
    ASSERT_TRUE(context.ok());
    ASSERT_TRUE(context->Allocate({.bytes = 8 * kMiB}).ok());
  }
  // gRPC closes a channel's socket on a thread of its own.
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (base::CountDescriptors() > before && absl::Now() < deadline)
    absl::SleepFor(absl::Milliseconds(10));
  EXPECT_LE(base::CountDescriptors(), before);
  // The links between devices stay for the life of the process; they alone are mapped read-only.
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(" r--s ") != line.npos) continue;
    EXPECT_EQ(line.find("iris-emu"), std::string::npos) << line;
  }
}

TEST_F(ContextTest, CollectivesOfThreadsOnOneContextTakeTurns) {
  auto context = Context::Create(Thread(0, 1));
  ASSERT_TRUE(context.ok()) << context.status();
  std::atomic<int> errors{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        auto a = context->Allocate({.bytes = 1024});
        if (!a.ok() || !context->Free(*a).ok() || !context->Barrier().ok()) ++errors;
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(errors.load(), 0);
}

TEST_F(ContextTest, LeavingEndsABarrierOnAnotherThread) {
  auto options = std::vector<ContextOptions>{Thread(0, 2), Thread(1, 2)};
  std::atomic<bool> done{false};
  Status waited;
  const auto statuses = CreateAll(options, [&](Context& context) {
    if (context.rank() == 1) {
      while (!done) absl::SleepFor(absl::Milliseconds(1));
      return;
    }
    std::thread waiter([&] { waited = context.Barrier(); });
    EXPECT_TRUE(context.Leave().ok());
    waiter.join();
    done = true;
  });
  EXPECT_TRUE(statuses[0].ok() && statuses[1].ok());
  EXPECT_EQ(waited.code(), StatusCode::kFailedPrecondition) << waited;
}

TEST_F(ContextTest, BarrierTimeoutNamesTheMissingRank) {
  auto options = std::vector<ContextOptions>{Thread(0, 2), Thread(1, 2)};
  std::atomic<bool> done{false};
  Status waited;
  CreateAll(options, [&](Context& context) {
    if (context.rank() == 0) {
      waited = context.Barrier(context.world(), 50ms);
      done = true;
    }
    while (!done) absl::SleepFor(absl::Milliseconds(1));
  });
  EXPECT_EQ(waited.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(waited.message()), HasSubstr(absl::StrCat("rank 1 (pid ", getpid())));
}

// Death.

class DeathTest : public ContextTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(In, DeathTest,
                         ::testing::Values("barrier", "barrier_without_victim", "other_team",
                                           "allocate", "allocate_loop", "grow_loop", "team_loop",
                                           "broadcast"),
                         [](const auto& param_info) { return std::string(param_info.param); });

TEST_P(DeathTest, KilledRankIsNamedToTheOthers) {
  RankProcesses ranks("until_error", 4, Ranks({GetParam()}));
  for (int r = 0; r < 4; ++r) ranks.WaitLine(r, "ready");
  const pid_t victim = ranks.pid(2);
  const std::string who = absl::StrCat("rank 2 (pid ", victim, ")");
  const absl::Time start = absl::Now();
  ranks.Signal(2, SIGKILL);
  for (const int r : {0, 1, 3}) {
    const std::string error = ranks.WaitLine(r, "error ");
    EXPECT_THAT(error, HasSubstr("ABORTED"));
    EXPECT_THAT(error, AnyOf(HasSubstr(who), HasSubstr(absl::StrCat("pid ", victim)),
                             HasSubstr(absl::StrCat("pid=", victim))));
    EXPECT_THAT(error, HasSubstr("rank 2"));
  }
  RecordProperty("error_after_ms",
                 static_cast<int>(absl::ToInt64Milliseconds(absl::Now() - start)));
  for (const int r : {0, 1, 3}) {
    EXPECT_THAT(ranks.WaitLine(r, "health "), HasSubstr(who));
    EXPECT_THAT(ranks.WaitLine(r, "next "), HasSubstr("ABORTED"));
    ranks.WaitLine(r, "memory ok");
    ranks.Tell(r, "end");
    EXPECT_EQ(ranks.Wait(r), 0) << ranks.Output(r);
  }
  ExpectIdle();
}

TEST_F(ContextTest, RankThatHungUpAndLivesIsNotSaidToHaveDied) {
  RankProcesses ranks("hang_up", 2, Ranks());
  const std::string who = absl::StrCat("rank 1 (pid ", ranks.pid(1), ") hung up");
  for (const char* what : {"error ", "health ", "next "}) {
    const std::string line = ranks.WaitLine(0, what);
    EXPECT_THAT(line, HasSubstr("ABORTED"));
    EXPECT_THAT(line, HasSubstr(who));
    EXPECT_THAT(line, Not(HasSubstr("died")));
  }
  ranks.TellAll("end");
  for (const int r : {0, 1}) EXPECT_EQ(ranks.Wait(r), 0) << ranks.Output(r);
}

TEST_F(ContextTest, RankThatLeftIsNamedAndTeamsWithoutItGoOn) {
  RankProcesses ranks("until_error", 4, Ranks({"leave"}));
  for (int r = 0; r < 4; ++r) ranks.WaitLine(r, "ready");
  ranks.Tell(2, "leave");
  const std::string who = absl::StrCat("rank 2 (pid ", ranks.pid(2), ") left the job");
  for (const int r : {0, 1, 3}) {
    EXPECT_THAT(ranks.WaitLine(r, "error "), HasSubstr(who));
    EXPECT_THAT(ranks.WaitLine(r, "health "), HasSubstr(who));
    EXPECT_THAT(ranks.WaitLine(r, "next "), HasSubstr("ABORTED"));
    EXPECT_THAT(ranks.WaitLine(r, "team "), HasSubstr("OK"));
    EXPECT_THAT(ranks.WaitLine(r, "team_allocate "), HasSubstr("OK"));
    ranks.WaitLine(r, "memory ok");
  }
  for (const int r : {0, 1, 3}) {
    ranks.Tell(r, "end");
    EXPECT_EQ(ranks.Wait(r), 0) << ranks.Output(r);
  }
}

// Some ranks of a job that wait for the others.
bool AllJoining(Daemon& daemon, int n_ranks) {
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  for (; absl::Now() < deadline; absl::SleepFor(absl::Milliseconds(5))) {
    auto jobs = daemon.ListJobs();
    if (!jobs.ok() || jobs->jobs_size() != 1) continue;
    int n = 0;
    for (const auto& rank : jobs->jobs(0).ranks()) n += rank.pid() != 0;
    if (n == n_ranks) return true;
  }
  return false;
}

TEST_F(ContextTest, RankKilledWhileItsPeersJoinIsNamedToThem) {
  // Ranks 0 and 1 of 3 wait for rank 2, which never comes.
  RankProcesses::Options options = Ranks();
  options.environment["IRIS_N_RANKS"] = "3";
  RankProcesses ranks("join_only", 2, options);
  ASSERT_TRUE(AllJoining(*daemon_, 2));
  ranks.Signal(1, SIGKILL);
  const std::string line = ranks.WaitLine(0, "created ");
  EXPECT_THAT(line, HasSubstr("ABORTED"));
  EXPECT_THAT(line, HasSubstr("rank 1"));
  EXPECT_THAT(line, HasSubstr(absl::StrCat(ranks.pid(1))));
  ranks.Tell(0, "end");
  EXPECT_EQ(ranks.Wait(0), 0);
  ExpectIdle();
}

#if !defined(IRIS_ASAN) && \
    !defined(IRIS_TSAN)  // these need more address space than the test allows
TEST_F(ContextTest, RankThatCannotMapFailsAllAndIsNamed) {
  RankProcesses ranks("little_address_space", 3, Ranks());
  const std::string own = ranks.WaitLine(1, "created ");
  EXPECT_THAT(own, HasSubstr("smaller max_heap_bytes"));
  for (const int r : {0, 2}) {
    const std::string line = ranks.WaitLine(r, "created ");
    EXPECT_THAT(line, HasSubstr("rank 1"));
    EXPECT_THAT(line, HasSubstr("smaller max_heap_bytes"));
  }
  ranks.TellAll("end");
  ranks.ExpectAllSucceed();
  ExpectIdle();
}
#endif

TEST_F(ContextTest, MemoryComesBackAfterKillOfAll) {
  {
    RankProcesses ranks("hold_memory", 4, Ranks());
    for (int r = 0; r < 4; ++r) ranks.WaitLine(r, "ready");
    auto status = Require(daemon_->GetStatus());
    EXPECT_GE(status.heap_bytes(), 4 * 8 * kMiB);
    for (int r = 0; r < 4; ++r) ranks.Signal(r, SIGKILL);
    for (int r = 0; r < 4; ++r) EXPECT_EQ(ranks.Wait(r), 128 + SIGKILL);
  }
  ExpectIdle();
}

TEST_F(ContextTest, LaterJobOfTheSameName) {
  for (int i = 0; i < 3; ++i) {
    RankProcesses ranks("basics", 2, Ranks());
    ranks.ExpectAllSucceed();
  }
  ExpectIdle();
}

// Irisd is not there.

TEST(WithoutDaemonTest, ErrorNamesTheSocketAndHowToStartIrisd) {
  const testing::TempDir dir;
  ContextOptions options;
  options.runtime_dir = dir.path();
  options.connect_timeout = 50ms;
  const Status status = Context::Create(options).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "cannot reach irisd at " + dir.path() +
                                  "/session.sock: No such file or directory. Start it with `irisd "
                                  "--runtime-dir " +
                                  dir.path() +
                                  "` (or systemctl start irisd), or set IRIS_RUNTIME_DIR");
}

class DaemonGoneTest : public ContextTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(By, DaemonGoneTest, ::testing::Bool(), [](const auto& param_info) {
  return std::string(param_info.param ? "Kill" : "Stop");
});

TEST_P(DaemonGoneTest, MemoryAndBarriersGoOnAndCallsSayWhatToDo) {
  const testing::TempDir dir;
  testing::DaemonOptions options;
  options.runtime_dir = dir.path() + "/run";
  StartDaemon(options);
  RankProcesses ranks("daemon_gone", 3, Ranks());
  for (int r = 0; r < 3; ++r) ranks.WaitLine(r, "ready");
  if (GetParam()) {
    daemon_->Kill();
  } else {
    EXPECT_EQ(Require(daemon_->Stop()), 0);
  }
  ranks.TellAll("gone");
  for (int r = 0; r < 3; ++r) {
    const std::string line = ranks.WaitLine(r, "allocate ");
    EXPECT_THAT(line, HasSubstr("UNAVAILABLE"));
    EXPECT_THAT(line, HasSubstr("cannot reach irisd at " + options.runtime_dir));
    EXPECT_THAT(line, HasSubstr("Start it with"));
  }
  StartDaemon(options);
  ranks.TellAll("back");
  for (int r = 0; r < 3; ++r) {
    const std::string line = ranks.WaitLine(r, "after_restart ");
    EXPECT_THAT(line, HasSubstr("ABORTED"));
    EXPECT_THAT(line, HasSubstr("restarted and no longer knows job \"test\""));
    EXPECT_THAT(line, HasSubstr("mapped memory stays valid, create a new Context"));
  }
  ranks.ExpectAllSucceed();
  ExpectIdle();
}

TEST_P(DaemonGoneTest, RanksThatWaitForOthersJoinAtTheNextOne) {
  const testing::TempDir dir;
  testing::DaemonOptions options;
  options.runtime_dir = dir.path() + "/run";
  StartDaemon(options);
  RankProcesses::Options first_two = Ranks();
  first_two.environment["IRIS_N_RANKS"] = "3";
  RankProcesses ranks("join_only", 2, first_two);
  ASSERT_TRUE(AllJoining(*daemon_, 2));
  if (GetParam()) {
    daemon_->Kill();
  } else {
    ASSERT_TRUE(daemon_->Stop().ok());
  }
  absl::SleepFor(absl::Milliseconds(300));  // they notice, and find nobody
  StartDaemon(options);
  RankProcesses::Options third = Ranks();
  third.environment["IRIS_N_RANKS"] = "3";
  third.environment["IRIS_RANK"] = "2";
  RankProcesses last("join_only", 1, third);
  for (int r = 0; r < 2; ++r) EXPECT_THAT(ranks.WaitLine(r, "created "), HasSubstr("created OK"));
  EXPECT_THAT(last.WaitLine(0, "created "), HasSubstr("created OK"));
  ranks.TellAll("end");
  last.TellAll("end");
  ranks.ExpectAllSucceed();
  last.ExpectAllSucceed();
  ExpectIdle();
}

TEST_F(ContextTest, StoppedDaemonDoesNotHoldCallsForEver) {
  RankProcesses ranks("daemon_stopped", 2, Ranks());
  for (int r = 0; r < 2; ++r) ranks.WaitLine(r, "ready");
  ASSERT_TRUE(daemon_->Suspend().ok());
  ranks.TellAll("stopped");
  for (int r = 0; r < 2; ++r) ranks.WaitLine(r, "timed out");
  ASSERT_TRUE(daemon_->Resume().ok());
  ranks.TellAll("goes on");
  ranks.ExpectAllSucceed();
  ExpectIdle();
}

}  // namespace
}  // namespace iris

int main(int argc, char** argv) {
  return iris::testing::TestMain(argc, argv,
                                 {{"basics", iris::Basics},
                                  {"host_transfers", iris::HostTransfers},
                                  {"free_and_reuse", iris::FreeAndReuse},
                                  {"names", iris::Names},
                                  {"mismatch", iris::Mismatch},
                                  {"late_rank", iris::LateRank},
                                  {"growth", iris::Growth},
                                  {"trace_room", iris::TraceRoom},
                                  {"team_growth", iris::TeamGrowth},
                                  {"teams", iris::Teams},
                                  {"broadcasts", iris::Broadcasts},
                                  {"until_error", iris::UntilError},
                                  {"hang_up", iris::HangUp},
                                  {"fork", iris::Fork},
                                  {"daemon_gone", iris::DaemonGone},
                                  {"daemon_stopped", iris::DaemonStopped},
                                  {"join_only", iris::JoinOnly},
                                  {"little_address_space", iris::LittleAddressSpace},
                                  {"hold_memory", iris::HoldMemory}});
}
