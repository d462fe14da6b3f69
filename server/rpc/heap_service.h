// HeapService: the calls of a session. Thread-safe. Borrows the daemon and the calls.
#pragma once

#include "proto/iris/v1/heap.grpc.pb.h"
#include "server/daemon.h"
#include "server/rpc/calls.h"

namespace iris::server {

// Every method takes and gives bytes: see server/rpc/message.h.
using RawHeapService = v1::HeapService::WithRawCallbackMethod_Join<
    v1::HeapService::WithRawCallbackMethod_Mapped<v1::HeapService::WithRawCallbackMethod_Operate<
        v1::HeapService::WithRawCallbackMethod_GrowMapped<
            v1::HeapService::WithRawCallbackMethod_Leave<
                v1::HeapService::WithRawCallbackMethod_Resume<
                    v1::HeapService::WithRawCallbackMethod_Watch<v1::HeapService::Service>>>>>>>;

class HeapService final : public RawHeapService {
 public:
  using Context = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;

  HeapService(Daemon* daemon, Calls* calls) : daemon_(daemon), calls_(calls) {}

  grpc::ServerUnaryReactor* Join(Context* context, const Bytes* request, Bytes* reply) override;
  grpc::ServerUnaryReactor* Mapped(Context* context, const Bytes* request, Bytes* reply) override;
  grpc::ServerUnaryReactor* Operate(Context* context, const Bytes* request, Bytes* reply) override;
  grpc::ServerUnaryReactor* GrowMapped(Context* context, const Bytes* request,
                                       Bytes* reply) override;
  grpc::ServerUnaryReactor* Leave(Context* context, const Bytes* request, Bytes* reply) override;
  grpc::ServerUnaryReactor* Resume(Context* context, const Bytes* request, Bytes* reply) override;
  grpc::ServerWriteReactor<Bytes>* Watch(Context* context, const Bytes* request) override;

 private:
  Daemon* const daemon_;
  Calls* const calls_;
};

}  // namespace iris::server
