// Ranks that speak gRPC, whose connections are cut again and again under traffic: nobody notices
// more than slow calls, nobody is told of a death, and every byte is right. To irisd a cut is a
// connection lost for whatever reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/daemon_harness.h"
#include "tests/integration/grpc_rank.h"

namespace iris::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRanks = 4;
constexpr absl::Duration kPatience = absl::Seconds(60);

class Cutter {
 public:
  Cutter(GrpcRank* rank, uint32_t seed)
      : thread_([this, rank, seed] {
          std::mt19937 random(seed);
          while (!stop_) {
            absl::SleepFor(absl::Milliseconds(20 + random() % 250));
            rank->Cut();
          }
        }) {}
  ~Cutter() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

char Byte(uint32_t round, size_t i) {
  return static_cast<char>((round * 131 + i) * 2654435761u >> 13);
}

// One rank, from its connection until it has left. Returns how often its gRPC socket was replaced.
int Traffic(const std::string& socket, const std::string& job, int me, absl::Duration lasts) {
  auto connected = GrpcRank::Connect(socket, kPatience);
  EXPECT_TRUE(connected.ok()) << connected.status();
  if (!connected.ok()) return 0;
  GrpcRank& rank = **connected;
  const Cutter cutter(&rank, static_cast<uint32_t>(me));
  const absl::Status joined = rank.Join(job, me, kRanks);
  EXPECT_TRUE(joined.ok()) << joined;
  if (!joined.ok()) return 0;
  const absl::Time end = absl::Now() + lasts;
  std::string offsets;
  bool more = true;
  for (uint32_t round = 0; more; ++round) {
    iris::v1::OperateRequest allocate;
    allocate.mutable_allocate()->set_bytes(1024 * (1 + round % 7));
    allocate.mutable_allocate()->set_alignment_bytes(1024);
    allocate.mutable_allocate()->set_name(absl::StrCat("round ", round));
    const auto allocated = rank.Operate(allocate);
    EXPECT_TRUE(allocated.ok()) << allocated.status();
    if (!allocated.ok()) return 0;
    // Its value is large enough to be lost half-way.
    const int root = static_cast<int>(round % kRanks);
    std::string value(40'000 + 7 * round, '\0');
    for (size_t i = 0; i < value.size(); ++i) value[i] = Byte(round, i);
    value[0] = root != 0 || absl::Now() < end ? 'm' : 'e';  // more, or the end
    iris::v1::OperateRequest broadcast;
    broadcast.mutable_broadcast()->set_root(static_cast<uint32_t>(root));
    if (me == root) broadcast.mutable_broadcast()->set_value(value);
    const auto heard = rank.Operate(broadcast);
    EXPECT_TRUE(heard.ok()) << heard.status();
    if (!heard.ok()) return 0;
    more = heard->value()[0] == 'm';
    value[0] = heard->value()[0];
    EXPECT_TRUE(heard->value() == value) << "round " << round;
    iris::v1::OperateRequest free;
    free.mutable_free()->set_offset_bytes(allocated->offset_bytes());
    const auto freed = rank.Operate(free);
    EXPECT_TRUE(freed.ok()) << freed.status();
    if (!freed.ok()) return 0;
  }
  const absl::Status left = rank.Leave();
  EXPECT_TRUE(left.ok()) << left;
  return rank.replaced();
}

TEST(ReconnectTest, CutConnectionsAreSlowCallsAndNothingElse) {
  auto daemon = Daemon::Start({});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  ASSERT_TRUE((*daemon)->GetStatus().ok());
  const int idle_fds = (*daemon)->OpenFds();
  std::atomic<int> replaced{0};
  for (int life = 0; life < 3; ++life) {
    std::vector<std::thread> ranks;
    for (int me = 0; me < kRanks; ++me) {
      ranks.emplace_back([&, me] {
        replaced +=
            Traffic((*daemon)->session_socket(), absl::StrCat("life-", life), me, absl::Seconds(3));
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
  EXPECT_GE(replaced.load(), 20) << "the connections were hardly cut";
  for (const char* told : {"rank_hung_up", "rank_dead", "rank_resumed", "job_broken", "job_failed",
                           "join_failed", "session ended"}) {
    EXPECT_THAT((*daemon)->Log(), Not(HasSubstr(told)));
  }
  const absl::Status idle = (*daemon)->WaitIdle(idle_fds + 2);
  EXPECT_TRUE(idle.ok()) << idle << "\n" << (*daemon)->Log();
}

}  // namespace
}  // namespace iris::testing
