// Real irisd-port processes, with this test as their irisd and their ranks.
#include <gtest/gtest.h>
#include <signal.h>
#include <string.h>

#include <random>
#include <string>

#include "absl/time/clock.h"
#include "server/port/testing/port_node.h"

namespace iris::port {
namespace {

PortRequest Put(uint32_t to, uint64_t dst, uint64_t src, uint64_t bytes) {
  PortRequest request = {};
  request.op = PortOp::kPut;
  request.to = to;
  request.dst = dst;
  request.src = src;
  request.bytes = bytes;
  request.signal = kNoPortSignal;
  return request;
}

TEST(PortTest, PutsAllSizes) {
  Cluster cluster = Start(2, 1, nullptr, [](int, PortNodeOptions* options) {
    options->heap_bytes = 132 << 20;
  });
  ASSERT_TRUE(cluster.ok);
  uint8_t* const from = cluster.nodes[0]->heap(0);
  uint8_t* const to = cluster.nodes[1]->heap(1);
  PortRequester ring = cluster.nodes[0]->Requester(0);
  std::mt19937 random(1);
  for (uint64_t i = 0; i < (65u << 20); i += 4) {
    const uint32_t word = random();
    memcpy(from + i, &word, 4);
  }
  for (const uint64_t bytes : {0ull, 1ull, 7ull, 8ull, 8192ull, 8193ull, (1ull << 20) + 3,
                               64ull << 20}) {
    memset(to, 0xEE, bytes + 64);
    const uint64_t number = ring.Post(Put(1, 16, 3, bytes));
    ASSERT_EQ(ring.Wait(number), StatusCode::kOk) << bytes;
    EXPECT_EQ(memcmp(to + 16, from + 3, bytes), 0) << bytes;
    EXPECT_EQ(to[15], 0xEE);
    EXPECT_EQ(to[16 + bytes], 0xEE);
  }
}

}  // namespace
}  // namespace iris::port
