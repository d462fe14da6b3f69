// Shared parts of variants: they complete plans, and make the arguments of kernels.
#include "iris/collective/variants/variant.h"

#include <cstdint>

#include "iris/collective/call_record.h"
#include "iris/collective/impl/calls.h"

namespace iris::ccl::impl {
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
  // No thread without a word, as far as whole warps allow.
  if (config.blocks == 0) {
    const uint64_t threads = RoundUp(words, 32);
    if (plan->threads > threads) plan->threads = static_cast<uint32_t>(threads);
    const uint64_t blocks = (words + plan->threads - 1) / plan->threads;
    if (plan->blocks > blocks) plan->blocks = static_cast<uint32_t>(blocks);
  }
  // No block without a word.
  if (plan->blocks > words) plan->blocks = static_cast<uint32_t>(words);
  const uint64_t per_block = (words + plan->blocks - 1) / plan->blocks;
  plan->blocks = static_cast<uint32_t>((words + per_block - 1) / per_block);
}

void FitLines(const Comm& comm, uint64_t row_bytes, Plan* plan) {
  const Config& config = comm.config;
  const uint32_t lanes = backend::WarpSize();
  const uint64_t step_bytes = lanes / kLineLanes * kLineDataBytes;
  const uint64_t steps = (row_bytes + step_bytes - 1) / step_bytes;
  // Whole warps.
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
  // No block without a step.
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

}  // namespace iris::ccl::impl
