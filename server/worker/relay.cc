#include "server/worker/relay.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "device/base/bytes.h"
#include "grpcpp/support/slice.h"
#include "proto/wire/frame.h"

namespace iris::server {
namespace {

// gRPC's descriptor numbers cycle through [kFirstFd, kLastFd), so that a late call is not
// attributed to a newer connection with the same number.
constexpr int kFirstFd = 64;
constexpr int kLastFd = 16000;

std::string ToString(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  std::string text;
  if (!bytes.Dump(&slices).ok()) return text;
  text.reserve(bytes.Length());
  for (const grpc::Slice& slice : slices) {
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return text;
}

}  // namespace

Relay::Relay(int link, int epoll, const Limits& limits)
    : link_(link), epoll_(epoll), limits_(limits) {}

absl::StatusOr<uint64_t> Relay::Open(uint64_t connection, Method method,
                                     const grpc::ByteBuffer& request,
                                     std::shared_ptr<RelayedCall> call) {
  std::string payload = ToString(request);
  absl::MutexLock lock(&mu_);
  if (!refusal_.ok()) return refusal_;
  const auto it = connections_.find(connection);
  if (it == connections_.end()) return absl::UnavailableError("the connection has ended");
  if (it->second.n_calls >= kMaxCallsPerConnection) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this connection has ", kMaxCallsPerConnection,
                     " calls open in irisd, the limit of one: wait for answers before you call"));
  }
  if (calls_.size() >= kMaxCallsPerWorker) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this user has ", kMaxCallsPerWorker,
                     " calls open in irisd, the limit of one: wait for answers before you call"));
  }
  if (writer_.queued_bytes() > limits_.max_queued_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        base::SizeText(writer_.queued_bytes()), " of this user's calls wait for irisd, at most ",
        base::SizeText(limits_.max_queued_bytes), " may: call again later"));
  }
  const uint64_t number = ++last_call_;
  calls_.emplace(number, Call{connection, std::move(call)});
  ++it->second.n_calls;
  Queue({.type = LinkType::kCall,
         .method = static_cast<uint16_t>(method),
         .connection = connection,
         .call = number},
        std::move(payload));
  return number;
}

void Relay::Cancel(uint64_t call) {
  std::shared_ptr<RelayedCall> listener;  // destroyed after the lock is released
  absl::MutexLock lock(&mu_);
  const auto it = calls_.find(call);
  if (it == calls_.end() || it->second.listener == nullptr) return;
  listener = std::move(it->second.listener);
  Queue({.type = LinkType::kCancel, .call = call}, {});
}

void Relay::Sent(uint64_t call) {
  absl::MutexLock lock(&mu_);
  if (calls_.count(call) != 0) Queue({.type = LinkType::kSent, .call = call}, {});
}

absl::Status Relay::HoldUnread(uint64_t connection, size_t bytes) {
  absl::MutexLock lock(&mu_);
  const auto it = connections_.find(connection);
  if (it == connections_.end()) return absl::UnavailableError("the connection has ended");
  const auto refuse = [bytes](size_t unread, size_t limit, const char* whose) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the answer of ", base::SizeText(bytes), " is dropped: ", base::SizeText(unread),
        " of answers to ", whose, " are not read, at most ", base::SizeText(limit),
        " may be: read them before you call again"));
  };
  if (it->second.unread_bytes + bytes > limits_.max_unread_bytes_per_connection) {
    return refuse(it->second.unread_bytes, limits_.max_unread_bytes_per_connection,
                  "this connection");
  }
  if (unread_bytes_ + bytes > limits_.max_unread_bytes) {
    return refuse(unread_bytes_, limits_.max_unread_bytes, "this user");
  }
  it->second.unread_bytes += bytes;
  unread_bytes_ += bytes;
  return absl::OkStatus();
}

void Relay::ReleaseUnread(uint64_t connection, size_t bytes) {
  absl::MutexLock lock(&mu_);
  unread_bytes_ -= bytes;
  const auto it = connections_.find(connection);
  if (it != connections_.end()) it->second.unread_bytes -= bytes;
}

uint64_t Relay::ConnectionOf(std::string_view peer) const {
  constexpr std::string_view kPrefix = "fd:";
  int fd = -1;
  if (peer.substr(0, kPrefix.size()) != kPrefix) return 0;
  peer.remove_prefix(kPrefix.size());
  if (!absl::SimpleAtoi(absl::string_view(peer.data(), peer.size()), &fd)) return 0;
  absl::MutexLock lock(&mu_);
  const auto it = connection_by_fd_.find(fd);
  return it == connection_by_fd_.end() ? 0 : it->second;
}

absl::StatusOr<int> Relay::Connect(uint64_t connection, wire::UniqueFd socket) {
  absl::MutexLock lock(&mu_);
  if (next_fd_ < kFirstFd || next_fd_ >= kLastFd) next_fd_ = kFirstFd;
  int for_rpc = fcntl(socket.get(), F_DUPFD_CLOEXEC, next_fd_);
  // If no number above is free, starts again from the bottom.
  if (for_rpc < 0) for_rpc = fcntl(socket.get(), F_DUPFD_CLOEXEC, kFirstFd);
  if (for_rpc < 0) return wire::ErrnoStatus(errno, "duplicate the socket of a connection");
  next_fd_ = for_rpc + 1;
  struct epoll_event event = {};
  event.events = EPOLLRDHUP;
  event.data.u64 = connection;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, socket.get(), &event) != 0) {
    const int error = errno;
    close(for_rpc);
    return wire::ErrnoStatus(error, "watch the socket of a connection");
  }
  connection_by_fd_[for_rpc] = connection;
  Connection& added = connections_[connection];
  added.socket = std::move(socket);
  added.rpc_fd = for_rpc;
  return for_rpc;
}

void Relay::Disconnect(uint64_t connection) {
  std::vector<std::shared_ptr<RelayedCall>> listeners;  // destroyed after the lock is released
  wire::UniqueFd socket;
  absl::MutexLock lock(&mu_);
  const auto it = connections_.find(connection);
  if (it == connections_.end()) return;
  socket = std::move(it->second.socket);
  (void)epoll_ctl(epoll_, EPOLL_CTL_DEL, socket.get(), nullptr);
  shutdown(socket.get(), SHUT_RDWR);
  // gRPC may have closed its duplicate, and another connection may have the number now.
  const auto by_fd = connection_by_fd_.find(it->second.rpc_fd);
  if (by_fd != connection_by_fd_.end() && by_fd->second == connection)
    connection_by_fd_.erase(by_fd);
  const bool has_calls = it->second.n_calls > 0;
  connections_.erase(it);
  for (auto call = calls_.begin(); has_calls && call != calls_.end();) {
    if (call->second.connection != connection) {
      ++call;
      continue;
    }
    listeners.push_back(std::move(call->second.listener));
    call = calls_.erase(call);
  }
  Queue({.type = LinkType::kClosed, .connection = connection}, {});
}

void Relay::DisconnectAll() {
  std::vector<uint64_t> numbers;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [number, connection] : connections_) numbers.push_back(number);
  }
  for (const uint64_t number : numbers) Disconnect(number);
}

void Relay::DeliverMessage(uint64_t call, std::string_view payload) {
  std::shared_ptr<RelayedCall> listener;
  {
    absl::MutexLock lock(&mu_);
    const auto it = calls_.find(call);
    if (it != calls_.end()) listener = it->second.listener;
  }
  if (listener != nullptr) listener->OnMessage(payload);
}

void Relay::DeliverFinish(uint64_t call, const absl::Status& status) {
  std::shared_ptr<RelayedCall> listener;
  {
    absl::MutexLock lock(&mu_);
    const auto it = calls_.find(call);
    if (it == calls_.end()) return;
    listener = std::move(it->second.listener);
    const auto connection = connections_.find(it->second.connection);
    if (connection != connections_.end()) --connection->second.n_calls;
    calls_.erase(it);
  }
  if (listener != nullptr) listener->OnFinish(status);
}

void Relay::Send(LinkHeader header, std::string payload) {
  absl::MutexLock lock(&mu_);
  Queue(header, std::move(payload));
}

void Relay::OnLinkWritable() {
  absl::MutexLock lock(&mu_);
  Flush();
}

void Relay::FinishAll(const absl::Status& why) {
  std::unordered_map<uint64_t, Call> calls;
  {
    absl::MutexLock lock(&mu_);
    refusal_ = why;
    calls.swap(calls_);
    for (auto& [number, connection] : connections_) connection.n_calls = 0;
  }
  for (auto& [number, call] : calls) {
    if (call.listener != nullptr) call.listener->OnFinish(why);
  }
}

void Relay::Queue(LinkHeader header, std::string payload) {
  if (broken_) return;
  writer_.Queue(header, {std::move(payload), nullptr});
  if (!waits_for_link_) Flush();
}

void Relay::Flush() {
  if (broken_) return;
  const absl::StatusOr<LinkWriter::Flushed> flushed = writer_.Flush(link_);
  broken_ = !flushed.ok();  // the worker's thread detects the end of the link itself
  const bool wait = flushed.ok() && *flushed != LinkWriter::Flushed::kAll;
  if (wait == waits_for_link_) return;
  waits_for_link_ = wait;
  struct epoll_event event = {};
  event.events = wait ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u64 = kLinkToken;
  (void)epoll_ctl(epoll_, EPOLL_CTL_MOD, link_, &event);
}

}  // namespace iris::server
