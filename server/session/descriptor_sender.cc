#include "server/session/descriptor_sender.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "server/job/clock.h"

namespace iris::server {
namespace {

constexpr auto kRetryEvery = absl::Milliseconds(20);
constexpr auto kRetryAfterRoom = absl::Milliseconds(1);

}  // namespace

absl::StatusOr<InFlight::Hold> DescriptorSender::Share(const Applicant& applicant,
                                                       uint32_t n_needed) {
  InFlight::Hold share(&in_flight_, applicant);
  if (share.Room() < n_needed) LookForReceived(SteadyNow());
  if (share.Room() < n_needed) return absl::ResourceExhaustedError(share.Why());
  return share;
}

absl::Status DescriptorSender::Welcome(Session& session, const wire::WelcomePayload& welcome,
                                       absl::Span<const int> rpc_socket) {
  absl::Status sent =
      wire::SendFrame(session.socket.get(), wire::FrameType::kWelcome, welcome, rpc_socket);
  if (!sent.ok() || rpc_socket.empty()) return sent;
  session.outbox.CountWelcome();
  WatchUnread(session);
  return absl::OkStatus();
}

Outbox::Socket DescriptorSender::SocketOf(const Session& session) {
  const int socket = session.socket.get();
  return {[socket](const wire::DescriptorsPayload& payload, absl::Span<const int> fds) {
            return wire::SendFrame(socket, wire::FrameType::kDescriptors, payload, fds);
          },
          [socket] { return AllReceived(socket); }};
}

void DescriptorSender::WatchUnread(Session& session) {
  if (session.outbox.share().count() > 0 && !std::exchange(session.unread, true)) {
    unread_.push_back(session.key);
  }
}

absl::StatusOr<bool> DescriptorSender::Announce(Session& session) {
  if (session.announced) return true;
  const absl::Status sent = wire::SendFrame(session.socket.get(), wire::FrameType::kRestarted,
                                            MakeRestarted(session.awaits));
  if (absl::IsResourceExhausted(sent)) return false;
  // The hang-up of a peer that is gone will be reported.
  if (!sent.ok() && !absl::IsUnavailable(sent)) return sent;
  session.announced = true;
  return true;
}

void DescriptorSender::RetryLater(Session& session, absl::Time now) {
  if (std::exchange(session.retries, true)) return;
  if (retries_.empty()) retry_at_ = now + kRetryEvery;
  retries_.push_back(session.key);
}

absl::Status DescriptorSender::Flush(Session& session) {
  const absl::Time now = SteadyNow();
  const absl::StatusOr<bool> announced = Announce(session);
  if (!announced.ok()) return announced.status();
  if (!*announced) {
    RetryLater(session, now);
    return absl::OkStatus();
  }
  const Outbox::Socket socket = SocketOf(session);
  // A session that has received descriptors makes room for the next session of its tenant.
  if (session.outbox.Look(socket)) retry_at_ = std::min(retry_at_, now + kRetryAfterRoom);
  // The gRPC socket precedes the descriptors, since calls of the client wait for it.
  const absl::StatusOr<Outbox::Flushed> given =
      session.rpc->Flush(now, session.outbox, [&session](int fd) {
        return wire::SendEmptyFrame(session.socket.get(), wire::FrameType::kRpcSocket, {&fd, 1});
      });
  if (!given.ok()) return given.status();
  const absl::StatusOr<Outbox::Flushed> flushed = session.outbox.Flush(socket, now, patience_);
  WatchUnread(session);
  if (!flushed.ok()) return flushed.status();
  const bool waits = *given != Outbox::Flushed::kIdle || *flushed != Outbox::Flushed::kIdle;
  if (waits) RetryLater(session, now);
  return absl::OkStatus();
}

void DescriptorSender::Close(Session& session, const absl::Status& told) {
  session.outbox.Look(SocketOf(session));  // before the error is sent, which will be unread, too
  InFlight::Hold unread = session.outbox.Close();
  if (!told.ok()) {
    (void)wire::SendFrame(session.socket.get(), wire::FrameType::kError,
                          wire::MakeErrorPayload(told));
  }
  wire::UniqueFd socket = session.socket.Release();
  if (unread.count() == 0) return closer_->CloseConnection(session.tenant(), std::move(socket));
  shutdown(socket.get(), SHUT_RDWR);  // the peer still reads sent data, and then the end
  ended_.push_back({session.tenant(), std::move(socket), std::move(unread)});
}

void DescriptorSender::RunDeadlines(absl::Time now) {
  if (now < deadline()) return;
  LookForReceived(now);
  retry_at_ = now + kRetryEvery;
  for (const uint64_t key : std::exchange(retries_, {})) {
    Session* const session = find_(key);
    if (session == nullptr) continue;
    session->retries = false;
    if (session->state == Session::State::kOpen) end_(*session, Flush(*session));
  }
}

void DescriptorSender::LookForReceived(absl::Time now) {
  if (now - looked_ < kRetryEvery) return;
  looked_ = now;
  std::erase_if(unread_, [this](uint64_t key) {
    Session* const session = find_(key);
    if (session == nullptr || session->state != Session::State::kOpen) return true;
    session->outbox.Look(SocketOf(*session));
    session->unread = session->outbox.share().count() > 0;
    return !session->unread;
  });
  if (unread_.empty()) unread_.shrink_to_fit();
  std::erase_if(ended_, [this](UnreadSocket& ended) {
    if (!AllReceived(ended.socket.get())) return false;
    closer_->CloseConnection(ended.tenant, std::move(ended.socket));
    return true;
  });
  if (ended_.empty()) ended_.shrink_to_fit();
}

void DescriptorSender::Clear() {
  for (UnreadSocket& ended : std::exchange(ended_, {})) {
    closer_->CloseConnection(ended.tenant, std::move(ended.socket));
  }
}

}  // namespace iris::server
