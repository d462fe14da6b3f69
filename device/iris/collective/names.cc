// Names, as tables of rules and messages have them.
#include <cstdint>

#include "iris/collective/collective.h"
#include "iris/collective/variants/variant.h"

namespace iris::ccl {

const char* OperationName(Operation operation) {
  switch (operation) {
    case Operation::kNone:
      return "none";
    case Operation::kAllReduce:
      return "all_reduce";
    case Operation::kAllGather:
      return "all_gather";
    case Operation::kBroadcast:
      return "broadcast";
    case Operation::kBarrier:
      return "barrier";
    case Operation::kReduceScatter:
      return "reduce_scatter";
    case Operation::kAllToAll:
      return "all_to_all";
    case Operation::kReduce:
      return "reduce";
    case Operation::kGather:
      return "gather";
    case Operation::kScatter:
      return "scatter";
    case Operation::kSendRecv:
      return "send_recv";
    case Operation::kAllToAllV:
      return "all_to_all_v";
  }
  return "unknown";
}

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
