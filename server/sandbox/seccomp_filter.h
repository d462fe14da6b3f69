// SeccompFilter: a table of system calls, made into a program that the kernel runs before each
// system call of a process (seccomp, a classic packet filter). The tables are core_filter.h's and
// worker_filter.h's; docs/security.md shows them.
//
// Free functions without state, thread-safe; they own nothing. What is installed holds until the
// process ends, and for everything that it starts.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdint.h>

#include <initializer_list>
#include <vector>

#include "absl/status/status.h"

namespace iris::server {

// What becomes of a system call. Values of the kernel's.
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

// A rule holds for its system call if all of its checks do. The first that holds decides.
struct SyscallRule {
  const char* name;  // as the manual has it
  int number;
  SyscallAction action;
  std::vector<ArgumentCheck> checks = {};
};

// IRIS_SYSCALL(read, kAllow): the rule of a system call that this machine's kernel headers know.
#define IRIS_SYSCALL(name, action, ...) \
  SyscallRule { #name, __NR_##name, SyscallAction::action, __VA_ARGS__ }

struct SyscallTable {
  std::vector<SyscallRule> rules;
  SyscallAction otherwise = SyscallAction::kKillProcess;
};

// The program of a table. Calls of another architecture than this build's end the process.
std::vector<sock_filter> AssembleFilter(const SyscallTable& table);

// Makes the table hold for every thread of this process, from now on, and gives up the right to
// gain privileges by executing a program, which the kernel demands.
// kUnavailable: the kernel takes no such filter; the text says what to do. Nothing is changed then.
absl::Status InstallFilter(const SyscallTable& table);

}  // namespace iris::server
