// The files through which a process reaches the devices of each vendor's driver. Thread-safe.
#pragma once

#include <string>
#include <vector>

namespace iris::driver {

struct DeviceNode {
  std::string path;
  int error = 0;  // errno of opening it for reading and writing; 0: it can be opened
};

// Opens and closes each node, in order of name. Returns none if no driver has made a device known.
std::vector<DeviceNode> ProbeDeviceNodes(const std::string& dev = "/dev");

}  // namespace iris::driver
