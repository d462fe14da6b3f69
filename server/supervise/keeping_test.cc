// Tests how the supervisor parses a message, and which descriptors it keeps.
#include "server/supervise/keeping.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "device/base/descriptors.h"

namespace iris::server {
namespace {

std::vector<wire::UniqueFd> Open(int n) {
  std::vector<wire::UniqueFd> fds;
  for (int i = 0; i < n; ++i) fds.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  return fds;
}

TEST(NotifyMessage, IsReadLineByLine) {
  const NotifyMessage store = ParseNotifyMessage("FDSTORE=1\nFDNAME=heap-1\n");
  EXPECT_TRUE(store.store);
  EXPECT_FALSE(store.remove || store.ready || store.stopping || store.alive);
  EXPECT_EQ(store.name, "heap-1");
  const NotifyMessage many = ParseNotifyMessage("FDNAME=a\nFDSTOREREMOVE=1\nREADY=1\nWATCHDOG=1");
  EXPECT_TRUE(many.remove && many.ready && many.alive);
  EXPECT_EQ(many.name, "a");
  EXPECT_TRUE(ParseNotifyMessage("STOPPING=1").stopping);
  EXPECT_EQ(ParseNotifyMessage("FDNAME=first\nFDNAME=second").name, "first");
}

TEST(NotifyMessage, PassesOverWhatItDoesNotKnow) {
  using std::string_literals::operator""s;
  for (const std::string& text :
       {""s, "\n\n\n"s, "READY"s, "READY=10"s, " READY=1"s, "READY=1 "s, "STATUS=READY=1"s,
        "FDNAME"s, "MAINPID=1"s, "RELOADING=1"s, "BARRIER=1"s, "WATCHDOG=trigger"s, "READY=1\0"s,
        "\xff\xfe\n="s, std::string(70000, 'x')}) {
    const NotifyMessage message = ParseNotifyMessage(text);
    EXPECT_FALSE(message.ready || message.stopping || message.alive || message.store ||
                 message.remove)
        << text;
    EXPECT_EQ(message.name, "") << text;
  }
}

TEST(NotifyMessage, NamesAreShortAndPlain) {
  for (const char* name : {"a", "Z9", "heap-1_2", "0123456789"}) EXPECT_TRUE(IsKeptName(name));
  for (const char* name : {"", "01234567890", "a:b", "a b", "a=b", "\xc3\xa4", "a/b", "."}) {
    EXPECT_FALSE(IsKeptName(name)) << name;
  }
}

TEST(KeptDescriptors, KeepsUntilTheyAreRemoved) {
  const int before = base::CountDescriptors();
  {
    KeptDescriptors kept(8);
    std::vector<wire::UniqueFd> fds = Open(2);
    EXPECT_TRUE(kept.Store("a", &fds));
    EXPECT_TRUE(fds.empty());
    fds = Open(1);
    EXPECT_TRUE(kept.Store("a", &fds));  // beside the two
    fds = Open(3);
    EXPECT_TRUE(kept.Store("b", &fds));
    EXPECT_EQ(kept.size(), 6);
    EXPECT_EQ(base::CountDescriptors(), before + 6);

    const std::vector<KeptDescriptors::Entry> all = kept.Sorted();
    ASSERT_EQ(all.size(), 6);
    for (size_t i = 1; i < all.size(); ++i) EXPECT_LT(all[i - 1].fd, all[i].fd);

    EXPECT_EQ(kept.Remove("c"), 0);
    EXPECT_EQ(kept.Remove("a"), 3);
    EXPECT_EQ(kept.Remove("a"), 0);
    EXPECT_EQ(kept.size(), 3);
    EXPECT_EQ(base::CountDescriptors(), before + 3);
  }
  EXPECT_EQ(base::CountDescriptors(), before);
}

TEST(KeptDescriptors, TakesAllOrNone) {
  KeptDescriptors kept(3);
  std::vector<wire::UniqueFd> fds = Open(2);
  ASSERT_TRUE(kept.Store("a", &fds));
  fds = Open(2);
  EXPECT_FALSE(kept.Store("b", &fds));
  EXPECT_EQ(fds.size(), 2);
  EXPECT_EQ(kept.size(), 2);
  fds.pop_back();
  EXPECT_TRUE(kept.Store("b", &fds));
  fds = Open(1);
  EXPECT_FALSE(kept.Store("c", &fds));
  EXPECT_EQ(kept.Remove("a"), 2);
  EXPECT_TRUE(kept.Store("c", &fds));
  fds.clear();
  EXPECT_TRUE(kept.Store("d", &fds));  // nothing, which always fits
  EXPECT_EQ(kept.size(), 2);
}

}  // namespace
}  // namespace iris::server
