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
#include "server/link/drop_unread.h"

namespace iris::server {
namespace {

// After a session has ended, free memory is returned to the kernel at these times, because memory
// that the session used is freed gradually.
constexpr auto kTrimAfter = absl::Milliseconds(100);
constexpr auto kTrimEvery = absl::Seconds(2);
constexpr int kTrimsMore = 5;
constexpr auto kSettleEvery = absl::Seconds(1);
constexpr auto kAnswersLeaveWithin = absl::Seconds(2);
// A dying process closes its socket a moment before its pidfd fires. If the pidfd fires within this
// time, peers are notified of a death rather than of a hang-up.
constexpr auto kDeathShowsWithin = absl::Milliseconds(100);

constexpr char kSocketClosed[] = "its socket closed";

// Returns true if that process has connected the socket.
bool IsConnectionOf(int socket, int64_t pid) {
  const auto is = [socket](int option, int wanted) {
    int value = 0;
    socklen_t bytes = sizeof(value);
    return getsockopt(socket, SOL_SOCKET, option, &value, &bytes) == 0 && value == wanted;
  };
  if (!is(SO_TYPE, SOCK_SEQPACKET) || !is(SO_ACCEPTCONN, 0)) return false;
  const absl::StatusOr<CallerInfo> peer = PeerCaller(socket);
  return peer.ok() && peer->pid == pid;
}

absl::Status CannotGoOn(const SessionSnapshot& session, const absl::Status& why) {
  return absl::Status(why.code(), absl::StrCat("go on with the session of process ",
                                               session.caller.pid, ": ", why.message()));
}

std::string NameOf(SessionId id) { return KeptName{KeptName::Kind::kSession, id.value}.Text(); }

}  // namespace

uint64_t SessionServer::RandomNumber() {
  uint64_t number = 0;
  while (number == 0) {
    if (getrandom(&number, sizeof(number), 0) != sizeof(number)) number = 0;
  }
  return number;
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
      door_({.attestation = options.attestation,
             .limits = options.limits,
             .poller = poller_.get(),
             .accounts = &daemon->accounts(),
             .host = host_.get(),
             .closer = &closer_,
             .log = &log_,
             // Sessions that are to be released give their places to new clients.
             .prepare = [this] { RunCommands(); },
             .begin = [this](Peer* peer, wire::UniqueFd* socket) { return Begin(peer, socket); }}),
      sender_(
          options.limits, options.send_timeout, &closer_,
          [this](uint64_t key) { return FindKey(key); },
          [this](Session& session, const absl::Status& status) { EndIfFailed(session, status); }) {}

absl::StatusOr<std::unique_ptr<SessionServer>> SessionServer::Create(
    const SessionOptions& options, wire::UniqueFd session_listener, wire::UniqueFd admin_listener,
    Daemon* daemon, const MakeHost& make_host, ServeCall serve, const Logger* logger) {
  absl::StatusOr<std::unique_ptr<Poller>> poller = Poller::Create();
  if (!poller.ok()) return poller.status();
  std::unique_ptr<SessionServer> server(
      new SessionServer(options, *std::move(poller), daemon, make_host, std::move(serve), logger));
  absl::Status opened = server->door_.Open(std::move(session_listener), std::move(admin_listener));
  if (!opened.ok()) return opened;
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
  Post([this, limits] { door_.admission().SetLimits(limits); });
}

void SessionServer::SendDescriptors(SessionId id, std::vector<OutgoingDescriptor> descriptors) {
  Post([this, id, descriptors = std::move(descriptors)]() mutable {
    Session* const session = FindOpen(id);
    if (session == nullptr) return;
    absl::Status status = session->outbox.Queue(std::move(descriptors));
    if (status.ok()) status = sender_.Flush(*session);
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

DoorUse SessionServer::UseOf(const Account& account) const {
  const Admission& admission = door_.admission();
  return {admission.sessions_of(account.tenant), admission.admin_connections_of(account.tenant),
          account.calls.calls(), account.calls.unread_bytes(),
          sender_.in_flight_of(account.tenant)};
}

DoorUse SessionServer::LimitsOfOne() const {
  const AdmissionLimits& limits = door_.admission().limits();
  const CallShare::Limits& of_calls = daemon_->accounts().limits_of_calls();
  return {limits.max_sessions_per_tenant, limits.max_admin_connections_per_tenant,
          of_calls.max_calls, of_calls.max_unread_bytes, limits.max_in_flight_per_tenant};
}

DoorUse SessionServer::LimitsOfAll() const {
  const AdmissionLimits& limits = door_.admission().limits();
  return {.sessions = limits.max_sessions,
          .admin_connections = limits.max_admin_connections,
          .descriptors_in_flight = limits.max_in_flight};
}

void SessionServer::Run() {
  if (options_.heartbeat_every > absl::ZeroDuration()) heartbeat_at_ = SteadyNow();
  while (true) {
    daemon_->accounts().NextRound();
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
  absl::Time next = std::min({door_.deadline(), sender_.deadline(), host_->deadline(), trim_at_,
                              settle_at_, heartbeat_at_});
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
  sender_.RunDeadlines(now);
  while (!handshakes_.empty() && handshakes_.front().at <= now) {
    Session* const session = FindKey(handshakes_.front().key);
    handshakes_.pop_front();
    if (session == nullptr || session->state != State::kHandshake) continue;
    EndIfFailed(*session, session->handshake->OnDeadline());
  }
  while (!dying_.empty() && dying_.front().at <= now) {
    const Dying late = std::move(dying_.front());
    dying_.pop_front();
    if (FindKey(late.key) != nullptr) daemon_->Submit(SessionHungUp{late.id, late.reason});
  }
  if (settle_at_ <= now) {
    settle_at_ = absl::InfiniteFuture();
    sender_.LookForReceived(now);
    log_.Settle(now);
    closer_.Retry();
    CoreMemory::RestoreReserve();
  }
  if (settle_at_ == absl::InfiniteFuture() &&
      !(sender_.settled() && log_.settled() && !closer_.needs_thread())) {
    settle_at_ = now + kSettleEvery;
  }
  if (trim_at_ <= now) {
    trim_at_ = trims_left_-- > 0 ? now + kTrimEvery : absl::InfiniteFuture();
    sessions_.rehash(0);
    key_by_id_.rehash(0);
    handshakes_.shrink_to_fit();
    daemon_->TrimMemory();
  }
  door_.RunDeadlines(now);
  host_->RunDeadlines(now);
}

void SessionServer::CloseAll() {
  // Delivers answers first, then ends connections: a client that does not read cannot delay this.
  door_.Close();
  host_->Stop(kAnswersLeaveWithin);
  const auto stopping = wire::MakeErrorPayload(absl::UnavailableError("irisd is stopping"));
  for (const auto& [key, session] : sessions_) {
    if (!session->socket.valid()) continue;
    (void)wire::SendFrame(session->socket.get(), wire::FrameType::kError, stopping);
    closer_.CloseConnection(session->tenant(), session->socket.Release());
  }
  sessions_.clear();
  sender_.Clear();
  door_.Clear();
}

absl::Status SessionServer::Begin(Peer* peer, wire::UniqueFd* socket) {
  const absl::Status closes = closer_.Room(peer->applicant.tenant);
  if (!closes.ok()) return closes;
  auto session = std::make_unique<Session>();
  Session* const self = session.get();
  self->key = next_key_++;
  MakeRoom(peer->applicant);
  absl::StatusOr<Admission::Place> place =
      door_.admission().AdmitHandshake(peer->applicant, self->key);
  if (!place.ok()) return place.status();
  self->place = *std::move(place);
  Handshake::Start start;
  start.pid = peer->caller.pid;
  start.now = SteadyNow();
  start.timeout = options_.handshake_timeout;
  start.attested = peer->attested;
  if (!peer->attested && getrandom(start.nonce.nonce, sizeof(start.nonce.nonce), 0) !=
                             static_cast<ssize_t>(sizeof(start.nonce.nonce))) {
    return wire::ErrnoStatus(errno, "make a nonce");
  }
  self->handshake.emplace(start);
  const absl::Status watched = WatchSocket(*self, socket);
  if (!watched.ok()) return watched;
  self->peer = std::move(*peer);
  handshakes_.push_back({self->handshake->deadline(), self->key});
  sessions_.emplace(self->key, std::move(session));
  OnSocket(*self, 0);  // serves a client that sends at once without waiting for others
  return absl::OkStatus();
}

void SessionServer::MakeRoom(const Applicant& applicant) {
  uint64_t asked = 0;
  while (const auto goes = door_.admission().WhoGoesForHandshake(applicant)) {
    Session& session = *FindKey(goes->key);
    if (asked == goes->key) {
      EndIfFailed(session, goes->reason);
      continue;
    }
    // Its client may have sent a frame that was not read yet; then the client is not silent.
    asked = goes->key;
    OnSocket(session, 0);
  }
}

absl::Status SessionServer::WatchSocket(Session& session, wire::UniqueFd* socket) {
  absl::StatusOr<Poller::Watched> watched =
      poller_->Watch(socket, EPOLLIN | EPOLLRDHUP,
                     [this, &session](uint32_t events) { OnSocket(session, events); });
  if (watched.ok()) session.socket = *std::move(watched);
  return watched.status();
}

absl::Status SessionServer::WatchProcess(Session& session, wire::UniqueFd* pidfd) {
  absl::StatusOr<Poller::Watched> watched =
      poller_->Watch(pidfd, EPOLLIN, [this, &session](uint32_t) { Gone(session); });
  if (watched.ok()) session.process = *std::move(watched);
  return watched.status();
}

absl::Status SessionServer::Open(Session& session) {
  absl::Status status = daemon_->accounts().Room();
  if (status.ok()) status = session.place.Attested();
  if (!status.ok()) return status;
  const bool wants_socket = !session.handshake->calls_by_frames();
  absl::StatusOr<InFlight::Hold> share =
      sender_.Share(session.peer.applicant, wants_socket ? 1 : 0);
  if (!share.ok()) return share.status();
  CallerInfo& caller = session.peer.caller;
  const absl::StatusOr<uint64_t> start = ProcessStart(caller.pid);
  if (!start.ok()) return start.status();
  if (ProcessHasEnded(session.peer.pidfd.get())) {
    return absl::AbortedError("the process that connected has ended");
  }
  caller.process_start = *start;
  status = WatchProcess(session, &session.peer.pidfd);
  if (!status.ok()) return status;
  do {
    session.id = SessionId{RandomNumber() & KeptName::kMaxId};
  } while (session.id.value == 0 || key_by_id_.contains(session.id.value));
  // Before the machine knows the session: an irisd that finds it in the state then has its socket.
  if (session.handshake->outlives_irisd()) Keep(session);
  session.handshake.reset();
  sessions_total_.fetch_add(1, std::memory_order_relaxed);
  daemon_->Submit(SessionOpened{session.id, caller, ProcessAge(*start)});
  MakeOpen(session, *std::move(share));
  const wire::WelcomePayload welcome =
      MakeWelcome(session.id.value, daemon_id_, daemon_->driver().backend());
  if (!wants_socket) return sender_.Welcome(session, welcome, {});
  const absl::StatusOr<wire::UniqueFd> theirs = session.rpc->Make();
  if (!theirs.ok()) return theirs.status();
  const int fd = theirs->get();
  return sender_.Welcome(session, welcome, {&fd, 1});
}

void SessionServer::MakeOpen(Session& session, InFlight::Hold share) {
  key_by_id_[session.id.value] = session.key;
  session.state = State::kOpen;
  session.outbox = Outbox(std::move(share));
  const RpcPeer client{session.tenant(), session.id, session.peer.caller, session.peer.account};
  session.rpc.emplace(host_.get(), client);
  session.calls = SessionCalls::Create(
      {&session.socket, client, &serve_,
       [this, id = session.id](const absl::Status& reason) { EndSession(id, reason); },
       [closer = closer_, tenant = client.tenant](wire::UniqueFd fd) mutable {
         closer.Close(tenant, std::move(fd));
       }});
}

void SessionServer::OnSocket(Session& session, uint32_t events) {
  const uint64_t key = session.key;
  const bool closed = (events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0;
  if (session.look != 0 && closed) return HangUp(session, absl::OkStatus(), kSocketClosed);
  if ((events & EPOLLOUT) != 0 && session.calls != nullptr) session.calls->OnWritable();
  const Party tenant = session.tenant();
  const std::shared_ptr<Account> account = session.peer.account;
  // Frames that remain in the socket are reported again at the next wait. A handshake needs no time
  // slice: a client that has sent a frame must not be ended for a newer one.
  const auto may_run = [&] { return session.state == State::kHandshake || account->MayRun(); };
  for (int i = 0; i < kFramesAtOnce && may_run(); ++i) {
    const AtWork at_work(account.get());
    // If too many descriptors of a tenant do not close, irisd reads nothing more from that tenant.
    const absl::Status closes = closer_.Room(tenant);
    if (!closes.ok()) return EndIfFailed(session, closes);
    if (!MayReceive(session, closed)) return;
    std::vector<wire::UniqueFd> refused;
    absl::StatusOr<wire::Frame> frame = wire::ReceiveFrame(session.socket.get(), &refused);
    if (!frame.ok()) {
      closer_.Close(tenant, std::move(refused));
      const bool none = wire::IsNoFrameYet(frame.status());
      if (none && !closed) return;
      // After a half-close by the client no further frame can come.
      if (none || absl::IsUnavailable(frame.status())) {
        return HangUp(session, absl::OkStatus(), kSocketClosed);
      }
      return EndIfFailed(session, frame.status());
    }
    EndIfFailed(session, OnFrame(session, *frame));
    closer_.Close(tenant, std::move(frame->fds));
    if (FindKey(key) == nullptr || session.state == State::kEnding) return;
  }
}

bool SessionServer::MayReceive(Session& session, bool closed) {
  if (session.look != 0) return false;
  if (std::exchange(session.looked, false)) return true;
  switch (NextOf(session.socket.get())) {
    case Next::kPlain:
    case Next::kEnd:
      return true;
    case Next::kNothing:
      // Packets that arrive from now on were not inspected.
      if (closed) HangUp(session, absl::OkStatus(), kSocketClosed);
      return false;
    case Next::kFailed:
      HangUp(session, absl::OkStatus(), "its socket failed");
      return false;
    case Next::kDescriptors:
      break;
  }
  if (session.calls == nullptr) {
    EndIfFailed(session, absl::InvalidArgumentError("a handshake brings no descriptors"));
    return false;
  }
  session.calls->SetHeld(true);
  session.look =
      host_->Look(session.socket.get(), session.tenant(),
                  [this, key = session.key](const absl::Status& status) { OnLooked(key, status); });
  return false;
}

void SessionServer::OnLooked(uint64_t key, const absl::Status& status) {
  Session* const session = FindKey(key);
  if (session == nullptr) return;
  session->look = 0;
  if (!status.ok()) return EndIfFailed(*session, status);
  session->looked = true;
  session->calls->SetHeld(false);
  OnSocket(*session, 0);
}

absl::Status SessionServer::OnFrame(Session& session, const wire::Frame& frame) {
  if (session.state == State::kHandshake) {
    const absl::StatusOr<Handshake::Step> step = session.handshake->OnFrame(frame);
    if (!step.ok()) return step.status();
    if (*step == Handshake::Step::kOpen) return Open(session);
    session.place.Heard();
    return wire::SendFrame(session.socket.get(), wire::FrameType::kChallenge,
                           session.handshake->nonce());
  }
  using enum wire::FrameType;
  const int64_t pid = session.peer.caller.pid;
  absl::Status status =
      session.awaits == 0
          ? CheckFrame(frame, pid, {kAck, kRpcRequest, kCall, kCancelCall, kTaken})
          : CheckFrame(frame, pid, {kAck, kRpcRequest, kCall, kCancelCall, kTaken, kRestartSeen});
  if (!status.ok()) return status;
  if (session.awaits != 0) {
    return frame.type == kRestartSeen ? OnRestartSeen(session, frame) : absl::OkStatus();
  }
  if (frame.type == kAck) {
    const absl::StatusOr<wire::AckPayload> ack = frame.As<wire::AckPayload>();
    status = ack.ok() ? session.outbox.Acknowledge(ack->count) : ack.status();
  } else if (frame.type == kRpcRequest) {
    status = session.rpc->Ask(frame);
  } else {
    return session.calls->OnFrame(frame);
  }
  return status.ok() ? sender_.Flush(session) : status;
}

absl::Status SessionServer::OnRestartSeen(Session& session, const wire::Frame& frame) {
  const auto seen = frame.As<wire::RestartSeenPayload>();
  if (!seen.ok()) return seen.status();
  if (seen->generation > session.awaits ||
      (seen->generation == session.awaits && !session.announced)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the client has seen generation ", seen->generation, " of irisd, and this is generation ",
        session.awaits, session.announced ? "" : ", of which it was not told"));
  }
  if (seen->generation == session.awaits) session.awaits = 0;
  return absl::OkStatus();
}

void SessionServer::EndIfFailed(Session& session, const absl::Status& status) {
  if (!status.ok()) HangUp(session, status, std::string(status.message()));
}

void SessionServer::HangUp(Session& session, const absl::Status& told, const std::string& reason) {
  if (session.state == State::kEnding) return;
  const CallerInfo& caller = session.peer.caller;
  host_->Forget(std::exchange(session.look, 0));
  const std::shared_ptr<SessionCalls> calls = std::move(session.calls);
  if (calls != nullptr) calls->Close();
  if (!told.ok()) {
    log_.Write(LogLevel::kWarn, "session ended", session.tenant(), caller, session.id.value, told,
               SteadyNow());
  }
  const bool was_open = session.state == State::kOpen;
  session.state = State::kEnding;
  if (was_open) ForgetKept(session);
  sender_.Close(session, told);
  if (!was_open) {
    if (!told.ok()) door_.CountRefused();
    Erase(session);
    return;
  }
  session.rpc.reset();
  const auto process = base::ReadProcess(caller.pid);
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
  session.process.Reset();  // one report is enough
  daemon_->Submit(ProcessGone{session.id});
}

void SessionServer::Erase(Session& session) {
  if (session.id.value != 0) key_by_id_.erase(session.id.value);
  sessions_.erase(session.key);
  trims_left_ = kTrimsMore;
  if (trim_at_ == absl::InfiniteFuture()) trim_at_ = SteadyNow() + kTrimAfter;
}

Session* SessionServer::FindKey(uint64_t key) {
  const auto it = sessions_.find(key);
  return it == sessions_.end() ? nullptr : it->second.get();
}

Session* SessionServer::FindOpen(SessionId id) {
  const auto it = key_by_id_.find(id.value);
  Session* const session = it == key_by_id_.end() ? nullptr : FindKey(it->second);
  return session != nullptr && session->state == State::kOpen ? session : nullptr;
}

void SessionServer::Keep(const Session& session) {
  if (options_.keeper == nullptr) return;
  // The keeper remembers an error.
  (void)options_.keeper->Store(NameOf(session.id), {session.socket.get()});
}

void SessionServer::ForgetKept(const Session& session) {
  if (options_.keeper != nullptr) options_.keeper->Remove(NameOf(session.id));
}

void SessionServer::DropForeign(std::map<SessionId, wire::UniqueFd>* sockets) {
  const std::vector<SessionSnapshot> sessions =
      daemon_->Inspect([](const JobMachine& machine) { return machine.Sessions(); });
  for (const SessionSnapshot& session : sessions) {
    const auto found = sockets->find(session.id);
    if (found == sockets->end() || IsConnectionOf(found->second.get(), session.caller.pid))
      continue;
    log_.Write(LogLevel::kWarn, "what was kept as a session's socket is not one",
               session.caller.party.Account(), session.caller, session.id.value,
               absl::DataLossError("it is no connection of that process"), SteadyNow());
    options_.keeper->Count(NameOf(session.id), 1);
    options_.keeper->Remove(NameOf(session.id));
    sockets->erase(found);
  }
}

absl::Status SessionServer::Restore(std::map<SessionId, wire::UniqueFd>* sockets) {
  const std::vector<SessionSnapshot> sessions =
      daemon_->Inspect([](const JobMachine& machine) { return machine.Sessions(); });
  // By pid: a process may have many sessions, and the kernel takes long to report the start of a
  // process that has many threads.
  std::map<int64_t, uint64_t> starts;
  for (const SessionSnapshot& session : sessions) {
    const auto [start, is_new] = starts.try_emplace(session.caller.pid, 0);
    if (is_new) {
      const absl::StatusOr<uint64_t> found = ProcessStart(session.caller.pid);
      if (!found.ok() && !absl::IsNotFound(found.status())) {
        return CannotGoOn(session, found.status());
      }
      start->second = found.value_or(0);
    }
    wire::UniqueFd socket;
    if (auto found = sockets->extract(session.id); !found.empty() && !session.ending) {
      options_.keeper->Count(NameOf(session.id), 1);
      socket = std::move(found.mapped());
    }
    const absl::StatusOr<bool> goes_on = RestoreOne(session, start->second, std::move(socket));
    if (!goes_on.ok()) return CannotGoOn(session, goes_on.status());
    if (!*goes_on) daemon_->Submit(ProcessGone{session.id});
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> SessionServer::RestoreOne(const SessionSnapshot& from, uint64_t start,
                                               wire::UniqueFd socket) {
  auto restored = std::make_unique<Session>();
  Session& session = *restored;
  session.key = next_key_++;
  session.id = from.id;
  session.state = State::kEnding;
  session.peer.caller = from.caller;
  Applicant& applicant = session.peer.applicant;
  applicant = {from.caller.party.Account(), door_.parties().IsOperator(from.caller.party)};
  session.peer.account = daemon_->accounts().Open(applicant.tenant, applicant.is_operator);
  const bool has_socket = socket.valid();
  absl::StatusOr<wire::UniqueFd> pidfd =
      PidfdOf(socket.get(), has_socket ? options_.attestation : Attestation::kNonce,
              from.caller.pid, &session.peer.attested);
  if (absl::IsResourceExhausted(pidfd.status())) return pidfd.status();
  // The pid was this process's when its start was read, if the process still runs. Otherwise the
  // pid belongs to another process, or to none.
  if (!pidfd.ok() || start != from.caller.process_start || ProcessHasEnded(pidfd->get())) {
    if (has_socket) {
      ForgetKept(session);
      closer_.CloseConnection(applicant.tenant, std::move(socket));
    }
    return false;
  }
  // A client that was admitted under higher limits is not ended; it then has no place.
  absl::StatusOr<Admission::Place> place = door_.admission().AdmitHandshake(applicant, session.key);
  if (place.ok() && place->Attested().ok()) session.place = *std::move(place);
  absl::Status status = WatchProcess(session, &*pidfd);
  if (!status.ok()) return status;
  key_by_id_[session.id.value] = session.key;
  sessions_.emplace(session.key, std::move(restored));
  if (!has_socket) return true;
  absl::StatusOr<InFlight::Hold> share = sender_.Share(applicant, 0);
  const bool received = AllReceived(socket.get());
  status = WatchSocket(session, &socket);
  if (!status.ok()) return status;
  session.awaits = options_.generation;
  session.announced = false;
  MakeOpen(session, *std::move(share));
  if (!received) session.outbox.CountEarlier();
  EndIfFailed(session, sender_.Flush(session));
  return true;
}

}  // namespace iris::server
