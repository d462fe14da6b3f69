// The launcher of collectives: it checks a call, plans it by the rules of the Comm and the rows of
// the variants, makes the arguments of kernels, and launches the variant.
#include "iris/collective/operations.h"

#include <algorithm>
#include <cstdint>

#include "iris/collective/call_record.h"
#include "iris/collective/impl/calls.h"
#include "iris/collective/table.h"

namespace iris::ccl {
namespace {

using Row = ResolvedRules::Row;

bool Has(Variant variant, const Shape& shape, uint32_t members) {
  const impl::VariantRow* row = impl::FindRow(impl::kRows, variant);
  return row != nullptr && (row->operations & impl::Bit(shape.operation)) != 0 &&
         (row->supports == nullptr || row->supports(shape, members));
}

// Returns true if a Comm supports the variant for this shape.
bool Has(const Comm& comm, Variant variant, const Shape& shape) {
  const bool lines = variant == Variant::kLines || variant == Variant::kTwoLines;
  return !(lines && comm.config.without_lines) && Has(variant, shape, comm.team.size);
}

// Returns the variant that supports every call of an operation.
Variant Usual(Operation operation) {
  return operation == Operation::kAllReduce || operation == Operation::kReduce ? Variant::kTwoShot
                                                                               : Variant::kDirect;
}

// Returns the variant and its rule. Skips rules of variants that do not support the call.
Plan FollowRules(const Comm& comm, const Shape& shape, uint64_t bytes) {
  Variant wanted = shape.variant;
  if (wanted != Variant::kAuto && !Has(comm, wanted, shape)) wanted = Usual(shape.operation);
  const uint32_t operation = static_cast<uint32_t>(shape.operation);
  if (operation < kOperationCount) {
    const uint32_t begin = operation == 0 ? 0 : comm.rules.end[operation - 1];
    for (uint32_t i = begin; i < comm.rules.end[operation]; ++i) {
      const Row& row = comm.rules.rows[i];
      if (bytes > row.max_bytes) continue;
      if (wanted != Variant::kAuto && row.variant != wanted) continue;
      if (wanted == Variant::kAuto) {
        if (row.variant == Variant::kCopyEngine && !comm.config.symmetric) continue;
        if (!Has(comm, row.variant, shape)) continue;
      }
      return {row.variant, row.blocks, row.threads, row.unroll};
    }
  }
  if (wanted == Variant::kAuto) {
    wanted = Has(comm, Variant::kDirect, shape) ? Variant::kDirect : Usual(shape.operation);
  }
  return {wanted, 0, 0, 0};
}

}  // namespace

bool HasVariant(Operation operation, Variant variant) {
  if (operation > Operation::kSendRecv || operation == Operation::kBarrier) return false;
  const impl::VariantRow* row = impl::FindRow(impl::kRows, variant);
  return row != nullptr && (row->operations & impl::Bit(operation)) != 0;
}

Plan Choose(const Comm& comm, const Shape& shape) {
  if (comm.team.size == 1 && shape.operation != Operation::kBarrier) {
    return {Variant::kCopyEngine, 0, 0};
  }
  const Config& config = comm.config;
  const uint64_t bytes = impl::LargerBytes(shape, comm.team.size);
  Plan plan = FollowRules(comm, shape, bytes);
  if (config.block_threads != 0) plan.threads = config.block_threads;
  if (config.blocks != 0) plan.blocks = config.blocks;
  if (config.unroll != 0) plan.unroll = config.unroll;
  plan.unroll = plan.unroll == 0 ? 1 : plan.unroll > kMaxUnroll ? kMaxUnroll : plan.unroll;
  impl::FindRow(impl::kRows, plan.variant)->fit(comm, shape, bytes, &plan);
  return plan;
}

namespace impl {
namespace {

uint64_t Clamp(uint64_t value, uint64_t low, uint64_t high) {
  return value < low ? low : value > high ? high : value;
}

ReduceCall ReduceCallOf(const Start& start) {
  const Request& request = start.request;
  ReduceCall call = {};
  call.in = static_cast<const uint8_t*>(request.in);
  call.out = static_cast<uint8_t*>(request.out);
  call.count = request.count;
  call.limit = request.count;
  call.rows = 1;
  call.target = ReduceCall::kSelf;
  call.divide = request.op == ReduceOp::kAvg ? start.comm.team.size : 1;
  call.unroll = start.plan.unroll;
  call.op = request.op;
  return call;
}

Pattern PatternOf(Operation operation) {
  switch (operation) {
    case Operation::kAllToAll:
      return Pattern::kAllToAll;
    case Operation::kGather:
      return Pattern::kGather;
    case Operation::kScatter:
      return Pattern::kScatter;
    case Operation::kBroadcast:
    case Operation::kSendRecv:
      return Pattern::kBroadcast;
    default:
      return Pattern::kAllGather;
  }
}

}  // namespace

uint64_t LargerBytes(const Shape& shape, uint32_t members) {
  const uint64_t bytes = shape.count * DTypeBytes(shape.type);
  switch (shape.operation) {
    case Operation::kReduceScatter:
    case Operation::kAllGather:
    case Operation::kAllToAll:
    case Operation::kGather:
    case Operation::kScatter:
      return bytes * members;
    case Operation::kAllToAllV:
      return 4 << 20;  // sizes differ between ranks, but the grid must not
    default:
      return bytes;
  }
}

void FitWords(const Comm& comm, uint64_t words, Plan* plan) {
  const Config& config = comm.config;
  if (plan->threads == 0) {
    plan->threads =
        static_cast<uint32_t>(Clamp(RoundUp(words, 32), 32, backend::Traits::kEmulated ? 64 : 256));
  }
  if (plan->blocks == 0) {
    plan->blocks = static_cast<uint32_t>(
        Clamp((words + plan->threads - 1) / plan->threads, 1, config.packet_blocks));
  }
  if (plan->blocks > config.packet_blocks) plan->blocks = config.packet_blocks;
  if (words == 0) return;
  // Leave no thread without a word, except to fill a warp.
  if (config.blocks == 0) {
    const uint64_t threads = RoundUp(words, 32);
    if (plan->threads > threads) plan->threads = static_cast<uint32_t>(threads);
    const uint64_t blocks = (words + plan->threads - 1) / plan->threads;
    if (plan->blocks > blocks) plan->blocks = static_cast<uint32_t>(blocks);
  }
  // Leave no block without a word.
  if (plan->blocks > words) plan->blocks = static_cast<uint32_t>(words);
  const uint64_t per_block = (words + plan->blocks - 1) / plan->blocks;
  plan->blocks = static_cast<uint32_t>((words + per_block - 1) / per_block);
}

void FitLines(const Comm& comm, uint64_t row_bytes, Plan* plan) {
  const Config& config = comm.config;
  const uint32_t lanes = backend::WarpSize();
  const uint64_t step_bytes = lanes / kLineLanes * kLineDataBytes;
  const uint64_t steps = (row_bytes + step_bytes - 1) / step_bytes;
  if (plan->threads == 0) plan->threads = backend::Traits::kEmulated ? 64 : 256;
  plan->threads = static_cast<uint32_t>(RoundUp(plan->threads, lanes));
  const uint64_t most_blocks = plan->blocks == 0 ? config.line_blocks : plan->blocks;
  if (config.block_threads == 0) {
    plan->threads =
        static_cast<uint32_t>(Clamp(RoundUp(steps * lanes, lanes), lanes, plan->threads));
  }
  const uint64_t warps = plan->threads / lanes;
  if (plan->blocks == 0) plan->blocks = static_cast<uint32_t>((steps + warps - 1) / warps);
  plan->blocks = static_cast<uint32_t>(
      Clamp(plan->blocks, 1, most_blocks < config.line_blocks ? most_blocks : config.line_blocks));
  if (steps == 0) return;
  // Leave no block without a step.
  const uint64_t per_block = (steps + plan->blocks - 1) / plan->blocks;
  plan->blocks = static_cast<uint32_t>((steps + per_block - 1) / per_block);
}

void FitUnits(const Comm& comm, const Shape&, uint64_t bytes, Plan* plan) {
  const bool emu = backend::Traits::kEmulated;
  if (plan->threads == 0) plan->threads = emu ? 64 : kMaxThreads;
  if (plan->blocks == 0) {
    const uint64_t units = bytes / comm.team.size / 16;
    plan->blocks = static_cast<uint32_t>(
        Clamp(units / (plan->threads * (emu ? 16 : 1)) + 1, 1, comm.config.max_blocks));
  }
  if (plan->blocks > comm.config.max_blocks) plan->blocks = comm.config.max_blocks;
}

void FitRound(const Comm& comm, Plan* plan) {
  plan->blocks = 1;
  plan->threads =
      static_cast<uint32_t>(RoundUp(comm.team.size * CallWords::kCount, backend::WarpSize()));
}

Common CommonOf(const Start& start) {
  const Request& request = start.request;
  CallRecord record = {request, request.root, request.receiver, start.plan.blocks,
                       start.comm.config.check_calls};
  record.variant = start.plan.variant;
  Common common = CommonOf(start.comm, Pack(record), start.plan.blocks, BeginsEarly(start));
  common.in_offset_bytes = request.in_offset_bytes;
  common.out_offset_bytes = request.out_offset_bytes;
  return common;
}

ReduceCall WholeRows(const Start& start) {
  ReduceCall call = ReduceCallOf(start);
  const DeviceTeam& team = start.comm.team;
  if (start.request.operation == Operation::kReduce) call.target = start.request.root;
  if (start.request.operation == Operation::kReduceScatter) {
    call.rows = team.size;
    call.row = team.index;
    call.limit = start.request.count * team.size;
  }
  return call;
}

ReduceCall Slices(const Start& start) {
  ReduceCall call = ReduceCallOf(start);
  const DeviceTeam& team = start.comm.team;
  const bool one = start.request.operation == Operation::kReduce;
  call.target = one ? start.request.root : uint32_t{ReduceCall::kAll};
  call.rows = team.size;
  call.row = team.index;
  call.count = RoundUp((start.request.count + team.size - 1) / team.size,
                       16 / DTypeBytes(start.request.type));
  return call;
}

MoveCall Rows(const Start& start) {
  const Request& request = start.request;
  MoveCall call = {};
  call.in = static_cast<const uint8_t*>(request.in);
  call.out = static_cast<uint8_t*>(request.out);
  call.count = request.count * DTypeBytes(request.type);
  call.root = request.root;
  call.unroll = start.plan.unroll;
  call.pattern = PatternOf(request.operation);
  return call;
}

Result CompleteRequest(uint32_t n, int64_t index, Request* request) {
  const bool at_root = index == request->root;
  switch (request->operation) {
    case Operation::kAllReduce:
      break;
    case Operation::kReduceScatter:
      request->in_rows = n;
      request->in_place_rows = -index;
      break;
    case Operation::kReduce:
      request->out_rows = at_root ? 1 : 0;
      break;
    case Operation::kAllGather:
      request->out_rows = n;
      request->in_place_rows = index;
      break;
    case Operation::kGather:
      request->out_rows = at_root ? n : 0;
      request->in_place_rows = index;
      break;
    case Operation::kScatter:
      request->in_rows = at_root ? n : 0;
      request->in_place_rows = -index;
      break;
    case Operation::kAllToAll:
      request->in_rows = n;
      request->out_rows = n;
      request->in_place_ok = n == 1;
      break;
    case Operation::kBroadcast:
      request->in_rows = at_root ? 1 : 0;
      break;
    default:
      return Invalid("no such collective");
  }
  if (!HasRoot(request->operation)) {
    request->root = CallRecord::kNobody;
  } else if (request->root >= n) {
    return Invalid("the root is not a member");
  }
  return {};
}

Result CheckRequest(const Comm& comm, Request* request, bool* nothing) {
  *nothing = false;
  if (Result result = CheckComm(comm); !result.ok()) return result;
  const uint64_t element_bytes = DTypeBytes(request->type);
  if (element_bytes == 0) return Invalid("no such data type");
  if (IsReduction(request->operation) && request->type > DType::kU8) {
    return {StatusCode::kUnimplemented,
            "reductions know the types f32, f64, f16, bf16, i32, i64 and u8"};
  }
  if (request->op > ReduceOp::kAvg) return Invalid("no such reduce op");
  if (!IsVariant(static_cast<uint32_t>(request->variant))) return Invalid("no such variant");
  constexpr uint64_t kLimit = 1ull << 47;
  if (request->count > kLimit / element_bytes / comm.team.size) {
    return Invalid("the count is too large");
  }
  if (request->count == 0) {
    *nothing = true;
    return {};
  }
  const uint64_t row_bytes = request->count * element_bytes;
  // An unused buffer counts as one in the heap, at any offset.
  request->in_offset_bytes = 0;
  request->out_offset_bytes = 0;
  if (request->in_rows != 0) {
    const Result result = CheckBuffer(comm, request->in, request->in_rows * row_bytes,
                                      element_bytes, &request->in_offset_bytes);
    if (!result.ok()) return result;
  }
  if (request->out_rows != 0) {
    const Result result = CheckBuffer(comm, request->out, request->out_rows * row_bytes,
                                      element_bytes, &request->out_offset_bytes);
    if (!result.ok()) return result;
  }
  if (request->in_rows != 0 && request->out_rows != 0 &&
      Overlap(request->in, request->in_rows * row_bytes, request->out,
              request->out_rows * row_bytes)) {
    const uint64_t in = reinterpret_cast<uint64_t>(request->in);
    const uint64_t out = reinterpret_cast<uint64_t>(request->out);
    if (!request->in_place_ok ||
        in != out + static_cast<uint64_t>(request->in_place_rows) * row_bytes) {
      return Invalid("in and out overlap otherwise than in place");
    }
  }
  return {};
}

Result CheckLayouts(const Comm& comm, uint32_t n, uint32_t index, Request* request,
                    uint64_t* in_bytes, uint64_t* out_bytes) {
  const Layout& to = request->to;
  const Layout& from = request->from;
  const uint64_t element_bytes = DTypeBytes(request->type);
  if (element_bytes == 0) return Invalid("no such data type");
  if (to.counts == nullptr || to.offsets == nullptr || from.counts == nullptr ||
      from.offsets == nullptr) {
    return Invalid("an array of a Layout is null");
  }
  constexpr uint64_t kLimit = 1ull << 40;
  *in_bytes = *out_bytes = 0;
  for (uint32_t m = 0; m < n; ++m) {
    if (to.counts[m] > kLimit || to.offsets[m] > kLimit || from.counts[m] > kLimit ||
        from.offsets[m] > kLimit) {
      return Invalid("the count is too large");
    }
    const auto end = [m, element_bytes](const Layout& layout) {
      return layout.counts[m] == 0 ? 0 : (layout.counts[m] + layout.offsets[m]) * element_bytes;
    };
    *in_bytes = std::max(*in_bytes, end(to));
    *out_bytes = std::max(*out_bytes, end(from));
  }
  if (to.counts[index] != from.counts[index]) {
    return Invalid("a member sends itself another count than it expects");
  }
  if (*in_bytes != 0) {
    const Result result =
        CheckBuffer(comm, request->in, *in_bytes, element_bytes, &request->in_offset_bytes);
    if (!result.ok()) return result;
  }
  if (*out_bytes != 0) {
    const Result result =
        CheckBuffer(comm, request->out, *out_bytes, element_bytes, &request->out_offset_bytes);
    if (!result.ok()) return result;
  }
  if (*in_bytes != 0 && *out_bytes != 0 &&
      Overlap(request->in, *in_bytes, request->out, *out_bytes)) {
    return Invalid("in and out overlap");
  }
  return {};
}

Result LaunchRequest(const Comm& comm, const Request& request, backend::Stream& stream) {
  const Plan plan = Choose(comm, request);
  return FindRow(kRows, plan.variant)->launch({comm, request, plan}, stream);
}

}  // namespace impl
namespace {

using impl::Invalid;
using impl::Request;

Result RunAllToAllV(const Comm& comm, const Call& call, backend::Stream& stream) {
  const uint32_t n = comm.team.size;
  // Counts differ between ranks, so each pair of ranks compares its own.
  Request request = {{{call.operation, 0, call.type}, call.in, call.out, CallRecord::kNobody}};
  request.to = call.to;
  request.from = call.from;
  uint64_t in_bytes = 0;
  uint64_t out_bytes = 0;
  const Result result =
      impl::CheckLayouts(comm, n, comm.team.index, &request, &in_bytes, &out_bytes);
  if (!result.ok()) return result;
  const uint64_t element_bytes = DTypeBytes(call.type);
  impl::Vector vector = {};
  for (uint32_t m = 0; m < n; ++m) {
    vector.send_bytes[m] = call.to.counts[m] * element_bytes;
    vector.send_offset_bytes[m] = call.to.offsets[m] * element_bytes;
    vector.receive_bytes[m] = call.from.counts[m] * element_bytes;
    vector.receive_offset_bytes[m] = call.from.offsets[m] * element_bytes;
  }
  request.vector = &vector;
  request.in_offset_bytes = 0;  // no other rank reads `in`
  if (n != 1) return impl::LaunchRequest(comm, request, stream);
  if (vector.send_bytes[0] == 0) return {};
  return backend::CopyAsync(static_cast<uint8_t*>(call.out) + vector.receive_offset_bytes[0],
                            static_cast<const uint8_t*>(call.in) + vector.send_offset_bytes[0],
                            vector.send_bytes[0], stream);
}

}  // namespace

Result CreateComm(const CommOptions& options, Comm* out) {
  if (Result result = PrepareKernels(); !result.ok()) return result;
  CommOptions complete = options;
  complete.config = impl::WithRules(impl::Complete(options.config));
  return impl::MakeComm(complete, out);
}

Result PrepareKernels() { return impl::PrepareRows(impl::kRows); }

Result Run(const Comm& comm, const Call& call, backend::Stream& stream) {
  const bool barrier = call.operation == Operation::kBarrier;
  if (Result result = impl::CheckComm(comm, barrier); !result.ok()) return result;
  if (call.operation == Operation::kAllToAllV) return RunAllToAllV(comm, call, stream);
  if (barrier) {
    return impl::LaunchRequest(
        comm, {{{Operation::kBarrier}, nullptr, nullptr, CallRecord::kNobody}}, stream);
  }
  Request request = {call};
  if (Result result = impl::CompleteRequest(comm.team.size, comm.team.index, &request);
      !result.ok())
    return result;
  bool nothing = false;
  const Result result = impl::CheckRequest(comm, &request, &nothing);
  if (!result.ok() || nothing) return result;
  if (comm.team.size != 1) return impl::LaunchRequest(comm, request, stream);
  if (request.in == request.out) return {};
  return backend::CopyAsync(request.out, request.in, request.count * DTypeBytes(request.type),
                            stream);
}

}  // namespace iris::ccl
