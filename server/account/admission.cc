#include "server/account/admission.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace iris::server {
namespace {

// irisd needs 64 descriptors itself. A session needs three (its socket, its pidfd, and its gRPC
// socket until a worker has it), a handshake two, and an admin connection one until a worker has
// it. A descriptor in flight needs one if its session has ended, whose socket is kept until the
// descriptor is received.
constexpr uint64_t kOwn = 64, kPerSession = 3, kPerHandshake = 2, kPerAdmin = 1;

uint64_t TakenWithoutSessions(const AdmissionLimits& limits) {
  return kOwn + limits.max_admin_connections * kPerAdmin + limits.max_unattested * kPerHandshake +
         limits.max_in_flight + limits.max_closing;
}

// Returns the number of taken places of `limit` from which on the applicant gets none.
uint64_t Usable(uint32_t limit, const Applicant& applicant) {
  return applicant.is_operator ? limit : limit - KeptForOperator(limit);
}

// Returns kResourceExhausted if the applicant may not have one more of `what`.
absl::Status Room(const TenantQueue& taken, const Applicant& applicant, uint32_t max_of_one,
                  uint32_t max, absl::string_view what, absl::string_view setting) {
  const uint64_t of_tenant = taken.of(applicant.tenant);
  if (of_tenant >= max_of_one) {
    return absl::ResourceExhaustedError(absl::StrCat(applicant.tenant.Text(), " has ", of_tenant,
                                                     " ", what, ", the limit of one tenant (see ",
                                                     setting, "_per_tenant)"));
  }
  if (taken.total() < Usable(max, applicant)) return absl::OkStatus();
  const uint64_t kept = max - Usable(max, applicant);
  return absl::ResourceExhaustedError(
      absl::StrCat("irisd has ", taken.total(), " ", what, " of all tenants; its limit is ", max,
                   kept == 0 ? "" : absl::StrCat(", of which ", kept, " are kept for the operator"),
                   " (see ", setting, ")"));
}

}  // namespace

AdmissionLimits FitToDescriptors(AdmissionLimits limits, uint64_t fd_limit) {
  // A quarter of all descriptors is kept for segments and pages.
  const auto fit = [](uint32_t wanted, uint64_t room) {
    return static_cast<uint32_t>(std::max<uint64_t>(1, std::min<uint64_t>(wanted, room)));
  };
  limits.max_admin_connections = fit(limits.max_admin_connections, fd_limit / 32);
  limits.max_unattested = fit(limits.max_unattested, fd_limit / 16);
  limits.max_in_flight = fit(limits.max_in_flight, std::max<uint64_t>(fd_limit / 8, 8));
  limits.max_closing = fit(limits.max_closing, std::max<uint64_t>(fd_limit / 16, 4));
  const uint64_t taken = fd_limit / 4 + TakenWithoutSessions(limits);
  const uint64_t room = fd_limit > taken ? (fd_limit - taken) / kPerSession : 0;
  limits.max_sessions = fit(limits.max_sessions, room);
  // One tenant may not take all places.
  limits.max_unattested_per_tenant =
      fit(limits.max_unattested_per_tenant, (limits.max_unattested + 1) / 2);
  limits.max_closing_per_tenant = fit(limits.max_closing_per_tenant, (limits.max_closing + 1) / 2);
  return limits;
}

uint64_t DescriptorsForMemory(const AdmissionLimits& fitted, uint64_t fd_limit) {
  const uint64_t taken = TakenWithoutSessions(fitted) + uint64_t{fitted.max_sessions} * kPerSession;
  return std::max<uint64_t>(fd_limit > taken ? fd_limit - taken : 0, fd_limit / 4);
}

Admission::Place::~Place() {
  if (queue_ != nullptr) queue_->Remove(applicant_.tenant, ticket_);
}

absl::Status Admission::Place::Attested() {
  absl::Status status = admission_->RoomForSession(applicant_);
  if (!status.ok()) return status;
  queue_->Remove(applicant_.tenant, ticket_);
  queue_ = &admission_->sessions_;
  ticket_ = queue_->Add(applicant_.tenant, 0);
  return absl::OkStatus();
}

void Admission::Place::Heard() {
  if (queue_ == nullptr || queue_ != &admission_->handshakes_) return;
  ticket_ = queue_->Renew(applicant_.tenant, ticket_);
}

absl::Status Admission::RoomForSession(const Applicant& applicant) const {
  return Room(sessions_, applicant, limits_.max_sessions_per_tenant, limits_.max_sessions,
              "sessions", "sessions.max");
}

std::optional<Admission::Evicted> Admission::WhoGoesForHandshake(const Applicant& applicant) const {
  const std::optional<TenantQueue::Oldest> own = handshakes_.OldestOf(applicant.tenant);
  if (own.has_value() && own->count >= limits_.max_unattested_per_tenant) {
    return Evicted{own->key, absl::UnavailableError(absl::StrCat(
                                 "the handshake was ended for a newer one of its tenant: ",
                                 applicant.tenant.Text(), " has ", own->count,
                                 " connections in the handshake, the limit of one tenant (see "
                                 "sessions.max_unattested_per_tenant); connect again"))};
  }
  if (handshakes_.total() < Usable(limits_.max_unattested, applicant)) return std::nullopt;
  const std::optional<TenantQueue::Oldest> most = handshakes_.OldestOfMost();
  if (!most.has_value()) return std::nullopt;
  const TenantQueue::Oldest& goes = own.has_value() && own->count >= most->count ? *own : *most;
  return Evicted{goes.key, absl::UnavailableError(absl::StrCat(
                               "the handshake was ended for a newer one: ", handshakes_.total(),
                               " connections of all tenants are in the handshake, the limit (see "
                               "sessions.max_unattested), and most of them, ",
                               goes.count, ", are of ", goes.tenant.Text(), "; connect again"))};
}

absl::StatusOr<Admission::Place> Admission::AdmitHandshake(const Applicant& applicant,
                                                           uint64_t key) {
  // A client that could not become a session need not begin a handshake.
  absl::Status status = RoomForSession(applicant);
  if (!status.ok()) return status;
  if (const auto evicted = WhoGoesForHandshake(applicant); evicted.has_value()) {
    return absl::ResourceExhaustedError(evicted->reason.message());
  }
  return Place(this, &handshakes_, applicant, key);
}

std::optional<Admission::Evicted> Admission::WhoGoesForAdmin(const Applicant& applicant) const {
  if (admins_.of(applicant.tenant) >= limits_.max_admin_connections_per_tenant) return std::nullopt;
  if (admins_.total() < Usable(limits_.max_admin_connections, applicant)) return std::nullopt;
  const std::optional<TenantQueue::Oldest> most = admins_.OldestOfMost();
  if (!most.has_value() || most->count <= admins_.of(applicant.tenant) + 1) return std::nullopt;
  return Evicted{most->key,
                 absl::UnavailableError(absl::StrCat(
                     "the connection on irisd.sock was ended for one of another tenant: ",
                     admins_.total(), " are open, the limit (see admin.max), and most of them, ",
                     most->count, ", are of ", most->tenant.Text()))};
}

absl::StatusOr<Admission::Place> Admission::AdmitAdmin(const Applicant& applicant, uint64_t key) {
  absl::Status status =
      Room(admins_, applicant, limits_.max_admin_connections_per_tenant,
           limits_.max_admin_connections, "connections on irisd.sock", "admin.max");
  if (!status.ok()) return status;
  return Place(this, &admins_, applicant, key);
}

}  // namespace iris::server
