// GEMMs fused with communication, by Hopper's own instructions: TMA, wgmma, bulk copies.
//
// One launch multiplies A [m, k] by B [k, n] at one rank, and exchanges data with the other ranks
// in the same kernel. Needs no header of the vendor. Thread-safe. A launch allocates and
// synchronises nothing, and can be captured. Sums have one order, the same in every run. C++17.
//
// Failure: every wait for another rank is bounded by `timeout_ns` and by the abort word. A rank
// that gives up reports to its ledger, finishes without waiting, and announces no results. D is
// then undefined, and the workspace is broken until all ranks have cleared their workspaces
// together: until then launches on it wait for no rank, and leave D undefined.
#pragma once

#include <cstdint>

#include "iris/backend/persistent_problem.h"

namespace iris::backend::cuda::matmul {

using Problem = PersistentProduct;
using Kind = PersistentProduct::Kind;
using ops::Activation;

inline constexpr uint32_t kMaxRanks = PersistentProduct::kMaxRanks;

// The code in the failure word of a workspace. Bits 8 to 15 are the awaited rank, and bits 32 to 63
// the low half of the launch's number.
enum class Failure : uint32_t { kNone, kTimeout, kAborted, kCallsDiffer };

}  // namespace iris::backend::cuda::matmul
