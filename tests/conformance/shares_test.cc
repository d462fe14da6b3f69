// Several communicators on a stream each, whose operations every rank launches in another order,
// on devices that do not have room for all blocks at once. They all come to their end: see
// iris/rounds/residency.h. On emulated devices IRIS_EMU_RESIDENT_BLOCKS makes them so small.
//
// IRIS_SHARES_SECONDS=S goes on with fresh orders for S seconds, eager and in graphs.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "iris/collective/collective.h"
#include "iris/norm/norm.h"
#include "iris/ops/ops.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

using ccl::Comm;
using ccl::Operation;

constexpr bool kEmulated = backend::Traits::kEmulated;
// Operations that stop each other end by this time, and then the test has failed.
constexpr uint64_t kStuckNs = 20ull * 1000 * 1000 * 1000;
constexpr uint64_t kMostElements = kEmulated ? 6000 : 1 << 20;
constexpr uint32_t kHidden = kEmulated ? 2048 : 8192;  // several blocks share a row
constexpr uint32_t kRows = kEmulated ? 3 : 32;
constexpr uint32_t kDimension = kEmulated ? 48 : 512;  // of products

struct Setting {
  uint32_t ranks;
  uint32_t comms;
  bool products;  // the first communicator has them
};

enum class Kind : uint32_t { kReduce, kGather, kScatter, kRing, kBarrier, kNorm, kProduct };

// A call of one communicator, the same on all ranks.
struct Call {
  Kind kind = Kind::kBarrier;
  uint64_t count = 0;
};

int32_t ValueOf(uint32_t member, uint64_t i) {
  return static_cast<int32_t>((member + 1) * (i % 977 + 1));
}

std::vector<Call> CallsOf(std::mt19937* random, uint32_t n, bool products) {
  std::vector<Call> calls(n);
  for (Call& call : calls) {
    call.kind = static_cast<Kind>((*random)() % (products ? 7 : 6));
    call.count = 1 + (*random)() % ((*random)() % 3 == 0 ? kMostElements : kMostElements / 64);
  }
  return calls;
}

class SharesTest : public testing::TestWithParam<Setting> {};

std::string NameOf(const testing::TestParamInfo<Setting>& info) {
  return std::to_string(info.param.ranks) + "Ranks" + std::to_string(info.param.comms) + "Comms" +
         (info.param.products ? "WithProducts" : "");
}

INSTANTIATE_TEST_SUITE_P(Settings, SharesTest,
                         testing::Values(Setting{2, 2, false}, Setting{3, 3, false},
                                         Setting{4, 2, true}, Setting{3, 4, true}),
                         NameOf);

void ExpectOk(const Result& result) { ASSERT_TRUE(result.ok()) << result.what; }

// What one rank has of one communicator.
struct Member {
  Comm comm;
  backend::Stream stream;
  int32_t* in = nullptr;
  int32_t* out = nullptr;
  float* row = nullptr;
  float* normed = nullptr;
  uint16_t* matrix = nullptr;
  float* product = nullptr;
  uint64_t n_done = 0;
};

ops::Matmul ProductOf(const Member& member) {
  ops::Matmul call;
  call.problem.operation = Operation::kMatmulAllReduce;
  call.problem.m = call.problem.n = call.problem.k = kDimension;
  call.problem.in = DType::kBf16;
  call.problem.out = DType::kF32;
  call.a = call.b = member.matrix;
  call.d = member.product;
  call.lda = call.ldb = call.ldd = kDimension;
  return call;
}

Result Launch(Member& member, const Call& call) {
  const uint32_t n = member.comm.team.size;
  const uint32_t me = member.comm.team.index;
  const uint64_t each = std::max<uint64_t>(1, call.count / n);
  switch (call.kind) {
    case Kind::kReduce:
      return AllReduce(member.comm, member.in, member.out, call.count, DType::kI32,
                       ccl::ReduceOp::kSum, member.stream);
    case Kind::kGather:
      return AllGather(member.comm, member.in, member.out, each, DType::kI32, member.stream);
    case Kind::kScatter:
      return ReduceScatter(member.comm, member.in, member.out, each, DType::kI32,
                           ccl::ReduceOp::kSum, member.stream);
    case Kind::kRing:
      return SendRecv(member.comm, member.in, call.count, (me + 1) % n, member.out, call.count,
                      (me + n - 1) % n, DType::kI32, member.stream);
    case Kind::kNorm: {
      norm::Norm norm;
      norm.problem.operation = Operation::kAllReduceRmsNorm;
      norm.problem.rows = kRows;
      norm.problem.hidden = kHidden;
      norm.problem.in = norm.problem.out = DType::kF32;
      norm.in = member.row;
      norm.out = member.normed;
      return norm::Launch(member.comm, norm, member.stream);
    }
    case Kind::kProduct:
      return ops::Launch(member.comm, ProductOf(member), member.stream);
    default:
      return Barrier(member.comm, member.stream);
  }
}

// What the last call of each kind has left in a communicator's buffers.
void Check(Rank& rank, const Member& member, const std::vector<Call>& calls) {
  const uint32_t n = member.comm.team.size;
  const uint32_t me = member.comm.team.index;
  const auto last = std::find_if(calls.rbegin(), calls.rend(),
                                 [](const Call& call) { return call.kind <= Kind::kRing; });
  if (last != calls.rend()) {
    const uint64_t each = std::max<uint64_t>(1, last->count / n);
    const uint64_t count = last->kind == Kind::kGather    ? each * n
                           : last->kind == Kind::kScatter ? each
                                                          : last->count;
    const std::vector<int32_t> got = rank.Read(member.out, count);
    uint64_t n_wrong = 0;
    for (uint64_t i = 0; i < count; ++i) {
      int32_t wanted = 0;
      const uint64_t at = last->kind == Kind::kScatter ? me * each + i : i;
      if (last->kind == Kind::kGather) {
        wanted = ValueOf(static_cast<uint32_t>(i / each), i % each);
      } else if (last->kind == Kind::kRing) {
        wanted = ValueOf((me + n - 1) % n, i);
      } else {
        for (uint32_t m = 0; m < n; ++m) wanted += ValueOf(m, at);
      }
      n_wrong += got[i] != wanted ? 1 : 0;
    }
    EXPECT_EQ(n_wrong, 0u) << "kind " << static_cast<uint32_t>(last->kind) << ", " << last->count;
  }
  const auto has = [&](Kind kind) {
    return std::any_of(calls.begin(), calls.end(), [&](const Call& c) { return c.kind == kind; });
  };
  if (has(Kind::kNorm)) {
    // Rows of one number are normed to ones.
    for (const float x : rank.Read(member.normed, uint64_t{kRows} * kHidden)) {
      if (std::fabs(x - 1) < 1e-3f) continue;
      ADD_FAILURE() << "a normed number is " << x;
      break;
    }
  }
  if (has(Kind::kProduct)) {
    for (const float x : rank.Read(member.product, uint64_t{kDimension} * kDimension)) {
      if (x == static_cast<float>(kDimension * n)) continue;
      ADD_FAILURE() << "an element of a product is " << x;
      break;
    }
  }
}

// A communicator of all ranks, with room for products where they are wanted.
Member NewMember(Rank& rank, const Setting& setting, bool products) {
  Member member;
  ccl::Config config;
  config.max_blocks = kEmulated ? 8 : 128;
  if (kEmulated) config.blocks = config.packet_blocks = config.line_blocks = config.max_blocks;
  config.timeout_ns = kStuckNs;
  ccl::CommOptions options;
  options.context = rank.ctx;
  options.team = rank.ctx.world;
  options.config = config;
  options.workspace_bytes =
      products ? ops::WorkspaceBytes(setting.ranks, config, ProductOf(member).problem)
               : ccl::WorkspaceBytes(setting.ranks, config);
  options.workspace = rank.New<uint8_t>(options.workspace_bytes);
  options.report = static_cast<ccl::ErrorReport*>(backend::MallocHost(sizeof(ccl::ErrorReport)));
  *options.report = {};
  RequireOk(backend::Stream::Create(&member.stream));
  RequireOk(CreateComm(options, &member.comm));
  const uint64_t elements = kMostElements + 64;
  member.in = rank.New<int32_t>(elements);
  member.out = rank.New<int32_t>(elements);
  member.row = rank.New<float>(uint64_t{kRows} * kHidden);
  member.normed = rank.New<float>(uint64_t{kRows} * kHidden);
  member.matrix = rank.New<uint16_t>(uint64_t{kDimension} * kDimension);
  member.product = rank.New<float>(uint64_t{kDimension} * kDimension);
  std::vector<int32_t> values(elements);
  for (uint64_t i = 0; i < elements; ++i) values[i] = ValueOf(rank.rank(), i);
  rank.Write(member.in, values);
  rank.Write(member.row,
             std::vector<float>(uint64_t{kRows} * kHidden, static_cast<float>(rank.rank() + 1)));
  const uint16_t one = 0x3f80;  // as bf16
  rank.Write(member.matrix, std::vector<uint16_t>(uint64_t{kDimension} * kDimension, one));
  return member;
}

TEST_P(SharesTest, OperationsEndInAnyOrderOnAnyRank) {
  const Setting setting = GetParam();
  const char* const seconds = std::getenv("IRIS_SHARES_SECONDS");
  const double limit = seconds != nullptr ? std::atof(seconds) : 0;
  const char* const seed = std::getenv("IRIS_TEST_SEED");
  const uint32_t first_seed = seed != nullptr ? static_cast<uint32_t>(std::atoi(seed)) : 1;
  const uint32_t n_calls = kEmulated ? 6 : 12;
  const uint32_t least_rounds = kEmulated ? 3 : 20;
  std::vector<uint64_t> n_launched(setting.ranks);
  std::vector<uint32_t> n_rounds(setting.ranks);
  const auto begun = std::chrono::steady_clock::now();
  bool go_on = true;  // as rank 0 says
  World(setting.ranks, kEmulated ? 64 << 20 : uint64_t{2} << 30, kStuckNs).Run([&](Rank& rank) {
    std::vector<Member> members(setting.comms);
    for (uint32_t c = 0; c < setting.comms; ++c) {
      members[c] = NewMember(rank, setting, setting.products && c == 0);
    }
    ExpectOk(norm::Prepare());
    if (setting.products) ExpectOk(ops::Prepare());
    rank.HostBarrier();  // all have loaded their kernels
    for (uint32_t round = 0; go_on && !testing::Test::HasFailure(); ++round) {
      std::mt19937 common(first_seed + 1000 * round);
      std::vector<std::vector<Call>> calls;
      for (uint32_t c = 0; c < setting.comms; ++c) {
        calls.push_back(CallsOf(&common, n_calls, setting.products && c == 0));
      }
      // This rank's own order of what the streams get.
      std::mt19937 own(common() + rank.rank());
      std::vector<uint32_t> order;
      for (uint32_t c = 0; c < setting.comms; ++c) order.insert(order.end(), n_calls, c);
      std::shuffle(order.begin(), order.end(), own);
      // The first rounds are eager: what is captured keeps its room.
      if (round % 2 == 0 || round < least_rounds / 2) {
        std::vector<uint32_t> next(setting.comms);
        for (const uint32_t c : order) ExpectOk(Launch(members[c], calls[c][next[c]++]));
      } else {
        std::vector<backend::Graph> graphs(setting.comms);
        for (uint32_t c = 0; c < setting.comms; ++c) {
          ExpectOk(backend::BeginCapture(members[c].stream));
          for (const Call& call : calls[c]) ExpectOk(Launch(members[c], call));
          ExpectOk(backend::EndCapture(members[c].stream, &graphs[c]));
        }
        std::vector<uint32_t> replays;
        for (uint32_t k = 0; k < 2 * setting.comms; ++k) replays.push_back(k % setting.comms);
        std::shuffle(replays.begin(), replays.end(), own);
        for (const uint32_t c : replays) {
          ExpectOk(backend::LaunchGraph(graphs[c], members[c].stream));
        }
        for (Member& member : members) ExpectOk(member.stream.Synchronize());
      }
      n_launched[rank.rank()] += order.size();
      for (uint32_t c = 0; c < setting.comms; ++c) {
        ExpectOk(members[c].stream.Synchronize());
        ccl::ErrorInfo info;
        const Result failed = CheckError(members[c].comm, &info);
        EXPECT_TRUE(failed.ok()) << "rank " << rank.rank() << ", communicator " << c << " in round "
                                 << round << ": " << ccl::OperationName(info.operation)
                                 << " number " << info.sequence << ", member " << info.member_index
                                 << ": " << failed.what;
        if (failed.ok()) Check(rank, members[c], calls[c]);
      }
      ++n_rounds[rank.rank()];
      rank.HostBarrier();
      if (rank.rank() == 0) {
        const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begun;
        go_on = round + 1 < least_rounds || spent.count() < limit;
      }
      rank.HostBarrier();
    }
    for (Member& member : members) {
      ReleaseComm(&member.comm);
      backend::FreeHost(member.comm.report);
    }
  });
  printf("%u ranks, %u communicators%s: %u rounds, %llu calls of each rank, room for %u blocks\n",
         setting.ranks, setting.comms, setting.products ? ", products" : "", n_rounds[0],
         static_cast<unsigned long long>(n_launched[0]), backend::ResidentBlocks());
}

// As many as there is no room for: the last one is refused, and what it is refused for can be read.
TEST(ShareTest, WhereNothingIsLeftACommIsRefused) {
  const uint32_t slots = backend::ResidentBlocks();
  if (slots == 0) {
    GTEST_SKIP()
        << "this device takes any number of blocks, so that no Comm is refused: the test's "
           "target limits emulated ones by IRIS_EMU_RESIDENT_BLOCKS";
  }
  ccl::Config config;
  config.stage_bytes = 4 << 10;
  config.packet_bytes = 1 << 10;
  config.max_blocks = config.packet_blocks = config.line_blocks = 1;
  config.line_bytes = 64 << 10;
  const uint64_t bytes = ccl::WorkspaceBytes(2, config);
  World world(2, (1 << 20) + (slots + 2) * (bytes + 256));
  Rank& rank = world.rank(0);
  ccl::ErrorReport* const report =
      static_cast<ccl::ErrorReport*>(backend::MallocHost(sizeof(ccl::ErrorReport)));
  ccl::CommOptions options;
  options.context = rank.ctx;
  options.team = rank.ctx.world;
  options.config = config;
  options.workspace_bytes = bytes;
  options.report = report;
  options.name = "a name that is longer than what is kept of it, by far";
  std::vector<Comm> comms;
  Result result;
  while (result.ok() && comms.size() <= slots) {
    Comm made;
    options.workspace = rank.New<uint8_t>(bytes);
    result = CreateComm(options, &made);
    if (result.ok()) comms.push_back(made);
  }
  EXPECT_EQ(comms.size(), slots);
  EXPECT_EQ(result.code, StatusCode::kResourceExhausted) << result.what;
  std::vector<ccl::ShareInfo> shares(slots + 1);
  EXPECT_EQ(ccl::ListShares(shares.data(), slots + 1), slots);
  EXPECT_EQ(shares[0].blocks, 1u);
  EXPECT_EQ(shares[0].members, 2u);
  EXPECT_EQ(std::string(shares[0].name), std::string(options.name).substr(0, 47));
  // What is released can be had again.
  ReleaseComm(&comms.back());
  ReleaseComm(&comms.back());
  options.workspace = rank.New<uint8_t>(bytes);
  result = CreateComm(options, &comms.back());
  EXPECT_TRUE(result.ok()) << result.what;
  for (Comm& comm : comms) ReleaseComm(&comm);
  EXPECT_EQ(ccl::ListShares(nullptr, 0), 0u);
  backend::FreeHost(report);
}

}  // namespace
}  // namespace iris::conformance
