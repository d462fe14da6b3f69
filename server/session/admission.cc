#include "server/session/admission.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace iris::server {
namespace {

// 64 descriptors are irisd's own. A session costs four (its socket, its pidfd, gRPC's socket and
// its duplicate), an admin connection two.
constexpr uint64_t kOwn = 64, kPerSession = 4, kPerAdmin = 2;

}  // namespace

AdmissionLimits FitToDescriptors(AdmissionLimits limits, uint64_t fd_limit) {
  // A quarter of all is kept for segments and pages.
  const auto fit = [](uint32_t wanted, uint64_t room) {
    return static_cast<uint32_t>(std::max<uint64_t>(1, std::min<uint64_t>(wanted, room)));
  };
  limits.max_admin_connections = fit(limits.max_admin_connections, fd_limit / 32);
  const uint64_t taken = fd_limit / 4 + kOwn + limits.max_admin_connections * kPerAdmin;
  const uint64_t room = fd_limit > taken ? (fd_limit - taken) / kPerSession : 0;
  limits.max_sessions = fit(limits.max_sessions, room);
  limits.max_unattested = fit(limits.max_unattested, limits.max_sessions);
  return limits;
}

uint64_t DescriptorsForMemory(const AdmissionLimits& fitted, uint64_t fd_limit) {
  const uint64_t taken =
      kOwn + fitted.max_admin_connections * kPerAdmin + uint64_t{fitted.max_sessions} * kPerSession;
  return std::max<uint64_t>(fd_limit > taken ? fd_limit - taken : 0, fd_limit / 4);
}

void UserCount::Add(uint32_t uid) {
  ++total_;
  ++by_uid_[uid];
}

void UserCount::Remove(uint32_t uid) {
  --total_;
  const auto it = by_uid_.find(uid);
  if (--it->second == 0) by_uid_.erase(it);
}

Admission::Place::Place(uint32_t uid, UserCount* held, UserCount* unattested)
    : uid_(uid), held_(held), unattested_(unattested) {
  held_->Add(uid_);
  if (unattested_ != nullptr) unattested_->Add(uid_);
}

absl::StatusOr<Admission::Place> Admission::AdmitSession(uint32_t uid) {
  if (sessions_.total() >= limits_.max_sessions) {
    return absl::ResourceExhaustedError(
        absl::StrCat("irisd has ", sessions_.total(), " sessions, its limit (see max_sessions)"));
  }
  if (sessions_.of(uid) >= limits_.max_sessions_per_uid) {
    return absl::ResourceExhaustedError(
        absl::StrCat("uid ", uid, " has ", sessions_.of(uid),
                     " sessions, its limit (see max_sessions_per_uid)"));
  }
  if (unattested_.total() >= limits_.max_unattested) {
    return absl::ResourceExhaustedError(absl::StrCat(
        unattested_.total(), " connections have not finished their handshake, the limit"));
  }
  // One user may not take the places of all.
  if (unattested_.of(uid) >= std::max(1u, limits_.max_unattested / 2)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(unattested_.of(uid), " connections of uid ", uid,
                     " have not finished their handshake, the limit of one user"));
  }
  return Place(uid, &sessions_, &unattested_);
}

absl::StatusOr<Admission::Place> Admission::AdmitAdmin(uint32_t uid) {
  if (admins_.total() >= limits_.max_admin_connections) {
    return absl::ResourceExhaustedError(
        absl::StrCat("irisd has ", admins_.total(), " connections on irisd.sock, its limit"));
  }
  if (admins_.of(uid) >= limits_.max_admin_connections_per_uid) {
    return absl::ResourceExhaustedError(absl::StrCat("uid ", uid, " has ", admins_.of(uid),
                                                     " connections on irisd.sock, its limit"));
  }
  return Place(uid, &admins_, nullptr);
}

}  // namespace iris::server
