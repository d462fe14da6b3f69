#include "client/base/pmix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "client/base/meeting_place.h"
#include "client/base/options.h"

namespace iris::base {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// What the fake server knows, and what has been called.
struct Server {
  uint32_t rank = 0, n_ranks = 4;
  std::string host = "192.0.2.1";            // of each rank
  std::map<std::string, std::string> given;  // by rank 0
  uint16_t type = PmixValue::kString;        // of what is given
  std::string* instead = nullptr;            // of what rank 0 has given
  int init = 0, fence = 0;                   // statuses
  absl::Notification* fence_hangs = nullptr;
  std::atomic<int> n_clients = 0;
  std::string fenced;
};
Server* server = nullptr;

constexpr int kFails = -1366;

const PmixApi kFake = {
    .Init =
        [](PmixProc* self, PmixInfo*, size_t) {
          strcpy(self->nspace, "job");
          self->rank = server->rank;
          if (server->init == kPmixSuccess) ++server->n_clients;
          return server->init;
        },
    .Finalize =
        [](const PmixInfo*, size_t) {
          if (server != nullptr && --server->n_clients == 0) fprintf(stderr, "finalized\n");
          return kPmixSuccess;
        },
    .Put =
        [](uint8_t scope, const char* key, PmixValue* value) {
          EXPECT_EQ(scope, kPmixGlobal);
          EXPECT_EQ(value->type, PmixValue::kString);
          server->given[key] = value->data.string;
          return kPmixSuccess;
        },
    .Commit = [] { return kPmixSuccess; },
    .Fence =
        [](const PmixProc*, size_t n_procs, const PmixInfo* info, size_t n_info) {
          EXPECT_EQ(n_procs, 0u);
          EXPECT_EQ(n_info, 1u);
          server->fenced = info->key;
          if (server->fence_hangs != nullptr) server->fence_hangs->WaitForNotification();
          return server->fence;
        },
    .Get =
        [](const PmixProc* proc, const char* key, const PmixInfo*, size_t, PmixValue** value) {
          EXPECT_STREQ(proc->nspace, "job");
          *value = static_cast<PmixValue*>(calloc(1, sizeof(PmixValue)));
          if (proc->rank == kPmixWildcard) {
            EXPECT_STREQ(key, kPmixJobSize);
            (*value)->type = PmixValue::kUint32;
            (*value)->data.uint32 = server->n_ranks;
            return kPmixSuccess;
          }
          const bool host = strcmp(key, kPmixHostname) == 0;
          EXPECT_EQ(proc->rank, host ? 2u : 0u) << "the next node's first rank has its host";
          (*value)->type = host ? uint16_t{PmixValue::kString} : server->type;
          const std::string& text = host                         ? server->host
                                    : server->instead != nullptr ? *server->instead
                                                                 : server->given[key];
          if ((*value)->type == PmixValue::kString) (*value)->data.string = strdup(text.c_str());
          return kPmixSuccess;
        },
    .Error_string = [](int status) { return status == kFails ? "FAILS" : nullptr; }};

class PmixTest : public ::testing::Test {
 protected:
  PmixTest() { server = &server_; }
  ~PmixTest() override { server = nullptr; }

  absl::StatusOr<Meeting> Meet(int rank, absl::Duration timeout = absl::Minutes(1)) {
    server_.rank = static_cast<uint32_t>(rank);
    return MeetByPmix(kFake, {rank, 4, rank % 2, 2}, timeout);
  }
  // The error of a rank other than 0 that is told this.
  absl::Status Told(std::string text) {
    server_.instead = &text;
    const absl::Status failed = Meet(3).status();
    server_.instead = nullptr;
    EXPECT_THAT(failed.message(),
                HasSubstr("the ranks could not meet by the launcher's PMIx server: "));
    EXPECT_THAT(failed.message(), Not(HasSubstr("0123456789abcdef"))) << "a secret";
    return failed;
  }

  Server server_;
};

TEST_F(PmixTest, OthersAreToldWhatRank0Gives) {
  const auto first = Meet(0);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(server_.fenced, "pmix.collect");
  EXPECT_EQ(first->secret.size(), 32u);
  EXPECT_TRUE(CheckRendezvous("it", first->rendezvous).ok()) << first->rendezvous;
  ASSERT_EQ(server_.given.size(), 1u);
  std::string given = server_.given.begin()->second;
  server_.instead = &given;
  const auto second = Meet(2);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->rendezvous, first->rendezvous);
  EXPECT_EQ(second->secret, first->secret);
}

TEST_F(PmixTest, EachExchangeHasItsOwnKeyAndSecret) {
  const auto first = Meet(0), second = Meet(0);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(server_.given.size(), 2u);
  EXPECT_NE(first->secret, second->secret);
}

TEST_F(PmixTest, AHostWithoutAWayToTheNextOneGivesItsName) {
  for (const char* const next : {"127.0.0.1", "no-such-host.invalid"}) {
    server_.host = next;
    const auto met = Meet(0);
    ASSERT_TRUE(met.ok()) << met.status();
    char name[256] = {};
    ASSERT_EQ(gethostname(name, sizeof(name) - 1), 0);
    EXPECT_THAT(met->rendezvous, MatchesRegex(absl::StrCat(name, ":2....")));
  }
}

TEST_F(PmixTest, WhatIsToldIsChecked) {
  const std::string secret = "0123456789abcdef0123456789abcdef";
  EXPECT_EQ(Told("").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Told("a:5").message(), HasSubstr("something else"));
  EXPECT_THAT(Told(absl::StrCat("a:5 ", secret, " more")).message(), HasSubstr("something else"));
  EXPECT_THAT(Told(absl::StrCat("a:70000 ", secret)).message(), HasSubstr("HOST:PORT"));
  EXPECT_THAT(Told("a:5 short").message(), HasSubstr("has 5 bytes"));
  EXPECT_THAT(Told(absl::StrCat("a:5 ", std::string(1 << 20, '0'))).message(),
              HasSubstr("16 to 64"));
  server_.type = PmixValue::kUint32;
  EXPECT_THAT(Told("").message(), HasSubstr("has another type"));
}

TEST_F(PmixTest, OtherRanksThanTheServersDoNotMeet) {
  server_.rank = 2;
  EXPECT_THAT(MeetByPmix(kFake, {1, 4, 1, 2}, absl::Minutes(1)).status().message(),
              HasSubstr("this is rank 2 of 4, and not 1 of 4"));
  server_.n_ranks = 8;
  const absl::Status failed = Meet(1).status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(failed.message(), HasSubstr("this is rank 1 of 8, and not 1 of 4"));
  EXPECT_EQ(server_.fenced, "");
}

TEST_F(PmixTest, FailuresNameTheCall) {
  server_.fence = kFails;
  EXPECT_THAT(Meet(1).status().message(), HasSubstr("server: PMIx_Fence: FAILS (-1366)"));
  server_.init = -25;
  EXPECT_THAT(Meet(1).status().message(), HasSubstr("server: PMIx_Init:  (-25)"));
  EXPECT_THAT(
      MeetByPmix(absl::NotFoundError("no library"), {}, absl::Minutes(1)).status().message(),
      HasSubstr("server: no library"));
}

TEST_F(PmixTest, AServerThatHangsIsGivenUp) {
  absl::Notification fence;
  server_.fence_hangs = &fence;
  const absl::Status failed = Meet(1, absl::Milliseconds(50)).status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(failed.message(), HasSubstr("has not come within 50ms"));
  const int before = server_.n_clients;
  fence.Notify();
  while (server_.n_clients == before) usleep(1000);  // its thread uses this test's server
}

// Libraries fail when they are initialized again after the last PMIx_Finalize.
TEST_F(PmixTest, OneClientIsLeftForTheExitOfTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto exchange_twice = [this] {
    const bool ok = Meet(0).ok() && Meet(0).ok();
    fprintf(stderr, "clients: %d\n", server_.n_clients.load());
    const pid_t child = fork();
    if (child != 0) waitpid(child, nullptr, 0);
    exit(ok ? 0 : 1);
  };
  EXPECT_EXIT(exchange_twice(), ::testing::ExitedWithCode(0),
              ::testing::StrEq("clients: 1\nfinalized\n"));
}

TEST(MeetingPlaceTest, AddressesOfIpv6AreBracketed) {
  EXPECT_EQ(HostAndPort("a", 5), "a:5");
  EXPECT_EQ(HostAndPort("fd00::1", 5), "[fd00::1]:5");
}

}  // namespace
}  // namespace iris::base
