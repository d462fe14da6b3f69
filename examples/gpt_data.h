// The data of example 18: a small GPT, with weights that are drawn instead of read from a file, and
// what it is judged by. No part of Iris: a program that has a model of its own needs none of it.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "examples/flags.h"
#include "iris/context.h"
#include "iris/tensor.h"

namespace example {

inline constexpr uint32_t kTokens = 12, kLayers = 2, kHeads = 8, kHeadSize = 16, kVocabulary = 200;
inline constexpr uint32_t kHidden = kHeads * kHeadSize, kInner = 4 * kHidden;

// kInvalidArgument unless the heads can be dealt out to so many ranks.
inline iris::Status CheckRanks(uint32_t n_ranks) {
  if (kHeads % n_ranks == 0) return iris::OkStatus();
  return {iris::StatusCode::kInvalidArgument,
          "the " + std::to_string(kHeads) +
              " heads are dealt out evenly: to 1, 2, 4 or 8 ranks, and not to " +
              std::to_string(n_ranks)};
}

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

// The largest magnitude of what is expected, and how far the other is from it, at most: a NaN if
// one of them is.
inline std::pair<float, float> Compare(const std::vector<float>& got,
                                       const std::vector<float>& expected) {
  float most = 0, apart = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    most = std::fmax(most, std::fabs(expected[i]));
    const float off = std::fabs(got[i] - expected[i]);
    if (std::isnan(off)) return {most, off};
    apart = std::fmax(apart, off);
  }
  return {most, apart};
}

}  // namespace example
