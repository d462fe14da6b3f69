// The files through which a process reaches the devices of each vendor's driver, and whether this
// process may. Free functions without state; thread-safe.
#pragma once

#include <string>
#include <vector>

namespace iris::driver {

struct DeviceNode {
  std::string path;
  int error = 0;  // errno of opening it for reading and writing; 0: it can be opened
};

// Opens and closes each node of a vendor's driver in the folder `dev`, in the order of their names.
// None: this machine, or this container, has no device that such a driver has made known.
std::vector<DeviceNode> ProbeDeviceNodes(const std::string& dev = "/dev");

}  // namespace iris::driver
