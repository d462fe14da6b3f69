// norm: measures a step of inference in a graph: many all_reduces, each followed by an RMS norm, as
// two calls for each pair or as one of iris::norm.
#include "iris/norm.h"

#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/base/absl_status.h"
#include "client/bench/sections.h"

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

// Launches a pair: sums of `source`, with the residual in place, are normalized to `out`.
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
  IRIS_RETURN_IF_ERROR(
      members.all.AllReduce(source, out, count, DType::kBf16, ccl::ReduceOp::kSum, stream));
  buffers.in = out;
  return norm::AllReduceRmsNorm(members.alone, shape, buffers, stream);
}

// Returns the microseconds of a pair on the slowest rank, for each sample of a graph of pairs.
absl::StatusOr<std::vector<double>> Sample(const Run& run, Members& members, const Way& way,
                                           const norm::Shape& shape, Stream& stream) {
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
  IRIS_ASSIGN_OR_RETURN(const auto mine,
                        TimeOnStream(run.rank, run.options.samples, &members.all, stream,
                                     [&] { return graph->Launch(stream); }));
  IRIS_ASSIGN_OR_RETURN(std::vector<double> samples, SlowestSamples(run.rank, mine));
  for (double& sample : samples) sample /= 1e3 * pairs;
  return samples;
}

}  // namespace

absl::Status NormSteps(const Run& run) {
  Context& context = *run.rank.context();
  Members members;
  IRIS_ASSIGN_OR_RETURN(members.all, ToAbsl(Communicator::Create(context)));
  IRIS_ASSIGN_OR_RETURN(const auto team, ToAbsl(context.Split(static_cast<int>(context.rank()))));
  IRIS_ASSIGN_OR_RETURN(members.alone, ToAbsl(Communicator::Create(context, team)));
  IRIS_ASSIGN_OR_RETURN(Stream stream, ToAbsl(Stream::Create(context)));
  // Areas are zero, so that sums do not change, however often they are computed.
  for (uint8_t* const area : {run.areas.source, run.areas.target}) {
    if (Status status = stream.Fill(area, 0, run.options.bytes); !status.ok()) {
      return ToAbsl(status);
    }
  }
  if (Status status = stream.Synchronize(); !status.ok()) return ToAbsl(status);
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
      IRIS_ASSIGN_OR_RETURN(const bool time_left, run.TimeLeft());
      if (!time_left) {
        table.Note("The rest was left out: the time was over.");
        run.report->Add(std::move(table));
        return absl::OkStatus();
      }
      norm::Shape shape;
      shape.rows = batch;
      shape.hidden = hidden;
      shape.residual = true;
      shape.variant = way.variant;
      const auto plan = norm::Choose(members.all,
                                     way.sharded ? ccl::Operation::kReduceScatterRmsNormAllGather
                                                 : ccl::Operation::kAllReduceRmsNorm,
                                     shape);
      if (!plan.ok() && plan.status().code() == StatusCode::kUnimplemented) continue;
      if (!plan.ok()) return ToAbsl(plan.status());
      IRIS_ASSIGN_OR_RETURN(const auto slowest, Sample(run, members, way, shape, stream));
      const Spread spread = SpreadOf(slowest);
      if (!way.fused) pair = spread.p50;
      table.Add({batch, way.name, way.fused ? norm::VariantName(plan->variant) : "",
                 CellIf(way.fused, plan->blocks), spread.p50, spread.min, spread.max,
                 pair / spread.p50, slowest.size()});
    }
  }
  table.Note(
      "pair/this: how many times as fast as the two calls. Their norm is a call of its own, "
      "on one rank alone.");
  run.report->Add(std::move(table));
  for (Communicator* const each : {&members.alone, &members.all}) {
    if (Status status = each->Destroy(); !status.ok()) return ToAbsl(status);
  }
  return absl::OkStatus();
}

}  // namespace iris::bench
