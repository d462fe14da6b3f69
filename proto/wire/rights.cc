#include "proto/wire/rights.h"

#include <cstring>

namespace iris::wire {

void AttachRights(absl::Span<const int> fds, char* control, struct msghdr* message) {
  if (fds.empty()) return;
  const size_t n_bytes = fds.size() * sizeof(int);
  message->msg_control = control;
  message->msg_controllen = CMSG_SPACE(n_bytes);
  struct cmsghdr* const header = CMSG_FIRSTHDR(message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(n_bytes);
  std::memcpy(CMSG_DATA(header), fds.data(), n_bytes);
}

void TakeRights(struct msghdr* message, std::vector<UniqueFd>* fds, struct ucred* sender) {
  for (struct cmsghdr* c = CMSG_FIRSTHDR(message); c != nullptr; c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET) continue;
    if (c->cmsg_type == SCM_RIGHTS) {
      const size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < n; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
        fds->emplace_back(fd);
      }
    } else if (sender != nullptr && c->cmsg_type == SCM_CREDENTIALS &&
               c->cmsg_len >= CMSG_LEN(sizeof(struct ucred))) {
      std::memcpy(sender, CMSG_DATA(c), sizeof(struct ucred));
    }
  }
}

}  // namespace iris::wire
