// Ledger: counts how much physical memory of each device is created, and for which ranks, because
// drivers over-report free memory. Pure; not thread-safe: the JobMachine holds it.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/account/party.h"

namespace iris::server {

class Ledger {
 public:
  struct DeviceAccount {
    std::string uuid;
    uint64_t memory_bytes = 0;
    uint64_t granularity_bytes = 0;
    uint64_t used_bytes = 0;
    // The free memory that the driver last reported, which other programs share; absent if none.
    std::optional<uint64_t> driver_free_bytes = std::nullopt;
  };
  // A rank's part of a device.
  struct Holder {
    std::string job;
    uint32_t rank = 0;
    Party party;
    friend auto operator<=>(const Holder&, const Holder&) = default;
  };

  // Callers with `operator_uid`, like root, see the jobs of all users.
  explicit Ledger(std::vector<DeviceAccount> devices, uint32_t operator_uid = 0);

  // Books `bytes` of a device. kResourceExhausted books nothing; its message ends with Describe.
  absl::Status Reserve(uint32_t device_index, uint64_t bytes, const Holder& holder);

  // Releases what Reserve booked. Checks (fatally) that it was booked.
  void Release(uint32_t device_index, uint64_t bytes, const Holder& holder);

  // Returns text for a message to `viewer`: how much of the device is free, and which jobs hold the
  // rest. Jobs of other users appear as a sum.
  std::string Describe(uint32_t device_index, const Party& viewer) const;

  void SetDriverFree(uint32_t device_index, uint64_t bytes);

  const std::vector<DeviceAccount>& devices() const { return devices_; }
  // Returns the index of a device by UUID; -1 if there is none.
  int IndexOf(absl::string_view uuid) const;
  uint64_t used_bytes_total() const;

 private:
  std::vector<DeviceAccount> devices_;
  const uint32_t operator_uid_;
  std::vector<std::map<Holder, uint64_t>> holders_;  // per device
};

}  // namespace iris::server
