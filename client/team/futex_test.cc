#include "client/team/futex.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/time/clock.h"

namespace iris::internal {
namespace {

// From now on futex_waitv fails in this process, as in a kernel before 5.16 (ENOSYS) or in a
// container whose filter is older than the call (EPERM).
bool RefuseWaitv(int error) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex_waitv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {sizeof(program) / sizeof(program[0]), program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0 &&
         syscall(SYS_futex_waitv, nullptr, 0, 0, nullptr, 0) < 0 && errno == error;
}

// Forks a child that may not call futex_waitv and waits on two words. The parent adds to the second
// one and wakes it. Returns 0 if the child saw that.
int WaitWithout(int error) {
  void* const pages =
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return -1;
  uint32_t* const words = static_cast<uint32_t*>(pages);
  const pid_t child = fork();
  if (child == 0) {
    if (!RefuseWaitv(error)) _exit(2);
    __atomic_store_n(&words[2], 1, __ATOMIC_RELEASE);
    const FutexWord waits[] = {{&words[0], 0}, {&words[1], 0}};
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    int n_calls = 0;
    while (__atomic_load_n(&words[1], __ATOMIC_ACQUIRE) == 0) {
      if (absl::Now() > deadline) _exit(3);
      FutexWaitAny(waits, absl::Seconds(10));
      ++n_calls;
    }
    // It slept in between: 100 ms of calls of at most 1 ms each, and not of none.
    _exit(n_calls > 1000 ? 4 : 0);
  }
  const absl::Time patience = absl::Now() + absl::Seconds(60);
  while (__atomic_load_n(&words[2], __ATOMIC_ACQUIRE) == 0 && absl::Now() < patience) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  absl::SleepFor(absl::Milliseconds(100));
  __atomic_store_n(&words[1], 1, __ATOMIC_RELEASE);
  FutexWakeAll(&words[1]);
  int status = -1;
  waitpid(child, &status, 0);
  munmap(pages, 4096);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(FutexTest, AKernelWithoutWaitvWaits) { EXPECT_EQ(WaitWithout(ENOSYS), 0); }

TEST(FutexTest, AContainerThatForbidsWaitvWaits) { EXPECT_EQ(WaitWithout(EPERM), 0); }

}  // namespace
}  // namespace iris::internal
