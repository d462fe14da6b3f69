#include "server/port/meeting.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/job/clock.h"
#include "server/job/text.h"
#include "server/port/secret.h"

namespace iris::port {
namespace {

constexpr double kBeatEverySeconds = kMeetingTtlSeconds / 3.0;
constexpr auto kRetryAfter = absl::Milliseconds(100), kRetryAfterMax = absl::Seconds(1);
// A watch that was answered by nothing for so long is begun anew.
constexpr auto kWatch = absl::Seconds(5);
// However fast changes come.
constexpr auto kLeastPause = absl::Milliseconds(10);
// While a key is somebody else's. The port of the job before this one deletes its key when it ends.
constexpr auto kLookAgainAfter = absl::Milliseconds(200);
constexpr int kEarlierJobEndsWithinSeconds = 3;
constexpr size_t kMaxAddressBytes = 300;

absl::Status KeyError(absl::StatusCode code, const std::string& key, absl::string_view what) {
  return absl::Status(code, absl::StrCat("etcd's key ", server::CleanText(key, 200), " ", what));
}

}  // namespace

std::string Meeting::Key(uint32_t uid, std::string_view job) {
  return absl::StrCat("/iris/jobs/", uid, "/", absl::string_view(job.data(), job.size()));
}

std::string Meeting::Value(const MeetingOptions& options, const std::string& address) {
  const std::string proof =
      Hmac(options.secret, {"iris etcd: leader", options.job, absl::StrCat(options.uid), address});
  return absl::StrCat(address, " ", absl::BytesToHexString(proof));
}

Meeting::Meeting(MeetingOptions options)
    : options_(std::move(options)),
      key_(Key(options_.uid, options_.job)),
      value_(Value(options_, options_.leader)),
      event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      etcd_(options_.endpoints, options_.tls) {
  thread_ = std::thread([this] { Run(); });
}

Meeting::~Meeting() { (void)End(); }

void Meeting::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  etcd_.Stop();
}

absl::Status Meeting::End() {
  Stop();
  if (thread_.joinable()) thread_.join();
  const int64_t lease = std::exchange(lease_, 0);
  return lease == 0 ? absl::OkStatus() : etcd_.Revoke(lease);
}

std::optional<Meeting::News> Meeting::Take() {
  uint64_t n = 0;
  (void)!read(event_.get(), &n, sizeof(n));
  absl::MutexLock lock(&mu_);
  return std::exchange(news_, std::nullopt);
}

void Meeting::Tell(const News& news) {
  const std::string text =
      absl::StrCat(news.leader.has_value() ? news.leader->Text() : "", " ", news.status.ToString());
  if (std::exchange(told_, text) == text) return;
  {
    absl::MutexLock lock(&mu_);
    news_ = news;
  }
  const uint64_t one = 1;
  (void)!write(event_.get(), &one, sizeof(one));
}

// Returns false if the thread is to end.
bool Meeting::Wait(absl::Duration time) {
  absl::MutexLock lock(&mu_);
  return !mu_.AwaitWithTimeout(absl::Condition(&stop_), time);
}

void Meeting::Run() {
  absl::Duration pause = kRetryAfter, wait;
  do {
    const auto next = options_.leader.empty() ? Follow() : Lead();
    if (next.ok()) {
      if (!next->has_value()) break;
      wait = **next;
      pause = kRetryAfter;
    } else {
      if (!absl::IsCancelled(next.status())) Tell({std::nullopt, next.status()});
      wait = pause;
      pause = std::min<absl::Duration>(2 * pause, kRetryAfterMax);
    }
  } while (Wait(wait));
  if (lease_ == 0) etcd_.Disconnect();
}

absl::StatusOr<std::optional<absl::Duration>> Meeting::Lead() {
  const absl::Duration beat = kBeatEverySeconds * options_.second;
  if (holds_) {
    const absl::StatusOr<bool> lives = etcd_.KeepAlive(lease_);
    if (!lives.ok()) return lives.status();
    if (*lives) {
      Tell({std::nullopt, absl::OkStatus()});
      return beat;
    }
    lease_ = 0;
    holds_ = false;
  }
  if (lease_ == 0) {
    const absl::StatusOr<int64_t> lease = etcd_.Grant(absl::Seconds(kMeetingTtlSeconds));
    if (!lease.ok()) return lease.status();
    lease_ = *lease;
  }
  const absl::StatusOr<std::optional<Etcd::Value>> found = etcd_.Create(key_, value_, lease_);
  if (!found.ok()) {
    lease_ = 0;  // it may have ended while the key was another job's
    return found.status();
  }
  const std::optional<Etcd::Value>& other = *found;
  // The second: the answer to an earlier transaction was lost.
  if (!other.has_value() || (other->bytes == value_ && other->lease == lease_)) {
    holds_ = true;
    Tell({std::nullopt, absl::OkStatus()});
    return beat;
  }
  if (other->bytes == value_ && other->lease != 0) {
    // A port that listened at the same address has left it.
    const absl::Status revoked = etcd_.Revoke(other->lease);
    if (!revoked.ok()) return revoked;
    return kLeastPause;
  }
  const absl::StatusOr<bool> held = IsHeld(*other);
  if (!held.ok()) return held.status();
  const absl::StatusOr<Address> address = Check(other->bytes);
  if (*held) {
    Tell(
        {std::nullopt,
         KeyError(absl::StatusCode::kAlreadyExists, key_,
                  address.ok()
                      ? absl::StrCat("says that another job of this name and user runs, whose "
                                     "leader listens at ",
                                     address->Text(), ": choose another name (IRIS_JOB), or end it")
                      : absl::StrCat("is held by somebody with another secret: another job of "
                                     "this name and user runs, or a node of this one has another "
                                     "secret"))});
    return std::nullopt;
  }
  // It may be the key of a leader that is gone.
  Tell({std::nullopt, KeyError(absl::StatusCode::kUnavailable, key_, "is still another job's")});
  return kLookAgainAfter;
}

absl::StatusOr<std::optional<absl::Duration>> Meeting::Follow() {
  const absl::StatusOr<Etcd::Found> found = etcd_.Get(key_);
  if (!found.ok()) return found.status();
  if (!found->value.has_value()) {
    other_.reset();
    Tell({std::nullopt,
          KeyError(absl::StatusCode::kUnavailable, key_,
                   "is not there: the node of rank 0 has not started this job, or has a "
                   "rendezvous, or its etcd is another one")});
  } else {
    const absl::StatusOr<Address> address = Check(found->value->bytes);
    if (!address.ok()) {
      const absl::StatusOr<bool> held = IsHeld(*found->value);
      if (!held.ok()) return held.status();
      Tell({std::nullopt,
            absl::Status(*held ? address.status().code() : absl::StatusCode::kUnavailable,
                         address.status().message())});
      if (*held) return std::nullopt;
      return kLookAgainAfter;
    }
    other_.reset();
    Tell({*address, absl::OkStatus()});
  }
  const absl::Status changed = etcd_.AwaitChange(key_, found->revision, kWatch);
  if (!changed.ok()) return changed;
  return kLeastPause;
}

absl::StatusOr<bool> Meeting::IsHeld(const Etcd::Value& value) {
  const absl::Time now = server::SteadyNow();
  if (!other_.has_value() || other_->value.bytes != value.bytes ||
      other_->value.lease != value.lease) {
    other_ = {.value = value, .since = now};
  }
  if (value.lease == 0) {
    other_->renewed = true;  // it never ends
  } else {
    const absl::StatusOr<absl::Duration> left = etcd_.TimeToLive(value.lease);
    if (!left.ok()) return left.status();
    if (*left > std::exchange(other_->left, *left)) other_->renewed = true;
  }
  return other_->renewed && now - other_->since > kEarlierJobEndsWithinSeconds * options_.second;
}

absl::StatusOr<Address> Meeting::Check(const std::string& value) const {
  const std::string address = value.substr(0, value.find(' '));
  if (address.size() > kMaxAddressBytes || !SameBytes(value, Value(options_, address))) {
    return KeyError(absl::StatusCode::kPermissionDenied, key_,
                    "was not made with this job's secret: give the job the same secret on every "
                    "node, or another name if it is another job's");
  }
  return Resolve(address);
}

}  // namespace iris::port
