// All variants: a line for each, in the order of their enumerators.
#include "iris/collective/variants/variant.h"

#define IRIS_VARIANTS(row)                                                                  \
  row(kPacketsRow) row(kDirectRow) row(kTwoShotRow) row(kPipelineRow) row(kTwoPacketsRow)   \
      row(kTwoPhaseRow) row(kCopyEngineRow) row(kRingRow) row(kAtomicRow) row(kSpinlockRow) \
          row(kLinesRow) row(kTwoLinesRow) row(kPushRow) row(kBulkPullRow)

namespace iris::ccl::impl {

#define IRIS_DECLARE(row) extern const VariantRow row;
IRIS_VARIANTS(IRIS_DECLARE)
#undef IRIS_DECLARE

namespace {

#define IRIS_POINTER(row) &row,
constexpr const VariantRow* kRows[] = {IRIS_VARIANTS(IRIS_POINTER)};
#undef IRIS_POINTER

}  // namespace

VariantRows AllVariants() { return {kRows, sizeof(kRows) / sizeof(kRows[0])}; }

const VariantRow* FindVariant(Variant variant) {
  const uint32_t at = static_cast<uint32_t>(variant) - 1;  // kAuto has none
  return at < sizeof(kRows) / sizeof(kRows[0]) ? kRows[at] : nullptr;
}

}  // namespace iris::ccl::impl
