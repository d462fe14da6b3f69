#include "proto/wire/frame.h"

#include <errno.h>

#include <algorithm>
#include <initializer_list>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/status/code.h"
#include "proto/wire/rights.h"

namespace iris::wire {
namespace {

constexpr char kNoFrameYet[] = "no frame yet on the session socket";
constexpr uint32_t kMaxDescriptors = kMaxDescriptorsPerCall;
static_assert(kMaxDescriptors >= kMaxDescriptorsPerFrame);
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
  const size_t n_parts = !tail.empty() ? 3 : !head.empty() ? 2 : 1;
  const ssize_t sent = SendRights(socket, {parts, n_parts}, fds, MSG_NOSIGNAL | MSG_DONTWAIT);
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
  Rights rights;
  ssize_t received;
  // A peer that closes with unread data of ours resets the connection. The kernel reports that
  // once, before the peer's last message, so this reads again.
  for (bool reset = false;; reset = true) {
    received = ReceiveRights(socket, bytes, sizeof(bytes), MSG_DONTWAIT, &rights);
    if (received >= 0 || errno != ECONNRESET || reset) break;
  }
  if (received < 0) {
    const int error = errno;
    if (error == EAGAIN || error == EWOULDBLOCK) return absl::FailedPreconditionError(kNoFrameYet);
    return ErrnoStatus(error, "receive session frame");
  }
  frame->fds = std::move(rights.fds);
  frame->sender = rights.sender;
  if (received == 0 && frame->fds.empty() && frame->sender.pid == 0) {
    return absl::UnavailableError("the peer closed the session socket");
  }
  if ((rights.flags & MSG_CTRUNC) != 0 || frame->fds.size() > kMaxDescriptors) {
    return absl::InvalidArgumentError(
        absl::StrCat("session frame: its descriptors did not all arrive: more than ",
                     kMaxDescriptors, " were sent, or this process has none left (see ulimit -n)"));
  }
  const size_t n_bytes = static_cast<size_t>(received);
  if ((rights.flags & MSG_TRUNC) != 0 || n_bytes > sizeof(FrameHeader) + kMaxPayloadBytes) {
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
  // An error is never OK, even with a code of 0.
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
