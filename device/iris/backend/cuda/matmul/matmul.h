// Matrix products fused with communication, by Hopper's own instructions: TMA, wgmma, bulk copies.
//
// One launch multiplies A [m, k] by B [k, n] at one rank, and exchanges with the other ranks inside
// the same kernel. Plain structs and functions, so that launchers need no header of the vendor.
// Thread-safe. Nothing is allocated, and nothing is synchronised: a launch can be captured into a
// graph. C++17.
//
// Rows are dealt out by schedule.h: as evenly as can be, the first ranks get one more.
// Sums over k and over ranks have one order: the same bits run after run.
//
// Failure: every wait for another rank is bounded by `timeout_ns` and by the abort word. A rank
// that gives up tells its ledger, finishes without waiting for anything more, and tells nobody
// that its results are there. D is then undefined. The workspace is broken until all ranks have
// cleared it together: until then later launches on it wait for nobody, and leave D undefined as
// well.
#pragma once

#include <cstdint>

#include "iris/backend/persistent_problem.h"

namespace iris::backend::cuda::matmul {

using Problem = PersistentProduct;
using Kind = PersistentProduct::Kind;
using ops::Activation;

inline constexpr uint32_t kMaxRanks = PersistentProduct::kMaxRanks;

// Why a rank gave up. In the failure word of its workspace: the code, the rank it waited for in
// bits 8 to 15, the low half of the launch's number above bit 32.
enum class Failure : uint32_t { kNone, kTimeout, kAborted, kCallsDiffer };

// Whether Launch can do it. If not, `*why` says what is in the way, as a string that lives for
// ever. Looks at nothing but the problem.
bool Supports(const Problem& problem, const char** why);

// The least `workspace_bytes` of a problem that Supports accepts but for its workspace. 0: there is
// one rank, or Supports does not.
uint64_t WorkspaceBytes(const Problem& problem);

// A problem that Supports accepts, on the current device, which must be a Hopper GPU; `stream` is a
// cudaStream_t. Null, or what went wrong, as a string that lives for ever.
const char* Launch(const Problem& problem, void* stream);

// Loads all kernels onto the current device, a Hopper GPU, so that no launch has to, which might
// wait for kernels that run. Null, or what went wrong.
const char* Prepare();

}  // namespace iris::backend::cuda::matmul
