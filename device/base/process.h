// ReadProcess parses /proc/PID/stat; ProgramFile is this process's program. Thread-safe.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>

namespace iris::base {

struct Process {
  std::string name;               // at most 15 bytes, any byte but 0
  char state = 0;                 // as in proc(5): "R", "S", "T" ...
  int64_t parent = 0;             // 0: it has none here
  uint32_t flags = 0;             // PF_* of the kernel
  std::optional<uint64_t> start;  // in clock ticks since boot

  // Returns true if a signal or a debugger has stopped the process.
  bool stopped() const { return state == 'T' || state == 't'; }
  // Returns true once the first thread is ending (PF_EXITING), which is before the pidfd fires.
  bool exiting() const { return state == 'Z' || state == 'X' || (flags & 0x4u) != 0; }
};

// Parses "PID (NAME) STATE PARENT GROUP ...". A name may contain brackets: the last one ends it.
inline std::optional<Process> ParseProcess(const std::string& stat) {
  const size_t begin = stat.find('('), end = stat.rfind(')');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return std::nullopt;
  Process process;
  long long parent = 0;
  unsigned long long start = 0;
  const int n = std::sscanf(stat.c_str() + end + 1,
                            " %c %lld %*d %*d %*d %*d %u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d "
                            "%*d %*d %llu",
                            &process.state, &parent, &process.flags, &start);
  if (n < 2) return std::nullopt;
  if (n == 4) process.start = start;
  process.name = stat.substr(begin + 1, end - begin - 1);
  process.parent = parent;
  return process;
}

// Reads a file such as /proc/PID/stat; returns nothing if `path` is no such file, or unreadable.
inline std::optional<Process> ReadProcessFile(const std::string& path) {
  std::ifstream file(path);
  std::string stat;
  // A process may end between open and read, which fails then. A stream iterator would throw.
  std::getline(file, stat, '\0');
  return ParseProcess(stat);
}

// Returns nothing if there is no such process, or /proc cannot be read.
inline std::optional<Process> ReadProcess(int64_t pid) {
  return ReadProcessFile("/proc/" + std::to_string(pid) + "/stat");
}

// Returns the path of this process's program; "" if the kernel does not say it.
inline std::string ProgramFile() {
  char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof(path));
  return n <= 0 ? std::string() : std::string(path, static_cast<size_t>(n));
}

// Returns the folder of that program, with the slash at its end; "" likewise.
inline std::string ProgramFolder() {
  const std::string file = ProgramFile();
  return file.substr(0, file.rfind('/') + 1);
}

}  // namespace iris::base
