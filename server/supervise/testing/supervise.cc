// A supervisor whose options a test chooses:
// PROGRAM RUNTIME_DIR MOST_KEPT WATCHDOG_MS START_MS STOP_MS ARGUMENT...
// MOST_KEPT 0: what descriptors allow.
#include <stdio.h>
#include <stdlib.h>

#include "absl/time/time.h"
#include "server/events/log.h"
#include "server/host/limits.h"
#include "server/supervise/supervisor.h"

int main(int argc, char** argv) {
  if (argc < 7) {
    fprintf(stderr, "wrong usage\n");
    return 3;
  }
  iris::server::SupervisorOptions options;
  options.program = argv[1];
  options.runtime_dir = argv[2];
  options.most_kept = static_cast<size_t>(atoi(argv[3]));
  const size_t fit = iris::server::MostKept(iris::server::RaiseDescriptorLimit());
  if (options.most_kept == 0) options.most_kept = fit;
  options.watchdog = absl::Milliseconds(atoi(argv[4]));
  options.start_within = absl::Milliseconds(atoi(argv[5]));
  options.stop_within = absl::Milliseconds(atoi(argv[6]));
  options.arguments.assign(argv + 7, argv + argc);
  const iris::server::Logger logger(iris::server::LogLevel::kInfo,
                                    iris::server::LogFormat::kKeyValue);
  return iris::server::Supervise(options, logger);
}
