#include "device/collective/collective.h"

#include <cstdint>

#include "device/backend/numeric.h"
#include "device/collective/impl/launch.h"
#include "device/collective/impl/layout.h"
#include "device/collective/impl/move_kernels.h"
#include "device/collective/table.h"
#include "device/iris/context.h"

namespace iris::ccl {
namespace {

using impl::Call;
using impl::kNotInHeap;
using impl::Pattern;

constexpr Result kOkResult;

Result Invalid(const char* what) { return {ErrorCode::kInvalidArgument, what}; }

// Of a complete config.
bool IsValid(const Config& config) {
  constexpr uint64_t kMaxBytes = 1ull << 36;  // keeps every sum of sizes far from overflow
  return config.max_blocks >= 1 && config.max_blocks <= kMaxBlocks &&
         config.blocks <= config.max_blocks && config.block_threads <= kMaxThreads &&
         config.unroll <= kMaxUnroll && config.packet_blocks >= 1 &&
         config.packet_blocks <= config.max_blocks && config.packet_bytes >= 16 &&
         config.packet_bytes <= kMaxBytes && config.packet_bytes % 16 == 0 &&
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

constexpr uint32_t kNoRoot = ~0u;

// An operation as it is called.
struct Request {
  Operation operation;
  const void* in;
  void* out;
  uint64_t count;  // elements of a row
  DataType type;
  uint32_t in_rows = 1;   // that `in` has here; 0: it is not read here
  uint32_t out_rows = 1;  // likewise
  bool in_place_ok = true;
  int64_t in_place_rows = 0;  // in place: in == out + so many rows
  ReduceOp op = ReduceOp::kSum;
  uint32_t root = kNoRoot;
  Variant variant = Variant::kAuto;
  bool may_be_nothing = true;  // zero elements are no operation at all
};

// Checks what is common to all operations. *nothing: it is legal, and there is nothing to do.
Result Check(const Comm& comm, const Request& request, Call* call, bool* nothing) {
  *nothing = false;
  if (Result result = CheckComm(comm); !result.ok()) return result;
  const uint64_t element_bytes = ElementBytes(request.type);
  if (element_bytes == 0) return Invalid("no such data type");
  if (request.op > ReduceOp::kAvg) return Invalid("no such reduce op");
  if (request.variant > Variant::kSpinlock) return Invalid("no such variant");
  if (request.root != kNoRoot && request.root >= comm.team.size) {
    return Invalid("the root is not a member");
  }
  constexpr uint64_t kLimit = 1ull << 47;
  if (request.count > kLimit / element_bytes / comm.team.size) {
    return Invalid("the count is too large");
  }
  if (request.count == 0 && request.may_be_nothing) {
    *nothing = true;
    return kOkResult;
  }
  const uint64_t row_bytes = request.count * element_bytes;
  // Offsets of what nobody reads or writes do not matter, but are in the heap.
  call->in_offset_bytes = 0;
  call->out_offset_bytes = 0;
  if (request.in_rows != 0) {
    const Result result = CheckBuffer(comm, request.in, request.in_rows * row_bytes, element_bytes,
                                      &call->in_offset_bytes);
    if (!result.ok()) return result;
  }
  if (request.out_rows != 0) {
    const Result result = CheckBuffer(comm, request.out, request.out_rows * row_bytes,
                                      element_bytes, &call->out_offset_bytes);
    if (!result.ok()) return result;
  }
  if (request.in_rows != 0 && request.out_rows != 0 &&
      Overlap(request.in, request.in_rows * row_bytes, request.out, request.out_rows * row_bytes)) {
    const uint64_t in = reinterpret_cast<uint64_t>(request.in);
    const uint64_t out = reinterpret_cast<uint64_t>(request.out);
    if (!request.in_place_ok ||
        in != out + static_cast<uint64_t>(request.in_place_rows) * row_bytes) {
      return Invalid("in and out overlap otherwise than in place");
    }
  }
  return kOkResult;
}

uint32_t Hash(uint64_t value, uint32_t seed) {
  value ^= static_cast<uint64_t>(seed) << 32 | seed;
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccdull;
  value ^= value >> 33;
  value *= 0xc4ceb9fe1a85ec53ull;
  return static_cast<uint32_t>(value ^ value >> 32);
}

// What is the same in every operation. `kind`: what must agree besides operation, count and plan.
void Fill(const Comm& comm, const Request& request, const Plan& plan, Call* call) {
  const impl::Offsets offsets = impl::OffsetsOf(comm.team.size, comm.config);
  call->context = comm.context;
  if (comm.config.timeout_ns != 0) call->context.timeout_ns = comm.config.timeout_ns;
  call->error_word = comm.error_word;
  call->header_offset_bytes = comm.workspace_offset_bytes;
  call->sync_offset_bytes = comm.workspace_offset_bytes + offsets.sync_bytes;
  call->packet_offset_bytes = comm.workspace_offset_bytes + offsets.packet_bytes;
  call->stage_offset_bytes = comm.workspace_offset_bytes + offsets.stage_bytes;
  call->packet_bytes = comm.config.packet_bytes;
  call->stage_bytes = comm.config.stage_bytes;
  call->size = comm.team.size;
  call->index = comm.team.index;
  for (uint32_t m = 0; m < kMaxTeamRanks; ++m) call->members[m] = comm.team.members[m];
  call->operation = request.operation;
  call->pattern = Pattern::kAllGather;
  call->check = comm.config.check_calls ? 1 : 0;
  call->root = request.root;
  call->in = static_cast<const uint8_t*>(request.in);
  call->out = static_cast<uint8_t*>(request.out);
  call->count = request.count;
  call->limit = request.count;
  call->rows = 1;
  call->row = 0;
  call->target = Call::kSelf;
  call->divide = 1;
  call->phases = plan.variant == Variant::kTwoPhase ? 1 : 0;
  call->lock = plan.variant == Variant::kSpinlock ? 1 : 0;
  call->unroll = plan.unroll;
  call->op = request.op;
  uint32_t hash = Hash(request.count, static_cast<uint32_t>(request.operation));
  hash = Hash(static_cast<uint64_t>(request.type) | static_cast<uint64_t>(request.op) << 8 |
                  static_cast<uint64_t>(plan.variant) << 16 |
                  static_cast<uint64_t>(request.root) << 24,
              hash);
  call->signature = Hash(plan.blocks, hash);
}

Result CopyAlone(const void* in, void* out, uint64_t bytes, backend::Stream& stream) {
  if (in == out) return kOkResult;
  return backend::CopyAsync(out, in, bytes, stream);
}

Result LaunchReduce(const Plan& plan, backend::Stream& stream, DataType type, const Call& call) {
  const LaunchConfig launch = {plan.blocks, plan.threads, 0};
  switch (type) {
    case DataType::kF32:
      return impl::LaunchReduce<float>(launch, stream, plan.variant, call);
    case DataType::kF64:
      return impl::LaunchReduce<double>(launch, stream, plan.variant, call);
    case DataType::kF16:
      return impl::LaunchReduce<Half>(launch, stream, plan.variant, call);
    case DataType::kBf16:
      return impl::LaunchReduce<Bfloat16>(launch, stream, plan.variant, call);
    case DataType::kI32:
      return impl::LaunchReduce<int32_t>(launch, stream, plan.variant, call);
    case DataType::kI64:
      return impl::LaunchReduce<int64_t>(launch, stream, plan.variant, call);
    case DataType::kU8:
      return impl::LaunchReduce<uint8_t>(launch, stream, plan.variant, call);
  }
  return Invalid("no such data type");
}

// Sets what makes a call a reduction by `plan`, and starts it.
Result StartReduce(const Comm& comm, const Request& request, const Plan& plan, Call* call,
                   backend::Stream& stream) {
  Fill(comm, request, plan, call);
  const uint32_t n = comm.team.size;
  const uint64_t per_16 = 16 / ElementBytes(request.type);
  if (request.op == ReduceOp::kAvg) call->divide = n;
  switch (request.operation) {
    case Operation::kReduceScatter:
      call->rows = n;
      call->row = comm.team.index;
      call->limit = request.count * n;
      break;
    case Operation::kReduce:
      call->target = request.root;
      break;
    default:
      call->target = plan.variant == Variant::kDirect ? Call::kSelf : Call::kAll;
      break;
  }
  // In place, a member writes what others may not have read yet: they read a copy.
  if (request.operation == Operation::kAllReduce && plan.variant == Variant::kDirect &&
      request.in == request.out) {
    call->in_offset_bytes = kNotInHeap;
  }
  if (plan.variant != Variant::kPackets && plan.variant != Variant::kDirect &&
      request.operation != Operation::kReduceScatter) {
    call->rows = n;
    call->row = comm.team.index;
    call->count = impl::RoundUp((request.count + n - 1) / n, per_16);
  }
  return LaunchReduce(plan, stream, request.type, *call);
}

// A barrier of the team as part of another operation.
Result StartBarrier(const Comm& comm, const Request& request, backend::Stream& stream) {
  Call call;
  call.in_offset_bytes = 0;
  call.out_offset_bytes = 0;
  const uint32_t words = comm.team.size * impl::CallWords::kCount;
  const Plan plan = {Variant::kCopyEngine, 1,
                     static_cast<uint32_t>(impl::RoundUp(words, backend::WarpSize()))};
  Fill(comm, request, plan, &call);
  return backend::Launch({1, plan.threads, 0}, stream, impl::BarrierKernel<>, call);
}

// Copies `bytes` to the same place in the heap of the member `step` places on.
Result CopyOver(const Comm& comm, uint32_t step, uint8_t* to, const uint8_t* from, uint64_t bytes,
                backend::Stream& stream) {
  const uint32_t peer = comm.team.members[(comm.team.index + step) % comm.team.size];
  return backend::CopyAsync(iris::Translate(comm.context, peer, to), from, bytes, stream);
}

Result CheckSymmetric(const Call& call) {
  if (call.in_offset_bytes != kNotInHeap && call.out_offset_bytes != kNotInHeap) return kOkResult;
  return Invalid("the variant kCopyEngine needs in and out in the heap");
}

// The kernel makes this member's row, the copy engine gives it to the others.
Result AllReduceByCopies(const Comm& comm, const Request& request, const Plan& plan, Call* call,
                         backend::Stream& stream) {
  if (Result result = CheckSymmetric(*call); !result.ok()) return result;
  Fill(comm, request, plan, call);
  const uint32_t n = comm.team.size;
  const uint64_t element_bytes = ElementBytes(request.type);
  if (request.op == ReduceOp::kAvg) call->divide = n;
  call->rows = n;
  call->row = comm.team.index;
  call->count = impl::RoundUp((request.count + n - 1) / n, 16 / element_bytes);
  const uint64_t begin = call->row * call->count;
  const uint64_t count = begin < request.count ? impl::Min(call->count, request.count - begin) : 0;
  uint8_t* row = static_cast<uint8_t*>(request.out) + begin * element_bytes;
  call->out = row;  // kSelf
  if (Result result = LaunchReduce(plan, stream, request.type, *call); !result.ok()) return result;
  for (uint32_t step = 1; count != 0 && step < n; ++step) {
    const Result result = CopyOver(comm, step, row, row, count * element_bytes, stream);
    if (!result.ok()) return result;
  }
  return StartBarrier(comm, request, stream);
}

// Rows of `row_bytes`: row m of `in` (to_each), or all of it, to row `index` of `out` of member m.
Result MoveByCopies(const Comm& comm, const Request& request, bool to_each, const Call& call,
                    backend::Stream& stream) {
  if (Result result = CheckSymmetric(call); !result.ok()) return result;
  const uint32_t n = comm.team.size;
  const uint32_t me = comm.team.index;
  const uint64_t row_bytes = request.count * ElementBytes(request.type);
  const uint8_t* in = static_cast<const uint8_t*>(request.in);
  uint8_t* row = static_cast<uint8_t*>(request.out) + me * row_bytes;
  // Everybody is there: nobody reads its `out` any more.
  if (Result result = StartBarrier(comm, request, stream); !result.ok()) return result;
  for (uint32_t step = 1; step <= n; ++step) {
    const uint8_t* from = to_each ? in + (me + step) % n * row_bytes : in;
    if (step == n && from == row) continue;
    const Result result = CopyOver(comm, step, row, from, row_bytes, stream);
    if (!result.ok()) return result;
  }
  return StartBarrier(comm, request, stream);
}

// Sets what makes a call a movement of rows, in bytes, and starts it.
Result StartMove(const Comm& comm, const Request& request, Pattern pattern, const Plan& plan,
                 Call* call, backend::Stream& stream) {
  Fill(comm, request, plan, call);
  call->pattern = pattern;
  call->count = request.count * ElementBytes(request.type);
  const LaunchConfig launch = {plan.blocks, plan.threads, 0};
  if (plan.variant == Variant::kPackets) {
    return backend::Launch(launch, stream, impl::MovePackets<>, *call);
  }
  if (plan.variant == Variant::kTwoShot && pattern == Pattern::kBroadcast && call->size > 2) {
    return backend::Launch(launch, stream, impl::BroadcastSlices<>, *call);
  }
  return backend::Launch(launch, stream, impl::MoveDirect<>, *call);
}

uint64_t Clamp(uint64_t value, uint64_t low, uint64_t high) {
  return value < low ? low : value > high ? high : value;
}

}  // namespace

uint64_t ElementBytes(DataType type) {
  switch (type) {
    case DataType::kU8:
      return 1;
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
    case Operation::kReduceScatter:
      return "reduce_scatter";
    case Operation::kAllToAll:
      return "all_to_all";
    case Operation::kReduce:
      return "reduce";
    case Operation::kGather:
      return "gather";
    case Operation::kScatter:
      return "scatter";
    case Operation::kSendRecv:
      return "send_recv";
  }
  return "unknown";
}

const char* VariantName(Variant variant) {
  switch (variant) {
    case Variant::kAuto:
      return "auto";
    case Variant::kPackets:
      return "packets";
    case Variant::kDirect:
      return "direct";
    case Variant::kTwoShot:
      return "two_shot";
    case Variant::kPipeline:
      return "pipeline";
    case Variant::kTwoPackets:
      return "two_packets";
    case Variant::kTwoPhase:
      return "two_phase";
    case Variant::kCopyEngine:
      return "copy_engine";
    case Variant::kRing:
      return "ring";
    case Variant::kAtomic:
      return "atomic";
    case Variant::kSpinlock:
      return "spinlock";
  }
  return "unknown";
}

uint64_t WorkspaceBytes(uint32_t n_members, const Config& config) {
  const Config complete = impl::Complete(config);
  if (n_members == 0 || n_members > kMaxTeamRanks || !IsValid(complete)) return 0;
  return impl::OffsetsOf(n_members, complete).total_bytes;
}

Result CreateComm(const CommOptions& options, Comm* out) {
  const DeviceContext& context = options.context;
  const DeviceTeam& team = options.team;
  const Config config = impl::Complete(options.config);
  if (!IsValid(config)) return Invalid("a field of the Config is out of its range");
  if (context.stride_bytes == 0 || context.rank >= context.n_ranks) {
    return Invalid("the DeviceContext has no heap");
  }
  if (team.size == 0 || team.size > kMaxTeamRanks) return Invalid("the team has no sensible size");
  if (team.index >= team.size || team.members[team.index] != context.rank) {
    return Invalid("this rank is not the member of the team that `index` says");
  }
  for (uint32_t i = 0; i < team.size; ++i) {
    if (team.members[i] >= context.n_ranks) return Invalid("a member of the team is not a rank");
    for (uint32_t k = 0; k < i; ++k) {
      if (team.members[k] == team.members[i]) return Invalid("a rank is in the team twice");
    }
  }
  if (options.workspace_bytes < WorkspaceBytes(team.size, config)) {
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
  if (Result result = PrepareKernels(); !result.ok()) return result;
  out->context = context;
  out->team = team;
  out->workspace_offset_bytes = offset_bytes;
  out->workspace_bytes = options.workspace_bytes;
  out->error_word = options.error_word;
  out->config = config;
  return kOkResult;
}

uint32_t MaxBlocksWhenShared(uint32_t ranks_per_device, uint32_t multiprocessors) {
  if (ranks_per_device <= 1) return 0;
  if (multiprocessors == 0) {
    if (impl::Emulated()) return 0;  // its blocks take turns
    multiprocessors = backend::MultiprocessorCount();
  }
  // The largest kernels fill a multiprocessor with one block.
  return static_cast<uint32_t>(Clamp(multiprocessors / ranks_per_device, 1, kMaxBlocks));
}

Result PrepareKernels() {
  for (Result (*prepare)() :
       {&impl::PrepareReduce<float>, &impl::PrepareReduce<double>, &impl::PrepareReduce<Half>,
        &impl::PrepareReduce<Bfloat16>, &impl::PrepareReduce<int32_t>,
        &impl::PrepareReduce<int64_t>, &impl::PrepareReduce<uint8_t>}) {
    if (Result result = prepare(); !result.ok()) return result;
  }
  for (void (*kernel)(Call) : {&impl::MovePackets<>, &impl::MoveDirect<>, &impl::BroadcastSlices<>,
                               &impl::BarrierKernel<>}) {
    if (Result result = backend::PrepareKernel(kernel); !result.ok()) return result;
  }
  return backend::PrepareKernel(&impl::MoveVector<>);
}

Result PrepareWorkspace(const Comm& comm, backend::Stream& stream) {
  if (comm.team.size == 0) return Invalid("the Comm was not made by CreateComm");
  uint8_t* workspace =
      iris::AtOffset<uint8_t>(comm.context, comm.context.rank, comm.workspace_offset_bytes);
  return backend::FillAsync(workspace, 0, comm.workspace_bytes, stream);
}

Plan Choose(const Comm& comm, Operation operation, uint64_t bytes, Variant variant) {
  const Config& config = comm.config;
  const uint32_t n = comm.team.size;
  Plan plan = {variant, 0, 0};
  for (uint32_t i = 0; i < config.n_rules; ++i) {
    const Rule& rule = config.rules[i];
    if (rule.operation != operation || n > rule.max_members || bytes > rule.max_bytes) continue;
    if (variant != Variant::kAuto && rule.variant != variant) continue;
    if (variant == Variant::kAuto && rule.variant == Variant::kCopyEngine && !config.symmetric) {
      continue;
    }
    plan = {rule.variant, rule.blocks, rule.threads, rule.unroll};
    break;
  }
  if (plan.variant == Variant::kAuto) plan.variant = Variant::kDirect;
  if (config.block_threads != 0) plan.threads = config.block_threads;
  if (config.blocks != 0) plan.blocks = config.blocks;
  if (config.unroll != 0) plan.unroll = config.unroll;
  plan.unroll = static_cast<uint32_t>(Clamp(plan.unroll, 1, kMaxUnroll));

  // By size: every thread of a packet kernel has a word, of another one some 16-byte units.
  const bool emu = impl::Emulated();
  const bool one_row = operation == Operation::kAllReduce || operation == Operation::kReduce ||
                       operation == Operation::kBroadcast || operation == Operation::kSendRecv;
  if (plan.variant == Variant::kPackets || plan.variant == Variant::kTwoPackets) {
    const bool whole = one_row && plan.variant == Variant::kPackets;
    const uint64_t words = ((whole ? bytes : bytes / n) + 7) / 8;
    if (plan.threads == 0) {
      plan.threads = static_cast<uint32_t>(Clamp(impl::RoundUp(words, 32), 32, emu ? 64 : 256));
    }
    if (plan.blocks == 0) {
      plan.blocks = static_cast<uint32_t>(
          Clamp((words + plan.threads - 1) / plan.threads, 1, config.packet_blocks));
    }
    if (plan.blocks > config.packet_blocks) plan.blocks = config.packet_blocks;
    // No thread without a word, as far as whole warps allow.
    if (words != 0 && config.blocks == 0) {
      const uint64_t threads = impl::RoundUp(words, 32);
      if (plan.threads > threads) plan.threads = static_cast<uint32_t>(threads);
      const uint64_t blocks = (words + plan.threads - 1) / plan.threads;
      if (plan.blocks > blocks) plan.blocks = static_cast<uint32_t>(blocks);
    }
    // No block without a word.
    if (words != 0 && plan.blocks > words) plan.blocks = static_cast<uint32_t>(words);
    const uint64_t per_block = words == 0 ? 1 : (words + plan.blocks - 1) / plan.blocks;
    if (words != 0) plan.blocks = static_cast<uint32_t>((words + per_block - 1) / per_block);
    return plan;
  }
  if (plan.threads == 0) plan.threads = emu ? 64 : kMaxThreads;
  if (plan.blocks == 0) {
    const uint64_t units = bytes / n / 16;
    plan.blocks = static_cast<uint32_t>(
        Clamp(units / (plan.threads * (emu ? 16 : 1)) + 1, 1, config.max_blocks));
  }
  if (plan.blocks > config.max_blocks) plan.blocks = config.max_blocks;
  return plan;
}

Result AllReduce(const Comm& comm, const void* in, void* out, uint64_t count, DataType type,
                 ReduceOp op, backend::Stream& stream, Variant variant) {
  const Request request = {.operation = Operation::kAllReduce,
                           .in = in,
                           .out = out,
                           .count = count,
                           .type = type,
                           .op = op,
                           .variant = variant};
  Call call;
  bool nothing = false;
  if (Result result = Check(comm, request, &call, &nothing); !result.ok() || nothing) return result;
  const uint64_t bytes = count * ElementBytes(type);
  if (comm.team.size == 1) return CopyAlone(in, out, bytes, stream);
  Plan plan = Choose(comm, request.operation, bytes, variant);
  if (plan.variant == Variant::kCopyEngine) {
    return AllReduceByCopies(comm, request, plan, &call, stream);
  }
  // A ring passes on what is as narrow as the elements: the sum of bytes would wrap.
  if (plan.variant == Variant::kRing && type == DataType::kU8 && op == ReduceOp::kAvg) {
    plan.variant = Variant::kTwoShot;
  }
  return StartReduce(comm, request, plan, &call, stream);
}

Result ReduceScatter(const Comm& comm, const void* in, void* out, uint64_t count_per_member,
                     DataType type, ReduceOp op, backend::Stream& stream, Variant variant) {
  const uint32_t n = comm.team.size;
  const Request request = {.operation = Operation::kReduceScatter,
                           .in = in,
                           .out = out,
                           .count = count_per_member,
                           .type = type,
                           .in_rows = n,
                           .in_place_rows = -static_cast<int64_t>(comm.team.index),
                           .op = op,
                           .variant = variant};
  Call call;
  bool nothing = false;
  if (Result result = Check(comm, request, &call, &nothing); !result.ok() || nothing) return result;
  const uint64_t bytes = count_per_member * ElementBytes(type);
  if (n == 1) return CopyAlone(in, out, bytes, stream);
  Plan plan = Choose(comm, request.operation, bytes * n, variant);
  if (plan.variant != Variant::kPackets && plan.variant != Variant::kPipeline) {
    plan.variant = Variant::kDirect;
  }
  return StartReduce(comm, request, plan, &call, stream);
}

Result Reduce(const Comm& comm, const void* in, void* out, uint64_t count, DataType type,
              ReduceOp op, uint32_t root_index, backend::Stream& stream, Variant variant) {
  const Request request = {.operation = Operation::kReduce,
                           .in = in,
                           .out = out,
                           .count = count,
                           .type = type,
                           .out_rows = comm.team.index == root_index ? 1u : 0u,
                           .op = op,
                           .root = root_index,
                           .variant = variant};
  Call call;
  bool nothing = false;
  if (Result result = Check(comm, request, &call, &nothing); !result.ok() || nothing) return result;
  const uint64_t bytes = count * ElementBytes(type);
  if (comm.team.size == 1) return CopyAlone(in, out, bytes, stream);
  Plan plan = Choose(comm, request.operation, bytes, variant);
  // Each member reduces a slice: the root alone would be the bottleneck.
  if (plan.variant != Variant::kPackets) plan.variant = Variant::kTwoShot;
  return StartReduce(comm, request, plan, &call, stream);
}

Result AllGather(const Comm& comm, const void* in, void* out, uint64_t count_per_member,
                 DataType type, backend::Stream& stream, Variant variant) {
  const uint32_t n = comm.team.size;
  const Request request = {.operation = Operation::kAllGather,
                           .in = in,
                           .out = out,
                           .count = count_per_member,
                           .type = type,
                           .out_rows = n,
                           .in_place_rows = static_cast<int64_t>(comm.team.index),
                           .variant = variant};
  Call call;
  bool nothing = false;
  if (Result result = Check(comm, request, &call, &nothing); !result.ok() || nothing) return result;
  const uint64_t bytes = count_per_member * ElementBytes(type);
  if (n == 1) return CopyAlone(in, out, bytes, stream);
  const Plan plan = Choose(comm, request.operation, bytes * n, variant);
  if (plan.variant == Variant::kCopyEngine) {
    return MoveByCopies(comm, request, /*to_each=*/false, call, stream);
  }
  return StartMove(comm, request, Pattern::kAllGather, plan, &call, stream);
}

Result Gather(const Comm& comm, const void* in, void* out, uint64_t count_per_member, DataType type,
              uint32_t root_index, backend::Stream& stream, Variant variant) {
  const uint32_t n = comm.team.size;
  const Request request = {.operation = Operation::kGather,
                           .in = in,
                           .out = out,
                           .count = count_per_member,
                           .type = type,
                           .out_rows = comm.team.index == root_index ? n : 0,
                           .in_place_rows = static_cast<int64_t>(comm.team.index),
                           .root = root_index,
                           .variant = variant};
  Call call;
  bool nothing = false;
  if (Result result = Check(comm, request, &call, &nothing); !result.ok() || nothing) return result;
  const uint64_t bytes = count_per_member * ElementBytes(type);
  if (n == 1) return CopyAlone(in, out, bytes, stream);
  return StartMove(comm, request, Pattern::kGather,
                   Choose(comm, request.operation, bytes * n, variant), &call, stream);
}

Result Scatter(const Comm& comm, const void* in, void* out, uint64_t count_per_member,
               DataType type, uint32_t root_index, backend::Stream& stream, Variant variant) {
  const uint32_t n = comm.team.size;
  const Request request = {.operation = Operation::kScatter,
                           .in = in,
                           .out = out,
                           .count = count_per_member,
                           .type = type,
                           .in_rows = comm.team.index == root_index ? n : 0,
                           .in_place_rows = -static_cast<int64_t>(comm.team.index),
                           .root = root_index,
                           .variant = variant};
  Call call;
  bool nothing = false;
  if (Result result = Check(comm, request, &call, &nothing); !result.ok() || nothing) return result;
  const uint64_t bytes = count_per_member * ElementBytes(type);
  if (n == 1) return CopyAlone(in, out, bytes, stream);
  return StartMove(comm, request, Pattern::kScatter,
                   Choose(comm, request.operation, bytes * n, variant), &call, stream);
}

Result AllToAll(const Comm& comm, const void* in, void* out, uint64_t count_per_member,
                DataType type, backend::Stream& stream, Variant variant) {
  const uint32_t n = comm.team.size;
  const Request request = {.operation = Operation::kAllToAll,
                           .in = in,
                           .out = out,
                           .count = count_per_member,
                           .type = type,
                           .in_rows = n,
                           .out_rows = n,
                           .in_place_ok = n == 1,
                           .variant = variant};
  Call call;
  bool nothing = false;
  if (Result result = Check(comm, request, &call, &nothing); !result.ok() || nothing) return result;
  const uint64_t bytes = count_per_member * ElementBytes(type);
  if (n == 1) return CopyAlone(in, out, bytes, stream);
  const Plan plan = Choose(comm, request.operation, bytes * n, variant);
  if (plan.variant == Variant::kCopyEngine) {
    return MoveByCopies(comm, request, /*to_each=*/true, call, stream);
  }
  return StartMove(comm, request, Pattern::kAllToAll, plan, &call, stream);
}

Result AllToAllV(const Comm& comm, const void* in, const Layout& to, void* out, const Layout& from,
                 DataType type, backend::Stream& stream) {
  if (Result result = CheckComm(comm); !result.ok()) return result;
  const uint64_t element_bytes = ElementBytes(type);
  if (element_bytes == 0) return Invalid("no such data type");
  if (to.counts == nullptr || to.offsets == nullptr || from.counts == nullptr ||
      from.offsets == nullptr) {
    return Invalid("an array of a Layout is null");
  }
  const uint32_t n = comm.team.size;
  impl::Vector vector = {};
  constexpr uint64_t kLimit = 1ull << 40;
  uint64_t in_bytes = 0;
  uint64_t out_bytes = 0;
  for (uint32_t m = 0; m < n; ++m) {
    if (to.counts[m] > kLimit || to.offsets[m] > kLimit || from.counts[m] > kLimit ||
        from.offsets[m] > kLimit) {
      return Invalid("the count is too large");
    }
    vector.send_bytes[m] = to.counts[m] * element_bytes;
    vector.send_offset_bytes[m] = to.offsets[m] * element_bytes;
    vector.receive_bytes[m] = from.counts[m] * element_bytes;
    vector.receive_offset_bytes[m] = from.offsets[m] * element_bytes;
    const uint64_t in_end = vector.send_bytes[m] + vector.send_offset_bytes[m];
    const uint64_t out_end = vector.receive_bytes[m] + vector.receive_offset_bytes[m];
    if (vector.send_bytes[m] != 0 && in_end > in_bytes) in_bytes = in_end;
    if (vector.receive_bytes[m] != 0 && out_end > out_bytes) out_bytes = out_end;
  }
  if (vector.send_bytes[comm.team.index] != vector.receive_bytes[comm.team.index]) {
    return Invalid("a member sends itself another count than it expects");
  }
  // One row of bytes; what a member sends and receives differs from the others', so that no count
  // is compared, but each pair's.
  const Request request = {.operation = Operation::kAllToAll,
                           .in = in,
                           .out = out,
                           .count = 0,
                           .type = type,
                           .may_be_nothing = false};
  Call call;
  call.in_offset_bytes = 0;
  call.out_offset_bytes = 0;
  uint64_t unused = 0;
  if (in_bytes != 0) {
    const Result result = CheckBuffer(comm, in, in_bytes, element_bytes, &unused);
    if (!result.ok()) return result;
  }
  if (out_bytes != 0) {
    const Result result = CheckBuffer(comm, out, out_bytes, element_bytes, &call.out_offset_bytes);
    if (!result.ok()) return result;
  }
  if (in_bytes != 0 && out_bytes != 0 && Overlap(in, in_bytes, out, out_bytes)) {
    return Invalid("in and out overlap");
  }
  // Sizes differ from member to member: the grid must not.
  Plan plan = Choose(comm, Operation::kAllToAll, 4 << 20, Variant::kDirect);
  Fill(comm, request, plan, &call);
  return backend::Launch({plan.blocks, plan.threads, 0}, stream, impl::MoveVector<>, call, vector);
}

Result Broadcast(const Comm& comm, const void* in, void* out, uint64_t count, DataType type,
                 uint32_t root_index, backend::Stream& stream, Variant variant) {
  const Request request = {.operation = Operation::kBroadcast,
                           .in = in,
                           .out = out,
                           .count = count,
                           .type = type,
                           .in_rows = comm.team.index == root_index ? 1u : 0u,
                           .root = root_index,
                           .variant = variant};
  Call call;
  bool nothing = false;
  if (Result result = Check(comm, request, &call, &nothing); !result.ok() || nothing) return result;
  const uint64_t bytes = count * ElementBytes(type);
  if (comm.team.size == 1) return CopyAlone(in, out, bytes, stream);
  return StartMove(comm, request, Pattern::kBroadcast,
                   Choose(comm, request.operation, bytes, variant), &call, stream);
}

namespace {

// A broadcast in the team of two that a sender and a receiver are. They have rounds of their own.
Result StartPair(const Comm& comm, const void* in, void* out, uint64_t count, DataType type,
                 uint32_t other, bool sends, backend::Stream& stream) {
  if (Result result = CheckComm(comm); !result.ok()) return result;
  const uint32_t me = comm.team.index;
  if (other >= comm.team.size || other == me) {
    return Invalid("the other side is not another member");
  }
  const uint32_t low = me < other ? me : other;
  const uint32_t high = me < other ? other : me;
  const Request request = {.operation = Operation::kSendRecv,
                           .in = in,
                           .out = out,
                           .count = count,
                           .type = type,
                           .in_rows = sends ? 1u : 0u,
                           .out_rows = sends ? 0u : 1u,
                           .root = sends ? me : other};
  Call call;
  bool nothing = false;
  if (Result result = Check(comm, request, &call, &nothing); !result.ok() || nothing) return result;
  Plan plan = Choose(comm, request.operation, count * ElementBytes(type), Variant::kDirect);
  if (plan.blocks > impl::kPairBlocks) plan.blocks = impl::kPairBlocks;
  Fill(comm, request, plan, &call);
  const impl::Offsets offsets = impl::OffsetsOf(comm.team.size, comm.config);
  const uint64_t pair = high * (high - 1) / 2 + low;
  call.sync_offset_bytes = comm.workspace_offset_bytes + offsets.pair_bytes +
                           pair * impl::kPairBlocks * impl::SyncBytes(2);
  call.size = 2;
  call.index = me == low ? 0 : 1;
  call.pair[0] = static_cast<uint8_t>(low);
  call.pair[1] = static_cast<uint8_t>(high);
  call.members[0] = comm.team.members[low];
  call.members[1] = comm.team.members[high];
  call.root = sends ? call.index : 1 - call.index;
  call.pattern = Pattern::kBroadcast;
  call.count = count * ElementBytes(type);
  if (sends) call.out = const_cast<uint8_t*>(call.in);  // it keeps what it has
  return backend::Launch({plan.blocks, plan.threads, 0}, stream, impl::MoveDirect<>, call);
}

}  // namespace

Result Send(const Comm& comm, const void* in, uint64_t count, DataType type, uint32_t to_index,
            backend::Stream& stream) {
  return StartPair(comm, in, nullptr, count, type, to_index, true, stream);
}

Result Recv(const Comm& comm, void* out, uint64_t count, DataType type, uint32_t from_index,
            backend::Stream& stream) {
  return StartPair(comm, nullptr, out, count, type, from_index, false, stream);
}

Result Barrier(const Comm& comm, backend::Stream& stream) {
  if (Result result = CheckComm(comm); !result.ok()) return result;
  Call call;
  call.in_offset_bytes = 0;
  call.out_offset_bytes = 0;
  const Request request = {.operation = Operation::kBarrier,
                           .in = nullptr,
                           .out = nullptr,
                           .count = 0,
                           .type = DataType::kU8};
  const uint32_t words = comm.team.size * impl::CallWords::kCount;
  const Plan plan = {Variant::kDirect, 1, static_cast<uint32_t>(impl::RoundUp(words, 32))};
  Fill(comm, request, plan, &call);
  return backend::Launch({1, plan.threads, 0}, stream, impl::BarrierKernel<>, call);
}

Result CheckError(const Comm& comm, ErrorInfo* info) {
  const uint64_t word = __atomic_load_n(comm.error_word, __ATOMIC_ACQUIRE);
  if (info != nullptr) {
    *info = {};
    if (word != 0) {
      info->operation = static_cast<Operation>(word >> 8 & 0xff);
      const uint32_t member = static_cast<uint32_t>(word >> 16 & 0xff);
      if (member != 0) info->member_index = member - 1;
      info->sequence = static_cast<uint32_t>(word >> 32);
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

Result CopyMissing(const Comm& comm, uint64_t* mask, backend::Stream& stream) {
  if (comm.team.size == 0) return Invalid("the Comm was not made by CreateComm");
  const impl::Header* header =
      iris::AtOffset<impl::Header>(comm.context, comm.context.rank, comm.workspace_offset_bytes);
  return backend::CopyAsync(mask, &header->missing, sizeof(*mask), stream);
}

void ResetError(const Comm& comm) {
  __atomic_store_n(comm.error_word, uint64_t{0}, __ATOMIC_RELEASE);
}

}  // namespace iris::ccl
