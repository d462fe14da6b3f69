#include "device/collective/collective.h"

#include <cstdint>

#include "device/backend/numeric.h"
#include "device/collective/impl/kernels.h"
#include "device/collective/impl/layout.h"
#include "device/iris/context.h"

namespace iris::ccl {
namespace {

using impl::Call;
using impl::kNotInHeap;

constexpr Result kOkResult;

Result Invalid(const char* what) { return {ErrorCode::kInvalidArgument, what}; }

bool IsValid(const Config& config) {
  constexpr uint64_t kMaxBytes = 1ull << 40;  // keeps every sum of sizes far from overflow
  return config.max_blocks >= 1 && config.max_blocks <= kMaxBlocks && config.block_threads >= 1 &&
         config.block_threads <= kMaxBlockThreads && config.bytes_per_block >= 1 &&
         config.bytes_per_block <= kMaxBytes && config.one_shot_chunk_bytes >= 16 &&
         config.one_shot_chunk_bytes <= kMaxBytes && config.one_shot_chunk_bytes % 16 == 0 &&
         config.stage_bytes >= 16 * kMaxTeamRanks && config.stage_bytes <= kMaxBytes &&
         config.stage_bytes % (16 * kMaxTeamRanks) == 0;
}

bool Overlap(const void* a, uint64_t a_bytes, const void* b, uint64_t b_bytes) {
  const uint64_t x = reinterpret_cast<uint64_t>(a);
  const uint64_t y = reinterpret_cast<uint64_t>(b);
  return x < y + b_bytes && y < x + a_bytes;
}

// A buffer of a call, checked. *offset_bytes: in the caller's heap, or kNotInHeap.
Result CheckBuffer(const Comm& comm, const void* p, uint64_t bytes, uint64_t element_bytes,
                   uint64_t* offset_bytes) {
  if (p == nullptr) return Invalid("a buffer is null");
  const uint64_t address = reinterpret_cast<uint64_t>(p);
  if (address % element_bytes != 0) return Invalid("a buffer is not aligned to its element type");
  if (address + bytes < address) return Invalid("a buffer reaches beyond the address space");
  const void* workspace =
      iris::AtOffset<void>(comm.context, comm.context.rank, comm.workspace_offset_bytes);
  if (Overlap(p, bytes, workspace, comm.workspace_bytes)) {
    return Invalid("a buffer overlaps the workspace");
  }
  *offset_bytes = kNotInHeap;
  if (InHeap(comm.context, p)) {
    *offset_bytes = OffsetBytes(comm.context, p);
    if (bytes > comm.context.stride_bytes - *offset_bytes) {
      return Invalid("a buffer begins in the heap and reaches beyond it");
    }
  }
  return kOkResult;
}

// count * element_bytes * members, or false if that is not a sensible number.
bool TotalBytes(uint64_t count, uint64_t element_bytes, uint64_t members, uint64_t* bytes) {
  constexpr uint64_t kLimit = 1ull << 62;
  if (count > kLimit / element_bytes / members) return false;
  *bytes = count * element_bytes * members;
  return true;
}

// What every launcher checks first. kFailedPrecondition: an earlier operation failed.
Result CheckComm(const Comm& comm) {
  if (comm.team.size == 0 || comm.error_word == nullptr) {
    return Invalid("the Comm was not made by CreateComm");
  }
  if (!CheckError(comm).ok()) {
    return {ErrorCode::kFailedPrecondition,
            "an earlier operation of this Comm failed: see CheckError"};
  }
  return kOkResult;
}

struct Shape {
  Operation operation;
  uint64_t count;  // elements, or bytes
  uint64_t element_bytes;
  uint64_t kind;  // what must agree and is no count: variant, type, op
  uint32_t root_index = 0;
};

// Splits the work over blocks and writes this member's note. Returns the number of blocks, the same
// on every member.
uint32_t Plan(const Comm& comm, const Shape& shape, Call* call) {
  call->context = comm.context;
  call->team = comm.team;
  call->workspace_offset_bytes = comm.workspace_offset_bytes;
  call->error_word = comm.error_word;
  call->config = comm.config;
  call->operation = shape.operation;
  call->root_index = shape.root_index;
  call->count = shape.count;
  const uint64_t per_16 = 16 / shape.element_bytes;
  const uint64_t wanted = shape.count * shape.element_bytes / comm.config.bytes_per_block + 1;
  uint64_t blocks = wanted < comm.config.max_blocks ? wanted : comm.config.max_blocks;
  call->part_count = impl::RoundUp((shape.count + blocks - 1) / blocks, per_16);
  if (call->part_count != 0) blocks = (shape.count + call->part_count - 1) / call->part_count;
  call->note.count = shape.count;
  call->note.signature = static_cast<uint64_t>(shape.operation) | shape.kind << 8 |
                         static_cast<uint64_t>(shape.root_index) << 32 | blocks << 40;
  return static_cast<uint32_t>(blocks);
}

template <typename T, ReduceOp Op>
Result LaunchAllReduce(const LaunchConfig& launch, backend::Stream& stream, Variant variant,
                       const Call& call) {
  if (variant == Variant::kOneShot) {
    return backend::Launch(launch, stream, impl::AllReduceOneShot<T, Op>, call);
  }
  return backend::Launch(launch, stream, impl::AllReduceTwoShot<T, Op>, call);
}

template <typename T>
Result LaunchAllReduce(const LaunchConfig& launch, backend::Stream& stream, Variant variant,
                       ReduceOp op, const Call& call) {
  switch (op) {
    case ReduceOp::kSum:
      return LaunchAllReduce<T, ReduceOp::kSum>(launch, stream, variant, call);
    case ReduceOp::kProd:
      return LaunchAllReduce<T, ReduceOp::kProd>(launch, stream, variant, call);
    case ReduceOp::kMin:
      return LaunchAllReduce<T, ReduceOp::kMin>(launch, stream, variant, call);
    case ReduceOp::kMax:
      return LaunchAllReduce<T, ReduceOp::kMax>(launch, stream, variant, call);
  }
  return Invalid("no such reduce op");
}

Result CopyAlone(const void* in, void* out, uint64_t bytes, backend::Stream& stream) {
  if (in == out) return kOkResult;
  return backend::CopyAsync(out, in, bytes, stream);
}

}  // namespace

uint64_t ElementBytes(DataType type) {
  switch (type) {
    case DataType::kF16:
    case DataType::kBf16:
      return 2;
    case DataType::kF32:
    case DataType::kI32:
      return 4;
    case DataType::kF64:
    case DataType::kI64:
      return 8;
  }
  return 0;
}

const char* OperationName(Operation operation) {
  switch (operation) {
    case Operation::kNone:
      return "none";
    case Operation::kAllReduce:
      return "all_reduce";
    case Operation::kAllGather:
      return "all_gather";
    case Operation::kBroadcast:
      return "broadcast";
    case Operation::kBarrier:
      return "barrier";
  }
  return "unknown";
}

uint64_t WorkspaceBytes(uint32_t n_members, const Config& config) {
  if (n_members == 0 || n_members > kMaxTeamRanks || !IsValid(config)) return 0;
  return config.max_blocks * impl::BlockRegionBytes(n_members, config);
}

Result CreateComm(const CommOptions& options, Comm* out) {
  const DeviceContext& context = options.context;
  const DeviceTeam& team = options.team;
  if (context.stride_bytes == 0 || context.n_ranks == 0 || context.rank >= context.n_ranks) {
    return Invalid("the context has no heap or no valid rank");
  }
  if (team.size == 0 || team.size > kMaxTeamRanks) {
    return Invalid("a team has 1 to kMaxTeamRanks members");
  }
  for (uint32_t i = 0; i < team.size; ++i) {
    if (team.members[i] >= context.n_ranks) return Invalid("a member is not a rank of the context");
    for (uint32_t j = 0; j < i; ++j) {
      if (team.members[i] == team.members[j]) return Invalid("a rank is in the team twice");
    }
  }
  if (team.index >= team.size || team.members[team.index] != context.rank) {
    return Invalid("team.index does not name this rank");
  }
  if (!IsValid(options.config)) return Invalid("the config is not valid: see its limits");
  if (options.workspace_bytes < WorkspaceBytes(team.size, options.config)) {
    return Invalid("the workspace is smaller than WorkspaceBytes()");
  }
  if (!InHeap(context, options.workspace)) return Invalid("the workspace is not in the heap");
  const uint64_t offset_bytes = OffsetBytes(context, options.workspace);
  if (options.workspace_bytes > context.stride_bytes - offset_bytes) {
    return Invalid("the workspace reaches beyond the heap");
  }
  if (reinterpret_cast<uint64_t>(options.workspace) % kWorkspaceAlignmentBytes != 0) {
    return Invalid("the workspace is not aligned to kWorkspaceAlignmentBytes");
  }
  if (options.error_word == nullptr) return Invalid("the error word is null");
  out->context = context;
  out->team = team;
  out->workspace_offset_bytes = offset_bytes;
  out->workspace_bytes = options.workspace_bytes;
  out->error_word = options.error_word;
  out->config = options.config;
  return kOkResult;
}

Result PrepareWorkspace(const Comm& comm, backend::Stream& stream) {
  if (comm.team.size == 0) return Invalid("the Comm was not made by CreateComm");
  uint8_t* workspace =
      iris::AtOffset<uint8_t>(comm.context, comm.context.rank, comm.workspace_offset_bytes);
  return backend::FillAsync(workspace, 0, comm.workspace_bytes, stream);
}

Result AllReduce(const Comm& comm, const void* in, void* out, uint64_t count, DataType type,
                 ReduceOp op, backend::Stream& stream, Variant variant) {
  if (Result result = CheckComm(comm); !result.ok()) return result;
  const uint64_t element_bytes = ElementBytes(type);
  if (element_bytes == 0) return Invalid("no such data type");
  if (op > ReduceOp::kMax) return Invalid("no such reduce op");
  if (variant > Variant::kTwoShot) return Invalid("no such variant");
  uint64_t bytes = 0;
  if (!TotalBytes(count, element_bytes, 1, &bytes)) return Invalid("the count is too large");
  if (count == 0) return kOkResult;
  Call call;
  if (Result result = CheckBuffer(comm, in, bytes, element_bytes, &call.note.in_offset_bytes);
      !result.ok()) {
    return result;
  }
  if (Result result = CheckBuffer(comm, out, bytes, element_bytes, &call.note.out_offset_bytes);
      !result.ok()) {
    return result;
  }
  if (in != out && Overlap(in, bytes, out, bytes)) return Invalid("in and out overlap in part");
  if (comm.team.size == 1) return CopyAlone(in, out, bytes, stream);
  if (variant == Variant::kAuto) {
    variant = bytes <= comm.config.one_shot_max_bytes ? Variant::kOneShot : Variant::kTwoShot;
  }
  call.in = static_cast<const uint8_t*>(in);
  call.out = static_cast<uint8_t*>(out);
  const uint64_t kind = static_cast<uint64_t>(variant) | static_cast<uint64_t>(type) << 4 |
                        static_cast<uint64_t>(op) << 8;
  const uint32_t blocks = Plan(comm, {Operation::kAllReduce, count, element_bytes, kind}, &call);
  const LaunchConfig launch = {blocks, comm.config.block_threads, 0};
  switch (type) {
    case DataType::kF32:
      return LaunchAllReduce<float>(launch, stream, variant, op, call);
    case DataType::kF64:
      return LaunchAllReduce<double>(launch, stream, variant, op, call);
    case DataType::kF16:
      return LaunchAllReduce<Half>(launch, stream, variant, op, call);
    case DataType::kBf16:
      return LaunchAllReduce<Bfloat16>(launch, stream, variant, op, call);
    case DataType::kI32:
      return LaunchAllReduce<int32_t>(launch, stream, variant, op, call);
    case DataType::kI64:
      return LaunchAllReduce<int64_t>(launch, stream, variant, op, call);
  }
  return Invalid("no such data type");
}

Result AllGather(const Comm& comm, const void* in, void* out, uint64_t count_per_member,
                 DataType type, backend::Stream& stream) {
  if (Result result = CheckComm(comm); !result.ok()) return result;
  const uint64_t element_bytes = ElementBytes(type);
  if (element_bytes == 0) return Invalid("no such data type");
  uint64_t total_bytes = 0;
  if (!TotalBytes(count_per_member, element_bytes, comm.team.size, &total_bytes)) {
    return Invalid("the count is too large");
  }
  if (count_per_member == 0) return kOkResult;
  const uint64_t bytes = count_per_member * element_bytes;
  Call call;
  if (Result result = CheckBuffer(comm, in, bytes, element_bytes, &call.note.in_offset_bytes);
      !result.ok()) {
    return result;
  }
  if (Result result =
          CheckBuffer(comm, out, total_bytes, element_bytes, &call.note.out_offset_bytes);
      !result.ok()) {
    return result;
  }
  call.in = static_cast<const uint8_t*>(in);
  call.out = static_cast<uint8_t*>(out);
  if (in != call.out + comm.team.index * bytes && Overlap(in, bytes, out, total_bytes)) {
    return Invalid("in overlaps out, and is not this member's place in it");
  }
  if (comm.team.size == 1) return CopyAlone(in, out, bytes, stream);
  const uint64_t kind = static_cast<uint64_t>(type) << 4;
  const uint32_t blocks = Plan(comm, {Operation::kAllGather, bytes, 1, kind}, &call);
  return backend::Launch({blocks, comm.config.block_threads, 0}, stream, impl::AllGatherKernel,
                         call);
}

Result Broadcast(const Comm& comm, const void* in, void* out, uint64_t count, DataType type,
                 uint32_t root_index, backend::Stream& stream) {
  if (Result result = CheckComm(comm); !result.ok()) return result;
  const uint64_t element_bytes = ElementBytes(type);
  if (element_bytes == 0) return Invalid("no such data type");
  if (root_index >= comm.team.size) return Invalid("the root is not a member");
  uint64_t bytes = 0;
  if (!TotalBytes(count, element_bytes, 1, &bytes)) return Invalid("the count is too large");
  if (count == 0) return kOkResult;
  Call call;
  call.note.in_offset_bytes = kNotInHeap;  // nobody reads it but the root
  if (Result result = CheckBuffer(comm, out, bytes, element_bytes, &call.note.out_offset_bytes);
      !result.ok()) {
    return result;
  }
  if (comm.team.index == root_index) {
    uint64_t unused = 0;
    if (Result result = CheckBuffer(comm, in, bytes, element_bytes, &unused); !result.ok()) {
      return result;
    }
    if (in != out && Overlap(in, bytes, out, bytes)) return Invalid("in and out overlap in part");
  }
  call.in = static_cast<const uint8_t*>(in);
  call.out = static_cast<uint8_t*>(out);
  if (comm.team.size == 1) return CopyAlone(in, out, bytes, stream);
  const uint64_t kind = static_cast<uint64_t>(type) << 4;
  const uint32_t blocks = Plan(comm, {Operation::kBroadcast, bytes, 1, kind, root_index}, &call);
  return backend::Launch({blocks, comm.config.block_threads, 0}, stream, impl::BroadcastKernel,
                         call);
}

Result Barrier(const Comm& comm, backend::Stream& stream) {
  if (Result result = CheckComm(comm); !result.ok()) return result;
  Call call;
  call.note.in_offset_bytes = kNotInHeap;
  call.note.out_offset_bytes = kNotInHeap;
  call.in = nullptr;
  call.out = nullptr;
  const uint32_t blocks = Plan(comm, {Operation::kBarrier, 0, 1, 0}, &call);
  return backend::Launch({blocks, comm.config.block_threads, 0}, stream, impl::BarrierKernel, call);
}

Result CheckError(const Comm& comm, ErrorInfo* info) {
  const uint64_t word = __atomic_load_n(comm.error_word, __ATOMIC_ACQUIRE);
  if (info != nullptr) {
    *info = {};
    if (word != 0) {
      info->operation = static_cast<Operation>(word >> 8 & 0xff);
      info->member_index = static_cast<uint32_t>(word >> 16) - 1;
    }
  }
  switch (static_cast<ErrorCode>(word & 0xff)) {
    case ErrorCode::kOk:
      return kOkResult;
    case ErrorCode::kDeadlineExceeded:
      return {ErrorCode::kDeadlineExceeded, "a collective waited too long for a member"};
    case ErrorCode::kAborted:
      return {ErrorCode::kAborted, "a collective was aborted while it waited for a member"};
    case ErrorCode::kInvalidArgument:
      return Invalid("a member called another collective, or the same with other arguments");
    default:
      return {ErrorCode::kInternal, "the error word of a collective is damaged"};
  }
}

void ResetError(const Comm& comm) {
  __atomic_store_n(comm.error_word, uint64_t{0}, __ATOMIC_RELEASE);
}

}  // namespace iris::ccl
