// DLPack 0.x (https://github.com/dmlc/dlpack), with which libraries lend tensors to each other.
// This file declares the part that Iris uses, with the layout of the standard.
#pragma once

#include <cstdint>

namespace iris::abi {

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};

struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null: contiguous
  uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);  // null: there is nothing to delete
};

static_assert(sizeof(DLTensor) == 48 && sizeof(DLManagedTensor) == 64);

}  // namespace iris::abi
