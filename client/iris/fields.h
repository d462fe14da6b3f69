// Maps the fields of structs of the C API to fields in C++. The C++ headers fill in the C structs
// by these lists, and the library reads and writes them by the same lists. Internal.
//
// A function calls each(field in C, field in C++, name in C) for all fields of its two structs
// except sizes, operations and workspaces. C++17.
#pragma once

#include <cstdint>
#include <type_traits>

namespace iris {
namespace impl {

// Copy a field to the C struct, and from it.
inline constexpr auto ToC = [](auto& c, const auto& cpp, const char*) {
  c = static_cast<std::decay_t<decltype(c)>>(cpp);
};
inline constexpr auto OfC = [](const auto& c, auto& cpp, const char*) {
  cpp = static_cast<std::decay_t<decltype(cpp)>>(c);
};

}  // namespace impl

namespace norm::impl {

template <typename C, typename AnyShape, typename AnyBuffers, typename Each>
void ForFields(C& call, AnyShape& shape, AnyBuffers& buffers, Each&& each) {
  each(call.rows, shape.rows, "rows");
  each(call.hidden, shape.hidden, "hidden");
  each(call.in_dtype, shape.in, "in_dtype");
  each(call.out_dtype, shape.out, "out_dtype");
  each(call.weight_dtype, shape.weight, "weight_dtype");
  each(call.scaling, shape.scaling, "scaling");
  each(call.epsilon, shape.epsilon, "epsilon");
  each(call.weight_offset, shape.weight_offset, "weight_offset");
  each(call.has_residual, shape.residual, "has_residual");
  each(call.variant, shape.variant, "variant");
  each(call.in, buffers.in, "in");
  each(call.residual, buffers.residual, "residual");
  each(call.residual_out, buffers.residual_out, "residual_out");
  each(call.weight, buffers.weight, "weight");
  each(call.out, buffers.out, "out");
  each(call.scale, buffers.scale, "scale");
  each(call.scales, buffers.scales, "scales");
  each(call.in_stride, buffers.in_stride, "in_stride");
  each(call.residual_stride, buffers.residual_stride, "residual_stride");
  each(call.residual_out_stride, buffers.residual_out_stride, "residual_out_stride");
  each(call.out_stride, buffers.out_stride, "out_stride");
}

}  // namespace norm::impl

namespace ops::impl {

template <typename C, typename AnyShape, typename AnyOperands, typename Each>
void ForFields(C& call, AnyShape& shape, AnyOperands& operands, Each&& each) {
  each(call.m, shape.m, "m");
  each(call.n, shape.n, "n");
  each(call.k, shape.k, "k");
  each(call.in_dtype, shape.in, "in_dtype");
  each(call.out_dtype, shape.out, "out_dtype");
  each(call.bias_dtype, shape.bias, "bias_dtype");
  each(call.transposed_b, shape.transposed_b, "transposed_b");
  each(call.activation, shape.activation, "activation");
  each(call.variant, shape.variant, "variant");
  each(call.a, operands.a, "a");
  each(call.lda, operands.lda, "lda");
  each(call.b, operands.b, "b");
  each(call.ldb, operands.ldb, "ldb");
  each(call.bias, operands.bias, "bias");
  each(call.d, operands.d, "d");
  each(call.ldd, operands.ldd, "ldd");
}

}  // namespace ops::impl

namespace moe::impl {

template <typename C, typename AnyConfig, typename Each>
void ForConfigFields(C& c, AnyConfig& config, Each&& each) {
  each(c.n_experts, config.n_experts, "n_experts");
  each(c.top_k, config.top_k, "top_k");
  each(c.hidden, config.hidden, "hidden");
  each(c.max_tokens, config.max_tokens, "max_tokens");
  each(c.capacity, config.capacity, "capacity");
  each(c.in_dtype, config.in, "in_dtype");
  each(c.row_dtype, config.rows, "row_dtype");
  each(c.partial_dtype, config.partials, "partial_dtype");
}
template <typename C, typename AnySizes, typename Each>
void ForSizesFields(C& c, AnySizes& sizes, Each&& each) {
  each(c.workspace_bytes, sizes.workspace_bytes, "workspace_bytes");
  each(c.max_rows, sizes.max_rows, "max_rows");
  each(c.first_expert, sizes.first_expert, "first_expert");
  each(c.local_experts, sizes.local_experts, "local_experts");
  each(c.scale_columns, sizes.scale_columns, "scale_columns");
  each(c.rows_at_bytes, sizes.rows_at_bytes, "rows_at_bytes");
  each(c.row_stride_bytes, sizes.row_stride_bytes, "row_stride_bytes");
  each(c.scales_at_bytes, sizes.scales_at_bytes, "scales_at_bytes");
}
template <typename C, typename AnyDispatch, typename Each>
void ForDispatchFields(C& c, AnyDispatch& call, Each&& each) {
  each(c.tokens, call.tokens, "tokens");
  each(c.id_dtype, call.ids_type, "id_dtype");
  each(c.x, call.x, "x");
  each(c.x_scales, call.x_scales, "x_scales");
  each(c.ids, call.ids, "ids");
  each(c.weights, call.weights, "weights");
  each(c.rows, call.rows, "rows");
  each(c.scales, call.scales, "scales");
  each(c.counts, call.counts, "counts");
  each(c.offsets, call.offsets, "offsets");
  each(c.dropped, call.dropped, "dropped");
  each(c.sources, call.sources, "sources");
}
template <typename C, typename AnyCombine, typename Each>
void ForCombineFields(C& c, AnyCombine& call, Each&& each) {
  each(c.tokens, call.tokens, "tokens");
  each(c.y_dtype, call.y_type, "y_dtype");
  each(c.out_dtype, call.out_type, "out_dtype");
  each(c.y, call.y, "y");
  each(c.out, call.out, "out");
}

}  // namespace moe::impl
}  // namespace iris
