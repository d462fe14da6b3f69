#include "client/internal/irisd_control_plane.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/base/log.h"
#include "client/internal/clock.h"
#include "client/internal/convert.h"
#include "client/internal/thread.h"

namespace iris::internal {
namespace {

constexpr absl::Duration kReconnectBackoffMin = absl::Milliseconds(10);
constexpr absl::Duration kReconnectBackoffMax = absl::Seconds(1);
constexpr absl::Duration kResumeTimeout = absl::Seconds(5);

// How much of `asked_ms` is left until `deadline`; never nothing, which would mean irisd's default.
uint64_t MillisecondsLeft(uint64_t asked_ms, absl::Time deadline) {
  const int64_t left = absl::ToInt64Milliseconds(deadline - Now());
  return std::min<uint64_t>(asked_ms, static_cast<uint64_t>(std::max<int64_t>(left, 1)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<IrisdControlPlane>> IrisdControlPlane::Connect(
    const Options& options) {
  std::unique_ptr<IrisdControlPlane> plane(new IrisdControlPlane(options));
  auto session = plane->OpenSession(options.connect_timeout);
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
  SessionOptions session_options;
  // A session is resumed where it was.
  session_options.runtime_dirs =
      runtime_dir_.empty() ? options_.runtime_dirs : std::vector<std::string>{runtime_dir_};
  session_options.connect_timeout = timeout;
  session_options.on_end = [this] { OnSessionEnd(); };
  return SessionClient::Connect(std::move(session_options));
}

void IrisdControlPlane::OnSessionEnd() {
  absl::MutexLock lock(&mu_);
  // Whichever session it was: the one in use counts. One that ends before it is in use is noticed
  // when it is taken.
  if (session_ == nullptr || session_->status().ok()) return;
  broken_ = true;
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

template <typename Request, typename Reply>
absl::StatusOr<Reply> IrisdControlPlane::CallNow(wire::CallMethod method, Request request,
                                                 absl::Time deadline, FrameCalls::Caller caller) {
  const std::shared_ptr<SessionClient> session = CurrentSession();
  Reply reply;
  const CallAnswer answer = CallOn(*session, method, request, &reply, deadline, caller);
  if (!answer.status.ok()) return answer.status;
  return reply;
}

absl::StatusOr<JoinedJob> IrisdControlPlane::Join(const ContextOptions& options,
                                                  absl::Time deadline) {
  auto reply = CallNow<iris::v1::JoinRequest, iris::v1::JoinReply>(wire::CallMethod::kJoin,
                                                                   ToProto(options), deadline);
  if (!reply.ok()) return reply.status();
  return FromProto(*reply);
}

absl::StatusOr<CommittedJob> IrisdControlPlane::Mapped(uint64_t job_id, uint64_t epoch,
                                                       const absl::StatusOr<uint64_t>& base,
                                                       absl::Time deadline) {
  iris::v1::MappedRequest request;
  request.set_job_id(job_id);
  request.set_epoch(epoch);
  if (base.ok()) {
    request.set_base(*base);
  } else {
    request.set_error(ToErrorText(base.status()));
  }
  auto reply = CallNow<iris::v1::MappedRequest, iris::v1::MappedReply>(
      wire::CallMethod::kMapped, std::move(request), deadline);
  if (!reply.ok()) return reply.status();
  return FromProto(*reply);
}

absl::Status IrisdControlPlane::GrowMapped(uint64_t job_id, uint64_t grow_id,
                                           const absl::Status& mapped, absl::Time deadline) {
  iris::v1::GrowMappedRequest request;
  request.set_job_id(job_id);
  request.set_grow_id(grow_id);
  if (!mapped.ok()) request.set_error(ToErrorText(mapped));
  return CallNow<iris::v1::GrowMappedRequest, iris::v1::GrowMappedReply>(
             wire::CallMethod::kGrowMapped, std::move(request), deadline)
      .status();
}

absl::Status IrisdControlPlane::Leave(uint64_t job_id, absl::Time deadline) {
  {
    absl::MutexLock lock(&mu_);
    // A rank whose job broke is lost to operations, but can still leave on its new session.
    if (broken_) return lost_.ok() ? session_->status() : lost_;
  }
  iris::v1::LeaveRequest request;
  request.set_job_id(job_id);
  return CallNow<iris::v1::LeaveRequest, iris::v1::LeaveReply>(
             wire::CallMethod::kLeave, std::move(request), deadline, FrameCalls::Caller::kLeaver)
      .status();
}

absl::StatusOr<Outcome> IrisdControlPlane::Operate(const OperationCall& call,
                                                   absl::Time reach_deadline,
                                                   absl::Time answer_deadline, bool* unanswered) {
  iris::v1::OperateRequest request = ToProto(call);
  const uint64_t asked_ms = request.timeout_ms();
  absl::Duration backoff = kReconnectBackoffMin;
  for (;;) {
    auto session = WaitForSession(reach_deadline);
    if (!session.ok()) return session.status();
    iris::v1::OperateReply reply;
    const CallAnswer answer = CallOn<iris::v1::OperateRequest, iris::v1::OperateReply>(
        **session, wire::CallMethod::kOperate, request, &reply, answer_deadline);
    if (answer.answered) {
      // A refusal consumes nothing, but says nothing either of the same request sent before.
      if (!answer.status.ok()) return answer.status;
      *unanswered = false;
      return FromProto(std::move(*reply.mutable_outcome()));
    }
    *unanswered = true;
    if (answer.status.code() == absl::StatusCode::kDeadlineExceeded) return answer.status;
    // The session broke, or irisd says that it stops: again, on a new session, with the same k.
    if (Now() + backoff > reach_deadline) {
      return absl::UnavailableError(answer.status.message());
    }
    absl::SleepFor(backoff);
    backoff = std::min(backoff * 2, kReconnectBackoffMax);
    request.set_timeout_ms(MillisecondsLeft(asked_ms, reach_deadline));
  }
}

absl::StatusOr<std::vector<wire::UniqueFd>> IrisdControlPlane::TakeDescriptors(
    absl::Span<const DescriptorKey> keys, absl::Time deadline) {
  return CurrentSession()->TakeDescriptors(keys, deadline);
}

void IrisdControlPlane::DropDescriptors() { CurrentSession()->DropDescriptors(); }

void IrisdControlPlane::StartWatching(const RankIdentity& identity, WatchHandler* handler,
                                      std::function<void()> name_thread) {
  identity_ = identity;
  handler_ = handler;
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
      // A stream that lasted was healthy; one that irisd keeps refusing is asked for ever more
      // rarely.
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
  iris::v1::WatchRequest request;
  request.set_session_id(session.session_id());
  request.set_job_id(identity_.job_id);
  const auto stream = session.calls().Open(wire::CallMethod::kWatch, request.SerializeAsString(),
                                           Now() + kResumeTimeout);
  if (!stream.ok()) return session.WaitForEnd(kLastWords);
  std::string bytes;
  while (session.calls().Read(**stream, &bytes)) {
    iris::v1::WatchEvent event;
    if (event.ParseFromString(bytes)) {
      Handle(event);
    } else {
      log::Warning("irisd sent an event that does not parse; it is left out");
    }
  }
  {
    absl::MutexLock lock(&mu_);
    if (stopping_) return true;
  }
  const FrameCalls::Answer end = session.calls().End(**stream);
  if (end.answered && !end.status.ok() && !absl::IsUnavailable(end.status) &&
      !absl::IsCancelled(end.status)) {
    log::Info("irisd ended the watch stream: ", end.status.message());
  }
  return session.WaitForEnd(kLastWords);
}

void IrisdControlPlane::Handle(const iris::v1::WatchEvent& event) {
  switch (event.event_case()) {
    case iris::v1::WatchEvent::kRankChanged:
      return handler_->OnRankChange(FromProto(event.rank_changed()));
    case iris::v1::WatchEvent::kSegmentsAdded:
      return handler_->OnSegmentsAdded(FromProto(event.segments_added()));
    case iris::v1::WatchEvent::kGrowDone:
      return handler_->OnGrowDone(FromProto(event.grow_done()));
    case iris::v1::WatchEvent::kStopping:
      return handler_->OnStopping(event.stopping().reason());
    case iris::v1::WatchEvent::kWatching:
    case iris::v1::WatchEvent::EVENT_NOT_SET:
      return;
  }
}

absl::Status IrisdControlPlane::Reconnect() {
  // Calls wait until the rank is resumed: broken_ stays set until then.
  auto session = OpenSession(absl::ZeroDuration());
  if (!session.ok()) return session.status();
  iris::v1::ResumeRequest request;
  request.set_job_id(identity_.job_id);
  request.set_job(identity_.job);
  request.set_rank(static_cast<int32_t>(identity_.rank));
  request.set_epoch(identity_.epoch);
  iris::v1::ResumeReply reply;
  const CallAnswer answer = CallOn<iris::v1::ResumeRequest, iris::v1::ResumeReply>(
      **session, wire::CallMethod::kResume, request, &reply, Now() + kResumeTimeout);
  if (!answer.answered) return answer.status;
  if (answer.status.ok()) {
    UseSession(*session);
    return absl::OkStatus();
  }
  absl::Status lost;
  if ((*session)->daemon_id() != daemon_id_) {
    lost = absl::AbortedError(absl::StrCat(
        "irisd at ", runtime_dir_, " restarted and no longer knows job \"", identity_.job, "\" (",
        answer.status.message(), "); mapped memory stays valid, create a new Context"));
  } else {
    lost = absl::AbortedError(absl::StrCat(
        "the session with irisd at ", runtime_dir_, " broke, and it does not take rank ",
        identity_.rank, " of job \"", identity_.job, "\" back: ", answer.status.message(),
        "; mapped memory stays valid, create a new Context"));
  }
  absl::MutexLock lock(&mu_);
  lost_ = std::move(lost);
  // The job broke meanwhile: the rank is this session's, but nothing is left to do except to leave.
  // In one step with lost_, or a call that waits would go out on the new session.
  if (answer.status.code() == absl::StatusCode::kAborted) {
    session_.swap(*session);
    broken_ = !session_->status().ok();
  }
  return answer.status;
}

}  // namespace iris::internal
