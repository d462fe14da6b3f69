// Worker: gRPC's server without a listening socket, a relay, and the thread that reads the link. It
// serves the connections that the core sends it, and relays their calls; it answers health and
// reflection calls itself. One thread calls it; gRPC has threads of its own. Owns the link.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/server.h"
#include "proto/wire/unique_fd.h"
#include "server/events/log.h"
#include "server/link/link.h"
#include "server/worker/relay.h"
#include "server/worker/relay_service.h"

namespace iris::server {

class Worker {
 public:
  // Starts gRPC's threads. `memory_bytes` is the limit of the entire process.
  static absl::StatusOr<std::unique_ptr<Worker>> Create(wire::UniqueFd link, uint64_t memory_bytes,
                                                        const Logger* logger);
  ~Worker();

  // Reports to the core that the worker is ready, and serves until the core stops it, or closes the
  // link. Returns OK after a stop, kUnavailable if the core is gone, and any other error if the
  // core sent an invalid message.
  absl::Status Run();

 private:
  Worker(wire::UniqueFd link, wire::UniqueFd epoll, const Relay::Limits& limits,
         const Logger* logger);

  // Handles the link's messages. Returns kCancelled if the core stops the worker.
  absl::Status ReadLink();
  absl::Status OnMessage(LinkMessage message);
  void Connect(uint64_t connection, wire::UniqueFd socket);
  // Delivers queued messages within `timeout`, then ends gRPC's server.
  void End(const absl::Status& why, absl::Duration timeout);
  // Returns free memory to the kernel, if it is time. Returns the milliseconds until the next time;
  // -1 if nothing has happened for long.
  int TrimMemory();

  const Logger* const logger_;
  const wire::UniqueFd epoll_;
  const wire::UniqueFd link_;
  LinkReader reader_{LinkSender::kCore};
  Relay relay_;
  RelayService heap_{&relay_, /*admin=*/false};
  RelayService admin_{&relay_, /*admin=*/true};
  std::unique_ptr<grpc::Server> server_;
  absl::Time trim_at_;
  int trims_left_ = 0;
};

}  // namespace iris::server
