#include "client/ctl/admin_client.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/server_posix.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace iris::ctl {
namespace {

// An irisd.sock whose first connections are lost as soon as something is said on them.
class AdminClientTest : public ::testing::Test, public v1::AdminService::Service {
 protected:
  void SetUp() override {
    char name[] = "/tmp/iris-ac-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    dir_ = name;
    grpc::ServerBuilder builder;
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    listener_.Reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    struct sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, (dir_ + "/irisd.sock").c_str());
    ASSERT_EQ(bind(listener_.get(), reinterpret_cast<struct sockaddr*>(&address), sizeof(address)),
              0);
    ASSERT_EQ(listen(listener_.get(), 8), 0);
    thread_ = std::thread([this] { Serve(); });
  }
  void TearDown() override {
    stopping_ = true;
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
    server_->Shutdown(std::chrono::system_clock::now());
    unlink((dir_ + "/irisd.sock").c_str());
    rmdir(dir_.c_str());
  }

  void Serve() {
    for (;;) {
      wire::UniqueFd peer(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (stopping_) return;
      if (!peer.valid()) continue;
      if (n_accepted_++ < n_lost_) {
        struct pollfd p = {peer.get(), POLLIN, 0};
        poll(&p, 1, 30000);
        continue;
      }
      fcntl(peer.get(), F_SETFL, O_NONBLOCK);
      grpc::AddInsecureChannelFromFd(server_.get(), peer.Release());
    }
  }

  grpc::Status GetStatus(grpc::ServerContext*, const v1::GetStatusRequest*,
                         v1::GetStatusReply* reply) override {
    reply->set_n_jobs(42);
    return grpc::Status::OK;
  }
  grpc::Status ListDevices(grpc::ServerContext*, const v1::ListDevicesRequest* request,
                           v1::ListDevicesReply* reply) override {
    ++n_pages_;
    list_devices_(request->page_token(), reply);
    return grpc::Status::OK;
  }
  grpc::Status Events(grpc::ServerContext*, const v1::EventsRequest*,
                      grpc::ServerWriter<v1::Event>* writer) override {
    ++n_streams_;
    writer->Write(v1::Event());
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "lost in the middle");
  }

  // How the listing of devices goes on after the token.
  std::function<void(const std::string& token, v1::ListDevicesReply* reply)> list_devices_;
  std::atomic<int> n_pages_{0};

  std::string dir_;
  std::unique_ptr<grpc::Server> server_;
  wire::UniqueFd listener_;
  std::thread thread_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> n_accepted_{0};
  std::atomic<int> n_lost_{0};
  std::atomic<int> n_streams_{0};
};

TEST_F(AdminClientTest, ALostConnectionIsMadeAnewAndTheCallRepeated) {
  n_lost_ = 1;
  auto client = AdminClient::Connect({dir_}, absl::Seconds(30));
  ASSERT_TRUE(client.ok()) << client.status();
  auto status = (*client)->GetStatus();
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->n_jobs(), 42u);
  // And is used from then on.
  ASSERT_TRUE((*client)->GetStatus().ok());
  EXPECT_EQ(n_accepted_, 2);
}

TEST_F(AdminClientTest, ADirectoryThatIsClosedIsMoreThanOneThatIsMissing) {
  const std::string closed = dir_ + "/closed";
  ASSERT_EQ(chmod(dir_.c_str(), 0755), 0);
  ASSERT_EQ(mkdir(closed.c_str(), 0), 0);
  const uid_t user = geteuid();
  if (user == 0) {
    ASSERT_EQ(seteuid(65534), 0);
  }
  const auto client = AdminClient::Connect({dir_ + "/none", closed});
  ASSERT_EQ(seteuid(user), 0);
  rmdir(closed.c_str());
  EXPECT_EQ(client.status().code(), absl::StatusCode::kPermissionDenied) << client.status();
  EXPECT_NE(client.status().message().find(closed + " (mode 0000, owner "), std::string::npos)
      << client.status();
  EXPECT_EQ(AdminClient::Connect({dir_ + "/none"}).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(AdminClientTest, WaitsForAnIrisdThatStarts) {
  const std::string path = dir_ + "/irisd.sock", hidden = dir_ + "/hidden";
  ASSERT_EQ(rename(path.c_str(), hidden.c_str()), 0);
  auto waiting = std::async(std::launch::async, [this] {
    return AdminClient::Connect({dir_}, absl::Seconds(30), /*wait=*/absl::Minutes(1));
  });
  EXPECT_TRUE(absl::IsUnavailable(
      AdminClient::Connect({dir_}, absl::Seconds(30), absl::ZeroDuration()).status()));
  ASSERT_EQ(rename(hidden.c_str(), path.c_str()), 0);
  const auto client = waiting.get();
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_TRUE((*client)->GetStatus().ok());
}

TEST_F(AdminClientTest, AListingThatDoesNotEndIsAnError) {
  auto client = AdminClient::Connect({dir_}, absl::Seconds(30));
  ASSERT_TRUE(client.ok()) << client.status();
  const auto list = [&] {
    n_pages_ = 0;
    return (*client)->List(&AdminClient::Stub::ListDevices, "",
                           [](const v1::ListDevicesReply&) { return true; });
  };
  // Two pages in turn.
  list_devices_ = [](const std::string& token, v1::ListDevicesReply* reply) {
    reply->set_next_page_token(token == "a" ? "b" : "a");
  };
  absl::Status status = list();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(status.message(), ::testing::HasSubstr("the same page"));
  EXPECT_EQ(n_pages_, 3);

  // Ever new ones with nothing in them, and large ones.
  for (const size_t bytes : {size_t{0}, size_t{3} << 20}) {
    list_devices_ = [this, bytes](const std::string&, v1::ListDevicesReply* reply) {
      if (bytes > 0) reply->add_devices()->set_name(std::string(bytes, 'x'));
      reply->set_next_page_token(absl::StrCat(n_pages_.load()));
    };
    status = list();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(status.message(), ::testing::HasSubstr("irisd's listing does not end"));
    EXPECT_EQ(n_pages_, bytes == 0 ? 16384 : 342);
  }
}

TEST_F(AdminClientTest, OnceOnly) {
  n_lost_ = 2;
  auto client = AdminClient::Connect({dir_}, absl::Seconds(30));
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ((*client)->GetStatus().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(n_accepted_, 2);
}

TEST_F(AdminClientTest, EventsThatHaveBegunAreNotRepeated) {
  n_lost_ = 1;
  auto client = AdminClient::Connect({dir_}, absl::Seconds(30));
  ASSERT_TRUE(client.ok()) << client.status();
  int n_events = 0;
  const absl::Status end = (*client)->Events(false, [&](const v1::Event&) {
    ++n_events;
    return true;
  });
  EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable) << end;
  EXPECT_EQ(n_events, 1);
  EXPECT_EQ(n_streams_, 1);
}

}  // namespace
}  // namespace iris::ctl
