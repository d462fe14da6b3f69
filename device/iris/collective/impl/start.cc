// The arguments of kernels, made from a call and its plan.
#include <cstdint>

#include "iris/collective/call_record.h"
#include "iris/collective/impl/calls.h"
#include "iris/collective/impl/request.h"
#include "iris/collective/variants/variant.h"

namespace iris::ccl::impl {
namespace {

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
  const PackedCall call = Pack({.operation = request.operation,
                                .count = request.count,
                                .type = request.type,
                                .op = request.op,
                                .root = request.root,
                                .to = request.to,
                                .variant = start.plan.variant,
                                .blocks = start.plan.blocks,
                                .check_calls = start.comm.config.check_calls});
  Common common = CommonOf(start.comm, call, start.plan.blocks, BeginsEarly(start));
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

}  // namespace iris::ccl::impl
