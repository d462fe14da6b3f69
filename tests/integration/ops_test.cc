// iris::ops with ranks that are real processes, on a real irisd: results, and what its errors say.
// tests/nodes/nodes_test.py runs the scenarios on two nodes.
#include "iris/ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/job_fixture.h"
#include "tests/integration/rank_processes.h"
#include "tests/integration/require.h"

namespace iris::ops {
namespace {

using ccl::Communicator;
using ccl::CommunicatorOptions;
using iris::testing::RankProcesses;
using iris::testing::Text;
using ::testing::HasSubstr;

constexpr Operation kOperations[] = {Operation::kMatmulAllReduce, Operation::kMatmulReduceScatter,
                                     Operation::kAllGatherMatmul, Operation::kMatmulAllGather,
                                     Operation::kMatmulAllScatter};

ContextOptions Small() {
  ContextOptions options;
  options.heap_bytes = 64 << 20;
  options.timeout = std::chrono::seconds(60);
  return options;
}

// The share of a member, as iris/ops_types.h says.
std::pair<uint64_t, uint64_t> ShareOf(uint64_t dimension, uint64_t n, uint64_t member) {
  const uint64_t begin = member * (dimension / n) + std::min(member, dimension % n);
  return {begin, dimension / n + (member < dimension % n ? 1 : 0)};
}

// A small number, which bf16 has, as its bits.
int32_t Number(uint64_t i) { return static_cast<int32_t>(i % 7) - 3; }
uint16_t Bits(int32_t number) {
  const float value = static_cast<float>(number);
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>(bits >> 16);
}

constexpr Shape kShape = {.m = 37, .n = 29, .k = 45, .in = DType::kBf16, .out = DType::kF32};

// The matrices of a rank. Element (i, e) of A is Number(3 i + e + rank), that of B (e, j) likewise;
// where members have parts of one matrix, i and j count in the whole and the rank does not matter.
struct Matrices {
  std::vector<uint16_t> a, b;
  Allocation d;
  uint64_t columns = 0;
};

bool Sums(Operation operation) {
  return operation == Operation::kMatmulAllReduce || operation == Operation::kMatmulReduceScatter;
}

StatusOr<Matrices> Make(Context& context, Operation operation) {
  const uint64_t n = context.n_ranks(), me = context.rank();
  const auto rows = ShareOf(kShape.m, n, me), columns = ShareOf(kShape.n, n, me);
  const bool own_rows =
      operation == Operation::kAllGatherMatmul || operation == Operation::kMatmulAllGather;
  const bool own_columns = operation == Operation::kMatmulAllScatter;
  const uint64_t a_first = own_rows ? rows.first : 0, a_rows = own_rows ? rows.second : kShape.m;
  const uint64_t b_first = own_columns ? columns.first : 0;
  const uint64_t salt = Sums(operation) ? me : 0;
  Matrices made;
  made.columns = own_columns ? columns.second : kShape.n;
  for (uint64_t i = 0; i < a_rows; ++i) {
    for (uint64_t e = 0; e < kShape.k; ++e) {
      made.a.push_back(Bits(Number(3 * (a_first + i) + e + salt)));
    }
  }
  for (uint64_t e = 0; e < kShape.k; ++e) {
    for (uint64_t j = 0; j < made.columns; ++j) {
      made.b.push_back(Bits(Number(e + 2 * (b_first + j) + salt)));
    }
  }
  auto d = context.Allocate({.bytes = kShape.m * kShape.n * sizeof(float)});
  if (!d.ok()) return d.status();
  made.d = *d;
  return made;
}

Status Call(Communicator& comm, Operation operation, const Shape& shape, const Matrices& x,
            Stream& stream) {
  const ConstMatrix a = {x.a.data(), shape.k}, b = {x.b.data(), x.columns};
  const Matrix d = {x.d.address, shape.n};
  switch (operation) {
    case Operation::kMatmulAllReduce:
      return MatmulAllReduce(comm, shape, a, b, d, stream);
    case Operation::kMatmulReduceScatter:
      return MatmulReduceScatter(comm, shape, a, b, d, stream);
    case Operation::kAllGatherMatmul:
      return AllGatherMatmul(comm, shape, a, b, d, stream);
    case Operation::kMatmulAllGather:
      return MatmulAllGather(comm, shape, a, b, d, stream);
    default:
      return MatmulAllScatter(comm, shape, a, b, d, stream);
  }
}

// What all devices have.
struct Way {
  Operation operation;
  Variant variant;
};
std::vector<Way> Ways() {
  std::vector<Way> ways;
  for (const Operation operation : kOperations) {
    for (const Variant variant : {Variant::kFused, Variant::kPair}) {
      ways.push_back({operation, variant});
    }
  }
  ways.push_back({Operation::kAllGatherMatmul, Variant::kCopyEngine});
  return ways;
}

StatusOr<Communicator> MakeComm(const Context& context) {
  CommunicatorOptions options;
  std::vector<Way> ways = Ways();
  for (const Operation operation : kOperations) ways.push_back({operation, Variant::kAuto});
  for (const Way& way : ways) {
    Shape shape = kShape;
    shape.variant = way.variant;
    auto bytes = WorkspaceBytes(context, way.operation, shape);
    if (!bytes.ok()) return bytes.status();
    options.matmul_bytes = std::max(options.matmul_bytes, *bytes);
  }
  return Communicator::Create(context, options);
}

int Results(const std::vector<std::string>&) {
  auto context = Context::Create(Small());
  REQUIRE_OK(context);
  const uint64_t n = context->n_ranks(), me = context->rank();
  auto stream = Stream::Create(*context);
  REQUIRE_OK(stream);
  auto comm = MakeComm(*context);
  REQUIRE_OK(comm);
  std::vector<Way> ways;
  for (const Operation operation : kOperations) ways.push_back({operation, Variant::kAuto});
  const bool one_node = context->n_local() == n;
  if (one_node) ways.push_back({Operation::kAllGatherMatmul, Variant::kCopyEngine});
  for (const auto& [operation, variant] : ways) {
    auto x = Make(*context, operation);
    REQUIRE_OK(x);
    REQUIRE_OK(context->Barrier());
    Shape named = kShape;
    named.variant = variant;
    auto plan = Choose(*comm, operation, named);
    REQUIRE_OK(plan);
    REQUIRE(plan->variant != Variant::kAuto && plan->blocks > 0 && !plan->multiplier.empty());
    REQUIRE(variant == Variant::kAuto || plan->variant == variant);
    REQUIRE(one_node || plan->variant == Variant::kPair);
    REQUIRE_OK(Call(*comm, operation, named, *x, *stream));
    REQUIRE_OK(comm->Synchronize(*stream));
    const bool scatters = operation == Operation::kMatmulReduceScatter;
    const auto rows = ShareOf(kShape.m, n, me);
    const float* d = x->d.As<float>();
    for (uint64_t i = 0; i < (scatters ? rows.second : kShape.m); ++i) {
      for (uint64_t j = 0; j < kShape.n; ++j) {
        int64_t sum = 0;
        for (uint64_t member = 0; member < (Sums(operation) ? n : 1); ++member) {
          for (uint64_t e = 0; e < kShape.k; ++e) {
            const uint64_t row = scatters ? rows.first + i : i;
            sum += int64_t{Number(3 * row + e + member)} * Number(e + 2 * j + member);
          }
        }
        REQUIRE(d[i * kShape.n + j] == static_cast<float>(sum));
      }
    }
    REQUIRE_OK(context->Barrier());
  }
  // Refused before anything starts, and the communicator goes on.
  auto x = Make(*context, Operation::kMatmulAllReduce);
  REQUIRE_OK(x);
  const auto refused = [&](Shape shape, const char* text) {
    const Status status = Call(*comm, Operation::kMatmulAllReduce, shape, *x, *stream);
    if (!status.ok() && std::string(status.message()).find(text) != std::string::npos) return true;
    std::cout << "not refused for " << text << ": " << Text(status) << std::endl;
    return false;
  };
  Shape shape = kShape;
  shape.k = 0;
  REQUIRE(refused(shape, "matmul_all_reduce(m=37, n=29, k=0, bf16 to f32): m, n and k"));
  shape = kShape;
  shape.m = uint64_t{1} << 40;
  REQUIRE(refused(shape, "2^31 - 1"));
  shape = kShape;
  shape.in = DType::kF64;
  REQUIRE(refused(shape, "f16 or bf16"));
  if (n > 1) {
    shape = kShape;
    shape.m = shape.k = 20000;
    auto small = Choose(*comm, Operation::kAllGatherMatmul, shape);
    REQUIRE(!small.ok() && small.status().code() == StatusCode::kResourceExhausted);
    // D of the others cannot be reached where it is not in the heap.
    std::vector<float> own(kShape.m * kShape.n);
    x->d.address = own.data();
    REQUIRE(refused(kShape, "symmetric heap"));
  }
  if (!one_node) {
    shape = kShape;
    shape.variant = Variant::kFused;
    REQUIRE(refused(shape, "the variant fused needs ranks that map each other's memory"));
  }
  REQUIRE_OK(comm->Barrier(*stream));
  REQUIRE_OK(comm->Synchronize(*stream));
  REQUIRE_OK(comm->Destroy());
  return 0;
}

// Lines of products in the rules choose the variant, on the same results; then tables that differ.
int FollowsRules(const std::vector<std::string>&) {
  auto context = Context::Create(Small());
  REQUIRE_OK(context);
  auto stream = Stream::Create(*context);
  REQUIRE_OK(stream);
  const Operation operation = Operation::kMatmulAllReduce;
  auto x = Make(*context, operation);
  REQUIRE_OK(x);
  const uint64_t bytes = kShape.m * kShape.n * sizeof(float);
  std::vector<char> usual(bytes);
  const auto make = [&](const std::string& rules, bool room) {
    CommunicatorOptions options;
    options.rules = rules;
    auto needed = WorkspaceBytes(*context, operation, kShape, 0, room ? rules : "");
    if (!needed.ok()) return StatusOr<Communicator>(needed.status());
    options.matmul_bytes = *needed;
    return Communicator::Create(*context, options);
  };
  // What auto runs without a table, and the other one of the two that all devices have.
  auto plain = make("", true);
  REQUIRE_OK(plain);
  auto by_itself = Choose(*plain, operation, kShape);
  REQUIRE_OK(by_itself);
  const Variant other = by_itself->variant == Variant::kPair ? Variant::kFused : Variant::kPair;
  REQUIRE_OK(Call(*plain, operation, kShape, *x, *stream));
  REQUIRE_OK(plain->Synchronize(*stream));
  std::memcpy(usual.data(), x->d.address, bytes);
  const std::string head = absl::StrCat("# products\nmatmul_all_reduce any 40 32 any ");
  auto comm = make(head + VariantName(other), true);
  REQUIRE_OK(comm);
  auto plan = Choose(*comm, operation, kShape);
  REQUIRE_OK(plan);
  REQUIRE(plan->variant == other);
  std::memset(x->d.address, 1, bytes);
  REQUIRE_OK(context->Barrier());
  REQUIRE_OK(Call(*comm, operation, kShape, *x, *stream));
  REQUIRE_OK(comm->Synchronize(*stream));
  REQUIRE(std::memcmp(usual.data(), x->d.address, bytes) == 0);
  // A named variant goes before the table, and a call that no line reaches goes by itself.
  Shape shape = kShape;
  shape.variant = by_itself->variant;
  plan = Choose(*comm, operation, shape);
  REQUIRE(plan.ok() && plan->variant == by_itself->variant);
  shape = kShape;
  shape.m = 9;
  plan = Choose(*comm, operation, shape);
  REQUIRE(plan.ok() && plan->variant == by_itself->variant);
  // What has no room is passed over, in a workspace for auto alone.
  for (const Operation each : kOperations) {
    const std::string table = absl::StrCat(ccl::OperationName(each), " any any any any pair");
    auto least = WorkspaceBytes(*context, each, kShape);
    auto all = WorkspaceBytes(*context, each, kShape, 0, table);
    REQUIRE(least.ok() && all.ok() && *least <= *all);
    for (const uint64_t room : {*least, *all}) {
      CommunicatorOptions options;
      options.rules = table;
      options.matmul_bytes = room;
      auto made = Communicator::Create(*context, options);
      REQUIRE_OK(made);
      plan = Choose(*made, each, kShape);
      REQUIRE_OK(plan);
      REQUIRE(plan->variant == (room == *all ? Variant::kPair : by_itself->variant));
      if (room == *least && room != *all) {
        auto y = Make(*context, each);
        REQUIRE_OK(y);
        REQUIRE_OK(Call(*made, each, kShape, *y, *stream));
        REQUIRE_OK(made->Synchronize(*stream));
        std::cout << "no room for " << ccl::OperationName(each) << std::endl;
      }
      REQUIRE_OK(made->Destroy());
    }
  }
  // What does not have the call is passed over, too.
  Shape persistent = kShape;
  persistent.variant = Variant::kPersistent;
  if (Choose(*comm, operation, persistent).status().code() == StatusCode::kUnimplemented) {
    auto passes = make(head + "persistent", true);
    REQUIRE_OK(passes);
    plan = Choose(*passes, operation, kShape);
    REQUIRE(plan.ok() && plan->variant == by_itself->variant);
    std::memset(x->d.address, 1, bytes);
    REQUIRE_OK(context->Barrier());
    REQUIRE_OK(Call(*passes, operation, kShape, *x, *stream));
    REQUIRE_OK(passes->Synchronize(*stream));
    REQUIRE(std::memcmp(usual.data(), x->d.address, bytes) == 0);
  }
  // Wrong lines are refused with their number, before anything starts.
  auto wrong = make("\n" + head + "two_shot", false);
  REQUIRE(!wrong.ok() && wrong.status().code() == StatusCode::kInvalidArgument);
  std::cout << "wrong " << Text(wrong.status()) << std::endl;
  REQUIRE(!WorkspaceBytes(*context, operation, kShape, 0, head + "two_shot").ok());
  // Each rank its own table: told as any calls that differ.
  auto differs = make(context->rank() == 1 ? head + "fused" : head + "pair", false);
  REQUIRE_OK(differs);
  REQUIRE_OK(Call(*differs, operation, kShape, *x, *stream));
  std::cout << "error " << Text(differs->Synchronize(*stream)) << std::endl;
  return 0;
}

// Rank 1 calls another shape, and everybody is told both; then Reset, and all goes on.
int Differs(const std::vector<std::string>&) {
  auto context = Context::Create(Small());
  REQUIRE_OK(context);
  auto stream = Stream::Create(*context);
  REQUIRE_OK(stream);
  auto comm = MakeComm(*context);
  REQUIRE_OK(comm);
  auto x = Make(*context, Operation::kMatmulAllReduce);
  REQUIRE_OK(x);
  Shape shape = kShape;
  if (context->rank() == 1) shape.m = 36;
  REQUIRE_OK(Call(*comm, Operation::kMatmulAllReduce, shape, *x, *stream));
  std::cout << "error " << Text(comm->Synchronize(*stream)) << std::endl;
  REQUIRE_OK(context->Barrier());
  REQUIRE_OK(comm->Reset());
  auto y = Make(*context, Operation::kAllGatherMatmul);
  REQUIRE_OK(y);
  REQUIRE_OK(Call(*comm, Operation::kAllGatherMatmul, kShape, *y, *stream));
  REQUIRE_OK(comm->Synchronize(*stream));
  return 0;
}

// One rank dies among many calls of an operation.
int Killed(const std::vector<std::string>& args) {
  const auto [operation, variant] = Ways().at(std::stoul(args.at(0)));
  Shape shape = kShape;
  shape.variant = variant;
  auto context = Context::Create(Small());
  REQUIRE_OK(context);
  auto stream = Stream::Create(*context);
  REQUIRE_OK(stream);
  auto comm = MakeComm(*context);
  REQUIRE_OK(comm);
  auto x = Make(*context, operation);
  REQUIRE_OK(x);
  REQUIRE_OK(Call(*comm, operation, shape, *x, *stream));
  REQUIRE_OK(comm->Synchronize(*stream));
  // What a rank keeps beside the operation: words of its own in every heap.
  constexpr uint64_t kKept = 4096;
  auto kept = context->Allocate({.bytes = kKept * sizeof(uint64_t)});
  REQUIRE_OK(kept);
  const auto word = [](uint64_t rank, uint64_t i) { return (rank + 1) * 0x9e3779b97f4a7c15 + i; };
  for (uint64_t i = 0; i < kKept; ++i) kept->As<uint64_t>()[i] = word(context->rank(), i);
  REQUIRE_OK(context->Barrier());
  std::cout << "ready" << std::endl;
  Status status;
  while (status.ok()) {
    for (uint32_t k = 0; status.ok() && k < 20; ++k) {
      status = Call(*comm, operation, shape, *x, *stream);
    }
    if (status.ok()) status = comm->Synchronize(*stream);
  }
  std::cout << "error " << Text(comm->Check()) << std::endl;
  // The heaps are as they were, that of the rank that died, too.
  for (uint32_t rank = 0; rank < context->n_ranks(); ++rank) {
    if (!context->Reaches(rank)) continue;
    const uint64_t* const theirs = context->Translate(rank, kept->As<uint64_t>());
    for (uint64_t i = 0; i < kKept; ++i) REQUIRE(theirs[i] == word(rank, i));
  }
  std::memset(x->d.address, 1, kShape.m * kShape.n * sizeof(float));
  return 0;
}

class OpsTest : public iris::testing::JobTest {};

class OpsRanksTest : public OpsTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, OpsRanksTest, ::testing::Values(1, 3));

TEST_P(OpsRanksTest, ResultsAreRight) { Run("results", GetParam()); }

TEST_F(OpsTest, ShapesThatDifferAreNamedAlikeOnAllRanks) {
  RankProcesses ranks("differs", 3, Ranks());
  for (int r = 0; r < 3; ++r) {
    const std::string error = ranks.WaitLine(r, "error ");
    EXPECT_THAT(error, HasSubstr("INVALID_ARGUMENT: matmul_all_reduce #0: rank 1 called "
                                 "matmul_all_reduce(m=36, n=29, type=bf16 to f32, ldd=29, "));
    EXPECT_THAT(error, HasSubstr("), ranks 0 and 2 called matmul_all_reduce(m=37, n=29, type=bf16 "
                                 "to f32, ldd=29, "));
    EXPECT_THAT(error, HasSubstr(absl::StrCat("; rank 1 is pid ", ranks.pid(1))));
  }
  ranks.ExpectAllSucceed();
}

TEST_F(OpsTest, LinesOfRulesChooseTheVariant) {
  RankProcesses ranks("rules", 2, Ranks());
  for (int r = 0; r < 2; ++r) {
    EXPECT_THAT(
        ranks.WaitLine(r, "wrong "),
        HasSubstr("create a communicator: line 3 of the rules: \"two_shot\" is no variant"));
    const std::string error = ranks.WaitLine(r, "error ");
    EXPECT_THAT(error, HasSubstr("INVALID_ARGUMENT: matmul_all_reduce #0: "));
    EXPECT_THAT(error, HasSubstr("variant=fused"));
    EXPECT_THAT(error, HasSubstr("variant=pair"));
  }
  ranks.ExpectAllSucceed();
}

class OpsKilledTest : public OpsTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Ways, OpsKilledTest, ::testing::Range(0, static_cast<int>(Ways().size())));

TEST_P(OpsKilledTest, KilledRankIsNamed) {
  RankProcesses::Options options = Ranks();
  options.args = {absl::StrCat(GetParam())};
  RankProcesses ranks("killed", 3, options);
  for (int r = 0; r < 3; ++r) ranks.WaitLine(r, "ready");
  // The collective of a pair is told by its own name.
  const Way way = Ways()[GetParam()];
  ExpectTheKilledIsNamed(ranks, 1,
                         way.variant == Variant::kPair ? "" : ccl::OperationName(way.operation));
}

}  // namespace
}  // namespace iris::ops

int main(int argc, char** argv) {
  return iris::testing::TestMain(argc, argv,
                                 {{"results", iris::ops::Results},
                                  {"differs", iris::ops::Differs},
                                  {"rules", iris::ops::FollowsRules},
                                  {"killed", iris::ops::Killed}});
}
