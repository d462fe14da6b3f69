// A rank of a job on several nodes, for nodes_test.py.
//   node_rank transfers [WORDS]   puts, gets, signals and atomics of the host between all ranks, of
//                                 so many words at most; growth
//   node_rank streams             copies of streams, tiles, graphs and queues between all ranks
//   node_rank fabric MAPPED       loads, stores, atomics, barriers and collectives of kernels on
//                                 the memory of so many ranks, which are mapped, of which some are
//                                 on other nodes; growth; then as wait
//   node_rank copy                as wait, with copies of a stream to a rank of another node
//   node_rank wait                says "ready", passes words on until a call fails, says when; at
//                                 SIGTERM it leaves the job
//   node_rank operate SECONDS     says "ready"; for so long: words, allocations, teams, broadcasts
//                                 and growth, each of which is checked
// With TEST_MPI=before or =after, MPI is initialized before or after the context is made.
#include <dlfcn.h>
#include <signal.h>
#include <time.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "iris/atomic.h"
#include "iris/barrier.h"
#include "iris/ccl.h"
#include "iris/context.h"
#include "iris/copy_queue.h"
#include "iris/copy_ring.h"
#include "iris/launch.h"
#include "iris/memory.h"
#include "iris/stream.h"

namespace {

using iris::Context;
using iris::Status;

#define TRY(expr)                                                                  \
  do {                                                                             \
    if (const Status tried = (expr); !tried.ok()) {                                \
      std::printf("error: %s: %s\n", #expr, std::string(tried.message()).c_str()); \
      return 1;                                                                    \
    }                                                                              \
  } while (false)
#define CHECK(condition)                                         \
  do {                                                           \
    if (!(condition)) {                                          \
      std::printf("error: line %d: %s\n", __LINE__, #condition); \
      return 1;                                                  \
    }                                                            \
  } while (false)

double Now() {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

uint64_t Word(uint32_t from, uint32_t to, uint64_t i) {
  return (uint64_t{from} << 40 | uint64_t{to} << 20) + i;
}

int Transfers(Context& context, uint64_t most) {
  const uint32_t me = context.rank(), n = context.n_ranks();
  auto inbox = context.Allocate<uint64_t>(n * most, "inbox");
  auto outbox = context.Allocate<uint64_t>(most, "outbox");
  auto words = context.Allocate<uint64_t>(8, "words");
  if (!inbox.ok() || !outbox.ok() || !words.ok()) {
    std::printf("error: allocate: %s\n", std::string(inbox.status().message()).c_str());
    return 1;
  }
  std::memset(words->get(), 0, 8 * sizeof(uint64_t));
  TRY(context.Barrier());
  for (const uint64_t count : {uint64_t{1}, uint64_t{7}, uint64_t{512}, most}) {
    for (uint32_t to = 0; to < n; ++to) {
      for (uint64_t i = 0; i < count; ++i) outbox->get()[i] = Word(me, to, i);
      TRY(context.Put(to, inbox->get() + me * most, outbox->get(), count,
                      {words->get(), 1, iris::SignalOp::kAdd}));
    }
    // The data of memory outside the heap goes another way.
    const std::vector<uint64_t> host = {Word(me, n, count)};
    TRY(context.Put((me + 1) % n, words->get() + 1, host.data(), 1));
    TRY(context.Quiet());
    TRY(context.Barrier());
    for (uint32_t from = 0; from < n; ++from) {
      for (uint64_t i = 0; i < count; ++i) {
        CHECK(inbox->get()[from * most + i] == Word(from, me, i));
      }
    }
    CHECK(words->get()[1] == Word((me + n - 1) % n, n, count));
    std::vector<uint64_t> read(count);
    for (uint32_t from = 0; from < n; ++from) {
      TRY(context.Get(from, read.data(), inbox->get() + me * most, count));
      for (uint64_t i = 0; i < count; ++i) CHECK(read[i] == Word(me, from, i));
    }
    TRY(context.Barrier());
  }
  CHECK(words->get()[0] == 4 * uint64_t{n});  // a signal of each put
  for (int i = 0; i < 100; ++i) {
    TRY(context.Atomic(iris::AtomicOp::kAdd, 0, words->get() + 2, 1).status());
  }
  TRY(context.Barrier());
  const auto sum = context.AtomicLoad(0, words->get() + 2);
  CHECK(sum.ok() && *sum == 100 * uint64_t{n});
  auto rail = context.rail();
  auto local = context.local();
  CHECK(rail.ok() && local.ok());
  CHECK(local->ranks.size() == context.n_local() && rail->ranks.size() * local->ranks.size() == n);
  TRY(context.Barrier(*rail));
  const uint64_t before = context.heap_bytes();
  auto large = context.Allocate<uint8_t>(before, "large");
  CHECK(large.ok() && context.heap_bytes() > before);
  large->get()[before - 1] = 0;
  TRY(context.Barrier());
  const uint8_t last = static_cast<uint8_t>(me + 1);
  TRY(context.Put((me + 1) % n, large->get() + before - 1, &last, 1));
  TRY(context.Quiet());
  TRY(context.Barrier());
  CHECK(large->get()[before - 1] == (me + n - 1) % n + 1);
  std::printf("transfers ok\n");
  return 0;
}

IRIS_KERNEL void PostCopies(iris::DeviceContext ctx, iris::DeviceCopyQueue queue, uint64_t* dst,
                            const uint64_t* src, uint64_t* word, uint32_t* failed) {
  for (uint32_t to = 0; to < ctx.n_ranks; ++to) {
    iris::CopyRequest request;
    request.to = to;
    request.dst = dst + ctx.rank;
    request.src = src;
    request.bytes = sizeof(uint64_t);
    request.signal = {word, 1, iris::SignalOp::kAdd};
    if (iris::PostCopy(ctx, queue, request) != iris::WaitResult::kOk) *failed = 1;
  }
}

int Streams(Context& context) {
  const uint32_t me = context.rank(), n = context.n_ranks();
  constexpr uint64_t kMost = (1 << 20) / 8 + 5;
  auto inbox = context.Allocate<uint64_t>(2 * n * kMost, "inbox");
  auto outbox = context.Allocate<uint64_t>(kMost, "outbox");
  auto words = context.Allocate<uint64_t>(8, "words");
  auto stream = iris::Stream::Create(context);
  CHECK(inbox.ok() && outbox.ok() && words.ok() && stream.ok());
  std::memset(words->get(), 0, 8 * sizeof(uint64_t));
  TRY(iris::Stream::PrepareSignals(context));
  TRY(context.Barrier());
  const iris::SignalOptions arrived = {words->get(), 1, iris::SignalOp::kAdd};
  const iris::SignalOptions read_signal = {words->get() + 1, 1, iris::SignalOp::kAdd};
  uint64_t rounds = 0;
  for (const uint64_t count : {uint64_t{1}, uint64_t{7}, uint64_t{512}, kMost}) {
    ++rounds;
    // From the heap, whose contents later copies of the stream change, and from other memory.
    std::vector<std::vector<uint64_t>> host(n, std::vector<uint64_t>(count));
    for (uint32_t to = 0; to < n; ++to) {
      for (uint64_t i = 0; i < count; ++i) host[to][i] = Word(me, to, i);
      uint64_t* const place = inbox->get() + 2 * me * kMost;
      TRY(stream->Copy(outbox->get(), host[to].data(), count * 8));
      TRY(stream->Put(context, to, place, outbox->get(), count * 8, arrived));
      TRY(stream->Put(context, to, place + kMost, host[to].data(), count * 8, arrived));
    }
    TRY(stream->Synchronize());  // all have arrived: the barrier's quiet has nothing to do
    TRY(context.Barrier());
    for (uint32_t from = 0; from < 2 * n; ++from) {
      for (uint64_t i = 0; i < count; ++i) {
        CHECK(inbox->get()[from * kMost + i] == Word(from / 2, me, i));
      }
    }
    for (uint32_t from = 0; from < n; ++from) {
      std::vector<uint64_t> read(count);
      uint64_t* const place = inbox->get() + 2 * me * kMost;
      TRY(stream->Get(context, from, read.data(), place, count * 8));
      TRY(stream->Get(context, from, outbox->get(), place + kMost, count * 8, read_signal));
      TRY(stream->Synchronize());
      for (uint64_t i = 0; i < count; ++i) {
        CHECK(read[i] == Word(me, from, i) && outbox->get()[i] == Word(me, from, i));
      }
    }
    CHECK(words->get()[0] == 2 * n * rounds);
    TRY(context.Barrier());
    CHECK(words->get()[1] == n * rounds);
  }
  // Tiles, in a graph that runs three times.
  const uint32_t next = (me + 1) % n, previous = (me + n - 1) % n;
  const iris::CopiedRows rows = {40, 3 * 8, 5 * 8, 7 * 8};
  for (uint64_t i = 0; i < 300; ++i) outbox->get()[i] = Word(me, 9, i);
  std::memset(inbox->get(), 0, 300 * 8);
  TRY(context.Barrier());
  TRY(stream->BeginCapture());
  TRY(stream->Put(context, next, inbox->get(), outbox->get(), rows, arrived));
  auto graph = stream->EndCapture();
  CHECK(graph.ok());
  const uint64_t before = words->get()[0];
  TRY(context.Barrier());
  for (int i = 0; i < 3; ++i) TRY(graph->Launch(*stream));
  TRY(stream->Synchronize());
  TRY(context.Barrier());
  CHECK(words->get()[0] == before + 3);
  for (uint64_t i = 0; i < 200; ++i) {
    CHECK(inbox->get()[i] == (i % 5 < 3 ? Word(previous, 9, i / 5 * 7 + i % 5) : 0));
  }
  TRY(context.Barrier());
  // Copies that a kernel requests.
  auto queue = iris::CopyQueue::Create(context);
  auto failed = iris::HostArray<uint32_t>::Create(context);
  CHECK(queue.ok() && failed.ok());
  TRY(iris::Launch({1, 1}, *stream, PostCopies, context.device_context(), queue->device(),
                   inbox->get(), outbox->get() + 5, words->get() + 2, failed->get()));
  TRY(stream->Synchronize());
  TRY(queue->Drain());
  TRY(context.Barrier());
  CHECK(**failed == 0 && words->get()[2] == n);
  for (uint32_t from = 0; from < n; ++from) CHECK(inbox->get()[from] == Word(from, 9, 5));
  // What is not in the heap of the other rank.
  const Status wrong =
      stream->Put(context, n - 1 - me, inbox->get(), outbox->get(), context.heap_bytes());
  CHECK(wrong.code() == iris::StatusCode::kInvalidArgument);
  TRY(stream->Synchronize());
  TRY(context.Barrier());
  std::printf("streams ok\n");
  return 0;
}

// Writes, adds and reads in the heaps of all ranks that are mapped, with a barrier of the team's
// kernels between; counts what is wrong.
IRIS_KERNEL void Touch(iris::DeviceContext ctx, iris::DeviceTeam team, uint32_t first, uint32_t n,
                       uint64_t* words, uint64_t* sum, uint32_t* wrong) {
  for (uint32_t to = 0; to < ctx.n_ranks; ++to) {
    if (iris::Reaches(ctx, to) != (to - first < n)) *wrong += 1;
    if (!iris::Reaches(ctx, to)) continue;
    iris::Store(ctx, to, words + ctx.rank, 1000 * uint64_t{ctx.rank} + to);
    iris::AtomicAdd(ctx, to, sum, uint64_t{ctx.rank} + 1);
  }
  if (iris::Barrier(ctx, team) != iris::WaitResult::kOk) *wrong += 100;
  uint64_t expected = 0;
  for (uint32_t from = first; from < first + n; ++from) {
    expected += uint64_t{from} + 1;
    if (iris::Load<iris::CacheHint::kVolatile>(ctx, from, words + ctx.rank) !=
        1000 * uint64_t{ctx.rank} + from) {
      *wrong += 1;
    }
  }
  for (uint32_t from = first; from < first + n; ++from) {
    if (iris::AtomicLoad(ctx, from, sum) != expected) *wrong += 1;
  }
}

// The sum over the ranks of a team, of sizes that take the several variants.
int Sums(Context& context, iris::Stream& stream, const iris::Team& team) {
  auto made = iris::ccl::Communicator::Create(context, team);
  if (!made.ok()) std::printf("error: %s\n", std::string(made.status().message()).c_str());
  CHECK(made.ok());
  constexpr uint64_t kMost = 300'001;
  auto x = context.Allocate<float>(kMost, "x");
  CHECK(x.ok());
  float sum = 0;
  for (const uint32_t rank : team.ranks) sum += static_cast<float>(rank) + 1;
  for (const uint64_t count : {uint64_t{1}, uint64_t{1000}, kMost}) {
    for (uint64_t i = 0; i < count; ++i) {
      x->get()[i] = static_cast<float>((context.rank() + 1) * (i % 100));
    }
    TRY(context.Barrier());
    TRY(made->AllReduce(x->get(), x->get(), count, iris::ccl::ReduceOp::kSum, stream));
    TRY(made->Synchronize(stream));
    for (uint64_t i = 0; i < count; ++i) {
      CHECK(x->get()[i] == sum * static_cast<float>(i % 100));
    }
  }
  TRY(context.Barrier());
  TRY(context.Free(*x));
  return made->Destroy().ok() ? 0 : 1;
}

int Fabric(Context& context, uint32_t n_mapped) {
  const uint32_t me = context.rank(), n = context.n_ranks();
  const uint32_t first = me / n_mapped * n_mapped;
  const uint32_t end = first + n_mapped < n ? first + n_mapped : n;
  auto words = context.Allocate<uint64_t>(n + 1, "touched");
  auto wrong = iris::HostArray<uint32_t>::Create(context);
  auto stream = iris::Stream::Create(context);
  auto team = context.Split(static_cast<int>(first), static_cast<int>(me));
  CHECK(words.ok() && wrong.ok() && stream.ok() && team.ok());
  std::memset(words->get(), 0, (n + 1) * sizeof(uint64_t));
  TRY(context.Barrier());
  TRY(iris::Launch({1, 1}, *stream, Touch, context.device_context(), team->device, first,
                   end - first, words->get(), words->get() + n, wrong->get()));
  TRY(stream->Synchronize());
  CHECK(**wrong == 0);
  TRY(context.Barrier());
  for (uint32_t rank = 0; rank < n; ++rank) {
    CHECK(context.Reaches(rank) == (rank >= first && rank < end));
    if (!context.Reaches(rank)) continue;
    CHECK(*context.Translate(rank, words->get() + me) == 1000 * uint64_t{me} + rank);
  }
  // Memory by which the heap grows is mapped likewise.
  const uint64_t before = context.heap_bytes();
  auto large = context.Allocate<uint64_t>(before / sizeof(uint64_t), "large");
  CHECK(large.ok() && context.heap_bytes() > before);
  uint64_t* const last = large->get() + before / sizeof(uint64_t) - 1;
  TRY(context.Barrier());
  const uint32_t next = me + 1 < end ? me + 1 : first;
  *context.Translate(next, last) = me;
  TRY(context.Barrier());
  CHECK(*last == (me > first ? me - 1 : end - 1));
  // Collectives of a team whose ranks are all mapped, and of the world.
  if (const int failed = Sums(context, *stream, *team); failed != 0) return failed;
  if (const int failed = Sums(context, *stream, context.world()); failed != 0) return failed;
  std::printf("fabric ok\n");
  return 0;
}

volatile sig_atomic_t g_leaves = 0;

// Each round words go to other ranks: without copies of streams, one word to the next, which has to
// be there after the barrier.
int Wait(Context& context, bool copies) {
  signal(SIGTERM, [](int) { g_leaves = 1; });
  const uint32_t me = context.rank(), n = context.n_ranks();
  auto words = context.Allocate<uint64_t>(1000, "words");
  auto stream =
      copies ? iris::Stream::Create(context) : iris::StatusOr<iris::Stream>(iris::Stream());
  CHECK(words.ok() && stream.ok());
  TRY(context.Barrier());
  std::printf("ready\n");
  std::fflush(stdout);
  Status status;
  for (uint64_t round = 1; status.ok(); ++round) {
    if (g_leaves != 0) {
      TRY(context.Leave());
      return 0;
    }
    uint64_t* const inbox = words->get() + round % 2;  // the one before is perhaps being read
    if (copies) {
      status = stream->Put(context, (me + context.n_local()) % n, words->get(), words->get() + 500,
                           4000);
      if (status.ok()) status = stream->Synchronize();
    } else {
      const uint64_t word = Word(me, (me + 1) % n, round);
      status = context.Put((me + 1) % n, inbox, &word, 1);
      if (status.ok()) status = context.Quiet();
      if (status.ok()) status = context.Barrier();
      if (status.ok()) CHECK(*inbox == Word((me + n - 1) % n, me, round));
    }
    const struct timespec pause = {0, 1'000'000};
    nanosleep(&pause, nullptr);
  }
  std::printf("told at %.6f: %s\n", Now(), std::string(status.message()).c_str());
  return 0;
}

// Words go round, and whatever irisd decides.
int Operate(Context& context, double seconds) {
  const uint32_t me = context.rank(), n = context.n_ranks();
  const uint32_t next = (me + 1) % n, previous = (me + n - 1) % n;
  auto inbox = context.Allocate<uint64_t>(1, "inbox");
  CHECK(inbox.ok());
  TRY(context.Barrier());
  std::printf("ready\n");
  std::fflush(stdout);
  const double end = Now() + seconds;
  uint64_t round = 0;
  for (bool goes_on = true; goes_on; ++round) {
    const uint64_t word = Word(me, next, round);
    TRY(context.Put(next, inbox->get(), &word, 1));
    TRY(context.Quiet());
    TRY(context.Barrier());
    CHECK(*inbox->get() == Word(previous, me, round));
    // Once in a while the heap has to grow for it.
    const uint64_t bytes = round % 20 == 19 ? context.heap_bytes() : 4096;
    auto some = context.Allocate<uint8_t>(bytes, "some");
    if (bytes == 4096 || context.heap_bytes() < 32 << 20) {
      if (!some.ok()) std::printf("error: %s\n", std::string(some.status().message()).c_str());
      CHECK(some.ok());
    }
    if (some.ok()) {
      const uint8_t last = static_cast<uint8_t>(me + 1);
      TRY(context.Put(next, some->get() + bytes - 1, &last, 1));
      TRY(context.Quiet());
      TRY(context.Barrier());
      CHECK(some->get()[bytes - 1] == static_cast<uint8_t>(previous + 1));
      TRY(context.Free(*some));
    }
    auto team = context.Split(static_cast<int>(me % 2));
    CHECK(team.ok());
    TRY(context.Barrier(*team));
    TRY(context.DestroyTeam(*team));
    auto told = context.BroadcastValue<uint8_t>(Now() < end ? 1 : 0, 0);
    if (!told.ok()) std::printf("error: %s\n", std::string(told.status().message()).c_str());
    CHECK(told.ok());
    goes_on = *told != 0;
  }
  TRY(context.Barrier());
  std::printf("operate ok, %llu rounds\n", static_cast<unsigned long long>(round));
  return 0;
}

// Open MPI, opened at run time: its headers are not needed.
class Mpi {
 public:
  ~Mpi() {
    if (library_ != nullptr) Call<int()>("MPI_Finalize")();
  }
  // All ranks call it. Returns false if a call of MPI fails.
  bool Start() {
    library_ = dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL);
    return library_ != nullptr && Call<int(int*, char***)>("MPI_Init")(nullptr, nullptr) == 0 &&
           Call<int(void*)>("MPI_Barrier")(dlsym(library_, "ompi_mpi_comm_world")) == 0;
  }

 private:
  template <typename F>
  F* Call(const char* name) const {
    return reinterpret_cast<F*>(dlsym(library_, name));
  }

  void* library_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  const char* const with = getenv("TEST_MPI");
  const std::string mpi_when = with == nullptr ? "" : with;
  Mpi mpi;
  if (mpi_when == "before") CHECK(mpi.Start());
  iris::ContextOptions options;
  const std::string what = argc > 1 ? argv[1] : "";
  options.heap_bytes = what == "operate" ? 4 << 20 : 32 << 20;
  if (what == "operate") options.max_heap_bytes = 64 << 20;
  auto context = Context::Create(options);
  if (!context.ok()) {
    std::printf("error: %s\n", std::string(context.status().message()).c_str());
    return 1;
  }
  if (mpi_when == "after") CHECK(mpi.Start());
  if (what == "transfers") {
    return Transfers(*context, argc > 2 ? strtoull(argv[2], nullptr, 10) : (3 << 20) / 8 + 5);
  }
  if (what == "streams") return Streams(*context);
  if (what == "fabric") {
    const int code = Fabric(*context, static_cast<uint32_t>(strtoul(argv[2], nullptr, 10)));
    return code != 0 ? code : Wait(*context, /*copies=*/false);
  }
  if (what == "wait") return Wait(*context, /*copies=*/false);
  if (what == "copy") return Wait(*context, /*copies=*/true);
  if (what == "operate") return Operate(*context, argc > 2 ? strtod(argv[2], nullptr) : 1);
  std::printf("error: node_rank transfers | streams | fabric MAPPED | wait | copy | operate\n");
  return 2;
}
