#include "client/session/irisd_control_plane.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/base/clock.h"
#include "client/base/log.h"
#include "client/base/thread.h"
#include "client/wire/convert.h"

namespace iris::internal {
namespace {

constexpr absl::Duration kReconnectBackoffMin = absl::Milliseconds(10);
constexpr absl::Duration kReconnectBackoffMax = absl::Seconds(1);
constexpr absl::Duration kResumeTimeout = absl::Seconds(5);
// How long an irisd that stops may take to end its sessions.
constexpr absl::Duration kStopTime = absl::Seconds(5);

std::vector<int> DescriptorsOf(const Operation& op) {
  std::vector<int> fds;
  if (const auto* registers = std::get_if<RegisterOp>(&op)) {
    for (const auto& fd : registers->descriptors) fds.push_back(fd->get());
  }
  return fds;
}

// The wait for the final error of an irisd that stops, which follows its answer that it stops.
constexpr absl::Duration kLastWords = absl::Milliseconds(250);

// `request` has the session's id. An answer that irisd gives because it stops counts as none.
SessionClient::Answer CallOn(SessionClient& session, wire::CallMethod method,
                             const std::string& request, absl::Time deadline,
                             SessionClient::Caller caller = SessionClient::Caller::kMember,
                             absl::Span<const int> fds = {}) {
  SessionClient::Answer answer = session.Call(method, request, deadline, caller, fds);
  if (answer.status.ok()) return answer;
  if (!answer.answered && absl::IsDeadlineExceeded(answer.status)) {
    answer.status = absl::DeadlineExceededError(
        absl::StrCat("irisd at ", session.runtime_dir(),
                     " did not answer in time; is it stopped? (", answer.status.message(), ")"));
    return answer;
  }
  // irisd stops, or has cancelled the call: the session ends at once, and its status says more.
  if (answer.answered && (absl::IsUnavailable(answer.status) || absl::IsCancelled(answer.status))) {
    answer.answered = false;
    if (session.WaitForEnd(kLastWords)) answer.status = session.status();
  }
  return answer;
}

}  // namespace

absl::StatusOr<std::unique_ptr<IrisdControlPlane>> IrisdControlPlane::Connect(
    SessionOptions options) {
  std::unique_ptr<IrisdControlPlane> plane(new IrisdControlPlane(std::move(options)));
  auto session = plane->OpenSession(plane->options_.connect_timeout);
  if (!session.ok()) return session.status();
  plane->UseSession(*session);
  plane->runtime_dir_ = (*session)->runtime_dir();
  plane->daemon_id_ = (*session)->daemon_id();
  plane->backend_ = (*session)->backend();
  return plane;
}

IrisdControlPlane::~IrisdControlPlane() {
  StopWatching();
  std::shared_ptr<SessionClient> session;
  {
    absl::MutexLock lock(&mu_);
    session.swap(session_);
  }
  // Its thread may be inside on_end, which locks mu_: it is joined here, unlocked.
}

absl::StatusOr<std::shared_ptr<SessionClient>> IrisdControlPlane::OpenSession(
    absl::Duration timeout) {
  const auto on_end = [this] {
    absl::MutexLock lock(&mu_);
    // Only the session in use counts, even if another one has ended. A session that ends before it
    // is in use is noticed when it is taken.
    if (session_ != nullptr && !session_->status().ok()) broken_ = true;
  };
  // A rank is resumed in the runtime directory of its first session.
  return SessionClient::Connect(
      {runtime_dir_.empty() ? options_.runtime_dirs : std::vector<std::string>{runtime_dir_},
       timeout, on_end});
}

void IrisdControlPlane::UseSession(std::shared_ptr<SessionClient> session) {
  absl::MutexLock lock(&mu_);
  session_.swap(session);
  broken_ = !session_->status().ok();
}

std::shared_ptr<SessionClient> IrisdControlPlane::CurrentSession() const {
  absl::MutexLock lock(&mu_);
  return session_;
}

absl::Status IrisdControlPlane::lost() const {
  absl::MutexLock lock(&mu_);
  return lost_;
}

absl::StatusOr<std::shared_ptr<SessionClient>> IrisdControlPlane::WaitForSession(
    absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  const auto usable = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return stopping_ || !lost_.ok() || !broken_ || !watching_;
  };
  mu_.AwaitWithTimeout(absl::Condition(&usable), deadline - Now());
  if (stopping_) return absl::FailedPreconditionError("this context has left the job");
  if (!lost_.ok()) return lost_;
  if (!broken_) return session_;
  if (!watching_) return session_->status();
  return absl::UnavailableError(last_error_.ok()
                                    ? absl::StrCat("the session with irisd at ", runtime_dir_,
                                                   " broke and is not back yet; try again")
                                    : last_error_.message());
}

template <typename Encode>
SessionClient::Answer IrisdControlPlane::CallNow(wire::CallMethod method, const Encode& encode,
                                                 absl::Time deadline,
                                                 SessionClient::Caller caller) {
  const std::shared_ptr<SessionClient> session = CurrentSession();
  return CallOn(*session, method, encode(session->session_id()), deadline, caller);
}

template <typename T>
absl::StatusOr<T> IrisdControlPlane::Parsed(const SessionClient::Answer& answer,
                                            absl::StatusOr<T> (*decode)(absl::string_view)) const {
  if (!answer.status.ok()) return answer.status;
  absl::StatusOr<T> decoded = decode(answer.message);
  if (decoded.ok()) return decoded;
  return absl::InternalError(
      absl::StrCat("irisd at ", runtime_dir_,
                   " sent an answer that does not parse: ", decoded.status().message()));
}

absl::StatusOr<JoinedJob> IrisdControlPlane::Join(const HostContextOptions& options,
                                                  absl::Time deadline) {
  absl::Duration timeout = absl::FromChrono(options.join_timeout);
  const absl::Time give_up = DeadlineIn(timeout);
  absl::Duration backoff = kReconnectBackoffMin;
  for (;;) {
    const SessionClient::Answer answer = CallNow(
        wire::CallMethod::kJoin,
        [&](uint64_t session_id) { return EncodeJoin(session_id, options, timeout); }, deadline);
    if (answer.status.ok()) return Parsed(answer, DecodeJoinReply);
    // irisd that stops says so before its sessions end.
    const bool gone = !answer.answered && absl::IsUnavailable(answer.status) &&
                      CurrentSession()->WaitForEnd(kStopTime) &&
                      absl::IsUnavailable(CurrentSession()->status());
    if (!gone || Now() + backoff > give_up) return answer.status;
    absl::SleepFor(backoff);
    backoff = std::min(backoff * 2, kReconnectBackoffMax);
    if (absl::Status status = ConnectToNext(answer.status, give_up); !status.ok()) return status;
    log::Warning(answer.status.message(), "; joining again");
    timeout = give_up - Now();
    if (timeout <= absl::ZeroDuration()) return answer.status;
  }
}

absl::Status IrisdControlPlane::ConnectToNext(const absl::Status& ended, absl::Time deadline) {
  const auto session = OpenSession(deadline - Now());
  if (!session.ok()) {
    return absl::Status(session.status().code(),
                        absl::StrCat(ended.message(), "; then: ", session.status().message()));
  }
  // The same irisd has ended the session for a reason, and may still count the rank as a member.
  if ((*session)->daemon_id() == daemon_id_) return ended;
  if ((*session)->backend() != backend_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "irisd at ", runtime_dir_, " restarted with the backend '", (*session)->backend(),
        "' in place of '", backend_, "': create a new Context"));
  }
  daemon_id_ = (*session)->daemon_id();
  UseSession(*session);
  return absl::OkStatus();
}

absl::StatusOr<CommittedJob> IrisdControlPlane::Mapped(uint64_t job_id, uint64_t epoch,
                                                       const absl::StatusOr<uint64_t>& base,
                                                       absl::Time deadline) {
  const auto encode = [&](uint64_t session_id) {
    return EncodeMapped({session_id, job_id}, epoch, base);
  };
  return Parsed(CallNow(wire::CallMethod::kMapped, encode, deadline), DecodeMappedReply);
}

BarrierQuestion IrisdControlPlane::AskOfBarrier(const BarrierWait& wait) {
  std::shared_ptr<SessionClient> session = CurrentSession();
  auto opened = session->Open(wire::CallMethod::kAwaitBarrier,
                              EncodeAwaitBarrier(session->session_id(), wait));
  if (!opened.ok()) return nullptr;
  // The call ends before its session, as the members of a pair end in reverse; captures need not.
  return [asked = std::pair(std::move(session),
                            *std::move(opened))]() -> std::optional<absl::StatusOr<BarrierAnswer>> {
    const auto& [from, call] = asked;
    const SessionClient::Answer end = from->End(*call);
    if (!end.status.ok()) return end.status;
    if (!end.answered) return std::nullopt;
    std::string bytes;  // an answer that has ended is there as a whole
    if (!from->Read(*call, &bytes)) return absl::CancelledError("no answer");
    return DecodeAwaitBarrierReply(bytes);
  };
}

absl::StatusOr<BarrierAnswer> IrisdControlPlane::WhereAreMissing(const BarrierWait& wait,
                                                                 absl::Time deadline) {
  const auto encode = [&](uint64_t session_id) { return EncodeAwaitBarrier(session_id, wait); };
  return Parsed(CallNow(wire::CallMethod::kAwaitBarrier, encode, deadline),
                DecodeAwaitBarrierReply);
}

absl::Status IrisdControlPlane::GrowMapped(uint64_t job_id, uint64_t grow_id,
                                           const absl::Status& mapped, absl::Time deadline) {
  const auto encode = [&](uint64_t session_id) {
    return EncodeGrowMapped({session_id, job_id}, grow_id, mapped);
  };
  return CallNow(wire::CallMethod::kGrowMapped, encode, deadline).status;
}

absl::Status IrisdControlPlane::Leave(uint64_t job_id, absl::Time deadline) {
  {
    absl::MutexLock lock(&mu_);
    // A rank whose job broke is lost to operations, but can still leave on its new session.
    if (broken_) return lost_.ok() ? session_->status() : lost_;
  }
  const auto encode = [&](uint64_t session_id) { return EncodeLeave({session_id, job_id}); };
  return CallNow(wire::CallMethod::kLeave, encode, deadline, SessionClient::Caller::kLeaver).status;
}

absl::StatusOr<Outcome> IrisdControlPlane::Operate(const OperationCall& call,
                                                   absl::Time reach_deadline,
                                                   absl::Time answer_deadline, bool* unanswered) {
  absl::Duration timeout = call.timeout;
  absl::Duration backoff = kReconnectBackoffMin;
  for (;;) {
    auto session = WaitForSession(reach_deadline);
    if (!session.ok()) return session.status();
    const SessionClient::Answer answer =
        CallOn(**session, wire::CallMethod::kOperate,
               EncodeOperate((*session)->session_id(), call, timeout), answer_deadline,
               SessionClient::Caller::kMember, DescriptorsOf(call.op));
    if (answer.answered) {
      // A refusal consumes nothing, but says nothing either of the same request sent before.
      absl::StatusOr<Outcome> outcome = Parsed(answer, DecodeOperateReply);
      if (outcome.ok()) *unanswered = false;
      return outcome;
    }
    *unanswered = true;
    if (answer.status.code() == absl::StatusCode::kDeadlineExceeded) return answer.status;
    // The session broke, or irisd stops: repeat the call on a new session, with the same k.
    if (Now() + backoff > reach_deadline) {
      return absl::UnavailableError(answer.status.message());
    }
    absl::SleepFor(backoff);
    backoff = std::min(backoff * 2, kReconnectBackoffMax);
    timeout = std::min(call.timeout, reach_deadline - Now());
  }
}

absl::StatusOr<std::vector<ControlPlane::Lent>> IrisdControlPlane::Borrow(const HeapPart& part,
                                                                          absl::Time deadline) {
  for (;;) {
    auto session = WaitForSession(deadline);
    if (!session.ok()) return session.status();
    const SessionClient::Answer answer =
        CallOn(**session, wire::CallMethod::kBorrow, EncodeBorrow((*session)->session_id(), part),
               deadline);
    absl::Status status = answer.status;
    if (answer.answered) {
      const absl::StatusOr<Borrowed> lent = Parsed(answer, DecodeBorrowReply);
      if (!lent.ok()) return lent.status();
      const auto keys = KeysOf(lent->job_id, lent->epoch, lent->segments);
      auto fds = (*session)->TakeDescriptors(keys, deadline, answer.generation);
      if (fds.ok()) {
        std::vector<Lent> all;
        for (size_t i = 0; i < keys.size(); ++i) {
          all.push_back({lent->segments[i], std::move((*fds)[i])});
        }
        return all;
      }
      status = fds.status();
      if ((*session)->status().ok() && !absl::IsUnavailable(status)) return status;
    }
    // The session broke, or another irisd has taken it over and does not know this loan: repeat the
    // call.
    if (absl::IsDeadlineExceeded(status) || Now() + kReconnectBackoffMin > deadline) return status;
    absl::SleepFor(kReconnectBackoffMin);
  }
}

absl::StatusOr<std::vector<wire::UniqueFd>> IrisdControlPlane::TakeDescriptors(
    absl::Span<const DescriptorKey> keys, absl::Time deadline) {
  return CurrentSession()->TakeDescriptors(keys, deadline);
}

void IrisdControlPlane::DropDescriptors() { CurrentSession()->DropDescriptors(); }

void IrisdControlPlane::DropDescriptors(absl::Span<const DescriptorKey> keys) {
  CurrentSession()->DropDescriptors(keys);
}

void IrisdControlPlane::StartWatching(const RankIdentity& identity, WatchHandler handler,
                                      std::function<void()> name_thread) {
  identity_ = identity;
  handler_ = std::move(handler);
  name_thread_ = std::move(name_thread);
  {
    absl::MutexLock lock(&mu_);
    watching_ = true;
  }
  watcher_ = StartThread([this] { WatchLoop(); });
}

void IrisdControlPlane::StopWatching() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    // The watch thread may wait for an event, or for descriptors of a growth.
    if (session_ != nullptr) session_->CancelWaits();
  }
  if (watcher_.joinable()) watcher_.join();
}

bool IrisdControlPlane::SleepOrStop(absl::Duration duration) {
  absl::MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(absl::Condition(&stopping_), duration);
}

void IrisdControlPlane::WatchLoop() {
  name_thread_();
  absl::Duration backoff = kReconnectBackoffMin;
  for (;;) {
    std::shared_ptr<SessionClient> session;
    bool broken = false;
    {
      absl::MutexLock lock(&mu_);
      if (stopping_ || !lost_.ok()) return;
      session = session_;
      broken = broken_;
    }
    if (broken) {
      const absl::Status status = Reconnect();
      if (status.ok()) {
        log::Warning("back in touch with irisd at ", runtime_dir_);
        backoff = kReconnectBackoffMin;
        continue;
      }
      {
        absl::MutexLock lock(&mu_);
        last_error_ = status;
        if (!lost_.ok()) {
          log::Warning(lost_.message());
          return;
        }
      }
    } else {
      const absl::Time start = Now();
      const bool ended = WatchSession(*session);
      // A stream that lasted was healthy. If irisd keeps refusing one, the back-off grows.
      if (Now() - start > kReconnectBackoffMax) backoff = kReconnectBackoffMin;
      {
        absl::MutexLock lock(&mu_);
        if (stopping_) return;
      }
      if (ended) {
        const absl::Status why = session->status();
        absl::MutexLock lock(&mu_);
        if (stopping_) return;
        log::Warning(why.message(), "; mapped memory and barriers go on; connecting again");
        broken_ = true;
        last_error_ = absl::OkStatus();
        continue;
      }
    }
    if (SleepOrStop(backoff)) return;
    backoff = std::min(backoff * 2, kReconnectBackoffMax);
  }
}

bool IrisdControlPlane::WatchSession(SessionClient& session) {
  const auto stream =
      session.Open(wire::CallMethod::kWatch, EncodeWatch({session.session_id(), identity_.job_id}));
  if (!stream.ok()) return session.WaitForEnd(kLastWords);
  std::string bytes;
  while (session.Read(**stream, &bytes)) {
    const absl::StatusOr<WatchEvent> event = DecodeWatchEvent(bytes);
    if (event.ok()) {
      handler_(*event);
    } else {
      log::Warning("irisd sent an event that does not parse, and it is left out: ",
                   event.status().message());
    }
  }
  {
    absl::MutexLock lock(&mu_);
    if (stopping_) return true;
  }
  const SessionClient::Answer end = session.End(**stream);
  if (end.answered && !end.status.ok() && !absl::IsUnavailable(end.status) &&
      !absl::IsCancelled(end.status)) {
    log::Info("irisd ended the watch stream: ", end.status.message());
  }
  return session.WaitForEnd(kLastWords);
}

absl::Status IrisdControlPlane::Reconnect() {
  // Calls wait until the rank is resumed: broken_ stays set until then.
  auto session = OpenSession(absl::ZeroDuration());
  if (!session.ok()) return session.status();
  const SessionClient::Answer answer =
      CallOn(**session, wire::CallMethod::kResume,
             EncodeResume((*session)->session_id(), identity_), Now() + kResumeTimeout);
  if (!answer.answered) return answer.status;
  if (answer.status.ok()) {
    UseSession(*session);
    return absl::OkStatus();
  }
  const std::string why =
      (*session)->daemon_id() != daemon_id_
          ? absl::StrCat("irisd at ", runtime_dir_, " restarted and no longer knows job \"",
                         identity_.job, "\" (", answer.status.message(), ")")
          : absl::StrCat("the session with irisd at ", runtime_dir_,
                         " broke, and it does not take rank ", identity_.rank, " of job \"",
                         identity_.job, "\" back: ", answer.status.message());
  absl::MutexLock lock(&mu_);
  lost_ =
      absl::AbortedError(absl::StrCat(why, "; mapped memory stays valid, create a new Context"));
  // The job broke meanwhile: the rank belongs to this session, but can only leave. The session and
  // lost_ change in one step, or a waiting call would use the new session.
  if (answer.status.code() == absl::StatusCode::kAborted) {
    session_.swap(*session);
    broken_ = !session_->status().ok();
  }
  return answer.status;
}

}  // namespace iris::internal
