// The data of example 18: a small GPT, with weights that are drawn instead of read from a file. No
// part of Iris: a program that has a model of its own needs none of it.
#pragma once

#include <cstdint>
#include <utility>

#include "iris/context.h"
#include "iris/tensor.h"

namespace example {

inline constexpr uint32_t kTokens = 12, kLayers = 2, kHeads = 8, kHeadSize = 16, kVocabulary = 200;
inline constexpr uint32_t kHidden = kHeads * kHeadSize, kInner = 4 * kHidden;

// Matrices of all layers lie one behind the other, rows of each are contiguous.
struct Model {
  iris::Tensor<iris::Half> embedded;  // [kTokens, kHidden], the prompt
  iris::Tensor<iris::Half> gains;     // [2 kLayers + 1, kHidden], less 1
  iris::Tensor<iris::Half> qkv;       // [kLayers, kHidden, 3 kHidden]: of each head q, k and v
  iris::Tensor<iris::Half> out;       // [kLayers, kHidden, kHidden]
  iris::Tensor<iris::Half> up, down;  // [kLayers, kHidden, kInner], [kLayers, kInner, kHidden]
  iris::Tensor<iris::Half> head;      // [kHidden, kVocabulary]
};

// The same on all ranks. Collective.
inline iris::StatusOr<Model> DrawModel(const iris::Context& context) {
  iris::Generator generator(18);
  iris::Status status;
  const auto draw = [&](int64_t rows, int64_t columns) {
    auto x = iris::Tensor<iris::Half>::Uniform(context, {rows, columns}, -0.15, 0.15, generator);
    if (!x.ok()) status = x.status();
    return x.ok() ? *std::move(x) : iris::Tensor<iris::Half>();
  };
  Model model;
  model.embedded = draw(kTokens, kHidden);
  model.gains = draw(2 * kLayers + 1, kHidden);
  model.qkv = draw(kLayers * kHidden, 3 * kHidden);
  model.out = draw(kLayers * kHidden, kHidden);
  model.up = draw(kLayers * kHidden, kInner);
  model.down = draw(kLayers * kInner, kHidden);
  model.head = draw(kHidden, kVocabulary);
  IRIS_RETURN_IF_ERROR(status);
  return model;
}

}  // namespace example
