// Names, as tables of rules and messages have them.
#include <cstdint>

#include "device/collective/collective.h"
#include "device/collective/variants/variant.h"

namespace iris::ccl {

uint64_t ElementBytes(DataType type) {
  switch (type) {
    case DataType::kU8:
      return 1;
    case DataType::kF16:
    case DataType::kBf16:
      return 2;
    case DataType::kF32:
    case DataType::kI32:
      return 4;
    case DataType::kF64:
    case DataType::kI64:
      return 8;
  }
  return 0;
}

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

const char* DataTypeName(DataType type) {
  switch (type) {
    case DataType::kF32:
      return "f32";
    case DataType::kF64:
      return "f64";
    case DataType::kF16:
      return "f16";
    case DataType::kBf16:
      return "bf16";
    case DataType::kI32:
      return "i32";
    case DataType::kI64:
      return "i64";
    case DataType::kU8:
      return "u8";
  }
  return "unknown";
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
