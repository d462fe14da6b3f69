// The arithmetic of tensors: shapes, strides and views of them. Pure: it touches no memory.
//
// Every function checks its arguments, so no offset overflows.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "iris/c_api.h"
#include "iris/dtype.h"
#include "iris/fill/fill.h"

namespace iris::abi {

inline constexpr uint32_t kMaxDims = IRIS_MAX_DIMS;
static_assert(kMaxDims == fill::kMaxDims);

// The places of the elements of a view in its memory. Sizes are 0 or more.
struct View {
  DType dtype = DType::kNone;
  uint32_t n_dims = 0;
  int64_t shape[kMaxDims] = {};
  int64_t strides[kMaxDims] = {};  // in elements
  int64_t offset_bytes = 0;        // of the first element

  uint64_t count() const;
  uint64_t bytes() const { return count() * DTypeBytes(dtype); }
  bool contiguous() const;
};

// Returns a shape as Python writes it, "(2, 3)", for messages.
std::string ShapeText(const View& view);
std::string ShapeText(absl::Span<const int64_t> shape);

// Returns a contiguous view. kInvalidArgument for no dtype, too many dimensions, a negative size,
// or more than 2^63 - 1 bytes, where a size of 0 counts as 1.
absl::StatusOr<View> MakeView(DType dtype, absl::Span<const int64_t> shape);

// Makes a view with the caller's strides. kInvalidArgument also if the strides overflow.
absl::StatusOr<View> MakeStridedView(DType dtype, absl::Span<const int64_t> shape,
                                     absl::Span<const int64_t> strides);

// The bytes that a view of at least one element spans, from its first element.
struct ByteSpan {
  int64_t low = 0, high = 0;
};
ByteSpan SpanOf(const View& view);

// These functions implement those of the C API with the same names.
absl::StatusOr<View> Slice(const View& view, uint32_t dim, int64_t start, int64_t stop,
                           int64_t step);
absl::StatusOr<View> Select(const View& view, uint32_t dim, int64_t index);
absl::StatusOr<View> Reshape(const View& view, absl::Span<const int64_t> shape);
absl::StatusOr<View> Permute(const View& view, absl::Span<const uint32_t> dims);

// The last dimensions in which the elements of two views of one shape are consecutive, as one row
// of `row` elements, and the number of dimensions before them.
struct Rows {
  uint32_t n_outer = 0;
  uint64_t row = 1;  // elements
};
Rows CommonRows(const View& a, const View& b);

}  // namespace iris::abi
