#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/bench/collectives.h"
#include "client/bench/local_run.h"
#include "client/bench/report.h"
#include "iris/collective/collective.h"
#include "iris/ops/ops.h"

namespace iris::bench {
namespace {

using ccl::Comm;
using ccl::Operation;
using local::World;
using ops::Matmul;
using ops::Problem;
using ops::Variant;

constexpr Operation kOperations[] = {Operation::kMatmulAllReduce, Operation::kMatmulReduceScatter,
                                     Operation::kAllGatherMatmul, Operation::kMatmulAllGather,
                                     Operation::kMatmulAllScatter};
constexpr Variant kVariants[] = {Variant::kAuto, Variant::kFused, Variant::kPair,
                                 Variant::kPersistent, Variant::kCopyEngine};

constexpr bool Emulated() { return backend::Traits::kEmulated; }
constexpr uint64_t kHeapMarginBytes = 32ull << 20;
// Matrices B of these bytes together do not fit into a cache.
constexpr uint64_t kColdBytes = Emulated() ? 64 << 10 : 160 << 20;
constexpr uint64_t kMaxColdMatrices = 64;

bool IsSum(Operation operation) {
  return operation == Operation::kMatmulAllReduce || operation == Operation::kMatmulReduceScatter;
}

// Returns a rank's problem in the GEMM over all ranks.
Problem ProblemOf(Operation operation, const ProductShape& shape, uint32_t ranks, Variant variant) {
  Problem problem = {operation, {shape.m, shape.n, shape.k, DType::kBf16, DType::kBf16}};
  if (IsSum(operation)) problem.k /= ranks;
  if (operation == Operation::kAllGatherMatmul) problem.n /= ranks;
  problem.variant = variant;
  return problem;
}

// Returns the plain GEMM of one rank.
Problem AloneOf(Operation operation, const ProductShape& shape, uint32_t ranks) {
  Problem problem = ProblemOf(operation, shape, ranks, Variant::kPair);
  if (operation == Operation::kMatmulAllGather) problem.m /= ranks;
  if (operation == Operation::kMatmulAllScatter) problem.n /= ranks;
  problem.operation = Operation::kMatmulReduceScatter;
  return problem;
}

// Returns the largest number of elements of a matrix.
uint64_t Largest(const ProductShape& shape) {
  return std::max({shape.m * shape.k, shape.n * shape.k, shape.m * shape.n});
}

// The calls of a batch.
struct Way {
  enum class Kind { kProduct, kCommunication, kOperation } kind = Kind::kOperation;
  Problem problem;
};

// Times of a batch: [way][sample], the slowest rank's.
using Samples = std::vector<std::vector<double>>;

// Bytes of the heap that a case needs.
struct Room {
  uint64_t matrix_bytes = 0;  // of each of A, B and D
  uint64_t comm_bytes = 0;
  uint64_t alone_bytes = 0;
  uint64_t n_b = 1;  // matrices B, `b_bytes` apart
  uint64_t b_bytes = 0;

  uint64_t all_b_bytes() const { return matrix_bytes + (n_b - 1) * b_bytes; }
};

class RankRun : public LocalRun {
 public:
  RankRun(World* world, local::Rank* rank, Failure* failure, std::mutex* mu, const Room& room)
      : LocalRun(world, rank, failure, "matmul"), mu_(*mu), room_(room) {}
  // Unreleased communicators would leave those of the next case smaller shares of the device.
  ~RankRun() {
    (void)rank_.stream.Synchronize();
    for (Comm* const comm : {&comm_, &alone_}) ccl::ReleaseComm(comm);
    for (ccl::ErrorReport* report : reports_) backend::FreeHost(report);
  }

  void Prepare(bool early) {
    MakeComm(rank_.ctx.world, room_.comm_bytes, early, &comm_);
    DeviceTeam self = {};
    self.size = 1;
    self.members[0] = static_cast<uint8_t>(rank_.rank());
    MakeComm(self, room_.alone_bytes, early, &alone_);
    Do("load the kernels", [] { return ops::Prepare(); });
    a_ = rank_.New<uint8_t>(room_.matrix_bytes);
    b_ = rank_.New<uint8_t>(room_.all_b_bytes());
    d_ = rank_.New<uint8_t>(room_.matrix_bytes);
    if (a_ == nullptr || b_ == nullptr || d_ == nullptr) {
      Fail("allocate", {StatusCode::kResourceExhausted, "the heap has no more room"});
    }
    // With ones, every sum is known.
    FillWithOnes(a_, room_.matrix_bytes);
    FillWithOnes(b_, room_.all_b_bytes());
    rank_.HostBarrier();
  }

  // `plan` may be null.
  Result Start(const Way& way, ops::LaunchPlan* plan) {
    const Problem& p = way.problem;
    if (way.kind == Way::Kind::kCommunication) return Communicate(p);
    const bool alone = way.kind == Way::Kind::kProduct;
    const uint32_t n = alone ? 1 : rank_.n_ranks();
    Matmul call;
    call.problem = p;
    call.a = a_;
    call.lda = p.k;
    call.b = b_ + n_calls_++ % room_.n_b * room_.b_bytes;
    call.ldb = p.operation == Operation::kMatmulAllScatter
                   ? ops::ShareOf(p.n, n, rank_.rank()).count
                   : p.n;
    if (call.ldb == 0) call.ldb = 1;
    call.d = d_;
    call.ldd = p.n;
    return ops::Launch(alone ? alone_ : comm_, call, rank_.stream, plan);
  }

  // Runs the way once, and checks its result.
  ops::LaunchPlan Check(const Way& way, const std::string& what) {
    context_ = absl::StrCat("matmul, ", what);
    ops::LaunchPlan plan;
    const Problem& p = way.problem;
    Clear(d_, p.m * p.n * kElementBytes);
    rank_.HostBarrier();
    Do("start", [&] { return Start(way, &plan); });
    Synchronize();
    Do("check", [&] { return ccl::CheckError(comm_); });
    const uint64_t rows = p.operation == Operation::kMatmulReduceScatter
                              ? ops::ShareOf(p.m, rank_.n_ranks(), rank_.rank()).count
                              : p.m;
    // Parts of a sum are rounded before they are added, where they travel as bf16.
    const float sum = static_cast<float>(p.k) * (IsSum(p.operation) ? rank_.n_ranks() : 1);
    Do("check", [&] { return CheckOut(d_, rows * p.n, sum, /*tolerance=*/0.02f); });
    rank_.HostBarrier();
    return plan;
  }

  // Measures all ways alternately, and adds this rank's times to those of the others.
  void Measure(const std::vector<Way>& ways, uint32_t samples, bool in_graph, Samples* times) {
    context_ = in_graph ? "matmul, in graphs" : "matmul, outside of graphs";
    constexpr uint64_t kCalls = Emulated() ? 2 : 10;
    const uint64_t per = (kCalls + room_.n_b - 1) / room_.n_b * room_.n_b;
    std::vector<backend::Graph> graphs(in_graph ? ways.size() : 0);
    for (size_t w = 0; w < graphs.size(); ++w) {
      Capture(per, &graphs[w], [&] { return Start(ways[w], nullptr); });
    }
    for (uint32_t s = 0; s < samples + kWarmups; ++s) {
      for (size_t w = 0; w < ways.size(); ++w) {
        const auto start = [&] {
          for (uint64_t k = 0; k < per; ++k) Do("start", [&] { return Start(ways[w], nullptr); });
        };
        const double us = in_graph ? TimeGraph(graphs[w]) : Time(start);
        if (s < kWarmups) continue;
        std::lock_guard<std::mutex> lock(mu_);
        double& slowest = (*times)[w][s - kWarmups];
        slowest = std::max(slowest, us / static_cast<double>(per));
      }
    }
    Synchronize();
    Do("check", [&] { return ccl::CheckError(comm_); });
    rank_.HostBarrier();
  }

 private:
  void MakeComm(const DeviceTeam& team, uint64_t bytes, bool early, Comm* comm) {
    ccl::CommOptions options;
    options.config.early = early;
    options.context = rank_.ctx;
    options.team = team;
    options.workspace_bytes = bytes;
    options.workspace = rank_.New<uint8_t>(bytes);
    options.report = static_cast<ccl::ErrorReport*>(backend::MallocHost(sizeof(ccl::ErrorReport)));
    if (options.workspace == nullptr || options.report == nullptr) {
      return Fail("allocate", {StatusCode::kResourceExhausted, "no room for a workspace"});
    }
    *options.report = {};
    reports_.push_back(options.report);
    std::unique_ptr<ops::Resources> resources;
    Do("make a stream for copies", [&] { return ops::CreateResources(&resources); });
    options.products = resources.get();
    resources_.push_back(std::move(resources));
    Do("make a communicator", [&] { return ccl::CreateComm(options, comm); });
  }

  // Starts the collective that moves the same data as the operation.
  Result Communicate(const Problem& p) {
    const uint32_t n = rank_.n_ranks();
    const DType type = DType::kBf16;
    const ccl::ReduceOp sum = ccl::ReduceOp::kSum;
    switch (p.operation) {
      case Operation::kMatmulAllReduce:
        return ccl::AllReduce(comm_, a_, d_, p.m * p.n, type, sum, rank_.stream);
      case Operation::kMatmulReduceScatter:
        return ccl::ReduceScatter(comm_, a_, d_, std::max<uint64_t>(1, p.m / n) * p.n, type, sum,
                                  rank_.stream);
      case Operation::kAllGatherMatmul:
        return ccl::AllGather(comm_, a_, d_, std::max<uint64_t>(1, p.m / n) * p.k, type,
                              rank_.stream);
      default:
        return ccl::AllGather(comm_, a_, d_, std::max<uint64_t>(1, p.m * p.n / n), type,
                              rank_.stream);
    }
  }

  std::mutex& mu_;
  const Room room_;
  uint64_t n_calls_ = 0;
  std::vector<ccl::ErrorReport*> reports_;
  std::vector<std::unique_ptr<ops::Resources>> resources_;
  Comm comm_, alone_;
  uint8_t* a_ = nullptr;
  uint8_t* b_ = nullptr;
  uint8_t* d_ = nullptr;
};

ProductFigure::Times TimesOf(const Samples& samples, size_t way) {
  ProductFigure::Times times;
  std::vector<double> ratios;
  for (size_t s = 0; s < samples[way].size(); ++s) {
    if (samples[0][s] > 0) ratios.push_back(samples[way][s] / samples[0][s]);
  }
  times.us = SpreadOf(samples[way]).p50;
  times.product_us = SpreadOf(samples[0]).p50;
  times.communication_us = SpreadOf(samples[1]).p50;
  times.ratio = ratios.empty() ? 0 : SpreadOf(ratios).p50;
  if (times.communication_us > 0) {
    const double hidden =
        (times.product_us + times.communication_us - times.us) / times.communication_us;
    times.hidden = std::clamp(hidden, 0.0, 1.0);
  }
  return times;
}

absl::Status MeasureCase(const ProductOptions& options, Operation operation,
                         const ProductShape& shape, const std::vector<Variant>& variants,
                         std::vector<ProductFigure>* figures) {
  const uint32_t n = options.ranks;
  std::vector<Way> ways = {
      {Way::Kind::kProduct, AloneOf(operation, shape, n)},
      {Way::Kind::kCommunication, ProblemOf(operation, shape, n, Variant::kAuto)}};
  Room room;
  room.comm_bytes = ops::WorkspaceBytes(n, {}, ProblemOf(operation, shape, n, Variant::kPair));
  for (const Variant variant : variants) {
    const Problem problem = ProblemOf(operation, shape, n, variant);
    const uint64_t bytes = ops::WorkspaceBytes(n, {}, problem);
    if (!ops::CheckProblem(problem).ok() || bytes == 0) continue;
    room.comm_bytes = std::max(room.comm_bytes, bytes);
    ways.push_back({Way::Kind::kOperation, problem});
  }
  const Problem& alone = ways[0].problem;
  const auto pages = [](uint64_t elements) {
    return (elements * kElementBytes + 4095) / 4096 * 4096;
  };
  room.alone_bytes = ops::WorkspaceBytes(1, {}, alone);
  room.matrix_bytes = pages(Largest(shape));
  room.b_bytes = pages(alone.k * (alone.n + 1));  // a rank's share of the columns may have one more
  if (options.cold) room.n_b = std::min(kColdBytes / room.b_bytes + 1, kMaxColdMatrices);
  local::WorldOptions world_options;
  world_options.n_ranks = n;
  world_options.heap_bytes = 2 * room.matrix_bytes + room.all_b_bytes() + room.comm_bytes +
                             room.alone_bytes + kHeapMarginBytes;
  auto made = World::Create(world_options);
  if (!made.ok()) return made.status();
  World& world = **made;
  Failure failure;
  std::mutex mu;
  std::vector<ops::LaunchPlan> plans(ways.size());
  Samples eager(ways.size(), std::vector<double>(options.samples)), graph = eager;
  const absl::Status ran = world.Run([&](local::Rank& rank) {
    RankRun run(&world, &rank, &failure, &mu, room);
    run.Prepare(options.early);
    for (size_t w = 2; w < ways.size(); ++w) {
      const std::string what =
          absl::StrCat(ccl::OperationName(operation), " of ", shape.m, "x", shape.n, "x", shape.k,
                       ", variant ", ops::VariantName(ways[w].problem.variant), ", ", n, " ranks");
      const ops::LaunchPlan plan = run.Check(ways[w], what);
      if (rank.rank() == 0) plans[w] = plan;
    }
    run.Measure(ways, options.samples, /*in_graph=*/false, &eager);
    run.Measure(ways, options.samples, /*in_graph=*/true, &graph);
  });
  if (!ran.ok()) return ran;
  if (failure.any.load()) return failure.status;
  for (size_t w = 2; w < ways.size(); ++w) {
    ProductFigure figure;
    figure.operation = ccl::OperationName(operation);
    figure.shape = shape;
    figure.ranks = n;
    figure.wanted = ops::VariantName(ways[w].problem.variant);
    figure.variant = ops::VariantName(plans[w].variant);
    figure.multiplier = plans[w].multiplier;
    figure.eager = TimesOf(eager, w);
    figure.graph = TimesOf(graph, w);
    const double flops = 2.0 * static_cast<double>(alone.m) * static_cast<double>(alone.n) *
                         static_cast<double>(alone.k);
    if (figure.graph.us > 0) figure.tflops = flops / figure.graph.us / 1e6;
    figures->push_back(figure);
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<std::string> ProductOperations() {
  std::vector<std::string> names;
  for (const Operation operation : kOperations) names.emplace_back(ccl::OperationName(operation));
  return names;
}

std::vector<std::string> ProductVariants() {
  std::vector<std::string> names;
  for (const Variant variant : kVariants) names.emplace_back(ops::VariantName(variant));
  return names;
}

absl::StatusOr<std::vector<ProductFigure>> MeasureProducts(
    const ProductOptions& options, const std::vector<std::string>& operations,
    const std::vector<ProductShape>& shapes, const std::vector<std::string>& variants) {
  std::vector<Variant> wanted;
  for (const Variant variant : kVariants) {
    if (std::find(variants.begin(), variants.end(), ops::VariantName(variant)) != variants.end()) {
      wanted.push_back(variant);
    }
  }
  std::vector<ProductFigure> figures;
  for (const ProductShape& shape : shapes) {
    for (const uint64_t dimension : {shape.m, shape.n, shape.k}) {
      if (dimension < options.ranks || dimension > ops::kMaxDimension) {
        return absl::InvalidArgumentError(absl::StrCat(
            "a GEMM of ", shape.m, "x", shape.n, "x", shape.k, " on ", options.ranks,
            " ranks: each dimension is from the number of ranks to ", ops::kMaxDimension));
      }
    }
    for (const Operation operation : kOperations) {
      if (std::find(operations.begin(), operations.end(), ccl::OperationName(operation)) ==
          operations.end()) {
        continue;
      }
      const absl::Status status = MeasureCase(options, operation, shape, wanted, &figures);
      if (!status.ok()) return status;
    }
  }
  return figures;
}

}  // namespace iris::bench
