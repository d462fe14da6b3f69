#include "server/port/connection.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace iris::port {
namespace {

Identity IdentityOf(uint32_t first_rank) {
  Identity identity;
  identity.set_job("train");
  identity.set_first_rank(first_rank);
  identity.set_n_local(1);
  identity.set_n_ranks(2);
  return identity;
}

class ConnectionTest : public testing::Test {
 protected:
  void SetUp() override {
    int fds[2] = {-1, -1};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    raw_ = fds[0];
    a_ = std::make_unique<Connection>(wire::UniqueFd(fds[0]), &self_a_, &secret_, true, now_);
    b_ = std::make_unique<Connection>(wire::UniqueFd(fds[1]), &self_b_, &secret_, false, now_);
  }
  // Exchanges what both have to say; returns the first error of b.
  absl::Status Exchange() {
    absl::Status status;
    for (int i = 0; i < 20; ++i) {
      (void)a_->Flush();
      status.Update(b_->Read(now_));
      (void)b_->Flush();
      (void)a_->Read(now_);
    }
    return status;
  }

  const Identity self_a_ = IdentityOf(1), self_b_ = IdentityOf(0);
  const std::string secret_ = "sixteen bytes ..";
  absl::Time now_ = absl::UnixEpoch();
  int raw_ = -1;  // a's socket
  std::unique_ptr<Connection> a_, b_;
};

TEST_F(ConnectionTest, CarriesFramesInOrder) {
  ASSERT_TRUE(Exchange().ok());
  ASSERT_TRUE(a_->ready() && b_->ready());
  const std::string large(kMaxFrameBytes, 'x');
  a_->SendBeat(now_);
  a_->Send(FrameType::kNodeMessage, large);
  a_->Send(FrameType::kNodeMessage, "last");
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(Exchange().ok());
  EXPECT_EQ(b_->Next()->type, FrameType::kBeat);
  EXPECT_EQ(b_->Next()->payload, large);
  EXPECT_EQ(b_->Next()->payload, "last");
  EXPECT_FALSE(b_->Next().has_value());
}

TEST_F(ConnectionTest, RefusesForgedAndRepeatedFrames) {
  ASSERT_TRUE(Exchange().ok());
  std::string frame;
  AppendFrame(FrameType::kNodeMessage, "forged", &frame);
  frame += std::string(16, '\0');
  ASSERT_EQ(write(raw_, frame.data(), frame.size()), static_cast<ssize_t>(frame.size()));
  EXPECT_TRUE(absl::IsPermissionDenied(b_->Read(now_)));
  EXPECT_FALSE(b_->Next().has_value());
}

TEST_F(ConnectionTest, RefusesWhatIsTooLongBeforeTheHandshakeAndAfterIt) {
  FrameHeader header;
  header.type = FrameType::kHello;
  header.bytes = kMaxHandshakeBytes + 1;
  ASSERT_EQ(write(raw_, &header, sizeof(header)), static_cast<ssize_t>(sizeof(header)));
  EXPECT_TRUE(absl::IsInvalidArgument(b_->Read(now_)));
  SetUp();
  ASSERT_TRUE(Exchange().ok());
  header.type = FrameType::kNodeMessage;
  header.bytes = kMaxFrameBytes + 1;
  ASSERT_EQ(write(raw_, &header, sizeof(header)), static_cast<ssize_t>(sizeof(header)));
  EXPECT_TRUE(absl::IsInvalidArgument(b_->Read(now_)));
}

TEST_F(ConnectionTest, KnowsWhenItHeardTheOtherSideAndItsEnd) {
  ASSERT_TRUE(Exchange().ok());
  EXPECT_EQ(b_->heard(), absl::UnixEpoch());
  now_ += absl::Seconds(3);
  EXPECT_TRUE(b_->Read(now_).ok());
  EXPECT_EQ(b_->heard(), absl::UnixEpoch()) << "nothing came";
  a_->SendBeat(now_);
  ASSERT_TRUE(Exchange().ok());
  EXPECT_EQ(b_->heard(), now_);
  a_.reset();
  EXPECT_TRUE(absl::IsUnavailable(b_->Read(now_)));
}

TEST_F(ConnectionTest, BeatsMeasureTheRoundTripAndTheClock) {
  now_ += absl::Hours(1);
  ASSERT_TRUE(Exchange().ok());
  static constexpr absl::Duration kAhead = absl::Hours(-2);  // of b's clock
  const auto beat = [this](absl::Duration there, absl::Duration back) {
    a_->SendBeat(now_);
    ASSERT_TRUE(a_->Flush().ok());
    now_ += there;
    ASSERT_TRUE(b_->Read(now_).ok());
    ASSERT_TRUE(b_->TakeBeat(b_->Next()->payload, now_ + kAhead));
    ASSERT_TRUE(b_->Flush().ok());
    now_ += back;
    ASSERT_TRUE(a_->Read(now_).ok());
    ASSERT_TRUE(a_->TakeAnswer(a_->Next()->payload, now_));
  };
  EXPECT_FALSE(a_->rtt().has_value());
  EXPECT_FALSE(a_->clock(now_).has_value());
  const auto error_ns = [this](absl::Time at) {
    const ClockReading reading = a_->clock(at).value_or(ClockReading());
    EXPECT_LE(std::abs(reading.ahead_ns - absl::ToInt64Nanoseconds(kAhead)),
              static_cast<int64_t>(reading.error_ns));
    return reading.error_ns;
  };
  // One way takes all the time: the error is as large as it can be.
  beat(absl::Milliseconds(5), absl::ZeroDuration());
  EXPECT_EQ(a_->rtt(), absl::Milliseconds(5));
  EXPECT_EQ(error_ns(now_), 2'500'001u);
  beat(absl::ZeroDuration(), absl::Microseconds(40));
  EXPECT_EQ(error_ns(now_), 20'001u);
  // A worse measurement is not used, until the clocks may have drifted further apart.
  beat(absl::Microseconds(50), absl::Microseconds(50));
  EXPECT_EQ(a_->rtt(), absl::Microseconds(100));
  EXPECT_EQ(error_ns(now_), 20'004u);
  EXPECT_EQ(error_ns(now_ + absl::Seconds(1)), 50'004u);
  now_ += absl::Seconds(2);
  beat(absl::Microseconds(50), absl::Microseconds(50));
  EXPECT_EQ(error_ns(now_), 50'001u);
  for (size_t i = 0; i < 3 * kClockSamples; ++i) beat(absl::Seconds(1), absl::Seconds(1));
  EXPECT_EQ(a_->n_clock_samples(), kClockSamples);
  EXPECT_EQ(error_ns(now_), 1'000'000'001u);

  // Numbers that cannot be are left out.
  EXPECT_FALSE(b_->TakeBeat("short", now_));
  EXPECT_FALSE(a_->TakeAnswer("short", now_));
  for (const int64_t sent_ns : {std::numeric_limits<int64_t>::min(), absl::ToUnixNanos(now_) + 1,
                                std::numeric_limits<int64_t>::max()}) {
    const int64_t answer[2] = {sent_ns, std::numeric_limits<int64_t>::min()};
    EXPECT_TRUE(a_->TakeAnswer({reinterpret_cast<const char*>(answer), sizeof(answer)}, now_));
    EXPECT_EQ(a_->rtt(), absl::Seconds(2)) << sent_ns;
    EXPECT_EQ(error_ns(now_), 1'000'000'001u) << sent_ns;
  }
}

TEST(ResolveTest, TakesHostsAndPorts) {
  EXPECT_EQ(Resolve("10.1.2.3:80")->Text(), "10.1.2.3:80");
  EXPECT_EQ(Resolve("[fd00::1]:7000")->Text(), "[fd00::1]:7000");
  // A name that needs neither /etc/hosts nor a server of names.
  EXPECT_EQ(Resolve("127.1:7000")->Text(), "127.0.0.1:7000");
  for (const char* wrong : {"", "host", "host:", ":80", "10.1.2.3:0", "10.1.2.3:65536", "fd00::1",
                            "fd00::1:80", "[fd00::1]", "10.1.2.3:8x"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Resolve(wrong).status())) << wrong;
  }
}

TEST(FindInterfaceTest, FindsByNameAddressAndRoute) {
  const Address local = {"127.0.0.1", 80, false};
  for (const char* name : {"", "lo", "127.0.0.1"}) {
    const absl::StatusOr<Interface> found = FindInterface(name, local);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->name, "lo");
    EXPECT_EQ(found->address.host, "127.0.0.1");
  }
  EXPECT_TRUE(absl::IsNotFound(FindInterface("no0", local).status()));
}

TEST(ListenTest, TakesAFreePortOfTheRange) {
  Address first = {"127.0.0.1", 0, false}, second = first, third = first;
  const absl::StatusOr<wire::UniqueFd> one = Listen(&first, 21'350, 21'351);
  const absl::StatusOr<wire::UniqueFd> two = Listen(&second, 21'350, 21'351);
  ASSERT_TRUE(one.ok() && two.ok()) << one.status() << two.status();
  EXPECT_NE(first.port, second.port);
  const absl::Status status = Listen(&third, 21'350, 21'351).status();
  EXPECT_TRUE(absl::StrContains(status.message(), "another program")) << status;
}

}  // namespace
}  // namespace iris::port
