// The files through which a process reaches the devices of each vendor's driver. Thread-safe.
#pragma once

#include <string>
#include <vector>

namespace iris::driver {

struct DeviceNode {
  std::string path;
  int error = 0;  // errno of opening the node for reading and writing; 0 on success
};

// Opens and closes each node, in order of name. Returns none if no driver is installed.
std::vector<DeviceNode> ProbeDeviceNodes(const std::string& dev = "/dev");

}  // namespace iris::driver
