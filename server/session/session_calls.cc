#include "server/session/session_calls.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "device/base/bytes.h"
#include "device/base/posix.h"
#include "server/link/methods.h"

namespace iris::server {
namespace {

constexpr uint32_t kAlways = EPOLLRDHUP;

}  // namespace

absl::StatusOr<std::string> ReadSealed(int fd, size_t bytes) {
  constexpr int kNeeded = F_SEAL_WRITE | F_SEAL_SHRINK;
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kNeeded) != kNeeded) {
    return absl::InvalidArgumentError(
        "the descriptor of a request is no memfd that is sealed against writing and shrinking");
  }
  struct stat info = {};
  if (fstat(fd, &info) != 0) return wire::ErrnoStatus(errno, "look at the memfd of a request");
  if (info.st_size < 0 || static_cast<size_t>(info.st_size) != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a request of ", bytes, " bytes came in a memfd of ", info.st_size));
  }
  std::string request;
  try {
    request.resize(bytes);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the system gives irisd no memory for a request of ", base::SizeText(bytes)));
  }
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = base::Retry(
        [&] { return pread(fd, request.data() + done, bytes - done, static_cast<off_t>(done)); });
    if (n < 0) return wire::ErrnoStatus(errno, "read the memfd of a request");
    if (n == 0) return absl::InvalidArgumentError("the memfd of a request ends early");
    done += static_cast<size_t>(n);
  }
  return request;
}

size_t SessionCalls::Item::own_bytes() const {
  return sizeof(Item) + failure.message().size() + (message.has_value() ? message->head.size() : 0);
}

const std::string* SessionCalls::Item::tail() const {
  return message.has_value() ? message->tail.get() : nullptr;
}

std::shared_ptr<SessionCalls> SessionCalls::Create(Setup setup) {
  std::shared_ptr<SessionCalls> calls(new SessionCalls(std::move(setup)));
  absl::MutexLock lock(&calls->mu_);
  calls->events_ = kAlways | EPOLLIN;
  return calls;
}

SessionCalls::~SessionCalls() { Close(); }

void SessionCalls::Close() {
  std::vector<std::shared_ptr<ActiveCall>> cancelled;
  {
    absl::MutexLock lock(&mu_);
    if (std::exchange(closed_, true)) return;
    for (auto& [number, call] : calls_) {
      if (call.active != nullptr) cancelled.push_back(std::move(call.active));
    }
    share().RemoveCalls(static_cast<uint32_t>(calls_.size()));
    calls_.clear();
    while (!queue_.empty()) Pop();
  }
  for (const auto& call : cancelled) call->OnCancel();
}

absl::Status SessionCalls::OnFrame(const wire::Frame& frame) {
  if (frame.type == wire::FrameType::kCall) return OnCall(frame);
  const absl::StatusOr<wire::CallNumberPayload> number = frame.As<wire::CallNumberPayload>();
  if (!number.ok()) return number.status();
  return OnCancelOrTaken(number->call, frame.type == wire::FrameType::kTaken);
}

absl::Status SessionCalls::OnCall(const wire::Frame& frame) {
  const auto parts = frame.Split<wire::CallPayload>();
  if (!parts.ok()) return parts.status();
  const auto& [header, inline_bytes] = *parts;
  if (header.call <= last_call_) {
    return absl::InvalidArgumentError(
        absl::StrCat("call ", header.call, " comes after call ", last_call_,
                     ": the numbers of a session's calls only go up, from 1"));
  }
  last_call_ = header.call;
  if (header.bytes > wire::kMaxRpcBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a request has ", base::SizeText(header.bytes),
                                                   "; at most ",
                                                   base::SizeText(wire::kMaxRpcBytes)));
  }
  const bool in_frame = header.bytes <= wire::kMaxCallFrameBytes;
  // Memory to be registered comes with a request in the frame.
  const bool registers =
      in_frame && header.method == static_cast<uint32_t>(wire::CallMethod::kOperate);
  if (inline_bytes.size() != (in_frame ? header.bytes : 0) ||
      (!registers && frame.fds.size() != (in_frame ? 0u : 1u))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a request of ", header.bytes, " bytes came with ", inline_bytes.size(), " bytes and ",
        frame.fds.size(), " descriptors: up to ", wire::kMaxCallFrameBytes,
        " bytes come in the frame, more of them in one memfd, and other descriptors only with an "
        "Operate in the frame"));
  }
  std::string long_request;
  absl::Status refused;
  if (header.bytes > wire::kMaxRequestBytes) {
    refused = absl::ResourceExhaustedError(
        absl::StrCat("the request has ", base::SizeText(header.bytes), "; irisd reads at most ",
                     base::SizeText(wire::kMaxRequestBytes)));
  } else if (!in_frame) {
    absl::StatusOr<std::string> read = ReadSealed(frame.fds.front().get(), header.bytes);
    refused = read.status();
    if (!read.ok() && !absl::IsResourceExhausted(refused)) return refused;
    if (read.ok()) long_request = *std::move(read);
  }
  if (refused.ok()) {
    refused = Begin(header, in_frame ? inline_bytes : std::string_view(long_request),
                    registers ? absl::MakeConstSpan(frame.fds) : absl::Span<wire::UniqueFd>());
  }
  if (!refused.ok()) Refuse(header.call, refused);
  return absl::OkStatus();
}

absl::Status SessionCalls::Begin(const wire::CallPayload& header, std::string_view request,
                                 absl::Span<const wire::UniqueFd> descriptors) {
  const MethodInfo* const method = FindMethod(header.method);
  if (method == nullptr || IsAdmin(method->method)) {
    return absl::UnimplementedError(absl::StrCat("irisd has no method ", header.method,
                                                 " for sessions: install matching versions"));
  }
  {
    absl::MutexLock lock(&mu_);
    if (calls_.size() >= wire::kMaxCallsPerConnection) {
      return absl::ResourceExhaustedError(
          absl::StrCat("this session has ", wire::kMaxCallsPerConnection,
                       " calls open in irisd, the limit of one: wait for answers before you call"));
    }
    if (!share().AddCall()) {
      return absl::ResourceExhaustedError(
          absl::StrCat(setup_.peer.tenant.Text(), " has ", share().limits().max_calls,
                       " calls open in irisd, its share: wait for answers before you call"));
    }
    calls_[header.call].streams = method->streams;
  }
  std::shared_ptr<ActiveCall> active = (*setup_.serve)(
      {.method = method->method,
       .session = setup_.peer.session,
       .caller = setup_.peer.caller,
       .request = request,
       .descriptors = descriptors,
       .close = descriptors.empty() ? nullptr : setup_.close,
       .reply = std::make_shared<NumberedReplier<SessionCalls>>(shared_from_this(), header.call)});
  if (active == nullptr) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  const auto it = calls_.find(header.call);
  if (it != calls_.end()) it->second.active = std::move(active);  // else the call has ended
  return absl::OkStatus();
}

absl::Status SessionCalls::OnCancelOrTaken(uint64_t number, bool taken) {
  if (number == 0 || number > last_call_) {
    return absl::InvalidArgumentError(absl::StrCat(
        taken ? "has read a message of call " : "cancels call ", number, ", which was not made"));
  }
  std::shared_ptr<ActiveCall> active;
  {
    absl::MutexLock lock(&mu_);
    const auto it = calls_.find(number);
    if (it == calls_.end()) return absl::OkStatus();
    Call& call = it->second;
    if (taken && (!call.streams || call.on_their_way == 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("has read a message of call ", number, " that it was not sent"));
    }
    if (taken) --call.on_their_way;
    active = call.active;
  }
  if (active != nullptr) taken ? active->OnSent() : active->OnCancel();
  return absl::OkStatus();
}

void SessionCalls::Refuse(uint64_t call, const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  if (!closed_) Queue({.call = call, .failure = why});
}

void SessionCalls::OnWritable() {
  absl::MutexLock lock(&mu_);
  if (!closed_) Flush();
}

void SessionCalls::SetHeld(bool held) {
  absl::MutexLock lock(&mu_);
  held_ = held;
  Flush();
}

void SessionCalls::Send(uint64_t number, LinkPayload message) {
  absl::MutexLock lock(&mu_);
  const auto it = calls_.find(number);
  if (it == calls_.end()) return;
  if (!it->second.streams) {
    it->second.answer = std::move(message);  // the end of the call sends it
    return;
  }
  ++it->second.on_their_way;
  Queue({.call = number, .message = std::move(message)});
}

void SessionCalls::Finish(uint64_t number, const absl::Status& status) {
  std::shared_ptr<ActiveCall> ended;  // destroyed after the lock is released
  absl::MutexLock lock(&mu_);
  const auto it = calls_.find(number);
  if (it == calls_.end()) return;
  ended = std::move(it->second.active);
  Item item{
      .call = number, .ends = true, .message = std::move(it->second.answer), .failure = status};
  if (status.ok() && !it->second.streams && !item.message.has_value()) {
    item.failure = absl::InternalError("irisd has given no answer");
  }
  calls_.erase(it);
  share().RemoveCalls(1);
  Queue(std::move(item));
}

void SessionCalls::Queue(Item item) {
  if (!item.failure.ok()) item.message.reset();
  if (item.message.has_value() && item.message->tail != nullptr &&
      item.message->size() <= wire::kMaxCallFrameBytes) {
    item.message->head += *item.message->tail;  // one frame instead of two
    item.message->tail = nullptr;
  }
  queued_bytes_ += item.size();
  const bool fits = share().AddUnread(item.own_bytes(), item.tail());
  queue_.push_back(std::move(item));
  if (!fits) {
    setup_.end(absl::ResourceExhaustedError(
        absl::StrCat("answers of more than ", base::SizeText(share().limits().max_unread_bytes),
                     " to ", setup_.peer.tenant.Text(),
                     " are not read, its share in irisd: read answers before you call again")));
  }
  Flush();
}

void SessionCalls::Pop() {
  const Item& item = queue_.front();
  queued_bytes_ -= item.size();
  share().RemoveUnread(item.own_bytes(), item.tail());
  queue_.pop_front();
}

absl::Status SessionCalls::WriteFront() {
  const Item& item = queue_.front();
  const int socket = setup_.socket->get();
  if (!item.failure.ok()) {
    wire::FailurePayload failure;
    failure.call = item.call;
    failure.error = wire::MakeErrorPayload(item.failure);
    return wire::SendFrame(socket, wire::FrameType::kFailure, failure);
  }
  wire::AnswerPayload answer;
  answer.call = item.call;
  std::string_view piece;
  if (item.message.has_value()) {
    const std::string& head = item.message->head;
    const bool in_head = written_ < head.size() || item.message->tail == nullptr;
    piece = in_head ? std::string_view(head).substr(written_)
                    : std::string_view(*item.message->tail).substr(written_ - head.size());
    piece = piece.substr(0, wire::kMaxCallFrameBytes);
    answer.flags |= wire::kAnswerMessage;
    if (written_ + piece.size() < item.message->size()) answer.flags |= wire::kAnswerContinues;
  }
  const bool continues = (answer.flags & wire::kAnswerContinues) != 0;
  if (item.ends && !continues) answer.flags |= wire::kAnswerEnds;
  absl::Status sent = wire::SendFrame(socket, wire::FrameType::kAnswer, answer, piece);
  if (sent.ok() && continues) written_ += piece.size();
  if (sent.ok() && !continues) written_ = 0;
  return sent;
}

void SessionCalls::Flush() {
  if (closed_) return;
  bool blocked = false;
  while (!queue_.empty()) {
    const absl::Status sent = WriteFront();
    if (absl::IsResourceExhausted(sent)) {
      blocked = true;
      break;
    }
    // If the client is gone, its hang-up will be reported, and ends all waiting answers.
    if (!sent.ok()) break;
    if (written_ > 0) continue;  // the rest of the same message
    Pop();
  }
  const bool paused = held_ || queued_bytes_ > kMaxWaitingBytes;
  const uint32_t wanted =
      kAlways | (paused ? 0u : uint32_t{EPOLLIN}) | (blocked ? uint32_t{EPOLLOUT} : 0u);
  if (wanted != std::exchange(events_, wanted)) setup_.socket->SetEvents(wanted);
}

}  // namespace iris::server
