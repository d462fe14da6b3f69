// How a problem is done: the checks and the arithmetic before a launch. Host only, pure.
#pragma once

#include <cstdint>

#include "iris/backend/cuda/matmul/matmul.h"
#include "iris/backend/cuda/matmul/schedule.h"

namespace iris::backend::cuda::matmul {

// Tiles of D that a thread block makes, rows x columns. In turns: two at a time, one multiplied
// while the other is finished; not for sums that travel as float32.
enum class Tile : uint32_t { kAny, k128x256, k128x128, k64x64, k128x128InTurns };

struct Plan {
  Tile tile = Tile::kAny;
  Schedule schedule = {};
  uint64_t flags = 0;  // what a half of the workspace has to hold
  uint64_t data_bytes = 0;
  uint64_t packets_bytes = 0;
};

// Null, or why the problem, workspace aside, cannot be done. `tile`: for tests.
const char* MakePlan(const Problem& problem, Plan* plan, Tile tile = Tile::kAny);

// If a launch cannot do the problem, `*why` is the reason, as a static string. A pure function.
bool Supports(const Problem& problem, const char** why);

// The least `workspace_bytes`. 0: there is one rank, or Supports refuses the problem.
uint64_t WorkspaceBytes(const Problem& problem);

// Does the work of MakePlan and Supports, and returns null or the reason. A pure function.
const char* CheckAndPlan(const Problem& problem, Plan* plan);

// Returns the word that flags carry with the epoch: ranks whose calls differ do not accept each
// other's flags.
uint32_t SignatureOf(const Problem& problem, const Plan& plan);

// The least workspace of a plan.
uint64_t WorkspaceBytesOf(const Problem& problem, const Plan& plan);

}  // namespace iris::backend::cuda::matmul
