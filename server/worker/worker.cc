#include "server/worker/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <sys/epoll.h>

#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/server_posix.h"
#include "proto/status/code.h"
#include "proto/wire/frame.h"
#include "proto/wire/limits.h"
#include "proto/wire/version.h"

namespace iris::server {
namespace {

// Only the reflection service needs these threads.
constexpr int kMaxSyncThreads = 4;
constexpr int kEventsAtOnce = 64;
constexpr auto kStopWithin = absl::Seconds(1);
constexpr auto kEndWithin = absl::Milliseconds(200);
// gRPC continues to free memory for a while after the last event.
constexpr auto kTrimEvery = absl::Seconds(3);
constexpr int kTrims = 8;
constexpr size_t kTrimBytes = 4 << 20;  // less is not worth a pass through the heap

Relay::Limits LimitsFor(uint64_t memory_bytes) {
  Relay::Limits limits;
  limits.max_queued_bytes = memory_bytes / 8;
  limits.max_unread_bytes_per_connection = memory_bytes / 4;
  limits.max_unread_bytes = memory_bytes / 2;
  return limits;
}

}  // namespace

Worker::Worker(wire::UniqueFd link, wire::UniqueFd epoll, const Relay::Limits& limits,
               const Logger* logger)
    : logger_(logger),
      epoll_(std::move(epoll)),
      link_(std::move(link)),
      relay_(link_.get(), epoll_.get(), limits) {}

absl::StatusOr<std::unique_ptr<Worker>> Worker::Create(wire::UniqueFd link, uint64_t memory_bytes,
                                                       const Logger* logger) {
  wire::UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return wire::ErrnoStatus(errno, "make the worker's epoll descriptor");
  struct epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = Relay::kLinkToken;
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, link.get(), &event) != 0) {
    return wire::ErrnoStatus(errno, "watch the link to irisd");
  }
  std::unique_ptr<Worker> worker(
      new Worker(std::move(link), std::move(epoll), LimitsFor(memory_bytes), logger));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  builder.RegisterService(&worker->heap_);
  builder.RegisterService(&worker->admin_);
  builder.SetMaxReceiveMessageSize(static_cast<int>(wire::kMaxRpcBytes));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxCallsPerConnection);
  builder.AddChannelArgument(GRPC_ARG_TCP_READ_CHUNK_SIZE, 4096);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_CHANNELZ, 0);
  // Limits the memory of partly received messages, over all connections.
  grpc::ResourceQuota quota("irisd-worker");
  quota.SetMaxThreads(kMaxSyncThreads);
  quota.Resize(memory_bytes / 2);
  builder.SetResourceQuota(quota);
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 1);
  worker->server_ = builder.BuildAndStart();
  if (worker->server_ == nullptr) return absl::InternalError("start the gRPC server");
  return worker;
}

Worker::~Worker() { End(absl::UnavailableError("irisd ends"), absl::ZeroDuration()); }

absl::Status Worker::Run() {
  relay_.Send({.type = LinkType::kReady}, wire::kIrisVersion);
  absl::Status status;
  while (status.ok()) {
    struct epoll_event events[kEventsAtOnce];
    const int n = epoll_wait(epoll_.get(), events, kEventsAtOnce, TrimMemory());
    if (n < 0 && errno != EINTR) {
      status = wire::ErrnoStatus(errno, "wait for the link to irisd");
      break;
    }
    if (n > 0) {
      if (trims_left_ == 0) trim_at_ = absl::Now() + kTrimEvery;
      trims_left_ = kTrims;
    }
    for (int i = 0; i < n && status.ok(); ++i) {
      if (events[i].data.u64 != Relay::kLinkToken) {
        relay_.Disconnect(events[i].data.u64);
        continue;
      }
      if ((events[i].events & EPOLLOUT) != 0) relay_.OnLinkWritable();
      if ((events[i].events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) status = ReadLink();
    }
  }
  if (absl::IsCancelled(status)) {
    End(absl::UnavailableError("irisd is stopping"), kStopWithin);
    return absl::OkStatus();
  }
  End(absl::UnavailableError("irisd's core has ended: connect to irisd again, and repeat the call"),
      kEndWithin);
  return status;
}

absl::Status Worker::ReadLink() {
  const absl::StatusOr<LinkReader::Received> received = reader_.Receive(link_.get());
  if (!received.ok()) return received.status();
  for (;;) {
    absl::StatusOr<std::optional<LinkMessage>> message = reader_.Next();
    if (!message.ok()) return message.status();
    if (!message->has_value()) return absl::OkStatus();
    absl::Status status = OnMessage(**std::move(message));
    if (!status.ok()) return status;
  }
}

absl::Status Worker::OnMessage(LinkMessage message) {
  switch (message.type()) {
    case LinkType::kConnect:
      Connect(message.header.connection, std::move(message.fd));
      return absl::OkStatus();
    case LinkType::kDisconnect:
      relay_.Disconnect(message.header.connection);
      return absl::OkStatus();
    case LinkType::kMessage:
      relay_.DeliverMessage(message.header.call, message.payload);
      return absl::OkStatus();
    case LinkType::kFinish:
      relay_.DeliverFinish(
          message.header.call,
          absl::Status(proto::CodeOf(message.header.code),
                       absl::string_view(message.payload.data(), message.payload.size())));
      return absl::OkStatus();
    case LinkType::kStop:
      return absl::CancelledError("irisd says stop");
    case LinkType::kPing:
      relay_.Send({.type = LinkType::kPong});
      return absl::OkStatus();
    default:
      return absl::InternalError(
          absl::StrCat("the core sent a message of type ", static_cast<int>(message.type())));
  }
}

void Worker::Connect(uint64_t connection, wire::UniqueFd socket) {
  // gRPC needs sockets that do not block, which is not certain for this one.
  const int flags = fcntl(socket.get(), F_GETFL);
  (void)fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK);
  const absl::StatusOr<int> for_rpc = relay_.Connect(connection, std::move(socket));
  if (for_rpc.ok()) {
    grpc::AddInsecureChannelFromFd(server_.get(), *for_rpc);
    return;
  }
  logger_->Warn("a connection is refused",
                {{"connection", connection}, {"reason", for_rpc.status().ToString()}});
  relay_.Send({.type = LinkType::kClosed, .connection = connection});
}

void Worker::End(const absl::Status& why, absl::Duration timeout) {
  if (server_ == nullptr) return;
  // Finished answers are in gRPC, or in a stream's queue; no others can come.
  relay_.FinishAll(why);
  // gRPC ends each connection after all data is written. It also waits for connections that do not
  // read, so their sockets are shut down when the time is up.
  absl::Notification done;
  std::thread ending([&] {
    server_->Shutdown(absl::ToChronoTime(absl::Now() + timeout));
    done.Notify();
  });
  (void)done.WaitForNotificationWithTimeout(timeout);
  relay_.DisconnectAll();
  ending.join();
  server_->Wait();
  server_.reset();
}

int Worker::TrimMemory() {
  if (trims_left_ == 0) return -1;
  const absl::Duration left = trim_at_ - absl::Now();
  if (left > absl::ZeroDuration()) return static_cast<int>(absl::ToInt64Milliseconds(left)) + 1;
  if (mallinfo2().fordblks > kTrimBytes) malloc_trim(0);
  trim_at_ = absl::Now() + kTrimEvery;
  return --trims_left_ == 0 ? -1 : static_cast<int>(absl::ToInt64Milliseconds(kTrimEvery)) + 1;
}

}  // namespace iris::server
