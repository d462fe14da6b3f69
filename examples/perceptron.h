// The perceptron of example 10: its parameters, and the kernels of a step. One file includes it. No
// part of Iris: a program that has a model of its own needs none of it.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "examples/digits_data.h"
#include "iris/device.h"

namespace example {

inline constexpr uint32_t kHidden = 64;

// What the kernels of a step are called in a trace, which IRIS_TRACE=file writes.
inline constexpr uint64_t kForward = 1, kGradient = 2, kUpdate = 3;

// The parameters as they lie in memory. The gradients lie the same way, followed by two sums over
// the digits.
inline constexpr uint32_t kW1 = 0;                         // [kPixels][kHidden]
inline constexpr uint32_t kB1 = kW1 + kPixels * kHidden;   // [kHidden]
inline constexpr uint32_t kW2 = kB1 + kHidden;             // [kHidden][kClasses]
inline constexpr uint32_t kB2 = kW2 + kHidden * kClasses;  // [kClasses]
inline constexpr uint32_t kParameters = kB2 + kClasses;
inline constexpr uint32_t kLoss = kParameters;
inline constexpr uint32_t kCorrect = kParameters + 1;
inline constexpr uint32_t kGradients = kParameters + 2;

// Of each digit of this rank's share, from Forward for Gradient.
struct Activations {
  float hidden[kHidden];
  float hidden_error[kHidden];
  float class_error[kClasses];
  float loss;
  float correct;  // 1 or 0
};

// A data set in device memory.
struct DeviceDigits {
  const float* pixels;
  const uint32_t* labels;
};

// For kernels with a thread for each parameter or gradient.
inline constexpr uint32_t kThreads = 128;
inline constexpr iris::LaunchConfig kPerParameter = {.grid = (kGradients + kThreads - 1) / kThreads,
                                                     .block = kThreads};

// A block for each digit, a thread for each hidden unit: block b computes the activations of the
// digit order[b], and what they should have been.
IRIS_KERNEL void Forward(iris::DeviceContext ctx, const float* w, DeviceDigits digits,
                         const uint32_t* order, Activations* activations) {
  IRIS_SHARED(float[kHidden], hidden);
  IRIS_SHARED(float[kClasses], score);
  const iris::TraceSpan span(ctx, kForward, iris::Block{});
  const uint32_t t = iris::backend::ThreadIndex();
  const uint32_t digit = order[iris::backend::BlockIndex()];
  const float* x = digits.pixels + digit * kPixels;
  const uint32_t label = digits.labels[digit];
  Activations& out = activations[iris::backend::BlockIndex()];

  float sum = w[kB1 + t];
  for (uint32_t i = 0; i < kPixels; ++i) sum += x[i] * w[kW1 + i * kHidden + t];
  hidden[t] = sum > 0 ? sum : 0;
  out.hidden[t] = hidden[t];
  iris::backend::BlockSync();

  if (t < kClasses) {
    float s = w[kB2 + t];
    for (uint32_t h = 0; h < kHidden; ++h) s += hidden[h] * w[kW2 + h * kClasses + t];
    score[t] = s;
  }
  iris::backend::BlockSync();

  if (t == 0) {  // softmax and cross entropy
    uint32_t best = 0;
    for (uint32_t c = 1; c < kClasses; ++c) {
      if (score[c] > score[best]) best = c;
    }
    const float highest = score[best];
    float total = 0;
    for (uint32_t c = 0; c < kClasses; ++c) total += expf(score[c] - highest);
    out.loss = logf(total) + highest - score[label];
    out.correct = best == label ? 1.0f : 0.0f;
    for (uint32_t c = 0; c < kClasses; ++c) {
      score[c] = expf(score[c] - highest) / total - (c == label ? 1.0f : 0.0f);
      out.class_error[c] = score[c];
    }
  }
  iris::backend::BlockSync();

  float error = 0;
  for (uint32_t c = 0; c < kClasses; ++c) error += score[c] * w[kW2 + t * kClasses + c];
  out.hidden_error[t] = hidden[t] > 0 ? error : 0;
}

// One element of the gradient: the product of what went in and what was wrong, summed over this
// rank's digits.
IRIS_DEVICE inline float GradientOf(uint32_t p, const float* x, const Activations& a) {
  if (p < kB1) return x[p / kHidden] * a.hidden_error[p % kHidden];
  if (p < kW2) return a.hidden_error[p - kB1];
  if (p < kB2) return a.hidden[(p - kW2) / kClasses] * a.class_error[(p - kW2) % kClasses];
  if (p < kLoss) return a.class_error[p - kB2];
  return p == kLoss ? a.loss : a.correct;
}

// A thread for each element of the gradient.
IRIS_KERNEL void Gradient(iris::DeviceContext ctx, DeviceDigits digits, const uint32_t* order,
                          const Activations* activations, uint32_t n_digits, float* gradients) {
  const iris::TraceSpan span(ctx, kGradient, iris::Block{});
  const auto p = static_cast<uint32_t>(iris::backend::ThreadOfGrid());
  if (p >= kGradients) return;
  float sum = 0;
  for (uint32_t i = 0; i < n_digits; ++i) {
    sum += GradientOf(p, digits.pixels + order[i] * kPixels, activations[i]);
  }
  gradients[p] = sum;
}

// A thread for each parameter: applies the momentum, and makes the step. `sums` gathers loss and
// correct answers of an epoch.
IRIS_KERNEL void Update(iris::DeviceContext ctx, float* w, float* velocity, const float* gradients,
                        float rate, float momentum, float* sums) {
  const iris::TraceSpan span(ctx, kUpdate, iris::Block{});
  const auto p = static_cast<uint32_t>(iris::backend::ThreadOfGrid());
  if (p < kParameters) {
    velocity[p] = momentum * velocity[p] - rate * gradients[p];
    w[p] += velocity[p];
  } else if (p < kGradients) {
    sums[p - kParameters] += gradients[p];
  }
}

// Small random weights; the biases start at 0.
inline std::vector<float> InitialWeights() {
  std::vector<float> w(kParameters, 0.0f);
  const std::vector<uint32_t> random = Shuffled(kParameters, /*seed=*/42);
  for (uint32_t p = 0; p < kParameters; ++p) {
    if ((p >= kB1 && p < kW2) || p >= kB2) continue;
    w[p] = (static_cast<float>(random[p]) / kParameters - 0.5f) * 0.4f;
  }
  return w;
}

}  // namespace example
