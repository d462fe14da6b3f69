// Arguments of iris::ops other than its matrices: the activation and the variant. C++17, the
// standard library alone. The numbers are those of the C API.
//
// D = act(A B + bias), with A and B of f16 or bf16, sums in f32, and D of f16, bf16 or f32, on W
// ranks. The shares of a dimension are even: the first (dimension mod W) ranks have one more.
//
//   matmul_all_reduce      D[m, n] = act(sum over the ranks of A[m, k] B[k, n] + bias[n]), on all
//                          ranks, which may differ in k.
//   matmul_reduce_scatter  the same; each rank gets its share of the rows.
//   all_gather_matmul      D[m, n] = act(A B + bias[n]), where A's m rows are the ranks' shares in
//                          order. n may differ from rank to rank.
//   matmul_all_gather      each rank computes its share of the rows of D[m, n] and sends it to all.
//   matmul_all_scatter     each rank computes its share of the columns and sends it to all.
#pragma once

#include <cstdint>

#include "iris/dtype.h"

namespace iris::ops {

// kGelu: x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)), the form with tanh. kSilu: x sigmoid(x).
enum class Activation : uint8_t { kNone, kRelu, kGelu, kSilu };
inline constexpr uint32_t kActivationCount = 4;

constexpr const char* ActivationName(Activation activation) {
  constexpr const char* kNames[] = {"none", "relu", "gelu", "silu"};
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == kActivationCount);
  const uint32_t number = static_cast<uint32_t>(activation);
  return number < kActivationCount ? kNames[number] : "unknown";
}

// Algorithms of an operation. kAuto takes the one that is expected to be fastest for the call.
//
//   kFused  one kernel that multiplies tile by tile, and sends each tile while it computes the next
//           ones.
//   kPair   a GEMM, then a collective: the GEMM by the vendor's library if there is one, else by
//           the kernel of kFused on this rank alone.
//   kPersistent
//           one kernel written for one kind of device, for 2 to 16 ranks: Hopper GPUs. A and B are
//           aligned to 16 bytes, lda and ldb are multiples of 8, D has the type of A or f32, m and
//           n are not less than the number of ranks if they are partitioned, and D lies at the same
//           offset in all heaps if all ranks write it.
//   kCopyEngine
//           only all_gather_matmul: the copy engine copies A's rows while a kernel multiplies rows
//           that have arrived: that of kPersistent if it supports the call and m is above 64, else
//           that of kFused. No block of the kernel is spent on sending.
//
// In all of them sums have a fixed order: the bits are the same on all ranks, in every run.
#define IRIS_OPS_VARIANTS(X)     \
  X(Fused, 1, "fused")           \
  X(Pair, 2, "pair")             \
  X(Persistent, 3, "persistent") \
  X(CopyEngine, 4, "copy_engine")

enum class Variant : uint8_t {
  kAuto = 0,
#define IRIS_ENUMERATOR(Name, number, text) k##Name = number,
  IRIS_OPS_VARIANTS(IRIS_ENUMERATOR)
#undef IRIS_ENUMERATOR
};
inline constexpr uint32_t kVariantCount = 5;

constexpr const char* VariantName(Variant variant) {
  if (variant == Variant::kAuto) return "auto";
#define IRIS_NAME(Name, number, text) \
  if (variant == Variant::k##Name) return text;
  IRIS_OPS_VARIANTS(IRIS_NAME)
#undef IRIS_NAME
  return "unknown";
}

// The shape of a call. It is the same on all ranks of the team, except as said above.
struct Shape {
  uint64_t m = 0;
  uint64_t n = 0;
  uint64_t k = 0;
  DType in = DType::kBf16;    // of A and B: kF16 or kBf16
  DType out = DType::kBf16;   // of D: kF16, kBf16 or kF32
  DType bias = DType::kNone;  // of the bias: kF16, kBf16 or kF32; kNone: no bias
  bool transposed_b = false;  // B is stored as [n, k]
  Activation activation = Activation::kNone;
  Variant variant = Variant::kAuto;
};

// The matrices of a call, stored by rows. A leading dimension counts elements from row to row.
struct Operands {
  const void* a = nullptr;
  uint64_t lda = 0;
  const void* b = nullptr;
  uint64_t ldb = 0;
  const void* bias = nullptr;  // one element for each column that this rank computes; or null
  void* d = nullptr;
  uint64_t ldd = 0;
};

}  // namespace iris::ops
