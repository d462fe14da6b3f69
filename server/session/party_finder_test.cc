#include "server/session/party_finder.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <string>
#include <unordered_set>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/unique_fd.h"
#include "server/session/peer.h"

namespace iris::server {
namespace {

constexpr uint32_t kStranger = 54321;

// A process in the new namespaces of `clone_flags` that has done `prepare` and then waits to be
// killed. Not valid() if this machine did not let it.
class Process {
 public:
  explicit Process(unsigned long clone_flags, const std::function<bool()>& prepare = nullptr) {
    int ready[2];
    if (pipe(ready) != 0) return;
    const wire::UniqueFd ours(ready[0]);
    wire::UniqueFd theirs(ready[1]);
    pid_ = static_cast<pid_t>(syscall(SYS_clone, clone_flags | SIGCHLD, 0, 0, 0, 0));
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const bool done = prepare == nullptr || prepare();
      if (done && write(theirs.get(), "x", 1) == 1) pause();
      _exit(1);
    }
    theirs.Reset();
    char told;
    valid_ = pid_ > 0 && read(ours.get(), &told, 1) == 1;
    if (!valid_) return;
    absl::StatusOr<wire::UniqueFd> pidfd = OpenPidfd(pid_);
    valid_ = pidfd.ok();
    if (valid_) pidfd_ = *std::move(pidfd);
  }
  ~Process() { Kill(); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  bool valid() const { return valid_; }
  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }

 private:
  pid_t pid_ = -1;
  bool valid_ = false;
  wire::UniqueFd pidfd_;
};

Party Find(const Process& process, uint32_t uid) {
  const absl::StatusOr<Party> party = PartyFinder().Find(process.pid(), uid, process.pidfd());
  EXPECT_TRUE(party.ok()) << party.status();
  return party.ok() ? *party : Party{~0u, 7, 7};
}

// Containers, which root alone can make.
class ContainerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0 || !Process(CLONE_NEWPID).valid()) {
      GTEST_SKIP() << "this process may make no containers: it is not root with CAP_SYS_ADMIN";
    }
  }
};

// Also tests user namespaces, which any user can make, unless the machine forbids it.
class UserNamespaceTest : public ContainerTest {
 protected:
  void SetUp() override {
    ContainerTest::SetUp();
    if (!IsSkipped() && !Process(CLONE_NEWUSER).valid()) {
      GTEST_SKIP() << "this machine allows no user namespaces; in a chroot the kernel never does";
    }
  }
};

bool BecomeStranger() { return setresuid(kStranger, kStranger, kStranger) == 0; }

bool Write(const char* path, const std::string& text) {
  return static_cast<bool>(std::ofstream(path) << text << std::flush);
}

// A user namespace of kStranger's in which he and his group have numbers, without which the kernel
// lets nobody make another one inside.
bool EnterMappedNamespace() {
  const std::string gid = absl::StrCat(getegid());
  return BecomeStranger() && prctl(PR_SET_DUMPABLE, 1) == 0 && unshare(CLONE_NEWUSER) == 0 &&
         Write("/proc/self/uid_map", absl::StrCat("0 ", kStranger, " 1")) &&
         Write("/proc/self/setgroups", "deny") &&
         Write("/proc/self/gid_map", absl::StrCat("0 ", gid, " 1"));
}

TEST(PartyFinderTest, InIrisdsNamespacesItIsTheUserAlone) {
  const Process child(0);
  ASSERT_TRUE(child.valid());
  EXPECT_EQ(Find(child, 1000), (Party{1000}));
}

TEST_F(ContainerTest, TwoContainersOfRootAreTwoParties) {
  const Process host(0), one(CLONE_NEWPID), other(CLONE_NEWPID);
  const Party first = Find(one, 0), second = Find(other, 0);
  EXPECT_GT(first.container, Party::kUnknownContainer);
  EXPECT_NE(first, second);
  EXPECT_NE(first, Find(host, 0));
  EXPECT_EQ(first, Find(one, 0));
  EXPECT_FALSE(PartyFinder().IsOperator(first));
}

TEST_F(ContainerTest, AContainerInsideAContainerIsTheOuterOne) {
  const Process outer(CLONE_NEWPID, [] {
    if (unshare(CLONE_NEWPID) != 0) return false;
    const pid_t inner = fork();
    if (inner == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      pause();
      _exit(1);
    }
    return inner > 0;
  });
  ASSERT_TRUE(outer.valid());
  std::ifstream children(absl::StrCat("/proc/", outer.pid(), "/task/", outer.pid(), "/children"));
  int64_t inner = 0;
  ASSERT_TRUE(children >> inner);
  const absl::StatusOr<wire::UniqueFd> pidfd = OpenPidfd(inner);
  ASSERT_TRUE(pidfd.ok()) << pidfd.status();
  const absl::StatusOr<Party> party = PartyFinder().Find(inner, 0, pidfd->get());
  ASSERT_TRUE(party.ok()) << party.status();
  EXPECT_EQ(*party, Find(outer, 0));
}

TEST_F(UserNamespaceTest, AUserNamespaceThatRootMadeIsAContainer) {
  const Process container(CLONE_NEWUSER);
  ASSERT_TRUE(container.valid());
  const Party party = Find(container, 0);
  EXPECT_GT(party.container, Party::kUnknownContainer);
  EXPECT_EQ(party.maker, 0u);
  EXPECT_FALSE(PartyFinder().IsOperator(party));
}

TEST_F(UserNamespaceTest, NamespacesThatAUserMadeForHimselfGiveHimNoFurtherShare) {
  const Process child(
      0, [] { return BecomeStranger() && unshare(CLONE_NEWUSER | CLONE_NEWPID) == 0; });
  ASSERT_TRUE(child.valid());
  EXPECT_EQ(Find(child, kStranger), (Party{kStranger}));
  // Another user of that namespace has no access to the maker's things, and no share of his own.
  const Party sub = Find(child, 165536);
  EXPECT_EQ(sub, (Party{165536, 0, kStranger}));
  EXPECT_EQ(sub.Account(), (Party{kStranger}));
}

TEST_F(UserNamespaceTest, UserNamespacesInsideOneAnotherAreThoseOfWhoMadeTheOutermost) {
  const Process child(0, [] { return EnterMappedNamespace() && unshare(CLONE_NEWUSER) == 0; });
  ASSERT_TRUE(child.valid());
  EXPECT_EQ(Find(child, 165536).Account(), (Party{kStranger}));
}

TEST_F(UserNamespaceTest, SuchANamespaceInsideAContainerBelongsToTheContainer) {
  const Process child(CLONE_NEWPID, [] { return BecomeStranger() && unshare(CLONE_NEWUSER) == 0; });
  ASSERT_TRUE(child.valid());
  const Party party = Find(child, kStranger);
  EXPECT_GT(party.container, Party::kUnknownContainer);
  EXPECT_EQ(party.maker, 0u);
  EXPECT_EQ(Find(child, 165536).Account(), party);
}

// Runs `look` in a process of user kStranger, and says whether it was true.
bool TrueForAStranger(const std::function<bool()>& look) {
  const pid_t pid = fork();
  if (pid == 0) _exit(BecomeStranger() && look() ? 0 : 1);
  int status = 0;
  return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_F(ContainerTest, AnIrisdThatMayNotLookStillSeesWhoIsNotInItsNamespaces) {
  const Process host(0), container(CLONE_NEWPID);
  EXPECT_TRUE(TrueForAStranger([&] { return Find(host, 0) == Party{0}; }));
  EXPECT_TRUE(TrueForAStranger([&] {
    return Find(container, 0) == Party{0, Party::kUnknownContainer};
  }));
}

TEST(PartyFinderTest, AProcessThatHasEndedIsRefused) {
  Process child(0);
  ASSERT_TRUE(child.valid());
  const pid_t pid = child.pid();
  child.Kill();
  const absl::Status status = PartyFinder().Find(pid, 0, child.pidfd()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  // The number may be another process's by now: the pidfd decides, not the number.
  const absl::Status reused = PartyFinder().Find(getpid(), 0, child.pidfd()).status();
  EXPECT_EQ(reused.code(), absl::StatusCode::kAborted) << reused;
}

TEST(PartyFinderTest, RootAndIrisdsOwnUserInItsNamespacesAreTheOperator) {
  const PartyFinder finder;
  EXPECT_TRUE(finder.IsOperator({0}));
  EXPECT_TRUE(finder.IsOperator({geteuid()}));
  EXPECT_FALSE(finder.IsOperator({kStranger}));
  EXPECT_FALSE(finder.IsOperator({0, 4026532512}));
  EXPECT_FALSE(finder.IsOperator({0, Party::kUnknownContainer}));
  EXPECT_FALSE(finder.IsOperator({0, 0, kStranger}));
}

TEST(PartyTest, ATextNamesUserAndContainer) {
  EXPECT_EQ((Party{1000}).Text(), "uid 1000");
  EXPECT_EQ((Party{0, 12}).Text(), "uid 0 of container 12");
  EXPECT_EQ((Party{165536, 0, 1000}).Text(), "uid 165536 (of uid 1000)");
  EXPECT_EQ((Party{0, Party::kUnknownContainer}).Text(), "uid 0 of an unknown container");
}

TEST(PartyTest, EveryFieldTellsPartiesApart) {
  const std::unordered_set<Party, absl::Hash<Party>> parties = {
      {1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {1, 1, 0}, {1, 0, 1}, {0, 1, 1}, {1, 1, 1}, {1, 0, 0}};
  EXPECT_EQ(parties.size(), 7u);
}

}  // namespace
}  // namespace iris::server
