// Compiles a table of system calls to a program that the kernel runs before each system call of a
// process (seccomp, a classic packet filter). syscall_tables.h has the tables. Thread-safe, without
// state. An installed filter applies until the process ends, and to every process that it starts.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdint.h>

#include <initializer_list>
#include <vector>

#include "absl/status/status.h"

namespace iris::server {

// The kernel's values for the result of a call.
enum class SyscallAction : uint32_t {
  kAllow = SECCOMP_RET_ALLOW,
  // The call fails as if this process had no right to it.
  kNoPermission = SECCOMP_RET_ERRNO | 1,  // EPERM
  kNoAccess = SECCOMP_RET_ERRNO | 13,     // EACCES
  kNoSuchCall = SECCOMP_RET_ERRNO | 38,   // ENOSYS: the C library knows another way
  // SIGSYS ends the entire process. The kernel's audit log names the call.
  kKillProcess = SECCOMP_RET_KILL_PROCESS,
};

// A condition on an argument: (half of argument & mask) == value. A filter cannot follow pointers.
struct ArgumentCheck {
  uint8_t argument = 0;  // 0 to 5
  uint32_t mask = ~0u;
  uint32_t value = 0;
  bool high_half = false;  // check the high half of the argument's 64 bits
};

struct Syscall {
  const char* name;  // as in the manual
  int number;
};

// A rule applies to its system call if all of its checks hold. The first rule that applies decides.
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

// Applies the table to every thread of this process from now on, and gives up the right to gain
// privileges by executing a program, as the kernel demands. Returns kUnavailable, with advice, if
// the kernel does not accept the filter. Nothing is changed then.
absl::Status InstallFilter(const SyscallTable& table);

}  // namespace iris::server
