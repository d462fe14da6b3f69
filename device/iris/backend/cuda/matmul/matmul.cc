// The host half of the persistent GEMM of Hopper GPUs: maps for the copy engine, arguments, the
// choice of the kernel, and the launch.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstddef>

#include "iris/backend/cuda/matmul/kernel.h"
#include "iris/backend/cuda/matmul/plan.h"
#include "iris/backend/cuda/matmul/schedule.h"
#include "iris/backend/gpu_runtime.h"
#include "iris/backend/persistent_product.h"

namespace iris::backend::cuda::matmul {
namespace {

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                 const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                 const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// Returns the driver's function, without linking its library; null if the driver has none.
EncodeTiled FindEncodeTiled() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                       cudaEnableDefault, &result) != cudaSuccess ||
      result != cudaDriverEntryPointSuccess) {
    return nullptr;
  }
  return reinterpret_cast<EncodeTiled>(function);
}

// Maps a matrix of 2-byte elements, `leading` from row to row, in boxes of 64 columns. If
// `apart_bytes` is not 0, the third dimension is a second matrix, this far from the first.
bool Encode(EncodeTiled encode, DType type, const void* base, uint64_t rows, uint64_t columns,
            uint64_t leading, uint32_t box_rows, CUtensorMap* map, uint64_t apart_bytes = 0) {
  const cuuint64_t sizes[] = {columns, rows, 2};
  const cuuint64_t strides[] = {leading * 2, apart_bytes};
  const cuuint32_t box[] = {64, box_rows, 1};
  const cuuint32_t steps[] = {1, 1, 1};
  return encode(map,
                type == DType::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                    : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                apart_bytes == 0 ? 2 : 3, const_cast<void*>(base), sizes, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Longer than any program runs, and far from overflow.
constexpr uint64_t kForeverNs = uint64_t{1} << 62;
// The number of blocks that send rows of A to peers, for large and for small problems.
constexpr uint32_t kPushBlocks = 16;
constexpr uint32_t kSmallPushBlocks = 4;

constexpr uint32_t kVariants = 16;
struct Variant {
  uint32_t number;
  const void* kernel;
  uint32_t shared_bytes;
  uint32_t threads;
};

template <typename C>
Variant VariantOf() {
  constexpr uint32_t kTile = C::kN == 256 ? 0 : C::kAlternates ? 3 : C::kN == 128 ? 1 : 2;
  constexpr uint32_t kNumber = kTile * 4 + (C::kBfloat16 ? 2 : 0) + (C::kTransposed ? 1 : 0);
  return {kNumber, reinterpret_cast<const void*>(&MatmulKernel<C>), C::kSharedBytes, C::kThreads};
}
template <bool kBfloat16, bool kTransposed>
Variant ByTile(Tile tile) {
  switch (tile) {
    case Tile::k128x256:
      return VariantOf<Config<128, 256, 3, 2, 2, false, kBfloat16, kTransposed>>();
    case Tile::k128x128InTurns:
      return VariantOf<Config<128, 128, 5, 2, 2, true, kBfloat16, kTransposed>>();
    case Tile::k128x128:
      return VariantOf<Config<128, 128, 5, 2, 4, false, kBfloat16, kTransposed>>();
    default:
      return VariantOf<Config<64, 64, 9, 1, 2, false, kBfloat16, kTransposed>>();
  }
}
Variant VariantFor(const Problem& p, Tile tile) {
  if (p.in == DType::kBf16) {
    return p.transposed_b ? ByTile<true, true>(tile) : ByTile<true, false>(tile);
  }
  return p.transposed_b ? ByTile<false, true>(tile) : ByTile<false, false>(tile);
}

cudaLaunchAttribute ClusterOf(uint32_t width) {
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = width;
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  return cluster;
}

// Returns how many blocks in clusters of `width` the device runs at once, 0 if none or unknown.
uint32_t ResidentBlocks(const Variant& variant, int device, uint32_t width) {
  // Cached, because the query takes some microseconds, and its result never changes.
  constexpr int kDevices = 32;
  static std::atomic<uint32_t> known[kDevices][kVariants][3];
  std::atomic<uint32_t>* place = nullptr;
  if (device >= 0 && device < kDevices) {
    place = &known[device][variant.number][width == 4 ? 2 : width - 1];
    const uint32_t blocks = place->load(std::memory_order_relaxed);
    if (blocks != 0) return blocks;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(width);
  config.blockDim = dim3(variant.threads);
  config.dynamicSmemBytes = variant.shared_bytes;
  cudaLaunchAttribute cluster = ClusterOf(width);
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, variant.kernel, &config) != cudaSuccess) return 0;
  const uint32_t blocks = static_cast<uint32_t>(std::max(clusters, 0)) * width;
  if (place != nullptr) place->store(blocks, std::memory_order_relaxed);
  return blocks;
}

bool AreAligned(const Problem& p, uint64_t bytes) {
  const uint64_t element = p.out == DType::kF32 ? 4 : 2;
  if (p.ldd * element % bytes != 0) return false;
  const bool all = p.kind == Kind::kAllReduce || p.kind == Kind::kAllScatter;
  for (uint32_t r = 0; r < p.n_ranks; ++r) {
    if ((r == p.rank || all) && reinterpret_cast<uintptr_t>(p.d[r]) % bytes != 0) return false;
  }
  return true;
}

const char* Fill(const Problem& p, const Plan& plan, EncodeTiled encode, Arguments* a) {
  const Schedule& s = plan.schedule;
  a->schedule = s;
  a->bias = p.bias;
  a->abort = p.abort_word;
  a->ledger = p.ledger;
  a->opened = p.ledger.failed != nullptr ? 1 : 0;
  a->ldd = p.ldd;
  a->timeout_ns = p.timeout_ns == 0 ? kForeverNs : p.timeout_ns;
  a->signature = SignatureOf(p, plan);
  a->n_out = s.n;
  a->bias_type = static_cast<uint32_t>(p.bias_type);
  a->activation = static_cast<uint32_t>(p.activation);
  a->wide = p.out == DType::kF32 ? 1 : 0;
  // The threads that receive packets store them.
  const bool packets = Sums(s) && !IsRing(s);
  // The copy engine stores pieces of 16 bytes, also if the map ends within one.
  a->by_tile = a->wide == 0 && !packets && AreAligned(p, 16) && p.n % 8 == 0 ? 1 : 0;
  a->pairs_align = AreAligned(p, a->wide != 0 ? 8 : 4) ? 1 : 0;
  const auto rows_of = [&](uint32_t rank) {
    return SliceBegin(s.m, p.n_ranks, rank + 1) - SliceBegin(s.m, p.n_ranks, rank);
  };
  a->m_tensor = p.kind == Kind::kReduceScatter ? rows_of(p.rank) : s.m;

  constexpr const char* kNoMap = "the driver refuses a tensor map";
  const uint64_t rows_a = p.kind == Kind::kAllGather ? rows_of(p.rank) : p.m;
  if (!Encode(encode, p.in, p.a, rows_a, p.k, p.lda, s.tile_m, &a->a)) return kNoMap;
  const bool ok = p.transposed_b
                      ? Encode(encode, p.in, p.b, p.n, p.k, p.ldb, s.tile_n / s.cluster, &a->b)
                      : Encode(encode, p.in, p.b, p.k, p.n, p.ldb, kTileK, &a->b);
  if (!ok) return kNoMap;
  for (uint32_t i = 0; i < p.n_ranks; ++i) {
    const uint32_t r = (p.rank + i) % p.n_ranks;
    a->workspace[i] = static_cast<uint8_t*>(p.workspace[i]);
    a->out[i] = static_cast<uint8_t*>(p.d[r]);
    if (a->by_tile == 0 || p.d[r] == nullptr) continue;
    if (i > 0 && p.kind != Kind::kAllReduce && p.kind != Kind::kAllScatter) continue;
    CUtensorMap* map = i == 0 ? &a->d : &a->peers[i];
    if (!Encode(encode, p.out, p.d[r], a->m_tensor, p.n, p.ldd, 64, map)) return kNoMap;
  }
  if (p.n_ranks == 1) return nullptr;
  a->half[0] = HalfAt(p.workspace_bytes, 0);
  a->half[1] = HalfAt(p.workspace_bytes, 1);
  if (p.kind != Kind::kAllGather) return nullptr;
  const uint64_t apart = a->half[1].data_offset_bytes - a->half[0].data_offset_bytes;
  const uint64_t pitch = (p.k + 7) / 8 * 8;
  const auto gathered = [&](uint32_t rank) {
    return a->workspace[rank] + a->half[0].data_offset_bytes;
  };
  if (!Encode(encode, p.in, gathered(p.rank), p.m, p.k, pitch, s.tile_m, &a->gathered, apart)) {
    return kNoMap;
  }
  const uint64_t mine = SliceBegin(s.m, p.n_ranks, p.rank) * pitch * 2;
  for (uint32_t i = 0; i < p.n_ranks; ++i) {
    if (!Encode(encode, p.in, gathered((p.rank + i) % p.n_ranks) + mine, rows_of(p.rank), p.k,
                pitch, s.tile_m, &a->peers[i], apart)) {
      return kNoMap;
    }
  }
  return nullptr;
}

// Lets all ranks meet, unless an opening did, and then copies this rank's rows of A to the others
// on the copy stream.
//
// Copies wait only for work before them on `stream`, which waits for nothing after the copies of
// its rank. So even a device that runs all its streams in this order finishes: nothing hangs if the
// hardware has few queues. The flag is copied, too, so that no copy needs a multiprocessor.
const char* StartCopies(const Problem& p, const Plan& plan, Arguments& a, cudaStream_t stream) {
  const Schedule& s = plan.schedule;
  const cudaStream_t copies = static_cast<cudaStream_t>(p.copy_stream);
  const cudaEvent_t met = static_cast<cudaEvent_t>(p.copy_events[0]);
  const cudaEvent_t copied = static_cast<cudaEvent_t>(p.copy_events[1]);
  void* pointers[] = {&a};
  cudaError_t error = cudaLaunchKernel(reinterpret_cast<const void*>(&MeetKernel), dim3(1),
                                       dim3(32), pointers, 0, stream);
  if (error == cudaSuccess) error = cudaEventRecord(met, stream);
  if (error == cudaSuccess) error = cudaStreamWaitEvent(copies, met, 0);
  const uint64_t begin = SliceBegin(s.m, s.n_ranks, s.rank);
  const uint64_t rows = SliceBegin(s.m, s.n_ranks, s.rank + 1) - begin;
  const uint64_t pitch = (p.k + 7) / 8 * 16;
  const uint64_t piece_rows = uint64_t{s.piece_rows} * s.tile_m;
  const uint64_t piece_columns = uint64_t{s.piece_parts} * kPushK;
  const uint8_t* flag = a.workspace[p.rank] + offsetof(Header, flag);
  for (uint64_t row = 0; row < rows; row += piece_rows) {
    for (uint64_t column = 0; column < p.k; column += piece_columns) {
      const uint64_t height = std::min(piece_rows, rows - row);
      const uint64_t width = std::min(piece_columns, p.k - column) * 2;
      const uint64_t piece = PieceOf(s, s.rank, static_cast<uint32_t>(row / s.tile_m),
                                     static_cast<uint32_t>(column / kPushK));
      for (uint32_t i = 1; i < s.n_ranks; ++i) {
        uint8_t* there = a.workspace[(s.rank + i) % s.n_ranks];
        if (error == cudaSuccess) {
          error = cudaMemcpy2DAsync(
              there + a.half[0].data_offset_bytes + (begin + row) * pitch + column * 2, pitch,
              static_cast<const uint8_t*>(p.a) + row * p.lda * 2 + column * 2, p.lda * 2, width,
              height, cudaMemcpyDeviceToDevice, copies);
        }
        if (error == cudaSuccess) {
          error = cudaMemcpyAsync(there + a.half[0].flags_offset_bytes + piece * sizeof(uint64_t),
                                  flag, sizeof(uint64_t), cudaMemcpyDeviceToDevice, copies);
        }
      }
    }
  }
  // Also recorded after a failure, because a branch of a captured stream must join it again.
  const cudaError_t ended = cudaEventRecord(copied, copies);
  if (error == cudaSuccess) error = ended;
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

// Returns null or an error, as a static string. The problem is supported, and the current device is
// that of the stream.
const char* Launch(const Problem& problem, cudaStream_t stream) {
  Plan plan;
  const char* why = CheckAndPlan(problem, &plan);
  if (why != nullptr) return why;
  static const EncodeTiled encode = FindEncodeTiled();
  if (encode == nullptr) return "the driver has no cuTensorMapEncodeTiled: it is too old";
  int device = 0;
  int major = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  }
  if (error != cudaSuccess) return cudaGetErrorString(error);
  if (major != 9) return "the device is not a Hopper GPU";

  const Schedule& s = plan.schedule;
  Arguments arguments = {};
  if (why = Fill(problem, plan, encode, &arguments); why != nullptr) return why;

  const Variant variant = VariantFor(problem, plan.tile);
  error = cudaFuncSetAttribute(variant.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(variant.shared_bytes));
  if (error != cudaSuccess) return cudaGetErrorString(error);
  // Ranks wait for each other's blocks, so all blocks must run at the same time.
  const auto resident = [&](uint32_t width) {
    const uint32_t most = ResidentBlocks(variant, device, width);
    return problem.max_blocks != 0 ? std::min(most, problem.max_blocks) : most;
  };
  const bool pushes = problem.kind == Kind::kAllGather && problem.n_ranks > 1 && s.copied == 0;
  const bool small = plan.tile == Tile::k64x64;
  const auto pushers_of = [&](uint32_t blocks, uint32_t width) {
    if (!pushes) return 0u;
    const uint32_t wanted = small ? kSmallPushBlocks : kPushBlocks;
    return std::max(std::min(wanted, blocks / 2) / width * width, width);
  };
  uint32_t width = s.cluster;
  uint32_t blocks = resident(width);
  uint32_t pushers = pushers_of(blocks, width);
  if (small) {
    // Without a split, few small tiles would leave multiprocessors and memory bandwidth unused.
    const uint32_t steps = CeilDiv(s.k, kTileK);
    // A shared device has pairs of free multiprocessors, but may have no larger groups of them: see
    // ops/variants/persistent.cc.
    const uint32_t most_split = problem.max_blocks != 0 ? 2 : kMostSplit;
    for (uint32_t split = 2; split <= most_split && 8 * split <= 2 * steps; split *= 2) {
      const uint32_t more = resident(split);
      if (split * s.total + pushers_of(more, split) > more) break;
      width = split;
      blocks = more;
      pushers = pushers_of(more, split);
      arguments.schedule.split = split;
    }
  }
  if (blocks < pushers + width) return "there must be more blocks: see max_blocks";
  const uint32_t workers = std::min((blocks - pushers) / width, s.total);
  blocks = workers * width + pushers;
  arguments.push_blocks = pushers;
  arguments.finishers = workers * width * (s.tile_m / 64) + pushers;

  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(variant.threads);
  config.dynamicSmemBytes = variant.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[] = {ClusterOf(width), {}};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes;
  // The kernel cannot begin early if copies are started between the opening and it.
  config.numAttrs = arguments.opened != 0 && s.copied == 0 ? 2 : 1;
  void* pointers[] = {&arguments};
  if (s.copied != 0) {
    why = StartCopies(problem, plan, arguments, config.stream);
  }
  if (why == nullptr) error = cudaLaunchKernelExC(&config, variant.kernel, pointers);
  if (s.copied != 0) {
    const cudaError_t joined =
        cudaStreamWaitEvent(config.stream, static_cast<cudaEvent_t>(problem.copy_events[1]), 0);
    if (error == cudaSuccess) error = joined;
  }
  return why == nullptr && error != cudaSuccess ? cudaGetErrorString(error) : why;
}

// Loads all kernels onto the current device.
cudaError_t Prepare() {
  constexpr Tile kTiles[] = {Tile::k128x256, Tile::k128x128, Tile::k64x64, Tile::k128x128InTurns};
  cudaFuncAttributes attributes;  // the query loads the code
  cudaError_t error =
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&MeetKernel));
  for (const Tile tile : kTiles) {
    for (uint32_t i = 0; i < 4 && error == cudaSuccess; ++i) {
      Problem problem;
      problem.in = i / 2 == 0 ? DType::kBf16 : DType::kF16;
      problem.transposed_b = i % 2 != 0;
      error = cudaFuncGetAttributes(&attributes, VariantFor(problem, tile).kernel);
    }
  }
  return error;
}

// Fills in the fields of a shape without matrices as if these were aligned.
void Align(Problem* problem) {
  const auto up = [](uint64_t x) { return (x + 7) / 8 * 8; };
  problem->lda = up(problem->k);
  problem->ldb = up(problem->transposed_b ? problem->k : problem->n);
  problem->ldd = up(problem->n);
}

Result ResultOf(const char* why) {
  return why == nullptr ? Result{} : Result{StatusCode::kInternal, why};
}

}  // namespace
}  // namespace iris::backend::cuda::matmul

namespace iris::backend {

namespace matmul = cuda::matmul;

static_assert(kPersistentKeptBytes == matmul::kHeaderBytes);

bool HasPersistentProduct() {
  int device = 0;
  int major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major == 9;
}

bool SupportsPersistentProduct(const PersistentProduct& product, const char** why) {
  return matmul::Supports(product, why);
}

uint64_t PersistentProductBytes(const PersistentProduct& product) {
  PersistentProduct aligned = product;
  matmul::Align(&aligned);
  return matmul::WorkspaceBytes(aligned);
}

Result LaunchPersistentProduct(const PersistentProduct& product, const raw::StreamHandle& stream) {
  const raw::CurrentDevice device_scope(stream.device);
  return matmul::ResultOf(matmul::Launch(product, static_cast<cudaStream_t>(stream.native)));
}

Result PreparePersistentProduct() {
  if (!HasPersistentProduct()) return {};
  const cudaError_t error = matmul::Prepare();
  return matmul::ResultOf(error == cudaSuccess ? nullptr : cudaGetErrorString(error));
}

}  // namespace iris::backend
