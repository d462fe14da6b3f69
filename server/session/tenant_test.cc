#include "server/session/tenant.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <unordered_set>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/match.h"
#include "proto/wire/unique_fd.h"
#include "server/session/attestation.h"

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

Tenant Find(const Process& process, uint32_t uid) {
  const absl::StatusOr<Tenant> tenant = TenantFinder().Find(process.pid(), uid, process.pidfd());
  EXPECT_TRUE(tenant.ok()) << tenant.status();
  return tenant.ok() ? *tenant : Tenant{~0u, 7, 7};
}

bool BecomeStranger() { return setresuid(kStranger, kStranger, kStranger) == 0; }

TEST(TenantTest, InIrisdsNamespacesItIsTheUserAlone) {
  const Process child(0);
  ASSERT_TRUE(child.valid());
  EXPECT_EQ(Find(child, 1000), (Tenant{1000, 0, 0}));
}

TEST(TenantTest, TwoContainersOfRootAreTwoTenants) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may make PID namespaces";
  const Process host(0), one(CLONE_NEWPID), other(CLONE_NEWPID);
  if (!one.valid() || !other.valid()) GTEST_SKIP() << "no PID namespaces here";
  const Tenant first = Find(one, 0), second = Find(other, 0);
  EXPECT_EQ(first.user_namespace, 0u);
  EXPECT_GT(first.pid_namespace, Tenant::kUnknownNamespace);
  EXPECT_NE(first, second);
  EXPECT_NE(first, Find(host, 0));
  EXPECT_EQ(first, Find(one, 0));
}

TEST(TenantTest, AUserNamespaceThatRootMadeCounts) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make one as root";
  const Process container(CLONE_NEWUSER | CLONE_NEWPID);
  if (!container.valid()) GTEST_SKIP() << "no user namespaces here";
  const Tenant tenant = Find(container, 0);
  EXPECT_GT(tenant.user_namespace, Tenant::kUnknownNamespace);
  EXPECT_GT(tenant.pid_namespace, Tenant::kUnknownNamespace);
  EXPECT_FALSE(TenantFinder().IsOperator(tenant));
}

TEST(TenantTest, NamespacesThatAUserMadeForHimselfGiveHimNoFurtherShare) {
  if (geteuid() != 0) GTEST_SKIP() << "needs another user";
  const Process child(
      0, [] { return BecomeStranger() && unshare(CLONE_NEWUSER | CLONE_NEWPID) == 0; });
  if (!child.valid()) GTEST_SKIP() << "users may make no namespaces here";
  EXPECT_EQ(Find(child, kStranger), (Tenant{kStranger, 0, 0}));
}

TEST(TenantTest, SuchANamespaceInsideAContainerBelongsToTheContainer) {
  if (geteuid() != 0) GTEST_SKIP() << "needs another user";
  const Process child(CLONE_NEWPID, [] { return BecomeStranger() && unshare(CLONE_NEWUSER) == 0; });
  if (!child.valid()) GTEST_SKIP() << "users may make no namespaces here";
  const Tenant tenant = Find(child, kStranger);
  EXPECT_GT(tenant.pid_namespace, Tenant::kUnknownNamespace);
  EXPECT_EQ(tenant.user_namespace, 0u);
}

// Runs `look` in a process of user kStranger, and says whether it was true.
bool TrueForAStranger(const std::function<bool()>& look) {
  const pid_t pid = fork();
  if (pid == 0) _exit(BecomeStranger() && look() ? 0 : 1);
  int status = 0;
  return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(TenantTest, AnIrisdThatMayNotLookStillSeesWhoIsNotInItsNamespaces) {
  if (geteuid() != 0) GTEST_SKIP() << "needs another user";
  const Process host(0), container(CLONE_NEWPID);
  ASSERT_TRUE(host.valid());
  EXPECT_TRUE(TrueForAStranger([&] { return Find(host, 0) == Tenant{0, 0, 0}; }));
  if (!container.valid()) GTEST_SKIP() << "no PID namespaces here";
  EXPECT_TRUE(TrueForAStranger([&] {
    return Find(container, 0) == Tenant{0, Tenant::kUnknownNamespace, 0};
  }));
}

TEST(TenantTest, AProcessThatHasEndedIsRefused) {
  Process child(0);
  ASSERT_TRUE(child.valid());
  const pid_t pid = child.pid();
  child.Kill();
  const absl::Status status = TenantFinder().Find(pid, 0, child.pidfd()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  // The number may be another process's by now: the pidfd decides, not the number.
  const absl::Status reused = TenantFinder().Find(getpid(), 0, child.pidfd()).status();
  EXPECT_EQ(reused.code(), absl::StatusCode::kAborted) << reused;
}

TEST(TenantTest, RootAndIrisdsOwnUserInItsNamespacesAreTheOperator) {
  const TenantFinder finder;
  EXPECT_TRUE(finder.IsOperator({0, 0, 0}));
  EXPECT_TRUE(finder.IsOperator({geteuid(), 0, 0}));
  EXPECT_FALSE(finder.IsOperator({kStranger, 0, 0}));
  EXPECT_FALSE(finder.IsOperator({0, 4026532512, 0}));
  EXPECT_FALSE(finder.IsOperator({0, 0, Tenant::kUnknownNamespace}));
}

TEST(TenantTest, ATextNamesUserAndNamespaces) {
  EXPECT_EQ((Tenant{1000, 0, 0}).Text(), "uid 1000");
  EXPECT_EQ((Tenant{0, 12, 0}).Text(), "uid 0 of PID namespace 12");
  EXPECT_EQ((Tenant{0, 12, 1}).Text(), "uid 0 of PID namespace 12 and user namespace (unknown)");
}

TEST(TenantTest, EveryFieldTellsTenantsApart) {
  const std::unordered_set<Tenant, absl::Hash<Tenant>> tenants = {
      {1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {1, 1, 0}, {1, 0, 1}, {0, 1, 1}, {1, 1, 1}, {1, 0, 0}};
  EXPECT_EQ(tenants.size(), 7u);
}

}  // namespace
}  // namespace iris::server
