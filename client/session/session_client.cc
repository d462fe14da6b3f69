#include "client/session/session_client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/base/annotate.h"
#include "client/base/clock.h"
#include "client/base/log.h"
#include "client/base/runtime_dir.h"
#include "client/base/thread.h"
#include "device/base/bytes.h"
#include "device/base/posix.h"
#include "proto/wire/limits.h"
#include "proto/wire/version.h"

namespace iris::internal {
namespace {

constexpr char kSocketName[] = "session.sock";

// The least time that irisd has to answer a handshake, once it has accepted.
constexpr absl::Duration kHandshakeTimeout = absl::Seconds(5);
constexpr absl::Duration kBackoffMin = absl::Milliseconds(5);
constexpr absl::Duration kBackoffMax = absl::Milliseconds(200);

// Waits for one of `events`, an error or a hang-up of `fd`. Returns false if the deadline has
// passed.
bool PollUntil(int fd, short events, absl::Time deadline) {
  for (;;) {
    const absl::Duration left = deadline - Now();
    const int64_t ms = std::clamp<int64_t>(absl::ToInt64Milliseconds(left) + 1, 0, 1000);
    struct pollfd p = {fd, events, 0};
    const int n = poll(&p, 1, static_cast<int>(ms));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return true;  // the next call on fd says why
    if (left <= absl::ZeroDuration()) return false;
  }
}

DescriptorKey KeyOf(const wire::DescriptorRecord& record) {
  DescriptorKey key;
  key.kind = static_cast<wire::DescriptorKind>(record.kind);
  key.job_id = record.job_id;
  key.epoch = record.epoch;
  if (key.kind == wire::DescriptorKind::kControlPage || key.kind == wire::DescriptorKind::kLink) {
    key.rank = record.rank;
  }
  if (key.kind == wire::DescriptorKind::kSegment) key.segment_id = record.segment_id;
  return key;
}

// Returns the text of a field that may have no zero at its end.
template <size_t n>
std::string TextOf(const char (&text)[n]) {
  return std::string(text, strnlen(text, n));
}

// The interval of checks for the session's end while irisd does not read.
constexpr int kLookMs = 50;
// The wait for the reason after a failed write, which the session's thread is about to receive.
constexpr absl::Duration kEndShows = absl::Seconds(1);

// Makes a memfd with these bytes, sealed against every change.
absl::StatusOr<wire::UniqueFd> MakeSealed(const std::string& bytes) {
  wire::UniqueFd fd(memfd_create("iris-request", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return wire::ErrnoStatus(errno, "make a memfd for a request");
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n =
        base::Retry([&] { return write(fd.get(), bytes.data() + done, bytes.size() - done); });
    if (n <= 0) return wire::ErrnoStatus(errno, "write a request to a memfd");
    done += static_cast<size_t>(n);
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return wire::ErrnoStatus(errno, "seal the memfd of a request");
  }
  return fd;
}

}  // namespace

int SessionClient::TryConnect(const std::string& path, absl::Time give_up, wire::UniqueFd* socket) {
  struct sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return ENAMETOOLONG;
  std::memcpy(address.sun_path, path.data(), path.size());
  wire::UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return errno;
  // If many clients connect, the kernel admits those that wait in connect() in order, and a client
  // that only polls would find the queue full. EAGAIN means that the time is over.
  const absl::Duration wait = std::max(give_up - Now(), absl::Milliseconds(1));
  const struct timeval timeout = absl::ToTimeval(wait);
  const bool bounded =
      wait == absl::InfiniteDuration() ||
      setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) == 0;
  if (!bounded ||
      base::Retry([&] {
        return connect(fd.get(), reinterpret_cast<struct sockaddr*>(&address), sizeof(address));
      }) != 0 ||
      fcntl(fd.get(), F_SETFL, O_NONBLOCK) != 0) {
    return errno;
  }
  *socket = std::move(fd);
  return 0;
}

absl::StatusOr<std::shared_ptr<SessionClient>> SessionClient::Connect(SessionOptions options) {
  std::shared_ptr<SessionClient> client(new SessionClient());
  const absl::Time give_up = Now() + options.connect_timeout;
  absl::Duration backoff = kBackoffMin;
  for (;; absl::SleepFor(backoff), backoff = std::min(backoff * 2, kBackoffMax)) {
    // The first directory's error is the one to report, unless a later one has a socket that
    // refuses.
    int error = 0;
    for (const std::string& dir : options.runtime_dirs) {
      const int this_error =
          TryConnect(absl::StrCat(dir, "/", kSocketName), give_up, &client->socket_);
      if (this_error == 0) {
        client->runtime_dir_ = dir;
        break;
      }
      if (error == 0) error = this_error;
    }
    absl::Status status;
    bool may_come = false;
    if (client->socket_.valid()) {
      status = client->Handshake(std::max(kHandshakeTimeout, give_up - Now()));
      if (status.ok()) break;
      // irisd starts or stops, or has ended this handshake for a newer one in a crowd.
      may_come = absl::IsUnavailable(status);
      client->socket_.Reset();
    } else if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENAMETOOLONG) {
      status = wire::ErrnoStatus(
          error,
          absl::StrCat("connect to irisd at ", options.runtime_dirs.front(), "/", kSocketName));
    } else {
      may_come = error == ENOENT || error == ECONNREFUSED || error == EAGAIN || error == ENOTDIR;
      status = CannotReach(options.runtime_dirs, kSocketName, error);
    }
    if (!may_come || Now() + backoff > give_up) return status;
  }
  client->stop_event_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!client->stop_event_.valid()) return wire::ErrnoStatus(errno, "make an eventfd");
  client->on_end_ = std::move(options.on_end);
  client->receiver_ = StartThread([self = client.get()] { self->ReceiveLoop(); });
  return client;
}

absl::Status SessionClient::Handshake(absl::Duration patience) {
  const absl::Time deadline = Now() + patience;
  const std::string where = absl::StrCat("session with irisd at ", runtime_dir_);
  wire::HelloPayload hello;
  hello.version_max = wire::kVersionRestarts;
  hello.flags = wire::kCallsByFrames;
  std::strncpy(hello.client_version, wire::kIrisVersion, sizeof(hello.client_version) - 1);
  // irisd may have refused and closed already: then its reason can be read.
  absl::Status sent = wire::SendFrame(socket_.get(), wire::FrameType::kHello, hello);
  for (;;) {
    absl::StatusOr<wire::Frame> frame = wire::ReceiveFrame(socket_.get());
    if (!frame.ok() && wire::IsNoFrameYet(frame.status())) {
      if (!PollUntil(socket_.get(), POLLIN, deadline)) {
        return absl::DeadlineExceededError(absl::StrCat(
            where, ": irisd did not answer the handshake within ",
            absl::FormatDuration(absl::Ceil(patience, absl::Milliseconds(1))),
            "; is it stopped, or being restarted? A longer connect_timeout waits for that"));
      }
      continue;
    }
    if (!frame.ok()) {
      const absl::Status& status = sent.ok() ? frame.status() : sent;
      return Annotate(status, where);
    }
    switch (frame->type) {
      case wire::FrameType::kError: {
        auto error = frame->As<wire::ErrorPayload>();
        if (!error.ok()) return error.status();
        return wire::StatusFromErrorPayload(*error);
      }
      case wire::FrameType::kChallenge: {
        auto nonce = frame->As<wire::NoncePayload>();
        if (!nonce.ok()) return nonce.status();
        sent = wire::SendFrame(socket_.get(), wire::FrameType::kChallengeReply, *nonce);
        continue;
      }
      case wire::FrameType::kWelcome: {
        auto welcome = frame->As<wire::WelcomePayload>();
        if (!welcome.ok()) return welcome.status();
        if (!frame->fds.empty()) {
          return absl::FailedPreconditionError(
              absl::StrCat(where, ": irisd ", TextOf(welcome->daemon_version),
                           " takes calls by gRPC alone, and this library, ", wire::kIrisVersion,
                           ", makes them by frames: install matching versions"));
        }
        welcome_ = *welcome;
        return absl::OkStatus();
      }
      case wire::FrameType::kRestarted:
        return absl::UnavailableError(
            absl::StrCat(where, ": irisd was restarted during the handshake"));
      default:
        return absl::InternalError(absl::StrCat(where, ": irisd sent frame type ",
                                                static_cast<int>(frame->type),
                                                " during the handshake"));
    }
  }
}

SessionClient::~SessionClient() {
  if (receiver_.joinable()) {
    const uint64_t one = 1;
    (void)!write(stop_event_.get(), &one, sizeof(one));
    receiver_.join();
  }
}

absl::Status SessionClient::status() const {
  absl::MutexLock lock(&mu_);
  return status_;
}

bool SessionClient::WaitForEnd(absl::Duration timeout) const {
  absl::MutexLock lock(&mu_);
  const auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !status_.ok(); };
  return mu_.AwaitWithTimeout(absl::Condition(&ended), timeout);
}

void SessionClient::Ended(const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    status_ = status;
  }
  if (on_end_) on_end_();
}

void SessionClient::ReceiveLoop() {
  for (;;) {
    short wanted = POLLIN;
    {
      absl::MutexLock lock(&mu_);
      if (owes_seen_ || owes_acks_ > 0) wanted |= POLLOUT;
    }
    struct pollfd polls[2] = {{socket_.get(), wanted, 0}, {stop_event_.get(), POLLIN, 0}};
    if (poll(polls, 2, -1) < 0) {
      if (errno == EINTR) continue;
      return Ended(wire::ErrnoStatus(errno, "wait for irisd's frames"));
    }
    if (polls[1].revents != 0) return;
    if ((polls[0].revents & POLLOUT) != 0) {
      absl::MutexLock lock(&mu_);
      (void)TrySendOwed();
    }
    const absl::Status status = Receive();
    if (!status.ok()) return Ended(status);
  }
}

absl::Status SessionClient::Receive() {
  absl::StatusOr<wire::Frame> frame = wire::ReceiveFrame(socket_.get());
  if (!frame.ok()) {
    if (wire::IsNoFrameYet(frame.status())) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("the session with irisd at ", runtime_dir_,
                                               " ended: ", frame.status().message()));
  }
  switch (frame->type) {
    case wire::FrameType::kError: {
      auto error = frame->As<wire::ErrorPayload>();
      if (!error.ok()) return error.status();
      const absl::Status status = wire::StatusFromErrorPayload(*error);
      return absl::Status(
          status.ok() ? absl::StatusCode::kUnavailable : status.code(),
          absl::StrCat("irisd at ", runtime_dir_, " ended the session: ", status.message()));
    }
    case wire::FrameType::kDescriptors:
      return TakeIn(*std::move(frame));
    case wire::FrameType::kAnswer:
    case wire::FrameType::kFailure:
      return OnAnswer(*frame);
    case wire::FrameType::kRestarted:
      return OnRestarted(*frame);
    default:
      return absl::InternalError(
          absl::StrCat("irisd sent an unexpected frame of type ", static_cast<int>(frame->type)));
  }
}

absl::Status SessionClient::TakeIn(wire::Frame frame) {
  auto payload = frame.As<wire::DescriptorsPayload>();
  if (!payload.ok()) return payload.status();
  if (payload->count != frame.fds.size() || payload->count > wire::kMaxDescriptorsPerFrame) {
    return absl::InternalError(absl::StrCat("irisd announced ", payload->count,
                                            " descriptors and sent ", frame.fds.size()));
  }
  absl::MutexLock lock(&mu_);
  for (uint32_t i = 0; i < payload->count; ++i) {
    const wire::DescriptorRecord& record = payload->records[i];
    // irisd may send a descriptor again after a restart: it replaces the waiting one.
    wire::UniqueFd& place = descriptors_[KeyOf(record)];
    if (descriptors_.size() > kMaxDescriptors) {
      return absl::ResourceExhaustedError("irisd sent descriptors that nobody asked for");
    }
    place = std::move(frame.fds[i]);
  }
  owes_acks_ += payload->count;
  (void)TrySendOwed();
  return absl::OkStatus();
}

absl::Status SessionClient::OnAnswer(const wire::Frame& frame) {
  if (frame.type == wire::FrameType::kFailure) {
    const absl::StatusOr<wire::FailurePayload> failure = frame.As<wire::FailurePayload>();
    if (!failure.ok()) return failure.status();
    absl::MutexLock lock(&mu_);
    const auto it = pending_.find(failure->call);
    if (it == pending_.end()) return absl::OkStatus();  // no thread waits any more
    it->second->ended = true;
    it->second->status = wire::StatusFromErrorPayload(failure->error);
    pending_.erase(it);
    return absl::OkStatus();
  }
  const auto parts = frame.Split<wire::AnswerPayload>();
  if (!parts.ok()) return parts.status();
  const auto& [answer, bytes] = *parts;
  absl::MutexLock lock(&mu_);
  const auto it = pending_.find(answer.call);
  if (it == pending_.end()) return absl::OkStatus();
  Pending& pending = *it->second;
  if ((answer.flags & wire::kAnswerMessage) != 0) {
    if (pending.partial.size() + bytes.size() > wire::kMaxRpcBytes) {
      return absl::InternalError(
          absl::StrCat("irisd sent an answer of more than ", base::SizeText(wire::kMaxRpcBytes)));
    }
    pending.partial.append(bytes);
    if ((answer.flags & wire::kAnswerContinues) == 0) {
      pending.messages.push_back(std::exchange(pending.partial, std::string()));
    }
  }
  if ((answer.flags & wire::kAnswerEnds) == 0) return absl::OkStatus();
  pending.ended = true;
  if (!pending.streams && pending.messages.empty()) {
    pending.status = absl::InternalError("irisd has given no answer");
  }
  pending_.erase(it);
  return absl::OkStatus();
}

absl::Status SessionClient::OnRestarted(const wire::Frame& frame) {
  const auto restarted = frame.As<wire::RestartedPayload>();
  if (!restarted.ok()) return restarted.status();
  const uint64_t generation = restarted->generation;
  {
    absl::MutexLock lock(&mu_);
    if (generation <= generation_) {
      return absl::InternalError(absl::StrCat("irisd said that its generation ", generation,
                                              " has come after generation ", generation_));
    }
    generation_ = generation;
    for (auto& [number, pending] : pending_) {
      pending->number = 0;
      pending->partial.clear();
      pending->untold = 0;
      if (!pending->streams) pending->messages.clear();
      pending->old = pending->messages.size();
    }
    pending_.clear();
    // The previous irisd has sent the descriptors that the owed frames acknowledge.
    owes_acks_ = 0;
    owes_seen_ = true;
    (void)TrySendOwed();
  }
  log::Debug("irisd at ", runtime_dir_, " restarted (generation ", generation, "); calls go on");
  return absl::OkStatus();
}

// Calls.

absl::Status SessionClient::Over(Caller caller) const {
  if (!status_.ok()) return status_;
  if (cancelled_ && caller == Caller::kMember) {
    return absl::CancelledError("this context has left the job");
  }
  return absl::OkStatus();
}

absl::StatusOr<SessionClient::Request> SessionClient::MakeRequest(wire::CallMethod method,
                                                                  const std::string& bytes,
                                                                  absl::Span<const int> fds) {
  if (bytes.size() > wire::kMaxRpcBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a request to irisd has ",
                                                   base::SizeText(bytes.size()), "; at most ",
                                                   base::SizeText(wire::kMaxRpcBytes)));
  }
  Request request;
  request.header.method = static_cast<uint32_t>(method);
  request.header.bytes = static_cast<uint32_t>(bytes.size());
  if (bytes.size() <= wire::kMaxCallFrameBytes) {
    request.bytes = bytes;
    request.fds = fds;
    return request;
  }
  absl::StatusOr<wire::UniqueFd> sealed = MakeSealed(bytes);
  if (!sealed.ok()) return sealed.status();
  request.sealed = *std::move(sealed);
  return request;
}

absl::Status SessionClient::TrySendOwed() {
  if (owes_seen_) {
    wire::RestartSeenPayload seen;
    seen.generation = generation_;
    const absl::Status sent = wire::SendFrame(socket_.get(), wire::FrameType::kRestartSeen, seen);
    if (!sent.ok()) return sent;
    owes_seen_ = false;
  }
  if (owes_acks_ > 0) {
    wire::AckPayload ack;
    ack.count = owes_acks_;
    const absl::Status sent = wire::SendFrame(socket_.get(), wire::FrameType::kAck, ack);
    if (!sent.ok()) return sent;
    owes_acks_ = 0;
  }
  return absl::OkStatus();
}

absl::Status SessionClient::TryMake(const Request& request, Pending* pending) {
  if (absl::Status status = TrySendOwed(); !status.ok()) return status;
  wire::CallPayload header = request.header;
  header.call = last_call_ + 1;
  const int sealed = request.sealed.get();
  absl::Status sent =
      wire::SendFrame(socket_.get(), wire::FrameType::kCall, header, request.bytes,
                      request.sealed.valid() ? absl::MakeConstSpan(&sealed, 1) : request.fds);
  if (!sent.ok()) return sent;
  last_call_ = header.call;
  pending->number = header.call;
  pending->generation = generation_;
  pending_[header.call] = pending;
  return absl::OkStatus();
}

absl::Status SessionClient::Make(const Request& request, absl::Time deadline, Caller caller,
                                 Pending* pending) {
  for (;;) {
    {
      absl::MutexLock lock(&mu_);
      if (absl::Status over = Over(caller); !over.ok()) return over;
      const absl::Status sent = TryMake(request, pending);
      if (sent.ok()) return sent;
      if (!absl::IsResourceExhausted(sent)) {
        const auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !status_.ok(); };
        mu_.AwaitWithTimeout(absl::Condition(&ended), std::min(kEndShows, deadline - Now()));
        return status_.ok() ? sent : status_;
      }
      if (Now() >= deadline) {
        return absl::DeadlineExceededError("irisd does not read this session's calls");
      }
    }
    struct pollfd full = {socket_.get(), POLLOUT, 0};
    (void)poll(&full, 1, kLookMs);
  }
}

SessionClient::Answer SessionClient::Call(wire::CallMethod method, const std::string& request,
                                          absl::Time deadline, Caller caller,
                                          absl::Span<const int> fds) {
  Answer answer;
  const absl::StatusOr<Request> made = MakeRequest(method, request, fds);
  if (!made.ok()) {
    answer.status = made.status();
    return answer;
  }
  Pending pending;
  for (;;) {
    answer.status = Make(*made, deadline, caller, &pending);
    if (!answer.status.ok()) return answer;
    absl::MutexLock lock(&mu_);
    const auto done = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return pending.ended || pending.number == 0 || !Over(caller).ok();
    };
    mu_.AwaitWithTimeout(absl::Condition(&done), deadline - Now());
    answer.status = Over(caller);
    const bool again = !pending.ended && pending.number == 0;
    if (again && answer.status.ok() && Now() < deadline) continue;
    Forget(pending);
    if (pending.ended) {
      answer.answered = true;
      answer.generation = pending.generation;
      answer.status = pending.status;
      if (!pending.messages.empty()) answer.message = std::move(pending.messages.front());
      return answer;
    }
    if (answer.status.ok()) answer.status = absl::DeadlineExceededError("irisd has not answered");
    return answer;
  }
}

absl::StatusOr<std::shared_ptr<SessionClient::Stream>> SessionClient::Open(
    wire::CallMethod method, const std::string& request) {
  auto stream = std::make_shared<Stream>(this);
  stream->bytes = request;
  absl::StatusOr<Request> made = MakeRequest(method, stream->bytes, {});
  if (!made.ok()) return made.status();
  stream->request = *std::move(made);
  stream->pending.streams = true;
  absl::MutexLock lock(&mu_);
  if (absl::Status over = Over(Caller::kMember); !over.ok()) return over;
  TryMake(*stream);
  return stream;
}

void SessionClient::TryMake(Stream& stream) {
  if (stream.pending.number != 0 || !Over(Caller::kMember).ok()) return;
  // The error is ignored: Read calls TryMake again, unless the session is about to end.
  (void)TryMake(stream.request, &stream.pending);
}

bool SessionClient::Read(Stream& stream, std::string* message) {
  absl::MutexLock lock(&mu_);
  Pending& pending = stream.pending;
  const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return !pending.messages.empty() || pending.ended || !Over(Caller::kMember).ok();
  };
  const auto there_or_lost = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return pending.number == 0 || there();
  };
  for (;;) {
    TryMake(stream);
    TellTaken(pending);
    if (there()) break;
    const bool waits_for_room = pending.untold > 0 || pending.number == 0;
    if (waits_for_room) {
      mu_.AwaitWithTimeout(absl::Condition(&there), absl::Milliseconds(kLookMs));
    } else {
      mu_.Await(absl::Condition(&there_or_lost));
    }
  }
  if (cancelled_ || pending.messages.empty()) return false;
  *message = std::move(pending.messages.front());
  pending.messages.pop_front();
  if (pending.old > 0) {
    --pending.old;
  } else {
    ++pending.untold;
  }
  TellTaken(pending);
  return true;
}

void SessionClient::TellTaken(Pending& pending) {
  wire::CallNumberPayload taken;
  taken.call = pending.number;
  if (pending.ended || !status_.ok()) pending.untold = 0;
  while (pending.untold > 0 &&
         wire::SendFrame(socket_.get(), wire::FrameType::kTaken, taken).ok()) {
    --pending.untold;
  }
}

SessionClient::Answer SessionClient::End(Stream& stream) {
  absl::MutexLock lock(&mu_);
  TryMake(stream);
  Answer answer;
  answer.answered = stream.pending.ended;
  answer.generation = stream.pending.generation;
  answer.status = stream.pending.ended ? stream.pending.status : Over(Caller::kMember);
  return answer;
}

SessionClient::Stream::~Stream() {
  absl::MutexLock lock(&session->mu_);
  session->Forget(pending);
}

void SessionClient::Forget(const Pending& pending) {
  if (pending.number == 0 || pending.ended) return;
  pending_.erase(pending.number);
  if (!status_.ok()) return;
  wire::CallNumberPayload cancel;
  cancel.call = pending.number;
  // If irisd does not take this frame, its later answer is ignored.
  (void)wire::SendFrame(socket_.get(), wire::FrameType::kCancelCall, cancel);
}

// Descriptors.

absl::StatusOr<std::vector<wire::UniqueFd>> SessionClient::TakeDescriptors(
    absl::Span<const DescriptorKey> keys, absl::Time deadline, std::optional<uint64_t> generation) {
  absl::MutexLock lock(&mu_);
  const auto here = [this, keys]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return std::all_of(keys.begin(), keys.end(),
                       [this](const DescriptorKey& key) ABSL_SHARED_LOCKS_REQUIRED(mu_) {
                         return descriptors_.count(key) != 0;
                       });
  };
  const auto here_or_ended = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return !status_.ok() || cancelled_ || generation.value_or(generation_) != generation_ || here();
  };
  const bool in_time = mu_.AwaitWithTimeout(absl::Condition(&here_or_ended), deadline - Now());
  if (!here()) {
    if (cancelled_) return absl::CancelledError("this context has left the job");
    if (!in_time) {
      return absl::DeadlineExceededError(absl::StrCat(
          "irisd at ", runtime_dir_, " did not send all of ", keys.size(), " descriptors in time"));
    }
    if (!status_.ok()) return status_;
    return absl::UnavailableError(absl::StrCat("irisd at ", runtime_dir_,
                                               " restarted before it had sent all of ", keys.size(),
                                               " descriptors"));
  }
  std::vector<wire::UniqueFd> fds;
  fds.reserve(keys.size());
  for (const DescriptorKey& key : keys) {
    auto node = descriptors_.extract(key);
    // If a key is given twice, only the first has the descriptor.
    fds.push_back(node.empty() ? wire::UniqueFd() : std::move(node.mapped()));
  }
  return fds;
}

void SessionClient::CancelWaits() {
  absl::MutexLock lock(&mu_);
  cancelled_ = true;
}

void SessionClient::DropDescriptors() {
  std::map<DescriptorKey, wire::UniqueFd> dropped;
  absl::MutexLock lock(&mu_);
  dropped.swap(descriptors_);
}

void SessionClient::DropDescriptors(absl::Span<const DescriptorKey> keys) {
  std::vector<wire::UniqueFd> dropped;
  absl::MutexLock lock(&mu_);
  for (const DescriptorKey& key : keys) {
    auto node = descriptors_.extract(key);
    if (!node.empty()) dropped.push_back(std::move(node.mapped()));
  }
}

}  // namespace iris::internal
