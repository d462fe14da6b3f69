#include "client/session/session_client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
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
#include "device/base/posix.h"
#include "proto/wire/limits.h"
#include "proto/wire/version.h"

namespace iris::internal {
namespace {

constexpr char kSocketName[] = "session.sock";

// How long irisd may take at least to answer a handshake, once it has accepted.
constexpr absl::Duration kHandshakeTimeout = absl::Seconds(5);
constexpr absl::Duration kBackoffMin = absl::Milliseconds(5);
constexpr absl::Duration kBackoffMax = absl::Milliseconds(200);

// True once `fd` has one of `events` (or an error, or a hang-up); false when the deadline has
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

// The text of a field that may have no zero at its end.
template <size_t n>
std::string TextOf(const char (&text)[n]) {
  return std::string(text, strnlen(text, n));
}

}  // namespace

int SessionClient::TryConnect(const std::string& path, absl::Time give_up, wire::UniqueFd* socket) {
  struct sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return ENAMETOOLONG;
  std::memcpy(address.sun_path, path.data(), path.size());
  wire::UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return errno;
  // If many connect, the kernel admits those that wait in connect() in order, and a client that
  // only tries now and then would find the queue full. EAGAIN says that the time is over.
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
  // irisd may have refused and closed already: its reason is then there to be read.
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
        calls_.Use(socket_.get());
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

void SessionClient::End(const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    status_ = status;
  }
  calls_.SessionEnded(status);
  if (on_end_) on_end_();
}

void SessionClient::ReceiveLoop() {
  for (;;) {
    const short wanted = calls_.owes() ? POLLIN | POLLOUT : POLLIN;
    struct pollfd polls[2] = {{socket_.get(), wanted, 0}, {stop_event_.get(), POLLIN, 0}};
    if (poll(polls, 2, -1) < 0) {
      if (errno == EINTR) continue;
      return End(wire::ErrnoStatus(errno, "wait for irisd's frames"));
    }
    if (polls[1].revents != 0) return;
    if ((polls[0].revents & POLLOUT) != 0) calls_.SendOwed();
    const absl::Status status = Receive();
    if (!status.ok()) return End(status);
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
      return calls_.OnFrame(*frame);
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
  {
    absl::MutexLock lock(&mu_);
    for (uint32_t i = 0; i < payload->count; ++i) {
      const wire::DescriptorRecord& record = payload->records[i];
      // irisd may send one again after a restart: it takes the place of the one that waits.
      wire::UniqueFd& place = descriptors_[KeyOf(record)];
      if (descriptors_.size() > kMaxDescriptors) {
        return absl::ResourceExhaustedError("irisd sent descriptors that nobody asked for");
      }
      place = std::move(frame.fds[i]);
    }
  }
  calls_.Acknowledge(payload->count);
  return absl::OkStatus();
}

absl::Status SessionClient::OnRestarted(const wire::Frame& frame) {
  const auto restarted = frame.As<wire::RestartedPayload>();
  if (!restarted.ok()) return restarted.status();
  absl::Status status = calls_.OnRestarted(restarted->generation);
  if (!status.ok()) return status;
  // Calls of this generation are answered on this thread, later.
  {
    absl::MutexLock lock(&mu_);
    generation_ = restarted->generation;
  }
  log::Debug("irisd at ", runtime_dir_, " restarted (generation ", restarted->generation,
             "); calls go on");
  return absl::OkStatus();
}

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
    return !status_.ok() || takes_cancelled_ || generation.value_or(generation_) != generation_ ||
           here();
  };
  const bool in_time = mu_.AwaitWithTimeout(absl::Condition(&here_or_ended), deadline - Now());
  if (!here()) {
    if (takes_cancelled_) return absl::CancelledError("this context has left the job");
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
    // A key given twice has its descriptor the first time alone.
    fds.push_back(node.empty() ? wire::UniqueFd() : std::move(node.mapped()));
  }
  return fds;
}

void SessionClient::CancelWaits() {
  calls_.Cancel();
  absl::MutexLock lock(&mu_);
  takes_cancelled_ = true;
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
