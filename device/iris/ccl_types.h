// The operation, operator and variant of a collective. Operators and variants have the numbers of
// the C API. C++17, the standard library alone.
#pragma once

#include <cstdint>

namespace iris::ccl {

// The numbers are also in control pages (proto/wire/pages.h), where other versions read them.
enum class Operation : uint8_t {
  kNone = 0,
  kAllReduce = 1,
  kAllGather = 2,
  kBroadcast = 3,
  kBarrier = 4,
  kReduceScatter = 5,
  kAllToAll = 6,
  kReduce = 7,
  kGather = 8,
  kScatter = 9,
  kSendRecv = 10,
  kAllToAllV = 11,
  // GEMMs fused with a collective; see iris/ops_types.h.
  kMatmulAllReduce = 12,
  kMatmulReduceScatter = 13,
  kAllGatherMatmul = 14,
  kMatmulAllGather = 15,
  kMatmulAllScatter = 16,
  // Norms of sums over ranks; see iris/norm_types.h.
  kAllReduceRmsNorm = 17,
  kReduceScatterRmsNormAllGather = 18,
  // MoE operations; see iris/moe/moe.h.
  kMoeDispatch = 19,
  kMoeCombine = 20,
};
inline constexpr uint32_t kOperationCount = 21;  // kNone included

constexpr bool HasRoot(Operation operation) {
  return operation == Operation::kBroadcast || operation == Operation::kReduce ||
         operation == Operation::kGather || operation == Operation::kScatter;
}
constexpr bool IsMatmul(Operation operation) {
  return operation >= Operation::kMatmulAllReduce && operation <= Operation::kMatmulAllScatter;
}
constexpr bool IsNorm(Operation operation) {
  return operation == Operation::kAllReduceRmsNorm ||
         operation == Operation::kReduceScatterRmsNormAllGather;
}
constexpr bool IsMoe(Operation operation) {
  return operation == Operation::kMoeDispatch || operation == Operation::kMoeCombine;
}

// Returns "all_reduce", as in errors and tables of rules; "unknown" for other numbers.
constexpr const char* OperationName(Operation operation) {
  constexpr const char* kNames[] = {"none",
                                    "all_reduce",
                                    "all_gather",
                                    "broadcast",
                                    "barrier",
                                    "reduce_scatter",
                                    "all_to_all",
                                    "reduce",
                                    "gather",
                                    "scatter",
                                    "send_recv",
                                    "all_to_all_v",
                                    "matmul_all_reduce",
                                    "matmul_reduce_scatter",
                                    "all_gather_matmul",
                                    "matmul_all_gather",
                                    "matmul_all_scatter",
                                    "all_reduce_rms_norm",
                                    "reduce_scatter_rms_norm_all_gather",
                                    "moe_dispatch",
                                    "moe_combine"};
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == kOperationCount);
  const uint32_t number = static_cast<uint32_t>(operation);
  return number < kOperationCount ? kNames[number] : "unknown";
}

enum class ReduceOp : uint8_t { kSum, kProd, kMin, kMax, kAvg };

constexpr const char* ReduceOpName(ReduceOp op) {
  constexpr const char* kNames[] = {"sum", "prod", "min", "max", "avg"};
  return op <= ReduceOp::kAvg ? kNames[static_cast<int>(op)] : "unknown";
}

// Algorithms. kAuto takes the one that the table of rules names. A variant that does not support a
// call is replaced by kTwoShot in all_reduce and reduce, otherwise by kDirect; see Choose.
//
//   kPackets     each 8 bytes carry flags that mark them as arrived ("LL"): one trip over the links
//                and no round; twice the bytes. Small sizes; buffers anywhere. One-shot.
//   kDirect      one-shot by load or store: reductions pull everything, movements push it. Not for
//                reduce.
//   kTwoShot     all_reduce, reduce, broadcast to two and more: each rank reduces (broadcast:
//                fetches) its slice and stores it to all.
//   kTwoPackets  all_reduce, for sums and averages of f32, f16 and bf16 on 2, 4 or 8 ranks: first
//                the slices travel as packets, then each rank's reduced slice does.
//   kTwoPhase    all_reduce: as kTwoShot, but all is read before anything is stored.
//   kCopyEngine  all_reduce, all_gather, all_to_all: the copy engine copies from each rank to the
//                others. `in` and `out` must lie in the heap, at the same offset on all ranks:
//                nothing can check that in time. kAuto takes it only with Config::symmetric.
//   kRing        all_reduce, but for averages of u8: slices go around from neighbour to neighbour,
//                through the workspace. For links that only connect neighbours.
//   kAtomic      all_reduce: all ranks add to the sums in their owners' workspace by atomics.
//   kSpinlock    all_reduce: the same, one rank at a time in order, under a lock.
//   kLines       all_reduce and reduce_scatter, for sums and averages of f32, f16 and bf16 on 2, 4
//                or 8 ranks, and all_gather, for up to 8: as kPackets, by lines of 120 bytes and a
//                flag of 8 ("LL128"). Where the platform stores whole lines, and in emulation.
//   kTwoLines    all_reduce: as kTwoPackets, by lines.
//   kPush        all_reduce and reduce_scatter: ranks put chunks of their rows into each other's
//                workspace, each warp for one peer; meanwhile they reduce the chunks before, and
//                one warp sends the signals. No wait for a first round. For large sizes. An
//                all_reduce whose `out` is not in the heap of all ranks runs as kTwoShot.
//
// The list has a line for each variant: its name, its number and its name in texts. The numbers 4
// (pipeline) and 14 (bulk_pull) were variants that no rule took. They are not used again, because
// programs and recordings of older versions have them.
#define IRIS_CCL_VARIANTS(X)      \
  X(Packets, 1, "packets")        \
  X(Direct, 2, "direct")          \
  X(TwoShot, 3, "two_shot")       \
  X(TwoPackets, 5, "two_packets") \
  X(TwoPhase, 6, "two_phase")     \
  X(CopyEngine, 7, "copy_engine") \
  X(Ring, 8, "ring")              \
  X(Atomic, 9, "atomic")          \
  X(Spinlock, 10, "spinlock")     \
  X(Lines, 11, "lines")           \
  X(TwoLines, 12, "two_lines")    \
  X(Push, 13, "push")

enum class Variant : uint8_t {
  kAuto = 0,
  kOneShot = 1,
#define IRIS_ENUMERATOR(Name, number, text) k##Name = number,
  IRIS_CCL_VARIANTS(IRIS_ENUMERATOR)
#undef IRIS_ENUMERATOR
};
// Returns how many numbers are used or reserved.
constexpr uint32_t CountVariants() {
  uint32_t most = 14;
#define IRIS_MOST(Name, number, text) most = most < number ? number : most;
  IRIS_CCL_VARIANTS(IRIS_MOST)
#undef IRIS_MOST
  return most + 1;
}
inline constexpr uint32_t kVariantCount = CountVariants();

// Returns "two_shot", as in errors and tables of rules; "unknown" for other numbers.
constexpr const char* VariantName(Variant variant) {
  if (variant == Variant::kAuto) return "auto";
#define IRIS_NAME(Name, number, text) \
  if (variant == Variant::k##Name) return text;
  IRIS_CCL_VARIANTS(IRIS_NAME)
#undef IRIS_NAME
  return "unknown";
}

// Returns true if a number is that of a variant, kAuto included.
constexpr bool IsVariant(uint32_t number) {
#define IRIS_IS(Name, its_number, text) || number == its_number
  return number == 0 IRIS_CCL_VARIANTS(IRIS_IS);
#undef IRIS_IS
}

}  // namespace iris::ccl
