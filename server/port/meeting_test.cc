// Meetings in an etcd of this test, which fails in the ways of one. The real one: tests/nodes.
#include "server/port/meeting.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/port/testing/fake_etcd.h"

namespace iris::port {
namespace {

constexpr auto kSecond = absl::Milliseconds(100);  // of leases, in this test
constexpr auto kPatience = absl::Seconds(20);

class MeetingTest : public testing::Test {
 protected:
  MeetingOptions Options(const std::string& leader = "") const {
    MeetingOptions options;
    options.endpoints = endpoints_;
    options.job = "train";
    options.uid = 7;
    options.secret = "a secret of tests";
    options.leader = leader;
    options.second = kSecond;
    return options;
  }
  // Returns the first news that `fits`, or fails.
  template <typename Fits>
  Meeting::News Await(Meeting* meeting, Fits fits) {
    const absl::Time end = absl::Now() + kPatience;
    std::string seen;
    while (absl::Now() < end) {
      struct pollfd ready = {meeting->event_fd(), POLLIN, 0};
      poll(&ready, 1, 100);
      const std::optional<Meeting::News> news = meeting->Take();
      if (!news.has_value()) continue;
      if (fits(*news)) return *news;
      absl::StrAppend(&seen, news->leader.has_value() ? news->leader->Text() : "", " ",
                      news->status.ToString(), "\n");
    }
    ADD_FAILURE() << "other news came: " << seen;
    return {};
  }
  std::string AwaitError(Meeting* meeting, absl::StatusCode code, const std::string& text) {
    return std::string(Await(meeting, [&](const Meeting::News& news) {
                         return news.status.code() == code &&
                                absl::StrContains(news.status.message(), text);
                       }).status.message());
  }
  void AwaitLeader(Meeting* meeting, const std::string& address) {
    Await(meeting, [&](const Meeting::News& news) {
      return news.leader.has_value() && news.leader->Text() == address;
    });
  }
  void AwaitPublished(Meeting* meeting) {
    Await(meeting, [](const Meeting::News& news) { return news.status.ok(); });
  }
  template <typename Condition>
  bool Eventually(Condition condition) {
    const absl::Time end = absl::Now() + kPatience;
    while (!condition()) {
      if (absl::Now() > end) return false;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return true;
  }

  FakeEtcd etcd_{kSecond};
  std::vector<std::string> endpoints_ = {etcd_.endpoint()};
  const std::string key_ = "/iris/jobs/7/train";
};

TEST_F(MeetingTest, FollowersAreToldAtOnceAndTheKeyGoesWithTheLeader) {
  Meeting follower(Options());
  const std::string why = AwaitError(&follower, absl::StatusCode::kUnavailable, "is not there");
  EXPECT_TRUE(absl::StrContains(why, key_)) << why;
  ASSERT_TRUE(Eventually([&] { return etcd_.watches() == 1; }));
  {
    Meeting leader(Options("10.0.0.1:5000"));
    AwaitLeader(&follower, "10.0.0.1:5000");
    AwaitPublished(&leader);
    Meeting late(Options());
    AwaitLeader(&late, "10.0.0.1:5000");
    // Its lease is kept alive.
    absl::SleepFor(2 * kMeetingTtlSeconds * kSecond);
    EXPECT_NE(etcd_.ValueOf(key_), "");
    follower.Stop();
    late.Stop();
    EXPECT_TRUE(Eventually([&] { return etcd_.watches() == 0; }));
  }
  EXPECT_EQ(etcd_.ValueOf(key_), "");
}

TEST_F(MeetingTest, ValuesThatTheSecretDidNotMakeAreNotBelieved) {
  const MeetingOptions options = Options();
  MeetingOptions other_job = options, other_user = options, other_secret = options;
  other_job.job = "train2";
  other_user.uid = 8;
  other_secret.secret = "another secret!!";
  const std::string good = Meeting::Value(options, "10.0.0.1:5000");
  std::string other_address = good;
  other_address[7] = '2';
  Meeting follower(options);
  for (const std::string& bad :
       {std::string(), std::string(" "), std::string("10.0.0.1:5000"), other_address,
        good.substr(0, good.size() - 1), good + "0", std::string(1 << 20, 'x'),
        std::string(1 << 20, 'x') + good.substr(good.find(' ')), std::string(3, '\0') + good,
        std::string("\xff\xfe\n\033[2J "), Meeting::Value(other_job, "10.0.0.1:5000"),
        Meeting::Value(other_user, "10.0.0.1:5000"),
        Meeting::Value(other_secret, "10.0.0.1:5000")}) {
    AwaitError(&follower, absl::StatusCode::kUnavailable, "is not there");
    etcd_.Put(key_, bad, etcd_.NewLease());
    AwaitError(&follower, absl::StatusCode::kUnavailable, "was not made with this job's secret");
    etcd_.LoseLeases();
  }
  // More than a client of gRPC takes.
  etcd_.Put(key_, std::string(5 << 20, 'x'), etcd_.NewLease());
  AwaitError(&follower, absl::StatusCode::kUnavailable, "larger than max");
  etcd_.LoseLeases();
  etcd_.Put(key_, good);
  AwaitLeader(&follower, "10.0.0.1:5000");
  // The holder of the secret wrote something that is no address.
  etcd_.Put(key_, Meeting::Value(options, "nowhere"));
  AwaitError(&follower, absl::StatusCode::kInvalidArgument, "HOST:PORT");
}

TEST_F(MeetingTest, AnotherSecretIsToldOnceItsHolderLives) {
  MeetingOptions other = Options("10.0.0.1:5000");
  other.secret = "another secret!!";
  Meeting leader(other);
  AwaitPublished(&leader);
  Meeting follower(Options());
  const std::string why =
      AwaitError(&follower, absl::StatusCode::kPermissionDenied, "this job's secret");
  EXPECT_TRUE(absl::StrContains(why, key_)) << why;
  Meeting second(Options("10.0.0.2:6000"));
  AwaitError(&second, absl::StatusCode::kAlreadyExists, "somebody with another secret");
}

TEST_F(MeetingTest, TwoJobsOfOneNameAreToldOfEachOther) {
  Meeting first(Options("10.0.0.1:5000"));
  AwaitPublished(&first);
  const absl::Time since = absl::Now();
  Meeting second(Options("10.0.0.2:6000"));
  const std::string why = AwaitError(&second, absl::StatusCode::kAlreadyExists, "10.0.0.1:5000");
  EXPECT_TRUE(absl::StrContains(why, key_)) << why;
  EXPECT_GE(absl::Now() - since, 3 * kSecond);
  EXPECT_EQ(etcd_.ValueOf(key_), Meeting::Value(Options(), "10.0.0.1:5000"));
}

TEST_F(MeetingTest, AJobThatEndsMakesWayForTheNext) {
  auto first = std::make_unique<Meeting>(Options("10.0.0.1:5000"));
  AwaitPublished(first.get());
  Meeting second(Options("10.0.0.2:6000"));
  AwaitError(&second, absl::StatusCode::kUnavailable, "still another job's");
  first.reset();
  AwaitPublished(&second);
  EXPECT_EQ(etcd_.ValueOf(key_), Meeting::Value(Options(), "10.0.0.2:6000"));
}

TEST_F(MeetingTest, TheKeyOfALeaderThatIsGoneEnds) {
  etcd_.Put(key_, Meeting::Value(Options(), "10.0.0.1:5000"), etcd_.NewLease());
  Meeting follower(Options());
  AwaitLeader(&follower, "10.0.0.1:5000");
  Meeting leader(Options("10.0.0.2:6000"));
  AwaitPublished(&leader);
  AwaitLeader(&follower, "10.0.0.2:6000");
}

TEST_F(MeetingTest, APortAtTheAddressOfOneThatIsGoneTakesItsKey) {
  const int64_t gone = etcd_.NewLease();
  etcd_.Put(key_, Meeting::Value(Options(), "10.0.0.1:5000"), gone);
  Meeting leader(Options("10.0.0.1:5000"));
  AwaitPublished(&leader);
  absl::SleepFor(2 * kMeetingTtlSeconds * kSecond);  // its lease, and not the other
  EXPECT_EQ(etcd_.ValueOf(key_), Meeting::Value(Options(), "10.0.0.1:5000"));
}

TEST_F(MeetingTest, ALeaseThatIsLostIsMadeAgain) {
  Meeting leader(Options("10.0.0.1:5000"));
  AwaitPublished(&leader);
  Meeting follower(Options());
  AwaitLeader(&follower, "10.0.0.1:5000");
  etcd_.LoseLeases();
  AwaitError(&follower, absl::StatusCode::kUnavailable, "is not there");
  AwaitLeader(&follower, "10.0.0.1:5000");
}

TEST_F(MeetingTest, AnAnswerThatIsLostIsNoOtherJob) {
  etcd_.Set(FakeEtcd::Mood::kLosesAnswers);
  Meeting leader(Options("10.0.0.1:5000"));
  AwaitPublished(&leader);
  Meeting follower(Options());
  AwaitLeader(&follower, "10.0.0.1:5000");
  absl::SleepFor(2 * kMeetingTtlSeconds * kSecond);
  EXPECT_EQ(etcd_.ValueOf(key_), Meeting::Value(Options(), "10.0.0.1:5000"));
}

TEST_F(MeetingTest, AnEtcdThatIsAwayIsNamedAndAwaited) {
  etcd_.End();
  Meeting leader(Options("10.0.0.1:5000"));
  Meeting follower(Options());
  for (Meeting* const each : {&leader, &follower}) {
    const std::string why = AwaitError(each, absl::StatusCode::kUnavailable, "Connection refused");
    EXPECT_TRUE(absl::StrContains(why, etcd_.endpoint())) << why;
  }
  etcd_.Start(etcd_.endpoint());
  AwaitPublished(&leader);
  AwaitLeader(&follower, "10.0.0.1:5000");
  // It goes and comes while the job runs.
  etcd_.End();
  AwaitError(&leader, absl::StatusCode::kUnavailable, etcd_.endpoint());
  etcd_.Start(etcd_.endpoint());
  AwaitPublished(&leader);
}

TEST_F(MeetingTest, AnotherMemberIsAskedWhereOneIsAwayOrSilent) {
  FakeEtcd silent(kSecond);
  silent.Set(FakeEtcd::Mood::kSilent);
  endpoints_ = {"127.0.0.1:1", silent.endpoint(), "no such host.invalid:2379", etcd_.endpoint()};
  Meeting leader(Options("10.0.0.1:5000"));
  const std::string why =
      AwaitError(&leader, absl::StatusCode::kUnavailable, "no answer within 3s");
  EXPECT_TRUE(absl::StrContains(why, silent.endpoint())) << why;
  AwaitError(&leader, absl::StatusCode::kUnavailable, "no such host.invalid");
  AwaitPublished(&leader);
  silent.Set(FakeEtcd::Mood::kGood);
}

TEST_F(MeetingTest, TheKeyGoesAlsoAfterEtcdHasRestarted) {
  auto leader = std::make_unique<Meeting>(Options("10.0.0.1:5000"));
  AwaitPublished(leader.get());
  etcd_.End();
  etcd_.Start(etcd_.endpoint());
  leader.reset();
  EXPECT_EQ(etcd_.ValueOf(key_), "");
}

TEST_F(MeetingTest, AMemberWithoutALeaderIsRetried) {
  Meeting leader(Options("10.0.0.1:5000"));
  AwaitPublished(&leader);
  etcd_.Set(FakeEtcd::Mood::kUnavailable);
  // What it says is for people.
  AwaitError(&leader, absl::StatusCode::kUnavailable, "etcdserver: no?leader");
  Meeting follower(Options());
  AwaitError(&follower, absl::StatusCode::kUnavailable, "etcdserver: no?leader");
  const int calls = etcd_.calls();
  absl::SleepFor(absl::Seconds(1));
  EXPECT_LE(etcd_.calls() - calls, 20);
  etcd_.Set(FakeEtcd::Mood::kGood);
  AwaitPublished(&leader);
  AwaitLeader(&follower, "10.0.0.1:5000");
}

TEST_F(MeetingTest, TheEndDoesNotWaitForASilentEtcd) {
  auto leader = std::make_unique<Meeting>(Options("10.0.0.1:5000"));
  AwaitPublished(leader.get());
  etcd_.Set(FakeEtcd::Mood::kSilent);
  auto follower = std::make_unique<Meeting>(Options());
  ASSERT_TRUE(Eventually([&, calls = etcd_.calls()] { return etcd_.calls() > calls; }));
  absl::Time since = absl::Now();
  follower.reset();
  // An answer is awaited for three seconds.
  EXPECT_LT(absl::Now() - since, absl::Milliseconds(2500));
  since = absl::Now();
  leader.reset();
  EXPECT_LT(absl::Now() - since, absl::Milliseconds(2500));
  etcd_.Set(FakeEtcd::Mood::kGood);
}

// Certificates of certificates.sh, for a name that needs no resolver.
class MeetingByTlsTest : public MeetingTest {
 protected:
  static void SetUpTestSuite() {
    ASSERT_EQ(system(absl::StrCat("server/port/testing/certificates.sh ", testing::TempDir(),
                                  " DNS:127.1 2>&1")
                         .c_str()),
              0);
  }
  static std::string Read(const std::string& name) {
    std::ifstream file(testing::TempDir() + "/" + name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static std::shared_ptr<grpc::ServerCredentials> Server(const std::string& name,
                                                         bool wants_certificates) {
    grpc::SslServerCredentialsOptions options(
        wants_certificates ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                           : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
    options.pem_root_certs = Read("ca.pem");
    options.pem_key_cert_pairs = {{Read(name + ".key"), Read(name + ".pem")}};
    return grpc::SslServerCredentials(options);
  }
  static std::string Named(const FakeEtcd& etcd) {
    return absl::StrCat("127.1", etcd.endpoint().substr(etcd.endpoint().find(':')));
  }
  // `client`: the name of the client's certificate; empty: it has none.
  static grpc::SslCredentialsOptions Client(const std::string& ca, const std::string& client = "") {
    if (client.empty()) return {Read(ca + ".pem"), "", ""};
    return {Read(ca + ".pem"), Read(client + ".key"), Read(client + ".pem")};
  }
};

TEST_F(MeetingByTlsTest, NodesMeet) {
  for (const std::string client : {"", "client"}) {
    FakeEtcd etcd(kSecond, Server("server", !client.empty()));
    endpoints_ = {Named(etcd)};
    MeetingOptions first = Options("10.0.0.1:5000"), other = Options();
    first.tls = other.tls = Client("ca", client);
    Meeting leader(first), follower(other);
    AwaitPublished(&leader);
    AwaitLeader(&follower, "10.0.0.1:5000");
  }
}

TEST_F(MeetingByTlsTest, MistakesAreNamed) {
  const auto expect = [this](const std::string& endpoint,
                             const std::optional<grpc::SslCredentialsOptions>& tls,
                             const std::string& cause, const std::string& remedy,
                             absl::StatusCode code = absl::StatusCode::kUnavailable) {
    endpoints_ = {endpoint};
    MeetingOptions options = Options("10.0.0.1:5000");
    options.tls = tls;
    Meeting leader(options);
    const std::string why = AwaitError(&leader, code, cause);
    EXPECT_TRUE(absl::StrContains(why, remedy)) << why;
  };
  FakeEtcd good(kSecond, Server("server", false)), strict(kSecond, Server("server", true)),
      expired(kSecond, Server("expired", false));
  const std::string unknown = "certificate verify failed",
                    damaged = "is damaged, or the key is not";
  expect(Named(good), Client("other_ca"), unknown, "of no authority in network.etcd_ca");
  expect(Named(expired), Client("ca"), unknown, "or is not valid now");
  expect(good.endpoint(), Client("ca"), "127.0.0.1 is not in peer certificate", "network.etcd");
  expect(Named(strict), Client("ca"), "", "network.etcd_certificate");
  expect(Named(strict), Client("ca", "foreign"), "", "network.etcd_certificate");
  expect(etcd_.endpoint(), Client("ca"), "wrong version number", "it speaks no TLS");
  expect(Named(good), std::nullopt, "", "it may want TLS: set network.etcd_ca");
  grpc::SslCredentialsOptions bad = Client("ca", "client");
  bad.pem_private_key = Read("server.key");
  expect(Named(strict), bad, "", damaged, absl::StatusCode::kInvalidArgument);
  bad.pem_private_key = "-----BEGIN PRIVATE KEY-----\nnonsense\n-----END PRIVATE KEY-----\n";
  expect(Named(strict), bad, "", damaged, absl::StatusCode::kInvalidArgument);
  bad = Client("ca");
  bad.pem_root_certs = "-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n";
  expect(Named(good), bad, "", damaged, absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace iris::port
