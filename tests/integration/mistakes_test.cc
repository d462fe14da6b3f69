// Mistakes of programs, with ranks that are real processes on a real irisd: what is printed, what
// the other ranks are told and how soon, and that a forked child gets errors and does not hang.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "iris/ccl.h"
#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/stream.h"
#include "iris/wait_monitor.h"
#include "tests/integration/daemon_harness.h"
#include "tests/integration/rank_processes.h"
#include "tests/integration/require.h"

#if defined(IRIS_ASAN)
// In a forked child the threads are gone whose stacks held memory: the leak check would report what
// they left behind.
static bool in_forked_child = false;
extern "C" int __lsan_is_turned_off();
extern "C" int __lsan_is_turned_off() { return in_forked_child; }
#endif

namespace iris {
namespace {

using iris::testing::Daemon;
using iris::testing::RankProcesses;
using iris::testing::Require;
using iris::testing::Text;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

ContextOptions Small() {
  ContextOptions options;
  options.heap_bytes = 32 << 20;
  return options;
}

// Rank 1 makes the mistake of that name; the others wait for it.
IRIS_KERNEL void MakeMistake(DeviceContext ctx, uint64_t* words, uint32_t mistake,
                             uint32_t* result) {
  if (backend::ThreadIndex() != 5) return;
  if (ctx.rank != 1) {
    *result = static_cast<uint32_t>(WaitUntil(ctx, words, Compare::kGe, 1));
    return;
  }
  switch (mistake) {
    case 0:  // an index in a team of four for a world of three
      SignalSet(ctx, ctx.rank + 2, words, 1);
      return;
    case 1: {  // a local variable
      uint64_t local = 0;
      Store(ctx, 0, &local, 1);
      return;
    }
    case 2:  // one element further than there are
      Store(ctx, 0, words + 16, 1);
      return;
    case 3:
      (void)AtomicAdd(ctx, 0, reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(words) + 4), 1);
      return;
    case 4:  // a plain pointer, behind the memory of the heap
      Translate(ctx, 2, words)[(uint64_t{200} << 20) / 8] = 1;
      return;
    default:
      return;
  }
}

int WrongKernel(const std::vector<std::string>& args) {
  ContextOptions options = Small();
  options.max_heap_bytes = 256 << 20;
  Context context = Require(Context::Create(options));
  auto words = Require(context.Allocate<uint64_t>(16, "words"));
  auto stream = Require(Stream::Create(context));
  uint32_t ended = 0;
  REQUIRE_OK(context.Barrier());
  const absl::Time start = absl::Now();
  REQUIRE_OK(Launch({1, 8}, stream, MakeMistake, context.device_context(), words,
                    static_cast<uint32_t>(std::stoul(args[0])), &ended));
  REQUIRE_OK(stream.Synchronize());
  std::cout << "kernel ended with " << ended << " after "
            << absl::ToInt64Milliseconds(absl::Now() - start) << " ms" << std::endl;
  std::cout << Text(context.Health()) << std::endl;
  // Nobody is left to meet.
  std::cout << "host barrier: " << Text(context.Barrier()) << std::endl;
  return 0;
}

// args: this rank's time for the host barrier, in milliseconds. Rank 2 has none and does not come.
int HostBarrierWithTimeouts(const std::vector<std::string>& args) {
  Context context = Require(Context::Create(Small()));
  REQUIRE_OK(context.Barrier());
  const int64_t ms = std::stol(args[context.rank()]);
  if (ms > 0) {
    const Status status = context.Barrier(context.world(), std::chrono::milliseconds(ms));
    std::cout << "host barrier: " << Text(status) << std::endl;
  }
  for (std::string line; std::getline(std::cin, line) && line != "end";) {
  }
  return 0;
}

// Waits for a line from the test.
void AwaitGo() {
  std::string line;
  std::getline(std::cin, line);
}

// Rank 1 asks for a heap that no job can have. Each rank waits for its turn.
int JoinOfARefusedRank(const std::vector<std::string>&) {
  ContextOptions options = Small();
  options.join_timeout = std::chrono::minutes(10);
  if (std::string(std::getenv("IRIS_RANK")) == "1") options.heap_bytes = uint64_t{1} << 60;
  AwaitGo();
  std::cout << "joined: " << Text(Context::Create(options).status()) << std::endl;
  return 0;
}

// args: what the ranks call, which the calls below say. Each of them waits for others without end,
// unless a rank hears from the test.
int CallsInAnotherOrder(const std::vector<std::string>& args) {
  ContextOptions options = Small();
  options.timeout = std::chrono::minutes(10);
  Context context = Require(Context::Create(options));
  const uint32_t rank = context.rank();
  std::map<std::string, Team> teams;
  for (const auto& [name, ranks] : std::map<std::string, std::vector<uint32_t>>{
           {"01", {0, 1}}, {"12", {1, 2}}, {"20", {2, 0}}}) {
    if (context.n_ranks() < 3 && name != "01") continue;
    teams.emplace(name, Require(context.CreateTeam(ranks)));
  }
  const auto barrier = [&] { return context.Barrier(); };
  const auto allocate = [&] { return context.Allocate({.bytes = 4096}).status(); };
  const auto allocate_of = [&](const std::string& team) {
    return context.Allocate({.bytes = 8192}, teams.at(team)).status();
  };
  Status status;
  if (args[0] == "barrier_allocate") {
    status = rank == 0 ? barrier() : allocate();
  } else if (args[0] == "two_teams") {
    status = rank == 0 ? allocate() : allocate_of("01");
  } else if (args[0] == "two_barriers") {
    status = rank == 0 ? barrier() : context.Barrier(teams.at("01"));
  } else if (args[0] == "three") {
    status = rank == 0   ? allocate_of("01")
             : rank == 1 ? allocate_of("12")
                         : context.Barrier(teams.at("20"));
  } else if (args[0] == "slow") {  // rank 2 computes
    if (rank == 2) AwaitGo();
    if (rank != 0) status = allocate_of("12");
    if (status.ok()) status = barrier();
  } else if (args[0] == "threads") {  // each rank makes both calls, by two threads
    Status other;
    std::promise<void> used;
    std::thread thread([&] {
      other = context.AllocateLocal({.bytes = 8}).status();
      used.set_value();
      AwaitGo();
      if (other.ok()) other = rank == 0 ? allocate() : barrier();
    });
    used.get_future().wait();
    status = rank == 0 ? barrier() : allocate();
    thread.join();
    if (status.ok()) status = other;
  }
  std::cout << "called: " << Text(status) << std::endl;
  return 0;
}

IRIS_KERNEL void AwaitOther(DeviceContext ctx, uint32_t from, const uint64_t* signal,
                            WaitReport report) {
  (void)AwaitSignal(ctx, from, signal, 7, report, Block{});
}

// A kernel of rank 0 waits for a signal, which rank 1 raises when it hears from the test.
int KernelThatWaits(const std::vector<std::string>&) {
  ContextOptions options = Small();
  options.timeout = std::chrono::minutes(10);
  Context context = Require(Context::Create(options));
  auto signal = Require(context.Allocate<uint64_t>(1, "signal"));
  auto stream = Require(Stream::Create(context));
  auto monitor = Require(WaitMonitor::Create(context));
  SignalOptions raise;
  raise.signal = signal.get();
  raise.value = 7;
  if (context.rank() == 0) {
    REQUIRE_OK(
        Launch({2, 40}, stream, AwaitOther, context.device_context(), 1, signal.get(), monitor));
  } else {
    AwaitGo();
    REQUIRE_OK(stream.Put(context, 0, signal.get(), nullptr, 0, raise));
  }
  REQUIRE_OK(monitor.Synchronize(stream));
  std::cout << "came" << std::endl;
  AwaitGo();
  return 0;
}

bool Refused(const char* what, const Status& status) {
  std::cout << "child: " << what << ": " << Text(status) << std::endl;
  return status.code() == StatusCode::kFailedPrecondition &&
         status.message().find("fork") != std::string::npos;
}

IRIS_KERNEL void Touch(DeviceContext ctx, uint64_t* words) { Store(ctx, ctx.rank, words, 1); }

// args[0]: "launched" if the parent has launched a kernel.
int ForkedChild(const std::vector<std::string>& args) {
  Context context = Require(Context::Create(Small()));
  auto words = Require(context.Allocate<int64_t>(512));
  int64_t* const at = words.get();
  const DeviceContext device = context.device_context();
  Stream stream;
  ccl::Communicator comm;
  const bool launched = args[0] == "launched";
  if (launched) {
    stream = Require(Stream::Create(context));
    comm = Require(ccl::Communicator::Create(context));
    REQUIRE_OK(Launch({1, 1}, stream, Touch, device, words.As<uint64_t>()));
  }
  std::cout.flush();
  const pid_t child = fork();
  if (child == 0) {
#if defined(IRIS_ASAN)
    in_forked_child = true;
#endif
    alarm(20);  // a hang
    REQUIRE(Refused("Context::Create", Context::Create(Small()).status()));
    REQUIRE(Refused("Barrier", context.Barrier()));
    REQUIRE(Refused("Allocate", context.Allocate({.bytes = 8}).status()));
    REQUIRE(Refused("Health", context.Health()));
    REQUIRE(Refused("Stream::Create", Stream::Create(context).status()));
    REQUIRE(Refused("Communicator::Create", ccl::Communicator::Create(context).status()));
    REQUIRE(Refused("DeviceArray", DeviceArray<int>::Create(context, 1).status()));
    if (!launched) {
      // The child's own emulator works, but not on heaps that it has not mapped.
      backend::Stream own;
      REQUIRE(backend::Stream::Create(&own).ok());
      const Result result = backend::Launch({1, 1}, own, Touch, device, words.As<uint64_t>());
      REQUIRE(Refused("Launch", Status(result.code, result.what)));
    } else {
      REQUIRE(Refused("Launch", Launch({1, 1}, stream, Touch, device, words.As<uint64_t>())));
      REQUIRE(Refused("Synchronize", stream.Synchronize()));
      REQUIRE(Refused("Put", stream.Put(context, 0, at, at + 1, 8)));
      REQUIRE(Refused("AllReduce", comm.AllReduce(at, at, 1, ccl::ReduceOp::kSum, stream)));
      REQUIRE(Refused("Barrier", comm.Barrier(stream)));
      REQUIRE(Refused("Check", comm.Check()));
      REQUIRE(Refused("Synchronize", comm.Synchronize(stream)));
      REQUIRE(Refused("Reset", comm.Reset()));
      REQUIRE(Refused("Destroy", comm.Destroy()));
    }
    std::cout << "child ends" << std::endl;
    std::exit(0);  // with all of atexit and the destructors of statics
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  // The parent and its peers are as before.
  if (launched) {
    REQUIRE_OK(stream.Synchronize());
    REQUIRE_OK(comm.AllReduce(at, at, 1, ccl::ReduceOp::kSum, stream));
    REQUIRE_OK(comm.Synchronize(stream));
    REQUIRE(*at == static_cast<int64_t>(context.n_ranks()));
  }
  REQUIRE_OK(context.Barrier());
  return 0;
}

// Prints the errors of calls that irisd refuses.
int RefusedCalls(const std::vector<std::string>&) {
  Context context = Require(Context::Create(Small()));
  uint64_t mine[10];
  for (const Status& status : {context.Allocate({.bytes = (256 << 20) + 5}).status(),
                               context.AllocateLocal({.bytes = 256 << 20}).status(),
                               context.Grow(uint64_t{1} << 40), context.CreateTeam({0, 0}).status(),
                               context.Register(mine, {.bytes = sizeof(mine)}).status()}) {
    std::cout << "refused: " << Text(status) << std::endl;
  }
  return 0;
}

class MistakesTest : public ::testing::Test {
 protected:
  // Runs the mistake on three ranks. Rank 1 ends by itself; the others hear of it at once, and each
  // of their calls says who it was.
  std::string WrongKernelOf(int mistake, int ends_with,
                            std::map<std::string, std::string> environment = {}) {
    RankProcesses ranks("wrong_kernel", 3,
                        {.runtime_dir = daemon_->runtime_dir(),
                         .job = absl::StrCat("mistake-", mistake),
                         .args = {absl::StrCat(mistake)},
                         .environment = std::move(environment)});
    for (const int peer : {0, 2}) {
      const std::string line = ranks.WaitLine(peer, "kernel ended with");
      EXPECT_THAT(line, ContainsRegex("kernel ended with 2 after [0-9]{1,4} ms"));  // kAborted
      EXPECT_THAT(ranks.WaitLine(peer, "ABORTED"), HasSubstr("rank 1 (pid "));
      EXPECT_THAT(ranks.WaitLine(peer, "host barrier"), HasSubstr("rank 1 (pid "));
      EXPECT_EQ(ranks.Wait(peer), 0);
    }
    EXPECT_EQ(ranks.Wait(1), 128 + ends_with);
    return ranks.Output(1);
  }

  // Every rank prints an error that begins so, names each of `places`, and says what to do.
  void ExpectStuck(const std::string& calls, int n_ranks, const std::vector<std::string>& places) {
    RankProcesses ranks("other_order", n_ranks, Calling(calls));
    for (int rank = 0; rank < n_ranks; ++rank) {
      const std::string line = ranks.WaitLine(rank, "called: ");
      EXPECT_THAT(line, ContainsRegex("called: INVALID_ARGUMENT: .*it cannot end, because ranks "
                                      "wait for each other: "));
      for (size_t other = 0; other < places.size(); ++other) {
        EXPECT_THAT(line, ContainsRegex(absl::StrCat("rank ", other, " \\(pid [0-9]+\\) is in ",
                                                     places[other])));
      }
      EXPECT_THAT(line, HasSubstr("make these calls in the same order on all ranks"));
    }
    ranks.ExpectAllSucceed();
  }
  RankProcesses::Options Calling(const std::string& calls) {
    RankProcesses::Options options;
    options.runtime_dir = daemon_->runtime_dir();
    options.job = calls;
    options.args = {calls};
    return options;
  }
  v1::ListWaitsReply Waits(const std::string& job) {
    grpc::ClientContext context;
    v1::ListWaitsRequest request;
    request.set_job(job);
    v1::ListWaitsReply reply;
    (void)daemon_->admin().ListWaits(&context, request, &reply);
    return reply;
  }
  // Waits until a call of the job, which begins with `call`, has waited for a second.
  v1::Wait AwaitWait(const std::string& job, const std::string& call) {
    for (const absl::Time end = absl::Now() + absl::Minutes(1); absl::Now() < end;) {
      const v1::ListWaitsReply reply = Waits(job);
      for (const v1::Wait& wait : reply.waits()) {
        if (wait.call().starts_with(call) && wait.waited_ms() >= 1000) return wait;
      }
    }
    ADD_FAILURE() << "no rank waits in " << call;
    return {};
  }

  void SetUp() override {
    auto daemon = Daemon::Start();
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
  }

  std::unique_ptr<Daemon> daemon_;
};

TEST_F(MistakesTest, AWrongPeer) {
  EXPECT_THAT(
      WrongKernelOf(0, SIGABRT),
      ContainsRegex("iris: rank 1: kernel iris::MakeMistake, block 0, thread 5: SignalSet of "
                    "8 bytes at 0x[0-9a-f]+ for rank 3: there is no rank 3 in a job of 3"));
}

TEST_F(MistakesTest, APointerOutsideTheHeap) {
  EXPECT_THAT(WrongKernelOf(1, SIGABRT),
              ContainsRegex("iris: rank 1: kernel iris::MakeMistake, block 0, thread 5: Store of 8 "
                            "bytes at 0x[0-9a-f]+ for rank 0: the address is outside the heap"));
}

TEST_F(MistakesTest, OneElementFurtherThanThereAre) {
  EXPECT_THAT(WrongKernelOf(2, SIGABRT),
              ContainsRegex("Store of 8 bytes at 0x[0-9a-f]+ for rank 0: words has 128 bytes, the "
                            "call 8 from byte 128 on.*the nearest allocation ends 0 bytes before: "
                            "\"words\" \\(offset [0-9]+ to [0-9]+\\)"));
}

TEST_F(MistakesTest, AMisalignedAtomic) {
  EXPECT_THAT(WrongKernelOf(3, SIGABRT),
              ContainsRegex("AtomicAdd of 8 bytes at 0x[0-9a-f]+ for rank 0: the address is not "
                            "aligned: it must be a multiple of 8.*4 bytes inside \"words\""));
}

#if !defined(IRIS_ASAN) && !defined(IRIS_TSAN)
TEST_F(MistakesTest, AFaultByAPlainPointer) {
  EXPECT_THAT(
      WrongKernelOf(4, SIGSEGV),
      ContainsRegex("iris: rank 1: kernel iris::MakeMistake, block 0, thread 5: it wrote to "
                    "0x[0-9a-f]+, where no memory is mapped.*of the heap of rank 2.*"
                    "\"words\""));
}
#endif

TEST_F(MistakesTest, ARankThatGaveUpFirstIsNotCalledMissing) {
  RankProcesses ranks("host_barrier", 3,
                      {.runtime_dir = daemon_->runtime_dir(), .args = {"2500", "200", "0"}});
  EXPECT_THAT(ranks.WaitLine(1, "host barrier"),
              ContainsRegex("missing: .*rank 2 \\(pid [0-9]+\\); .*`iris-ctl waits` shows"));
  EXPECT_THAT(
      ranks.WaitLine(0, "host barrier"),
      ContainsRegex("time is up after [0-9.]+s; missing: rank 2 \\(pid [0-9]+\\); rank 1 "
                    "\\(pid [0-9]+\\) came and gave up after [0-9.]+ms \\(its own timeout\\)"));
  ranks.TellAll("end");
  ranks.ExpectAllSucceed();
}

TEST_F(MistakesTest, ARefusedRankFailsTheJoinOfAllWhoWait) {
  RankProcesses ranks("refused_join", 3, {.runtime_dir = daemon_->runtime_dir()});
  ranks.Tell(0, "go");
  ranks.Tell(2, "go");
  AwaitWait("test", "join");
  ranks.Tell(1, "go");
  for (const int rank : {0, 2}) {
    EXPECT_THAT(ranks.WaitLine(rank, "joined: "),
                ContainsRegex("INVALID_ARGUMENT: .*rank 1 \\(pid [0-9]+\\) was refused, and no "
                              "rank joins without it: .*start all ranks again"));
  }
  ranks.ExpectAllSucceed();
}

TEST_F(MistakesTest, ARefusedRankFailsTheJoinOfAllWhoCome) {
  RankProcesses ranks("refused_join", 3, {.runtime_dir = daemon_->runtime_dir()});
  ranks.Tell(1, "go");
  EXPECT_THAT(ranks.WaitLine(1, "joined: "), HasSubstr("INVALID_ARGUMENT"));
  EXPECT_EQ(ranks.Wait(1), 0);
  for (const int rank : {0, 2}) {
    ranks.Tell(rank, "go");
    EXPECT_THAT(ranks.WaitLine(rank, "joined: "),
                ContainsRegex("INVALID_ARGUMENT: .*rank 1 \\(pid [0-9]+\\) was refused"));
  }
  ranks.ExpectAllSucceed();
}

TEST_F(MistakesTest, ABarrierAndAnAllocationThatWaitForEachOtherFail) {
  ExpectStuck("barrier_allocate", 2, {"host barrier #[0-9]+", "allocate #1"});
}
TEST_F(MistakesTest, AllocationsOfTwoTeamsInAnotherOrderFail) {
  ExpectStuck("two_teams", 2, {"allocate #1", "allocate #0 of team 1"});
}
TEST_F(MistakesTest, BarriersOfTwoTeamsInAnotherOrderFail) {
  ExpectStuck("two_barriers", 2, {"host barrier #[0-9]+", "host barrier #[0-9]+ of team 1"});
}
TEST_F(MistakesTest, ThreeRanksThatWaitForEachOtherFail) {
  ExpectStuck("three", 3,
              {"allocate #0 of team 1", "allocate #0 of team 2", "host barrier #[0-9]+ of team 3"});
}
TEST_F(MistakesTest, ARankThatComputesIsWaitedFor) {
  RankProcesses ranks("other_order", 3, Calling("slow"));
  AwaitWait("slow", "host barrier");
  AwaitWait("slow", "allocate");
  ranks.Tell(2, "go");
  for (const int rank : {0, 1, 2}) EXPECT_THAT(ranks.WaitLine(rank, "called: "), HasSubstr("OK"));
  ranks.ExpectAllSucceed();
}
TEST_F(MistakesTest, AKernelThatWaitsIsListed) {
  RankProcesses ranks("kernel_waits", 2, {.runtime_dir = daemon_->runtime_dir(), .job = "kernel"});
  const v1::Wait wait = AwaitWait("kernel", "kernel signal");
  EXPECT_EQ(wait.kind(), v1::WAIT_KIND_KERNEL);
  ASSERT_EQ(wait.waiting_size(), 1);
  EXPECT_EQ(wait.waiting(0).rank(), 0u);
  ASSERT_EQ(wait.missing_size(), 1);
  EXPECT_EQ(wait.missing(0).rank(), 1u);
  EXPECT_NE(wait.missing(0).pid(), 0);
  EXPECT_LT(wait.block(), 2u);
  EXPECT_EQ(wait.wanted(), 7u);
  EXPECT_EQ(wait.seen(), 0u);
  ranks.Tell(1, "go");
  for (const int rank : {0, 1}) ranks.WaitLine(rank, "came");
  EXPECT_EQ(Waits("kernel").waits_size(), 0);
  ranks.TellAll("go");
  ranks.ExpectAllSucceed();
}
TEST_F(MistakesTest, OtherThreadsOfARankAreWaitedFor) {
  RankProcesses ranks("other_order", 2, Calling("threads"));
  AwaitWait("threads", "host barrier");
  AwaitWait("threads", "allocate");
  ranks.TellAll("go");
  for (const int rank : {0, 1}) EXPECT_THAT(ranks.WaitLine(rank, "called: "), HasSubstr("OK"));
  ranks.ExpectAllSucceed();
}

TEST_F(MistakesTest, ErrorsSayTheCallOnceAndSizesWithUnits) {
  RankProcesses ranks("refused_calls", 1, Calling("refused"));
  for (const std::string expected :
       {"allocate 256 MiB \\(268435461 bytes\\) #0 \\(team 0\\): no room for 256 MiB \\(268435461 "
        "bytes\\) aligned to 1024 in a heap of 32 MiB: 32.0 MiB \\([0-9]+ bytes\\) free, .*; "
        "the heap cannot grow: .* more are needed, and 96 MiB of a maximum of 128 MiB are left",
        "allocate 256 MiB in its own heap #0 \\(rank 0 alone\\): no room for 256 MiB aligned",
        "grow the heap by 1 TiB #1 \\(team 0\\): no room; the heap cannot grow: 1 TiB more are",
        "create a team of 2 ranks #2 \\(team 0\\): rank 0 \\(pid [0-9]+\\): 2 ranks are more",
        "register 80 bytes at 0x[0-9a-f]+: at 0x[0-9a-f]+, there is private memory"}) {
    EXPECT_THAT(ranks.WaitLine(0, "refused: "), ContainsRegex("refused: [A-Z_]+: " + expected));
  }
  ranks.ExpectAllSucceed();
}

#ifndef IRIS_TSAN  // ThreadSanitizer ends a child that was forked from a program with threads
TEST_F(MistakesTest, AForkedChildGetsErrorsAndDoesNotHang) {
  for (const std::string when : {"before", "launched"}) {
    RankProcesses ranks(
        "forked_child", 2,
        {.runtime_dir = daemon_->runtime_dir(), .job = "forks-" + when, .args = {when}});
    ranks.ExpectAllSucceed();
    EXPECT_THAT(ranks.Output(0), HasSubstr("child ends"));
  }
}
#endif

}  // namespace
}  // namespace iris

int main(int argc, char** argv) {
  return iris::testing::TestMain(argc, argv,
                                 {{"wrong_kernel", iris::WrongKernel},
                                  {"forked_child", iris::ForkedChild},
                                  {"host_barrier", iris::HostBarrierWithTimeouts},
                                  {"kernel_waits", iris::KernelThatWaits},
                                  {"refused_join", iris::JoinOfARefusedRank},
                                  {"other_order", iris::CallsInAnotherOrder},
                                  {"refused_calls", iris::RefusedCalls}});
}
