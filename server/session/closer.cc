#include "server/session/closer.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <thread>
#include <utility>

namespace iris::server {
namespace {

// Whether something that the peer sent is still there. It can send nothing more. An empty packet
// comes with its sender's credentials, the end of a connection without.
bool HasUnread(int socket) {
  char byte;
  struct iovec part = {&byte, 1};
  alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(struct ucred))];
  struct msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t n = recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  return n > 0 || (n == 0 && message.msg_controllen > 0);
}

}  // namespace

void Closer::Run(const std::shared_ptr<State>& state, const Tenant& tenant) {
  while (true) {
    wire::UniqueFd next;
    {
      absl::MutexLock lock(&state->mu);
      const auto mine = state->waiting.find(tenant);
      if (mine->second.empty()) {
        state->waiting.erase(mine);
        return;
      }
      next = std::move(mine->second.front());
      mine->second.pop_front();
    }
    next.Reset();  // for as long as it takes
  }
}

void Closer::Close(const Tenant& tenant, std::vector<wire::UniqueFd> fds) {
  if (fds.empty()) return;
  bool starts = false;
  {
    absl::MutexLock lock(&state_->mu);
    const auto [mine, is_new] = state_->waiting.try_emplace(tenant);
    starts = is_new;
    for (wire::UniqueFd& fd : fds) mine->second.push_back(std::move(fd));
  }
  if (!starts) return;
  std::thread([state = state_, tenant] { Run(state, tenant); }).detach();
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
  if (HasUnread(socket.get())) return Close(tenant, std::move(socket));
}

size_t Closer::n_waiting() const {
  absl::MutexLock lock(&state_->mu);
  size_t n = 0;
  for (const auto& [tenant, fds] : state_->waiting) n += fds.size();
  return n;
}

}  // namespace iris::server
