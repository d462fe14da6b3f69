// HeapService: the calls of a session, over gRPC's callback API: no thread waits for an answer.
// Thread-safe. Borrows the daemon and the connection table.
#pragma once

#include "absl/status/statusor.h"
#include "proto/iris/v1/heap.grpc.pb.h"
#include "server/daemon.h"
#include "server/rpc/call_counter.h"
#include "server/session/connections.h"

namespace iris::server {

class HeapService final : public v1::HeapService::CallbackService {
 public:
  HeapService(Daemon* daemon, const Connections* connections, CallCounter* calls)
      : daemon_(daemon), connections_(connections), calls_(calls) {}

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context,
                                 const v1::JoinRequest* request, v1::JoinReply* reply) override;
  grpc::ServerUnaryReactor* Mapped(grpc::CallbackServerContext* context,
                                   const v1::MappedRequest* request,
                                   v1::MappedReply* reply) override;
  grpc::ServerUnaryReactor* Operate(grpc::CallbackServerContext* context,
                                    const v1::OperateRequest* request,
                                    v1::OperateReply* reply) override;
  grpc::ServerUnaryReactor* GrowMapped(grpc::CallbackServerContext* context,
                                       const v1::GrowMappedRequest* request,
                                       v1::GrowMappedReply* reply) override;
  grpc::ServerUnaryReactor* Leave(grpc::CallbackServerContext* context,
                                  const v1::LeaveRequest* request, v1::LeaveReply* reply) override;
  grpc::ServerUnaryReactor* Resume(grpc::CallbackServerContext* context,
                                   const v1::ResumeRequest* request,
                                   v1::ResumeReply* reply) override;
  grpc::ServerWriteReactor<v1::WatchEvent>* Watch(grpc::CallbackServerContext* context,
                                                  const v1::WatchRequest* request) override;

 private:
  // The session behind the call's connection. kPermissionDenied: an admin connection, or the
  // request names another one.
  absl::StatusOr<SessionId> Caller(const grpc::CallbackServerContext& context,
                                   uint64_t session_id) const;

  Daemon* const daemon_;
  const Connections* const connections_;
  CallCounter* const calls_;
};

}  // namespace iris::server
