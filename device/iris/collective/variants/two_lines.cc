// The row of kTwoLines: slices as lines, and then their results. lines.h has its kernels.
#include <cstdint>

#include "iris/collective/impl/select_kernel.h"
#include "iris/collective/operations.h"
#include "iris/collective/variants/lines.h"

namespace iris::ccl::impl {

namespace {

IRIS_REDUCTION_KERNELS(Kernels, ReduceTwoLines<T, Op, N>);

bool Supports(const Shape& shape, uint32_t members) {
  return kHasLines && HasFixedKernel(shape.type, shape.op, members);
}

void Fit(const Comm& comm, const Shape& shape, uint64_t bytes, Plan* plan) {
  // A slice consists of full units of 16 bytes.
  const uint64_t element_bytes = DTypeBytes(shape.type);
  const uint64_t count = (bytes / element_bytes + comm.team.size - 1) / comm.team.size;
  FitLines(comm, RoundUp(count * element_bytes, 16), plan);
}

Result Prepare() { return kHasLines ? PrepareFixed<Kernels>() : Result{}; }

Result Launch(const Start& start, backend::Stream& stream) {
  return LaunchEarly(start, "ReduceTwoLines", stream,
                     SelectFixed<Kernels>(start.request.type, start.comm.team.size),
                     CommonOf(start), Slices(start));
}

}  // namespace

const VariantRow kTwoLinesRow = {
    Variant::kTwoLines, kAllReduceBit, &Supports, &Fit, &Prepare, &Launch,
};

}  // namespace iris::ccl::impl
