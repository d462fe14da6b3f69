// kPersistent: an opening, in which the members meet and compare their calls, and the backend's own
// kernel. That kernel may begin while the opening runs, but sends nothing before the opening's end.
// It begins after the opening has waited for the previous kernel, so its inputs are complete.
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "iris/backend/persistent_product.h"
#include "iris/ops/impl/layout.h"
#include "iris/ops/variant.h"
#include "iris/rounds/launch.h"
#include "iris/rounds/layout.h"
#include "iris/translate.h"

namespace iris::ops::impl {
namespace {

constexpr uint32_t kLeastBlocks = 8;
// Blocks come in pairs on neighbouring multiprocessors. Other kernels may leave an odd number free
// in each group of multiprocessors; no device has more groups than this.
constexpr uint32_t kOddBlocks = 8;

using backend::PersistentProduct;
using ccl::Operation;
using ccl::impl::BlockState;
using ccl::impl::Header;

PersistentProduct::Kind KindOf(Operation operation) {
  switch (operation) {
    case Operation::kMatmulReduceScatter:
      return PersistentProduct::Kind::kReduceScatter;
    case Operation::kMatmulAllReduce:
      return PersistentProduct::Kind::kAllReduce;
    case Operation::kAllGatherMatmul:
      return PersistentProduct::Kind::kAllGather;
    default:
      return PersistentProduct::Kind::kAllScatter;
  }
}

PersistentProduct ShapeOf(const Problem& problem, uint32_t members, uint32_t member) {
  PersistentProduct product;
  product.kind = KindOf(problem.operation);
  product.in = problem.in;
  product.out = problem.out;
  product.bias_type = problem.bias;
  product.m = problem.m;
  product.n = problem.n;
  product.k = problem.k;
  if (problem.operation == Operation::kMatmulAllGather) {
    product.m = ShareOf(problem.m, members, member).count;
  } else if (problem.operation == Operation::kMatmulAllScatter) {
    product.n = ShareOf(problem.n, members, member).count;
  }
  product.transposed_b = problem.transposed_b;
  product.activation = problem.activation;
  product.rank = member;
  product.n_ranks = members;
  return product;
}

// Returns how many of `blocks` blocks to omit so that copies have room. Where ranks share a device,
// copies are kernels.
uint32_t LeftToCopies(const ccl::Comm& comm, uint32_t blocks) {
  return IsOnSharedDevice(comm) ? (blocks + 7) / 8 : 0;
}

// Returns the bytes of a Comm's workspace that a persistent GEMM may use.
uint64_t RoomOf(const ccl::Comm& comm) {
  const uint64_t used = WorkspaceOffset(comm) - comm.workspace_offset_bytes + kKeptAtBytes;
  return comm.workspace_bytes < used ? 0 : comm.workspace_bytes - used;
}

uint64_t Bytes(uint32_t members, const ccl::Config&, const Problem& problem) {
  // Member 0 has the largest share.
  const uint64_t bytes = backend::PersistentProductBytes(ShapeOf(problem, members, 0));
  return bytes < backend::kPersistentKeptBytes ? 0 : bytes - backend::kPersistentKeptBytes;
}

PersistentProduct ProductOf(const ccl::Comm& comm, const Matmul& call, bool copies) {
  const Problem& problem = call.problem;
  const uint32_t members = comm.team.size;
  const uint32_t me = comm.team.index;
  PersistentProduct product = ShapeOf(problem, members, me);
  product.a = call.a;
  product.lda = call.lda;
  product.b = call.b;
  product.ldb = call.ldb;
  product.ldd = call.ldd;
  product.bias = problem.bias == DType::kNone ? nullptr : call.bias;
  // Bytes of each D before this member's part.
  uint64_t skipped = 0;
  if (problem.operation == Operation::kMatmulAllGather) {
    skipped = ShareOf(problem.m, members, me).begin * call.ldd;
  } else if (problem.operation == Operation::kMatmulAllScatter) {
    skipped = ShareOf(problem.n, members, me).begin;
  }
  const bool to_all = IsToAll(problem.operation);
  const uint64_t d_offset = to_all ? OffsetBytes(comm.context, call.d) : 0;
  for (uint32_t r = 0; r < members; ++r) {
    const uint32_t rank = comm.team.members[r];
    if (to_all) {
      product.d[r] =
          iris::AtOffset<uint8_t>(comm.context, rank, d_offset + skipped * DTypeBytes(problem.out));
    }
    product.workspace[r] =
        iris::AtOffset<uint8_t>(comm.context, rank, WorkspaceOffset(comm) + kKeptAtBytes);
  }
  if (!to_all) product.d[me] = call.d;
  product.workspace_bytes = RoomOf(comm);
  product.timeout_ns =
      comm.config.timeout_ns != 0 ? comm.config.timeout_ns : comm.context.timeout_ns;
  product.abort_word = comm.context.abort_word;
  // Blocks of all ranks that share a device must fit on it together.
  if (IsOnSharedDevice(comm)) {
    product.max_blocks = comm.config.max_blocks;
    if (copies) product.max_blocks -= LeftToCopies(comm, product.max_blocks);
  }
  if (copies) {
    product.copy_stream = comm.products->copies.native();
    product.copy_events[0] = comm.products->copies_begin.native();
    product.copy_events[1] = comm.products->copies_end.native();
  }
  return product;
}

bool Supports(const ccl::Comm* comm, const Problem& problem, uint32_t members, const Matmul* call,
              const char** why) {
  *why = "the device has no persistent kernel for products of matrices: it is no Hopper GPU";
  if (!backend::HasPersistentProduct()) return false;
  *why = "a persistent product has 2 to 16 members";
  if (members < 2 || members > PersistentProduct::kMaxRanks) return false;
  // All members check the shares of all members, so that they agree.
  *why = "m is too small for a persistent product of so many members, or n is";
  const uint64_t least_rows =
      problem.operation == Operation::kMatmulAllGather ? problem.m / members : problem.m;
  if (least_rows < members) return false;
  if (problem.operation == Operation::kMatmulAllScatter && problem.n < members) return false;
  const uint64_t bytes = backend::PersistentProductBytes(ShapeOf(problem, members, 0));
  *why = "the shape is none of the persistent product's";
  if (bytes == 0) return false;
  if (comm != nullptr) {
    *why = "max_blocks of the communicator is below 8: a persistent product needs more";
    if (comm->config.max_blocks < kLeastBlocks) return false;
    *why =
        "the workspace is too small for the problem: make the communicator with the "
        "matmul_bytes of the largest one that it will have";
    if (RoomOf(*comm) < bytes) return false;
  }
  if (comm == nullptr || call == nullptr) return true;
  return backend::SupportsPersistentProduct(ProductOf(*comm, *call, false), why);
}

void Complete(const ccl::Comm&, const Problem&, const Matmul*, LaunchPlan* plan) {
  plan->multiplier = "iris, persistent";
  // The opening has one block.
  plan->blocks = 1;
  plan->threads = backend::Traits::kWarpThreads;
}

Result Launch(const ccl::Comm& comm, const Matmul& call, const LaunchPlan& plan,
              backend::Stream& stream) {
  const bool copies = plan.variant == Variant::kCopyEngine;
  const Common common = CommonOf(comm, call, plan);
  PersistentProduct product = ProductOf(comm, call, copies);
  // All blocks wait for blocks of other members, so they need room on the device at the same time.
  std::unique_lock<ccl::DeviceShare> hold;
  if (comm.share != nullptr) {
    ccl::DeviceShare::Room room = {};
    if (Result result = comm.share->Begin(0, 0, false, stream, &room); !result.ok()) return result;
    hold = std::unique_lock<ccl::DeviceShare>(*comm.share, std::adopt_lock);
    if (!room.alone) {
      const uint32_t others = kOddBlocks + (copies ? LeftToCopies(comm, room.all) : 0);
      if (room.all < kLeastBlocks + others) {
        return {StatusCode::kResourceExhausted,
                "a persistent product has no room on the device beside what its other "
                "communicators may have there: destroy communicators that are not needed, make "
                "them with fewer max_blocks, and make all of them before graphs are captured"};
      }
      const uint32_t most = room.all - others;
      if (product.max_blocks == 0 || product.max_blocks > most) product.max_blocks = most;
    }
  }
  // The opening's block fits on the device together with a kernel that lets the next one begin,
  // because such a kernel has at most half of the Comm's room, which is at least kLeastBlocks. This
  // holds for all operations, but only gathers have been measured this way on GPUs.
  const bool early =
      comm.config.early && call.problem.operation == ccl::Operation::kAllGatherMatmul;
  const Result opened = copies ? LaunchOpeningOfCopies(comm, common, stream)
                               : LaunchOpening(common, false, early, stream);
  if (!opened.ok()) return opened;
  const auto here = [&](uint64_t offset_bytes) {
    return iris::AtOffset<uint8_t>(comm.context, comm.context.rank, offset_bytes);
  };
  uint8_t* const header = here(common.header_offset_bytes);
  backend::ProductLedger& ledger = product.ledger;
  ledger.failed = reinterpret_cast<uint32_t*>(header + offsetof(Header, failed));
  ledger.finished = reinterpret_cast<uint32_t*>(header + offsetof(Header, sequence));
  ledger.missing = reinterpret_cast<uint64_t*>(header + offsetof(Header, missing));
  ledger.report = &comm.report->word;
  ledger.timeout_word = ccl::impl::PackError(StatusCode::kDeadlineExceeded, common.operation, 0, 0);
  ledger.aborted_word = ccl::impl::PackError(StatusCode::kAborted, common.operation, 0, 0);
  ledger.blocks = here(common.sync_offset_bytes) + offsetof(BlockState, failed);
  ledger.n_blocks = comm.config.max_blocks;
  ledger.block_bytes = ccl::impl::SyncBytes(comm.team.size);
  // The trace has the same fields as for kernels of collectives: see rounds/protocol.h.
  ledger.trace = comm.context.trace;
  ledger.trace_op = common.traced & 0xffff;
  ledger.trace_bytes = common.call.words[1] | static_cast<uint64_t>(common.call.words[2]) << 32;
  ledger.trace_detail = common.call.words[0];
  return backend::LaunchPersistentProduct(product, stream.handle());
}

}  // namespace

const VariantRow kPersistentRow = {
    Variant::kPersistent, &Supports, &Bytes, &Complete, &Launch, &backend::PreparePersistentProduct,
};

}  // namespace iris::ops::impl
