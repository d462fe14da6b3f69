#include "client/abi/views.h"

#include <algorithm>
#include <limits>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/abi/objects.h"

namespace iris::abi {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

absl::Span<const int64_t> ShapeOf(const View& view) { return {view.shape, view.n_dims}; }

void SetContiguous(View* view) {
  int64_t stride = 1;
  for (uint32_t dim = view->n_dims; dim > 0; --dim) {
    view->strides[dim - 1] = stride;
    stride *= std::max<int64_t>(view->shape[dim - 1], 1);
  }
}

absl::Status CheckDim(const View& view, uint32_t dim) {
  if (dim < view.n_dims) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("there is no dimension ", dim, " in a tensor of shape ",
                                            ShapeText(view), ", which has ", view.n_dims));
}

void Drop(View* view, uint32_t dim) {
  for (uint32_t i = dim; i + 1 < view->n_dims; ++i) {
    view->shape[i] = view->shape[i + 1];
    view->strides[i] = view->strides[i + 1];
  }
  --view->n_dims;
  view->shape[view->n_dims] = view->strides[view->n_dims] = 0;
}

int64_t BytesOf(const View& view, uint32_t dim, int64_t elements) {
  return elements * view.strides[dim] * static_cast<int64_t>(DTypeBytes(view.dtype));
}

}  // namespace

uint64_t View::count() const {
  uint64_t count = 1;
  for (uint32_t dim = 0; dim < n_dims; ++dim) count *= static_cast<uint64_t>(shape[dim]);
  return count;
}

bool View::contiguous() const {
  if (count() == 0) return true;
  int64_t stride = 1;
  for (uint32_t dim = n_dims; dim > 0; --dim) {
    if (shape[dim - 1] != 1 && strides[dim - 1] != stride) return false;
    stride *= shape[dim - 1];
  }
  return true;
}

std::string ShapeText(absl::Span<const int64_t> shape) {
  return absl::StrCat("(", absl::StrJoin(shape, ", "), shape.size() == 1 ? ",)" : ")");
}
std::string ShapeText(const View& view) { return ShapeText(ShapeOf(view)); }

absl::StatusOr<View> MakeView(DType dtype, absl::Span<const int64_t> shape) {
  const uint64_t width = DTypeBytes(dtype);
  if (width == 0) {
    return Invalid("a tensor needs a type of elements, and ", static_cast<int>(dtype),
                   " is none: for plain bytes, give IRIS_U8");
  }
  if (shape.size() > kMaxDims) {
    return Invalid("a tensor has at most ", kMaxDims, " dimensions, and not ", shape.size());
  }
  View view;
  view.dtype = dtype;
  view.n_dims = static_cast<uint32_t>(shape.size());
  int64_t left = kMost / static_cast<int64_t>(width);  // elements that may come still
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] < 0) {
      return Invalid("the shape ", ShapeText(shape), " has a negative size: sizes are 0 or more");
    }
    left /= std::max<int64_t>(shape[dim], 1);
    view.shape[dim] = shape[dim];
  }
  if (left == 0) {
    return Invalid("a tensor of shape ", ShapeText(shape), " and ", DTypeName(dtype),
                   " has a number of bytes that overflows: at most ", kMost, " can be counted");
  }
  SetContiguous(&view);
  return view;
}

absl::StatusOr<View> MakeStridedView(DType dtype, absl::Span<const int64_t> shape,
                                     absl::Span<const int64_t> strides) {
  IRIS_ASSIGN_OR_RETURN(View view, MakeView(dtype, shape));
  std::copy(strides.begin(), strides.end(), view.strides);
  absl::int128 low = 0, high = 0;
  for (uint32_t dim = 0; dim < view.n_dims; ++dim) {
    const absl::int128 last = absl::int128(std::max<int64_t>(view.shape[dim], 1) - 1) *
                              view.strides[dim] * static_cast<int64_t>(DTypeBytes(dtype));
    (last < 0 ? low : high) += last;
    const absl::int128 most = absl::int128(1) << 61;
    if (low < -most || high > most) {
      return Invalid("a tensor of shape ", ShapeText(shape), " and strides ", ShapeText(strides),
                     " spans more bytes than can be counted");
    }
  }
  return view;
}

ByteSpan SpanOf(const View& view) {
  const int64_t width = static_cast<int64_t>(DTypeBytes(view.dtype));
  ByteSpan span = {0, width};
  for (uint32_t dim = 0; dim < view.n_dims; ++dim) {
    const int64_t last = (view.shape[dim] - 1) * view.strides[dim] * width;
    (last < 0 ? span.low : span.high) += last;
  }
  return span;
}

absl::StatusOr<View> Slice(const View& view, uint32_t dim, int64_t start, int64_t stop,
                           int64_t step) {
  IRIS_ABI_TRY(CheckDim(view, dim));
  if (step < 1) {
    return Invalid("a slice with a step of ", step, ": a slice of a tensor has a positive step");
  }
  const int64_t extent = view.shape[dim];
  const auto end_of = [extent](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? at + extent : at, 0, extent);
  };
  start = end_of(start);
  stop = end_of(stop);
  View out = view;
  out.shape[dim] = start < stop ? (stop - start - 1) / step + 1 : 0;
  if (out.shape[dim] > 0) out.offset_bytes += BytesOf(view, dim, start);
  // A dimension with one element has no step, and its stride may stay as it is.
  if (out.shape[dim] > 1) out.strides[dim] *= step;
  return out;
}

absl::StatusOr<View> Select(const View& view, uint32_t dim, int64_t index) {
  IRIS_ABI_TRY(CheckDim(view, dim));
  const int64_t extent = view.shape[dim];
  if (index < -extent || index >= extent) {
    return absl::OutOfRangeError(absl::StrCat(index, " is outside of dimension ", dim,
                                              " of a tensor of shape ", ShapeText(view)));
  }
  View out = view;
  out.offset_bytes += BytesOf(view, dim, index < 0 ? index + extent : index);
  Drop(&out, dim);
  return out;
}

absl::StatusOr<View> Reshape(const View& view, absl::Span<const int64_t> shape) {
  if (shape.size() > kMaxDims) {
    return Invalid("a tensor has at most ", kMaxDims, " dimensions, and not ", shape.size());
  }
  int64_t wanted[kMaxDims] = {};
  std::copy(shape.begin(), shape.end(), wanted);
  const int64_t count = static_cast<int64_t>(view.count());
  const auto mismatch = [&] {
    return Invalid("a tensor of shape ", ShapeText(view), " has ", count,
                   " elements, and the shape ", ShapeText(shape), " has another number of them");
  };
  if (std::count(wanted, wanted + shape.size(), -1) == 1) {
    int64_t rest = 1;
    for (const int64_t extent : shape) {
      if (extent == -1) continue;
      if (extent <= 0 || extent > kMost / rest) return mismatch();
      rest *= extent;
    }
    if (count % rest != 0) return mismatch();
    *std::find(wanted, wanted + shape.size(), -1) = count / rest;
  }
  IRIS_ASSIGN_OR_RETURN(auto made, MakeView(view.dtype, {wanted, shape.size()}));
  if (made.count() != static_cast<uint64_t>(count)) return mismatch();
  if (!view.contiguous()) {
    return Invalid("a tensor of shape ", ShapeText(view), " and strides ",
                   ShapeText({view.strides, view.n_dims}),
                   " is not contiguous: it has no other shape without a copy");
  }
  made.offset_bytes = view.offset_bytes;
  return made;
}

absl::StatusOr<View> Permute(const View& view, absl::Span<const uint32_t> dims) {
  View out = view;
  uint32_t seen = 0;
  bool good = dims.size() == view.n_dims;
  for (uint32_t i = 0; good && i < view.n_dims; ++i) {
    good = dims[i] < view.n_dims && (seen >> dims[i] & 1) == 0;
    if (!good) break;
    seen |= 1u << dims[i];
    out.shape[i] = view.shape[dims[i]];
    out.strides[i] = view.strides[dims[i]];
  }
  if (good) return out;
  return Invalid("(", absl::StrJoin(dims, ", "), ") is no order of the ", view.n_dims,
                 " dimensions of a tensor of shape ", ShapeText(view), ": name each of them once");
}

Rows CommonRows(const View& a, const View& b) {
  Rows rows;
  rows.n_outer = a.n_dims;
  while (rows.n_outer > 0) {
    const uint32_t dim = rows.n_outer - 1;
    const int64_t row = static_cast<int64_t>(rows.row);
    if (a.shape[dim] != 1 && (a.strides[dim] != row || b.strides[dim] != row)) break;
    rows.row *= static_cast<uint64_t>(a.shape[dim]);
    --rows.n_outer;
  }
  return rows;
}

}  // namespace iris::abi
