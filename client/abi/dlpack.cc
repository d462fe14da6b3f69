// Tensors lent to other libraries, and borrowed from them.
#include "client/abi/dlpack.h"

#include <memory>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "client/abi/tensor.h"
#include "client/backend/device_status.h"
#include "device/driver/dlpack_device.h"

namespace iris::abi {
namespace {

struct TypeRow {
  DType type;
  uint8_t code;  // of DLDataTypeCode
};
constexpr TypeRow kTypes[] = {
    {DType::kI8, 0},   {DType::kI16, 0},     {DType::kI32, 0},     {DType::kI64, 0},
    {DType::kU8, 1},   {DType::kU16, 1},     {DType::kU32, 1},     {DType::kU64, 1},
    {DType::kF16, 2},  {DType::kF32, 2},     {DType::kF64, 2},     {DType::kBf16, 4},
    {DType::kBool, 6}, {DType::kF8E4M3, 10}, {DType::kF8E5M2, 12},
};

// Returns the rank's device, with the number that it has in this process.
absl::StatusOr<DLDevice> DeviceOf(ContextState& state) {
  const int32_t kind = driver::DlpackDevice(state.host->backend());
  if (kind == driver::kDlpackHost) return DLDevice{kind, 0};
  IRIS_ASSIGN_OR_RETURN(const auto table, state.Backend());
  backend::Stream* stream = nullptr;
  IRIS_ABI_TRY(internal::FromDevice(table->CreateStream(&stream), "find the device"));
  const int32_t number = table->Native(*stream).device;
  table->DestroyStream(stream);
  return DLDevice{kind, number};
}

// An exported tensor, owned by its receiver.
struct Export {
  DLManagedTensor managed = {};
  std::shared_ptr<Storage> storage;
  View view;
};

void EndExport(DLManagedTensor* managed) {
  auto* const made = static_cast<Export*>(managed->manager_ctx);
  made->storage->exports.Return();
  delete made;
}

absl::Status Wrong(absl::string_view what) { return Invalid("a tensor of DLPack: ", what); }

// Checks a tensor that another library lends, and returns its view.
absl::StatusOr<View> ViewOfForeign(const DLTensor& from) {
  if (from.ndim < 0 || from.ndim > static_cast<int32_t>(kMaxDims)) {
    return Wrong(
        absl::StrCat("it has ", from.ndim, " dimensions, and at most ", kMaxDims, " are taken"));
  }
  if (from.ndim > 0) IRIS_ABI_TRY(NotNull(from.shape, "a tensor of DLPack: its shape"));
  DType type = DType::kNone;
  for (const TypeRow& row : kTypes) {
    if (row.code == from.dtype.code && 8 * DTypeBytes(row.type) == from.dtype.bits &&
        from.dtype.lanes == 1) {
      type = row.type;
    }
  }
  if (type == DType::kNone) {
    return Wrong(absl::StrCat("Iris has no type of elements for code ", from.dtype.code, " with ",
                              from.dtype.bits, " bits and ", from.dtype.lanes, " lanes"));
  }
  const auto n = static_cast<size_t>(from.ndim);
  auto view = from.strides == nullptr ? MakeView(type, {from.shape, n})
                                      : MakeStridedView(type, {from.shape, n}, {from.strides, n});
  if (!view.ok()) return Wrong(view.status().message());
  return view;
}

}  // namespace
}  // namespace iris::abi

using namespace iris::abi;  // functions in C have no namespace of their own

iris_code iris_tensor_to_dlpack(iris_tensor* tensor, void** out) {
  return With<TensorObject>(tensor, [&](TensorObject& object) -> absl::Status {
    IRIS_ABI_TRY(NotNull(out, "DLPack: the place for the tensor"));
    IRIS_ABI_TRY(object.storage->Usable());
    IRIS_ASSIGN_OR_RETURN(const auto device, DeviceOf(*object.state));
    auto made = std::make_unique<Export>();
    made->storage = object.storage;
    made->view = object.view;
    DLTensor& to = made->managed.dl_tensor;
    to.data = object.address();
    to.device = device;
    to.ndim = static_cast<int32_t>(made->view.n_dims);
    for (const auto& row : kTypes) {
      if (row.type == made->view.dtype) to.dtype.code = row.code;
    }
    to.dtype.bits = static_cast<uint8_t>(8 * iris::DTypeBytes(made->view.dtype));
    to.dtype.lanes = 1;
    to.shape = made->view.shape;
    to.strides = made->view.strides;
    made->managed.manager_ctx = made.get();
    made->managed.deleter = EndExport;
    // This comes last, because it can fail: another thread may have freed the tensor meanwhile.
    if (!made->storage->exports.Lend()) return object.storage->Freed();
    *out = &made.release()->managed;
    return absl::OkStatus();
  });
}

iris_code iris_tensor_from_dlpack(iris_context* context, void* managed, iris_dtype dtype,
                                  iris_tensor** out) {
  return With<ContextObject>(context, [&](ContextObject& object) -> absl::Status {
    IRIS_ABI_TRY(NotNull(managed, "a tensor of DLPack"));
    IRIS_ABI_TRY(NotNull(out, "a tensor of DLPack: the place for the handle"));
    IRIS_ABI_TRY(object.host().Usable());
    auto* const given = static_cast<DLManagedTensor*>(managed);
    IRIS_ASSIGN_OR_RETURN(const auto view, ViewOfForeign(given->dl_tensor));
    if (dtype != IRIS_DTYPE_NONE && dtype != static_cast<iris_dtype>(view.dtype)) {
      return Wrong(absl::StrCat("it has elements of ", iris::DTypeName(view.dtype), ", and type ",
                                dtype, " was wanted"));
    }
    IRIS_ASSIGN_OR_RETURN(const auto device, DeviceOf(*object.state));
    const DLDevice& there = given->dl_tensor.device;
    if (there.device_type != device.device_type || there.device_id != device.device_id) {
      return Wrong(
          absl::StrCat("it is on device ", there.device_id, " of type ", there.device_type,
                       ", and this rank's is ", device.device_id, " of type ", device.device_type,
                       " (types as DLPack numbers them): copy it to this rank's device first"));
    }
    const uint64_t at =
        reinterpret_cast<uint64_t>(given->dl_tensor.data) + given->dl_tensor.byte_offset;
    if (view.count() > 0) IRIS_ABI_TRY(NotNull(given->dl_tensor.data, "a tensor of DLPack: data"));
    if (at % iris::DTypeBytes(view.dtype) != 0) {
      return Wrong(
          absl::StrCat("its address 0x", absl::Hex(at), " is not aligned to its elements"));
    }
    auto storage = std::make_shared<Storage>(object.state);
    storage->foreign = given;
    // On failure the caller keeps the DLPack tensor.
    auto keep = absl::MakeCleanup([storage] { storage->foreign = nullptr; });
    IRIS_ABI_TRY(GiveTensor(storage, view, object.host().rank(), out));
    std::move(keep).Cancel();
    return absl::OkStatus();
  });
}
