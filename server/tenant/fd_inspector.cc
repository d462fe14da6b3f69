#include "server/tenant/fd_inspector.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "device/base/posix.h"
#include "proto/wire/frame.h"
#include "server/job/clock.h"
#include "server/link/pass_descriptor.h"

namespace iris::server {
namespace {

constexpr auto kTryAgainAfter = absl::Milliseconds(100);
constexpr auto kAskForRoomEvery = absl::Milliseconds(1);
constexpr size_t kAnswersAtOnce = 64;

absl::Status StatusOf(LookVerdict verdict, const Party& tenant) {
  switch (verdict) {
    case LookVerdict::kGood:
      return absl::OkStatus();
    case LookVerdict::kBad:
      return absl::InvalidArgumentError(
          "a descriptor was sent that irisd does not receive, because its close may wait for "
          "others: send memfds, or memory of irisd's devices");
    case LookVerdict::kUnseen:
      return absl::UnavailableError(
          "the process that looks at descriptors for irisd could not take all that this session "
          "sent, so irisd does not receive them: connect again");
    case LookVerdict::kFull:
      break;
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "irisd looks at no more descriptors of ", tenant.Text(),
      ": too many that it was sent do not close; they are of sockets that linger, or of a file "
      "system that does not answer; end the program that sent them, or have its file system "
      "answer"));
}

}  // namespace

uint64_t FdInspector::Look(int socket, const Party& tenant, Answer answer) {
  const uint64_t look = next_look_++;
  Pending& pending = looks_[look];
  pending.socket = socket;
  pending.tenant = tenant;
  pending.answer = std::move(answer);
  pending.give_up_at = SteadyNow() + setup_.gives_up_after;
  PassOn();
  return look;
}

absl::StatusOr<int> FdInspector::LinkToPassOn() {
  int link = -1;
  bool made = false;
  absl::Status works = processes_.Work(&link, &made);
  if (!works.ok()) return works;
  if (!made && link_.valid()) return link;
  link_.Reset();
  Unanswered();  // the previous process may have ended unnoticed
  wire::UniqueFd own(fcntl(link, F_DUPFD_CLOEXEC, 0));
  absl::StatusOr<Poller::Watched> watched =
      poller_->Watch(&own, EPOLLIN, [this](uint32_t) { OnLink(); });
  if (!watched.ok()) return watched.status();
  link_ = *std::move(watched);
  return link;
}

void FdInspector::PassOn() {
  pass_on_at_ = absl::InfiniteFuture();
  const absl::Time now = SteadyNow();
  const absl::StatusOr<int> link = LinkToPassOn();
  if (!link.ok()) {
    pass_on_at_ = now + kTryAgainAfter;
    return;
  }
  for (auto& [number, pending] : looks_) {
    if (pending.good || pending.hangs_at != absl::InfiniteFuture()) continue;
    const LookRequest request = {number, pending.tenant};
    switch (PassDescriptor(*link, &request, sizeof(request), pending.socket)) {
      case Passed::kYes:
        pending.hangs_at = now + setup_.answers_within;
        break;
      case Passed::kHasEnded:  // for example, because it had no work
        return Drop(/*hangs=*/false);
      case Passed::kFull:
      case Passed::kNotNow:
        pass_on_at_ = now + kTryAgainAfter;
        return;
    }
  }
}

void FdInspector::Drop(bool hangs) {
  link_.Reset();
  processes_.Drop(hangs);
  if (setup_.closing != nullptr) setup_.closing(0);
  Unanswered();
  // Continues later, since processes that end as soon as they start must not keep this thread busy.
  if (!looks_.empty()) pass_on_at_ = SteadyNow() + absl::Milliseconds(1);
}

void FdInspector::Unanswered() {
  for (auto& [number, pending] : looks_) pending.hangs_at = absl::InfiniteFuture();
}

void FdInspector::OnLink() {
  std::vector<LookAnswer> answers(kAnswersAtOnce);
  const ssize_t n = base::Retry([&] {
    return recv(link_.get(), answers.data(), answers.size() * sizeof(LookAnswer), MSG_DONTWAIT);
  });
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
  // The process writes only complete answers.
  if (n <= 0 || static_cast<size_t>(n) % sizeof(LookAnswer) != 0) return Drop(/*hangs=*/false);
  answers.resize(static_cast<size_t>(n) / sizeof(LookAnswer));
  if (setup_.closing != nullptr) setup_.closing(answers.back().n_closing);
  for (const LookAnswer& answer : answers) {
    const auto it = looks_.find(answer.look);
    if (it == looks_.end()) continue;
    if (answer.verdict == LookVerdict::kGood) {
      it->second.good = true;
      it->second.hangs_at = absl::InfiniteFuture();
      it->second.give_up_at = SteadyNow() + setup_.room_within;
      continue;
    }
    const Pending pending = std::move(it->second);
    looks_.erase(it);
    pending.answer(StatusOf(answer.verdict, pending.tenant));
  }
  AnswerGood();
}

void FdInspector::AnswerGood() {
  ask_for_room_at_ = absl::InfiniteFuture();
  for (auto it = looks_.begin(); it != looks_.end();) {
    const uint64_t number = it->first;
    if (it->second.good && RoomFor(it->second.tenant).ok()) {
      const Pending pending = std::move(it->second);
      looks_.erase(it);
      // The answer makes irisd receive the descriptors at once, and may add and remove looks.
      pending.answer(absl::OkStatus());
    } else if (it->second.good) {
      ask_for_room_at_ = SteadyNow() + kAskForRoomEvery;
    }
    it = looks_.upper_bound(number);
  }
}

absl::Time FdInspector::deadline() const {
  absl::Time next = std::min(pass_on_at_, ask_for_room_at_);
  for (const auto& [number, pending] : looks_) {
    next = std::min({next, pending.give_up_at, pending.hangs_at});
  }
  return next;
}

void FdInspector::RunDeadlines(absl::Time now) {
  const bool hangs = std::any_of(looks_.begin(), looks_.end(),
                                 [now](const auto& look) { return look.second.hangs_at <= now; });
  if (hangs) Drop(/*hangs=*/true);
  if (ask_for_room_at_ <= now) AnswerGood();
  std::vector<Pending> given_up;
  for (auto it = looks_.begin(); it != looks_.end();) {
    if (it->second.give_up_at > now) {
      ++it;
      continue;
    }
    given_up.push_back(std::move(it->second));
    it = looks_.erase(it);
  }
  if (pass_on_at_ <= now && !looks_.empty()) PassOn();
  if (looks_.empty()) pass_on_at_ = absl::InfiniteFuture();
  for (const Pending& pending : given_up) {
    if (pending.good) {
      pending.answer(RoomFor(pending.tenant));
      continue;
    }
    pending.answer(absl::UnavailableError(
        "irisd has no process that looks at the descriptors which this session sent, before it "
        "receives them: its log says why; connect again"));
  }
}

}  // namespace iris::server
