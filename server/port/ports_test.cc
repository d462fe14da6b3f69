#include "server/port/ports.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

namespace iris::server {
namespace {

constexpr JobId kJob{7};

// A port process that is the other end of its link, in this test.
class FakePort : public RunningWorker {
 public:
  explicit FakePort(wire::UniqueFd link) : link_(std::move(link)) {}
  pid_t pid() const override { return 4711; }
  int pidfd() const override { return -1; }
  wire::UniqueFd TakeLink() override { return std::move(link_); }
  void Kill() override {}
  std::optional<std::string> Reap() override { return "exited with 0"; }

 private:
  wire::UniqueFd link_;
};

class PortsTest : public testing::Test {
 protected:
  void SetUp() override {
    int ends[2] = {-1, -1};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    port_ = wire::UniqueFd(ends[0]);
    auto process = std::make_shared<std::unique_ptr<RunningWorker>>(
        std::make_unique<FakePort>(wire::UniqueFd(ends[1])));
    Ports::Setup setup;
    setup.start = [process](const StartPort&) -> WorkerProgram::Started {
      return std::move(*process);
    };
    setup.silence = silence_;
    setup.etcd = etcd_;
    setup.etcd_tls = [this] { return etcd_tls_; };
    setup.submit = [this](const Input& input) {
      absl::MutexLock lock(&mu_);
      if (const auto* failed = std::get_if<PortFailed>(&input)) failed_ = failed->reason;
    };
    auto ports = Ports::Create(std::move(setup), &logger_);
    ASSERT_TRUE(ports.ok()) << ports.status();
    ports_ = *std::move(ports);
    StartPort wanted{.job = kJob, .name = "train", .caller = {}, .node = 2, .n_local = 2};
    wanted.n_ranks = 8;
    wanted.secret = "0123456789abcdef";
    wanted.rendezvous = rendezvous_;
    wanted.join_timeout = absl::Seconds(30);
    ports_->Start(wanted, {});
  }

  void SayBytes(LinkType type, std::string bytes) {
    LinkWriter writer;
    writer.Queue({.type = type}, {std::move(bytes), nullptr});
    ASSERT_TRUE(writer.Flush(port_.get()).ok());
  }
  template <typename Message>
  void Say(LinkType type, const Message& message) {
    SayBytes(type, message.SerializeAsString());
  }
  // Waits for a report that `fits`.
  std::optional<PortReport> Report(const std::function<bool(const PortReport&)>& fits) {
    for (int i = 0; i < 2000; ++i) {
      std::optional<PortReport> report = ports_->ReportOf(kJob);
      if (report.has_value() && fits(*report)) return report;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return std::nullopt;
  }
  std::string Failed() {
    absl::MutexLock lock(&mu_);
    mu_.AwaitWithTimeout(absl::Condition(
                             +[](std::string* failed) { return !failed->empty(); }, &failed_),
                         absl::Seconds(10));
    return failed_;
  }

  absl::Duration silence_ = absl::Minutes(1);
  std::string rendezvous_ = "a:4711";
  std::vector<std::string> etcd_;
  absl::StatusOr<port::EtcdTls> etcd_tls_ = port::EtcdTls();
  const Logger logger_{LogLevel::kError, LogFormat::kKeyValue};
  absl::Mutex mu_;
  std::string failed_ ABSL_GUARDED_BY(mu_);
  wire::UniqueFd port_;
  std::unique_ptr<Ports> ports_;
};

// A port process is its user's: iris-ctl shows what it reports to an operator.
TEST_F(PortsTest, AReportIsCleanedAndCut) {
  EXPECT_FALSE(ports_->ReportOf(kJob).has_value());
  port::Ready ready;
  ready.set_ucx_version("1.22.0\033[2J");
  ready.set_transports(std::string(5000, 't'));
  Say(LinkType::kPortReady, ready);
  std::optional<PortReport> report = Report([](const PortReport&) { return true; });
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->ucx_version, "1.22.0?[2J");
  EXPECT_EQ(report->transports.size(), 64u);
  EXPECT_TRUE(report->peers.empty());

  port::Report said;
  said.set_refused_messages(9);
  for (const uint32_t node : {0u, 2u, 4u, 8u, 4'000'000'000u, 4u}) {
    port::Report::Peer& peer = *said.add_peers();
    peer.set_node(node);
    peer.set_address(std::string(1000, '\n'));
    peer.set_transport("tcp/\u202eeth0");
    peer.set_heard_ms(~uint64_t{0});
    peer.set_rtt_us(~uint64_t{0});
    peer.set_clock_ahead_ns(-5);
    peer.set_clock_error_ns(~uint64_t{0});
    peer.set_sent_bytes(node + 1);
  }
  said.mutable_peers(0)->clear_rtt_us();
  said.mutable_peers(0)->clear_clock_ahead_ns();
  Say(LinkType::kPortReport, said);
  report = Report([](const PortReport& seen) { return !seen.peers.empty(); });
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->refused_messages, 9u);
  ASSERT_EQ(report->peers.size(), 2u) << "neither this node nor one that cannot be";
  EXPECT_EQ(report->peers.begin()->first, 0u);
  EXPECT_FALSE(report->peers.at(0).rtt_us.has_value());
  EXPECT_FALSE(report->peers.at(0).clock_ahead_ns.has_value());
  const PortReport::Peer& peer = report->peers.at(4);
  EXPECT_EQ(peer.address, std::string(64, '?'));
  EXPECT_TRUE(absl::EndsWith(peer.transport, "?eth0")) << peer.transport;
  EXPECT_LE(peer.heard_ms, 366ull * 24 * 3600 * 1000);
  EXPECT_LE(peer.rtt_us, 366ull * 24 * 3600 * 1'000'000);
  EXPECT_EQ(peer.clock_ahead_ns, -5);
  EXPECT_LE(peer.clock_error_ns, 366ull * 24 * 3600 * 1'000'000'000);
  EXPECT_EQ(peer.sent_bytes, 5u);

  ports_->Stop(kJob);
  for (int i = 0; i < 2000 && ports_->ReportOf(kJob).has_value(); ++i) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_FALSE(ports_->ReportOf(kJob).has_value());
}

TEST_F(PortsTest, NonsenseInPlaceOfAReportEndsThePort) {
  Say(LinkType::kPortReady, port::Ready());
  ASSERT_TRUE(Report([](const PortReport&) { return true; }).has_value());
  SayBytes(LinkType::kPortReport, "\x0a\x7f truncated");
  EXPECT_TRUE(absl::StrContains(Failed(), "nonsense")) << Failed();
  EXPECT_FALSE(ports_->ReportOf(kJob).has_value());
}

class SilentPortTest : public PortsTest {
 protected:
  SilentPortTest() { silence_ = absl::Seconds(1); }
};

TEST_F(SilentPortTest, APortThatSaysNothingHangs) {
  // Until it is ready it may take as long as the join.
  absl::SleepFor(absl::Milliseconds(1200));
  Say(LinkType::kPortReady, port::Ready());
  EXPECT_TRUE(absl::StrContains(Failed(), "says nothing for 1s")) << Failed();
}

class NoRendezvousTest : public PortsTest {
 protected:
  NoRendezvousTest() { rendezvous_.clear(); }
};

TEST_F(NoRendezvousTest, IsRefusedWithBothRemedies) {
  EXPECT_TRUE(absl::StrContains(Failed(), "set IRIS_RENDEZVOUS")) << Failed();
  EXPECT_TRUE(absl::StrContains(Failed(), "network.etcd")) << Failed();
}

class EtcdTest : public NoRendezvousTest {
 protected:
  EtcdTest() {
    etcd_ = {"a:2379", "b:2379"};
    etcd_tls_->set_key("a key");
  }
};

TEST_F(EtcdTest, APortWithoutARendezvousGetsEtcdAndFailsBeforeTheJoin) {
  LinkReader reader{LinkSender::kCore};
  absl::StatusOr<std::optional<LinkMessage>> message = std::optional<LinkMessage>();
  for (int i = 0; i < 2000 && message.ok() && !message->has_value(); ++i) {
    absl::SleepFor(absl::Milliseconds(5));
    ASSERT_TRUE(reader.Receive(port_.get()).ok());
    message = reader.Next();
  }
  ASSERT_TRUE(message.ok() && message->has_value());
  ASSERT_EQ((*message)->type(), LinkType::kPortSetup);
  port::Setup setup;
  ASSERT_TRUE(setup.ParseFromString(std::string((*message)->payload)));
  EXPECT_EQ(setup.rendezvous(), "");
  ASSERT_EQ(setup.etcd_size(), 2);
  EXPECT_EQ(setup.etcd(1), "b:2379");
  EXPECT_EQ(setup.etcd_tls().key(), "a key");
  EXPECT_EQ(setup.connect_ms(), 29'000u);
}

class UnreadableEtcdKeyTest : public EtcdTest {
 protected:
  UnreadableEtcdKeyTest() { etcd_tls_ = absl::NotFoundError("the key is not there"); }
};

TEST_F(UnreadableEtcdKeyTest, EndsThePort) { EXPECT_EQ(Failed(), "the key is not there"); }

}  // namespace
}  // namespace iris::server
