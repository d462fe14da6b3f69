// What a call of iris::ops says beside its matrices: the activation and the variant. C++17, the
// standard library alone. The numbers are those of the C API.
//
// D = act(A B + bias), with A and B of f16 or bf16, sums in f32, and D of f16, bf16 or f32. W
// members; the shares of a dimension are even: the first (dimension mod W) members have one more.
//
//   matmul_all_reduce      D[m, n] = act(sum over the members of A[m, k] B[k, n] + bias[n]), on
//                          all. k may differ from member to member.
//   matmul_reduce_scatter  the same; each member gets its share of the rows.
//   all_gather_matmul      D[m, n] = act(A B + bias[n]), where A's m rows are the members' shares,
//                          one after another. n may differ from member to member.
//   matmul_all_gather      each member makes its share of the rows of D[m, n], and all get all.
//   matmul_all_scatter     each member makes its share of the columns, and all get all.
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

// How an operation goes. kAuto: what is expected to be the fastest of those that have the call.
//
//   kFused  one kernel that multiplies tile by tile, and gives away each tile while it makes the
//           next ones.
//   kPair   a product, then a collective: the product by the vendor's library where there is one,
//           else by the kernel of kFused on this member alone.
//   kPersistent
//           one kernel written for one kind of device, for 2 to 16 members: Hopper GPUs. A and B
//           are aligned to 16 bytes, lda and ldb are multiples of 8, D has the type of A or f32,
//           m and n are not less than the members where they are dealt out, and D lies at the
//           same offset in the heaps of all members where all write it.
//   kCopyEngine
//           all_gather_matmul alone: the copy engine brings A's rows while a kernel multiplies
//           those that are there: that of kPersistent where it has the call and m is above 64,
//           else that of kFused. No block of the kernel is spent on sending.
//
// In all, sums go in a fixed order: the bits are the same on all members, run after run.
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

// The shape of a call. The same on all ranks of the team, but for what is said above.
struct Shape {
  uint64_t m = 0;
  uint64_t n = 0;
  uint64_t k = 0;
  DType in = DType::kBf16;    // of A and B: kF16 or kBf16
  DType out = DType::kBf16;   // of D: kF16, kBf16 or kF32
  DType bias = DType::kNone;  // of the bias, one of those; kNone: there is none
  bool transposed_b = false;  // B is stored as [n, k]
  Activation activation = Activation::kNone;
  Variant variant = Variant::kAuto;
};

// The matrices of a call, by rows, with the elements from one row to the next.
struct Operands {
  const void* a = nullptr;
  uint64_t lda = 0;
  const void* b = nullptr;
  uint64_t ldb = 0;
  const void* bias = nullptr;  // one element for each column that this member makes; or null
  void* d = nullptr;
  uint64_t ldd = 0;
};

}  // namespace iris::ops
