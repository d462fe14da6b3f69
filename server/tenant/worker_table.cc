#include "server/tenant/worker_table.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/job/clock.h"

namespace iris::server {
namespace {

FdInspector::Setup WithRoom(FdInspector::Setup setup, const DeferredClose& closer) {
  setup.room = [closer](const Party& tenant) { return closer.RoomForMemory(tenant); };
  return setup;
}

}  // namespace

WorkerTable::WorkerTable(Poller* poller, Setup setup)
    : poller_(poller),
      setup_(std::move(setup)),
      closer_(setup_.closer),
      given_closer_({.per_tenant = setup_.limits.max_given}),
      closing_(poller, setup_.closing, "closes connections"),
      looking_(poller, WithRoom(setup_.looking, setup_.closer)) {
  if (setup_.closing.start == nullptr) return;
  closer_.SetHandOver([this](int socket) { return closing_.HandOver(socket); });
}

WorkerTable::~WorkerTable() {
  closer_.SetHandOver(nullptr);
  for (Worker& worker : workers_) {
    for (auto& [connection, closed] : worker.closed) closed = nullptr;
  }
  Stop(absl::ZeroDuration());
}

absl::StatusOr<uint64_t> WorkerTable::Connect(wire::UniqueFd* socket, const RpcPeer& peer,
                                              std::function<void()> closed) {
  if (stopped_) return absl::UnavailableError("irisd is stopping");
  const absl::Status closes = given_closer_.Room(peer.tenant);
  if (!closes.ok()) return closes;
  auto [it, made] = tenants_.try_emplace(peer.tenant);
  TenantState& state = it->second;
  if (made) state.starts = {double(setup_.limits.start_burst), setup_.limits.start_interval};
  if (state.worker == nullptr && state.start_at == absl::InfiniteFuture()) {
    const absl::Status started = Start(peer.tenant, &state);
    if (!started.ok()) {
      Forget(peer.tenant);
      return started;
    }
  }
  const uint64_t connection = next_connection_++;
  if (state.worker != nullptr && state.worker->ready) {
    by_connection_[connection] = state.worker;
    state.worker->closed[connection] = std::move(closed);
    state.worker->act_at = absl::InfiniteFuture();
    state.worker->link->Connect(connection, peer, std::move(*socket));
    return connection;
  }
  if (state.waiting.size() >= setup_.limits.max_waiting) {
    return absl::ResourceExhaustedError(
        absl::StrCat(state.waiting.size(), " connections of ", peer.tenant.Text(),
                     " wait for irisd's worker, irisd's limit for a user; try again later"));
  }
  by_connection_[connection] = nullptr;
  state.waiting.push_back({connection, std::move(*socket), peer, std::move(closed)});
  return connection;
}

void WorkerTable::Disconnect(uint64_t connection) {
  const auto it = by_connection_.find(connection);
  if (it == by_connection_.end()) return;
  Worker* const worker = it->second;
  if (worker != nullptr) {
    // The entry stays until the worker has closed the connection too, but no callback runs.
    worker->closed[connection] = nullptr;
    if (worker->link->Disconnect(connection)) OnClosed(worker, connection);
    return;
  }
  by_connection_.erase(it);
  for (auto& [tenant, state] : tenants_) {
    const auto waiting =
        std::find_if(state.waiting.begin(), state.waiting.end(),
                     [connection](const Waiting& w) { return w.connection == connection; });
    if (waiting == state.waiting.end()) continue;
    closer_.CloseConnection(tenant, std::move(waiting->socket));
    state.waiting.erase(waiting);
    return;
  }
}

absl::Status WorkerTable::Start(const Party& tenant, TenantState* state) {
  const WorkerLimits& limits = setup_.limits;
  const absl::Time now = SteadyNow();
  const bool allowed = state->starts.Allows(now);
  state->start_at = allowed ? absl::InfiniteFuture() : state->starts.next();
  if (!allowed) return absl::OkStatus();
  const bool is_operator = setup_.is_operator != nullptr && setup_.is_operator(tenant);
  const uint32_t kept = is_operator ? 0 : std::min(limits.kept_for_operator, limits.max_workers);
  if (workers_.size() >= limits.max_workers - kept) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "irisd has ", workers_.size(), " workers, its limit for all users; try again later"));
  }
  state->starts.Spend(now);
  absl::StatusOr<std::unique_ptr<RunningWorker>> started = setup_.start(tenant);
  if (!started.ok()) return started.status();
  Worker* const worker = &workers_.emplace_back();
  worker->tenant = tenant;
  worker->process = *std::move(started);
  worker->pid = worker->process->pid();
  worker->act_at = now + limits.ready_timeout;
  absl::StatusOr<Poller::Watched> exit =
      WatchExit(poller_, *worker->process, [this, worker] { OnExit(worker); });
  if (!exit.ok()) {
    workers_.pop_back();
    return exit.status();
  }
  worker->exit = *std::move(exit);
  WorkerLink::Owner owner;
  owner.ready = [this, worker] { OnReady(worker); };
  owner.closed = [this, worker](uint64_t connection) { OnClosed(worker, connection); };
  owner.ended = [this, worker](const absl::Status& reason) { Kill(worker, reason); };
  owner.close_socket = [closer = closer_, tenant](wire::UniqueFd socket) mutable {
    closer.CloseConnection(tenant, std::move(socket));
  };
  owner.close_given = [closer = given_closer_, tenant](wire::UniqueFd given) mutable {
    closer.CloseUnknown(tenant, std::move(given));
  };
  absl::StatusOr<std::shared_ptr<WorkerLink>> link =
      WorkerLink::Create(worker->process->TakeLink(), poller_, setup_.serve, std::move(owner));
  if (!link.ok()) {
    workers_.pop_back();
    return link.status();
  }
  worker->link = *std::move(link);
  state->worker = worker;
  return absl::OkStatus();
}

void WorkerTable::StartAgain(const Party& tenant, TenantState* state) {
  if (state->failures >= setup_.limits.max_failures) {
    // The close of their sockets notifies the clients.
    auto given_up = std::exchange(state->waiting, {});
    state->failures = 0;
    for (Waiting& waiting : given_up) {
      by_connection_.erase(waiting.connection);
      closer_.CloseConnection(tenant, std::move(waiting.socket));
    }
    for (const Waiting& waiting : given_up) {
      if (waiting.closed != nullptr) waiting.closed();
    }
  }
  if (state->waiting.empty() || stopped_) return;
  if (!Start(tenant, state).ok()) state->start_at = SteadyNow() + setup_.limits.start_interval;
}

void WorkerTable::OnReady(Worker* worker) {
  if (worker->stopping) return;
  worker->ready = true;
  TenantState& state = tenants_.at(worker->tenant);
  state.failures = 0;
  for (Waiting& waiting : std::exchange(state.waiting, {})) {
    by_connection_[waiting.connection] = worker;
    worker->closed[waiting.connection] = std::move(waiting.closed);
    worker->link->Connect(waiting.connection, waiting.peer, std::move(waiting.socket));
  }
  worker->act_at =
      worker->closed.empty() ? SteadyNow() + setup_.limits.idle_timeout : absl::InfiniteFuture();
}

void WorkerTable::OnClosed(Worker* worker, uint64_t connection) {
  const auto it = worker->closed.find(connection);
  const std::function<void()> closed = std::move(it->second);
  worker->closed.erase(it);
  by_connection_.erase(connection);
  if (worker->closed.empty() && !worker->stopping) {
    worker->act_at = SteadyNow() + setup_.limits.idle_timeout;
  }
  if (closed != nullptr) closed();
}

void WorkerTable::Kill(Worker* worker, const absl::Status& reason) {
  if (worker->link == nullptr) return;
  worker->reason = reason;
  worker->process->Kill();
  std::exchange(worker->link, nullptr)->Close();
  worker->act_at = absl::InfiniteFuture();
  const Party tenant = worker->tenant;
  const auto state = tenants_.find(tenant);
  if (state != tenants_.end() && state->second.worker == worker) {
    state->second.worker = nullptr;
    if (!worker->ready) ++state->second.failures;
    StartAgain(tenant, &state->second);  // later connections start a worker
  }
  const auto told = std::exchange(worker->closed, {});
  for (const auto& [connection, closed] : told) by_connection_.erase(connection);
  for (const auto& [connection, closed] : told) {
    if (closed != nullptr) closed();
  }
  Forget(tenant);
}

void WorkerTable::OnExit(Worker* worker) {
  const std::optional<std::string> how = worker->process->Reap();
  if (!how.has_value()) return;
  const absl::Status ended = absl::UnavailableError(*how);
  const pid_t pid = worker->pid;
  Kill(worker, ended);
  if (!worker->stopping) {
    // The end of the process has more information than the close of its link.
    setup_.died(worker->tenant, pid, absl::IsUnavailable(worker->reason) ? ended : worker->reason);
  }
  workers_.remove_if([worker](const Worker& w) { return &w == worker; });
}

void WorkerTable::AskToStop(Worker* worker) {
  worker->stopping = true;
  worker->act_at = SteadyNow() + setup_.limits.stop_timeout;
  worker->link->Stop();
  const auto state = tenants_.find(worker->tenant);
  if (state != tenants_.end() && state->second.worker == worker) state->second.worker = nullptr;
  Forget(worker->tenant);
}

void WorkerTable::Act(Worker* worker) {
  if (worker->stopping) {
    Kill(worker, absl::DeadlineExceededError("it did not stop in time"));
  } else if (!worker->ready) {
    Kill(worker,
         absl::DeadlineExceededError(absl::StrCat(
             "it was not ready within ", absl::FormatDuration(setup_.limits.ready_timeout))));
  } else {
    AskToStop(worker);  // no client is connected
  }
}

void WorkerTable::Forget(const Party& tenant) {
  const auto it = tenants_.find(tenant);
  if (it == tenants_.end() || it->second.worker != nullptr || !it->second.waiting.empty()) return;
  // The tenant's budget is remembered until it is full again.
  if (it->second.starts.full(SteadyNow())) tenants_.erase(it);
}

absl::Time WorkerTable::deadline() const {
  absl::Time next = looking_.deadline();
  for (const Worker& worker : workers_) {
    next = std::min(next, worker.act_at);
    if (worker.link != nullptr) next = std::min(next, worker.link->deadline());
  }
  for (const auto& [tenant, state] : tenants_) next = std::min(next, state.start_at);
  return next;
}

void WorkerTable::RunDeadlines(absl::Time now) {
  looking_.RunDeadlines(now);
  for (auto it = workers_.begin(); it != workers_.end();) {
    Worker* const worker = &*it++;
    if (worker->link != nullptr && worker->act_at <= now) Act(worker);
    if (worker->link != nullptr) std::shared_ptr(worker->link)->Continue(now);
  }
  std::vector<Party> due;
  for (const auto& [tenant, state] : tenants_) {
    if (state.start_at <= now) due.push_back(tenant);
  }
  for (const Party& tenant : due) {
    TenantState& state = tenants_.at(tenant);
    state.start_at = absl::InfiniteFuture();
    if (state.worker == nullptr) StartAgain(tenant, &state);
    Forget(tenant);
  }
}

void WorkerTable::Stop(absl::Duration within) {
  stopped_ = true;
  for (Worker& worker : workers_) {
    if (worker.link != nullptr && !worker.stopping) AskToStop(&worker);
  }
  const absl::Time until = SteadyNow() + within;
  for (absl::Time now = SteadyNow(); !workers_.empty() && now < until; now = SteadyNow()) {
    poller_->Wait(std::min(until, deadline()) - now);
    RunDeadlines(SteadyNow());
  }
  for (Worker& worker : workers_) {
    Kill(&worker, absl::DeadlineExceededError("it did not stop in time"));
  }
  workers_.clear();
  tenants_.clear();
  by_connection_.clear();
}

}  // namespace iris::server
