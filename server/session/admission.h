// Admission: who may still connect. It counts the connections of each user and of all users
// together against limits, and knows no socket. Pure; not thread-safe.
//
// What was admitted is a Place: a move-only object that gives the place back when it is destroyed.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace iris::server {

struct AdmissionLimits {
  uint32_t max_sessions = 4096;  // in total, unattested ones included
  uint32_t max_sessions_per_uid = 1024;
  uint32_t max_unattested = 256;  // in the handshake; one user may have half of them
  uint32_t max_admin_connections = 256;
  uint32_t max_admin_connections_per_uid = 64;
};

// What of `limits` fits into a limit of `fd_limit` descriptors, with room left for segments and
// pages.
AdmissionLimits FitToDescriptors(AdmissionLimits limits, uint64_t fd_limit);
// How many descriptors `fitted`, of FitToDescriptors, leaves for segments and pages.
uint64_t DescriptorsForMemory(const AdmissionLimits& fitted, uint64_t fd_limit);

// How many there are, in total and of each user.
class UserCount {
 public:
  uint64_t total() const { return total_; }
  uint64_t of(uint32_t uid) const {
    const auto it = by_uid_.find(uid);
    return it == by_uid_.end() ? 0 : it->second;
  }
  void Add(uint32_t uid);
  void Remove(uint32_t uid);

 private:
  uint64_t total_ = 0;
  std::unordered_map<uint32_t, uint64_t> by_uid_;  // no zeros
};

class Admission {
 public:
  // One place among the sessions or the admin connections. The Admission outlives it.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept { *this = std::move(other); }
    Place& operator=(Place&& other) noexcept {
      std::swap(uid_, other.uid_);
      std::swap(held_, other.held_);
      std::swap(unattested_, other.unattested_);
      return *this;
    }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    ~Place() {
      Attested();
      if (held_ != nullptr) held_->Remove(uid_);
    }

    // The handshake is over: the place no longer counts among the unattested. Idempotent.
    void Attested() {
      if (unattested_ != nullptr) std::exchange(unattested_, nullptr)->Remove(uid_);
    }

   private:
    friend class Admission;
    Place(uint32_t uid, UserCount* held, UserCount* unattested);

    uint32_t uid_ = 0;
    UserCount* held_ = nullptr;
    UserCount* unattested_ = nullptr;
  };

  explicit Admission(const AdmissionLimits& limits) : limits_(limits) {}
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // kResourceExhausted: which limit is reached, and by how many.
  absl::StatusOr<Place> AdmitSession(uint32_t uid);  // counts as unattested at first
  absl::StatusOr<Place> AdmitAdmin(uint32_t uid);

  uint64_t n_sessions() const { return sessions_.total(); }
  const AdmissionLimits& limits() const { return limits_; }

 private:
  const AdmissionLimits limits_;
  UserCount sessions_;
  UserCount unattested_;  // of the sessions
  UserCount admins_;
};

}  // namespace iris::server
