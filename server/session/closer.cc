#include "server/session/closer.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <system_error>
#include <thread>
#include <utility>

namespace iris::server {
namespace {

// A look at what the peer sent first. It takes no copy of descriptors: closing one may wait, too.
struct Look {
  bool unread = false;       // there is something. The peer can send nothing more
  bool descriptors = false;  // that brings some
};
Look LookAt(int socket) {
  int credentials = 0;
  socklen_t bytes = sizeof(credentials);
  (void)getsockopt(socket, SOL_SOCKET, SO_PASSCRED, &credentials, &bytes);
  char byte;
  struct iovec part = {&byte, 1};
  alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(struct ucred))];
  struct msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  // Room for what comes with every packet of this socket, and for no descriptor.
  message.msg_controllen = credentials != 0 ? sizeof(control) : CMSG_LEN(0);
  const ssize_t n = recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  Look look;
  look.descriptors = n >= 0 && (message.msg_flags & MSG_CTRUNC) != 0;
  // An empty packet comes with its sender's credentials, the end of a connection without.
  look.unread = n > 0 || (n == 0 && (message.msg_controllen > 0 || look.descriptors));
  return look;
}

bool HasUnread(int socket) { return LookAt(socket).unread; }

// Takes out what the peer sent, up to the first packet that brings descriptors: none of it takes
// long to let go of. Streams are left as they are: one read could reach behind a descriptor.
void DropPlainPackets(int socket) {
  int type = 0;
  socklen_t bytes = sizeof(type);
  if (getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &bytes) != 0 || type != SOCK_SEQPACKET) return;
  constexpr int kMost = 1024;  // more than a socket's queue holds, as systems are set
  for (int i = 0; i < kMost; ++i) {
    const Look look = LookAt(socket);
    char byte;
    if (!look.unread || look.descriptors || recv(socket, &byte, 1, MSG_DONTWAIT) < 0) return;
  }
}

// irisd must not end because a user has taken all threads of the machine.
bool StartDetached(std::function<void()> body) {
  try {
    std::thread(std::move(body)).detach();
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

}  // namespace

Closer::Closer(size_t max_per_tenant, StartThread start_thread)
    : state_(std::make_shared<State>(
          max_per_tenant, start_thread != nullptr ? std::move(start_thread) : StartDetached)) {}

std::optional<Tenant> Closer::NextWithoutThread(const State& state) {
  for (const auto& [tenant, queue] : state.queues) {
    if (!queue.has_thread && !queue.fds.empty()) return tenant;
  }
  return std::nullopt;
}

void Closer::Run(const std::shared_ptr<State>& state, Tenant tenant) {
  while (true) {
    wire::UniqueFd next;
    {
      absl::MutexLock lock(&state->mu);
      const auto mine = state->queues.find(tenant);
      if (mine->second.fds.empty()) {
        state->queues.erase(mine);
        const std::optional<Tenant> other = NextWithoutThread(*state);
        if (!other.has_value()) {
          --state->n_threads;
          return;
        }
        tenant = *other;
        state->queues[tenant].has_thread = true;
        continue;
      }
      next = std::move(mine->second.fds.front());
      mine->second.fds.pop_front();
    }
    next.Reset();  // for as long as it takes
  }
}

void Closer::Close(const Tenant& tenant, std::vector<wire::UniqueFd> fds) {
  if (fds.empty()) return;
  std::optional<Tenant> starts;
  {
    absl::MutexLock lock(&state_->mu);
    Queue& queue = state_->queues[tenant];
    for (wire::UniqueFd& fd : fds) queue.fds.push_back(std::move(fd));
    // It may be one for whom there was no thread before.
    if (state_->n_threads < kMaxThreads) {
      starts = queue.has_thread ? NextWithoutThread(*state_) : tenant;
    }
    if (!starts.has_value()) return;
    ++state_->n_threads;
    state_->queues[*starts].has_thread = true;
  }
  if (state_->start_thread([state = state_, who = *starts] { Run(state, who); })) return;
  absl::MutexLock lock(&state_->mu);
  --state_->n_threads;
  state_->queues[*starts].has_thread = false;
}

void Closer::Close(const Tenant& tenant, wire::UniqueFd fd) {
  if (!fd.valid()) return;
  std::vector<wire::UniqueFd> one;
  one.push_back(std::move(fd));
  Close(tenant, std::move(one));
}

void Closer::CloseConnection(const Tenant& tenant, wire::UniqueFd socket) {
  if (!socket.valid()) return;
  // What the peer has not read yet it still can.
  shutdown(socket.get(), SHUT_RDWR);
  DropPlainPackets(socket.get());
  if (HasUnread(socket.get())) return Close(tenant, std::move(socket));
}

bool Closer::IsFull(const Tenant& tenant) const {
  absl::MutexLock lock(&state_->mu);
  const auto it = state_->queues.find(tenant);
  return it != state_->queues.end() && it->second.fds.size() >= state_->max_per_tenant;
}

size_t Closer::n_waiting() const {
  absl::MutexLock lock(&state_->mu);
  size_t n = 0;
  for (const auto& [tenant, queue] : state_->queues) n += queue.fds.size();
  return n;
}

}  // namespace iris::server
