#include "client/wire/frame_calls.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/base/clock.h"
#include "device/base/bytes.h"
#include "device/base/posix.h"
#include "proto/wire/limits.h"

namespace iris::internal {
namespace {

// While irisd does not read: look again so often whether the session has ended.
constexpr int kLookMs = 50;
// A socket that cannot be written says nothing of why. The session's thread is about to know.
constexpr absl::Duration kEndShows = absl::Seconds(1);

}  // namespace

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

absl::Status FrameCalls::Over(Caller caller) const {
  if (!ended_.ok()) return ended_;
  if (cancelled_ && caller == Caller::kMember) {
    return absl::CancelledError("this context has left the job");
  }
  return absl::OkStatus();
}

absl::StatusOr<FrameCalls::Request> FrameCalls::MakeRequest(wire::CallMethod method,
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

absl::Status FrameCalls::TrySendOwed() {
  if (owes_seen_) {
    wire::RestartSeenPayload seen;
    seen.generation = generation_;
    const absl::Status sent = wire::SendFrame(socket_, wire::FrameType::kRestartSeen, seen);
    if (!sent.ok()) return sent;
    owes_seen_ = false;
  }
  if (owes_acks_ > 0) {
    wire::AckPayload ack;
    ack.count = owes_acks_;
    const absl::Status sent = wire::SendFrame(socket_, wire::FrameType::kAck, ack);
    if (!sent.ok()) return sent;
    owes_acks_ = 0;
  }
  return absl::OkStatus();
}

absl::Status FrameCalls::TryMake(const Request& request, Pending* pending) {
  if (absl::Status status = TrySendOwed(); !status.ok()) return status;
  wire::CallPayload header = request.header;
  header.call = last_call_ + 1;
  const int sealed = request.sealed.get();
  absl::Status sent =
      wire::SendFrame(socket_, wire::FrameType::kCall, header, request.bytes,
                      request.sealed.valid() ? absl::MakeConstSpan(&sealed, 1) : request.fds);
  if (!sent.ok()) return sent;
  last_call_ = header.call;
  pending->number = header.call;
  pending->generation = generation_;
  pending_[header.call] = pending;
  return absl::OkStatus();
}

absl::Status FrameCalls::Make(const Request& request, absl::Time deadline, Caller caller,
                              Pending* pending) {
  for (;;) {
    struct pollfd full = {-1, POLLOUT, 0};
    {
      absl::MutexLock lock(&mu_);
      if (absl::Status over = Over(caller); !over.ok()) return over;
      const absl::Status sent = TryMake(request, pending);
      if (sent.ok()) return sent;
      if (!absl::IsResourceExhausted(sent)) {
        const auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !ended_.ok(); };
        mu_.AwaitWithTimeout(absl::Condition(&ended), std::min(kEndShows, deadline - Now()));
        return ended_.ok() ? sent : ended_;
      }
      full.fd = socket_;
      if (Now() >= deadline) {
        return absl::DeadlineExceededError("irisd does not read this session's calls");
      }
    }
    // The socket may be closed meanwhile: this wait is short, and says nothing by itself.
    (void)poll(&full, 1, kLookMs);
  }
}

FrameCalls::Answer FrameCalls::Call(wire::CallMethod method, const std::string& request,
                                    absl::Time deadline, Caller caller, absl::Span<const int> fds) {
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

absl::StatusOr<std::shared_ptr<FrameCalls::Stream>> FrameCalls::Open(wire::CallMethod method,
                                                                     const std::string& request) {
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

void FrameCalls::TryMake(Stream& stream) {
  if (stream.pending.number != 0 || !Over(Caller::kMember).ok()) return;
  // If that fails, it is tried again, or the session is about to end.
  (void)TryMake(stream.request, &stream.pending);
}

bool FrameCalls::Read(Stream& stream, std::string* message) {
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

void FrameCalls::TellTaken(Pending& pending) {
  wire::CallNumberPayload taken;
  taken.call = pending.number;
  if (pending.ended || !ended_.ok()) pending.untold = 0;
  while (pending.untold > 0 && wire::SendFrame(socket_, wire::FrameType::kTaken, taken).ok()) {
    --pending.untold;
  }
}

FrameCalls::Answer FrameCalls::End(Stream& stream) {
  absl::MutexLock lock(&mu_);
  TryMake(stream);
  Answer answer;
  answer.answered = stream.pending.ended;
  answer.generation = stream.pending.generation;
  answer.status = stream.pending.ended ? stream.pending.status : Over(Caller::kMember);
  return answer;
}

FrameCalls::Stream::~Stream() {
  absl::MutexLock lock(&calls->mu_);
  calls->Forget(pending);
}

void FrameCalls::Forget(const Pending& pending) {
  if (pending.number == 0 || pending.ended) return;
  pending_.erase(pending.number);
  if (!ended_.ok()) return;
  wire::CallNumberPayload cancel;
  cancel.call = pending.number;
  // If irisd does not take this, its answer comes and finds nobody.
  (void)wire::SendFrame(socket_, wire::FrameType::kCancelCall, cancel);
}

void FrameCalls::Cancel() {
  absl::MutexLock lock(&mu_);
  cancelled_ = true;
}

void FrameCalls::Use(int socket) {
  absl::MutexLock lock(&mu_);
  socket_ = socket;
}

absl::Status FrameCalls::OnFrame(const wire::Frame& frame) {
  if (frame.type == wire::FrameType::kFailure) {
    const absl::StatusOr<wire::FailurePayload> failure = frame.As<wire::FailurePayload>();
    if (!failure.ok()) return failure.status();
    absl::MutexLock lock(&mu_);
    const auto it = pending_.find(failure->call);
    if (it == pending_.end()) return absl::OkStatus();  // nobody waits any more
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

void FrameCalls::Acknowledge(uint32_t count) {
  absl::MutexLock lock(&mu_);
  owes_acks_ += count;
  (void)TrySendOwed();
}

absl::Status FrameCalls::OnRestarted(uint64_t generation) {
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
  // The irisd before has sent the descriptors that they acknowledge.
  owes_acks_ = 0;
  owes_seen_ = true;
  (void)TrySendOwed();
  return absl::OkStatus();
}

bool FrameCalls::owes() const {
  absl::MutexLock lock(&mu_);
  return owes_seen_ || owes_acks_ > 0;
}

void FrameCalls::SendOwed() {
  absl::MutexLock lock(&mu_);
  (void)TrySendOwed();
}

void FrameCalls::SessionEnded(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  ended_ = status;
}

}  // namespace iris::internal
