#include "server/session/session_server.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "device/base/process.h"
#include "server/job/clock.h"
#include "server/keep/kept_name.h"

namespace iris::server {
namespace {

// After a session has ended, free memory goes back to the kernel so soon, so often and so many
// times more: what the session made irisd take becomes free bit by bit.
constexpr auto kTrimAfter = absl::Milliseconds(100);
constexpr auto kTrimEvery = absl::Seconds(2);
constexpr int kTrimsMore = 5;
constexpr auto kSettleEvery = absl::Seconds(1);
constexpr auto kAnswersLeaveWithin = absl::Seconds(2);
// A process that dies closes its socket a moment before its pidfd fires. Peers are told of its
// death rather than of a hang-up if the pidfd fires so soon.
constexpr auto kDeathShowsWithin = absl::Milliseconds(100);

}  // namespace

uint64_t SessionServer::RandomNumber() {
  uint64_t number = 0;
  while (number == 0) {
    if (getrandom(&number, sizeof(number), 0) != sizeof(number)) number = 0;
  }
  return number;
}

uint64_t SessionServer::NewSessionId() {
  uint64_t id = 0;
  while (id == 0) id = RandomNumber() & KeptName::kMaxId;
  return id;
}

SessionServer::SessionServer(const SessionOptions& options, std::unique_ptr<Poller> poller,
                             Daemon* daemon, const MakeHost& make_host, ServeCall serve,
                             const Logger* logger)
    : options_(options),
      daemon_(daemon),
      serve_(std::move(serve)),
      daemon_id_(options.daemon_id != 0 ? options.daemon_id : RandomNumber()),
      attestation_in_use_(AttestationInUse(options.attestation)),
      poller_(std::move(poller)),
      closer_({options.limits.max_closing_per_tenant, options.limits.max_closing}),
      log_(logger),
      host_(make_host(poller_.get(), closer_)),
      admission_(options.limits),
      in_flight_(options.limits),
      acceptor_(poller_.get(),
                [this](wire::UniqueFd socket) {
                  const CallerInfo caller = PeerCaller(socket.get()).value_or(CallerInfo());
                  Refuse(std::move(socket), caller.party, caller,
                         absl::ResourceExhaustedError(
                             "irisd has no file descriptors left; try again later"));
                }),
      admins_(&admission_, host_.get()) {}

absl::StatusOr<std::unique_ptr<SessionServer>> SessionServer::Create(
    const SessionOptions& options, wire::UniqueFd session_listener, wire::UniqueFd admin_listener,
    Daemon* daemon, const MakeHost& make_host, ServeCall serve, const Logger* logger) {
  absl::StatusOr<std::unique_ptr<Poller>> poller = Poller::Create();
  if (!poller.ok()) return poller.status();
  std::unique_ptr<SessionServer> server(
      new SessionServer(options, *std::move(poller), daemon, make_host, std::move(serve), logger));
  SessionServer* const self = server.get();
  absl::Status status = self->acceptor_.Listen(
      std::move(session_listener),
      [self](wire::UniqueFd socket) { self->Take(std::move(socket), /*admin=*/false); });
  if (!status.ok()) return status;
  status = self->acceptor_.Listen(std::move(admin_listener), [self](wire::UniqueFd socket) {
    self->Take(std::move(socket), /*admin=*/true);
  });
  if (!status.ok()) return status;
  return server;
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
  poller_->Wake();
  if (thread_.joinable()) thread_.join();
}

void SessionServer::Post(Command command) {
  {
    absl::MutexLock lock(&inbox_mu_);
    inbox_.push_back(std::move(command));
  }
  poller_->Wake();
}

void SessionServer::SetLimits(const AdmissionLimits& limits) {
  Post([this, limits] { admission_.SetLimits(limits); });
}

void SessionServer::SendDescriptors(SessionId id, std::vector<OutgoingDescriptor> descriptors) {
  Post([this, id, descriptors = std::move(descriptors)]() mutable {
    Session* const session = FindOpen(id);
    if (session == nullptr) return;
    absl::Status status = session->outbox.Queue(std::move(descriptors));
    if (status.ok()) status = Flush(*session);
    EndIfFailed(*session, status);
  });
}

void SessionServer::EndSession(SessionId id, const absl::Status& reason) {
  Post([this, id, reason] {
    Session* const session = FindOpen(id);
    if (session != nullptr) EndIfFailed(*session, reason);
  });
}

void SessionServer::ReleaseSession(SessionId id) {
  Post([this, id] {
    const auto it = key_by_id_.find(id.value);
    if (it != key_by_id_.end()) Erase(*FindKey(it->second));
  });
}

// The thread.

void SessionServer::Run() {
  if (options_.heartbeat_every > absl::ZeroDuration()) heartbeat_at_ = SteadyNow();
  while (true) {
    daemon_->accounts().NextTurn();
    poller_->Wait(UntilNextDeadline());
    if (!RunCommands()) break;
    RunDeadlines();
  }
  CloseAll();
}

bool SessionServer::RunCommands() {
  std::vector<Command> commands;
  {
    absl::MutexLock lock(&inbox_mu_);
    if (stop_) return false;
    commands.swap(inbox_);
  }
  for (Command& command : commands) command();
  return true;
}

absl::Duration SessionServer::UntilNextDeadline() const {
  absl::Time next =
      std::min({acceptor_.deadline(), trim_at_, settle_at_, heartbeat_at_, host_->deadline()});
  if (!retries_.empty()) next = std::min(next, retry_at_);
  if (!handshakes_.empty()) next = std::min(next, handshakes_.front().at);
  if (!dying_.empty()) next = std::min(next, dying_.front().at);
  return next == absl::InfiniteFuture() ? absl::InfiniteDuration() : next - SteadyNow();
}

void SessionServer::RunDeadlines() {
  const absl::Time now = SteadyNow();
  if (heartbeat_at_ <= now) {
    heartbeat_at_ = now + options_.heartbeat_every;
    options_.heartbeat();
  }
  if (!retries_.empty() && retry_at_ <= now) RetryBlocked(now);
  while (!handshakes_.empty() && handshakes_.front().at <= now) {
    Session* const session = FindKey(handshakes_.front().key);
    handshakes_.pop_front();
    if (session == nullptr || session->state != State::kHandshake) continue;
    EndIfFailed(*session, session->handshake->OnDeadline().reason);
  }
  while (!dying_.empty() && dying_.front().at <= now) {
    const Dying late = std::move(dying_.front());
    dying_.pop_front();
    if (FindKey(late.key) != nullptr) daemon_->Submit(SessionHungUp{late.id, late.reason});
  }
  if (settle_at_ <= now) {
    settle_at_ = absl::InfiniteFuture();
    LookForReceived(now);
    log_.Settle(now);
    closer_.Retry();
    CoreMemory::RestoreReserve();
  }
  if (settle_at_ == absl::InfiniteFuture() &&
      !(unread_.empty() && lingering_.empty() && log_.settled() && !closer_.needs_thread())) {
    settle_at_ = now + kSettleEvery;
  }
  if (trim_at_ <= now) {
    trim_at_ = trims_left_-- > 0 ? now + kTrimEvery : absl::InfiniteFuture();
    sessions_.rehash(0);
    key_by_id_.rehash(0);
    handshakes_.shrink_to_fit();
    daemon_->TrimMemory();
  }
  acceptor_.RunDeadlines(now);
  host_->RunDeadlines(now);
}

void SessionServer::CloseAll() {
  // Answers leave first, then the connections: a client that does not read cannot hold this up.
  acceptor_.Close();
  host_->Stop(kAnswersLeaveWithin);
  const auto stopping = wire::MakeErrorPayload(absl::UnavailableError("irisd is stopping"));
  for (const auto& [key, session] : sessions_) {
    if (!session->socket.valid()) continue;
    (void)wire::SendFrame(session->socket.get(), wire::FrameType::kError, stopping);
    closer_.CloseConnection(session->applicant.tenant, session->socket.Release());
  }
  sessions_.clear();
  lingering_.Clear();
  admins_.Close();
}

// Unread input would turn the close into a reset, which the peer sees before this frame: the closer
// drops it.
void SessionServer::SendError(int socket, const absl::Status& reason) {
  (void)wire::SendFrame(socket, wire::FrameType::kError, wire::MakeErrorPayload(reason));
}

// Coming.

absl::Status SessionServer::Add(const Peer& peer, wire::UniqueFd* pidfd, wire::UniqueFd* socket) {
  const absl::Status closes = closer_.Room(peer.applicant.tenant);
  if (!closes.ok()) return closes;
  auto session = std::make_unique<Session>();
  Session* const self = session.get();
  self->key = next_key_++;
  self->caller = peer.caller;
  self->applicant = peer.applicant;
  self->account = peer.account;
  MakeRoom(peer.applicant);
  absl::StatusOr<Admission::Place> place = admission_.AdmitHandshake(peer.applicant, self->key);
  if (!place.ok()) return place.status();
  self->place = *std::move(place);
  Handshake::Start start;
  start.pid = peer.caller.pid;
  start.now = SteadyNow();
  start.timeout = options_.handshake_timeout;
  start.attested = peer.attested;
  if (!peer.attested && getrandom(start.nonce.nonce, sizeof(start.nonce.nonce), 0) !=
                            static_cast<ssize_t>(sizeof(start.nonce.nonce))) {
    return wire::ErrnoStatus(errno, "make a nonce");
  }
  self->handshake.emplace(start);
  absl::StatusOr<Poller::Watched> watched = poller_->Watch(
      socket, EPOLLIN | EPOLLRDHUP, [this, self](uint32_t events) { OnSocket(*self, events); });
  if (!watched.ok()) return watched.status();
  self->socket = *std::move(watched);
  self->pidfd = std::move(*pidfd);
  handshakes_.push_back({self->handshake->deadline(), self->key});
  sessions_.emplace(self->key, std::move(session));
  OnSocket(*self, 0);  // a client that speaks at once need not wait in the crowd
  return absl::OkStatus();
}

void SessionServer::Refuse(wire::UniqueFd socket, const Party& tenant, const CallerInfo& caller,
                           const absl::Status& reason) {
  sessions_refused_.fetch_add(1, std::memory_order_relaxed);
  log_.Write(LogLevel::kWarn, "connection refused", tenant, caller, 0, reason, SteadyNow());
  SendError(socket.get(), reason);
  closer_.CloseConnection(tenant, std::move(socket));
}

// Ending.

void SessionServer::EndIfFailed(Session& session, const absl::Status& status) {
  if (!status.ok()) HangUp(session, status, std::string(status.message()));
}

void SessionServer::HangUp(Session& session, const absl::Status& told, const std::string& reason) {
  if (session.state == State::kEnding) return;
  host_->Forget(std::exchange(session.look, 0));
  const std::shared_ptr<SessionCalls> calls = std::move(session.calls);
  if (calls != nullptr) calls->Close();
  session.outbox.Look(SocketOf(session));
  InFlight::Hold unread = session.outbox.Close();
  if (!told.ok()) {
    log_.Write(LogLevel::kWarn, "session ended", session.applicant.tenant, session.caller,
               session.id.value, told, SteadyNow());
    SendError(session.socket.get(), told);
  }
  const bool was_open = session.state == State::kOpen;
  session.state = State::kEnding;
  if (was_open) ForgetKept(session);
  if (unread.count() > 0) {
    lingering_.Add(session.applicant.tenant, session.socket.Release(), std::move(unread));
  } else {
    closer_.CloseConnection(session.applicant.tenant, session.socket.Release());
  }
  if (!was_open) {
    if (!told.ok()) sessions_refused_.fetch_add(1, std::memory_order_relaxed);
    Erase(session);
    return;
  }
  session.rpc.reset();
  const auto process = base::ReadProcess(session.caller.pid);
  if (told.ok() && (!process.has_value() || process->exiting())) {
    dying_.push_back({SteadyNow() + kDeathShowsWithin, session.key, session.id, reason});
  } else {
    daemon_->Submit(SessionHungUp{session.id, reason});
  }
}

void SessionServer::Gone(Session& session) {
  const uint64_t key = session.key;
  HangUp(session, absl::OkStatus(), "its process ended");
  if (FindKey(key) == nullptr) return;
  std::erase_if(dying_, [key](const Dying& dying) { return dying.key == key; });
  session.process.Reset();  // once is enough
  daemon_->Submit(ProcessGone{session.id});
}

void SessionServer::Erase(Session& session) {
  if (session.id.value != 0) key_by_id_.erase(session.id.value);
  sessions_.erase(session.key);
  trims_left_ = kTrimsMore;
  if (trim_at_ == absl::InfiniteFuture()) trim_at_ = SteadyNow() + kTrimAfter;
}

SessionServer::Session* SessionServer::FindKey(uint64_t key) {
  const auto it = sessions_.find(key);
  return it == sessions_.end() ? nullptr : it->second.get();
}

SessionServer::Session* SessionServer::FindOpen(SessionId id) {
  const auto it = key_by_id_.find(id.value);
  Session* const session = it == key_by_id_.end() ? nullptr : FindKey(it->second);
  return session != nullptr && session->state == State::kOpen ? session : nullptr;
}

}  // namespace iris::server
