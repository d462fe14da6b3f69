// AdminService: what iris-ctl reads. Callers see the jobs of their own party; the operator
// sees all. Served to connections of irisd.sock and to sessions alike. Thread-safe. Borrows the
// daemon and the calls.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/iris/v1/admin.pb.h"
#include "server/daemon.h"
#include "server/link/incoming_call.h"
#include "server/rpc/calls.h"

namespace iris::server {

// What GetStatus says beside the daemon's own figures.
struct DaemonFacts {
  std::string runtime_dir;
  std::string attestation;
  absl::Time started;
  struct Backend {
    std::string name;
    bool available = false;
    std::string detail;
  };
  std::vector<Backend> backends;
  std::function<uint64_t()> sessions_total;
  std::function<uint64_t()> sessions_refused;
  std::function<uint64_t()> descriptors_closing;  // null: none
  std::function<uint64_t()> closing_troubles;     // null: none
  std::function<uint64_t()> log_lines_left_out;   // null: none
  struct Troubles {
    uint64_t n = 0;
    std::string last;
  };
  std::function<Troubles()> worker_troubles;  // null: none
  // Of SessionServer; null: nobody has anything.
  std::function<DoorUse(const Account&)> door_use;
  std::function<DoorUse()> door_limits_of_one, door_limits_of_all;
};

class AdminService {
 public:
  AdminService(Daemon* daemon, Calls* calls, DaemonFacts facts);

  // As Services::Serve.
  std::shared_ptr<ActiveCall> GetStatus(const IncomingCall& call);
  std::shared_ptr<ActiveCall> ListDevices(const IncomingCall& call);
  std::shared_ptr<ActiveCall> ListJobs(const IncomingCall& call);
  std::shared_ptr<ActiveCall> ListHeaps(const IncomingCall& call);
  std::shared_ptr<ActiveCall> ListAllocations(const IncomingCall& call);
  std::shared_ptr<ActiveCall> ListSessions(const IncomingCall& call);
  std::shared_ptr<ActiveCall> Events(const IncomingCall& call);
  std::shared_ptr<ActiveCall> Peek(const IncomingCall& call);
  std::shared_ptr<ActiveCall> ListWaits(const IncomingCall& call);
  std::shared_ptr<ActiveCall> ListTenants(const IncomingCall& call);
  std::shared_ptr<ActiveCall> DescribeJobs(const IncomingCall& call);

 private:
  absl::Status TenantsPage(const CallerInfo& caller, const v1::ListTenantsRequest& request,
                           v1::ListTenantsReply* reply) const;
  void FillStatus(v1::GetStatusReply* reply) const;
  absl::Status ReadHeap(const CallerInfo& caller, const v1::PeekRequest& request,
                        v1::PeekReply* reply) const;

  Daemon* const daemon_;
  Calls* const calls_;
  const DaemonFacts facts_;
};

}  // namespace iris::server
