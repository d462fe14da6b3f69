// Sequences of random operations on one communicator: collectives of all variants and products, of
// any size, one after another or in graphs that are replayed among them, while members come late.
// What an operation leaves in the workspace must not be taken for another one's, and none may
// overwrite what a slower member still reads there.
//
// Numbers are small and whole, so that all sums are exact, whatever their order. IRIS_TEST_SEED=N
// begins with another program, IRIS_MIX_PROGRAMS says how many there are.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "iris/collective/collective.h"
#include "iris/device.h"
#include "iris/ops/ops.h"
#include "iris/rounds/layout.h"
#include "tests/conformance/values.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

using ccl::Comm;
using ccl::Operation;
using ops::ShareOf;

// A call, as all members make it.
struct Call {
  Operation operation = Operation::kNone;
  ccl::Variant variant = ccl::Variant::kAuto;
  uint64_t count = 0;  // as the operation's function gets it
  uint32_t root = 0;
  uint32_t blocks = 0;
  uint32_t threads = 0;
  uint32_t away = 0;  // a bit for each member whose buffers are not in the heap
  ops::Problem problem;
  uint32_t seed = 0;
  // Where its buffers lie, in elements of 4 bytes from the begin of an arena.
  uint64_t in = 0;
  uint64_t more = 0;  // B of a product
  uint64_t out = 0;
};

constexpr ccl::Variant kVariants[] = {
    ccl::Variant::kAuto,       ccl::Variant::kPackets,    ccl::Variant::kDirect,
    ccl::Variant::kTwoShot,    ccl::Variant::kTwoPackets, ccl::Variant::kTwoPhase,
    ccl::Variant::kCopyEngine, ccl::Variant::kRing,       ccl::Variant::kAtomic,
    ccl::Variant::kSpinlock,   ccl::Variant::kLines,      ccl::Variant::kTwoLines,
    ccl::Variant::kPush};
constexpr Operation kProducts[] = {Operation::kMatmulAllReduce, Operation::kMatmulReduceScatter,
                                   Operation::kAllGatherMatmul, Operation::kMatmulAllGather,
                                   Operation::kMatmulAllScatter};
constexpr Operation kCollectives[] = {
    Operation::kAllReduce, Operation::kAllReduce, Operation::kReduceScatter, Operation::kAllGather,
    Operation::kAllToAll,  Operation::kBroadcast, Operation::kReduce,        Operation::kGather,
    Operation::kScatter,   Operation::kBarrier};

constexpr uint64_t kArena = 600'000;  // elements
constexpr uint32_t kCalls = 40;

ccl::Config MixConfig() {
  ccl::Config config;
  config.max_blocks = 4;
  // Small, so that calls need many rounds.
  config.packet_bytes = 256;
  config.line_bytes = 8 << 10;
  config.push_bytes = 4 << 10;
  config.stage_bytes = 2 << 10;
  return config;
}

bool IsProduct(const Call& call) { return ccl::IsMatmul(call.operation); }

uint64_t InCount(const Call& call, uint32_t n) {
  switch (call.operation) {
    case Operation::kReduceScatter:
    case Operation::kAllToAll:
    case Operation::kScatter:
      return call.count * n;
    default:
      return call.count;
  }
}
uint64_t OutCount(const Call& call, uint32_t n) {
  switch (call.operation) {
    case Operation::kAllGather:
    case Operation::kAllToAll:
    case Operation::kGather:
      return call.count * n;
    default:
      return call.count;
  }
}

float Value(const Call& call, uint32_t member, uint64_t i) {
  return static_cast<float>(
      static_cast<int32_t>(Mix(call.seed ^ Mix(member * 0x10001u + static_cast<uint32_t>(i))) % 5) -
      2);
}
// Of A and B; (i, j) count in the member's own part.
float ValueA(const Call& call, uint32_t member, uint64_t i, uint64_t j) {
  return Value(call, 100 + member, i * 1000 + j);
}
float ValueB(const Call& call, uint32_t member, uint64_t i, uint64_t j) {
  return Value(call, 200 + member, i * 1000 + j);
}

std::vector<Call> Program(uint32_t seed, uint32_t n) {
  std::mt19937 random(seed);
  const auto below = [&](uint32_t x) { return static_cast<uint32_t>(random() % x); };
  std::vector<Call> calls;
  uint64_t at = 0;
  const auto take = [&](uint64_t count) {
    const uint64_t begin = at + below(4);
    at = (begin + count + 64 + 63) / 64 * 64;
    return begin;
  };
  while (calls.size() < kCalls) {
    Call call;
    call.seed = random();
    if (below(4) == 0) {
      call.operation = kProducts[below(5)];
      ops::Problem& p = call.problem;
      p = {call.operation,
           {1 + below(90), 1 + below(80), 1 + below(40), DType::kBf16, DType::kF32}};
      if (below(2) == 0) p.in = DType::kF16;
      p.transposed_b = below(2) == 0;
      const ops::Variant variants[] = {ops::Variant::kAuto, ops::Variant::kFused,
                                       ops::Variant::kPair, ops::Variant::kCopyEngine};
      p.variant = variants[below(call.operation == Operation::kAllGatherMatmul ? 4 : 3)];
      call.in = take(p.m * p.k);
      call.more = take(p.k * p.n);
      call.out = take(p.m * p.n) / 4 * 4;
    } else {
      call.operation = kCollectives[below(std::size(kCollectives))];
      call.variant = kVariants[below(std::size(kVariants))];
      constexpr uint32_t kMost[] = {4, 40, 400, 3000};
      call.count = call.operation == Operation::kBarrier ? 0 : 1 + below(kMost[below(4)]);
      call.root = below(n);
      call.blocks = below(3) == 0 ? 1 + below(4) : 0;
      call.threads = below(3) == 0 ? 32 * (1 + below(3)) : 0;
      if (call.variant != ccl::Variant::kCopyEngine && below(3) == 0) call.away = below(1u << n);
      call.in = take(call.count * n);
      call.out = take(call.count * n);
    }
    if (at > kArena) break;
    calls.push_back(call);
  }
  return calls;
}

class Player {
 public:
  Player(Rank& rank, uint64_t products_bytes) : rank_(rank), n_(rank.n()), me_(rank.rank()) {
    ccl::CommOptions options;
    options.context = rank.ctx;
    options.team = rank.ctx.world;
    options.config = MixConfig();
    options.workspace_bytes = ccl::WorkspaceBytes(n_, options.config) + products_bytes;
    options.workspace = rank.New<uint8_t>(options.workspace_bytes);
    report_ = static_cast<ccl::ErrorReport*>(backend::MallocHost(sizeof(ccl::ErrorReport)));
    *report_ = {};
    options.report = report_;
    ExpectOk(ops::CreateResources(&resources_));
    options.products = resources_.get();
    RequireOk(ccl::CreateComm(options, &comm_));
    ExpectOk(ops::Prepare());
    heap_ = rank.New<float>(kArena);
    away_ = static_cast<float*>(backend::MallocDevice(kArena * sizeof(float)));
    rank.HostBarrier();
  }
  ~Player() {
    ccl::ReleaseComm(&comm_);
    backend::FreeDevice(away_);
    backend::FreeHost(report_);
  }

  // False after a failure.
  bool Play(uint32_t seed) {
    const std::vector<Call> calls = Program(seed, n_);
    Fill(calls);
    rank_.HostBarrier();
    // Late at random, each member otherwise; what is captured, all alike.
    std::mt19937 own(seed * 64 + me_);
    std::mt19937 alike(seed + 7);
    std::vector<std::unique_ptr<backend::Graph>> graphs;
    for (uint32_t first = 0; first < calls.size();) {
      if (own() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 400));
      const uint32_t left = static_cast<uint32_t>(calls.size()) - first;
      const uint32_t count = std::min<uint32_t>(left, 1 + alike() % 5);
      const bool captured = alike() % 3 == 0;
      if (captured) ExpectOk(backend::BeginCapture(rank_.stream));
      for (uint32_t k = 0; k < count; ++k) {
        const Result result = Launch(calls[first + k]);
        EXPECT_TRUE(result.ok()) << NameOf(calls[first + k]) << ": " << result.what;
      }
      if (captured) {
        graphs.push_back(std::make_unique<backend::Graph>());
        ExpectOk(backend::EndCapture(rank_.stream, graphs.back().get()));
        ExpectOk(backend::LaunchGraph(*graphs.back(), rank_.stream));
      }
      // Graphs of before come again, among what follows.
      while (!graphs.empty() && alike() % 3 == 0) {
        ExpectOk(backend::LaunchGraph(*graphs[alike() % graphs.size()], rank_.stream));
      }
      first += count;
    }
    rank_.Synchronize();
    const Result error = ccl::CheckError(comm_);
    EXPECT_TRUE(error.ok()) << "program " << seed << ": " << error.what;
    bool good = error.ok();
    const std::vector<float> heap = rank_.Read(heap_, kArena);
    const std::vector<float> away = rank_.Read(away_, kArena);
    for (uint32_t k = 0; good && k < calls.size(); ++k) {
      good = Check(calls[k], IsAway(calls[k]) ? away : heap,
                   "program " + std::to_string(seed) + ", call " + std::to_string(k));
    }
    rank_.HostBarrier();
    return good;
  }

  // As a Comm's owner resets it; rounds begin at `epoch`.
  void Reset(uint32_t epoch) {
    rank_.HostBarrier();
    ExpectOk(ccl::PrepareWorkspace(comm_, rank_.stream));
    rank_.Synchronize();
    for (uint32_t b = 0; b < comm_.config.max_blocks; ++b) {
      ccl::impl::BlockState state = {};
      state.epoch = epoch;
      rank_.Write(
          AtOffset<ccl::impl::BlockState>(rank_.ctx, me_,
                                          comm_.workspace_offset_bytes +
                                              ccl::impl::OffsetsOf(n_, comm_.config).sync_bytes +
                                              b * ccl::impl::SyncBytes(n_)),
          state);
    }
    ccl::ResetError(comm_);
    rank_.HostBarrier();
  }

 private:
  bool IsAway(const Call& call) const { return (call.away >> me_ & 1) != 0; }
  float* Base(const Call& call) const { return IsAway(call) ? away_ : heap_; }

  // A's and B's rows and columns, of this member.
  struct Parts {
    uint64_t a_rows, first_row, columns, first_column, d_rows;
  };
  Parts PartsOf(const ops::Problem& p, uint32_t m) const {
    const ops::Share rows = ShareOf(p.m, n_, m);
    const ops::Share columns = ShareOf(p.n, n_, m);
    Parts parts = {p.m, 0, p.n, 0, p.m};
    if (p.operation == Operation::kAllGatherMatmul || p.operation == Operation::kMatmulAllGather) {
      parts.a_rows = rows.count;
      parts.first_row = rows.begin;
    }
    if (p.operation == Operation::kMatmulAllScatter) {
      parts.columns = columns.count;
      parts.first_column = columns.begin;
    }
    if (p.operation == Operation::kMatmulReduceScatter) {
      parts.first_row = rows.begin;
      parts.d_rows = rows.count;
    }
    return parts;
  }
  static bool Sums(const ops::Problem& p) {
    return p.operation == Operation::kMatmulAllReduce ||
           p.operation == Operation::kMatmulReduceScatter;
  }

  void Fill(const std::vector<Call>& calls) {
    std::vector<float> heap(kArena, -1000), away(kArena, -1000);
    for (const Call& call : calls) {
      if (IsProduct(call)) {
        const ops::Problem& p = call.problem;
        const Parts parts = PartsOf(p, me_);
        uint8_t* a = reinterpret_cast<uint8_t*>(heap.data() + call.in);
        uint8_t* b = reinterpret_cast<uint8_t*>(heap.data() + call.more);
        const uint64_t first = p.operation == Operation::kMatmulReduceScatter ? 0 : parts.first_row;
        const uint32_t whose = Sums(p) ? me_ : 0;
        for (uint64_t i = 0; i < parts.a_rows; ++i) {
          for (uint64_t j = 0; j < p.k; ++j) {
            Put(p.in, ValueA(call, whose, first + i, j), a + (i * p.k + j) * 2);
          }
        }
        for (uint64_t i = 0; i < p.k; ++i) {
          for (uint64_t j = 0; j < parts.columns; ++j) {
            const uint64_t place = p.transposed_b ? j * p.k + i : i * parts.columns + j;
            Put(p.in, ValueB(call, whose, i, parts.first_column + j), b + place * 2);
          }
        }
        continue;
      }
      std::vector<float>& to = IsAway(call) ? away : heap;
      for (uint64_t i = 0; i < InCount(call, n_); ++i) to[call.in + i] = Value(call, me_, i);
    }
    rank_.Write(heap_, heap);
    rank_.Write(away_, away);
  }

  Result Launch(const Call& call) {
    Comm comm = comm_;
    comm.config.blocks = call.blocks;
    comm.config.block_threads = call.threads;
    float* const base = Base(call);
    float* const in = base + call.in;
    float* const out = base + call.out;
    backend::Stream& stream = rank_.stream;
    constexpr ccl::ReduceOp kSum = ccl::ReduceOp::kSum;
    constexpr DType kType = DType::kF32;
    switch (call.operation) {
      case Operation::kAllReduce:
        return ccl::AllReduce(comm, in, out, call.count, kType, kSum, stream, call.variant);
      case Operation::kReduceScatter:
        return ccl::ReduceScatter(comm, in, out, call.count, kType, kSum, stream, call.variant);
      case Operation::kReduce:
        return ccl::Reduce(comm, in, out, call.count, kType, kSum, call.root, stream, call.variant);
      case Operation::kAllGather:
        return ccl::AllGather(comm, in, out, call.count, kType, stream, call.variant);
      case Operation::kAllToAll:
        return ccl::AllToAll(comm, in, out, call.count, kType, stream, call.variant);
      case Operation::kBroadcast:
        return ccl::Broadcast(comm, in, out, call.count, kType, call.root, stream, call.variant);
      case Operation::kGather:
        return ccl::Gather(comm, in, out, call.count, kType, call.root, stream, call.variant);
      case Operation::kScatter:
        return ccl::Scatter(comm, in, out, call.count, kType, call.root, stream, call.variant);
      case Operation::kBarrier:
        return ccl::Barrier(comm, stream);
      default:
        break;
    }
    const ops::Problem& p = call.problem;
    ops::Matmul matmul;
    matmul.problem = p;
    matmul.a = in;
    matmul.lda = p.k;
    matmul.b = base + call.more;
    matmul.ldb = p.transposed_b ? p.k : PartsOf(p, me_).columns;
    matmul.d = out;
    matmul.ldd = p.n;
    return ops::Launch(comm_, matmul, stream);
  }

  float Expected(const Call& call, uint64_t i) const {
    const uint64_t count = call.count;
    if (IsProduct(call)) {
      const ops::Problem& p = call.problem;
      const uint64_t row =
          i / p.n +
          (p.operation == Operation::kMatmulReduceScatter ? PartsOf(p, me_).first_row : 0);
      const uint64_t column = i % p.n;
      float sum = 0;
      for (uint32_t m = 0; m < (Sums(p) ? n_ : 1); ++m) {
        for (uint64_t k = 0; k < p.k; ++k) {
          sum += ValueA(call, m, row, k) * ValueB(call, m, k, column);
        }
      }
      return sum;
    }
    float sum = 0;
    switch (call.operation) {
      case Operation::kAllReduce:
      case Operation::kReduce:
        for (uint32_t m = 0; m < n_; ++m) sum += Value(call, m, i);
        return sum;
      case Operation::kReduceScatter:
        for (uint32_t m = 0; m < n_; ++m) sum += Value(call, m, me_ * count + i);
        return sum;
      case Operation::kAllGather:
      case Operation::kGather:
        return Value(call, static_cast<uint32_t>(i / count), i % count);
      case Operation::kAllToAll:
        return Value(call, static_cast<uint32_t>(i / count), me_ * count + i % count);
      case Operation::kScatter:
        return Value(call, call.root, me_ * count + i);
      default:
        return Value(call, call.root, i);
    }
  }

  bool Check(const Call& call, const std::vector<float>& all, const std::string& what) {
    uint64_t count = OutCount(call, n_);
    const bool rooted =
        call.operation == Operation::kReduce || call.operation == Operation::kGather;
    if (rooted && call.root != me_) count = 0;
    if (IsProduct(call)) count = PartsOf(call.problem, me_).d_rows * call.problem.n;
    for (uint64_t i = 0; i < count; ++i) {
      const float expected = Expected(call, i);
      if (all[call.out + i] == expected) continue;
      ADD_FAILURE() << what << ", " << NameOf(call) << ": member " << me_ << " of " << n_
                    << ", element " << i << " is " << all[call.out + i] << ", not " << expected;
      return false;
    }
    return true;
  }

  static std::string NameOf(const Call& call) {
    std::string name = ccl::OperationName(call.operation);
    if (IsProduct(call)) {
      return name + " " + ops::VariantName(call.problem.variant) + " " +
             std::to_string(call.problem.m) + "x" + std::to_string(call.problem.n) + "x" +
             std::to_string(call.problem.k);
    }
    return name + " " + ccl::VariantName(call.variant) + " of " + std::to_string(call.count) +
           ", blocks " + std::to_string(call.blocks) + ", away " + std::to_string(call.away);
  }

  Rank& rank_;
  const uint32_t n_;
  const uint32_t me_;
  Comm comm_;
  ccl::ErrorReport* report_;
  std::unique_ptr<ops::Resources> resources_;
  float* heap_;
  float* away_;
};

class MixTest : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, MixTest, testing::Values(2, 3, 4));

uint32_t FromEnvironment(const char* name, uint32_t usual) {
  const char* const given = std::getenv(name);
  return given == nullptr ? usual : static_cast<uint32_t>(std::atoi(given));
}

TEST_P(MixTest, NoOperationMeetsWhatAnotherLeft) {
  const uint32_t first = FromEnvironment("IRIS_TEST_SEED", 1);
  const uint32_t programs = FromEnvironment("IRIS_MIX_PROGRAMS", 12 / kSlower + 1);
  const uint32_t n = GetParam();
  uint64_t bytes = 0;
  for (const Operation operation : kProducts) {
    for (const ops::Variant variant : {ops::Variant::kAuto, ops::Variant::kFused,
                                       ops::Variant::kPair, ops::Variant::kCopyEngine}) {
      ops::Problem p = {operation, {96, 96, 48, DType::kBf16, DType::kF32}};
      p.variant = variant;
      bytes = std::max(bytes, ops::WorkspaceBytes(n, MixConfig(), p));
    }
  }
  World(n, (16 << 20) + bytes).Run([&](Rank& rank) {
    Player player(rank, bytes);
    for (uint32_t k = 0; k < programs; ++k) {
      if (!player.Play(first + k)) break;
      constexpr uint32_t kEpochs[] = {0, 0xffffff80u, 0xfffffff7u, 12345};
      if (k % 3 == 2) player.Reset(kEpochs[k / 3 % 4]);
    }
  });
}

}  // namespace
}  // namespace iris::conformance
