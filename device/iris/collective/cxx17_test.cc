// Everything that device compilers will read compiles as C++17, and works: this file is built so.
#include <cstdint>

#include "gtest/gtest.h"
#include "iris/collective/collective.h"
#include "iris/collective/impl/move_direct.h"
#include "iris/collective/impl/reduce_at_owner.h"
#include "iris/collective/impl/reduce_direct.h"
#include "iris/collective/tile.h"
#include "iris/collective/variants/packets.h"
#include "iris/device.h"

namespace iris {
namespace {

static_assert(__cplusplus == 201703L, "this test is about C++17");

IRIS_KERNEL void UseTheHeaders(DeviceContext ctx, uint64_t* words, uint32_t* results) {
  PutSignal(ctx, 0, words + 2, words, 1, {words + 1, 5, SignalOp::kAdd}, Block{});
  const WaitResult waited = WaitUntil(ctx, words + 1, Compare::kEq, 5, Block{});
  const WaitResult met = Barrier(ctx, ctx.world);
  if (backend::ThreadIndex() == 0) {
    results[0] = static_cast<uint32_t>(waited);
    results[1] = static_cast<uint32_t>(met);
    results[2] = static_cast<uint32_t>(AtomicAdd(ctx, 0, words, 1));
    Fence();
    Quiet();
  }
}

TEST(Cxx17Test, AKernelAndACollectiveRun) {
  constexpr uint64_t kHeapBytes = 4 << 20;
  void* heap = backend::MallocDevice(kHeapBytes + 4096);
  ASSERT_NE(heap, nullptr);
  DeviceContext ctx;
  ctx.n_ranks = 1;
  ctx.base = (reinterpret_cast<uint64_t>(heap) + 4095) / 4096 * 4096;
  ctx.stride_bytes = kHeapBytes;
  ctx.world.size = 1;
  backend::Stream stream;
  ASSERT_TRUE(backend::Stream::Create(&stream).ok());
  ASSERT_TRUE(backend::FillAsync(AtOffset<void>(ctx, 0, 0), 0, kHeapBytes, stream).ok());
  uint64_t* words = AtOffset<uint64_t>(ctx, 0, kSyncAreaBytes);
  uint32_t* results = AtOffset<uint32_t>(ctx, 0, kSyncAreaBytes + 64);
  ASSERT_TRUE(backend::Launch({1, 32}, stream, UseTheHeaders, ctx, words, results).ok());

  auto* report = static_cast<ccl::ErrorReport*>(backend::MallocHost(sizeof(ccl::ErrorReport)));
  *report = {};
  ccl::CommOptions options;
  options.context = ctx;
  options.team = ctx.world;
  options.workspace = AtOffset<void>(ctx, 0, 1 << 20);
  options.workspace_bytes = ccl::WorkspaceBytes(1);
  options.report = report;
  ccl::Comm comm;
  ASSERT_TRUE(ccl::CreateComm(options, &comm).ok());
  ASSERT_TRUE(ccl::Barrier(comm, stream).ok());

  uint64_t seen[3];
  ASSERT_TRUE(backend::CopyAsync(seen, words, sizeof(seen), stream).ok());
  uint32_t answers[3];
  ASSERT_TRUE(backend::CopyAsync(answers, results, sizeof(answers), stream).ok());
  ASSERT_TRUE(stream.Synchronize().ok());
  EXPECT_EQ(seen[0], 1u);
  EXPECT_EQ(seen[1], 5u);
  EXPECT_EQ(answers[0], 0u);
  EXPECT_EQ(answers[1], 0u);
  EXPECT_EQ(answers[2], 0u);
  EXPECT_TRUE(ccl::CheckError(comm).ok());
  backend::FreeHost(report);
  backend::FreeDevice(heap);
}

}  // namespace
}  // namespace iris
