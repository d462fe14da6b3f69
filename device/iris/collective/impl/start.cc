// The arguments of kernels, made from a call and its plan.
#include <cstdint>

#include "iris/backend/numeric.h"
#include "iris/collective/impl/layout.h"
#include "iris/collective/impl/request.h"
#include "iris/collective/variants/variant.h"

namespace iris::ccl::impl {
namespace {

uint32_t Hash(uint64_t value, uint32_t seed) {
  value ^= static_cast<uint64_t>(seed) << 32 | seed;
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccdull;
  value ^= value >> 33;
  value *= 0xc4ceb9fe1a85ec53ull;
  return static_cast<uint32_t>(value ^ value >> 32);
}

// In a word beside the number of blocks.
constexpr uint32_t kChecksCalls = 1u << 15;
static_assert(kMaxBlocks < kChecksCalls);

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

uint32_t SignatureOf(const PackedCall& call) {
  uint32_t hash = 0;
  for (uint32_t k = 0; k < PackedCall::kWords; k += 2) {
    hash = Hash(call.words[k] | static_cast<uint64_t>(call.words[k + 1]) << 32, hash + k + 1);
  }
  return hash;
}

PackedCall PackMatmul(const CallRecord& call) {
  return {{static_cast<uint32_t>(call.operation) | static_cast<uint32_t>(call.type) << 8 |
               static_cast<uint32_t>(call.out_type) << 12 | (call.bias ? 1u << 16 : 0u) |
               (call.transposed_b ? 1u << 17 : 0u) | static_cast<uint32_t>(call.activation) << 18 |
               static_cast<uint32_t>(call.ops_variant) << 21 | (call.blocks - 1) << 24,
           call.m, call.n, call.k, call.ldd, call.d_place}};
}

PackedCall PackMoe(const CallRecord& call) {
  return {{static_cast<uint32_t>(call.operation) | static_cast<uint32_t>(call.type) << 8 |
               static_cast<uint32_t>(call.out_type) << 12 |
               static_cast<uint32_t>(call.moe_type) << 16 | (call.blocks - 1) << 24,
           call.hidden, call.n_experts | call.top_k << 16, call.max_tokens, call.capacity,
           static_cast<uint32_t>(call.moe_place / kWorkspaceAlignmentBytes)}};
}

PackedCall PackNorm(const CallRecord& call) {
  return {{static_cast<uint32_t>(call.operation) | static_cast<uint32_t>(call.type) << 8 |
               static_cast<uint32_t>(call.out_type) << 12 |
               static_cast<uint32_t>(call.weight) << 16 | (call.residual ? 1u << 20 : 0u) |
               static_cast<uint32_t>(call.scaling) << 21 |
               static_cast<uint32_t>(call.norm_variant) << 24,
           call.rows, call.hidden,
           call.blocks | (call.check_calls ? kChecksCalls : 0) | call.parts << 16,
           numeric::BitsOf(call.epsilon), numeric::BitsOf(call.weight_offset)}};
}

CallRecord UnpackCall(const uint32_t* words) {
  CallRecord call;
  call.operation = static_cast<Operation>(words[0] & 0xff);
  if (IsMoe(call.operation)) {
    call.type = static_cast<DType>(words[0] >> 8 & 0xf);
    call.out_type = static_cast<DType>(words[0] >> 12 & 0xf);
    call.moe_type = static_cast<DType>(words[0] >> 16 & 0xf);
    call.blocks = (words[0] >> 24) + 1;
    call.hidden = words[1];
    call.n_experts = words[2] & 0xffff;
    call.top_k = words[2] >> 16;
    call.max_tokens = words[3];
    call.capacity = words[4];
    call.moe_place = uint64_t{words[5]} * kWorkspaceAlignmentBytes;
    return call;
  }
  if (IsNorm(call.operation)) {
    call.type = static_cast<DType>(words[0] >> 8 & 0xf);
    call.out_type = static_cast<DType>(words[0] >> 12 & 0xf);
    call.weight = static_cast<DType>(words[0] >> 16 & 0xf);
    call.residual = (words[0] >> 20 & 1) != 0;
    call.scaling = static_cast<norm::Scaling>(words[0] >> 21 & 7);
    call.norm_variant = static_cast<norm::Variant>(words[0] >> 24);
    call.rows = words[1];
    call.hidden = words[2];
    call.blocks = words[3] & (kChecksCalls - 1);
    call.check_calls = (words[3] & kChecksCalls) != 0;
    call.parts = words[3] >> 16;
    call.epsilon = numeric::FloatOf(words[4]);
    call.weight_offset = numeric::FloatOf(words[5]);
    return call;
  }
  if (IsMatmul(call.operation)) {
    call.type = static_cast<DType>(words[0] >> 8 & 0xf);
    call.out_type = static_cast<DType>(words[0] >> 12 & 0xf);
    call.bias = (words[0] >> 16 & 1) != 0;
    call.transposed_b = (words[0] >> 17 & 1) != 0;
    call.activation = static_cast<ops::Activation>(words[0] >> 18 & 7);
    call.ops_variant = static_cast<ops::Variant>(words[0] >> 21 & 7);
    call.blocks = (words[0] >> 24) + 1;
    call.m = words[1];
    call.n = words[2];
    call.k = words[3];
    call.ldd = words[4];
    call.d_place = words[5];
    return call;
  }
  call.type = static_cast<DType>(words[0] >> 8 & 0xff);
  call.op = static_cast<ReduceOp>(words[0] >> 16 & 0xff);
  call.variant = static_cast<Variant>(words[0] >> 24);
  call.count = words[1] | static_cast<uint64_t>(words[2]) << 32;
  call.blocks = words[3] & (kChecksCalls - 1);
  call.check_calls = (words[3] & kChecksCalls) != 0;
  const uint32_t root = words[3] >> 16 & 0xff;
  const uint32_t to = words[3] >> 24;
  if (root != 0xff) call.root = root;
  if (to != 0xff) call.to = to;
  return call;
}

Common CommonOf(const Start& start) {
  const Comm& comm = start.comm;
  const Request& request = start.request;
  const Offsets offsets = OffsetsOf(comm.team.size, comm.config);
  Common common = {};
  common.context = comm.context;
  if (comm.config.timeout_ns != 0) common.context.timeout_ns = comm.config.timeout_ns;
  common.report = comm.report;
  common.header_offset_bytes = comm.workspace_offset_bytes;
  common.sync_offset_bytes = comm.workspace_offset_bytes + offsets.sync_bytes;
  common.packet_offset_bytes = comm.workspace_offset_bytes + offsets.packet_bytes;
  common.line_offset_bytes = comm.workspace_offset_bytes + offsets.line_bytes;
  common.push_offset_bytes = comm.workspace_offset_bytes + offsets.push_bytes;
  common.stage_offset_bytes = comm.workspace_offset_bytes + offsets.stage_bytes;
  common.packet_bytes = comm.config.packet_bytes;
  common.line_bytes = LineInboxBytes(comm.team.size, comm.config.line_bytes);
  common.push_bytes = PushInboxBytes(comm.team.size, comm.config.push_bytes);
  common.push_block_bytes = comm.config.push_bytes;
  common.stage_bytes = comm.config.stage_bytes;
  common.size = comm.team.size;
  common.index = comm.team.index;
  for (uint32_t m = 0; m < kMaxTeamRanks; ++m) common.members[m] = comm.team.members[m];
  common.operation = request.operation;
  common.check = comm.config.check_calls ? 1 : 0;
  common.ends = 1;
  common.early = BeginsEarly(start) ? 1 : 0;
  common.blocks = static_cast<uint8_t>(start.plan.blocks);
  common.call = PackCall(request, start.plan, comm.config.check_calls);
  common.signature = SignatureOf(common.call);
  common.traced = TracedAs(request.operation, kNoTracePeer);
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
