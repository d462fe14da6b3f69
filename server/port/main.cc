// irisd-port: carries the data of one job between this node and others. irisd starts it, one for
// each job of several nodes. It gives up rights that it does not need, and serves until irisd stops
// it, or has ended and no other one can come. Exit codes: 0 for these; 1 could not go on, which
// irisd was told; 2 not started by irisd.
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/wire/unique_fd.h"
#include "proto/wire/version.h"
#include "server/events/log.h"
#include "server/port/port.h"
#include "server/sandbox/sanitizers.h"
#include "server/sandbox/seccomp_filter.h"
#include "server/sandbox/syscall_tables.h"
#include "server/worker/confine.h"
#include "server/worker/grpc_log.h"
#include "server/worker/worker_options.h"

namespace iris::port {
namespace {

int Fail(const server::Logger& logger, const absl::Status& status) {
  logger.Error("a port cannot run", {{"error", status.ToString()}});
  return 1;
}

int Run(const server::WorkerOptions& options) {
  // The threads of UCX and gRPC use it until the end.
  static const server::Logger& logger =
      *new server::Logger(server::LogLevel::kInfo, options.json_log ? server::LogFormat::kJson
                                                                    : server::LogFormat::kKeyValue);
  server::LogForGrpc(&logger, "job", options.tenant);
  signal(SIGPIPE, SIG_IGN);
  (void)dup2(STDERR_FILENO, STDOUT_FILENO);  // UCX writes its log there
  // Waits of microseconds shall not take 50 more.
  (void)prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  tzset();
  absl::Status status = server::Confine(options);
  if (!status.ok()) return Fail(logger, status);
  absl::StatusOr<std::unique_ptr<Port>> port =
      Port::Create(wire::UniqueFd(server::kLinkFd), &logger);
  if (!port.ok()) return Fail(logger, port.status());
  status = (*port)->Start([&] {
    // UCX is open, and nothing has come from the network.
    if (!options.seccomp || server::kSanitized) return absl::OkStatus();
    return server::InstallFilter(server::CoreSyscalls(/*worker_program=*/-1));
  });
  if (status.ok()) status = (*port)->Run();
  const int code = status.ok() ? 0 : Fail(logger, status);
  // UCX would wait for peers, which see the end of the connections anyway.
  static const Port* const kept = port->release();
  (void)kept;
  return code;
}

int Main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "--version") == 0) {
    printf("irisd-port %s\n", wire::kIrisVersion);
    return 0;
  }
  if (!server::HasLink()) {
    fprintf(stderr,
            "irisd-port: irisd starts this program, one for each job of several nodes, and gives "
            "it a socket as descriptor 3. To start Iris, start irisd.\n");
    return 2;
  }
  const absl::StatusOr<server::WorkerOptions> options =
      server::FromArguments(std::vector<std::string>(argv + 1, argv + argc));
  if (!options.ok()) {
    fprintf(stderr, "irisd-port: %s\n", std::string(options.status().message()).c_str());
    return 2;
  }
  return Run(*options);
}

}  // namespace
}  // namespace iris::port

int main(int argc, char** argv) {
  const int code = iris::port::Main(argc, argv);
  // UCX's thread still runs, and its library's destructors would race with it.
  if (!iris::server::kSanitized) {
    fflush(nullptr);
    _exit(code);
  }
  return code;
}
