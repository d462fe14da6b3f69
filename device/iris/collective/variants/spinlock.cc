// kSpinlock: everybody adds to the sums in their owners' workspace, one member at a time, under a
// lock that goes by their order.
#include <cstdint>

#include "iris/collective/impl/reduce_at_owner.h"
#include "iris/collective/impl/select_kernel.h"
#include "iris/collective/variants/variant.h"

namespace iris::ccl::impl {

namespace {

struct Kernels {
  template <typename T, typename Op, uint32_t N>
  static auto Of() {
    return &ReduceAtOwner<T, Op, /*kLocked=*/true>;
  }
};

Result Launch(const Start& start, backend::Stream& stream) {
  return LaunchKernel(start, kSpinlockRow, "ReduceAtOwner", start.plan.blocks, start.plan.threads,
                      stream, SelectGeneral<Kernels>(start.request.type), CommonOf(start),
                      Slices(start));
}

}  // namespace

const VariantRow kSpinlockRow = {
    Variant::kSpinlock, kAllReduceBit, nullptr, &FitUnits, &PrepareGeneral<Kernels>, &Launch,
};

}  // namespace iris::ccl::impl
