// InFlight: counts the descriptors that clients were sent and have not received yet, of each tenant
// and of all tenants. Pure; not thread-safe.
//
// The kernel charges these descriptors to irisd's user. If an irisd without privileges has more of
// them than RLIMIT_NOFILE, the kernel refuses to send any (ETOOMANYREFS). So irisd stays below
// that, and a tenant may take more only while it leaves as many for others as it has. Clients that
// leave descriptors unread thus do not prevent another tenant from getting its own.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "server/account/admission.h"
#include "server/account/party.h"

namespace iris::server {

class InFlight {
 public:
  // Counts the descriptors sent on one socket, until it is destroyed. Move-only. The InFlight
  // outlives it. A default-constructed Hold has no InFlight: it counts, and always has room.
  class Hold {
   public:
    Hold() = default;
    Hold(InFlight* of, const Applicant& applicant) : of_(of), applicant_(applicant) {}
    Hold(Hold&& other) noexcept { *this = std::move(other); }
    Hold& operator=(Hold&& other) noexcept {
      std::swap(of_, other.of_);
      std::swap(applicant_, other.applicant_);
      std::swap(count_, other.count_);
      return *this;
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    ~Hold() { Clear(); }

    // Returns how many more descriptors may be sent now. If it is zero, Why describes the shares of
    // the tenant and of all tenants.
    uint32_t Room() const { return of_ == nullptr ? ~0u : of_->Room(applicant_); }
    std::string Why() const { return of_ == nullptr ? "" : of_->Why(applicant_); }
    // Counts `n` more descriptors as sent.
    void Add(uint32_t n);
    // Counts all descriptors as received, or dropped by the client.
    void Clear();
    uint32_t count() const { return count_; }

   private:
    InFlight* of_ = nullptr;
    Applicant applicant_;
    uint32_t count_ = 0;
  };

  explicit InFlight(const AdmissionLimits& limits) : limits_(limits) {}
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  uint64_t total() const { return total_; }
  uint64_t of(const Party& tenant) const;

 private:
  uint32_t Room(const Applicant& applicant) const;
  std::string Why(const Applicant& applicant) const;

  const AdmissionLimits limits_;
  uint64_t total_ = 0;
  std::map<Party, uint64_t> by_tenant_;  // no zeros
};

}  // namespace iris::server
