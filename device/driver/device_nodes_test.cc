#include "device/driver/device_nodes.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace iris::driver {
namespace {

class DeviceNodesTest : public ::testing::Test {
 protected:
  DeviceNodesTest() {
    char name[] = "/tmp/iris-nodes-XXXXXX";
    dev_ = mkdtemp(name);
    std::filesystem::create_directory(dev_ + "/dri");
  }
  ~DeviceNodesTest() override { std::filesystem::remove_all(dev_); }

  void Make(const std::string& name) { std::ofstream(dev_ + "/" + name) << "x"; }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const DeviceNode& node : ProbeDeviceNodes(dev_)) {
      names.push_back(node.path.substr(dev_.size() + 1));
    }
    return names;
  }

  std::string dev_;
};

TEST_F(DeviceNodesTest, OnlyThoseOfTheDrivers) {
  for (const char* name : {"null", "nvidia", "nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm",
                           "nvidia-uvm-tools", "nvidia-modeset", "dri/renderD128", "dri/card0"}) {
    Make(name);
  }
  EXPECT_EQ(Names(), (std::vector<std::string>{"nvidia-uvm", "nvidia0", "nvidia12", "nvidiactl"}));
}

TEST_F(DeviceNodesTest, GraphicsCardsCountWhereTheComputingDriverIs) {
  Make("dri/renderD128");
  Make("dri/card0");
  EXPECT_TRUE(Names().empty());
  Make("kfd");
  EXPECT_EQ(Names(), (std::vector<std::string>{"kfd", "dri/renderD128"}));
}

TEST_F(DeviceNodesTest, SaysWhatCannotBeOpened) {
  Make("nvidia0");
  EXPECT_EQ(ProbeDeviceNodes(dev_).at(0).error, 0);
  std::filesystem::create_symlink(dev_ + "/gone", dev_ + "/nvidia1");
  EXPECT_EQ(ProbeDeviceNodes(dev_).at(1).error, ENOENT);
  if (geteuid() == 0) GTEST_SKIP() << "root may open every file";
  chmod((dev_ + "/nvidia0").c_str(), 0);
  EXPECT_EQ(ProbeDeviceNodes(dev_).at(0).error, EACCES);
}

TEST_F(DeviceNodesTest, OfAFolderThatIsNotThere) {
  EXPECT_TRUE(ProbeDeviceNodes(dev_ + "/none").empty());
}

}  // namespace
}  // namespace iris::driver
