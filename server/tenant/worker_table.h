// WorkerTable: which worker serves which tenant. It starts a worker when a tenant connects, starts
// another after a worker's death, and ends one that has had no connection for a while. It also has
// the process that closes connections and the one that looks at descriptors.
//
// Not thread-safe: it belongs to the session thread. Borrows the poller and whatever its functions
// name.
//
// A worker that dies takes its connections with it, and nothing else: their calls are cancelled,
// and who held them is told. How often a tenant's workers are started is bounded; what connects
// meanwhile waits, up to a limit.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/wire/unique_fd.h"
#include "server/session/closer.h"
#include "server/session/poller.h"
#include "server/session/rpc_host.h"
#include "server/tenant/closing_process.h"
#include "server/tenant/looking_process.h"
#include "server/tenant/running_worker.h"
#include "server/tenant/worker_link.h"

namespace iris::server {

struct WorkerLimits {
  absl::Duration idle_timeout = absl::Seconds(10);
  absl::Duration ready_timeout = absl::Seconds(10);  // from its start
  absl::Duration stop_timeout = absl::Seconds(5);    // from kStop
  uint32_t max_workers = 256;
  uint32_t kept_for_operator = 4;  // of max_workers
  // Starts of one tenant's workers: so many at once, then one in each interval.
  uint32_t start_burst = 32;
  absl::Duration start_interval = absl::Milliseconds(100);
  // Connections of one tenant that wait for a worker; and how many workers may fail to become ready
  // before those are given up.
  uint32_t max_waiting = 4096;
  // Connections of one tenant that its worker has been given, and of which irisd's own descriptors
  // do not close.
  uint32_t max_given = 1024;
  uint32_t max_failures = 5;
};

class WorkerTable : public RpcHost {
 public:
  struct Setup {
    std::function<absl::StatusOr<std::unique_ptr<RunningWorker>>(const Party&)> start;
    WorkerLink::Serve serve;
    // A worker came to an end that was not asked for.
    std::function<void(const Party&, pid_t, const absl::Status&)> died;
    WorkerLimits limits;
    // Whether a tenant looks after irisd; null: nobody does.
    std::function<bool(const Party&)> is_operator;
    // Has connections closed elsewhere, by `closing` if it can start a process.
    Closer closer;
    ClosingProcess::Setup closing;
    // Looks at descriptors.
    LookingProcess::Setup looking;
  };
  WorkerTable(Poller* poller, Setup setup);
  // Kills what still runs; tells nobody.
  ~WorkerTable() override;

  // RpcHost.
  absl::StatusOr<uint64_t> Connect(wire::UniqueFd* socket, const RpcPeer& peer,
                                   std::function<void()> closed) override;
  void Disconnect(uint64_t connection) override;
  uint64_t Look(int socket, const Party& tenant, LookingProcess::Answer answer) override {
    return looking_.Look(socket, tenant, std::move(answer));
  }
  void Forget(uint64_t look) override { looking_.Forget(look); }
  absl::Time deadline() const override;
  void RunDeadlines(absl::Time now) override;
  void Stop(absl::Duration within) override;

  // For tests and figures.
  size_t n_workers() const { return workers_.size(); }

 private:
  struct Worker {
    Party tenant;
    std::unique_ptr<RunningWorker> process;
    pid_t pid = 0;
    Poller::Watched exit;              // a duplicate of its pidfd
    std::shared_ptr<WorkerLink> link;  // null: it has ended, and its process is waited for
    bool ready = false;
    bool stopping = false;  // was told to stop: another may serve the tenant
    std::map<uint64_t, std::function<void()>> closed;  // by connection: whom to tell
    absl::Time act_at;    // not ready, still there after kStop, or idle: when to do something
    absl::Status reason;  // why it was ended
  };
  using Workers = std::list<Worker>;
  struct Waiting {
    uint64_t connection = 0;
    wire::UniqueFd socket;
    RpcPeer peer;
    std::function<void()> closed;
  };
  struct TenantState {
    Worker* worker = nullptr;     // that serves it now
    std::deque<Waiting> waiting;  // for a worker that is ready
    // The starts that it may make at once, at `counted_at`.
    double starts = 0;
    absl::Time counted_at;
    absl::Time start_at = absl::InfiniteFuture();
    uint32_t failures = 0;  // workers in a row that ended before they were ready
  };

  // Starts a worker for the tenant if it may have one now, or notes when it may.
  absl::Status Start(const Party& tenant, TenantState* state);
  // The same, for those who wait.
  void StartAgain(const Party& tenant, TenantState* state);
  void OnReady(Worker* worker);
  void OnClosed(Worker* worker, uint64_t connection);
  // The worker's process has ended.
  void OnExit(Worker* worker);
  void Kill(Worker* worker, const absl::Status& reason);
  void AskToStop(Worker* worker);
  // What the worker is to do next is due.
  void Act(Worker* worker);
  void Forget(const Party& tenant);

  Poller* const poller_;
  const Setup setup_;
  Closer closer_;
  // Of sockets that workers have been given: nobody waits for them, so they do not count with what
  // clients have sent.
  Closer given_closer_;
  ClosingProcess closing_;
  LookingProcess looking_;
  bool stopped_ = false;
  uint64_t next_connection_ = 1;
  Workers workers_;
  std::map<Party, TenantState> tenants_;
  std::unordered_map<uint64_t, Worker*> by_connection_;  // null: it waits
};

}  // namespace iris::server
