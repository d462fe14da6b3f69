// kAtomic: everybody adds to the sums in their owners' workspace by atomics, in any order.
#include <cstdint>

#include "iris/collective/impl/reduce_at_owner.h"
#include "iris/collective/impl/select_kernel.h"
#include "iris/collective/variants/variant.h"

namespace iris::ccl::impl {

namespace {

struct Kernels {
  template <typename T, typename Op, uint32_t N>
  static auto Of() {
    return &ReduceAtOwner<T, Op, /*kLocked=*/false>;
  }
};

Result Launch(const Start& start, backend::Stream& stream) {
  return LaunchKernel(start, kAtomicRow, "ReduceAtOwner", start.plan.blocks, start.plan.threads,
                      stream, SelectGeneral<Kernels>(start.request.type), CommonOf(start),
                      Slices(start));
}

}  // namespace

const VariantRow kAtomicRow = {
    Variant::kAtomic, kAllReduceBit, nullptr, &FitUnits, &PrepareGeneral<Kernels>, &Launch,
};

}  // namespace iris::ccl::impl
