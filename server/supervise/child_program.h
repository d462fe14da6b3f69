// ChildProgram: the supervised program. It is started with the environment and the descriptors that
// systemd's service manager would give it. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/supervise/keeping.h"

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

  // Forks, and has the child execute the file that is now at the path. The child has stdin, stdout
  // and stderr, the environment, duplicates of `kept`, which are sorted and above stderr, and
  // default signal handlers. Returns the child's pid.
  absl::StatusOr<pid_t> Start(const std::vector<KeptDescriptors::Entry>& kept);

  // Returns the errno with which the last child failed to execute the program, or 0.
  int execute_error() const { return *execute_error_; }
  const std::string& path() const { return options_.path; }

 private:
  const ChildProgramOptions options_;
  volatile int* execute_error_ = nullptr;  // in memory that is shared with children
};

// Returns the absolute path of the program that was started as `argv0`, as a shell would find it.
// The path may be a link, which is followed anew at each start. `path` is the environment's PATH.
absl::StatusOr<std::string> FindProgram(const std::string& argv0, absl::string_view path);

}  // namespace iris::server
