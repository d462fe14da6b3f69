#include "server/port/ports.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "proto/wire/rights.h"
#include "server/keep/testing/manager.h"
#include "server/port/handshake.h"

namespace iris::server {
namespace {

constexpr JobId kJob{7};

// A port process that is the other end of its link, in this test.
class FakePort : public RunningWorker {
 public:
  FakePort(wire::UniqueFd link, int pidfd) : link_(std::move(link)), pidfd_(pidfd) {}
  pid_t pid() const override { return 4711; }
  int pidfd() const override { return pidfd_; }
  wire::UniqueFd TakeLink() override { return std::move(link_); }
  void Kill() override {}
  std::optional<std::string> Reap() override { return "exited with 0"; }

 private:
  wire::UniqueFd link_;
  const int pidfd_;
};

class PortsTest : public testing::Test {
 protected:
  void SetUp() override {
    int ends[2] = {-1, -1};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    port_ = wire::UniqueFd(ends[0]);
    auto process = std::make_shared<std::unique_ptr<RunningWorker>>(
        std::make_unique<FakePort>(wire::UniqueFd(ends[1]), pidfd_.get()));
    setup_.start = [process](const StartPort&) -> WorkerProgram::Started {
      return std::move(*process);
    };
    setup_.silence = silence_;
    setup_.etcd = etcd_;
    setup_.etcd_tls = [this] { return etcd_tls_; };
    setup_.submit = [this](const Input& input) {
      absl::MutexLock lock(&mu_);
      inputs_.push_back(input);
      if (const auto* failed = std::get_if<PortFailed>(&input)) failed_ = failed->reason;
    };
    auto ports = Ports::Create(setup_, &logger_);
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
  Ports::Setup setup_;
  wire::UniqueFd pidfd_;  // of the port process
  std::string rendezvous_ = "a:4711";
  std::vector<std::string> etcd_;
  absl::StatusOr<port::EtcdTls> etcd_tls_ = port::EtcdTls();
  const Logger logger_{LogLevel::kError, LogFormat::kKeyValue};
  absl::Mutex mu_;
  std::string failed_ ABSL_GUARDED_BY(mu_);
  std::vector<Input> inputs_ ABSL_GUARDED_BY(mu_);
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

// A port process that outlives its irisd: a child of this test, whose descriptors a manager keeps.
class KeptPortTest : public PortsTest {
 protected:
  void SetUp() override {
    setup_.keeper = manager_.keeper.get();
    child_ = fork();
    if (child_ == 0) {
      pause();
      _exit(0);
    }
    pidfd_.Reset(static_cast<int>(syscall(SYS_pidfd_open, child_, 0)));
    PortsTest::SetUp();
    const auto [type, payload, fd] = Next();
    ASSERT_EQ(type, LinkType::kPortSetup);
    ASSERT_TRUE(fd != nullptr && fd->valid());
    attach_ = std::move(*fd);
    EXPECT_EQ(Told(), "FDSTORE=1\nFDNAME=nH\nFDPOLL=0");
    ASSERT_EQ(kept_.size(), 2u);
  }
  ~KeptPortTest() override {
    ports_.reset();
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }

  // What irisd has told the manager; its descriptors are kept.
  std::string Told() {
    char text[256];
    wire::Rights rights;
    const ssize_t n = wire::ReceiveRights(manager_.socket.get(), text, sizeof(text), 0, &rights);
    if (!rights.fds.empty()) kept_ = std::move(rights.fds);
    return std::string(text, static_cast<size_t>(std::max<ssize_t>(n, 0)));
  }
  struct Got {
    LinkType type{};
    std::string payload;
    std::unique_ptr<wire::UniqueFd> fd;
  };
  // The next message to the port.
  Got Next() {
    for (int i = 0; i < 2000; ++i) {
      auto message = reader_->Next();
      if (!message.ok()) break;
      if (message->has_value()) {
        return {(*message)->type(), std::string((*message)->payload),
                std::make_unique<wire::UniqueFd>(std::move((*message)->fd))};
      }
      if (!reader_->Receive(port_.get()).ok()) break;
      absl::SleepFor(absl::Milliseconds(5));
    }
    ADD_FAILURE() << "nothing comes";
    return {};
  }
  // Starts another irisd; this one does nothing any more.
  void Restart(std::vector<wire::UniqueFd> kept) {
    auto ports = Ports::Create(setup_, &logger_);
    ASSERT_TRUE(ports.ok()) << ports.status();
    std::swap(ports_, *ports);
    before_ = *std::move(ports);
    AttachPort wanted{.job = kJob, .node = 2, .n_ranks = 8, .heard = 3, .sent = 5, .taken = 3};
    wanted.layout.segments.push_back({.id = SegmentId{9}});
    ports_->Attach(wanted, std::move(kept));
  }
  // The port gets its new link.
  void TakeLink() {
    PortAttach attach = {.magic = 0};
    wire::Rights rights;
    for (int i = 0; i < 2000 && rights.fds.empty(); ++i) {
      (void)wire::ReceiveRights(attach_.get(), &attach, sizeof(attach), MSG_DONTWAIT, &rights);
      absl::SleepFor(absl::Milliseconds(5));
    }
    ASSERT_EQ(rights.fds.size(), 1u);
    EXPECT_EQ(attach.magic, PortAttach::kMagic);
    EXPECT_EQ(attach.version, kPortLinkVersion);
    EXPECT_EQ(attach.node_version, port::kProtocolVersion);
    link_before_ = std::exchange(port_, std::move(rights.fds.front()));
    reader_ = std::make_unique<LinkReader>(LinkSender::kCore);
  }
  std::vector<Input> Inputs() {
    absl::MutexLock lock(&mu_);
    return inputs_;
  }
  template <typename T>
  std::optional<T> Submitted() {
    for (int i = 0; i < 2000; ++i) {
      {
        absl::MutexLock lock(&mu_);
        for (auto each = inputs_.rbegin(); each != inputs_.rend(); ++each) {
          if (const T* const found = std::get_if<T>(&*each)) return *found;
        }
      }
      absl::SleepFor(absl::Milliseconds(5));
    }
    return std::nullopt;
  }

  ServiceManager manager_{10};
  pid_t child_ = -1;
  std::vector<wire::UniqueFd> kept_;
  wire::UniqueFd attach_;  // the port's
  std::unique_ptr<LinkReader> reader_ = std::make_unique<LinkReader>(LinkSender::kCore);
  std::unique_ptr<Ports> before_;
  wire::UniqueFd link_before_;
};

TEST_F(KeptPortTest, AnotherIrisdAttaches) {
  Restart(std::move(kept_));
  for (const uint64_t number : {4, 5, 6}) {
    ports_->Send({.job = kJob, .message = NodeWithdrawn{}, .number = number});
  }
  TakeLink();
  const Got first = Next();
  ASSERT_EQ(first.type, LinkType::kPortResume);
  port::Resume resume;
  ASSERT_TRUE(resume.ParseFromString(first.payload));
  EXPECT_EQ(resume.taken(), 3u);
  ASSERT_EQ(resume.segment_ids_size(), 1);
  EXPECT_EQ(resume.segment_ids(0), 9u);
  port::Ready ready;
  ready.set_address("10.0.0.1:5");
  ready.set_taken(4);
  Say(LinkType::kPortReady, ready);
  for (const uint64_t number : {5, 6}) {
    const Got sent = Next();
    ASSERT_EQ(sent.type, LinkType::kPortToNode);
    port::NodeMessage message;
    ASSERT_TRUE(message.ParseFromString(sent.payload));
    EXPECT_EQ(message.number(), number);
  }
  EXPECT_EQ(Report([](const PortReport&) { return true; })->address, "10.0.0.1:5");
  EXPECT_EQ(Submitted<PortTook>()->taken, 4u);
  EXPECT_FALSE(absl::c_any_of(
      Inputs(), [](const Input& each) { return std::holds_alternative<PortReady>(each); }));
  // What it says is acknowledged when it is in the state, at the latest after a report.
  port::NodeState state;
  state.set_lost(true);
  state.set_number(4);
  Say(LinkType::kPortNode, state);
  port::Report report;
  report.set_taken(6);
  Say(LinkType::kPortReport, report);
  const Got took = Next();
  ASSERT_EQ(took.type, LinkType::kPortTook);
  port::Took number;
  ASSERT_TRUE(number.ParseFromString(took.payload));
  EXPECT_EQ(number.taken(), 4u);
  EXPECT_EQ(Submitted<NodeLost>()->number, 4u);
  EXPECT_EQ(Submitted<PortTook>()->taken, 6u);
  report.set_taken(7);
  Say(LinkType::kPortReport, report);
  EXPECT_TRUE(absl::StrContains(Failed(), "was not sent")) << Failed();
  // It is killed, and nothing of it is kept.
  EXPECT_EQ(Told(), "FDSTOREREMOVE=1\nFDNAME=nH");
  int status = 0;
  EXPECT_EQ(waitpid(std::exchange(child_, -1), &status, 0) > 0, true);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
}

TEST_F(KeptPortTest, APortThatHasEndedMeanwhile) {
  attach_.Reset();
  Restart(std::move(kept_));
  EXPECT_TRUE(absl::StrContains(Failed(), "irisd was restarted: the port process has ended"))
      << Failed();
}

TEST_F(KeptPortTest, APortWhoseDescriptorsWereNotKept) {
  kept_.pop_back();
  Restart(std::move(kept_));
  EXPECT_TRUE(absl::StrContains(Failed(), "were not kept")) << Failed();
}

TEST_F(KeptPortTest, AnythingInPlaceOfThePidfd) {
  for (wire::UniqueFd& fd : kept_) {
    int type = 0;
    socklen_t length = sizeof(type);
    if (getsockopt(fd.get(), SOL_SOCKET, SO_TYPE, &type, &length) != 0) fd.Reset(dup(STDIN_FILENO));
  }
  Restart(std::move(kept_));
  EXPECT_TRUE(absl::StrContains(Failed(), "kept as a pidfd is none")) << Failed();
}

class SilentKeptPortTest : public KeptPortTest {
 protected:
  SilentKeptPortTest() { silence_ = absl::Seconds(1); }
};

TEST_F(SilentKeptPortTest, APortThatDoesNotAnswerTheNextIrisdHangs) {
  Restart(std::move(kept_));
  EXPECT_TRUE(absl::StrContains(Failed(), "says nothing for 1s")) << Failed();
}

TEST_F(KeptPortTest, APortThatTakesNothing) {
  Say(LinkType::kPortReady, port::Ready());
  for (uint64_t number = 1; number <= (1 << 17) + 1; ++number) {
    ports_->Send({.job = kJob, .message = NodeWithdrawn{}, .number = number});
  }
  EXPECT_TRUE(absl::StrContains(Failed(), "has not taken 131073 messages")) << Failed();
}

TEST_F(KeptPortTest, APortThatReadsAndTakesNothing) {
  Say(LinkType::kPortReady, port::Ready());
  const OperationDecided large = {.op = BroadcastOp{0, SharedBytes(std::string(1 << 20, 'x'))}};
  for (uint64_t number = 1; number < 64; ++number) {
    ports_->Send({.job = kJob, .message = large, .number = number});
    EXPECT_EQ(Next().type, LinkType::kPortToNode) << number;
  }
  ports_->Send({.job = kJob, .message = large, .number = 64});
  EXPECT_TRUE(absl::StrContains(Failed(), "has not taken 64 messages")) << Failed();
}

}  // namespace
}  // namespace iris::server
