// What a call of iris::norm says beside its buffers: how it is scaled to fp8, and the variant.
// C++17, the standard library alone. The numbers are those of the C API.
//
// RMS norms of sums. With W members, in[rows, hidden] of each, and an optional residual:
//
//   r[i, j]   = sum over the members of in[i, j] + residual[i, j]       rounded to the type of `in`
//   out[i, j] = r[i, j] / sqrt(mean over j of r[i, j]^2 + epsilon) * (weight[j] + weight_offset)
//
// r is residual_out, where there is a residual: what the next layer adds is what was normed here.
//
//   all_reduce_rms_norm      every member has all rows of the residual, in and out.
//   reduce_scatter_rms_norm_all_gather
//                            each member has its share of the residual's rows, in and out, and all
//                            get all rows of `out`. The shares are even: the first (rows mod W)
//                            members have one row more.
//
// `in` is of f32, f16 or bf16, and so is the residual. `out` has the same type, or f8e4m3 or
// f8e5m2, or for an `in` of f32 also f16 or bf16. Sums go in the order of the members, then comes
// the residual, all in f32, with one rounding to r. The mean is of the rounded r, in f32, in an
// order that depends on the plan alone. All members get the same bits.
#pragma once

#include <cstdint>

#include "iris/dtype.h"

namespace iris::norm {

// How fp8 is made of a normed value y: out = y / scale, rounded to nearest and to even; what is too
// large becomes the largest number of the type, and a NaN stays one. Scales are f32.
//
//   kNone      `out` is not of fp8.
//   kStatic    one scale, which the caller gives: in device memory, so that a graph can replay with
//              another one.
//   kPerRow    a scale for each row, written: its largest magnitude / the largest number of the
//              type.
//   kPerGroup  likewise for each kGroupColumns columns of a row, the last ones of which may be
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

// How an operation goes. kAuto: what is expected to be the fastest of those that have the call.
//
//   kPackets  one-shot: every member sends its rows to all, each 8 bytes with flags beside them,
//             and all norm all rows. all_reduce_rms_norm, few rows.
//   kLines    the same by lines of 120 bytes and a flag, up to 8 members; where the platform has
//             whole lines (iris/ccl_types.h).
//   kTwoShot  each member reduces its share of the rows, and gives all members what came of it: the
//             sums, where all have to write them to residual_out, or else the normed rows.
//   kTwoLines each member reduces its share of the rows, which it gets as lines, and gives all the
//             sums as lines, and all norm all rows. Up to 8 members; no scales that the operation
//             writes.
//   kAlone    a team of one member, which has nothing to send: both operations, rows of up to
//             32 KiB.
//
// kAuto takes the first of this list that has a call if the one that it prefers has not.
#define IRIS_NORM_VARIANTS(X) \
  X(TwoShot, 3, "two_shot")   \
  X(Lines, 2, "lines")        \
  X(TwoLines, 5, "two_lines") \
  X(Alone, 4, "alone")        \
  X(Packets, 1, "packets")

enum class Variant : uint8_t {
  kAuto = 0,
#define IRIS_ENUMERATOR(Name, number, text) k##Name = number,
  IRIS_NORM_VARIANTS(IRIS_ENUMERATOR)
#undef IRIS_ENUMERATOR
};
inline constexpr uint32_t kVariantCount = 6;

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
  uint64_t rows = 0;            // all members together
  uint64_t hidden = 0;          // columns, at least 1
  DType in = DType::kBf16;      // kF32, kF16 or kBf16; also of the residual
  DType out = DType::kBf16;     // as `in`; kF8E4M3 or kF8E5M2; for an `in` of kF32 also kF16, kBf16
  DType weight = DType::kNone;  // kF32, kF16 or kBf16; kNone: there is none, all are 1
  bool residual = false;        // Buffers::residual and residual_out are used
  Scaling scaling = Scaling::kNone;  // of an `out` of fp8, which has one
  float epsilon = 1e-6f;
  float weight_offset = 0;  // is added to each weight
  Variant variant = Variant::kAuto;
};

struct Buffers {
  const void* in = nullptr;        // [rows, hidden]: what is summed
  void* out = nullptr;             // [rows, hidden]
  const void* weight = nullptr;    // [hidden]
  const void* residual = nullptr;  // [rows, hidden], or this member's share of the rows
  void* residual_out = nullptr;    // likewise
  const float* scale = nullptr;    // Scaling::kStatic: one
  float* scales = nullptr;         // kPerRow: [rows]; kPerGroup: [rows, ceil(hidden / 128)]
  // Elements from one row to the next, at least `hidden`; 0: `hidden`. Ranks may differ in them.
  uint64_t in_stride = 0;
  uint64_t out_stride = 0;
  uint64_t residual_stride = 0;
  uint64_t residual_out_stride = 0;
};

// How a call runs.
struct Plan {
  Variant variant = Variant::kAuto;
  uint32_t blocks = 0;
  uint32_t threads = 0;
  uint32_t parts = 0;  // blocks that share a row
};

}  // namespace iris::norm
