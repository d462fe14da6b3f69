// kTwoPhase: as kTwoShot, but each thread reads all that it needs before it gives the others
// anything.
#include "iris/collective/variants/variant.h"

namespace iris::ccl::impl {

namespace {

// Its kernels are those of kDirect.
Result Prepare() { return {}; }

Result Launch(const Start& start, backend::Stream& stream) {
  return LaunchReduceDirect(start, kTwoPhaseRow, CommonOf(start), Slices(start), true, stream);
}

}  // namespace

const VariantRow kTwoPhaseRow = {
    Variant::kTwoPhase, kAllReduceBit, nullptr, &FitUnits, &Prepare, &Launch,
};

}  // namespace iris::ccl::impl
