// All ranks add to the sums in their owners' workspace. kAtomic: by atomics, in any order.
// kSpinlock: one rank at a time, in order, under a lock.
#include <cstdint>

#include "iris/collective/impl/reduce_at_owner.h"
#include "iris/collective/impl/select_kernel.h"
#include "iris/collective/operations.h"

namespace iris::ccl::impl {
namespace {

IRIS_REDUCTION_KERNELS(AtomicKernels, ReduceAtOwner<T, Op, /*kLocked=*/false>);
IRIS_REDUCTION_KERNELS(LockedKernels, ReduceAtOwner<T, Op, /*kLocked=*/true>);

template <typename Kernels>
Result Launch(const Start& start, backend::Stream& stream) {
  return LaunchKernel(start, "ReduceAtOwner", stream, SelectGeneral<Kernels>(start.request.type),
                      CommonOf(start), Slices(start));
}

}  // namespace

const VariantRow kAtomicRow = {
    Variant::kAtomic,      kAllReduceBit, nullptr, &FitUnits, &PrepareGeneral<AtomicKernels>,
    &Launch<AtomicKernels>};
const VariantRow kSpinlockRow = {
    Variant::kSpinlock,    kAllReduceBit, nullptr, &FitUnits, &PrepareGeneral<LockedKernels>,
    &Launch<LockedKernels>};

}  // namespace iris::ccl::impl
