// The nodes of a job but its leader's, all in this process: their ports' handshakes and messages
// are real, and they have no irisd, no ranks and no data.
//
//   join_nodes RENDEZVOUS JOB NODES RANKS_OF_EACH HEAP_BYTES STRIDE_BYTES
//
// All connect at once. The output is one line: seconds until all were connected, until all had the
// job's layout, and until all were told that the job has begun; and how many connections were tried
// again. The secret is in IRIS_JOB_SECRET.
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "device/iris/types.h"
#include "server/job/clock.h"
#include "server/port/connection.h"
#include "server/state/node_proto.h"

namespace iris::port {
namespace {

constexpr auto kPatience = absl::Seconds(60);
constexpr auto kRetryAfter = absl::Milliseconds(100);  // as port.cc

struct Node {
  Identity self;
  std::unique_ptr<Connection> connection;
  absl::Time connect_at = absl::InfinitePast();
  bool ready = false;
};

int Fail(const std::string& why) {
  fprintf(stderr, "join_nodes: %s\n", why.c_str());
  return 1;
}

int Main(char** argv) {
  struct rlimit descriptors;
  getrlimit(RLIMIT_NOFILE, &descriptors);
  descriptors.rlim_cur = descriptors.rlim_max;
  setrlimit(RLIMIT_NOFILE, &descriptors);
  const absl::StatusOr<Address> leader = Resolve(argv[1]);
  if (!leader.ok()) return Fail(leader.status().ToString());
  const uint32_t n_nodes = static_cast<uint32_t>(atoi(argv[3]));
  const uint32_t n_local = static_cast<uint32_t>(atoi(argv[4]));
  const std::string secret = getenv("IRIS_JOB_SECRET");
  const server::NodeJoined joined = {.n_ranks = n_nodes * n_local,
                                     .heap_bytes = strtoull(argv[5], nullptr, 10),
                                     .stride_bytes = strtoull(argv[6], nullptr, 10),
                                     .team_sync_bytes = kSyncAreaBytes,
                                     .pids = std::vector<int64_t>(n_local, getpid())};
  const std::string join = server::EncodeNodeMessage(joined);
  const std::string mapped = server::EncodeNodeMessage(server::NodeMapped{true});
  std::vector<Node> nodes(n_nodes - 1);
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    Identity& self = nodes[i].self;
    self.set_job(argv[2]);
    self.set_uid(getuid());
    self.set_first_rank((i + 1) * n_local);
    self.set_n_local(n_local);
    self.set_n_ranks(n_nodes * n_local);
    self.set_name(absl::StrCat("node", i + 1));
    self.set_address(absl::StrCat("10.0.", (i + 1) / 250, ".", (i + 1) % 250 + 1, ":20000"));
    self.set_data(absl::StrCat("10.0.", (i + 1) / 250, ".", (i + 1) % 250 + 1));
    self.set_worker(std::string(60, 'w'));
  }
  const wire::UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  const absl::Time start = server::SteadyNow();
  size_t n_ready = 0, n_laid_out = 0, n_begun = 0, n_again = 0;
  absl::Time connected, laid_out;
  while (n_begun < nodes.size()) {
    absl::Time now = server::SteadyNow();
    if (now > start + kPatience) {
      return Fail(absl::StrCat("of ", nodes.size(), " nodes ", n_ready, " are connected, ",
                               n_laid_out, " have the layout and ", n_begun, " have begun"));
    }
    for (Node& node : nodes) {
      if (node.connection != nullptr || now < node.connect_at) continue;
      absl::StatusOr<wire::UniqueFd> fd = StartToConnect(*leader, "");
      if (!fd.ok()) return Fail(fd.status().ToString());
      struct epoll_event event = {};
      event.events = EPOLLIN | EPOLLOUT | EPOLLET;
      event.data.ptr = &node;
      if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd->get(), &event) != 0) return Fail("epoll");
      node.connection =
          std::make_unique<Connection>(*std::move(fd), &node.self, &secret, true, now);
    }
    struct epoll_event events[256];
    const int n = epoll_wait(epoll.get(), events, 256, 10);
    now = server::SteadyNow();
    for (int i = 0; i < n; ++i) {
      Node& node = *static_cast<Node*>(events[i].data.ptr);
      if (node.connection == nullptr) continue;
      Connection& connection = *node.connection;
      absl::Status status;
      if ((events[i].events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) {
        status = connection.Read(now);
      }
      if (status.ok() && connection.ready() && !node.ready) {
        node.ready = true;
        if (++n_ready == nodes.size()) connected = now;
        connection.SendBeat(now);
        connection.Send(FrameType::kNodeMessage, join);
      }
      while (std::optional<Connection::Frame> frame = connection.Next()) {
        if (frame->type == FrameType::kBeat) (void)connection.TakeBeat(frame->payload, now);
        if (frame->type == FrameType::kLostNode) return Fail("refused");
        if (frame->type != FrameType::kNodeMessage) continue;
        const auto message = server::DecodeNodeMessage(frame->payload);
        if (!message.ok()) return Fail(message.status().ToString());
        if (const auto* failed = std::get_if<server::JoinsFailed>(&*message)) {
          return Fail(failed->status.ToString());
        }
        if (std::holds_alternative<server::NodesJoined>(*message)) {
          if (++n_laid_out == nodes.size()) laid_out = now;
          connection.Send(FrameType::kNodeMessage, mapped);
        }
        n_begun += std::holds_alternative<server::NodesMapped>(*message);
      }
      if (status.ok()) status = connection.Flush();
      if (status.ok()) continue;
      if (node.ready) return Fail(status.ToString());
      ++n_again;
      node.connection = nullptr;
      node.connect_at = now + kRetryAfter;
    }
  }
  const auto seconds = [&](absl::Time time) { return absl::ToDoubleSeconds(time - start); };
  printf("%.3f %.3f %.3f %zu\n", seconds(connected), seconds(laid_out),
         seconds(server::SteadyNow()), n_again);
  return 0;
}

}  // namespace
}  // namespace iris::port

int main(int argc, char** argv) {
  if (argc != 7 || getenv("IRIS_JOB_SECRET") == nullptr) {
    return iris::port::Fail("see the comment of join_nodes.cc");
  }
  return iris::port::Main(argv);
}
