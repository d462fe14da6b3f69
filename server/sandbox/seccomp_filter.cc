#include "server/sandbox/seccomp_filter.h"

#include <errno.h>
#include <linux/audit.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "proto/wire/frame.h"

namespace iris::server {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
// Numbers from here on belong to the x32 interface, whose pointers have 32 bits.
constexpr uint32_t kFirstForeignNumber = 0x40000000;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
constexpr uint32_t kFirstForeignNumber = 0x80000000;
#else
#error "say here which architecture's system calls the sandbox is for"
#endif

constexpr uint32_t kNumberAt = offsetof(struct seccomp_data, nr);
constexpr uint32_t kArchitectureAt = offsetof(struct seccomp_data, arch);

// Returns the offset of half of an argument. Both architectures are little-endian.
uint32_t AddressOf(const ArgumentCheck& check) {
  return static_cast<uint32_t>(offsetof(struct seccomp_data, args)) + 8u * check.argument +
         (check.high_half ? 4u : 0u);
}

sock_filter Load(uint32_t at) { return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at); }
sock_filter Return(SyscallAction action) {
  return BPF_STMT(BPF_RET | BPF_K, static_cast<uint32_t>(action));
}
sock_filter UnlessEqualSkip(uint32_t value, size_t n) {
  return BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, static_cast<uint8_t>(n));
}

}  // namespace

std::vector<sock_filter> AssembleFilter(const SyscallTable& table) {
  std::vector<sock_filter> program = {
      Load(kArchitectureAt),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0),
      Return(SyscallAction::kKillProcess),
      Load(kNumberAt),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, kFirstForeignNumber, 0, 1),
      Return(SyscallAction::kKillProcess),
  };
  for (const SyscallRule& rule : table.rules) {
    // A check has three statements. After the checks come the verdict and, for the following rules,
    // a statement that loads the number again.
    const size_t n_checks = rule.checks.size();
    const size_t reload = n_checks > 0 ? 1 : 0;
    program.push_back(
        UnlessEqualSkip(static_cast<uint32_t>(rule.number), 3 * n_checks + 1 + reload));
    for (size_t i = 0; i < n_checks; ++i) {
      const ArgumentCheck& check = rule.checks[i];
      program.push_back(Load(AddressOf(check)));
      program.push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, check.mask));
      program.push_back(UnlessEqualSkip(check.value, 3 * (n_checks - i - 1) + 1));
    }
    program.push_back(Return(rule.action));
    if (reload > 0) program.push_back(Load(kNumberAt));
  }
  program.push_back(Return(table.otherwise));
  return program;
}

absl::Status InstallFilter(const SyscallTable& table) {
  std::vector<sock_filter> statements = AssembleFilter(table);
  const struct sock_fprog program = {static_cast<unsigned short>(statements.size()),
                                     statements.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
    return wire::ErrnoStatus(errno, "give up gaining privileges (PR_SET_NO_NEW_PRIVS)");
  }
  const long result =
      syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
  if (result == 0) return absl::OkStatus();
  if (result > 0) {
    return absl::UnavailableError(
        absl::StrCat("thread ", result,
                     " of this process has a filter of system calls of its own: a library "
                     "has installed it; set seccomp = \"off\" to run without Iris's filters"));
  }
  return absl::UnavailableError(
      absl::StrCat("the kernel does not take the filter of system calls: ", strerror(errno),
                   "; allow the system call seccomp here, or set seccomp = \"off\""));
}

}  // namespace iris::server
