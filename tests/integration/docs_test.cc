// What docs/programming_model.md shows of hosts, the page of tensors and the tutorial's program,
// run as they stand there, by real processes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "iris/ccl.h"
#include "iris/context.h"
#include "iris/stream.h"
#include "tests/docs/programming_model.h"
#include "tests/docs/tensors.h"
#include "tests/docs/tutorial.h"
#include "tests/integration/daemon_harness.h"
#include "tests/integration/rank_processes.h"

namespace iris {
namespace {

using namespace docs::programming_model;
using iris::testing::Daemon;
using iris::testing::RankProcesses;

constexpr uint64_t kFloats = 3000;

Status ScaleAndMean() {
  IRIS_ASSIGN_OR_RETURN(Context context, Context::Create({.heap_bytes = 64 << 20}));
  IRIS_ASSIGN_OR_RETURN(Stream stream, Stream::Create(context));
  IRIS_ASSIGN_OR_RETURN(auto comm, ccl::Communicator::Create(context));
  IRIS_ASSIGN_OR_RETURN(const auto x, context.Allocate<float>(kFloats, "x"));
  std::vector<float> values(kFloats, 2.0f * static_cast<float>(context.rank()));
  IRIS_RETURN_IF_ERROR(stream.Copy(x, values.data(), x.bytes));
  IRIS_RETURN_IF_ERROR(ScaleOnStream(x, kFloats, stream));  // by a half
  IRIS_RETURN_IF_ERROR(MeanOfGradients(comm, x, kFloats, stream));
  IRIS_RETURN_IF_ERROR(stream.Copy(values.data(), x, x.bytes));
  IRIS_RETURN_IF_ERROR(comm.Synchronize(stream));
  // The mean of 0, 1 and 2.
  if (values != std::vector<float>(kFloats, 1.0f)) return {StatusCode::kInternal, "a wrong mean"};
  // Around the ring, and to both neighbours.
  const uint32_t me = context.rank(), n = context.n_ranks();
  const uint32_t left = (me + n - 1) % n, right = (me + 1) % n;
  IRIS_ASSIGN_OR_RETURN(const auto y, context.Allocate<float>(4 * kFloats, "y"));
  float* const mine = y;
  float* const theirs = mine + 2 * kFloats;
  const auto value = [](uint32_t rank, uint32_t side) {
    return 2.0f * static_cast<float>(rank) + static_cast<float>(side);
  };
  const auto all = [](float first, float second) {
    std::vector<float> both(2 * kFloats, first);
    std::fill(both.begin() + kFloats, both.end(), second);
    return both;
  };
  values = all(value(me, 0), value(me, 1));
  IRIS_RETURN_IF_ERROR(stream.Copy(mine, values.data(), 8 * kFloats));
  IRIS_RETURN_IF_ERROR(PassOn(comm, mine, theirs, 2 * kFloats, me, n, stream));
  IRIS_RETURN_IF_ERROR(stream.Copy(values.data(), theirs, 8 * kFloats));
  IRIS_RETURN_IF_ERROR(comm.Synchronize(stream));
  if (values != all(value(left, 0), value(left, 1))) return {StatusCode::kInternal, "a wrong ring"};
  IRIS_RETURN_IF_ERROR(Halo(comm, mine, theirs, kFloats, left, right, stream));
  IRIS_RETURN_IF_ERROR(stream.Copy(values.data(), theirs, 8 * kFloats));
  IRIS_RETURN_IF_ERROR(comm.Synchronize(stream));
  if (values != all(value(left, 1), value(right, 0)))
    return {StatusCode::kInternal, "a wrong halo"};
  // Steps that wait for each other, and the time of a launch.
  constexpr uint64_t kEdge = 50;
  IRIS_ASSIGN_OR_RETURN(const auto edges, context.Allocate<float>(2 * kEdge, "edges"));
  IRIS_ASSIGN_OR_RETURN(const auto signals, context.Allocate<uint64_t>(2, "signals"));
  const std::vector<float> ones(kEdge, 1.0f);
  IRIS_RETURN_IF_ERROR(stream.Copy(edges, ones.data(), kEdge * sizeof(float)));
  IRIS_RETURN_IF_ERROR(stream.Synchronize());
  IRIS_RETURN_IF_ERROR(context.Barrier());
  float* const edge = edges;
  IRIS_RETURN_IF_ERROR(TakeSteps(context, edge, edge + kEdge, kEdge, signals, 10, stream));
  IRIS_ASSIGN_OR_RETURN(const std::vector<float> edge_values, stream.Read(edge, kEdge));
  if (edge_values != std::vector<float>(kEdge, 1024.0f)) {
    return {StatusCode::kInternal, "a wrong edge"};
  }
  IRIS_ASSIGN_OR_RETURN(const Microseconds time, TimeOfScale(context, x, kFloats, stream));
  if (!(time.count() > 0)) return {StatusCode::kInternal, "no time"};
  return context.Barrier();
}

int RunScaleAndMean(const std::vector<std::string>&) {
  const Status status = ScaleAndMean();
  if (!status.ok()) std::cout << status << std::endl;
  return status.ok() ? 0 : 1;
}

TEST(DocsTest, ScaleAndMean) {
  const auto daemon = Daemon::Start();
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  RankProcesses ranks("scale_and_mean", 3, {.runtime_dir = (*daemon)->runtime_dir()});
  ranks.ExpectAllSucceed();
}

Status FirstTensorAndDropOut() {
  IRIS_ASSIGN_OR_RETURN(Context context, Context::Create({.heap_bytes = 1 << 20}));
  IRIS_RETURN_IF_ERROR(docs::tensors::FirstTensor(context));
  IRIS_ASSIGN_OR_RETURN(Stream stream, Stream::Create(context));
  IRIS_ASSIGN_OR_RETURN(const Tensor<float> x, Tensor<float>::Ones(context, {1000}));
  const RandomDraw draw = {7, 8};
  IRIS_RETURN_IF_ERROR(
      Launch({2, 32}, stream, docs::tensors::DropOut, x.data(), x.size(), 0.5f, draw));
  IRIS_ASSIGN_OR_RETURN(const std::vector<float> values, x.ToHost(&stream));
  for (uint64_t i = 0; i < values.size(); ++i) {
    if (values[i] != (RandomUnit(draw.Word(i)) < 0.5f ? 2.0f : 0.0f)) {
      return {StatusCode::kInternal, "a wrong element"};
    }
  }
  return context.Barrier();
}

int RunTensors(const std::vector<std::string>&) {
  const Status status = FirstTensorAndDropOut();
  if (!status.ok()) std::cout << status << std::endl;
  return status.ok() ? 0 : 1;
}

TEST(DocsTest, Tensors) {
  const auto daemon = Daemon::Start();
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  RankProcesses ranks("tensors", 2, {.runtime_dir = (*daemon)->runtime_dir()});
  ranks.ExpectAllSucceed();
}

// What the tutorial's ranks compute together, by one thread.
std::vector<float> Rod(uint32_t n_points, uint32_t steps) {
  std::vector<float> from(n_points + 2, 0.0f);
  from[0] = 100.0f;
  std::vector<float> to = from;
  for (uint32_t step = 0; step < steps; ++step) {
    for (uint32_t i = 1; i <= n_points; ++i) {
      to[i] = from[i] + 0.25f * (from[i - 1] - 2 * from[i] + from[i + 1]);
    }
    std::swap(from, to);
  }
  return from;
}

Status HeatOfTutorial() {
  constexpr uint32_t kSteps = 1001;
  IRIS_ASSIGN_OR_RETURN(Context context, Context::Create());
  IRIS_ASSIGN_OR_RETURN(const std::vector<float> points, docs::tutorial::Simulate(context, kSteps));
  const std::vector<float> all = Rod(context.n_ranks() * docs::tutorial::kPoints, kSteps);
  for (uint32_t i = 0; i < docs::tutorial::kPoints; ++i) {
    const float wanted = all[1 + context.rank() * docs::tutorial::kPoints + i];
    if (std::abs(points[i] - wanted) > 1e-3f) return {StatusCode::kInternal, "a wrong temperature"};
  }
  return context.Barrier();
}

int RunHello(const std::vector<std::string>&) { return docs::tutorial::main(); }

int RunHeat(const std::vector<std::string>&) {
  const Status status = HeatOfTutorial();
  if (!status.ok()) std::cout << status << std::endl;
  return status.ok() ? 0 : 1;
}

TEST(DocsTest, Tutorial) {
  const auto daemon = Daemon::Start();
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  RankProcesses::Options options;
  options.runtime_dir = (*daemon)->runtime_dir();
  options.job = "hello";
  RankProcesses hello("hello", 3, options);
  hello.ExpectAllSucceed();
  options.job = "heat";
  RankProcesses heat("heat", 3, options);
  heat.ExpectAllSucceed();
}

}  // namespace
}  // namespace iris

int main(int argc, char** argv) {
  return iris::testing::TestMain(argc, argv,
                                 {{"scale_and_mean", iris::RunScaleAndMean},
                                  {"tensors", iris::RunTensors},
                                  {"hello", iris::RunHello},
                                  {"heat", iris::RunHeat}});
}
