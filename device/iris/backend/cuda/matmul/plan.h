// Plans a launch: checks the problem, chooses tiles, computes the schedule. Pure host functions.
#pragma once

#include <cstdint>

#include "iris/backend/cuda/matmul/matmul.h"
#include "iris/backend/cuda/matmul/schedule.h"

namespace iris::backend::cuda::matmul {

// The tile of D that a block makes, rows x columns. InTurns: a block works on two tiles, and
// multiplies one while it finishes the other; not for sums that travel as float32.
enum class Tile : uint32_t { kAny, k128x256, k128x128, k64x64, k128x128InTurns };

struct Plan {
  Tile tile = Tile::kAny;
  Schedule schedule = {};
  uint64_t flags = 0;  // this and the next fields: sizes of the contents of half a workspace
  uint64_t data_bytes = 0;
  uint64_t packets_bytes = 0;
};

// Returns null, or why the problem cannot be done, the workspace aside. `tile` is for tests.
const char* MakePlan(const Problem& problem, Plan* plan, Tile tile = Tile::kAny);

// Returns true if a launch supports the problem; if not, `*why` is the reason, as a static string.
bool Supports(const Problem& problem, const char** why);

// Returns the least `workspace_bytes`, 0 if there is one rank or Supports refuses the problem.
uint64_t WorkspaceBytes(const Problem& problem);

// Does the work of MakePlan and Supports, and returns null or the reason.
const char* CheckAndPlan(const Problem& problem, Plan* plan);

// Returns the word that flags carry with the epoch, so that ranks whose calls differ do not accept
// each other's flags.
uint32_t SignatureOf(const Problem& problem, const Plan& plan);

// Returns the least bytes of workspace for a plan.
uint64_t WorkspaceBytesOf(const Problem& problem, const Plan& plan);

}  // namespace iris::backend::cuda::matmul
