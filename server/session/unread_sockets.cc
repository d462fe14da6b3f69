#include "server/session/unread_sockets.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <utility>

namespace iris::server {

bool AllReceived(int socket) {
  int unread_bytes = 0;
  return ioctl(socket, SIOCOUTQ, &unread_bytes) == 0 && unread_bytes == 0;
}

void UnreadSockets::Add(const Party& tenant, wire::UniqueFd socket, InFlight::Hold share) {
  shutdown(socket.get(), SHUT_RDWR);  // the peer still reads what was sent, and then the end
  ended_.push_back({tenant, std::move(socket), std::move(share)});
}

void UnreadSockets::Sweep() {
  std::erase_if(ended_, [this](Ended& ended) {
    if (!AllReceived(ended.socket.get())) return false;
    closer_->CloseConnection(ended.tenant, std::move(ended.socket));
    return true;
  });
  if (ended_.empty()) ended_.shrink_to_fit();
}

void UnreadSockets::Clear() {
  for (Ended& ended : ended_) closer_->CloseConnection(ended.tenant, std::move(ended.socket));
  ended_.clear();
}

}  // namespace iris::server
