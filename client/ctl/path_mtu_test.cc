#include "client/ctl/path_mtu.h"

#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/match.h"

namespace iris::ctl {
namespace {

class PathMtuTest : public ::testing::Test {
 protected:
  explicit PathMtuTest(const char* host = "127.0.0.1") {
    auto server = PathMtuServer::Listen(host, 0, 0);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    route_ = {host, host, server_->port(), server_->token()};
  }

  std::unique_ptr<PathMtuServer> server_;
  PathMtuRoute route_;
};

TEST_F(PathMtuTest, ALoopbackLetsAllPacketsPass) {
  std::thread serves([&] { EXPECT_TRUE(server_->Serve(absl::Seconds(20)).ok()); });
  // Whoever knows no token is nobody.
  PathMtuRoute wrong = route_;
  wrong.token[3] ^= 1;
  EXPECT_TRUE(absl::IsFailedPrecondition(EndPathMtu(wrong)));
  const auto found = MeasurePathMtu(route_);
  EXPECT_TRUE(EndPathMtu(route_).ok());
  serves.join();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_GE(found->here_bytes, kPathMtuLeast);
  EXPECT_EQ(found->there_bytes, found->here_bytes);
  EXPECT_EQ(found->passes_to_bytes, found->here_bytes);
  EXPECT_EQ(found->passes_from_bytes, found->here_bytes);
}

TEST_F(PathMtuTest, AServerWaitsNoLongerThanItsTime) {
  EXPECT_TRUE(absl::IsDeadlineExceeded(server_->Serve(absl::Milliseconds(50))));
}

TEST_F(PathMtuTest, WhereNobodyListensIsNamed) {
  server_.reset();
  const absl::Status status = MeasurePathMtu(route_).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "of 127.0.0.1: Connection refused")) << status;
}

TEST_F(PathMtuTest, PortsAreOfTheRange) {
  const auto other = PathMtuServer::Listen("127.0.0.1", route_.port, route_.port);
  EXPECT_TRUE(absl::StrContains(other.status().message(), "listen at 127.0.0.1")) << other.status();
  EXPECT_TRUE(absl::IsInvalidArgument(PathMtuServer::Listen("nobody", 0, 0).status()));
}

}  // namespace
}  // namespace iris::ctl
