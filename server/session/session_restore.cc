// Sessions that outlive their irisd: how their sockets are kept, and how the next irisd goes on.
// The rest of SessionServer is in session_server.cc.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/job/clock.h"
#include "server/keep/kept_name.h"
#include "server/session/lingering.h"
#include "server/session/session_server.h"

namespace iris::server {
namespace {

// Whether that process has connected the socket.
bool IsConnectionOf(int socket, int64_t pid) {
  int type = 0, listens = 0;
  socklen_t bytes = sizeof(type);
  if (getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &bytes) != 0 || type != SOCK_SEQPACKET) {
    return false;
  }
  bytes = sizeof(listens);
  if (getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || listens != 0) {
    return false;
  }
  const absl::StatusOr<CallerInfo> peer = PeerCaller(socket);
  return peer.ok() && peer->pid == pid;
}

// The start of whatever process has this pid now; 0: none has.
absl::StatusOr<uint64_t> StartOf(int64_t pid) {
  const absl::StatusOr<uint64_t> start = ProcessStart(pid);
  if (absl::IsNotFound(start.status())) return uint64_t{0};
  return start;
}

absl::Status CannotGoOn(const SessionSnapshot& session, const absl::Status& why) {
  return absl::Status(why.code(), absl::StrCat("go on with the session of process ",
                                               session.caller.pid, ": ", why.message()));
}

std::string NameOf(SessionId id) { return KeptName{KeptName::Kind::kSession, id.value}.Text(); }

}  // namespace

void SessionServer::Keep(const Session& session) {
  if (options_.keeper == nullptr) return;
  // The keeper remembers what went wrong.
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
  // By pid: a process may have many sessions, and the kernel takes long to say this of one that has
  // many threads.
  std::map<int64_t, uint64_t> starts;
  for (const SessionSnapshot& session : sessions) {
    const auto [start, is_new] = starts.try_emplace(session.caller.pid, 0);
    if (is_new) {
      const absl::StatusOr<uint64_t> found = StartOf(session.caller.pid);
      if (!found.ok()) return CannotGoOn(session, found.status());
      start->second = *found;
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
  session.caller = from.caller;
  session.applicant = {from.caller.party.Account(), tenants_.IsOperator(from.caller.party)};
  session.account =
      daemon_->accounts().Open(session.applicant.tenant, session.applicant.is_operator);
  session.state = State::kEnding;
  const bool has_socket = socket.valid();
  const auto gone = [&] {
    if (has_socket) ForgetKept(session);
    if (socket.valid()) closer_.CloseConnection(session.applicant.tenant, std::move(socket));
    return false;
  };
  absl::StatusOr<wire::UniqueFd> pidfd = has_socket && options_.attestation != Attestation::kNonce
                                             ? PeerPidfd(socket.get())
                                             : absl::UnimplementedError("no socket");
  if (absl::IsUnimplemented(pidfd.status())) pidfd = OpenPidfd(from.caller.pid);
  if (absl::IsResourceExhausted(pidfd.status())) return pidfd.status();
  // The pid was this process's when its start was read, if it is still: else its number is another
  // process's, or nobody's.
  if (!pidfd.ok() || start != from.caller.process_start || ProcessHasEnded(pidfd->get())) {
    return gone();
  }
  // A client that came in while limits were higher is not ended for it, and has no place then.
  absl::StatusOr<Admission::Place> place =
      admission_.AdmitHandshake(session.applicant, session.key);
  if (place.ok() && place->Attested().ok()) session.place = *std::move(place);
  absl::StatusOr<Poller::Watched> process =
      poller_->Watch(&*pidfd, EPOLLIN, [this, &session](uint32_t) { Gone(session); });
  if (!process.ok()) return process.status();
  session.process = *std::move(process);
  key_by_id_[session.id.value] = session.key;
  sessions_.emplace(session.key, std::move(restored));
  if (!has_socket) return true;
  InFlight::Hold share(&in_flight_, session.applicant);
  const bool received = AllReceived(socket.get());
  absl::StatusOr<Poller::Watched> watched =
      poller_->Watch(&socket, EPOLLIN | EPOLLRDHUP,
                     [this, &session](uint32_t events) { OnSocket(session, events); });
  if (!watched.ok()) return watched.status();
  session.awaits = options_.generation;
  session.announced = false;
  session.socket = *std::move(watched);
  MakeOpen(session, std::move(share));
  if (!received) session.outbox.CountEarlier();
  EndIfFailed(session, Flush(session));
  return true;
}

}  // namespace iris::server
