// What kill_points.h describes, for LD_PRELOAD. It runs before main and inside malloc, so it uses
// nothing but the C library.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "tests/restart/kill_points.h"

namespace {

using iris::testing::KillPointsPage;

KillPointsPage* page = nullptr;  // null: this process is no irisd

[[noreturn]] void Die(const char* name) {
  strncpy(page->last, name, sizeof(page->last) - 1);
  page->left = page->next.exchange(0);
  page->killed.fetch_add(1);
  syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
  for (;;) __builtin_trap();
}

// True: this process is to die after the call.
bool Count(const char* name) {
  if (page == nullptr) return false;
  if (page->left.load() <= 0 || page->left.fetch_sub(1) != 1) return false;
  if (!page->after) Die(name);
  return true;
}

template <typename F, typename... Args>
auto Pass(const char* name, std::atomic<F>* next, Args... args) {
  F real = *next;
  if (real == nullptr) {
    real = reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
    *next = real;
  }
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

extern "C" {

#define IRIS_PASS(result, name, parameters, ...)                       \
  __attribute__((visibility("default"))) result name parameters {      \
    static constinit std::atomic<result(*) parameters> next = nullptr; \
    return Pass(#name, &next, __VA_ARGS__);                            \
  }

IRIS_PASS(ssize_t, sendmsg, (int fd, const struct msghdr* message, int flags), fd, message, flags)
IRIS_PASS(ssize_t, send, (int fd, const void* bytes, size_t n, int flags), fd, bytes, n, flags)
IRIS_PASS(ssize_t, write, (int fd, const void* bytes, size_t n), fd, bytes, n)
IRIS_PASS(ssize_t, recvmsg, (int fd, struct msghdr* message, int flags), fd, message, flags)
IRIS_PASS(int, rename, (const char* from, const char* to), from, to)
IRIS_PASS(int, unlink, (const char* path), path)
IRIS_PASS(int, mkdir, (const char* path, mode_t mode), path, mode)
IRIS_PASS(int, rmdir, (const char* path), path)
IRIS_PASS(int, chmod, (const char* path, mode_t mode), path, mode)
IRIS_PASS(int, memfd_create, (const char* name, unsigned int flags), name, flags)
IRIS_PASS(int, ftruncate, (int fd, off_t size), fd, size)
IRIS_PASS(int, fallocate, (int fd, int mode, off_t offset, off_t size), fd, mode, offset, size)
IRIS_PASS(int, accept4, (int fd, struct sockaddr* address, socklen_t* n, int flags), fd, address, n,
          flags)
IRIS_PASS(int, socket, (int domain, int type, int protocol), domain, type, protocol)
IRIS_PASS(int, socketpair, (int domain, int type, int protocol, int* fds), domain, type, protocol,
          fds)
IRIS_PASS(int, bind, (int fd, const struct sockaddr* address, socklen_t n), fd, address, n)
IRIS_PASS(int, listen, (int fd, int backlog), fd, backlog)
IRIS_PASS(int, connect, (int fd, const struct sockaddr* address, socklen_t n), fd, address, n)
IRIS_PASS(int, shutdown, (int fd, int how), fd, how)
IRIS_PASS(int, close, (int fd), fd)
IRIS_PASS(int, epoll_ctl, (int epoll, int operation, int fd, struct epoll_event* event), epoll,
          operation, fd, event)

}  // extern "C"
