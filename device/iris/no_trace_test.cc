// A program that is compiled with IRIS_NO_TRACE: its kernels tell nothing, and have nothing left of
// what tells.
#include <cstdint>
#include <type_traits>

#include "device/iris/backend/emu/testing/test_util.h"
#include "gtest/gtest.h"
#include "iris/device.h"

#ifndef IRIS_NO_TRACE
#error "compile this with IRIS_NO_TRACE"
#endif

namespace iris {
namespace {

static_assert(sizeof(TraceSpan<Block>) == 1 && sizeof(TraceSpan<Thread>) == 1);
static_assert(std::is_empty_v<impl::SpanOf<Block>> && std::is_empty_v<impl::SpanOf<Warp>>);
static_assert(std::is_trivially_destructible_v<TraceSpan<Block>>);

IRIS_KERNEL void Call(DeviceContext ctx, uint8_t* bytes, uint64_t* signal) {
  const TraceSpan span(ctx, 1, Block{});
  PutSignal(ctx, 1, bytes, bytes + 64, 48, {signal, 5}, Block{});
  (void)WaitUntil(ctx, signal, Compare::kGe, 5, Block{});
}

TEST(NoTraceTest, NothingIsTold) {
  struct {
    TraceArea area = {};
    TraceEvent events[8] = {};
  } trace;
  trace.area.capacity = 8;
  trace.area.until_ns = ~uint64_t{0};
  DeviceContext ctx;
  ctx.n_ranks = 2;
  ctx.trace = &trace.area;
  uint8_t bytes[128] = {};
  uint64_t signal = 0;
  backend::RunKernel({1, 32}, &Call, ctx, &bytes[0], &signal);
  EXPECT_EQ(signal, 5u);
  EXPECT_EQ(trace.area.position, 0u);
}

}  // namespace
}  // namespace iris
