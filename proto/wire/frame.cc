#include "proto/wire/frame.h"

#include <errno.h>
#include <sys/uio.h>

#include <algorithm>
#include <initializer_list>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "device/base/posix.h"
#include "proto/status/code.h"

namespace iris::wire {
namespace {

constexpr char kNoFrameYet[] = "no frame yet on the session socket";
constexpr uint32_t kMaxDescriptors = std::max(kMaxDescriptorsPerCall, kMaxDescriptorsPerFrame);
// The kernel's limit for a packet: it would close descriptors that do not fit, while we wait.
constexpr size_t kMaxSent = 253;
constexpr size_t kControlBytes =
    CMSG_SPACE(sizeof(int) * kMaxSent) + CMSG_SPACE(sizeof(struct ucred));

// Takes ownership of descriptors, and copies credentials.
void TakeControl(struct msghdr* message, Frame* frame) {
  for (struct cmsghdr* c = CMSG_FIRSTHDR(message); c != nullptr; c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET) continue;
    if (c->cmsg_type == SCM_RIGHTS) {
      const size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < n; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
        frame->fds.emplace_back(fd);
      }
    } else if (c->cmsg_type == SCM_CREDENTIALS && c->cmsg_len >= CMSG_LEN(sizeof(struct ucred))) {
      std::memcpy(&frame->sender, CMSG_DATA(c), sizeof(struct ucred));
    }
  }
}

bool KnownType(uint16_t type) {
  return type >= static_cast<uint16_t>(FrameType::kHello) &&
         type <= static_cast<uint16_t>(FrameType::kRestartSeen);
}

}  // namespace

absl::Status SendFrame(int socket, FrameType type, absl::Span<const uint8_t> head,
                       std::string_view tail, absl::Span<const int> fds) {
  const size_t n_bytes = head.size() + tail.size();
  if (n_bytes > kMaxPayloadBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "send session frame: ", n_bytes, " bytes of payload; at most ", kMaxPayloadBytes));
  }
  if (fds.size() > kMaxDescriptors) {
    return absl::InvalidArgumentError(absl::StrCat("send session frame: ", fds.size(),
                                                   " descriptors; at most ", kMaxDescriptors));
  }
  FrameHeader header;
  header.type = static_cast<uint16_t>(type);
  header.payload_bytes = static_cast<uint32_t>(n_bytes);
  struct iovec parts[3] = {{&header, sizeof(header)},
                           {const_cast<uint8_t*>(head.data()), head.size()},
                           {const_cast<char*>(tail.data()), tail.size()}};
  struct msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = !tail.empty() ? 3 : !head.empty() ? 2 : 1;
  alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptors)] = {};
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    struct cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(c), fds.data(), sizeof(int) * fds.size());
  }
  const ssize_t sent =
      base::Retry([&] { return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT); });
  if (sent >= 0) return absl::OkStatus();
  const int error = errno;
  if (error == EAGAIN || error == EWOULDBLOCK || error == ETOOMANYREFS || error == ENOBUFS ||
      error == ENOMEM) {
    return absl::ResourceExhaustedError(
        absl::StrCat("send session frame: the peer's queue is full (",
                     std::generic_category().message(error), ")"));
  }
  return ErrnoStatus(error, "send session frame");
}

namespace {

// Like ReceiveFrame; descriptors are in *frame also after an error.
absl::Status Receive(int socket, Frame* frame) {
  // One byte more than the largest frame. Longer packets are also seen by MSG_TRUNC.
  alignas(FrameHeader) uint8_t bytes[sizeof(FrameHeader) + kMaxPayloadBytes + 1];
  alignas(struct cmsghdr) char control[kControlBytes];
  struct iovec part = {bytes, sizeof(bytes)};
  struct msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t received;
  // A peer that closes with unread data of ours resets the connection. The kernel reports that
  // once, before the peer's last message, so this reads again.
  bool reset = false;
  for (;;) {
    received = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (received >= 0 || (errno != EINTR && (errno != ECONNRESET || reset))) break;
    reset = errno == ECONNRESET;
  }
  if (received < 0) {
    const int error = errno;
    if (error == EAGAIN || error == EWOULDBLOCK) return absl::FailedPreconditionError(kNoFrameYet);
    return ErrnoStatus(error, "receive session frame");
  }
  TakeControl(&message, frame);
  if (received == 0 && message.msg_controllen == 0) {
    return absl::UnavailableError("the peer closed the session socket");
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0 || frame->fds.size() > kMaxDescriptors) {
    return absl::InvalidArgumentError(
        absl::StrCat("session frame: its descriptors did not all arrive: more than ",
                     kMaxDescriptors, " were sent, or this process has none left (see ulimit -n)"));
  }
  const size_t n_bytes = static_cast<size_t>(received);
  if ((message.msg_flags & MSG_TRUNC) != 0 || n_bytes > sizeof(FrameHeader) + kMaxPayloadBytes) {
    return absl::InvalidArgumentError(absl::StrCat("session frame is longer than the limit of ",
                                                   sizeof(FrameHeader) + kMaxPayloadBytes,
                                                   " bytes"));
  }
  if (n_bytes < sizeof(FrameHeader)) {
    return absl::InvalidArgumentError(absl::StrCat("session frame of ", n_bytes,
                                                   " bytes is shorter than its header of ",
                                                   sizeof(FrameHeader), " bytes"));
  }
  FrameHeader header;
  std::memcpy(&header, bytes, sizeof(header));
  if (header.magic != kMagic) {
    return absl::InvalidArgumentError("session frame does not start with the magic number of Iris");
  }
  if (header.version != kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("session frame of protocol version ",
                                                      header.version, "; this side speaks version ",
                                                      kVersion, ": install matching versions"));
  }
  if (!KnownType(header.type)) {
    return absl::InvalidArgumentError(absl::StrCat("session frame of unknown type ", header.type));
  }
  if (header.payload_bytes != n_bytes - sizeof(FrameHeader)) {
    return absl::InvalidArgumentError(absl::StrCat("session frame announces ", header.payload_bytes,
                                                   " bytes of payload and has ",
                                                   n_bytes - sizeof(FrameHeader)));
  }
  frame->type = static_cast<FrameType>(header.type);
  frame->payload.assign(bytes + sizeof(FrameHeader), bytes + n_bytes);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Frame> ReceiveFrame(int socket, std::vector<UniqueFd>* refused) {
  Frame frame;
  const absl::Status status = Receive(socket, &frame);
  if (status.ok()) return frame;
  if (refused != nullptr) *refused = std::move(frame.fds);
  return status;
}

bool IsNoFrameYet(const absl::Status& status) {
  return status.code() == absl::StatusCode::kFailedPrecondition && status.message() == kNoFrameYet;
}

ErrorPayload MakeErrorPayload(const absl::Status& status) {
  ErrorPayload payload;
  payload.code = proto::NumberOf(status.code());
  const size_t n = std::min(status.message().size(), kMaxErrorTextBytes);
  payload.text_bytes = static_cast<uint32_t>(n);
  if (n > 0) std::memcpy(payload.text, status.message().data(), n);
  return payload;
}

absl::Status StatusFromErrorPayload(const ErrorPayload& payload) {
  const size_t n = std::min<size_t>(payload.text_bytes, kMaxErrorTextBytes);
  // An error is never OK, whatever it says.
  const absl::StatusCode code =
      payload.code != 0 ? proto::CodeOf(payload.code) : absl::StatusCode::kUnknown;
  return absl::Status(code, absl::string_view(payload.text, n));
}

absl::Status ErrnoStatus(int error, std::string_view what) {
  const auto is_one_of = [error](std::initializer_list<int> all) {
    return std::find(all.begin(), all.end(), error) != all.end();
  };
  absl::StatusCode code = absl::ErrnoToStatusCode(error);
  if (is_one_of({EPIPE, ECONNRESET, ECONNREFUSED, ECONNABORTED, ENOTCONN})) {
    code = absl::StatusCode::kUnavailable;
  } else if (is_one_of({EMFILE, ENFILE, ENOMEM, ENOSPC, EDQUOT, ENOBUFS, ETOOMANYREFS})) {
    code = absl::StatusCode::kResourceExhausted;
  } else if (is_one_of({EACCES, EPERM, EROFS})) {
    code = absl::StatusCode::kPermissionDenied;
  } else if (error == EADDRINUSE) {
    code = absl::StatusCode::kAlreadyExists;
  } else if (is_one_of({ENOSYS, EOPNOTSUPP})) {
    code = absl::StatusCode::kUnimplemented;
  } else if (error == 0) {
    code = absl::StatusCode::kUnknown;  // a caller's bug must not make an error a success
  }
  return absl::Status(
      code, absl::StrCat(absl::string_view(what.data(), what.size()), ": ",
                         error == 0 ? "unknown error" : std::generic_category().message(error)));
}

}  // namespace iris::wire
