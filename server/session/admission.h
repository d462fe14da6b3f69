// Admission: who may still connect. It counts the handshakes, the sessions and the connections on
// irisd.sock of each tenant, and of all tenants together, against limits; it says who makes room
// where somebody has to. It knows no socket. Pure; not thread-safe.
//
// A handshake is a place of its own: it becomes a session when it is finished. So those who connect
// and say nothing take nobody's session. A handshake that waits can be ended at any time, and that
// is how any number of silent ones can lock nobody out:
//
//   the tenant's limit is reached    its own oldest goes
//   the limit of all is reached      the oldest of the tenant that has most goes; never one of a
//                                    tenant that has fewer than the newcomer's
//
// A connection on irisd.sock goes only for a tenant that then has no more of them than the one that
// lost it. A session is never ended for another one.
//
// A few places of each kind are kept for the operator (PartyFinder::IsOperator).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/account/party.h"
#include "server/session/tenant_queue.h"

namespace iris::server {

struct AdmissionLimits {
  uint32_t max_sessions = 4096;  // in total
  uint32_t max_sessions_per_tenant = 1024;
  uint32_t max_unattested = 1024;  // handshakes, in total
  uint32_t max_unattested_per_tenant = 512;
  uint32_t max_admin_connections = 256;
  uint32_t max_admin_connections_per_tenant = 64;
  uint32_t max_in_flight = 4096;  // descriptors sent and not received, in total
  uint32_t max_in_flight_per_tenant = 2048;
  // Descriptors that came from clients and take long to close.
  uint32_t max_closing = 4096;  // in total
  uint32_t max_closing_per_tenant = 2048;
};

// What of `limits` fits into a limit of `fd_limit` descriptors, with room left for segments and
// pages.
AdmissionLimits FitToDescriptors(AdmissionLimits limits, uint64_t fd_limit);
// How many descriptors `fitted`, of FitToDescriptors, leaves for segments and pages.
uint64_t DescriptorsForMemory(const AdmissionLimits& fitted, uint64_t fd_limit);

// How many places of `limit` only the operator may take: none of a very small limit.
constexpr uint32_t KeptForOperator(uint32_t limit) { return limit < 64 ? limit / 8 : 8; }

// Who asks for a place.
struct Applicant {
  Party tenant;
  bool is_operator = false;
};

class Admission {
 public:
  // One place, which it gives back when it is destroyed. Move-only. The Admission outlives it.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept { *this = std::move(other); }
    Place& operator=(Place&& other) noexcept {
      std::swap(admission_, other.admission_);
      std::swap(kind_, other.kind_);
      std::swap(applicant_, other.applicant_);
      std::swap(ticket_, other.ticket_);
      return *this;
    }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    ~Place();

    // The handshake is over: its place becomes one of a session. kResourceExhausted: which limit is
    // reached, and whose; the place is unchanged.
    absl::Status Attested();
    // The client of this handshake has said something: others count as silent for longer.
    void Heard();

   private:
    friend class Admission;
    enum class Kind { kNone, kHandshake, kSession, kAdmin };
    Place(Admission* admission, Kind kind, const Applicant& applicant, TenantQueue::Ticket ticket)
        : admission_(admission), kind_(kind), applicant_(applicant), ticket_(ticket) {}

    Admission* admission_ = nullptr;
    Kind kind_ = Kind::kNone;
    Applicant applicant_;
    TenantQueue::Ticket ticket_ = 0;
  };

  // Somebody who has to go before there is room.
  struct Evicted {
    uint64_t key = 0;     // as it was admitted
    absl::Status reason;  // for its client: kUnavailable, with the limit and whose it is
  };

  explicit Admission(const AdmissionLimits& limits) : limits_(limits) {}
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // Who has to go first; nothing if nobody has to, or if nobody may. Ask again when it has gone, or
  // has finished its handshake meanwhile, or Heard.
  std::optional<Evicted> WhoGoesForHandshake(const Applicant& applicant) const;
  std::optional<Evicted> WhoGoesForAdmin(const Applicant& applicant) const;

  // `key` names the newcomer to WhoGoes. kResourceExhausted: which limit is reached, and whose.
  absl::StatusOr<Place> AdmitHandshake(const Applicant& applicant, uint64_t key);
  absl::StatusOr<Place> AdmitAdmin(const Applicant& applicant, uint64_t key);

  // Who has a place keeps it.
  void SetLimits(const AdmissionLimits& limits) { limits_ = limits; }

  uint64_t n_sessions() const { return sessions_.total(); }
  uint64_t sessions_of(const Party& tenant) const { return sessions_.of(tenant); }
  uint64_t admin_connections_of(const Party& tenant) const { return admins_.of(tenant); }
  uint64_t n_handshakes() const { return handshakes_.total(); }
  const AdmissionLimits& limits() const { return limits_; }

 private:
  TenantQueue& Of(Place::Kind kind);
  absl::Status RoomForSession(const Applicant& applicant) const;

  AdmissionLimits limits_;
  TenantQueue handshakes_;
  TenantQueue sessions_;
  TenantQueue admins_;
};

}  // namespace iris::server
