// The filters do what their tables say: seen by installing them in child processes. And the tables
// are those of docs/security.md.
#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <utility>

#include "server/sandbox/sanitizers.h"
#include "server/sandbox/seccomp_filter.h"
#include "server/sandbox/syscall_tables.h"

namespace iris::server {
namespace {

// How a child ended that installed a table and then did something: 1000 + the signal, or what
// `call` returned, which must be a small number.
int InChild(const std::function<SyscallTable()>& table, const std::function<int()>& call) {
  const pid_t child = fork();
  if (child == 0) {
    if (!InstallFilter(table()).ok()) _exit(99);
    _exit(call());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

int AsWorker(const std::function<int()>& call) {
  return InChild([] { return WorkerSyscalls(getpid()); }, call);
}

constexpr int kTheOneProgram = 77;
int AsCore(const std::function<int()>& call) {
  return InChild([] { return CoreSyscalls(kTheOneProgram); }, call);
}

// errno of a system call, or 0.
template <typename... Args>
int ErrnoOf(long number, Args... args) {
  return syscall(number, args...) == -1 ? errno : 0;
}

class SandboxTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "there are no filters in this build";
  }
};

constexpr int kKilled = 1000 + SIGSYS;

TEST_F(SandboxTest, AWorkerMovesBytesAndManagesItself) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  EXPECT_EQ(AsWorker([&] {
              char byte = 'x';
              if (send(pair[0], &byte, 1, MSG_NOSIGNAL) != 1) return 1;
              if (read(pair[1], &byte, 1) != 1) return 2;
              void* const memory = mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
              if (memory == MAP_FAILED || munmap(memory, 1 << 20) != 0) return 3;
              pthread_t thread;
              if (pthread_create(
                      &thread, nullptr, [](void*) -> void* { return nullptr; }, nullptr) != 0) {
                return 4;
              }
              return pthread_join(thread, nullptr) == 0 ? 0 : 5;
            }),
            0);
}

TEST_F(SandboxTest, AWorkerOpensNothing) {
  EXPECT_EQ(AsWorker([] { return ErrnoOf(SYS_openat, AT_FDCWD, "/dev/null", O_RDONLY, 0); }),
            EACCES);
  EXPECT_EQ(AsWorker([] { return ErrnoOf(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR, 0); }),
            kKilled);
  EXPECT_EQ(AsWorker([] {
              return ErrnoOf(SYS_openat, AT_FDCWD, "/tmp/iris-no-file", O_RDONLY | O_CREAT, 0600);
            }),
            kKilled);
}

TEST_F(SandboxTest, AWorkerMayAbort) {
  EXPECT_EQ(AsWorker([] {
              abort();
              return 0;
            }),
            1000 + SIGABRT);
}

TEST_F(SandboxTest, AWorkerIsEndedByAnythingElse) {
  const pid_t parent = getpid();
  const std::pair<const char*, std::function<int()>> forbidden[] = {
      {"kill", [=] { return ErrnoOf(SYS_kill, parent, 0); }},
      {"tgkill of another", [=] { return ErrnoOf(SYS_tgkill, parent, parent, 0); }},
      {"pidfd_open", [=] { return ErrnoOf(SYS_pidfd_open, parent, 0); }},
      {"ptrace", [=] { return ErrnoOf(SYS_ptrace, PTRACE_ATTACH, parent, 0, 0); }},
      {"process_vm_readv",
       [=] { return ErrnoOf(SYS_process_vm_readv, parent, nullptr, 0, nullptr, 0, 0); }},
      {"socket", [] { return ErrnoOf(SYS_socket, AF_UNIX, SOCK_STREAM, 0); }},
      {"socketpair", [] { return ErrnoOf(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, nullptr); }},
      {"connect", [] { return ErrnoOf(SYS_connect, 0, nullptr, 0); }},
      {"execve", [] { return ErrnoOf(SYS_execve, "/bin/true", nullptr, nullptr); }},
      {"execveat", [] { return ErrnoOf(SYS_execveat, -1, "/bin/true", nullptr, nullptr, 0); }},
      {"fork", [] { return ErrnoOf(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, 0); }},
      {"a process that shares memory",
       [] { return ErrnoOf(SYS_clone, CLONE_VM | CLONE_VFORK, nullptr, nullptr, nullptr, 0); }},
      {"memory to execute",
       [] {
         return ErrnoOf(SYS_mmap, nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS,
                        -1, 0);
       }},
      {"a namespace", [] { return ErrnoOf(SYS_unshare, 0); }},
      {"setuid", [] { return ErrnoOf(SYS_setuid, 0); }},
      {"dumpable again", [] { return ErrnoOf(SYS_prctl, PR_SET_DUMPABLE, 1, 0, 0, 0); }},
      {"unlink", [] { return ErrnoOf(SYS_unlinkat, AT_FDCWD, "/tmp/iris-no-file", 0); }},
      {"memfd_create", [] { return ErrnoOf(SYS_memfd_create, "x", 0); }},
      {"bpf", [] { return ErrnoOf(SYS_bpf, 0, nullptr, 0); }},
      {"an unknown call", [] { return ErrnoOf(4000); }},
  };
  for (const auto& [name, call] : forbidden) EXPECT_EQ(AsWorker(call), kKilled) << name;
}

TEST_F(SandboxTest, AFilterHoldsForThreadsThatRunAlready) {
  EXPECT_EQ(InChild([] { return SyscallTable{SyscallAction::kAllow}; },
                    [] {
                      static std::atomic<bool> installed{false};
                      pthread_t thread;
                      const auto run = [](void*) -> void* {
                        while (!installed) sched_yield();
                        syscall(SYS_kill, getppid(), 0);
                        return nullptr;
                      };
                      if (pthread_create(&thread, nullptr, run, nullptr) != 0) return 1;
                      if (!InstallFilter(WorkerSyscalls(getpid())).ok()) return 2;
                      installed = true;
                      pthread_join(thread, nullptr);
                      return 0;
                    }),
            kKilled);
}

TEST_F(SandboxTest, TheCoreKeepsWhatItNeeds) {
  EXPECT_EQ(AsCore([] {
              if (socket(AF_UNIX, SOCK_SEQPACKET, 0) < 0) return 1;
              if (syscall(SYS_memfd_create, "x", 0) < 0) return 2;
              if (open("/dev/null", O_RDWR) < 0) return 3;
              if (syscall(SYS_pidfd_open, getpid(), 0) < 0) return 4;
              const pid_t child = fork();
              if (child == 0) _exit(7);
              int status = 0;
              return waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7 ? 0 : 5;
            }),
            0);
}

TEST_F(SandboxTest, TheCoreGivesUpWhatItsTableSays) {
  for (const SyscallRule& rule : CoreSyscalls(kTheOneProgram).rules) {
    if (rule.action == SyscallAction::kAllow) continue;
    EXPECT_EQ(AsCore([&] { return ErrnoOf(rule.number, -1L, 0L, 0L, 0L, 0L, 0L); }), EPERM)
        << rule.name;
  }
}

TEST_F(SandboxTest, TheCoreExecutesOneProgram) {
  const int program = open("/bin/true", O_PATH);
  ASSERT_GE(program, 0);
  char name[] = "true";
  char* const arguments[] = {name, nullptr};
  char* const environment[] = {nullptr};
  const auto execute = [&](int fd, const char* path, int flags) {
    return AsCore([=] {
      if (dup2(program, kTheOneProgram) < 0) return 98;
      return ErrnoOf(SYS_execveat, fd, path, arguments, environment, flags);
    });
  };
  EXPECT_EQ(execute(kTheOneProgram, "", AT_EMPTY_PATH), 0);  // what /bin/true returns
  EXPECT_EQ(execute(program, "", AT_EMPTY_PATH), EPERM);
  EXPECT_EQ(execute(AT_FDCWD, "/bin/true", 0), EPERM);
}

TEST_F(SandboxTest, TablesWithoutAProgramExecuteNone) {
  const int program = open("/bin/true", O_PATH);
  ASSERT_GE(program, 0);
  EXPECT_EQ(
      InChild([] { return CoreSyscalls(-1); },
              [=] { return ErrnoOf(SYS_execveat, program, "", nullptr, nullptr, AT_EMPTY_PATH); }),
      EPERM);
}

TEST(FilterTest, FitsTheKernel) {
  EXPECT_LE(AssembleFilter(WorkerSyscalls(1)).size(), 4096u);  // BPF_MAXINSNS
  EXPECT_LE(AssembleFilter(CoreSyscalls(3)).size(), 4096u);
}

TEST(FilterTest, ThePageNamesEveryCall) {
  std::ifstream file("docs/security.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string page = text.str();
  ASSERT_FALSE(page.empty());
  for (const SyscallTable& table : {WorkerSyscalls(1), CoreSyscalls(3)}) {
    for (const SyscallRule& rule : table.rules) {
      EXPECT_NE(page.find(std::string("`") + rule.name + "`"), std::string::npos)
          << "docs/security.md does not name " << rule.name;
    }
  }
}

}  // namespace
}  // namespace iris::server
