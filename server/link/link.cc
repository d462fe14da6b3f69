#include "server/link/link.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/frame.h"
#include "proto/wire/rights.h"
#include "server/link/drop_unread.h"

namespace iris::server {
namespace {

constexpr size_t kReceiveBytes = 64 << 10;  // at a time
constexpr size_t kKeptBytes = 16 << 10;     // size that an empty buffer keeps
constexpr int kMaxPieces = 48;              // of one writev
constexpr size_t kMaxPortBytes = 16 << 10;  // of messages with a port that have no list

absl::Status Bad(const LinkHeader& header, std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("link message of type ", static_cast<int>(header.type), " with ", header.bytes,
                   " bytes: ", absl::string_view(what.data(), what.size())));
}

// Lists the fields that a message of each type may have.
struct Shape {
  LinkType type;
  LinkSender sender;
  size_t max_bytes = 0;
  bool connection = false;
  bool call = false;
  bool method = false;
  bool code = false;
  uint32_t most_fds = 0;
};
constexpr Shape kShapes[] = {
    {LinkType::kConnect, LinkSender::kCore, 0, /*connection=*/true, false, false, false,
     /*most_fds=*/1},
    {LinkType::kDisconnect, LinkSender::kCore, 0, /*connection=*/true},
    {LinkType::kMessage, LinkSender::kCore, wire::kMaxRpcBytes, false, /*call=*/true},
    {LinkType::kFinish, LinkSender::kCore, wire::kMaxErrorTextBytes, false, /*call=*/true,
     /*method=*/false, /*code=*/true},
    {LinkType::kStop, LinkSender::kCore},
    {LinkType::kPing, LinkSender::kCore},
    {LinkType::kReady, LinkSender::kWorker, kMaxReadyBytes},
    {LinkType::kCall, LinkSender::kWorker, wire::kMaxRpcBytes, /*connection=*/true, /*call=*/true,
     /*method=*/true},
    {LinkType::kCancel, LinkSender::kWorker, 0, false, /*call=*/true},
    {LinkType::kSent, LinkSender::kWorker, 0, false, /*call=*/true},
    {LinkType::kClosed, LinkSender::kWorker, 0, /*connection=*/true},
    {LinkType::kPong, LinkSender::kWorker},
    {LinkType::kPortSetup, LinkSender::kCore, kMaxPortBytes, false, false, false, false, 1},
    {LinkType::kPortMemory, LinkSender::kCore, kMaxPortBytes, false, false, false, false, 1},
    {LinkType::kPortRank, LinkSender::kCore, kMaxPortBytes, false, false, false, false, 1},
    {LinkType::kPortLayout, LinkSender::kCore, wire::kMaxRpcBytes},
    {LinkType::kPortToNode, LinkSender::kCore, wire::kMaxRpcBytes},
    {LinkType::kPortResume, LinkSender::kCore, wire::kMaxRpcBytes},
    {LinkType::kPortTook, LinkSender::kCore, kMaxPortBytes},
    {LinkType::kPortTook, LinkSender::kPort, kMaxPortBytes},
    {LinkType::kPortReady, LinkSender::kPort, kMaxPortBytes},
    {LinkType::kPortFromNode, LinkSender::kPort, wire::kMaxRpcBytes},
    {LinkType::kPortNode, LinkSender::kPort, kMaxPortBytes},
    {LinkType::kPortFailed, LinkSender::kPort, kMaxPortBytes},
    {LinkType::kPortReport, LinkSender::kPort, wire::kMaxRpcBytes},
};

}  // namespace

absl::StatusOr<LinkReader::Received> LinkReader::Receive(int socket) {
  bytes_.erase(0, std::exchange(begin_, 0));
  if (bytes_.empty() && bytes_.capacity() > kKeptBytes) bytes_.shrink_to_fit();
  char buffer[kReceiveBytes];
  size_t n_bytes = sizeof(buffer);
  if (sender_ != LinkSender::kCore) {
    switch (NextOf(socket, buffer, &n_bytes)) {
      case server::Next::kPlain:
        break;
      case server::Next::kNothing:
        return Received::kNothingYet;
      case server::Next::kDescriptors:
        return absl::InvalidArgumentError(
            "the other end sent descriptors, which it has no reason to");
      case server::Next::kEnd:
      case server::Next::kFailed:
        return absl::UnavailableError("the other end of the link has closed");
    }
  }
  wire::Rights rights;
  const ssize_t n = wire::ReceiveRights(socket, buffer, n_bytes, MSG_DONTWAIT, &rights);
  if (n < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Received::kNothingYet;
    if (errno == ECONNRESET) return absl::UnavailableError("the other end of the link has closed");
    return wire::ErrnoStatus(errno, "receive from the link");
  }
  std::move(rights.fds.begin(), rights.fds.end(), std::back_inserter(fds_));
  if (n == 0) return absl::UnavailableError("the other end of the link has closed");
  bytes_.append(buffer, static_cast<size_t>(n));
  return Received::kSome;
}

absl::Status LinkReader::Check(const LinkHeader& header) const {
  for (const Shape& shape : kShapes) {
    if (shape.type != header.type || shape.sender != sender_) continue;
    if (header.bytes > shape.max_bytes) {
      return Bad(header, absl::StrCat("its type carries at most ", shape.max_bytes));
    }
    if (shape.connection != (header.connection != 0)) return Bad(header, "its connection is wrong");
    if (shape.call != (header.call != 0)) return Bad(header, "its call is wrong");
    if (shape.method != (header.method != 0)) return Bad(header, "its method is wrong");
    const bool has_fd = header.type != LinkType::kConnect || header.n_fds == 1;
    if ((!shape.code && header.code != 0) || header.n_fds > shape.most_fds || !has_fd) {
      return Bad(header, "a field that its type does not have is not zero");
    }
    return absl::OkStatus();
  }
  return Bad(header, sender_ == LinkSender::kWorker ? "a worker does not send that"
                     : sender_ == LinkSender::kPort ? "a port does not send that"
                                                    : "the core does not send that");
}

absl::StatusOr<std::optional<LinkMessage>> LinkReader::Next() {
  const size_t left = bytes_.size() - begin_;
  LinkMessage message;
  if (left < sizeof(message.header)) return std::nullopt;
  memcpy(&message.header, bytes_.data() + begin_, sizeof(message.header));
  const absl::Status checked = Check(message.header);
  if (!checked.ok()) return checked;
  if (left - sizeof(message.header) < message.header.bytes) return std::nullopt;
  if (message.header.n_fds == 1) {
    if (fds_.empty()) return Bad(message.header, "no descriptor came with it");
    message.fd = std::move(fds_.front());
    fds_.erase(fds_.begin());
  }
  message.payload =
      std::string_view(bytes_).substr(begin_ + sizeof(message.header), message.header.bytes);
  begin_ += sizeof(message.header) + message.header.bytes;
  return message;
}

void LinkWriter::Queue(LinkHeader header, LinkPayload payload, wire::UniqueFd fd) {
  header.bytes = static_cast<uint32_t>(payload.size());
  header.n_fds = fd.valid() ? 1 : 0;
  queue_.push_back({header, std::move(payload), std::move(fd)});
  queued_bytes_ += queue_.back().size();
}

bool LinkWriter::Withdraw(uint64_t connection, wire::UniqueFd* fd) {
  const auto begin = queue_.begin() + (written_ > 0 && !queue_.empty() ? 1 : 0);
  // Searches from the back, because withdrawn connections are often recent.
  for (auto it = queue_.end(); it != begin;) {
    --it;
    if (it->header.type != LinkType::kConnect || it->header.connection != connection) {
      continue;
    }
    queued_bytes_ -= it->size();
    *fd = std::move(it->fd);
    queue_.erase(it);
    return true;
  }
  return false;
}

std::vector<wire::UniqueFd> LinkWriter::Clear() {
  std::vector<wire::UniqueFd> fds;
  for (Item& item : queue_) {
    if (item.fd.valid()) fds.push_back(std::move(item.fd));
  }
  *this = LinkWriter();
  return fds;
}

absl::StatusOr<LinkWriter::Flushed> LinkWriter::Flush(int socket,
                                                      std::vector<wire::UniqueFd>* sent) {
  while (!queue_.empty()) {
    struct iovec pieces[kMaxPieces];
    size_t n_pieces = 0;
    size_t skip = written_;
    const auto add = [&](const void* data, size_t n) {
      const size_t skipped = std::min(skip, n);
      skip -= skipped;
      if (n == skipped) return;
      pieces[n_pieces++] = {static_cast<char*>(const_cast<void*>(data)) + skipped, n - skipped};
    };
    for (size_t i = 0; i < queue_.size() && n_pieces + 3 <= kMaxPieces; ++i) {
      const Item& item = queue_[i];
      if (i > 0 && item.fd.valid()) break;  // a descriptor goes with the first byte of a call
      add(&item.header, sizeof(item.header));
      add(item.payload.head.data(), item.payload.head.size());
      if (item.payload.tail != nullptr) {
        add(item.payload.tail->data(), item.payload.tail->size());
      }
      if (item.fd.valid()) break;
    }
    const int fd = queue_.front().fd.get();
    const ssize_t n = wire::SendRights(socket, {pieces, n_pieces}, {&fd, fd >= 0 ? 1u : 0u},
                                       MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Flushed::kBlocked;
      if (errno == ETOOMANYREFS || errno == ENOBUFS || errno == ENOMEM) {
        return Flushed::kNoDescriptors;
      }
      if (errno == EPIPE || errno == ECONNRESET) {
        return absl::UnavailableError("the other end of the link has closed");
      }
      return wire::ErrnoStatus(errno, "send to the link");
    }
    if (sent != nullptr && queue_.front().fd.valid()) sent->push_back(std::move(queue_.front().fd));
    queue_.front().fd.Reset();
    Written(static_cast<size_t>(n));
  }
  return Flushed::kAll;
}

void LinkWriter::Written(size_t n) {
  written_ += n;
  while (!queue_.empty() && written_ >= queue_.front().size()) {
    const size_t size = queue_.front().size();
    written_ -= size;
    queued_bytes_ -= size;
    queue_.pop_front();
  }
}

}  // namespace iris::server
