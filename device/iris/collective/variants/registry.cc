// All variants: a line for each, in the order of their enumerators.
#include "iris/collective/variants/variant.h"

#define IRIS_VARIANTS(row)                                                                \
  row(kPacketsRow) row(kDirectRow) row(kTwoShotRow) row(kTwoPacketsRow) row(kTwoPhaseRow) \
      row(kCopyEngineRow) row(kRingRow) row(kAtomicRow) row(kSpinlockRow) row(kLinesRow)  \
          row(kTwoLinesRow) row(kPushRow)

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
  for (const VariantRow* row : kRows) {
    if (row->variant == variant) return row;
  }
  return nullptr;  // kAuto, and numbers that are reserved
}

}  // namespace iris::ccl::impl
