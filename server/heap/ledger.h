// Ledger: how much physical memory of each device is created, and for whom. irisd's own account, because drivers
// over-report what is free. Pure; not thread-safe: the JobMachine's owner locks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace iris::server {

class Ledger {
 public:
  struct DeviceAccount {
    std::string uuid;
    uint64_t memory_bytes = 0;
    uint64_t granularity_bytes = 0;
    uint64_t used_bytes = 0;
  };

  explicit Ledger(std::vector<DeviceAccount> devices);

  // Books `bytes` of a device for `holder` ("job=train rank=2 uid=1000").
  // kResourceExhausted: the message says how much is free and who holds the most; nothing is booked.
  absl::Status Reserve(uint32_t device_index, uint64_t bytes, absl::string_view holder);

  // Takes back what Reserve booked. Checks (fatally) that it was.
  void Release(uint32_t device_index, uint64_t bytes, absl::string_view holder);

  const std::vector<DeviceAccount>& devices() const { return devices_; }
  // Index of a device by UUID; -1 if there is none.
  int IndexOf(absl::string_view uuid) const;
  uint64_t used_bytes_total() const;

 private:
  std::vector<DeviceAccount> devices_;
  std::vector<std::map<std::string, uint64_t>> holders_;  // per device
};

}  // namespace iris::server
