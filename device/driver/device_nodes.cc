#include "device/driver/device_nodes.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "device/base/posix.h"
#include "device/base/unique_fd.h"

namespace iris::driver {
namespace {

bool IsNumber(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](char digit) { return digit >= '0' && digit <= '9'; });
}

// NVIDIA has a node for each GPU and two that every process opens; AMD has kfd, and nodes in dri.
bool IsOfADriver(std::string_view name) {
  if (name == "nvidiactl" || name == "nvidia-uvm" || name == "kfd") return true;
  return name.substr(0, 6) == "nvidia" && IsNumber(name.substr(6));
}

std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

DeviceNode Probe(const std::string& path) {
  const base::UniqueFd fd(
      base::Retry([&path] { return open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK); }));
  return {path, fd.valid() ? 0 : errno};
}

}  // namespace

std::vector<DeviceNode> ProbeDeviceNodes(const std::string& dev) {
  std::vector<DeviceNode> nodes;
  bool has_kfd = false;
  for (const std::string& name : Names(dev)) {
    if (!IsOfADriver(name)) continue;
    has_kfd = has_kfd || name == "kfd";
    nodes.push_back(Probe(dev + "/" + name));
  }
  // Every graphics card has a node in dri, which matters only if AMD's compute driver is present.
  if (!has_kfd) return nodes;
  for (const std::string& name : Names(dev + "/dri")) {
    if (name.rfind("renderD", 0) == 0) nodes.push_back(Probe(dev + "/dri/" + name));
  }
  return nodes;
}

}  // namespace iris::driver
