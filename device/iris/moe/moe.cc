// The launcher of iris::moe: checks a call and launches its kernels.
#include "iris/moe/moe.h"

#include <cstdint>

#include "iris/collective/collective.h"
#include "iris/moe/call_record.h"
#include "iris/moe/impl/kernels.h"
#include "iris/moe/impl/layout.h"
#include "iris/nodes/impl/launch.h"
#include "iris/nodes/nodes.h"
#include "iris/rounds/launch.h"
#include "iris/translate.h"

namespace iris::moe {
namespace {

using ccl::Operation;
using ccl::impl::Common;
using ccl::impl::Invalid;
using ccl::impl::Ranks;
using impl::MoeCall;

bool IsFloat(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBf16;
}

Config Complete(Config config) {
  if (config.rows == DType::kNone) config.rows = config.in;
  if (config.partials == DType::kNone) {
    config.partials = config.in == DType::kF8E4M3 ? DType::kBf16 : config.in;
  }
  return config;
}

// Returns a tag that differs between teams, configs, and thus layouts.
uint64_t TagOf(const Ranks& ranks, const Config& config) {
  uint64_t tag = 0xcbf29ce484222325ull;
  const auto mix = [&tag](uint64_t word) {
    tag = (tag ^ word) * 0x100000001b3ull;
    tag ^= tag >> 29;
  };
  for (const uint64_t word :
       {uint64_t{ranks.size()}, uint64_t{config.n_experts}, uint64_t{config.top_k},
        uint64_t{config.hidden}, uint64_t{config.max_tokens}, uint64_t{config.capacity},
        uint64_t(config.in), uint64_t(config.rows), uint64_t(config.partials)}) {
    mix(word);
  }
  for (uint32_t m = 0; m < ranks.size(); ++m) {
    mix(ranks.nodes != nullptr ? ranks.nodes->ranks[m] : ranks.comm.team.members[m]);
  }
  return tag | 1;
}

struct Wrong {
  const char* misaligned;
  const char* in_workspace;
  const char* overlaps;
};
#define IRIS_MOE_WRONG(name)                                                  \
  Wrong {                                                                     \
    name " is not aligned: its address has to be a multiple of its elements", \
        name ": it overlaps with the workspace of moe, which others write",   \
        name ": it overlaps with another buffer, and what is written may not" \
  }

struct Range {
  const void* p;
  uint64_t bytes;
  uint64_t element_bytes;
  bool written;
  Wrong wrong;
};

// Checks the buffers of a call. Null buffers are skipped.
template <uint32_t N>
Result CheckRanges(const Ranks& ranks, const Range (&ranges)[N], const void* workspace,
                   uint64_t workspace_bytes) {
  for (uint32_t i = 0; i < N; ++i) {
    const Range& range = ranges[i];
    if (range.p == nullptr || range.bytes == 0) continue;
    if (reinterpret_cast<uint64_t>(range.p) % range.element_bytes != 0) {
      return Invalid(range.wrong.misaligned);
    }
    uint64_t offset_bytes = 0;
    const Result result =
        ccl::impl::CheckBuffer(ranks, range.p, range.bytes, range.element_bytes, &offset_bytes);
    if (!result.ok()) return result;
    if (ccl::impl::Overlap(range.p, range.bytes, workspace, workspace_bytes)) {
      return Invalid(range.wrong.in_workspace);
    }
    for (uint32_t k = 0; k < i; ++k) {
      const Range& other = ranges[k];
      if (other.p == nullptr || other.bytes == 0 || (!range.written && !other.written)) continue;
      if (ccl::impl::Overlap(range.p, range.bytes, other.p, other.bytes)) {
        return Invalid(range.written ? range.wrong.overlaps : other.wrong.overlaps);
      }
    }
  }
  return {};
}

// Makes the checks that both operations share, and fills in the arguments of their kernels except
// for the buffers. `out` is the output's type, `travels` the type of rows between members.
Result Begin(const Ranks& ranks, Operation operation, const Config& config, uint32_t tokens,
             const void* workspace, DType in, DType travels, DType out, MoeCall* call) {
  const ccl::Comm& comm = ranks.comm;
  if (ranks.size() == 0) return Invalid("the Comm was not made by CreateComm");
  if (Result result = ccl::impl::CheckRanks(ranks); !result.ok()) return result;
  if (tokens > config.max_tokens) {
    return Invalid("there are more tokens than max_tokens of the config");
  }
  const impl::Offsets at = impl::OffsetsOf(ranks.size(), config, ranks.nodes != nullptr);
  if (workspace == nullptr) return Invalid("the workspace is null");
  if (reinterpret_cast<uint64_t>(workspace) % kWorkspaceAlignmentBytes != 0) {
    return Invalid("the workspace is not aligned to 256 bytes");
  }
  if (!InHeap(comm.context, workspace)) {
    return Invalid("the workspace is not in the symmetric heap: other members write into it");
  }
  uint64_t offset_bytes = 0;
  const Result result = ccl::impl::CheckBuffer(ranks, workspace, at.total_bytes,
                                               kWorkspaceAlignmentBytes, &offset_bytes);
  if (!result.ok()) return result;
  if (ranks.nodes != nullptr && !ccl::impl::PortReads(*ranks.nodes, workspace, at.total_bytes)) {
    return Invalid("the workspace is not in the part of the heap that other nodes reach");
  }

  const uint32_t warps =
      (backend::Traits::kEmulated ? 64 : impl::kMaxThreads) / backend::Traits::kWarpThreads;
  uint64_t blocks = comm.config.blocks;
  if (blocks == 0) blocks = (uint64_t{config.max_tokens} + warps - 1) / warps;
  const uint64_t most = backend::Traits::kEmulated && comm.config.blocks == 0
                            ? ccl::impl::Min(4, comm.config.max_blocks)
                            : comm.config.max_blocks;
  // Between nodes only the round that compares calls has blocks that meet others.
  blocks = ranks.nodes != nullptr ? 1 : ccl::impl::Min(blocks, most);

  CallRecord record;
  record.operation = operation;
  record.type = in;
  record.out_type = out;
  record.travels = travels;
  record.setup = config;
  record.place = offset_bytes;
  record.blocks = static_cast<uint32_t>(blocks);
  *call = {};
  call->common = ccl::impl::CommonOf(comm, Pack(record), record.blocks, false);
  call->workspace_offset_bytes = offset_bytes;
  call->at = at;
  call->tag = TagOf(ranks, config);
  call->tokens = tokens;
  call->n_experts = config.n_experts;
  call->top_k = config.top_k;
  call->hidden = config.hidden;
  call->max_tokens = config.max_tokens;
  call->capacity = config.capacity;
  call->sync_blocks = comm.config.max_blocks;
  call->in = config.in;
  call->rows = config.rows;
  call->partials = config.partials;
  if (operation == Operation::kMoeCombine) call->at.row_stride_bytes = at.back_stride_bytes;
  if (ranks.nodes == nullptr) return {};
  const ccl::NodesComm& nodes = *ranks.nodes;
  call->nodes = nodes.report;
  call->nodes_state_bytes = nodes.progress_offset_bytes;
  call->common.size = nodes.size;
  call->common.index = nodes.index;
  for (uint32_t m = 0; m < nodes.size; ++m) {
    call->common.members[m] =
        nodes.nodes[m] != nodes.node
            ? impl::kElsewhere
            : static_cast<uint8_t>(nodes.ranks[m] - nodes.context.first_mapped);
  }
  return {};
}

// The steps of operations between nodes.
class OnNodes {
 public:
  OnNodes(const ccl::NodesComm& nodes, const MoeCall& call, backend::Stream& stream)
      : nodes_(nodes), call_(call), stream_(stream) {}

  // All ranks compare their calls, and exchange their messages.
  Result Meet() {
    Result result;
    if (nodes_.local.team.size > 1) {
      const Common opening = ccl::impl::CommonOf(nodes_.local, call_.common.call, 1, false);
      result = ccl::impl::LaunchOpening(opening, true, false, stream_);
    }
    if (result.ok()) result = backend::Launch(kOneBlock, stream_, &impl::Tell<>, call_);
    if (!result.ok()) return result;
    uint8_t* const told = iris::AtOffset<uint8_t>(
        nodes_.context, nodes_.context.rank, call_.workspace_offset_bytes + call_.at.told_bytes);
    const uint64_t bytes = call_.at.told_stride_bytes;
    result = ccl::RunPartOnNodes(
        nodes_, call_.common.call,
        {{Operation::kAllGather, bytes, DType::kU8}, told + nodes_.index * bytes, told}, stream_,
        false);
    const bool counts = call_.capacity != 0 && call_.common.operation == Operation::kMoeDispatch;
    if (!result.ok() || !counts) return result;
    return backend::Launch(kOneBlock, stream_, &impl::Taken<>, call_);
  }

  // What a kernel has stored for ranks of this node and of others is there.
  Result Ship() {
    Result result = ccl::Run(nodes_.local, {{Operation::kBarrier}}, stream_);
    // The kernel tells other nodes of a failure.
    if (!result.ok() && result.code != StatusCode::kFailedPrecondition) return result;
    const ccl::impl::NodesCall args = ccl::impl::CallOf(nodes_, call_.common.call);
    return ccl::impl::LaunchPieces(nodes_, 1, 1, stream_, [&](const LaunchConfig&, uint32_t) {
      return backend::Launch(kOneBlock, stream_, &impl::Ship<>, args, call_);
    });
  }

 private:
  static constexpr LaunchConfig kOneBlock = {1, backend::Traits::kEmulated ? 64u : 256u, 0};

  const ccl::NodesComm& nodes_;
  const MoeCall& call_;
  backend::Stream& stream_;
};

// Returns the launch of a kernel that waits for no member, with at most a block a unit of `work`.
LaunchConfig Local(uint64_t work) {
  const uint64_t most = backend::Traits::kEmulated ? 4 : 2 * backend::MultiprocessorCount();
  const uint64_t blocks = ccl::impl::Min(work < 1 ? 1 : work, most < 1 ? 1 : most);
  return {static_cast<uint32_t>(blocks), backend::Traits::kEmulated ? 64u : impl::kMaxThreads, 0};
}
uint64_t WarpsOf(uint64_t work) {
  const uint32_t warps = Local(1).block / backend::Traits::kWarpThreads;
  return (work + warps - 1) / warps;
}

// Launches a kernel that sends `rows` rows to other members, and meets them.
Result LaunchTeam(const Ranks& ranks, backend::Stream& stream, void (*kernel)(MoeCall),
                  uint64_t rows, MoeCall* call) {
  if (ranks.nodes != nullptr) {
    OnNodes steps(*ranks.nodes, *call, stream);
    Result result = steps.Meet();
    if (result.ok()) result = backend::Launch(Local(WarpsOf(rows)), stream, kernel, *call);
    if (result.ok()) result = steps.Ship();
    // The NodesComm was usable when the launch began. Later failures are reported like any failure
    // on the device.
    return result.code == StatusCode::kFailedPrecondition ? Result{} : result;
  }
  const ccl::Comm& comm = ranks.comm;
  const uint32_t blocks = (call->common.call.words[0] >> 24) + 1;
  return ccl::impl::InPieces(comm, {blocks, backend::Traits::kEmulated ? 64u : impl::kMaxThreads},
                             1, Common(call->common), stream,
                             [&](const LaunchConfig& piece, const Common& its) {
                               call->common = its;
                               return backend::Launch(piece, stream, kernel, *call);
                             });
}

}  // namespace

Result CheckConfig(uint32_t n_members, const Config& config) {
  if (n_members == 0 || n_members > kMaxTeamRanks) return Invalid("a team has 1 to 64 members");
  if (config.n_experts == 0 || config.n_experts > kMaxExperts) {
    return Invalid("n_experts is 1 to 4096");
  }
  if (config.top_k == 0 || config.top_k > kMaxTopK) return Invalid("top_k is 1 to 32");
  if (config.top_k > config.n_experts) return Invalid("top_k is more than there are experts");
  constexpr uint32_t kMaxHidden = 1u << 20;
  if (config.hidden == 0 || config.hidden > kMaxHidden) return Invalid("hidden is 1 to 1048576");
  if (config.max_tokens == 0) return Invalid("max_tokens is at least 1");
  if (!IsFloat(config.in) && config.in != DType::kF8E4M3) {
    return Invalid("x is of f32, f16, bf16 or f8e4m3");
  }
  const Config all = Complete(config);
  if (all.rows != all.in && all.rows != DType::kF8E4M3) {
    return Invalid("rows are of the type of x, or of f8e4m3");
  }
  if (!IsFloat(all.partials)) return Invalid("partials are of f32, f16 or bf16");
  constexpr uint64_t kMaxRows = (1ull << 31) - 1;
  const uint64_t local = (uint64_t{config.n_experts} + n_members - 1) / n_members;
  if (local * config.capacity > kMaxRows) {
    return Invalid("a member would have more than 2^31 - 1 rows: give a smaller capacity");
  }
  const uint64_t each = config.top_k < local ? config.top_k : local;
  const uint64_t slots = uint64_t{n_members} * config.max_tokens;
  if (slots * (config.capacity == 0 ? each : 1) > kMaxRows ||
      uint64_t{config.max_tokens} * config.top_k > kMaxRows) {
    return Invalid("a member would have more than 2^31 - 1 rows: give fewer max_tokens");
  }
  return {};
}

Result SizesOf(uint32_t n_members, uint32_t index, const Config& config, Sizes* out,
               bool on_nodes) {
  if (Result result = CheckConfig(n_members, config); !result.ok()) return result;
  if (index >= n_members) return Invalid("there is no such member");
  const Config all = Complete(config);
  const impl::Offsets at = impl::OffsetsOf(n_members, all, on_nodes);
  const impl::Experts experts = impl::ExpertsOf(all.n_experts, n_members, index);
  const uint64_t each = all.top_k < experts.count ? all.top_k : experts.count;
  Sizes sizes;
  sizes.workspace_bytes = at.total_bytes;
  sizes.first_expert = experts.begin;
  sizes.local_experts = experts.count;
  sizes.max_rows = all.capacity != 0 ? uint64_t{experts.count} * all.capacity
                                     : uint64_t{n_members} * all.max_tokens * each;
  sizes.scale_columns = impl::ScaleColumnsOf(all);
  sizes.rows_at_bytes = at.rows_bytes;
  sizes.row_stride_bytes = at.row_stride_bytes;
  sizes.scales_at_bytes = sizes.scale_columns != 0 ? at.scales_at_bytes : 0;
  *out = sizes;
  return {};
}

namespace {

Result PutDispatch(const Ranks& ranks, const Config& given, void* workspace, const Dispatch& call,
                   backend::Stream& stream) {
  Sizes sizes;
  Result result = SizesOf(ranks.size(), ranks.index(), given, &sizes, ranks.nodes != nullptr);
  if (!result.ok()) return result;
  const Config config = Complete(given);
  MoeCall moe;
  result = Begin(ranks, Operation::kMoeDispatch, config, call.tokens, workspace, config.in,
                 config.rows, config.partials, &moe);
  if (!result.ok()) return result;
  if (call.ids_type != DType::kI32 && call.ids_type != DType::kI64) {
    return Invalid("ids are of i32 or i64");
  }
  if (call.tokens != 0) {
    if (call.x == nullptr) return Invalid("x is null");
    if (call.ids == nullptr) return Invalid("ids are null");
    if (config.in == DType::kF8E4M3 && call.x_scales == nullptr) {
      return Invalid("x is of f8e4m3, and its scales are null");
    }
  }
  if (config.in != DType::kF8E4M3 && call.x_scales != nullptr) {
    return Invalid("x has scales only where it is of f8e4m3: leave x_scales out");
  }
  if (config.rows == DType::kF8E4M3 && (call.rows == nullptr) != (call.scales == nullptr)) {
    return Invalid("rows of f8e4m3 have scales: give both, or none of them");
  }
  if (config.rows != DType::kF8E4M3 && call.scales != nullptr) {
    return Invalid(
        "rows have scales only where they are of f8e4m3: set rows of the config to that, or leave "
        "scales out");
  }
  const uint64_t choices = uint64_t{call.tokens} * config.top_k;
  const uint64_t scales = config.in == DType::kF8E4M3 ? call.tokens * sizes.scale_columns : 0;
  const uint64_t row_elements = sizes.max_rows * config.hidden;
  const Range ranges[] = {
      {call.x, uint64_t{call.tokens} * config.hidden * DTypeBytes(config.in), DTypeBytes(config.in),
       false, IRIS_MOE_WRONG("x")},
      {call.x_scales, scales * 4, 4, false, IRIS_MOE_WRONG("x_scales")},
      {call.ids, choices * DTypeBytes(call.ids_type), DTypeBytes(call.ids_type), false,
       IRIS_MOE_WRONG("ids")},
      {call.weights, choices * 4, 4, false, IRIS_MOE_WRONG("weights")},
      {call.rows, row_elements * DTypeBytes(config.rows), DTypeBytes(config.rows), true,
       IRIS_MOE_WRONG("rows")},
      {call.scales, sizes.max_rows * sizes.scale_columns * 4, 4, true, IRIS_MOE_WRONG("scales")},
      {call.counts, uint64_t{4} * sizes.local_experts, 4, true, IRIS_MOE_WRONG("counts")},
      {call.offsets, uint64_t{4} * sizes.local_experts + 4, 4, true, IRIS_MOE_WRONG("offsets")},
      {call.dropped, uint64_t{4} * sizes.local_experts, 4, true, IRIS_MOE_WRONG("dropped")},
      {call.sources, 4 * sizes.max_rows, 4, true, IRIS_MOE_WRONG("sources")},
  };
  result = CheckRanges(ranks, ranges, workspace, sizes.workspace_bytes);
  if (!result.ok()) return result;
  moe.ids_type = call.ids_type;
  moe.x = static_cast<const uint8_t*>(call.x);
  moe.x_scales = call.x_scales;
  moe.ids = static_cast<const uint8_t*>(call.ids);
  moe.weights = call.weights;
  moe.out_rows = static_cast<uint8_t*>(call.rows);
  moe.out_scales = call.scales;
  moe.counts = call.counts;
  moe.offsets = call.offsets;
  moe.dropped = call.dropped;
  moe.sources = call.sources;
  moe.own_stay =
      config.rows == config.in && call.rows != nullptr && call.sources == nullptr ? 1 : 0;
  const uint64_t checks = call.tokens / impl::kLeastThreads + 1;
  result = backend::Launch(Local(uint64_t{config.n_experts} + ranks.size() + checks), stream,
                           &impl::Route<>, moe);
  if (result.ok()) result = LaunchTeam(ranks, stream, &impl::Send<>, call.tokens, &moe);
  if (result.ok()) result = backend::Launch(Local(1), stream, &impl::Place<>, moe);
  if (!result.ok()) return result;
  return backend::Launch(Local(WarpsOf(uint64_t{ranks.size()} * config.max_tokens)), stream,
                         &impl::Expand<>, moe);
}

Result PutCombine(const Ranks& ranks, const Config& given, void* workspace, const Combine& call,
                  backend::Stream& stream) {
  Sizes sizes;
  Result result = SizesOf(ranks.size(), ranks.index(), given, &sizes, ranks.nodes != nullptr);
  if (!result.ok()) return result;
  const Config config = Complete(given);
  if (!IsFloat(call.y_type)) return Invalid("y is of f32, f16 or bf16");
  if (!IsFloat(call.out_type)) return Invalid("out is of f32, f16 or bf16");
  MoeCall moe;
  result = Begin(ranks, Operation::kMoeCombine, config, call.tokens, workspace, call.y_type,
                 config.partials, call.out_type, &moe);
  if (!result.ok()) return result;
  if (call.y == nullptr && sizes.max_rows != 0) return Invalid("y is null");
  if (call.out == nullptr && call.tokens != 0) return Invalid("out is null");
  const Range ranges[] = {
      {call.y, sizes.max_rows * config.hidden * DTypeBytes(call.y_type), DTypeBytes(call.y_type),
       false, IRIS_MOE_WRONG("y")},
      {call.out, uint64_t{call.tokens} * config.hidden * DTypeBytes(call.out_type),
       DTypeBytes(call.out_type), true, IRIS_MOE_WRONG("out")},
  };
  result = CheckRanges(ranks, ranges, workspace, sizes.workspace_bytes);
  if (!result.ok()) return result;
  moe.y = static_cast<const uint8_t*>(call.y);
  moe.y_type = call.y_type;
  moe.out = static_cast<uint8_t*>(call.out);
  moe.out_type = call.out_type;
  result =
      LaunchTeam(ranks, stream, &impl::Return<>, uint64_t{ranks.size()} * config.max_tokens, &moe);
  if (!result.ok()) return result;
  return backend::Launch(Local(WarpsOf(config.max_tokens)), stream, &impl::Gather<>, moe);
}

}  // namespace

Result LaunchDispatch(const ccl::Comm& comm, const Config& config, void* workspace,
                      const Dispatch& call, backend::Stream& stream) {
  return PutDispatch({comm}, config, workspace, call, stream);
}
Result LaunchCombine(const ccl::Comm& comm, const Config& config, void* workspace,
                     const Combine& call, backend::Stream& stream) {
  return PutCombine({comm}, config, workspace, call, stream);
}
Result LaunchDispatchOnNodes(const ccl::NodesComm& comm, const Config& config, void* workspace,
                             const Dispatch& call, backend::Stream& stream) {
  return PutDispatch({comm.local, &comm}, config, workspace, call, stream);
}
Result LaunchCombineOnNodes(const ccl::NodesComm& comm, const Config& config, void* workspace,
                            const Combine& call, backend::Stream& stream) {
  return PutCombine({comm.local, &comm}, config, workspace, call, stream);
}

Result Prepare() {
  Result result = backend::PrepareKernel(&impl::Route<>);
  if (result.ok()) result = backend::PrepareKernel(&impl::Send<>);
  if (result.ok()) result = backend::PrepareKernel(&impl::Place<>);
  if (result.ok()) result = backend::PrepareKernel(&impl::Expand<>);
  if (result.ok()) result = backend::PrepareKernel(&impl::Return<>);
  if (result.ok()) result = backend::PrepareKernel(&impl::Gather<>);
  if (result.ok()) result = backend::PrepareKernel(&impl::Tell<>);
  if (result.ok()) result = backend::PrepareKernel(&impl::Taken<>);
  if (result.ok()) result = backend::PrepareKernel(&impl::Ship<>);
  return result.ok() ? ccl::impl::PrepareOpening() : result;
}

}  // namespace iris::moe
