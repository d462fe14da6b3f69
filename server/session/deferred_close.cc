#include "server/session/deferred_close.h"

#include <sys/socket.h>

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/link/drop_unread.h"

namespace iris::server {
namespace {

// Returns false without a thread: irisd must not end because a user has taken all of the machine's.
bool StartDetached(std::function<void()> body) {
  try {
    std::thread(std::move(body)).detach();
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

}  // namespace

DeferredClose::DeferredClose(const Limits& limits, StartThread start_thread)
    : state_(std::make_shared<State>(
          limits, start_thread != nullptr ? std::move(start_thread) : StartDetached)) {}

void DeferredClose::SetHandOver(HandOver hand_over) {
  std::shared_ptr<const HandOver> shared;
  if (hand_over != nullptr) shared = std::make_shared<const HandOver>(std::move(hand_over));
  absl::MutexLock lock(&state_->mu);
  state_->hand_over.swap(shared);
}

std::optional<DeferredClose::Key> DeferredClose::NextWithoutThread(const State& state) {
  for (const auto& [key, queue] : state.queues) {
    if (!queue.has_thread && !queue.items.empty()) return key;
  }
  return std::nullopt;
}

void DeferredClose::Run(const std::shared_ptr<State>& state, Key key) {
  while (true) {
    Item next;
    {
      absl::MutexLock lock(&state->mu);
      const auto mine = state->queues.find(key);
      if (mine->second.items.empty()) {
        state->queues.erase(mine);
        const std::optional<Key> other = NextWithoutThread(*state);
        if (!other.has_value()) {
          --state->n_threads;
          return;
        }
        key = *other;
        state->queues[key].has_thread = true;
        continue;
      }
      next = std::move(mine->second.items.front());
      mine->second.items.pop_front();
      --(key.is_memory ? state->n_memory_waiting : state->n_waiting);
      if (!key.is_memory) ++state->n_being_closed;
    }
    // This may block for as long as the client likes.
    if (next.is_connection) DropAll(next.fd.get());
    next.fd.Reset();
    if (key.is_memory) continue;
    absl::MutexLock lock(&state->mu);
    --state->n_being_closed;
  }
}

void DeferredClose::Add(const Key& key, std::vector<wire::UniqueFd> fds, bool are_connections) {
  std::erase_if(fds, [](const wire::UniqueFd& fd) { return !fd.valid(); });
  if (fds.empty()) return;
  {
    absl::MutexLock lock(&state_->mu);
    (key.is_memory ? state_->n_memory_waiting : state_->n_waiting) += fds.size();
    std::deque<Item>& items = state_->queues[key].items;
    for (wire::UniqueFd& fd : fds) items.push_back({std::move(fd), are_connections});
  }
  StartThreadFor(key);
}

void DeferredClose::StartThreadFor(const std::optional<Key>& wanted) {
  std::optional<Key> key = wanted;
  {
    absl::MutexLock lock(&state_->mu);
    // Other queues may wait because no thread could be started for them.
    if (!key.has_value() || state_->queues[*key].has_thread) key = NextWithoutThread(*state_);
    if (!key.has_value() || state_->n_threads >= kMaxThreads) return;
    ++state_->n_threads;
    state_->queues[*key].has_thread = true;
  }
  if (state_->start_thread([state = state_, key = *key] { Run(state, key); })) return;
  absl::MutexLock lock(&state_->mu);
  --state_->n_threads;
  state_->queues[*key].has_thread = false;
}

bool DeferredClose::needs_thread() const {
  absl::MutexLock lock(&state_->mu);
  return state_->n_threads < kMaxThreads && NextWithoutThread(*state_).has_value();
}

void DeferredClose::CloseConnection(const Party& tenant, wire::UniqueFd socket) {
  if (!socket.valid()) return;
  // The peer can still read data that was sent to it.
  shutdown(socket.get(), SHUT_RDWR);
  DropPlain(socket.get());
  if (!HasUnread(socket.get())) return;
  std::shared_ptr<const HandOver> hand_over;
  {
    absl::MutexLock lock(&state_->mu);
    hand_over = state_->hand_over;
  }
  if (hand_over != nullptr && (*hand_over)(socket.get())) return;
  Add({/*is_memory=*/false, tenant}, Fds(std::move(socket)).all, /*are_connections=*/true);
}

absl::Status DeferredClose::RoomIn(const State& state, const Key& key, size_t n_waiting,
                                   absl::string_view what_they_are) {
  const Limits& limits = state.limits;
  const auto it = state.queues.find(key);
  const size_t of_tenant = it == state.queues.end() ? 0 : it->second.items.size();
  if (of_tenant >= limits.per_tenant) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "irisd waits for ", of_tenant, " descriptors of ", key.tenant.Text(),
        " to close, its limit for a user (see sessions.max_closing_per_tenant): ", what_they_are));
  }
  if (n_waiting < limits.total || of_tenant == 0) return absl::OkStatus();
  const size_t n_tenants = static_cast<size_t>(
      std::count_if(state.queues.begin(), state.queues.end(), [&key](const auto& queue) {
        return queue.first.is_memory == key.is_memory && !queue.second.items.empty();
      }));
  if (of_tenant < limits.total / n_tenants) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "irisd waits for ", n_waiting,
      " descriptors of all tenants to close, its limit (see sessions.max_closing), and ",
      key.tenant.Text(), " has ", of_tenant, " of them, its part: ", what_they_are));
}

absl::Status DeferredClose::Room(const Party& tenant) const {
  absl::MutexLock lock(&state_->mu);
  return RoomIn(*state_, {/*is_memory=*/false, tenant}, state_->n_waiting,
                "they are of connections in which descriptors were sent, of sockets that linger or "
                "of a file system that does not answer; end the program that sent them, or have "
                "its file system answer");
}

absl::Status DeferredClose::RoomForMemory(const Party& tenant) const {
  absl::MutexLock lock(&state_->mu);
  return RoomIn(*state_, {/*is_memory=*/true, tenant}, state_->n_waiting + state_->n_memory_waiting,
                "they are of memory that was registered, which the kernel or the devices' driver "
                "takes long to give back; connect again later");
}

size_t DeferredClose::n_waiting() const {
  absl::MutexLock lock(&state_->mu);
  return state_->n_waiting;
}

size_t DeferredClose::n_unclosed() const {
  absl::MutexLock lock(&state_->mu);
  return state_->n_waiting + state_->n_being_closed;
}

}  // namespace iris::server
