#include "server/heap/ledger.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/heap/check.h"

namespace iris::server {

Ledger::Ledger(std::vector<DeviceAccount> devices)
    : devices_(std::move(devices)), holders_(devices_.size()) {}

absl::Status Ledger::Reserve(uint32_t device_index, uint64_t bytes, absl::string_view holder) {
  IRIS_CHECK(device_index < devices_.size(), "a ledger is asked for a device that it has");
  DeviceAccount& device = devices_[device_index];
  auto& holders = holders_[device_index];
  // used_bytes may exceed memory_bytes only if the account began that way.
  const uint64_t free_bytes =
      device.used_bytes < device.memory_bytes ? device.memory_bytes - device.used_bytes : 0;
  if (bytes > free_bytes) {
    std::string text = absl::StrCat("reserve ", bytes, " bytes on device ", device_index, " (",
                                    device.uuid, ") for ", holder, ": ", free_bytes, " of ",
                                    device.memory_bytes, " bytes are free");
    const std::pair<const std::string, uint64_t>* most = nullptr;
    for (const auto& entry : holders) {
      if (most == nullptr || entry.second > most->second) most = &entry;
    }
    if (most != nullptr)
      absl::StrAppend(&text, "; ", most->first, " holds the most, ", most->second);
    return absl::ResourceExhaustedError(text);
  }
  device.used_bytes += bytes;
  holders[std::string(holder)] += bytes;
  return absl::OkStatus();
}

void Ledger::Release(uint32_t device_index, uint64_t bytes, absl::string_view holder) {
  IRIS_CHECK(device_index < devices_.size(), "a ledger is asked for a device that it has");
  auto& holders = holders_[device_index];
  const auto found = holders.find(std::string(holder));
  IRIS_CHECK(found != holders.end() && found->second >= bytes,
             "memory is released by who booked it");
  found->second -= bytes;
  if (found->second == 0) holders.erase(found);
  IRIS_CHECK(devices_[device_index].used_bytes >= bytes, "what is released was used");
  devices_[device_index].used_bytes -= bytes;
}

int Ledger::IndexOf(absl::string_view uuid) const {
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].uuid == uuid) return static_cast<int>(i);
  }
  return -1;
}

uint64_t Ledger::used_bytes_total() const {
  uint64_t total = 0;
  for (const DeviceAccount& device : devices_) total += device.used_bytes;
  return total;
}

}  // namespace iris::server
