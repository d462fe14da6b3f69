#include "server/session/rpc_socket.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <utility>

namespace iris::server {

absl::StatusOr<RpcSocket> RpcSocket::Create(wire::UniqueFd* socket, Poller* poller,
                                            Connections* connections, Poller::Handler hung_up) {
  RpcSocket made;
  const absl::StatusOr<int> number = connections->DuplicateToFreshNumber(socket->get());
  if (!number.ok()) return number.status();
  made.for_rpc_.Reset(*number);
  made.rpc_fd_ = *number;
  absl::StatusOr<Poller::Watched> watched = poller->Watch(socket, EPOLLRDHUP, std::move(hung_up));
  if (!watched.ok()) return watched.status();
  made.socket_ = *std::move(watched);
  made.connections_ = connections;
  return made;
}

RpcSocket& RpcSocket::operator=(RpcSocket&& other) noexcept {
  std::swap(connections_, other.connections_);
  std::swap(socket_, other.socket_);
  std::swap(for_rpc_, other.for_rpc_);
  std::swap(rpc_fd_, other.rpc_fd_);
  std::swap(connection_id_, other.connection_id_);
  return *this;
}

void RpcSocket::Serve(SessionId session, const CallerInfo& caller,
                      const std::function<void(int)>& adopt) {
  connection_id_ = connections_->Add(rpc_fd_, session, caller);
  adopt(for_rpc_.Release());
}

void RpcSocket::Close() {
  if (!socket_.valid()) return;
  // In this order: a call that comes just now gets no answer, rather than a false one.
  shutdown(socket_.get(), SHUT_RDWR);
  connections_->Remove(rpc_fd_, connection_id_);
  socket_.Reset();
  for_rpc_.Reset();
}

}  // namespace iris::server
