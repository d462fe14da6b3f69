// The supervisor: a small parent process of irisd. It starts irisd, keeps descriptors for it while
// it is dead, and restarts it with them. It acts as systemd's service manager for irisd:
// sd_notify(3) with FDSTORE=1, sd_listen_fds(3), sd_watchdog_enabled(3).
//
// It has one thread, which waits only for signals and messages. Descriptors must be of a kind whose
// close(2) does not wait, since that thread closes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/events/log.h"

namespace iris::server {

struct SupervisorOptions {
  std::string program;                 // absolute: see FindProgram
  std::vector<std::string> arguments;  // of the program, without its name
  std::string runtime_dir;             // absolute
  size_t most_kept = 0;                // descriptors: see MostKept
  // The program is killed if it does not send WATCHDOG=1 within this time, from READY=1 on. Zero
  // means no limit.
  absl::Duration watchdog = absl::Seconds(20);
  // The program is killed if it is not ready, or does not end, within these times.
  absl::Duration start_within = absl::Seconds(90);
  absl::Duration stop_within = absl::Seconds(30);
};

// Returns how many descriptors a process can keep with `fd_limit`, less those that it needs itself.
size_t MostKept(uint64_t fd_limit);

// Supervises until a signal asks it to end, or the program ends in a way that is not to be
// repeated. Returns the exit code for this process:
//   after SIGTERM or SIGINT, for which the program is sent SIGINT: the program's exit code; 0 if
//     that signal ended it, or if it did not run; 1 if another did, or it does not end at all
//   0 or 2: the program exited so without being asked
//   1: this process could not do its work, or the program exited so, or could not be executed,
//     before it was ready for the first time
// SIGHUP is passed to the program once it is ready. On SIGUSR1 the program is sent SIGTERM, which
// asks it to hand over: it exits with 75, and the file that is then at the path is started with the
// stored state. Both signals end a wait before the next start.
//
// For a process that does nothing else: Supervise changes signal handling and reaps all children.
int Supervise(const SupervisorOptions& options, const Logger& logger);

}  // namespace iris::server
