// kPair: collectives between nodes, and between them the kernel of kAlone.
//
// First a round of the ranks of each node compares their calls; the collectives compare those of
// nodes. Then chunks of rows go through the scratch memory of the NodesComm. As many rows are in a
// chunk as it has room for; that depends on the problem alone, because ranks may differ in strides.
//
//   all_reduce      rows of `in` -> sums, by all_reduce; kAlone -> residual_out, out
//   reduce_scatter  rows of `in` of each share -> parts[ranks][rows, hidden]; reduce_scatter in
//   _all_gather     place; kAlone -> residual_out, slots[ranks]{rows of out, scales}; all_gather;
//                   copies -> out, scales
#include <cstdint>

#include "iris/collective/collective.h"
#include "iris/nodes/impl/launch.h"
#include "iris/nodes/nodes.h"
#include "iris/norm/call_record.h"
#include "iris/norm/variant.h"
#include "iris/rounds/launch.h"
#include "iris/share.h"

namespace iris::norm::impl {
namespace {

using ccl::Operation;

// The scales that are written for a row.
uint64_t ScalesOf(const Problem& problem) {
  return problem.scaling == Scaling::kPerRow ? 1
         : problem.scaling == Scaling::kPerGroup
             ? (problem.hidden + kGroupColumns - 1) / kGroupColumns
             : 0;
}

// A slot has `rows` rows of `out`, then their scales.
uint64_t SlotRowsBytes(const Problem& problem, uint64_t rows) {
  return RoundUp(rows * problem.hidden * DTypeBytes(problem.out), 16);
}
uint64_t SlotBytes(const Problem& problem, uint64_t rows) {
  return RoundUp(SlotRowsBytes(problem, rows) + rows * ScalesOf(problem) * sizeof(float), 16);
}

// Returns for how many rows, of each rank's share if they are sharded, there is room at once.
uint64_t RowsOfRoom(const ccl::NodesComm& nodes, const Problem& problem) {
  const uint64_t bytes = ccl::impl::ScratchOf(nodes).bytes;
  const uint64_t row_bytes = problem.hidden * DTypeBytes(problem.in);
  if (problem.operation == Operation::kAllReduceRmsNorm) return bytes / row_bytes;
  const uint64_t rounded = 32 * uint64_t{nodes.size} + ccl::kWorkspaceAlignmentBytes;
  const uint64_t each =
      row_bytes + problem.hidden * DTypeBytes(problem.out) + ScalesOf(problem) * sizeof(float);
  return bytes < rounded ? 0 : (bytes - rounded) / (nodes.size * each);
}

// Plans kAlone for some rows of a problem. All ranks sum the squares of a row in the same order,
// also those whose Comms may have fewer blocks.
bool PlanRows(const ccl::NodesComm& nodes, const Problem& problem, uint64_t rows, Plan* plan) {
  Problem part = problem;
  part.rows = rows;
  ccl::Comm one = nodes.local;
  one.team.size = 1;
  one.config.max_blocks = ccl::impl::Complete({}).max_blocks;
  const char* why = nullptr;
  if (!kAloneRow.plan(one, part, plan, &why)) return false;
  const ccl::Config& config = nodes.local.config;
  if (backend::Traits::kEmulated || config.max_multiprocessors != 0) {
    plan->blocks = static_cast<uint32_t>(Min(plan->blocks, config.max_blocks));
  }
  return true;
}

// A checked call on its way onto the stream. Its methods do nothing once something has failed,
// which `result_` then is.
class Pair {
 public:
  Pair(const ccl::NodesComm& nodes, const Norm& call, backend::Stream& stream)
      : nodes_(nodes),
        call_(call),
        problem_(call.problem),
        stream_(stream),
        scratch_(ccl::impl::ScratchOf(nodes)),
        in_bytes_(DTypeBytes(problem_.in)),
        out_bytes_(DTypeBytes(problem_.out)),
        scales_(ScalesOf(problem_)) {
    const ccl::Comm& local = nodes.local;
    const Plan plan = {Variant::kPair, 1, 0, 1};
    common_ =
        ccl::impl::CommonOf(local, Pack({problem_, plan, local.config.check_calls}), 1, false);
  }

  Result Run() {
    if (nodes_.local.team.size > 1) {
      Keep(ccl::impl::LaunchOpening(common_, true, false, stream_));
    }
    common_.ends = 0;
    if (problem_.operation == Operation::kAllReduceRmsNorm) {
      AllReduce();
    } else {
      Sharded();
    }
    // The NodesComm was usable when the launch began. Later failures are reported like any failure
    // on the device.
    return result_.code == StatusCode::kFailedPrecondition ? Result{} : result_;
  }

 private:
  void Keep(const Result& result) {
    if (result_.ok()) result_ = result;
  }
  void Collect(Operation operation, DType type, uint64_t count, const void* in, void* out,
               bool ends) {
    if (!result_.ok()) return;
    Keep(ccl::RunPartOnNodes(scratch_.comm, common_.call, {{operation, count, type}, in, out},
                             stream_, ends));
  }
  void CopyRows(void* to, uint64_t to_pitch, const void* from, uint64_t from_pitch, uint64_t rows,
                uint64_t bytes) {
    if (result_.ok()) {
      Keep(backend::CopyRowsAsync(to, from, {rows, bytes, to_pitch, from_pitch}, stream_));
    }
  }

  const uint8_t* In(uint64_t row) const {
    return static_cast<const uint8_t*>(call_.in) + row * call_.in_stride * in_bytes_;
  }
  // Norms `rows` sums, which begin at row `first` of the residual.
  void NormRows(const uint8_t* sums, uint64_t first, uint64_t rows, void* out, uint64_t out_stride,
                float* scales) {
    Plan plan;
    if (!result_.ok() || rows == 0) return;
    if (!PlanRows(nodes_, problem_, rows, &plan)) return Keep(Invalid("a row is too long"));
    Norm part = call_;
    part.problem.rows = rows;
    part.in = sums;
    part.in_stride = problem_.hidden;
    part.out = out;
    part.out_stride = out_stride;
    part.scales = scales;
    if (problem_.residual) {
      part.residual =
          static_cast<const uint8_t*>(call_.residual) + first * call_.residual_stride * in_bytes_;
      part.residual_out =
          static_cast<uint8_t*>(call_.residual_out) + first * call_.residual_out_stride * in_bytes_;
    }
    Keep(kAloneRow.launch(common_, ArgumentsOf(part, plan), problem_.in,
                          {plan.blocks, plan.threads}, stream_));
  }

  void AllReduce() {
    const uint64_t at_once = RowsOfRoom(nodes_, problem_);
    const uint64_t row_bytes = problem_.hidden * in_bytes_;
    for (uint64_t first = 0; first < problem_.rows; first += at_once) {
      const uint64_t rows = Min(at_once, problem_.rows - first);
      uint8_t* const sums = scratch_.first;
      const uint8_t* from = In(first);
      if (call_.in_stride != problem_.hidden) {
        CopyRows(sums, row_bytes, from, call_.in_stride * in_bytes_, rows, row_bytes);
        from = sums;
      }
      Collect(Operation::kAllReduce, problem_.in, rows * problem_.hidden, from, sums,
              first + rows == problem_.rows);
      NormRows(sums, first, rows,
               static_cast<uint8_t*>(call_.out) + first * call_.out_stride * out_bytes_,
               call_.out_stride, scales_ == 0 ? nullptr : call_.scales + first * scales_);
    }
  }

  // Rows [first, first + count) of each rank's share.
  struct Chunk {
    uint64_t first;
    uint64_t count;
    uint64_t Rows(uint64_t share) const { return share > first ? Min(count, share - first) : 0; }
  };
  // Calls copy(row, rows pitch, part, part pitch, copied rows, bytes) so that the rows of all
  // shares are copied, with few copies if rows have no gaps. `row` is the offset of a row, in
  // bytes, where rows are `stride` bytes apart, and `part` that of a part of `part_bytes` for each
  // rank.
  template <typename Copy>
  void ForShares(const Chunk& chunk, uint64_t row_bytes, uint64_t stride, uint64_t part_bytes,
                 Copy copy) {
    const uint32_t n = nodes_.size;
    const uint32_t longer = static_cast<uint32_t>(problem_.rows % n);
    const bool dense = stride == row_bytes;
    for (uint32_t m = 0; m < n;) {
      const Share share = ShareOf(problem_.rows, n, m);
      const uint64_t rows = chunk.Rows(share.count);
      const uint32_t members = !dense ? 1 : m < longer ? longer : n - longer;
      const uint64_t row = (share.begin + chunk.first) * stride;
      if (rows == 0) {
        // No such rows.
      } else if (dense) {
        copy(row, share.count * row_bytes, m * part_bytes, part_bytes, members, rows * row_bytes);
      } else {
        copy(row, stride, m * part_bytes, row_bytes, rows, row_bytes);
      }
      m += members;
    }
  }

  void Sharded() {
    const uint32_t n = nodes_.size;
    const uint64_t most = ShareOf(problem_.rows, n, 0).count;
    const uint64_t at_once = Min(RowsOfRoom(nodes_, problem_), most);
    const uint64_t row_bytes = problem_.hidden * in_bytes_;
    const uint64_t out_row_bytes = problem_.hidden * out_bytes_;
    const uint64_t own = ShareOf(problem_.rows, n, nodes_.index).count;
    for (Chunk chunk = {0, at_once}; chunk.first < most; chunk.first += at_once) {
      chunk.count = Min(at_once, most - chunk.first);
      uint8_t* const parts = scratch_.first;
      const uint64_t part_bytes = chunk.count * row_bytes;
      uint8_t* const slots = parts + RoundUp(n * part_bytes, ccl::kWorkspaceAlignmentBytes);
      const uint64_t slot_bytes = SlotBytes(problem_, chunk.count);
      uint8_t* const sums = parts + nodes_.index * part_bytes;
      uint8_t* const slot = slots + nodes_.index * slot_bytes;
      const uint8_t* from = In(0);
      if (call_.in_stride != problem_.hidden || n * chunk.count != problem_.rows) {
        ForShares(chunk, row_bytes, call_.in_stride * in_bytes_, part_bytes,
                  [&](uint64_t row, uint64_t pitch, uint64_t part, uint64_t part_pitch,
                      uint64_t rows, uint64_t bytes) {
                    CopyRows(parts + part, part_pitch, In(0) + row, pitch, rows, bytes);
                  });
        from = parts;
      }
      Collect(Operation::kReduceScatter, problem_.in, chunk.count * problem_.hidden, from, sums,
              false);
      const uint64_t scales_at = SlotRowsBytes(problem_, chunk.count);
      NormRows(sums, chunk.first, chunk.Rows(own), slot, problem_.hidden,
               reinterpret_cast<float*>(slot + scales_at));
      Collect(Operation::kAllGather, DType::kU8, slot_bytes, slot, slots,
              chunk.first + chunk.count == most);
      const auto give = [&](void* to, uint64_t begin, uint64_t bytes, uint64_t stride) {
        ForShares(chunk, bytes, stride, slot_bytes,
                  [&](uint64_t row, uint64_t pitch, uint64_t part, uint64_t part_pitch,
                      uint64_t rows, uint64_t copied) {
                    CopyRows(static_cast<uint8_t*>(to) + row, pitch, slots + begin + part,
                             part_pitch, rows, copied);
                  });
      };
      give(call_.out, 0, out_row_bytes, call_.out_stride * out_bytes_);
      const uint64_t scale_bytes = scales_ * sizeof(float);
      if (scales_ != 0) give(call_.scales, scales_at, scale_bytes, scale_bytes);
    }
  }

  const ccl::NodesComm& nodes_;
  const Norm& call_;
  const Problem& problem_;
  backend::Stream& stream_;
  const ccl::impl::Scratch scratch_;
  const uint64_t in_bytes_;  // of an element
  const uint64_t out_bytes_;
  const uint64_t scales_;  // of a row
  Common common_;
  Result result_;
};

bool RefuseOneNode(const ccl::Comm&, const Problem&, Plan*, const char** why) {
  *why = "the variant pair is for a team with ranks on several nodes";
  return false;
}

}  // namespace

Result PlanPair(const ccl::NodesComm& nodes, const Problem& problem, Plan* plan) {
  const uint64_t room = RowsOfRoom(nodes, problem);
  if (room == 0) {
    return {StatusCode::kResourceExhausted,
            "a row of each rank is longer than the workspace between nodes has room for: use "
            "all_reduce_rms_norm, or make the communicator with larger pieces between nodes"};
  }
  const bool sharded = problem.operation != Operation::kAllReduceRmsNorm;
  const uint64_t rows = sharded ? ShareOf(problem.rows, nodes.size, 0).count : problem.rows;
  if (!PlanRows(nodes, problem, Min(room, rows), plan)) {
    return {StatusCode::kUnimplemented,
            "between nodes a row has at most 32 KiB, and 64 bytes for each of block_threads"};
  }
  plan->variant = Variant::kPair;
  return {};
}

Result LaunchPair(const ccl::NodesComm& nodes, const Norm& call, backend::Stream& stream) {
  return Pair(nodes, call, stream).Run();
}

const VariantRow kPairRow = {
    Variant::kPair, 0, nullptr, nullptr, nullptr, nullptr, &ccl::impl::PrepareOpening,
    &RefuseOneNode,
};

}  // namespace iris::norm::impl
