#include "server/tenant/worker_link.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "device/base/descriptors.h"
#include "server/job/clock.h"
#include "server/tenant/testing/fake_worker.h"

namespace iris::server {
namespace {

// A service that answers nothing by itself, and records its calls.
class Service {
 public:
  struct Asked : ActiveCall {
    IncomingCall call;
    std::string request;
    int cancelled = 0;
    int sent = 0;
    void OnCancel() override {
      ++cancelled;
      call.reply->Finish(absl::CancelledError("cancelled"));
    }
    void OnSent() override { ++sent; }
  };

  std::shared_ptr<ActiveCall> Serve(const IncomingCall& call) {
    auto asked = std::make_shared<Asked>();
    asked->call = call;
    asked->request = std::string(call.request);
    calls.push_back(asked);
    if (at_once) {
      call.reply->Send({std::string(answer_bytes, 'a'), nullptr});
      call.reply->Finish(absl::OkStatus());
      return nullptr;
    }
    return asked;
  }

  bool at_once = false;
  size_t answer_bytes = 10;
  std::vector<std::shared_ptr<Asked>> calls;
};

class WorkerLinkTest : public ::testing::Test {
 protected:
  WorkerLinkTest() {
    poller_ = *Poller::Create();
    WorkerLink::Owner owner;
    owner.ready = [this] { ++ready_; };
    owner.closed = [this](uint64_t connection) { closed_.push_back(connection); };
    owner.ended = [this](const absl::Status& status) { ended_.push_back(status); };
    owner.close_socket = [this](wire::UniqueFd) { ++sockets_closed_; };
    owner.close_given = [this](wire::UniqueFd) { ++given_closed_; };
    link_ = *WorkerLink::Create(
        worker_.TakeCoreEnd(), poller_.get(),
        [this](const IncomingCall& call) { return service_.Serve(call); }, std::move(owner));
  }
  ~WorkerLinkTest() override { link_->Close(); }

  // Lets the session thread do all that there is to do.
  void Turn() {
    for (int i = 0; i < 20; ++i) {
      worker_.Flush();
      poller_->Wait(absl::ZeroDuration());
      const absl::Time now = SteadyNow();
      if (link_->deadline() <= now) link_->Continue(now);
    }
  }

  void Connect(uint64_t connection, uint64_t session = 0, uint32_t uid = 1000) {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    close(pair[1]);
    RpcPeer peer;
    peer.session = SessionId{session};
    peer.caller.party.uid = uid;
    link_->Connect(connection, peer, wire::UniqueFd(pair[0]));
  }

  // Lets what is due `in` from now happen.
  void ContinueAfter(absl::Duration in) {
    const absl::Time now = SteadyNow() + in;
    if (link_->deadline() <= now) link_->Continue(now);
  }

  // A worker that is ready and has connection 1.
  void Begin() {
    worker_.Ready();
    Turn();
    Connect(1, /*session=*/77);
    (void)worker_.Hear();
  }

  void ExpectEnded(const std::string& text) {
    ASSERT_EQ(ended_.size(), 1u) << "the link goes on; expected: " << text;
    EXPECT_TRUE(absl::StrContains(ended_[0].message(), text)) << ended_[0];
    (void)worker_.Hear();
    EXPECT_TRUE(worker_.closed());
  }

  std::unique_ptr<Poller> poller_;
  FakeWorker worker_;
  Service service_;
  int ready_ = 0;
  int sockets_closed_ = 0;
  int given_closed_ = 0;
  std::vector<uint64_t> closed_;
  std::vector<absl::Status> ended_;
  std::shared_ptr<WorkerLink> link_;
};

TEST_F(WorkerLinkTest, HandsOverAConnectionAndRelaysACall) {
  worker_.Ready();
  Turn();
  EXPECT_EQ(ready_, 1);
  Connect(1, /*session=*/77, /*uid=*/1234);
  auto heard = worker_.Hear();
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(heard[0].type(), LinkType::kConnect);
  EXPECT_TRUE(heard[0].fd.valid());
  worker_.Call(1, 1, Method::kOperate, "request");
  Turn();
  ASSERT_EQ(service_.calls.size(), 1u);
  EXPECT_EQ(service_.calls[0]->call.method, Method::kOperate);
  EXPECT_EQ(service_.calls[0]->call.session.value, 77u);
  EXPECT_EQ(service_.calls[0]->call.caller.party.uid, 1234u);
  EXPECT_EQ(service_.calls[0]->request, "request");
  const auto tail = std::make_shared<const std::string>(100'000, 't');
  service_.calls[0]->call.reply->Send({"head", tail});
  service_.calls[0]->call.reply->Finish(absl::OkStatus());
  Turn();
  heard = worker_.Hear();
  ASSERT_EQ(heard.size(), 2u);
  EXPECT_EQ(heard[0].type(), LinkType::kMessage);
  EXPECT_EQ(heard[0].header.call, 1u);
  EXPECT_EQ(heard[0].payload, "head" + *tail);
  EXPECT_EQ(heard[1].type(), LinkType::kFinish);
  EXPECT_EQ(heard[1].header.code, 0u);
  EXPECT_TRUE(ended_.empty());
}

TEST_F(WorkerLinkTest, AnErrorsTextIsCut) {
  Begin();
  worker_.Call(1, 1, Method::kJoin);
  Turn();
  service_.calls.at(0)->call.reply->Finish(absl::NotFoundError(std::string(5000, 'x')));
  const auto heard = worker_.Hear();
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(heard[0].header.code, 5u);
  EXPECT_EQ(heard[0].payload, std::string(wire::kMaxErrorTextBytes, 'x'));
}

TEST_F(WorkerLinkTest, WhoTheCallerIsIsTheConnections) {
  Begin();
  Connect(2, /*session=*/88, /*uid=*/7);
  worker_.Call(2, 1, Method::kJoin);
  worker_.Call(1, 2, Method::kJoin);
  Turn();
  ASSERT_EQ(service_.calls.size(), 2u);
  EXPECT_EQ(service_.calls[0]->call.session.value, 88u);
  EXPECT_EQ(service_.calls[0]->call.caller.party.uid, 7u);
  EXPECT_EQ(service_.calls[1]->call.session.value, 77u);
}

TEST_F(WorkerLinkTest, ACancelledCallIsFinishedOnceAndItsEndIsIgnored) {
  Begin();
  worker_.Call(1, 1, Method::kJoin);
  worker_.Say(LinkType::kCancel, 0, 1);
  worker_.Say(LinkType::kCancel, 0, 1);
  Turn();
  EXPECT_EQ(service_.calls.at(0)->cancelled, 1);
  service_.calls[0]->call.reply->Send({"late", nullptr});
  service_.calls[0]->call.reply->Finish(absl::OkStatus());
  const auto heard = worker_.Hear();
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(heard[0].type(), LinkType::kFinish);
  EXPECT_EQ(heard[0].header.code, 1u);
  EXPECT_TRUE(ended_.empty());
}

TEST_F(WorkerLinkTest, StreamsGetTheirCredits) {
  Begin();
  worker_.Call(1, 1, Method::kWatch);
  Turn();
  for (int i = 0; i < 3; ++i) service_.calls.at(0)->call.reply->Send({"event", nullptr});
  EXPECT_EQ(worker_.Hear().size(), 3u);
  for (int i = 0; i < 3; ++i) worker_.Say(LinkType::kSent, 0, 1);
  Turn();
  EXPECT_EQ(service_.calls[0]->sent, 3);
  EXPECT_TRUE(ended_.empty());
}

TEST_F(WorkerLinkTest, DisconnectCancelsAndWaitsForTheWorker) {
  Begin();
  worker_.Call(1, 1, Method::kJoin);
  Turn();
  link_->Disconnect(1);
  EXPECT_EQ(service_.calls.at(0)->cancelled, 1);
  auto heard = worker_.Hear();
  ASSERT_EQ(heard.size(), 1u) << "no kFinish for the calls of an ended connection";
  EXPECT_EQ(heard[0].type(), LinkType::kDisconnect);
  // On its way when the connection ended: no rule is broken, and nobody is asked.
  worker_.Call(1, 2, Method::kJoin);
  worker_.Say(LinkType::kCancel, 0, 2);
  worker_.Say(LinkType::kClosed, 1);
  Turn();
  EXPECT_EQ(service_.calls.size(), 1u);
  EXPECT_EQ(closed_, std::vector<uint64_t>{1});
  EXPECT_TRUE(ended_.empty());
}

TEST_F(WorkerLinkTest, AConnectionThatASlowWorkerHasNotTakenIsWithdrawn) {
  Begin();
  // Until the socket is full, and beyond.
  constexpr uint64_t kConnections = 2000;
  for (uint64_t n = 2; n <= kConnections; ++n) Connect(n);
  const int open_before = base::CountDescriptors();
  uint64_t withdrawn = 0;
  for (uint64_t n = kConnections; n >= 2; --n) withdrawn += link_->Disconnect(n) ? 1 : 0;
  EXPECT_GT(withdrawn, kConnections / 2);
  EXPECT_LE(base::CountDescriptors(), open_before - static_cast<int>(withdrawn));
  std::vector<uint64_t> connected, disconnected;
  for (int i = 0; i < 100; ++i) {
    for (const auto& heard : worker_.Hear()) {
      const bool connect = heard.type() == LinkType::kConnect;
      (connect ? connected : disconnected).push_back(heard.header.connection);
      EXPECT_EQ(heard.fd.valid(), connect);
    }
    Turn();
  }
  EXPECT_EQ(connected.size(), kConnections - 1 - withdrawn);
  EXPECT_EQ(sockets_closed_, static_cast<int>(withdrawn));
  EXPECT_EQ(disconnected.size(), connected.size());
  EXPECT_TRUE(ended_.empty());
}

// The owner closes, by its own means, descriptors that may close slowly: connections that the
// worker has not got, those that it sent, and the link itself.
TEST_F(WorkerLinkTest, ItsEndHandsOverWhatMayCloseSlowly) {
  Begin();
  constexpr uint64_t kConnections = 2000;
  for (uint64_t n = 2; n <= kConnections; ++n) Connect(n);
  const int open_before = base::CountDescriptors();
  worker_.SendDescriptor();
  Turn();
  ASSERT_EQ(ended_.size(), 1u);
  EXPECT_TRUE(absl::StrContains(ended_[0].message(), "sent descriptors")) << ended_[0];
  EXPECT_GT(sockets_closed_, static_cast<int>(kConnections / 2));
  EXPECT_LE(base::CountDescriptors(), open_before - sockets_closed_);
}

// A worker may have closed it before the core does, and a client may have filled it.
TEST_F(WorkerLinkTest, ASocketThatWasGivenIsClosedByTheOwnersMeans) {
  Begin();
  EXPECT_EQ(given_closed_, 1);
  Connect(2);
  EXPECT_EQ(given_closed_, 2);
  EXPECT_EQ(sockets_closed_, 0);
}

TEST_F(WorkerLinkTest, AClosedConnectionCancelsItsCallsAlone) {
  Begin();
  Connect(2);
  worker_.Call(1, 1, Method::kJoin);
  worker_.Call(2, 2, Method::kJoin);
  worker_.Say(LinkType::kClosed, 1);
  Turn();
  EXPECT_EQ(service_.calls.at(0)->cancelled, 1);
  EXPECT_EQ(service_.calls.at(1)->cancelled, 0);
  EXPECT_EQ(closed_, std::vector<uint64_t>{1});
}

TEST_F(WorkerLinkTest, AWorkersDeathCancelsItsCallsAndIsToldOnce) {
  Begin();
  for (uint64_t call = 1; call <= 5; ++call) worker_.Call(1, call, Method::kJoin);
  Turn();
  worker_.Die();
  Turn();
  ASSERT_EQ(service_.calls.size(), 5u);
  for (const auto& call : service_.calls) EXPECT_EQ(call->cancelled, 1);
  ASSERT_EQ(ended_.size(), 1u);
  EXPECT_TRUE(absl::IsUnavailable(ended_[0]));
  service_.calls[0]->call.reply->Finish(absl::OkStatus());  // swallowed
}

TEST_F(WorkerLinkTest, AnswersOfManyThreadsAllArrive) {
  Begin();
  constexpr uint64_t kCalls = 200;
  for (uint64_t call = 1; call <= kCalls; ++call) worker_.Call(1, call, Method::kOperate);
  Turn();
  ASSERT_EQ(service_.calls.size(), kCalls);
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint64_t i = thread; i < kCalls; i += 4) {
        service_.calls[i]->call.reply->Send({std::string(20'000, 'm'), nullptr});
        service_.calls[i]->call.reply->Finish(absl::OkStatus());
      }
    });
  }
  std::map<uint64_t, int> messages, finishes;
  const absl::Time until = SteadyNow() + absl::Seconds(20);
  while (finishes.size() < kCalls && SteadyNow() < until) {
    Turn();
    for (const auto& heard : worker_.Hear()) {
      (heard.type() == LinkType::kMessage ? messages : finishes)[heard.header.call] += 1;
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(finishes.size(), kCalls);
  EXPECT_EQ(messages, finishes);
}

TEST_F(WorkerLinkTest, DoesNotReadFromAWorkerThatTakesNoAnswers) {
  Begin();
  service_.at_once = true;
  service_.answer_bytes = 1 << 20;
  uint64_t call = 0;
  for (int i = 0; i < 100; ++i) {
    worker_.Call(1, ++call, Method::kListAllocations);
    Turn();
  }
  EXPECT_LE(service_.calls.size(), 8u) << "it was asked for more while 4 MiB of answers waited";
  // Once the worker reads, all is answered.
  size_t finished = 0;
  for (int i = 0; i < 2000 && finished < 100; ++i) {
    for (const auto& heard : worker_.Hear()) finished += heard.type() == LinkType::kFinish;
    Turn();
  }
  EXPECT_EQ(finished, 100u);
  EXPECT_TRUE(ended_.empty());
}

TEST_F(WorkerLinkTest, AWorkerThatTakesNothingForLongIsEnded) {
  Begin();
  service_.at_once = true;
  service_.answer_bytes = 1 << 20;
  for (uint64_t call = 1; call <= 10; ++call) worker_.Call(1, call, Method::kListAllocations);
  Turn();
  link_->Continue(SteadyNow() + absl::Seconds(20));
  EXPECT_TRUE(ended_.empty());
  link_->Continue(SteadyNow() + absl::Seconds(31));
  ASSERT_EQ(ended_.size(), 1u);
  EXPECT_TRUE(absl::StrContains(ended_[0].message(), "took nothing for 30s")) << ended_[0];
}

TEST_F(WorkerLinkTest, StreamsOfEventsAreLimited) {
  Begin();
  for (uint64_t call = 1; call <= 40; ++call) worker_.Call(1, call, Method::kEvents);
  Turn();
  EXPECT_EQ(service_.calls.size(), 32u);
  const auto heard = worker_.Hear();
  ASSERT_EQ(heard.size(), 8u);
  for (const auto& finish : heard) {
    EXPECT_EQ(finish.header.code, 8u);
    EXPECT_TRUE(absl::StrContains(finish.payload, "32 streams of events")) << finish.payload;
  }
  // One that ends makes room for another.
  service_.calls[0]->call.reply->Finish(absl::OkStatus());
  worker_.Call(1, 41, Method::kEvents);
  Turn();
  EXPECT_EQ(service_.calls.size(), 33u);
}

TEST_F(WorkerLinkTest, CallsOfTheAdminServiceAreLimited) {
  Begin();
  for (uint64_t call = 1; call <= 40; ++call) worker_.Call(1, call, Method::kListJobs);
  worker_.Call(1, 41, Method::kJoin);  // others go on
  Turn();
  EXPECT_EQ(service_.calls.size(), 33u);
  const auto heard = worker_.Hear();
  ASSERT_EQ(heard.size(), 8u);
  EXPECT_EQ(heard[0].header.code, 8u);
  EXPECT_TRUE(absl::StrContains(heard[0].payload, "32 calls of the admin")) << heard[0].payload;
  for (int i = 0; i < 32; ++i) service_.calls[i]->call.reply->Finish(absl::OkStatus());
  worker_.Call(1, 42, Method::kListJobs);
  Turn();
  EXPECT_EQ(service_.calls.size(), 34u);
}

TEST_F(WorkerLinkTest, MustBeReadyFirst) {
  Connect(1);
  worker_.Call(1, 1, Method::kJoin);
  Turn();
  ExpectEnded("before it was ready");
}

TEST_F(WorkerLinkTest, MustBeReadyOnce) {
  Begin();
  worker_.Ready();
  Turn();
  ExpectEnded("says twice");
}

TEST_F(WorkerLinkTest, MustNotInventAConnection) {
  Begin();
  worker_.Call(2, 1, Method::kJoin);
  Turn();
  ExpectEnded("unknown connection");
  EXPECT_TRUE(service_.calls.empty());
}

TEST_F(WorkerLinkTest, MustNotUseAConnectionThatItClosed) {
  Begin();
  worker_.Say(LinkType::kClosed, 1);
  worker_.Call(1, 1, Method::kJoin);
  Turn();
  ExpectEnded("unknown connection");
}

TEST_F(WorkerLinkTest, MustNotCloseWhatIsNotThere) {
  Begin();
  worker_.Say(LinkType::kClosed, 9);
  Turn();
  ExpectEnded("closes an unknown connection");
}

TEST_F(WorkerLinkTest, MustNotInventAMethod) {
  Begin();
  worker_.Say(LinkType::kCall, 1, 1, "", 999);
  Turn();
  ExpectEnded("method 999");
}

TEST_F(WorkerLinkTest, MustNotUseACallNumberTwice) {
  Begin();
  worker_.Call(1, 5, Method::kJoin);
  Turn();
  service_.calls.at(0)->call.reply->Finish(absl::OkStatus());
  worker_.Call(1, 5, Method::kJoin);
  Turn();
  ExpectEnded("call number");
}

TEST_F(WorkerLinkTest, MustNotCountDownwards) {
  Begin();
  worker_.Call(1, 5, Method::kJoin);
  worker_.Call(1, 4, Method::kJoin);
  Turn();
  ExpectEnded("call number");
}

TEST_F(WorkerLinkTest, MustNotCancelWhatItDidNotCall) {
  Begin();
  worker_.Say(LinkType::kCancel, 0, 1);
  Turn();
  ExpectEnded("cancels an unknown call");
}

TEST_F(WorkerLinkTest, MustNotClaimCredits) {
  Begin();
  worker_.Call(1, 1, Method::kWatch);
  worker_.Say(LinkType::kSent, 0, 1);
  Turn();
  ExpectEnded("what it was not given");
}

TEST_F(WorkerLinkTest, MustNotClaimCreditsOfAUnaryCall) {
  Begin();
  worker_.Call(1, 1, Method::kJoin);
  Turn();
  service_.calls.at(0)->call.reply->Send({"answer", nullptr});
  worker_.Say(LinkType::kSent, 0, 1);
  Turn();
  ExpectEnded("what it was not given");
}

TEST_F(WorkerLinkTest, MustKeepToTheCallsOfAConnection) {
  Begin();
  for (uint64_t call = 1; call <= kMaxCallsPerConnection; ++call) {
    worker_.Call(1, call, Method::kJoin);
  }
  Turn();
  EXPECT_TRUE(ended_.empty());
  worker_.Call(1, kMaxCallsPerConnection + 1, Method::kJoin);
  Turn();
  ExpectEnded("more calls of a connection");
  for (const auto& call : service_.calls) EXPECT_EQ(call->cancelled, 1);
}

TEST_F(WorkerLinkTest, MustKeepToTheCallsOfAWorker) {
  worker_.Ready();
  Turn();
  uint64_t call = 0;
  for (uint64_t connection = 1; call <= kMaxCallsPerWorker; ++connection) {
    Connect(connection);
    (void)worker_.Hear();
    for (uint64_t i = 0; i < 256 && call <= kMaxCallsPerWorker; ++i) {
      worker_.Call(connection, ++call, Method::kJoin);
    }
    Turn();
  }
  ExpectEnded("more calls than its limit");
}

TEST_F(WorkerLinkTest, RandomMessagesEndItOrAreRelayed) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  Begin();
  for (int i = 0; i < 2000 && ended_.empty(); ++i) {
    const LinkType types[] = {LinkType::kCall, LinkType::kCancel, LinkType::kSent,
                              LinkType::kClosed, LinkType::kReady};
    worker_.Say(types[random() % 5], random() % 3, random() % 50, std::string(random() % 5, 'x'),
                static_cast<uint16_t>(random() % 20));
    Turn();
    (void)worker_.Hear();
  }
  EXPECT_EQ(ended_.size(), 1u);
}

TEST_F(WorkerLinkTest, AWorkerThatAnswersPingsGoesOn) {
  Begin();
  for (int i = 1; i < 10; ++i) {
    ContinueAfter(WorkerLink::kPingEvery * i);
    const auto heard = worker_.Hear();
    ASSERT_EQ(heard.size(), 1u) << i;
    EXPECT_EQ(heard[0].type(), LinkType::kPing);
    worker_.Say(LinkType::kPong);
    poller_->Wait(absl::ZeroDuration());
  }
  EXPECT_TRUE(ended_.empty());
}

TEST_F(WorkerLinkTest, AWorkerThatAnswersNothingIsEnded) {
  Begin();
  ContinueAfter(WorkerLink::kPingEvery);
  ContinueAfter(WorkerLink::kPingEvery * 2);
  EXPECT_TRUE(ended_.empty());
  ContinueAfter(WorkerLink::kPingEvery * 3);
  ExpectEnded("did not answer for 10s");
}

TEST_F(WorkerLinkTest, ATickThatComesLateCountsOnce) {
  Begin();
  ContinueAfter(WorkerLink::kPingEvery);
  ContinueAfter(WorkerLink::kPingEvery * 1000);  // irisd and the worker were stopped
  EXPECT_TRUE(ended_.empty());
}

TEST_F(WorkerLinkTest, AWorkerWithoutAConnectionIsNotPinged) {
  worker_.Ready();
  Turn();
  EXPECT_EQ(link_->deadline(), absl::InfiniteFuture());
  Connect(1);
  worker_.Say(LinkType::kClosed, 1);
  Turn();
  (void)worker_.Hear();
  ContinueAfter(WorkerLink::kPingEvery);
  EXPECT_TRUE(worker_.Hear().empty());
  EXPECT_EQ(link_->deadline(), absl::InfiniteFuture());
}

TEST_F(WorkerLinkTest, AnAnswerToNoPingBreaksTheRules) {
  Begin();
  worker_.Say(LinkType::kPong);
  Turn();
  ExpectEnded("answers a ping that it was not sent");
}

}  // namespace
}  // namespace iris::server
