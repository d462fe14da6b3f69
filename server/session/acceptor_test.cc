#include "server/session/acceptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/job/clock.h"

namespace iris::server {
namespace {

// Listens on an abstract address of this test.
class AcceptorTest : public ::testing::Test {
 protected:
  AcceptorTest()
      : poller_(*Poller::Create()), acceptor_(poller_.get(), [this](wire::UniqueFd socket) {
          EXPECT_TRUE(socket.valid());
          ++n_refused_;
        }) {
    address_.sun_family = AF_UNIX;
    const std::string name = absl::StrCat("iris-acceptor-test-", getpid());
    std::memcpy(address_.sun_path + 1, name.data(), name.size());
    length_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    wire::UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    EXPECT_EQ(bind(listener.get(), Address(), length_), 0);
    EXPECT_EQ(listen(listener.get(), 64), 0);
    const absl::Status status =
        acceptor_.Listen(std::move(listener), [this](wire::UniqueFd socket) {
          EXPECT_NE(fcntl(socket.get(), F_GETFL) & O_NONBLOCK, 0);
          accepted_.push_back(std::move(socket));
        });
    EXPECT_TRUE(status.ok()) << status;
  }

  const struct sockaddr* Address() const {
    return reinterpret_cast<const struct sockaddr*>(&address_);
  }
  wire::UniqueFd Connect() {
    wire::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(fd.get(), Address(), length_), 0) << strerror(errno);
    return fd;
  }

  struct sockaddr_un address_ = {};
  socklen_t length_ = 0;
  std::unique_ptr<Poller> poller_;
  Acceptor acceptor_;
  std::vector<wire::UniqueFd> accepted_;
  int n_refused_ = 0;
};

TEST_F(AcceptorTest, HandsOutWhatConnects) {
  const wire::UniqueFd first = Connect(), second = Connect();
  poller_->Wait(absl::Seconds(20));
  EXPECT_EQ(accepted_.size(), 2u);
  EXPECT_EQ(n_refused_, 0);
  EXPECT_EQ(acceptor_.deadline(), absl::InfiniteFuture());
}

TEST_F(AcceptorTest, RefusesWithItsReserveWhenDescriptorsHaveRunOut) {
  const wire::UniqueFd first = Connect(), second = Connect();
  std::vector<wire::UniqueFd> all;
  struct rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  struct rlimit few = before;
  few.rlim_cur = 64;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  while (true) {
    wire::UniqueFd fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) break;
    all.push_back(std::move(fd));
  }
  poller_->Wait(absl::Seconds(20));
  poller_->Wait(absl::Seconds(20));
  EXPECT_EQ(n_refused_, 2);
  EXPECT_TRUE(accepted_.empty());
  // Once there is room, service is as before.
  all.clear();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  const wire::UniqueFd third = Connect();
  poller_->Wait(absl::Seconds(20));
  EXPECT_EQ(accepted_.size(), 1u);
  EXPECT_EQ(n_refused_, 2);
}

TEST_F(AcceptorTest, PausesWhereEvenTheReserveDoesNotHelp) {
  const wire::UniqueFd first = Connect();
  struct rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  struct rlimit none = before;
  none.rlim_cur = 3;  // below every number that is free
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  poller_->Wait(absl::Seconds(20));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(accepted_.empty());
  ASSERT_LT(acceptor_.deadline(), absl::InfiniteFuture());
  // It does not spin on a listener that stays readable.
  poller_->Wait(absl::ZeroDuration());
  EXPECT_TRUE(accepted_.empty());
  acceptor_.RunDeadlines(acceptor_.deadline() - absl::Milliseconds(1));
  poller_->Wait(absl::ZeroDuration());
  EXPECT_TRUE(accepted_.empty());
  acceptor_.RunDeadlines(acceptor_.deadline());
  EXPECT_EQ(acceptor_.deadline(), absl::InfiniteFuture());
  poller_->Wait(absl::Seconds(20));
  EXPECT_EQ(accepted_.size(), 1u);
}

}  // namespace
}  // namespace iris::server
