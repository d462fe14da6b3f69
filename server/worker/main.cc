// irisd-worker: speaks gRPC with the clients of one tenant, on behalf of irisd, which starts it. It
// gives up rights that it does not need, reports to irisd that it is ready, and relays until irisd
// ends or stops it. With --closing=1 it closes connections for irisd instead, with --looking=1 it
// inspects descriptors. Exit codes: 0 stopped as requested, or irisd has ended; 1 could not run; 2
// not started by irisd; 3 has used up its memory.
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "proto/wire/unique_fd.h"
#include "proto/wire/version.h"
#include "server/events/log.h"
#include "server/sandbox/sanitizers.h"
#include "server/sandbox/seccomp_filter.h"
#include "server/sandbox/syscall_tables.h"
#include "server/worker/confine.h"
#include "server/worker/grpc_log.h"
#include "server/worker/helper_work.h"
#include "server/worker/worker.h"
#include "server/worker/worker_options.h"

namespace iris::server {
namespace {

int Fail(const Logger& logger, const WorkerOptions& options, const absl::Status& status) {
  logger.Error("a worker cannot run", {{"tenant", options.tenant}, {"error", status.ToString()}});
  return 1;
}

int Run(const WorkerOptions& options) {
  const Logger logger(LogLevel::kInfo, options.json_log ? LogFormat::kJson : LogFormat::kKeyValue);
  // irisd reports the reason, in one line.
  std::set_new_handler([] { _exit(kOutOfMemoryExit); });
  LogForGrpc(&logger, "tenant", options.tenant);
  signal(SIGPIPE, SIG_IGN);
  tzset();  // reads its file now, since it cannot be read later
  absl::Status status = Confine(options);
  if (!status.ok()) return Fail(logger, options, status);
  if (options.closing || options.looking.has_value()) {
    struct rlimit descriptors = {};
    (void)getrlimit(RLIMIT_NOFILE, &descriptors);  // cannot be asked later
    if (options.seccomp && !kSanitized) {
      status = InstallFilter(options.looking.has_value() ? LookingSyscalls(getpid())
                                                         : WorkerSyscalls(getpid()));
      if (!status.ok()) return Fail(logger, options, status);
    }
    wire::UniqueFd link(kLinkFd);
    if (options.closing) {
      CloseConnections(std::move(link));
    } else {
      LookAtDescriptors(std::move(link), *options.looking, descriptors.rlim_cur);
    }
    return 0;
  }
  absl::StatusOr<std::unique_ptr<Worker>> worker =
      Worker::Create(wire::UniqueFd(kLinkFd), options.memory_bytes, &logger);
  if (!worker.ok()) return Fail(logger, options, worker.status());
  // gRPC's threads run, but no client is connected yet.
  if (options.seccomp && !kSanitized) {
    status = InstallFilter(WorkerSyscalls(getpid()));
    if (!status.ok()) return Fail(logger, options, status);
  }
  status = (*worker)->Run();
  if (!status.ok() && !absl::IsUnavailable(status)) return Fail(logger, options, status);
  return 0;
}

int Main(int argc, char** argv) {
  // Few threads allocate: an arena for each would cost memory that no other thread can use.
  mallopt(M_ARENA_MAX, 1);
  // Abseil's search for deadlocks would take time, and memory that is never freed.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  if (argc == 2 && strcmp(argv[1], "--version") == 0) {
    printf("irisd-worker %s\n", wire::kIrisVersion);
    return 0;
  }
  if (!HasLink()) {
    fprintf(stderr,
            "irisd-worker: irisd starts this program, one for each of its users, and gives it a "
            "socket as descriptor 3. To start Iris, start irisd.\n");
    return 2;
  }
  const absl::StatusOr<WorkerOptions> options =
      FromArguments(std::vector<std::string>(argv + 1, argv + argc));
  if (!options.ok()) {
    fprintf(stderr, "irisd-worker: %s\n", std::string(options.status().message()).c_str());
    return 2;
  }
  return Run(*options);
}

}  // namespace
}  // namespace iris::server

int main(int argc, char** argv) { return iris::server::Main(argc, argv); }
