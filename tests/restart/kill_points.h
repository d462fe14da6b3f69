// KillPoints: has an irisd kill itself at a chosen system call, or lets that call fail once, so
// that a test can go through all of them. A library that is loaded into irisd before the C library
// (LD_PRELOAD) counts the calls. The test and the library share a file.
//
// The supervisor and the workers have the library too, and it does nothing in them.
#pragma once

#include <errno.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace iris::testing {

inline constexpr char kKillPointsVariable[] = "IRIS_TEST_KILL_POINTS";  // the path of the file

// A call that can fail, and the errors that it then has in turn; 0: no more of them.
struct FailingCall {
  const char* name;
  int errors[3];
};

// In brackets is which of the calls of that name are meant. Others are the allocators' own, of
// which one that fails ends irisd (server/host/limits.h), or have no such errors.
inline constexpr FailingCall kFailingCalls[] = {
    {"accept4", {EMFILE, ENFILE, ENOMEM}},
    {"bind", {ENOSPC, ENOMEM}},
    {"chmod", {EIO}},
    {"connect", {ECONNREFUSED, EAGAIN}},
    {"dup3", {EMFILE}},
    {"epoll_create1", {EMFILE, ENFILE, ENOMEM}},
    {"epoll_ctl(ADD)", {ENOSPC, ENOMEM}},
    {"eventfd", {EMFILE, ENFILE, ENOMEM}},
    {"fallocate", {ENOSPC, ENOMEM}},
    {"fchmod", {EIO}},
    {"fcntl(F_ADD_SEALS)", {ENOMEM}},
    {"fcntl(F_DUPFD_CLOEXEC)", {EMFILE}},
    {"flock", {ENOLCK}},
    {"fopen", {EMFILE, ENFILE, ENOMEM}},
    {"ftruncate", {ENOSPC, EIO}},
    {"getsockopt(SO_PEERPIDFD)", {EMFILE, ENFILE, ENOMEM}},
    {"listen", {ENOBUFS}},
    {"lstat", {ENOMEM}},
    {"memfd_create", {EMFILE, ENFILE, ENOMEM}},
    {"mkdir", {ENOSPC, EIO}},
    {"mmap(file or MiBs)", {ENOMEM}},
    {"open", {EMFILE, ENFILE, ENOMEM}},
    {"openat", {ENOSPC, EMFILE, EIO}},
    {"opendir", {EMFILE, ENFILE, ENOMEM}},
    {"pidfd_open", {EMFILE, ENFILE, ENOMEM}},
    {"pread(file)", {EIO}},
    {"pthread_create", {EAGAIN}},
    {"pwrite", {ENOSPC, EIO}},
    {"read(file)", {EIO, ENOMEM}},
    {"readlink", {ENOMEM}},
    {"rename", {ENOSPC, EIO}},
    {"renameat", {ENOSPC, EIO}},
    {"rmdir", {EIO}},
    {"send", {ENOBUFS, EAGAIN}},
    {"sendmsg", {ENOBUFS, EAGAIN, ETOOMANYREFS}},
    {"sendmsg(manager)", {EAGAIN, ENOBUFS, ETOOMANYREFS}},
    {"setsockopt", {ENOMEM}},
    {"socket", {EMFILE, ENFILE, ENOBUFS}},
    {"socketpair", {EMFILE, ENFILE, ENOMEM}},
    {"stat", {ENOMEM}},
    {"unlink", {EIO}},
    {"unlinkat", {EIO}},
    {"write(file)", {ENOSPC, EIO}},
};
inline constexpr size_t kFailingCallCount = sizeof(kFailingCalls) / sizeof(kFailingCalls[0]);

struct KillPointsPage {
  std::atomic<int64_t> left{0};     // calls up to the one that is the last; 0 or less: no end
  std::atomic<int64_t> next{0};     // takes the place of `left` then, for the next irisd
  std::atomic<bool> after{false};   // the last call is carried out
  std::atomic<uint32_t> killed{0};  // how often
  char last[32] = {};               // the name of the last call

  std::atomic<uint32_t> counts[kFailingCallCount] = {};  // of each of kFailingCalls
  std::atomic<uint32_t> fails{0};                        // an index into kFailingCalls
  std::atomic<uint32_t> error{0};                        // errno of the failure
  std::atomic<int64_t> until_failure{0};  // calls up to the one that fails; 0 or less: none does
};

}  // namespace iris::testing
