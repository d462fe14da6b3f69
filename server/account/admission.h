// Admission: decides which clients may connect. It counts the handshakes, the sessions and the
// connections on irisd.sock of each tenant, and of all tenants together, against limits, and names
// the client that must make room for another. It uses no socket. Pure; not thread-safe.
//
// A handshake has a place of its own, which becomes a session's place when the handshake is
// finished, so silent clients take no sessions. A waiting handshake can be ended at any time, so
// silent clients cannot lock others out:
//
//   the tenant's limit is reached    its own oldest goes
//   the limit of all is reached      the oldest of the tenant that has most goes; never one of a
//                                    tenant that has fewer than the newcomer's
//
// A connection on irisd.sock is ended only for a tenant that then has no more connections than the
// tenant that lost one. A session is never ended for another one. A few places of each kind are
// reserved for the operator (PartyFinder::IsOperator).
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/account/party.h"
#include "server/account/tenant_queue.h"

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
  uint32_t max_closing = 4096;  // descriptors of clients that take long to close, in total
  uint32_t max_closing_per_tenant = 2048;
};

// Returns `limits` reduced to what a limit of `fd_limit` descriptors allows, with room left for
// segments and pages.
AdmissionLimits FitToDescriptors(AdmissionLimits limits, uint64_t fd_limit);
// Returns how many descriptors are left for segments and pages with `fitted` limits.
uint64_t DescriptorsForMemory(const AdmissionLimits& fitted, uint64_t fd_limit);

// Returns how many places of `limit` are reserved for the operator: none of a very small limit.
constexpr uint32_t KeptForOperator(uint32_t limit) { return limit < 64 ? limit / 8 : 8; }

// A client that asks for a place.
struct Applicant {
  Party tenant;
  bool is_operator = false;
};

class Admission {
 public:
  // One place, which the destructor releases. Move-only. The Admission outlives it.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept { *this = std::move(other); }
    Place& operator=(Place&& other) noexcept {
      std::swap(admission_, other.admission_);
      std::swap(queue_, other.queue_);
      std::swap(applicant_, other.applicant_);
      std::swap(ticket_, other.ticket_);
      return *this;
    }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    ~Place();

    // Turns the handshake's place into a session's. Returns kResourceExhausted if a limit is
    // reached; the message names the limit and its tenant. The place is unchanged then.
    absl::Status Attested();
    // Notes that this handshake's client sent a frame: others have now been silent for longer.
    void Heard();

   private:
    friend class Admission;
    Place(Admission* admission, TenantQueue* queue, const Applicant& applicant, uint64_t key)
        : admission_(admission),
          queue_(queue),
          applicant_(applicant),
          ticket_(queue->Add(applicant.tenant, key)) {}

    Admission* admission_ = nullptr;
    TenantQueue* queue_ = nullptr;  // null: no place
    Applicant applicant_;
    TenantQueue::Ticket ticket_ = 0;
  };

  // A client that must be ended before there is room.
  struct Evicted {
    uint64_t key = 0;     // the key with which it was admitted
    absl::Status reason;  // for the client: kUnavailable, with the limit and its tenant
  };

  explicit Admission(const AdmissionLimits& limits) : limits_(limits) {}
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // Return the client that must be ended first. Return nothing if no client must be ended, or none
  // may be. Ask again when that client has gone, has finished its handshake, or was Heard.
  std::optional<Evicted> WhoGoesForHandshake(const Applicant& applicant) const;
  std::optional<Evicted> WhoGoesForAdmin(const Applicant& applicant) const;

  // Admit a client, which the two functions above then name by `key`. Return kResourceExhausted if
  // a limit is reached; the message names the limit and its tenant.
  absl::StatusOr<Place> AdmitHandshake(const Applicant& applicant, uint64_t key);
  absl::StatusOr<Place> AdmitAdmin(const Applicant& applicant, uint64_t key);

  // Lower limits do not end sessions and connections that were already admitted.
  void SetLimits(const AdmissionLimits& limits) { limits_ = limits; }

  uint64_t n_sessions() const { return sessions_.total(); }
  uint64_t sessions_of(const Party& tenant) const { return sessions_.of(tenant); }
  uint64_t admin_connections_of(const Party& tenant) const { return admins_.of(tenant); }
  uint64_t n_handshakes() const { return handshakes_.total(); }
  const AdmissionLimits& limits() const { return limits_; }

 private:
  absl::Status RoomForSession(const Applicant& applicant) const;

  AdmissionLimits limits_;
  TenantQueue handshakes_;
  TenantQueue sessions_;
  TenantQueue admins_;
};

}  // namespace iris::server
