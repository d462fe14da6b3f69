// Messages: SendRecv and Exchange, in which nobody waits for who waits for it.
#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "iris/collective/collective.h"
#include "iris/device.h"
#include "tests/conformance/collective_reference.h"
#include "tests/conformance/values.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

using ccl::Comm;
using ccl::Config;

// Small enough for stages that are used many times over.
Config SmallConfig() {
  Config config;
  config.max_blocks = 3;
  config.block_threads = 32;
  config.packet_bytes = 256;
  config.stage_bytes = 1024;
  return config;
}

// All members call SendRecv first, then all send before they receive, in one call. With so many
// members and blocks, and with memory in their heaps or outside of them.
class RingTest : public testing::TestWithParam<std::tuple<uint32_t, uint32_t, bool>> {
 protected:
  static Config ConfigOf(uint32_t blocks) {
    Config config = SmallConfig();
    config.max_blocks = blocks;
    config.packet_blocks = blocks;
    return config;
  }

  const uint32_t n_ = std::get<0>(GetParam());
  const Config config_ = ConfigOf(std::get<1>(GetParam()));
  const bool outside_ = std::get<2>(GetParam());
  World world_{n_, (1 << 20) + ccl::WorkspaceBytes(n_, config_)};
};
INSTANTIATE_TEST_SUITE_P(MembersBlocksOutside, RingTest,
                         testing::Combine(testing::Values(1, 2, 3, 4, 5), testing::Values(1, 2, 40),
                                          testing::Bool()));

TEST_P(RingTest, AllCallSendRecvFirst) {
  world_.Run([this](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, config_);
    constexpr uint64_t kRoom = 40000;
    float* heap = rank.New<float>(2 * kRoom);
    // Where only some members' memory is outside, both ways meet.
    const bool apart = outside_ && rank.rank() != 1;
    float* memory = apart ? static_cast<float*>(backend::MallocDevice(2 * kRoom * 4)) : heap;
    const uint32_t next = (rank.rank() + 1) % n_;
    const uint32_t previous = (rank.rank() + n_ - 1) % n_;
    rank.HostBarrier();
    for (uint64_t count : {1, 5, 1000, 39999}) {
      // What goes around is not of one length: that of its sender.
      const auto length = [count](uint32_t of) { return count == 1 ? 1 : count - of; };
      rank.Write(memory, Data<float>(rank.rank() + count, count));
      for (uint32_t again = 0; again < 3; ++again) {
        ExpectOk(ccl::SendRecv(comm, memory, length(rank.rank()), next, memory + kRoom,
                               length(previous), previous, DType::kF32, rank.stream));
      }
      const std::vector<float> expected = Data<float>(previous + count, count);
      const std::vector<float> came = rank.Read(memory + kRoom, length(previous));
      EXPECT_TRUE(SameBits(came, {expected.begin(), expected.begin() + came.size()})) << count;
      ExpectOk(ccl::CheckError(comm));
    }
    if (apart) backend::FreeDevice(memory);
  });
}

// Everybody sends everybody, itself included, two messages of different lengths, in one call.
TEST_P(RingTest, AllSendAllInOneCall) {
  world_.Run([this](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, config_);
    constexpr uint64_t kRow = 3000;
    const uint64_t elements = kRow * n_ * 2;
    int32_t* heap = rank.New<int32_t>(2 * elements);
    int32_t* memory =
        outside_ ? static_cast<int32_t*>(backend::MallocDevice(2 * elements * 4)) : heap;
    rank.Write(memory, Data<int32_t>(rank.rank(), elements));
    rank.HostBarrier();
    const auto length = [](uint32_t from, uint32_t to, uint32_t k) {
      return kRow - 700 * k - 7 * from - to;
    };
    std::vector<ccl::Message> messages;
    // The order among different members is of no matter.
    for (uint32_t i = 0; i < n_; ++i) {
      for (uint32_t k = 0; k < 2; ++k) {
        const uint64_t row = (i * 2 + k) * kRow;
        messages.push_back({memory + row, nullptr, length(rank.rank(), i, k), DType::kI32, i});
      }
    }
    for (uint32_t i = n_; i-- > 0;) {
      for (uint32_t k = 0; k < 2; ++k) {
        const uint64_t row = (i * 2 + k) * kRow;
        messages.push_back(
            {nullptr, memory + elements + row, length(i, rank.rank(), k), DType::kI32, i});
      }
    }
    for (uint32_t again = 0; again < 2; ++again) {
      ExpectOk(ccl::Exchange(comm, messages.data(), static_cast<uint32_t>(messages.size()),
                             rank.stream));
    }
    const std::vector<int32_t> out = rank.Read(memory + elements, elements);
    ExpectOk(ccl::CheckError(comm));
    for (uint32_t i = 0; i < n_; ++i) {
      const std::vector<int32_t> sent = Data<int32_t>(i, elements);
      for (uint32_t k = 0; k < 2; ++k) {
        const auto from = sent.begin() + (rank.rank() * 2 + k) * kRow;
        const auto at = out.begin() + (i * 2 + k) * kRow;
        EXPECT_TRUE(std::equal(at, at + length(i, rank.rank(), k), from)) << i << " " << k;
      }
    }
    if (outside_) backend::FreeDevice(memory);
  });
}

// The two sides of a message may call differently, as long as nobody waits in a circle.
TEST(MessageTest, AnExchangeMeetsASendAndARecv) {
  World(2).Run([](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, SmallConfig());
    float* x = rank.New<float>(2000);
    rank.Write(x, Data<float>(rank.rank(), 1000));
    rank.HostBarrier();
    if (rank.rank() == 0) {
      ExpectOk(ccl::SendRecv(comm, x, 1000, 1, x + 1000, 1000, 1, DType::kF32, rank.stream));
    } else {
      ExpectOk(ccl::Send(comm, x, 1000, DType::kF32, 0, rank.stream));
      ExpectOk(ccl::Recv(comm, x + 1000, 1000, DType::kF32, 0, rank.stream));
    }
    EXPECT_TRUE(SameBits(rank.Read(x + 1000, 1000), Data<float>(1 - rank.rank(), 1000)));
    ExpectOk(ccl::CheckError(comm));
  });
}

TEST(MessageTest, AGraphRepeatsARing) {
  World(3).Run([](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, SmallConfig());
    float* x = rank.New<float>(2000);
    rank.Write(x, Data<float>(rank.rank(), 1000));
    rank.HostBarrier();
    backend::Graph graph;
    ExpectOk(backend::BeginCapture(rank.stream));
    ExpectOk(ccl::SendRecv(comm, x, 1000, (rank.rank() + 1) % 3, x + 1000, 1000,
                           (rank.rank() + 2) % 3, DType::kF32, rank.stream));
    ExpectOk(backend::CopyAsync(x, x + 1000, 4000, rank.stream));
    ExpectOk(backend::EndCapture(rank.stream, &graph));
    for (uint32_t k = 0; k < 4; ++k) ExpectOk(backend::LaunchGraph(graph, rank.stream));
    EXPECT_TRUE(SameBits(rank.Read(x, 1000), Data<float>((rank.rank() + 2) % 3, 1000)));
    ExpectOk(ccl::CheckError(comm));
  });
}

TEST(MessageTest, RefusesWhatCannotBe) {
  World(2).Run([](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, SmallConfig());
    float* x = rank.New<float>(200);
    const uint32_t me = rank.rank();
    const auto refused = [](const Result& result) {
      EXPECT_EQ(result.code, StatusCode::kInvalidArgument) << result.what;
    };
    const auto both = [&](float* in, uint64_t n, uint32_t to, float* out, uint64_t m,
                          uint32_t from) {
      return ccl::SendRecv(comm, in, n, to, out, m, from, DType::kF32, rank.stream);
    };
    refused(both(x, 100, 2, x + 100, 100, 1 - me));       // no such member
    refused(both(nullptr, 100, 1 - me, x, 100, 1 - me));  // nothing to send
    refused(both(x, 100, 1 - me, nullptr, 100, 1 - me));  // nowhere to receive
    refused(both(x, 100, 1 - me, x + 99, 100, 1 - me));   // overlap
    refused(both(x, 100, me, x + 100, 100, 1 - me));      // to itself, and not received
    refused(both(x, 100, me, x + 100, 99, me));           // another count
    const ccl::Message odd = {x, x + 100, 100, DType::kF32, 1 - me};
    refused(ccl::Exchange(comm, &odd, 1, rank.stream));
    ExpectOk(both(x, 0, 1 - me, x + 100, 0, 1 - me));  // nothing at all
    ExpectOk(both(x, 100, me, x + 100, 100, me));      // a copy
    rank.Synchronize();
    ExpectOk(ccl::CheckError(comm));
  });
}

// A message of another length is found out, and by both.
TEST(MessageTest, DifferentCountsFail) {
  World(3).Run([](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, SmallConfig());
    float* x = rank.New<float>(400);
    rank.HostBarrier();
    const uint64_t out_count = rank.rank() == 2 ? 99 : 100;  // 1 sends 100
    ExpectOk(ccl::SendRecv(comm, x, 100, (rank.rank() + 1) % 3, x + 200, out_count,
                           (rank.rank() + 2) % 3, DType::kF32, rank.stream));
    rank.Synchronize();
    const Result result = ccl::CheckError(comm);
    if (rank.rank() != 0) {
      EXPECT_EQ(result.code, StatusCode::kInvalidArgument) << result.what;
    }
  });
}

}  // namespace
}  // namespace iris::conformance
