#include "server/rpc/rpc_server.h"

#include <utility>

#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/server_posix.h"
#include "proto/wire/limits.h"

namespace iris::server {
namespace {

// A client that opens more calls at once waits for its own. Every team of a rank may be in an
// operation at once: with fewer calls than teams, ranks could wait for each other.
constexpr int kMaxCallsPerConnection = wire::kMaxTeamsPerJob + 16;
// What gRPC may hold in messages that are half received, over all connections.
constexpr size_t kMaxBufferedBytes = 512 << 20;
// The reflection service alone needs threads of its own.
constexpr int kMaxSyncThreads = 4;

}  // namespace

RpcServer::RpcServer(Daemon* daemon, const Connections* connections, DaemonFacts facts)
    : heap_(daemon, connections, &calls_), admin_(daemon, connections, &calls_, std::move(facts)) {}

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Create(Daemon* daemon,
                                                             const Connections* connections,
                                                             DaemonFacts facts) {
  std::unique_ptr<RpcServer> rpc(new RpcServer(daemon, connections, std::move(facts)));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  builder.RegisterService(&rpc->heap_);
  builder.RegisterService(&rpc->admin_);
  builder.SetMaxReceiveMessageSize(static_cast<int>(wire::kMaxRpcBytes));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxCallsPerConnection);
  builder.AddChannelArgument(GRPC_ARG_TCP_READ_CHUNK_SIZE, 4096);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_CHANNELZ, 0);
  grpc::ResourceQuota quota("irisd");
  quota.SetMaxThreads(kMaxSyncThreads);
  quota.Resize(kMaxBufferedBytes);
  builder.SetResourceQuota(quota);
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 1);
  rpc->server_ = builder.BuildAndStart();
  if (rpc->server_ == nullptr) return absl::InternalError("start the gRPC server");
  return rpc;
}

RpcServer::~RpcServer() { Shutdown(absl::ZeroDuration()); }

void RpcServer::Adopt(int fd) { grpc::AddInsecureChannelFromFd(server_.get(), fd); }

void RpcServer::Shutdown(absl::Duration timeout) {
  if (server_ == nullptr) return;
  server_->Shutdown(absl::ToChronoTime(absl::Now() + timeout));
  server_->Wait();
  server_.reset();
}

}  // namespace iris::server
