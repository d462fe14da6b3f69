// Arguments of iris::norm other than its buffers: the scaling to fp8, and the variant. C++17, the
// standard library alone. The numbers are those of the C API.
//
// RMS norms of sums over W ranks, each with its in[rows, hidden], and with an optional residual:
//
//   r[i, j]   = sum over the ranks of in[i, j] + residual[i, j]         rounded to the type of `in`
//   out[i, j] = r[i, j] / sqrt(mean over j of r[i, j]^2 + epsilon) * (weight[j] + weight_offset)
//
// If there is a residual, residual_out is r, which the next layer adds.
//
//   all_reduce_rms_norm      every rank has all rows of the residual, in and out.
//   reduce_scatter_rms_norm_all_gather
//                            each rank has its share of the residual's rows, in and out, and all
//                            get all rows of `out`. The shares are even: the first (rows mod W)
//                            ranks have one row more.
//
// `in` is of f32, f16 or bf16, and so is the residual. `out` has the same type, or f8e4m3 or
// f8e5m2, or for an `in` of f32 also f16 or bf16. Sums go in the order of the ranks, and then add
// the residual, all in f32, with one rounding to r (kPair has more). The mean is of the rounded r,
// in f32, in an order that depends only on the plan. All ranks get the same bits.
#pragma once

#include <cstdint>

#include "iris/dtype.h"

namespace iris::norm {

// How a normed value y becomes fp8: out = y / scale, rounded to nearest even. Values that are too
// large become the largest number of the type, and a NaN stays one. Scales are f32.
//
//   kNone      `out` is not of fp8.
//   kStatic    one scale from the caller, in device memory, so that a graph can replay with another
//              one.
//   kPerRow    writes a scale for each row: its largest magnitude / the largest number of the type.
//   kPerGroup  writes one for each kGroupColumns columns of a row, the last ones of which may be
//              fewer: scales[rows, ceil(hidden / kGroupColumns)].
//
// A row or group whose largest magnitude is less than 2^-100 has the scale 1.
enum class Scaling : uint8_t { kNone, kStatic, kPerRow, kPerGroup };
inline constexpr uint32_t kScalingCount = 4;
inline constexpr uint32_t kGroupColumns = 128;

constexpr const char* ScalingName(Scaling scaling) {
  constexpr const char* kNames[] = {"none", "static", "per_row", "per_group"};
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == kScalingCount);
  const uint32_t number = static_cast<uint32_t>(scaling);
  return number < kScalingCount ? kNames[number] : "unknown";
}

// Algorithms of an operation. kAuto takes the one that is expected to be fastest for the call.
//
//   kPackets  one-shot: every rank sends its rows to all, each 8 bytes with flags, and all ranks
//             norm all rows. For all_reduce_rms_norm with few rows.
//   kLines    as kPackets, but with lines of 120 bytes and a flag, for up to 8 ranks, if the
//             platform has whole lines (iris/ccl_types.h).
//   kTwoShot  each rank reduces its share of the rows. It sends all ranks the sums if they have to
//             write them to residual_out, otherwise the normed rows.
//   kTwoLines each rank reduces its share of the rows, which it gets as lines, and sends all ranks
//             the sums as lines, and all norm all rows. Up to 8 ranks; not if the operation writes
//             scales.
//   kAlone    a team of one rank, which has nothing to send: both operations, rows of up to 32 KiB.
//   kPair     a team with ranks on several nodes: a collective of the sums, kAlone's kernel, and
//             perhaps a collective of the normed rows, chunk by chunk. Rows of up to 32 KiB. f16
//             and bf16 are rounded more often: the sum of each node, that of all nodes, and r.
//
// If kAuto's preferred variant does not support a call, it takes the first of this list that does.
#define IRIS_NORM_VARIANTS(X) \
  X(TwoShot, 3, "two_shot")   \
  X(Lines, 2, "lines")        \
  X(TwoLines, 5, "two_lines") \
  X(Alone, 4, "alone")        \
  X(Pair, 6, "pair")          \
  X(Packets, 1, "packets")

enum class Variant : uint8_t {
  kAuto = 0,
#define IRIS_ENUMERATOR(Name, number, text) k##Name = number,
  IRIS_NORM_VARIANTS(IRIS_ENUMERATOR)
#undef IRIS_ENUMERATOR
};
inline constexpr uint32_t kVariantCount = 7;

constexpr const char* VariantName(Variant variant) {
  if (variant == Variant::kAuto) return "auto";
#define IRIS_NAME(Name, number, text) \
  if (variant == Variant::k##Name) return text;
  IRIS_NORM_VARIANTS(IRIS_NAME)
#undef IRIS_NAME
  return "unknown";
}

// The shape of a call, the same on all ranks of the team.
struct Shape {
  uint64_t rows = 0;            // of `in`, on every rank
  uint64_t hidden = 0;          // columns, at least 1
  DType in = DType::kBf16;      // kF32, kF16 or kBf16; also of the residual
  DType out = DType::kBf16;     // as `in`; kF8E4M3 or kF8E5M2; for an `in` of kF32 also kF16, kBf16
  DType weight = DType::kNone;  // kF32, kF16 or kBf16; kNone: there is none, all are 1
  bool residual = false;        // Buffers::residual and residual_out are used
  Scaling scaling = Scaling::kNone;  // not kNone if, and only if, `out` is of fp8
  float epsilon = 1e-6f;
  float weight_offset = 0;  // is added to each weight
  Variant variant = Variant::kAuto;
};

struct Buffers {
  const void* in = nullptr;        // [rows, hidden]: the partial sums
  void* out = nullptr;             // [rows, hidden]
  const void* weight = nullptr;    // [hidden]
  const void* residual = nullptr;  // [rows, hidden], or this rank's share of the rows
  void* residual_out = nullptr;    // like `residual`
  const float* scale = nullptr;    // Scaling::kStatic: one
  float* scales = nullptr;         // kPerRow: [rows]; kPerGroup: [rows, ceil(hidden / 128)]
  // Elements from one row to the next, at least `hidden`; 0 means `hidden`. Ranks may differ in
  // them.
  uint64_t in_stride = 0;
  uint64_t out_stride = 0;
  uint64_t residual_stride = 0;
  uint64_t residual_out_stride = 0;
};

// Says how a call runs.
struct Plan {
  Variant variant = Variant::kAuto;
  uint32_t blocks = 0;
  uint32_t threads = 0;
  uint32_t parts = 0;  // blocks that share a row
};

}  // namespace iris::norm
