// What a session says: its handshake, and the frames of an open one. The rest of SessionServer is
// in session_server.cc.
#include <sys/epoll.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/job/clock.h"
#include "server/link/drop_unread.h"
#include "server/session/session_server.h"

namespace iris::server {
void SessionServer::OnSocket(Session& session, uint32_t events) {
  const uint64_t key = session.key;
  constexpr uint32_t kClosed = EPOLLHUP | EPOLLERR | EPOLLRDHUP;
  if (session.look != 0 && (events & kClosed) != 0) {
    return HangUp(session, absl::OkStatus(), "its socket closed");
  }
  if ((events & EPOLLOUT) != 0 && session.calls != nullptr) session.calls->OnWritable();
  const Party tenant = session.applicant.tenant;
  const std::shared_ptr<Account> account = session.account;
  // What is left in the socket is reported again in the next turn. A handshake waits for no turn:
  // who has spoken is not to be ended for a newer one.
  const auto may_run = [&] { return session.state == State::kHandshake || account->MayRun(); };
  for (int i = 0; i < kFramesPerTurn && may_run(); ++i) {
    const AtWork at_work(account.get());
    // Nothing more is read from a tenant of whose descriptors too many do not close.
    const absl::Status closes = closer_.Room(tenant);
    if (!closes.ok()) return EndIfFailed(session, closes);
    if (!MayReceive(session, (events & kClosed) != 0)) return;
    std::vector<wire::UniqueFd> refused;
    absl::StatusOr<wire::Frame> frame = wire::ReceiveFrame(session.socket.get(), &refused);
    if (!frame.ok()) {
      closer_.Close(tenant, std::move(refused));
      const bool none = wire::IsNoFrameYet(frame.status());
      if (none && (events & kClosed) == 0) return;
      // Half-closed by the client is closed: no further frame can come.
      if (none || absl::IsUnavailable(frame.status())) {
        return HangUp(session, absl::OkStatus(), "its socket closed");
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
      // What comes from now on was not looked at. Half-closed by the client is closed: no further
      // frame can come.
      if (closed) HangUp(session, absl::OkStatus(), "its socket closed");
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
      host_->Look(session.socket.get(), session.applicant.tenant,
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
    const Handshake::Step step = session.handshake->OnFrame(frame);
    if (const auto* refuse = std::get_if<Handshake::Refuse>(&step)) return refuse->reason;
    if (const auto* challenge = std::get_if<Handshake::Challenge>(&step)) {
      session.place.Heard();
      return wire::SendFrame(session.socket.get(), wire::FrameType::kChallenge, challenge->nonce);
    }
    return Open(session);
  }
  return OnOpenFrame(session, frame);
}

absl::Status SessionServer::OnOpenFrame(Session& session, const wire::Frame& frame) {
  if (session.awaits != 0) return OnFrameBefore(session, frame);
  absl::Status status =
      CheckFrame(frame, session.caller.pid,
                 {wire::FrameType::kAck, wire::FrameType::kRpcRequest, wire::FrameType::kCall,
                  wire::FrameType::kCancelCall, wire::FrameType::kTaken});
  if (!status.ok()) return status;
  switch (frame.type) {
    case wire::FrameType::kAck: {
      const absl::StatusOr<wire::AckPayload> ack = frame.As<wire::AckPayload>();
      status = ack.ok() ? session.outbox.Acknowledge(ack->count) : ack.status();
      return status.ok() ? Flush(session) : status;
    }
    case wire::FrameType::kRpcRequest:
      status = session.rpc->Ask(frame);
      return status.ok() ? Flush(session) : status;
    default:
      return session.calls->OnFrame(frame);
  }
}

absl::Status SessionServer::OnFrameBefore(Session& session, const wire::Frame& frame) {
  const absl::Status status = CheckFrame(
      frame, session.caller.pid,
      {wire::FrameType::kAck, wire::FrameType::kRpcRequest, wire::FrameType::kCall,
       wire::FrameType::kCancelCall, wire::FrameType::kTaken, wire::FrameType::kRestartSeen});
  if (!status.ok() || frame.type != wire::FrameType::kRestartSeen) return status;
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

void SessionServer::MakeOpen(Session& session, InFlight::Hold share) {
  key_by_id_[session.id.value] = session.key;
  session.state = State::kOpen;
  session.outbox = Outbox(std::move(share));
  const RpcPeer client{session.applicant.tenant, session.id, session.caller, session.account};
  session.rpc.emplace(host_.get(), client);
  session.calls = SessionCalls::Create(
      {&session.socket, client, &serve_,
       [this, id = session.id](const absl::Status& reason) { EndSession(id, reason); },
       [closer = closer_, tenant = client.tenant](wire::UniqueFd fd) mutable {
         closer.Close(tenant, std::move(fd));
       }});
}

absl::Status SessionServer::Open(Session& session) {
  absl::Status admitted = daemon_->accounts().Room();
  if (!admitted.ok()) return admitted;
  admitted = session.place.Attested();
  if (!admitted.ok()) return admitted;
  InFlight::Hold share(&in_flight_, session.applicant);
  const bool wants_socket = !session.handshake->calls_by_frames();
  if (wants_socket && share.Room() == 0) LookForReceived(SteadyNow());
  if (wants_socket && share.Room() == 0) return absl::ResourceExhaustedError(share.Why());
  const absl::StatusOr<uint64_t> start = ProcessStart(session.caller.pid);
  if (!start.ok()) return start.status();
  if (ProcessHasEnded(session.pidfd.get())) {
    return absl::AbortedError("the process that connected has ended");
  }
  session.caller.process_start = *start;
  absl::StatusOr<Poller::Watched> process =
      poller_->Watch(&session.pidfd, EPOLLIN, [this, &session](uint32_t) { Gone(session); });
  if (!process.ok()) return process.status();
  session.process = *std::move(process);
  do {
    session.id = SessionId{NewSessionId()};
  } while (key_by_id_.count(session.id.value) != 0);
  // Before the machine knows of it: an irisd that finds it in the state has its socket.
  if (session.handshake->outlives_irisd()) Keep(session);
  session.handshake.reset();
  sessions_total_.fetch_add(1, std::memory_order_relaxed);
  daemon_->Submit(SessionOpened{session.id, session.caller, ProcessAge(*start)});
  MakeOpen(session, std::move(share));
  if (!wants_socket) return Welcome(session, {});
  const absl::StatusOr<wire::UniqueFd> theirs = session.rpc->Make();
  if (!theirs.ok()) return theirs.status();
  const int fd = theirs->get();
  return Welcome(session, {&fd, 1});
}

}  // namespace iris::server
