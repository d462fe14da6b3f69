// AdminService: what iris-ctl reads. Callers see the jobs of their own uid; root and irisd's own
// uid see all. Served to connections of irisd.sock and to sessions alike. Thread-safe. Borrows the
// daemon and the calls.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/iris/v1/admin.grpc.pb.h"
#include "server/daemon.h"
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
};

// Every method takes and gives bytes: see server/rpc/message.h.
using RawAdminService = v1::AdminService::WithRawCallbackMethod_GetStatus<
    v1::AdminService::WithRawCallbackMethod_ListDevices<
        v1::AdminService::WithRawCallbackMethod_ListJobs<
            v1::AdminService::WithRawCallbackMethod_ListHeaps<
                v1::AdminService::WithRawCallbackMethod_ListAllocations<
                    v1::AdminService::WithRawCallbackMethod_ListSessions<
                        v1::AdminService::WithRawCallbackMethod_Events<
                            v1::AdminService::WithRawCallbackMethod_Peek<
                                v1::AdminService::Service>>>>>>>>;

class AdminService final : public RawAdminService {
 public:
  using Context = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;

  AdminService(Daemon* daemon, Calls* calls, DaemonFacts facts);

  grpc::ServerUnaryReactor* GetStatus(Context* context, const Bytes* request,
                                      Bytes* reply) override;
  grpc::ServerUnaryReactor* ListDevices(Context* context, const Bytes* request,
                                        Bytes* reply) override;
  grpc::ServerUnaryReactor* ListJobs(Context* context, const Bytes* request, Bytes* reply) override;
  grpc::ServerUnaryReactor* ListHeaps(Context* context, const Bytes* request,
                                      Bytes* reply) override;
  grpc::ServerUnaryReactor* ListAllocations(Context* context, const Bytes* request,
                                            Bytes* reply) override;
  grpc::ServerUnaryReactor* ListSessions(Context* context, const Bytes* request,
                                         Bytes* reply) override;
  grpc::ServerWriteReactor<Bytes>* Events(Context* context, const Bytes* request) override;
  grpc::ServerUnaryReactor* Peek(Context* context, const Bytes* request, Bytes* reply) override;

 private:
  void FillStatus(v1::GetStatusReply* reply) const;
  absl::Status ReadHeap(const CallerInfo& caller, const v1::PeekRequest& request,
                        v1::PeekReply* reply) const;

  Daemon* const daemon_;
  Calls* const calls_;
  const DaemonFacts facts_;
};

}  // namespace iris::server
