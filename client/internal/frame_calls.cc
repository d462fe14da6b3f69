#include "client/internal/frame_calls.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/internal/clock.h"
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

absl::StatusOr<uint64_t> FrameCalls::Start(wire::CallMethod method, const std::string& request,
                                           absl::Time deadline, Caller caller,
                                           absl::Span<const int> fds, Pending* pending) {
  if (request.size() > wire::kMaxRpcBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a request to irisd has ",
                                                   base::SizeText(request.size()), "; at most ",
                                                   base::SizeText(wire::kMaxRpcBytes)));
  }
  wire::CallPayload header;
  header.method = static_cast<uint32_t>(method);
  header.bytes = static_cast<uint32_t>(request.size());
  const bool in_frame = request.size() <= wire::kMaxCallFrameBytes;
  wire::UniqueFd sealed;
  if (!in_frame) {
    absl::StatusOr<wire::UniqueFd> made = MakeSealed(request);
    if (!made.ok()) return made.status();
    sealed = *std::move(made);
  }
  const int long_request = sealed.get();
  if (!in_frame) fds = absl::MakeConstSpan(&long_request, 1);
  for (;;) {
    struct pollfd full = {-1, POLLOUT, 0};
    {
      absl::MutexLock lock(&mu_);
      if (absl::Status over = Over(caller); !over.ok()) return over;
      // Numbers are in the order of the frames: both happen under the lock.
      header.call = last_call_ + 1;
      const absl::Status sent =
          wire::SendFrame(socket_, wire::FrameType::kCall, header,
                          in_frame ? std::string_view(request) : std::string_view(), fds);
      if (sent.ok()) {
        last_call_ = header.call;
        pending_[header.call] = pending;
        return header.call;
      }
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
  Pending pending;
  Answer answer;
  const absl::StatusOr<uint64_t> number = Start(method, request, deadline, caller, fds, &pending);
  if (!number.ok()) {
    answer.status = number.status();
    return answer;
  }
  absl::MutexLock lock(&mu_);
  const auto done = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return pending.ended || !Over(caller).ok();
  };
  mu_.AwaitWithTimeout(absl::Condition(&done), deadline - Now());
  Forget(*number, pending);
  if (pending.ended) {
    answer.answered = true;
    answer.status = pending.status;
    if (!pending.messages.empty()) answer.message = std::move(pending.messages.front());
    return answer;
  }
  answer.status = Over(caller);
  if (answer.status.ok()) answer.status = absl::DeadlineExceededError("irisd has not answered");
  return answer;
}

absl::StatusOr<std::shared_ptr<FrameCalls::Stream>> FrameCalls::Open(wire::CallMethod method,
                                                                     const std::string& request,
                                                                     absl::Time deadline) {
  auto stream = std::make_shared<Stream>(this);
  stream->pending.streams = true;
  const absl::StatusOr<uint64_t> number =
      Start(method, request, deadline, Caller::kMember, {}, &stream->pending);
  if (!number.ok()) return number.status();
  stream->number = *number;
  return stream;
}

bool FrameCalls::Read(Stream& stream, std::string* message) {
  absl::MutexLock lock(&mu_);
  Pending& pending = stream.pending;
  const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return !pending.messages.empty() || pending.ended || !Over(Caller::kMember).ok();
  };
  for (;;) {
    TellTaken(stream);
    const bool untold = pending.untold > 0;
    if (mu_.AwaitWithTimeout(absl::Condition(&there),
                             untold ? absl::Milliseconds(kLookMs) : absl::InfiniteDuration())) {
      break;
    }
  }
  if (cancelled_ || pending.messages.empty()) return false;
  *message = std::move(pending.messages.front());
  pending.messages.pop_front();
  ++pending.untold;
  TellTaken(stream);
  return true;
}

void FrameCalls::TellTaken(Stream& stream) {
  wire::CallNumberPayload taken;
  taken.call = stream.number;
  if (stream.pending.ended || !ended_.ok()) stream.pending.untold = 0;
  while (stream.pending.untold > 0 &&
         wire::SendFrame(socket_, wire::FrameType::kTaken, taken).ok()) {
    --stream.pending.untold;
  }
}

FrameCalls::Answer FrameCalls::End(Stream& stream) {
  absl::MutexLock lock(&mu_);
  Answer answer;
  answer.answered = stream.pending.ended;
  answer.status = stream.pending.ended ? stream.pending.status : Over(Caller::kMember);
  return answer;
}

FrameCalls::Stream::~Stream() {
  absl::MutexLock lock(&calls->mu_);
  if (number != 0) calls->Forget(number, pending);
}

void FrameCalls::Forget(uint64_t number, const Pending& pending) {
  pending_.erase(number);
  if (pending.ended || !ended_.ok()) return;
  wire::CallNumberPayload cancel;
  cancel.call = number;
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

void FrameCalls::SessionEnded(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  ended_ = status;
}

}  // namespace iris::internal
