// WorkerTable: the workers of tenants. It starts a worker when a tenant connects, starts another
// after a worker's death, and ends a worker that has had no connection for a while. It also owns
// the processes that close connections and that inspect descriptors.
//
// Not thread-safe: it belongs to the session thread. Borrows the poller and the objects that its
// functions take.
//
// A worker's death ends only its connections: their calls are cancelled, and their holders are
// notified. The rate at which a tenant's workers are started is bounded; new connections wait
// meanwhile, up to a limit.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/wire/unique_fd.h"
#include "server/account/rate_budget.h"
#include "server/session/deferred_close.h"
#include "server/session/poller.h"
#include "server/session/rpc_host.h"
#include "server/tenant/fd_inspector.h"
#include "server/tenant/helper_processes.h"
#include "server/tenant/worker_link.h"
#include "server/tenant/worker_program.h"

namespace iris::server {

struct WorkerLimits {
  absl::Duration idle_timeout = absl::Seconds(10);
  absl::Duration ready_timeout = absl::Seconds(10);  // from the worker's start
  absl::Duration stop_timeout = absl::Seconds(5);    // from kStop
  uint32_t max_workers = 256;
  uint32_t kept_for_operator = 4;  // of max_workers
  // Starts of one tenant's workers: start_burst at once, then one in each interval.
  uint32_t start_burst = 32;
  absl::Duration start_interval = absl::Milliseconds(100);
  // Connections of one tenant that wait for a worker. They are dropped after max_failures workers
  // that failed to become ready.
  uint32_t max_waiting = 4096;
  uint32_t max_failures = 5;
  // Connections of one tenant that its worker has been given, but whose descriptors in irisd do not
  // close.
  uint32_t max_given = 1024;
};

class WorkerTable : public RpcHost {
 public:
  struct Setup {
    std::function<absl::StatusOr<std::unique_ptr<RunningWorker>>(const Party&)> start;
    ServeCall serve;
    // Called when a worker ended without being asked to.
    std::function<void(const Party&, pid_t, const absl::Status&)> died;
    WorkerLimits limits;
    // Returns true if the tenant is the operator. Null: no tenant is.
    std::function<bool(const Party&)> is_operator;
    // Closes connections, with a process of `closing` if one can be started.
    DeferredClose closer;
    HelperProcesses::Setup closing;
    FdInspector::Setup looking;
  };
  WorkerTable(Poller* poller, Setup setup);
  // Kills workers that still run. Runs no callback.
  ~WorkerTable() override;

  absl::StatusOr<uint64_t> Connect(wire::UniqueFd* socket, const RpcPeer& peer,
                                   std::function<void()> closed) override;
  void Disconnect(uint64_t connection) override;
  uint64_t Look(int socket, const Party& tenant, FdInspector::Answer answer) override {
    return looking_.Look(socket, tenant, std::move(answer));
  }
  void Forget(uint64_t look) override { looking_.Forget(look); }
  absl::Time deadline() const override;
  void RunDeadlines(absl::Time now) override;
  void Stop(absl::Duration within) override;

  // For tests and statistics.
  size_t n_workers() const { return workers_.size(); }

 private:
  struct Worker {
    Party tenant;
    std::unique_ptr<RunningWorker> process;
    pid_t pid = 0;
    Poller::Watched exit;              // a duplicate of its pidfd
    std::shared_ptr<WorkerLink> link;  // null: the link has ended, and the process has not
    bool ready = false;
    bool stopping = false;  // it was asked to stop: another worker may serve the tenant
    std::map<uint64_t, std::function<void()>> closed;  // by connection: notifies its holder
    absl::Time act_at;    // when Act is due: because it is not ready, has not stopped, or is idle
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
    Worker* worker = nullptr;     // that serves the tenant now
    std::deque<Waiting> waiting;  // for a worker that is ready
    RateBudget starts{0, absl::ZeroDuration()};
    absl::Time start_at = absl::InfiniteFuture();
    uint32_t failures = 0;  // workers in a row that ended before they were ready
  };

  // Starts a worker for the tenant if it may have one now, or notes when it may.
  absl::Status Start(const Party& tenant, TenantState* state);
  // Does the same for connections that wait, if any.
  void StartAgain(const Party& tenant, TenantState* state);
  void OnReady(Worker* worker);
  void OnClosed(Worker* worker, uint64_t connection);
  // Handles the end of the worker's process.
  void OnExit(Worker* worker);
  void Kill(Worker* worker, const absl::Status& reason);
  void AskToStop(Worker* worker);
  // Ends a worker whose time is up.
  void Act(Worker* worker);
  void Forget(const Party& tenant);

  Poller* const poller_;
  const Setup setup_;
  DeferredClose closer_;
  // Closes sockets that workers have been given. Nothing waits for these closes, so the sockets
  // do not count as descriptors that clients have sent.
  DeferredClose given_closer_;
  HelperProcesses closing_;
  FdInspector looking_;
  bool stopped_ = false;
  uint64_t next_connection_ = 1;
  Workers workers_;
  std::map<Party, TenantState> tenants_;
  std::unordered_map<uint64_t, Worker*> by_connection_;  // null: it waits
};

}  // namespace iris::server
