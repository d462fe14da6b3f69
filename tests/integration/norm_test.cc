// iris::norm with ranks that are real processes, on a real irisd: results, and what its errors say.
#include "iris/norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/job_fixture.h"
#include "tests/integration/rank_processes.h"
#include "tests/integration/require.h"

namespace iris::norm {
namespace {

using ccl::Communicator;
using iris::testing::RankProcesses;
using iris::testing::Text;
using ::testing::HasSubstr;

constexpr Operation kOperations[] = {Operation::kAllReduceRmsNorm,
                                     Operation::kReduceScatterRmsNormAllGather};

ContextOptions Small() {
  ContextOptions options;
  options.heap_bytes = 64 << 20;
  options.timeout = std::chrono::seconds(60);
  return options;
}

Shape TestShape() {
  Shape shape;
  shape.rows = 7;
  shape.hidden = 300;
  shape.in = shape.out = shape.weight = DType::kF32;
  shape.residual = true;
  return shape;
}

// A small number.
float Number(uint64_t i) { return static_cast<float>(static_cast<int64_t>(i * 5 % 11) - 5); }
float Input(uint64_t member, uint64_t i, uint64_t j) { return Number(3 * i + j + member); }
float Residual(uint64_t i, uint64_t j) { return Number(i + 2 * j) / 2; }
float Weight(uint64_t j) { return Number(j) / 4 + 1; }

// The buffers of a rank: what others write to is in the heap.
struct Arrays {
  std::vector<float> residual, weight;
  Allocation in, out, residual_out, scales;
  uint64_t out_stride = 0, residual_stride = 0;

  Buffers Of() {
    Buffers buffers;
    buffers.out_stride = out_stride;
    buffers.residual_stride = residual_stride;
    buffers.in = in.address;
    buffers.out = out.address;
    buffers.weight = weight.data();
    buffers.residual = residual.data();
    buffers.residual_out = residual_out.address;
    buffers.scales = scales.As<float>();
    return buffers;
  }
};

constexpr uint64_t kMostGap = 64;

// `gap`: columns between rows of `out` and of the residual, at this member.
StatusOr<Arrays> Make(Context& context, Operation operation, const Shape& shape, uint64_t gap = 0) {
  Arrays made;
  made.out_stride = made.residual_stride = shape.hidden + gap;
  const uint64_t bytes = shape.rows * (shape.hidden + kMostGap) * sizeof(float);
  for (Allocation* each : {&made.in, &made.out, &made.residual_out, &made.scales}) {
    auto allocated = context.Allocate({.bytes = bytes});
    if (!allocated.ok()) return allocated.status();
    *each = *allocated;
  }
  const Share own = operation == Operation::kAllReduceRmsNorm
                        ? Share{0, shape.rows}
                        : ShareOf(shape.rows, context.n_ranks(), context.rank());
  for (uint64_t i = 0; i < shape.rows; ++i) {
    for (uint64_t j = 0; j < shape.hidden; ++j) {
      made.in.As<float>()[i * shape.hidden + j] = Input(context.rank(), i, j);
      if (i < own.count) made.residual.push_back(Residual(own.begin + i, j));
    }
    if (i < own.count) made.residual.insert(made.residual.end(), gap, 1e30f);
  }
  for (uint64_t j = 0; j < shape.hidden; ++j) made.weight.push_back(Weight(j));
  return made;
}

Status Call(Communicator& comm, Operation operation, const Shape& shape, Arrays& x,
            Stream& stream) {
  return operation == Operation::kAllReduceRmsNorm
             ? AllReduceRmsNorm(comm, shape, x.Of(), stream)
             : ReduceScatterRmsNormAllGather(comm, shape, x.Of(), stream);
}

int Results(const std::vector<std::string>&) {
  auto context = Context::Create(Small());
  REQUIRE_OK(context);
  const uint64_t n = context->n_ranks(), me = context->rank();
  auto stream = Stream::Create(*context);
  REQUIRE_OK(stream);
  auto comm = Communicator::Create(*context);
  REQUIRE_OK(comm);
  const Shape shape = TestShape();
  for (const Operation operation : kOperations) {
    auto x = Make(*context, operation, shape, 16 * me);
    REQUIRE_OK(x);
    REQUIRE_OK(context->Barrier());
    auto plan = Choose(*comm, operation, shape);
    REQUIRE_OK(plan);
    REQUIRE(plan->variant != Variant::kAuto && plan->blocks > 0 && plan->parts > 0);
    REQUIRE_OK(Call(*comm, operation, shape, *x, *stream));
    REQUIRE_OK(comm->Synchronize(*stream));
    const Share own = operation == Operation::kAllReduceRmsNorm ? Share{0, shape.rows}
                                                                : ShareOf(shape.rows, n, me);
    for (uint64_t i = 0; i < shape.rows; ++i) {
      std::vector<double> r(shape.hidden);
      double squares = 0;
      for (uint64_t j = 0; j < shape.hidden; ++j) {
        r[j] = Residual(i, j);
        for (uint64_t member = 0; member < n; ++member) r[j] += Input(member, i, j);
        squares += r[j] * r[j];
        if (i < own.begin || i >= own.begin + own.count) continue;
        const uint64_t at = (i - own.begin) * shape.hidden + j;
        REQUIRE(x->residual_out.As<float>()[at] == static_cast<float>(r[j]));
      }
      const double factor = 1 / std::sqrt(squares / shape.hidden + shape.epsilon);
      for (uint64_t j = 0; j < shape.hidden; ++j) {
        const double y = r[j] * factor * Weight(j);
        const double got = x->out.As<float>()[i * x->out_stride + j];
        REQUIRE(std::fabs(got - y) <= 1e-5 * (1 + std::fabs(y)));
      }
    }
    REQUIRE_OK(context->Barrier());
  }
  // Refused before anything starts, and the communicator goes on.
  auto x = Make(*context, Operation::kAllReduceRmsNorm, shape);
  REQUIRE_OK(x);
  const auto refused = [&](const Shape& wrong, const char* text) {
    const Status status = AllReduceRmsNorm(*comm, wrong, x->Of(), *stream);
    if (!status.ok() && std::string(status.message()).find(text) != std::string::npos) return true;
    std::cout << "not refused for " << text << ": " << Text(status) << std::endl;
    return false;
  };
  Shape wrong = shape;
  wrong.hidden = 0;
  REQUIRE(refused(wrong, "all_reduce_rms_norm(rows=7, hidden=0, f32 to f32, residual): hidden is"));
  wrong = shape;
  wrong.out = DType::kF64;
  REQUIRE(refused(wrong, "type of `out`"));
  wrong = shape;
  wrong.out = DType::kF8E4M3;
  REQUIRE(refused(wrong, "scaling"));
  wrong = shape;
  wrong.rows = uint64_t{1} << 24;
  REQUIRE(refused(wrong, "beyond"));
  wrong = shape;
  wrong.rows = 0;
  REQUIRE_OK(AllReduceRmsNorm(*comm, wrong, {}, *stream));
  REQUIRE_OK(comm->Barrier(*stream));
  REQUIRE_OK(comm->Synchronize(*stream));
  REQUIRE_OK(comm->Destroy());
  return 0;
}

// Rank 1 calls another shape, and everybody is told both; then Reset, and all goes on.
int Differs(const std::vector<std::string>&) {
  auto context = Context::Create(Small());
  REQUIRE_OK(context);
  auto stream = Stream::Create(*context);
  REQUIRE_OK(stream);
  auto comm = Communicator::Create(*context);
  REQUIRE_OK(comm);
  Shape shape = TestShape();
  shape.out = DType::kF8E4M3;
  shape.scaling = Scaling::kPerRow;
  auto x = Make(*context, Operation::kAllReduceRmsNorm, shape);
  REQUIRE_OK(x);
  Shape mine = shape;
  if (context->rank() == 1) mine.rows = 6;
  REQUIRE_OK(AllReduceRmsNorm(*comm, mine, x->Of(), *stream));
  std::cout << "error " << Text(comm->Synchronize(*stream)) << std::endl;
  REQUIRE_OK(context->Barrier());
  REQUIRE_OK(comm->Reset());
  REQUIRE_OK(AllReduceRmsNorm(*comm, shape, x->Of(), *stream));
  REQUIRE_OK(comm->Synchronize(*stream));
  return 0;
}

// One rank dies among many calls of an operation.
int Killed(const std::vector<std::string>& args) {
  const Operation operation = kOperations[std::stoul(args.at(0))];
  auto context = Context::Create(Small());
  REQUIRE_OK(context);
  auto stream = Stream::Create(*context);
  REQUIRE_OK(stream);
  auto comm = Communicator::Create(*context);
  REQUIRE_OK(comm);
  const Shape shape = TestShape();
  auto x = Make(*context, operation, shape);
  REQUIRE_OK(x);
  REQUIRE_OK(Call(*comm, operation, shape, *x, *stream));
  REQUIRE_OK(comm->Synchronize(*stream));
  std::cout << "ready" << std::endl;
  Status status;
  while (status.ok()) {
    for (uint32_t k = 0; status.ok() && k < 20; ++k) {
      status = Call(*comm, operation, shape, *x, *stream);
    }
    if (status.ok()) status = comm->Synchronize(*stream);
  }
  std::cout << "error " << Text(comm->Check()) << std::endl;
  // The heap is as it was: this rank's memory can still be read and written.
  std::memset(x->out.address, 1, shape.rows * shape.hidden * sizeof(float));
  return 0;
}

class NormTest : public iris::testing::JobTest {};

class NormRanksTest : public NormTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, NormRanksTest, ::testing::Values(1, 3));

TEST_P(NormRanksTest, ResultsAreRight) { Run("results", GetParam()); }

TEST_F(NormTest, ShapesThatDifferAreNamedAlikeOnAllRanks) {
  RankProcesses ranks("differs", 3, Ranks());
  for (int r = 0; r < 3; ++r) {
    const std::string error = ranks.WaitLine(r, "error ");
    EXPECT_THAT(error,
                HasSubstr("INVALID_ARGUMENT: all_reduce_rms_norm #0: rank 1 called "
                          "all_reduce_rms_norm(rows=6, hidden=300, type=f32 to f8e4m3, weight=f32, "
                          "residual, scaling=per_row, epsilon=1e-06, variant="));
    EXPECT_THAT(error,
                HasSubstr("), ranks 0 and 2 called all_reduce_rms_norm(rows=7, hidden=300, "));
    EXPECT_THAT(error, HasSubstr(absl::StrCat("; rank 1 is pid ", ranks.pid(1))));
  }
  ranks.ExpectAllSucceed();
}

class NormKilledTest : public NormTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Operations, NormKilledTest, ::testing::Range(0, 2));

TEST_P(NormKilledTest, KilledRankIsNamed) {
  RankProcesses::Options options = Ranks();
  options.args = {absl::StrCat(GetParam())};
  RankProcesses ranks("killed", 3, options);
  for (int r = 0; r < 3; ++r) ranks.WaitLine(r, "ready");
  ExpectTheKilledIsNamed(ranks, 1, ccl::OperationName(kOperations[GetParam()]));
}

}  // namespace
}  // namespace iris::norm

int main(int argc, char** argv) {
  return iris::testing::TestMain(argc, argv,
                                 {{"results", iris::norm::Results},
                                  {"differs", iris::norm::Differs},
                                  {"killed", iris::norm::Killed}});
}
