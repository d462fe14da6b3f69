#include "server/worker/relay_services.h"

#include "server/worker/relayed_calls.h"

namespace iris::server {

HeapRelayService::Unary* HeapRelayService::Join(Context* context, const Bytes* request,
                                                Bytes* reply) {
  return UnaryCall::Start(relay_, Method::kJoin, context, request, reply);
}

HeapRelayService::Unary* HeapRelayService::Mapped(Context* context, const Bytes* request,
                                                  Bytes* reply) {
  return UnaryCall::Start(relay_, Method::kMapped, context, request, reply);
}

HeapRelayService::Unary* HeapRelayService::Operate(Context* context, const Bytes* request,
                                                   Bytes* reply) {
  return UnaryCall::Start(relay_, Method::kOperate, context, request, reply);
}

HeapRelayService::Unary* HeapRelayService::GrowMapped(Context* context, const Bytes* request,
                                                      Bytes* reply) {
  return UnaryCall::Start(relay_, Method::kGrowMapped, context, request, reply);
}

HeapRelayService::Unary* HeapRelayService::Leave(Context* context, const Bytes* request,
                                                 Bytes* reply) {
  return UnaryCall::Start(relay_, Method::kLeave, context, request, reply);
}

HeapRelayService::Unary* HeapRelayService::Resume(Context* context, const Bytes* request,
                                                  Bytes* reply) {
  return UnaryCall::Start(relay_, Method::kResume, context, request, reply);
}

HeapRelayService::Stream* HeapRelayService::Watch(Context* context, const Bytes* request) {
  return StreamCall::Start(relay_, Method::kWatch, context, request);
}

HeapRelayService::Unary* HeapRelayService::AwaitBarrier(Context* context, const Bytes* request,
                                                        Bytes* reply) {
  return UnaryCall::Start(relay_, Method::kAwaitBarrier, context, request, reply);
}

HeapRelayService::Unary* HeapRelayService::Borrow(Context* context, const Bytes* request,
                                                  Bytes* reply) {
  return UnaryCall::Start(relay_, Method::kBorrow, context, request, reply);
}

AdminRelayService::Unary* AdminRelayService::GetStatus(Context* context, const Bytes* request,
                                                       Bytes* reply) {
  return UnaryCall::Start(relay_, Method::kGetStatus, context, request, reply);
}

AdminRelayService::Unary* AdminRelayService::ListDevices(Context* context, const Bytes* request,
                                                         Bytes* reply) {
  return UnaryCall::Start(relay_, Method::kListDevices, context, request, reply);
}

AdminRelayService::Unary* AdminRelayService::ListJobs(Context* context, const Bytes* request,
                                                      Bytes* reply) {
  return UnaryCall::Start(relay_, Method::kListJobs, context, request, reply);
}

AdminRelayService::Unary* AdminRelayService::ListHeaps(Context* context, const Bytes* request,
                                                       Bytes* reply) {
  return UnaryCall::Start(relay_, Method::kListHeaps, context, request, reply);
}

AdminRelayService::Unary* AdminRelayService::ListAllocations(Context* context, const Bytes* request,
                                                             Bytes* reply) {
  return UnaryCall::Start(relay_, Method::kListAllocations, context, request, reply);
}

AdminRelayService::Unary* AdminRelayService::ListSessions(Context* context, const Bytes* request,
                                                          Bytes* reply) {
  return UnaryCall::Start(relay_, Method::kListSessions, context, request, reply);
}

AdminRelayService::Unary* AdminRelayService::ListWaits(Context* context, const Bytes* request,
                                                       Bytes* reply) {
  return UnaryCall::Start(relay_, Method::kListWaits, context, request, reply);
}

AdminRelayService::Unary* AdminRelayService::ListTenants(Context* context, const Bytes* request,
                                                         Bytes* reply) {
  return UnaryCall::Start(relay_, Method::kListTenants, context, request, reply);
}

AdminRelayService::Unary* AdminRelayService::DescribeJobs(Context* context, const Bytes* request,
                                                          Bytes* reply) {
  return UnaryCall::Start(relay_, Method::kDescribeJobs, context, request, reply);
}

AdminRelayService::Stream* AdminRelayService::Events(Context* context, const Bytes* request) {
  return StreamCall::Start(relay_, Method::kEvents, context, request);
}

AdminRelayService::Unary* AdminRelayService::Peek(Context* context, const Bytes* request,
                                                  Bytes* reply) {
  return UnaryCall::Start(relay_, Method::kPeek, context, request, reply);
}

}  // namespace iris::server
