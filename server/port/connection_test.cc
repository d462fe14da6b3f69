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

// Returns which of the senders a socket at `loopback` hears that accepts packets of `hosts` alone.
std::vector<std::string> Heard(const std::string& loopback, const std::vector<std::string>& senders,
                               const std::vector<std::string>& hosts) {
  const bool ipv6 = loopback == "::1";
  const auto open = [&](const std::string& at, struct sockaddr_storage* address) {
    *address = {};
    address->ss_family = ipv6 ? AF_INET6 : AF_INET;
    void* const number =
        ipv6 ? static_cast<void*>(&reinterpret_cast<struct sockaddr_in6*>(address)->sin6_addr)
             : &reinterpret_cast<struct sockaddr_in*>(address)->sin_addr;
    EXPECT_EQ(inet_pton(address->ss_family, at.c_str(), number), 1);
    wire::UniqueFd fd(socket(address->ss_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    socklen_t length = sizeof(*address);
    struct sockaddr* const any = reinterpret_cast<struct sockaddr*>(address);
    const socklen_t bytes = ipv6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    EXPECT_EQ(bind(fd.get(), any, bytes), 0) << at;
    EXPECT_EQ(getsockname(fd.get(), any, &length), 0);
    return fd;
  };
  struct sockaddr_storage here, there;
  const wire::UniqueFd receiver = open(loopback, &here);
  const absl::Status filtered = AcceptOnlyFrom(receiver.get(), ipv6, hosts);
  EXPECT_TRUE(filtered.ok()) << filtered;
  std::vector<std::string> heard;
  for (const std::string& sender : senders) {
    const wire::UniqueFd fd = open(sender, &there);
    const socklen_t bytes = ipv6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    // The kernel drops the packet, or queues it, before the call returns. A socket reports EPERM
    // if its packet to this machine is dropped.
    (void)sendto(fd.get(), "x", 1, 0, reinterpret_cast<struct sockaddr*>(&here), bytes);
    char byte = 0;
    if (recv(receiver.get(), &byte, 1, 0) == 1) heard.push_back(sender);
  }
  return heard;
}

TEST(AcceptOnlyFromTest, ListedHostsAloneAreHeard) {
  using Hosts = std::vector<std::string>;
  const Hosts senders = {"127.0.0.1", "127.0.1.1", "127.0.1.2", "127.0.1.3",
                         "127.0.1.4", "127.0.3.7", "127.0.3.8", "127.0.255.255"};
  EXPECT_EQ(Heard("127.0.0.1", senders, {}), Hosts());
  EXPECT_EQ(Heard("127.0.0.1", senders, {"127.0.3.8", "no address", "::1"}), Hosts({"127.0.3.8"}));
  EXPECT_EQ(Heard("127.0.0.1", senders,
                  {"127.0.3.7", "127.0.1.3", "127.0.1.1", "127.0.1.2", "127.0.1.2"}),
            Hosts({"127.0.1.1", "127.0.1.2", "127.0.1.3", "127.0.3.7"}));
  // Every second host of some networks, and every host of others. Linux before 6.8 has room for no
  // more by default.
  Hosts many;
  for (int i = 0; i < 2000; ++i) many.push_back(absl::StrCat("127.9.", i / 128, ".", i % 128 * 2));
  many.push_back("127.0.3.7");
  EXPECT_EQ(Heard("127.0.0.1", senders, many), Hosts({"127.0.3.7"}));
  many = {"127.0.255.255"};
  for (int i = 0; i < 8192; ++i) many.push_back(absl::StrCat("127.0.", i / 256, ".", i % 256));
  EXPECT_EQ(Heard("127.0.0.1", senders, many), senders);
  for (int i = 0; i < 5000; ++i) many.push_back(absl::StrCat("127.9.", i / 128, ".", i % 128 * 2));
  const absl::Status status =
      AcceptOnlyFrom(wire::UniqueFd(socket(AF_INET, SOCK_DGRAM, 0)).get(), false, many);
  EXPECT_TRUE(absl::StrContains(status.message(), "13193 other nodes")) << status;
}

TEST(AcceptOnlyFromTest, HostsOfIpv6) {
  using Hosts = std::vector<std::string>;
  const wire::UniqueFd probe(socket(AF_INET6, SOCK_DGRAM, 0));
  struct sockaddr_in6 loopback = {};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = in6addr_loopback;
  if (bind(probe.get(), reinterpret_cast<struct sockaddr*>(&loopback), sizeof(loopback)) != 0) {
    GTEST_SKIP() << "this machine has no IPv6";
  }
  for (const Hosts& without : std::vector<Hosts>{
           {}, {"::2", "::3", "::"}, {"1::1"}, {"0:1::1"}, {"0:0:1::1"}, {"::1:0:1"}}) {
    EXPECT_EQ(Heard("::1", {"::1"}, without), Hosts());
    for (const std::string more : {"::1", "::1%lo"}) {
      Hosts with = without;
      with.push_back(more);
      EXPECT_EQ(Heard("::1", {"::1"}, with), Hosts({"::1"}));
    }
  }
  Hosts many;
  for (int i = 0; i < 200; ++i) many.push_back(absl::StrCat("fd00::", absl::Hex(i), ":0:1"));
  EXPECT_EQ(Heard("::1", {"::1"}, many), Hosts());
  many.push_back("::1");
  EXPECT_EQ(Heard("::1", {"::1"}, many), Hosts({"::1"}));
  many.clear();
  for (int i = 0; i < 2000; ++i) many.push_back(absl::StrCat("fd00::", absl::Hex(2 * i)));
  EXPECT_EQ(Heard("::1", {"::1"}, many), Hosts());
  many.push_back("::1");
  EXPECT_EQ(Heard("::1", {"::1"}, many), Hosts({"::1"}));
}

}  // namespace
}  // namespace iris::port
