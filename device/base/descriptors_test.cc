#include "device/base/descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace iris::base {
namespace {

TEST(DescriptorsTest, CountsWhatIsOpen) {
  const int before = CountDescriptors();
  ASSERT_GE(before, 3);
  const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(CountDescriptors(), before + 1);
  // Seen from outside, the one that reads the folder counts, too.
  EXPECT_EQ(CountDescriptors(getpid()), before + 2);
  close(fd);
  EXPECT_EQ(CountDescriptors(), before);
}

TEST(DescriptorsTest, SaysThatAProcessIsGone) { EXPECT_EQ(CountDescriptors(1 << 30), -1); }

}  // namespace
}  // namespace iris::base
