#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/keep/descriptor_keeper.h"
#include "server/keep/inherited.h"
#include "server/keep/kept_name.h"
#include "server/keep/testing/manager.h"

namespace iris::server {
namespace {

wire::UniqueFd SomeFile() { return wire::UniqueFd(memfd_create("kept", MFD_CLOEXEC)); }

TEST(KeptName, IsReadAsItWasWritten) {
  for (const auto kind : {KeptName::Kind::kSegment, KeptName::Kind::kPages,
                          KeptName::Kind::kSession, KeptName::Kind::kPort}) {
    for (const uint64_t id : {uint64_t{1}, uint64_t{63}, uint64_t{64}, uint64_t{123456789},
                              KeptName::kMaxId - 1, KeptName::kMaxId}) {
      const KeptName name{kind, id};
      EXPECT_LE(name.Text().size(), 10u);
      EXPECT_EQ(KeptName::Parse(name.Text()), name) << name.Text();
    }
  }
  for (const char* text :
       {"", "g", "gA", "gAB", "xB", "g B", "gB:", "g0000000000", "lsession", "ladmin"}) {
    EXPECT_EQ(KeptName::Parse(text), std::nullopt) << text;
  }
}

// The manager's side.
class DescriptorKeeperTest : public ::testing::Test {
 protected:
  struct Message {
    std::string text;
    size_t n_fds = 0;
  };
  Message Next() {
    char text[256], control[256];
    struct iovec content = {text, sizeof(text)};
    struct msghdr message = {};
    message.msg_iov = &content;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t n = recvmsg(manager_.socket.get(), &message, MSG_DONTWAIT);
    if (n < 0) return {"nothing"};
    Message got{std::string(text, static_cast<size_t>(n))};
    for (struct cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
      got.n_fds = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < got.n_fds; ++i) close(reinterpret_cast<int*>(CMSG_DATA(header))[i]);
    }
    return got;
  }

  ServiceManager manager_{3};
  DescriptorKeeper* const keeper_ = manager_.keeper.get();
};

TEST_F(DescriptorKeeperTest, TellsTheManager) {
  const wire::UniqueFd a = SomeFile(), b = SomeFile();
  EXPECT_TRUE(keeper_->Store("gB", {a.get(), b.get()}).ok());
  const Message stored = Next();
  EXPECT_EQ(stored.text, "FDSTORE=1\nFDNAME=gB\nFDPOLL=0");
  EXPECT_EQ(stored.n_fds, 2u);
  keeper_->Remove("gC");  // of which there is none
  EXPECT_EQ(Next().text, "nothing");
  keeper_->Remove("gB");
  EXPECT_EQ(Next().text, "FDSTOREREMOVE=1\nFDNAME=gB");
  EXPECT_EQ(keeper_->n_kept(), 0u);
}

TEST_F(DescriptorKeeperTest, GivesUpWhereMoreThanTheManagerKeepsAreToBeKept) {
  const wire::UniqueFd file = SomeFile();
  keeper_->Count("pB", 2);
  EXPECT_TRUE(keeper_->Store("gB", {file.get()}).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(keeper_->Store("gC", {file.get()})));
  EXPECT_FALSE(keeper_->status().ok());
  keeper_->Remove("pB");
  EXPECT_FALSE(keeper_->Store("gC", {file.get()}).ok());  // it has a gap now
  EXPECT_TRUE(keeper_->gave_up());
}

TEST_F(DescriptorKeeperTest, NamesThatNoManagerGivesAreNotToldToIt) {
  for (const std::string& name : {std::string("gB\nMAINPID=1"), std::string("g\x7f"),
                                  std::string("a:b"), std::string(256, 'x')}) {
    keeper_->Count(name, 1);
    keeper_->Remove(name);
    EXPECT_EQ(Next().text, "nothing") << name;
  }
  EXPECT_EQ(keeper_->n_kept(), 0u);
  keeper_->Count("a name of another program", 1);
  keeper_->Remove("a name of another program");
  EXPECT_EQ(Next().text, "FDSTOREREMOVE=1\nFDNAME=a name of another program");
}

TEST_F(DescriptorKeeperTest, GivesUpAManagerThatIsGone) {
  manager_.socket.Reset();
  const wire::UniqueFd file = SomeFile();
  EXPECT_FALSE(keeper_->Store("gB", {file.get()}).ok());
  EXPECT_FALSE(keeper_->status().ok());
  EXPECT_FALSE(DescriptorKeeper::Connect(manager_.path, 3).ok());
}

// Messages that the manager has not taken wait, in order, and block nobody again.
TEST_F(DescriptorKeeperTest, AManagerThatTakesNothingForAWhileIsToldLater) {
  const wire::UniqueFd file = SomeFile();
  auto connected = DescriptorKeeper::Connect(manager_.path, 1'000'000);
  ASSERT_TRUE(connected.ok());
  DescriptorKeeper& keeper = **connected;
  absl::Status stored;
  size_t n = 0;
  for (; n < 100'000 && stored.ok(); ++n) stored = keeper.Store("gB", {file.get()});
  EXPECT_TRUE(absl::IsDeadlineExceeded(stored)) << stored;
  EXPECT_FALSE(keeper.gave_up());
  const absl::Time start = absl::Now();
  EXPECT_FALSE(keeper.Store("gC", {file.get()}).ok());
  EXPECT_FALSE(keeper.Store("gD", {file.get()}).ok());
  keeper.Remove("gD");  // of which the manager has not heard
  keeper.Remove("gB");
  EXPECT_FALSE(keeper.Store("gE", {file.get()}).ok());
  EXPECT_FALSE(keeper.Retry().ok());
  EXPECT_LT(absl::Now() - start, DescriptorKeeper::kPatience);
  EXPECT_EQ(keeper.n_kept(), 2u);
  std::vector<std::string> got;
  for (size_t i = 0; i < n + 10; ++i) {
    Message next = Next();
    if (next.text == "nothing") {
      if (keeper.Retry().ok() && (next = Next()).text == "nothing") break;
      if (next.text == "nothing") continue;
    }
    if (next.text != "FDSTORE=1\nFDNAME=gB\nFDPOLL=0") got.push_back(next.text);
    EXPECT_EQ(next.n_fds, next.text.find("REMOVE") == std::string::npos ? 1u : 0u);
  }
  EXPECT_EQ(
      got, (std::vector<std::string>{"FDSTORE=1\nFDNAME=gC\nFDPOLL=0", "FDSTOREREMOVE=1\nFDNAME=gB",
                                     "FDSTORE=1\nFDNAME=gE\nFDPOLL=0"}));
  EXPECT_TRUE(keeper.status().ok()) << keeper.status();
  EXPECT_TRUE(keeper.Store("gF", {file.get()}).ok());
}

TEST_F(DescriptorKeeperTest, WhatWaitsForAManagerThatIsGoneIsGivenUp) {
  const wire::UniqueFd file = SomeFile();
  auto connected = DescriptorKeeper::Connect(manager_.path, 1'000'000);
  ASSERT_TRUE(connected.ok());
  DescriptorKeeper& keeper = **connected;
  while (keeper.Store("gB", {file.get()}).ok()) continue;
  manager_.socket.Reset();
  EXPECT_FALSE(keeper.Retry().ok());
  EXPECT_TRUE(keeper.gave_up());
}

TEST_F(DescriptorKeeperTest, GivesUpAllAtTheEnd) {
  keeper_->Count("pB", 2);
  keeper_->Count("gC", 1);
  keeper_->RemoveAll();
  EXPECT_EQ(Next().text, "FDSTOREREMOVE=1\nFDNAME=gC");
  EXPECT_EQ(Next().text, "FDSTOREREMOVE=1\nFDNAME=pB");
  const wire::UniqueFd file = SomeFile();
  EXPECT_FALSE(keeper_->Store("gB", {file.get()}).ok());
}

TEST(DescriptorKeeper, IsWhatTheEnvironmentSays) {
  unsetenv("NOTIFY_SOCKET");
  unsetenv("FDSTORE");
  EXPECT_EQ(DescriptorKeeper::FromEnvironment().value(), nullptr);
  setenv("NOTIFY_SOCKET", "/nowhere/notify", 1);
  EXPECT_EQ(DescriptorKeeper::FromEnvironment().value(), nullptr);
  setenv("FDSTORE", "0", 1);
  EXPECT_EQ(DescriptorKeeper::FromEnvironment().value(), nullptr);
  setenv("FDSTORE", "100", 1);
  EXPECT_FALSE(DescriptorKeeper::FromEnvironment().ok());
  setenv("FDSTORE", "many", 1);
  EXPECT_TRUE(absl::IsInvalidArgument(DescriptorKeeper::FromEnvironment().status()));
  unsetenv("NOTIFY_SOCKET");
  unsetenv("FDSTORE");
}

TEST(Inherited, IsSortedByName) {
  std::vector<NamedDescriptor> all;
  for (const char* name : {"lsession", "ladmin", "gB", "gC", "pB", "pB", "sZ", "lsession", "gB",
                           "unknown", "", "gA"}) {
    all.push_back({name, SomeFile()});
  }
  const Inherited inherited = SortInherited(std::move(all));
  EXPECT_TRUE(inherited.session_listener.valid());
  EXPECT_TRUE(inherited.admin_listener.valid());
  EXPECT_EQ(inherited.segments.size(), 2u);
  EXPECT_EQ(inherited.pages.at(JobId{1}).size(), 2u);
  EXPECT_EQ(inherited.sessions.size(), 1u);
  EXPECT_EQ(inherited.twice, (std::vector<std::string>{"lsession", "gB"}));
  EXPECT_EQ(inherited.unknown, (std::vector<std::string>{"unknown", "", "gA"}));
}

TEST(Inherited, IsTakenOutOfTheEnvironment) {
  unsetenv("LISTEN_PID");
  unsetenv("LISTEN_FDS");
  std::vector<NamedDescriptor> lost;
  EXPECT_TRUE(TakeInherited(&lost).value().empty());
  EXPECT_TRUE(lost.empty());
  setenv("LISTEN_PID", "1", 1);
  setenv("LISTEN_FDS", "1", 1);
  EXPECT_TRUE(TakeInherited(&lost).value().empty());  // another process's
  EXPECT_TRUE(lost.empty());
  setenv("LISTEN_PID", absl::StrCat(getpid()).c_str(), 1);
  setenv("LISTEN_FDS", "1000", 1);  // which are not open
  setenv("LISTEN_FDNAMES", "gB:gC", 1);
  EXPECT_TRUE(absl::IsInvalidArgument(TakeInherited(&lost).status()));
  EXPECT_EQ(getenv("LISTEN_FDS"), nullptr);
  ASSERT_EQ(lost.size(), 1000u);
  EXPECT_EQ(lost[1].name, "gC");
  EXPECT_EQ(lost[2].name, "");
}

TEST_F(DescriptorKeeperTest, WhoIsAtTheOtherEndSeesThatAConnectionIsGivenUp) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const wire::UniqueFd client(ends[0]), elsewhere(fcntl(ends[1], F_DUPFD_CLOEXEC, 3));
  std::vector<NamedDescriptor> all;
  all.push_back({"sB", wire::UniqueFd(ends[1])});
  all.push_back({"", SomeFile()});
  all.push_back({"gB", wire::UniqueFd()});
  GiveUp(std::move(all), keeper_);
  char byte;
  EXPECT_EQ(recv(client.get(), &byte, 1, MSG_DONTWAIT), 0);
  EXPECT_EQ(Next().text, "FDSTOREREMOVE=1\nFDNAME=sB");
  EXPECT_EQ(Next().text, "FDSTOREREMOVE=1\nFDNAME=gB");
  EXPECT_EQ(Next().text, "nothing");
}

}  // namespace
}  // namespace iris::server
