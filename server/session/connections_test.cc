#include "server/session/connections.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <set>
#include <string>
#include <vector>

#include "proto/wire/unique_fd.h"

namespace iris::server {
namespace {

TEST(ConnectionsTest, FindsByThePeersName) {
  Connections connections;
  connections.Add(12, SessionId{77}, CallerInfo());
  auto found = connections.Find("fd:12");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->session.value, 77u);
}

TEST(ConnectionsTest, OtherPeersAreNobody) {
  Connections connections;
  connections.Add(12, SessionId{77}, CallerInfo());
  for (const char* peer : {"", "fd:", "fd:13", "unix:", "ipv4:127.0.0.1:12", "fd:12x", "fd:-12"}) {
    EXPECT_FALSE(connections.Find(peer).has_value()) << peer;
  }
}

TEST(ConnectionsTest, ForgetsOnlyItsOwn) {
  Connections connections;
  const uint64_t first = connections.Add(12, SessionId{77}, CallerInfo());
  // The number was reused before the first was removed.
  const uint64_t second = connections.Add(12, SessionId{88}, CallerInfo());
  EXPECT_NE(first, second);
  connections.Remove(12, first);
  EXPECT_TRUE(connections.Find("fd:12").has_value());
  connections.Remove(12, second);
  EXPECT_FALSE(connections.Find("fd:12").has_value());
}

TEST(ConnectionsTest, NumbersAreNotReusedQuickly) {
  Connections connections;
  wire::UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::set<int> seen;
  for (int i = 0; i < 500; ++i) {
    auto fd = connections.DuplicateToFreshNumber(null.get());
    ASSERT_TRUE(fd.ok()) << fd.status();
    EXPECT_TRUE(seen.insert(*fd).second) << *fd << " came back after " << i;
    EXPECT_EQ(fcntl(*fd, F_GETFD), FD_CLOEXEC);
    close(*fd);
  }
}

}  // namespace
}  // namespace iris::server
