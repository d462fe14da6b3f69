// The numbers of the example of a mixture of experts. They are its test data, and no part of Iris.
#pragma once

#include <cstdint>

#include "examples/flags.h"
#include "iris/device.h"

// What a number is of.
constexpr uint32_t kRouter = 1, kFirst = 2, kSecond = 1000, kToken = 5000;

// All numbers of this example, in [-1/2, 1/2): those of the tokens, the router and the experts.
IRIS_HOST_DEVICE inline float Number(uint32_t what, uint32_t i, uint32_t j) {
  uint32_t bits = (what * 0x9e3779b9u) ^ (i * 0x85ebca6bu) ^ (j * 0xc2b2ae35u);
  bits = (bits ^ bits >> 15) * 0x2c1b3c6du;
  bits = (bits ^ bits >> 12) * 0x297a2d39u;
  return static_cast<float>(static_cast<int32_t>(bits ^ bits >> 15)) / 4294967296.0f;
}
