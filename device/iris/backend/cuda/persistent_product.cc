// The persistent product of Hopper GPUs: see matmul/.
#include "iris/backend/persistent_product.h"

#include <cuda_runtime_api.h>

#include <cstdint>

#include "iris/backend/cuda/matmul/matmul.h"
#include "iris/backend/cuda/matmul/schedule.h"
#include "iris/backend/gpu_runtime.h"
#include "iris/backend/select.h"

namespace iris::backend {
namespace {

using cuda::matmul::Kind;
using cuda::matmul::Problem;
using cuda::matmul::Type;

static_assert(PersistentProduct::kMaxRanks == cuda::matmul::kMaxRanks);
static_assert(kPersistentKeptBytes == cuda::matmul::kHeaderBytes);
static_assert(static_cast<uint32_t>(ops::Activation::kSilu) ==
              static_cast<uint32_t>(cuda::matmul::Activation::kSilu));
static_assert(static_cast<uint32_t>(ops::Activation::kGelu) ==
              static_cast<uint32_t>(cuda::matmul::Activation::kGelu));

Kind KindOf(PersistentProduct::Kind kind) {
  switch (kind) {
    case PersistentProduct::Kind::kReduceScatter:
      return Kind::kReduceScatter;
    case PersistentProduct::Kind::kAllReduce:
      return Kind::kAllReduce;
    case PersistentProduct::Kind::kAllGather:
      return Kind::kAllGather;
    default:
      return Kind::kAllScatter;
  }
}

bool TypeOf(DType from, Type* to) {
  switch (from) {
    case DType::kF16:
      *to = Type::kFloat16;
      return true;
    case DType::kBf16:
      *to = Type::kBfloat16;
      return true;
    case DType::kF32:
      *to = Type::kFloat32;
      return true;
    default:
      return false;
  }
}

bool GetDevice(int* device) { return cudaGetDevice(device) == cudaSuccess; }
bool UseDevice(int device) { return cudaSetDevice(device) == cudaSuccess; }

// Longer than any program runs, and far from overflow.
constexpr uint64_t kForeverNs = uint64_t{1} << 62;

bool ProblemOf(const PersistentProduct& product, Problem* problem, const char** why) {
  Problem& p = *problem;
  *why = "a type is not one of this kernel's";
  if (!TypeOf(product.in, &p.in) || !TypeOf(product.out, &p.out)) return false;
  if (product.bias != nullptr && !TypeOf(product.bias_type, &p.bias_type)) return false;
  p.kind = KindOf(product.kind);
  p.m = product.m;
  p.n = product.n;
  p.k = product.k;
  p.a = product.a;
  p.lda = product.lda;
  p.b = product.b;
  p.ldb = product.ldb;
  p.transposed_b = product.transposed_b;
  p.ldd = product.ldd;
  p.bias = product.bias;
  p.activation = static_cast<cuda::matmul::Activation>(product.activation);
  p.rank = product.rank;
  p.n_ranks = product.n_ranks;
  for (uint32_t r = 0; r < PersistentProduct::kMaxRanks; ++r) {
    p.d[r] = product.d[r];
    p.workspace[r] = product.workspace[r];
  }
  p.workspace_bytes = product.workspace_bytes;
  p.timeout_ns = product.timeout_ns == 0 ? kForeverNs : product.timeout_ns;
  p.abort = product.abort_word;
  p.ledger = product.ledger;
  p.tuning.blocks = product.max_blocks;
  if (product.copies != nullptr) {
    p.copy_stream = product.copies->native();
    p.copy_events[0] = product.copies_begin->native();
    p.copy_events[1] = product.copies_end->native();
  }
  return true;
}

// What is known of a shape before there are matrices: as if they were aligned.
void Align(PersistentProduct* product) {
  const auto up = [](uint64_t x) { return (x + 7) / 8 * 8; };
  product->lda = up(product->k);
  product->ldb = up(product->transposed_b ? product->k : product->n);
  product->ldd = up(product->n);
}

}  // namespace

bool HasPersistentProduct() {
  int device = 0;
  int major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major == 9;
}

bool SupportsPersistentProduct(const PersistentProduct& product, const char** why) {
  Problem problem;
  return ProblemOf(product, &problem, why) && cuda::matmul::Supports(problem, why);
}

uint64_t PersistentProductBytes(const PersistentProduct& product) {
  PersistentProduct aligned = product;
  Align(&aligned);
  Problem problem;
  const char* why = nullptr;
  return ProblemOf(aligned, &problem, &why) ? cuda::matmul::WorkspaceBytes(problem) : 0;
}

Result LaunchPersistentProduct(const PersistentProduct& product, Stream& stream) {
  Problem problem;
  const char* why = nullptr;
  if (!ProblemOf(product, &problem, &why)) return {StatusCode::kUnimplemented, why};
  const raw::StreamHandle on = stream.handle();
  const raw::CurrentDevice<&GetDevice, &UseDevice> device_scope(on.device);
  why = cuda::matmul::Launch(problem, on.native);
  if (why == nullptr) return {};
  return {StatusCode::kInternal, why};
}

Result PreparePersistentProduct() {
  if (!HasPersistentProduct()) return {};
  const char* why = cuda::matmul::Prepare();
  if (why == nullptr) return {};
  return {StatusCode::kInternal, why};
}

}  // namespace iris::backend
