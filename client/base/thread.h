// StartThread: starts a std::thread that receives none of the application's signals, so that the
// application's handlers run on its own threads. A thread still gets signals that it causes.
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
