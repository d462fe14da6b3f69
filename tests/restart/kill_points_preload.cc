// What kill_points.h describes, for LD_PRELOAD. It runs before main and inside malloc, so it uses
// nothing but the C library.
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <string_view>

#include "tests/restart/kill_points.h"

namespace {

using iris::testing::kFailingCalls;
using iris::testing::KillPointsPage;

constexpr int kSoPeerPidfd = 77;  // SO_PEERPIDFD; older headers lack it

KillPointsPage* page = nullptr;  // null: this process is no irisd

[[noreturn]] void Die(const char* name) {
  strncpy(page->last, name, sizeof(page->last) - 1);
  page->left = page->next.exchange(0);
  page->killed.fetch_add(1);
  syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
  for (;;) __builtin_trap();
}

// Returns true if this process is to die after the call.
bool Count(const char* name) {
  if (page == nullptr) return false;
  if (page->left.load() <= 0 || page->left.fetch_sub(1) != 1) return false;
  if (!page->after) Die(name);
  return true;
}

// The index of a call, found when this is compiled.
consteval uint32_t IndexOf(std::string_view name) {
  for (uint32_t i = 0; i < iris::testing::kFailingCallCount; ++i) {
    if (name == kFailingCalls[i].name) return i;
  }
  throw "no such call";
}

// Returns true if this call, number `index` of kFailingCalls, is to fail with errno.
bool Fails(uint32_t index) {
  if (page == nullptr) return false;
  page->counts[index].fetch_add(1);
  if (page->fails.load() != index || page->until_failure.load() <= 0 ||
      page->until_failure.fetch_sub(1) != 1) {
    return false;
  }
  errno = static_cast<int>(page->error.load());
  return true;
}

// One that is not in memory alone, as memfds are.
bool IsFile(int fd) {
  struct stat info = {};
  return fd > STDERR_FILENO && syscall(SYS_fstat, fd, &info) == 0 && S_ISREG(info.st_mode) &&
         info.st_nlink > 0;
}

bool IsDatagrams(int fd) {
  const int before = errno;
  int type = 0;
  socklen_t n = sizeof(type);
  const bool is = syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, &type, &n) == 0;
  errno = before;
  return is && type == SOCK_DGRAM;
}

template <typename F>
F Next(const char* name, std::atomic<F>* next) {
  F real = *next;
  if (real == nullptr) {
    real = reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
    *next = real;
  }
  return real;
}

template <typename F, typename... Args>
auto Pass(const char* name, std::atomic<F>* next, Args... args) {
  const F real = Next(name, next);
  const bool last = Count(name);
  const auto result = real(args...);
  if (last) Die(name);
  return result;
}

__attribute__((constructor)) void Begin(int argc, char** argv, char** /*environment*/) {
  const char* const path = getenv(iris::testing::kKillPointsVariable);
  const char* const name = argc > 0 ? strrchr(argv[0], '/') : nullptr;
  if (path == nullptr || name == nullptr || strcmp(name, "/irisd") != 0) return;
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--supervise") == 0) return;
  }
  const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0));
  if (fd < 0) return;
  void* const mapped =
      mmap(nullptr, sizeof(KillPointsPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  syscall(SYS_close, fd);
  if (mapped == MAP_FAILED) return;
  // A child that has executed nothing yet is no irisd.
  pthread_atfork(nullptr, nullptr, [] { page = nullptr; });
  page = static_cast<KillPointsPage*>(mapped);
}

}  // namespace

// Functions of the C library share names with its structures.
#pragma GCC diagnostic ignored "-Wshadow"

extern "C" {

#define IRIS_CALL(result, name, parameters, failure, ...)              \
  __attribute__((visibility("default"))) result name parameters {      \
    static constinit std::atomic<result(*) parameters> next = nullptr; \
    failure;                                                           \
    return Pass(#name, &next, __VA_ARGS__);                            \
  }
// The call can be the last one, and can fail as the call of kFailingCalls that is named like it.
#define IRIS_BOTH(result, name, parameters, ...) \
  IRIS_CALL(result, name, parameters, if (Fails(IndexOf(#name))) return -1, __VA_ARGS__)
// The call can be the last one.
#define IRIS_LAST(result, name, parameters, ...) \
  IRIS_CALL(result, name, parameters, (void)0, __VA_ARGS__)
// The call can fail, if `where`, and then returns `value`.
#define IRIS_FAIL_AS(result, name, as, where, value, parameters, ...)  \
  __attribute__((visibility("default"))) result name parameters {      \
    static constinit std::atomic<result(*) parameters> next = nullptr; \
    if ((where) && Fails(IndexOf(as))) return value;                   \
    return Next(#name, &next)(__VA_ARGS__);                            \
  }
#define IRIS_FAIL(result, name, parameters, ...) \
  IRIS_FAIL_AS(result, name, #name, true, -1, parameters, __VA_ARGS__)

IRIS_CALL(ssize_t, sendmsg, (int fd, const struct msghdr* message, int flags),
          if (page != nullptr &&
              Fails(IsDatagrams(fd) ? IndexOf("sendmsg(manager)") : IndexOf("sendmsg"))) return -1,
          fd, message, flags)
IRIS_BOTH(ssize_t, send, (int fd, const void* bytes, size_t n, int flags), fd, bytes, n, flags)
IRIS_CALL(ssize_t, write, (int fd, const void* bytes, size_t n),
          if (page != nullptr && IsFile(fd) && Fails(IndexOf("write(file)"))) return -1, fd, bytes,
          n)
IRIS_LAST(ssize_t, recvmsg, (int fd, struct msghdr* message, int flags), fd, message, flags)
IRIS_BOTH(int, rename, (const char* from, const char* to), from, to)
IRIS_BOTH(int, unlink, (const char* path), path)
IRIS_BOTH(int, mkdir, (const char* path, mode_t mode), path, mode)
IRIS_BOTH(int, rmdir, (const char* path), path)
IRIS_BOTH(int, chmod, (const char* path, mode_t mode), path, mode)
IRIS_BOTH(int, memfd_create, (const char* name, unsigned int flags), name, flags)
IRIS_BOTH(int, ftruncate, (int fd, off_t size), fd, size)
IRIS_BOTH(int, fallocate, (int fd, int mode, off_t offset, off_t size), fd, mode, offset, size)
IRIS_BOTH(int, accept4, (int fd, struct sockaddr* address, socklen_t* n, int flags), fd, address, n,
          flags)
IRIS_BOTH(int, socket, (int domain, int type, int protocol), domain, type, protocol)
IRIS_BOTH(int, socketpair, (int domain, int type, int protocol, int* fds), domain, type, protocol,
          fds)
IRIS_BOTH(int, bind, (int fd, const struct sockaddr* address, socklen_t n), fd, address, n)
IRIS_BOTH(int, listen, (int fd, int backlog), fd, backlog)
IRIS_BOTH(int, connect, (int fd, const struct sockaddr* address, socklen_t n), fd, address, n)
IRIS_LAST(int, shutdown, (int fd, int how), fd, how)
IRIS_LAST(int, close, (int fd), fd)
IRIS_CALL(int, epoll_ctl, (int epoll, int operation, int fd, struct epoll_event* event),
          if (operation == EPOLL_CTL_ADD && Fails(IndexOf("epoll_ctl(ADD)"))) return -1, epoll,
          operation, fd, event)

IRIS_FAIL(int, dup3, (int from, int to, int flags), from, to, flags)
IRIS_FAIL(int, epoll_create1, (int flags), flags)
IRIS_FAIL(int, eventfd, (unsigned int value, int flags), value, flags)
IRIS_FAIL(int, fchmod, (int fd, mode_t mode), fd, mode)
IRIS_FAIL(int, flock, (int fd, int operation), fd, operation)
IRIS_FAIL(int, stat, (const char* path, struct stat* info), path, info)
IRIS_FAIL(int, lstat, (const char* path, struct stat* info), path, info)
IRIS_FAIL_AS(ssize_t, pread, "pread(file)", page != nullptr && IsFile(fd), -1,
             (int fd, void* bytes, size_t n, off_t at), fd, bytes, n, at)
IRIS_FAIL(ssize_t, pwrite, (int fd, const void* bytes, size_t n, off_t at), fd, bytes, n, at)
IRIS_FAIL(ssize_t, readlink, (const char* path, char* text, size_t n), path, text, n)
IRIS_FAIL(int, renameat, (int from_folder, const char* from, int to_folder, const char* to),
          from_folder, from, to_folder, to)
IRIS_FAIL(int, unlinkat, (int folder, const char* path, int flags), folder, path, flags)
IRIS_FAIL(int, setsockopt, (int fd, int level, int option, const void* value, socklen_t n), fd,
          level, option, value, n)
IRIS_FAIL_AS(int, getsockopt, "getsockopt(SO_PEERPIDFD)", option == kSoPeerPidfd, -1,
             (int fd, int level, int option, void* value, socklen_t* n), fd, level, option, value,
             n)
IRIS_FAIL_AS(ssize_t, read, "read(file)", page != nullptr && IsFile(fd), -1,
             (int fd, void* bytes, size_t n), fd, bytes, n)
IRIS_FAIL_AS(void*, mmap, "mmap(file or MiBs)", fd >= 0 || n >= 1 << 20, MAP_FAILED,
             (void* at, size_t n, int protection, int flags, int fd, off_t offset), at, n,
             protection, flags, fd, offset)
IRIS_FAIL_AS(DIR*, opendir, "opendir", true, nullptr, (const char* path), path)
IRIS_FAIL_AS(FILE*, fopen, "fopen", true, nullptr, (const char* path, const char* mode), path, mode)
IRIS_FAIL_AS(FILE*, fopen64, "fopen", true, nullptr, (const char* path, const char* mode), path,
             mode)
IRIS_FAIL_AS(int, pthread_create, "pthread_create", true, errno,
             (pthread_t * thread, const pthread_attr_t* attributes, void* (*run)(void*), void* of),
             thread, attributes, run, of)

// The last argument of these is there or not; as a register it can be passed on all the same.

__attribute__((visibility("default"))) int open(const char* path, int flags, ...) {
  static constinit std::atomic<int (*)(const char*, int, ...)> next = nullptr;
  va_list more;
  va_start(more, flags);
  const mode_t mode = va_arg(more, mode_t);
  va_end(more);
  if (Fails(IndexOf("open"))) return -1;
  return Next("open", &next)(path, flags, mode);
}

__attribute__((visibility("default"))) int openat(int folder, const char* path, int flags, ...) {
  static constinit std::atomic<int (*)(int, const char*, int, ...)> next = nullptr;
  va_list more;
  va_start(more, flags);
  const mode_t mode = va_arg(more, mode_t);
  va_end(more);
  if (Fails(IndexOf("openat"))) return -1;
  return Next("openat", &next)(folder, path, flags, mode);
}

__attribute__((visibility("default"))) int fcntl(int fd, int command, ...) {
  static constinit std::atomic<int (*)(int, int, ...)> next = nullptr;
  va_list more;
  va_start(more, command);
  const long argument = va_arg(more, long);
  va_end(more);
  if (command == F_DUPFD_CLOEXEC && Fails(IndexOf("fcntl(F_DUPFD_CLOEXEC)"))) return -1;
  if (command == F_ADD_SEALS && Fails(IndexOf("fcntl(F_ADD_SEALS)"))) return -1;
  return Next("fcntl", &next)(fd, command, argument);
}

__attribute__((visibility("default"))) long syscall(long number, ...) {
  static constinit std::atomic<long (*)(long, ...)> next = nullptr;
  va_list more;
  va_start(more, number);
  long a[6];
  for (long& each : a) each = va_arg(more, long);
  va_end(more);
  if (number == SYS_pidfd_open && Fails(IndexOf("pidfd_open"))) return -1;
  return Next("syscall", &next)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

}  // extern "C"
