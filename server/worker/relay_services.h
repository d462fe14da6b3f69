// The services of proto/iris/v1, every method of which is relayed as it comes: as bytes. That gRPC
// knows them as services lets reflection list them. Thread-safe. Borrow the relay.
#pragma once

#include "proto/iris/v1/admin.grpc.pb.h"
#include "proto/iris/v1/heap.grpc.pb.h"
#include "server/worker/relay.h"

namespace iris::server {

using RawHeapService = v1::HeapService::WithRawCallbackMethod_Join<
    v1::HeapService::WithRawCallbackMethod_Mapped<v1::HeapService::WithRawCallbackMethod_Operate<
        v1::HeapService::WithRawCallbackMethod_GrowMapped<
            v1::HeapService::WithRawCallbackMethod_Leave<
                v1::HeapService::WithRawCallbackMethod_Resume<
                    v1::HeapService::WithRawCallbackMethod_Watch<
                        v1::HeapService::WithRawCallbackMethod_Borrow<
                            v1::HeapService::WithRawCallbackMethod_AwaitBarrier<
                                v1::HeapService::Service>>>>>>>>>;

using RawAdminService = v1::AdminService::WithRawCallbackMethod_GetStatus<
    v1::AdminService::WithRawCallbackMethod_ListDevices<
        v1::AdminService::WithRawCallbackMethod_ListJobs<
            v1::AdminService::WithRawCallbackMethod_ListHeaps<
                v1::AdminService::WithRawCallbackMethod_ListAllocations<
                    v1::AdminService::WithRawCallbackMethod_ListSessions<
                        v1::AdminService::WithRawCallbackMethod_Events<
                            v1::AdminService::WithRawCallbackMethod_Peek<
                                v1::AdminService::WithRawCallbackMethod_ListWaits<
                                    v1::AdminService::WithRawCallbackMethod_DescribeJobs<
                                        v1::AdminService::WithRawCallbackMethod_ListTenants<
                                            v1::AdminService::Service>>>>>>>>>>>;

class HeapRelayService final : public RawHeapService {
 public:
  using Context = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;
  using Unary = grpc::ServerUnaryReactor;
  using Stream = grpc::ServerWriteReactor<Bytes>;

  explicit HeapRelayService(Relay* relay) : relay_(relay) {}

  Unary* Join(Context* context, const Bytes* request, Bytes* reply) override;
  Unary* Mapped(Context* context, const Bytes* request, Bytes* reply) override;
  Unary* Operate(Context* context, const Bytes* request, Bytes* reply) override;
  Unary* GrowMapped(Context* context, const Bytes* request, Bytes* reply) override;
  Unary* Leave(Context* context, const Bytes* request, Bytes* reply) override;
  Unary* Resume(Context* context, const Bytes* request, Bytes* reply) override;
  Stream* Watch(Context* context, const Bytes* request) override;
  Unary* Borrow(Context* context, const Bytes* request, Bytes* reply) override;
  Unary* AwaitBarrier(Context* context, const Bytes* request, Bytes* reply) override;

 private:
  Relay* const relay_;
};

class AdminRelayService final : public RawAdminService {
 public:
  using Context = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;
  using Unary = grpc::ServerUnaryReactor;
  using Stream = grpc::ServerWriteReactor<Bytes>;

  explicit AdminRelayService(Relay* relay) : relay_(relay) {}

  Unary* GetStatus(Context* context, const Bytes* request, Bytes* reply) override;
  Unary* ListDevices(Context* context, const Bytes* request, Bytes* reply) override;
  Unary* ListJobs(Context* context, const Bytes* request, Bytes* reply) override;
  Unary* ListHeaps(Context* context, const Bytes* request, Bytes* reply) override;
  Unary* ListAllocations(Context* context, const Bytes* request, Bytes* reply) override;
  Unary* ListSessions(Context* context, const Bytes* request, Bytes* reply) override;
  Stream* Events(Context* context, const Bytes* request) override;
  Unary* Peek(Context* context, const Bytes* request, Bytes* reply) override;
  Unary* ListWaits(Context* context, const Bytes* request, Bytes* reply) override;
  Unary* DescribeJobs(Context* context, const Bytes* request, Bytes* reply) override;
  Unary* ListTenants(Context* context, const Bytes* request, Bytes* reply) override;

 private:
  Relay* const relay_;
};

}  // namespace iris::server
