// PortNode: a test's node of a job: it starts an irisd-port, plays irisd's core and memory for it,
// and its ranks enqueue requests. Network: namespaces joined by a bridge, or the loopback. Not
// thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "device/driver/gpu_driver.h"
#include "device/iris/port_types.h"
#include "proto/wire/unique_fd.h"
#include "server/link/link.h"
#include "server/port/handshake.h"
#include "server/port/port.pb.h"
#include "server/port/testing/port_requester.h"

namespace iris::port {

// Network namespaces "NAME0" and so on, which reach each other. They go with the object.
class Network {
 public:
  // Null if they cannot be made; *why says why not.
  static std::unique_ptr<Network> Create(int n, std::string* why);
  ~Network();

  std::string Space(int i) const;    // for PortNode
  std::string Address(int i) const;  // of node i
  void Cut(int i, bool cut);         // disconnects a node that is not 0

 private:
  int n_ = 0;
  std::string name_;
};

// A port of the loopback that was free.
std::string FreeLoopbackAddress();

// Runs a shell command; true if it succeeds.
bool Shell(const std::string& command);

struct PortNodeOptions {
  Setup setup;                    // n_ranks, rendezvous, first_rank and n_local are needed
  std::string space;              // name of a network namespace
  uint64_t heap_bytes = 8 << 20;  // in two segments
  bool as_nobody = false;
  bool survives = false;  // another irisd may attach
};

// Setup::direct of NodeOf.
inline bool nodes_are_direct = false;

// A setup for tests: `nodes` nodes of `n_local` ranks each, this one `node`.
PortNodeOptions NodeOf(int node, int nodes, uint32_t n_local, const std::string& rendezvous);

class PortNode {
 public:
  // Starts the process and sends the setup.
  explicit PortNode(PortNodeOptions options);
  ~PortNode();

  struct Got {
    server::LinkType type{};
    std::string payload;
  };
  // Returns the next message of this type, and drops others before it.
  std::optional<Got> WaitFor(server::LinkType type, absl::Duration timeout = absl::Seconds(20));
  template <typename M>
  std::optional<M> WaitForMessage(server::LinkType type,
                                  absl::Duration timeout = absl::Seconds(20)) {
    const std::optional<Got> got = WaitFor(type, timeout);
    M message;
    if (!got.has_value() || !message.ParseFromString(got->payload)) return std::nullopt;
    return message;
  }

  // After Ready: the memory and the rings of all local ranks.
  bool AddRanks();
  // The first or second half of a rank's heap, under an id. AddRanks uses 2 * rank + part + 1. Or
  // the same memory once more, as if the rank had registered it, at another offset.
  bool AddMemory(uint32_t rank, int part, uint64_t id,
                 std::optional<uint64_t> registered_at = std::nullopt);
  void ForgetMemory(uint64_t id);
  template <typename M>
  void Send(server::LinkType type, const M& message, wire::UniqueFd fd = {}) {
    SendBytes(type, message.SerializeAsString(), std::move(fd));
  }
  void SendBytes(server::LinkType type, std::string payload, wire::UniqueFd fd = {});
  void CloseLink() { link_.Reset(); }

  // As another irisd does: makes another link, over which nothing is sent yet.
  void Attach(const server::PortAttach& attach = {.node_version = kProtocolVersion});
  void SendToAttach(const std::string& bytes, int fd);
  void CloseAttach() { attach_.Reset(); }

  uint8_t* heap(uint32_t rank) const;
  uint64_t heap_bytes() const { return options_.heap_bytes; }
  uint32_t first_rank() const { return options_.setup.first_rank(); }
  PortMemory& memory(uint32_t rank) const;
  PortRequester Requester(uint32_t rank, uint32_t ring = kPortHostRing) const;

  void Signal(int signal) const;
  pid_t pid() const { return pid_; }
  // Waits for the end of the process, and returns its status of waitpid; -1: it goes on.
  int WaitForEnd(absl::Duration timeout = absl::Seconds(10));

 private:
  struct Rank;

  const PortNodeOptions options_;
  wire::UniqueFd link_;
  wire::UniqueFd attach_;
  pid_t pid_ = -1;
  server::LinkReader reader_{server::LinkSender::kPort};
  std::deque<Got> got_;
  std::unique_ptr<driver::GpuDriver> driver_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

// Nodes that are connected and have their layout.
struct Cluster {
  std::vector<std::unique_ptr<PortNode>> nodes;
  std::unique_ptr<Network> network;
  bool ok = false;  // else the test has a failure
};
Layout LayoutOf(int nodes, uint32_t n_local, uint64_t epoch = 77);
// `tune` may change the options of a node.
Cluster Start(int nodes, uint32_t n_local, std::unique_ptr<Network> network = nullptr,
              const std::function<void(int, PortNodeOptions*)>& tune = nullptr);

}  // namespace iris::port
