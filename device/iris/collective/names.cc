// Names, as tables of rules and messages have them.
#include <cstdint>

#include "iris/collective/collective.h"
#include "iris/collective/variants/variant.h"

namespace iris::ccl {

const char* VariantName(Variant variant) {
  if (variant == Variant::kAuto) return "auto";
  const impl::VariantRow* row = impl::FindVariant(variant);
  return row != nullptr ? row->name : "unknown";
}

const char* ReduceOpName(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kProd:
      return "prod";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kAvg:
      return "avg";
  }
  return "unknown";
}

}  // namespace iris::ccl
