// norm: a serving step, so many all_reduces each with an RMS norm behind it, in a graph: two calls
// for each pair, or one of iris::norm.
#include "iris/norm.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/base/absl_status.h"
#include "client/bench/sections.h"
#include "iris/ccl.h"
#include "iris/stream.h"

namespace iris::bench {
namespace {

using base::ToAbsl;
using ccl::Communicator;

constexpr uint64_t kBatches[] = {1, 16, 64, 256};
constexpr uint64_t kElementBytes = 2;  // bf16

struct Way {
  const char* name;
  bool fused;
  norm::Variant variant;
  bool sharded;  // reduce_scatter_rms_norm_all_gather
};
constexpr Way kWays[] = {
    {"all_reduce, norm", false, norm::Variant::kAuto, false},
    {"fused", true, norm::Variant::kAuto, false},
    {"fused packets", true, norm::Variant::kPackets, false},
    {"fused lines", true, norm::Variant::kLines, false},
    {"fused two_lines", true, norm::Variant::kTwoLines, false},
    {"fused two_shot", true, norm::Variant::kTwoShot, false},
    {"fused alone", true, norm::Variant::kAlone, false},
    {"fused sharded", true, norm::Variant::kAuto, true},
};

struct Members {
  Communicator all;
  Communicator alone;  // for the norm that is a call of its own
};

// A pair: sums of `source`, the residual in place, what is normed to `out`.
Status Pair(Members& members, const Way& way, const norm::Shape& shape, uint8_t* source,
            uint8_t* out, uint8_t* residual, Stream& stream) {
  norm::Buffers buffers;
  buffers.in = source;
  buffers.out = out;
  buffers.residual = buffers.residual_out = residual;
  if (way.sharded) {
    return norm::ReduceScatterRmsNormAllGather(members.all, shape, buffers, stream);
  }
  if (way.fused) return norm::AllReduceRmsNorm(members.all, shape, buffers, stream);
  const uint64_t count = shape.rows * shape.hidden;
  if (Status status =
          members.all.AllReduce(source, out, count, DType::kBf16, ccl::ReduceOp::kSum, stream);
      !status.ok()) {
    return status;
  }
  buffers.in = out;
  return norm::AllReduceRmsNorm(members.alone, shape, buffers, stream);
}

// Microseconds of a pair, of each sample of a graph of them, behind one that is not counted.
absl::StatusOr<std::vector<double>> Sample(const Run& run, Members& members, const Way& way,
                                           const norm::Shape& shape, Stream& stream) {
  Context& context = *run.rank.context();
  const uint64_t bytes = shape.rows * shape.hidden * kElementBytes;
  const uint32_t pairs = run.options.norm_pairs;
  Status status = stream.BeginCapture();
  for (uint32_t i = 0; status.ok() && i < pairs; ++i) {
    status = Pair(members, way, shape, run.areas.source, run.areas.target, run.areas.target + bytes,
                  stream);
  }
  auto graph = stream.EndCapture();
  if (!status.ok()) return ToAbsl(status);
  if (!graph.ok()) return ToAbsl(graph.status());
  auto start = Event::Create(context);
  if (!start.ok()) return ToAbsl(start.status());
  auto end = Event::Create(context);
  if (!end.ok()) return ToAbsl(end.status());
  std::vector<double> samples;
  for (uint32_t i = 0; i < run.options.samples + 1; ++i) {
    if (absl::Status met = run.rank.Barrier(); !met.ok()) return met;
    // Behind it the ranks begin together, as far as their devices know.
    status = members.all.Barrier(stream);
    if (status.ok()) status = start->Record(stream);
    if (status.ok()) status = graph->Launch(stream);
    if (status.ok()) status = end->Record(stream);
    if (status.ok()) status = members.all.Synchronize(stream);
    if (!status.ok()) return ToAbsl(status);
    const auto took = end->Since(*start);
    if (!took.ok()) return ToAbsl(took.status());
    if (i != 0) samples.push_back(static_cast<double>(took->count()) / 1e3 / pairs);
  }
  return samples;
}

absl::StatusOr<Members> MakeMembers(Context& context) {
  Members made;
  auto all = Communicator::Create(context);
  if (!all.ok()) return ToAbsl(all.status());
  made.all = *std::move(all);
  const auto team = context.Split(static_cast<int>(context.rank()));
  if (!team.ok()) return ToAbsl(team.status());
  auto alone = Communicator::Create(context, *team);
  if (!alone.ok()) return ToAbsl(alone.status());
  made.alone = *std::move(alone);
  return made;
}

}  // namespace

absl::Status NormSteps(const Run& run) {
  if (run.rank.context() == nullptr) {
    return absl::FailedPreconditionError(
        "norm measures what a context makes: run it under iris-run, without --in-process");
  }
  Context& context = *run.rank.context();
  auto members = MakeMembers(context);
  if (!members.ok()) return members.status();
  auto stream = Stream::Create(context);
  if (!stream.ok()) return ToAbsl(stream.status());
  // Zeros, so that the sums stay what they are, however often they are made.
  for (uint8_t* const area : {run.areas.source, run.areas.target}) {
    if (Status status = stream->Fill(area, 0, run.options.bytes); !status.ok()) {
      return ToAbsl(status);
    }
  }
  if (Status status = stream->Synchronize(); !status.ok()) return ToAbsl(status);
  const uint64_t hidden = run.options.norm_hidden;
  Table table("norm",
              absl::StrFormat("us of an all_reduce, residual and RMS norm of [batch, %u] bf16, of "
                              "%u in a graph; the slowest of %u ranks",
                              hidden, run.options.norm_pairs, run.rank.n_ranks()),
              {{"batch"},
               {"way"},
               {"variant"},
               {"blocks"},
               {"p50", 2},
               {"min", 2},
               {"max", 2},
               {"pair/this", 2},
               {"n"}});
  for (const uint64_t batch : kBatches) {
    if (2 * batch * hidden * kElementBytes > run.options.bytes) {
      table.Note(absl::StrFormat("A batch of %u needs --bytes of %u or more, and was left out.",
                                 batch, 2 * batch * hidden * kElementBytes));
      continue;
    }
    double pair = 0;
    for (const Way& way : kWays) {
      const auto time_left = run.budget.Left(run.rank);
      if (!time_left.ok()) return time_left.status();
      if (!*time_left) {
        table.Note("The rest was left out: the time was over.");
        run.report->Add(std::move(table));
        return absl::OkStatus();
      }
      norm::Shape shape;
      shape.rows = batch;
      shape.hidden = hidden;
      shape.residual = true;
      shape.variant = way.variant;
      const auto plan = norm::Choose(members->all,
                                     way.sharded ? ccl::Operation::kReduceScatterRmsNormAllGather
                                                 : ccl::Operation::kAllReduceRmsNorm,
                                     shape);
      if (!plan.ok() && plan.status().code() == StatusCode::kUnimplemented) continue;
      if (!plan.ok()) return ToAbsl(plan.status());
      const auto mine = Sample(run, *members, way, shape, *stream);
      if (!mine.ok()) return mine.status();
      const auto all = run.rank.AllGather(*mine);
      if (!all.ok()) return all.status();
      std::vector<double> slowest = *mine;
      for (const auto& of_rank : *all) {
        for (size_t i = 0; i < slowest.size(); ++i) slowest[i] = std::max(slowest[i], of_rank[i]);
      }
      const Spread spread = SpreadOf(slowest);
      if (!way.fused) pair = spread.p50;
      table.Add({batch, way.name, way.fused ? norm::VariantName(plan->variant) : "",
                 way.fused ? nlohmann::json(plan->blocks) : nlohmann::json(), spread.p50,
                 spread.min, spread.max, pair / spread.p50, slowest.size()});
    }
  }
  table.Note(
      "pair/this: how many times as fast as the two calls. Their norm is a call of its own, "
      "on one rank alone.");
  run.report->Add(std::move(table));
  for (Communicator* const each : {&members->alone, &members->all}) {
    if (Status status = each->Destroy(); !status.ok()) return ToAbsl(status);
  }
  return absl::OkStatus();
}

}  // namespace iris::bench
