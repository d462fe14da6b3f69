// A table of system calls as a program that the kernel runs before each system call of a process
// (seccomp, a classic packet filter). syscall_tables.h has the tables. Thread-safe, without state.
// An installed filter holds until the process ends, and for everything that it starts.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdint.h>

#include <initializer_list>
#include <vector>

#include "absl/status/status.h"

namespace iris::server {

// The kernel's values for what a call does.
enum class SyscallAction : uint32_t {
  kAllow = SECCOMP_RET_ALLOW,
  // It fails, as if this process had no right to it.
  kNoPermission = SECCOMP_RET_ERRNO | 1,  // EPERM
  kNoAccess = SECCOMP_RET_ERRNO | 13,     // EACCES
  kNoSuchCall = SECCOMP_RET_ERRNO | 38,   // ENOSYS: the C library knows another way
  // The whole process ends by SIGSYS. The kernel's audit log names the call.
  kKillProcess = SECCOMP_RET_KILL_PROCESS,
};

// A condition on an argument: (half of argument & mask) == value. What a pointer points at is out
// of reach.
struct ArgumentCheck {
  uint8_t argument = 0;  // 0 to 5
  uint32_t mask = ~0u;
  uint32_t value = 0;
  bool high_half = false;  // of the argument's 64 bits
};

struct Syscall {
  const char* name;  // as in the manual
  int number;
};

// A rule holds for its system call if all of its checks do. The first rule that holds decides.
struct SyscallRule : Syscall {
  SyscallAction action;
  std::vector<ArgumentCheck> checks;
};

struct SyscallTable {
  SyscallAction otherwise = SyscallAction::kKillProcess;
  std::vector<SyscallRule> rules = {};

  // Appends a rule for each of `calls`.
  void Add(std::initializer_list<Syscall> calls, SyscallAction action,
           const std::vector<ArgumentCheck>& checks = {}) {
    for (const Syscall& call : calls) rules.push_back({call, action, checks});
  }
};

// Returns the program of a table. Calls of another architecture than this build's end the process.
std::vector<sock_filter> AssembleFilter(const SyscallTable& table);

// Makes the table hold for every thread of this process, from now on, and gives up the right to
// gain privileges by executing a program, which the kernel demands. kUnavailable, with advice, if
// the kernel takes no such filter. Nothing is changed then.
absl::Status InstallFilter(const SyscallTable& table);

}  // namespace iris::server
