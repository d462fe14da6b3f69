// CountDescriptors counts a process's open descriptors. Thread-safe.
#pragma once

#include <dirent.h>

#include <string>

namespace iris::base {

// Returns the number of open descriptors of `pid`; 0 is the caller, without the descriptor that the
// count needs. Returns -1 if /proc cannot be read.
inline int CountDescriptors(int pid = 0) {
  const std::string process = pid == 0 ? "self" : std::to_string(pid);
  DIR* const folder = opendir(("/proc/" + process + "/fd").c_str());
  if (folder == nullptr) return -1;
  int count = 0;
  while (const dirent* entry = readdir(folder)) count += entry->d_name[0] != '.' ? 1 : 0;
  closedir(folder);
  return pid == 0 ? count - 1 : count;
}

}  // namespace iris::base
