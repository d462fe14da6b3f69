// ChildProgram: the program that is supervised, and how it is started, with the environment and the
// descriptors that systemd's service manager would give it. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/supervise/kept_descriptors.h"

namespace iris::server {

struct ChildProgramOptions {
  std::string path;                    // absolute
  std::vector<std::string> arguments;  // without the program's name
  std::string notify_path;
  size_t most_kept = 0;
  absl::Duration watchdog = absl::ZeroDuration();  // zero: none
};

class ChildProgram {
 public:
  explicit ChildProgram(ChildProgramOptions options);
  ~ChildProgram();
  ChildProgram(const ChildProgram&) = delete;
  ChildProgram& operator=(const ChildProgram&) = delete;

  // Forks; the child executes what lies at the path now, and has nothing of this process's but
  // stdin, stdout and stderr, the environment, and duplicates of `kept`, which are sorted and above
  // stderr. Signals mean to it what they mean to any program. Returns its pid.
  absl::StatusOr<pid_t> Start(const std::vector<KeptDescriptors::Entry>& kept);

  // Why the last child that was started ended without having executed the program; 0: it did.
  int execute_error() const { return *execute_error_; }
  const std::string& path() const { return options_.path; }

 private:
  const ChildProgramOptions options_;
  volatile int* execute_error_ = nullptr;  // in memory that is shared with children
};

// The absolute path of the program that was started as `argv0`, as a shell would have found it. It
// may be a link: what it leads to when the program is started again is what runs then. `path` is
// the environment's PATH.
absl::StatusOr<std::string> FindProgram(const std::string& argv0, absl::string_view path);

}  // namespace iris::server
