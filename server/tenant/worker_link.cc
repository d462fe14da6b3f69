#include "server/tenant/worker_link.h"

#include <sys/epoll.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/status/code.h"
#include "server/job/clock.h"

namespace iris::server {
namespace {

constexpr int kMessagesAtOnce = 32;  // of one worker, before other descriptors are served
// If more bytes wait for the worker, the core stops reading from it.
constexpr size_t kMaxWaitingBytes = 4 << 20;
// A worker that takes nothing for this long, while data waits for it, is ended.
constexpr auto kStallTimeout = absl::Seconds(30);
constexpr auto kRetryEvery = absl::Milliseconds(20);
// Each stream may hold a queue of events for a reader that does not read, so they are few.
constexpr uint32_t kMaxEventStreams = 32;
// Calls of all tenants to the admin service wait for the same threads.
constexpr uint32_t kMaxAdminCalls = 32;

absl::Status Broken(absl::string_view what, uint64_t number) {
  return absl::InvalidArgumentError(absl::StrCat("the worker ", what, " ", number));
}

}  // namespace

absl::StatusOr<std::shared_ptr<WorkerLink>> WorkerLink::Create(wire::UniqueFd socket,
                                                               Poller* poller, ServeCall serve,
                                                               Owner owner) {
  std::shared_ptr<WorkerLink> link(new WorkerLink(poller, std::move(serve), std::move(owner)));
  absl::StatusOr<Poller::Watched> watched = poller->Watch(
      &socket, EPOLLIN, [link = link.get()](uint32_t events) { link->OnEvents(events); });
  if (!watched.ok()) return watched.status();
  absl::MutexLock lock(&link->mu_);
  link->socket_ = *std::move(watched);
  link->events_ = EPOLLIN;
  return link;
}

void WorkerLink::Connect(uint64_t connection, const RpcPeer& peer, wire::UniqueFd socket) {
  absl::MutexLock lock(&mu_);
  if (closed_) return;
  account_ = peer.account;
  connections_[connection].peer = peer;
  ping_at_ = std::min(ping_at_, SteadyNow() + kPingEvery);
  writer_.Queue({.type = LinkType::kConnect, .connection = connection}, {}, std::move(socket));
  Flush();
}

bool WorkerLink::Disconnect(uint64_t connection) {
  std::vector<std::shared_ptr<ActiveCall>> cancelled;
  wire::UniqueFd withdrawn;
  {
    absl::MutexLock lock(&mu_);
    const auto it = connections_.find(connection);
    if (closed_ || it == connections_.end() || it->second.closing) return false;
    // A slow worker may not have been given the connection yet.
    if (writer_.Withdraw(connection, &withdrawn)) {
      connections_.erase(it);
    } else {
      it->second.closing = true;
      cancelled = TakeCalls(&it->second);
      writer_.Queue({.type = LinkType::kDisconnect, .connection = connection});
      Flush();
    }
  }
  if (withdrawn.valid()) {
    owner_.close_socket(std::move(withdrawn));
    return true;
  }
  for (const auto& call : cancelled) call->OnCancel();
  return false;
}

void WorkerLink::Stop() {
  absl::MutexLock lock(&mu_);
  if (closed_) return;
  writer_.Queue({.type = LinkType::kStop});
  Flush();
}

void WorkerLink::Close() {
  std::vector<std::shared_ptr<ActiveCall>> cancelled;
  std::vector<wire::UniqueFd> not_sent;
  Poller::Watched socket;
  {
    absl::MutexLock lock(&mu_);
    if (closed_) return;
    closed_ = true;
    socket = std::move(socket_);
    for (auto& [number, call] : calls_) {
      if (call.active != nullptr) cancelled.push_back(std::move(call.active));
    }
    calls_.clear();
    connections_.clear();
    not_sent = writer_.Clear();
  }
  for (const auto& call : cancelled) call->OnCancel();
  owner_.close_socket(socket.Release());
  for (wire::UniqueFd& fd : not_sent) owner_.close_socket(std::move(fd));
}

void WorkerLink::End(const absl::Status& reason) {
  {
    absl::MutexLock lock(&mu_);
    if (closed_) return;
  }
  Close();
  owner_.ended(reason);
}

void WorkerLink::OnEvents(uint32_t events) {
  const auto self = shared_from_this();
  // The worker is gone, so its last messages do not matter.
  if ((events & (EPOLLHUP | EPOLLERR)) != 0) {
    return End(absl::UnavailableError("the worker has closed its link"));
  }
  int socket = -1;
  {
    absl::MutexLock lock(&mu_);
    if (closed_) return;
    if ((events & EPOLLOUT) != 0) Flush();
    socket = socket_.get();
  }
  if ((events & EPOLLIN) == 0) return;
  if (!more_) {
    const absl::StatusOr<LinkReader::Received> received = reader_.Receive(socket);
    if (!received.ok()) return End(received.status());
  }
  RunMessages();
}

absl::Time WorkerLink::deadline() const {
  absl::MutexLock lock(&mu_);
  if (closed_) return absl::InfiniteFuture();
  if (more_ && !paused_) return absl::InfinitePast();
  return std::min({retry_at_, stalled_since_ + kStallTimeout, ping_at_});
}

void WorkerLink::Continue(absl::Time now) {
  const auto self = shared_from_this();
  bool stalled = false, answers = true;
  {
    absl::MutexLock lock(&mu_);
    if (closed_) return;
    if (retry_at_ <= now) Flush();
    stalled = stalled_since_ + kStallTimeout <= now;
    if (ping_at_ <= now) answers = Ping(now);
  }
  if (!answers) {
    return End(absl::DeadlineExceededError(absl::StrCat(
        "the worker did not answer for ", absl::FormatDuration(kPingEvery * kPingsMissed),
        ": it is stopped, or hangs; it is ended, and another is started")));
  }
  if (stalled) {
    return End(absl::DeadlineExceededError(
        absl::StrCat("the worker took nothing for ", absl::FormatDuration(kStallTimeout))));
  }
  if (more_) RunMessages();
}

bool WorkerLink::Ping(absl::Time now) {
  // A tick that comes late, because this machine or irisd was stopped, counts once: a worker that
  // was stopped together with irisd has kPingEvery to answer.
  ping_at_ = now + kPingEvery;
  // The answer may be among bytes that were not read yet. Messages that wait for the worker have
  // their own timeout.
  if (more_ || paused_ || !writer_.empty()) return true;
  if (pinged_) return ++pings_missed_ < kPingsMissed;
  if (connections_.empty()) {
    ping_at_ = absl::InfiniteFuture();
    return true;
  }
  pinged_ = true;
  writer_.Queue({.type = LinkType::kPing});
  Flush();
  return true;
}

void WorkerLink::RunMessages() {
  more_ = true;
  for (int i = 0; i < kMessagesAtOnce; ++i) {
    if (account_ != nullptr && !account_->MayRun()) return;
    const AtWork at_work(account_.get());
    {
      absl::MutexLock lock(&mu_);
      if (closed_ || paused_) return;
    }
    const absl::StatusOr<std::optional<LinkMessage>> message = reader_.Next();
    if (!message.ok()) return End(message.status());
    if (!message->has_value()) {
      more_ = false;
      return;
    }
    const absl::Status status = Handle(**message);
    if (!status.ok()) return End(status);
  }
}

absl::Status WorkerLink::Handle(const LinkMessage& message) {
  if (ready_ == (message.type() == LinkType::kReady)) {
    return absl::InvalidArgumentError(ready_ ? "the worker says twice that it is ready"
                                             : "the worker spoke before it was ready");
  }
  switch (message.type()) {
    case LinkType::kReady:
      ready_ = true;
      owner_.ready();
      return absl::OkStatus();
    case LinkType::kCall:
      return OnCall(message);
    case LinkType::kCancel:
      return OnCancelOrSent(message.header.call, /*sent=*/false);
    case LinkType::kSent:
      return OnCancelOrSent(message.header.call, /*sent=*/true);
    case LinkType::kClosed:
      return OnClosed(message.header.connection);
    case LinkType::kPong:
      return OnPong();
    default:  // the reader lets nothing else through
      return Broken("sent a message of type", static_cast<uint64_t>(message.type()));
  }
}

absl::Status WorkerLink::OnCall(const LinkMessage& message) {
  const LinkHeader& header = message.header;
  const MethodInfo* const method = FindMethod(header.method);
  if (method == nullptr) return Broken("relays a call of method", header.method);
  if (header.call <= last_call_) return Broken("uses again the call number", header.call);
  last_call_ = header.call;
  IncomingCall incoming;
  bool too_many = false;
  {
    absl::MutexLock lock(&mu_);
    const auto it = connections_.find(header.connection);
    if (it == connections_.end()) {
      return Broken("relays a call of an unknown connection,", header.connection);
    }
    Connection& connection = it->second;
    if (connection.closing) return absl::OkStatus();  // the worker will receive the kDisconnect
    if (connection.calls.size() >= kMaxCallsPerConnection) {
      return Broken("relays more calls of a connection than its limit,", kMaxCallsPerConnection);
    }
    if (calls_.size() >= kMaxCallsPerWorker) {
      return Broken("relays more calls than its limit,", kMaxCallsPerWorker);
    }
    connection.calls.insert(header.call);
    Call& call = calls_[header.call];
    call.connection = header.connection;
    call.method = method->method;
    call.streams = method->streams;
    if (uint32_t* const count = CounterOf(call.method); count != nullptr) {
      too_many = ++*count > (call.streams ? kMaxEventStreams : kMaxAdminCalls);
    }
    incoming.session = connection.peer.session;
    incoming.caller = connection.peer.caller;
  }
  if (too_many) {
    Finish(header.call,
           absl::ResourceExhaustedError(
               method->streams ? absl::StrCat("this user's connections read ", kMaxEventStreams,
                                              " streams of events, irisd's limit for a user; end "
                                              "one of them first")
                               : absl::StrCat("this user has ", kMaxAdminCalls,
                                              " calls of the admin service under way, irisd's "
                                              "limit for a user; wait for one of them first")));
    return absl::OkStatus();
  }
  incoming.method = method->method;
  incoming.request = message.payload;
  incoming.reply = std::make_shared<NumberedReplier<WorkerLink>>(shared_from_this(), header.call);
  std::shared_ptr<ActiveCall> active = serve_(incoming);
  if (active == nullptr) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  const auto it = calls_.find(header.call);
  if (it != calls_.end()) it->second.active = std::move(active);  // else the call has ended
  return absl::OkStatus();
}

absl::Status WorkerLink::OnCancelOrSent(uint64_t number, bool sent) {
  if (number > last_call_) {
    return Broken(sent ? "says what became of an unknown call," : "cancels an unknown call,",
                  number);
  }
  std::shared_ptr<ActiveCall> active;
  {
    absl::MutexLock lock(&mu_);
    const auto it = calls_.find(number);
    if (it == calls_.end()) return absl::OkStatus();
    Call& call = it->second;
    if (sent && (!call.streams || call.on_their_way == 0)) {
      return Broken("says that it sent what it was not given, for call", number);
    }
    if (sent) --call.on_their_way;
    active = call.active;
  }
  if (active != nullptr) sent ? active->OnSent() : active->OnCancel();
  return absl::OkStatus();
}

absl::Status WorkerLink::OnClosed(uint64_t number) {
  std::vector<std::shared_ptr<ActiveCall>> cancelled;
  {
    absl::MutexLock lock(&mu_);
    const auto it = connections_.find(number);
    if (it == connections_.end()) return Broken("closes an unknown connection,", number);
    cancelled = TakeCalls(&it->second);
    connections_.erase(it);
  }
  for (const auto& call : cancelled) call->OnCancel();
  owner_.closed(number);
  return absl::OkStatus();
}

absl::Status WorkerLink::OnPong() {
  absl::MutexLock lock(&mu_);
  if (!std::exchange(pinged_, false)) {
    return absl::InvalidArgumentError("the worker answers a ping that it was not sent");
  }
  pings_missed_ = 0;
  return absl::OkStatus();
}

uint32_t* WorkerLink::CounterOf(Method method) {
  if (!IsAdmin(method)) return nullptr;
  return method == Method::kEvents ? &n_event_streams_ : &n_admin_calls_;
}

std::vector<std::shared_ptr<ActiveCall>> WorkerLink::TakeCalls(Connection* connection) {
  std::vector<std::shared_ptr<ActiveCall>> taken;
  for (const uint64_t number : connection->calls) {
    const auto it = calls_.find(number);
    if (uint32_t* const count = CounterOf(it->second.method); count != nullptr) --*count;
    if (it->second.active != nullptr) taken.push_back(std::move(it->second.active));
    calls_.erase(it);
  }
  connection->calls.clear();
  return taken;
}

void WorkerLink::Send(uint64_t number, LinkPayload message) {
  absl::MutexLock lock(&mu_);
  const auto it = calls_.find(number);
  if (it == calls_.end()) return;
  writer_.Queue({.type = LinkType::kMessage, .call = number}, std::move(message));
  if (!it->second.streams) return;  // the end of the call follows and sends it
  ++it->second.on_their_way;
  Flush();
}

void WorkerLink::Finish(uint64_t number, const absl::Status& status) {
  std::shared_ptr<ActiveCall> ended;  // destroyed after the lock is released
  absl::MutexLock lock(&mu_);
  const auto it = calls_.find(number);
  if (it == calls_.end()) return;
  ended = std::move(it->second.active);
  connections_[it->second.connection].calls.erase(number);
  if (uint32_t* const count = CounterOf(it->second.method); count != nullptr) --*count;
  calls_.erase(it);
  const auto code = proto::NumberOf(status.code());
  writer_.Queue({.type = LinkType::kFinish, .code = code, .call = number},
                {std::string(status.message().substr(0, wire::kMaxErrorTextBytes)), nullptr});
  Flush();
}

void WorkerLink::Flush() {
  if (closed_) return;
  const size_t waiting_before = writer_.queued_bytes();
  std::vector<wire::UniqueFd> given;
  const absl::StatusOr<LinkWriter::Flushed> flushed = writer_.Flush(socket_.get(), &given);
  for (wire::UniqueFd& fd : given) owner_.close_given(std::move(fd));
  // If the write failed, the worker is gone, which OnEvents handles.
  const bool blocked = flushed.ok() && *flushed == LinkWriter::Flushed::kBlocked;
  const bool retry = flushed.ok() && *flushed == LinkWriter::Flushed::kNoDescriptors;
  if (writer_.empty()) {
    stalled_since_ = absl::InfiniteFuture();
  } else if (stalled_since_ == absl::InfiniteFuture() || writer_.queued_bytes() < waiting_before) {
    stalled_since_ = SteadyNow();
  }
  retry_at_ = retry ? SteadyNow() + kRetryEvery : absl::InfiniteFuture();
  const bool was_paused = std::exchange(paused_, writer_.queued_bytes() > kMaxWaitingBytes);
  const uint32_t wanted = (paused_ ? 0u : uint32_t{EPOLLIN}) | (blocked ? uint32_t{EPOLLOUT} : 0u);
  if (wanted != std::exchange(events_, wanted)) socket_.SetEvents(wanted);
  // Wakes the session thread, which then checks its deadlines again.
  if (retry || was_paused != paused_) poller_->Wake();
}

}  // namespace iris::server
