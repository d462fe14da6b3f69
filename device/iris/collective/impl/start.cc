// The arguments of kernels, made from a call and its plan.
#include <cstdint>

#include "iris/collective/impl/calls.h"
#include "iris/collective/impl/request.h"
#include "iris/collective/variants/variant.h"

namespace iris::ccl::impl {
namespace {

// What must agree, in four words; UnpackCall is the way back.
PackedCall PackCall(const Request& request, const Plan& plan, bool checks_calls) {
  const uint32_t root = request.root == kNoRoot ? 0xff : request.root;
  const uint32_t to = request.to == kNoRoot ? 0xff : request.to;
  return {{static_cast<uint32_t>(request.operation) | static_cast<uint32_t>(request.type) << 8 |
               static_cast<uint32_t>(request.op) << 16 | static_cast<uint32_t>(plan.variant) << 24,
           static_cast<uint32_t>(request.count), static_cast<uint32_t>(request.count >> 32),
           plan.blocks | (checks_calls ? kChecksCalls : 0) | root << 16 | to << 24, 0, 0}};
}

ReduceCall ReduceCallOf(const Start& start) {
  const Request& request = start.request;
  ReduceCall call = {};
  call.in = static_cast<const uint8_t*>(request.in);
  call.out = static_cast<uint8_t*>(request.out);
  call.count = request.count;
  call.limit = request.count;
  call.rows = 1;
  call.row = 0;
  call.target = ReduceCall::kSelf;
  call.divide = request.op == ReduceOp::kAvg ? start.comm.team.size : 1;
  call.unroll = start.plan.unroll;
  call.op = request.op;
  return call;
}

}  // namespace

Common CommonOf(const Start& start) {
  const Request& request = start.request;
  const uint32_t blocks = start.plan.blocks;
  Common common = CommonOf(start.comm, PackCall(request, start.plan, start.comm.config.check_calls),
                           blocks, BeginsEarly(start));
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
  switch (request.operation) {
    case Operation::kAllToAll:
      call.pattern = Pattern::kAllToAll;
      break;
    case Operation::kGather:
      call.pattern = Pattern::kGather;
      break;
    case Operation::kScatter:
      call.pattern = Pattern::kScatter;
      break;
    case Operation::kBroadcast:
    case Operation::kSendRecv:
      call.pattern = Pattern::kBroadcast;
      break;
    default:
      call.pattern = Pattern::kAllGather;
      break;
  }
  return call;
}

}  // namespace iris::ccl::impl
