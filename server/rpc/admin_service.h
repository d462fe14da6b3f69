// AdminService: what iris-ctl reads. Callers see the jobs of their own uid; root and irisd's own
// uid see all. Served to connections of irisd.sock and to sessions alike. Callback API;
// thread-safe. Borrows everything it is given.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/iris/v1/admin.grpc.pb.h"
#include "server/daemon.h"
#include "server/rpc/call_counter.h"
#include "server/session/connections.h"

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
};

class AdminService final : public v1::AdminService::CallbackService {
 public:
  AdminService(Daemon* daemon, const Connections* connections, CallCounter* calls,
               DaemonFacts facts);

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::GetStatusReply* reply) override;
  grpc::ServerUnaryReactor* ListDevices(grpc::CallbackServerContext* context,
                                        const v1::ListDevicesRequest* request,
                                        v1::ListDevicesReply* reply) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const v1::ListJobsRequest* request,
                                     v1::ListJobsReply* reply) override;
  grpc::ServerUnaryReactor* ListHeaps(grpc::CallbackServerContext* context,
                                      const v1::ListHeapsRequest* request,
                                      v1::ListHeapsReply* reply) override;
  grpc::ServerUnaryReactor* ListAllocations(grpc::CallbackServerContext* context,
                                            const v1::ListAllocationsRequest* request,
                                            v1::ListAllocationsReply* reply) override;
  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* context,
                                         const v1::ListSessionsRequest* request,
                                         v1::ListSessionsReply* reply) override;
  grpc::ServerWriteReactor<v1::Event>* Events(grpc::CallbackServerContext* context,
                                              const v1::EventsRequest* request) override;
  grpc::ServerUnaryReactor* Peek(grpc::CallbackServerContext* context,
                                 const v1::PeekRequest* request, v1::PeekReply* reply) override;

 private:
  absl::StatusOr<CallerInfo> Caller(const grpc::CallbackServerContext& context) const;
  // The jobs that the caller may see, of that name if one is given. kNotFound if one is given and
  // there is none.
  absl::StatusOr<std::vector<JobSnapshot>> VisibleJobs(const grpc::CallbackServerContext& context,
                                                       const std::string& name,
                                                       bool allocations = false) const;
  absl::Status DoPeek(const grpc::CallbackServerContext& context, const v1::PeekRequest& request,
                      v1::PeekReply* reply) const;

  Daemon* const daemon_;
  const Connections* const connections_;
  CallCounter* const calls_;
  const DaemonFacts facts_;
};

}  // namespace iris::server
