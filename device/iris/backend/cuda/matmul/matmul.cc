// Launches: maps for the copy engine, arguments, and the choice among the kernels there are.
#include "iris/backend/cuda/matmul/matmul.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "iris/backend/cuda/matmul/kernel.h"
#include "iris/backend/cuda/matmul/plan.h"

namespace iris::backend::cuda::matmul {
namespace {

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                 const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                 const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// The driver's function, which has no library to link. Null: the driver has none.
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

// A matrix of `rows` x `columns` elements of 2 bytes, `leading` apart; boxes of 64 columns.
// `apart_bytes`: if not 0, from it to a second such matrix, the map's third dimension.
bool Encode(EncodeTiled encode, Type type, const void* base, uint64_t rows, uint64_t columns,
            uint64_t leading, uint32_t box_rows, CUtensorMap* map, uint64_t apart_bytes = 0) {
  const cuuint64_t sizes[] = {columns, rows, 2};
  const cuuint64_t strides[] = {leading * 2, apart_bytes};
  const cuuint32_t box[] = {64, box_rows, 1};
  const cuuint32_t steps[] = {1, 1, 1};
  return encode(map,
                type == Type::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                       : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                apart_bytes == 0 ? 2 : 3, const_cast<void*>(base), sizes, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

struct Variant {
  const void* kernel;
  uint32_t shared_bytes;
  uint32_t threads;
};

template <typename C>
Variant VariantOf() {
  return {reinterpret_cast<const void*>(&MatmulKernel<C>), C::kSharedBytes, C::kThreads};
}
template <bool kBfloat16, bool kTransposed>
Variant ByTile(Tile tile) {
  switch (tile) {
    case Tile::k128x256:
      return VariantOf<Config<128, 256, 3, 2, 2, kBfloat16, kTransposed>>();
    case Tile::k128x128:
      return VariantOf<Config<128, 128, 5, 2, 4, kBfloat16, kTransposed>>();
    default:
      return VariantOf<Config<64, 64, 12, 1, 2, kBfloat16, kTransposed>>();
  }
}
Variant VariantFor(const Problem& p, Tile tile) {
  if (p.in == Type::kBfloat16) {
    return p.transposed_b ? ByTile<true, true>(tile) : ByTile<true, false>(tile);
  }
  return p.transposed_b ? ByTile<false, true>(tile) : ByTile<false, false>(tile);
}

bool AreAligned(const Problem& p, uint64_t bytes) {
  const uint64_t element = p.out == Type::kFloat32 ? 4 : 2;
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
  a->abort = p.abort;
  a->report = p.report;
  a->ldd = p.ldd;
  a->timeout_ns = p.timeout_ns;
  a->signature = SignatureOf(p, plan);
  a->n_out = s.n;
  a->bias_type = static_cast<uint32_t>(p.bias_type);
  a->activation = static_cast<uint32_t>(p.activation);
  a->wide = p.out == Type::kFloat32 ? 1 : 0;
  // Packets are stored by the threads that get them.
  const bool packets = Sums(s) && !IsRing(s);
  // The copy engine stores whole pieces of 16 bytes, also where the map ends within one.
  a->by_tile = a->wide == 0 && !packets && AreAligned(p, 16) && p.n % 8 == 0 ? 1 : 0;
  a->pairs_align = AreAligned(p, a->wide != 0 ? 8 : 4) ? 1 : 0;
  a->unpaced = p.tuning.unpaced;
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

}  // namespace

const char* Launch(const Problem& problem, void* stream) {
  const char* why = nullptr;
  if (!Supports(problem, &why)) return why;
  static const EncodeTiled encode = FindEncodeTiled();
  if (encode == nullptr) return "the driver has no cuTensorMapEncodeTiled: it is too old";
  int device = 0;
  int major = 0;
  int multiprocessors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  if (error != cudaSuccess) return cudaGetErrorString(error);
  if (major != 9) return "the device is not a Hopper GPU";

  Plan plan;
  if (why = MakePlan(problem, &plan); why != nullptr) return why;
  const Schedule& s = plan.schedule;
  Arguments arguments = {};
  if (why = Fill(problem, plan, encode, &arguments); why != nullptr) return why;

  uint32_t blocks = static_cast<uint32_t>(multiprocessors);
  if (problem.tuning.blocks != 0) blocks = std::min(blocks, problem.tuning.blocks);
  const bool pushes = problem.kind == Kind::kAllGather && problem.n_ranks > 1;
  uint32_t pushers = 0;
  if (pushes) {
    pushers = problem.tuning.push_blocks != 0 ? problem.tuning.push_blocks : 16;
    pushers = std::min(pushers, blocks / 2) / s.cluster * s.cluster;
    pushers = std::max(pushers, s.cluster);
  }
  if (blocks < pushers + s.cluster) return "there must be more blocks: see Tuning::blocks";
  uint32_t workers = (blocks - pushers) / s.cluster;
  workers = std::min(workers, s.total);
  blocks = workers * s.cluster + pushers;
  arguments.push_blocks = pushers;
  arguments.finishers = workers * s.cluster * (s.tile_m / 64) + pushers;

  const Variant variant = VariantFor(problem, plan.tile);
  error = cudaFuncSetAttribute(variant.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(variant.shared_bytes));
  if (error != cudaSuccess) return cudaGetErrorString(error);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(variant.threads);
  config.dynamicSmemBytes = variant.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = s.cluster;
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  config.attrs = &cluster;
  config.numAttrs = 1;
  void* pointers[] = {&arguments};
  error = cudaLaunchKernelExC(&config, variant.kernel, pointers);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace iris::backend::cuda::matmul
