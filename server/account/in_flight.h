// InFlight: the descriptors that clients were sent and have not received yet, of each tenant and of
// all. Pure; not thread-safe.
//
// The kernel charges them to irisd's user. An irisd without privileges may have no more of them
// than RLIMIT_NOFILE says; beyond that, nobody is sent one (ETOOMANYREFS). So irisd stays below,
// and a tenant may take more only as long as it leaves as many for others as it has itself: however
// much some clients leave unread, another tenant gets its own.
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
  // Counts those on one socket until it is destroyed. Move-only. The InFlight outlives it. A
  // default one is of no InFlight: it counts, and always has room.
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

    // Returns how many more may be sent now. Zero: the share is used up, and Why says whose.
    uint32_t Room() const { return of_ == nullptr ? ~0u : of_->Room(applicant_); }
    std::string Why() const { return of_ == nullptr ? "" : of_->Why(applicant_); }
    // Counts `n` more that were sent.
    void Add(uint32_t n);
    // Counts all as received, or thrown away.
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
