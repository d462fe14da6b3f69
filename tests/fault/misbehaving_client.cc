// A client process that goes through the steps of an attach and dies, or forks, after the one it is
// told.
//
//   misbehaving_client SESSION_SOCKET JOB RANK N_RANKS STEP ACTION
//
// STEP: connect, hello, welcome, channel, join_sent, joined, descriptors, mapped_sent, mapped,
// allocate_sent, allocated. ACTION: kill (SIGKILL to itself), fork (a child keeps every descriptor
// open until irisd closes the session, the parent kills itself), child_sends (a forked child sends
// an acknowledgement on the parent's socket; exit code 0 if irisd then closed the session). Prints
// its pid first.
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "grpcpp/channel.h"
#include "tests/integration/daemon_harness.h"

namespace iris::testing {
namespace {

const std::vector<std::string> kSteps = {"connect",   "hello",         "welcome",     "channel",
                                         "join_sent", "joined",        "descriptors", "mapped_sent",
                                         "mapped",    "allocate_sent", "allocated"};

[[noreturn]] void Fail(const absl::Status& status) {
  std::fprintf(stderr, "misbehaving_client: %s\n", std::string(status.message()).c_str());
  ::_exit(3);
}

// Performs the action; only child_sends returns control by exiting.
[[noreturn]] void Act(const std::string& action, int session_socket) {
  if (action == "fork" && ::fork() == 0) {
    // The child: keeps the sockets until irisd has closed its end, at most a minute.
    struct pollfd wait = {session_socket, 0, 0};
    ::poll(&wait, 1, 60'000);
    ::_exit(0);
  }
  if (action == "child_sends") {
    const pid_t child = ::fork();
    if (child == 0) {
      wire::SendFrame(session_socket, wire::FrameType::kAck, wire::AckPayload{0}).IgnoreError();
      ::_exit(0);
    }
    ::waitpid(child, nullptr, 0);
    ::_exit(WaitClosed(session_socket, absl::Seconds(20)) ? 0 : 4);
  }
  ::kill(::getpid(), SIGKILL);
  ::_exit(5);
}

template <typename Call>
void InBackgroundThenAct(Call call, const std::string& action, int session_socket) {
  std::thread background(call);
  background.detach();
  // Long enough to be sent; whether it was answered before the end makes both histories possible.
  absl::SleepFor(absl::Milliseconds(100));
  Act(action, session_socket);
}

int Main(int argc, char** argv) {
  int rank = 0, n_ranks = 0;
  if (argc != 7 || !absl::SimpleAtoi(argv[3], &rank) || !absl::SimpleAtoi(argv[4], &n_ranks)) {
    return 2;
  }
  const std::string socket_path = argv[1], job = argv[2], step = argv[5], action = argv[6];
  const auto found = std::find(kSteps.begin(), kSteps.end(), step);
  if (found == kSteps.end()) return 2;
  const auto stop = [&](const char* now) { return step == now; };
  std::printf("%d\n", ::getpid());
  std::fflush(stdout);

  auto socket = Connect(socket_path, SOCK_SEQPACKET);
  if (!socket.ok()) Fail(socket.status());
  const int fd = socket->get();
  if (stop("connect")) Act(action, fd);
  if (stop("hello")) {
    wire::SendFrame(fd, wire::FrameType::kHello, wire::HelloPayload{}).IgnoreError();
    Act(action, fd);
  }
  auto session = RawSession::Handshake(*std::move(socket));
  if (!session.ok()) Fail(session.status());
  RawSession& s = **session;
  if (stop("welcome")) Act(action, fd);
  if (stop("channel")) {
    s.Leave(iris::v1::JoinReply()).IgnoreError();  // any call: the channel then stands
    Act(action, fd);
  }
  const iris::v1::JoinRequest request = s.JoinRequest(job, rank, n_ranks);
  if (stop("join_sent")) {
    InBackgroundThenAct([&] { (void)s.Join(request); }, action, fd);
  }
  auto joined = s.Join(request);
  if (!joined.ok()) Fail(joined.status());
  if (stop("joined")) Act(action, fd);
  auto descriptors = s.ReceiveDescriptors(2 * n_ranks + 1);
  if (!descriptors.ok()) Fail(descriptors.status());
  if (stop("descriptors")) Act(action, fd);
  if (stop("mapped_sent")) {
    InBackgroundThenAct([&] { (void)s.Mapped(*joined); }, action, fd);
  }
  auto mapped = s.Mapped(*joined);
  if (!mapped.ok()) Fail(mapped.status());
  if (stop("mapped")) Act(action, fd);
  if (stop("allocate_sent")) {
    InBackgroundThenAct([&] { (void)s.Allocate(*joined, 0, 4096); }, action, fd);
  }
  auto allocated = s.Allocate(*joined, 0, 4096);
  if (!allocated.ok()) Fail(allocated.status());
  Act(action, fd);
}

}  // namespace
}  // namespace iris::testing

int main(int argc, char** argv) { return iris::testing::Main(argc, argv); }
