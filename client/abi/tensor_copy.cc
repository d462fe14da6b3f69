// Copies between tensors, and between tensors and the host.
#include <algorithm>
#include <functional>

#include "client/abi/tensor.h"
#include "client/backend/device_status.h"
#include "device/base/bytes.h"

namespace iris::abi {
namespace {

struct Side {
  char* address;  // of the first element
  View view;
};

// Calls body(to, from) for the first byte of each row, in order, until it fails.
template <typename Body>
absl::Status ForEachRow(const Side& to, const Side& from, const Rows& rows, Body body) {
  const int64_t width = static_cast<int64_t>(DTypeBytes(to.view.dtype));
  int64_t index[kMaxDims] = {};
  for (;;) {
    int64_t at_to = 0, at_from = 0;
    for (uint32_t dim = 0; dim < rows.n_outer; ++dim) {
      at_to += index[dim] * to.view.strides[dim];
      at_from += index[dim] * from.view.strides[dim];
    }
    IRIS_ABI_TRY(body(to.address + at_to * width, from.address + at_from * width));
    uint32_t dim = rows.n_outer;
    while (dim > 0 && ++index[dim - 1] == to.view.shape[dim - 1]) index[--dim] = 0;
    if (dim == 0) return absl::OkStatus();
  }
}

// Copies between `from` and `to`, which have the same shape.
absl::Status Copy(const backend::BackendOperations& backend, const Side& to, const Side& from,
                  backend::Stream& stream) {
  if (to.view.count() == 0) return absl::OkStatus();
  const Rows rows = CommonRows(to.view, from.view);
  const uint64_t bytes = rows.row * DTypeBytes(to.view.dtype);
  return ForEachRow(to, from, rows, [&](char* dst, char* src) {
    return internal::FromDevice(backend.CopyAsync(dst, src, bytes, stream), "copy a tensor");
  });
}

absl::Status CheckHost(const View& view, const void* data, uint64_t bytes, iris_dtype dtype) {
  if (dtype != static_cast<iris_dtype>(view.dtype)) {
    const bool known = dtype >= 0 && dtype < static_cast<int>(kDTypeCount);
    return Invalid(
        "copy: the tensor has elements of ", DTypeName(view.dtype), ", and the host's are of ",
        known ? DTypeName(static_cast<DType>(dtype)) : "no type", ": convert them before");
  }
  if (bytes != view.bytes()) {
    return Invalid("copy: a tensor of shape ", ShapeText(view), " and ", DTypeName(view.dtype),
                   " has ", base::SizeText(view.bytes()), ", and not ", base::SizeText(bytes));
  }
  return bytes == 0 ? absl::OkStatus() : NotNull(data, "copy: the host's memory");
}

// Copies from the host or to it, and waits.
iris_code HostCopy(iris_tensor* tensor, void* data, uint64_t bytes, iris_dtype dtype,
                   iris_stream* stream, bool to_host) noexcept {
  return With<TensorObject>(tensor, [&](TensorObject& object) -> absl::Status {
    IRIS_ABI_TRY(object.storage->Usable());
    IRIS_ABI_TRY(CheckHost(object.view, data, bytes, dtype));
    if (bytes == 0) return absl::OkStatus();
    const Side device = {object.address(), object.view};
    IRIS_ASSIGN_OR_RETURN(const auto packed,
                          MakeView(object.view.dtype, {object.view.shape, object.view.n_dims}));
    const Side host = {static_cast<char*>(data), packed};
    return OnTensorStream(
        object, stream,
        [&](const backend::BackendOperations& backend, backend::Stream& on) -> absl::Status {
          IRIS_ABI_TRY(Copy(backend, to_host ? host : device, to_host ? device : host, on));
          return internal::FromDevice(backend.Synchronize(on), "copy a tensor");
        });
  });
}

absl::Status CheckPair(const TensorObject& to, const TensorObject& from) {
  const View& a = to.view;
  const View& b = from.view;
  if (to.state != from.state) {
    return Invalid("copy: the tensors belong to different contexts: copy through the host");
  }
  if (a.dtype != b.dtype) {
    return Invalid("copy: the tensors have elements of ", DTypeName(b.dtype), " and ",
                   DTypeName(a.dtype), ": a copy converts nothing");
  }
  if (a.n_dims != b.n_dims || !std::equal(a.shape, a.shape + a.n_dims, b.shape)) {
    return Invalid("copy: the tensors have the shapes ", ShapeText(b), " and ", ShapeText(a),
                   ": reshape or slice one of them");
  }
  if (a.count() == 0) return absl::OkStatus();
  const ByteSpan x = SpanOf(a), y = SpanOf(b);
  const std::less<const char*> before;
  if (before(to.address() + x.low, from.address() + y.high) &&
      before(from.address() + y.low, to.address() + x.high)) {
    return Invalid("copy: the memory that the two tensors span overlaps: copy through a third one");
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace iris::abi

using namespace iris::abi;  // functions in C have no namespace of their own

iris_code iris_tensor_from_host(iris_tensor* tensor, const void* data, uint64_t bytes,
                                iris_dtype dtype, iris_stream* stream) {
  return HostCopy(tensor, const_cast<void*>(data), bytes, dtype, stream, false);
}

iris_code iris_tensor_to_host(iris_tensor* tensor, void* data, uint64_t bytes, iris_dtype dtype,
                              iris_stream* stream) {
  return HostCopy(tensor, data, bytes, dtype, stream, true);
}

iris_code iris_tensor_copy(iris_tensor* to, iris_tensor* from, iris_stream* stream) {
  return With<TensorObject>(to, [&](TensorObject& target) -> absl::Status {
    const Held<TensorObject> source(from);
    if (!source) return Unknown<TensorObject>(from);
    IRIS_ABI_TRY(target.storage->Usable());
    IRIS_ABI_TRY(source->storage->Usable());
    IRIS_ABI_TRY(CheckPair(target, *source));
    return OnTensorStream(
        target, stream,
        [&](const iris::backend::BackendOperations& backend, iris::backend::Stream& on) {
          return Copy(backend, {target.address(), target.view}, {source->address(), source->view},
                      on);
        });
  });
}
