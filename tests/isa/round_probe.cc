// What tests/isa compiles to see how the rounds of collectives announce: the kernel of the stream's
// barrier, and, to compare, a round that publishes nothing but what is in this member's memory.
// Nothing runs them.
#include "iris/collective/impl/move_direct.h"

namespace iris::ccl::impl {

template IRIS_KERNEL void BarrierKernel<0>(IRIS_PARAM Common common);

extern "C" IRIS_KERNEL void RelaxedRound(IRIS_PARAM Common common) {
  IRIS_SHARED(SharedState, shared);
  Rounds rounds(common, &shared, backend::BlockIndex());
  if (!rounds.broken() && rounds.Exchange(false)) rounds.Finish();
  rounds.Conclude();
}

}  // namespace iris::ccl::impl
