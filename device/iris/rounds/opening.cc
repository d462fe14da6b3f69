// The opening of an operation: a round that compares calls.
#include <cstdint>

#include "iris/backend/select.h"
#include "iris/rounds/launch.h"
#include "iris/rounds/protocol.h"

namespace iris::ccl::impl {

template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void OpeningKernel(IRIS_PARAM Common common) {
  IRIS_SHARED(SharedState, shared);
  Enter(common);
  Rounds rounds(common, &shared, backend::BlockIndex());
  if (!rounds.broken() && rounds.Exchange(false)) rounds.Finish();
  rounds.Conclude();
}

Result LaunchOpening(Common common, bool ends, bool early, backend::Stream& stream) {
  common.ends = ends ? 1 : 0;
  // If the operation continues, the next kernel waits for this one.
  common.early = ends ? 0 : 1;
  LaunchConfig config = {1, backend::Traits::kWarpThreads, 0};
  config.early = early;
  return backend::Launch(config, stream, &OpeningKernel<>, common);
}

Result PrepareOpening() { return backend::PrepareKernel(&OpeningKernel<>); }

}  // namespace iris::ccl::impl
