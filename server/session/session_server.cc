#include "server/session/session_server.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/version.h"
#include "server/job/clock.h"

namespace iris::server {
namespace {

// What an epoll event is about: key * 4 + kind. Keys of sessions and admin connections are never
// reused.
enum Kind : uint64_t { kSocket = 0, kPidfd = 1, kRpc = 2, kAdmin = 3 };
constexpr uint64_t kSessionListenerKey = 1;
constexpr uint64_t kAdminListenerKey = 2;
constexpr uint64_t kWakeKey = 3;

constexpr int kFramesPerTurn = 16;    // of one session, before others have theirs
constexpr int kAcceptsPerTurn = 64;   // of one listener
constexpr size_t kMaxOutbox = 16384;  // descriptors queued for one session
constexpr size_t kCrowd = 64;
constexpr auto kTrimAfter = absl::Milliseconds(100);
constexpr auto kRetryEvery = absl::Milliseconds(20);
constexpr auto kListenAgainAfter = absl::Milliseconds(100);

uint64_t Tag(uint64_t key, Kind kind) { return key * 4 + kind; }

absl::Status EpollAdd(int epoll, int fd, uint32_t events, uint64_t tag) {
  struct epoll_event event = {};
  event.events = events;
  event.data.u64 = tag;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
    return wire::ErrnoStatus(errno, "watch a descriptor");
  }
  return absl::OkStatus();
}

// A descriptor must leave epoll before it is closed: a duplicate elsewhere would keep its
// registration alive.
void EpollRemoveAndClose(int epoll, wire::UniqueFd& fd) {
  if (!fd.valid()) return;
  epoll_ctl(epoll, EPOLL_CTL_DEL, fd.get(), nullptr);
  fd.Reset();
}

uint64_t RandomId() {
  uint64_t id = 0;
  while (id == 0) {
    if (getrandom(&id, sizeof(id), 0) != sizeof(id)) id = 0;
  }
  return id;
}

bool OutOfDescriptors(const absl::Status& status) {
  return status.code() == absl::StatusCode::kResourceExhausted;
}

// 64 descriptors are irisd's own. A session costs four (its socket, its pidfd, gRPC's socket and
// its duplicate), an admin connection two.
constexpr uint64_t kOwn = 64, kPerSession = 4, kPerAdmin = 2;

}  // namespace

SessionOptions FitToDescriptors(SessionOptions options, uint64_t fd_limit) {
  // A quarter of all is kept for segments and pages.
  const auto fit = [](uint32_t wanted, uint64_t room) {
    return static_cast<uint32_t>(std::max<uint64_t>(1, std::min<uint64_t>(wanted, room)));
  };
  options.max_admin_connections = fit(options.max_admin_connections, fd_limit / 32);
  const uint64_t taken = fd_limit / 4 + kOwn + options.max_admin_connections * kPerAdmin;
  const uint64_t room = fd_limit > taken ? (fd_limit - taken) / kPerSession : 0;
  options.max_sessions = fit(options.max_sessions, room);
  options.max_unattested = fit(options.max_unattested, options.max_sessions);
  return options;
}

uint64_t DescriptorsForMemory(const SessionOptions& fitted, uint64_t fd_limit) {
  const uint64_t taken =
      kOwn + fitted.max_admin_connections * kPerAdmin + uint64_t{fitted.max_sessions} * kPerSession;
  return std::max<uint64_t>(fd_limit > taken ? fd_limit - taken : 0, fd_limit / 4);
}

SessionServer::SessionServer(const SessionOptions& options, Daemon* daemon,
                             Connections* connections, std::function<void(int)> adopt,
                             const Logger* logger)
    : options_(options),
      daemon_(daemon),
      connections_(connections),
      adopt_(std::move(adopt)),
      logger_(logger),
      daemon_id_(RandomId()),
      attestation_in_use_(AttestationInUse(options.attestation)) {}

absl::StatusOr<std::unique_ptr<SessionServer>> SessionServer::Create(
    const SessionOptions& options, wire::UniqueFd session_listener, wire::UniqueFd admin_listener,
    Daemon* daemon, Connections* connections, std::function<void(int)> adopt,
    const Logger* logger) {
  std::unique_ptr<SessionServer> server(
      new SessionServer(options, daemon, connections, std::move(adopt), logger));
  absl::Status status = server->Init(std::move(session_listener), std::move(admin_listener));
  if (!status.ok()) return status;
  return server;
}

absl::Status SessionServer::Init(wire::UniqueFd session_listener, wire::UniqueFd admin_listener) {
  session_listener_ = std::move(session_listener);
  admin_listener_ = std::move(admin_listener);
  epoll_.Reset(epoll_create1(EPOLL_CLOEXEC));
  wake_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  spare_.Reset(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!epoll_.valid() || !wake_.valid() || !spare_.valid()) {
    return wire::ErrnoStatus(errno, "set up the session server");
  }
  // Inherited by accepted sockets, so no message escapes it.
  const int on = 1;
  if (setsockopt(session_listener_.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0) {
    return wire::ErrnoStatus(errno, "turn on SO_PASSCRED");
  }
  absl::Status status = EpollAdd(epoll_.get(), wake_.get(), EPOLLIN, Tag(kWakeKey, kSocket));
  if (status.ok()) {
    status =
        EpollAdd(epoll_.get(), session_listener_.get(), EPOLLIN, Tag(kSessionListenerKey, kSocket));
  }
  if (status.ok()) {
    status =
        EpollAdd(epoll_.get(), admin_listener_.get(), EPOLLIN, Tag(kAdminListenerKey, kSocket));
  }
  return status;
}

SessionServer::~SessionServer() { Stop(); }

void SessionServer::Start() {
  thread_ = std::thread([this] { Run(); });
}

void SessionServer::Stop() {
  {
    absl::MutexLock lock(&inbox_mu_);
    stop_ = true;
  }
  Wake();
  if (thread_.joinable()) thread_.join();
}

void SessionServer::SendDescriptors(SessionId session,
                                    std::vector<OutgoingDescriptor> descriptors) {
  {
    absl::MutexLock lock(&inbox_mu_);
    inbox_.emplace_back(SendCommand{session, std::move(descriptors)});
  }
  Wake();
}

void SessionServer::EndSession(SessionId session, const absl::Status& reason) {
  {
    absl::MutexLock lock(&inbox_mu_);
    inbox_.emplace_back(EndCommand{session, reason});
  }
  Wake();
}

void SessionServer::ReleaseSession(SessionId session) {
  {
    absl::MutexLock lock(&inbox_mu_);
    inbox_.emplace_back(ReleaseCommand{session});
  }
  Wake();
}

void SessionServer::Wake() {
  const uint64_t one = 1;
  // Full means that the thread is already woken.
  [[maybe_unused]] const ssize_t n = write(wake_.get(), &one, sizeof(one));
}

// The thread.

void SessionServer::Run() {
  struct epoll_event events[64];
  while (true) {
    const int n = epoll_wait(epoll_.get(), events, 64, EpollTimeoutMs());
    for (int i = 0; i < n; ++i) {
      const uint64_t key = events[i].data.u64 / 4;
      const auto kind = static_cast<Kind>(events[i].data.u64 % 4);
      if (key == kWakeKey) {
        uint64_t ignored;
        [[maybe_unused]] const ssize_t got = read(wake_.get(), &ignored, sizeof(ignored));
        continue;
      }
      if (key == kSessionListenerKey || key == kAdminListenerKey) {
        const bool admin = key == kAdminListenerKey;
        Accept(admin ? admin_listener_.get() : session_listener_.get(), admin);
        continue;
      }
      if (kind == kAdmin) {
        EraseAdmin(key);
        continue;
      }
      const auto it = sessions_.find(key);
      if (it == sessions_.end()) continue;  // ended by an earlier event of this batch
      Session& session = *it->second;
      if (kind == kPidfd) {
        Gone(session);
      } else if (kind == kSocket) {
        OnSocket(session, events[i].events);
      } else if (session.state == State::kOpen) {
        HangUp(session,
               absl::UnavailableError(daemon_->stopping() ? "irisd is stopping"
                                                          : "the session's gRPC socket closed"),
               "its gRPC socket closed");
      }
    }
    {
      absl::MutexLock lock(&inbox_mu_);
      if (stop_) break;
    }
    RunCommands();
    RunDeadlines();
  }
  const absl::Status stopping = absl::UnavailableError("irisd is stopping");
  for (auto& [key, session] : sessions_) {
    if (session->socket.valid()) {
      (void)wire::SendFrame(session->socket.get(), wire::FrameType::kError,
                            wire::MakeErrorPayload(stopping));
    }
    if (session->rpc.valid()) shutdown(session->rpc.get(), SHUT_RDWR);
    if (session->rpc_fd >= 0) connections_->Remove(session->rpc_fd, session->connection_id);
  }
  for (auto& [key, admin] : admins_) {
    shutdown(admin.rpc.get(), SHUT_RDWR);
    connections_->Remove(admin.rpc_fd, admin.connection_id);
  }
  sessions_.clear();
  admins_.clear();
  session_listener_.Reset();
  admin_listener_.Reset();
}

int SessionServer::EpollTimeoutMs() const {
  absl::Time next = std::min(listen_again_, trim_at_);
  if (!handshakes_.empty()) next = std::min(next, handshakes_.front().at);
  if (!retries_.empty()) next = std::min(next, SteadyNow() + kRetryEvery);
  if (next == absl::InfiniteFuture()) return -1;
  const int64_t ms = absl::ToInt64Milliseconds(next - SteadyNow()) + 1;
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 60'000));
}

void SessionServer::RunCommands() {
  std::vector<std::variant<SendCommand, EndCommand, ReleaseCommand>> commands;
  {
    absl::MutexLock lock(&inbox_mu_);
    commands.swap(inbox_);
  }
  for (auto& command : commands) {
    if (auto* end = std::get_if<EndCommand>(&command)) {
      Session* session = FindSession(end->session);
      if (session != nullptr && session->state == State::kOpen) {
        HangUp(*session, end->reason, std::string(end->reason.message()));
      }
      continue;
    }
    if (auto* release = std::get_if<ReleaseCommand>(&command)) {
      Session* session = FindSession(release->session);
      if (session != nullptr) Erase(*session);
      continue;
    }
    auto& send = std::get<SendCommand>(command);
    Session* session = FindSession(send.session);
    if (session == nullptr || session->state != State::kOpen) continue;
    if (session->outbox.size() + send.descriptors.size() > kMaxOutbox) {
      const absl::Status full = absl::ResourceExhaustedError(
          "the session does not take its descriptors: its queue is full");
      HangUp(*session, full, "its descriptor queue is full");
      continue;
    }
    for (OutgoingDescriptor& item : send.descriptors) session->outbox.push_back(std::move(item));
    Flush(*session);
  }
}

void SessionServer::RunDeadlines() {
  const absl::Time now = SteadyNow();
  if (!retries_.empty()) {
    std::vector<uint64_t> keys;
    keys.swap(retries_);
    for (const uint64_t key : keys) {
      const auto it = sessions_.find(key);
      if (it == sessions_.end()) continue;
      it->second->retry = false;
      if (it->second->state == State::kOpen) Flush(*it->second);
    }
  }
  while (!handshakes_.empty() && handshakes_.front().at <= now) {
    const uint64_t key = handshakes_.front().key;
    handshakes_.pop_front();
    const auto it = sessions_.find(key);
    if (it == sessions_.end()) continue;
    Session& session = *it->second;
    if (session.state != State::kHello && session.state != State::kNonce) continue;
    HangUp(
        session,
        absl::DeadlineExceededError(absl::StrCat("the handshake was not finished within ",
                                                 absl::FormatDuration(options_.handshake_timeout))),
        "handshake deadline");
  }
  if (trim_at_ <= now) {
    trim_at_ = absl::InfiniteFuture();
    sessions_peak_ = sessions_.size();
    daemon_->TrimMemory();
  }
  if (!listening_ && listen_again_ <= now) {
    const bool ok =
        EpollAdd(epoll_.get(), session_listener_.get(), EPOLLIN, Tag(kSessionListenerKey, kSocket))
            .ok() &&
        EpollAdd(epoll_.get(), admin_listener_.get(), EPOLLIN, Tag(kAdminListenerKey, kSocket))
            .ok();
    listening_ = ok;
    listen_again_ = ok ? absl::InfiniteFuture() : now + kListenAgainAfter;
  }
}

// Accepting.

void SessionServer::Accept(int listener, bool admin) {
  for (int i = 0; i < kAcceptsPerTurn && listening_; ++i) {
    wire::UniqueFd socket(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      const int error = errno;
      if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS) {
        AcceptOutOfDescriptors(listener);
      }
      if (error == ECONNABORTED || error == EINTR) continue;
      return;
    }
    if (!spare_.valid()) spare_.Reset(open("/dev/null", O_RDONLY | O_CLOEXEC));
    const absl::Status status = admin ? AddAdmin(socket) : AddSession(socket);
    if (!status.ok()) Refuse(std::move(socket), status);
  }
}

void SessionServer::AcceptOutOfDescriptors(int listener) {
  // One descriptor is kept for this: with it, the caller is told instead of left waiting.
  spare_.Reset();
  wire::UniqueFd socket(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  const bool accepted = socket.valid();
  if (accepted) {
    Refuse(std::move(socket),
           absl::ResourceExhaustedError("irisd has no file descriptors left; try again later"));
  }
  spare_.Reset(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (accepted && spare_.valid()) return;
  // The whole machine has run out. Do not spin on a listener that stays readable.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, session_listener_.get(), nullptr);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, admin_listener_.get(), nullptr);
  listening_ = false;
  listen_again_ = SteadyNow() + kListenAgainAfter;
}

void SessionServer::Refuse(wire::UniqueFd socket, const absl::Status& reason) {
  const uint64_t n = sessions_refused_.fetch_add(1, std::memory_order_relaxed) + 1;
  const absl::Time now = SteadyNow();
  if (now - refusal_logged_ >= absl::Seconds(1)) {  // a flood must not flood the log
    refusal_logged_ = now;
    logger_->Warn("connection refused", {{"reason", reason.ToString()}, {"refused_total", n}});
  }
  (void)wire::SendFrame(socket.get(), wire::FrameType::kError, wire::MakeErrorPayload(reason));
  // Unread input would turn the close into a reset, which the peer sees before the error frame.
  for (int i = 0; i < kFramesPerTurn; ++i) {
    const absl::Status status = wire::ReceiveFrame(socket.get()).status();
    if (wire::IsNoFrameYet(status) || absl::IsUnavailable(status)) break;
  }
}

absl::Status SessionServer::AddSession(wire::UniqueFd& socket) {
  absl::StatusOr<CallerInfo> caller = PeerCaller(socket.get());
  if (!caller.ok()) return caller.status();
  if (sessions_.size() >= options_.max_sessions) {
    return absl::ResourceExhaustedError(
        absl::StrCat("irisd has ", sessions_.size(), " sessions, its limit (see max_sessions)"));
  }
  const auto of_uid = sessions_by_uid_.find(caller->uid);
  if (of_uid != sessions_by_uid_.end() && of_uid->second >= options_.max_sessions_per_uid) {
    return absl::ResourceExhaustedError(
        absl::StrCat("uid ", caller->uid, " has ", of_uid->second,
                     " sessions, its limit (see max_sessions_per_uid)"));
  }
  if (n_unattested_ >= options_.max_unattested) {
    return absl::ResourceExhaustedError(
        absl::StrCat(n_unattested_, " connections have not finished their handshake, the limit"));
  }
  // One user may not take the places of all.
  const uint32_t of_uid_max = std::max(1u, options_.max_unattested / 2);
  const auto unattested = unattested_by_uid_.find(caller->uid);
  if (unattested != unattested_by_uid_.end() && unattested->second >= of_uid_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat(unattested->second, " connections of uid ", caller->uid,
                     " have not finished their handshake, the limit of one user"));
  }
  auto session = std::make_unique<Session>();
  session->key = next_key_++;
  session->caller = *caller;
  absl::StatusOr<wire::UniqueFd> pidfd = options_.attestation == Attestation::kNonce
                                             ? absl::UnimplementedError("not wanted")
                                             : PeerPidfd(socket.get());
  if (pidfd.ok()) {
    session->pidfd = *std::move(pidfd);
  } else if (!absl::IsUnimplemented(pidfd.status())) {
    return pidfd.status();
  }
  absl::Status status =
      EpollAdd(epoll_.get(), socket.get(), EPOLLIN | EPOLLRDHUP, Tag(session->key, kSocket));
  if (!status.ok()) return status;
  session->socket = std::move(socket);
  ++n_unattested_;
  ++unattested_by_uid_[caller->uid];
  ++sessions_by_uid_[caller->uid];
  handshakes_.push_back({SteadyNow() + options_.handshake_timeout, session->key});
  sessions_.emplace(session->key, std::move(session));
  sessions_peak_ = std::max(sessions_peak_, sessions_.size());
  return absl::OkStatus();
}

absl::Status SessionServer::AddAdmin(wire::UniqueFd& socket) {
  absl::StatusOr<CallerInfo> caller = PeerCaller(socket.get());
  if (!caller.ok()) return caller.status();
  if (admins_.size() >= options_.max_admin_connections) {
    return absl::ResourceExhaustedError(
        absl::StrCat("irisd has ", admins_.size(), " connections on irisd.sock, its limit"));
  }
  const auto of_uid = admins_by_uid_.find(caller->uid);
  if (of_uid != admins_by_uid_.end() && of_uid->second >= options_.max_admin_connections_per_uid) {
    return absl::ResourceExhaustedError(absl::StrCat("uid ", caller->uid, " has ", of_uid->second,
                                                     " connections on irisd.sock, its limit"));
  }
  absl::StatusOr<int> number = connections_->DuplicateToFreshNumber(socket.get());
  if (!number.ok()) return number.status();
  wire::UniqueFd for_rpc(*number);
  AdminConnection admin;
  admin.key = next_key_++;
  admin.uid = caller->uid;
  admin.connection_id = next_connection_++;
  admin.rpc_fd = *number;
  absl::Status status = EpollAdd(epoll_.get(), socket.get(), EPOLLRDHUP, Tag(admin.key, kAdmin));
  if (!status.ok()) return status;
  admin.rpc = std::move(socket);
  Connection connection;
  connection.id = admin.connection_id;
  connection.caller = *caller;
  connections_->Add(admin.rpc_fd, connection);
  ++admins_by_uid_[caller->uid];
  admins_.emplace(admin.key, std::move(admin));
  adopt_(for_rpc.Release());
  return absl::OkStatus();
}

void SessionServer::EraseAdmin(uint64_t key) {
  const auto it = admins_.find(key);
  if (it == admins_.end()) return;
  AdminConnection& admin = it->second;
  connections_->Remove(admin.rpc_fd, admin.connection_id);
  shutdown(admin.rpc.get(), SHUT_RDWR);
  EpollRemoveAndClose(epoll_.get(), admin.rpc);
  if (--admins_by_uid_[admin.uid] == 0) admins_by_uid_.erase(admin.uid);
  admins_.erase(it);
}

// The handshake.

void SessionServer::OnSocket(Session& session, uint32_t events) {
  const uint64_t key = session.key;
  for (int i = 0; i < kFramesPerTurn; ++i) {
    absl::StatusOr<wire::Frame> frame = wire::ReceiveFrame(session.socket.get());
    if (!frame.ok()) {
      if (wire::IsNoFrameYet(frame.status())) {
        // Half-closed by the client: no further frame can come.
        if ((events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0) {
          HangUp(session, absl::OkStatus(), "its socket closed");
        }
        return;
      }
      if (absl::IsUnavailable(frame.status())) {
        HangUp(session, absl::OkStatus(), "its socket closed");
      } else {
        HangUp(session, frame.status(), std::string(frame.status().message()));
      }
      return;
    }
    const absl::Status status = OnFrame(session, *std::move(frame));
    if (!status.ok()) {
      HangUp(session, status, std::string(status.message()));
      return;
    }
    if (sessions_.find(key) == sessions_.end()) return;
    if (session.state == State::kEnding) return;
  }
}

absl::Status SessionServer::OnFrame(Session& session, wire::Frame frame) {
  if (frame.sender.pid != session.caller.pid) {
    return absl::PermissionDeniedError(
        absl::StrCat("a message of process ", frame.sender.pid, " on the session of process ",
                     session.caller.pid, ": a forked child must open a session of its own"));
  }
  if (!frame.fds.empty()) {
    return absl::InvalidArgumentError("descriptors came that nobody asked for");
  }
  const auto expected = [&session] {
    switch (session.state) {
      case State::kHello:
        return wire::FrameType::kHello;
      case State::kNonce:
        return wire::FrameType::kChallengeReply;
      default:
        return wire::FrameType::kAck;
    }
  }();
  if (frame.type != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("session frame of type ", static_cast<int>(frame.type), " where only type ",
                     static_cast<int>(expected), " is legal"));
  }
  switch (session.state) {
    case State::kHello:
      return OnHello(session, frame);
    case State::kNonce:
      return OnNonce(session, frame);
    default:
      return OnAck(session, frame);
  }
}

absl::Status SessionServer::OnHello(Session& session, const wire::Frame& frame) {
  absl::StatusOr<wire::HelloPayload> hello = frame.As<wire::HelloPayload>();
  if (!hello.ok()) return hello.status();
  if (hello->version_min > wire::kVersion || hello->version_max < wire::kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the client speaks protocol versions ", hello->version_min, " to ",
                     hello->version_max, ", irisd ", wire::kIrisVersion, " speaks version ",
                     wire::kVersion, ": install matching versions"));
  }
  if (session.pidfd.valid()) return Open(session);
  // The kernel does not give the peer's pidfd: open the pid's, then let its process prove itself.
  absl::StatusOr<wire::UniqueFd> pidfd = OpenPidfd(session.caller.pid);
  if (!pidfd.ok()) return pidfd.status();
  session.pidfd = *std::move(pidfd);
  if (getrandom(session.nonce.nonce, sizeof(session.nonce.nonce), 0) !=
      static_cast<ssize_t>(sizeof(session.nonce.nonce))) {
    return wire::ErrnoStatus(errno, "make a nonce");
  }
  absl::Status status =
      wire::SendFrame(session.socket.get(), wire::FrameType::kChallenge, session.nonce);
  if (!status.ok()) return status;
  session.state = State::kNonce;
  return absl::OkStatus();
}

absl::Status SessionServer::OnNonce(Session& session, const wire::Frame& frame) {
  absl::StatusOr<wire::NoncePayload> reply = frame.As<wire::NoncePayload>();
  if (!reply.ok()) return reply.status();
  if (std::memcmp(reply->nonce, session.nonce.nonce, sizeof(reply->nonce)) != 0) {
    return absl::PermissionDeniedError("the challenge came back changed");
  }
  // OnFrame has compared the sender's pid. It sent after the pidfd was opened, so if the pidfd's
  // process still runs, it is the sender.
  return Open(session);
}

absl::Status SessionServer::Open(Session& session) {
  absl::StatusOr<uint64_t> start = ProcessStart(session.caller.pid);
  if (!start.ok()) return start.status();
  if (ProcessHasEnded(session.pidfd.get())) {
    return absl::AbortedError("the process that connected has ended");
  }
  session.caller.process_start = *start;
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
    return wire::ErrnoStatus(errno, "make the session's gRPC socket");
  }
  wire::UniqueFd ours(pair[0]);
  wire::UniqueFd theirs(pair[1]);
  absl::StatusOr<int> number = connections_->DuplicateToFreshNumber(ours.get());
  if (!number.ok()) return number.status();
  wire::UniqueFd for_rpc(*number);
  absl::Status status =
      EpollAdd(epoll_.get(), session.pidfd.get(), EPOLLIN, Tag(session.key, kPidfd));
  if (status.ok()) {
    status = EpollAdd(epoll_.get(), ours.get(), EPOLLRDHUP, Tag(session.key, kRpc));
  }
  if (!status.ok()) return status;
  do {
    session.id = SessionId{RandomId()};
  } while (key_by_id_.count(session.id.value) != 0);
  key_by_id_[session.id.value] = session.key;
  session.rpc = std::move(ours);
  session.rpc_fd = *number;
  session.connection_id = next_connection_++;
  session.state = State::kOpen;
  ReleaseUnattested(session.caller.uid);
  sessions_total_.fetch_add(1, std::memory_order_relaxed);
  sessions_open_.fetch_add(1, std::memory_order_relaxed);
  daemon_->Submit(SessionOpened{session.id, session.caller});
  Connection connection;
  connection.id = session.connection_id;
  connection.session = session.id;
  connection.caller = session.caller;
  connections_->Add(session.rpc_fd, connection);
  adopt_(for_rpc.Release());
  wire::WelcomePayload welcome;
  welcome.session_id = session.id.value;
  welcome.daemon_id = daemon_id_;
  std::strncpy(welcome.daemon_version, wire::kIrisVersion, sizeof(welcome.daemon_version) - 1);
  const std::string backend(daemon_->driver().backend());
  std::strncpy(welcome.backend, backend.c_str(), sizeof(welcome.backend) - 1);
  const int fds[] = {theirs.get()};
  return wire::SendFrame(session.socket.get(), wire::FrameType::kWelcome, welcome, fds);
}

// Descriptors.

absl::Status SessionServer::OnAck(Session& session, const wire::Frame& frame) {
  absl::StatusOr<wire::AckPayload> ack = frame.As<wire::AckPayload>();
  if (!ack.ok()) return ack.status();
  if (ack->count == 0 || ack->count > session.in_flight) {
    return absl::InvalidArgumentError(absl::StrCat("acknowledges ", ack->count, " descriptors; ",
                                                   session.in_flight, " are on their way"));
  }
  session.in_flight -= ack->count;
  absl::Status failure;
  FlushSome(session, &failure);
  return failure;
}

void SessionServer::Flush(Session& session) {
  absl::Status failure;
  FlushSome(session, &failure);
  if (!failure.ok()) HangUp(session, failure, std::string(failure.message()));
}

void SessionServer::FlushSome(Session& session, absl::Status* failure) {
  const auto retry = [this, &session] {
    if (session.retry) return;
    session.retry = true;
    retries_.push_back(session.key);
  };
  while (!session.outbox.empty() && session.in_flight < wire::kDescriptorWindow) {
    const size_t n = std::min<size_t>({wire::kMaxDescriptorsPerFrame, session.outbox.size(),
                                       wire::kDescriptorWindow - session.in_flight});
    wire::DescriptorsPayload payload;
    payload.count = static_cast<uint32_t>(n);
    std::vector<wire::UniqueFd> opened;
    std::vector<int> fds;
    for (size_t i = 0; i < n; ++i) {
      absl::StatusOr<int> fd = session.outbox[i].open();
      if (!fd.ok()) {
        if (OutOfDescriptors(fd.status())) return retry();
        *failure = fd.status();
        return;
      }
      opened.emplace_back(*fd);
      fds.push_back(*fd);
      payload.records[i] = session.outbox[i].record;
    }
    const absl::Status sent =
        wire::SendFrame(session.socket.get(), wire::FrameType::kDescriptors, payload, fds);
    if (OutOfDescriptors(sent)) return retry();
    if (absl::IsUnavailable(sent)) return;  // the hang-up is on its way
    if (!sent.ok()) {
      *failure = sent;
      return;
    }
    session.in_flight += static_cast<uint32_t>(n);
    session.outbox.erase(session.outbox.begin(),
                         session.outbox.begin() + static_cast<std::ptrdiff_t>(n));
  }
}

// Ending.

void SessionServer::HangUp(Session& session, const absl::Status& told, const std::string& reason) {
  if (session.state == State::kEnding) return;
  if (!told.ok()) {
    // A client that closes a socket of its own, in whatever order, is no news.
    const LogLevel level = absl::IsUnavailable(told) ? LogLevel::kDebug : LogLevel::kWarn;
    logger_->Log(level, "session ended",
                 {{"session", session.id.value},
                  {"pid", session.caller.pid},
                  {"uid", session.caller.uid},
                  {"reason", told.ToString()}});
    (void)wire::SendFrame(session.socket.get(), wire::FrameType::kError,
                          wire::MakeErrorPayload(told));
    // Unread input would turn the close into a reset, which the peer sees before the error frame.
    for (int i = 0; i < 4 * kFramesPerTurn; ++i) {
      const absl::Status status = wire::ReceiveFrame(session.socket.get()).status();
      if (wire::IsNoFrameYet(status) || absl::IsUnavailable(status)) break;
    }
  }
  const bool was_open = session.state == State::kOpen;
  session.state = State::kEnding;
  session.outbox.clear();
  session.in_flight = 0;
  EpollRemoveAndClose(epoll_.get(), session.socket);
  if (!was_open) {
    ReleaseUnattested(session.caller.uid);
    if (!told.ok()) sessions_refused_.fetch_add(1, std::memory_order_relaxed);
    Erase(session);
    return;
  }
  connections_->Remove(session.rpc_fd, session.connection_id);
  shutdown(session.rpc.get(), SHUT_RDWR);
  EpollRemoveAndClose(epoll_.get(), session.rpc);
  daemon_->Submit(SessionHungUp{session.id, reason});
}

void SessionServer::Gone(Session& session) {
  const uint64_t key = session.key;
  if (session.state != State::kEnding) HangUp(session, absl::OkStatus(), "its process ended");
  if (!sessions_.contains(key)) return;
  // Once is enough; the session stays until the daemon releases it.
  EpollRemoveAndClose(epoll_.get(), session.pidfd);
  daemon_->Submit(ProcessGone{session.id});
}

void SessionServer::Erase(Session& session) {
  if (session.id.value != 0) {
    key_by_id_.erase(session.id.value);
    sessions_open_.fetch_sub(1, std::memory_order_relaxed);
  }
  EpollRemoveAndClose(epoll_.get(), session.pidfd);
  ReleaseUid(session.caller.uid);
  sessions_.erase(session.key);
  // A crowd has gone: give its memory back, once the rest of it (gRPC's part) is freed too.
  if (sessions_peak_ >= kCrowd && sessions_.size() <= sessions_peak_ / 4) {
    trim_at_ = SteadyNow() + kTrimAfter;
  }
}

void SessionServer::ReleaseUid(uint32_t uid) {
  const auto it = sessions_by_uid_.find(uid);
  if (it != sessions_by_uid_.end() && --it->second == 0) sessions_by_uid_.erase(it);
}

void SessionServer::ReleaseUnattested(uint32_t uid) {
  --n_unattested_;
  const auto it = unattested_by_uid_.find(uid);
  if (it != unattested_by_uid_.end() && --it->second == 0) unattested_by_uid_.erase(it);
}

SessionServer::Session* SessionServer::FindSession(SessionId id) {
  const auto it = key_by_id_.find(id.value);
  if (it == key_by_id_.end()) return nullptr;
  const auto session = sessions_.find(it->second);
  return session == sessions_.end() ? nullptr : session->second.get();
}

}  // namespace iris::server
