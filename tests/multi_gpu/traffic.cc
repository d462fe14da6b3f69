// traffic: ranks in a ring that put blocks into the next rank's heap, with signals, and check every
// word of what they receive, until their time is up or a peer dies. tests/multi_gpu and
// iris-gpu-check kill ranks and irisd while it runs.
//
//   iris-run -n 4 -- traffic --seconds 5
//   rank 0 pid 4711 moves blocks on GPU-...
//   rank 0 launch 12 rounds 5280
//   rank 0 done: 9600 rounds, 0 wrong words
//
// With --collectives they all-reduce instead, in every variant in turn, and check every sum. With
// --products they multiply matrices, by each operation of iris::ops in each variant that the device
// has, and check every element.
//
// SIGTERM to rank 0 ends all ranks early. With --calls they also make calls of irisd between
// launches: they allocate, broadcast, make teams, let the heap grow, and check what comes of it.
//
// Exit code 0: all was right until the time was up. 3: a peer died; the output has the time (in
// seconds since 1970), the error, and a line on the data. 1: anything else, wrong data included.
//
// Each rank also has words of its own, written once. At the end it reads those of every rank, the
// dead one's too: they are still mapped, and must be as they were written.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "iris/ccl.h"
#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/ops.h"
#include "iris/stream.h"

namespace {

using iris::Block;
using iris::Compare;
using iris::WaitResult;
using iris::backend::BlockIndex;
using iris::backend::BlockSize;
using iris::backend::ThreadIndex;

constexpr uint32_t kLanes = 4;  // blocks of the grid, each with a mailbox
constexpr uint32_t kSlots = 4;
constexpr uint32_t kWords = 2048;
constexpr uint32_t kKeptWords = 1 << 18;
constexpr uint32_t kPassingWords = 1 << 14;

volatile sig_atomic_t told_to_end = 0;
constexpr uint64_t kSumWords = 1 << 18;
constexpr iris::ccl::Variant kVariants[] = {
    iris::ccl::Variant::kAuto,       iris::ccl::Variant::kPackets, iris::ccl::Variant::kTwoPackets,
    iris::ccl::Variant::kDirect,     iris::ccl::Variant::kTwoShot, iris::ccl::Variant::kTwoPhase,
    iris::ccl::Variant::kRing,       iris::ccl::Variant::kAtomic,  iris::ccl::Variant::kSpinlock,
    iris::ccl::Variant::kCopyEngine, iris::ccl::Variant::kLines,   iris::ccl::Variant::kTwoLines,
    iris::ccl::Variant::kPush};
// On emulated devices every element takes its time.
constexpr bool kEmulated = iris::backend::Traits::kEmulated;
// Of products: above 64 rows, and multiples of 8, so that every variant has them.
constexpr uint64_t kRows = kEmulated ? 72 : 1024;
constexpr uint64_t kColumns = kEmulated ? 32 : 512;
constexpr uint64_t kDepth = kEmulated ? 16 : 512;
constexpr iris::ops::Variant kProductVariants[] = {
    iris::ops::Variant::kFused, iris::ops::Variant::kPair, iris::ops::Variant::kPersistent,
    iris::ops::Variant::kCopyEngine};
constexpr iris::ops::Operation kProductOperations[] = {
    iris::ops::Operation::kMatmulAllReduce, iris::ops::Operation::kMatmulReduceScatter,
    iris::ops::Operation::kAllGatherMatmul, iris::ops::Operation::kMatmulAllGather,
    iris::ops::Operation::kMatmulAllScatter};
constexpr int kPeerDied = 3;
// A launch is to take about so long: most of the time a kernel is under way.
constexpr double kLaunchSeconds = 0.1;
constexpr uint64_t kRoundsMax = 1 << 20;

struct Mailbox {
  uint64_t ready;   // the last round that has arrived
  uint64_t credit;  // the last round that the receiver has read, told to the sender
  uint32_t outbox[kWords];
  uint32_t inbox[kSlots][kWords];
};

// What the kernels tell the host.
struct Report {
  uint64_t wrong_words;
  uint64_t finished_lanes;
};

IRIS_HOST_DEVICE inline uint32_t Word(uint64_t seed, uint32_t i) {
  uint32_t x = (static_cast<uint32_t>(seed) * 2654435761u) ^ (i * 40503u) ^
               static_cast<uint32_t>(seed >> 32);
  x ^= x >> 15;
  return x * 2246822519u;
}

IRIS_HOST_DEVICE inline uint64_t Seed(uint32_t rank, uint32_t lane, uint64_t round) {
  return (round * kLanes + lane) * iris::kMaxTeamRanks + rank;
}

// Rounds first .. first + n - 1 of one lane, counted from 1 over all launches. False if a wait
// failed. Counts this thread's wrong words.
IRIS_DEVICE inline bool MoveRounds(const iris::DeviceContext& ctx, Mailbox* box, uint32_t lane,
                                   uint64_t first, uint64_t n, uint64_t* wrong) {
  const uint32_t next = (ctx.rank + 1) % ctx.n_ranks;
  const uint32_t previous = (ctx.rank + ctx.n_ranks - 1) % ctx.n_ranks;
  for (uint64_t round = first; round < first + n; ++round) {
    const uint32_t slot = round % kSlots;
    const uint64_t read_before = round > kSlots ? round - kSlots : 0;
    if (iris::WaitUntil(ctx, &box->credit, Compare::kGe, read_before, Block{}) != WaitResult::kOk) {
      return false;
    }
    for (uint32_t i = ThreadIndex(); i < kWords; i += BlockSize()) {
      box->outbox[i] = Word(Seed(ctx.rank, lane, round), i);
    }
    iris::backend::BlockSync();
    iris::PutSignal(ctx, next, box->inbox[slot], box->outbox, kWords, {&box->ready, round},
                    Block{});
    if (iris::WaitUntil(ctx, &box->ready, Compare::kGe, round, Block{}) != WaitResult::kOk) {
      return false;
    }
    for (uint32_t i = ThreadIndex(); i < kWords; i += BlockSize()) {
      if (box->inbox[slot][i] != Word(Seed(previous, lane, round), i)) ++*wrong;
    }
    iris::backend::BlockSync();
    if (ThreadIndex() == 0) iris::SignalSet(ctx, previous, &box->credit, round);
  }
  return true;
}

IRIS_KERNEL void MoveKernel(iris::DeviceContext ctx, Mailbox* boxes, uint64_t first, uint64_t n,
                            Report* report) {
  uint64_t wrong = 0;
  const bool finished = MoveRounds(ctx, &boxes[BlockIndex()], BlockIndex(), first, n, &wrong);
  if (wrong > 0) {
    iris::backend::FetchOp<iris::AtomicOp::kAdd, iris::Scope::kSystem, iris::Order::kRelaxed>(
        &report->wrong_words, wrong);
  }
  if (finished && ThreadIndex() == 0) {
    iris::backend::FetchOp<iris::AtomicOp::kAdd, iris::Scope::kSystem, iris::Order::kRelaxed>(
        &report->finished_lanes, uint64_t{1});
  }
}

// What rank has in round `round` of the collectives.
IRIS_KERNEL void FillRound(uint32_t* x, uint64_t n, uint32_t rank, uint64_t round) {
  for (uint64_t i = BlockIndex() * BlockSize() + ThreadIndex(); i < n;
       i += iris::backend::GridSize() * BlockSize()) {
    x[i] = Word(Seed(rank, 0, round), static_cast<uint32_t>(i));
  }
}

// What the sum over the ranks has to be. Once a collective has failed, as its error word says, what
// it and those behind it leave is undefined.
IRIS_KERNEL void CheckRound(const uint32_t* sum, uint64_t n, uint32_t n_ranks, uint64_t round,
                            const uint64_t* error_word, Report* report) {
  if (iris::backend::Load<iris::Scope::kSystem, iris::Order::kRelaxed>(error_word) != 0) return;
  uint64_t wrong = 0;
  for (uint64_t i = BlockIndex() * BlockSize() + ThreadIndex(); i < n;
       i += iris::backend::GridSize() * BlockSize()) {
    uint32_t expected = 0;
    for (uint32_t r = 0; r < n_ranks; ++r) {
      expected += Word(Seed(r, 0, round), static_cast<uint32_t>(i));
    }
    if (sum[i] != expected) ++wrong;
  }
  if (wrong > 0) {
    iris::backend::FetchOp<iris::AtomicOp::kAdd, iris::Scope::kSystem, iris::Order::kRelaxed>(
        &report->wrong_words, wrong);
  }
}

// All elements of a rank's A in a round; those of B are 1.
IRIS_HOST_DEVICE inline uint32_t Factor(uint32_t rank, uint64_t round) {
  return 1 + static_cast<uint32_t>((round + 3 * rank) % 7);
}

IRIS_KERNEL void FillMatrix(uint16_t* x, uint64_t n, uint32_t value) {
  const iris::Bfloat16 element(static_cast<float>(value));
  for (uint64_t i = BlockIndex() * BlockSize() + ThreadIndex(); i < n;
       i += iris::backend::GridSize() * BlockSize()) {
    x[i] = element.bits;
  }
}

// What D has to be: of sums, or with rows or columns of each rank. As CheckRound of failures.
enum class Parts : uint32_t { kSum, kByRow, kByColumn };
IRIS_KERNEL void CheckProduct(const float* d, uint64_t rows, Parts parts, uint32_t n_ranks,
                              uint64_t round, const uint64_t* error_word, Report* report) {
  if (iris::backend::Load<iris::Scope::kSystem, iris::Order::kRelaxed>(error_word) != 0) return;
  uint64_t wrong = 0;
  for (uint64_t i = BlockIndex() * BlockSize() + ThreadIndex(); i < rows * kColumns;
       i += iris::backend::GridSize() * BlockSize()) {
    uint32_t factor = 0;
    uint64_t row = 0;
    uint64_t column = 0;
    for (uint32_t r = 0; r < n_ranks; ++r) {
      // The shares of a dimension: the first ranks have one more.
      row += kRows / n_ranks + (r < kRows % n_ranks ? 1 : 0);
      column += kColumns / n_ranks + (r < kColumns % n_ranks ? 1 : 0);
      if (parts == Parts::kSum) {
        factor += Factor(r, round);
      } else if (factor == 0 &&
                 (parts == Parts::kByRow ? i / kColumns < row : i % kColumns < column)) {
        factor = Factor(r, round);
      }
    }
    if (d[i] != static_cast<float>(kDepth * factor)) ++wrong;
  }
  if (wrong > 0) {
    iris::backend::FetchOp<iris::AtomicOp::kAdd, iris::Scope::kSystem, iris::Order::kRelaxed>(
        &report->wrong_words, wrong);
  }
}

IRIS_KERNEL void Keep(iris::DeviceContext ctx, uint32_t* kept) {
  for (uint32_t i = BlockIndex() * BlockSize() + ThreadIndex(); i < kKeptWords;
       i += iris::backend::GridSize() * BlockSize()) {
    kept[i] = Word(ctx.rank, i);
  }
}

int Fail(const std::string& what) {
  std::fprintf(stderr, "error: %s\n", what.c_str());
  return 1;
}

enum class Kind { kPuts, kCollectives, kProducts };

class Traffic {
 public:
  Traffic(iris::Context context, absl::Duration time, Kind kind, bool calls)
      : context_(std::move(context)),
        time_(time),
        kind_(kind),
        calls_(calls),
        rank_(context_.rank()) {}
  // No kernel runs any more: each has a deadline.
  ~Traffic() {
    if (stream_.get() == nullptr) return;
    const iris::Status ended = stream_.Synchronize();
    if (!ended.ok()) std::printf("rank %u: %s\n", rank_, ended.message().c_str());
  }
  Traffic(const Traffic&) = delete;
  Traffic& operator=(const Traffic&) = delete;

  int Run() {
    const iris::Status prepared = Prepare();
    if (!prepared.ok()) return Fail(prepared.message());
    std::printf("rank %u pid %d moves blocks on %s\n", rank_, getpid(),
                std::string(context_.device_uuid()).c_str());
    const iris::Status status = MoveUntilTheEnd();
    if (status.code() == iris::StatusCode::kAborted) {
      std::printf("rank %u was told at %.3f\n", rank_,
                  absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
      std::printf("rank %u stopped after %llu rounds: %s\n", rank_,
                  static_cast<unsigned long long>(rounds_), status.message().c_str());
    } else if (!status.ok()) {
      return Fail(status.message());
    }
    const iris::Status kept = CheckKept();
    if (!kept.ok()) return Fail(kept.message());
    std::printf("rank %u data intact: its own and that of %u peers\n", rank_,
                context_.n_ranks() - 1);
    if (report_->wrong_words != 0) {
      return Fail(std::to_string(report_->wrong_words) + " wrong words received");
    }
    if (!status.ok()) return kPeerDied;
    std::printf("rank %u done: %llu rounds, 0 wrong words\n", rank_,
                static_cast<unsigned long long>(rounds_));
    return 0;
  }

 private:
  iris::Status Prepare() {
    for (auto [bytes, name, to] : {std::tuple{sizeof(Mailbox) * kLanes, "mailboxes", &boxes_},
                                   std::tuple{kKeptWords * sizeof(uint32_t), "kept", &kept_},
                                   std::tuple{kSumWords * sizeof(uint32_t), "sums", &sums_},
                                   std::tuple{sizeof(uint64_t), "plan", &plan_}}) {
      IRIS_ASSIGN_OR_RETURN(*to, context_.Allocate({.bytes = bytes, .name = name}));
    }
    IRIS_ASSIGN_OR_RETURN(stream_, iris::Stream::Create(context_));
    IRIS_ASSIGN_OR_RETURN(report_, iris::HostArray<Report>::Create(context_));
    if (kind_ == Kind::kCollectives) {
      IRIS_ASSIGN_OR_RETURN(comm_, iris::ccl::Communicator::Create(context_));
    } else if (kind_ == Kind::kProducts) {
      IRIS_RETURN_IF_ERROR(PrepareProducts());
    }
    IRIS_RETURN_IF_ERROR(Finish(iris::Launch({.grid = 8, .block = 128}, stream_, Keep,
                                             context_.device_context(), kept_.As<uint32_t>())));
    return context_.Barrier();
  }

  static iris::ops::Shape ShapeOf(iris::ops::Variant variant) {
    iris::ops::Shape shape;
    shape.m = kRows;
    shape.n = kColumns;
    shape.k = kDepth;
    shape.out = iris::DType::kF32;
    shape.variant = variant;
    return shape;
  }

  // The communicator, the matrices, and what of all products this device has.
  iris::Status PrepareProducts() {
    iris::ccl::CommunicatorOptions options;
    for (const auto operation : kProductOperations) {
      for (const auto variant : kProductVariants) {
        const auto bytes = iris::ops::WorkspaceBytes(context_, operation, ShapeOf(variant));
        if (bytes.ok()) options.matmul_bytes = std::max(options.matmul_bytes, *bytes);
      }
    }
    IRIS_ASSIGN_OR_RETURN(comm_, iris::ccl::Communicator::Create(context_, options));
    for (const auto operation : kProductOperations) {
      for (const auto variant : kProductVariants) {
        const auto plan = iris::ops::Choose(comm_, operation, ShapeOf(variant));
        if (plan.ok()) products_.push_back({operation, variant});
      }
    }
    for (auto [bytes, name, to] : {std::tuple{kRows * kDepth * sizeof(uint16_t), "a", &a_},
                                   std::tuple{kDepth * kColumns * sizeof(uint16_t), "b", &b_},
                                   std::tuple{kRows * kColumns * sizeof(float), "d", &d_}}) {
      IRIS_ASSIGN_OR_RETURN(*to, context_.Allocate({.bytes = bytes, .name = name}));
    }
    return iris::Launch(FillLaunch(), stream_, FillMatrix, b_.As<uint16_t>(), kDepth * kColumns,
                        1u);
  }
  static iris::LaunchConfig FillLaunch() { return {.grid = kEmulated ? 1u : 64u, .block = 128}; }

  // What was put on the stream with `status` has ended.
  iris::Status Finish(const iris::Status& status) {
    return status.ok() ? stream_.Synchronize() : status;
  }

  // Rank 0 decides how many rounds the next launch has, so that it takes about kLaunchSeconds; 0
  // ends all ranks.
  iris::StatusOr<uint64_t> Plan(uint64_t proposal) {
    // All have read the last plan.
    IRIS_RETURN_IF_ERROR(context_.Barrier());
    for (uint32_t to = 0; rank_ == 0 && to < context_.n_ranks(); ++to) {
      IRIS_RETURN_IF_ERROR(Finish(
          stream_.Copy(context_.Translate(to, plan_.As<uint64_t>()), &proposal, sizeof(proposal))));
    }
    IRIS_RETURN_IF_ERROR(context_.Barrier());
    uint64_t plan = 0;
    IRIS_RETURN_IF_ERROR(Finish(stream_.Copy(&plan, plan_.As<uint64_t>(), sizeof(plan))));
    return plan;
  }

  iris::Status Move(uint64_t n) {
    report_->finished_lanes = 0;
    const iris::Status ended = Finish(
        iris::Launch({.grid = kLanes, .block = 128}, stream_, MoveKernel, context_.device_context(),
                     boxes_.As<Mailbox>(), rounds_ + 1, n, report_.get()));
    if (!ended.ok() || report_->finished_lanes == kLanes) return ended;
    IRIS_RETURN_IF_ERROR(context_.Health());  // names who died
    return iris::Status(iris::StatusCode::kDeadlineExceeded, "a block did not come in time");
  }

  // Puts so many rounds on the stream and waits for them.
  iris::Status Communicate(uint64_t n) {
    const iris::Status put = kind_ == Kind::kProducts ? PutProducts(n) : PutReductions(n);
    // A failure of an earlier one, which Synchronize explains.
    const iris::Status ended = comm_.Synchronize(stream_);
    return ended.ok() ? put : ended;
  }

  iris::Status PutProducts(uint64_t n) {
    using iris::ops::Operation;
    const uint64_t* const error_word = comm_.error_word();
    for (uint64_t round = rounds_ + 1; round <= rounds_ + n; ++round) {
      const auto [operation, variant] = products_[round % products_.size()];
      IRIS_RETURN_IF_ERROR(iris::Launch(FillLaunch(), stream_, FillMatrix, a_.As<uint16_t>(),
                                        kRows * kDepth, Factor(rank_, round)));
      const iris::ops::Shape shape = ShapeOf(variant);
      const uint64_t share =
          kColumns / context_.n_ranks() + (rank_ < kColumns % context_.n_ranks() ? 1 : 0);
      const iris::ops::ConstMatrix a = {a_.As<uint16_t>(), kDepth};
      iris::ops::ConstMatrix b = {b_.As<uint16_t>(), kColumns};
      const iris::ops::Matrix d = {d_.As<float>(), kColumns};
      uint64_t rows = kRows;
      Parts parts = Parts::kByRow;
      iris::Status status;
      switch (operation) {
        case Operation::kMatmulAllReduce:
          parts = Parts::kSum;
          status = iris::ops::MatmulAllReduce(comm_, shape, a, b, d, stream_);
          break;
        case Operation::kMatmulReduceScatter:
          parts = Parts::kSum;
          rows = kRows / context_.n_ranks() + (rank_ < kRows % context_.n_ranks() ? 1 : 0);
          status = iris::ops::MatmulReduceScatter(comm_, shape, a, b, d, stream_);
          break;
        case Operation::kAllGatherMatmul:
          status = iris::ops::AllGatherMatmul(comm_, shape, a, b, d, stream_);
          break;
        case Operation::kMatmulAllGather:
          status = iris::ops::MatmulAllGather(comm_, shape, a, b, d, stream_);
          break;
        default:
          parts = Parts::kByColumn;
          b.ld = (share + 7) / 8 * 8;
          status = iris::ops::MatmulAllScatter(comm_, shape, a, b, d, stream_);
          break;
      }
      IRIS_RETURN_IF_ERROR(status);
      IRIS_RETURN_IF_ERROR(iris::Launch(FillLaunch(), stream_, CheckProduct,
                                        static_cast<const float*>(d_.As<float>()), rows, parts,
                                        context_.n_ranks(), round, error_word, report_.get()));
    }
    return iris::Status();
  }

  iris::Status PutReductions(uint64_t n) {
    const uint64_t largest = kEmulated ? kSumWords / 64 : kSumWords;
    uint32_t* const x = sums_.As<uint32_t>();
    const iris::LaunchConfig launch = FillLaunch();
    const uint64_t* const error_word = comm_.error_word();
    for (uint64_t round = rounds_ + 1; round <= rounds_ + n; ++round) {
      const uint64_t count = round * 7919 % largest + 1;
      const auto variant = kVariants[round % std::size(kVariants)];
      IRIS_RETURN_IF_ERROR(iris::Launch(launch, stream_, FillRound, x, count, rank_, round));
      IRIS_RETURN_IF_ERROR(comm_.AllReduce(x, x, count, iris::DType::kI32,
                                           iris::ccl::ReduceOp::kSum, stream_, variant));
      IRIS_RETURN_IF_ERROR(iris::Launch(launch, stream_, CheckRound,
                                        static_cast<const uint32_t*>(x), count, context_.n_ranks(),
                                        round, error_word, report_.get()));
    }
    return iris::Status();
  }

  iris::Status MoveUntilTheEnd() {
    const absl::Time end = absl::Now() + time_;
    uint64_t proposal = 16;
    for (uint64_t launch = 1;; ++launch) {
      const bool more = absl::Now() < end && told_to_end == 0;
      IRIS_ASSIGN_OR_RETURN(const uint64_t n, Plan(more ? proposal : 0));
      if (n == 0) return iris::Status();
      const absl::Time start = absl::Now();
      IRIS_RETURN_IF_ERROR(kind_ == Kind::kPuts ? Move(n) : Communicate(n));
      rounds_ += n;
      if (calls_) IRIS_RETURN_IF_ERROR(Call(launch));
      std::printf("rank %u launch %llu rounds %llu\n", rank_,
                  static_cast<unsigned long long>(launch),
                  static_cast<unsigned long long>(rounds_));
      const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
      if (seconds < kLaunchSeconds / 2 && n < kRoundsMax) proposal = n * 2;
      if (seconds > kLaunchSeconds * 2 && n > 1) proposal = n / 2;
    }
  }

  // What needs irisd. Nothing of it stays but more heap.
  iris::Status Call(uint64_t launch) {
    const uint32_t n = context_.n_ranks();
    IRIS_ASSIGN_OR_RETURN(const iris::Allocation passing,
                          context_.Allocate({.bytes = kPassingWords * sizeof(uint32_t),
                                             .name = "launch " + std::to_string(launch)}));
    std::vector<uint32_t> words(kPassingWords);
    const uint32_t first = static_cast<uint32_t>(launch * kPassingWords);
    for (uint32_t i = 0; i < kPassingWords; ++i) words[i] = Word(rank_, first + i);
    IRIS_RETURN_IF_ERROR(
        Finish(stream_.Copy(passing.address, words.data(), kPassingWords * sizeof(uint32_t))));
    IRIS_RETURN_IF_ERROR(context_.Barrier());
    for (uint32_t from = 0; from < n; ++from) {
      IRIS_RETURN_IF_ERROR(
          Finish(stream_.Copy(words.data(), context_.Translate(from, passing.As<uint32_t>()),
                              kPassingWords * sizeof(uint32_t))));
      for (uint32_t i = 0; i < kPassingWords; ++i) {
        if (words[i] != Word(from, first + i)) {
          return iris::Status(iris::StatusCode::kDataLoss, "a passing word is wrong");
        }
      }
    }
    const uint32_t root = static_cast<uint32_t>(launch % n);
    IRIS_ASSIGN_OR_RETURN(const uint64_t heard, context_.BroadcastValue(launch, root));
    if (heard != launch) {
      return iris::Status(iris::StatusCode::kDataLoss, "a broadcast has another value");
    }
    IRIS_ASSIGN_OR_RETURN(const iris::Team team, context_.Split(static_cast<int>(rank_ % 2)));
    IRIS_RETURN_IF_ERROR(context_.Barrier(team));
    IRIS_RETURN_IF_ERROR(context_.DestroyTeam(team));
    if (launch % 16 == 0 && launch <= 64) IRIS_RETURN_IF_ERROR(context_.Grow(1 << 20));
    return context_.Free(passing);
  }

  // What every rank wrote at the beginning is there, in every heap that is mapped here.
  iris::Status CheckKept() {
    std::vector<uint32_t> words(kKeptWords);
    for (uint32_t from = 0; from < context_.n_ranks(); ++from) {
      IRIS_RETURN_IF_ERROR(
          Finish(stream_.Copy(words.data(), context_.Translate(from, kept_.As<uint32_t>()),
                              kKeptWords * sizeof(uint32_t))));
      for (uint32_t i = 0; i < kKeptWords; ++i) {
        if (words[i] != Word(from, i)) {
          return iris::Status(iris::StatusCode::kDataLoss,
                              "word " + std::to_string(i) + " that rank " + std::to_string(from) +
                                  " kept is wrong");
        }
      }
    }
    return iris::Status();
  }

  iris::Context context_;
  const absl::Duration time_;
  const Kind kind_;
  const bool calls_;
  const uint32_t rank_;
  iris::Allocation boxes_, kept_, sums_, plan_;
  iris::ccl::Communicator comm_;  // not for puts
  std::vector<std::pair<iris::ops::Operation, iris::ops::Variant>> products_;
  iris::Allocation a_, b_, d_;
  iris::Stream stream_;
  iris::HostArray<Report> report_;
  uint64_t rounds_ = 0;
};

int Main(int argc, char** argv) {
  signal(SIGTERM, [](int) { told_to_end = 1; });
  setvbuf(stdout, nullptr, _IOLBF, 0);
  uint64_t seconds = 5, heap_mib = 64;
  Kind kind = Kind::kPuts;
  bool calls = false;
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--collectives") == 0 || strcmp(argv[i], "--products") == 0) {
      kind = argv[i][2] == 'c' ? Kind::kCollectives : Kind::kProducts;
      continue;
    }
    if (strcmp(argv[i], "--calls") == 0) {
      calls = true;
      continue;
    }
    char* end = nullptr;
    uint64_t* const to = strcmp(argv[i], "--seconds") == 0    ? &seconds
                         : strcmp(argv[i], "--heap-mib") == 0 ? &heap_mib
                                                              : nullptr;
    if (to == nullptr || i + 1 == argc || (*to = strtoull(argv[++i], &end, 10), *end != '\0')) {
      std::fprintf(stderr,
                   "usage: traffic [--seconds N] [--heap-mib N] "
                   "[--collectives | --products] [--calls]\n");
      return 2;
    }
  }
  iris::StatusOr<iris::Context> context =
      iris::Context::Create({.heap_bytes = heap_mib << 20,
                             .max_heap_bytes = (calls ? 4 : 1) * (heap_mib << 20),
                             .timeout = std::chrono::seconds(20)});
  if (!context.ok()) return Fail(context.status().message());
  return Traffic(*std::move(context), absl::Seconds(seconds), kind, calls).Run();
}

}  // namespace

int main(int argc, char** argv) { return Main(argc, argv); }
