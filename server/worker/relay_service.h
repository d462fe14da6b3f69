// RelayService: one service of proto/iris/v1. It relays the bytes of each method unchanged. gRPC
// knows the methods by name, so reflection lists the service. Thread-safe. Borrows the relay.
#pragma once

#include "grpcpp/impl/service_type.h"
#include "server/worker/relay.h"

namespace iris::server {

class RelayService final : public grpc::Service {
 public:
  // Serves the admin service if `admin`, otherwise the heap service.
  RelayService(Relay* relay, bool admin);
};

}  // namespace iris::server
