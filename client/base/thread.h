// StartThread: a std::thread that takes none of the application's signals: its handlers run on its
// own threads. Signals that a thread brings upon itself stay as they are.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace iris::internal {

template <typename Body>
std::thread StartThread(Body body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) {
    sigdelset(&all, own);
  }
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace iris::internal
