#include "server/port/testing/port_node.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "device/driver/emu_driver.h"
#include "proto/wire/rights.h"
#include "server/port/testing/needs_ucx.h"
#include "server/worker/worker_options.h"

namespace iris::port {

bool Shell(const std::string& command) {
  return system(absl::StrCat("(", command, ") >/dev/null 2>&1").c_str()) == 0;
}

std::unique_ptr<Network> Network::Create(int n, std::string* why) {
  if (geteuid() != 0) {
    *why = "only root can make network namespaces";
    return nullptr;
  }
  std::unique_ptr<Network> network(new Network);
  network->n_ = n;
  network->name_ = absl::StrCat("irisport", getpid(), "n");
  const std::string first = network->Space(0);
  bool made = Shell(absl::StrCat("ip netns add ", first, " && ip -n ", first,
                                 " link add br0 type bridge && ip -n ", first, " addr add ",
                                 network->Address(0), "/24 dev br0 && ip -n ", first,
                                 " link set br0 up && ip -n ", first, " link set lo up"));
  for (int i = 1; made && i < n; ++i) {
    const std::string space = network->Space(i);
    made = Shell(absl::StrCat("ip netns add ", space, " && ip -n ", first, " link add v", i,
                              " type veth peer name eth0 netns ", space, " && ip -n ", first,
                              " link set v", i, " master br0 up && ip -n ", space, " addr add ",
                              network->Address(i), "/24 dev eth0 && ip -n ", space,
                              " link set eth0 up && ip -n ", space, " link set lo up"));
  }
  if (made) return network;
  *why = "ip(8) cannot make network namespaces with a bridge here";
  return nullptr;
}

Network::~Network() {
  for (int i = n_ - 1; i >= 0; --i) (void)Shell(absl::StrCat("ip netns del ", Space(i)));
}

std::string Network::Space(int i) const { return absl::StrCat(name_, i); }
std::string Network::Address(int i) const { return absl::StrCat("10.77.0.", i + 1); }

void Network::Cut(int i, bool cut) {
  (void)Shell(absl::StrCat("ip -n ", Space(0), " link set v", i, cut ? " down" : " up"));
}

std::string FreeLoopbackAddress() {
  const wire::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  struct sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(at);
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<struct sockaddr*>(&at), sizeof(at)), 0);
  EXPECT_EQ(getsockname(fd.get(), reinterpret_cast<struct sockaddr*>(&at), &length), 0);
  return absl::StrCat("127.0.0.1:", ntohs(at.sin_port));
}

PortNodeOptions NodeOf(int node, int nodes, uint32_t n_local, const std::string& rendezvous) {
  PortNodeOptions options;
  Setup& setup = options.setup;
  setup.set_job("test");
  setup.set_uid(getuid());
  setup.set_first_rank(static_cast<uint32_t>(node) * n_local);
  setup.set_n_local(n_local);
  setup.set_n_ranks(static_cast<uint32_t>(nodes) * n_local);
  setup.set_rendezvous(rendezvous);
  setup.set_secret("a secret of this test");
  setup.set_max_heap_bytes(1ull << 30);
  setup.set_backend("emu");
  setup.set_silence_ms(3000);
  setup.set_connect_ms(10'000);
  setup.set_attach_ms(20'000);
  setup.set_direct(nodes_are_direct);
  return options;
}

struct PortNode::Rank {
  std::vector<std::unique_ptr<driver::PhysicalMemory>> physical;
  std::unique_ptr<driver::Reservation> reservation;
  std::vector<std::unique_ptr<driver::Mapping>> mappings;
  PortMemory* memory = nullptr;
  wire::UniqueFd wake;

  ~Rank() {
    if (memory != nullptr) munmap(memory, sizeof(PortMemory));
  }
};

PortNode::PortNode(PortNodeOptions options) : options_(std::move(options)) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  link_.Reset(ends[0]);
  const wire::UniqueFd theirs(ends[1]);
  server::WorkerOptions worker;
  worker.tenant = "test";
  worker.memory_bytes = 1 << 30;
  worker.port = true;
  if (options_.as_nobody) worker.ids = {65534, 65534};
  std::vector<std::string> arguments = server::ToArguments(worker);
  arguments.insert(arguments.begin(), "server/irisd-port");
  if (!options_.space.empty()) {
    // It also shows the namespace's own /sys, in which UCX looks for interfaces.
    arguments.insert(arguments.begin(), {"ip", "netns", "exec", options_.space});
  }
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    if (theirs.get() == server::kLinkFd) {
      fcntl(server::kLinkFd, F_SETFD, 0);
    } else {
      dup2(theirs.get(), server::kLinkFd);
    }
    execvp(argv[0], argv.data());
    _exit(98);
  }
  wire::UniqueFd attach;
  if (options_.survives) {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    attach_.Reset(ends[0]);
    attach.Reset(ends[1]);
  }
  Send(server::LinkType::kPortSetup, options_.setup, std::move(attach));
}

void PortNode::SendToAttach(const std::string& bytes, int fd) {
  const struct iovec content = {const_cast<char*>(bytes.data()), bytes.size()};
  EXPECT_EQ(wire::SendRights(attach_.get(), {&content, 1}, {&fd, fd >= 0 ? 1u : 0u}, MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

void PortNode::Attach(const server::PortAttach& attach) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  const wire::UniqueFd theirs(ends[1]);
  SendToAttach(std::string(reinterpret_cast<const char*>(&attach), sizeof(attach)), theirs.get());
  link_.Reset(ends[0]);
  reader_ = server::LinkReader(server::LinkSender::kPort);
  got_.clear();
}

PortNode::~PortNode() {
  link_.Reset();
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    (void)waitpid(pid_, nullptr, 0);
  }
}

void PortNode::SendBytes(server::LinkType type, std::string payload, wire::UniqueFd fd) {
  server::LinkHeader header;
  header.type = type;
  server::LinkWriter writer;
  writer.Queue(header, {std::move(payload), nullptr}, std::move(fd));
  while (!writer.empty()) {
    const auto flushed = writer.Flush(link_.get());
    if (!flushed.ok()) return;
    if (*flushed == server::LinkWriter::Flushed::kAll) return;
    struct pollfd ready = {link_.get(), POLLOUT, 0};
    if (poll(&ready, 1, 10'000) != 1) return;
  }
}

std::optional<PortNode::Got> PortNode::WaitFor(server::LinkType type, absl::Duration timeout) {
  const absl::Time end = absl::Now() + timeout;
  for (;;) {
    while (!got_.empty()) {
      Got got = std::move(got_.front());
      got_.pop_front();
      if (got.type == type) return got;
      if (got.type == server::LinkType::kPortFailed) {
        Failed failed;
        failed.ParseFromString(got.payload);
        ADD_FAILURE() << "the port failed: " << failed.reason();
        return std::nullopt;
      }
    }
    for (;;) {
      auto message = reader_.Next();
      if (!message.ok() || !message->has_value()) break;
      got_.push_back({(*message)->type(), std::string((*message)->payload)});
    }
    if (!got_.empty()) continue;
    const int64_t left = absl::ToInt64Milliseconds(end - absl::Now());
    struct pollfd ready = {link_.get(), POLLIN, 0};
    if (left < 0 || poll(&ready, 1, static_cast<int>(left) + 1) <= 0) return std::nullopt;
    if (!reader_.Receive(link_.get()).ok()) return std::nullopt;
  }
}

bool PortNode::AddMemory(uint32_t rank, int part, uint64_t id,
                         std::optional<uint64_t> registered_at) {
  const auto& physical = ranks_[rank - options_.setup.first_rank()]->physical[part];
  const auto fd = physical->ExportFd(driver::Access::kReadWrite);
  if (!fd.ok()) return false;
  const uint64_t half = options_.heap_bytes / 2;
  Memory memory;
  memory.set_segment_id(id);
  memory.set_rank(rank);
  memory.set_offset_bytes(registered_at.value_or(part * half));
  memory.set_registered(registered_at.has_value());
  memory.set_bytes(half);
  Send(server::LinkType::kPortMemory, memory, wire::UniqueFd(*fd));
  return true;
}

void PortNode::ForgetMemory(uint64_t id) {
  Memory memory;
  memory.set_segment_id(id);
  memory.set_forget(true);
  Send(server::LinkType::kPortMemory, memory);
}

bool PortNode::AddRanks() {
  driver::EmuOptions emu;
  emu.n_devices = 1;
  emu.memory_bytes_per_device = 16ull << 30;
  driver_ = driver::CreateEmuDriver(emu);
  for (uint32_t i = 0; i < options_.setup.n_local(); ++i) {
    const uint32_t number = options_.setup.first_rank() + i;
    auto rank = std::make_unique<Rank>();
    // Two segments, so that ranges cross from one to the other.
    const uint64_t half = options_.heap_bytes / 2;
    auto reservation = driver_->Reserve(options_.heap_bytes, 1, 0);
    if (!reservation.ok()) return false;
    rank->reservation = *std::move(reservation);
    for (int part = 0; part < 2; ++part) {
      auto physical = driver_->Create(0, half, false);
      if (!physical.ok()) return false;
      auto mapping =
          driver_->Map(*rank->reservation, part * half, **physical, driver::Access::kReadWrite, {});
      if (!mapping.ok()) return false;
      rank->physical.push_back(*std::move(physical));
      rank->mappings.push_back(*std::move(mapping));
    }
    wire::UniqueFd ring;
    rank->memory = NewPortMemory(number, &ring);
    if (rank->memory == nullptr) return false;
    rank->wake.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    RankRing message;
    message.set_rank(number);
    Send(server::LinkType::kPortRank, message, std::move(ring));
    message.set_wake(true);
    Send(server::LinkType::kPortRank, message,
         wire::UniqueFd(fcntl(rank->wake.get(), F_DUPFD_CLOEXEC, 3)));
    ranks_.push_back(std::move(rank));
    for (int part = 0; part < 2; ++part) {
      if (!AddMemory(number, part, 2 * number + part + 1)) return false;
    }
  }
  return true;
}

uint8_t* PortNode::heap(uint32_t rank) const {
  return reinterpret_cast<uint8_t*>(
      ranks_[rank - options_.setup.first_rank()]->mappings.front()->address());
}
PortMemory& PortNode::memory(uint32_t rank) const {
  return *ranks_[rank - options_.setup.first_rank()]->memory;
}
PortRequester PortNode::Requester(uint32_t rank, uint32_t ring) const {
  return {&memory(rank), ranks_[rank - options_.setup.first_rank()]->wake.get(), ring};
}

void PortNode::Signal(int signal) const { kill(pid_, signal); }

int PortNode::WaitForEnd(absl::Duration timeout) {
  const absl::Time end = absl::Now() + timeout;
  int status = -1;
  while (absl::Now() < end) {
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      return status;
    }
    absl::SleepFor(absl::Milliseconds(2));
  }
  return -1;
}

Layout LayoutOf(int nodes, uint32_t n_local, uint64_t epoch) {
  Layout layout;
  layout.set_epoch(epoch);
  for (int i = 0; i < nodes; ++i) {
    Layout::Node* const node = layout.add_nodes();
    node->set_first_rank(static_cast<uint32_t>(i) * n_local);
    node->set_n_ranks(n_local);
  }
  return layout;
}

Cluster Start(int nodes, uint32_t n_local, std::unique_ptr<Network> network,
              const std::function<void(int, PortNodeOptions*)>& tune) {
  Cluster cluster;
  cluster.network = std::move(network);
  const std::string rendezvous = cluster.network != nullptr
                                     ? absl::StrCat(cluster.network->Address(0), ":7100")
                                     : FreeLoopbackAddress();
  for (int i = 0; i < nodes; ++i) {
    PortNodeOptions options = NodeOf(i, nodes, n_local, rendezvous);
    if (cluster.network != nullptr) options.space = cluster.network->Space(i);
    if (tune != nullptr) tune(i, &options);
    cluster.nodes.push_back(std::make_unique<PortNode>(options));
  }
  for (auto& node : cluster.nodes) {
    const auto ready = node->WaitForMessage<Ready>(server::LinkType::kPortReady);
    EXPECT_TRUE(ready.has_value());
    if (!ready.has_value() || !node->AddRanks()) return cluster;
  }
  for (int i = 0; i < nodes; ++i) {
    for (int n = i == 0 ? nodes - 1 : 1; n > 0; --n) {
      const auto state = cluster.nodes[i]->WaitForMessage<NodeState>(server::LinkType::kPortNode);
      EXPECT_TRUE(state.has_value() && !state->lost()) << "node " << i;
      if (!state.has_value()) return cluster;
    }
  }
  for (auto& node : cluster.nodes) {
    node->Send(server::LinkType::kPortLayout, LayoutOf(nodes, n_local));
  }
  cluster.ok = true;
  return cluster;
}

}  // namespace iris::port
