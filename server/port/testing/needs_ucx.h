// Skips all tests of a program that includes this where there is no UCX that ports can use.
#pragma once

#include <gtest/gtest.h>

#include "device/ucx/find.h"

namespace iris::port {

class NeedsUcx : public testing::Environment {
  void SetUp() override {
    const auto found = ucx::Find("");
    if (!found.ok()) GTEST_SKIP() << found.status();
  }
};
inline testing::Environment* const g_needs_ucx = testing::AddGlobalTestEnvironment(new NeedsUcx);

}  // namespace iris::port
