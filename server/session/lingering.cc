#include "server/session/lingering.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <utility>

namespace iris::server {

bool AllReceived(int socket) {
  int unread_bytes = 0;
  return ioctl(socket, SIOCOUTQ, &unread_bytes) == 0 && unread_bytes == 0;
}

void Lingering::Add(wire::UniqueFd socket, InFlight::Hold share) {
  shutdown(socket.get(), SHUT_RDWR);  // the peer still reads what was sent, and then the end
  ended_.push_back({std::move(socket), std::move(share)});
}

void Lingering::Sweep() {
  std::erase_if(ended_, [](const Ended& ended) { return AllReceived(ended.socket.get()); });
  if (ended_.empty()) ended_.shrink_to_fit();
}

}  // namespace iris::server
