// Calls of iris-ctl, except for the listings of jobs (listings.h). Callers see the jobs of their
// own party; the operator sees all. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/iris/v1/admin.pb.h"
#include "server/host/daemon.h"
#include "server/link/incoming_call.h"
#include "server/rpc/stream_writer.h"

namespace iris::server {

// Data for GetStatus and ListTenants that the daemon does not have.
struct DaemonFacts {
  std::string runtime_dir;
  std::string attestation;
  absl::Time started;
  struct Backend {
    std::string backend;
    bool available = false;
    std::string detail;
  };
  std::vector<Backend> backends;
  // The settings of port processes.
  struct Network {
    std::string interface;
    uint32_t port_min = 0, port_max = 0;
    std::string ucx;
    std::string transports;
    std::string devices;
    bool direct = false;
    absl::Duration silence;
    bool has_secret = false;
    std::string etcd;
    bool etcd_tls = false, etcd_certificate = false;
    std::string fabric;     // the name of the devices' fabric domain; empty: none
    std::string no_fabric;  // why there is none
  };
  Network network;
  struct Counts {
    uint64_t sessions_total = 0;
    uint64_t sessions_refused = 0;
    uint64_t descriptors_closing = 0;
    uint64_t closing_troubles = 0;
    uint64_t log_lines_left_out = 0;
    uint64_t worker_troubles = 0;
    std::string last_worker_trouble;
  };
  std::function<Counts()> counts;
  // Returns the counts of SessionServer.
  std::function<DoorUse(const Account&)> door_use;
  std::function<DoorUse()> door_limits_of_one, door_limits_of_all;
};

struct AdminSources {
  const Daemon& daemon;
  const DaemonFacts& facts;
};
absl::Status GetStatus(const AdminSources& from, const CallerInfo& caller,
                       const v1::GetStatusRequest& request, v1::GetStatusReply* reply);
absl::Status ListTenants(const AdminSources& from, const CallerInfo& caller,
                         const v1::ListTenantsRequest& request, v1::ListTenantsReply* reply);
absl::Status Peek(const Daemon& daemon, const CallerInfo& caller, const v1::PeekRequest& request,
                  v1::PeekReply* reply);

// Makes a stream of the events in the log and, if the request says so, of later ones.
std::shared_ptr<ActiveCall> Events(EventLog* log, CallCounter* counter, const IncomingCall& call,
                                   const v1::EventsRequest& request);

}  // namespace iris::server
